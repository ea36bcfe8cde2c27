"""Inserts by Spark's own parquet writer, where Spark reaches the store as a file system.

Spark writes into `.hoodie/.temp/<instant>/`, the meta columns being expressions of its own; the
files are then linked to the names that those columns already say. Nothing is read again but
footers, which tell by their statistics what a name, a key's absence and a row count are. Only where
the table has no partitions.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.table.ask import TableError
from lockkit.table.basefile import Target
from lockkit.table.groups import free_file_id
from lockkit.table.layout import TaskId, WriteStat, file_name
from lockkit.table.markers import MARKERS
from lockkit.table.schema import (
    COMMIT_SEQNO,
    COMMIT_TIME,
    FILE_NAME,
    PARTITION_PATH,
    RECORD_KEY,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FOOTERS_AT_ONCE = 8
TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
ROW_BITS = 33
"""`monotonically_increasing_id` is the task's number above these bits, and the row's in them."""


def stage_frame(frame: DataFrame, folder: Path, target: Target) -> list[WriteStat]:
    """New file groups of all rows, in `folder`; the rows have the table's columns and types."""
    staging = folder / f"{MARKERS}{target.instant}" / "staged"
    stem = free_file_id(Clock()).rpartition("-")[0]
    # One file for each task: its name stands in its rows before it is written.
    writer = with_meta(frame, target, stem).write.option("maxRecordsPerFile", 0)
    try:
        with _microseconds(frame.sparkSession):
            for name in (COMMIT_SEQNO, RECORD_KEY, target.config.record_key):
                # A dictionary of values that are all different is only thrown away again.
                writer = writer.option(f"parquet.enable.dictionary#{name}", "false")
            writer.option("compression", "snappy").parquet(staging.as_uri())
        if not staging.is_dir():
            raise TableError(
                f"Spark wrote, and {staging} is not on this machine: its executors have another "
                "disk; write with native=False, so that each task puts its files itself"
            )
        with ThreadPoolExecutor(FOOTERS_AT_ONCE) as some:
            files = sorted(staging.glob("part-*.parquet"))
            found = list(some.map(lambda file: _footer(file, target), files))
            stats = [(file, stat) for file, stat in zip(files, found, strict=True) if stat]
            list(some.map(lambda each: _move(each[0], folder / each[1].path), stats))
        return [stat for _, stat in stats]
    finally:
        shutil.rmtree(staging.parent, ignore_errors=True)


def with_meta(frame: DataFrame, target: Target, stem: str) -> DataFrame:
    """The rows behind Hudi's five columns; the file's name as Spark's task will have it."""
    from pyspark.sql import functions as f

    task = f.spark_partition_id().cast("string")
    row = f.monotonically_increasing_id().bitwiseAND(f.lit((1 << ROW_BITS) - 1)).cast("string")
    before, after = file_name(f"{stem}-TASK", target.instant, TaskId()).split("TASK")
    meta = {
        COMMIT_TIME: f.lit(target.instant),
        COMMIT_SEQNO: f.concat(f.lit(f"{target.instant}_"), task, f.lit("_"), row),
        RECORD_KEY: f.col(target.config.record_key).cast("string"),
        PARTITION_PATH: f.lit(""),
        FILE_NAME: f.concat(f.lit(before), task, f.lit(after)),
    }
    return frame.select(*[value.alias(name) for name, value in meta.items()], *frame.columns)


@contextmanager
def _microseconds(session: Any) -> Iterator[None]:
    """Spark writes INT96 unless told otherwise, which everybody reads as nanoseconds."""
    before = session.conf.get(TIMESTAMPS)
    session.conf.set(TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        session.conf.set(TIMESTAMPS, before)


def _footer(file: Path, target: Target) -> WriteStat | None:
    """What Spark wrote there, by its statistics; None for no rows."""
    import pyarrow.parquet as pq

    about = pq.read_metadata(file)
    if about.num_rows == 0:
        return None
    place = {about.schema.column(i).path: i for i in range(about.num_columns)}
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    keys = [group.column(place[RECORD_KEY]).statistics for group in groups]
    if any(each.null_count or each.min == "" for each in keys):
        missing = sum(each.null_count for each in keys)
        raise TableError(
            f"{missing or 'some'} rows have no record key ({target.config.record_key}); every row "
            "needs one, or it could never be updated"
        )
    named = [group.column(place[FILE_NAME]).statistics for group in groups]
    names = {name for each in named for name in (each.min, each.max)}
    if len(names) != 1:
        raise TableError(f"{file.name} holds rows of {len(names)} files; write with native=False")
    (name,) = names
    return WriteStat(
        partition="", file_id=name.partition("_")[0], path=name, writes=about.num_rows,
        inserts=about.num_rows, size_bytes=file.stat().st_size,
    )  # fmt: skip


def _move(staged: Path, to: Path) -> None:
    """Durable, and under its final name."""
    with staged.open("rb") as file:
        os.fsync(file.fileno())
    os.link(staged, to)
    staged.unlink()
