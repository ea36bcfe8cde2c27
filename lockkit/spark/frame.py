"""Writes a DataFrame's rows to file groups, on Spark's executors.

Each task merges and writes its files itself. It returns one row of statistics for each file, or a
row with the error, so that an error is not a page of JVM stack.
The driver runs exactly one action on each result: a second would write every file again. A task
that Spark repeats leaves an orphan file. So a file's name contains the attempt, and the driver
deletes orphans before it commits.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.errors import StoreError, TableError
from lockkit.runtime import run
from lockkit.spark.place import TableAddress
from lockkit.table.errors import CommitConflict, RefusedOption
from lockkit.table.format.base_file import Slice, Target
from lockkit.table.format.base_file_reading import base_file_batches
from lockkit.table.format.data_files import open_data_file
from lockkit.table.format.layout import FileGroup, TaskId, WriteStat
from lockkit.table.format.partition import partition_path
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.schema import RECORD_KEY
from lockkit.table.occ.rollback import keep_only
from lockkit.table.read.bucket_groups import BucketGroups
from lockkit.table.read.buckets import is_bucketed
from lockkit.table.write.groups import (
    FILE_BYTES_MAX,
    EarlyCheck,
    TargetGroup,
    WriteTask,
    write_group,
    write_rows,
)
from lockkit.table.write.log import write_merged

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

GROUP = "_lockkit_group"
"""The column with a row's file group: a bucket's number, or a file id."""
PART = "_lockkit_part"
"""The columns with the partition's values, by `each_field`."""
KEY, STORED_PART = "_lockkit_key", "_lockkit_stored_part"
STATISTICS = (
    "partition string, file_id string, path string, previous string, writes long, inserts long, "
    "updates long, deletes long, size_bytes long, stage long, attempt long, error string"
)
GROUPS_MAX = 10_000
TASKS_MAX = 200


@dataclass(frozen=True, slots=True)
class WriteJob:
    """What every task of a write receives."""

    place: TableAddress
    target: Target
    early: EarlyCheck | None = None
    file_bytes_max: int = FILE_BYTES_MAX
    slices: Mapping[FileGroup, Slice] = field(default_factory=dict, repr=False)
    groups: BucketGroups | None = field(default=None, repr=False)
    logs: bool = False
    """`TargetGroup.logs`."""

    def work(self) -> WriteTask:
        return WriteTask(self.place.data(), self.target, _task(), Clock(), self.early)

    def target_of(self, partition: str, group: str) -> TargetGroup:
        """The target of the rows that Spark sent to `group` of `partition`."""
        found = partition, group
        if self.groups is not None and group.isdecimal() and len(group) == 8:
            found = self.groups.for_new(partition, int(group))
        return TargetGroup(found, self.slices.get(found), self.logs)


def _task() -> TaskId:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return TaskId()
    # Not attemptNumber: it restarts when a stage is repeated, and file names must stay unique.
    return TaskId(context.partitionId(), context.stageId(), context.taskAttemptId())


def each_field(name: str, config: TableConfig) -> list[str]:
    """A column `name` for each partition field."""
    return [f"{name}{number}" for number, _ in enumerate(config.partition_fields)]


# --- the three ways -----------------------------------------------------------------------------


def insert_frame(frame: DataFrame, job: WriteJob) -> list[WriteStat]:
    """Write all rows into new file groups, without a check of their keys and without a shuffle."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        tables = (pa.Table.from_batches([batch]) for batch in batches)
        yield _reported(lambda: write_rows(job.work(), tables, file_bytes_max=job.file_bytes_max))

    return _statistics(frame, frame.mapInArrow(write, STATISTICS), job)


def merge_frame(frame: DataFrame, job: WriteJob, tasks: int, *, delete: bool) -> list[WriteStat]:
    """Merge each row into the group in its column `GROUP`, or remove its key from there."""
    by = [*each_field(PART, job.target.config), GROUP]

    def write(key: tuple[Any, ...], rows: pa.Table) -> WriteStat | None:
        partition = partition_path(job.target.config, key[:-1])
        return put_group(job, job.target_of(partition, key[-1]), rows, delete=delete)

    return stats_by_group(frame, job, by, tasks, write)


def put_group(
    job: WriteJob, group_target: TargetGroup, rows: pa.Table, *, delete: bool
) -> WriteStat | None:
    """In a task: merge `rows` into their group; None if nothing would change."""
    put = write_merged if job.target.config.merged else write_group
    return put(job.work(), group_target, rows, delete=delete)


def stats_by_group(
    frame: DataFrame, job: WriteJob, by: list[str], tasks: int,
    write: Callable[[tuple[Any, ...], pa.Table], WriteStat | None],
) -> list[WriteStat]:  # fmt: skip
    """Call `write` in a task for the rows that have the same values in the columns `by`."""

    def whole(key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
        import pyarrow as pa

        def one() -> Iterable[WriteStat]:
            stat = write(tuple(each.as_py() for each in key), rows.drop_columns(by))
            return [] if stat is None else [stat]

        return pa.Table.from_batches([_reported(one)])

    # An explicit number: adaptive execution would coalesce a few MB into one task.
    apart = frame.repartition(tasks, *by)
    return _statistics(frame, apart.groupBy(*by).applyInArrow(whole, STATISTICS), job)


def write_frame(
    frame: DataFrame, place: TableAddress, target: Target, group_targets: Mapping[str, TargetGroup]
) -> list[WriteStat]:
    """Merge each row into the file group in its column `GROUP`, one of `aims`."""
    if not 0 < len(group_targets) <= GROUPS_MAX:
        raise RefusedOption(
            "group_targets", f"must name 1 to {GROUPS_MAX} file groups for a round",
            value=str(len(group_targets)),
        )  # fmt: skip
    job, known = WriteJob(place, target), dict(group_targets)

    def write(key: tuple[Any, ...], rows: pa.Table) -> WriteStat | None:
        return write_group(job.work(), known[key[0]], rows)

    return stats_by_group(frame, job, [GROUP], len(group_targets), write)


def stored_keys(frame: DataFrame, job: WriteJob, slices: list[Slice]) -> DataFrame:
    """KEY, STORED_PART of each field, GROUP of every row of `slices`; no other column is read."""
    from pyspark.sql.pandas.types import from_arrow_schema

    config, schema = job.target.config, job.target.schema
    assert schema is not None
    fields = config.partition_fields
    import pyarrow as pa

    names = zip(each_field(STORED_PART, config), fields, strict=True)
    parts = [(name, schema.field(field).type) for name, field in names]
    shape = pa.schema([(KEY, pa.string()), *parts, (GROUP, pa.string())])

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        store, clock = job.place.data(), Clock()
        for batch in batches:
            for path, group in zip(*batch.to_pydict().values(), strict=True):
                with open_data_file(store, path, clock) as file:
                    for rows in base_file_batches(path, file, columns=[RECORD_KEY, *fields]):
                        rows = rows.append_column(GROUP, pa.repeat(group, rows.num_rows))
                        yield from rows.rename_columns(shape.names).cast(shape).to_batches()

    files = frame.sparkSession.createDataFrame(
        # A bucketed group is named by its bucket's number, as it is for rows with new keys.
        [(each.path, each.file_id[:8] if is_bucketed(each.file_id) else each.file_id)
         for each in slices], "path string, group string",
    )  # fmt: skip
    spread = files.repartition(min(len(slices), TASKS_MAX))
    return spread.mapInArrow(look, from_arrow_schema(shape, prefer_timestamp_ntz=True))


# --- what comes back ----------------------------------------------------------------------------


def _reported(write: Any) -> pa.RecordBatch:
    """One row for each file, or one row with the error."""
    import pyarrow as pa
    from pyspark import TaskContext

    task = TaskContext.get()
    which = {"stage": task.stageId(), "attempt": task.attemptNumber()} if task else {}
    rows: list[dict[str, Any]] = []
    try:
        rows += [stat.to_row() | which for stat in write()]
    except (TableError, StoreError) as error:
        rows.append({"error": base64.b64encode(pickle.dumps(error)).decode()})
    text, number = pa.string(), pa.int64()
    kinds = [
        (name, number if kind == "long" else text)
        for name, kind in (each.split() for each in STATISTICS.split(", "))
    ]
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema(kinds))


def _statistics(frame: DataFrame, written: DataFrame, job: WriteJob) -> list[WriteStat]:
    """Raise a task's error. A conflict comes first, because another try may succeed."""
    with by_rows(frame):
        rows = [row.asDict() for row in written.collect()]
    met = [pickle.loads(base64.b64decode(row["error"])) for row in rows if row["error"]]
    if met:
        raise min(met, key=lambda error: not isinstance(error, CommitConflict))
    stats = [WriteStat.from_row(row) for row in rows]
    if _done_again(written.sparkSession, rows):
        kept = {stat.path for stat in stats}
        with closing(job.place.open()) as store:
            run(keep_only(job.target.instant, kept), store, Clock())
    return stats


def _done_again(session: Any, rows: list[dict[str, Any]]) -> bool:
    """Whether a task may have left a file that no row reports.

    If Spark repeats a stage, because it lost the executor with the shuffled rows, its tasks count
    from 0 again. A Connect session cannot see that, so its answer is yes on a cluster.
    """
    if any(row["attempt"] for row in rows):
        return True
    if session.conf.get("spark.speculation", "false") == "true":
        return True
    context = getattr(session, "sparkContext", None)  # a Connect session has none
    if context is None:
        return not session.conf.get("spark.master", "").startswith("local")
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(each) for each in {row["stage"] for row in rows}]
    return any(each is None or each.currentAttemptId or each.numFailedTasks for each in stages)


# --- how Spark cuts rows into the batches that it hands to Python ---------------------------------

BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
NOT_BY_BYTES = str(2**31 - 1)
LARGE = ("array", "binary", "map", "struct", "variant")
"""Column types whose 10,000 values of a batch may not fit into memory."""


@contextmanager
def by_rows(frame: DataFrame) -> Iterator[None]:
    """Let Spark limit the batches of this block by their rows only, as Spark before 4.1 did.

    Since 4.1 Spark sums up its buffers' sizes after each row, which takes longer than all other
    work on the row. Nothing changes if a column's type may be large, or if the session limits the
    bytes of a batch.
    """
    conf = frame.sparkSession.conf
    if conf.get(BATCH_BYTES, None) is not None or any(
        kind.startswith(LARGE) for _, kind in frame.dtypes
    ):
        yield
        return
    conf.set(BATCH_BYTES, NOT_BY_BYTES)
    try:
        yield
    finally:
        conf.unset(BATCH_BYTES)
