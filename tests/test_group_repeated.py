"""A small commit is repeated in its offer and in the fence: other clients need not read it."""

from __future__ import annotations

import threading
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from test_group_table import HOW, before_fence, judged, published, rows, spy, values

from lockkit.clock import Clock
from lockkit.runtime import run
from lockkit.runtime.proven import create
from lockkit.stores import open_store
from lockkit.table import Table
from lockkit.table.errors import TableError
from lockkit.table.format.timeline import V9
from lockkit.table.occ.covered import CheckedHorizon, settle
from lockkit.table.occ.fence import COMMIT, NO_INSTANT, digest
from lockkit.table.occ.group import decision as group
from lockkit.table.occ.group.decision import GroupDecision, GroupFence, Offer, decide
from lockkit.table.occ.group.fence import (
    format_group_fence,
    packed,
    parse_group_fence,
    read_group_fence,
    unpacked,
)
from lockkit.table.occ.group.offer import offered_as
from lockkit.table.occ.group.outcomes import decided_body
from lockkit.table.occ.group.tail import load_decided, load_with_tail
from lockkit.table.occ.group.view import GroupView

T1, T2 = "20260101000000000", "20260101000000008"


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"file://{tmp_path}/orders"
    Table.create(made, **HOW).close()
    return made


def test_a_decision_repeats_a_small_inflight_file_and_no_long_one() -> None:
    body, long = b"small" * 100, b"".join(sha256(bytes([n])).digest() for n in range(100))
    assert packed(long) == "" != packed(body)
    offers = [Offer(T1, 0, sha256=digest(body), body=packed(body), reserved=True),
              Offer(T2, 0, sha256=digest(long), body=packed(long), reserved=True)]  # fmt: skip
    after = parse_group_fence(format_group_fence(decide(GroupFence("a"), offers, attempt="b")))
    assert [unpacked(each) for each in after.window] == [body, None]


def test_a_repeated_body_that_is_not_what_was_decided_is_not_used() -> None:
    entry = GroupDecision(1, 1, COMMIT, T1, sha256=digest(b"right"), body=packed(b"right"))
    assert unpacked(entry) == b"right"
    for wrong in (packed(b"wrong"), "not packed", "é"):
        assert unpacked(replace(entry, body=wrong)) is None


def test_the_window_keeps_the_bodies_of_the_newest_decisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = packed(b"body")
    monkeypatch.setattr(group, "BODIES_MAX", 2 * len(body))
    offers = [Offer(f"2026010100000000{n}", 0, body=body, reserved=True) for n in range(4)]
    first = decide(GroupFence("a"), offers[:3], attempt="b")
    kept = [decide(first, offers[3:], attempt="c", proven=each).window for each in ({1, 2}, {2})]
    assert [each.body for each in kept[0]] == ["", "", body, body]
    assert [each.body for each in kept[1]] == [body] * 4, "the first is not proven to be published"


def test_an_upsert_reads_no_commit_that_the_fence_repeats(url: str) -> None:
    asked: list[str] = []
    with Table(url) as one, Table(url) as other:
        one.append(rows("a"))
        other.append(rows("b"))
        one.upsert(rows("a", v=1))
        other.upsert(rows("b", v=1))
        published(one)
        published(other)
        spy(one, asked.append)
        one.upsert(rows("a", v=2))
    assert values(url) == judged(url) == {"a": 2, "b": 1}
    read = [each for each in asked if each.startswith("get") and "timeline" in each]
    assert not read, "the other writer's upsert is in the fence"


def test_a_small_commit_has_no_inflight_file(url: str) -> None:
    with Table(url) as table:
        table.append(rows("a"))
        table.upsert(rows("a", v=1))
        published(table)
        table.overwrite(rows("b"), whole_table=True)
    assert values(url) == judged(url) == {"b": 0}
    timeline = Path(url.removeprefix("file://")) / ".hoodie/timeline"
    assert [each.name.partition(".")[2] for each in timeline.glob("*.inflight")] == [
        "replacecommit.inflight"
    ]


@pytest.mark.parametrize("columns", ["c" * 16, "d" * 16])
def test_an_append_that_another_client_has_decided_is_published_from_its_offer(
    url: str, columns: str
) -> None:
    """Its name has the columns that it was offered with; the fence's may have changed since."""
    store, body = open_store(url), b"the commit"
    offer = Offer(T1, 0, schema="c" * 16, sha256=digest(body), blind=True, body=packed(body))
    run(create(*offered_as(V9, offer, body)), store, Clock())
    empty = GroupFence("a", completion=NO_INSTANT)
    fence = replace(decide(empty, [replace(offer, body="")], attempt="b"), schema=columns)
    entry = replace(fence.window[0], schema="")
    assert run(decided_body(GroupView(fence, "", {}, frozenset()), entry), store, Clock()) == body


def test_a_writer_does_not_wait_for_what_is_decided_and_not_published(url: str) -> None:
    store = open_store(url)
    with Table(url) as table:
        table.append(rows("a"))
        published(table)

        def before(request: str) -> None:
            if request.startswith("put") and request.endswith(".commit"):
                raise TableError("its process is gone")

        spy(table, before)
        hidden = table.append(rows("b")).instant
        published(table)
    now = run(load_with_tail(V9, ""), store, Clock())
    assert now.tail == {hidden} <= now.completed.keys()
    assert hidden not in now.pending
    assert settle(CheckedHorizon(), now, now.commits).horizon < hidden, "an earlier one may follow"
    timeline = Path(url.removeprefix("file://")) / ".hoodie/timeline"
    assert not list(timeline.glob(f"{hidden}_*")), "nobody has published it"
    assert run(load_decided(V9), store, Clock()).tail == frozenset()
    assert list(timeline.glob(f"{hidden}_*")), "a reader publishes it"


def test_a_commit_is_published_once_though_threads_of_its_process_wait_for_it(url: str) -> None:
    asked: list[str] = []
    with Table(url) as one:
        one.append(rows("a"))
        published(one)  # its thread would publish the next ones too
        spy(one, asked.append)
        for number in range(6):
            one.append(rows(f"{number}"))
        published(one)
    puts = [each for each in asked if each.startswith("put") and each.endswith(".commit")]
    assert len(puts) == len(set(puts)) == 6, asked
    assert run(read_group_fence(), open_store(url), Clock())[0].combiner


def test_who_loses_the_fence_is_decided_by_another_one(url: str) -> None:
    asked: list[str] = []
    done = threading.Event()
    with Table(url) as one, Table(url) as other:
        one.append(rows("a"))
        other.append(rows("b"))
        before_fence(one, lambda: other.append(rows("c")))
        helper = threading.Thread(target=lambda: (done.wait(30), other.append(rows("e"))))
        helper.start()

        def before(request: str) -> None:
            asked.append(request)
            if request.startswith("put") and request.endswith(".append"):
                done.set()

        spy(one, before)
        one.append(rows("d"))
        helper.join()
    assert values(url) == judged(url) == dict.fromkeys("abcde", 0)
