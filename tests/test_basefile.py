"""Base files: what goes in comes out, in bounded memory, merged as a dictionary would merge it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.stores import open_store
from lockkit.table import Slice, Table, TableConfig, read_base_file, write_inserts
from lockkit.table.format import base_file as rooms
from lockkit.table.format import base_file_reading as reading
from lockkit.table.format.base_file import BaseFileWriter, Target
from lockkit.table.format.base_file_reading import rows_to_copy
from lockkit.table.format.data_files import ATTEMPTS, open_data_file, put_data_file
from lockkit.table.format.layout import TaskId
from lockkit.table.format.schema import (
    META_COLUMNS,
    avro_schema,
    evolve,
    stored_schema,
)
from lockkit.table.format.schema_reading import arrow_schema
from lockkit.table.write.groups import WriteTask, write_rows
from lockkit.table.write.merge import deletions, merge, rewrite_group, upserts

CONFIG = TableConfig(name="t", record_key="id", precombine="at")
SCHEMA = pa.schema([("id", pa.string()), ("at", pa.int64()), ("v", pa.int64())])
ROOT = Path(__file__).parents[1]


def at(number: int, config: TableConfig = CONFIG, schema: pa.Schema | None = None) -> Target:
    return Target(f"{20250101000000000 + number}", config, schema)


def rows(*each: tuple[Any, Any, Any]) -> pa.Table:
    return pa.table([list(column) for column in zip(*each, strict=True)] or [[]] * 3, schema=SCHEMA)


class Group:
    """One file group, written and merged in memory; its rows as {key: (at, v)}."""

    def __init__(self) -> None:
        self.base: Slice | None = None
        self.body = b""
        self.number = 0

    def write(self, change: pa.Table, *, delete: bool = False) -> Any:
        self.number += 1
        target, out = at(self.number, schema=SCHEMA), io.BytesIO()
        changes = (deletions if delete else upserts)(target, change)
        previous = self.base.instant if self.base else "null"
        draft = BaseFileWriter(target, "", "g-0", SCHEMA, out, previous=previous)
        old = rows_to_copy(target.config, "old", io.BytesIO(self.body)) if self.base else ()
        stat = merge(draft, old, changes)
        if stat is not None:
            self.base, self.body = Slice("", "g-0", target.instant, stat.path), out.getvalue()
            assert stat.size_bytes == len(self.body)
            assert stat.writes == pq.ParquetFile(io.BytesIO(self.body)).metadata.num_rows
        return stat

    def rows(self) -> dict[str, tuple[Any, Any]]:
        if self.base is None:
            return {}
        table = read_base_file("now", self.body)
        assert table["_hoodie_record_key"].to_pylist() == table["id"].to_pylist()
        assert set(table["_hoodie_file_name"].to_pylist()) <= {self.base.path}
        assert len(set(table["_hoodie_commit_seqno"].to_pylist())) == table.num_rows
        found = {r["id"]: (r["at"], r["v"]) for r in table.to_pylist()}
        assert len(found) == table.num_rows, "a key is there twice"
        return found


# --- the merge, against a dictionary ---

KEYS = st.sampled_from(["a", "b", "c", "d", "é/..", "k" * 300])
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.integers(-3, 3), st.integers(0, 99)), min_size=1)
STEPS = st.lists(st.tuples(st.sampled_from(["upsert", "upsert", "delete"]), CHANGES), max_size=5)


def _order(value: int | None) -> tuple[bool, int]:
    return (value is not None, value or 0)


def _model(steps: list[tuple[str, list[tuple[str, int | None, int]]]]) -> dict[str, Any]:
    stored: dict[str, Any] = {}
    for operation, changes in steps:
        for key, when, value in changes:
            if operation == "delete":
                stored.pop(key, None)
            elif key not in stored or _order(when) >= _order(stored[key][0]):
                stored[key] = (when, value)
    return stored


@settings(max_examples=150, deadline=None)
@given(STEPS)
@example([("upsert", [("a", 2, 1)]), ("upsert", [("a", 1, 2), ("b", None, 3), ("a", 2, 4)])])
@example([("upsert", [("a", 2, 1)]), ("upsert", [("a", None, 2)]), ("delete", [("a", 0, 0)])])
def test_a_file_group_holds_what_a_dictionary_would(steps: Any) -> None:
    group = Group()
    small = pytest.MonkeyPatch()
    small.setattr(reading, "BATCH_ROWS_MIN", 2)
    small.setattr(reading, "BATCH_BYTES", 1)
    small.setattr(rooms, "ROW_GROUP_BYTES", 100)
    try:
        for operation, changes in steps:
            group.write(rows(*changes), delete=operation == "delete")
    finally:
        small.undo()
    assert group.rows() == _model(steps)


@pytest.mark.parametrize(
    ("limit", "most"), [("ROW_GROUP_BYTES", 1_000), ("ROW_GROUP_ROWS_MAX", 30)]
)
def test_many_rows_in_one_write_are_several_row_groups(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    """A reader decodes a whole row group: it bounds the memory of a merge and a compaction."""
    monkeypatch.setattr(rooms, limit, most)
    many = rows(*((f"k{n}", n, n) for n in range(100)))
    file = write_inserts(at(1), many, file_id="f-0")
    found = pq.ParquetFile(pa.BufferReader(file.body)).metadata
    sizes = [found.row_group(n).num_rows for n in range(found.num_row_groups)]
    assert sum(sizes) == 100 and 2 < len(sizes) < 10 and max(sizes) <= 40, sizes


def test_a_write_that_changes_nothing_ends_its_draft_without_a_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The writer of a draft with two row groups wrote a footer when its file was closed already."""
    noise: list[Any] = []
    monkeypatch.setattr(rooms, "ROW_GROUP_ROWS_MAX", 3)
    monkeypatch.setattr(sys, "unraisablehook", noise.append)
    with Table.create(tmp_path.as_uri(), record_key="id", precombine="at") as table:
        table.upsert(rows(*((f"k{n}", n, n) for n in range(40))))
        assert table.upsert(rows(("k1", -5, 0))) is None
    assert not noise


def test_an_upsert_that_is_older_than_what_is_stored_writes_no_file() -> None:
    group = Group()
    group.write(rows(("a", 5, 1), ("b", 5, 1)))
    assert group.write(rows(("a", 4, 2), ("b", None, 2))) is None
    assert group.write(rows(("zzz", 0, 0)), delete=True) is None
    stat = group.write(rows(("a", 5, 3), ("b", 4, 3), ("c", 1, 3)))
    assert (stat.inserts, stat.updates, stat.writes) == (1, 1, 3)
    assert group.rows() == {"a": (5, 3), "b": (5, 1), "c": (1, 3)}


def test_rows_that_say_they_are_deleted_are_counted_as_deletes_of_what_they_delete() -> None:
    def flagged(*listed: tuple[str, int, bool]) -> pa.Table:
        names = ["id", "at", "_hoodie_is_deleted"]
        return pa.table([list(each) for each in zip(*listed, strict=True)], names)

    old = write_inserts(at(1), flagged(*((key, 5, False) for key in "abc")), file_id="g-0")
    base, stored = Slice("", "g-0", at(1).instant, old.key), read_base_file(old.key, old.body)
    new = flagged(("a", 6, True), ("b", 4, True), ("c", 6, False), ("d", 6, True), ("e", 6, False))
    stat = rewrite_group(at(2), base, stored, new).stat
    assert (stat.inserts, stat.updates, stat.deletes, stat.writes) == (1, 1, 1, 3)


def test_a_copied_row_keeps_its_commit_and_gets_the_new_file_name() -> None:
    group = Group()
    group.write(rows(("a", 1, 1), ("b", 1, 1)))
    group.write(rows(("b", 2, 2)))
    table = {r["id"]: r for r in read_base_file("now", group.body).to_pylist()}
    assert table["a"]["_hoodie_commit_time"] == at(1).instant
    assert table["b"]["_hoodie_commit_time"] == at(2).instant
    assert {r["_hoodie_file_name"] for r in table.values()} == {group.base.path}


def test_every_copy_of_a_row_that_inserts_stored_twice_is_replaced_or_deleted() -> None:
    target = at(0, schema=SCHEMA)
    file = write_inserts(target, rows(("a", 1, 1), ("a", 1, 1), ("b", 1, 1)), file_id="g-0")
    for delete in (False, True):
        group = Group()
        group.base, group.body = Slice("", "g-0", target.instant, file.key), file.body
        group.write(rows(("a", 2, 9)), delete=delete)
        assert group.rows() == {"b": (1, 1)} | ({} if delete else {"a": (2, 9)})


def test_a_file_group_may_lose_all_its_rows_and_get_new_ones() -> None:
    group = Group()
    group.write(rows(("a", 1, 1)))
    assert group.write(rows(("a", 0, 0)), delete=True).deletes == 1
    assert group.rows() == {}
    group.write(rows(("a", 0, 7)))
    assert group.rows() == {"a": (0, 7)}


@pytest.mark.parametrize(
    "values",
    [(1.5, float("nan")), (date(2025, 1, 1), date(2025, 1, 2)), ("a", "b"), (False, True),
     (datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 1, 2, tzinfo=UTC)),
     (Decimal("1.00"), Decimal("2.50"))],
)  # fmt: skip
def test_any_ordered_type_can_be_the_precombine_column(values: tuple[Any, Any]) -> None:
    low, high = values

    def of(value: Any) -> pa.Table:
        return pa.table({"id": ["a"], "at": pa.array([value], pa.array([low, high]).type)})

    old = write_inserts(at(1), of(high), file_id="g-0")
    base = Slice("", "g-0", at(1).instant, old.key)
    stored = read_base_file(old.key, old.body)
    assert rewrite_group(at(2), base, stored, of(low)).stat.updates == 0
    assert rewrite_group(at(2), base, stored, of(high)).stat.updates == 1


# --- memory ---

MERGE_A_BIG_GROUP = """
import resource, sys, pyarrow as pa, tempfile
sys.path.insert(0, {root!r})
from lockkit.table import TableConfig
from lockkit.table.format.base_file import BaseFileWriter, Target
from lockkit.table.format.base_file_reading import rows_to_copy
from lockkit.table.write.merge import merge, upserts
schema = pa.schema([("id", pa.string()), ("pad", pa.binary())])
config = TableConfig(name="t", record_key="id")
target = Target("20250101000000000", config, schema)
file = tempfile.TemporaryFile()
draft = BaseFileWriter(target, "", "g-0", schema, file)
import os
peaks = []
for part in range({parts}):
    ids = pa.array([f"k{{part}}-{{i}}" for i in range(1000)])
    pad = pa.array([os.urandom(10_000) for _ in range(1000)])
    draft.add(pa.table([ids, pad], schema=schema))
stat = draft.close(inserts=0)
file.seek(0)
out = tempfile.TemporaryFile()
later = BaseFileWriter(Target("20250102000000000", config, schema), "", "g-0", schema, out,
                       previous=target.instant)
one = pa.table([["k0-1"], [b"new"]], schema=schema)
stat = merge(later, rows_to_copy(config, "old", file), upserts(target, one))
assert stat.updates == 1 and stat.writes == {parts} * 1000
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def _peak_mb(parts: int) -> int:
    code = MERGE_A_BIG_GROUP.format(root=str(ROOT), parts=parts)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(said.stdout)


def test_memory_does_not_grow_with_the_file_group() -> None:
    assert _peak_mb(40) < _peak_mb(10) + 120  # 300 MB more on disk


# --- to the store and back ---


@pytest.fixture(params=["memory", "file", "s3", "gs", "az"])
def store(request: Any, shared_emulator: Any, bucket: str, tmp_path: Path) -> Any:
    kind = request.param
    endpoints = {"s3": "s3", "gs": "gcs", "az": "azure"}
    how = {"endpoint": getattr(shared_emulator, endpoints[kind])} if kind in endpoints else {}
    place = f"{tmp_path}" if kind == "file" else f"{bucket}/t"
    if kind == "gs":
        how["project"] = "p"
    return open_store(f"{kind}://{place}", attempts=ATTEMPTS, **how)


def test_a_data_file_is_read_as_it_was_put_and_its_name_is_never_used_again(store: Any) -> None:
    body = os.urandom(9_000_000)  # Google's SDK sends more than 8 MiB in several requests
    put_data_file(store, "p=1/f.parquet", io.BytesIO(body), len(body), Clock())
    with open_data_file(store, "p=1/f.parquet", Clock()) as file:
        assert file.read() == body
    # An answer that was lost, and the SDK's own retry: the name is ours, and so is the file.
    put_data_file(store, "p=1/f.parquet", io.BytesIO(body), len(body), Clock())
    with pytest.raises(TableError, match="its name is used"):
        put_data_file(store, "p=1/f.parquet", io.BytesIO(b"other"), 5, Clock())
    with pytest.raises(TableError, match=r"p=1/g\.parquet is gone"):
        open_data_file(store, "p=1/g.parquet", Clock())
    assert [each.key for each in store.list("")] == ["p=1/f.parquet"]


def test_rows_of_many_partitions_become_a_file_each_and_large_ones_several(store: Any) -> None:
    config = TableConfig(name="t", record_key="id", partition_by="v")
    work = WriteTask(store, at(1, config), TaskId(3), Clock())
    tables = [rows(*[(f"{n}-{i}", None, n // 2) for i in range(50)]) for n in range(6)]
    one = list(write_rows(work, iter(tables)))
    assert [(stat.partition, stat.writes) for stat in one] == [(f"v={n}", 100) for n in range(3)]
    many = list(write_rows(work, iter(tables), file_bytes_max=1))
    assert len({stat.file_id for stat in many}) == 6
    with open_data_file(store, many[0].path, Clock()) as file:
        assert read_base_file("x", file.read())["id"].to_pylist() == tables[0]["id"].to_pylist()


# --- bad input ---


@pytest.mark.parametrize("key", [None, ""])
def test_a_row_without_a_key_is_refused(key: str | None) -> None:
    with pytest.raises(TableError, match=r"'id' is the record key, and .* rows have no"):
        write_inserts(at(1), rows(("a", 1, 1), (key, 1, 1)), file_id="g-0")
    with pytest.raises(TableError, match="record key"):
        upserts(at(1), rows((key, 1, 1)))
    with pytest.raises(TableError, match="record key"):
        deletions(at(1), rows((key, 1, 1)))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full: Linux")
def test_a_full_disk_is_reported_as_a_full_disk() -> None:
    with open("/dev/full", "r+b", buffering=0) as out:
        target = Target("20250101000000000", TableConfig(name="t", record_key="id"))
        draft = BaseFileWriter(target, "", "f-0", pa.schema([("id", pa.string())]), out)
        draft.add(pa.table({"id": ["a", "b"]}))
        with pytest.raises(TableError, match=r"No space left on device.*; make room there"):
            draft.close(inserts=2)


def test_missing_columns_are_named() -> None:
    with pytest.raises(TableError, match="column 'id' is missing: the table's record key"):
        upserts(at(1), pa.table({"at": [1]}))
    with pytest.raises(TableError, match="column 'at' is missing: the table's precombine field"):
        upserts(at(1), pa.table({"id": ["a"]}))


@pytest.mark.parametrize("noise", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", bytes(5000)])
def test_a_file_that_is_not_parquet_is_named(noise: bytes) -> None:
    with pytest.raises(TableError, match=r"x\.parquet is not a readable parquet file"):
        read_base_file("x.parquet", noise)


def test_a_value_that_does_not_fit_its_column_is_refused() -> None:
    target = at(1, schema=pa.schema([("id", pa.string()), ("at", pa.int32()), ("v", pa.int64())]))
    with pytest.raises(TableError, match="'at' is int64, which does not fit the table's int32"):
        write_inserts(target, rows(("a", 1 << 40, 1)), file_id="g-0")


# --- the schema ---

EVERY = pa.schema(
    [("b", pa.bool_()), ("i", pa.int32()), ("l", pa.int64()), ("f", pa.float32()),
     ("d", pa.float64()), ("s", pa.string()), ("y", pa.binary()), ("dt", pa.date32()),
     ("ts", pa.timestamp("us", "UTC")), ("lts", pa.timestamp("us")), ("dec", pa.decimal128(38, 9)),
     ("li", pa.list_(pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))]))),
     ("m", pa.map_(pa.string(), pa.decimal128(5, 2)))]
)  # fmt: skip


def test_avro_and_arrow_name_the_same_columns() -> None:
    assert arrow_schema(avro_schema(EVERY, "orders")) == EVERY
    import fastavro

    fastavro.parse_schema(json.loads(avro_schema(EVERY, "1 orders/é")))


@pytest.mark.parametrize(
    ("kind", "stored"),
    [(pa.int8(), pa.int32()), (pa.uint32(), pa.int64()), (pa.large_string(), pa.string()),
     (pa.dictionary(pa.int8(), pa.large_string()), pa.string()), (pa.date64(), pa.date32()),
     (pa.timestamp("ns"), pa.timestamp("us")), (pa.string_view(), pa.string()),
     (pa.timestamp("s", "Europe/Berlin"), pa.timestamp("us", "UTC")), (pa.float16(), pa.float32()),
     (pa.large_list(pa.int16()), pa.list_(pa.int32())), (pa.binary(4), pa.binary())],
)  # fmt: skip
def test_types_that_only_arrow_distinguishes_are_stored_as_spark_reads_them(
    kind: Any, stored: Any
) -> None:
    assert stored_schema(pa.schema([("c", kind)])) == pa.schema([("c", stored)])
    file = write_inserts(
        at(1, TableConfig(name="t", record_key="id")),
        pa.table([["a"], pa.nulls(1, kind)], schema=pa.schema([("id", pa.string()), ("c", kind)])),
        file_id="g-0",
    )
    assert pq.read_schema(io.BytesIO(file.body)).field("c").type == stored


def test_nanoseconds_are_cut_to_microseconds() -> None:
    column = pa.array([1_000_001_999], pa.timestamp("ns"))
    target = at(1, TableConfig(name="t", record_key="id"))
    file = write_inserts(target, pa.table({"id": ["a"], "c": column}), file_id="g-0")
    assert read_base_file("x", file.body)["c"].cast(pa.int64()).to_pylist() == [1_000_001]


@pytest.mark.parametrize(
    "kind", [pa.uint64(), pa.duration("s"), pa.null(), pa.time64("us"), pa.struct([]),
             pa.map_(pa.int32(), pa.string()), pa.decimal256(50, 2)],
)  # fmt: skip
def test_a_type_that_no_hudi_reader_knows_is_refused_by_column(kind: Any) -> None:
    with pytest.raises(TableError, match=r"column .c. has type .* cast it first"):
        stored_schema(pa.schema([("c", kind)]))


@pytest.mark.parametrize("name", ["order-id", "a b", "größe", "x.y", "1st", ""])
def test_a_name_that_would_make_the_table_unreadable_to_others_is_refused(name: str) -> None:
    """hudi-rs reads no row of a table with such a column: its Avro schema is none."""
    inside = pa.struct([(name, pa.int64())])
    for fields in ([(name, pa.int64())], [("s", inside)], [("l", pa.list_(inside))]):
        with pytest.raises(TableError, match="cannot be named so"):
            stored_schema(pa.schema([("id", pa.string()), *fields]))


def test_an_added_column_comes_last_and_old_rows_have_none_of_it() -> None:
    incoming = pa.schema([("new", pa.string()), ("v", pa.int64()), ("id", pa.string())])
    table = evolve(SCHEMA, incoming)
    assert table.names == ["id", "at", "v", "new"]
    old = write_inserts(at(1), rows(("a", 1, 1), ("b", 1, 1)), file_id="g-0")
    base = Slice("", "g-0", at(1).instant, old.key)
    change = pa.table({"id": ["b", "c"], "at": [2, 2], "new": ["x", "y"]})
    file = rewrite_group(at(2, schema=table), base, read_base_file("o", old.body), change)
    found = {r["id"]: (r["v"], r["new"]) for r in read_base_file("n", file.body).to_pylist()}
    assert found == {"a": (1, None), "b": (None, "x"), "c": (None, "y")}


def test_a_changed_type_is_refused_with_the_column_and_both_types() -> None:
    with pytest.raises(TableError, match="'v' is int64 in the table and string in these rows"):
        evolve(SCHEMA, pa.schema([("v", pa.string())]))
    with pytest.raises(TableError, match="'V' is 'v' in the table"):
        evolve(SCHEMA, pa.schema([("V", pa.int64())]))
    with pytest.raises(TableError, match="'A' is the same as 'a'; rename one"):
        evolve(None, pa.schema([("a", pa.int64()), ("A", pa.int64())]))
    assert evolve(SCHEMA, pa.schema([("v", pa.int16())])) == SCHEMA, "it fits"


@pytest.mark.parametrize(
    "noise",
    ["", "{}", "[]", '{"fields": 3}', '{"fields": [{"name": "a"}]}', "[" * 10_000,
     '{"fields": [{"name": "a", "type": {"type": "array", "items": ["int", "long"]}}]}',
     '{"fields": [{"name": "a", "type": {"type": "fixed", "logicalType": "decimal"}}]}',
     '{"fields": [{"name": "a", "type": "interval"}]}',
     '{"fields": [{"name": "a", "type": ' + '{"type": "array", "items": ' * 40 + '"int"'
     + "}" * 40 + "}]}"],
)  # fmt: skip
def test_an_invalid_avro_schema_raises_a_table_error(noise: str) -> None:
    with pytest.raises(TableError):
        arrow_schema(noise)


def test_the_footer_has_the_first_and_last_key() -> None:
    file = write_inserts(at(1), rows(("b", 1, 1), ("é", 1, 1), ("a", 1, 1)), file_id="g-0")
    footer = pq.ParquetFile(io.BytesIO(file.body))
    assert footer.metadata.metadata[b"hoodie_min_record_key"] == b"a"
    assert footer.metadata.metadata[b"hoodie_max_record_key"] == "é".encode()
    assert footer.schema_arrow.names == [*META_COLUMNS, "id", "at", "v"]
    assert all(footer.schema_arrow.field(name).type == pa.string() for name in META_COLUMNS)
