"""A column whose type became wider is read as Hudi 1.2 on Spark and hudi-rs read it."""

from __future__ import annotations

import datetime as dt
import io
import json
import struct
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from test_avro_columns import KEY, WHY, avro_block
from test_log_files import block

from lockkit.table import Table, UnsupportedTable
from lockkit.table.format.base_file import Slice
from lockkit.table.format.log_blocks import AVRO, Block, blocks
from lockkit.table.format.promotion import is_promoted, promoted
from lockkit.table.format.schema_reading import arrow_schema
from lockkit.table.read.log_entries import LogColumns, merged_entries
from lockkit.table.read.reader import Scan, scan_slice

BIG = 2**53 + 1
F32, F64, I64, TEXT = pa.float32(), pa.float64(), pa.int64(), pa.string()
NESTED = pytest.mark.parametrize(("stored", "kind", "value", "found"), [
    (F64, TEXT, 1e10, "1.0E10"),
    (pa.int32(), pa.decimal128(10, 2), -5, Decimal("-5.00")),
    (pa.list_(F32), pa.list_(F64), [0.1, None], [0.1, None]),
    (pa.list_(I64), pa.list_(F64), [BIG], [2.0**53]),
    (pa.struct([("q", F64)]), pa.struct([("q", TEXT), ("new", I64)]), {"q": 1e10},
     {"q": "1.0E10", "new": None}),
    (pa.list_(pa.struct([("q", F32)])), pa.list_(pa.struct([("q", F64)])), [{"q": 0.1}, None],
     [{"q": 0.1}, None]),
    (pa.map_(TEXT, F32), pa.map_(TEXT, F64), [("k", 0.1), ("n", None)], [("k", 0.1), ("n", None)]),
], ids=["text", "decimal", "list", "rounded", "struct", "structs", "map"])  # fmt: skip


@pytest.mark.parametrize("decoder", ["polars", "fastavro"])
@NESTED
def test_an_avro_block_is_read_in_the_columns_later_type(
    stored: pa.DataType, kind: pa.DataType, value: Any, found: Any, decoder: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if decoder == "polars":
        pytest.importorskip("polars", reason=WHY)
    else:
        monkeypatch.setitem(sys.modules, "polars", None)
        monkeypatch.setattr("lockkit.table.read.log_entries.by_numpy", lambda *_of: None)
    written = dict(value) if pa.types.is_map(stored) else value
    put = avro_block(pa.schema({"v": stored}), {"v": written}, {"v": None}, {"v": written})
    rows = merged_entries([put], LogColumns(pa.schema([]), pa.schema({"v": kind}))).rows
    assert rows["v"].to_pylist() == [found, None, found]


@NESTED
def test_a_base_file_is_read_in_the_columns_later_type(
    stored: pa.DataType, kind: pa.DataType, value: Any, found: Any, tmp_path: Path
) -> None:
    path = tmp_path / "base.parquet"
    pq.write_table(pa.table({"v": pa.array([None, value, value], stored)}), path)
    wanted = Scan((), pa.schema({"v": kind}), ("v",), None)
    with path.open("rb") as file:
        batches = list(scan_slice(wanted, Slice("", "f", "1", "base.parquet"), file))
    assert pa.Table.from_batches(batches)["v"].to_pylist() == [None, found, found]
    part = pa.array([None, value, None, value], stored).slice(1, 2)
    assert promoted(part, kind, "v").to_pylist() == [found, None]


@pytest.mark.parametrize(("stored", "now", "value", "found"), [
    (F32, F64, 0.1, 0.1), (F64, TEXT, 1e10, "1.0E10"), (I64, F64, BIG, 2.0**53),
])  # fmt: skip
def test_a_filter_meets_the_values_of_the_later_type(
    stored: pa.DataType, now: pa.DataType, value: Any, found: Any, tmp_path: Path
) -> None:
    """Those in the file are others, and its statistics would exclude them."""
    path, kinds = tmp_path / "base.parquet", pa.schema({"v": now, "n": I64})
    pq.write_table(pa.table({"v": pa.array([value] * 2 + [None], stored), "n": [1, 2, 3]}), path)
    wanted = Scan((), kinds, ("n",), pc.field("v") == found, filtered=("v",))
    with path.open("rb") as file:
        batches = list(scan_slice(wanted, Slice("", "f", "1", "base.parquet"), file))
    assert pa.Table.from_batches(batches, pa.schema({"n": I64}))["n"].to_pylist() == [1, 2]


def test_a_type_that_differs_in_names_of_items_or_in_nulls_alone_is_left_to_arrow() -> None:
    """So that a filter still skips row groups: Spark's files have such types."""
    stored = pa.list_(pa.field("element", I64, nullable=False))
    assert not is_promoted(stored, pa.list_(I64)) and is_promoted(stored, pa.list_(F64))
    stored = pa.map_(TEXT, pa.field("value", pa.struct([("q", F32)]), nullable=False))
    assert not is_promoted(stored, pa.map_(TEXT, pa.struct([("q", F32)])))
    assert is_promoted(stored, pa.map_(TEXT, pa.struct([("q", F64)])))
    assert is_promoted(pa.struct([("q", I64)]), pa.struct([("r", I64)]))


def test_a_number_becomes_the_text_that_java_gives() -> None:
    """`Double.toString` and `Float.toString` of Java 25."""
    doubles = {
        0.0: "0.0", 1.0: "1.0", -2.5: "-2.5", 1e-3: "0.001", 9.99e-4: "9.99E-4", 1e7: "1.0E7",
        9999999.5: "9999999.5", -1234567.0: "-1234567.0", 123456789.125: "1.23456789125E8",
        5e-324: "4.9E-324", 2e23: "2.0E23", 1e-7: "1.0E-7", 0.1: "0.1", float("inf"): "Infinity",
        -float("inf"): "-Infinity", 1.7976931348623157e308: "1.7976931348623157E308",
    }  # fmt: skip
    found = promoted(pa.array(doubles), TEXT, "v").to_pylist()
    assert found == list(doubles.values())
    odd = pa.array([-0.0, float("nan"), None])
    assert promoted(odd, TEXT, "v").to_pylist() == ["-0.0", "NaN", None]
    floats = {1e-45: "1.4E-45", 0.1: "0.1", 33554432.0: "3.3554432E7", 3.4028235e38: "3.4028235E38"}
    short = pa.array(np.array(list(floats), "f4"))
    assert promoted(short, TEXT, "v").to_pylist() == list(floats.values())


@pytest.mark.parametrize(("stored", "kind"), [
    (F64, pa.decimal128(10, 2)), (I64, pa.timestamp("us", "UTC")), (I64, pa.decimal128(3, 2)),
    (TEXT, pa.int32()),
])  # fmt: skip
def test_a_change_that_hudis_readers_read_differently_is_refused_by_the_columns_name(
    stored: pa.DataType, kind: pa.DataType
) -> None:
    column = pa.array(["x"] if stored == TEXT else [1000], stored)
    with pytest.raises(UnsupportedTable, match=r"column 'price\.net' became "):
        promoted(pa.array([{"net": each} for each in column.to_pylist()],
                          pa.struct([("net", stored)])), pa.struct([("net", kind)]), "price")


@pytest.mark.parametrize(("stored", "now", "value", "next_one"), [
    (F32, F64, 0.1, 0.1), (F64, TEXT, 1e10, "1.0E10"), (I64, F64, BIG, 2.0**53),
])  # fmt: skip
@pytest.mark.parametrize("index", [None, "GLOBAL_SIMPLE"])
def test_an_equal_value_of_an_ordering_column_that_became_wider_wins(
    stored: pa.DataType, now: pa.DataType, value: Any, next_one: Any, index: str | None,
    tmp_path: Path,
) -> None:  # fmt: skip
    """The stored value is compared as it is read."""
    def row(v: int, region: str) -> pa.Table:
        at = pa.array([next_one], now)
        return pa.table({"id": ["a"], "region": [region], "at": at, "v": [v]})

    options = {"hoodie.index.type": index} if index else {}
    with Table.create(f"file://{tmp_path}/t", record_key="id", partition_by="region",
                      precombine="at", options=options) as table:  # fmt: skip
        table.upsert(row(1, "EU"))
        (base,) = tmp_path.glob("t/*EU*/*.parquet")
        rows = pq.read_table(base, partitioning=None)
        at = rows.column_names.index("at")
        pq.write_table(rows.set_column(at, "at", pa.array([value], stored)), base)
        table.upsert(row(2, "US" if index else "EU"))
        assert table.read(columns=["id", "v"]).to_pylist() == [{"id": "a", "v": 2}]


def _typed(kind: Any, *values: Any) -> Block:
    fields = [{"name": KEY, "type": "string"}, {"name": "v", "type": kind}]
    described = {"type": "record", "name": "r", "fields": fields}
    schema, content = fastavro.parse_schema(described), struct.pack(">ii", 3, len(values))
    for number, value in enumerate(values):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, {KEY: f"k{number}", "v": value})
        content += struct.pack(">i", len(out.getvalue())) + out.getvalue()
    (found,) = blocks("log", block(AVRO, content, h0="1", h2=json.dumps(described)))
    return found


@pytest.mark.parametrize(("kind", "value"), [
    ({"type": "int", "logicalType": "time-millis"}, dt.time(1, 2, 3, 4000)),
    ({"type": "long", "logicalType": "time-micros"}, dt.time(1, 2, 3, 4)),
    ({"type": "string", "logicalType": "uuid"}, "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
    ({"type": "fixed", "name": "f", "size": 17, "logicalType": "decimal", "precision": 38,
      "scale": 2}, Decimal("1.20")),
    ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B"),
], ids=["time-millis", "time-micros", "uuid", "wide decimal", "enum"])  # fmt: skip
@pytest.mark.parametrize("inside", ["alone", "in a union of one", "in a record"])
def test_a_type_of_avro_that_spark_cannot_write_is_read(
    kind: Any, value: Any, inside: str
) -> None:
    if inside == "in a union of one":
        kind = [kind]
    elif inside == "in a record":
        kind, value = {"type": "record", "name": "q", "fields": [{"name": "x", "type": kind}]}, {
            "x": value
        }
    put = _typed(["null", kind] if inside == "alone" else kind, value)
    wanted = arrow_schema(put.header[2])
    rows = merged_entries([put], LogColumns(pa.schema([]), wanted)).rows
    assert rows["v"].to_pylist() == [value]
