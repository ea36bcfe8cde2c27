"""A merge-on-read table of version 6 that lockkit created: Hudi and lockkit write in turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_rs import read_by_hudi_rs
from hudi_world import Hudi

from lockkit.table import Table

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
WRITE = "hoodie.datasource.write."
SPARK = "id string, ts bigint, v bigint"
OPTIONS = {
    "hoodie.table.name": "t", WRITE + "recordkey.field": "id", WRITE + "operation": "upsert",
    WRITE + "precombine.field": "ts", WRITE + "table.type": "MERGE_ON_READ",
    "hoodie.metadata.enable": "false", "hoodie.write.table.version": "6",
    "hoodie.write.auto.upgrade": "false",
}  # fmt: skip


def rows(v: int, *numbers: int) -> list[dict[str, Any]]:
    return [{"id": f"k{n}", "ts": v, "v": v} for n in numbers]


@pytest.mark.parametrize("index", ["", "BUCKET"])
def test_hudi_and_lockkit_write_a_table_in_turn_that_lockkit_created(
    hudi: Hudi, tmp_path: Path, index: str
) -> None:
    path, expected = str(tmp_path / "t"), dict[str, int]()
    options = OPTIONS | ({"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
                         if index else {})  # fmt: skip
    with Table.create(
        f"file://{path}", record_key="id", precombine="ts", table_type="MERGE_ON_READ",
        version=6, mode="hudi", index=index, buckets=2,
    ) as table:  # fmt: skip

        def ours(v: int, *numbers: int) -> None:
            table.upsert(pa.Table.from_pylist(rows(v, *numbers)))
            shown(v, *numbers)

        def theirs(v: int, *numbers: int, **more: str) -> None:
            hudi.write(path, rows(v, *numbers), schema=SPARK, options={**options, **more})
            shown(v, *numbers)

        def shown(v: int, *numbers: int) -> None:
            expected.update({f"k{n}": v for n in numbers})
            by_hudi = hudi("read", path=path, options={}, select=["id", "v"])
            others = (each.to_pylist() for each in (table.read(), read_by_hudi_rs(path)))
            for found in (by_hudi, *others):
                assert sorted((row["id"], row["v"]) for row in found) == sorted(expected.items())

        ours(1, 1, 2, 3, 4, 5, 6)
        theirs(2, 1, 2, 7, 8)
        ours(3, 2, 3, 8, 9)
        table.compact()
        theirs(4, 1, 9, 10, **{"hoodie.compact.inline": "true",
                               "hoodie.compact.inline.max.delta.commits": "1"})  # fmt: skip
        ours(5, 1, 10, 11)
        table.delete(pa.Table.from_pylist(rows(6, 1, 7)))
        expected.pop("k1"), expected.pop("k7")
        theirs(7, 2, 12)
