"""`write(df, url, ...)`: every operation, by real PySpark, row by row against a dictionary."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from spark_world import COLUMNS, KEYS, MARKS, by_hudi_rs, frame, stored
from suite_plugin import rest_in_soak

from lockkit.clock import Clock
from lockkit.errors import StoreError, TableError
from lockkit.lab.course import program as member
from lockkit.lab.course.program import ANEW, ONCE
from lockkit.lock.handle import LOCK_KEY
from lockkit.runtime import run
from lockkit.spark import write
from lockkit.spark.frame import BATCH_BYTES, GROUP, NOT_BY_BYTES, by_rows
from lockkit.spark.rows import bucketed
from lockkit.stores import open_store
from lockkit.stores.local import LocalStore
from lockkit.table import Table, TableConfig, create_table, load_snapshot, read_table
from lockkit.table.errors import CommitConflict, EarlyConflict, HeartbeatExpired
from lockkit.table.format.base_file import record_keys
from lockkit.table.format.spark_hash import bucket_of
from lockkit.table.format.timeline import V9, load_timeline
from lockkit.table.occ.liveness import end, read_heartbeat
from lockkit.table.occ.transaction import begin
from lockkit.table.options import RETRIES, write_options
from lockkit.table.read import checkpoint
from lockkit.table.read.bucket_groups import bucket_file_id
from lockkit.table.read.buckets import free_file_id, is_bucketed
from lockkit.table.services.shared import keep

pytestmark = MARKS

BUCKETS_OF_4 = {"k0": 0, "k1": 1, "k2": 3, "k3": 3, "k4": 2, "k5": 0, "k6": 0, "k7": 3}


@pytest.fixture(params=["s3", "file"])
def place(request: Any, shared_emulator: Any, bucket: str, tmp_path: Path) -> dict[str, Any]:
    if request.param == "file":
        return {"url": f"file://{tmp_path}/orders"}
    return {"url": f"s3://{bucket}/orders", "endpoint": shared_emulator.s3}


@pytest.fixture
def here(tmp_path: Path) -> dict[str, Any]:
    return {"url": f"file://{tmp_path}/orders"}


# --- every operation, and others' readers ---


def test_every_operation_does_what_hudi_says_and_hudi_rs_sees_it(spark: Any, place: Any) -> None:
    first = [("a", "EU", 1, 1), ("b", "EU", 1, 1), ("c", "US", 1, 1), ("d", None, 1, 1)]
    write(frame(spark, *first), operation="insert", **KEYS, **place)
    second = [("a", "EU", 0, 2), ("b", "EU", 1, 2), ("e", "US", 9, 2), ("e", "US", 8, 3)]
    committed = write(frame(spark, *second), **place)  # the table knows its keys
    assert committed is not None
    now = [("a", "EU", 1), ("b", "EU", 2), ("c", "US", 1), ("d", None, 1), ("e", "US", 2)]
    assert stored(place) == sorted(now, key=repr) == by_hudi_rs(place)
    gone = [("e", "US"), ("d", None), ("nobody", "US")]
    gone = frame(spark, *gone, columns="id string, region string")
    write(gone, operation="delete", **place)
    assert stored(place) == [("a", "EU", 1), ("b", "EU", 2), ("c", "US", 1)] == by_hudi_rs(place)
    write(frame(spark, ("x", "EU", 1, 9)), operation="insert_overwrite", **place)
    assert stored(place) == [("c", "US", 1), ("x", "EU", 9)] == by_hudi_rs(place)
    write(frame(spark, ("x", "EU", 2, 10), ("y", "EU", 2, 10)), **place)
    assert stored(place) == [("c", "US", 1), ("x", "EU", 10), ("y", "EU", 10)]
    write(frame(spark, ("z", "ASIA", 1, 1)), operation="insert_overwrite_table", **place)
    assert stored(place) == [("z", "ASIA", 1)] == by_hudi_rs(place)
    write(frame(spark, ("y", "EU", 3, 11)), **place)
    assert stored(place) == [("y", "EU", 11), ("z", "ASIA", 1)] == by_hudi_rs(place)


@pytest.mark.parametrize("partitioned", rest_in_soak([True, False], True))
def test_a_table_equals_a_dictionary_model(spark: Any, here: Any, partitioned: bool) -> None:
    """Seeded upserts, deletes and inserts of new keys, in any order, over several commits."""
    dice, model, fresh = random.Random(7), {}, iter(range(1000, 2000))
    keys = KEYS if partitioned else {"record_key": "id", "precombine": "at"}
    for step in range(7):
        operation = ["insert", "upsert", "upsert", "delete"][dice.randrange(4) if step else 1]
        rows = []
        for _ in range(dice.randrange(1, 25)):
            number = next(fresh) if operation == "insert" else dice.randrange(30)
            region = f"r{number % 3}"
            rows.append((f"k{number}", region, dice.randrange(9), dice.randrange(1000)))
        write(frame(spark, *rows).repartition(2), operation=operation, **keys, **here)
        for row in sorted(rows, key=lambda row: row[2]):
            if operation == "delete":
                model.pop(row[0], None)
        for key in {row[0] for row in rows} if operation != "delete" else ():
            mine = [row for row in rows if row[0] == key]
            best = max(row[2] for row in mine)
            if key not in model or model[key][2] <= best:
                model[key] = (key, mine[0][1], best)
        found = stored(here, "id", "region", "at")
        assert found == sorted(model.values(), key=repr), f"step {step}: {operation}"


@pytest.mark.parametrize("mode", rest_in_soak(["hudi", "fenced"], "hudi"))
def test_rows_with_several_key_and_partition_fields_are_upserted_by_all_of_them(
    spark: Any, here: Any, mode: str
) -> None:
    """In mode `hudi` all stored keys are looked at; in mode `fenced` those of the key's bucket."""
    columns = "id string, line int, region string, day date, at long"
    two = {"record_key": "id, line", "partition_path": "region,day", "precombine": "at"}
    d1, d2 = date(2026, 1, 1), date(2026, 1, 2)

    def put(*rows: tuple[Any, ...], **how: Any) -> None:
        write(frame(spark, *rows, columns=columns), **two, **how, **here)

    put(("a", 1, "EU", d1, 1), ("a", 2, "EU", d1, 1), ("a", 1, "EU", d2, 1), ("", 1, "", d1, 1),
        (None, 1, None, d1, 1), mode=mode, buckets=2)  # fmt: skip
    put(("a", 1, "EU", d1, 5), ("a", 1, "EU", d1, 4), ("", 1, None, d1, 5), ("a", 1, "US", d1, 5))
    now = [("a", 1, "EU", d1, 5), ("a", 2, "EU", d1, 1), ("a", 1, "EU", d2, 1),
           ("", 1, None, d1, 5), (None, 1, None, d1, 1), ("a", 1, "US", d1, 5)]  # fmt: skip
    names = [each.split()[0] for each in columns.split(", ")]
    assert stored(here, *names) == sorted(now, key=repr)
    put(("a", 1, "EU", d1, 9), (None, 1, "", d1, 9), operation="delete")
    put(("any", 1, "US", d1, 9), operation="delete_partition")
    now = now[1:4]
    assert stored(here, *names) == sorted(now, key=repr) == by_hudi_rs(here, *names)
    keys = read_table(open_store(**here), meta=True)["_hoodie_record_key"].to_pylist()
    assert sorted(keys) == ["id:__empty__,line:1", "id:a,line:1", "id:a,line:2"]


def test_an_upsert_updates_what_an_insert_wrote_and_doubles_nothing(spark: Any, here: Any) -> None:
    rows = [(f"k{n}", f"r{n % 3}", 1, 0) for n in range(60)]
    for way in ("insert", "bulk_insert"):
        write(frame(spark, *rows), operation=way, **KEYS, **here)
    assert len(stored(here)) == 120, "inserts do not look for keys"
    write(frame(spark, *[(k, r, 2, 7) for k, r, *_ in rows[:30]]), **here)
    assert sorted(stored(here)) == sorted(2 * [(k, r, 7 if n < 30 else 0)
                                               for n, (k, r, *_) in enumerate(rows)])  # fmt: skip


def test_drop_duplicates_inserts_no_key_twice(spark: Any, here: Any) -> None:
    options = {"hoodie.datasource.write.insert.drop.duplicates": "true"}
    rows = [("a", "EU", 1, 1), ("a", "EU", 3, 3), ("a", "EU", 2, 2), ("a", "US", 1, 1)]
    write(frame(spark, *rows), operation="insert", options=options, **KEYS, **here)
    assert stored(here) == [("a", "EU", 3), ("a", "US", 1)]
    more = frame(spark, ("a", "EU", 9, 9), ("b", "EU", 1, 1))
    write(more, operation="bulk_insert", options=options, **here)
    assert stored(here) == [("a", "EU", 3), ("a", "US", 1), ("b", "EU", 1)]


def test_a_replaced_bucket_gets_a_file_id_that_was_never_used(spark: Any, here: Any) -> None:
    for _ in range(3):
        write(frame(spark, ("a", "EU", 1, 1)), buckets=1, **KEYS, **here)
        write(frame(spark, ("b", "EU", 1, 1)), operation="insert_overwrite", **here)
        assert stored(here) == [("b", "EU", 1)]
    write(frame(spark, ("a", "EU", 2, 2)), **here)
    assert stored(here) == [("a", "EU", 2), ("b", "EU", 1)] == by_hudi_rs(here)
    assert bucket_file_id("region=EU", 0, 3) in {f for _, f in _snapshot(here).groups}


def _snapshot(place: dict[str, Any]) -> Any:
    return run(load_snapshot(), open_store(**place), Clock())


def test_with_hudis_buckets_an_insert_is_an_upsert_and_a_partition_has_one_group_for_each(
    spark: Any, here: Any
) -> None:
    buckets = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3"}
    first = [(f"k{n}", "EU", 1, 1) for n in range(12)]
    write(frame(spark, *first), operation="insert", options=buckets, **KEYS, **here)
    write(frame(spark, ("k1", "EU", 2, 2), ("n", "EU", 2, 2)), operation="insert", **here)
    write(frame(spark, ("k2", "EU", 3, 3)), **here)
    write(frame(spark, ("k3", "EU", 3, 3)), operation="delete", **here)
    versions = {"k1": 2, "n": 2, "k2": 3}
    keys = {key for key, *_ in first} - {"k3"} | {"n"}
    assert stored(here) == [(key, "EU", versions.get(key, 1)) for key in sorted(keys)]
    assert by_hudi_rs(here) == stored(here)
    with Table(here["url"]) as table:
        groups = [file_id for _, file_id in table.refresh().groups]
        assert sorted(each[:8] for each in groups) == [f"{n:08d}" for n in range(3)]
    with pytest.raises(TableError, match="bucket index replaces rows with the same key"):
        drops = {"hoodie.datasource.write.insert.drop.duplicates": "true"}
        write(frame(spark, *first), operation="insert", options=drops, **here)


def test_a_bucket_is_sparks_own_hash_of_the_key(spark: Any, here: Any) -> None:
    """The same in every release: another writer must send a key to the same file group."""
    write(frame(spark, *[(f"k{n}", "EU", 1, n) for n in range(8)]), buckets=4, **KEYS, **here)
    found = {}
    for row in read_table(open_store(**here), meta=True).to_pylist():
        found[row["id"]] = int(row["_hoodie_file_name"][:8])
    assert found == BUCKETS_OF_4
    assert not any(is_bucketed(free_file_id(Clock())) for _ in range(1000))
    several = TableConfig(name="t", record_key="id,at,region", buckets=1000)
    some = frame(spark, ("a", "EU", 1, 1), (None, "", -2, 1), ("", None, 3, 1))
    numbers = [int(row[GROUP]) for row in bucketed(some, several).collect()]
    keys = record_keys(several, some.toArrow()).combine_chunks()
    assert numbers == bucket_of(keys, 1000).to_pylist()


# --- what Spark is told ---


def test_rows_of_every_type_arrive_as_they_are(spark: Any, here: Any) -> None:
    rows = spark.range(500).selectExpr(
        "cast(id as short) id", "cast(id % 100 as byte) s", "cast(id as float) f",
        "timestamp_micros(id * 1000001) at", "to_timestamp_ntz('2026-01-01 00:00:00.123456') n",
        "date_add('2026-01-01', cast(id as int)) day", "cast(id / 3 as decimal(9,2)) dec",
        "array(struct(cast(id as int) x)) list", "map('a', id) m", "cast(id as string) as t",
        "if(id % 2 = 0, null, cast(string(id) as binary)) b",
    )  # fmt: skip
    write(rows, operation="insert", record_key="id", **here)
    write(rows.where("id < 3").selectExpr("*", "1 as extra"), **here)
    theirs = rows.selectExpr("*", "if(id < 3, 1, null) as extra").toArrow()
    mine = read_table(open_store(**here)).select(theirs.column_names)
    assert mine.sort_by("id").to_pylist() == theirs.to_pylist()


@pytest.mark.parametrize(
    "key", ["if(id = 7, null, string(id))", "if(id = 7, '', string(id))", "if(id = 7, null, id)"]
)
def test_a_refused_write_of_rows_without_a_key_leaves_nothing(
    spark: Any, here: Any, tmp_path: Path, key: str
) -> None:
    rows = spark.range(10).selectExpr(f"{key} as id", "id as v")
    with pytest.raises(TableError, match="no record key"):
        write(rows, operation="insert", record_key="id", **here)
    assert not list(tmp_path.rglob("*.parquet"))


def test_batches_are_cut_by_rows_unless_a_column_may_be_large_or_the_user_says(spark: Any) -> None:
    small, large = spark.range(3), spark.range(3).selectExpr("cast(string(id) as binary) b")

    def said(frame: Any) -> Any:
        with by_rows(frame):
            return spark.conf.get(BATCH_BYTES, None)

    assert said(small) == NOT_BY_BYTES and said(large) is None
    spark.conf.set(BATCH_BYTES, "1m")
    try:
        assert said(small) == "1m"
    finally:
        spark.conf.unset(BATCH_BYTES)
    assert spark.conf.get(BATCH_BYTES, None) is None


def test_a_write_leaves_sparks_configuration_as_it_was(spark: Any, here: Any) -> None:
    before = dict(spark.conf.getAll)
    write(frame(spark, ("a", "EU", 1, 1)), operation="insert", record_key="id", **here)
    assert dict(spark.conf.getAll) == before


# --- conflicts ---


def test_of_two_first_writers_of_one_bucket_one_begins_again(spark: Any, here: Any) -> None:
    """And a third, of another partition, meets neither."""
    config = TableConfig(
        name="orders", record_key="id", precombine="at", partition_by="region", buckets=1
    )
    run(create_table(config), open_store(**here), Clock())
    door, results = threading.Barrier(2), {}
    seen: list[str] = []

    def meet(kind: str, **fields: Any) -> None:
        if kind == "note" and "wrote" in str(fields.get("text")) and len(seen) < 2:
            seen.append(fields["instant"])
            door.wait(60)

    def one(name: str, **options: Any) -> None:
        try:
            results[name] = write(frame(spark, (name, "EU", 1, 1)), emit=meet, **options, **here)
        except TableError as error:
            results[name] = error

    for retries in (0, 2):
        seen.clear()
        names = (f"x{retries}", f"y{retries}")
        how = {"retries": retries}
        threads = [threading.Thread(target=one, args=(each,), kwargs=how) for each in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        refused = [each for each in results.values() if isinstance(each, CommitConflict)]
        assert len(refused) == 1, results
        if not retries:
            assert "EU" in str(refused[0]) and "start again" in str(refused[0])
    assert len(stored(here)) == 3, "one of the first two, both of the second"


@pytest.mark.parametrize(
    ("there", "operations"),
    [
        ("EU", ("insert_overwrite", "upsert")),
        ("EU", ("insert_overwrite_table", "upsert")),
        ("US", ("insert_overwrite", "insert_overwrite")),
        ("US", ("insert_overwrite", "upsert")),
    ],
)  # fmt: skip
def test_an_overwrite_and_what_is_written_beside_it_never_double_a_key(
    spark: Any, here: Any, there: str, operations: tuple[str, str]
) -> None:
    """Both bring the same new key to one partition, and both begin before either commits."""
    write(frame(spark, ("old", there, 1, 1)), **KEYS, **here)
    door, results = threading.Barrier(2), dict[int, Any]()

    def one(number: int) -> None:
        def claim(_instant: str) -> None:
            door.wait(60)

        rows = frame(spark, ("k", "EU", 1, number))
        try:
            results[number] = write(rows, operation=operations[number], claim=claim, **here)
        except TableError as error:
            results[number] = error

    threads = [threading.Thread(target=one, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    refused = [each for each in results.values() if isinstance(each, CommitConflict)]
    assert len(refused) == 1 and "start again" in str(refused[0]), results
    assert [row[0] for row in stored(here)].count("k") == 1
    write(frame(spark, ("k", "EU", 2, 9)), **here)
    assert [row for row in stored(here) if row[0] == "k"] == [("k", "EU", 9)]


def test_the_later_of_two_writers_stops_before_it_writes_a_file(spark: Any, here: Any) -> None:
    early = {"hoodie.write.concurrency.early.conflict.detection.enable": "true"}
    write(frame(spark, ("a", "EU", 1, 1)), buckets=1, **KEYS, **here)
    wrote, go = threading.Event(), threading.Event()
    results: list[Any] = []

    def hold(kind: str, **fields: Any) -> None:
        if kind == "note" and "wrote" in str(fields.get("text")):
            wrote.set()
            go.wait(60)

    def first() -> None:
        results.append(write(frame(spark, ("b", "EU", 1, 1)), emit=hold, options=early, **here))

    thread = threading.Thread(target=first)
    thread.start()
    assert wrote.wait(60)
    files = {each.key for each in open_store(**here).list("region=EU/")}
    with pytest.raises(EarlyConflict, match="began earlier and is writing"):
        write(frame(spark, ("c", "EU", 1, 1)), options=early, **here)
    assert {each.key for each in open_store(**here).list("region=EU/")} == files
    go.set()
    thread.join(60)
    assert results and stored(here) == [("a", "EU", 1), ("b", "EU", 1)]
    marked = [each.key for each in open_store(**here).list(".hoodie/.temp/")]
    assert not any(results[0].instant in key for key in marked), "nobody asks any more"
    write(frame(spark, ("c", "EU", 1, 1)), options=early, **here)
    assert len(stored(here)) == 3


# --- its heartbeat, its markers, the table's age ---


def test_a_write_that_counted_as_dead_ends_at_once_and_not_with_its_job(
    spark: Any, here: Any, tmp_path: Path
) -> None:
    beat = {"hoodie.client.heartbeat.interval_in_ms": "1000"}
    write(frame(spark, ("a", "EU", 1, 1)), **KEYS, **here)
    store, clock = open_store(**here), Clock()
    at_work, over = tmp_path / "at-work", tmp_path / "over"
    instants: list[str] = []

    def slow(batches: Any) -> Any:
        at_work.touch()
        threading.Event().wait(30)
        yield from batches
        over.touch()

    def ends_it() -> None:
        while not at_work.exists():
            clock.sleep(0.02)
        while not run(end(run(read_heartbeat(instants[0]), store, clock)), store, clock):
            pass

    rival = threading.Thread(target=ends_it)
    rival.start()
    rows = frame(spark, ("b", "EU", 1, 1)).mapInArrow(slow, COLUMNS)
    with pytest.raises(HeartbeatExpired, match="begin again"):
        write(rows, options=beat, claim=instants.append, **here)
    rival.join()
    assert not over.exists()
    assert stored(here) == [("a", "EU", 1)]
    assert not list(spark.sparkContext.statusTracker().getActiveJobsIds())


def test_an_abandoned_instant_leaves_no_heartbeat(spark: Any, here: Any) -> None:
    write(frame(spark, ("a", "EU", 1, 1)), **KEYS, **here)
    assert write(frame(spark, ("b", "EU", 1, 1)).limit(0), **here) is None
    assert not open_store(**here).list(".hoodie/.heartbeat/")


def test_a_commit_is_valid_whatever_happens_to_its_markers(
    spark: Any, here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error would say that nothing was published."""
    early = {"hoodie.write.concurrency.early.conflict.detection.enable": "true"}
    write(frame(spark, ("a", "EU", 1, 1)), **KEYS, **here)
    listed = LocalStore.list

    def denied(self: Any, prefix: str, after: str = "") -> Any:
        if ".temp/" in prefix:
            raise StoreError("listing is denied")
        return listed(self, prefix, after)

    monkeypatch.setattr(LocalStore, "list", denied)
    assert write(frame(spark, ("b", "EU", 1, 1)), options=early, **here) is not None
    assert stored(here) == [("a", "EU", 1), ("b", "EU", 1)]


def test_a_write_to_an_old_table_reads_its_checkpoint_and_what_is_later(
    spark: Any, here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_EVERY", 3)
    got: list[str] = []
    get = LocalStore.get
    monkeypatch.setattr(
        LocalStore, "get", lambda self, key, **more: (got.append(key), get(self, key, **more))[1]
    )
    for number in range(8):
        got.clear()
        write(frame(spark, (f"k{number}", "EU", 1, 1)), buckets=1, **KEYS, **here)
    assert len(stored(here)) == 8
    commits = {key for key in got if key.endswith(".commit")}
    assert len(commits) <= 4, "those since the checkpoint, and its own"


# --- bad input ---


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d.selectExpr("cast(null as string) id", "region", "at", "v"), "no record key"),
        (lambda d: d.selectExpr("'' id", "region", "at", "v"), "no record key"),
        (lambda d: d.drop("id"), "column 'id' is missing: the table's record key"),
        (lambda d: d.drop("region"), "column 'region' is missing: the table's partition field"),
        (lambda d: d.drop("at"), "column 'at' is missing: the table's precombine field"),
        (lambda d: d.selectExpr("id", "region", "at", "'x' v"), "'v' is int64 in the table and s"),
        (lambda d: d.selectExpr("id", "region", "at", "v", "1 a", "1 A"), "is the same as"),
        (lambda d: d.selectExpr("1.5D id", "region", "at", "v"), "cast it to string"),
        (lambda d: d.selectExpr("*", "interval 1 day as i"), "'i' has type duration"),
    ],
)  # fmt: skip
def test_invalid_rows_are_refused_and_the_table_is_unchanged(
    spark: Any, here: Any, change: Callable[[Any], Any], why: str
) -> None:
    good = frame(spark, ("a", "EU", 1, 1))
    write(good, **KEYS, **here)
    with pytest.raises(TableError, match=why) as refused:
        write(change(good), **here)
    assert "Traceback" not in str(refused.value) and "java" not in str(refused.value)
    assert stored(here) == [("a", "EU", 1)]


def test_a_write_commits_after_the_lock_object_was_deleted(spark: Any, here: Any) -> None:
    keys = KEYS | {"mode": "fenced"}
    committed = [write(frame(spark, (f"k{n}", "EU", 1, n)), **keys, **here) for n in range(3)]
    store = open_store(here["url"])
    store.delete(LOCK_KEY)
    later = write(frame(spark, ("z", "EU", 1, 9)), **here)
    assert later is not None and committed[-1] is not None
    assert later.epoch > committed[-1].epoch
    assert [key for key, *_ in stored(here)] == ["k0", "k1", "k2", "z"]


def test_no_rows_make_no_commit_unless_requested(spark: Any, here: Any) -> None:
    nothing = frame(spark, ("a", "EU", 1, 1)).limit(0)
    for operation in ("upsert", "insert", "delete", "bulk_insert", "insert_overwrite"):
        assert write(nothing, operation=operation, **KEYS, **here) is None
    names = [each.key for each in open_store(**here).list(".hoodie/2")]
    assert names == []
    empty = {"hoodie.allow.empty.commit": "true"}
    assert write(nothing, options=empty, extra={"batch": "7"}, **here) is not None
    assert stored(here) == []
    write(frame(spark, ("a", "EU", 1, 1)), **here)
    assert stored(here) == [("a", "EU", 1)] == by_hudi_rs(here)


def test_a_write_that_contradicts_the_tables_configuration_is_refused(
    spark: Any, here: Any
) -> None:
    rows = frame(spark, ("a", "EU", 1, 1))
    with pytest.raises(TableError, match="a new table needs a record_key"):
        write(rows, **here)
    write(rows, table_name="mine", **KEYS, **here)
    for wrong in ({"record_key": "at"}, {"partition_path": "id"}, {"buckets": 9},
                  {"options": {"hoodie.datasource.write.PRECOMBINE.field": "v"}}):  # fmt: skip
        with pytest.raises(TableError, match="in the table and"):
            write(rows, **wrong, **here)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"hoodie.datasource.write.operation": "merge"}, "must be upsert or insert or"),
        ({RETRIES: "-1"}, "must be a whole number"),
        ({"hoodie.datasource.write.insert.drop.duplicates": "yes"}, "must be true or false"),
        ({"hoodie.combine.before.upsert": "false"}, "it would write one key twice"),
        ({"path": "x"}, "path is not an option of Hudi or lockkit"),
    ],
)
def test_an_invalid_option_is_named(options: dict[str, Any], why: str) -> None:
    with pytest.raises(TableError, match=why):
        write_options(options)


def test_hudis_option_names_mean_what_they_mean_to_hudi() -> None:
    said = write_options({
        "hoodie.datasource.write.operation": "insert", "hoodie.table.name": "t", RETRIES: 3,
        "hoodie.datasource.write.recordkey.field": "id", "hoodie.metadata.enable": "false",
        "HOODIE.datasource.write.partitionpath.field": "", "hoodie.upsert.shuffle.parallelism": "8",
    }, operation="upsert")  # fmt: skip
    assert (said.operation, said.record_key, said.retries, said.tasks) == ("upsert", "id", 3, 8)
    assert said.partition_path is None


def test_many_partitions_and_odd_values_find_their_folders(spark: Any, here: Any) -> None:
    odd = ["a/b", "..", "é ü", "x=y", "%2F", "a:b", "", None, " ", "日本"]
    rows = [(f"k{n}", odd[n % len(odd)], 1, n) for n in range(40)]
    write(frame(spark, *rows[:20]), operation="insert", **KEYS, **here)
    write(frame(spark, *[(k, r, 2, -1) for k, r, *_ in rows]), **here)
    assert stored(here) == sorted(((k, r, -1) for k, r, *_ in rows), key=repr)
    assert by_hudi_rs(here) == stored(here)
    folders = {partition for partition, _ in _snapshot(here).groups}
    assert {"region=a%2Fb", "region=..", "region=__HIVE_DEFAULT_PARTITION__"} <= folders
    # Three ways to say no value: one partition, and in it one row for each key.
    default = "__HIVE_DEFAULT_PARTITION__"
    none = frame(spark, ("k7", None, 3, 1), ("k7", default, 5, 3), ("k7", "", 4, 2))
    write(none, **here)
    assert [row for row in stored(here) if row[0] == "k7"] == [("k7", default, 3)]
    write(none.selectExpr("'new' id", "region", "at", "v"), operation="insert", **here,
          options={"hoodie.combine.before.insert": "true"})  # fmt: skip
    assert [row[2] for row in stored(here) if row[0] == "new"] == [3]
    with pytest.raises(TableError, match="its path is too long") as refused:
        write(frame(spark, ("k", "x" * 2000, 1, 1)), **here)
    assert len(str(refused.value)) < 400


@pytest.mark.soak
def test_a_write_to_ten_thousand_partitions_is_committed(spark: Any, here: Any) -> None:
    rows = spark.range(10_000).selectExpr("concat('k', id) id", "id region", "1L at", "id v")
    write(rows, operation="insert", **KEYS, **here)
    assert len(_snapshot(here).groups) == 10_000


SINGLE = {
    "hoodie.write.concurrency.mode": "single_writer",
    "hoodie.clean.commits.retained": "2", "hoodie.clustering.inline.max.commits": "3",
}  # fmt: skip


@pytest.mark.parametrize(("options", "cleans"), [
    ({}, True), ({"hoodie.clean.automatic": "false"}, False),
])  # fmt: skip
def test_a_write_cleans_by_default_files_outside_the_last_ten_commits(
    spark: Any, here: Any, options: dict[str, str], cleans: bool
) -> None:
    for each in range(13):
        write(frame(spark, ("a", "EU", 1, each)), buckets=1, options=options, **KEYS, **here)
    files = [each.key for each in open_store(**here).list("region=EU/") if "parquet" in each.key]
    assert (len(files) < 13) is cleans and len(files) >= 10
    assert stored(here) == [("a", "EU", 12)]


INLINE = SINGLE | {"hoodie.clean.automatic": "true", "hoodie.clustering.inline": "true"}
BESIDE = SINGLE | {
    "hoodie.clean.async.enabled": "true", "hoodie.clustering.async.enabled": "true"
}  # fmt: skip


@pytest.mark.parametrize("options", [INLINE, BESIDE], ids=["inline", "beside"])
def test_a_single_writer_and_its_services_send_no_lock_request(
    spark: Any, shared_emulator: Any, bucket: str, options: dict[str, str]
) -> None:
    place = {"url": f"s3://{bucket}/orders", "endpoint": shared_emulator.s3}
    write(frame(spark, ("dead", "EU", 1, 1)), operation="insert", **KEYS, **place)
    store = open_store(**place)
    dead = run(begin(), store, Clock())
    before = len(shared_emulator.requests())
    with keep(place["url"], options, endpoint=place["endpoint"]) as upkeep:
        how = {"upkeep": upkeep} if options is BESIDE else {"options": options}
        for each in range(5):
            row = (f"k{each}", "EU", 1, each)
            write(frame(spark, row), operation="insert", **how, **place)
    now = run(load_timeline(V9), store, Clock())
    assert dead.instant not in now.pending
    assert {"replacecommit", "clean", "rollback"} <= set(now.completed.values())
    assert stored(place, "id") == sorted([("dead",), *((f"k{each}",) for each in range(5))])
    asked_for = [str(each["key"]) for each in shared_emulator.requests(before)]
    assert any(key.endswith("fence.json") for key in asked_for)
    assert not any("table_lock" in key for key in asked_for)
    store.close()


@pytest.mark.parametrize(("reads", "at", "amount"), [(ONCE, "wrote", 10), (ANEW, "read", 20)])
def test_a_retry_reads_rows_again_only_where_the_program_begins_again_from_the_read(
    spark: Any, shared_emulator: Any, bucket: str, reads: str, at: str, amount: int
) -> None:
    """Two add 10 to one order: W2 as soon as W1 has read it, or has written its files."""
    url, endpoint, said = f"s3://{bucket}/orders", shared_emulator.s3, list[str]()
    run(create_table(member.config()), open_store(url, endpoint=endpoint), Clock())
    other = member.PlainProgram(url, endpoint, "W2", lambda *_, **__: None)
    other.put([("a", "eu", 1, 0)])

    def now(what: str) -> None:
        if what.startswith(at) and not done:
            done.append(other.add("a", 10, ANEW, 0))

    def emit(_kind: str, **event_fields: Any) -> None:
        said.append(str(event_fields.get("text")))
        now(said[-1])

    class First(member.SparkProgram):
        def _more(self, *args: Any) -> Any:
            rows = super()._more(*args)
            now("read")
            return rows

    done: list[str] = []
    first = First(spark, url, endpoint, "W1", emit)
    assert first.add("a", 10, reads, retries=2) > done[0]
    assert any(each.startswith("attempt 1 of 3") for each in said), "they met"
    assert stored({"url": url, "endpoint": endpoint}, "id", "amount") == [("a", amount)]


def test_credentials_are_in_no_plan_and_no_repr(spark: Any, here: Any) -> None:
    from lockkit.spark.frame import WriteJob
    from lockkit.spark.place import TableAddress
    from lockkit.table.format.base_file import Target

    config = TableConfig(name="t", record_key="id")
    job = WriteJob(
        TableAddress("s3://b/t", options={"aws_secret_access_key": "hush"}), Target("1", config)
    )
    assert "hush" not in repr(job)
    plan = frame(spark, ("a", "EU", 1, 1)).mapInArrow(lambda rows: filter(job, rows), COLUMNS)
    assert "hush" not in plan._jdf.queryExecution().toString()
