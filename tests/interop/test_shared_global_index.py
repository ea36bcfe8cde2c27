"""Hudi's global index and lockkit's move rows by the same rule: each judged after each write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hudi_rs import read_by_hudi_rs
from hudi_world import Hudi
from ours import SPARK_SCHEMA, arrow, in_order, order

from lockkit import open_store
from lockkit.table import Table, read_table

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
MOVES = "hoodie.simple.index.update.partition.path"
OPTIONS = {
    "hoodie.table.name": "orders", "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "at",
    "hoodie.datasource.write.partitionpath.field": "region",
    "hoodie.datasource.write.hive_style_partitioning": "true",
    "hoodie.datasource.write.partitionpath.urlencode": "true",
    "hoodie.table.timeline.timezone": "UTC", "hoodie.write.auto.upgrade": "false",
    "hoodie.metadata.enable": "false", "hoodie.embed.timeline.server": "false",
    "hoodie.upsert.shuffle.parallelism": "2", "hoodie.index.type": "GLOBAL_SIMPLE",
}  # fmt: skip
BATCHES: list[tuple[str, list[dict[str, Any]]]] = [
    ("upsert", [order(f"k{n}", region="EU" if n % 2 else "US", at=10) for n in range(8)]),
    ("upsert", [order("k1", region="US", at=20), order("k2", region="US", at=20),
                order("k3", region="US", at=5), order("k4", region="AP", at=10)]),
    ("upsert", [order("k5", region="US", at=30), order("k5", region="AP", at=25),
                order("n1", region="AP", at=1)]),
    ("delete", [order("k1", region="AP", at=99), order("k6", region="US", at=99)]),
    ("upsert", [order("k1", region="EU", at=2), order("k3", region="AP", at=40)]),
]  # fmt: skip
EXPECTED = {"k0": "US", "k1": "EU", "k2": "US", "k3": "AP", "k4": "AP", "k5": "US", "k7": "EU",
            "n1": "AP"}  # fmt: skip


@pytest.mark.parametrize("writers", ["ours", "Hudi", "ours, Hudi", "Hudi, ours"])
@pytest.mark.parametrize("version", [9, 6])
def test_each_key_is_once_and_where_its_greatest_row_is(
    hudi: Hudi, tmp_path: Path, writers: str, version: int
) -> None:
    """By one of them alone, and in turn on one table, which the first of them made."""
    path, url, turns = str(tmp_path / "orders"), f"file://{tmp_path}/orders", writers.split(", ")
    options = OPTIONS | {"hoodie.write.table.version": str(version)}
    if turns[0] == "ours":
        Table.create(
            url, record_key="id", partition_by="region", precombine="at", mode="hudi",
            version=version,
        ).close()  # fmt: skip
    for turn, (operation, rows) in enumerate(BATCHES):
        if turns[turn % len(turns)] == "ours":
            with Table(url, options={"hoodie.index.type": "GLOBAL_SIMPLE"}) as table:
                (table.upsert if operation == "upsert" else table.delete)(arrow(rows))
        else:
            write = options | {"hoodie.datasource.write.operation": operation}
            hudi.write(path, rows, schema=SPARK_SCHEMA, mode="append", options=write)
        found = in_order(read_table(open_store(url), meta=True).to_pylist())
        assert in_order(hudi.read(path)) == found == in_order(read_by_hudi_rs(path).to_pylist())
        assert len({row["id"] for row in found}) == len(found)
        assert all(row["_hoodie_partition_path"].endswith(row["region"]) for row in found)
    assert {row["id"]: row["region"] for row in found} == EXPECTED


def test_readers_differ_on_the_partition_of_a_row_that_hudi_leaves_in_its_old_folder(
    hudi: Hudi, tmp_path: Path
) -> None:
    """Why `update.partition.path=false` is refused here: Spark takes it from the folder."""
    path = str(tmp_path / "orders")
    options = OPTIONS | {MOVES: "false"}
    for row in (order("a", region="EU", at=1), order("a", region="US", at=2)):
        hudi.write(path, [row], schema=SPARK_SCHEMA, mode="append", options=options)
    (row,) = hudi.read(path)
    assert row["_hoodie_partition_path"] == "region=EU" and row["region"] == "EU"
    store = open_store(f"file://{path}")
    for found in (read_by_hudi_rs(path), read_table(store)):
        assert found["region"].to_pylist() == ["US"]


@pytest.mark.parametrize("index", ["BLOOM", "GLOBAL_BLOOM"])
def test_hudis_bloom_indexes_find_the_keys_of_our_files(
    hudi: Hudi, tmp_path: Path, index: str
) -> None:
    path, url = str(tmp_path / "orders"), f"file://{tmp_path}/orders"
    with Table.create(
        url, record_key="id", partition_by="region", precombine="at", mode="hudi"
    ) as table:  # fmt: skip
        table.upsert(arrow(BATCHES[0][1]))
    rows = [order("k1", region="EU", at=50), order("new", region="EU", at=50)]
    hudi.write(path, rows, schema=SPARK_SCHEMA, mode="append",
               options=OPTIONS | {"hoodie.index.type": index})  # fmt: skip
    found = in_order(read_table(open_store(url), meta=True).to_pylist())
    assert in_order(hudi.read(path)) == found and len(found) == 9
    assert {row["id"]: row["at"] for row in found if row["id"] in ("k1", "new")} == {
        "k1": 50, "new": 50,
    }  # fmt: skip
