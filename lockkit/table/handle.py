"""A handle on a table, for one writer: its store, its lock, and what it knows about the table.

    with Table("s3://lake/orders", endpoint=...) as table:
        table.append(rows)

A warm handle's append takes five round trips: the instant; its listing beside the files; the lock
beside the fence and the properties; the fence; the completed file beside the release.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.runtime import run
from lockkit.sinks import Emit, EventSink, silent
from lockkit.stores import Store, open_store
from lockkit.table.format.base_file import BaseFile, Target, write_inserts
from lockkit.table.format.partition import by_partition
from lockkit.table.format.properties import HUDI, TableConfig
from lockkit.table.format.schema import arrow_schema, avro_schema, conform, evolve
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.concurrency import control_of, refuse_unused_lock, see_conditions
from lockkit.table.occ.conflict import SIMPLE, ConflictStrategy
from lockkit.table.occ.liveness import heartbeat_rules
from lockkit.table.occ.locks import open_table_lock
from lockkit.table.occ.publish import after_commit
from lockkit.table.occ.transaction import TableCache
from lockkit.table.read.buckets import free_file_id
from lockkit.table.read.opening import look_over
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.services.context import ServiceContext, StoreHost
from lockkit.table.services.upkeep import Upkeep
from lockkit.table.write.append import NewRows
from lockkit.table.write.attempt import WriteAttempt

if TYPE_CHECKING:
    import pyarrow as pa

    from lockkit.lock.contract import LockHandle


class Table:
    """A table that exists, opened by one writer. One thread may use it at a time.

    ===============  =======================  =====================================================
    parameter        default                  meaning
    ===============  =======================  =====================================================
    `url`                                     the table's folder (s3://, gs://, az://, file://)
    `lock`           by `options`             a handle of any lock, which the caller closes, or
                                              keywords of `Lock` (`ttl_s`, `acquire_timeout`)
    `options`        Hudi's defaults          Hudi's options; docs/options.md lists what each does
    `strategy`       `SIMPLE`                 which commits conflict, and which writer gives way
    `emit`           no sink                  called with each event
    `clock`          the machine's            the source of time
    `client`         ""                       the name of this writer in events
    `store_options`  those of `open_store`    passed to `open_store` (`endpoint`, `timeout_s`)
    ===============  =======================  =====================================================

    Times are in seconds. By default the table's own lock object guards commits;
    `hoodie.write.lock.provider` names another lock, and as the table's `single_writer` the handle
    sends no lock request. Table services run inline, as in Hudi: the writer cleans after its
    commits and rolls back dead writers that it meets, unless `hoodie.clean.automatic` or
    `hoodie.table.services.enabled` is false. Clustering needs `hoodie.clustering.inline`.

    Raises `TypeError` for a keyword that nothing takes, `TableError` for an option that is refused
    or a table that cannot be written, `StoreError` where the store cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        lock: LockHandle | Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        strategy: ConflictStrategy = SIMPLE,
        emit: Emit = silent,
        clock: Clock | None = None,
        client: str = "",
        **store_options: Any,
    ) -> None:
        if store_options:
            from lockkit.stores.keywords import check_keywords  # why: see there

            check_keywords(Table, url, store_options)
        given: dict[str, Any] = {}
        self._described: dict[str, Any] = {}
        """What the options say of the table."""
        if options:
            from lockkit.table.format.gate import (
                check_append_options,
                check_options,
                described,
            )

            given = check_options(options)
            check_append_options(given)
            refuse_unused_lock(given, lock)
            self._described = described(given)
        self.url = url.rstrip("/")
        self.clock = clock or Clock()
        self.store: Store = open_store(self.url, client=client, **store_options)
        self._own_lock = lock is None or isinstance(lock, Mapping)
        self.lock: LockHandle = open_table_lock(
            self.url, given, clock=self.clock, emit=emit, client=client, how=lock,
            **store_options,
        ) if lock is None or isinstance(lock, Mapping) else lock  # fmt: skip
        self.concurrency_control = control_of(given, lambda: self.lock)
        self.emit = EventSink(self.url, self.lock.lane, emit, self.clock)
        self._upkeep = Upkeep(
            given, self.url, self.store, self.concurrency_control, clock=self.clock, emit=self.emit
        )
        self.strategy = strategy
        self.heartbeat = heartbeat_rules(given)
        self._known: TableCache | None = None
        self._schema: pa.Schema | None = None
        self._schema_at = ""  # the newest commit that is known to have no other columns
        self._partitions: frozenset[str] = frozenset()
        self._busy = threading.Lock()

    def append(self, rows: pa.Table) -> Committed:
        """Commit `rows` as new file groups, and return the commit once every reader sees it.

        `rows` are in memory and may be of any partitions.

        ================  =========================================================================
        error             what it means
        ================  =========================================================================
        `CommitConflict`  another commit conflicts (added columns, an overwrite); append again
        `LockBusy`        the lock was not free within its `acquire_timeout`; nothing was committed
        `LockLost`        the lease ended before the commit; nothing was committed
        `CommitUnknown`   the outcome is not known yet; `.prepared` can be published again
        `TableError`      the rows do not fit the table, or the table cannot be written
        `StoreError`      the store refused or did not answer; nothing was committed
        ================  =========================================================================
        """
        import pyarrow as pa

        if not isinstance(rows, pa.Table):
            raise TableError(
                f"rows are appended as a pyarrow.Table, and these are a {type(rows).__name__}; "
                "pyarrow.Table.from_pylist, from_pandas or from_batches makes one"
            )
        with self._alone("append"):
            see_conditions(self.store, self.clock)
            known = self._open()
            self._upkeep.before_write(known)
            _refuse_missing(rows, known.config)
            schema = evolve(self._schema, rows.schema)
            rows = conform(rows, schema)
            new = NewRows(
                lambda target: self._files(target, rows), avro_schema(schema, known.config.name),
                self._partitions, grows=schema != self._schema, schema_at=self._schema_at,
            )  # fmt: skip
            attempt = WriteAttempt(StoreHost(self._context, self.heartbeat), self.strategy)
            way = attempt.append(known, new, self._upkeep.before_commit)
            try:
                committed = run(way, self.store, self.clock)
            finally:
                self._known = attempt.known or known
            self._known = replace(self._known, newest=max(self._known.newest, committed.instant))
            self._schema, self._schema_at = schema, committed.instant
            self._partitions |= {partition for partition, _ in attempt.groups}
            prepared = attempt.prepared
            assert prepared is not None
            if known.config.mode == HUDI:  # its lock was held until here
                with after_commit(committed):
                    self._upkeep.before_commit(prepared)
        with after_commit(committed):
            seen = prepared.transaction.timeline.commits
            self._upkeep.after_append(sum(each > known.newest for each in seen))
        return committed

    @property
    def _context(self) -> ServiceContext:
        shared = self._upkeep.context
        return replace(shared, store=self.store, clock=self.clock, emit=self.emit)

    def refresh(self) -> Snapshot:
        """Read the table again and return its latest snapshot."""
        with self._alone("refresh"):
            return self._load()

    def close(self) -> None:
        """Close the clients of the table and of its own lock, after a running service has ended."""
        self._upkeep.close()
        if self._own_lock:
            self.lock.close()
        self.store.close()

    def __repr__(self) -> str:
        config = self._known and self._known.config
        about = f"{config.name}, {config.mode} mode" if config else "not read yet"
        return f"<Table {self.url}: {about}, {self.concurrency_control.mode}, {self.lock!r}>"

    def __enter__(self) -> Table:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    # --- what it knows ---------------------------------------------------------------------------

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        # Hudi's caveat: one client shared by two threads mixes their transactions.
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(
                f"{what} on {self.url}: another thread is using this handle; give each its own"
            )
        try:
            yield
        except TableError:
            self._known = None  # perhaps because the table is not any more what it was
            raise
        finally:
            self._busy.release()

    def _open(self) -> TableCache:
        if self._known is None:
            self._load()
        assert self._known is not None
        return self._known

    def _load(self) -> Snapshot:
        snapshot: Snapshot
        self._known, snapshot = run(look_over(), self.store, self.clock, self.emit)
        if self._described:
            from lockkit.table.format.gate import refuse_other

            refuse_other(self._described, self._known.config)
        self._schema = arrow_schema(snapshot.schema) if snapshot.schema else None
        self._schema_at = snapshot.covered.newest
        self._partitions = frozenset(partition for partition, _ in snapshot.groups)
        self._upkeep.opened(snapshot.covered.count)
        return snapshot

    def _files(self, target: Target, rows: pa.Table) -> list[BaseFile]:
        return [
            write_inserts(target, part, file_id=free_file_id(self.clock))
            for _, part in by_partition(target.config, rows)
        ]


def _refuse_missing(rows: pa.Table, config: TableConfig) -> None:
    needed = {"record key": config.record_key, "partition field": config.partition_by,
              "precombine field": config.precombine}  # fmt: skip
    for what, name in needed.items():
        if name is not None and name not in rows.column_names:
            raise TableError(f"the rows have no column {name!r}, the table's {what}")
