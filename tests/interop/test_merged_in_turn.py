"""A merge-on-read table that Apache Hudi made with its defaults: Hudi and lockkit write in turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_rs import read_by_hudi_rs
from hudi_world import Hudi

from lockkit.clock import Clock
from lockkit.runtime import run
from lockkit.spark import write
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


@pytest.mark.parametrize("way", ["Table", "Table, version 8", "Spark", "saves of Spark"])
@pytest.mark.parametrize("order", ORDERS)
def test_hudi_finds_each_key_that_lockkit_wrote_and_lockkit_each_of_hudis(
    hudi: Hudi, spark: Any, tmp_path: Path, order: str, way: str
) -> None:
    path = str(tmp_path / "t")
    options = {
        "hoodie.table.name": "t", WRITE + "recordkey.field": "id", WRITE + "operation": "upsert",
        WRITE + "partitionpath.field": "region", WRITE + "table.type": "MERGE_ON_READ",
        "hoodie.metadata.enable": "false", **ORDERS[order],
        **({"hoodie.write.table.version": "8", "hoodie.write.auto.upgrade": "false"}
           if "8" in way else {}),
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

    def by_lockkit(operation: str, v: int, *numbers: int) -> None:
        rows = listed(v, *numbers)
        frame = spark.createDataFrame(rows, SPARK).select(SCHEMA.names)
        if way == "Spark":
            write(frame, table.url, operation=operation)
        elif way == "saves of Spark":
            save = frame.write.format("lockkit").option(WRITE + "operation", operation)
            save.mode("append").save(table.url)
        else:
            put = table.delete if operation == "delete" else table.upsert
            put(pa.Table.from_pylist(rows, SCHEMA))

    def ours(v: int, *numbers: int) -> None:
        by_lockkit("upsert", v, *numbers)
        expected.update({f"k{n}": v for n in numbers})

    theirs(1, 1, 2, 3, 4)
    with Table(f"file://{path}") as table:
        run(adopt(), table.store, Clock())
        ours(2, 3, 4, 5, 6)  # of each region a key of Hudi's and a new one
        both_show()
        theirs(3, 5, 6, 7, 8)  # new keys of lockkit's, and new ones
        both_show()
        ours(4, 5, 7, 8, 9)
        by_lockkit("delete", 4, 3, 6)
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
        assert table.refresh().config.version == (8 if "8" in way else 9)


GLOBAL = {"hoodie.index.type": "GLOBAL_SIMPLE"}


@pytest.mark.parametrize("turns", ["Hudi, Table", "Hudi, Spark", "Hudi, Hudi"])
@pytest.mark.parametrize("order", ORDERS)
def test_a_global_index_of_either_leaves_each_key_once_and_where_its_greatest_row_is(
    hudi: Hudi, spark: Any, tmp_path: Path, order: str, turns: str
) -> None:
    path, by_event = str(tmp_path / "t"), order == "by event"
    options = {
        "hoodie.table.name": "t", WRITE + "recordkey.field": "id",
        WRITE + "partitionpath.field": "region", WRITE + "table.type": "MERGE_ON_READ",
        "hoodie.metadata.enable": "false", "hoodie.compact.inline": "false", **GLOBAL,
        **ORDERS[order],
    }  # fmt: skip
    expected: dict[str, tuple[str, int, int]] = {}
    batches: list[tuple[str, list[tuple[str, str, int]]]] = [
        ("upsert", [(f"k{n}", "EU" if n % 2 else "US", 10) for n in range(8)]),
        ("upsert", [("k1", "US", 20), ("k2", "US", 20), ("k3", "US", 5), ("k4", "AP", 10)]),
        ("upsert", [("k5", "US", 30), ("n1", "AP", 1), ("k4", "US", 31)]),
        ("delete", [("k1", "AP", 99), ("k6", "US", 99)]),
        ("upsert", [("k2", "EU", 100), ("k3", "AP", 40), ("k7", "AP", 40)]),
        ("upsert", [("k2", "US", 110), ("k3", "EU", 110), ("k5", "AP", 110), ("n2", "EU", 3)]),
        ("compact", []),
        ("upsert", [("k0", "AP", 120), ("k3", "US", 120), ("k7", "EU", 120)]),
        ("upsert", [("k0", "US", 130), ("k3", "EU", 130), ("k7", "AP", 130)]),
    ]
    with Table(f"file://{path}", options=GLOBAL) as table:
        for turn, (operation, of) in enumerate(batches):
            rows = [{"id": key, "region": region, "ts": ts, "v": turn} for key, region, ts in of]
            writer = turns.split(", ")[turn % 2]
            if operation == "compact":
                table.compact()
            elif writer == "Hudi":
                hudi.write(path, rows, schema=SPARK, mode="append",
                           options={**options, WRITE + "operation": operation})  # fmt: skip
            elif writer == "Spark":
                frame = spark.createDataFrame(rows, SPARK).select(SCHEMA.names)
                write(frame, table.url, operation=operation, options=GLOBAL)
            else:
                put = table.delete if operation == "delete" else table.upsert
                put(pa.Table.from_pylist(rows, SCHEMA))
            if turn == 0:
                run(adopt(), table.store, Clock())
            for key, region, ts in of:
                if operation == "delete":
                    expected.pop(key, None)
                elif key not in expected or not by_event or expected[key][1] <= ts:
                    expected[key] = region, ts, turn
            wanted = sorted((key, *row) for key, row in expected.items())
            found = hudi("read", path=path, options={}, select=["id", "region", "ts", "v"])
            for shown in (found, table.read().to_pylist(), read_by_hudi_rs(path).to_pylist()):
                mine = [tuple(row[name] for name in ("id", "region", "ts", "v")) for row in shown]
                assert sorted(mine) == wanted, (turn, operation, writer)
