"""Trouble around a table: clocks, rows, places and stores that are not as they should be."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from table_world import (
    AVRO,
    CLOCK,
    CONFIG,
    SCHEMA,
    Hasty,
    Holder,
    Lossy,
    new_table,
    prepare_inserts,
    prepare_upserts,
    rows,
)

from lockkit.errors import LockLost, StoreError, TableError
from lockkit.lab.faults import Fault, Proxy
from lockkit.lock.storage import LOCK_KEY
from lockkit.protocol.outcome import Applied, IfAbsent, Missing
from lockkit.runtime import run
from lockkit.runtime.proven import create
from lockkit.stores import Store, open_store
from lockkit.stores.memory import MemoryStore
from lockkit.table import (
    FENCE_KEY,
    Prepared,
    Slice,
    TableConfig,
    avro_schema,
    begin,
    commit,
    create_table,
    load_snapshot,
    prepare,
    read_table,
    write_inserts,
)
from lockkit.table.errors import CommitConflict, CommitUnknown, NoTable
from lockkit.table.format.layout import PARTITION_FILE
from lockkit.table.format.plans import RollbackPlan, format_rollback_plan
from lockkit.table.format.properties import load_config
from lockkit.table.format.schema import evolve
from lockkit.table.format.schema_reading import arrow_schema
from lockkit.table.format.timeline import instant_ms, load_timeline
from lockkit.table.handle import Table
from lockkit.table.occ.rollback import RolledBack, roll_back
from lockkit.table.occ.transaction import TableCache, take
from lockkit.table.options import known_config, write_options

NAMES = count()
STEPS_MAX, MANY = 40, 10_000
ROOT = Path(__file__).parents[1]
SHAPES = [(mode, version) for mode in ("fenced", "hudi") for version in (6, 9)]
every_shape = pytest.mark.parametrize(("mode", "version"), SHAPES)


def table(**other: Any) -> tuple[Store, TableConfig]:
    config = replace(CONFIG, **other)
    return new_table(f"memory://trouble-{next(NAMES)}", config), config


class Standing(Hasty):
    """A clock that shows one time for ever."""

    def __init__(self, at_ms: int) -> None:
        super().__init__()
        self.at_ms = at_ms

    def wall_ns(self) -> int:
        return self.at_ms * 1_000_000


# --- columns ------------------------------------------------------------------------------------


def written(store: Store, key: int, **more: pa.Array) -> Prepared:
    """A transaction with one new row, which may have columns that the table has not."""
    transaction = run(begin(), store, CLOCK)
    snapshot = run(load_snapshot(covering=transaction.covered), store, CLOCK)
    table = rows([key])
    for name, column in more.items():
        table = table.append_column(name, column)
    before = arrow_schema(snapshot.schema) if snapshot.schema else None
    schema = evolve(before, table.schema)
    file = write_inserts(transaction.target, table, file_id=f"{CLOCK.unique()}-0")
    run(create(file.key, file.body), store, CLOCK)
    way = prepare(transaction, [file.stat], schema=avro_schema(schema, "orders"),
                  grows=schema != before)  # fmt: skip
    return run(way, store, CLOCK)


WHOLE, TEXT = pa.array([7]), pa.array(["x"])


@every_shape
@pytest.mark.parametrize(
    ("first", "second", "late", "why"),
    [
        ({"w": WHOLE}, {}, 1, "has column 'w' as int64"),
        ({"w": WHOLE}, {}, 0, "knows nothing of column 'w' as int64"),
        ({"w": WHOLE}, {"w": TEXT}, 1, "has column 'w' as int64"),
        ({"w": WHOLE}, {"v": TEXT}, 0, "knows nothing of column 'w'"),
        ({"w": WHOLE}, {"w": WHOLE}, 1, None),
        ({}, {"w": WHOLE}, 1, None),
    ],
)
def test_no_column_vanishes_or_changes_between_two_writers(
    mode: str, version: int, first: Any, second: Any, late: int, why: str | None
) -> None:
    """Readers go by the newest commit's columns. The first begins first; `late` commits last."""
    store, _ = table(mode=mode, version=version)
    run(commit(written(store, 0), Holder(1)), store, CLOCK)
    both = [written(store, 1, **first), written(store, 2, **second)]
    run(commit(both[1 - late], Holder(2)), store, CLOCK)
    if why is None:
        run(commit(both[late], Holder(3)), store, CLOCK)
    else:
        with pytest.raises(CommitConflict, match=why):
            run(commit(both[late], Holder(3)), store, CLOCK)
    now = read_table(store)
    assert now.num_rows == (3 if why is None else 2)
    if late == 1:
        assert 7 in now["w"].to_pylist()


@pytest.mark.parametrize("mode", ["fenced", "hudi"])
def test_a_handle_with_older_columns_gets_a_conflict_and_then_reads_the_new_ones(mode: str) -> None:
    plain, _ = table(mode=mode)
    with Table(plain.url) as knows, Table(plain.url) as adds:
        knows.append(rows([0]))
        adds.append(rows([1]))
        adds.append(rows([2]).append_column("w", WHOLE))
        with pytest.raises(CommitConflict, match=r"has column 'w' as int64.*start again"):
            knows.append(rows([3]))
        knows.append(rows([4]))
        with pytest.raises(TableError, match="'w' is int64 in the table and string"):
            knows.append(rows([5]).append_column("w", TEXT))
        now = read_table(plain)
        assert sorted(zip(now["id"].to_pylist(), now["w"].to_pylist(), strict=True)) == [
            ("k0", None), ("k1", None), ("k2", 7), ("k4", None),
        ]  # fmt: skip


NONE, WORD = pa.array([None], pa.string()), pa.array(["many"])


@every_shape
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (rows([1]).set_column(0, "id", NONE), "no record key"),
        (rows([1]).drop_columns(["id"]), "column 'id' is missing: the table's record key"),
        (rows([1]).drop_columns(["region"]), "column 'region' is missing"),
        (rows([1]).drop_columns(["at"]), "column 'at' is missing: the table's precombine field"),
        (rows([1]).set_column(2, "amount", WORD), "'amount' is int64 in the table and string"),
        (rows([1], region="x" * 2000), "its path is too long"),
    ],
)
def test_invalid_rows_are_refused_and_leave_nothing_pending(
    mode: str, version: int, bad: pa.Table, why: str
) -> None:
    """A pending instant would hold every reader of increments back until it is rolled back."""
    plain, config = table(mode=mode, version=version)
    with Table(plain.url) as handle:
        handle.append(rows([0]))
        with pytest.raises(TableError, match=why):
            handle.append(bad)
        assert not run(load_timeline(config.names), plain, CLOCK).pending
        handle.append(rows([2]))
    assert sorted(read_table(plain)["id"].to_pylist()) == ["k0", "k2"]


# --- places -------------------------------------------------------------------------------------


class Overtaken(Lossy):
    """Somebody else makes the table right after the first look at it."""

    def get(self, key: str, **how: Any) -> Any:
        answer = super().get(key, **how)
        if isinstance(answer, Missing):
            run(create_table(CONFIG), self.store, CLOCK)
        return answer


def test_of_two_that_make_a_table_at_once_the_second_finds_it() -> None:
    store = Overtaken(open_store(f"memory://trouble-{next(NAMES)}"))
    asked = write_options({}, record_key="id")
    assert known_config(asked, "memory://orders", store, CLOCK) == (CONFIG, True)


def test_tables_in_one_prefix_do_not_affect_each_other(shared_emulator: Any, bucket: str) -> None:
    """Not even where all of them take the same instant, and one is rolled back."""
    places = ("orders", "orders2", "orders/archive")
    stores = [open_store(f"s3://{bucket}/{each}", endpoint=shared_emulator.s3) for each in places]
    now = Standing(CLOCK.wall_ms())
    prepared = []
    for number, store in enumerate(stores):
        run(create_table(CONFIG), store, now)
        transaction = run(begin(), store, now)
        file = write_inserts(transaction.target, rows([number]), file_id="f-0")
        assert isinstance(store.put(file.key, file.body, IfAbsent()), Applied)
        prepared.append(run(prepare(transaction, [file.stat], schema=AVRO), store, now))
    assert len({each.instant for each in prepared}) == 1
    for store, each in zip(stores[1:], prepared[1:], strict=True):
        run(commit(each, Holder(1)), store, now)
    known = TableCache(*run(load_config(), stores[0], now))
    done = run(roll_back(prepared[0].instant, Holder(1), known), stores[0], now)
    assert done.deleted == (prepared[0].stats[0].path,)
    assert not read_table(stores[0]).num_rows
    kept = [read_table(store)["id"].to_pylist() for store in stores[1:]]
    assert kept == [["k1"], ["k2"]]


# --- stores -------------------------------------------------------------------------------------


class Struck(Lossy):
    """Before its n-th request something happens to the store (counted from 0)."""

    def __init__(self, store: Store, at: int, what: Callable[[], None]) -> None:
        super().__init__(store)
        self.at, self.what = at, what

    def _fault(self, method: str, key: str) -> str | None:
        if self.sent == self.at:
            self.what()
        return super()._fault(method, key)


def append(store: Store, row: int, why: str = "") -> str:
    """What one more append was told, from `begin` to the end; `why` is to be in its error."""
    try:
        transaction = run(begin(), store, CLOCK)
        file = write_inserts(transaction.target, rows([row]), file_id=f"{CLOCK.unique()}-0")
        run(create(file.key, file.body), store, CLOCK)
        prepared = run(prepare(transaction, [file.stat], schema=AVRO), store, CLOCK)
        run(commit(prepared, Holder(row)), store, CLOCK)
    except (TableError, CommitUnknown, LockLost, StoreError) as error:
        assert why in str(error), error
        return type(error).__name__
    return "committed"


@pytest.mark.parametrize("version", [6, 9])
def test_a_commit_to_a_deleted_table_does_not_appear_in_its_successor(version: int) -> None:
    """Wherever it was; what the writer leaves at that place is nobody's commit."""
    outcomes = []
    for at in range(STEPS_MAX):
        plain, config = table(version=version)
        assert append(plain, 1) == "committed"

        def wipe(of: Store = plain) -> None:
            for each in of.list(""):
                of.delete(each.key)

        store = Struck(plain, at, wipe)
        outcomes.append(append(store, 2))
        if store.sent <= at:
            break
        with pytest.raises(TableError, match="there is no table here"):
            read_table(plain)
        if outcomes[-1] != "committed":
            run(create_table(config), plain, CLOCK)
            assert append(plain, 3) == "committed"
            assert read_table(plain)["id"].to_pylist() == ["k3"]
    # Only after the decision is the loss not its own: then the table was deleted with it.
    decided = outcomes.index("committed")
    assert set(outcomes[:decided]) <= {"NoTable", "TableChanged", "CommitUnknown", "LockLost"}
    assert decided > 8
    # The completed file and the release are sent together, so either may meet the deletion.
    assert set(outcomes[decided:]) <= {"committed", "CommitUnknown"}, outcomes


DENIED = [
    ("list", "*", "StoreError"),
    ("put", "*.commit.requested", "StoreError"),
    ("put", "*.parquet", "StoreError"),
    ("put", "*.inflight", "StoreError"),
    ("put", "table_lock.json", "StoreError"),
    ("put", "fence.json", "StoreError"),
    ("put", "*.commit", "CommitUnknown"),
]


def test_denied_access_is_reported_and_leaves_no_partial_commit(
    shared_emulator: Any, bucket: str
) -> None:
    """Of a right that is missing from the commit's last write on, the next writer makes good."""
    url, expected = f"s3://{bucket}/orders", ["k0"]
    run(create_table(CONFIG), open_store(url, endpoint=shared_emulator.s3), CLOCK)
    with Proxy(shared_emulator.s3) as proxy, Table(url, endpoint=proxy.url) as table:
        table.append(rows([0]))
        for number, (operation, key, outcomes) in enumerate(DENIED, 1):
            fault = Fault("status", code=403, operation=operation, key=key, next="every")
            proxy.inject(fault)
            with pytest.raises((StoreError, CommitUnknown), match="denied") as refused:
                table.append(rows([number]))
            assert type(refused.value).__name__ == outcomes
            right = "s3:ListBucket" if operation == "list" else "s3:PutObject"
            assert key.strip("*") in str(refused.value) and right in str(refused.value)
            proxy.clear()
            assert sorted(read_table(table.store)["id"].to_pylist()) == expected
            table.append(rows([number + 50]))
            expected += [
                f"k{number + 50}",
                *([f"k{number}"] if outcomes == "CommitUnknown" else []),
            ]
            expected.sort()
            assert sorted(read_table(table.store)["id"].to_pylist()) == expected


def on_a_full_disk(folder: str, way: str) -> None:
    """Appends to tables in `folder`, before whose n-th request the disk fills up: JSON lines."""
    ballast = Path(folder, "ballast")

    def fill() -> None:
        if way == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            return
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass

    def free() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        ballast.unlink(missing_ok=True)

    for at in range(STEPS_MAX):
        plain = new_table(f"file://{folder}/{at}")
        assert append(plain, 1) == "committed"
        store = Struck(plain, at, fill)
        outcomes = append(
            store, 2, "ulimit -f" if way == "limit" else "free some space on that disk"
        )
        free()
        seen = sorted(read_table(plain)["id"].to_pylist())
        again = append(plain, 3), sorted(read_table(plain)["id"].to_pylist())
        print(json.dumps([outcomes, seen, *again]), flush=True)
        if store.sent <= at:
            return


@pytest.mark.parametrize("way", ["tmpfs", "limit"])
def test_on_a_full_disk_a_commit_is_atomic_and_the_next_one_succeeds(
    tmp_path: Path, way: str
) -> None:
    """A real one: a tmpfs of 1 MB, or a process that may write no byte more to any file."""
    code = "import sys, test_table_trouble as t; t.on_a_full_disk(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(tmp_path), way]
    if way == "tmpfs":
        mount = 'mount -t tmpfs -o size=1m lockkit "$1" && shift && exec "$@"'
        command = ["unshare", "-rm", "sh", "-c", mount, "sh", str(tmp_path), *command]
        probe = [*command[:6], str(tmp_path), "true"]
        if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True).returncode:
            pytest.skip("no tmpfs may be mounted here: unshare -rm is refused")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests")))}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    met = {each for each, *_ in outcomes}
    # Whether a commit is decided and not yet visible when the disk is full depends on its threads.
    assert {"StoreError", "committed"} <= met, outcomes
    assert met <= {"StoreError", "CommitUnknown", "committed"}, outcomes
    for each, seen, again, rows_then in outcomes:
        assert again == "committed"
        assert seen == (["k1", "k2"] if each == "committed" else ["k1"])
        assert rows_then == (["k1", "k3"] if each == "StoreError" else ["k1", "k2", "k3"])


# --- size ---------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
@pytest.mark.soak
def test_ten_thousand_partitions_in_one_commit_are_found_one_by_one_and_conflict() -> None:
    """More than the fence names: whoever meets such a commit reads its file."""
    plain, config = table()
    keys = range(MANY)
    wide = pa.table(
        [[f"k{n}" for n in keys], [f"r{n}" for n in keys], list(keys), [0] * MANY], schema=SCHEMA
    )
    early = prepare_inserts(plain, rows([0], region="r77", amount=1))
    with Table(plain.url) as handle:
        done = handle.append(wide)
    assert len(run(load_snapshot(), plain, CLOCK).groups) == MANY
    assert read_table(plain, filters=[("region", "=", "r77")])["amount"].to_pylist() == [77]
    assert len(plain.get(FENCE_KEY).body) < 2_000 < len(plain.get(config.names.completed(
        done.instant)).body)  # fmt: skip
    run(commit(early, Holder(9)), plain, CLOCK)

    def this(of: Slice) -> bool:
        return (of.partition, of.instant) == ("region=r77", done.instant)

    both = [prepare_upserts(plain, rows([77], region="r77"), which=this) for _ in range(2)]
    run(commit(both[0], Holder(10)), plain, CLOCK)
    with pytest.raises(CommitConflict, match="region=r77"):
        run(commit(both[1], Holder(11)), plain, CLOCK)


# --- clocks -------------------------------------------------------------------------------------


@every_shape
def test_a_rolled_back_instant_is_never_used_again(mode: str, version: int) -> None:
    """Its first writer may only sleep, and would take the second one's files for its own."""
    store, config = table(mode=mode, version=version)
    asleep = prepare_inserts(store, rows([0]))
    known = TableCache(*run(load_config(), store, CLOCK))
    done = run(roll_back(asleep.instant, Holder(2), known, base="memory://t"), store, CLOCK)
    assert isinstance(done, RolledBack)
    behind = Standing(instant_ms(asleep.instant))
    assert run(begin(), store, behind).instant > done.instant
    again = known.after(run(load_timeline(config.names), store, CLOCK))
    assert run(begin(again), store, behind).instant > done.instant


@pytest.mark.parametrize("action", ["replacecommit", "clustering", "rollback", "clean"])
@pytest.mark.parametrize("version", [6, 9])
def test_a_commit_never_shares_its_instant_with_another_action(version: int, action: str) -> None:
    """Each creates a requested file of its own name, so that both creations succeed. Of a commit
    whose instant a rollback had had, a later conflict check thought that it was covered.
    """
    store, config = table(version=version)
    known = TableCache(*run(load_config(), store, CLOCK))
    plan = format_rollback_plan(RollbackPlan("", "20250101000000000", "commit", (), "memory://t"))
    taken = run(take(known, action=action, plan=plan), store, CLOCK)
    mine = run(begin(), store, Standing(instant_ms(taken.instant)))
    assert mine.instant > taken.instant
    assert config.names.requested(taken.instant) not in {each.key for each in store.list(".hoodie")}


@every_shape
def test_a_rollback_is_seen_by_its_writer_though_a_commit_has_its_instant(
    mode: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its maker is a writer that knows no lanes, such as Hudi's. The commit took the instant first,
    and so did not see the other; a rollback does not look.
    """
    monkeypatch.setattr(
        "lockkit.table.occ.transaction.next_instant_ms", lambda newest, wall_ms, *_: wall_ms
    )
    store, _ = table(mode=mode, version=version)
    asleep = run(begin(), store, CLOCK)
    other = prepare_inserts(store, rows([1]))
    then, known = Standing(instant_ms(other.instant)), TableCache(*run(load_config(), store, CLOCK))
    done = run(roll_back(asleep.instant, Holder(2), known, base="memory://t"), store, then)
    assert done.instant == other.instant
    run(commit(other, Holder(3)), store, CLOCK)
    woken = run(prepare(asleep, [], schema=AVRO), store, CLOCK)
    with pytest.raises((CommitConflict, LockLost), match=r"rolled it back|rolls .* back"):
        run(commit(woken, Holder(4)), store, CLOCK)


@pytest.mark.parametrize("mode", ["fenced", "hudi"])
def test_completion_times_rise_however_far_a_writers_clock_is_behind(mode: str) -> None:
    """In the order in which the commits became visible, or a reader of increments misses one."""
    store, _ = table(mode=mode, version=9)
    late = run(begin(), store, CLOCK)
    first = run(commit(prepare_inserts(store, rows([0])), Holder(1)), store, CLOCK)
    behind = Standing(instant_ms(late.instant))
    prepared = run(prepare(late, [], schema=AVRO), store, behind)
    second = run(commit(prepared, Holder(2)), store, behind)
    assert second.instant < first.instant
    assert first.completion is not None and second.completion is not None
    assert second.completion > first.completion


# --- a table that is deleted under its writer -----------------------------------------------------


@pytest.mark.parametrize("commits", [2, 0])
@pytest.mark.parametrize("mode", ["fenced", "hudi"])
@pytest.mark.parametrize("scheme", ["file", "memory"])
@pytest.mark.parametrize("operation", ["append", "upsert", "overwrite", "delete"])
def test_a_write_to_a_table_deleted_since_leaves_nothing_behind(
    tmp_path: Path, operation: str, scheme: str, mode: str, commits: int
) -> None:
    """It left an instant, data files, partition files and a lock; a delete returned None."""
    folder = tmp_path / "t"
    url = folder.as_uri() if scheme == "file" else f"memory://trouble-{next(NAMES)}/t"
    run(create_table(replace(CONFIG, mode=mode)), open_store(url), CLOCK)
    with Table(url, clock=Hasty()) as table:
        for each in range(commits):
            table.upsert(rows([each]))
        table.refresh()
        for entry in list(table.store.list("")):
            table.store.delete(entry.key)
        with pytest.raises(NoTable, match="deleted under this write") as gone:
            getattr(table, operation)(rows([1, 2]))
        keys = [entry.key for entry in table.store.list("")]
    left = [key for key in keys if not key.endswith(PARTITION_FILE)]
    # A commit of the fenced mode that saw earlier commits finds out before it takes the lock.
    assert left == ([] if mode == "fenced" and (commits or operation == "delete") else [LOCK_KEY])
    assert (f"and for {LOCK_KEY}" in str(gone.value)) is bool(left)
    if scheme == "file" and not keys:
        assert not list(folder.iterdir()), "no empty folder either"


def test_a_write_that_ends_in_a_deleted_table_spares_the_files_of_others(tmp_path: Path) -> None:
    """Their partition file, their instant, and a first file of our instant with other bytes."""
    with Table.create(tmp_path.as_uri(), record_key="id", partition_by="region") as table:
        table.append(rows([0]))
        for entry in list(table.store.list("")):
            table.store.delete(entry.key)
        others = ("region=EU/.hoodie_partition_metadata", "region=EU/theirs.parquet")
        for key in others:
            table.store.put(key, b"another writer's", IfAbsent())
        with pytest.raises(NoTable):
            table.upsert(rows([0, 1, 2, 3]))
        assert [entry.key for entry in table.store.list("region")] == list(others)


def test_a_partition_of_a_table_that_was_made_again_keeps_its_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The write to the deleted table put it there, and the commit to the new one relies on it."""
    url = f"memory://trouble-{next(NAMES)}/t"
    store, real_put, real_list = open_store(url), MemoryStore.put, MemoryStore.list
    run(create_table(CONFIG), store, CLOCK)
    steps: list[str] = []

    def empty(prefix: str) -> None:
        for entry in list(real_list(store, prefix)):
            store.delete(entry.key)

    def put(self: MemoryStore, key: str, *args: Any) -> Any:
        if key.endswith(".requested") and not steps:
            steps.append("deleted before the write takes its instant")
            empty("")
        return real_put(self, key, *args)

    def listed(self: MemoryStore, prefix: str, *args: Any) -> Any:
        if len(steps) == 1 and prefix.startswith(".hoodie/.temp/"):
            steps.append("made again while the write clears away")
            empty(".hoodie/.locks/")
            run(create_table(CONFIG), store, CLOCK)
            with Table(url) as again:
                again.append(rows([1]))
        return real_list(self, prefix, *args)

    monkeypatch.setattr(MemoryStore, "put", put)
    monkeypatch.setattr(MemoryStore, "list", listed)
    with Table(url) as table, pytest.raises(NoTable):
        table.append(rows([1]))
    assert len(steps) == 2 and read_table(store)["id"].to_pylist() == ["k1"]
    assert any(entry.key.endswith(PARTITION_FILE) for entry in real_list(store, ""))
