"""Inserts by Spark's own parquet writer, where Spark reaches the store as a file system.

Spark writes the rows as they are into `.hoodie/.temp/<instant>/`. The meta columns, which would
take it as long again, are put beside its own: nothing that it wrote is decoded, and its footers
tell by their statistics whether a row has no key. Only where the table has no partitions.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.spark.splice import Pick, splice
from lockkit.table.ask import TableError
from lockkit.table.basefile import MAX_KEY, MIN_KEY, Target, constant, sequence_numbers
from lockkit.table.buckets import free_file_id
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

BATCH_ROWS = 100_000
PLAIN_PARQUET = {
    # Spark writes INT96 unless told otherwise, which everybody reads as nanoseconds.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
_SETTING = Lock()
_WRITING: Counter[Any] = Counter()
_BEFORE: dict[Any, dict[str, str | None]] = {}


def can_stage(frame: Any) -> bool:
    """Whether its tasks run on this machine, where they and this process see the same folder."""
    context = getattr(frame.sparkSession, "sparkContext", None)  # a Connect session has none
    return context is not None and str(context.master).startswith("local")


def stage_frame(frame: DataFrame, folder: Path, target: Target) -> list[WriteStat]:
    """New file groups of all rows, in `folder`; the rows have the table's columns and types."""
    from pyspark.sql import functions as f

    key, columns = target.config.record_key, frame.columns
    if dict(frame.dtypes)[key] != "string":
        frame = frame.withColumn(RECORD_KEY, f.col(key).cast("string"))
        key = RECORD_KEY
    staging = folder / f"{MARKERS}{target.instant}" / "staged"
    # A dictionary of values that are all different is only thrown away again.
    writer = frame.write.option(f"parquet.enable.dictionary#{key}", "false")
    try:
        with _plain_parquet(frame.sparkSession):
            writer.option("compression", "snappy").parquet(staging.as_uri())
        if not staging.is_dir():
            raise TableError(
                f"Spark wrote, and {staging} is not on this machine: its executors have another "
                "disk; write with native=False, so that each task puts its files itself"
            )
        finish = _Finish(folder, target, key, columns)
        with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as some:  # half wait for the disk
            stats = list(some.map(finish, enumerate(sorted(staging.glob("part-*.parquet")))))
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return [stat for stat in stats if stat is not None]
    finally:
        shutil.rmtree(staging.parent, ignore_errors=True)


@contextmanager
def _plain_parquet(session: Any) -> Iterator[None]:
    """While any thread writes so, the session writes parquet as every reader understands it."""
    with _SETTING:
        if not _WRITING[session]:
            _BEFORE[session] = {name: session.conf.get(name, None) for name in PLAIN_PARQUET}
            for name, value in PLAIN_PARQUET.items():
                session.conf.set(name, value)
        _WRITING[session] += 1
    try:
        yield
    finally:
        with _SETTING:
            _WRITING[session] -= 1
            if not _WRITING[session]:
                del _WRITING[session]
                for name, before in _BEFORE.pop(session).items():
                    session.conf.unset(name) if before is None else session.conf.set(name, before)


@dataclass(frozen=True, slots=True)
class _Finish:
    """What makes a base file of a file that Spark wrote; `key` is its column with record keys."""

    folder: Path
    target: Target
    key: str
    columns: list[str]

    def __call__(self, numbered: tuple[int, Path]) -> WriteStat | None:
        """Durable, and under its final name; None for no rows."""
        import pyarrow.parquet as pq

        number, staged = numbered
        footer = pq.read_metadata(staged)
        if footer.num_rows == 0:
            return None
        least, greatest = self._bounds(footer)
        task, file_id = TaskId(number), free_file_id(Clock())
        name = file_name(file_id, self.target.instant, task)
        meta, whole = staged.with_suffix(".meta"), staged.with_suffix(".whole")
        self._write_meta(meta, footer, task, name)
        picks = [
            Pick(0, COMMIT_TIME, COMMIT_TIME), Pick(0, COMMIT_SEQNO, COMMIT_SEQNO),
            Pick(1, self.key, RECORD_KEY), Pick(0, PARTITION_PATH, PARTITION_PATH),
            Pick(0, FILE_NAME, FILE_NAME), *(Pick(1, each, each) for each in self.columns),
        ]  # fmt: skip
        with whole.open("xb") as out:
            splice([meta, staged], picks, out, about={MIN_KEY: least, MAX_KEY: greatest})
            out.flush()
            os.fsync(out.fileno())
            size = out.tell()
        os.link(whole, self.folder / name)
        for each in (whole, meta, staged):
            each.unlink()
        return WriteStat(
            partition="", file_id=file_id, path=name, writes=footer.num_rows,
            inserts=footer.num_rows, size_bytes=size,
        )  # fmt: skip

    def _bounds(self, footer: Any) -> tuple[str, str]:
        """The least and the greatest key, by statistics; `TableError` where a row has none."""
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        place = {groups[0].column(i).path_in_schema: i for i in range(footer.num_columns)}
        keys = [group.column(place[self.key]).statistics for group in groups]
        if any(each is None or each.null_count or not each.min for each in keys):
            missing = sum(each.null_count for each in keys if each)
            raise TableError(
                f"{missing or 'some'} rows have no record key ({self.target.config.record_key}); "
                "every row needs one, or it could never be updated"
            )
        return min(each.min for each in keys), max(each.max for each in keys)

    def _write_meta(self, path: Path, footer: Any, task: TaskId, name: str) -> None:
        """The meta columns but the key, in row groups as large as those of the file beside it."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        text, one = pa.string(), pa.dictionary(pa.int32(), pa.string())
        schema = pa.schema(
            {COMMIT_TIME: one, COMMIT_SEQNO: text, PARTITION_PATH: one, FILE_NAME: one}
        )
        first = 0
        with pq.ParquetWriter(
            path, schema, compression="snappy", store_schema=False,
            use_dictionary=[COMMIT_TIME, PARTITION_PATH, FILE_NAME],
        ) as writer:  # fmt: skip
            for group in range(footer.num_row_groups):
                count = footer.row_group(group).num_rows
                numbers = pa.chunked_array([
                    sequence_numbers(self.target, task, at, min(BATCH_ROWS, first + count - at))
                    for at in range(first, first + count, BATCH_ROWS)
                ])  # fmt: skip
                columns = [
                    constant(self.target.instant, count), numbers, constant("", count),
                    constant(name, count),
                ]  # fmt: skip
                writer.write_table(pa.table(columns, schema=schema), row_group_size=count)
                first += count
