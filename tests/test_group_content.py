"""Who could destroy the only copy of what a decided commit says, before it is published."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from test_group_table import (
    HOW,
    VERSIONS,
    in_child,
    judged,
    names_at,
    published,
    rows,
    spy,
    timeline,
    values,
)

from lockkit.cli.main import main
from lockkit.clock import Clock
from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import Violated
from lockkit.lab.verify.table.owners import Owners
from lockkit.protocol.outcome import IfAbsent, Missing
from lockkit.runtime import Delete, Put, run
from lockkit.runtime.proven import create
from lockkit.stores import open_store
from lockkit.table import Table
from lockkit.table.errors import NewerFence
from lockkit.table.format.properties import PROPERTIES_KEY
from lockkit.table.format.timeline import V9
from lockkit.table.occ.fence import FENCE_KEY, GROUP_FORMAT, NO_INSTANT, digest
from lockkit.table.occ.group import outcomes as group_outcomes
from lockkit.table.occ.group.client import GroupClient, GroupWrite
from lockkit.table.occ.group.decision import GroupFence, Offer, decide
from lockkit.table.occ.group.fence import (
    format_group_fence,
    packed,
    parse_group_fence,
    unpacked,
)
from lockkit.table.occ.group.offer import missed_conflict, offered_as
from lockkit.table.occ.group.outcomes import decided_body, stays
from lockkit.table.occ.group.view import GroupView

T1, T2 = "20260101000000001", "20260101000000002"


@pytest.fixture(params=VERSIONS)
def url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    made = f"file://{tmp_path}/orders"
    Table.create(made, **HOW, version=request.param).close()
    return made


def at(url: str, key: str) -> Path:
    return Path(url.removeprefix("file://")) / key


def killed(url: str, work: Callable[[Table], object]) -> None:
    """Its commit is acknowledged, and its process is killed before it publishes."""
    def child() -> None:
        table = Table(url)

        def before(request: str) -> None:
            if request.startswith("put") and request.endswith(".commit"):
                os.kill(os.getpid(), signal.SIGKILL)

        spy(table, before)
        work(table)
        signal.pause()

    os.waitpid(in_child(child), 0)


def only_in_offer(url: str) -> str:
    """An append that another client decided by its offer's name; both are dead. Its instant."""
    with Table(url) as table:
        table.append(rows("a", "b"))
        published(table)
    killed(url, lambda table: table.append(rows("q")))
    fence = parse_group_fence(at(url, FENCE_KEY).read_bytes())
    mine = fence.window[-1]
    body = unpacked(mine)
    assert body is not None
    by_name = Offer(mine.instant, 0, sha256=mine.sha256, schema=mine.schema or fence.schema,
                    blind=True, table=fence.table, body=mine.body)  # fmt: skip
    key, content = offered_as(names_at(url), by_name, body)
    at(url, key).write_bytes(content)
    left = replace(fence, window=(*fence.window[:-1], replace(mine, body="")))
    at(url, FENCE_KEY).write_bytes(format_group_fence(left))
    return mine.instant


def grow(url: str) -> None:
    with Table(url) as table:
        table.append(pa.table({"id": ["g"], "region": ["EU"], "v": [0], "more": ["new"]}))


def by_handle(use: Callable[[Table], object]) -> Callable[[str], object]:
    def act(url: str) -> object:
        with Table(url) as table:
            return use(table)

    return act


HELD = {"a": 0, "b": 0, "q": 0}
USES: dict[str, tuple[Callable[[str], object], dict[str, int]]] = {
    "a look alone": (lambda _: None, HELD),
    "an append": (by_handle(lambda table: table.append(rows("n"))), HELD | {"n": 0}),
    "a delete": (by_handle(lambda table: table.delete(rows("q"))), {"a": 0, "b": 0}),
    "an overwrite": (by_handle(lambda table: table.overwrite(rows("o"))), {"o": 0}),
    "a new column": (grow, HELD | {"g": 0}),
    "a clustering": (by_handle(Table.cluster), HELD),
    "a clean": (by_handle(Table.clean), HELD),
    "a rollback of the dead": (lambda url: main(["table", "rollback", url]), HELD),
    "a switch of the mode": (lambda url: main(["table", "mode", url, "fenced", "--yes"]), HELD),
    "a switch to Hudi's": (lambda url: main(["table", "mode", url, "hudi", "--yes"]), HELD),
    "a fence repair": (lambda url: main(["table", "repair-fence", url]), HELD),
    "an archive": (lambda url: main(["table", "archive", url]), HELD),
    "an incident": (lambda url: main(["incident", url]), HELD),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_a_commit_that_only_its_offer_has_outlives(url: str, use: str) -> None:
    only_in_offer(url)
    act, held = USES[use]
    act(url)
    assert values(url) == judged(url) == held


@pytest.mark.parametrize("use", ["a look alone", "a clean", "a switch of the mode", "an archive"])
def test_a_commit_that_only_the_fence_has_outlives(url: str, use: str) -> None:
    with Table(url) as table:
        table.append(rows("a"))
        published(table)
    killed(url, lambda table: table.upsert(rows("b", "q")))
    assert not list(timeline(url).glob("*.append"))
    act, held = USES[use]
    act(url)
    assert values(url) == judged(url) == held


def test_a_rollback_of_its_instant_is_refused(url: str) -> None:
    instant = only_in_offer(url)
    assert main(["table", "rollback", url, "--instant", instant]) != 0
    assert values(url) == judged(url) == HELD


def test_a_table_that_was_moved_away_for_a_while_keeps_its_commits(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its publisher looks whether the table is still there, and finds nothing."""
    monkeypatch.setattr(group_outcomes, "SURE_MS", 0)
    with Table(url) as table:
        table.append(rows("a"))
        published(table)
    store, away = open_store(url), [FENCE_KEY, PROPERTIES_KEY]

    class Moved:
        def __getattr__(self, name: str) -> Any:
            return self.read if name == "get" else getattr(store, name)

        def read(self, key: str, *given: Any, **how: Any) -> Any:
            if key in away:
                away.remove(key)
                return Missing()
            return store.get(key, *given, **how)

    fence = parse_group_fence(at(url, FENCE_KEY).read_bytes())
    assert run(stays(GroupClient(names=names_at(url)), fence, 1), Moved(), Clock())
    assert values(url) == judged(url) == {"a": 0}


def test_another_offer_in_its_name_does_not_hide_what_was_decided(url: str) -> None:
    store, body = open_store(url), b"the commit"
    mine = Offer(T1, 0, schema="c" * 16, sha256=digest(body), blind=True, body=packed(body))
    other = replace(mine, schema="a" * 16, sha256=digest(b"another"))
    for each, content in ((mine, body), (other, b"another")):
        run(create(*offered_as(V9, each, content)), store, Clock())
    fence = decide(GroupFence("a", completion=T1), [replace(mine, body="")], attempt="b")
    view = GroupView(replace(fence, schema="d" * 16), "", {}, frozenset())
    entry = replace(fence.window[0], schema="")
    assert run(decided_body(view, entry), store, Clock()) == body


def test_a_listed_commit_whose_file_is_gone_counts_as_a_conflict(url: str) -> None:
    """It was archived since, and nothing shows what it wrote."""
    view = GroupView(GroupFence("a"), "", {}, frozenset({f"{V9.folder}{T1}_{T1}.commit"}))
    write = GroupWrite(T2, "mine", 0, frozenset())
    store = open_store(url)
    view.fence, write.horizon = parse_group_fence(at(url, FENCE_KEY).read_bytes()), NO_INSTANT
    assert run(missed_conflict(GroupClient(), view, write), store, Clock())


# --- the fence's format ---------------------------------------------------------------------------


def earlier(url: str) -> None:
    """As a lockkit left it that gives each commit an inflight file."""
    for key, new, old in (
        (FENCE_KEY, f'"format":{GROUP_FORMAT}', '"format":3'),
        (PROPERTIES_KEY, f"format={GROUP_FORMAT}", "format=3"),
    ):
        text = at(url, key).read_text()
        assert new in text
        at(url, key).write_text(text.replace(new, old))


def test_the_first_commit_gives_the_fence_of_an_earlier_lockkit_its_format(url: str) -> None:
    earlier(url)
    formats = []

    def before(request: str) -> None:
        if request == f"put {FENCE_KEY}":
            fence = json.loads(at(url, FENCE_KEY).read_bytes())
            formats.append((fence["format"], len(fence["window"])))

    with Table(url) as table:
        spy(table, before)
        table.append(rows("a"))
        table.upsert(rows("b"))
    assert formats[:2] == [(3, 0), (GROUP_FORMAT, 0)], "it decides nothing under the earlier one"
    assert values(url) == judged(url) == {"a": 0, "b": 0}
    assert not list(timeline(url).glob("*.inflight"))


def test_services_leave_the_fence_of_an_earlier_lockkit_as_it_is(url: str) -> None:
    earlier(url)
    with Table(url) as table:
        table.clean()
        table.read()
    assert main(["table", "rollback", url]) == 0
    assert json.loads(at(url, FENCE_KEY).read_bytes())["format"] == 3


def test_a_fence_of_a_later_format_is_refused_by_name(url: str) -> None:
    later = GROUP_FORMAT + 1
    text = at(url, FENCE_KEY).read_text()
    at(url, FENCE_KEY).write_text(text.replace(f'"format":{GROUP_FORMAT}', f'"format":{later}'))
    with Table(url) as table, pytest.raises(NewerFence, match=f"has format {later}"):
        table.append(rows("a"))


# --- the judge ------------------------------------------------------------------------------------


@pytest.mark.parametrize("archived", [T1, T2])
def test_the_judge_expects_no_decision_about_what_may_be_archived(archived: str) -> None:
    """Up to there a fence decides nothing, and a late request is rolled back without one."""
    owners, key = Owners(), f"{V9.folder}{T2}.replacecommit.requested"

    def wrote(client: str, key: str, body: bytes | None) -> None:
        after = None if body is None else StoredObject(body, "1", 0)
        request = Delete(key) if body is None else Put(key, body, IfAbsent())
        owners.on_write(key, DecidedRequest(0, client, request, None, "", "", 0), after)

    wrote("W1", key, b"late")
    wrote("S1", FENCE_KEY, format_group_fence(GroupFence("a", archived=archived)))
    with nullcontext() if archived == T2 else pytest.raises(Violated, match="is W1's"):
        wrote("S1", key, None)
