"""The table: appends, rewrites, conflicts, the fence, and how other readers read it."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import MagicMock, patch

import pyarrow as pa
import pytest
from hudi_rs import read_by_hudi_rs
from table_world import (
    AFTER,
    AVRO,
    BEFORE,
    CLOCK,
    CONFIG,
    LATE,
    Holder,
    Lossy,
    new_table,
    prepare_inserts,
    prepare_upserts,
    rows,
)

from lockkit.errors import LockLost, LossReason, StoreError, TableError, Unanswered
from lockkit.events import KINDS
from lockkit.lab.server import Emulator
from lockkit.lock.handle import Lock
from lockkit.protocol.outcome import Applied, Found, IfAbsent, IfVersion, PreconditionFailed
from lockkit.recipes.stripes import SubStore
from lockkit.runtime import List, Note, Procedure, Put, Sleep, perform, run
from lockkit.sinks import silent
from lockkit.stores import ListEntry, Listing, Store
from lockkit.stores.pages import joined
from lockkit.table import (
    FENCE_KEY,
    Committed,
    Prepared,
    TableConfig,
    begin,
    commit,
    create_table,
    load_snapshot,
    prepare,
    read_table,
    write_inserts,
)
from lockkit.table.errors import CommitConflict, CommitUnknown
from lockkit.table.format.layout import Overwritten, WriteStat, file_name
from lockkit.table.format.timeline import (
    LISTINGS_MAX,
    PAGE_KEYS,
    V6,
    Timeline,
    instant_ms,
    instant_of,
    load_timeline,
    parse_timeline,
)
from lockkit.table.occ.covered import CheckedHorizon
from lockkit.table.occ.decide import completed_key
from lockkit.table.occ.fence import WINDOW_MAX, parse_fence

NAMES = count()


@pytest.fixture(params=["memory", "file", "s3", "gcs", "azure"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Store]:
    """An empty table on each kind of store that needs no service."""
    match request.param:
        case "memory":
            yield new_table(f"memory://table-{next(NAMES)}")
        case "file":
            yield new_table(f"file://{tmp_path}/orders")
        case "s3":
            server = request.getfixturevalue("object_server")
            yield new_table(f"s3://lake/orders-{next(NAMES)}", endpoint=server.s3)
        case "gcs":
            server = request.getfixturevalue("object_server")
            yield new_table(f"gs://lake/orders-{next(NAMES)}", endpoint=server.gcs)
        case "azure":
            server = request.getfixturevalue("object_server")
            yield new_table(f"az://lake/orders-{next(NAMES)}", endpoint=server.azure)


@pytest.fixture(scope="module")
def object_server() -> Iterator[Any]:
    with Emulator() as emulator:
        yield emulator


@pytest.fixture
def memory() -> Store:
    return new_table(f"memory://table-{next(NAMES)}")


def publish(store: Store, prepared: Prepared, epoch: int = 1, **options: Any) -> Committed:
    return run(commit(prepared, Holder(epoch), **options), store, CLOCK)


def until(procedure: Procedure[Any], store: Store, stop: Callable[[Any], bool]) -> Any:
    """Run the procedure up to the first request that `stop` selects, and do not send that one."""
    request = procedure.send(None)
    while not stop(request):
        request = procedure.send(perform(request, store, CLOCK, silent))
    return request


def finish(procedure: Procedure[Any], request: Any, store: Store) -> Any:
    """Run a procedure that was stopped at `request` to its end."""
    try:
        while True:
            request = procedure.send(perform(request, store, CLOCK, silent))
    except StopIteration as done:
        return done.value


def at_commit(request: Any) -> bool:
    """Where a writer stalls: after its conflict check, before the write that decides."""
    return isinstance(request, Note) and request.kind == "checked"


def content(store: Store) -> dict[str, int]:
    table = read_table(store)
    if not table.num_columns:
        return {}
    return dict(zip(table["id"].to_pylist(), table["amount"].to_pylist(), strict=True))


# --- appends and rewrites -----------------------------------------------------------------------


def test_every_append_is_read_back_once(store: Store) -> None:
    for each in range(5):
        publish(store, prepare_inserts(store, rows([2 * each, 2 * each + 1])), epoch=each + 1)
    assert sorted(read_table(store)["id"].to_pylist()) == [f"k{n}" for n in range(10)]


def test_a_rewrite_replaces_rows_by_key_and_adds_the_others(store: Store) -> None:
    publish(store, prepare_inserts(store, rows([0, 1])))
    prepared = prepare_upserts(store, rows([1, 2], amount=7))
    publish(store, prepared)
    assert content(store) == {"k0": 0, "k1": 7, "k2": 7}
    (stat,) = prepared.stats
    assert (stat.writes, stat.updates, stat.inserts) == (3, 1, 1)


def test_one_commit_rewrites_several_file_groups(memory: Store) -> None:
    publish(memory, prepare_inserts(memory, rows([0]), rows([1], region="US")))
    prepared = prepare_upserts(memory, rows([9], amount=9))
    assert len(prepared.writes) == 2
    publish(memory, prepared)
    assert sorted(read_table(memory)["id"].to_pylist()) == ["k0", "k1", "k9", "k9"]


def test_the_greatest_precombine_value_wins_within_a_batch(memory: Store) -> None:
    publish(memory, prepare_inserts(memory, rows([0])))
    batch = pa.concat_tables([rows([0], amount=1, at=5), rows([0], amount=2, at=3)])
    publish(memory, prepare_upserts(memory, batch))
    assert content(memory) == {"k0": 1}


def test_copied_rows_keep_their_commit_time(memory: Store) -> None:
    first = prepare_inserts(memory, rows([0, 1]))
    publish(memory, first)
    second = prepare_upserts(memory, rows([1]))
    publish(memory, second)
    table = read_table(memory, meta=True)
    times = dict(
        zip(table["id"].to_pylist(), table["_hoodie_commit_time"].to_pylist(), strict=True)
    )
    assert times == {"k0": first.instant, "k1": second.instant}
    assert set(table["_hoodie_file_name"].to_pylist()) == {second.stats[0].path.split("/")[1]}


def test_an_instant_is_later_than_all_that_its_transaction_read(memory: Store) -> None:
    ahead = "29990101000000000"
    soon = run(begin(), memory, CLOCK).instant
    later = instant_of(instant_ms(soon) + 300_000)  # another writer's clock, five minutes ahead
    memory.put(V6.completed(later), b"{}", IfAbsent())
    assert run(begin(), memory, CLOCK).instant > later
    memory.put(V6.completed(ahead), b"{}", IfAbsent())
    with pytest.raises(TableError, match=f"{ahead} .* [0-9]+ hours ahead.*URL {ahead}"):
        run(begin(), memory, CLOCK)


def test_begin_takes_the_next_instant_when_its_own_is_taken(memory: Store) -> None:
    procedure = begin()
    request = until(procedure, memory, lambda r: isinstance(r, Put))
    memory.put(request.key, b"", IfAbsent())
    taken = request.key.removeprefix(".hoodie/").split(".")[0]
    transaction = finish(procedure, request, memory)
    assert transaction.instant > taken
    assert isinstance(memory.get(V6.requested(transaction.instant)), Found)


def test_nothing_is_visible_before_the_commit(memory: Store) -> None:
    prepared = prepare_inserts(memory, rows([0]))
    assert content(memory) == {}
    publish(memory, prepared)
    assert content(memory) == {"k0": 0}


def test_inflight_and_completed_file_are_equal_and_carry_one_attempt(memory: Store) -> None:
    prepared = prepare_inserts(memory, rows([0]))
    publish(memory, prepared)
    done, inflight = (memory.get(key(prepared.instant)) for key in (V6.completed, V6.inflight))
    assert isinstance(done, Found) and isinstance(inflight, Found)
    assert done.body == inflight.body == prepared.body
    assert f'"attempt": "{prepared.transaction.taken.attempt}"'.encode() in done.body


def test_a_transaction_is_prepared_once(memory: Store) -> None:
    transaction = run(begin(), memory, CLOCK)
    files = [write_inserts(transaction.target, rows([n]), file_id=f"f{n}-0") for n in range(2)]
    one = run(prepare(transaction, [files[0].stat], schema=AVRO), memory, CLOCK)
    assert run(prepare(transaction, [files[0].stat], schema=AVRO), memory, CLOCK) == one
    with pytest.raises(TableError, match="prepared once"):
        run(prepare(transaction, [files[1].stat], schema=AVRO), memory, CLOCK)


def test_an_instant_that_was_overtaken_is_given_up_and_leaves_nothing(memory: Store) -> None:
    soon = run(begin(), memory, CLOCK).instant
    memory.put(V6.completed(instant_of(instant_ms(soon) + 60_000)), b"{}", IfAbsent())
    taken = run(begin(), memory, CLOCK).instant
    left = {each.key for each in memory.list(V6.prefix) if each.key.endswith(".requested")}
    assert left == {V6.requested(soon), V6.requested(taken)}


def test_a_small_commit_takes_a_known_number_of_requests(memory: Store) -> None:
    """6 to write and 4 to publish. The test notices if this number changes."""
    store = Lossy(memory)
    prepared = prepare_inserts(store, rows([0]))
    assert [m for m, _ in store.seen] == ["get", "put", "list", "put", "put", "put"]
    store.seen.clear()
    publish(store, prepared)
    assert [m for m, _ in store.seen] == ["get", "get", "put", "put"]


# --- two writers --------------------------------------------------------------------------------


@pytest.mark.parametrize("fence", [True, False])
def test_of_two_overlapping_rewrites_exactly_one_is_committed(store: Store, fence: bool) -> None:
    first = prepare_inserts(store, rows([0]), rows([1], region="US"))
    publish(store, first, fence=fence)
    winner = prepare_upserts(store, rows([0], amount=1), which=lambda s: s.partition == "region=EU")
    loser = prepare_upserts(store, rows([0], amount=2))  # both groups
    publish(store, winner, fence=fence)
    with pytest.raises(CommitConflict) as refused:
        publish(store, loser, epoch=2, fence=fence)
    conflict = refused.value
    assert conflict.instant == winner.instant
    assert (conflict.partition, conflict.file_group) == winner.stats[0].group
    for part in (winner.instant, loser.instant, *winner.stats[0].group, "start again"):
        assert part in str(conflict)
    assert content(store)["k0"] == 1
    # The files of a refused commit stay until a table service cleans them. No reader uses them.
    assert isinstance(store.get(V6.inflight(loser.instant)), Found)
    assert isinstance(store.get(loser.stats[0].path), Found)


@pytest.mark.parametrize("fence", [True, False])
def test_writers_that_do_not_overlap_all_commit(store: Store, fence: bool) -> None:
    publish(store, prepare_inserts(store, rows([0]), rows([1], region="US")), fence=fence)
    eu = prepare_upserts(store, rows([0], amount=1), which=lambda s: s.partition == "region=EU")
    us = prepare_upserts(store, rows([1], amount=2), which=lambda s: s.partition == "region=US")
    new = prepare_inserts(store, rows([2], amount=3))
    for prepared in (us, eu, new):
        publish(store, prepared, fence=fence)
    assert content(store) == {"k0": 1, "k1": 2, "k2": 3}


def prepare_overwrite(store: Store, table: pa.Table, operation: str) -> Prepared:
    """One new file group replaces every row of a partition, or of the table."""
    transaction = run(begin(action="replacecommit"), store, CLOCK)
    groups = run(load_snapshot(covering=transaction.covered), store, CLOCK).groups
    file = write_inserts(transaction.target, table, file_id=f"{CLOCK.unique()}-0")
    assert isinstance(store.put(file.key, file.body, IfAbsent()), Applied)
    whole = operation == "INSERT_OVERWRITE_TABLE"
    gone = frozenset(each for each in groups if whole or each[0] == file.stat.partition)
    way = prepare(transaction, [file.stat], schema=AVRO, operation=operation, replaced=gone)
    return run(way, store, CLOCK)


def as_an_older_lockkit_carries_it_on(store: Store) -> None:
    """The fence without the fields that an older lockkit does not know."""
    found = store.get(FENCE_KEY)
    assert isinstance(found, Found)
    fields = json.loads(found.body)
    for each in fields["window"]:
        each.pop("overwrites", None)
    store.put(FENCE_KEY, json.dumps(fields).encode(), IfVersion(found.version))


@pytest.mark.parametrize("way", ["by the fence", "by an older fence", "by a listing"])
@pytest.mark.parametrize("before", [[], [7]], ids=["empty partition", "full partition"])
@pytest.mark.parametrize("operation", ["INSERT_OVERWRITE", "INSERT_OVERWRITE_TABLE"])
def test_a_key_that_an_overwrite_and_another_writer_add_exists_once(
    memory: Store, operation: str, before: list[int], way: str
) -> None:
    fence = way != "by a listing"
    publish(memory, prepare_inserts(memory, rows([1], region="US")), fence=fence)
    if before:
        publish(memory, prepare_inserts(memory, rows(before)), fence=fence)

    def overwriting(amount: int) -> Prepared:
        return prepare_overwrite(memory, rows([0], amount=amount), operation)

    for first, second in (
        (overwriting, lambda amount: prepare_inserts(memory, rows([0], amount=amount))),
        (lambda amount: prepare_inserts(memory, rows([0], amount=amount)), overwriting),
        (overwriting, overwriting),
    ):
        winner, loser = first(1), second(2)
        publish(memory, winner, fence=fence)
        if way == "by an older fence":
            as_an_older_lockkit_carries_it_on(memory)
        with pytest.raises(CommitConflict, match=winner.instant):
            publish(memory, loser, epoch=2, fence=fence)
        table = read_table(memory)
        assert table["id"].to_pylist().count("k0") == 1
        publish(memory, prepare_overwrite(memory, rows([8]), operation), fence=fence)


def test_the_fence_records_an_overwrite_so_that_its_file_need_not_be_read(memory: Store) -> None:
    store = Lossy(memory)
    winner = prepare_overwrite(memory, rows([0]), "INSERT_OVERWRITE")
    loser, later = prepare_inserts(memory, rows([0])), prepare_inserts(memory, rows([1]))
    publish(memory, winner)
    found = memory.get(FENCE_KEY)
    assert isinstance(found, Found)
    assert parse_fence(found.body).head.overwrites == Overwritten(frozenset({"region=EU"}))
    done = completed_key(winner.names, parse_fence(found.body).head)
    for epoch, each, reads in ((2, loser, 0), (3, later, 1)):
        store.seen.clear()
        with pytest.raises(CommitConflict, match=r"overwrote the partition of region=EU"):
            publish(store, each, epoch=epoch)
        # One read shows that the file exists; another its content, if the fence does not have it.
        assert store.seen.count(("get", done)) == 1 + reads
        as_an_older_lockkit_carries_it_on(memory)


def test_an_overwrite_of_a_partition_commits_beside_writes_to_other_partitions(
    memory: Store,
) -> None:
    publish(memory, prepare_inserts(memory, rows([0]), rows([1], region="US")))
    eu = prepare_overwrite(memory, rows([0], amount=5), "INSERT_OVERWRITE")
    us = prepare_overwrite(memory, rows([1], region="US", amount=6), "INSERT_OVERWRITE")
    far = prepare_inserts(memory, rows([2], region="APAC"))
    for each in (far, eu, us):
        publish(memory, each)
    assert content(memory) == {"k0": 5, "k1": 6, "k2": 0}


def test_a_conflict_survives_a_trip_between_processes() -> None:
    store = new_table(f"memory://table-{next(NAMES)}")
    publish(store, prepare_inserts(store, rows([0])))
    loser = prepare_upserts(store, rows([0]))
    publish(store, prepare_upserts(store, rows([0])))
    with pytest.raises(CommitConflict) as refused:
        publish(store, loser)
    again = pickle.loads(pickle.dumps(refused.value))
    assert (str(again), again.file_group) == (str(refused.value), refused.value.file_group)
    unknown = CommitUnknown("T", "why", (FENCE_KEY,))
    assert str(pickle.loads(pickle.dumps(unknown))) == str(unknown)


# --- the fence ----------------------------------------------------------------------------------


def overlapping(store: Store) -> tuple[Prepared, Prepared]:
    publish(store, prepare_inserts(store, rows([0])))
    return prepare_upserts(store, rows([0], amount=1)), prepare_upserts(store, rows([0], amount=2))


def test_a_writer_that_slept_between_check_and_commit_is_refused(store: Store) -> None:
    stale, quick = overlapping(store)
    asleep = commit(stale, Holder(epoch=1))
    stopped = until(asleep, store, at_commit)
    publish(store, quick, epoch=2)
    with pytest.raises(LockLost, match="epoch 2 has already decided"):
        finish(asleep, stopped, store)
    assert content(store) == {"k0": 2}


def test_without_the_fence_a_writer_that_slept_hides_an_acknowledged_commit(store: Store) -> None:
    first, second = overlapping(store)
    asleep = commit(second, Holder(epoch=1), fence=False)
    stopped = until(asleep, store, at_commit)
    publish(store, first, epoch=2, fence=False)
    assert content(store) == {"k0": 1}
    assert isinstance(finish(asleep, stopped, store), Committed)
    assert content(store) == {"k0": 2}  # what `first` was told is committed, nobody reads


def test_a_rightful_holder_that_meets_a_straggler_checks_again(memory: Store) -> None:
    publish(memory, prepare_inserts(memory, rows([0])))
    straggler, rightful = (prepare_inserts(memory, rows([n])) for n in (1, 2))
    procedure = commit(rightful, Holder(epoch=2))
    stopped = until(procedure, memory, at_commit)
    publish(memory, straggler, epoch=1)
    committed = finish(procedure, stopped, memory)
    assert committed.rounds == 2
    assert content(memory) == {"k0": 0, "k1": 0, "k2": 0}


def test_a_rightful_holder_that_overlaps_with_a_straggler_gets_the_conflict(memory: Store) -> None:
    straggler, rightful = overlapping(memory)
    procedure = commit(rightful, Holder(epoch=2))
    stopped = until(procedure, memory, at_commit)
    publish(memory, straggler, epoch=1)
    with pytest.raises(CommitConflict) as refused:
        finish(procedure, stopped, memory)
    assert refused.value.instant == straggler.instant


def test_a_commit_that_was_decided_is_made_visible_by_the_next_writer(store: Store) -> None:
    dead, alive = prepare_inserts(store, rows([0])), prepare_inserts(store, rows([1]))
    procedure = commit(dead, Holder(epoch=1))
    until(procedure, store, lambda r: isinstance(r, Put) and r.key == V6.completed(dead.instant))
    procedure.close()  # it dies after the moment of commit, before its file is there
    assert content(store) == {}
    assert publish(store, alive, epoch=2).rolled_forward == (dead.instant,)
    assert content(store) == {"k0": 0, "k1": 0}


def test_two_overlapping_commits_are_not_both_made_visible_by_a_roll_forward(
    memory: Store,
) -> None:
    dead, alive = overlapping(memory)
    procedure = commit(dead, Holder(epoch=1))
    until(procedure, memory, lambda r: isinstance(r, Put) and r.key == V6.completed(dead.instant))
    with pytest.raises(CommitConflict) as refused:
        publish(memory, alive, epoch=2)
    assert refused.value.instant == dead.instant
    assert content(memory) == {"k0": 1}


def test_a_lease_that_ended_stops_the_commit_before_it_is_decided(memory: Store) -> None:
    prepared = prepare_inserts(memory, rows([0]))

    def over() -> None:
        raise LockLost("the lock", "its lease is over", "stop", reason=LossReason.EXPIRED)

    for fence in (True, False):
        with pytest.raises(LockLost):
            publish(memory, prepared, believe=over, fence=fence)
    assert content(memory) == {}
    publish(memory, prepared)  # the same work, under a new lease
    assert content(memory) == {"k0": 0}


def test_the_notes_of_a_commit_are_events_of_the_history(memory: Store) -> None:
    emitted: list[tuple[str, dict[str, Any]]] = []

    def emit(kind: str, **fields: Any) -> None:
        assert set(KINDS[kind]) <= set(fields)
        emitted.append((kind, fields))

    stale, quick = overlapping(memory)
    run(commit(quick, Holder(3)), memory, CLOCK, emit)
    assert [kind for kind, _ in emitted] == ["checked", "fenced", "published"]
    checked = emitted[0][1]
    assert checked["writes"] == [list(group) for group in quick.writes]
    assert len(checked["covered"]) == 1 and checked["epoch"] == 3
    with pytest.raises(CommitConflict):
        run(commit(stale, Holder(4)), memory, CLOCK, emit)
    assert emitted[-1][0] == "refused" and emitted[-1][1]["error"] == "CommitConflict"
    run(begin(), memory, CLOCK, emit)
    assert emitted[-1][0] == "began"


def test_the_fence_names_the_commit_its_epoch_and_its_digest(memory: Store) -> None:
    prepared = prepare_inserts(memory, rows([0]))
    publish(memory, prepared, epoch=41)
    seen = memory.get(FENCE_KEY)
    assert isinstance(seen, Found)
    fence = parse_fence(seen.body)
    assert (fence.epoch, fence.head.instant) == (41, prepared.instant)
    assert fence.sha256 == prepared.sha256


# --- lost answers -------------------------------------------------------------------------------


def whole_append(store: Store, *, fence: bool) -> Prepared:
    prepared = prepare_inserts(store, rows([7]))
    publish(store, prepared, epoch=2, fence=fence)
    return prepared


def requests_of_a_whole_append(fence: bool) -> int:
    store = Lossy(new_table(f"memory://table-{next(NAMES)}"))
    whole_append(store, fence=fence)
    return store.sent


@pytest.mark.parametrize("fence", [True, False])
@pytest.mark.parametrize("fault", [BEFORE, AFTER, LATE])
def test_any_one_lost_answer_costs_a_retry_and_nothing_else(fault: str, fence: bool) -> None:
    data_file = 3  # the caller's own put, whose answer the caller settles
    for number in range(requests_of_a_whole_append(fence)):
        if number == data_file:
            continue
        store = Lossy(new_table(f"memory://table-{next(NAMES)}"), {number: fault})
        whole_append(store, fence=fence)
        store.land()
        assert content(store.store) == {"k7": 0}, (number, fault)


@pytest.mark.parametrize("fence", [True, False])
def test_any_two_lost_answers_never_lose_or_double_a_commit(fence: bool) -> None:
    prepared_with, last = 6, requests_of_a_whole_append(fence) + 2
    assert last > prepared_with + 2
    for first in range(prepared_with, last):
        for second in range(first + 1, last + 2):
            for one in (BEFORE, AFTER, LATE):
                store = Lossy(
                    new_table(f"memory://table-{next(NAMES)}"), {first: one, second: AFTER}
                )
                whole_append(store, fence=fence)
                store.land()
                assert content(store.store) == {"k7": 0}, (first, second, one)


@pytest.mark.parametrize("fence", [True, False])
def test_a_store_that_stops_answering_leaves_a_refusal_or_an_unknown_that_can_be_resolved(
    fence: bool,
) -> None:
    answers = set()
    for number in range(6, requests_of_a_whole_append(fence)):
        for applied in (BEFORE, AFTER, LATE):
            store = Lossy(new_table(f"memory://table-{next(NAMES)}"))
            prepared = prepare_inserts(store, rows([7]))
            store.faults, store.from_on = {number: applied}, number + 1
            if applied == BEFORE:
                store.from_on = number
            with pytest.raises((CommitUnknown, Unanswered)) as raised:
                publish(store, prepared, fence=fence)
            answers.add(raised.type)
            store.from_on, store.faults = None, {}
            if raised.type is Unanswered:
                store.land()
                publish(store.store, prepare_inserts(store.store, rows([8])), fence=fence)
                assert content(store.store) == {"k8": 0}, (number, applied)
            else:
                assert isinstance(raised.value, CommitUnknown)
                assert V6.completed(prepared.instant) in raised.value.read
                publish(store, prepared, fence=fence)  # the same again finds out
                store.land()
                assert content(store.store) == {"k7": 0}, (number, applied)
    assert answers == {CommitUnknown, Unanswered}


def test_a_decision_that_arrives_after_another_commit_is_refused_by_the_store() -> None:
    store = Lossy(new_table(f"memory://table-{next(NAMES)}"))
    stale, quick = overlapping(store.store)
    procedure = commit(stale, Holder(epoch=1))
    request = until(procedure, store, lambda r: isinstance(r, Put) and r.key == FENCE_KEY)
    store.faults = {store.sent: LATE}
    answer = perform(request, store, CLOCK, silent)  # it is under way, and nobody knows
    publish(store.store, quick, epoch=2)
    assert store.land() == [PreconditionFailed()]
    request = procedure.send(answer)
    with pytest.raises(LockLost):
        finish(procedure, request, store)
    assert content(store.store) == {"k0": 2}


def test_a_decision_that_was_made_superseded_and_not_acknowledged_is_still_found() -> None:
    store = Lossy(new_table(f"memory://table-{next(NAMES)}"))
    unlucky = prepare_inserts(store.store, rows([0]))
    procedure = commit(unlucky, Holder(epoch=1))
    request = until(procedure, store, lambda r: isinstance(r, Put) and r.key == FENCE_KEY)
    store.faults = {store.sent: AFTER}
    answer = perform(request, store, CLOCK, silent)
    for each in (1, 2):  # two later commits: the fence no longer tells of it
        publish(store.store, prepare_inserts(store.store, rows([each])), epoch=1 + each)
    committed = finish(procedure, procedure.send(answer), store) if answer else None
    assert isinstance(committed, Committed)
    assert content(store.store) == {"k0": 0, "k1": 0, "k2": 0}


def test_if_its_instant_was_removed_the_writer_reports_an_unknown_outcome() -> None:
    store = Lossy(new_table(f"memory://table-{next(NAMES)}"))
    unlucky = prepare_inserts(store.store, rows([0]))
    procedure = commit(unlucky, Holder(epoch=1))
    request = until(procedure, store, lambda r: isinstance(r, Put) and r.key == FENCE_KEY)
    store.faults = {store.sent: AFTER}
    answer = perform(request, store, CLOCK, silent)
    for n in range(WINDOW_MAX + 1):  # so many that the fence has forgotten it
        publish(store.store, prepare_inserts(store.store, rows([n])), epoch=2)
    for key in (V6.completed(unlucky.instant), V6.inflight(unlucky.instant)):
        store.store.delete(key)  # an archiver, say
    with pytest.raises(CommitUnknown, match="archived or rolled back"):
        finish(procedure, procedure.send(answer), store)


@pytest.mark.parametrize("version", [6, 9])
def test_a_commit_too_wide_for_the_fence_is_checked_by_its_own_file(version: int) -> None:
    """With ten thousand file groups the fence stays small, and an overlapping writer loses."""
    store = new_table(f"memory://table-{next(NAMES)}", replace(CONFIG, version=version))

    def wide(*numbers: int) -> Prepared:
        began = run(begin(), store, CLOCK)
        ids = [f"{each:08d}-f-0" for each in numbers]
        stats = [
            WriteStat(partition="p", file_id=each, path=f"p/{file_name(each, began.instant)}",
                      writes=1, size_bytes=1) for each in ids
        ]  # fmt: skip
        return run(prepare(began, stats, schema=AVRO), store, CLOCK)

    winner, loser, other = wide(*range(10_000)), wide(9_999, 10_000), wide(10_001)
    publish(store, winner)
    fence = store.get(FENCE_KEY)
    assert isinstance(fence, Found) and len(fence.body) < 1_000
    with pytest.raises(CommitConflict, match=f"{winner.instant} .commit. also rewrote p/00009999"):
        publish(store, loser)
    publish(store, other)


def test_a_configuration_error_reaches_the_caller_unchanged(memory: Store) -> None:
    procedure = commit(prepare_inserts(memory, rows([0])), Holder(epoch=1))
    until(procedure, memory, lambda r: isinstance(r, Put) and r.key == FENCE_KEY)
    request = procedure.throw(StoreError("access denied to orders; ask for PutObject"))
    assert isinstance(request, Note) and request.kind == "refused"
    with pytest.raises(StoreError, match="access denied"):
        procedure.send(None)


def test_a_commit_may_be_called_again_after_it_succeeded(memory: Store) -> None:
    prepared = prepare_inserts(memory, rows([0]))
    for fence in (True, True, False):
        publish(memory, prepared, fence=fence)
    publish(memory, prepare_inserts(memory, rows([1])), epoch=5)
    publish(memory, prepared, epoch=1)
    assert content(memory) == {"k0": 0, "k1": 0}


# --- the timeline -------------------------------------------------------------------------------


def test_foreign_names_in_the_timeline_are_no_commits(memory: Store) -> None:
    publish(memory, prepare_inserts(memory, rows([0])))
    for name in (
        "20250101000000000.commit.tmp", "29991399999999999.commit", "2025.commit", "2",
        "20250101000000000.COMMIT", "20250101000000000", "20250101000000000.commit.requested.bak",
        "20250101000000000.commit/x",
    ):  # fmt: skip
        memory.put(f".hoodie/{name}", b"noise", IfAbsent())
    found = run(load_timeline(V6), memory, CLOCK)
    assert len(found.commits) == 1 and len(found.foreign) == 8
    publish(memory, prepare_inserts(memory, rows([1])))
    assert content(memory) == {"k0": 0, "k1": 0}


def test_a_listing_of_several_pages_is_accepted_when_two_agree() -> None:
    def page(size: int) -> list[ListEntry]:
        names = (f"{20250101000000000 + n}.commit" for n in range(size))
        return [ListEntry(f".hoodie/{name}", 1) for name in names]

    def listed(*sizes: int) -> Any:
        procedure, answers = load_timeline(V6), list(sizes)
        assert procedure.send(None) == List(V6.prefix)
        try:
            while True:
                while isinstance(procedure.send(page(answers.pop(0))), Sleep):
                    procedure.send(None)
        except StopIteration as done:
            return done.value, answers

    short, long = PAGE_KEYS - 1, PAGE_KEYS + 10
    assert len(listed(short)[0].completed) == short
    assert len(listed(long, long + 1, long + 1)[0].completed) == long + 1
    with pytest.raises(TableError, match="changed between any two"):
        listed(*range(long, long + LISTINGS_MAX + 1))


def listed(*answers: Listing) -> tuple[int, int]:
    """How many of these listings are asked for, and how many commits are accepted."""
    procedure = load_timeline(V6)
    procedure.send(None)
    for number, answer in enumerate(answers, 1):
        try:
            if isinstance(procedure.send(answer), Sleep):
                procedure.send(None)
        except StopIteration as done:
            return number, len(done.value.completed)
    raise AssertionError("it asks for more")


def entries(*numbers: int) -> list[ListEntry]:
    return [ListEntry(f".hoodie/{20250101000000000 + n}.commit", 1) for n in numbers]


def test_a_listing_is_requested_once_where_the_store_returns_a_snapshot() -> None:
    def page(size: int, *, snapshot: bool) -> Listing:
        return Listing(entries(*range(size)), snapshot=snapshot)

    assert listed(page(PAGE_KEYS + 10, snapshot=True)) == (1, PAGE_KEYS + 10)
    torn, whole = page(2, snapshot=False), page(3, snapshot=False)
    assert listed(torn, whole, whole) == (3, 3), "few keys are no proof of one page"


@pytest.mark.parametrize(("first", "second", "found"), [
    (([0, 1], [5]), ([0, 1], [5, 6, 7]), (2, 3)),  # new instants are on the last page
    (([0, 1], [2, 5]), ([0, 1, 2], [5, 6]), (2, 4)),  # where a page begins does not matter
    (([0, 1], [5]), ([1], [5]), (3, 2)),
    (([0, 1], [5]), ([0], [5]), (3, 2)),  # the last key before the last page
    (([5], [0, 1]), ([5], [0, 2]), (3, 3)),  # in no order: any page may have changed
])  # fmt: skip
@pytest.mark.parametrize("below", [False, True])
def test_a_listing_of_pages_is_accepted_if_those_before_the_last_one_stay_as_they_are(
    first: tuple[list[int], ...], second: tuple[list[int], ...], found: tuple[int, int],
    below: bool,
) -> None:  # fmt: skip
    def pages(of: tuple[list[int], ...]) -> Listing:
        entire = joined([entries(*each) for each in of], snapshots=True)
        if not below:
            return entire
        deeper = (replace(each, key=f"t/{each.key}") for each in entire)
        bucket: Any = MagicMock(url="memory://x")
        bucket.list.return_value = Listing(
            deeper, snapshot=entire.snapshot, last_page=entire.last_page
        )
        return SubStore(bucket, "t").list("")

    assert listed(pages(first), pages(second), pages(second)) == found


def test_pages_that_show_no_single_moment_are_accepted_when_two_listings_are_equal() -> None:
    one, other = (joined([entries(0, 1), entries(*last)], snapshots=False) for last in ([5], [6]))
    assert listed(one, other, other) == (3, 3)
    only = joined([entries(0, 1)], snapshots=False)
    assert listed(only, only) == (2, 2)


def test_an_update_is_not_lost_where_the_folder_of_the_timeline_is_read_in_pieces(
    tmp_path: Any,
) -> None:
    """Two commits come between two pieces of the listing; it shows only the second one."""
    table = new_table(f"file://{tmp_path}/t")
    publish(table, prepare_inserts(table, rows([0, 1])))
    p, q = prepare_upserts(table, rows([0], amount=5)), prepare_inserts(table, rows([9]))
    folder, scandir = str(tmp_path / "t" / p.names.folder).rstrip("/"), os.scandir
    torn: list[Any] = []

    class Torn:
        def __init__(self, path: Any) -> None:
            with scandir(path) as entries:
                self.found = list(entries)
            if str(path).rstrip("/") == folder and not torn:
                torn.append(path)
                publish(table, p)
                publish(table, q)
                with scandir(path) as entries:
                    mine = [each for each in entries if each.name.startswith(q.instant)]
                self.found += [each for each in mine if each.name.endswith(".commit")]

        def __enter__(self) -> Any:
            return self

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            if not self.found:
                raise StopIteration
            return self.found.pop(0)

        def __exit__(self, *_: object) -> None:
            pass

    with patch.object(os, "scandir", Torn):
        transaction = run(begin(), table, CLOCK)
    assert torn and {p.instant, q.instant} <= transaction.base


def test_a_snapshot_advances_by_reading_only_what_is_new(memory: Store) -> None:
    store = Lossy(memory)
    for each in range(4):
        publish(memory, prepare_inserts(memory, rows([each])))
    before = run(load_snapshot(), store, CLOCK)
    publish(memory, prepare_upserts(memory, rows([0], amount=5)))
    publish(memory, prepare_inserts(memory, rows([9])))
    store.seen.clear()
    after = run(load_snapshot(since=before), store, CLOCK)
    assert [m for m, _ in store.seen] == ["get", "list", "get", "get"]
    assert after == run(load_snapshot(), memory, CLOCK)
    assert len(before.slices) == 4 and len(after.slices) == 5


def test_a_replaced_file_group_is_not_read(memory: Store) -> None:
    first = prepare_inserts(memory, rows([0]))
    publish(memory, first)
    rewrite = prepare_upserts(memory, rows([0]))
    partition, file_id = first.stats[0].group
    body = json.dumps(
        {"partitionToWriteStats": {}, "partitionToReplaceFileIds": {partition: [file_id]}}
    )
    taken = run(begin(), memory, CLOCK).instant
    memory.put(V6.completed(taken, "replacecommit"), body.encode(), IfAbsent())
    assert content(memory) == {}
    with pytest.raises(CommitConflict, match="replaced"):
        publish(memory, rewrite, fence=False)  # it was made without the fence


# --- read by others -----------------------------------------------------------------------------


@pytest.mark.parametrize("partition_by", ["region", None])
def test_hudi_rs_reads_what_we_read(tmp_path: Any, partition_by: str | None) -> None:
    config = TableConfig(name="orders", record_key="id", partition_by=partition_by)
    store = new_table(f"file://{tmp_path}/orders", config=config)
    publish(store, prepare_inserts(store, rows([0, 1])))
    publish(store, prepare_inserts(store, rows([2, 3], region="US" if partition_by else "EU")))
    loser = prepare_upserts(store, rows([0], amount=4))
    publish(store, prepare_upserts(store, rows([1, 5], amount=8)))
    with pytest.raises(CommitConflict):
        publish(store, loser)
    prepare_inserts(store, rows([6]))  # never committed
    ours = read_table(store, meta=True)
    theirs = read_by_hudi_rs(f"{tmp_path}/orders")
    order = [("_hoodie_file_name", "ascending"), ("_hoodie_record_key", "ascending")]
    columns = ours.column_names
    assert theirs.select(columns).sort_by(order).to_pylist() == ours.sort_by(order).to_pylist()
    assert "k6" not in ours["id"].to_pylist()


def test_hudi_rs_reads_a_table_on_the_embedded_server_as_lockkit_does(object_server: Any) -> None:
    url = f"s3://lake/orders-{next(NAMES)}"
    store = new_table(url, endpoint=object_server.s3)
    publish(store, prepare_inserts(store, rows([0, 1]), rows([2], region="US")))
    publish(store, prepare_upserts(store, rows([1], amount=8)))
    ours = read_table(store)
    order = [("id", "ascending"), ("region", "ascending")]
    theirs = read_by_hudi_rs(url, object_server.s3).select(ours.column_names)
    assert theirs.sort_by(order).to_pylist() == ours.sort_by(order).to_pylist()


def test_a_commit_accepts_the_guard_and_the_assertion_of_a_real_lock(object_server: Any) -> None:
    url = f"s3://lake/orders-{next(NAMES)}"
    store = new_table(url, endpoint=object_server.s3)
    epochs = []
    with closing(Lock(url, endpoint=object_server.s3, ttl_s=10, renew_interval_s=1)) as lock:
        for each in range(3):
            prepared = prepare_inserts(store, rows([each]))
            with lock:
                run(commit(prepared, lock.fence, believe=lock.assert_held), store, CLOCK)
                lock.mark_committed()
                epochs.append(lock.fence.epoch)
        with pytest.raises(LockLost):
            run(
                commit(prepare_inserts(store, rows([9])), Holder(9), believe=lock.assert_held),
                store,
                CLOCK,
            )
    assert sorted(set(epochs)) == epochs and len(epochs) == 3
    assert sorted(content(store)) == ["k0", "k1", "k2"]


def test_create_table_finds_the_same_table_and_refuses_another(store: Store) -> None:
    run(create_table(CONFIG), store, CLOCK)
    other = replace(CONFIG, partition_by="country", buckets=7)
    with pytest.raises(TableError, match="different table") as refused:
        run(create_table(other), store, CLOCK)
    assert str(refused.value) == (
        "partition_by='country', buckets=7 is refused: a different table is there, with "
        "partition_by='region', buckets=4; open it"
    )


def test_the_same_timeline_parses_the_same_in_any_order(memory: Store) -> None:
    publish(memory, prepare_inserts(memory, rows([0])))
    run(begin(), memory, CLOCK)
    entries = memory.list(V6.prefix)
    assert parse_timeline(entries, V6) == parse_timeline(reversed(entries), V6)


def test_a_view_is_not_kept_once_an_old_commit_is_gone() -> None:
    """A restored table has other commits but the same newest one: only their count differs."""
    first, second, third = "20260101000000000", "20260101000000003", "20260101000000006"
    whole = CheckedHorizon(third, settled=3)

    def listed(*instants: str) -> Timeline:
        return replace(parse_timeline([], V6), completed=dict.fromkeys(instants, "commit"))

    assert whole.stands_in(listed(first, second, third), after="")
    assert not whole.stands_in(listed(first, third), after="")
    assert whole.stands_in(listed(third), after=second), "this listing does not show the others"
