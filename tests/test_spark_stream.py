"""Structured Streaming into a table and out of it: each batch once, and increments in order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lock_world import until
from spark_world import (
    COLUMNS,
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
from table_world import Holder

from lockkit import open_lock
from lockkit.clock import Clock
from lockkit.errors import LockBusy, LockLost, TableError
from lockkit.lab.processes.process import tree
from lockkit.lock.handle import Lock
from lockkit.lock.storage import LOCK_KEY
from lockkit.runtime import run
from lockkit.spark import foreach_batch, streamer, unwrapped, write
from lockkit.spark.java import SCRATCH_NAMES
from lockkit.spark.spool import LocalSpool, land
from lockkit.spark.stream_job import parser, work_of
from lockkit.spark.streamer import Streamer
from lockkit.spark.write import STREAM, STREAMS, MicroBatch
from lockkit.stores import open_store
from lockkit.table import avro_schema, begin, commit, load_snapshot, prepare, read_table
from lockkit.table.format.property_keys import format_properties
from lockkit.table.format.timeline import V9, load_timeline
from lockkit.table.occ.commit import EpochGuard
from lockkit.table.occ.covered import read_commit
from lockkit.table.occ.rollback import withdraw
from lockkit.table.options import WRITE

pytestmark = MARKS

PREFIX = "org.apache.hudi.client.transaction.lock."
INSERT = {WRITE + "operation": "insert"}


@pytest.fixture
def here(tmp_path: Path) -> dict[str, Any]:
    return {"url": f"file://{tmp_path}/orders"}


def arrive(folder: Path, name: str, *rows: tuple[Any, ...]) -> None:
    folder.mkdir(exist_ok=True)
    names = ("id", "region", "at", "v")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    (folder / f".{name}").write_text("\n".join(lines))
    (folder / f".{name}").rename(folder / f"{name}.json")


def ingest(spark: Any, way: str, source: Path, place: dict[str, Any], **options: str) -> str:
    """All that has arrived, one file a batch, until there is no more; the query's id."""
    rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(source))
    writer = rows.writeStream.option("checkpointLocation", str(source.parent / "checkpoint"))
    writer = writer.trigger(availableNow=True)
    elsewhere = {name: value for name, value in place.items() if name != "url"}
    if way == "sink":
        options = {**SAID, **elsewhere, **INSERT, **options}
        query = writer.format("lockkit").options(**options).start(place["url"])
    else:
        each = foreach_batch(operation="insert", buckets=2, options=options, **KEYS, **place)
        query = writer.foreachBatch(each).start()
    try:
        query.awaitTermination(120)
        return str(query.id)
    finally:
        query.stop()


WAYS = pytest.mark.parametrize("way", ["sink", "foreach_batch"])


@WAYS
def test_a_batch_that_is_sent_again_after_its_commit_is_not_committed_again(
    spark: Any, way: str, shared_emulator: Any, bucket: str, tmp_path: Path
) -> None:
    """The query died between the commit and its own checkpoint: Spark repeats the batch."""
    place = {"url": f"s3://{bucket}/orders", "endpoint": shared_emulator.s3}
    source, rows = tmp_path / "arriving", [(f"k{n}", f"r{n % 2}", 1, n) for n in range(6)]
    arrive(source, "a", *rows[:2])
    arrive(source, "b", *rows[2:4])
    query = ingest(spark, way, source, place)
    assert len(stored(place)) == 4
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink(missing_ok=True)
    arrive(source, "c", *rows[4:])
    assert ingest(spark, way, source, place) == query
    assert stored(place) == sorted((k, r, v) for k, r, _, v in rows) == by_hudi_rs(place)
    store, clock = open_store(**place), Clock()
    now = run(load_timeline(V9), store, clock)
    said = [run(read_commit(V9, each, now), store, clock).extra[STREAM] for each in now.commits]
    assert said == [f"{query} {batch}" for batch in range(3)]
    assert spooled(place) == []


@WAYS
def test_an_error_of_a_query_is_taken_out_of_what_spark_says(
    spark: Any, way: str, here: Any, tmp_path: Path
) -> None:
    arrive(tmp_path / "arriving", "a", (None, "EU", 1, 1))
    with pytest.raises(TableError, match="1 rows have no record key") as met, unwrapped():
        ingest(spark, way, tmp_path / "arriving", here)
    assert "\n" not in str(met.value)
    arrive(tmp_path / "arriving", "a", ("a", "EU", 1, 1))
    ingest(spark, way, tmp_path / "arriving", here)
    assert stored(here) == [("a", "EU", 1)]


# --- a batch that is sent again while its first run is not over ---


def kept(
    place: dict[str, Any], *rows: tuple[Any, ...], mode: str = "fenced"
) -> tuple[LocalSpool, Any, dict[str, str]]:
    said = {**INSERT, "lockkit.commit.mode": mode}
    mine = saver(place, **said)
    found = mine.write(batches(*rows))
    assert found.error is None
    return LocalSpool(mine.spool, mine.shape, found.runs), mine.requested, said


class Died(BaseException):
    """The process is no more."""


def crash_and_repeat(here: Any, at: str, mode: str = "fenced") -> None:
    """A run dies at this event; then its batch is repeated before and after the next batch."""
    rows = kept(here, ("a", "EU", 1, 1), mode=mode)

    def die(kind: str, **fields: Any) -> None:
        if at in (kind, str(fields.get("text"))[:5]):
            raise Died

    with pytest.raises(Died):
        land(*rows, ("q", 0), emit=die)
    for _ in range(2):
        land(*rows, ("q", 0))
    land(*kept(here, ("b", "EU", 1, 1), mode=mode), ("q", 1))
    land(*rows, ("q", 0))


@pytest.mark.parametrize("at", ["began", "wrote", "fenced", "published"])
def test_a_batch_of_a_crashed_run_is_rolled_back_and_committed_once(here: Any, at: str) -> None:
    crash_and_repeat(here, at)
    assert stored(here) == [("a", "EU", 1), ("b", "EU", 1)] == by_hudi_rs(here)


def test_a_batch_of_a_slow_run_and_its_successor_is_committed_once(here: Any) -> None:
    rows = kept(here, ("a", "EU", 1, 1))
    wrote, go, results = threading.Event(), threading.Event(), []

    def wait(kind: str, **fields: Any) -> None:
        if "wrote" in str(fields.get("text")):
            wrote.set()
            go.wait(60)

    def slow() -> None:
        try:
            results.append(land(*rows, ("q", 0), emit=wait))
        except (TableError, LockLost) as error:
            results.append(error)

    thread = threading.Thread(target=slow)
    thread.start()
    assert wrote.wait(60)
    assert land(*rows, ("q", 0)) is not None
    go.set()
    thread.join(60)
    assert "rolled it back as dead" in str(results[0])
    assert stored(here) == [("a", "EU", 1)]


def test_two_runs_of_one_query_meet_at_its_claim(here: Any) -> None:
    store, clock = open_store(**here), Clock()
    first, second = (MicroBatch(store, here["url"], "q", 0, clock) for _ in range(2))
    assert not first.is_over(None) and not second.is_over(None)  # type: ignore[arg-type]
    first.claim("20260101000000000")
    first.claim("20260101000000001")
    with pytest.raises(TableError, match="another run of this query"):
        second.claim("20260101000000002")


def batch_of(place: dict[str, Any], number: int, checkpoint: str = "") -> MicroBatch:
    return MicroBatch(open_store(**place), place["url"], "q", number, checkpoint=checkpoint)


@pytest.mark.parametrize("came_to", ["committed", "about to commit", "begun"])
def test_an_instant_that_another_commit_has_does_not_end_a_batch(here: Any, came_to: str) -> None:
    """The batch gave its instant up, and somebody else has it: the batch is still to be written."""
    land(*kept(here, ("a", "EU", 1, 1)))
    store, clock = open_store(**here), Clock()
    other = run(begin(), store, clock)
    schema = run(load_snapshot(), store, clock).schema or ""
    way = prepare(other, (), schema=schema)
    prepared = None if came_to == "begun" else run(way, store, clock)
    if came_to == "committed" and prepared is not None:
        run(commit(prepared, Holder(9)), store, clock)
    batch_of(here, 7).claim(other.instant, "the batch's own, which was given up")
    with Lock(here["url"]) as lock:
        assert not batch_of(here, 7).is_over(lock)
    if came_to != "committed":
        prepared = prepared or run(way, store, clock)
        run(commit(prepared, Holder(9)), store, clock)  # and it was not taken back
    land(*kept(here, ("b", "EU", 1, 1)), ("q", 7))
    land(*kept(here, ("b", "EU", 1, 1)), ("q", 7))
    assert stored(here) == [("a", "EU", 1), ("b", "EU", 1)]


def test_a_batch_of_a_new_checkpoint_is_written_and_warned_of(here: Any) -> None:
    no_lock: Any = None
    first = batch_of(here, 7, "one")
    assert not first.is_over(no_lock)
    first.claim("20260101000000000")
    assert batch_of(here, 3, "one").is_over(no_lock), "an old run of the same checkpoint"
    anew = batch_of(here, 3, "two")
    with pytest.warns(RuntimeWarning, match=r"q has a new checkpoint.*up to 7.*Batch 3 is written"):
        assert not anew.is_over(no_lock)
    anew.claim("20260101000000001")
    assert not batch_of(here, 4, "two").is_over(no_lock), "warned of once"


def test_a_batch_that_is_passed_over_is_warned_of_where_the_checkpoint_is_not_known(
    here: Any,
) -> None:
    no_lock: Any = None
    first = batch_of(here, 7)
    assert not first.is_over(no_lock)
    first.claim("20260101000000000")
    fields: list[str] = []
    late = batch_of(here, 3)
    late.emit = lambda kind, text="", **_: fields.append(text)
    with pytest.warns(RuntimeWarning, match=r"batch 3 of query q is skipped.*another name"):
        assert late.is_over(no_lock)
    assert "is skipped" in fields[0]


def test_a_named_query_with_a_new_checkpoint_loses_no_batch(
    spark: Any, here: Any, tmp_path: Path
) -> None:
    source = tmp_path / "arriving"

    def ingested(checkpoint: str) -> None:
        each = foreach_batch(operation="upsert", buckets=1, query="orders-1", **KEYS, **here)
        rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(source))
        writer = rows.writeStream.option("checkpointLocation", str(tmp_path / checkpoint))
        query = writer.trigger(availableNow=True).foreachBatch(each).start()
        try:
            query.awaitTermination(120)
        finally:
            query.stop()

    for name in "ab":
        arrive(source, name, (name, "EU", 1, 1))
    ingested("first")
    for name in "ab":
        (source / f"{name}.json").unlink()
    arrive(source, "c", ("c", "EU", 1, 1))
    with pytest.warns(RuntimeWarning, match="orders-1 has a new checkpoint"):
        ingested("second")
    assert stored(here) == [("a", "EU", 1), ("b", "EU", 1), ("c", "EU", 1)]


@pytest.mark.parametrize("body", [b"", b"{}", b"[" * 99999, b'{"batch": 1, "instant": "../x"}'])
def test_an_invalid_claim_of_a_stream_batch_is_refused(here: Any, body: bytes) -> None:
    from lockkit.protocol.outcome import IfAbsent

    store = open_store(**here)
    store.put(STREAMS + "q", body, IfAbsent())
    with pytest.raises(TableError, match="is not what lockkit writes"):
        land(*kept(here, ("a", "EU", 1, 1)), ("q", 0))
    with pytest.raises(TableError, match="not an id of a query"):
        MicroBatch(store, here["url"], "../q", 0)


def test_a_conflict_is_retried_in_the_batch(spark: Any, here: Any, tmp_path: Path) -> None:
    write(frame(spark, ("a", "EU", 1, 1)), buckets=1, **KEYS, **here)
    others = [frame(spark, ("b", "EU", 1, 1))]

    def meet(kind: str, **fields: Any) -> None:
        if others and "wrote" in str(fields.get("text")):
            write(others.pop(), **here)

    one = foreach_batch(query="mine", emit=meet, **here)
    one(frame(spark, ("c", "EU", 1, 1)), 0)
    one(frame(spark, ("c", "EU", 9, 9)), 0)
    assert stored(here) == [("a", "EU", 1), ("b", "EU", 1), ("c", "EU", 1)]


def test_batches_of_a_single_writer_acquire_no_lock(spark: Any, here: Any) -> None:
    """They were refused: the function passed a lock, which no commit of theirs acquires."""
    options = {"hoodie.write.concurrency.mode": "single_writer"}
    one = foreach_batch(query="mine", options=options, **KEYS, **here)
    for number, key in enumerate(("a", "b", "b")):
        one(frame(spark, (key, "EU", number, number)), min(number, 1))
    assert stored(here) == [("a", "EU", 0), ("b", "EU", 1)]
    assert LOCK_KEY not in [each.key for each in open_store(**here).list(".hoodie/.locks/")]


def test_batches_acquire_the_lock_that_the_options_describe(
    spark: Any, here: Any, tmp_path: Path
) -> None:
    lock = "hoodie.write.lock."
    options = {
        lock + "provider": PREFIX + "FileSystemBasedLockProvider",
        lock + "filesystem.path": str(tmp_path / "locks"), lock + "wait_time_ms": "50",
        lock + "client.num_retries": "0",
    }  # fmt: skip
    one = foreach_batch(query="mine", options=options, **KEYS, **here)
    with closing(open_lock(options)) as other:
        with other, pytest.raises(LockBusy, match="filesystem"):
            one(frame(spark, ("a", "EU", 1, 1)), 0)
        one(frame(spark, ("a", "EU", 1, 1)), 0)
    assert stored(here) == [("a", "EU", 1)]
    assert LOCK_KEY not in [each.key for each in open_store(**here).list(".hoodie/.locks/")]


def test_a_batch_of_no_known_query_is_refused(spark: Any, here: Any) -> None:
    with pytest.raises(TableError, match="give a name that stays"):
        foreach_batch(**KEYS, **here)(frame(spark, ("c", "EU", 1, 1)), 0)


# --- a table as a source ---


def pulled(spark: Any, place: dict[str, Any], checkpoint: Path, **options: str) -> list[Any]:
    """What a query sees that goes on from its checkpoint."""
    found: list[Any] = []
    elsewhere = {name: value for name, value in place.items() if name != "url"}
    rows = spark.readStream.format("lockkit").options(**elsewhere, **options).load(place["url"])

    def keep(batch: Any, _number: int) -> None:
        found.extend(tuple(row) for row in batch.select("id", "v").collect())

    query = rows.writeStream.foreachBatch(keep).trigger(availableNow=True)
    query = query.option("checkpointLocation", str(checkpoint)).start()
    try:
        query.awaitTermination(120)
    finally:
        query.stop()
    return sorted(found)


def test_a_query_pulls_each_commit_once_and_on_version_6_never_past_a_pending_one(
    spark: Any, shared_emulator: Any, bucket: str, tmp_path: Path
) -> None:
    place = {"url": f"s3://{bucket}/orders", "endpoint": shared_emulator.s3}
    store, clock, checkpoint = open_store(**place), Clock(), tmp_path / "checkpoint"
    write(frame(spark, ("a", "EU", 1, 1)), buckets=1, version=6, **KEYS, **place)
    write(frame(spark, ("a", "EU", 2, 2), ("b", "EU", 1, 1)), **place)
    assert pulled(spark, place, checkpoint) == [("a", 2), ("b", 1)]
    late = run(begin(), store, clock)
    write(frame(spark, ("c", "US", 1, 3)), **place)
    assert pulled(spark, place, checkpoint) == [], "what is pending may yet complete before it"
    run(withdraw(late.taken, EpochGuard(0), paths=()), store, clock)
    write(frame(spark, ("a", "EU", 3, 4)), **place)
    assert pulled(spark, place, checkpoint) == [("a", 4), ("c", 3)]
    assert pulled(spark, place, checkpoint) == []
    start = {"hoodie.datasource.streaming.startOffset": "latest"}
    assert pulled(spark, place, tmp_path / "new", **start) == []
    write(frame(spark, ("d", "EU", 1, 5)), **place)
    assert pulled(spark, place, tmp_path / "new", **start) == [("d", 5)]


@pytest.mark.soak
def test_a_query_of_a_new_table_is_not_held_back_by_a_pending_instant(
    spark: Any, here: Any, tmp_path: Path
) -> None:
    """Version 9 orders increments by completion time: a late commit comes later, and once."""
    checkpoint = tmp_path / "checkpoint"
    write(frame(spark, ("a", "EU", 1, 1)), buckets=1, **KEYS, **here)
    assert pulled(spark, here, checkpoint) == [("a", 1)]
    run(begin(), open_store(**here), Clock())
    write(frame(spark, ("b", "US", 1, 2)), **here)
    assert pulled(spark, here, checkpoint) == [("b", 2)]
    assert pulled(spark, here, checkpoint) == []


def test_an_incremental_read_continues_after_a_new_column(
    spark: Any, here: Any, tmp_path: Path
) -> None:
    write(frame(spark, ("a", "EU", 1, 1)), **KEYS, **here)
    assert pulled(spark, here, tmp_path / "checkpoint") == [("a", 1)]
    write(frame(spark, ("b", "EU", 1, 2)).selectExpr("*", "1 as extra"), **here)
    assert pulled(spark, here, tmp_path / "checkpoint") == [("b", 2)]


# --- the streamer ---


def props(folder: Path, **more: str) -> Path:
    source = {"hoodie.streamer.source.dfs.root": str(folder / "arriving")}
    file = folder / "streamer.properties"
    file.write_bytes(format_properties({**SAID, **source, **more}))
    return file


def work(folder: Path, *arguments: str, **more: str) -> Any:
    fields = [
        "--props",
        str(props(folder, **more)),
        "--target-base-path",
        f"file://{folder}/orders",
    ]
    return work_of(parser().parse_args([*fields, *arguments]))


def test_the_streamers_temporary_files_are_removed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM is left out: what counts is where it is sent, by the names that the JVM obeys."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine=1")
    before = dict(os.environ)

    @contextmanager
    def started(_master: str, _conf: Any) -> Iterator[None]:
        where = Path(os.environ["TMPDIR"])
        assert where.parent == tmp_path
        assert (
            f'-Dmine=1 -XX:-UsePerfData -Djava.io.tmpdir="{where}"'
            in (os.environ["SPARK_SUBMIT_OPTS"])
        )
        (where / "liblz4-java.so").write_bytes(b"x")
        yield

    monkeypatch.setattr(streamer, "_started", started)
    with streamer.session("local[1]", {}):
        pass
    assert list(tmp_path.iterdir()) == []
    assert all(os.environ.get(name) == before.get(name) for name in SCRATCH_NAMES)


@pytest.mark.parametrize("kind", ["csv", "parquet", "json"])
def test_the_streamer_reads_each_arrived_row_exactly_once(
    spark: Any, here: Any, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "arriving").mkdir()
    job = work(tmp_path, "--op", "insert", "--source-class", f"x.y.{kind.title()}DFSSource")
    assert Streamer(spark, job).whole() == 0, "no file tells a schema, and there is nothing to do"
    for number in range(2):
        rows = frame(spark, (f"k{number}", "EU", 1, number)).coalesce(1)
        rows.write.option("header", "true").format(kind).save(f"{tmp_path}/out{number}")
        (file,) = (tmp_path / f"out{number}").glob("part-*")
        file.rename(tmp_path / "arriving" / file.name)
        for _ in range(2):
            assert Streamer(spark, job).whole() == 0
        assert stored(here) == [(f"k{n}", "EU", n) for n in range(number + 1)]


def test_a_line_that_is_no_record_ends_the_streamer(spark: Any, here: Any, tmp_path: Path) -> None:
    arrive(tmp_path / "arriving", "a", ("a", "EU", 1, 1))
    assert Streamer(spark, work(tmp_path)).whole() == 0
    (tmp_path / "arriving" / "b.json").write_text('{"id": "b", "region"')
    schema = tmp_path / "schema.avsc"
    schema.write_text(avro_schema(read_table(open_store(**here)).schema, "orders"))
    job = work(tmp_path, **{"hoodie.streamer.schemaprovider.source.schema.file": str(schema)})
    with pytest.raises(TableError, match=r"a record of 20 characters cannot be read"):
        Streamer(spark, job).whole()
    assert stored(here) == [("a", "EU", 1)]


def test_a_topic_without_sparks_kafka_jar_says_what_to_add(spark: Any, tmp_path: Path) -> None:
    schema = tmp_path / "schema.avsc"
    schema.write_text('{"type": "record", "name": "r", "fields": [{"name": "i", "type": "int"}]}')
    job = work(
        tmp_path, "--source-class", "JsonKafkaSource",
        **{"hoodie.deltastreamer.source.kafka.topic": "t", "bootstrap.servers": "127.0.0.1:9",
           "hoodie.deltastreamer.schemaprovider.source.schema.file": str(schema)},
    )  # fmt: skip
    with pytest.raises(TableError, match=r"--conf spark\.jars\.packages=.*kafka"):
        Streamer(spark, job).whole()


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_a_new_column_of_the_source_becomes_one_of_the_table(
    spark: Any, here: Any, tmp_path: Path, kind: str
) -> None:
    """It comes while the query runs, whose schema was taken before."""
    (tmp_path / "arriving").mkdir()

    def put(name: str, rows: Any) -> None:
        rows.coalesce(1).write.format(kind).save(f"{tmp_path}/{name}")
        (file,) = (tmp_path / name).glob("part-*")
        file.rename(tmp_path / "arriving" / f"{name}{file.suffix}")

    put("one", frame(spark, ("a", "EU", 1, 1)))
    job = work(tmp_path, "--source-class", f"{kind.title()}DFSSource", "--continuous",
               "--min-sync-interval-seconds", "0")  # fmt: skip
    ingesting = Streamer(spark, job)
    thread = threading.Thread(target=ingesting.whole)
    thread.start()
    try:
        assert until(lambda: (tmp_path / "orders/.hoodie/hoodie.properties").exists(), 60)
        assert until(lambda: stored(here), 60)
        put("two", frame(spark, ("b", "EU", 1, 2)).selectExpr("*", "7 as discount"))
        assert until(lambda: len(stored(here)) == 2, 60)
    finally:
        ingesting.end(signal.SIGINT, None)
        thread.join(60)
    found = read_table(open_store(**here)).select(["id", "discount"]).to_pylist()
    assert sorted(each["discount"] or 0 for each in found) == [0, 7]


class _Signalling:
    """A lock with which a streamer has got SIGTERM by the time that it has it."""

    def __init__(self, ingesting: Streamer) -> None:
        self.ingesting, self.lock = ingesting, threading.Lock()

    def __enter__(self) -> None:
        self.lock.acquire()
        if not self.ingesting.signal:
            self.ingesting.end(signal.SIGTERM, None)

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_a_signal_just_before_a_batch_is_no_failure_of_the_batch(
    spark: Any, here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(tmp_path / "arriving", "a", ("a", "EU", 1, 1))
    ingesting = Streamer(spark, work(tmp_path))
    monkeypatch.setattr(ingesting, "_batch", _Signalling(ingesting))
    monkeypatch.setattr(streamer, "POLL_S", 60)  # so it still waits as the batch is refused
    assert ingesting.whole() == 128 + signal.SIGTERM


@pytest.mark.parametrize("array", [False, True])
def test_a_column_that_the_schema_lacks_ends_the_streamer_by_name(
    spark: Any, here: Any, tmp_path: Path, array: bool
) -> None:
    arrive(tmp_path / "arriving", "a", ("a", "EU", 1, 1))
    assert Streamer(spark, work(tmp_path)).whole() == 0
    schema = tmp_path / "schema.avsc"
    schema.write_text(avro_schema(read_table(open_store(**here)).schema, "orders"))
    row = {"id": "b", "region": "EU", "at": 1, "v": 1}
    rows = [row | {"id": "c"}, row | {"rabatt": 3}] if array else row | {"rabatt": 3}
    (tmp_path / "arriving" / "b.json").write_text(json.dumps(rows))
    job = work(tmp_path, **{"hoodie.streamer.schemaprovider.source.schema.file": str(schema)})
    with pytest.raises(TableError, match=r"'rabatt' is not in the schema.*\. Nothing of this"):
        Streamer(spark, job).whole()
    assert stored(here) == [("a", "EU", 1)]


def test_a_json_number_in_a_times_place_is_in_the_unit_of_the_schema_and_a_structs_field_counts(
    spark: Any, here: Any, tmp_path: Path
) -> None:
    times = {"us": "timestamp-micros", "ms": "timestamp-millis"}
    fields: list[Any] = [{"name": each, "type": "string"} for each in ("id", "region")]
    fields += [{"name": each, "type": "long"} for each in ("at", "v")]
    fields += [{"name": each, "type": {"type": "long", "logicalType": kind}}
               for each, kind in times.items()]  # fmt: skip
    inner = {"type": "record", "name": "st", "fields": [{"name": "x", "type": "int"}]}
    fields.append({"name": "st", "type": inner})
    schema = tmp_path / "schema.avsc"
    schema.write_text(json.dumps({"type": "record", "name": "orders", "fields": fields}))
    job = work(tmp_path, **{"hoodie.streamer.schemaprovider.source.schema.file": str(schema)})
    row = {"id": "a", "region": "EU", "at": 1, "v": 1, "us": 1_764_000_000_000_000,
           "ms": 1_764_000_000_000, "st": {"x": 1}}  # fmt: skip
    (tmp_path / "arriving").mkdir()
    (tmp_path / "arriving" / "a.json").write_text(json.dumps(row))
    assert Streamer(spark, job).whole() == 0
    (found,) = read_table(open_store(**here)).select(["us", "ms", "st"]).to_pylist()
    assert {found["us"], found["ms"]} == {datetime(2025, 11, 24, 16, tzinfo=UTC)}
    (tmp_path / "arriving" / "b.json").write_text(json.dumps(row | {"st": {"x": 1, "y": 2}}))
    with pytest.raises(TableError, match=r"'st\.y' is not in the schema"):
        Streamer(spark, job).whole()
    (tmp_path / "arriving" / "b.json").write_text(json.dumps(row) + " and more")
    with pytest.raises(TableError, match=r"a record of \d+ characters cannot be read"):
        Streamer(spark, job).whole()


@pytest.mark.parametrize("header", ["id,region,at,v,rabatt", "region,id,at,v"])
def test_a_csv_file_of_another_header_ends_the_streamer(
    spark: Any, here: Any, tmp_path: Path, header: str
) -> None:
    (tmp_path / "arriving").mkdir()
    (tmp_path / "arriving" / "a.csv").write_text("id,region,at,v\na,EU,1,1\n")
    assert Streamer(spark, work(tmp_path, "--source-class", "CsvDFSSource")).whole() == 0
    schema = tmp_path / "schema.avsc"
    schema.write_text(avro_schema(read_table(open_store(**here)).schema, "orders"))
    job = work(tmp_path, "--source-class", "CsvDFSSource",
               **{"hoodie.streamer.schemaprovider.source.schema.file": str(schema)})  # fmt: skip
    (tmp_path / "arriving" / "b.csv").write_text(f"{header}\nb,EU,1,1,5\n")
    with pytest.raises(Exception, match="CSV header"):
        Streamer(spark, job).whole()
    assert stored(here) == [("a", "EU", 1)]


@pytest.mark.slow
@pytest.mark.soak
def test_a_streamer_killed_and_restarted_loses_and_repeats_no_row(
    emulator: Any, tmp_path: Path
) -> None:
    """And Ctrl-C ends it between two batches, with its JVM."""
    place = {"url": "s3://lake/orders", "endpoint": emulator.s3}
    rows = [(f"k{n}", "EU", 1, n) for n in range(8)]
    command = [
        sys.executable, "-u", "-m", "lockkit.spark.streamer", "--op", "insert", "--continuous",
        "--props", str(props(tmp_path)), "--target-base-path", place["url"], "--master", "local[1]",
        "--endpoint", place["endpoint"], "--min-sync-interval-seconds", "0.1",
    ]  # fmt: skip

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True,
                                start_new_session=True)  # fmt: skip

    def published(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("published"):
                return
        pytest.fail((tmp_path / "log").read_text()[-2000:])

    with (tmp_path / "log").open("w") as log:
        for number, at_once in enumerate((signal.SIGKILL, signal.SIGINT)):
            arrive(tmp_path / "arriving", f"a{number}", *rows[number * 4 : number * 4 + 2])
            process = start()
            published(process)
            if at_once == signal.SIGINT:
                arrive(tmp_path / "arriving", f"b{number}", *rows[number * 4 + 2 :])
                published(process)
            below = tree(process.pid)
            assert any("java" in each.name() for each in below)
            os.killpg(process.pid, at_once)  # as a terminal's Ctrl-C: to the whole group
            code = process.wait(60)
            assert code == (-signal.SIGKILL if at_once == signal.SIGKILL else 130)
            assert until(lambda below=below: not any(each.is_running() for each in below))
            assert process.stdout is not None
            process.stdout.close()
    assert stored(place) == [(k, r, v) for k, r, _, v in (*rows[:2], *rows[4:])]
