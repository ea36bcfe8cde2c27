"""A DataFrame into a table: `write` begins, has the executors write file groups, and commits.

The files are the executors' work, the commit the driver's: in its own Python, where a stall of the
driver stops it and an error keeps its class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock, back_off_s
from lockkit.errors import CommitConflict, OldRows, TableError
from lockkit.lock.conformance import TABLE_KEY, prove_conditions
from lockkit.lock.hudi_keys import TABLE_NAME
from lockkit.runtime import Procedure, run
from lockkit.sinks import Emit, Voice, silent
from lockkit.spark.errors import unwrap
from lockkit.spark.frame import (
    GROUP,
    KEY,
    PART,
    STORED_PART,
    TASKS_MAX,
    Job,
    insert_frame,
    merge_frame,
    stored_keys,
)
from lockkit.spark.frame import write_frame as write_frame
from lockkit.spark.fresh import attempt_tag, refuse_old_frame
from lockkit.spark.options import Asked, asked
from lockkit.spark.place import Place
from lockkit.stores import Store, check_keywords
from lockkit.table.format.base_file import Slice, Target
from lockkit.table.format.gate import refuse_other
from lockkit.table.format.layout import FileGroup, WriteStat
from lockkit.table.format.properties import PROPERTIES_KEY, TableConfig, load_config
from lockkit.table.format.schema import META_COLUMNS, arrow_schema, avro_schema, evolve
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.concurrency import turns_of
from lockkit.table.occ.covered import Covered
from lockkit.table.occ.creation import create_table
from lockkit.table.occ.heartbeat import Heartbeat
from lockkit.table.occ.locks import AnyLock, open_table_lock
from lockkit.table.occ.markers import unmark
from lockkit.table.occ.publish import after_commit
from lockkit.table.occ.transaction import Prepared, Transaction, prepare
from lockkit.table.read.buckets import generations, is_bucketed
from lockkit.table.read.checkpoint import look_over
from lockkit.table.read.snapshot import Snapshot, load_snapshot
from lockkit.table.services.host import StoreHost
from lockkit.table.services.upkeep import Upkeep
from lockkit.table.write.attempt import Attempt, Heart
from lockkit.table.write.groups import Aim as Aim
from lockkit.table.write.groups import Early

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

RETRY_FIRST_S, RETRY_LONGEST_S = 0.1, 10.0
ORDER, ROW, FOUND = "_lockkit_order", "_lockkit_row", "_lockkit_found"
Claim = Callable[[str], None]
_KEY_TYPES = ("string", "int", "bigint", "smallint", "tinyint", "date", "decimal")


def unclaimed(_instant: str) -> None:
    """For a write that nobody can have begun before."""


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
    lock: AnyLock | None = None,
    upkeep: Upkeep | None = None,
    client: str = "",
    extra: Mapping[str, str] | None = None,
    claim: Claim = unclaimed,
    emit: Emit = silent,
    clock: Clock | None = None,
    **store_options: Any,
) -> Committed | None:
    """Write `df` to the table at `url`, made if it is not there; returns the commit.

    `operation`: upsert (the default), insert, bulk_insert, delete, insert_overwrite (of the
    partitions that `df` touches) or insert_overwrite_table. What is None is as the table says, or
    as `options` do, by Hudi's names. A `df` without rows makes no commit, and returns None, unless
    `hoodie.allow.empty.commit` is true. Spark evaluates `df` once for each attempt. `claim` is told
    the instant of each attempt before it writes any file, and may raise. The table's services run
    inline, by `options` and Hudi's defaults, or by those of `upkeep`
    (`lockkit.table.services.upkeep.keep`).
    `lock` is a handle of any service's lock; by default the lock that the provider named by
    `options` grants, else the table's own lock object.

    Raises `CommitConflict` once `retries` more attempts at the whole write are spent, `LockBusy`,
    `LockLost`, `CommitUnknown`, `TableError` for rows or a table that cannot be, `StoreError`.
    """
    wanted = asked(
        options or {}, operation=operation, record_key=record_key, precombine=precombine,
        partition_path=partition_path, table_name=table_name, version=version, mode=mode,
        buckets=buckets, retries=retries,
    )  # fmt: skip
    check_keywords(write, url, store_options)
    clock, options = clock or Clock(), dict(options or {})
    if wanted.table_name:
        options[TABLE_NAME] = wanted.table_name  # of which some locks make their key
    place = Place(url.rstrip("/"), endpoint, client, store_options)
    with ExitStack() as opened:
        store = place.open()
        opened.callback(store.close)
        if upkeep is None:
            mine = lock or opened.enter_context(
                closing(open_lock(place, options, clock, emit))
            )
            emit = Voice(place.url, mine.lane, emit, clock)
            upkeep = opened.enter_context(
                closing(open_upkeep(place, options, store, mine, clock, emit))
            )
        return Write(
            df, wanted, place, store, upkeep, clock, emit, dict(extra or {}), claim
        ).whole()


def open_lock(place: Place, options: Mapping[str, Any], clock: Clock, emit: Emit) -> AnyLock:
    """The lock that guards this table's commits, by the provider that `options` name."""
    return open_table_lock(
        place.url, options, clock=clock, emit=emit, client=place.client, endpoint=place.endpoint,
        **place.options,
    )  # fmt: skip


def open_upkeep(
    place: Place, options: Mapping[str, Any], store: Store, lock: AnyLock, clock: Clock, emit: Emit
) -> Upkeep:
    """The services by `options` and Hudi's defaults, and the turns they take with the writer."""
    said = {str(name).lower(): value for name, value in options.items()}
    turns = turns_of(said, lambda: lock)
    return Upkeep(said, place.url, store, turns, clock=clock, emit=emit)


@dataclass(slots=True)
class Write:
    """One call of `write`; each attempt begins anew, on the table as it then is."""

    frame: DataFrame
    asked: Asked
    place: Place
    store: Store
    upkeep: Upkeep
    clock: Clock
    emit: Emit
    extra: dict[str, str]
    claim: Claim = unclaimed

    def whole(self) -> Committed | None:
        """Attempts until one commits, or meets its last conflict."""
        most = self.asked.retries
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
        shared = self.upkeep.service.desk
        desk = replace(shared, url=self.place.url, store=self.store, clock=self.clock,
                       emit=self.emit)  # fmt: skip
        attempt = Attempt(StoreHost(desk, self.asked.rules), self.asked.strategy)

        def files(transaction: Transaction, heart: Heart) -> Procedure[Prepared | None]:
            yield from ()
            assert isinstance(heart, Heartbeat)
            prepared = self._written(frame, incoming, config, seen, transaction, heart)
            if prepared is not None:
                self.upkeep.before_commit(prepared)
            return prepared

        way = attempt.write(known, files, action=_action(self.asked.operation))
        committed = run(way, self.store, self.clock)
        if committed is None:
            return None
        with after_commit(committed):
            if self.asked.early:
                with suppress(Exception):  # whatever becomes of the markers
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
        check_columns(frame, config, self.asked.operation)
        stands_on = snapshot.covered.count
        refuse_old_frame(frame, self.place, transaction.instant, stands_on)
        before = None if snapshot.schema is None else arrow_schema(snapshot.schema)
        schema = before if self.asked.operation == "delete" and before else None
        schema = schema or evolve(before, incoming)
        target = replace(transaction.target, schema=schema)
        tag = attempt_tag(transaction.instant, self.place, stands_on)
        with _ends_with(heart, frame, tag):
            stats = self._files(frame, target, snapshot, transaction.covered)
        self.emit("note", text=f"wrote {len(stats)} files", instant=transaction.instant)
        replaced = _replaced(self.asked.operation, stats, snapshot)
        if not stats and not replaced and not self.asked.allow_empty:
            return None
        return self._prepare(transaction, stats, snapshot, target, replaced)

    def _table(self) -> TableConfig:
        """The table's config; the table is made if it is not there."""
        prove_conditions(self.store, self.clock, key=TABLE_KEY)
        config, there = known_config(self.asked, self.place, self.store, self.clock)
        if there:
            return config
        config = run(create_table(config), self.store, self.clock)
        _refuse_other(self.asked, config)
        return config

    def _files(
        self, frame: DataFrame, target: Target, snapshot: Snapshot, covered: Covered
    ) -> list[WriteStat]:
        from pyspark.sql import functions as f

        asked, config = self.asked, target.config
        job = Job(
            self.place, target, self._early(covered), asked.file_bytes_max, dict(snapshot.groups),
            generations(snapshot),
        )  # fmt: skip
        if asked.operation in ("upsert", "delete"):
            return self._merged(frame, job, snapshot)
        if asked.combine or asked.drop_duplicates:
            frame = _latest(frame, config)
        if asked.drop_duplicates and asked.operation in ("insert", "bulk_insert"):
            frame = _unknown_keys(frame, job, snapshot.slices)
        job = replace(job, slices={}, generations={})
        if config.partition_by is not None:
            if asked.operation == "insert":
                # Few files for each partition, and large partitions shared by several tasks.
                frame = frame.hint("rebalance", f.col(config.partition_by))
            frame = frame.sortWithinPartitions(config.partition_by)
        return insert_frame(frame, job)

    def _early(self, covered: Covered) -> Early | None:
        asked = self.asked
        if not asked.early:
            return None
        return Early(covered, asked.rules, asked.strategy, asked.early_commits)

    def _merged(self, frame: DataFrame, job: Job, snapshot: Snapshot) -> list[WriteStat]:
        """Upserts and deletes, each row sent to the group that has its key, else to its bucket."""
        config = job.target.config
        free = {each.partition for each in snapshot.slices if not is_bucketed(each.file_id)}
        looked_at = [each for each in snapshot.slices if each.partition in free]
        frame = _bucketed(frame, config)
        if looked_at:
            frame = _found_keys(frame, job, looked_at)
        tasks = self.asked.tasks or min(
            TASKS_MAX,
            max(config.buckets * max(1, len({p for p, _ in snapshot.groups})), len(looked_at)),
        )
        return merge_frame(frame, job, tasks, delete=self.asked.operation == "delete")

    def _prepare(
        self, transaction: Transaction, stats: list[WriteStat], snapshot: Snapshot,
        target: Target, replaced: frozenset[FileGroup],
    ) -> Prepared:  # fmt: skip
        assert target.schema is not None
        known = frozenset(partition for partition, _ in snapshot.groups)
        return run(
            prepare(
                transaction, stats, schema=avro_schema(target.schema, target.config.name),
                operation=self.asked.operation.upper(), known_partitions=known, replaced=replaced,
                extra=self.extra,
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
        heart.check()
        yield
    except Exception as error:
        heart.check()  # then this is why
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


# --- the table ----------------------------------------------------------------------------------


def known_config(
    asked: Asked, place: Place, store: Store, clock: Clock
) -> tuple[TableConfig, bool]:
    """The table's config, or the one that it is to be made with, and whether it is there."""
    try:
        config, _version = run(load_config(), store, clock)
    except TableError:
        if not store.list(PROPERTIES_KEY):
            config = new_config(asked, place)
            refuse_other(asked.described, config)
            return config, False
        config, _version = run(load_config(), store, clock)  # made meanwhile, or no table of ours
    _refuse_other(asked, config)
    return config, True


def new_config(asked: Asked, place: Place) -> TableConfig:
    if asked.record_key is None:
        raise TableError(
            f"there is no table at {place.url} yet, and without a record_key none can be made"
        )
    default = TableConfig(name="t", record_key="k")
    return TableConfig(
        name=asked.table_name or place.url.rpartition("/")[2],
        record_key=asked.record_key,
        partition_by=asked.partition_path,
        precombine=asked.precombine,
        version=asked.version or default.version,
        mode=asked.mode or default.mode,
        buckets=asked.buckets or default.buckets,
        hive_style=default.hive_style if asked.hive_style is None else asked.hive_style,
        urlencode=default.urlencode if asked.urlencode is None else asked.urlencode,
    )


def _refuse_other(asked: Asked, config: TableConfig) -> None:
    """Raise where the write says something else of the table than the table does."""
    said = {
        "record_key": (asked.record_key, config.record_key),
        "partition_path": (asked.partition_path, config.partition_by),
        "precombine": (asked.precombine, config.precombine),
        "table_name": (asked.table_name, config.name),
        "version": (asked.version, config.version),
        "mode": (asked.mode, config.mode),
        "buckets": (asked.buckets, config.buckets),
    }
    for name, (mine, theirs) in said.items():
        if mine is not None and mine != theirs:
            raise TableError(
                f"{name} is {theirs!r} in the table and {mine!r} in this write; leave it out to "
                "take the table's, or choose another place"
            )
    refuse_other(asked.described, config)


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


# --- rows ---------------------------------------------------------------------------------------


def incoming_schema(frame: DataFrame) -> pa.Schema:
    """The rows' columns as Arrow has them; `TableError` for a type that it has not."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(frame.schema, timezone="UTC")
    except PySparkException as error:
        raise TableError(f"these rows cannot be written: {str(error)[:200]}") from None


def check_columns(frame: DataFrame, config: TableConfig, operation: str) -> None:
    needed = {"record key": config.record_key, "partition field": config.partition_by}
    if operation != "delete":
        needed["precombine field"] = config.precombine
    kinds = dict(frame.dtypes)
    for what, name in needed.items():
        if name is not None and name not in kinds:
            raise TableError(f"the rows have no column {name!r}, the table's {what}")
    kind = kinds[config.record_key]
    if kind.partition("(")[0] not in _KEY_TYPES:
        raise TableError(
            f"record key {config.record_key!r} has type {kind[:60]}: its values have no one "
            "spelling to be compared by; cast it to string"
        )


def _bucketed(frame: DataFrame, config: TableConfig) -> DataFrame:
    """With the number of its bucket in `GROUP`, in eight digits."""
    from pyspark.sql import functions as f

    key = f.col(config.record_key).cast("string")
    number = f.pmod(f.xxhash64(key), f.lit(config.buckets)).cast("string")
    frame = frame.withColumn(GROUP, f.lpad(number, 8, "0"))
    if config.partition_by is None:
        return frame
    return frame.withColumn(PART, _partition(frame, config.partition_by))


def _partition(frame: DataFrame, column: str) -> Any:
    """The partition's value; an empty string has the path, and so the partition, of a null."""
    from pyspark.sql import functions as f

    value = frame[column]
    return f.nullif(value, f.lit("")) if dict(frame.dtypes)[column] == "string" else value


def _on_key(frame: DataFrame, keys: DataFrame, config: TableConfig) -> Any:
    on = frame[config.record_key].cast("string") == keys[KEY]
    if config.partition_by is not None:
        theirs = _partition(keys, STORED_PART)
        on = on & _partition(frame, config.partition_by).eqNullSafe(theirs)
    return on


def _found_keys(frame: DataFrame, job: Job, slices: list[Slice]) -> DataFrame:
    """With the file id in `GROUP` where one of `slices` has the key; in several, a row for each."""
    from pyspark.sql import functions as f

    config = job.target.config
    keys = stored_keys(frame, job, slices).withColumnRenamed(GROUP, FOUND).distinct()
    # Spark takes what comes from Python for small, and would broadcast a whole table's keys.
    found = frame.join(keys.hint("merge"), _on_key(frame, keys, config), "left")
    tagged = found.withColumn(GROUP, f.coalesce(f.col(FOUND), f.col(GROUP)))
    return tagged.drop(FOUND, KEY, STORED_PART)


def _unknown_keys(frame: DataFrame, job: Job, slices: list[Slice]) -> DataFrame:
    """Only rows whose key none of `slices` has."""
    if not slices:
        return frame
    keys = stored_keys(frame, job, slices)
    return frame.join(keys.hint("merge"), _on_key(frame, keys, job.target.config), "left_anti")


def _latest(frame: DataFrame, config: TableConfig) -> DataFrame:
    """One row for each key: the greatest precombine value, of equals the last."""
    from pyspark.sql import functions as f

    by = [config.record_key] + ([config.partition_by] if config.partition_by else [])
    order = [config.precombine] if config.precombine else []
    row = f.struct(*[f.col(f"`{name}`") for name in frame.columns])
    numbered = frame.withColumn(ORDER, f.monotonically_increasing_id())
    latest = numbered.groupBy(*by).agg(f.max_by(row, f.struct(*order, ORDER)).alias(ROW))
    return latest.select(f"{ROW}.*")
