"""Whatever the precombine field's type, Hudi orders lockkit's rows and deletes as lockkit does."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
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
DAY = datetime(2026, 1, 1, tzinfo=UTC)
ZEROS = [-0.0, 0.0, 1.0, 2.0]
KINDS: dict[str, tuple[str, pa.DataType, Any, Any]] = {
    "int32": ("int", pa.int32(), lambda n: n, lambda n: n),
    "double": ("double", pa.float64(), lambda n: n + 0.5, lambda n: n + 0.5),
    "zeros": ("double", pa.float64(), lambda n: ZEROS[n - 9], lambda n: ZEROS[n - 9]),
    "float": ("float", pa.float32(), lambda n: n + 0.5, lambda n: n + 0.5),
    "date": ("date", pa.date32(), lambda n: date(2026, 1, n), lambda n: f"2026-01-{n:02d}"),
    "timestamp": ("timestamp", pa.timestamp("us", "UTC"), lambda n: DAY + timedelta(days=n),
                  lambda n: (DAY + timedelta(days=n)).isoformat()),
    "decimal": ("decimal(10,2)", pa.decimal128(10, 2), lambda n: Decimal(n), lambda n: n),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_hudi_orders_rows_and_deletes_of_both_writers_as_lockkit_does(
    hudi: Hudi, tmp_path: Path, kind: str
) -> None:
    spark, arrow, value, text = KINDS[kind]
    path = str(tmp_path / "t")
    options = {
        "hoodie.table.name": "t", WRITE + "recordkey.field": "id", WRITE + "operation": "upsert",
        WRITE + "partitionpath.field": "region", WRITE + "table.type": "MERGE_ON_READ",
        "hoodie.metadata.enable": "false", WRITE + "precombine.field": "ts",
        "hoodie.compact.inline": "false",
    }  # fmt: skip
    shape = f"id string, region string, ts {spark}, v bigint"
    schema = pa.schema([("id", pa.string()), ("region", pa.string()), ("ts", arrow),
                        ("v", pa.int64())])  # fmt: skip

    def theirs(v: int, *rows: tuple[str, int]) -> None:
        listed = [{"id": key, "region": "EU", "ts": text(ts), "v": v} for key, ts in rows]
        first = {"mode": "overwrite"} if v == 1 else {}
        hudi.write(path, listed, schema=shape, options=options, **first)

    def ours(v: int, *rows: tuple[str, int]) -> pa.Table:
        return pa.Table.from_pylist([
            {"id": key, "region": "EU", "ts": value(ts), "v": v} for key, ts in rows], schema)

    def all_show(expected: dict[str, int]) -> None:
        theirs = hudi("read", path=path, options={}, select=["id", "v"])
        assert {row["id"]: row["v"] for row in theirs} == expected
        assert {row["id"]: row["v"] for row in table.read().to_pylist()} == expected

    theirs(1, *((key, 10) for key in "abcdef"))
    with Table(f"file://{path}") as table:
        run(adopt(), table.store, Clock())
        table.upsert(ours(2, ("a", 9), ("b", 11), ("c", 10)))
        all_show({"a": 1, "b": 2, "c": 2, "d": 1, "e": 1, "f": 1})
        table.delete(ours(2, ("d", 9), ("e", 11), ("b", 10)))
        all_show({"a": 1, "b": 2, "c": 2, "d": 1, "f": 1})
        theirs(3, ("e", 10), ("f", 12), ("b", 10))
        all_show({"a": 1, "b": 2, "c": 2, "d": 1, "f": 3})
        table.compact()
        all_show({"a": 1, "b": 2, "c": 2, "d": 1, "f": 3})
