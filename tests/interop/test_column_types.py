"""Columns of every type in log blocks, of Avro and of Parquet: Apache Hudi and lockkit write them
in turn, and read the same values.
"""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_world import Hudi

from lockkit.clock import Clock
from lockkit.runtime import run
from lockkit.table import Table
from lockkit.table.services.adopt import adopt

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
WRITE = "hoodie.datasource.write."
BLOCKS = "hoodie.logfile.data.block.format"
VERSIONS = {"6": {"hoodie.write.table.version": "6", "hoodie.write.auto.upgrade": "false"}, "9": {}}
TYPES: dict[str, tuple[str, pa.DataType]] = {
    "b": ("boolean", pa.bool_()),
    "i": ("int", pa.int32()),
    "l": ("bigint", pa.int64()),
    "f": ("float", pa.float32()),
    "d": ("double", pa.float64()),
    "small": ("decimal(5,0)", pa.decimal128(5, 0)),
    "money": ("decimal(10,2)", pa.decimal128(10, 2)),
    "wide": ("decimal(38,18)", pa.decimal128(38, 18)),
    "s": ("string", pa.string()),
    "raw": ("binary", pa.binary()),
    "day": ("date", pa.date32()),
    "at": ("timestamp", pa.timestamp("us", "UTC")),
    "local": ("timestamp_ntz", pa.timestamp("us")),
    "ints": ("array<int>", pa.list_(pa.int32())),
    "structs": ("array<struct<x:string,y:int>>",
                pa.list_(pa.struct([("x", pa.string()), ("y", pa.int32())]))),
    "m": ("map<string,decimal(6,3)>", pa.map_(pa.string(), pa.decimal128(6, 3))),
    "st": ("struct<u:struct<w:array<timestamp>,z:double>,t:date>",
           pa.struct([("u", pa.struct([("w", pa.list_(pa.timestamp("us", "UTC"))),
                                       ("z", pa.float64())])), ("t", pa.date32())])),
}  # fmt: skip
SPARK = "id string, ts bigint, " + ", ".join(f"{name} {each}" for name, (each, _) in TYPES.items())
ARROW = pa.schema([("id", pa.string()), ("ts", pa.int64()),
                   *((name, each) for name, (_, each) in TYPES.items())])  # fmt: skip
Values = dict[str, Any]
NOTHING: Values = dict.fromkeys(TYPES)
GREAT: Values = {
    "b": True, "i": 2**31 - 1, "l": -(2**63), "f": 1.5, "d": -2.5e300, "small": Decimal(-99999),
    "money": Decimal("-12345678.91"), "wide": Decimal("12345678901234567890.123456789012345678"),
    "s": "", "raw": b"\0\xff", "day": date(1583, 1, 1),
    "at": datetime(1969, 12, 31, 23, 59, 59, 123456, UTC),
    "local": datetime(9999, 12, 31, 23, 59, 59, 999999), "ints": [], "structs": [], "m": [],
    "st": {"u": None, "t": None},
}  # fmt: skip
NESTED: Values = {
    "b": False, "i": -7, "l": 7, "f": -3.25, "d": 0.1, "small": Decimal(0),
    "money": Decimal("0.01"), "wide": Decimal("-0.000000000000000001"), "s": "ü\u2028\U0001f600",
    "raw": b"", "day": date(2026, 2, 28), "at": datetime(2026, 2, 28, 12, 0, 0, 1, UTC),
    "local": datetime(1969, 12, 31, 1), "ints": [1, -2, 3],
    "structs": [{"x": "a", "y": None}, {"x": None, "y": 2}],
    "m": [("a", Decimal("-1.125")), ("b", None)],
    "st": {"u": {"w": [datetime(2026, 1, 1, tzinfo=UTC)], "z": 0.1}, "t": date(1970, 1, 1)},
}  # fmt: skip


def for_hudi(value: Any) -> Any:
    """As JSON that Spark reads."""
    match value:
        case datetime():
            return value.replace(tzinfo=None).isoformat() + ("Z" if value.tzinfo else "")
        case date() | Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {name: for_hudi(each) for name, each in value.items()}
        case [(str(), _), *_]:
            return {name: for_hudi(each) for name, each in value}
        case list():
            return [for_hudi(each) for each in value]
        case _:
            return value


PARSED: dict[str, Any] = {
    "small": Decimal, "money": Decimal, "wide": Decimal, "at": datetime.fromisoformat,
    "local": datetime.fromisoformat,
}  # fmt: skip
"""Read as text: as JSON, Spark would shorten them."""


def selected(name: str) -> str:
    return f"cast({name} as string) {name}" if name in PARSED else name


def of_spark(row: Values) -> Values:
    """Spark leaves nulls out of its JSON."""
    return {name: None if row.get(name) is None else PARSED.get(name, as_it_is)(row[name])
            for name in TYPES}  # fmt: skip


def as_it_is(value: Any) -> Any:
    return value


def as_read(name: str, value: Any) -> Any:
    """What `of_spark` makes of it."""
    if name in PARSED:
        return value.replace(tzinfo=None) if isinstance(value, datetime) else value
    if name == "m" and value is not None:
        return in_json(dict(value), whole=True)
    return in_json(value)


def in_json(value: Any, *, whole: bool = False) -> Any:
    match value:
        case datetime():
            return value.strftime("%Y-%m-%dT%H:%M:%S.000Z")
        case date():
            return str(value)
        case Decimal():
            return float(value)
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {name: in_json(each) for name, each in value.items()
                    if whole or each is not None}  # fmt: skip
        case list():
            return [in_json(each) for each in value]
        case _:
            return value


@pytest.mark.parametrize("blocks", ["avro", "parquet"])
@pytest.mark.parametrize("version", VERSIONS)
def test_values_of_every_type_are_the_same_to_both_whoever_wrote_them(
    hudi: Hudi, tmp_path: Path, version: str, blocks: str
) -> None:
    path, expected = str(tmp_path / "t"), dict[str, Values]()
    options = {
        "hoodie.table.name": "t", WRITE + "recordkey.field": "id", WRITE + "operation": "upsert",
        WRITE + "table.type": "MERGE_ON_READ", WRITE + "precombine.field": "ts", BLOCKS: blocks,
        "hoodie.metadata.enable": "false", **VERSIONS[version],
    }  # fmt: skip

    def by_hudi(ts: int, **rows: Values) -> None:
        said = [{"id": key, "ts": ts, **each} for key, each in rows.items()]
        for row in said:
            row.update({name: {} if name == "m" and row[name] == [] else for_hudi(row[name])
                        for name in TYPES})  # fmt: skip
        hudi("write", path=path, rows=said, schema=SPARK, options=options)
        same(rows, f"Hudi {ts}")

    def by_us(ts: int, **rows: Values) -> None:
        said = [{"id": key, "ts": ts, **each} for key, each in rows.items()]
        with Table(f"file://{path}", options={BLOCKS: blocks}) as table:
            table.upsert(pa.Table.from_pylist(said, ARROW))
        same(rows, f"lockkit {ts}")

    def same(rows: dict[str, Values], when: str) -> None:
        expected.update(rows)
        with Table(f"file://{path}") as table:
            found = table.read(columns=["id", *TYPES]).to_pylist()
        assert {row.pop("id"): row for row in found} == expected, when
        shown = hudi("read", path=path, options={}, select=["id", *map(selected, TYPES)])
        assert {row.pop("id"): of_spark(row) for row in shown} == {
            key: {name: as_read(name, values[name]) for name in TYPES}
            for key, values in expected.items()
        }, when

    by_hudi(1, a=NOTHING, b=GREAT, c=NESTED)
    with Table(f"file://{path}") as table:
        run(adopt(), table.store, Clock())
    by_hudi(2, a=NESTED, b=NOTHING)
    by_us(3, b=GREAT, c=NOTHING)
    by_us(4, a=NOTHING, c=NESTED)
    with Table(f"file://{path}") as table:
        table.compact()
    same({}, "compacted")
    by_hudi(5, a=GREAT)
