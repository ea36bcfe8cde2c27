"""Spark's writes whose rows go where a look at all stored keys says: judged by a dictionary.

These are the tables that Hudi made with its default index, merge-on-read, and global indexes.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from spark_world import KEYS, MARKS, SAID, by_hudi_rs, frame, stored
from suite_plugin import rest_in_soak
from test_merged_of_hudi import SCHEMA, adopted, as_rows, logged_and_stored, shown, theirs

from lockkit.errors import TableError
from lockkit.spark import read, write
from lockkit.table import CommitConflict, Table
from lockkit.table.options import WRITE

pytestmark = MARKS
GLOBAL = {"hoodie.index.type": "GLOBAL_SIMPLE"}
OF_HUDI = "id string, kind string, region string, day string, ts bigint, v int"
Row = tuple[str, str | None, int, int]


def write_frame(frame: Any, url: str, operation: str, **options: str) -> None:
    write(frame, url, operation=operation, options=options)


def save(frame: Any, url: str, operation: str, **options: str) -> None:
    options = {**options, WRITE + "operation": operation}
    frame.write.format("lockkit").options(**options).mode("append").save(url)


WAYS = pytest.mark.parametrize("way", [write_frame, save], ids=["write", "save"])


@WAYS
@pytest.mark.parametrize(("name", "turns"), rest_in_soak(
    [("mor9", 1), ("mor9", 3), ("mor9_commit", 3)], ("mor9", 1)
))  # fmt: skip
def test_a_table_that_hudi_made_is_written_where_its_writers_look_for_keys(
    spark: Any, hudi_made: Path, tmp_path: Path, way: Any, name: str, turns: int
) -> None:
    dice = random.Random(name)
    with adopted(hudi_made, tmp_path, name) as table:
        live = {row["id"]: row["v"] for row in table.read().to_pylist()}

        def wrote(operation: str, step: int, *keys: str) -> None:
            rows = as_rows(*((key, 10_000 + step, step) for key in keys)).to_pylist()
            way(spark.createDataFrame(rows, OF_HUDI).select(SCHEMA.names), table.url, operation)
            for key in keys:
                live[key] = step
                if operation == "delete":
                    del live[key]
            assert shown(table.read()) == sorted(live.items()) == theirs(table), (step, operation)
            assert all(logged <= stored for logged, stored in logged_and_stored(table))

        wrote("upsert", 1, *(f"k{number:02d}" for number in range(1, 30)))  # known and new ones
        wrote("delete", 2, "k03", "k04", "k77")
        wrote("insert", 3, "k03", "k05", "k40")
        table.compact()
        for step in range(4, 4 + turns):
            keys = [f"k{number:02d}" for number in dice.sample(range(50), 9)]
            wrote(dice.choice(["upsert", "delete"]), step, *keys)
        found = read(spark, table.url).select("id", "v").collect()
        assert sorted(map(tuple, found)) == sorted(live.items())


@WAYS
@pytest.mark.parametrize(("kind", "mode", "turns"), rest_in_soak(
    [("COPY_ON_WRITE", "fenced", 1), ("MERGE_ON_READ", "fenced", 1), ("COPY_ON_WRITE", "fenced", 3),
     ("MERGE_ON_READ", "fenced", 3), ("COPY_ON_WRITE", "hudi", 3)],
    ("COPY_ON_WRITE", "fenced", 1), ("MERGE_ON_READ", "fenced", 1),
))  # fmt: skip
def test_a_global_index_moves_each_row_to_its_partition(
    spark: Any, tmp_path: Path, way: Any, kind: str, mode: str, turns: int
) -> None:
    place, expected = {"url": f"file://{tmp_path}/orders"}, dict[str, Row]()
    options = {**SAID, **GLOBAL, WRITE + "table.type": kind, "lockkit.commit.mode": mode}

    def wrote(operation: str, *rows: Row) -> None:
        way(frame(spark, *rows), place["url"], operation, **options)
        for key, region, at, v in rows:
            if operation == "delete":
                expected.pop(key, None)
            elif key not in expected or expected[key][2] <= at:
                expected[key] = key, region, at, v
        now = sorted(((k, r, v) for k, r, _, v in expected.values()), key=repr)
        assert stored(place) == now == by_hudi_rs(place), operation

    wrote("upsert", *((f"k{n}", "EU" if n % 2 else "US", 10, 1) for n in range(8)))
    wrote("upsert", ("k1", "US", 20, 2), ("k2", "US", 20, 2), ("k3", "US", 5, 2),
          ("k4", None, 10, 2))  # fmt: skip
    wrote("upsert", ("k5", "US", 30, 3), ("k5", "AP", 25, 3), ("n1", "AP", 1, 3))
    wrote("delete", ("k1", "AP", 99, 0), ("k6", "US", 99, 0), ("nobody", "US", 99, 0))
    wrote("upsert", ("k1", "EU", 100, 4), ("k3", "AP", 40, 4), ("k4", "EU", 40, 4))
    dice = random.Random(kind)
    for turn in range(5, 5 + turns):
        keys = dice.sample(range(9), 4)
        wrote("upsert", *((f"k{n}", dice.choice(["EU", "US", "AP"]), 100 * turn, turn)
                          for n in keys))  # fmt: skip


@WAYS
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_a_partial_frame_keeps_what_is_stored_in_the_columns_that_it_lacks(
    spark: Any, tmp_path: Path, way: Any, kind: str
) -> None:
    url, options = f"file://{tmp_path}/orders", {**SAID, WRITE + "table.type": kind}
    way(frame(spark, ("a", "EU", 1, 1), ("b", "US", 1, 1)), url, "upsert", **options)
    lean = frame(spark, ("a", "EU", 2), ("c", "US", 2), columns="id string, region string, at long")
    way(lean, url, "upsert", **options, **{"lockkit.partial.update": "true"})
    assert stored({"url": url}, "id", "at", "v") == [("a", 2, 1), ("b", 1, 1), ("c", 2, None)]
    way(lean, url, "upsert", **options)
    assert stored({"url": url}, "id", "at", "v") == [("a", 2, None), ("b", 1, 1), ("c", 2, None)]
    way(frame(spark, ("b", "US", 3, 3)), url, "delete", **options)
    late = frame(spark, ("b", "US", 4), columns="id string, region string, at long")
    way(late, url, "upsert", **options, **{"lockkit.partial.update": "true"})
    assert stored({"url": url}, "id", "at", "v") == [("a", 2, None), ("b", 4, None), ("c", 2, None)]


def test_a_global_index_of_spark_is_refused_in_hudis_buckets_by_name(
    spark: Any, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/orders"
    with Table.create(
        url, record_key="id", partition_by="region", precombine="at", index="BUCKET"
    ) as table:  # fmt: skip
        with pytest.raises(TableError, match=r"Hudi's (buckets|bucket index)"):
            write(frame(spark, ("a", "EU", 1, 1)), url, options=GLOBAL, **KEYS)
        assert not table.history()


def test_a_row_that_moves_conflicts_with_a_write_to_the_group_that_it_leaves(
    spark: Any, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/orders"
    write(frame(spark, ("a", "EU", 1, 1), ("b", "US", 1, 1)), url, buckets=1, **KEYS)
    done: list[str] = []

    def meanwhile(kind: str, **fields: Any) -> None:
        if kind == "note" and fields["text"].startswith("wrote") and not done:
            done.append("")
            write(frame(spark, ("a", "EU", 2, 2)), url)

    with pytest.raises(CommitConflict):
        write(frame(spark, ("a", "US", 3, 3)), url, options=GLOBAL, emit=meanwhile)
    assert done and stored({"url": url}) == [("a", "EU", 2), ("b", "US", 1)]
    done.clear()
    write(frame(spark, ("a", "US", 3, 3)), url, options=GLOBAL, emit=meanwhile, retries=1)
    assert done
    assert stored({"url": url}) == [("a", "US", 3), ("b", "US", 1)]


@pytest.mark.parametrize("index", [None, "GLOBAL_SIMPLE"])
def test_zero_is_greater_than_minus_zero_as_in_java(
    spark: Any, tmp_path: Path, index: str | None
) -> None:
    """In one batch, and beside a stored row of another partition."""
    url, named = f"file://{tmp_path}/t", {"hoodie.index.type": index} if index else {}
    kind = "id string, region string, at double, v int"
    with Table.create(url, record_key="id", partition_by="region", precombine="at") as table:
        rows = [("a", "EU", 0.0, 1), ("a", "EU", -0.0, 2), ("b", "EU", -0.0, 3),
                ("b", "EU", 0.0, 4)]  # fmt: skip
        write_frame(spark.createDataFrame(rows, kind).coalesce(1), url, "upsert", **named)
        found = {row["id"]: row["v"] for row in table.read().to_pylist()}
        assert found == {"a": 1, "b": 4}
        if index:
            rows = [("a", "US", -0.0, 5), ("b", "US", 0.0, 6)]
            write_frame(spark.createDataFrame(rows, kind), url, "upsert", **named)
            found = {row["id"]: row["v"] for row in table.read().to_pylist()}
            assert found == {"a": 1, "b": 6}
