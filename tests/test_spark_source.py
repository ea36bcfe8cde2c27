"""`format("lockkit")` and `read`, by real PySpark: the same table, the same errors."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from spark_world import (
    KEYS,
    MARKS,
    SAID,
    batches,
    by_hudi_rs,
    frame,
    saver,
    spooled,
    stored,
)

from lockkit.clock import Clock
from lockkit.errors import LockLost, TableError
from lockkit.runtime import run
from lockkit.spark import write
from lockkit.spark.errors import unwrap, unwrapped
from lockkit.spark.place import TableAddress
from lockkit.spark.query import Query, plan, query_of
from lockkit.spark.read import read, register
from lockkit.spark.spool import SPOOLS
from lockkit.stores import open_store
from lockkit.table import load_snapshot
from lockkit.table.errors import CommitConflict, CommitUnknown
from lockkit.table.format.timeline import V6, V9, load_timeline
from lockkit.table.options import RETRIES, WRITE
from lockkit.table.read.buckets import is_bucketed

pytestmark = MARKS

OPERATION = WRITE + "operation"


@pytest.fixture
def place(shared_emulator: Any, bucket: str) -> dict[str, Any]:
    return {"url": f"s3://{bucket}/orders", "endpoint": shared_emulator.s3}


@pytest.fixture
def here(tmp_path: Path) -> dict[str, Any]:
    return {"url": f"file://{tmp_path}/orders"}


def save(rows: Any, place: dict[str, Any], mode: str = "append", **options: str) -> None:
    named = {name.replace("__", "."): value for name, value in options.items()}
    elsewhere = {name: value for name, value in place.items() if name != "url"}
    writer = rows.write.format("lockkit").mode(mode)
    writer.options(**SAID, **elsewhere, **named).save(place["url"])


def load(spark: Any, place: dict[str, Any], *columns: str, **options: str) -> list[Any]:
    elsewhere = {name: value for name, value in place.items() if name != "url"}
    named = {name.replace("__", "."): value for name, value in options.items()}
    rows = spark.read.format("lockkit").options(**elsewhere, **named).load(place["url"])
    rows = rows.select(*(columns or ("id", "region", "v")))
    return sorted((tuple(row) for row in rows.collect()), key=repr)


def commits(place: dict[str, Any], version: int) -> list[tuple[str, str]]:
    """Each commit's instant, and its place in the order of increments."""
    now = run(load_timeline(V6 if version == 6 else V9), open_store(**place), Clock())
    return [(each, now.completion.get(each, each)) for each in now.commits]


# --- saving ---


def test_a_save_does_what_hudi_says_and_hudi_rs_sees_it(spark: Any, place: Any) -> None:
    first = [("a", "EU", 1, 1), ("b", "EU", 1, 1), ("c", "US", 1, 1), ("d", None, 1, 1)]
    save(frame(spark, *first), place, **{OPERATION: "insert"})
    second = [("a", "EU", 0, 2), ("b", "EU", 1, 2), ("e", "US", 9, 2), ("e", "US", 8, 3)]
    save(frame(spark, *second).repartition(3), place)
    now = [("a", "EU", 1), ("b", "EU", 2), ("c", "US", 1), ("d", None, 1), ("e", "US", 2)]
    assert stored(place) == sorted(now, key=repr) == by_hudi_rs(place) == load(spark, place)
    gone = frame(spark, ("e", "US"), ("d", None), ("no", "US"), columns="id string, region string")
    save(gone, place, **{OPERATION: "delete"})
    assert stored(place) == [("a", "EU", 1), ("b", "EU", 2), ("c", "US", 1)] == by_hudi_rs(place)
    save(frame(spark, ("x", "EU", 1, 9)), place, **{OPERATION: "insert_overwrite"})
    assert stored(place) == [("c", "US", 1), ("x", "EU", 9)] == by_hudi_rs(place)
    save(frame(spark, ("z", "ASIA", 1, 1)), place, mode="overwrite")
    assert stored(place) == [("z", "ASIA", 1)] == by_hudi_rs(place) == load(spark, place)
    save(frame(spark).limit(0), place)
    assert stored(place) == [("z", "ASIA", 1)]
    assert spooled(place) == [], "of a spool nothing stays"


def test_a_save_writes_the_table_that_write_writes(spark: Any, tmp_path: Path) -> None:
    """Seeded inserts, upserts and deletes, so that keys are in free groups and in buckets."""
    saved, written = ({"url": f"file://{tmp_path}/{name}"} for name in ("saved", "written"))
    dice = random.Random(5)
    for step in range(5):
        operation = ("insert", "upsert", "bulk_insert", "upsert", "delete")[step]
        rows = []
        for _ in range(25):
            number = dice.randrange(40) if "insert" not in operation else 100 * step + len(rows)
            rows.append((f"k{number}", f"r{number % 3}", dice.randrange(9), dice.randrange(99)))
        some = frame(spark, *rows).repartition(2)
        save(some, saved, **{OPERATION: operation})
        write(some, operation=operation, buckets=2, **KEYS, **written)
        columns = ("id", "region", "at")
        assert stored(saved, *columns) == stored(written, *columns), f"step {step}: {operation}"
    groups = [{(p, f) for p, f in run(load_snapshot(), open_store(**each), Clock()).groups
               if is_bucketed(f)} for each in (saved, written)]  # fmt: skip
    assert groups[0] == groups[1] != set()


def test_hudis_options_for_duplicates_hold_for_a_save(spark: Any, here: Any) -> None:
    rows = [("a", "EU", 1, 1), ("a", "EU", 3, 3), ("a", "EU", 2, 2), ("a", "US", 1, 1)]
    once = {OPERATION: "insert", "hoodie.combine.before.insert": "true"}
    save(frame(spark, *rows).repartition(3), here, **once)
    assert stored(here) == [("a", "EU", 3), ("a", "US", 1)]
    save(frame(spark, ("a", "EU", 9, 9)), here, **once)
    assert len(stored(here)) == 3, "looked for among the rows, not in the table"
    drop = {OPERATION: "insert", WRITE + "insert.drop.duplicates": "true"}
    save(frame(spark, ("a", "EU", 9, 9), ("b", "EU", 1, 1)), here, **drop)
    assert len(stored(here)) == 4


def test_sql_reads_and_writes_through_a_view(spark: Any, here: Any) -> None:
    save(frame(spark, ("a", "EU", 1, 1), ("b", "US", 1, 1)), here)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING lockkit OPTIONS (path '{here['url']}')")
    spark.sql("INSERT INTO v VALUES ('b', 'US', 2, 2), ('c', 'US', 1, 3)")
    found = spark.sql("SELECT region, sum(v) s FROM v GROUP BY region ORDER BY region").collect()
    assert [tuple(row) for row in found] == [("EU", 1), ("US", 5)]
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING lockkit OPTIONS (path '{here['url']}')")
    spark.sql("INSERT OVERWRITE v SELECT id, region, at, v + 1 FROM v WHERE region = 'EU'")
    assert stored(here) == [("a", "EU", 2)]


def test_a_table_of_the_catalog_takes_its_options_with_each_statement(
    spark: Any, here: Any, tmp_path: Path
) -> None:
    """Spark drops the options of CREATE TABLE for data sources in Python."""
    url = here["url"]
    save(frame(spark, ("a", "EU", 1, 1)), here)
    spark.sql(f"CREATE TABLE orders USING lockkit OPTIONS (path '{url}')")
    try:
        spark.sql(f"INSERT INTO orders WITH ('path'='{url}') VALUES ('b', 'EU', 1, 2)")
        found = spark.sql(f"SELECT id FROM orders WITH ('path'='{url}') ORDER BY id").collect()
        assert [row.id for row in found] == ["a", "b"]
        with pytest.raises(TableError, match="path is missing"), unwrapped():
            spark.sql("SELECT * FROM orders").collect()
    finally:
        spark.sql("DROP TABLE orders")


def test_a_save_from_a_plain_thread_finds_the_format(spark: Any, here: Any) -> None:
    met: list[BaseException] = []

    def one() -> None:
        try:
            register(spark)
            save(frame(spark, ("a", "EU", 1, 1)), here)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            met.append(error)

    thread = threading.Thread(target=one)
    thread.start()
    thread.join(120)
    assert not met and stored(here) == [("a", "EU", 1)]


# --- what goes wrong ---


@pytest.mark.parametrize(
    ("rows", "options", "why"),
    [
        ([(None, "EU", 1, 1)], {}, "1 rows have no record key"),
        ([("", "EU", 1, 1)], {}, "have no record key"),
        ([("a", "x" * 2000, 1, 1)], {}, "its path is too long"),
        ([("a", "EU", 1, 1)], {OPERATION: "merge"}, "must be upsert or insert or"),
        ([("a", "EU", 1, 1)], {WRITE + "recordkey.field": "v"}, "record_key is 'id' in the table"),
    ],
)
def test_an_error_of_a_save_is_shown_by_its_first_line_and_leaves_nothing(
    spark: Any, here: Any, rows: Any, options: Any, why: str
) -> None:
    from pyspark.errors import AnalysisException

    save(frame(spark, ("a", "EU", 1, 1)), here)
    before = {each.key for each in open_store(**here).list("")}
    writer = frame(spark, *rows).write.format("lockkit").mode("append").options(**SAID | options)
    with pytest.raises(AnalysisException, match=why) as shown:
        writer.save(here["url"])
    text = str(shown.value)
    assert why in text.splitlines()[0] and "Traceback" not in text
    assert "lockkit.table.errors.Refused" in text
    with pytest.raises(TableError, match=why) as taken_out, unwrapped():
        writer.save(here["url"])
    assert isinstance(taken_out.value, TableError) and "\n" not in str(taken_out.value)
    assert stored(here) == [("a", "EU", 1)] and spooled(here) == []
    left = {each.key for each in open_store(**here).list("")} - before
    assert not [key for key in left if key.endswith(".parquet")]


def test_an_unknown_option_is_named(here: Any) -> None:
    with pytest.raises(TableError, match="mergeschema is not an option of Hudi"):
        saver(here, mergeSchema="true")


def test_every_error_of_a_commit_comes_out_as_its_own_class() -> None:
    for kind in (CommitConflict, CommitUnknown, LockLost, TableError):
        said = f"{kind.__module__}.{kind.__name__}: 2026 also rewrote part=US/f-19; read again"
        page = f"[STREAM_FAILED] Query [id = 1]\n  File x\n{said}\n SQLSTATE: 38000\n\tat org.x"
        found = unwrap(page)
        assert type(found) is kind and str(found) == "2026 also rewrote part=US/f-19; read again"
    assert unwrap("lockkit.nowhere.Error: x") is unwrap("lockkit.cli.main.Path: x") is None
    assert unwrap("os.Error: x") is None


def test_of_two_saves_into_one_bucket_one_retries_up_to_the_requested_number(here: Any) -> None:
    from lockkit.spark.spool import LocalSpool, land

    for retries, key in ((0, "x"), (2, "y")):
        first, second = saver(here, **{RETRIES: str(retries)}), saver(here)
        kept = first.write(batches((key + "1", "EU", 1, 1), (key + "2", "EU", 1, 1)))
        other = second.write(batches((key + "3", "EU", 1, 1), (key + "4", "EU", 1, 1)))

        others = [other]

        def meet(
            kind: str, others: list[Any] = others, second: Any = second, **fields: Any
        ) -> None:
            if others and "wrote" in str(fields.get("text")):
                second.commit([others.pop()])  # as a whole, before the first one publishes

        rows = LocalSpool(first.spool, first.shape, kept.runs)
        if not retries:
            with pytest.raises(CommitConflict, match=r"not committed: .*(start|begin) again"):
                land(rows, first.requested, first.said, emit=meet)
        else:
            assert land(rows, first.requested, first.said, emit=meet) is not None
        first.abort([kept])
        assert spooled(here) == []
    assert [row[0] for row in stored(here)] == ["x3", "x4", "y1", "y2", "y3", "y4"]


def test_an_abort_after_a_commit_that_was_published_deletes_nothing_of_it(here: Any) -> None:
    """Spark calls it after every commit that raised, also after one that is decided."""
    mine = saver(here)
    kept = mine.write(batches(("a", "EU", 1, 1)))
    mine.commit([kept])
    mine.abort([kept, None])
    assert stored(here) == [("a", "EU", 1)] == by_hudi_rs(here)


def test_staged_files_of_a_killed_save_are_removed_by_another_after_a_day(here: Any) -> None:
    killed, living = saver(here), saver(here)
    day = 86_400_000
    for mine, age_ms in ((killed, day + 60_000), (living, day - 60_000)):
        prefix, _, rest = mine.spool.prefix.removeprefix(SPOOLS).partition("-")
        mine.spool = replace(mine.spool, prefix=f"{SPOOLS}{int(prefix) - age_ms}-{rest}")
    kept = living.write(batches(("a", "EU", 1, 1)))
    killed.write(batches(("b", "EU", 1, 1)))
    another = saver(here)
    another.commit([another.write(batches(("c", "EU", 1, 1)))])
    assert [key.startswith(living.spool.prefix) for key in spooled(here)] == [True]
    living.commit([kept])
    assert [row[0] for row in stored(here)] == ["a", "c"] and spooled(here) == []


# --- reading ---


@pytest.mark.parametrize("version", [6, 9])
def test_both_ways_of_reading_see_every_point_of_the_table(
    spark: Any, place: Any, version: int
) -> None:
    first = frame(spark, ("a", "EU", 1, 1), ("b", "US", 1, 1))
    write(first, version=version, **KEYS, **place)
    write(frame(spark, ("a", "EU", 2, 2)), **place)
    write(frame(spark, ("c", "EU", 1, 3)), **place)
    (instant, one), (_, two), (_, three) = commits(place, version)
    old = [("a", "EU", 1), ("b", "US", 1)]
    assert load(spark, place, as__of__instant=instant) == old
    of = instant
    day = f"{of[:4]}-{of[4:6]}-{of[6:8]} {of[8:10]}:{of[10:12]}:{of[12:14]}.{of[14:]}"
    assert load(spark, place, as__of__instant=day) == old
    increment = {"hoodie.datasource.query.type": "incremental"}
    begin, end = (f"hoodie.datasource.read.{each}.instanttime" for each in ("begin", "end"))
    assert load(spark, place, **increment, **{begin: one}) == [("a", "EU", 2), ("c", "EU", 3)]
    assert load(spark, place, **increment, **{begin: one, end: two}) == [("a", "EU", 2)]
    assert load(spark, place, **increment, **{begin: three}) == []
    seen = [tuple(row) for row in read(spark, begin=one, end=two, **place).collect()]
    assert seen == [("a", "EU", 2, 2)]
    for native in {None, False}:
        rows = read(spark, columns=["v", "id"], filters=[("region", "=", "EU"), ("v", ">", 2)],
                    native=native, **place)  # fmt: skip
        assert rows.columns == ["v", "id"] and [tuple(row) for row in rows.collect()] == [(3, "c")]
        past = read(spark, as_of=one, native=native, **place).select("id", "region", "v")
        assert sorted(tuple(row) for row in past.collect()) == old


def test_a_filter_leaves_other_partitions_unread(spark: Any, here: Any) -> None:
    write(frame(spark, ("a", "EU", 1, 1), ("b", "US", 1, 1)), **KEYS, **here)
    scan, _ = plan(TableAddress(here["url"]), Query(), filters=[("region", "=", "EU")])
    assert {each.partition for each in scan.slices} == {"region=EU"}
    # A file that is spared is not missed, and one that is read is.
    for file in Path(here["url"].removeprefix("file://"), "region=US").glob("*.parquet"):
        file.unlink()
    for native in (None, False):
        rows = read(spark, filters=[("region", "=", "EU")], native=native, **here)
        assert [row.id for row in rows.collect()] == ["a"]
    with pytest.raises(TableError, match="is gone"), unwrapped():
        read(spark, native=False, **here).collect()


def test_a_given_schema_leaves_other_columns_unread(spark: Any, here: Any) -> None:
    write(frame(spark, ("a", "EU", 1, 1), ("b", "US", 1, 2)), **KEYS, **here)
    rows = spark.read.format("lockkit").schema("v long, _hoodie_record_key string")
    found = sorted(tuple(row) for row in rows.load(here["url"]).collect())
    assert found == [(1, "a"), (2, "b")]
    whole = spark.read.format("lockkit").load(here["url"])
    assert [whole.where(each).count() for each in ("v = 1", "true", "v = 2")] == [1, 2, 1]
    with pytest.raises(TableError, match="no column 'w'"), unwrapped():
        spark.read.format("lockkit").schema("w long").load(here["url"]).collect()


def test_sparks_types_come_back_as_they_went(spark: Any, here: Any) -> None:
    rows = spark.range(50).selectExpr(
        "cast(id as string) id", "cast(id as short) s", "cast(id as float) f",
        "timestamp_micros(id * 1000001) at", "to_timestamp_ntz('2026-01-01 00:00:00.123456') n",
        "date_add('2026-01-01', cast(id as int)) day", "cast(id / 3 as decimal(9,2)) dec",
        "array(struct(cast(id as int) x)) list", "map('a', id) m",
        "if(id % 2 = 0, null, cast(string(id) as binary)) b",
    )  # fmt: skip
    rows.write.format("lockkit").mode("append").options(**{WRITE + "recordkey.field": "id"}).save(
        here["url"]
    )
    wanted = sorted(rows.withColumn("s", rows.s.cast("int")).collect())
    for found in (spark.read.format("lockkit").load(here["url"]), read(spark, **here),
                  read(spark, native=False, **here)):  # fmt: skip
        assert sorted(found.collect()) == wanted


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"as.of.instant": "yesterday"}, "not an instant"),
        ({"hoodie.datasource.query.type": "realtime"}, "must be snapshot or"),
        ({"hoodie.datasource.read.begin.instanttime": "0"}, "query.type=incremental"),
        ({"hoodie.datasource.query.type": "incremental", "as.of.instant": "2026"}, "an increment"),
    ],
)  # fmt: skip
def test_an_invalid_question_is_refused_by_name(options: dict[str, str], why: str) -> None:
    with pytest.raises(TableError, match=why):
        query_of(options)


def test_a_missing_table_is_reported_in_one_line(spark: Any, here: Any) -> None:
    with pytest.raises(TableError, match=r"hoodie\.properties"), unwrapped():
        spark.read.format("lockkit").load(here["url"]).collect()
    with pytest.raises(TableError, match="only a file:/// address"):
        read(spark, "s3://b/t", native=True, endpoint="http://127.0.0.1:9")
