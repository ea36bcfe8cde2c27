"""The streamer: ingests files as they arrive in a folder, or a Kafka topic, once or continuously.

Hudi's streamer by the names of its options. Spark's checkpoint tells what was read, the table which
batch was committed: a streamer that dies at any moment loses and repeats nothing when it is started
again. Files must arrive whole (be moved into the folder), as for every such source.
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
from pathlib import Path
from typing import Any

from lockkit.clock import Clock
from lockkit.errors import LockkitError, TableError
from lockkit.spark.arrivals import ROOT, SOURCES, TOPIC, Work, arriving
from lockkit.spark.connect import CONF
from lockkit.spark.errors import unwrapped
from lockkit.spark.java import spark_env
from lockkit.spark.options import WRITE, asked
from lockkit.spark.stream import foreach_batch
from lockkit.table.format.java_properties import parse_properties

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


def work_of(told: argparse.Namespace) -> Work:
    """Raises `TableError` for what cannot be."""
    try:
        props = parse_properties(Path(told.props).read_bytes())
    except OSError as error:
        raise TableError(f"--props {told.props}: {error.strerror}") from None
    props |= _pairs(told.hoodie_conf)
    props[WRITE + "operation"] = told.op
    if told.target_table:
        props["hoodie.table.name"] = told.target_table
    if told.source_ordering_field:
        props[WRITE + "precombine.field"] = told.source_ordering_field
    url = told.target_base_path or props.get("hoodie.base.path")
    if not url:
        raise TableError("which table? --target-base-path s3://bucket/table")
    kind = SOURCES.get(told.source_class.rpartition(".")[2])
    if kind is None:
        raise TableError(f"--source-class {told.source_class[:80]}: choose {', '.join(SOURCES)}")
    checkpoint = told.checkpoint_path or f"{Path(told.props).absolute()}.checkpoint"
    found = Work(url, kind, props, checkpoint, told.endpoint, told.continuous,
                 told.min_sync_interval_seconds, told.source_limit)  # fmt: skip
    found.refuse_unread()
    asked(found.options)
    found.needs(TOPIC if kind == "kafka" else ROOT)
    return found


def _pairs(said: list[str]) -> dict[str, str]:
    for each in said:
        if "=" not in each:
            raise TableError(f"{each[:80]!r} is no KEY=VALUE")
    return dict(each.split("=", 1) for each in said)


# --- running ------------------------------------------------------------------------------------


class Stopped(Exception):
    """A signal asked for an end."""


class Streamer:
    """One query, and how it is ended between two batches."""

    def __init__(self, spark: Any, work: Work) -> None:
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
            self.work.url, endpoint=self.work.endpoint, options=self.work.options, emit=_tell
        )

        def batch(frame: Any, number: int) -> None:
            with self._batch:
                if self._ending.is_set():
                    raise Stopped
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
        """The first signal asks; the second does not wait for the batch."""
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number
        self._ending.set()

    def _code(self) -> int:
        return 128 + self.signal if self.signal else 0


def _tell(kind: str, **fields: Any) -> None:
    if kind in ("published", "note"):
        said = fields.get("text") or f"{kind} {fields.get('instant', '')}"
        sys.stdout.write(f"{said}\n")
        sys.stdout.flush()


@contextmanager
def session(master: str, conf: Mapping[str, str]) -> Iterator[Any]:
    """A session in a JVM of this process's own, which ends with it."""
    env = spark_env()
    if not master.startswith("local"):
        del env["SPARK_LOCAL_IP"]  # executors elsewhere must reach this driver
    os.environ.update(env)
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
    told = parser().parse_args(arguments)
    from pyspark.errors import PySparkException

    try:
        work = work_of(told)
        with session(told.master, _pairs(told.conf)) as spark:
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
