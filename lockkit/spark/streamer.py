"""The streamer: ingests the files of a folder, or a Kafka topic, once or continuously.

It takes the options of Hudi's streamer. Spark's checkpoint records what was read, and the table
records which batch was committed. So a streamer that crashes loses and repeats nothing when it is
started again. Files must arrive whole: move them into the folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lockkit.clock import Clock
from lockkit.errors import LockkitError
from lockkit.sinks import silent
from lockkit.spark.arrivals import NewColumns, arriving, check_source, checked, source_schema
from lockkit.spark.connect import CONF
from lockkit.spark.errors import javas_named, unwrapped
from lockkit.spark.fields import has_field
from lockkit.spark.java import SCRATCH_NAMES, spark_env
from lockkit.spark.place import TableAddress
from lockkit.spark.stream import foreach_batch
from lockkit.spark.stream_job import StreamJob, pairs, parser, work_of
from lockkit.spark.write import open_lock
from lockkit.table.errors import RefusedRows
from lockkit.table.options import known_config, write_options

POLL_S = 0.2
KEPT = (
    "spark.ui.enabled", "spark.log.level", "spark.sql.session.timeZone",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
)  # fmt: skip
"""The settings of the fleet's writers (`CONF`) that a streamer has, too."""
JVM_END_S = 20.0
ERROR_MAX = 1_000


class StopSignal(Exception):
    """A signal requested the end."""


class Streamer:
    """One query, which can be stopped between two batches."""

    def __init__(self, spark: Any, work: StreamJob) -> None:
        self.spark, self.work, self.clock = spark, work, Clock()
        self.signal = 0
        self._ending = threading.Event()
        self._batch = threading.Lock()
        self._halted = False

    def whole(self) -> int:
        """Run until all is read or a signal came; returns the exit code."""
        while True:
            try:
                return self._query()
            except NewColumns as found:
                self._take_in(found)

    def _take_in(self, found: NewColumns) -> None:
        """Continue if the schema, read again, has the new columns; else raise `TableError`."""
        schema = source_schema(self.spark, self.work)
        missing = [each for each in found.columns or ["?"] if not has_field(schema, each)]
        if missing or self.work.kind == "csv":
            others = f", nor are {', '.join(missing[1:])}" if missing[1:] else ""
            raise RefusedRows(
                missing[0],
                f"is not in the schema{others}. Nothing of this batch was written",
                "add them to the schema, or take them out of the source, and start again",
            )
        columns = ", ".join(found.columns)
        _print_event("note", text=f"the source has new columns: {columns}")

    def _query(self) -> int:
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
                    self._halted = True
                    raise StopSignal
                one(checked(frame), number)

        query = writer.foreachBatch(batch).trigger(**how).start()
        try:
            with unwrapped():
                while not self._ending.is_set() and not query.awaitTermination(POLL_S):
                    pass
        except Exception:
            if not self._halted:  # else it is the batch that was refused after the signal
                raise
        with self._batch:  # waits for the batch in progress; no other begins
            pass
        query.stop()
        one.close()
        return self._code()

    def end(self, number: int, _frame: object) -> None:
        """The first signal ends the query after the batch, the second at once."""
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number
        self._ending.set()

    def _code(self) -> int:
        return 128 + self.signal if self.signal else 0


def look_ahead(work: StreamJob) -> None:
    """Raise for a source, a table or a lock that cannot be used, before Spark is started."""
    check_source(work)
    place, clock = TableAddress(work.url.rstrip("/"), work.endpoint), Clock()
    with closing(place.open()) as store:
        known_config(write_options(work.options), place.url, store, clock)
    open_lock(place, work.options, clock, silent).close()


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
            del env["SPARK_LOCAL_IP"]  # executors on other machines must reach this driver
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
    """Return the exit code; print an error as one line."""
    given = parser().parse_args(arguments)
    from pyspark.errors import PySparkException

    try:
        work, conf = work_of(given), pairs("--conf", given.conf)
        look_ahead(work)
        with session(given.master, conf) as spark:
            streamer = Streamer(spark, work)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, streamer.end)
            with javas_named():
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
