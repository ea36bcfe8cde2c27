"""Writes a DataFrame to a table: the executors write file groups, and the driver commits.

The commit runs in the driver's own Python process. So a stall of the driver stops the commit, and
errors keep their class.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.lock.hudi_keys import TABLE_NAME
from lockkit.runtime import Procedure, run
from lockkit.sinks import Emit, EventSink, silent
from lockkit.spark.errors import unwrap
from lockkit.spark.frame import TASKS_MAX, WriteJob, insert_frame, merge_frame
from lockkit.spark.fresh import OldRows, attempt_tag, refuse_old_frame
from lockkit.spark.place import TableAddress
from lockkit.spark.placing import place_frame
from lockkit.spark.rows import (
    bucketed,
    check_columns,
    incoming_schema,
    latest_of_each_key,
    partition_paths,
    with_found_keys,
    without_known_keys,
)
from lockkit.stores import Store
from lockkit.stores.keywords import check_keywords
from lockkit.table.arguments import refuse_wrong
from lockkit.table.format.base_file import Target
from lockkit.table.format.layout import WriteStat, hadoop_base
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.refusals import refuse_outside_arrow
from lockkit.table.format.schema import DELETED_FLAG, META_COLUMNS
from lockkit.table.occ.commit import Committed, StateChange
from lockkit.table.occ.concurrency import control_of, guard_of
from lockkit.table.occ.covered import CheckedHorizon
from lockkit.table.occ.heartbeat import Heartbeat
from lockkit.table.occ.locks import open_table_lock
from lockkit.table.occ.rollback import RollbackRefused, RolledBack
from lockkit.table.options import write_options
from lockkit.table.read.bucket_groups import BucketGroups
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.services.upkeep import Upkeep
from lockkit.table.write.batch import STREAM, STREAMS, BatchClaim, BatchState, StreamBatch
from lockkit.table.write.merging import any_key
from lockkit.table.writer import Claim, TableWrite, unclaimed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from lockkit.lock.contract import LockHandle
def write(
    df: DataFrame,
    url: str,
    *,
    operation: str | None = None,
    record_key: str | None = None,
    precombine: str | None = None,
    partition_path: str | None = None,
    endpoint: str | None = None,
    table_name: str | None = None,
    table_type: str | None = None,
    version: int | None = None,
    mode: str | None = None,
    buckets: int | None = None,
    retries: int | None = None,
    partial: bool | None = None,
    options: Mapping[str, Any] | None = None,
    lock: LockHandle | None = None,
    upkeep: Upkeep | None = None,
    client: str = "",
    extra: Mapping[str, str] | None = None,
    claim: Callable[[str], None] | MicroBatch | None = None,
    emit: Emit = silent,
    clock: Clock | None = None,
    **store_options: Any,
) -> Committed | None:
    """Write `df` to the table at `url`, and make the table if it is not there. Returns the commit.

    `store_options` are those of `open_store`. A `df` without rows makes no commit and returns None,
    unless `hoodie.allow.empty.commit` is true. Spark evaluates `df` once for each attempt.

    Raises `CommitConflict` after the last attempt, `OldRows` for rows read from this table before
    its latest commit, `LockBusy`, `LockLost`, `CommitUnknown`, `TableError` for rows or a table
    that cannot be written, `StoreError`.

    :param df: the rows.
    :param url: the table's folder.
    :param operation: one of the seven in docs/howto/spark.md; None: upsert.
    :param record_key: the key's columns, separated by commas; required for a new table.
    :param precombine: the column that orders versions of a row; None: the table's.
    :param partition_path: the partition's column, or several; None: the table's.
    :param endpoint: the store's URL; None: the service's own.
    :param table_name: of a new table; None: the URL's last part.
    :param table_type: of a new table: COPY_ON_WRITE (None) or MERGE_ON_READ.
    :param version: of a new table: 9 (None), 8 or 6.
    :param mode: of a new table: group or fenced, or hudi where Hudi writes too; None: see
        docs/howto/commit.md.
    :param buckets: of a new table: file groups for upserts in a partition; None: 4.
    :param retries: further attempts after a conflict, up to 1000; None: 0.
    :param partial: whether an upsert's rows keep what is stored in the columns that `df` lacks.
    :param options: Hudi's options (docs/options.md); keywords take precedence.
    :param lock: a handle of any lock, which the caller closes; None: by `options`.
    :param upkeep: shared table services (`table.services.shared.keep`); None: by `options`.
    :param client: the name of this writer in events.
    :param extra: key-value pairs for the commit's metadata.
    :param claim: called with each attempt's instant before it writes.
    :param emit: called with each event.
    :param clock: the source of time; tests replace it.
    :param store_options: those of `open_store`: endpoint, credentials, ...
    """
    wanted = write_options(
        options or {}, operation=operation, record_key=record_key, precombine=precombine,
        partition_path=partition_path, table_name=table_name, table_type=table_type,
        version=version, mode=mode, buckets=buckets, retries=retries, partial=partial,
    )  # fmt: skip
    given = "lock=" if lock is not None else ""
    named = claim.lock if isinstance(claim, MicroBatch) else given  # a stream opens its own lock
    wanted = replace(wanted, turns=wanted.turns or bool(named))
    check_keywords(write, url, store_options)
    clock, options = clock or Clock(), dict(options or {})
    if wanted.table_name:
        options[TABLE_NAME] = wanted.table_name  # some locks derive their key from it
    place = TableAddress(url.rstrip("/"), endpoint, client, store_options)
    with _opened(place, options, lock, upkeep, clock, emit) as (store, services, sink):
        services.lock = named
        return SparkWrite(
            frame=df, requested=wanted, url=place.url, place=place, store=store, upkeep=services,
            clock=clock, emit=sink, extra=dict(extra or {}), claim=_claiming(claim),
        ).whole()  # fmt: skip


def _claiming(claim: Callable[[str], None] | MicroBatch | None) -> Claim:
    if isinstance(claim, MicroBatch):
        return claim.claim
    return unclaimed if claim is None else lambda instant, _: claim(instant)


@contextmanager
def _opened(
    place: TableAddress, options: Mapping[str, Any], lock: LockHandle | None,
    upkeep: Upkeep | None, clock: Clock, emit: Emit,
) -> Iterator[tuple[Store, Upkeep, Emit]]:  # fmt: skip
    """The table's store, its services and the event sink; closes what the caller did not pass."""
    if lock is not None:
        refuse_wrong(options, lock)
    with closing(place.open()) as store, ExitStack() as opened:
        if upkeep is None:
            mine = lock or opened.enter_context(closing(open_lock(place, options, clock, emit)))
            emit = EventSink(place.url, mine.lane, emit, clock)
            upkeep = opened.enter_context(
                closing(open_upkeep(place, options, store, mine, clock, emit))
            )
        yield store, upkeep, emit


def open_lock(
    place: TableAddress, options: Mapping[str, Any], clock: Clock, emit: Emit
) -> LockHandle:
    """The lock that guards this table's commits, from the provider that `options` name."""
    return open_table_lock(
        place.url, options, clock=clock, emit=emit, client=place.client, endpoint=place.endpoint,
        **place.options,
    )  # fmt: skip


def open_upkeep(
    place: TableAddress, options: Mapping[str, Any], store: Store, lock: LockHandle, clock: Clock,
    emit: Emit,
) -> Upkeep:  # fmt: skip
    """The table services by `options`, and their concurrency control with the writer."""
    said = {str(name).lower(): value for name, value in options.items()}
    concurrency_control = control_of(said, lambda: lock)
    return Upkeep(said, place.url, store, concurrency_control, clock=clock, emit=emit)


@dataclass(slots=True, kw_only=True)
class SparkWrite(TableWrite):
    """A write of a DataFrame's rows. Spark's executors write the files."""

    frame: DataFrame
    place: TableAddress

    def __post_init__(self) -> None:
        self.frame = self.frame.drop(*META_COLUMNS)

    def incoming(self) -> pa.Schema:
        return incoming_schema(self.frame)

    def check(self, config: TableConfig) -> None:
        refuse_outside_arrow(config)
        check_columns(self.frame, config, self.requested)

    @contextmanager
    def guarded(self, heart: Heartbeat, instant: str, stands_on: int) -> Iterator[None]:
        refuse_old_frame(self.frame, self.place, instant, stands_on)
        with _ends_with(heart, self.frame, attempt_tag(instant, self.place, stands_on)):
            yield

    def files(self, target: Target, snapshot: Snapshot, covered: CheckedHorizon) -> list[WriteStat]:
        from pyspark.sql import functions as f

        frame, requested, config = self.frame, self.requested, target.config
        if requested.operation == "delete_partition":
            if not requested.partitions:
                self.partitions = partition_paths(frame, config)
            return []
        if requested.operation == "insert_overwrite" and DELETED_FLAG in frame.columns:
            self.partitions = partition_paths(frame, config)
        if self.merges(config):
            snapshot = self.merges_into(snapshot)
        job = WriteJob(
            self.place, target, self.early_check(covered), requested.file_bytes_max,
            dict(snapshot.groups), BucketGroups(snapshot), self.only_logs(config),
        )  # fmt: skip
        if self.merges(config):
            return self._merged(frame, job, snapshot)
        if requested.combine or requested.drop_duplicates:
            frame = latest_of_each_key(frame, config)
        if requested.drop_duplicates and requested.operation in ("insert", "bulk_insert"):
            frame = without_known_keys(frame, job, snapshot.slices)
        job = replace(job, slices={}, groups=None)
        if fields := config.partition_fields:
            if requested.operation == "insert":
                # Few files in each partition; several tasks share a large partition.
                frame = frame.hint("rebalance", *map(f.col, fields))
            frame = frame.sortWithinPartitions(*fields)
        return insert_frame(frame, job)

    def _merged(self, frame: DataFrame, job: WriteJob, snapshot: Snapshot) -> list[WriteStat]:
        """Upserts and deletes: each row goes to the file group with its key, or to its bucket."""
        config = job.target.config
        delete = self.requested.operation == "delete"
        mixed = {each.partition for each in snapshot.slices if any_key(config, each)}
        looked_at = [each for each in snapshot.slices if each.partition in mixed]
        tasks = self.requested.tasks or min(
            TASKS_MAX,
            max(config.buckets * max(1, len({p for p, _ in snapshot.groups})), len(looked_at)),
        )
        if config.by_base_files or self.everywhere(config):
            everywhere = self.everywhere(config)
            return place_frame(frame, job, snapshot, tasks, delete=delete, everywhere=everywhere)
        frame = bucketed(frame, config)
        if looked_at:
            frame = with_found_keys(frame, job, looked_at)
        return merge_frame(frame, job, tasks, delete=delete)


@contextmanager
def _ends_with(heart: Heartbeat, frame: DataFrame, tag: str) -> Iterator[None]:
    """Cancel this write's Spark jobs once its heartbeat has expired."""
    put_on, cancel, take_off = _job_tags(frame)
    put_on(tag)
    heart.on_lost = lambda: cancel(tag)
    try:
        heart.assert_alive()
        yield
    except Exception as error:
        heart.assert_alive()  # an expired heartbeat is the cause
        if isinstance(old := unwrap(str(error)), OldRows):
            raise old from None
        raise
    finally:
        take_off(tag)


def _job_tags(frame: DataFrame) -> tuple[Callable[[str], Any], ...]:
    """Functions that tag this thread's jobs, cancel the jobs of a tag, and remove the tag."""
    session = getattr(frame, "sparkSession", None)
    if session is None:  # the rows are in a spool, without Spark
        return str, str, str
    context = getattr(session, "sparkContext", None)
    if context is None:  # Spark Connect
        return session.addTag, session.interruptTag, session.removeTag
    # Not the session's tags: only the thread that added such a tag can find it.
    return context.addJobTag, context.cancelJobsWithTag, context.removeJobTag


__all__ = ["STREAM", "STREAMS", "MicroBatch"]

_SPARKS_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(slots=True)
class MicroBatch:
    """Batch `batch` of the query `query`, which is being written to the table at `url`."""

    store: Store
    url: str
    query: str
    batch: int
    clock: Clock = field(default_factory=Clock)
    emit: Emit = silent
    checkpoint: str = ""
    """Spark's own id of the query if the query has another name; "" if it is unknown."""
    lock: str = ""
    """The option of the query that describes a lock; "": none does."""
    _batch: StreamBatch = field(init=False)

    def __post_init__(self) -> None:
        self._batch = StreamBatch(self.query, self.batch, self.checkpoint)

    @property
    def extra(self) -> dict[str, str]:
        return self._batch.extra

    def is_over(self, lock: LockHandle) -> bool:
        """Whether the batch is committed. If not, only this run can commit it from now on.

        A batch of a new checkpoint is a different batch, even with the same number. Raises
        `TableError` if another writer of this batch is alive and cannot be stopped.
        """

        def hold(
            rolls_back: Callable[[StateChange], Procedure[RolledBack | RollbackRefused]]
        ) -> Procedure[RolledBack | RollbackRefused]:
            with lock:
                return (yield from rolls_back(StateChange(guard_of(lock), lock.assert_held)))

        way = self._batch.state(hold, hadoop_base(self.url))
        state: BatchState = run(way, self.store, self.clock, self.emit)
        before = self._batch.before
        if before is not None and state is BatchState.NEW_CHECKPOINT:
            self._warn(
                f"query {self.query} has a new checkpoint, and the table has its batches up to "
                f"{before.batch} from an earlier one. Batch {self.batch} is written: it is not one "
                "of those, but may have some of their rows. Give a query with a new checkpoint "
                "another name"
            )
        if before is not None and state is BatchState.PASSED_OVER:
            self._warn_of_passing_over(before)
        return state in (BatchState.PASSED_OVER, BatchState.COMMITTED)

    def _warn_of_passing_over(self, before: BatchClaim) -> None:
        """Warn, unless Spark's id is known: with it, only an old run can send such a batch."""
        if not self.checkpoint and not _SPARKS_ID.fullmatch(self.query):
            self._warn(
                f"batch {self.batch} of query {self.query} is skipped: the table already has its "
                f"batch {before.batch}, and Spark sends no batch again after a later one. Either "
                "another run of this query is behind: stop it. Or the query has a new checkpoint, "
                "and rows are being left out: restart it under another name"
            )

    def _warn(self, text: str) -> None:
        self.emit("note", text=text)
        warnings.warn(text, RuntimeWarning, stacklevel=3)

    def claim(self, instant: str, attempt: str = "") -> None:
        """Record that `instant` writes this batch; `TableError` if another run claimed it."""
        run(self._batch.claim(instant, attempt), self.store, self.clock)
