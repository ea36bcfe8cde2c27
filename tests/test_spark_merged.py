"""Merge-on-read tables through real PySpark, judged by a dictionary and by hudi-rs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark_world import COLUMNS, KEYS, MARKS, SAID, by_hudi_rs, frame, saver, stored
from suite_plugin import rest_in_soak
from test_parquet_blocks import kinds

from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.runtime import run
from lockkit.spark import foreach_batch, read, write
from lockkit.stores import open_store
from lockkit.table import Table, read_table
from lockkit.table.errors import RefusedOption, RefusedRows
from lockkit.table.format.log_blocks import AVRO, PARQUET
from lockkit.table.format.property_keys import LOG_FORMAT
from lockkit.table.format.timeline import V9, load_timeline
from lockkit.table.options import WRITE
from lockkit.table.read.incremental import load_increment
from lockkit.table.services.rules import COMPACT_ASYNC_KEY, COMPACT_EVERY_KEY, COMPACT_KEY

pytestmark = MARKS
TYPE = {WRITE + "table.type": "MERGE_ON_READ"}
MERGED = {**SAID, **TYPE}
Row = tuple[str, str | None, int, int]


@pytest.fixture(params=[pytest.param("s3", marks=pytest.mark.soak), "file"])
def place(request: Any, shared_emulator: Any, bucket: str, tmp_path: Path) -> dict[str, Any]:
    if request.param == "file":
        return {"url": f"file://{tmp_path}/orders"}
    return {"url": f"s3://{bucket}/orders", "endpoint": shared_emulator.s3}


@pytest.fixture
def here(tmp_path: Path) -> dict[str, Any]:
    return {"url": f"file://{tmp_path}/orders"}


def by_spark(spark: Any, place: dict[str, Any], **how: Any) -> list[tuple[Any, ...]]:
    rows = read(spark, place["url"], endpoint=place.get("endpoint"), **how)
    return sorted(map(tuple, rows.select("id", "region", "v").collect()), key=repr)


def loaded(spark: Any, place: dict[str, Any], **options: str) -> list[tuple[Any, ...]]:
    reader = spark.read.format("lockkit").options(**options)
    if "endpoint" in place:
        reader = reader.option("endpoint", place["endpoint"])
    rows = reader.load(place["url"])
    return sorted(map(tuple, rows.select("id", "region", "v").collect()), key=repr)


def save(
    spark: Any, place: dict[str, Any], operation: str, *rows: Row, index: str = "SIMPLE"
) -> None:
    options = {**MERGED, WRITE + "operation": operation, "hoodie.index.type": index}
    if "endpoint" in place:
        options["endpoint"] = place["endpoint"]
    saved = frame(spark, *rows).write.format("lockkit").options(**options).mode("append")
    saved.save(place["url"])


def put(
    spark: Any, place: dict[str, Any], operation: str, *rows: Row, index: str = "SIMPLE"
) -> None:
    options = {**MERGED, "hoodie.index.type": index}
    write(frame(spark, *rows), operation=operation, options=options, **place)


def test_executors_write_the_blocks_that_the_option_or_else_the_table_asks_for(
    spark: Any, here: dict[str, Any]
) -> None:
    asked = {**MERGED, LOG_FORMAT: "parquet"}
    for v, options in enumerate((asked, MERGED, {**MERGED, LOG_FORMAT: "avro"})):
        write(frame(spark, ("a", "EU", v, v)), options=options, **here)
    write(frame(spark, ("a", "EU", 3, 3)), options=MERGED, **here)
    with Table(here["url"]) as table:
        assert kinds(table) == [PARQUET, AVRO, PARQUET]
    assert by_spark(spark, here) == [("a", "EU", 3)]
    assert by_hudi_rs(here) == [("a", "EU", 3)]


def actions(place: dict[str, Any]) -> list[str]:
    now = run(load_timeline(V9), open_store(**place), Clock())
    return [now.completed[each] for each in sorted(now.completed)]


@pytest.mark.parametrize("way", [put, save])
def test_hudis_own_buckets_are_those_of_a_python_writer(spark: Any, here: Any, way: Any) -> None:
    way(spark, here, "upsert", *((f"k{n}", "EU", 1, 1) for n in range(9)), index="BUCKET")
    with Table(here["url"]) as table:
        table.upsert(read_table(table.store).set_column(3, "v", pa.array([2] * 9, pa.int64())))
    way(spark, here, "upsert", ("k3", "EU", 2, 3), ("ü,a:1", "EU", 2, 3), index="BUCKET")
    now = [(f"k{n}", "EU", 3 if n == 3 else 2) for n in range(9)]
    assert stored(here) == [*now, ("ü,a:1", "EU", 3)] == by_hudi_rs(here) == by_spark(spark, here)
    base = [each.key for each in open_store(**here).list("region") if ".parquet" in each.key]
    assert not base  # a bucket begins with a log file, as Hudi's writers begin it


@pytest.mark.parametrize("way", [put, save])
def test_every_operation_on_log_files_is_seen_by_every_reader(
    spark: Any, place: Any, way: Any
) -> None:
    way(spark, place, "upsert", ("a", "EU", 1, 1), ("b", "EU", 1, 1), ("c", "US", 1, 1))
    way(spark, place, "upsert", ("a", "EU", 0, 2), ("b", "EU", 1, 2), ("d", None, 9, 2))
    way(spark, place, "insert", ("e", "US", 1, 3), ("c", "US", 2, 3))
    way(spark, place, "delete", ("b", "EU", 1, 0), ("nobody", "US", 1, 0))
    now = [("a", "EU", 1), ("c", "US", 3), ("d", None, 2), ("e", "US", 3)]
    assert stored(place) == sorted(now, key=repr) == by_hudi_rs(place)
    assert by_spark(spark, place) == loaded(spark, place) == sorted(now, key=repr)
    assert {"deltacommit"} == set(actions(place))
    logs = [each.key for each in open_store(**place).list("") if ".log." in each.key]
    assert len(logs) >= 3, logs
    way(spark, place, "insert_overwrite", ("x", "EU", 1, 9))
    way(spark, place, "upsert", ("x", "EU", 2, 10), ("a", "EU", 1, 1))
    now = [("a", "EU", 1), ("c", "US", 3), ("d", None, 2), ("e", "US", 3), ("x", "EU", 10)]
    assert stored(place) == sorted(now, key=repr) == by_hudi_rs(place) == by_spark(spark, place)


def test_each_kind_of_query_shows_what_the_table_has(spark: Any, place: Any) -> None:
    put(spark, place, "upsert", ("a", "EU", 1, 1), ("c", "US", 1, 1))
    first = run(load_increment(), open_store(**place), Clock()).end
    put(spark, place, "upsert", ("a", "EU", 2, 2))
    base, now = [("a", "EU", 1), ("c", "US", 1)], [("a", "EU", 2), ("c", "US", 1)]
    query = "hoodie.datasource.query.type"
    assert by_spark(spark, place, options={query: "read_optimized"}) == base
    assert loaded(spark, place, **{query: "read_optimized"}) == base
    instant = open_store(**place).list(".hoodie/timeline/2")[0].key.rpartition("/")[2][:17]
    assert by_spark(spark, place, as_of=instant) == base
    changed = [("a", "EU", 2)]
    window = {query: "incremental", "hoodie.datasource.read.begin.instanttime": first}
    assert by_spark(spark, place, begin=first) == changed == loaded(spark, place, **window)
    assert by_spark(spark, place, begin="") == now
    assert by_spark(spark, place, filters=[("v", "=", 1)]) == [("c", "US", 1)]
    assert by_spark(spark, place, columns=["id", "region", "v"]) == now
    with pytest.raises(RefusedOption, match=r"reads no log files|reads only a file:///"):
        by_spark(spark, place, native=True)
    with pytest.raises(RefusedOption, match="is for a snapshot"):
        by_spark(spark, place, begin="", options={query: "read_optimized"})


@pytest.mark.parametrize("seed", rest_in_soak(range(6)))
def test_random_writes_through_spark_leave_what_a_dictionary_holds(
    spark: Any, here: Any, seed: int
) -> None:
    some, standing = random.Random(seed), dict[tuple[str, str], tuple[int, int | None]]()
    inline = {**MERGED, COMPACT_KEY: "true", COMPACT_EVERY_KEY: "3"}
    for number in range(7):
        rows = [(f"k{some.randrange(9)}", some.choice(["EU", "US"]), some.randrange(4), number)
                for _ in range(6)]  # fmt: skip
        rows = list({row[:2]: row for row in rows}.values())
        gone = number > 0 and some.random() < 0.3
        if gone:
            rows = [row for row in rows if row[:2] in standing] or rows[:1]
        write(frame(spark, *rows), operation="delete" if gone else "upsert", options=inline, **here)
        for key, region, at, v in rows:
            if standing.get((key, region), (at, 0))[0] <= at and not (
                gone and (key, region) not in standing
            ):
                standing[key, region] = at, None if gone else v
        if actions(here)[-1] == "commit":  # a compaction forgets how late a deletion was
            standing = {key: each for key, each in standing.items() if each[1] is not None}
        now = sorted((*key, v) for key, (_, v) in standing.items() if v is not None)
        assert stored(here) == now == by_hudi_rs(here), number
    assert by_spark(spark, here) == now == loaded(spark, here)
    assert "commit" in actions(here)


# --- streams ---


def arrivals(spark: Any, folder: Path) -> Any:
    folder.mkdir(exist_ok=True)
    return spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(folder))


def arrive(folder: Path, count: int) -> None:
    folder.mkdir()
    for number in range(count):
        line = f'{{"id": "k{number % 2}", "region": "EU", "at": {number}, "v": {number}}}\n'
        (folder / f"{number}.json").write_text(line)


@pytest.mark.parametrize(("way", "said"), [
    ("foreach_batch", {}), ("format", {}),
    ("foreach_batch", {WRITE + "streaming.disable.compaction": "true"}), *(
        pytest.param(way, said, marks=pytest.mark.soak) for way in ("foreach_batch", "format")
        for said in ({COMPACT_KEY: "true"}, {COMPACT_ASYNC_KEY: "false"})
    ),
])  # fmt: skip
def test_a_stream_compacts_beside_its_batches_unless_an_option_forbids_it(
    spark: Any, here: Any, tmp_path: Path, way: str, said: dict[str, str]
) -> None:
    arrive(tmp_path / "in", 4)
    options = {**MERGED, COMPACT_EVERY_KEY: "2", **said}
    rows = arrivals(spark, tmp_path / "in").writeStream.trigger(availableNow=True)
    rows = rows.option("checkpointLocation", f"{tmp_path}/checkpoint")
    one = foreach_batch(here["url"], options=options)
    if way == "format":
        query = rows.format("lockkit").options(**options).start(here["url"])
    else:
        query = rows.foreachBatch(one).start()
    query.awaitTermination()
    one.close()
    assert stored(here) == [("k0", "EU", 2), ("k1", "EU", 3)] == by_hudi_rs(here)
    done = actions(here)
    assert done.count("deltacommit") == 4
    off = said.get(COMPACT_ASYNC_KEY) == "false" or WRITE + "streaming.disable.compaction" in said
    assert ("commit" in done) != off, done


def test_a_stream_reads_what_log_files_brought(spark: Any, here: Any, tmp_path: Path) -> None:
    put(spark, here, "upsert", ("a", "EU", 1, 1), ("c", "US", 1, 1))
    rows, seen = spark.readStream.format("lockkit").load(here["url"]), list[tuple[Any, ...]]()

    def keep(batch: Any, _number: int) -> None:
        seen.extend(map(tuple, batch.select("id", "v").collect()))

    def pull() -> None:
        query = rows.writeStream.option("checkpointLocation", f"{tmp_path}/checkpoint")
        query.trigger(availableNow=True).foreachBatch(keep).start().awaitTermination()

    pull()
    put(spark, here, "upsert", ("a", "EU", 2, 2))
    pull()
    assert sorted(seen) == [("a", 1), ("a", 2), ("c", 1)]


# --- refusals ---


def test_rows_that_readers_order_differently_are_refused_before_or_in_the_tasks(
    spark: Any, here: Any
) -> None:
    put(spark, here, "upsert", ("a", "EU", 1, 1))
    columns = "id string, region string, at boolean, v long"
    wrong = frame(spark, ("a", "EU", True, 2), columns=columns)
    with pytest.raises(RefusedRows, match="do not compare this type alike"):
        write(wrong, **here)
    with pytest.raises(RefusedRows, match="is null in 1 rows"):
        write(frame(spark, ("a", "EU", None, 2)), **here)
    with pytest.raises(RefusedOption, match="replaces rows with the same key"):
        write(frame(spark, ("b", "EU", 1, 2)), operation="insert",
              options={WRITE + "insert.drop.duplicates": "true"}, **here)  # fmt: skip
    assert stored(here) == [("a", "EU", 1)]


def test_the_type_of_a_table_that_exists_stays(spark: Any, here: Any) -> None:
    put(spark, here, "upsert", ("a", "EU", 1, 1))
    with pytest.raises(TableError, match="MERGE_ON_READ"):
        write(frame(spark, ("a", "EU", 2, 2)), table_type="COPY_ON_WRITE", **here)
    elsewhere = {"url": here["url"] + "2"}
    with pytest.raises(TableError, match="in version 6 only in the mode hudi"):
        write(frame(spark, ("a", "EU", 1, 1)), version=6, options=TYPE, **KEYS, **elsewhere)
    assert not open_store(**elsewhere).list("")
    assert stored(here) == [("a", "EU", 1)]
    assert saver(here, **TYPE).requested.table_type == "MERGE_ON_READ"


def test_spark_reads_the_same_merged_rows_and_meta_columns_as_python(spark: Any, here: Any) -> None:
    """The meta columns of a merged row say which commit it is of, in Spark as in Python."""
    put(spark, here, "upsert", ("a", "EU", 1, 1), ("b", "EU", 1, 1))
    put(spark, here, "upsert", ("a", "EU", 2, 2))
    mine = read_table(open_store(**here), meta=True).to_pylist()
    theirs = [row.asDict() for row in read(spark, here["url"], meta=True).collect()]
    assert sorted(mine, key=repr) == sorted(theirs, key=repr)
