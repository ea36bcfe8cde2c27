"""A write of rows, whatever holds them: an attempt, and another one after a conflict.

`lockkit.spark.write` has rows in a DataFrame, a saved frame's are in a spool, and `Table.upsert`
has them in memory. They differ in how the files are made; the transaction is this one.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from lockkit.clock import Clock
from lockkit.lock.conformance import prove_conditions
from lockkit.lock.creation_check import TABLE_KEY
from lockkit.runtime import Procedure, run
from lockkit.sinks import Emit
from lockkit.stores import Store
from lockkit.table.format.base_file import Target, refuse_lacking
from lockkit.table.format.layout import FileGroup, WriteStat
from lockkit.table.format.properties import HUDI, TableConfig
from lockkit.table.format.refusals import refuse_keyless, refuse_millis, refuse_sliced_write
from lockkit.table.format.schema import avro_schema, evolve
from lockkit.table.format.schema_reading import arrow_schema
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.conflict import BUCKET, SIMPLE
from lockkit.table.occ.covered import CheckedHorizon
from lockkit.table.occ.creation import create_table
from lockkit.table.occ.group.refused import LateInstant
from lockkit.table.occ.heartbeat import Heartbeat
from lockkit.table.occ.markers import unmark
from lockkit.table.occ.nonblocking import refuse_blocking, refuse_replacing, strategy_for
from lockkit.table.occ.prepared import Prepared, prepare
from lockkit.table.occ.publish import after_commit
from lockkit.table.occ.transaction import Transaction
from lockkit.table.options import WriteOptions, known_config, refuse_another
from lockkit.table.read.bucket_groups import refuse_other_buckets, refuse_unsaid
from lockkit.table.read.opening import look_over, snapshot_for
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.services.context import StoreHost
from lockkit.table.services.upkeep import Upkeep
from lockkit.table.write.attempt import WriteAttempt, retried
from lockkit.table.write.contract import AttemptHeartbeat
from lockkit.table.write.following import TableState, at_hand, state_after
from lockkit.table.write.groups import (
    EarlyCheck,
    FileBuffer,
)
from lockkit.table.write.merge import refuse_other_key
from lockkit.table.write.merging import without
from lockkit.table.write.withdrawal import again_if_late, changes_nothing, publish_decided

if TYPE_CHECKING:
    import pyarrow as pa

BEGINS_MAX = 3
"""How often one attempt begins, each time after publishing what another writer had decided."""
Claim = Callable[[str, str], None]


def unclaimed(_instant: str, _attempt: str) -> None:
    """The default: no earlier attempt can have begun this write."""


@dataclass(slots=True, kw_only=True)
class TableWrite(ABC):
    """One write. Each attempt begins anew on the current table."""

    requested: WriteOptions
    url: str
    store: Store
    upkeep: Upkeep
    clock: Clock
    emit: Emit
    extra: dict[str, str] = field(default_factory=dict)
    claim: Claim = unclaimed
    follows: bool = False
    """Whether this handle's last write left `found`, not a look at the table."""
    found: TableState | None = None
    """The table as this writer's last commit left it. The first attempt begins with it; another
    attempt reads the table again. Afterwards it is the table as this commit left it."""
    buffer: FileBuffer | None = None
    alive: Callable[[], None] | None = None
    partitions: frozenset[str] = frozenset()
    """`delete_partition` without paths in `requested`: those of the rows, once `files` is done."""

    def whole(self) -> Committed | None:
        """Try until an attempt commits, or the last one conflicts."""
        once = partial(again_if_late, self.once)
        return retried(once, self.requested.retries, self.clock, self.emit)

    def once(self, begins: int = BEGINS_MAX) -> Committed | None:
        """One attempt; it begins up to `begins` times, if it meets decided commits."""
        incoming = self.incoming()
        found, self.found = self.found, None
        before = None if found is None else found[1].covered.count
        if found is None:
            self._table()
            found = run(look_over(), self.store, self.clock)
        known, seen = found
        self.check(known.config)
        refuse_lacking(known.config, arrow_schema(seen.schema) if seen.schema else None)
        self._refuse(known.config)
        refuse_unsaid(seen, self.store, self.clock)
        refuse_other_buckets(self.store, known.config)
        if known.config.hashed and known.config.mode == HUDI and self.requested.strategy is SIMPLE:
            # As Hudi does: its writers give a bucket's first file group an id of their own.
            self.requested = replace(self.requested, strategy=BUCKET)
        strategy = self.requested.strategy
        if self.requested.nonblocking:
            refuse_blocking(known.config, self.requested.concurrency)
            strategy = strategy_for(self.requested.operation, strategy)
        elif known.config.by_base_files:  # a bucket may have several file groups
            strategy = replace(strategy, unit=BUCKET.unit)
        self.upkeep.before_write(known)
        state: list[tuple[Snapshot, Prepared]] = []
        shared = self.upkeep.context
        context = replace(shared, url=self.url, store=self.store, clock=self.clock, emit=self.emit)
        host = StoreHost(context, self.requested.rules)
        attempt = WriteAttempt(host, strategy, self.upkeep.before_commit)

        again = False

        def files(transaction: Transaction, heart: AttemptHeartbeat) -> Procedure[Prepared | None]:
            nonlocal again
            assert isinstance(heart, Heartbeat)
            if begins > 1 and (again := (yield from publish_decided(transaction))):
                return None
            snapshot = self._begins(transaction, seen)
            prepared = self._written(incoming, snapshot, transaction, heart)
            if prepared is None:
                yield from changes_nothing(host.together, transaction.instant)
            else:
                state.append((snapshot, prepared))
            return prepared

        with self.ahead(known.config, seen) as self.buffer:
            way = attempt.write(
                known, files, action=_action(self.requested.operation, known.config),
                short=self.buffer is not None, at_hand=self._at_hand(seen),
            )  # fmt: skip
            try:
                committed = run(way, self.store, self.clock)
            except LateInstant as late:  # nothing that it knows has become wrong
                self.found = replace(known, newest=max(known.newest, late.instant)), seen
                raise
            if committed is not None and self.buffer is not None:
                with after_commit(committed):  # it waits for threads, and may be interrupted there
                    self.buffer.close()
        if committed is None:
            return self.once(begins - 1) if again else None
        with after_commit(committed):
            if self.requested.early or (known.config.sliced and not attempt.is_short):
                with suppress(Exception):  # leftover markers are cleaned up later
                    run(unmark(committed.instant), self.store, self.clock)
            self.found = state_after(*state[0], committed)
            self.upkeep.after_commit(state[0][0].covered.count + 1, before=before)
        return committed

    # --- what depends on where the rows are ------------------------------------------------------

    @abstractmethod
    def incoming(self) -> pa.Schema:
        """The rows' columns; `TableError` for a type that a table cannot have."""

    @abstractmethod
    def check(self, config: TableConfig) -> None:
        """Raise `TableError` if the rows lack a column that the table needs."""

    @abstractmethod
    def files(self, target: Target, snapshot: Snapshot, covered: CheckedHorizon) -> list[WriteStat]:
        """Write the files of one attempt."""

    def _refuse(self, config: TableConfig) -> None:
        operation = self.requested.operation
        refuse_sliced_write(config, operation, self.requested.partial)
        refuse_replacing(config, operation)
        refuse_keyless(config, operation)
        if self.everywhere(config):
            from lockkit.table.write.global_index import refuse_global

            refuse_global(config)

    def merges(self, config: TableConfig) -> bool:
        """Whether each row goes to the file group that has its key, or to its bucket's."""
        return config.merged or config.hashed or self.requested.operation in ("upsert", "delete")

    def everywhere(self, config: TableConfig) -> bool:
        """Whether a key is looked for in all partitions."""
        upserts = ("upsert", "insert", "bulk_insert") if config.merged else ("upsert",)
        finds = self.requested.operation in ("delete", *upserts)
        return self.requested.everywhere and finds and config.partition_by is not None

    def _at_hand(self, seen: Snapshot) -> frozenset[str] | None:
        of = self.requested
        if not self.follows or self.buffer is None or of.early or of.nonblocking:
            return None
        return None if self.everywhere(seen.config) else at_hand(of.operation, self.buffer, seen)

    def only_logs(self, config: TableConfig) -> bool:
        """Whether a new file group begins with a log file, as in Hudi with a bucket index."""
        return config.hashed and not self.requested.operation.startswith("insert_overwrite")

    def merges_into(self, snapshot: Snapshot) -> Snapshot:
        """The file groups that rows are merged into: none of those that an overwrite replaces."""
        overwrites = self.requested.operation.startswith("insert_overwrite")
        return without(snapshot, snapshot.groups) if overwrites else snapshot

    def ahead(
        self, config: TableConfig, seen: Snapshot
    ) -> AbstractContextManager[FileBuffer | None]:
        """Begin the work that needs no instant yet."""
        return nullcontext()

    @contextmanager
    def guarded(self, heart: Heartbeat, instant: str, stands_on: int) -> Iterator[None]:
        """Around `files`: raises where rows are older than `stands_on` commits (`OldRows`), or
        once other writers may treat this one as dead."""
        heart.assert_alive()
        try:
            yield
        except Exception:
            heart.assert_alive()  # then this is why
            raise

    # --- one attempt -----------------------------------------------------------------------------

    def _begins(self, transaction: Transaction, seen: Snapshot) -> Snapshot:
        """The table that the files are made for, maybe once more (`held.Outrun`)."""
        if self.buffer is not None:
            follows = transaction.config.sliced and transaction.beside is not None
            self.buffer.begin(marks_later=follows)
        snapshot: Snapshot = run(snapshot_for(transaction, seen), self.store, self.clock)
        return snapshot

    def _written(
        self, incoming: pa.Schema, snapshot: Snapshot, transaction: Transaction, heart: Heartbeat
    ) -> Prepared | None:
        """One attempt's files and its commit's bytes; None if there is nothing to commit."""
        self.claim(transaction.instant, transaction.taken.attempt)
        self.alive = heart.assert_alive
        before = None if snapshot.schema is None else arrow_schema(snapshot.schema)
        if snapshot.config.merged:
            refuse_millis(snapshot.schema)
        schema = before if self.requested.operation.startswith("delete") else None
        if schema is not None and self.requested.operation == "delete":
            refuse_other_key(snapshot.config, schema, incoming)
        schema = schema or evolve(before, incoming)
        config = transaction.config
        config = replace(config, log_format=self.requested.log_format or config.log_format)
        target = Target(transaction.instant, config, schema, self.requested.partial)
        with self.guarded(heart, transaction.instant, snapshot.covered.count):
            stats = self.files(target, snapshot, transaction.covered)
        self.emit("note", text=f"wrote {len(stats)} files", instant=transaction.instant)
        replaced = self._replaced(stats, snapshot)
        if not stats and not replaced and not self.requested.allow_empty:
            return None
        heart.assert_alive()  # small files are not put before
        return self._prepare(transaction, stats, snapshot, target, replaced)

    def _replaced(self, stats: list[WriteStat], snapshot: Snapshot) -> frozenset[FileGroup]:
        if _action(self.requested.operation, snapshot.config) != "replacecommit":
            return frozenset()
        return self._emptied({stat.partition for stat in stats} | self.partitions, snapshot)

    def _emptied(self, touched: Collection[str], snapshot: Snapshot) -> frozenset[FileGroup]:
        """The file groups that an overwrite replaces, which has rows of `touched` partitions."""
        if self.requested.operation == "insert_overwrite_table":
            return frozenset(snapshot.groups)
        named = [".*".join(map(re.escape, each.split("*"))) for each in self.requested.partitions]
        wanted = re.compile("|".join(named) or "(?!)", re.DOTALL)
        return frozenset(group for group in snapshot.groups
                         if group[0] in touched or wanted.fullmatch(group[0]))  # fmt: skip

    def _table(self) -> None:
        """Create the table if it is missing; `TableError` if it differs from the one wanted."""
        prove_conditions(self.store, self.clock, key=TABLE_KEY)
        config, there = known_config(self.requested, self.url, self.store, self.clock)
        if not there:
            config = run(create_table(config, either=True), self.store, self.clock)
            refuse_another(self.requested, config)

    def early_check(self, covered: CheckedHorizon) -> EarlyCheck | None:
        of = self.requested
        check = EarlyCheck(covered, of.rules, of.strategy, of.early_commits)
        return check if of.early else None

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
                unsent=self.buffer.unsent if self.buffer else (), alive=self.alive,
            ),
            self.store, self.clock, self.emit,
        )  # fmt: skip


def _action(operation: str, config: TableConfig) -> str:
    replaces = operation == "delete_partition" or operation.startswith("insert_overwrite")
    return "replacecommit" if replaces else config.action
