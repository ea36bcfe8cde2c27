"""Merge-on-read tables that lockkit writes, judged by a dictionary and by hudi-rs."""

from __future__ import annotations

import itertools
import random
import warnings
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from threading import Semaphore
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hudi_rs import read_by_hudi_rs

from lockkit import Clock
from lockkit.errors import TableError
from lockkit.runtime import run
from lockkit.table import CommitConflict, Table, begin
from lockkit.table.format.base_file import Slice, Target
from lockkit.table.format.layout import CommitFiles, TaskId, WriteStat
from lockkit.table.format.log_blocks import avro_rows, blocks, deleted_keys
from lockkit.table.format.log_writing import data_block, delete_block
from lockkit.table.format.properties import TableConfig, from_properties, load_config, to_properties
from lockkit.table.format.property_keys import HUDI, MERGE_ON_READ
from lockkit.table.format.timeline import load_timeline
from lockkit.table.occ.commit import EpochGuard
from lockkit.table.occ.covered import read_commit
from lockkit.table.occ.mode import switch_mode
from lockkit.table.occ.rollback import RolledBack, roll_back
from lockkit.table.occ.transaction import TableCache
from lockkit.table.read import merging_logs, reader
from lockkit.table.read.checkpoint_bytes import format_checkpoint, parse_checkpoint
from lockkit.table.read.log_slice import LogSlice, slice_after
from lockkit.table.read.opening import load_snapshot

_NAMES = itertools.count()
SCHEMA = pa.schema([("id", pa.string()), ("region", pa.string()),
                    ("ts", pa.int64()), ("v", pa.int64())])  # fmt: skip
CONFIG = TableConfig(name="t", record_key="id", precombine="ts", table_type=MERGE_ON_READ)
Row = tuple[str, str, int, int]
SOMETIMES = ("compact", "clean", "overwrite", "delete_partition")


def made(url: str = "", **how: Any) -> Table:
    how = {"partition_by": "region", "precombine": "ts", "buckets": 2} | how
    url = url or f"memory://merged{next(_NAMES)}"
    return Table.create(url, record_key="id", table_type=MERGE_ON_READ, **how)


def rows(*listed: Row) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, each, strict=True)) for each in listed], SCHEMA
    )


def shown(found: pa.Table) -> list[Row]:
    return sorted((each["id"], each["region"], each["ts"], each["v"]) for each in found.to_pylist())


def theirs(folder: Path) -> list[Row]:
    return shown(read_by_hudi_rs(folder, empty=SCHEMA))


class Model:
    """What the table must show: of each key the greatest ordering value, of equals the later."""

    def __init__(self, ordered: bool) -> None:
        self.ordered = ordered
        self.standing: dict[str, tuple[int, Row | None]] = {}

    def write(self, listed: list[Row], *, delete: bool = False) -> None:
        for each in listed:
            at = each[2] if self.ordered else 0
            if self.standing.get(each[0], (at, None))[0] <= at:
                self.standing[each[0]] = at, None if delete else each

    def empty(self, region: str) -> None:
        """An overwrite or a deletion of a partition forgets every key that is or was in it."""
        self.standing = {k: each for k, each in self.standing.items() if of_region(k) != region}

    def forget(self, compacted: bool) -> None:
        """A compaction forgets what was deleted, and with it how late the deletion was."""
        if compacted:
            self.standing = {k: each for k, each in self.standing.items() if each[1] is not None}

    @property
    def rows(self) -> list[Row]:
        return sorted(row for _, row in self.standing.values() if row is not None)


def row(chance: random.Random, key: str) -> Row:
    return key, of_region(key), chance.randint(0, 6), chance.randint(0, 99)


def of_region(key: str) -> str:
    return "EU" if int(key[1:]) % 2 else "US"


@pytest.mark.parametrize("seed", range(8))
def test_any_writes_are_read_as_the_dictionary_and_hudi_rs_read_them(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, model = random.Random(seed), Model(seed % 2 == 0)
    how: dict[str, Any] = {} if model.ordered else {"precombine": None}
    how["version"] = 8 if seed % 4 > 1 else 9
    how["options"] = {"hoodie.clean.commits.retained": "1", "hoodie.clean.automatic": "false"}
    with made(f"file://{tmp_path}/t", partition_by="region" if seed % 3 else None, **how) as table:
        for _ in range(chance.randint(4, 9)):
            what = chance.choice(["append", *["upsert"] * 3, *["delete"] * 2, *SOMETIMES])
            if what in ("compact", "clean"):
                done = getattr(table, what)()
                model.forget(what == "compact" and done is not None)
                continue
            keys = [f"k{chance.randint(0, 7)}" for _ in range(4)]
            if what == "delete_partition" and (seed % 3 == 0 or not model.rows):
                continue  # without partitions, or without any
            if what == "delete_partition":
                table.delete_partition("region=EU")
                model.empty("EU")
                continue
            if what == "delete":
                keys = sorted(set(keys) & model.standing.keys())
            batch = [row(chance, key) for key in keys]
            if what == "overwrite":
                for region in {each[1] for each in batch} if seed % 3 else {"EU", "US"}:
                    model.empty(region)
            model.write(batch, delete=what == "delete")
            getattr(table, what)(rows(*batch))
        monkeypatch.setattr(reader, "BATCH_ROWS", 1)
        for ahead_bytes_max in (32 << 20, 0):  # 0: all but the first batch in its turn
            monkeypatch.setattr(merging_logs, "AHEAD_BYTES_MAX", ahead_bytes_max)
            assert shown(table.read()) == model.rows
            some = table.read(columns=["id"], filters=[("v", ">", 40)])
            assert sorted(some["id"].to_pylist()) == [key for key, _, _, v in model.rows if v > 40]
    assert theirs(tmp_path / "t") == model.rows


def test_few_rows_of_a_slice_are_in_memory_before_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of a base file says little: equal values take no room there."""
    monkeypatch.setattr(merging_logs, "AHEAD_BYTES_MAX", 100_000)
    monkeypatch.setattr(reader, "BATCH_ROWS", 10)
    scan, read = reader.scan_slice, list[int]()

    def counted(wanted: Any, of: Any, file: Any) -> Any:
        for batch in scan(wanted, of, file):
            read.append(batch.num_rows)
            yield batch

    texts = ["x" * 1000] * 3000
    with made(f"file://{tmp_path}/t", partition_by=None, precombine=None, buckets=1) as table:
        table.upsert(pa.table({"id": [str(n) for n in range(3000)], "v": texts}))
        table.upsert(pa.table({"id": ["7"], "v": ["new"]}))
        wanted = reader.plan_scan(run(load_snapshot(), table.store, Clock()))
        monkeypatch.setattr(reader, "scan_slice", counted)
        with reader._arrive(wanted, wanted.slices[0], table.store, Clock(), Semaphore()) as source:
            assert 90 < sum(read) < 120
            found = pa.Table.from_batches(scan(wanted, wanted.slices[0], source))
    assert sum(read) == 3000
    assert sorted(found["v"].to_pylist()) == ["new", *texts[1:]]


def test_a_delete_of_an_unknown_key_stays_only_where_its_bucket_has_a_file_group() -> None:
    """As with Hudi's bucket index: `HoodieDeleteHelper` drops keys whose location is unknown."""
    with made(buckets=1) as table:
        table.upsert(rows(("a", "EU", 1, 1)))
        table.delete(rows(("z", "EU", 9, 0), ("z", "US", 9, 0)))
        table.upsert(rows(("z", "EU", 5, 5), ("z", "US", 5, 5)))
        assert shown(table.read()) == [("a", "EU", 1, 1), ("z", "US", 5, 5)]


def test_keys_that_are_the_texts_of_a_column_are_read_from_it_alone(tmp_path: Path) -> None:
    """A base file without the column of the keys shows that nobody reads it."""
    with made(f"file://{tmp_path}/t", partition_by=None, buckets=1) as table:
        table.upsert(rows(("a", "EU", 1, 1), ("b", "EU", 1, 1)))
        table.upsert(rows(("a", "EU", 2, 2)))
        (base,) = (tmp_path / "t").rglob("*.parquet")
        pq.write_table(pq.read_table(base).drop_columns(["_hoodie_record_key"]), base)
        assert shown(table.read()) == [("a", "EU", 2, 2), ("b", "EU", 1, 1)]
        assert sorted(table.read(columns=["v"])["v"].to_pylist()) == [1, 1, 2]  # it is not read


# --- what is written ------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["id", "region", "note"])
@pytest.mark.parametrize(
    "kind", [pa.dictionary(pa.int32(), pa.string()), pa.string_view()], ids=["dictionary", "view"]
)
@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", MERGE_ON_READ])
def test_rows_are_deleted_whatever_arrow_type_their_columns_have(
    table_type: str, kind: pa.DataType, column: str, tmp_path: Path
) -> None:
    both = pa.table({"id": ["a", "b"], "region": ["EU", "US"], "v": [1, 2], "note": ["", "x"]})
    place = both.column_names.index(column)
    texts = both[column].combine_chunks()
    typed = texts.dictionary_encode() if kind != pa.string_view() else texts.cast(kind)
    with Table.create(
        f"file://{tmp_path}/t", record_key="id", partition_by="region", table_type=table_type
    ) as table:
        table.upsert(both)
        table.delete(both.set_column(place, column, typed))
        assert table.read().num_rows == 0


@pytest.mark.parametrize("value", ["no", 0, False])
def test_only_a_boolean_of_hudis_name_marks_a_deleted_row(tmp_path: Path, value: object) -> None:
    both = pa.table({"id": ["a", "b"], "_hoodie_is_deleted": [value, value]})
    with Table.create(f"file://{tmp_path}/t", record_key="id", table_type=MERGE_ON_READ) as table:
        for _ in range(2):
            table.upsert(both)
        assert table.read().sort_by("id").equals(both)
        table.compact()
        assert table.read().sort_by("id").equals(both)


@pytest.mark.parametrize(
    "how", [{}, {"version": 6}, {"table_type": MERGE_ON_READ},
            {"table_type": MERGE_ON_READ, "index": "BUCKET"}], ids=str,
)  # fmt: skip
def test_a_row_that_says_it_is_deleted_deletes_its_key_in_whichever_file_that_is(
    how: dict[str, Any],
) -> None:
    """As Hudi does: it is greater or less than the stored row as any other, and is not stored."""
    flag = "_hoodie_is_deleted"

    def flagged(*listed: tuple[str, int, bool | None]) -> pa.Table:
        names = ("id", "ts", flag)
        schema = pa.schema([("id", pa.string()), ("ts", pa.int64()), (flag, pa.bool_())])
        return pa.Table.from_pylist([dict(zip(names, r, strict=True)) for r in listed], schema)

    def left(table: Table) -> dict[str, int]:
        return {each["id"]: each["ts"] for each in table.read().to_pylist()}

    url = f"memory://flagged{next(_NAMES)}"
    with Table.create(url, record_key="id", precombine="ts", buckets=1, **how) as table:
        table.upsert(flagged(("never", 5, True)))
        table.upsert(flagged(("a", 5, False), ("b", 5, None), ("c", 5, False), ("d", 5, True)))
        assert left(table) == {"a": 5, "b": 5, "c": 5}
        table.upsert(flagged(("a", 6, True), ("b", 4, True), ("c", 6, False), ("e", 6, True)))
        assert left(table) == {"b": 5, "c": 6}
        if table.history()[0].action == "commit":
            assert table.upsert(flagged(("f", 1, True))) is None
        else:
            table.compact()
            assert left(table) == {"b": 5, "c": 6}
        table.append(flagged(("g", 7, True), ("h", 7, False)))
        table.append(flagged(("i", 7, True)))
        assert left(table) == {"b": 5, "c": 6, "h": 7}


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", MERGE_ON_READ])
def test_an_overwrite_whose_rows_all_say_they_are_deleted_empties_their_partitions(
    kind: str,
) -> None:
    how: Any = {"record_key": "id", "partition_by": "region", "table_type": kind}
    with Table.create(f"memory://flagged{next(_NAMES)}", **how) as table:
        table.upsert(rows(("a", "EU", 1, 1), ("b", "US", 1, 1)))
        gone = rows(("c", "EU", 1, 1)).append_column("_hoodie_is_deleted", pa.array([True]))
        assert table.overwrite(gone)
        assert table.read(columns=["id"])["id"].to_pylist() == ["b"]


def test_an_upsert_adds_a_log_file_and_reads_no_base_file() -> None:
    with made(partition_by=None, buckets=1) as table:
        table.upsert(rows(("a", "EU", 1, 1), ("b", "EU", 1, 1)))
        committed = table.upsert(rows(("a", "EU", 2, 2)))
        assert committed is not None
        (base, log) = sorted(
            (each.key for each in table.store.list("") if each.key.rpartition("_")[0]
             and "/" not in each.key and "metadata" not in each.key), reverse=True,
        )  # fmt: skip
        assert log.startswith(".") and f"_{committed.instant}.log.1_0-0-0" in log
        assert base.endswith(".parquet") and committed.instant not in base
        assert shown(table.read()) == [("a", "EU", 2, 2), ("b", "EU", 1, 1)]
        assert shown(table.read(query="read_optimized")) == [("a", "EU", 1, 1), ("b", "EU", 1, 1)]
        assert [each.action for each in table.history()] == ["deltacommit", "deltacommit"]


def test_a_block_holds_the_rows_and_deletes_that_were_put_into_it() -> None:
    target = Target("20260101000000000", CONFIG, SCHEMA)
    new = rows(("a", "EU", 7, 1), ("b", "EU", 8, 2))
    body = data_block(target, "p", "f", TaskId(), new["id"], new)
    body += delete_block(target, "p", new["id"], new["ts"], SCHEMA)
    body += delete_block(target, "p", new["id"], None, SCHEMA)
    put, gone, by_commit = blocks("a log", body)
    found = list(avro_rows(put))
    assert {each["_hoodie_commit_time"] for each in found} == {put.instant} == {target.instant}
    assert [each["_hoodie_record_key"] for each in found] == ["a", "b"]
    assert shown(pa.Table.from_pylist(found).select(SCHEMA.names)) == shown(new)
    assert [(each.key, each.ordering) for each in deleted_keys(gone)] == [("a", 7), ("b", 8)]
    assert [each.ordering for each in deleted_keys(by_commit)] == [None, None]


def test_the_second_copy_of_a_table_is_found_by_its_checkpoint() -> None:
    with made() as table:
        for number in range(3):
            table.upsert(rows(("k1", "EU", number, number), ("k2", "US", number, number)))
        snapshot = run(load_snapshot(), table.store, Clock())
        assert any(isinstance(each, LogSlice) for each in snapshot.slices)
        assert parse_checkpoint(format_checkpoint(snapshot)) == snapshot


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_slices_do_not_depend_on_the_order_in_which_commits_are_read(
    order: tuple[int, ...],
) -> None:
    """A log file that was completed after a base file's instant stays behind that one."""

    def commit(at: int, done: int, log: bool) -> tuple[CommitFiles, WriteStat]:
        instant = f"2026010100000000{at}"
        name = f".f_{instant}.log.1_0-0-0" if log else f"f_0-0-0_{instant}.parquet"
        stat = WriteStat(partition="", file_id="f", path=name, writes=1, size_bytes=1)
        completed = f"2026010100000000{done}"
        return CommitFiles(instant, "UPSERT", (stat,), frozenset(), None, None,
                           completion=completed), stat  # fmt: skip

    commits = [commit(0, 1, False), commit(2, 3, True), commit(4, 6, True), commit(5, 7, False)]
    standing: Slice | None = None
    for number in order:
        standing = slice_after(CONFIG, standing, *commits[number])
    assert isinstance(standing, LogSlice)
    assert (standing.path, standing.logs) == (commits[3][1].path, (commits[2][1].path,))


# --- reads of the past and increments -------------------------------------------------------------


def test_as_of_and_increments_show_what_log_files_brought() -> None:
    with made() as table:
        first = table.upsert(rows(("k1", "EU", 1, 1), ("k3", "EU", 1, 1)))
        second = table.upsert(rows(("k1", "EU", 2, 2)))
        third = table.delete(rows(("k3", "EU", 3, 3)))
        assert first and second and third
        assert shown(table.read(as_of=first.instant)) == [("k1", "EU", 1, 1), ("k3", "EU", 1, 1)]
        assert shown(table.read(as_of=second.instant)) == [("k1", "EU", 2, 2), ("k3", "EU", 1, 1)]
        assert shown(table.read()) == [("k1", "EU", 2, 2)]
        assert first.completion and second.completion
        changed, increment = table.changes(first.completion)
        assert shown(changed) == [("k1", "EU", 2, 2)] and increment.end == third.completion
        assert shown(table.changes(first.completion, second.completion)[0]) == shown(changed)
        assert not table.changes(second.completion)[0].num_rows


# --- conflicts, rollbacks -------------------------------------------------------------------------


def test_two_upserts_of_one_file_group_conflict_and_the_loser_leaves_no_file() -> None:
    url = f"memory://merged{next(_NAMES)}"
    with made(url, partition_by=None, buckets=1) as one, Table(url) as other:
        one.upsert(rows(("a", "EU", 1, 1)))

        def meanwhile(kind: str, **fields: Any) -> None:
            if kind == "note" and fields["text"].startswith("wrote") and not done:
                done.append(other.upsert(rows(("a", "EU", 2, 2))))

        done: list[Any] = []
        with Table(url, emit=meanwhile) as slow, pytest.raises(CommitConflict, match="rewrote"):
            slow.upsert(rows(("a", "EU", 3, 3)))
        logs = [each.key for each in one.store.list("") if ".log." in each.key]
        assert len(logs) == 1 and done[0].instant in logs[0]
        assert shown(one.read()) == [("a", "EU", 2, 2)]


def test_the_rollback_of_a_dead_writer_deletes_its_log_file(tmp_path: Path) -> None:
    with made(f"file://{tmp_path}/t", partition_by=None, buckets=1) as table:
        table.upsert(rows(("a", "EU", 1, 1)))
        known: TableCache = table._open()
        dead = run(begin(known, action="deltacommit"), table.store, Clock())
        (group,) = run(load_snapshot(), table.store, Clock()).slices
        name = f".{group.file_id}_{dead.instant}.log.1_0-0-0"
        body = data_block(dead.target, "", group.file_id, TaskId(), pa.array(["a"]),
                          rows(("a", "EU", 9, 9)))  # fmt: skip
        (tmp_path / "t" / name).write_bytes(body)
        assert shown(table.read()) == [("a", "EU", 1, 1)] == theirs(tmp_path / "t")
        done = run(roll_back(dead.instant, EpochGuard(0), known), table.store, Clock())
        assert isinstance(done, RolledBack) and done.deleted == (name,)
        table.upsert(rows(("a", "EU", 2, 2)))
        assert shown(table.read()) == [("a", "EU", 2, 2)] == theirs(tmp_path / "t")


def test_an_overwrite_begins_new_groups_in_which_upserts_find_their_keys(tmp_path: Path) -> None:
    with made(f"file://{tmp_path}/t", buckets=1) as table:
        table.upsert(rows(("k1", "EU", 1, 1), ("k3", "EU", 1, 1), ("k2", "US", 1, 1)))
        table.upsert(rows(("k1", "EU", 5, 5)))
        table.overwrite(rows(("k1", "EU", 2, 2)))
        table.upsert(rows(("k1", "EU", 3, 3), ("k5", "EU", 1, 1)))
        expected = [("k1", "EU", 3, 3), ("k2", "US", 1, 1), ("k5", "EU", 1, 1)]
        assert shown(table.read()) == expected == theirs(tmp_path / "t")
        ids = [each.file_id for each in run(load_snapshot(), table.store, Clock()).slices]
        assert sorted(each[-1] for each in ids) == ["0", "1"]  # the bucket's generation
        table.overwrite(rows(("k9", "EU", 1, 1)), whole_table=True)
        assert shown(table.read()) == [("k9", "EU", 1, 1)] == theirs(tmp_path / "t")
        table.delete_partition("region=*")
        assert shown(table.read()) == [] == theirs(tmp_path / "t")


def test_a_compaction_yields_to_an_overwrite_of_its_groups() -> None:
    url = f"memory://merged{next(_NAMES)}"

    def overwrite(kind: str, **fields: Any) -> None:
        if kind == "note" and fields["text"].startswith("compacting"):
            with Table(url) as other:
                other.overwrite(rows(("k9", "EU", 1, 1)))

    with made(url) as table, Table(url, emit=overwrite) as slow:
        table.upsert(rows(("k1", "EU", 1, 1)))
        table.upsert(rows(("k1", "EU", 2, 2)))
        with pytest.raises(CommitConflict, match=r"replaced|overwrote"):
            slow.compact()
        assert shown(table.read()) == [("k9", "EU", 1, 1)] and not table.compact()


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"version": 6}, {"table_type": "MERGED"}])
def test_a_merge_on_read_table_of_version_6_is_not_fenced(how: dict[str, Any]) -> None:
    with pytest.raises(TableError, match="in version 6 only in the mode hudi"):
        TableConfig(**{"name": "t", "record_key": "id", "table_type": MERGE_ON_READ, **how})


def test_a_merge_on_read_table_does_not_leave_the_fenced_mode() -> None:
    with made() as table:
        table.upsert(rows(("k1", "EU", 1, 1)))
        with pytest.raises(TableError, match="nothing was changed"):
            run(switch_mode(HUDI, EpochGuard(9)), table.store, Clock())
        table.upsert(rows(("k1", "EU", 2, 2)))
        assert shown(table.read()) == [("k1", "EU", 2, 2)]


@pytest.mark.parametrize("key", ["hoodie.clustering.inline", "hoodie.clustering.async.enabled"])
def test_clustering_is_refused_by_name(key: str) -> None:
    url = f"memory://merged{next(_NAMES)}"
    with pytest.raises(TableError, match=key):
        made(url, options={key: "true"})
    with made(url, options={key: "false"}) as table:
        table.upsert(rows(("k1", "EU", 1, 1)))
    with Table(url, options={key: "true"}) as table, pytest.raises(TableError, match=key):
        table.upsert(rows(("k1", "EU", 2, 2)))


def test_the_properties_of_a_merge_on_read_table_are_read_as_they_were_written() -> None:
    keys = to_properties(CONFIG)
    assert from_properties(keys) == CONFIG
    assert from_properties({**keys, "hoodie.of.others": "1"}) == CONFIG
    with pytest.raises(TableError, match="version 6 can only be written in the mode hudi"):
        from_properties({**keys, "hoodie.table.version": "6",
                         "hoodie.timeline.layout.version": "1"})  # fmt: skip


def test_rows_whose_order_readers_do_not_agree_on_are_refused() -> None:
    new = rows(("k1", "EU", 1, 1))
    with made() as table:
        table.upsert(new)
        for bad, why in (
            (new.set_column(2, "ts", pa.array([None], pa.int64())), "is null in 1 rows"),
            (new.set_column(2, "ts", pa.array([True])), "do not compare this type alike"),
            (new.set_column(2, "ts", pa.array([datetime(2026, 1, 1)])), "do not compare this"),
            (new.set_column(2, "ts", pa.array([float("nan")])), "is not a number in some rows"),
        ):
            for write in (table.append, table.upsert, table.delete):
                with pytest.raises(TableError, match=why):
                    write(bad)
        with pytest.raises(TableError, match="a delete is later than"):
            table.delete(new.drop_columns(["ts"]))
        with pytest.raises(TableError, match="is not clustered: it is merge-on-read"):
            table.cluster()
        assert shown(table.read()) == shown(new) and not table.clean()


ORDERED: dict[str, tuple[pa.DataType, Any]] = {
    "int32": (pa.int32(), lambda n: n),
    "float": (pa.float32(), lambda n: n + 0.5),
    "double": (pa.float64(), lambda n: n + 0.5),
    "date": (pa.date32(), lambda n: date(2026, 1, n)),
    "timestamp": (pa.timestamp("us", "UTC"), lambda n: datetime(2026, 1, n, tzinfo=UTC)),
    "decimal": (pa.decimal128(10, 2), lambda n: Decimal(n) / 4),
}


@pytest.mark.parametrize("kind", ORDERED)
def test_rows_and_deletes_are_ordered_by_a_precombine_field_of_each_type(
    kind: str, tmp_path: Path
) -> None:
    arrow, value = ORDERED[kind]

    def at(n: int, *keys: str) -> pa.Table:
        new = rows(*((key, "EU", n, n) for key in keys))
        return new.set_column(2, "ts", pa.array([value(n)] * len(keys), arrow))

    def shows(expected: dict[str, int]) -> None:
        for each in (table.read(), read_by_hudi_rs(tmp_path / "t")):
            assert {row["id"]: row["v"] for row in each.to_pylist()} == expected

    with made(f"file://{tmp_path / 't'}", buckets=1) as table:
        table.upsert(at(10, "a", "b", "c", "d"))
        table.upsert(at(11, "a"))
        table.upsert(at(9, "b"))
        table.delete(at(9, "c"))
        table.delete(at(11, "d"))
        shows({"a": 11, "b": 10, "c": 10})
        table.upsert(at(10, "d"))  # older than its deletion
        shows({"a": 11, "b": 10, "c": 10})
        table.compact()
        shows({"a": 11, "b": 10, "c": 10})


def test_a_delete_at_the_value_that_hudi_takes_for_none_is_refused() -> None:
    new = rows(("k1", "EU", 0, 1))
    new = new.set_column(2, "ts", pa.array([0], pa.int32()))
    with made() as table:
        table.upsert(new)
        with pytest.raises(TableError, match="ordering value 0 of an int"):
            table.delete(new)
        assert table.read().num_rows == 1


def test_an_upsert_beside_inline_services_gives_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with made(options={"hoodie.clean.automatic": "true"}) as table:
            for number in range(13):
                table.upsert(rows(("k1", "EU", number, number)))
            assert shown(table.read()) == [("k1", "EU", 12, 12)]


def test_a_log_names_the_commit_before_it_in_its_file_slice() -> None:
    """Hudi's `prevCommit`: the newest one, not the base file's."""
    url = f"memory://merged{next(_NAMES)}"
    with made(url, buckets=1) as table:
        done = [table.upsert(rows(("k1", "EU", at, at))) for at in range(3)]
        store, names = table.store, run(load_config(), table.store, Clock())[0].names
    for before, each in itertools.pairwise(done):
        now = run(load_timeline(names), store, Clock())
        files = run(read_commit(names, each.instant, now), store, Clock())
        assert [stat.previous for stat in files.stats] == [before.instant]


@pytest.mark.usefixtures("no_hudi_beside")
@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("kind", ["avro", "parquet"])
def test_a_column_that_is_added_between_log_files_is_null_in_the_rows_before_it(
    tmp_path: Path, version: int, kind: str
) -> None:
    how = {"version": version, "mode": "hudi", "index": "BUCKET", "buckets": 1,
           "options": {"hoodie.logfile.data.block.format": kind}}  # fmt: skip
    noted = SCHEMA.append(pa.field("note", pa.string()))
    turns: list[tuple[pa.Schema, str]] = [
        (SCHEMA, "abc"), (SCHEMA, "a"), (noted, "ad"), (SCHEMA, "b"), (noted, "b"),
        (noted.append(pa.field("w", pa.float64())), "ce"),
    ]  # fmt: skip
    expected: dict[str, dict[str, Any]] = {}
    with made(f"file://{tmp_path}", **how) as table:
        for turn, (columns, keys) in enumerate(turns):
            values = {"region": "EU", "ts": turn, "v": turn, "note": f"n{turn}", "w": 0.5}
            given = [{"id": key, **values} for key in keys]
            found = pa.Table.from_pylist(given, columns)
            table.upsert(found)
            expected |= {row["id"]: row for row in found.to_pylist()}
            for compacts in (False, True) if turn in (3, 5) else (False,):
                if compacts:
                    table.compact()
                wide = table.read()
                wanted = [{name: row.get(name) for name in wide.column_names}
                          for _, row in sorted(expected.items())]  # fmt: skip
                by_hudi_rs = read_by_hudi_rs(tmp_path).select(wide.column_names)
                for shown_by in (wide, by_hudi_rs):
                    assert shown_by.sort_by("id").to_pylist() == wanted, (turn, compacts)
