"""Log files of a merge-on-read table: which blocks are seen, how they merge, what is refused."""

from __future__ import annotations

import io
import json
import struct
import weakref
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lockkit import Clock
from lockkit.errors import TableError
from lockkit.runtime import run
from lockkit.stores import ListEntry
from lockkit.stores.memory import MemoryStore
from lockkit.table import Table
from lockkit.table.errors import DamagedFile, UnsupportedTable
from lockkit.table.format import log_blocks
from lockkit.table.format.base_file import Slice
from lockkit.table.format.log_blocks import (
    AVRO,
    COMMAND,
    DELETE,
    DELETES,
    HFILE,
    MAGIC,
    PARQUET,
    avro_rows,
    blocks,
    gaps,
    joined,
)
from lockkit.table.format.property_keys import MERGER, MERGERS, checksum
from lockkit.table.format.readable import readable
from lockkit.table.format.timeline import V6, V9, TimelineNames, parse_timeline
from lockkit.table.read import reader
from lockkit.table.read.listed import LogSlice, _with_logs
from lockkit.table.read.log_entries import (
    LogColumns,
    LogEntries,
    _of_distinct_keys,
    merged_entries,
)
from lockkit.table.read.log_order import DELETE_ALWAYS, ROW
from lockkit.table.read.log_slice import VisibleInstants
from lockkit.table.read.merging_logs import MergeSource, log_entries, scan_log_slice
from lockkit.table.read.reader import Scan, scan_slice
from lockkit.table.read.table_files import Listed

SCHEMA = {
    "type": "record", "name": "t", "fields": [
        {"name": "_hoodie_record_key", "type": "string"}, {"name": "ts", "type": "long"},
        {"name": "v", "type": ["null", "int"], "default": None},
    ],
}  # fmt: skip
V = LogColumns(pa.schema([("ts", pa.int64())]), pa.schema([("v", pa.int32())]))
T1, T2, T3 = "20260101000000001", "20260101000000002", "20260101000000003"


def block(kind: int, content: bytes, **header: str) -> bytes:
    """A block as Hudi writes it, with a header by the numbers `h0`, `h1`, ..."""
    entries = b"".join(
        struct.pack(">ii", int(key[1:]), len(value.encode())) + value.encode()
        for key, value in header.items()
    )
    head = struct.pack(">i", len(header)) + entries
    body = struct.pack(">ii", 1, kind) + head + struct.pack(">q", len(content)) + content
    body += struct.pack(">i", 0)  # no footer
    return MAGIC + struct.pack(">q", len(body) + 8) + body + struct.pack(
        ">q", len(body) + 8 + len(MAGIC)
    )  # fmt: skip


def data(instant: str, *rows: tuple[str, int, int | None], **header: str) -> bytes:
    import fastavro

    content = struct.pack(">ii", 3, len(rows))
    for key, ts, v in rows:
        out = io.BytesIO()
        record: Any = {"_hoodie_record_key": key, "ts": ts, "v": v}
        fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), record)
        content += struct.pack(">i", len(out.getvalue())) + out.getvalue()
    return block(AVRO, content, h0=instant, h2=json.dumps(SCHEMA), **header)


def deletes(instant: str, **of: Any) -> bytes:
    """A delete block; each key's ordering value as (Hudi's wrapper, value), or None."""
    import fastavro

    records: Any = {"deleteRecordList": [
        {"recordKey": key, "partitionPath": "",
         "orderingVal": given and (f"{given[0]}Wrapper", {"value": given[1]})}
        for key, given in of.items()
    ]}  # fmt: skip
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(DELETES), records)
    content = struct.pack(">ii", 3, len(out.getvalue())) + out.getvalue()
    return block(DELETE, content, h0=instant)


def seen(
    *logs: bytes, visible: tuple[str, ...] = (T1, T2, T3), by: tuple[str, ...] = (),
    names: TimelineNames = V6,
) -> Any:  # fmt: skip
    """`{key: v}` of the merged logs; None where the key is deleted."""
    named = {f".f_{T1}.log.{n}_0-0-0": body for n, body in enumerate(logs, 1)}
    completed = VisibleInstants(frozenset(visible), frozenset(), T1)
    found = log_entries(LogSlice("", "f", "", "", tuple(named), by, completed, names), named,
                        V if by else LogColumns(pa.schema([]), V.rows))  # fmt: skip
    assert not found.rows["v"].filter(pc.not_equal(found.kinds, ROW)).drop_null().to_pylist()
    return dict(zip(found.keys.to_pylist(), found.rows["v"].to_pylist(), strict=True))


def test_the_later_row_wins_and_by_event_time_the_greater_one() -> None:
    logs = data(T1, ("a", 5, 1)), data(T2, ("a", 4, 2))
    assert seen(*logs) == {"a": 2}
    assert seen(*logs, by=("ts",)) == {"a": 1}
    assert seen(data(T1, ("a", 4, 1)), data(T2, ("a", 4, 2)), by=("ts",)) == {"a": 2}


def test_each_log_file_leaves_memory_before_the_next_one_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bodies = [np.frombuffer(data(each, ("a", 5, 1)), np.uint8).copy() for each in (T1, T2, T3)]
    alive, counts = [weakref.ref(each) for each in bodies], []

    def decoded(blocks: Any, columns: LogColumns) -> LogEntries:
        def counted() -> Any:
            for each in blocks:
                counts.append(sum(body() is not None for body in alive))
                yield each

        return merged_entries(counted(), columns)

    monkeypatch.setattr("lockkit.table.read.merging_logs.merged_entries", decoded)
    monkeypatch.setattr(log_blocks, "SMALL", 0)  # small ones are decoded together
    logs = {f".f_{T1}.log.{n}_0-0-0": memoryview(bodies.pop(0)) for n in (1, 2, 3)}
    completed = VisibleInstants(frozenset((T1, T2, T3)), frozenset(), T1)
    of = LogSlice("", "f", "", "", tuple(logs), (), completed, V6)
    assert log_entries(of, logs, V).keys.to_pylist() == ["a"]
    assert counts == [3, 3, 2]  # one goes when the next one is taken


def test_small_blocks_of_one_schema_are_decoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table with many small commits between two compactions is read in a fraction of the time."""
    alike = [data(T1, ("a", 1, 1)), data(T2, ("a", 2, 2), ("b", 2, 2)), data(T3)]
    wider = json.dumps(SCHEMA | {"fields": [*SCHEMA["fields"], {"name": "w", "type": "int"}]})
    other = block(AVRO, struct.pack(">ii", 3, 0), h0=T3, h2=wider)
    partial = data(T2, ("c", 1, 3), h7="true")
    logs = (*alike, deletes(T1, b=None), alike[0], partial, alike[1], other)
    parts = [n for body in logs for n in blocks("log", body)]

    def sizes() -> list[int]:
        return [len(these) for _, these in joined(parts)]

    assert sizes() == [3, 1, 1, 1, 1, 1]
    (first, _), *_ = joined(parts)
    assert [row["v"] for row in avro_rows(first)] == [1, 2, 2]
    assert seen(*logs[:5]) == {"a": 1, "b": None}
    monkeypatch.setattr(log_blocks, "SMALL", len(parts[0].content))
    assert sizes() == [1] * len(logs)


def test_small_blocks_that_are_damaged_are_not_mended_by_others() -> None:
    """Together they have as many records as they say; each of them has not."""
    one, two = data(T1, ("a", 1, 1)), data(T2, ("b", 1, 1), ("c", 1, 1))
    few, many = (struct.pack(">ii", 3, 3 - n).join(body.rsplit(struct.pack(">ii", 3, n), 1))
                 for body, n in ((two, 2), (one, 1)))  # fmt: skip
    with pytest.raises(DamagedFile, match=f"block of {T2}"):
        seen(few, many)
    with pytest.raises(DamagedFile, match=f"block of {T1}"):
        seen(many, few)


def test_the_damaged_one_of_small_blocks_is_named() -> None:
    good, bad = data(T1, ("a", 1, 1)), data(T2, ("bcdefgh", 1, 1))
    with pytest.raises(DamagedFile, match=f"block of {T2} that cannot be read"):
        seen(good, bad.replace(b"\x0ebcdefgh", b"\x7ebcdefgh"), data(T3, ("c", 1, 1)))


def test_a_block_of_an_instant_that_is_not_completed_is_not_seen() -> None:
    assert seen(data(T1, ("a", 1, 1)) + data(T2, ("a", 2, 2)), visible=(T1, T3)) == {"a": 1}


def test_a_block_of_no_instant_is_damage_not_an_unfinished_writers() -> None:
    flipped = "\x72" + T2[1:]  # the 2 of the century, with one bit more
    with pytest.raises(DamagedFile, match="which it cannot have"):
        seen(data(T1, ("a", 1, 1)) + data(flipped, ("a", 2, 2)))


def test_a_rollback_command_block_cancels_the_blocks_before_it() -> None:
    command = block(COMMAND, b"", h0=T3, h1=T2, h3="0")
    logs = data(T1, ("a", 1, 1)), data(T2, ("a", 2, 2)), command
    assert seen(*logs) == {"a": 1}


def test_a_compacted_log_block_replaces_the_blocks_that_it_merges() -> None:
    later = "20260101000000004"
    joined = data(T3, ("a", 1, 1), ("b", 1, 1), h4=f"{T1},{T2}")
    logs = data(T1, ("a", 9, 9)), data(T2, ("b", 9, 9)), data(later, ("a", 1, 4)), joined
    assert seen(*logs, visible=(T1, T2, T3, later)) == {"a": 4, "b": 1}


def partial_rows(instant: str, column: str, at: int = 5, **of: int) -> bytes:
    """A block of rows with one column beside their keys and their time."""
    file = io.BytesIO()
    rows = {"_hoodie_record_key": list(of), "ts": [at] * len(of), column: [*of.values()]}
    pq.write_table(pa.table(rows), file)
    return block(PARQUET, file.getvalue(), h0=instant, h7="true")


def test_a_partial_row_keeps_the_other_columns_of_the_rows_before_it() -> None:
    base = [("a", 1, 1), ("b", 1, 1), ("c", 9, 1), ("f", 1, 1)]
    log = partial_rows(T1, "v", a=2, b=2, c=2, d=2) + partial_rows(T2, "w", b=3, e=3)
    log += data(T2, ("f", 7, None)) + partial_rows(T3, "w", f=3, b=4)
    found = merged(base, log, columns=("_hoodie_record_key", "ts", "v", "w"))
    assert [tuple(each.values()) for each in found] == [
        ("a", 5, 2, 0), ("b", 5, 2, 4), ("c", 9, 1, 0), ("d", 5, 2, None), ("e", 5, None, 3),
        ("f", 7, None, None),
    ]  # fmt: skip


def test_an_older_partial_row_gives_the_columns_that_the_newer_one_lacks() -> None:
    """As Hudi 1.2 merges log files by event time: among themselves first, then with the base."""
    late = partial_rows(T1, "v", at=9, a=2, b=2, c=2), partial_rows(T2, "w", at=5, a=3, b=3)
    names, whole = ("_hoodie_record_key", "ts", "v", "w"), data(T3, ("c", 4, 7))
    expected = [("a", 9, 2, 3), ("b", 10, 1, 0), ("c", 9, 2, None)]
    for logs in (late, late[::-1]):
        found = merged([("a", 1, 1), ("b", 10, 1), ("c", 1, 1)], b"".join(logs) + whole,
                       columns=names)  # fmt: skip
        assert [tuple(each.values()) for each in found] == expected


def test_of_a_partial_row_that_comes_twice_in_a_block_both_columns_are_kept() -> None:
    log = partial_rows(T1, "v", a=2) + partial_rows(T2, "w", a=3) + partial_rows(T3, "v", a=4)
    (found,) = merged([("a", 1, 1)], log, columns=("v", "w"))
    assert found == {"v": 4, "w": 3}
    file = io.BytesIO()
    pq.write_table(pa.table({"_hoodie_record_key": ["a", "a"], "ts": [5, 6], "v": [2, 3]}), file)
    twice = block(PARQUET, file.getvalue(), h0=T1, h7="true")
    assert merged([("a", 1, 1)], twice, columns=("v", "w")) == [{"v": 3, "w": 0}]


def test_partial_rows_are_merged_in_as_many_steps_as_the_most_frequent_key_comes() -> None:
    """Not in one for each row: small blocks are joined, and a key comes once in each."""
    keys = ["a", "b", "a", "c", None, "a", "b", None]
    found = LogEntries(pa.array(keys, pa.string()), pa.array(range(8), pa.uint8()), (),
                       pa.table({"v": range(8)}))  # fmt: skip
    parts = [each.rows["v"].to_pylist() for each in _of_distinct_keys(found)]
    assert parts == [[0, 1, 3, 4], [2, 6, 7], [5]]
    none = found.take(pa.array([], pa.int64()))
    assert [len(each.keys) for each in _of_distinct_keys(none)] == [0]


def test_a_delete_without_an_ordering_value_wins_and_a_later_row_wins_over_it() -> None:
    row, gone = data(T1, ("a", 5, 1)), deletes(T2, a=None)
    assert seen(row, gone, by=("ts",)) == {"a": None}
    assert seen(gone, row, by=("ts",)) == {"a": 1}
    assert seen(row, deletes(T2, a=("Long", 4)), by=("ts",)) == {"a": 1}


@pytest.mark.parametrize(("value", "wins"), [
    (None, True), (("Int", 0), True), (("Int", 1), False), (("Long", 0), False),
    (("Double", 0.0), False), (("Boolean", False), False),
])  # fmt: skip
def test_of_all_ordering_values_only_the_int_0_says_that_a_delete_always_wins(
    value: Any, wins: bool
) -> None:
    logs = data(T1, ("a", 5, 1)), deletes(T2, a=value)
    assert seen(*logs, by=("ts",)) == {"a": None if wins else 1}


def test_a_delete_that_always_wins_is_ended_by_a_row_and_by_no_other_delete() -> None:
    later = deletes(T2, a=("Long", 4), b=("Long", 4))
    logs = deletes(T1, a=None, b=None), later, data(T3, ("b", 1, 1))
    of = LogSlice("", "f", "", "", tuple("xyz"), ("ts",),
                  VisibleInstants(frozenset({T1, T2, T3}), frozenset(), T1), V9)  # fmt: skip
    found = log_entries(of, dict(zip("xyz", logs, strict=True)), V)
    assert dict(zip(found.keys.to_pylist(), found.kinds.to_pylist(), strict=True)) == {
        "a": DELETE_ALWAYS, "b": ROW,
    }  # fmt: skip


@pytest.mark.parametrize("cut", [3, 20, 60])
def test_a_block_that_ends_early_is_skipped_and_the_next_one_read(cut: int) -> None:
    whole = data(T2, ("a", 2, 2))
    assert len(list(blocks("log", whole[:cut] + data(T1, ("a", 1, 1))))) == 1
    assert list(blocks("log", whole[:cut])) == []
    assert gaps(whole[:cut] + whole) == [(0, cut)]
    assert gaps(whole + whole[:cut]) == [(len(whole), len(whole) + cut)]
    assert gaps(whole + whole) == []


def partial_row(instant: str) -> bytes:
    return data(instant, ("a", 2, 7), h7="true")


@pytest.mark.parametrize("made", [
    lambda of: data(of, ("a", 2, 7)), lambda of: deletes(of, a=("Long", 9)), partial_row,
], ids=["rows", "deletes", "partial rows"])  # fmt: skip
def test_no_flipped_bit_in_the_head_of_a_block_is_read_as_something_else(made: Any) -> None:
    """Of all bits but those of the columns' names and types, which any text may be.

    An entry that says `partial` becomes by one bit another entry that readers need not have.
    """
    body, described, found = made(T1), json.dumps(SCHEMA).encode(), 0
    names = range(first := body.find(described), first + len(described) if first > 0 else 0)
    head = len(body) - 12 - len(next(blocks("log", body)).content)
    for at in (*range(head), *range(len(body) - 12, len(body))):
        for bit in range(8):
            damaged = body[:at] + bytes([body[at] ^ 1 << bit]) + body[at + 1 :]
            if at in names or gaps(damaged) or (body[at] == 7 and damaged[at] in (5, 6)):
                continue
            found += 1
            try:
                assert seen(damaged, visible=(T1,), names=V9) == seen(body), (at, bit)
            except DamagedFile:
                continue
    assert found > 200


def test_a_block_of_a_type_that_is_not_read_is_refused_by_its_name() -> None:
    with pytest.raises(TableError, match="HFile block"):
        seen(block(HFILE, b"", h0=T1))


def test_a_damaged_parquet_block_is_refused_or_read() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"_hoodie_record_key": ["a"], "ts": [1], "v": [1]}), file)
    whole, refused = file.getvalue(), 0
    of = LogSlice(
        "", "f", T1, "", ("log",), ("ts",),
        VisibleInstants(frozenset({T1}), frozenset(), T1), V9,
    )  # fmt: skip
    for at in range(len(whole)):
        damaged = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        try:
            log_entries(of, {"log": block(PARQUET, damaged, h0=T1)}, V)
        except TableError:
            refused += 1
    assert refused


def merged(base: list[tuple[str, int, int]], log: bytes, **scan: Any) -> list[dict[str, Any]]:
    """The rows of a base file and one log file, by event time."""
    names = ("_hoodie_record_key", "ts", "v", "w")
    file = io.BytesIO()
    stored = [dict(zip(names, (*row, 0), strict=True)) for row in base]
    pq.write_table(pa.Table.from_pylist(stored), file)
    file.seek(0)
    schema = pa.schema([(names[0], pa.string()), ("ts", pa.int64()), ("v", pa.int32()),
                        ("w", pa.int32())])  # fmt: skip
    wanted = Scan((), schema, scan.get("columns", names), scan.get("where"))
    completed = VisibleInstants(frozenset({T1, T2, T3}), frozenset(), T1)
    of = LogSlice("", "f", T1, "f.parquet", ("log",), ("ts",), completed, V9)
    found = scan_log_slice(wanted, of, MergeSource(file, {"log": log}), scan_slice)
    return sorted((row for each in found for row in each.to_pylist()), key=str)


def test_a_row_of_the_base_file_with_a_greater_ordering_value_stays() -> None:
    log = data(T2, ("a", 5, 5), ("b", 5, 5), ("c", 5, 5))
    rows = merged([("a", 9, 9), ("b", 1, 1), ("d", 1, 1)], log, columns=("v",))
    assert [row["v"] for row in rows] == [1, 5, 5, 9]


@pytest.mark.parametrize("batch_rows", [1, 100])
def test_of_a_key_that_an_insert_stored_twice_the_first_row_is_merged(
    batch_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Hudi does, in whichever batches of the base file the two rows come."""
    monkeypatch.setattr(reader, "BATCH_ROWS", batch_rows)
    twice = [("a", 1, 1), ("b", 1, 2), ("a", 1, 3)]
    rows = merged(twice, data(T2, ("a", 2, 7)), columns=("v",))
    assert [row["v"] for row in rows] == [2, 3, 7]


@pytest.mark.parametrize("stored", [True, False], ids=["base file", "log files alone"])
def test_an_ordering_column_that_is_not_in_the_schema_orders_nothing(stored: bool) -> None:
    """Hudi gives each row the same default then, so the later one wins."""
    file, name = io.BytesIO(), "_hoodie_record_key"
    pq.write_table(pa.table({name: ["a", "b"], "v": pa.array([9, 9], pa.int32())}), file)
    file.seek(0)
    schema = pa.schema([(name, pa.string()), ("v", pa.int32())])
    logs = {"1": data(T2, ("a", 9, 1)), "2": data(T3, ("a", 4, 2)) + deletes(T3, b=("Long", 1))}
    completed = VisibleInstants(frozenset({T1, T2, T3}), frozenset(), T1)
    of = LogSlice("", "f", T1 if stored else "", "f.parquet" if stored else "", tuple(logs),
                  ("ts",), completed, V9)  # fmt: skip
    source = MergeSource(file if stored else None, logs)
    found = scan_log_slice(Scan((), schema, (name, "v"), None), of, source, scan_slice)
    assert [row for each in found for row in each.to_pylist()] == [{name: "a", "v": 2}]
    two = replace(of, ordering=("ts", "v"))
    with pytest.raises(UnsupportedTable, match=r"ordering column 'ts' is not in"):
        list(scan_log_slice(Scan((), schema, (name,), None), two, source, scan_slice))


@pytest.mark.parametrize(("wrapped", "value", "kind"), [
    ("Long", 2**40, pa.int32()), ("String", "x", pa.int64()), ("Double", float("nan"), pa.date32()),
    ("Date", date(2026, 1, 1), pa.int64()),
])  # fmt: skip
def test_a_deletes_ordering_value_that_does_not_fit_the_column_is_named(
    wrapped: str, value: Any, kind: pa.DataType
) -> None:
    of = LogSlice("", "f", "", "", ("log",), ("ts",),
                  VisibleInstants(frozenset({T1}), frozenset(), T1), V9)  # fmt: skip
    columns = LogColumns(pa.schema([("ts", kind)]), V.rows)
    with pytest.raises(UnsupportedTable, match=r"ordering column 'ts' is .* a delete has the"):
        log_entries(of, {"log": deletes(T1, a=(wrapped, value))}, columns)


@pytest.mark.parametrize(("unit", "ms"), [("millis", 7), ("micros", 7_000)])
@pytest.mark.parametrize("kind", ["timestamp", "local-timestamp"])
def test_a_deletes_time_has_the_unit_of_the_rows(kind: str, unit: str, ms: int) -> None:
    """Hudi wraps a record's long as it is."""
    said = {"type": "record", "name": "r", "fields": [
        {"name": "ts", "type": ["null", {"type": "long", "logicalType": f"{kind}-{unit}"}]},
    ]}  # fmt: skip
    content = bytes(next(blocks("log", deletes(T1, a=("Long", ms)))).content)
    log = block(DELETE, content, h0=T1, h2=json.dumps(said))
    of = LogSlice("", "f", "", "", ("log",), ("ts",),
                  VisibleInstants(frozenset({T1}), frozenset(), T1), V9)  # fmt: skip
    order = pa.schema([("ts", pa.timestamp("us"))])
    found = log_entries(of, {"log": log}, LogColumns(order, V.rows))
    assert found.order[0].cast(pa.int64()).to_pylist() == [7_000]


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_log_files_get_no_times_where_the_table_counts_milliseconds(
    table_type: str, tmp_path: Path
) -> None:
    at = pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    rows = pa.table({"id": ["a"], "ts": at})
    how = {"record_key": "id", "precombine": "ts", "table_type": table_type}
    with Table.create(f"file://{tmp_path}", **how) as table:  # type: ignore[arg-type]
        table.upsert(rows)
    for file in (tmp_path / ".hoodie" / "timeline").glob("*commit"):
        file.write_bytes(file.read_bytes().replace(b"timestamp-micros", b"timestamp-millis"))
    for file in (tmp_path / ".hoodie" / ".lockkit").rglob("*checkpoint*"):
        file.unlink()
    with Table(f"file://{tmp_path}") as table:
        if table_type == "COPY_ON_WRITE":
            table.upsert(rows)
            return
        for write in (table.upsert, table.delete, lambda _rows: table.compact()):
            with pytest.raises(UnsupportedTable, match="has times in milliseconds"):
                write(rows)
        assert table.read() == rows


@pytest.mark.parametrize(("stored", "value", "found"), [
    (pa.float32(), 0.1, 0.1), (pa.int64(), 2**53 + 1, 2.0**53),
])  # fmt: skip
def test_a_number_of_a_block_is_read_in_its_columns_later_type(
    stored: pa.DataType, value: float, found: float
) -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"_hoodie_record_key": ["a"], "v": pa.array([value], stored)}), file)
    of = LogSlice("", "f", "", "", ("log",), (),
                  VisibleInstants(frozenset({T1}), frozenset(), T1), V9)  # fmt: skip
    columns = LogColumns(pa.schema([]), pa.schema([("v", pa.float64())]))
    entries = log_entries(of, {"log": block(PARQUET, file.getvalue(), h0=T1)}, columns)
    assert entries.rows["v"].to_pylist() == [found]


def test_a_filter_sees_merged_rows_and_not_what_they_replaced() -> None:
    log = data(T2, ("a", 2, 2))
    assert merged([("a", 1, 1)], log, where=pc.field("v") == 1) == []
    assert len(merged([("a", 1, 1)], log, where=pc.field("v") == 2)) == 1


def listed(names: TimelineNames, *files: str) -> Listed:
    now = parse_timeline([ListEntry(names.folder + each, 0) for each in files], names)
    return Listed(readable(KEYS), now, (), ())


def test_a_log_that_was_completed_behind_a_compaction_belongs_to_it() -> None:
    """Written without blocking: it began before the compaction and ended after it."""
    ends = "20260101000000009"
    found = listed(V9, f"{T1}_{ends}.deltacommit", f"{T2}_{T3}.deltacommit")
    base = "20260101000000005"
    logs = tuple(((("", "f"), each, 1, "", each)) for each in (T1, T2))
    found = replace(found, logs=logs)
    completed = VisibleInstants(frozenset({T1, T2}), frozenset(), T1)
    group = {("", "f"): Slice("", "f", base, "f.parquet")}
    slices = run(_with_logs(found, completed, group, {}), MemoryStore("memory://logs"), Clock())
    assert slices["", "f"].logs == (T1,)


def test_a_savepoint_left_behind_is_not_where_the_timeline_begins() -> None:
    files = (f"{T1}_{T1}.commit", f"{T1}_{T1}.savepoint", f"{T3}_{T3}.commit")
    assert listed(V9, *files).first == T3
    assert listed(V9, *files[::2]).first == T1


# --- which tables are refused ---------------------------------------------------------------------

KEYS = {
    "hoodie.table.name": "t", "hoodie.table.version": "9", "hoodie.table.type": "MERGE_ON_READ",
    "hoodie.timeline.layout.version": "2", "hoodie.table.checksum": str(checksum("t")),
    "hoodie.record.merge.mode": "EVENT_TIME_ORDERING", "hoodie.table.ordering.fields": "ts,v",
}  # fmt: skip


def test_ordering_fields_are_read_from_the_properties() -> None:
    assert readable(KEYS).ordering == ("ts", "v")
    assert readable({**KEYS, "hoodie.record.merge.mode": "COMMIT_TIME_ORDERING"}).ordering == ()


@pytest.mark.parametrize("key", MERGER)
def test_a_merger_of_its_own_is_refused_by_name_if_no_mode_says_how_rows_are_merged(
    key: str
) -> None:
    """Hudi 0.13 to 0.15 merge as it says; from 1.0 on they know it by another name."""
    older = {**KEYS, "hoodie.table.version": "6", "hoodie.timeline.layout.version": "1"}
    del older["hoodie.record.merge.mode"]
    readable({**older, key: MERGERS[0]})
    with pytest.raises(UnsupportedTable, match=f"{key}=1111.*its own code"):
        readable({**older, key: "1111-2222"})


@pytest.mark.parametrize(("key", "value", "reason"), [
    ("hoodie.record.merge.mode", "CUSTOM", "com.example.Mine"),
    ("hoodie.table.cdc.enabled", "true", "CDC"),
    ("hoodie.bootstrap.base.path", "s3://old", "bootstrapped"),
    ("hoodie.table.partial.update.mode", "IGNORE_DEFAULTS", "one by one"),
    ("hoodie.populate.meta.fields", "false", "record key"),
    ("hoodie.table.version", "5", "not known"),
    ("hoodie.table.base.file.format", "ORC", "Parquet"),
    ("hoodie.table.ro.file.format", "ORC", "Parquet"),
    ("hoodie.datasource.write.drop.partition.columns", "true", "partition columns"),
])  # fmt: skip
def test_a_table_whose_rows_would_be_wrong_is_refused_with_the_reason(
    key: str, value: str, reason: str
) -> None:
    said = {**KEYS, "hoodie.compaction.payload.class": "com.example.Mine", key: value}
    with pytest.raises(TableError, match=reason):
        readable(said)


def test_a_payload_of_its_own_is_refused_only_where_logs_are_merged() -> None:
    said = {key: value for key, value in KEYS.items() if key != "hoodie.record.merge.mode"}
    said["hoodie.compaction.payload.class"] = "com.example.Mine"
    with pytest.raises(TableError, match=r"com\.example\.Mine"):
        readable(said)
    assert not readable({**said, "hoodie.table.type": "COPY_ON_WRITE"}).merged
