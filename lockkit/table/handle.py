"""A handle on a table, for one writer: what it knows of the table, its store and its lock.

    with Table("s3://lake/orders", endpoint=...) as table:
        table.append(rows)

A warm handle's append takes five round trips one after the other: the instant; its listing beside
the files; the lock beside the fence and the properties; the fence; the completed file beside the
release.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.drive import Emit, run, silent
from lockkit.proof import TABLE_KEY, prove_conditions
from lockkit.stores import Store, check_keywords, open_store
from lockkit.table.append import NewRows, prepare_append
from lockkit.table.ask import TableError
from lockkit.table.basefile import BaseFile, Target, write_inserts
from lockkit.table.checkpoint import look_over
from lockkit.table.commit import Committed, commit
from lockkit.table.conflict import SIMPLE, Strategy
from lockkit.table.gate import check_options, described, refuse_other
from lockkit.table.groups import by_partition, free_file_id
from lockkit.table.heartbeat import Heartbeat
from lockkit.table.layout import FileGroup, WriteStat
from lockkit.table.locks import AnyLock, open_table_lock
from lockkit.table.properties import HUDI, TableConfig
from lockkit.table.publish import after_commit, deferred, told_if_interrupted
from lockkit.table.pulse import heartbeat_rules
from lockkit.table.schema import arrow_schema, avro_schema, conform, evolve
from lockkit.table.snapshot import Snapshot
from lockkit.table.transaction import Known, Prepared, Taken
from lockkit.table.turns import publish_and_settle, settled, turns_of
from lockkit.table.upkeep import Upkeep
from lockkit.table.withdraw import BackOut
from lockkit.voice import Voice

if TYPE_CHECKING:
    import pyarrow as pa


class Table:
    """One writer's hold of a table that exists. Not for two threads at a time, which is refused.

    `lock` is a handle of any service's lock (which stays the caller's to close), or options as
    `Lock` takes them (`ttl_s`, `renew_interval_s`, `acquire_timeout`); by default the lock that the
    provider named by `options` grants, else the table's own lock object. Store options are those of
    `open_store`; `TypeError` names a keyword that nothing takes. `options` are Hudi's, and so are
    their defaults: the writer cleans inline after its commits and rolls back dead writers that it
    meets, unless `hoodie.clean.automatic` or `hoodie.table.services.enabled` is false;
    `hoodie.clustering.inline` is off unless it is asked for. As the table's `single_writer` it
    sends no lock request. Raises `TableError` where there is no table that can be written to.
    """

    def __init__(
        self,
        url: str,
        *,
        lock: AnyLock | Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        strategy: Strategy = SIMPLE,
        emit: Emit = silent,
        clock: Clock | None = None,
        client: str = "",
        **store_options: Any,
    ) -> None:
        check_keywords(Table, url, store_options)
        given = check_options(options or {})
        self._described = described(given)
        self.url = url.rstrip("/")
        self.clock = clock or Clock()
        self.store: Store = open_store(self.url, client=client, **store_options)
        self._own_lock = lock is None or isinstance(lock, Mapping)
        self.lock: AnyLock = open_table_lock(
            self.url, given, clock=self.clock, emit=emit, client=client, how=lock,
            **store_options,
        ) if lock is None or isinstance(lock, Mapping) else lock  # fmt: skip
        self.turns = turns_of(given, lambda: self.lock)
        self.emit = Voice(self.url, self.lock.lane, emit, self.clock)
        self._upkeep = Upkeep(
            given, self.url, self.store, self.turns, clock=self.clock, emit=self.emit
        )
        self.strategy = strategy
        self.pulse = heartbeat_rules(given)
        self._known: Known | None = None
        self._schema: pa.Schema | None = None
        self._schema_at = ""  # the newest commit that is known to have no other columns
        self._partitions: frozenset[str] = frozenset()
        self._busy = threading.Lock()

    def append(self, rows: pa.Table) -> Committed:
        """Commit `rows` (in memory, of any partitions) as new file groups.

        Raises what `publish` raises, and `TableError` for rows that do not fit the table.
        """
        import pyarrow as pa

        if not isinstance(rows, pa.Table):
            raise TableError(
                f"rows are appended as a pyarrow.Table, and these are a {type(rows).__name__}; "
                "pyarrow.Table.from_pylist, from_pandas or from_batches makes one"
            )
        with self._alone("append"):
            prove_conditions(self.store, self.clock, key=TABLE_KEY)
            known = self._open()
            self._upkeep.before_write(known)
            _refuse_missing(rows, known.config)
            schema = evolve(self._schema, rows.schema)
            rows = conform(rows, schema)
            new = NewRows(
                lambda target: self._files(target, rows), avro_schema(schema, known.config.name),
                self._partitions, grows=schema != self._schema, schema_at=self._schema_at,
            )  # fmt: skip
            attempt = _Attempt(self)
            try:
                committed = self._commit(known, new, attempt)
            except BaseException as error:
                attempt.leave(error)
                raise
            with after_commit(committed), suppress(Exception):  # else the heartbeat expires
                attempt.finish()
            assert self._known is not None
            self._known = replace(self._known, newest=max(self._known.newest, committed.instant))
            self._schema, self._schema_at = schema, committed.instant
            self._partitions |= {partition for partition, _ in attempt.groups}
            if known.config.mode == HUDI and attempt.prepared:  # its lock was held until here
                with after_commit(committed):
                    self._upkeep.before_commit(attempt.prepared)
        with after_commit(committed):
            self._upkeep.after_append(attempt.others)
        return committed

    def _commit(self, known: Known, new: NewRows, attempt: _Attempt) -> Committed:
        if known.config.mode != HUDI:
            prepared = self._prepare(known, new, attempt)
            self._upkeep.before_commit(prepared)
            attempt.check()
            attempt.undecided = False
            return publish_and_settle(
                self.turns, prepared, self.store, self.clock, self.emit, strategy=self.strategy
            )
        # Hudi's writers take instants under the lock, and roll back what has no heartbeat: so few
        # rows are written within one grant.
        with deferred(self.emit) as later, self.turns.hold() as held:
            prepared = self._prepare(known, new, attempt)
            attempt.undecided = False
            with told_if_interrupted(prepared):
                committed = settled(
                    lambda: run(
                        commit(prepared, held.guard, believe=held.believe, strategy=self.strategy),
                        self.store, self.clock, later,
                    ),
                    prepared,
                )  # fmt: skip
                held.published()
        return committed

    def _prepare(self, known: Known, new: NewRows, attempt: _Attempt) -> Prepared:
        prepared: Prepared
        way = prepare_append(known, new, attempt.tries, attempt.begin, attempt.wrote)
        prepared, self._known = run(way, self.store, self.clock, self.emit)
        attempt.prepared = prepared
        attempt.others = sum(each > known.newest for each in prepared.transaction.timeline.commits)
        return prepared

    def refresh(self) -> Snapshot:
        """The latest snapshot; what this handle knows of the table is read anew."""
        with self._alone("refresh"):
            return self._load()

    def close(self) -> None:
        """Close the lock's and the table's clients; a service that is under way ends first."""
        self._upkeep.close()
        if self._own_lock:
            self.lock.close()
        self.store.close()

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

    def _open(self) -> Known:
        if self._known is None:
            self._load()
        assert self._known is not None
        return self._known

    def _load(self) -> Snapshot:
        snapshot: Snapshot
        self._known, snapshot = run(look_over(), self.store, self.clock, self.emit)
        refuse_other(self._described, self._known.config)
        self._schema = arrow_schema(snapshot.schema) if snapshot.schema else None
        self._schema_at = snapshot.covered.newest
        self._partitions = frozenset(partition for partition, _ in snapshot.groups)
        self._upkeep.opened(snapshot.covered.count)
        return snapshot

    def _files(self, target: Target, rows: pa.Table) -> list[BaseFile]:
        return [
            write_inserts(target, part, file_id=free_file_id(self.clock))
            for _, part in by_partition(target, rows)
        ]


def _refuse_missing(rows: pa.Table, config: TableConfig) -> None:
    needed = {"record key": config.record_key, "partition field": config.partition_by,
              "precombine field": config.precombine}  # fmt: skip
    for what, name in needed.items():
        if name is not None and name not in rows.column_names:
            raise TableError(f"the rows have no column {name!r}, the table's {what}")


class _Attempt:
    """One append's instant, its heartbeat and its files; and how it is left if it fails."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.groups: list[FileGroup] = []
        self.prepared: Prepared | None = None
        self.undecided = True
        """Whether the write that decides was certainly not sent yet."""
        self.others = 0
        """Commits of other writers that came since this handle's last one."""
        self._paths: list[str] = []
        self._taken: Taken | None = None
        self._heart: Heartbeat | None = None

    def tries(self, taken: Taken) -> None:
        """Another instant, because the one before was of no use; it is about to be taken."""
        self.finish()
        self._taken, self._paths, self._heart = taken, [], None

    def begin(self, taken: Taken) -> None:
        self._taken, table = taken, self.table
        self._heart = Heartbeat(
            taken.instant, table.store, clock=table.clock, rules=table.pulse,
            quiet_s=table.pulse.interval_ms / 2000,
        )  # fmt: skip

    def wrote(self, stats: tuple[WriteStat, ...]) -> None:
        self._paths = [each.path for each in stats]
        self.groups = [each.group for each in stats]

    def check(self) -> None:
        assert self._heart is not None
        self._heart.check()

    def finish(self) -> None:
        if self._heart is not None:
            self._heart.finish()

    def leave(self, error: BaseException) -> None:
        table = self.table
        if self._taken is not None:
            back_out = BackOut(table.url, table.turns, table.store, table.clock, table.emit)
            back_out(error, self._taken, self._heart, self._paths, undecided=self.undecided)
