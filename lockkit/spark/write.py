"""A DataFrame into a table: `write` begins, has the executors write file groups, and commits.

Executors write the files, and the driver commits: in its own Python process, where a stall of the
driver stops the commit and an error keeps its class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock, back_off_s
from lockkit.lock.conformance import TABLE_KEY, prove_conditions
from lockkit.lock.hudi_keys import TABLE_NAME
from lockkit.runtime import Procedure, run
from lockkit.sinks import Emit, EventSink, silent
from lockkit.spark.errors import unwrap
from lockkit.spark.frame import (
    TASKS_MAX,
    WriteJob,
    insert_frame,
    merge_frame,
)
from lockkit.spark.fresh import attempt_tag, refuse_old_frame
from lockkit.spark.options import WriteOptions, known_config, refuse_another, write_options
from lockkit.spark.place import TableAddress
from lockkit.spark.rows import (
    bucketed,
    check_columns,
    incoming_schema,
    latest_of_each_key,
    with_found_keys,
    without_known_keys,
)
from lockkit.stores import Store
from lockkit.stores.keywords import check_keywords
from lockkit.table.errors import CommitConflict, OldRows
from lockkit.table.format.base_file import Target
from lockkit.table.format.layout import FileGroup, WriteStat
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.schema import META_COLUMNS, arrow_schema, avro_schema, evolve
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.concurrency import control_of, refuse_unused_lock
from lockkit.table.occ.covered import CheckedHorizon
from lockkit.table.occ.creation import create_table
from lockkit.table.occ.heartbeat import Heartbeat
from lockkit.table.occ.locks import open_table_lock
from lockkit.table.occ.markers import unmark
from lockkit.table.occ.prepared import Prepared, prepare
from lockkit.table.occ.publish import after_commit
from lockkit.table.occ.transaction import Transaction
from lockkit.table.read.buckets import generations, is_bucketed
from lockkit.table.read.opening import load_snapshot, look_over
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.services.context import StoreHost
from lockkit.table.services.upkeep import Upkeep
from lockkit.table.write.attempt import AttemptHeartbeat, WriteAttempt
from lockkit.table.write.groups import EarlyCheck

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from lockkit.lock.contract import LockHandle

RETRY_FIRST_S, RETRY_LONGEST_S = 0.1, 10.0
Claim = Callable[[str], None]


def unclaimed(_instant: str) -> None:
    """For a write that no earlier attempt can have begun."""


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
    version: int | None = None,
    mode: str | None = None,
    buckets: int | None = None,
    retries: int | None = None,
    options: Mapping[str, Any] | None = None,
    lock: LockHandle | None = None,
    upkeep: Upkeep | None = None,
    client: str = "",
    extra: Mapping[str, str] | None = None,
    claim: Claim = unclaimed,
    emit: Emit = silent,
    clock: Clock | None = None,
    **store_options: Any,
) -> Committed | None:
    """Write `df` to the table at `url`, and make the table if it is not there. Returns the commit.

    ================  ===================  ========================================================
    parameter         default              meaning
    ================  ===================  ========================================================
    `operation`       upsert               upsert, insert, bulk_insert, delete, insert_overwrite (of
                                           the partitions that `df` has) or insert_overwrite_table
    `record_key`      the table's          the key's column; required for a new table
    `precombine`      the table's          the column that orders versions of a row
    `partition_path`  the table's          the partition's column
    `endpoint`        the service's        the store's URL
    `table_name`      the URL's last part  the name of a new table
    `version`         9                    the version of a new table: 6 or 9
    `mode`            fenced               of a new table: fenced, or hudi where Hudi writes too
    `buckets`         4                    of a new table: file groups for upserts in a partition
    `retries`         0                    further attempts after a conflict, up to 1000
    `options`         none                 Hudi's options (docs/options.md); keywords win over them
    `lock`            by `options`         a handle of any lock, which the caller closes
    `upkeep`          by `options`         shared table services (`table.services.upkeep.keep`)
    `client`          ""                   the name of this writer in events
    `extra`           none                 key-value pairs for the commit's metadata
    `claim`           none                 called with the instant of each attempt before it writes
                                           any file; may raise
    ================  ===================  ========================================================

    `store_options` are those of `open_store`. A `df` without rows makes no commit and returns None,
    unless `hoodie.allow.empty.commit` is true. Spark evaluates `df` once for each attempt.

    Raises `CommitConflict` after the last attempt, `OldRows` for rows read from this table before
    its latest commit, `LockBusy`, `LockLost`, `CommitUnknown`, `TableError` for rows or a table
    that cannot be written, `StoreError`.
    """
    wanted = write_options(
        options or {}, operation=operation, record_key=record_key, precombine=precombine,
        partition_path=partition_path, table_name=table_name, version=version, mode=mode,
        buckets=buckets, retries=retries,
    )  # fmt: skip
    check_keywords(write, url, store_options)
    clock, options = clock or Clock(), dict(options or {})
    refuse_unused_lock({str(name).lower(): value for name, value in options.items()}, lock)
    if wanted.table_name:
        options[TABLE_NAME] = wanted.table_name  # of which some locks make their key
    place = TableAddress(url.rstrip("/"), endpoint, client, store_options)
    with ExitStack() as opened:
        store = place.open()
        opened.callback(store.close)
        if upkeep is None:
            mine = lock or opened.enter_context(
                closing(open_lock(place, options, clock, emit))
            )
            emit = EventSink(place.url, mine.lane, emit, clock)
            upkeep = opened.enter_context(
                closing(open_upkeep(place, options, store, mine, clock, emit))
            )
        return SparkWrite(
            df, wanted, place, store, upkeep, clock, emit, dict(extra or {}), claim
        ).whole()


def open_lock(
    place: TableAddress, options: Mapping[str, Any], clock: Clock, emit: Emit
) -> LockHandle:
    """The lock that guards this table's commits, by the provider that `options` name."""
    return open_table_lock(
        place.url, options, clock=clock, emit=emit, client=place.client, endpoint=place.endpoint,
        **place.options,
    )  # fmt: skip


def open_upkeep(
    place: TableAddress, options: Mapping[str, Any], store: Store, lock: LockHandle, clock: Clock,
    emit: Emit,
) -> Upkeep:  # fmt: skip
    """The services by `options` and Hudi's defaults, and the turns they take with the writer."""
    said = {str(name).lower(): value for name, value in options.items()}
    concurrency_control = control_of(said, lambda: lock)
    return Upkeep(said, place.url, store, concurrency_control, clock=clock, emit=emit)


@dataclass(slots=True)
class SparkWrite:
    """One call of `write`; each attempt begins again on the current table."""

    frame: DataFrame
    requested: WriteOptions
    place: TableAddress
    store: Store
    upkeep: Upkeep
    clock: Clock
    emit: Emit
    extra: dict[str, str]
    claim: Claim = unclaimed

    def whole(self) -> Committed | None:
        """Attempt until one commits, or the last one conflicts."""
        most = self.requested.retries
        for tries in range(most + 1):
            try:
                return self.once()
            except CommitConflict as conflict:
                if tries == most:
                    raise
                self.emit("note", text=f"attempt {tries + 1} of {most + 1}: {conflict}")
                self.clock.sleep(
                    back_off_s(tries, self.clock, first_s=RETRY_FIRST_S, longest_s=RETRY_LONGEST_S)
                )
        raise AssertionError("a bounded loop that always returns or raises")

    def once(self) -> Committed | None:
        frame = self.frame.drop(*META_COLUMNS)
        incoming = incoming_schema(frame)
        config = self._table()
        known, seen = run(look_over(), self.store, self.clock)
        self.upkeep.before_write(known)
        shared = self.upkeep.context
        context = replace(shared, url=self.place.url, store=self.store, clock=self.clock,
                       emit=self.emit)  # fmt: skip
        attempt = WriteAttempt(StoreHost(context, self.requested.rules), self.requested.strategy)

        def files(transaction: Transaction, heart: AttemptHeartbeat) -> Procedure[Prepared | None]:
            yield from ()
            assert isinstance(heart, Heartbeat)
            prepared = self._written(frame, incoming, config, seen, transaction, heart)
            if prepared is not None:
                self.upkeep.before_commit(prepared)
            return prepared

        way = attempt.write(known, files, action=_action(self.requested.operation))
        committed = run(way, self.store, self.clock)
        if committed is None:
            return None
        with after_commit(committed):
            if self.requested.early:
                with suppress(Exception):  # leftover markers are cleaned up later
                    run(unmark(committed.instant), self.store, self.clock)
            self.upkeep.after_commit(seen.covered.count + 1)
        return committed

    def _written(
        self, frame: DataFrame, incoming: pa.Schema, config: TableConfig, seen: Snapshot,
        transaction: Transaction, heart: Heartbeat,
    ) -> Prepared | None:  # fmt: skip
        """One attempt's files and its commit's bytes; None where there is nothing to commit."""
        self.claim(transaction.instant)
        snapshot: Snapshot = run(
            load_snapshot(covering=transaction.covered, since=seen), self.store, self.clock
        )
        check_columns(frame, config, self.requested.operation)
        stands_on = snapshot.covered.count
        refuse_old_frame(frame, self.place, transaction.instant, stands_on)
        before = None if snapshot.schema is None else arrow_schema(snapshot.schema)
        schema = before if self.requested.operation == "delete" and before else None
        schema = schema or evolve(before, incoming)
        target = replace(transaction.target, schema=schema)
        tag = attempt_tag(transaction.instant, self.place, stands_on)
        with _ends_with(heart, frame, tag):
            stats = self._files(frame, target, snapshot, transaction.covered)
        self.emit("note", text=f"wrote {len(stats)} files", instant=transaction.instant)
        replaced = _replaced(self.requested.operation, stats, snapshot)
        if not stats and not replaced and not self.requested.allow_empty:
            return None
        return self._prepare(transaction, stats, snapshot, target, replaced)

    def _table(self) -> TableConfig:
        """The table's config; the table is made if it is not there."""
        prove_conditions(self.store, self.clock, key=TABLE_KEY)
        config, there = known_config(self.requested, self.place, self.store, self.clock)
        if there:
            return config
        config = run(create_table(config), self.store, self.clock)
        refuse_another(self.requested, config)
        return config

    def _files(
        self, frame: DataFrame, target: Target, snapshot: Snapshot, covered: CheckedHorizon
    ) -> list[WriteStat]:
        from pyspark.sql import functions as f

        requested, config = self.requested, target.config
        job = WriteJob(
            self.place, target, self._early(covered), requested.file_bytes_max,
            dict(snapshot.groups), generations(snapshot),
        )  # fmt: skip
        if requested.operation in ("upsert", "delete"):
            return self._merged(frame, job, snapshot)
        if requested.combine or requested.drop_duplicates:
            frame = latest_of_each_key(frame, config)
        if requested.drop_duplicates and requested.operation in ("insert", "bulk_insert"):
            frame = without_known_keys(frame, job, snapshot.slices)
        job = replace(job, slices={}, generations={})
        if config.partition_by is not None:
            if requested.operation == "insert":
                # Few files for each partition, and large partitions shared by several tasks.
                frame = frame.hint("rebalance", f.col(config.partition_by))
            frame = frame.sortWithinPartitions(config.partition_by)
        return insert_frame(frame, job)

    def _early(self, covered: CheckedHorizon) -> EarlyCheck | None:
        requested = self.requested
        if not requested.early:
            return None
        return EarlyCheck(covered, requested.rules, requested.strategy, requested.early_commits)

    def _merged(self, frame: DataFrame, job: WriteJob, snapshot: Snapshot) -> list[WriteStat]:
        """Upserts and deletes, each row sent to the group that has its key, else to its bucket."""
        config = job.target.config
        free = {each.partition for each in snapshot.slices if not is_bucketed(each.file_id)}
        looked_at = [each for each in snapshot.slices if each.partition in free]
        frame = bucketed(frame, config)
        if looked_at:
            frame = with_found_keys(frame, job, looked_at)
        tasks = self.requested.tasks or min(
            TASKS_MAX,
            max(config.buckets * max(1, len({p for p, _ in snapshot.groups})), len(looked_at)),
        )
        return merge_frame(frame, job, tasks, delete=self.requested.operation == "delete")

    def _prepare(
        self, transaction: Transaction, stats: list[WriteStat], snapshot: Snapshot,
        target: Target, replaced: frozenset[FileGroup],
    ) -> Prepared:  # fmt: skip
        assert target.schema is not None
        known = frozenset(partition for partition, _ in snapshot.groups)
        return run(
            prepare(
                transaction, stats, schema=avro_schema(target.schema, target.config.name),
                operation=self.requested.operation.upper(), known_partitions=known,
                replaced=replaced, extra=self.extra,
                grows=snapshot.schema is None or arrow_schema(snapshot.schema) != target.schema,
            ),
            self.store, self.clock, self.emit,
        )  # fmt: skip


@contextmanager
def _ends_with(heart: Heartbeat, frame: DataFrame, tag: str) -> Iterator[None]:
    """What Spark does for this write is cancelled once others may take its writer for dead."""
    put_on, cancel, take_off = _job_tags(frame)
    put_on(tag)
    heart.on_lost = lambda: cancel(tag)
    try:
        heart.assert_alive()
        yield
    except Exception as error:
        heart.assert_alive()  # then this is why
        if isinstance(old := unwrap(str(error)), OldRows):
            raise old from None
        raise
    finally:
        take_off(tag)


def _job_tags(frame: DataFrame) -> tuple[Callable[[str], Any], ...]:
    """How to tag this thread's jobs, to cancel those of a tag, and to tag no more."""
    session = getattr(frame, "sparkSession", None)
    if session is None:  # rows that came without Spark
        return str, str, str
    context = getattr(session, "sparkContext", None)
    if context is None:  # Spark Connect
        return session.addTag, session.interruptTag, session.removeTag
    # Not the session's own tags: there a tag is found only by the thread that added it.
    return context.addJobTag, context.cancelJobsWithTag, context.removeJobTag


def _action(operation: str) -> str:
    return "replacecommit" if operation.startswith("insert_overwrite") else "commit"


def _replaced(
    operation: str, stats: list[WriteStat], snapshot: Snapshot
) -> frozenset[FileGroup]:
    touched = {stat.partition for stat in stats}
    return frozenset(
        group for group in snapshot.groups
        if operation == "insert_overwrite_table"
        or (operation == "insert_overwrite" and group[0] in touched)
    )  # fmt: skip
