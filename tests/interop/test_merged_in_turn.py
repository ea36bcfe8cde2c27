"""A merge-on-read table that Apache Hudi made with its defaults: Hudi and lockkit write in turn."""

from __future__ import annotations

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
SPARK = "id string, region string, ts bigint, v bigint"
SCHEMA = pa.schema([("id", pa.string()), ("region", pa.string()), ("ts", pa.int64()),
                    ("v", pa.int64())])  # fmt: skip
ORDERS = {"by event": {WRITE + "precombine.field": "ts"}, "by commit": {
    "hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING"}}  # fmt: skip


def listed(v: int, *numbers: int) -> list[dict[str, Any]]:
    return [{"id": f"k{n}", "region": "EU" if n % 2 else "US", "ts": v, "v": v} for n in numbers]


@pytest.mark.parametrize("order", ORDERS)
def test_hudi_finds_each_key_that_lockkit_wrote_and_lockkit_each_of_hudis(
    hudi: Hudi, tmp_path: Path, order: str
) -> None:
    path = str(tmp_path / "t")
    options = {
        "hoodie.table.name": "t", WRITE + "recordkey.field": "id", WRITE + "operation": "upsert",
        WRITE + "partitionpath.field": "region", WRITE + "table.type": "MERGE_ON_READ",
        "hoodie.metadata.enable": "false", **ORDERS[order],
    }  # fmt: skip
    expected: dict[str, int] = {}

    def both_show() -> None:
        rows = hudi("read", path=path, options={}, select=["id", "v"])
        assert sorted((row["id"], row["v"]) for row in rows) == sorted(expected.items())
        found = table.read(columns=["id", "v"]).to_pylist()
        assert sorted((row["id"], row["v"]) for row in found) == sorted(expected.items())

    def theirs(v: int, *numbers: int, **more: str) -> None:
        first = {"mode": "overwrite"} if v == 1 else {}
        hudi.write(path, listed(v, *numbers), schema=SPARK, options={**options, **more}, **first)
        expected.update({f"k{n}": v for n in numbers})

    def ours(v: int, *numbers: int) -> None:
        table.upsert(pa.Table.from_pylist(listed(v, *numbers), SCHEMA))
        expected.update({f"k{n}": v for n in numbers})

    theirs(1, 1, 2, 3, 4)
    with Table(f"file://{path}") as table:
        run(adopt(), table.store, Clock())
        ours(2, 3, 4, 5, 6)  # of each region a key of Hudi's and a new one
        both_show()
        theirs(3, 5, 6, 7, 8)  # new keys of lockkit's, and new ones
        both_show()
        ours(4, 5, 7, 8, 9)
        table.delete(pa.Table.from_pylist(listed(4, 3, 6), SCHEMA))
        expected.pop("k3"), expected.pop("k6")
        both_show()
        theirs(5, 1, 3, 9, **{"hoodie.compact.inline": "true",
                              "hoodie.compact.inline.max.delta.commits": "1"})  # fmt: skip
        both_show()
        ours(6, 1, 2, 5, 10)
        table.compact()
        both_show()
        theirs(7, *range(1, 12))
        both_show()
