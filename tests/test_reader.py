"""Readers: snapshot, as-of, increments, checkpoint, against a dictionary and in trouble."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from suite_plugin import rest_in_soak
from table_history import History, add, overwrite, publish, rows_of
from table_world import (
    AVRO,
    CLOCK,
    CONFIG,
    Holder,
    Lossy,
    new_table,
    prepare_inserts,
    prepare_upserts,
    rows,
)

from lockkit.errors import TableError
from lockkit.protocol.outcome import Found, IfAbsent, IfVersion
from lockkit.runtime import Parallel, Procedure, perform, run
from lockkit.runtime.proven import AT_ONCE_MAX
from lockkit.sinks import silent
from lockkit.stores import Store
from lockkit.table import (
    FENCE_KEY,
    Table,
    TableConfig,
    avro_schema,
    begin,
    load_snapshot,
    prepare,
    read_table,
    write_inserts,
)
from lockkit.table.format.base_file import BaseFileWriter, Slice, Target
from lockkit.table.format.layout import format_commit
from lockkit.table.format.properties import PROPERTIES_KEY, load_config
from lockkit.table.format.schema import COMMIT_SEQNO, COMMIT_TIME, RECORD_KEY
from lockkit.table.format.timeline import V6, instant_of, load_timeline
from lockkit.table.occ.covered import CheckedHorizon, settle
from lockkit.table.occ.heartbeat import Heartbeat
from lockkit.table.occ.rollback import roll_back
from lockkit.table.occ.transaction import TableCache
from lockkit.table.read import checkpoint as checkpoints
from lockkit.table.read.checkpoint import CHECKPOINT_KEY, read_checkpoint
from lockkit.table.read.checkpoint_bytes import digest
from lockkit.table.read.checkpoint_writing import format_checkpoint, write_checkpoint
from lockkit.table.read.incremental import load_increment
from lockkit.table.read.reader import (
    SLICES_AT_ONCE,
    Scan,
    plan_scan,
    read_increment,
    scan,
    scan_slice,
)
from lockkit.table.read.snapshot import Snapshot

NAMES = count()


@pytest.fixture
def store() -> Store:
    return new_table(f"memory://reader-{next(NAMES)}")


class Watched(Lossy):
    """Tells of data files, too, that they were read."""

    def get_file(self, key: str, into: Any) -> Any:
        self.seen.append(("get", key))
        return self.store.get_file(key, into)


def content(table: pa.Table) -> dict[str, int]:
    if not table.num_columns:
        return {}
    return dict(zip(table["id"].to_pylist(), table["amount"].to_pylist(), strict=True))


def snapshot(store: Store, **how: Any) -> Snapshot:
    return run(load_snapshot(**how), store, CLOCK)


def every(commits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_EVERY", commits)


def save(store: Store) -> bool:
    return run(write_checkpoint(snapshot(store)), store, CLOCK)


# --- any history --------------------------------------------------------------------------------


@pytest.mark.parametrize("saved", [None, 1, 3])
@pytest.mark.parametrize("seed", rest_in_soak(range(8), 0, 1, 2, 3))
def test_any_history_reads_as_a_dictionary_would(
    store: Store, seed: int, saved: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshot, every as-of, a chain of increments, with and without checkpoints."""
    every(saved or 10_000, monkeypatch)
    history, held = History(store, seed), snapshot(store)
    offset, pulled = "", {}
    for _ in range(14):
        history.step()
        model = history.model
        if history.random.random() < 0.4:
            save(store)
        assert rows_of(read_table(store, meta=True)) == model.rows()
        held = snapshot(store, since=held)
        assert held.groups.keys() == model.groups().keys()
        changes, increment = read_increment(store, offset, meta=True)
        assert rows_of(changes) == model.rows(increment.end, offset)
        assert not any(at <= offset for _, at in rows_of(changes).values())
        offset, pulled = increment.end, pulled | rows_of(changes)
    for at in model.commits:
        assert rows_of(read_table(store, as_of=at, meta=True)) == model.rows(at)
    # Nothing that stands was passed over: what the chain did not bring is behind its end.
    assert model.rows(offset).items() <= pulled.items()


# --- opening an old table -----------------------------------------------------------------------


def rounds(procedure: Procedure[Any], store: Store) -> tuple[int, Any]:
    """How many requests one after another it takes, what goes out together being one."""
    depth, answer = 0, None
    try:
        request = procedure.send(None)
        while True:
            if isinstance(request, Parallel):
                parts = [rounds(each, store) for each in request.procedures]
                depth, answer = depth + max(d for d, _ in parts), tuple(a for _, a in parts)
            else:
                depth, answer = depth + 1, perform(request, store, CLOCK, silent)
            request = procedure.send(answer)
    except StopIteration as done:
        return depth, done.value


def test_commits_are_read_together_in_bounded_numbers(store: Store) -> None:
    for each in range(2 * AT_ONCE_MAX + 1):
        add(store, each)
    depth, found = rounds(load_snapshot(), store)
    assert len(found.slices) == 2 * AT_ONCE_MAX + 1
    assert depth == 6  # what it is, the timeline, the archive, three rounds of commits


def test_a_cold_open_costs_the_same_however_old_the_table_is(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    every(5, monkeypatch)
    costs = []
    for each in range(40):
        add(store, each)
        seen = Lossy(store)
        found = snapshot(seen)
        assert len(found.slices) == each + 1
        costs.append(len(seen.seen))
        run(write_checkpoint(found), store, CLOCK)
    assert max(costs) == max(costs[:10]) <= 9
    listed = run(load_timeline(V6, after=snapshot(store).covered.listed_after), store, CLOCK)
    assert len(listed.commits) == 1


def test_a_checkpoint_is_saved_once_for_each_fixed_number_of_commits(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    every(3, monkeypatch)
    written = []
    for each in range(9):
        add(store, each)
        written.append(save(store))
    assert written == [False, False, True] * 3


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda body: b"",
    "truncated": lambda body: body[:-20],
    "no JSON": lambda body: b"\x00\xff" * 50,
    "deep": lambda body: b"[" * 100_000,
    "a list": lambda body: b"[1]",
    "edited": lambda body: body.replace(b"region=EU", b"region=US"),
    "no digest": lambda body: body.replace(b"sha256", b"sha257"),
    "a later format": lambda body: body.replace(b'{"format": 1', b'{"format": 2'),
    "another table's": lambda body: body.replace(b'"name": "orders"', b'"name": "others"'),
}


def resealed(body: bytes) -> bytes:
    """With the digest that belongs to its contents."""
    fields = json.loads(body)
    fields["sha256"] = digest(fields["table"])
    return json.dumps(fields).encode()


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_checkpoint_that_cannot_be_used_is_ignored(
    store: Store, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    every(1, monkeypatch)
    for each in range(3):
        add(store, each)
    assert save(store)
    whole, good = snapshot(store), store.get(CHECKPOINT_KEY)
    assert isinstance(good, Found)
    bad = DAMAGE[damage](good.body)
    assert bad != good.body
    if damage == "another table's":
        bad = resealed(bad)
    store.put(CHECKPOINT_KEY, bad, IfVersion(good.version))
    assert snapshot(store) == whole
    add(store, 3)
    # The next one replaces it, but not what a newer lockkit wrote.
    assert save(store) == (damage != "a later format")
    assert content(read_table(store)) == {f"k{each}": 0 for each in range(4)}


@pytest.mark.parametrize("partition", ["..", "/etc", "region=EU/../.."])
def test_a_checkpoint_does_not_lead_out_of_the_table(
    store: Store, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    every(1, monkeypatch)
    add(store, 0)
    save(store)
    good = store.get(CHECKPOINT_KEY)
    assert isinstance(good, Found)
    bad = resealed(good.body.replace(b'"region=EU"', json.dumps(partition).encode()))
    store.put(CHECKPOINT_KEY, bad, IfVersion(good.version))
    assert run(read_checkpoint(), store, CLOCK) is None
    assert content(read_table(store)) == {"k0": 0}


def test_an_older_checkpoint_is_as_right_as_a_newer_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    every(1, monkeypatch)
    first = add(store, 0)
    old = format_checkpoint(snapshot(store))
    publish(store, prepare_upserts(store, rows([0], amount=5)))
    overwrite(store, [], rows([1]))
    assert save(store)
    now = store.get(CHECKPOINT_KEY)
    assert isinstance(now, Found)
    whole = snapshot(store)
    store.put(CHECKPOINT_KEY, old, IfVersion(now.version))
    assert snapshot(store) == whole
    assert content(read_table(store, as_of=first)) == {"k0": 0}


def test_a_checkpoint_of_a_rolled_back_state_is_skipped(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket restored to yesterday, or the table deleted and made anew in one place."""
    every(1, monkeypatch)
    add(store, 0)
    fence = store.get(FENCE_KEY)
    late = add(store, 1)
    save(store)
    assert isinstance(fence, Found) and store.delete(FENCE_KEY)
    store.put(FENCE_KEY, fence.body, IfAbsent())
    for key in (V6.completed(late), V6.inflight(late), V6.requested(late)):
        store.delete(key)
    assert content(read_table(store)) == {"k0": 0}
    while instant_of(CLOCK.wall_ms()) <= late:  # within these milliseconds its name is free again
        CLOCK.sleep(0.001)
    add(store, 2)
    assert content(read_table(store)) == {"k0": 0, "k2": 0}
    add(store, 3)
    assert save(store)  # more commits than it knew of: it is replaced
    assert content(read_table(store)) == {"k0": 0, "k2": 0, "k3": 0}


def test_of_two_saves_of_a_checkpoint_at_once_the_later_snapshot_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    every(1, monkeypatch)
    add(store, 0)
    one = write_checkpoint(snapshot(store))
    request = one.send(None)
    answer = perform(request, store, CLOCK, silent)
    add(store, 1)
    assert save(store)
    request = one.send(answer)
    with pytest.raises(StopIteration) as done:
        one.send(perform(request, store, CLOCK, silent))
    assert done.value.value is False
    saved = run(read_checkpoint(), store, CLOCK)
    assert saved is not None and saved.covered.count == 2


def test_a_table_that_hudi_also_writes_gets_no_checkpoint(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    every(1, monkeypatch)
    add(store, 0)
    found = snapshot(store)
    shared = replace(found, config=replace(CONFIG, mode="hudi"))
    assert run(write_checkpoint(shared), store, CLOCK) is False
    assert not store.list(CHECKPOINT_KEY)


# --- the horizon --------------------------------------------------------------------------------


def test_a_commit_with_an_older_instant_is_not_lost_behind_the_horizon(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    every(1, monkeypatch)
    add(store, 0)
    slow = prepare_inserts(store, rows([1]))
    add(store, 2)
    before = snapshot(store)
    assert save(store)
    assert before.covered.horizon < slow.instant < before.covered.newest
    publish(store, slow)
    for found in (snapshot(store), snapshot(store, since=before)):
        assert len(found.slices) == 3
    assert content(read_table(store)) == {"k0": 0, "k1": 0, "k2": 0}
    assert snapshot(store).covered == CheckedHorizon(before.covered.newest, 3)


def test_a_transaction_that_began_earlier_does_not_see_what_a_checkpoint_shows(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    every(1, monkeypatch)
    add(store, 0)
    slow = prepare_inserts(store, rows([1]))
    add(store, 2)
    base = snapshot(store).covered
    publish(store, slow)
    assert save(store)  # its horizon is above the slow one by now
    named = frozenset(run(load_timeline(V6), store, CLOCK).completed) - {slow.instant}
    for covering in (
        base,
        CheckedHorizon(later=named),
        CheckedHorizon(base.horizon, later=base.later),
    ):
        found = snapshot(store, covering=covering)
        assert len(found.slices) == 2 and slow.instant not in found.covered


def test_a_transaction_with_a_cached_table_reads_what_is_below_its_horizon(
    store: Store,
) -> None:
    for each in range(3):
        add(store, each)
    known = TableCache(*run(load_config(), store, CLOCK)).after(
        run(load_timeline(V6), store, CLOCK)
    )
    transaction = run(begin(known), store, CLOCK)
    assert len(transaction.base) == 1, "the horizon itself; the rest was not even listed"
    assert len(snapshot(store, covering=transaction.covered).slices) == 3


def test_a_whole_listing_is_counted_against_what_is_settled(store: Store) -> None:
    """A writer that does not list after it took its instant breaks the horizon's rule."""
    transaction = run(begin(), store, CLOCK)
    add(store, 0)
    store.delete(V6.requested(transaction.instant))
    before = snapshot(store)
    file = write_inserts(transaction.target, rows([1]), file_id=f"{CLOCK.unique()}-0")
    store.put(file.key, file.body, IfAbsent())
    body = format_commit([file.stat], operation="INSERT", schema=AVRO, attempt="x")
    store.put(V6.completed(transaction.instant), body, IfAbsent())
    everything = frozenset(run(load_timeline(V6), store, CLOCK).completed)
    assert len(snapshot(store, covering=CheckedHorizon(later=everything), since=before).slices) == 2


def test_a_dead_service_holds_no_horizon_back(store: Store) -> None:
    last = [add(store, each) for each in range(2)][-1]
    store.put(V6.requested("20250101000000000", "clean"), b"", IfAbsent())
    store.put(V6.requested("20250101000000001", "rollback"), b"", IfAbsent())
    assert snapshot(store).covered == CheckedHorizon(last, 2)


def test_the_horizon_stops_at_an_instant_of_another_length() -> None:
    """Hudi's old 14 digits sort by their text elsewhere than by their time."""
    from lockkit.stores import ListEntry
    from lockkit.table.format.timeline import parse_timeline

    names = ("20250101000000000.commit", "20250101000001.commit", "20250101000002000.commit")
    now = parse_timeline([ListEntry(f".hoodie/{name}", 1) for name in names], V6)
    found = settle(CheckedHorizon(), now, now.commits)
    assert found == CheckedHorizon(
        "20250101000000000", 1, frozenset({"20250101000001", "20250101000002000"})
    )


# --- increments ---------------------------------------------------------------------------------


def test_an_increment_never_passes_a_pending_instant(store: Store) -> None:
    first = add(store, 0)
    slow = prepare_inserts(store, rows([1]))
    add(store, 2)
    changes, increment = read_increment(store)
    assert (content(changes), increment.end) == ({"k0": 0}, first)
    assert read_increment(store, increment.end)[1].end == first  # and waits
    publish(store, slow)
    changes, increment = read_increment(store, first)
    assert content(changes) == {"k1": 0, "k2": 0}


def test_a_delayed_increment_names_the_pending_writer_and_the_remedy(store: Store) -> None:
    add(store, 0)
    assert read_increment(store)[1].held_back is None
    slow = prepare_inserts(store, rows([1]))
    increment = read_increment(store)[1]
    assert increment.held_back is None, "no completed commit waits behind it"
    with Heartbeat(slow.instant, store, clock=CLOCK) as heart:
        later = add(store, 2)
        held = read_increment(store, increment.end)[1].held_back
        assert held is not None and held.alive and held.last_beat_ms is not None
        assert (held.instant, held.action, held.waiting) == (slow.instant, "commit", 1)
        assert f"by instant {slow.instant} (writer alive: last heartbeat 20" in str(held)
        assert read_increment(store, end=slow.instant)[1].held_back is None, "nothing is left out"
        heart.assert_alive()
    # Leaving the block ends the heartbeat without a commit: the writer gave up.
    held = read_increment(store, increment.end)[1].held_back
    assert held is not None and not held.alive and held.waiting == 1
    assert str(held).startswith(f"held back since {held.since} by instant {slow.instant} (writer")
    assert "(writer dead: no heartbeat since 20" in str(held)
    assert f"lockkit table rollback URL --instant {slow.instant}" in str(held)
    known = TableCache(*run(load_config(), store, CLOCK))
    run(roll_back(slow.instant, Holder(1), known), store, CLOCK)
    increment = read_increment(store, increment.end)[1]
    assert (increment.end, increment.held_back) == (later, None)


def test_an_increment_of_version_9_is_never_held_back() -> None:
    store = new_table(f"memory://reader-{next(NAMES)}", replace(CONFIG, version=9))
    prepare_inserts(store, rows([1]))
    later = publish(store, prepare_inserts(store, rows([2])))
    changes, increment = read_increment(store)
    assert content(changes) == {"k2": 0} and increment.held_back is None
    assert increment.instants == {later}


def test_an_increment_has_the_rows_that_changed_and_no_copied_ones(store: Store) -> None:
    first = add(store, 0, 1)
    second = publish(store, prepare_upserts(store, rows([1], amount=5)))
    (group,) = snapshot(store).groups
    clustered = overwrite(store, [group], rows([0, 1], amount=5))
    third = add(store, 2)
    assert content(read_increment(store, first, second)[0]) == {"k1": 5}
    assert content(read_increment(store, "", first)[0]) == {"k0": 0, "k1": 0}
    assert content(read_increment(store, clustered)[0]) == {"k2": 0}
    assert read_increment(store, third)[0].num_rows == 0
    for nonsense in ("yesterday", "2025", "20251399000000000"):
        with pytest.raises(TableError, match="is not an instant"):
            run(load_increment(nonsense), store, CLOCK)


def test_an_increment_before_the_checkpoint_is_read_from_the_start(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    every(1, monkeypatch)
    first, second = add(store, 0), add(store, 1)
    add(store, 2)
    assert save(store)
    assert content(read_increment(store, first, second)[0]) == {"k1": 0}
    assert content(read_increment(store, first)[0]) == {"k1": 0, "k2": 0}


def test_a_file_deleted_during_a_read_is_a_clear_error(store: Store) -> None:
    first = add(store, 0)
    (of,) = snapshot(store).slices
    held = snapshot(store)
    publish(store, prepare_upserts(store, rows([0], amount=5)))
    assert held.slices == [of]  # a later commit changes nothing for it
    store.delete(of.path)
    with pytest.raises(TableError, match="a cleaner deleted it"):
        read_increment(store, "", first)
    with pytest.raises(TableError, match="a cleaner deleted it"):
        read_table(store, as_of=first)
    assert content(read_table(store)) == {"k0": 5}
    batches = scan(store)
    begun = run(load_snapshot(), store, CLOCK)
    for each in store.list(""):
        store.delete(each.key)
    with pytest.raises(TableError, match="there is no table here"):
        next(batches)
    from lockkit.table.read.reader import read_slice

    with pytest.raises(TableError, match="the table was deleted during this read"):
        run(read_slice(begun.slices[0]), store, CLOCK)
    assert not store.list(PROPERTIES_KEY)


# --- rows and columns ---------------------------------------------------------------------------


def sample(store: Store) -> Store:
    add(store, 0, 1, region="EU", amount=1)
    add(store, 2, region="US", amount=2)
    add(store, 3, region="Île-de-France 2.0", amount=3)
    return store


@pytest.mark.parametrize(
    ("filters", "keys", "files"),
    [
        ([("region", "=", "EU")], ["k0", "k1"], 1),
        ([("region", "!=", "EU")], ["k2", "k3"], 2),
        ([("region", "in", ["US", "Île-de-France 2.0", "XX"])], ["k2", "k3"], 2),
        ([("region", "not in", ["US"])], ["k0", "k1", "k3"], 2),
        ([("region", ">", "T"), ("region", "<", "V")], ["k2"], 1),
        ([("amount", ">=", "2")], ["k2", "k3"], 3),
        ([("amount", "<=", 2), ("region", "=", "EU"), ("id", "==", "k1")], ["k1"], 1),
        ([("_hoodie_record_key", "=", "k3")], ["k3"], 3),
        ([("region", "=", "nowhere")], [], 0),
    ],
)  # fmt: skip
def test_filters_choose_rows_and_leave_other_partitions_unread(
    store: Store, filters: Any, keys: list[str], files: int
) -> None:
    seen = Watched(sample(store))
    found = read_table(seen, columns=["id"], filters=filters)
    assert found.column_names == ["id"] and sorted(found["id"].to_pylist()) == keys
    assert sum(1 for _, key in seen.seen if key.endswith(".parquet")) == files


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"filters": [("colour", "=", "red")]}, "'colour' names no column"),
        ({"filters": [("amount", "~", 1)]}, "the operators are"),
        ({"filters": [("amount", "=", "much")]}, "that is no int64"),
        ({"filters": [("region", "in", "EU")]}, "give a list"),
        ({"filters": [("amount", "=", 1)] * 101}, "at most 100"),
        ({"columns": ["colour"]}, "column 'colour' is not in the table"),
        ({"as_of": "now"}, "is not an instant"),
    ],
)
def test_a_filter_a_column_or_an_instant_that_cannot_be_is_refused(
    store: Store, how: Any, why: str
) -> None:
    with pytest.raises(TableError, match=why):
        read_table(sample(store), **how)


@pytest.mark.parametrize("values", [[1.5], [1.5, 2.5], [None], []])
@pytest.mark.parametrize("given", [("c", "!=", 1.5), ("c", "not in", [1.5])])
def test_a_row_of_nan_is_unequal_to_any_value_whatever_else_is_in_its_row_group(
    tmp_path: Path, values: list[Any], given: Any
) -> None:
    """A row group's statistics leave NaN out."""
    with Table.create(f"file://{tmp_path}/t", record_key="id", buckets=1) as table:
        values = [*values, float("nan")]
        table.append(pa.table({"id": [*map(str, range(len(values)))], "c": values}))
        found = table.read(filters=[given])["c"].to_pylist()
    assert str(found) == str([each for each in values if each not in (1.5, None)])


@pytest.mark.parametrize("word", ["in", "not in"])
def test_a_list_of_values_with_nan_is_refused(tmp_path: Path, word: str) -> None:
    """Whether it found a row of NaN depended on the other values of its row group."""
    with Table.create(f"file://{tmp_path}/t", record_key="id", buckets=1) as table:
        table.append(pa.table({"id": ["a", "b"], "c": [float("nan"), 1.5]}))
        with pytest.raises(TableError, match=f"c {word}.* has NaN, which equals no number"):
            table.read(filters=[("c", word, [1.5, float("nan")])])


def test_a_null_meets_no_filter_as_in_sql(store: Store) -> None:
    table = rows([0, 1], amount=1).set_column(2, "amount", pa.array([None, 1], pa.int64()))
    publish(store, prepare_inserts(store, table))
    for one in (("!=", 5), ("not in", [5]), ("not in", [None]), ("<", 5), ("in", [None, 1])):
        filters = [("amount", *one)]
        assert read_table(store, filters=filters)["id"].to_pylist() == ["k1"]


def test_rows_come_under_the_newest_schema(store: Store) -> None:
    add(store, 0)
    wider = rows([1]).append_column("note", pa.array(["new"]))
    transaction = run(begin(), store, CLOCK)
    file = write_inserts(transaction.target, wider, file_id=f"{CLOCK.unique()}-0")
    store.put(file.key, file.body, IfAbsent())
    schema = avro_schema(wider.schema, "orders")
    publish(store, run(prepare(transaction, [file.stat], schema=schema), store, CLOCK))
    found = read_table(store)
    assert dict(zip(found["id"].to_pylist(), found["note"].to_pylist(), strict=True)) == {
        "k0": None, "k1": "new"
    }  # fmt: skip
    assert read_table(store, filters=[("note", "=", "new")])["id"].to_pylist() == ["k1"]


def test_a_scan_holds_few_files_at_a_time(store: Store) -> None:
    for each in range(3 * SLICES_AT_ONCE):
        add(store, each)
    seen = Watched(store)
    batches: Iterator[pa.RecordBatch] = scan(seen)
    fetched = lambda: sum(1 for _, key in seen.seen if key.endswith(".parquet"))  # noqa: E731
    next(batches)
    assert fetched() <= SLICES_AT_ONCE
    assert sum(batch.num_rows for batch in batches) == 3 * SLICES_AT_ONCE - 1
    assert fetched() == 3 * SLICES_AT_ONCE
    stopped = scan(seen)
    next(stopped)
    stopped.close()
    assert fetched() <= 4 * SLICES_AT_ONCE


def test_a_scan_of_an_empty_table_has_no_rows(store: Store) -> None:
    assert list(scan(store)) == [] and read_table(store).num_rows == 0
    assert plan_scan(snapshot(store)).slices == ()
    flat = new_table(f"memory://reader-{next(NAMES)}", TableConfig(name="flat", record_key="id"))
    add(flat, 0)
    assert content(read_table(flat, filters=[("region", "=", "EU")])) == {"k0": 0}


def test_a_scan_gives_arrows_threads_no_file_of_pythons(tmp_path: Path) -> None:
    """They drop it a moment after the last row, and abort a process that ends meanwhile."""
    path = tmp_path / "base.parquet"
    pq.write_table(pa.table({"id": ["a", "b"]}), path)
    wanted = Scan((), pa.schema({"id": pa.string()}), ("id",), None)
    with path.open("rb") as file:
        without_methods: Any = SimpleNamespace(fileno=file.fileno)
        found = list(scan_slice(wanted, Slice("", "f", "1", "base.parquet"), without_methods))
    assert pa.Table.from_batches(found).to_pylist() == [{"id": "a"}, {"id": "b"}]


PROMOTED: Any = pytest.mark.parametrize(("stored", "kind", "value", "found"), [
    (pa.float32(), pa.float64(), 0.1, 0.1), (pa.int64(), pa.float64(), 2**53 + 1, 2.0**53),
    (pa.int32(), pa.float32(), 16_777_217, 16_777_216.0),
], ids=["float to double", "long to double", "int to float"])  # fmt: skip


@PROMOTED
def test_a_number_is_read_in_its_columns_later_type_as_hudi_reads_it(
    stored: pa.DataType, kind: pa.DataType, value: float, found: float, tmp_path: Path
) -> None:
    """A float by its text, as `HoodieAvroUtils` does, and a whole number rounded."""
    path = tmp_path / "base.parquet"
    pq.write_table(pa.table({"id": ["a", "b"], "v": pa.array([value, 1], stored)}), path)
    schema = pa.schema({"id": pa.string(), "v": kind})
    for where, keys in ((None, ["a", "b"]), (pc.field("v") == found, ["a"])):
        wanted = Scan((), schema, ("id",), where, filtered=("v",))
        with path.open("rb") as file:
            batches = scan_slice(wanted, Slice("", "f", "1", "base.parquet"), file)
            assert pa.Table.from_batches(batches)["id"].to_pylist() == keys
    with path.open("rb") as file:
        wanted = Scan((), schema, ("v", "id"), None)
        batches = scan_slice(wanted, Slice("", "f", "1", "base.parquet"), file)
        assert pa.Table.from_batches(batches).to_pylist()[0] == {"v": found, "id": "a"}


@PROMOTED
def test_a_rewritten_file_keeps_a_number_as_it_is_read(
    stored: pa.DataType, kind: pa.DataType, value: float, found: float
) -> None:
    old = pa.table({
        COMMIT_TIME: ["1"], COMMIT_SEQNO: ["1_0_0"], RECORD_KEY: ["a"], "id": ["a"],
        "v": pa.array([value], stored),
    })  # fmt: skip
    columns, out = pa.schema({"id": pa.string(), "v": kind}), io.BytesIO()
    draft = BaseFileWriter(
        Target("2", TableConfig(name="t", record_key="id")), "", "f", columns, out
    )
    draft.copy(old)
    draft.close(inserts=0)
    assert pq.read_table(io.BytesIO(out.getvalue()))["v"].to_pylist() == [found]
