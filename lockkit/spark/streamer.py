"""The streamer: ingests files as they arrive in a folder, or a Kafka topic, once or continuously.

It takes the options of Hudi's streamer. Spark's checkpoint holds what was read, and the table which
batch was committed, so a streamer that dies at any moment loses and repeats nothing when it is
started again. Files must arrive whole (be moved into the folder), as for every such source.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lockkit.clock import Clock
from lockkit.errors import LockkitError, TableError
from lockkit.spark.connect import CONF
from lockkit.spark.errors import unwrapped
from lockkit.spark.java import SCRATCH_NAMES, spark_env
from lockkit.spark.query import spark_schema
from lockkit.spark.stream import foreach_batch
from lockkit.table.format.java_properties import parse_properties
from lockkit.table.format.schema import arrow_schema
from lockkit.table.options import WRITE, write_options

SOURCES = {
    "JsonDFSSource": "json", "CsvDFSSource": "csv", "ParquetDFSSource": "parquet",
    "JsonKafkaSource": "kafka",
}  # fmt: skip
ROOT, TOPIC = "source.dfs.root", "source.kafka.topic"
SCHEMA = "schemaprovider.source.schema.file"
READ = (ROOT, TOPIC, SCHEMA)
PREFIXES = ("hoodie.streamer.", "hoodie.deltastreamer.")
"""Hudi renamed them in 0.14; the newer goes first."""
# Spark forgets files that are a week older than the newest one, and passes over late ones.
FOR_EVER = "36500d"
# A line that is no record ends the run: nothing is dropped, and nothing becomes nulls.
READING: dict[str, dict[str, str]] = {
    "json": {"mode": "FAILFAST"}, "csv": {"mode": "FAILFAST", "header": "true"}, "parquet": {},
}  # fmt: skip
KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.13"
OPS = ("upsert", "insert", "bulk_insert")
POLL_S = 0.2
KEPT = (
    "spark.ui.enabled", "spark.log.level", "spark.sql.session.timeZone",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
)  # fmt: skip
JVM_END_S = 20.0
ERROR_MAX = 1_000
EXAMPLE = """\
example of FILE:
  hoodie.streamer.source.dfs.root=/data/arriving
  hoodie.datasource.write.recordkey.field=order_id
  hoodie.datasource.write.precombine.field=ordered_at
  hoodie.datasource.write.partitionpath.field=region

The schema is Avro, in a file that hoodie.streamer.schemaprovider.source.schema.file names, or that
of the files which are there at the start. What was read is kept at --checkpoint-path: without it
all is read anew, which an upsert does not mind. Exit: 0 when all is read; 128 + n when signal n
ended it (the batch under way is finished first, unless the signal comes twice); 1 for an error."""


@dataclass(frozen=True, slots=True)
class StreamJob:
    """The settings of one streamer."""

    url: str
    kind: str
    props: Mapping[str, str]
    checkpoint: str
    endpoint: str | None = None
    continuous: bool = False
    interval_s: float = 1.0
    limit: int | None = None

    @property
    def options(self) -> dict[str, str]:
        return {k: v for k, v in self.props.items() if k.startswith(("hoodie.", "lockkit."))}

    def said(self, name: str) -> str | None:
        return next((self.props[p + name] for p in PREFIXES if self.props.get(p + name)), None)

    def refuse_unread(self) -> None:
        """Raise for an option of Hudi's streamer that this one would ignore: a transformer, say."""
        for key in self.props:
            prefix = next((each for each in PREFIXES if key.startswith(each)), "")
            if prefix and key.removeprefix(prefix) not in READ:
                raise TableError(
                    f"{key[:100]} is refused: this streamer reads only {', '.join(READ)} of "
                    f"{prefix}*; leave it out"
                )

    def needs(self, name: str) -> str:
        found = self.said(name)
        if found is None:
            raise TableError(f"the properties do not set {PREFIXES[0]}{name}")
        return found


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m lockkit.spark.streamer",
        description=(__doc__ or "").partition("\n")[0], epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = found.add_argument
    add("--props", required=True, metavar="FILE", help="Java properties, by Hudi's names")
    add("--op", choices=OPS, default=OPS[0], help="default: upsert")
    add("--target-base-path", metavar="URL", help="the table; or hoodie.base.path in FILE")
    add("--target-table", metavar="NAME", help="its name, where it is made")
    add("--source-class", default="JsonDFSSource", metavar="CLASS",
        help=f"{', '.join(SOURCES)} (default: the first)")  # fmt: skip
    add("--source-ordering-field", metavar="COLUMN", help="the precombine field")
    add("--source-limit", type=int, metavar="BYTES", help="read about so much at a time")
    add("--continuous", action="store_true", help="go on until a signal")
    add("--min-sync-interval-seconds", type=float, default=1.0, metavar="S",
        help="--continuous: look so often (default 1)")  # fmt: skip
    add("--checkpoint-path", metavar="FOLDER", help="for Spark (default FILE.checkpoint)")
    add("--hoodie-conf", action="append", default=[], metavar="KEY=VALUE", help="goes before FILE")
    add("--endpoint", metavar="URL", help="of the object store")
    add("--master", default="local[*]", metavar="URL", help="Spark's (default local[*])")
    add("--conf", action="append", default=[], metavar="KEY=VALUE", help="Spark's configuration")
    return found


def work_of(given: argparse.Namespace) -> StreamJob:
    """Raises `TableError` for an option or a file that cannot be used."""
    try:
        props = parse_properties(Path(given.props).read_bytes())
    except OSError as error:
        raise TableError(f"--props {given.props}: {error.strerror}") from None
    props |= _pairs(given.hoodie_conf)
    props[WRITE + "operation"] = given.op
    if given.target_table:
        props["hoodie.table.name"] = given.target_table
    if given.source_ordering_field:
        props[WRITE + "precombine.field"] = given.source_ordering_field
    url = given.target_base_path or props.get("hoodie.base.path")
    if not url:
        raise TableError("which table? --target-base-path s3://bucket/table")
    kind = SOURCES.get(given.source_class.rpartition(".")[2])
    if kind is None:
        raise TableError(f"--source-class {given.source_class[:80]}: choose {', '.join(SOURCES)}")
    checkpoint = given.checkpoint_path or f"{Path(given.props).absolute()}.checkpoint"
    found = StreamJob(url, kind, props, checkpoint, given.endpoint, given.continuous,
                 given.min_sync_interval_seconds, given.source_limit)  # fmt: skip
    found.refuse_unread()
    write_options(found.options)
    found.needs(TOPIC if kind == "kafka" else ROOT)
    return found


def _pairs(said: list[str]) -> dict[str, str]:
    for each in said:
        if "=" not in each:
            raise TableError(f"{each[:80]!r} is not KEY=VALUE")
    return dict(each.split("=", 1) for each in said)


# --- what arrives ---------------------------------------------------------------------------------


def arriving(spark: Any, work: StreamJob) -> Any:
    """The rows as a stream; None while no file is there from which to take the schema."""
    if work.kind == "kafka":
        return _from_kafka(spark, work)
    root = work.needs(ROOT)
    if "://" not in root and not Path(root).is_dir():
        raise TableError(f"{PREFIXES[0]}{ROOT}={root[:200]}: there is no such folder")
    options, schema = READING[work.kind], _schema(work)
    if schema is None:
        if "://" not in root and not any(_is_file(each) for each in Path(root).iterdir()):
            return None
        reader = spark.read.options(**options)
        if work.kind == "csv":
            reader = reader.option("inferSchema", "true")
        schema = reader.format(work.kind).load(root).schema
    source = spark.readStream.format(work.kind).schema(schema).options(**options)
    if work.limit is not None:
        source = source.option("maxBytesPerTrigger", work.limit)
    return source.option("maxFileAge", FOR_EVER).load(root)


def _is_file(path: Path) -> bool:
    return path.is_dir() or not path.name.startswith((".", "_"))


def _schema(work: StreamJob) -> Any:
    file = work.said(SCHEMA)
    if file is None:
        return None
    try:
        return spark_schema(arrow_schema(Path(file).read_text(encoding="utf-8")))
    except OSError as error:
        raise TableError(f"{PREFIXES[0]}{SCHEMA}={file[:200]}: {error.strerror}") from None


def _from_kafka(spark: Any, work: StreamJob) -> Any:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    schema, servers = _schema(work), work.props.get("bootstrap.servers")
    if schema is None or not servers:
        raise TableError(f"a topic needs {PREFIXES[0]}{SCHEMA} and bootstrap.servers")
    start = work.props.get("auto.offset.reset", "earliest")
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    source = source.option("subscribe", work.needs(TOPIC)).option("startingOffsets", start)
    try:
        rows = source.load()
    except AnalysisException as error:
        if "kafka" not in str(error).lower():
            raise
        raise TableError(
            "Spark has no Kafka source here; add its jar: "
            f"--conf spark.jars.packages={KAFKA}:{spark.version}"
        ) from None
    value = f.from_json(f.col("value").cast("string"), schema, READING["json"]).alias("value")
    return rows.select(value).select("value.*")


# --- running ------------------------------------------------------------------------------------


class StopSignal(Exception):
    """A signal asked for an end."""


class Streamer:
    """One query, which can be ended between two batches."""

    def __init__(self, spark: Any, work: StreamJob) -> None:
        self.spark, self.work, self.clock = spark, work, Clock()
        self.signal = 0
        self._ending = threading.Event()
        self._batch = threading.Lock()

    def whole(self) -> int:
        """Returns the exit code."""
        rows = arriving(self.spark, self.work)
        while rows is None and self.work.continuous and not self._ending.is_set():
            self.clock.wait(self._ending, self.work.interval_s)
            rows = arriving(self.spark, self.work)
        if rows is None or self._ending.is_set():
            return self._code()
        writer = rows.writeStream.option("checkpointLocation", self.work.checkpoint)
        how = {"processingTime": f"{self.work.interval_s} seconds"} if self.work.continuous else {
            "availableNow": True}  # fmt: skip
        one = foreach_batch(
            self.work.url, endpoint=self.work.endpoint, options=self.work.options, emit=_print_event
        )

        def batch(frame: Any, number: int) -> None:
            with self._batch:
                if self._ending.is_set():
                    raise StopSignal
                one(frame, number)

        query = writer.foreachBatch(batch).trigger(**how).start()
        with unwrapped():
            while not self._ending.is_set() and not query.awaitTermination(POLL_S):
                pass
        with self._batch:  # what is under way is finished, and no other one begins
            pass
        query.stop()
        return self._code()

    def end(self, number: int, _frame: object) -> None:
        """The first signal ends the query after the batch, the second at once."""
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number
        self._ending.set()

    def _code(self) -> int:
        return 128 + self.signal if self.signal else 0


def _print_event(kind: str, **fields: Any) -> None:
    if kind in ("published", "note"):
        said = fields.get("text") or f"{kind} {fields.get('instant', '')}"
        sys.stdout.write(f"{said}\n")
        sys.stdout.flush()


@contextmanager
def session(master: str, conf: Mapping[str, str]) -> Iterator[Any]:
    """A session in a separate JVM, which ends with this process.

    The temporary files of both go to a new folder under TMPDIR, which is removed at the end.
    """
    before = dict(os.environ)
    with TemporaryDirectory(prefix="lockkit-streamer-", ignore_cleanup_errors=True) as scratch:
        env = spark_env(scratch=Path(scratch))
        env["SPARK_LOCAL_DIRS"] = before.get("SPARK_LOCAL_DIRS") or scratch
        if not master.startswith("local"):
            del env["SPARK_LOCAL_IP"]  # executors elsewhere must reach this driver
        os.environ.update(env)
        try:
            with _started(master, conf) as spark:
                yield spark
        finally:
            for name in SCRATCH_NAMES:
                os.environ.pop(name, None)
            os.environ.update({name: before[name] for name in SCRATCH_NAMES if name in before})


@contextmanager
def _started(master: str, conf: Mapping[str, str]) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("lockkit streamer")
    for name, value in {**{name: CONF[name] for name in KEPT}, **conf}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    gateway: Any = spark.sparkContext._gateway
    try:
        yield spark
    finally:
        spark.stop()
        gateway.proc.stdin.close()  # what the JVM waits for
        try:
            gateway.proc.wait(JVM_END_S)
        except subprocess.TimeoutExpired:
            gateway.proc.kill()


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code; an error is one line."""
    given = parser().parse_args(arguments)
    from pyspark.errors import PySparkException

    try:
        work = work_of(given)
        with session(given.master, _pairs(given.conf)) as spark:
            streamer = Streamer(spark, work)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, streamer.end)
            return streamer.whole()
    except LockkitError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    except PySparkException as error:
        sys.stderr.write(f"{str(error).strip().splitlines()[0][:ERROR_MAX]}\n")
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
