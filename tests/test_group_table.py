"""A table with group commit: writers, readers, killed processes; hudi-rs is the second reader."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_rs import read_by_hudi_rs
from went_wrong import went_wrong

from lockkit.cli.main import main
from lockkit.clock import Clock
from lockkit.errors import StoreError, TableError
from lockkit.lab.verify.sim import simulate
from lockkit.lab.verify.table.scenario import TOGETHER
from lockkit.protocol.outcome import Applied, Found, IfAbsent, IfVersion
from lockkit.runtime import run
from lockkit.runtime.proven import delete
from lockkit.stores import open_store
from lockkit.table import CommitConflict, CommitUnknown, Table, TableConfig
from lockkit.table.errors import BrokenFence, ModeSwitched, NewerFence
from lockkit.table.format.plans import format_overwrite_plan
from lockkit.table.format.properties import load_config
from lockkit.table.format.timeline import TimelineNames, instant_of
from lockkit.table.occ.conflict import BUCKET
from lockkit.table.occ.fence import FENCE_KEY, digest, parse_fence, read_fence
from lockkit.table.occ.group import ahead as group_ahead
from lockkit.table.occ.group import commit as group_commit
from lockkit.table.occ.group import gone as group_gone
from lockkit.table.occ.group import outcomes as group_outcomes
from lockkit.table.occ.group import places as group_places
from lockkit.table.occ.group import tail as group_tail
from lockkit.table.occ.group.client import FAST_RUN_MAX, GroupClient, GroupWrite
from lockkit.table.occ.group.commit import prove_data
from lockkit.table.occ.group.decision import GroupFence, Offer, decide
from lockkit.table.occ.group.fence import (
    format_group_fence,
    format_offer,
    is_tombstone,
    packed,
    parse_group_fence,
    parse_offer,
    read_group_fence,
    tombstone,
)
from lockkit.table.occ.group.offer import PATIENCE_MAX, offered_as, take_turn
from lockkit.table.occ.group.view import look, offered, open_offers
from lockkit.table.occ.transaction import first_file
from lockkit.table.write import append

T1, T2, T3 = "20260101000000001", "20260101000000002", "20260101000000003"
HOW: dict[str, Any] = {"record_key": "id", "partition_by": "region", "commit": "group"}
VERSIONS = (9, 6)


def rows(*ids: str, v: int = 0) -> pa.Table:
    return pa.table({"id": list(ids), "region": ["EU"] * len(ids), "v": [v] * len(ids)})


def names_at(url: str) -> TimelineNames:
    return run(load_config(), open_store(url), Clock())[0].names


def values(url: str) -> dict[str, int]:
    with Table(url) as table:
        found = table.read().to_pylist()
    assert len({row["id"] for row in found}) == len(found), "a row is there twice"
    return {row["id"]: row["v"] for row in found}


def judged(url: str) -> dict[str, int]:
    """The same by hudi-rs, which knows nothing of the fence."""
    found = read_by_hudi_rs(url).to_pylist()
    assert len({row["id"] for row in found}) == len(found), "a row is there twice"
    return {row["id"]: row["v"] for row in found}


@pytest.fixture(params=VERSIONS)
def url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    made = f"file://{tmp_path}/orders"
    Table.create(made, **HOW, version=request.param).close()
    return made


def timeline(url: str) -> Path:
    """The folder of its instants."""
    return Path(url.removeprefix("file://")) / names_at(url).folder


# --- what works -----------------------------------------------------------------------------------


@pytest.mark.parametrize("url", (*VERSIONS, 8), indirect=True)
def test_appends_upserts_and_deletes_of_two_handles_are_what_hudi_rs_reads(url: str) -> None:
    with Table(url) as one, Table(url) as other:
        one.append(rows("a", "b"))
        begin = one.changes()[1].end
        other.upsert(rows("b", "c", v=1))
        one.upsert(rows("a", v=2))
        other.delete(rows("c"))
        one.append(rows("d"))
        changed, _ = other.changes(begin)
    assert values(url) == judged(url) == {"a": 2, "b": 1, "d": 0}
    assert set(changed["id"].to_pylist()) == {"a", "b", "d"}


def test_a_busy_writer_alone_reserves_ahead_and_lists_at_every_fourth_append(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_ahead, "AHEAD_MS", 600_000)
    monkeypatch.setattr(group_ahead, "REST_MS", 60_000)
    for each in (group_gone, group_outcomes):
        monkeypatch.setattr(each, "SURE_MS", 600_000)
    done = threading.Event()

    def tell(kind: str, **_fields: Any) -> None:
        if kind == "published":
            done.set()

    asked: list[str] = []
    with Table(url, emit=tell) as table:
        for number in range(10):
            if number == 2:
                spy(table, asked.append)
            done.clear()
            table.append(rows(f"{number}"))
            assert done.wait(30)
    fence = [each for each in asked if "lock" in each]
    assert fence == [f"put {FENCE_KEY}"] * 8 + [f"get {FENCE_KEY}"], "the last one is confirmed"
    kinds = Counter(each.partition(" ")[0] for each in asked)
    assert kinds == {"put": 8 * 4, "list": 2, "delete": 1, "get": 1}, asked
    folder = timeline(url)
    assert len(list(folder.glob("*.requested"))) == 10, "what was reserved and not used is deleted"


def busy_upserts(table: Table, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins after the previous one was published, and finds a reserved instant."""
    monkeypatch.setattr(group_ahead, "AHEAD_MS", 600_000)
    for each in (group_gone, group_outcomes):
        monkeypatch.setattr(each, "SURE_MS", 600_000)
    context = table._upkeep.context
    for number in range(count):
        table.upsert(rows("a", v=number))
        key = context.together[0].known.window[-1].instant if context.together else ""
        while not list(timeline(table.url).glob(f"{key}*.commit")):
            time.sleep(0.01)


def test_a_busy_handle_lists_at_every_fourth_upsert_and_fetches_no_file_that_it_has_written(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, sent = list[str](), threading.Event()

    def noted(request: str) -> None:
        asked.append(request)
        if request.endswith(".parquet"):
            sent.set()
        elif request.startswith("list"):
            assert sent.wait(30), "beside its file, not before it"
        elif request == f"put {FENCE_KEY}":
            sent.clear()

    with Table(url) as table:
        busy_upserts(table, 8, monkeypatch)  # it lists after one, two and four
        spy(table, noted)
        busy_upserts(table, 8, monkeypatch)
        kinds = Counter(each.partition(" ")[0] for each in asked)
        assert not [each for each in asked if each.startswith("get") and ".parquet" in each]
    assert kinds["list"] == 2, asked
    assert sum(each == f"put {FENCE_KEY}" for each in asked) == 8
    assert values(url) == judged(url) == {"a": 7}


def test_an_upsert_that_lists_beside_its_file_decides_what_another_client_has_offered(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, instant = names_at(url), instant_of(int(time.time() * 1000) + 60_000)
    body = first_file("commit", b"", "another's", 9 if names.layout == 2 else 6)
    with Table(url) as table:
        busy_upserts(table, 2, monkeypatch)
        client = table._upkeep.context.together[0]
        client.wins = FAST_RUN_MAX
        offer = Offer(instant, 0, schema=client.known.schema, sha256=digest(body), blind=True,
                      table=client.known.table)  # fmt: skip
        key, content = offered_as(names, replace(offer, body=packed(body)), body)
        run(prove_data({names.requested(instant, "commit"): b"", key: content}),
            open_store(url), Clock())  # fmt: skip
        table.upsert(rows("a", v=7))
        mine, other = client.known.window[-2:]
        assert (other.instant, other.kind, other.round) == (instant, "commit", mine.round)
        assert client.contended


def test_an_upsert_without_a_listing_begins_again_if_anything_was_decided_since(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Table(url) as one, Table(url) as other:
        busy_upserts(one, 2, monkeypatch)
        one._upkeep.context.together[0].run = FAST_RUN_MAX
        asked: list[str] = []

        def before(request: str) -> None:
            asked.append(request)
            if request == f"put {FENCE_KEY}" and asked.count(request) == 1:
                other.upsert(rows("a", v=7))

        spy(one, before)
        one.upsert(rows("a", v=8))
        fence = asked.index(f"put {FENCE_KEY}")
        assert not [each for each in asked[:fence] if each.startswith("list")]
        again = [at for at, each in enumerate(asked) if each.endswith(".parquet")][-1]
        lists = [each for each in asked[fence:again] if each.startswith("list")]
        assert 1 <= len(lists) <= 3, "what became of it, its markers, and its next snapshot"
    assert not [each for each in asked if each.endswith(".offer")], "it was never offered"
    assert asked.count(f"put {FENCE_KEY}") == 2, "nothing has to be decided against it"
    fence_now, _ = run(read_group_fence(), open_store(url), Clock())
    assert {each.kind for each in fence_now.window} == {"commit"}
    assert values(url) == judged(url) == {"a": 8}


def test_an_upsert_that_was_passed_is_taken_back_while_its_next_attempt_is_under_way(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, again = list[str](), threading.Event()

    def before(request: str) -> None:
        asked.append(request)
        if request == f"put {FENCE_KEY}" and asked.count(request) == 1:
            other.upsert(rows("a", v=7))
        if sum(each.startswith("put") and each.endswith(".parquet") for each in asked) == 2:
            again.set()
        elif request.startswith("delete") and request.endswith(".parquet"):
            assert again.wait(30), "nobody waits for that"

    with Table(url) as one, Table(url) as other:
        busy_upserts(one, 2, monkeypatch)
        one._upkeep.context.together[0].run = FAST_RUN_MAX
        spy(one, before)
        one.upsert(rows("a", v=8))
    gone = [each for each in asked if each.startswith("delete")]
    (data,) = [at for at, each in enumerate(gone) if each.endswith(".parquet")]
    instant = gone[data].removesuffix(".parquet").rpartition("_")[2]
    (request,) = [at for at, each in enumerate(gone) if f"/{instant}." in each]
    assert data < request, "Hudi's readers show data files that no pending instant names"
    assert values(url) == judged(url) == {"a": 8}
    begun = [each.name.partition(".")[0] for each in timeline(url).glob("*.requested")]
    assert all(list(timeline(url).glob(f"{each}*.commit")) for each in begun)


def test_an_upsert_after_a_rest_lists_beside_its_file_and_begins_again_without_a_decision(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, lists, passed = list[str](), threading.Event(), threading.Event()

    def before(request: str) -> None:
        asked.append(request)
        if request.startswith("put") and request.endswith(".parquet") and not passed.is_set():
            assert lists.wait(10), "beside its file"
            other.upsert(rows("a", v=7))
            passed.set()
        elif request.startswith("list"):
            lists.set()
            assert passed.wait(30)

    with Table(url) as one, Table(url) as other:
        busy_upserts(one, 2, monkeypatch)
        client = one._upkeep.context.together[0]
        client.run, client.acked_ms = FAST_RUN_MAX, client.acked_ms - 90_000
        spy(one, before)
        one.upsert(rows("a", v=8))
    data = [at for at, each in enumerate(asked) if each.startswith("put") and ".parquet" in each]
    assert len(data) == 2 and f"put {FENCE_KEY}" not in asked[: data[1]]
    assert not [each for each in asked if each.startswith("delete") and ".inflight" in each]
    assert not client.overtaken, "the instant was reserved before its rest"
    assert values(url) == judged(url) == {"a": 8}


@pytest.mark.parametrize("behind_ms", [0, 3_600_000])
@pytest.mark.parametrize("rewrite", ["upsert", "delete"])
def test_a_rewrite_finds_what_another_handle_committed_before_it_began(
    url: str, monkeypatch: pytest.MonkeyPatch, behind_ms: int, rewrite: str
) -> None:
    with Table(url) as one, Table(url, clock=Clock(offset_ms=-behind_ms)) as other:
        other.append(rows("w"))
        busy_upserts(one, 6, monkeypatch)
        assert one._upkeep.context.together[0].ahead
        other.append(rows("b", v=1))
        if rewrite == "upsert":  # in a file group of its own, its key would be there twice
            one.upsert(rows("b", v=2))
        else:
            assert one.delete(rows("b")) is not None
            assert one.delete(rows("b")) is None, "nothing has that key any more"
    found = Table(url).read()
    assert Counter(found["id"].to_pylist()) == Counter("awb" if rewrite == "upsert" else "aw")
    assert values(url).get("b") == (2 if rewrite == "upsert" else None)


def test_a_reserved_instant_that_is_too_old_is_deleted_and_forgotten(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Table(url) as one:
        busy_upserts(one, 3, monkeypatch)
        client = one._upkeep.context.together[0]
        ((reserved, _),) = client.ahead
        assert reserved.instant in client.own
        monkeypatch.setattr(group_ahead, "AHEAD_MS", -1)
        one.upsert(rows("a", v=8))
        assert reserved.instant not in client.own, "or services would leave it alone for ever"
        assert not list(timeline(url).glob(f"{reserved.instant}*"))


def test_a_client_whose_commits_another_one_publishes_keeps_few_of_their_files(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "OWN_BODIES_MAX", 3)
    with Table(url) as one, Table(url) as other:
        for number in range(8):
            one.append(rows(f"a{number}"))
            other.append(rows(f"b{number}"))
        for table in (one, other):
            client = table._upkeep.context.together[0]
            assert len(client.bodies) <= 3
    assert len(Table(url).read()) == 16


def test_an_upsert_whose_reserved_instant_is_late_begins_again_by_itself(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile() -> None:
        with Table(url) as other:  # it has published once it is closed
            other.append(rows("b"))

    with Table(url) as one:
        busy_upserts(one, 2, monkeypatch)
        assert one._upkeep.context.together[0].ahead
        before_fence(one, meanwhile)
        one.upsert(rows("a", v=8))
    assert values(url) == judged(url) == {"a": 8, "b": 0}


def test_an_instant_reserved_beside_a_refused_commit_is_released(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_ahead, "AHEAD_MS", 600_000)
    wide = rows("b").append_column("note", pa.array(["x"]))
    with Table(url) as one, Table(url) as other:
        one.append(rows("a"))
        published(one)  # the thread that does so would release it, too
        before_fence(one, lambda: other.append(wide))
        with pytest.raises(CommitConflict, match="columns"):
            one.append(rows("c"))
        assert one._upkeep.context.together[0].ahead
    folder = timeline(url)
    taken = list(folder.glob("*.commit.requested"))  # the refused one may have been rolled back
    assert len(taken) == len(list(folder.glob("*.commit"))) == 2


def test_writers_that_overlap_do_not_both_commit(url: str) -> None:
    with Table(url) as one, Table(url) as other:
        one.upsert(rows("a"))
        before_fence(one, lambda: other.upsert(rows("a", v=1)))
        with pytest.raises(CommitConflict, match="file group"):
            one.upsert(rows("a", v=2))
        one.upsert(rows("a", v=3), retries=2)
    assert values(url) == judged(url) == {"a": 3}


def test_a_writer_that_loses_the_fence_offers_its_commit_and_both_are_there(url: str) -> None:
    with Table(url) as one, Table(url) as other:
        one.append(rows("a"))
        before_fence(one, lambda: other.append(rows("b")))
        one.append(rows("c"))
        other.append(rows("d"))
    assert values(url) == judged(url) == dict.fromkeys("abcd", 0)


def test_an_append_that_mostly_loses_the_fence_reserves_its_next_instant_while_it_waits(
    url: str,
) -> None:
    asked: list[str] = []
    with Table(url) as one, Table(url) as other:
        one.append(rows("a"))
        other.append(rows("b"))
        client = one._upkeep.context.together[0]
        while not client.loses:
            before_fence(one, lambda: other.append(rows(f"x{client.lost}")))
            one.append(rows(f"y{client.lost}"))
            published(one)
            published(other)
        spy(one, asked.append)
        before_fence(one, lambda: other.append(rows("c")))
        one.append(rows("d"))
    reserved = [at for at, each in enumerate(asked) if each.endswith(".requested")
                and each.startswith("put")]  # fmt: skip
    assert len(reserved) == 2 and asked.index(f"put {FENCE_KEY}") < reserved[1], asked
    assert values(url) == judged(url)
    assert set(values(url)) >= set("abcd")


def contending(one: Table, other: Table) -> None:
    """`one` has lost the fence to `other`, and all is published."""
    one.append(rows("a"))
    other.append(rows("b"))
    before_fence(one, lambda: other.upsert(rows("b", v=1)))
    one.upsert(rows("a", v=1))
    other.upsert(rows("b", v=2))
    published(one)
    published(other)


def test_an_upsert_among_others_lists_beside_its_file_and_offers_nothing_if_it_comes_first(
    url: str,
) -> None:
    asked: list[str] = []
    with Table(url) as one, Table(url) as other:
        contending(one, other)
        spy(one, asked.append)
        one.upsert(rows("a", v=2))
        sent = asked[: asked.index(f"put {FENCE_KEY}")]
    assert values(url) == judged(url) == {"a": 2, "b": 2}
    assert not [each for each in sent if each.endswith(".offer")], sent
    kinds = [each.partition(" ")[0] for each in sent]
    assert kinds.count("list") == kinds.count("get") == 1, sent
    data = next(at for at, each in enumerate(sent) if each.endswith(".parquet"))
    assert sent.index(f"get {FENCE_KEY}") < data, "its snapshot is what that fence decided"
    assert kinds.index("list") in (data - 1, data + 1), "in parallel"


def test_an_upsert_among_others_goes_on_after_it_gave_way_to_an_overwrite(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_tail, "WAY_MS", 600_000)
    asked: list[str] = []
    with Table(url) as one, Table(url) as other:
        contending(one, other)
        begun = names_at(url).requested(instant_of(int(time.time() * 1000)), "replacecommit")
        plain = open_store(url)
        found = plain.put(begun, format_overwrite_plan(), IfAbsent())
        assert isinstance(found, Applied)

        def withdrawn(request: str) -> None:
            asked.append(request)
            if sum(each.startswith("list") for each in asked) == 3:
                plain.delete(begun)

        spy(one, withdrawn)
        one.upsert(rows("a", v=2))
    assert sum(each.startswith("put") and each.endswith(".parquet") for each in asked) == 1, asked
    assert values(url) == judged(url) == {"a": 2, "b": 2}


def test_an_upsert_among_others_finds_what_was_committed_before_it_began(url: str) -> None:
    with Table(url) as one, Table(url) as other:
        contending(one, other)
        other.append(rows("c", v=1))
        one.upsert(rows("c", v=2))  # in a file group of its own, its key would be there twice
        found = Table(url).read()["id"].to_pylist()
    assert sorted(found) == ["a", "b", "c"]
    assert values(url) == judged(url) == {"a": 1, "b": 2, "c": 2}


def test_an_upsert_among_others_begins_again_if_a_later_instant_is_completed_meanwhile(
    url: str,
) -> None:
    asked: list[str] = []
    with Table(url) as one, Table(url) as two, Table(url, clock=Clock(offset_ms=2_000)) as other:
        contending(one, two)

        def meanwhile(request: str) -> None:
            asked.append(request)
            if [each[:4] for each in asked].count("list") == 1 and request.startswith("list"):
                other.append(rows("d"))
                published(other)

        spy(one, meanwhile)
        one.upsert(rows("a", v=2))
    assert sum(each.endswith(".parquet") for each in asked if each.startswith("put")) == 2, asked
    assert not [each for each in asked if "hoodie.properties" in each], "it knows what it knew"
    assert values(url) == judged(url) == {"a": 2, "b": 2, "d": 0}


@pytest.mark.parametrize("operation", ["append", "upsert", "upsert that lists first"])
def test_among_others_the_properties_are_read_beside_the_listing(url: str, operation: str) -> None:
    """In a request of its own, the decision would come a round trip later, once in ten seconds."""
    asked, beside = threading.Event(), list[bool]()
    with Table(url) as one, Table(url) as other:
        contending(one, other)

        def meanwhile(request: str) -> None:
            if "hoodie.properties" in request:
                asked.set()
            if request.startswith("list"):
                beside.append(asked.wait(5))

        (client,) = one._upkeep.context.together
        client.checked_ms = 0
        if operation.endswith("first"):
            client.timeline = None
        spy(one, meanwhile)
        getattr(one, operation.split()[0])(rows("c", v=1))
    assert beside and all(beside)
    assert values(url) == judged(url) == {"a": 1, "b": 2, "c": 1}


def test_an_offer_is_read_once(url: str) -> None:
    names = names_at(url)
    store, client, mine = open_store(url), GroupClient(names=names), Offer(T1, 0)
    key, body = offered_as(names, mine)
    run(prove_data({key: body, names.inflight(T1): b"{}"}), store, Clock())
    view = run(look(client), store, Clock())
    assert run(open_offers(view), store, Clock()) == [mine]
    run(delete(key), store, Clock())
    assert run(open_offers(view), store, Clock()) == [mine], "it was read again"


def test_a_writer_that_waits_for_the_owner_of_an_older_offer_does_not_read_the_offer(
    url: str
) -> None:
    asked: list[str] = []
    with Table(url) as table:
        spy(table, asked.append)
        names = names_at(url)
        store, client = table.store, GroupClient(names=names)
        older = Offer(T1, 0, table=run(read_group_fence(), store, Clock())[0].table)
        for each in (older, replace(older, instant=T2), replace(older, instant=T3)):
            key, body = offered_as(names, each)
            files = {key: body, names.inflight(each.instant): b"{}"}
            run(prove_data(files), store, Clock())
        view = run(look(client), store, Clock())
        mine = GroupWrite(T3, "mine", 0, frozenset(), table=older.table)
        asked.clear()
        assert run(take_turn(client, view, mine, 0), store, Clock()) == ""
        assert not [each for each in asked if each.endswith(".offer")], asked
        assert run(take_turn(client, view, mine, PATIENCE_MAX), store, Clock()) == "commit"
        assert f"get {names.folder}{T1}.offer" in asked
    assert client.known and [each.instant for each in client.known.window] == [T1, T2, T3]


def test_what_was_read_and_is_no_offer_is_not_read_again(url: str) -> None:
    names = names_at(url)
    store, client = open_store(url), GroupClient(names=names)
    run(prove_data({offered_as(names, Offer(T1, 0))[0]: tombstone(T1),
                    names.inflight(T1): b"{}"}), store, Clock())  # fmt: skip
    view = run(look(client), store, Clock())
    assert run(open_offers(view), store, Clock()) == []
    assert offered(run(look(client), store, Clock())) == ([], [])


@pytest.mark.parametrize("overwritten", [True, False])
def test_an_append_that_begins_after_an_overwrite_lets_it_go_first(
    url: str, monkeypatch: pytest.MonkeyPatch, overwritten: bool
) -> None:
    monkeypatch.setattr(group_tail, "WAY_MS", 600_000 if overwritten else 0)
    monkeypatch.setattr(group_places, "SPREAD_MAX_MS", 1)  # who begins later has the later instant
    monkeypatch.setattr("lockkit.table.occ.group.publish.is_busy", lambda _: False)
    with Table(url) as one, Table(url) as other:
        one.append(rows("a"))
        other.append(rows("b"))
        beside = threading.Thread(target=lambda: other.append(rows("c")))
        left = [beside]

        def before(request: str) -> None:
            if request.endswith(".inflight") and left:
                time.sleep(0.05)  # an instant may be some milliseconds ahead of the clock
                left.pop().start()
                beside.join(3 if overwritten else 60)

        spy(one, before)
        with nullcontext() if overwritten else pytest.raises(CommitConflict):
            one.overwrite(rows("d"))
        beside.join()
    assert values(url) == judged(url) == dict.fromkeys("cd" if overwritten else "abc", 0)


def test_columns_of_two_writers_do_not_shrink_the_table(url: str) -> None:
    wide = rows("b").append_column("note", pa.array(["x"]))
    with Table(url) as one, Table(url) as other:
        one.append(rows("a"))
        published(one)  # the thread that does so would release it, too
        before_fence(one, lambda: other.append(wide))
        with pytest.raises(CommitConflict, match="columns"):
            one.append(rows("c"))
        one.append(rows("c"), retries=1)
    with Table(url) as table:
        assert "note" in table.read().column_names
    assert values(url) == dict.fromkeys("abc", 0)


@pytest.mark.parametrize("lead_ms", [0, append.GROWTH_LEAD_MS])
def test_a_column_that_is_added_while_another_handle_appends_is_the_tables(
    url: str, monkeypatch: pytest.MonkeyPatch, lead_ms: int
) -> None:
    """Readers take the columns of the newest instant, and the other one began later."""
    monkeypatch.setattr(append, "GROWTH_LEAD_MS", lead_ms)
    monkeypatch.setattr(group_places, "SPREAD_MAX_MS", 1)
    with Table(url) as one, Table(url) as other:
        one.append(rows("a"))
        other.append(rows("b"))
        before_fence(one, lambda: other.append(rows("c")))
        one.append(rows("d").append_column("note", pa.array(["x"])))
    with Table(url) as table:
        assert table.read(columns=["note"], filters=[("id", "=", "d")])["note"].to_pylist() == ["x"]
        table.append(rows("e"))
    assert values(url) == judged(url) == dict.fromkeys("abcde", 0)


def test_a_handle_that_was_opened_on_an_empty_table_takes_away_no_column(url: str) -> None:
    """It knows no columns, so it believes that its append adds its own."""
    with Table(url) as one, Table(url) as other:
        assert one.read().num_rows == 0
        one.upsert(rows("a"))
        other.upsert(rows("b").append_column("note", pa.array(["x"])))
        published(other)
        with pytest.raises(CommitConflict, match="changed the table's columns"):
            one.append(rows("c"))
        one.append(rows("c"), retries=1)
    with Table(url) as table:
        assert table.read(filters=[("id", "=", "b")])["note"].to_pylist() == ["x"]
    assert values(url) == judged(url) == dict.fromkeys("abc", 0)


def test_a_handle_adds_columns_twice_though_its_first_commit_is_not_published_yet(url: str) -> None:
    """No listing shows that commit, but its handle knows its columns."""

    held = threading.Event()

    def before(request: str) -> None:
        if request.startswith("put") and request.endswith(".commit"):
            held.wait(30)

    wide = rows("b").append_column("note", pa.array(["x"]))
    with Table(url) as table:
        spy(table, before)
        table.append(rows("a"))
        try:
            table.append(wide)
            table.append(wide.append_column("more", pa.array([1])))
        finally:
            held.set()
    assert {"note", "more"} <= {*Table(url).read().column_names}


def test_table_show_names_the_last_decision(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Table(url) as table:
        done = table.append(rows("a"))
    assert main(["table", "show", url]) == 0
    assert f"group commit, 1 decisions in 1 rounds; {done.instant}" in capsys.readouterr().out


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [
    {"mode": "hudi"}, {"commit": "grouped"}, {"table_type": "MERGE_ON_READ"},
])  # fmt: skip
def test_a_table_that_cannot_have_group_commit_is_not_made(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(TableError, match=r"group commit needs|commits serial or group"):
        Table.create(f"file://{tmp_path}/t", **HOW | wrong)
    assert not (tmp_path / "t").exists() or not list((tmp_path / "t").rglob("hoodie.properties"))


def test_unsupported_features_are_refused_by_name(url: str) -> None:
    with Table(url) as table:
        table.append(rows("a"))
        table.append(rows("b"))
    with Table(url, strategy=BUCKET) as table, pytest.raises(TableError, match="SIMPLE"):
        table.append(rows("c"))
    assert main(["table", "repair-fence", url]) == 0
    assert values(url) == judged(url) == {"a": 0, "b": 0}


def test_code_of_format_2_refuses_the_fence_by_name(url: str) -> None:
    with pytest.raises(NewerFence, match="group commit"):
        run(read_fence(), open_store(url), Clock())
    with pytest.raises(ModeSwitched):
        parse_group_fence(b'{"format": 2}')


BROKEN = (
    b"", b"[]", b"{", b"[" * 100_000, b'{"format":3}', b'{"format":3,"attempt":"a","window":3}',
    b'{"format":3,"attempt":"a","window":[{}]}', b'{"format":3,"attempt":1,"window":[]}',
    b'{"format":3,"attempt":"a","window":[],"first":"1"}',
    b'{"format":3,"attempt":"a","window":[],"published":7}',
    b'{"format":3,"attempt":"a","window":[],"newest":"soon"}',
    format_group_fence(decide(GroupFence("a"), [Offer(T1, 0)], attempt="b"))
    .replace(b'"seq":1', b'"seq":2'),
    format_group_fence(decide(GroupFence("a"), [Offer(T1, 0)], attempt="b"))
    .replace(b'"writes":[]', b'"writes":7'),
    format_group_fence(decide(GroupFence("a"), [Offer(T1, 0)], attempt="b"))
    .replace(b'"instant":"20260101', b'"instant":"../../01'),
)  # fmt: skip


USES: dict[str, Callable[[Table], Any]] = {
    "append": lambda table: table.append(rows("a")),
    "upsert": lambda table: table.upsert(rows("a")),
    "overwrite": lambda table: table.overwrite(rows("a")),
    "cluster": Table.cluster, "clean": Table.clean, "archive": Table.archive,
    "read": Table.read, "changes": lambda table: table.changes(""),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("body", [b'{"format":3}', b"foreign", None])
def test_a_fence_that_cannot_be_read_is_an_error_for_whoever_reads_or_writes(
    url: str, body: bytes | None, use: str
) -> None:
    """It may have decided a commit that the listing alone lacks."""
    with Table(url) as table:
        table.append(rows("there"))
    store = open_store(url)
    standing = store.get(FENCE_KEY)
    assert isinstance(standing, Found)
    if body is None:
        store.delete(FENCE_KEY)
    else:
        store.put(FENCE_KEY, body, IfVersion(standing.version))
    said = "nothing is read or committed; .*estore its last"
    with Table(url) as table, pytest.raises(BrokenFence, match=said):
        USES[use](table)


@pytest.mark.parametrize("body", BROKEN)
def test_a_fence_that_cannot_be_read_stops_every_commit(url: str, body: bytes) -> None:
    with pytest.raises(BrokenFence):
        parse_group_fence(body)
    store = open_store(url)
    standing = store.get(FENCE_KEY)
    assert isinstance(standing, Found)
    store.put(FENCE_KEY, body, IfVersion(standing.version))
    for use in ("append", "read"):
        with Table(url) as table, pytest.raises(BrokenFence):
            USES[use](table)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"instant":"x"}', b'{"instant":1,"base":2}',
                                  format_offer(Offer("soon", 0)), tombstone(T1)])  # fmt: skip
def test_an_offer_that_cannot_be_read_is_left_to_its_owner(url: str, body: bytes) -> None:
    assert parse_offer(body) is None
    assert is_tombstone(body) == (body == tombstone(T1))
    folder = timeline(url)
    folder.mkdir(exist_ok=True)
    for state, content in (("inflight", b"{}"), ("offer", body)):
        (folder / f"{T1}.{state}").write_bytes(content)
    with Table(url) as one, Table(url) as other:
        one.append(rows("a"))
        before_fence(one, lambda: other.append(rows("b")))
        one.append(rows("c"))
    assert values(url) == judged(url) == dict.fromkeys("abc", 0)


# --- acknowledged, and published behind it --------------------------------------------------------


def test_an_append_returns_once_it_is_decided_and_a_reader_waits_for_what_is_not_published(
    url: str,
) -> None:
    returned = threading.Event()
    with Table(url) as table:
        table.append(rows("a"))
        published(table)

        def before(request: str) -> None:
            if request.startswith("put") and request.endswith(".commit"):
                returned.wait(10)

        spy(table, before)
        done = table.append(rows("b"))
        folder = timeline(url)
        assert not list(folder.glob(f"{done.instant}*.commit"))
        returned.set()
        assert values(url) == dict.fromkeys("ab", 0)
        assert list(folder.glob(f"{done.instant}*.commit"))


def test_a_writer_without_awaited_threads_returns_once_its_commit_is_published(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for what others commit next, as the thread of another writer does."""
    waited_s, wait = [], Clock.wait

    def waits(clock: Clock, woken: threading.Event, seconds: float) -> None:
        if any(woken is each.closing for each in table._upkeep.context.together):
            waited_s.append(seconds)
        wait(clock, woken, seconds)

    monkeypatch.setattr(Clock, "wait", waits)
    with Table(url) as table:
        table._upkeep.context.lingering = None  # as Spark's writes have it
        for each in "ab":
            done = table.append(rows(each))
            folder = timeline(url)
            assert list(folder.glob(f"{done.instant}*.commit"))
            assert not sum(waited_s)
    assert len(list(folder.glob("*.requested"))) == 2, "nothing is reserved ahead"


def acknowledged_and_killed(url: str, write: str) -> Callable[[], None]:
    """A process that is killed between the acknowledgement of a write and its publication."""

    def work() -> None:
        table, held = Table(url), threading.Event()
        table.append(rows("a"))
        published(table)

        def before(request: str) -> None:
            if request.startswith("put") and request.endswith(".commit"):
                held.wait()

        spy(table, before)
        getattr(table, write)(rows("b"))
        os.kill(os.getpid(), signal.SIGKILL)

    return work


@pytest.mark.parametrize("write", ["append", "upsert"])
@pytest.mark.parametrize("then", ["read", "upsert", "changes", "clean"])
def test_writes_acknowledged_by_a_killed_process_are_there_for_the_next_one(
    url: str, write: str, then: str
) -> None:
    os.waitpid(in_child(acknowledged_and_killed(url, write)), 0)
    assert judged(url) == {"a": 0}
    with Table(url) as table:
        if then == "upsert":
            table.upsert(rows("b", v=1))
        elif then == "changes":
            assert set(table.changes()[0]["id"].to_pylist()) == {"a", "b"}
        elif then == "clean":
            table.clean()
    assert values(url) == judged(url) == {"a": 0, "b": int(then == "upsert")}


@pytest.mark.parametrize("large", [False, True], ids=["in the fence", "with an inflight file"])
@pytest.mark.parametrize("url", VERSIONS, indirect=True)
def test_a_reader_that_may_not_write_sees_what_a_killed_process_left_unpublished(
    url: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr("lockkit.table.occ.group.fence.PACKED_MAX", 0)
    os.waitpid(in_child(acknowledged_and_killed(url, "upsert")), 0)
    assert judged(url) == {"a": 0}
    with Table(url) as table:
        sent: list[str] = []

        def refused(request: str) -> None:
            if request.startswith(("put", "delete")):
                sent.append(request)
                raise StoreError("AccessDenied")

        spy(table, refused)
        assert set(table.read()["id"].to_pylist()) == {"a", "b"} and sent
        assert len(table.history()) == 2
        first, to = table.changes()
    assert values(url) == judged(url) == dict.fromkeys("ab", 0)
    with Table(url) as table:
        later, _ = table.changes(to.end)
    pulled = [sorted(row["id"] for row in each.to_pylist()) for each in (first, later)]
    assert pulled == ([["a"], ["b"]] if names_at(url).layout == 1 else [["a", "b"], []])


# --- processes that are killed or stopped in the middle -------------------------------------------


def spy(table: Table, before: Callable[[str], None], alone: Any = None) -> None:
    """Call `before` with each request of this handle before it is sent; one at a time by `alone`.
    """
    alone = alone or nullcontext()

    def watched(verb: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def ask(key: str, *args: Any, **how: Any) -> Any:
            with alone:
                before(f"{verb} {key}")
                return do(key, *args, **how)

        return ask

    class Watched:
        def __getattr__(self, name: str) -> Any:
            found = getattr(store, name)
            return watched(name, found) if name in ("get", "put", "list", "delete") else found

    store = table.store
    table.store = Watched()  # type: ignore[assignment]
    table._upkeep.context.store = table.store


def before_fence(table: Table, meanwhile: Callable[[], object]) -> None:
    """`meanwhile` runs once, right before this handle's first replacement of the fence."""
    left = [meanwhile]

    def before(request: str) -> None:
        if request == f"put {FENCE_KEY}" and left:
            left.pop()()

    spy(table, before)


def in_child(work: Callable[[], None]) -> int:
    """A process that does the work, and ends with 0 once the work is acknowledged."""
    if child := os.fork():
        return child
    try:
        work()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - a process of its own, which must not run the test on
        os._exit(9)


def published(table: Table) -> None:
    """Wait until other threads have published what this handle has acknowledged."""
    for each in table._upkeep.context.lingering or ():
        if each is not threading.current_thread():
            each.join()


def append_and(url: str, number: int, what: signal.Signals) -> Callable[[], None]:
    """An append that loses the fence once; at request `number` its process gets the signal."""

    def work() -> None:
        count = Counter[str]()

        def before(request: str) -> None:
            count["requests"] += 1
            if request == f"put {FENCE_KEY}" and not count["lost"]:
                count["lost"] += 1
                with Table(url) as other:
                    other.append(rows("other"))
            if count["requests"] == number:
                signal.pthread_kill(threading.get_ident(), what)  # this thread goes no further

        with Table(url) as table:
            table.append(rows("first"))
            # A thread that is stopped in the middle of a file:// write keeps its folder locked.
            spy(table, before, threading.RLock())
            table.append(rows("mine"))

    return work


def points(url: str) -> Iterator[tuple[int, int, str]]:
    for number in range(1, 40):
        where = f"{url}-{number}"
        Table.create(where, **HOW).close()
        yield number, in_child(append_and(where, number, signal.SIGKILL)), where


def test_a_writer_killed_at_any_request_loses_and_doubles_nothing(url: str) -> None:
    killed = 0
    for number, child, where in points(url):
        _, status = os.waitpid(child, 0)
        with Table(where) as table:
            table.append(rows("last"))
            table.append(rows("very last"))
        found = values(where)
        assert found == judged(where)
        assert {"first", "last", "very last"} <= set(found), number
        if not os.WIFSIGNALED(status):
            assert status == 0 and {"mine", "other"} <= set(found)
            break
        killed += 1
    assert killed > 8, "it has more requests than that"


@pytest.mark.parametrize("number", [5, 9, 10, 11])
def test_a_writer_paused_at_any_request_commits_once(url: str, number: int) -> None:
    child = in_child(append_and(url, number, signal.SIGSTOP))
    _, status = os.waitpid(child, os.WUNTRACED)
    with Table(url) as table:
        for each in range(6):
            table.append(rows(f"meanwhile {each}"))
    if os.WIFSTOPPED(status):
        os.kill(child, signal.SIGCONT)
        _, status = os.waitpid(child, 0)
    found = values(url)
    assert status == 0 and found == judged(url)
    assert set(found) == {"first", "mine", "other", *(f"meanwhile {each}" for each in range(6))}


def test_processes_that_append_at_once_lose_and_double_nothing(url: str) -> None:
    with Table(url) as table:
        table.append(rows("first"))

    def work(name: str) -> Callable[[], None]:
        def appends() -> None:
            with Table(url) as table:
                for number in range(5):
                    table.append(rows(f"{name}{number}"), retries=2)

        return appends

    children = [in_child(work(name)) for name in "abc"]
    seen: set[str] = set()
    for child in children:
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            now = set(judged(url))
            assert seen <= now, "what was visible has gone"
            seen = now
    expected = {"first", *(f"{name}{number}" for name in "abc" for number in range(5))}
    assert set(values(url)) == set(judged(url)) == expected
    fence, _ = run(read_group_fence(), open_store(url), Clock())
    assert sum(each.kind == "commit" for each in fence.window) == 16


@pytest.mark.parametrize("awaited", [True, False])
def test_threads_of_one_process_with_a_handle_each_lose_and_double_nothing(
    url: str, awaited: bool
) -> None:
    """No code joins the threads that publish, as in the streams of a Spark driver."""
    with Table(url) as table:
        table.append(rows("first"))

    def work(name: str) -> None:
        with Table(url) as table:
            if not awaited:
                table._upkeep.context.lingering = None
            for number in range(3):
                table.append(rows(f"{name}{number}"), retries=3)
                table.upsert(rows(f"{name}{number}", v=number), retries=8)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, "abcd"))
    expected = {f"{name}{number}": number for name in "abcd" for number in range(3)}
    assert values(url) == judged(url) == {"first": 0} | expected


# --- the simulator --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [2, 5, 7])
def test_the_whole_table_holds_in_the_simulator(seed: int) -> None:
    assert not went_wrong(TOGETHER, [simulate(TOGETHER, seed)])


def test_a_hundred_rollbacks_in_a_row_do_not_keep_a_new_writer_from_committing() -> None:
    assert not went_wrong(TOGETHER, [simulate(TOGETHER, 305)])


@pytest.mark.parametrize("seed", [264, 312])
def test_an_append_of_a_round_may_appear_before_the_overwrite_that_was_decided_before_it(
    seed: int,
) -> None:
    assert not went_wrong(TOGETHER, [simulate(TOGETHER, seed)])


def test_an_offer_without_an_answer_may_still_be_committed(url: str) -> None:
    with Table(url) as one, Table(url) as other:
        one.append(rows("a"))
        left = [True]

        def before(request: str) -> None:
            if request == f"put {FENCE_KEY}" and left:
                left.clear()
                other.append(rows("b"))
            elif request == f"get {FENCE_KEY}" and not left:
                raise TableError("the fence cannot be read")

        spy(one, before)
        with pytest.raises(CommitUnknown, match=r"\.(append|rewrite)"):
            one.append(rows("c"))
    config = TableConfig(name="orders", record_key="id", partition_by="region", commit="group")
    assert config.commit == "group"
    with pytest.raises(NewerFence):
        parse_fence(format_group_fence(GroupFence("a")))
