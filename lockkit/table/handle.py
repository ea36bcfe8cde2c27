"""A handle on a table for one writer: its store, its lock, and its last snapshot.

    with Table("s3://lake/orders", endpoint=...) as table:
        table.append(rows)

A warm handle's append takes five round trips: instant; listing and files; lock, fence and
properties; fence; completed file and release.

One file because it is one class: everything that a user can do with a table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.runtime import run
from lockkit.sinks import Emit, EventSink, silent
from lockkit.stores import Store, open_store, url_of
from lockkit.table.errors import OutdatedHandle, RefusedOption
from lockkit.table.format.base_file import (
    BaseFile,
    Target,
    refuse_lacking,
    refuse_no_table,
    refuse_unfit,
    write_inserts,
)
from lockkit.table.format.layout import TaskId
from lockkit.table.format.properties import HUDI
from lockkit.table.format.property_keys import COPY_ON_WRITE, MODE
from lockkit.table.format.row_partitions import by_partition
from lockkit.table.format.schema import avro_schema, conform, evolve
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.concurrency import NON_BLOCKING, concurrency_mode, control_of, see_conditions
from lockkit.table.occ.conflict import SIMPLE, STRATEGY_KEY, ConflictStrategy, strategy_of
from lockkit.table.occ.heartbeat_rules import heartbeat_rules
from lockkit.table.occ.locks import open_table_lock
from lockkit.table.occ.publish import after_commit
from lockkit.table.occ.transaction import TableCache
from lockkit.table.read.buckets import free_file_id
from lockkit.table.read.opening import look_over
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.services.context import ServiceContext, StoreHost
from lockkit.table.services.upkeep import Upkeep
from lockkit.table.write.append import NewRows
from lockkit.table.write.attempt import WriteAttempt, retried

if TYPE_CHECKING:
    import pyarrow as pa

    from lockkit.lock.contract import LockHandle
    from lockkit.table.occ.rollback import RollbackRefused, RolledBack
    from lockkit.table.read.incremental import Increment
    from lockkit.table.read.listed import HistoryEntry
    from lockkit.table.read.predicate import Filter
    from lockkit.table.services.archive import Archived
    from lockkit.table.services.clean import Cleaned
    from lockkit.table.services.cluster import Clustered
    from lockkit.table.services.compact import Compacted
    from lockkit.table.services.restore import Restored
    from lockkit.table.services.savepoint import Savepoint
    from lockkit.table.write.following import TableState


FEW, MANY, OUTDATED_MAX = 32, 1_000_000, 2
T = TypeVar("T")


class Table:
    """A table that exists, opened by one writer. One thread may use it at a time.

    With group commit several threads may use it at the same time; their commits are decided
    together.

    Times are in seconds. By default the table's own lock object guards commits;
    `hoodie.write.lock.provider` names another lock; a `single_writer` takes no lock. Table services
    run inline: the writer cleans after about every tenth commit and rolls back dead writers that it
    meets, unless `hoodie.clean.automatic` or `hoodie.table.services.enabled` is false. Clustering
    needs `hoodie.clustering.inline`, and the compaction of a merge-on-read table
    `hoodie.compact.inline`.

    Raises `TypeError` for an unknown keyword, `TableError` for a refused option or a table that
    cannot be written, and `StoreError` if the store cannot be used.

    :param url: the table's folder: s3://, gs://, az://, file://, or a `Path`.
    :param lock: any lock's handle, which the caller closes, or keywords of `Lock`.
    :param options: Hudi's options; docs/options.md lists what each does. None: Hudi's defaults.
    :param strategy: which commits conflict, and which writer gives way.
    :param emit, clock: called with each event; the source of time, which tests replace.
    :param client: the name of this writer in events.
    :param store_options: those of `open_store` (`endpoint`, `timeout_s`, ...).
    """

    def __init__(
        self,
        url: str | PathLike[str],
        *,
        lock: LockHandle | Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        strategy: ConflictStrategy = SIMPLE,
        emit: Emit = silent,
        clock: Clock | None = None,
        client: str = "",
        **store_options: Any,
    ) -> None:
        url = url_of(url)
        passed, usual = (lock, strategy, emit, clock), (None, SIMPLE, silent, None)
        if (
            store_options or not type(url) is type(client) is str
            or any(each is not default for each, default in zip(passed, usual, strict=True))
        ):  # fmt: skip
            from lockkit.table.arguments import check_store_options, refuse_wrong

            refuse_wrong(options or {}, *passed, url=url, client=client)
            check_store_options(Table, url, store_options)
        given: dict[str, Any] = {}
        self._described: dict[str, Any] = {}  # what the options say about the table
        if options is not None:
            from lockkit.table.format.gate import check_append_options, check_options, described

            given = check_options(options)
            check_append_options(given)
            self._described = described(given)
            if strategy is SIMPLE and STRATEGY_KEY in given:
                strategy = strategy_of(str(given[STRATEGY_KEY]))
        self._options = given
        self._store_options = {"client": client, **store_options}
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
        self._upkeep.lock = "" if lock is None else "lock="
        self._upkeep.context.lingering = []
        self.strategy = strategy
        self.heartbeat = heartbeat_rules(given)
        self._known: TableCache | None = None
        self._data: Store | None = None  # for data files: the SDK may repeat their requests
        self._left: TableState | None = None  # as it was read, or as the last upsert left it
        self._written: TableState | None = None  # what the last write of these left
        self._schema: pa.Schema | None = None
        self._schema_at = ""  # the newest commit that is known to have no other columns
        self._partitions: frozenset[str] = frozenset()
        self._busy, self._turn = list[object](), list[object]()  # a Ctrl-C could leave a Lock held
        self._further: list[Table] = []  # for further threads, with group commit
        self._pid: int | None = os.getpid()  # None: it is closed

    @classmethod
    def create(
        cls, url: str | PathLike[str], *, record_key: str | Sequence[str],
        partition_by: str | Sequence[str] | None = None,
        precombine: str | None = None, name: str | None = None, version: int = 9,
        mode: str | None = None, commit: str | None = None, table_type: str = COPY_ON_WRITE,
        index: str = "", buckets: int = 4, hive_style: bool = True, urlencode: bool = True,
        **how: Any,
    ) -> Table:  # fmt: skip
        """Make a table, or find an equal one at this address, and open it.

        ================  ==================  =====================================================
        parameter         default             meaning
        ================  ==================  =====================================================
        `record_key`                          the column with each row's key, or several
        `partition_by`    no partitions       the column that names a row's partition, or several
        `precombine`      the later row wins  of rows with one key, the greatest value here wins
        `name`            the URL's end       the table's name
        `version`         9                   Hudi's table version: 6, 8 or 9
        `mode`            fenced              fenced, or hudi if Hudi's own writers write too
        `table_type`      COPY_ON_WRITE       or MERGE_ON_READ: upserts and deletes write log files
        `index`           lockkit's own       BUCKET: Hudi's simple bucket index
        `commit`          group, or serial    group: writers decide together; serial: under a lock
        `buckets`         4                   file groups for upserts in each partition
        `hive_style`      True                whether a partition's folder is `region=EU`, or `EU`
        `urlencode`       True                whether a partition's value is escaped in its folder
        ================  ==================  =====================================================

        By default a copy-on-write table takes group commit, unless `mode`, or a lock or a conflict
        strategy in `how`, is given. A record key is a string, a whole number, a date, or a decimal
        with a scale of at most 6. `how` are the keywords of `Table`. Raises `TableError` if a
        different table is there, `UnsafeStore` if the store ignores conditions, and `StoreError`.
        """
        from lockkit.table.arguments import config_of
        from lockkit.table.occ.creation import create_table

        url = url_of(url)
        texts = {"precombine": precombine, "name": name, "mode": mode, "table_type": table_type,
                 "commit": commit, "index": index, "url": url}  # fmt: skip
        config = config_of(record_key, partition_by, texts, buckets=buckets, version=version,
                           hive_style=hive_style, urlencode=urlencode)  # fmt: skip
        table = cls(url, **how)
        turns = not table._own_lock or bool(how.get("lock")) or table.strategy != SIMPLE
        either = mode is commit is None
        try:
            if table._options:
                from lockkit.table.options import config_by, takes_turns

                turns = turns or takes_turns(table._options)
            if either:
                said = str(table._options.get(MODE) or "").lower()
                config, either = config.committing(said, turns=turns), not said
            if table._options:
                config = config_by(table._options, config)
            run(create_table(config, either=either), table.store, table.clock)
        except BaseException:
            table.close()
            raise
        return table

    def append(self, rows: pa.Table, *, retries: int = 0) -> Committed:
        """Commit `rows` as new file groups, and return the commit once every reader sees it.

        (With group commit: lockkit's readers see it then, Hudi's readers a moment later.)
        `rows` may belong to any partitions. After a conflict it tries again, up to `retries` times.
        In a merge-on-read table, or with Hudi's bucket index, an append is an upsert.

        ================  =========================================================================
        error             what it means
        ================  =========================================================================
        `CommitConflict`  another commit conflicts (added columns, an overwrite); append again
        `LockBusy`        the lock was not free within its `acquire_timeout`; nothing was committed
        `LockLost`        the lease ended before the commit; nothing was committed
        `CommitUnknown`   the outcome is not known yet; `.prepared` can be published again
        `TableError`      the rows do not fit the table, or the table cannot be written
        `StoreError`      the store refused, or gave no answer; nothing was committed
        ================  =========================================================================
        """
        refuse_no_table(rows)
        with self._of_thread("append") as mine:
            return mine._add(rows, retries)

    def upsert(
        self, rows: pa.Table, *, retries: int = 0, partial: bool | None = None
    ) -> Committed | None:
        """Commit `rows`: each replaces the row with its record key, or is added.

        Of all rows with one key, the one with the greatest precombine value stays, or the later of
        equals. A row replaces only rows of its own partition, unless `options` name a global index
        (`hoodie.index.type=GLOBAL_SIMPLE`). With `partial` (None: as `options` say) a stored
        row keeps its values in columns that `rows` lack; in a new row they are null. Returns None
        if nothing would change. Raises what `append` raises; another commit to the same file groups
        is a conflict.
        """
        return self._write("upsert", rows, retries, partial=partial)

    def delete(self, rows: pa.Table, *, retries: int = 0) -> Committed | None:
        """Commit the removal of the rows with these record keys, in these rows' partitions, or with
        a global index in any. It ignores other columns, and returns None if there is no such row. A
        merge-on-read table does not look for the rows; it reads the precombine column, and a stored
        row with a greater value stays. Raises what `upsert` raises.
        """
        return self._write("delete", rows, retries)

    def overwrite(
        self, rows: pa.Table, *, whole_table: bool = False, retries: int = 0
    ) -> Committed | None:
        """Commit `rows` in place of all rows of their partitions, or of the `whole_table`.

        Without rows, it commits only if `whole_table` is true. Raises what `upsert` raises; any
        other commit to a replaced partition is a conflict.
        """
        from lockkit.table.arguments import overwriting

        return self._write(overwriting(whole_table), rows, retries)

    def delete_partition(self, *partitions: str, retries: int = 0) -> Committed | None:
        """Commit the removal of all rows of these partitions, named by their paths: `region=EU`.

        `*` stands for any text, as in Hudi's `hoodie.datasource.write.partitions.to.delete`.
        Returns None if no such partition has rows. Raises what `overwrite` raises.
        """
        import pyarrow as pa

        if not partitions or any(not isinstance(p, str) or p.strip("/") != p for p in partitions):
            raise RefusedOption("delete_partition", "takes paths without a slash at an end")
        return self._write("delete_partition", pa.table({}), retries, frozenset(partitions))

    def read(
        self, *, columns: Sequence[str] | None = None, filters: Sequence[Filter] = (),
        as_of: str | None = None, query: str = "snapshot",
    ) -> pa.Table:  # fmt: skip
        """The rows of the latest snapshot, or of an instant; the parameters are `read_table`'s."""
        from lockkit.table.read.reader import read_table

        return read_table(self.store, self.clock, columns=columns, filters=filters, as_of=as_of,
                          query=query)  # fmt: skip

    def changes(
        self, begin: str = "", end: str | None = None, *, columns: Sequence[str] | None = None,
        filters: Sequence[Filter] = (),
    ) -> tuple[pa.Table, Increment]:  # fmt: skip
        """The rows that changed in (`begin`, `end`], and the increment.

        Pass its `end` as the next call's `begin`; "" is before the first commit. As in Hudi, it
        does not contain deleted rows. The parameters are `read_increment`'s.
        """
        from lockkit.table.read.reader import read_increment

        return read_increment(
            self.store, begin, end, clock=self.clock, columns=columns, filters=filters
        )

    def history(self) -> list[HistoryEntry]:
        """The completed instants, also the archived ones, newest first."""
        from lockkit.table.read.listed import load_history

        return run(load_history(), self.store, self.clock)

    def clean(self) -> tuple[Cleaned, ...]:
        """Delete files that no retained snapshot needs, by the rules of `options`."""
        with self._of_thread("clean") as mine, mine._alone("clean"):
            return mine._upkeep.service.clean()

    def cluster(self) -> Clustered | None:
        """Rewrite small files into larger ones; None if there is nothing to gain.

        Raises `CommitConflict` if another commit came first; then nothing changed.
        """
        with self._of_thread("cluster") as mine, mine._alone("cluster"):
            return mine._upkeep.service.cluster()

    def compact(
        self, *, retries: int = 0, mode: str = "scheduleAndExecute", instant: str = ""
    ) -> Compacted | None:
        """Merge a merge-on-read table's log files into base files; None if there are none.

        Writers continue. Raises `CommitConflict` if another commit was faster in each attempt. Mode
        `schedule` only writes the plan; `execute` carries out that of `instant`, or the oldest.
        """
        with self._of_thread("compact") as mine, mine._alone("compact"):
            return mine._upkeep.service.compact(mode, instant, retries=retries)

    def archive(self, *, keep_min: int = 20, keep_max: int = 30) -> Archived | None:
        """If there are more than `keep_max` commits, move all but `keep_min` to Hudi's archive.

        `read(as_of=...)`, `changes` and `history` find them there. A commit stays because of
        pending writers, savepoints or files that no clean has deleted (`kept_for`), and with group
        commit for two hours. None: nothing was moved.
        """
        from lockkit.table.services.archive_rules import ArchiveRules, checked

        rules = checked(ArchiveRules(keep_min=keep_min, keep_max=keep_max),
                        self._upkeep.context.rules.clean.listed)  # fmt: skip
        with self._of_thread("archive") as mine, mine._alone("archive"):
            return mine._upkeep.service.archive(rules)

    def savepoint(self, instant: str = "", *, comment: str = "", user: str = "") -> Savepoint:
        """Keep a commit's files, by default the newest one's; cleans and archiving keep them."""
        with self._of_thread("savepoint") as mine, mine._alone("savepoint"):
            return mine._upkeep.service.save(instant, comment=comment, user=user)

    def delete_savepoint(self, instant: str) -> bool:
        """Let cleans delete its files again; False if there is no such savepoint."""
        with self._of_thread("delete a savepoint") as mine, mine._alone("delete a savepoint"):
            return mine._upkeep.service.delete_savepoint(instant)

    def restore(self, savepoint: str) -> Restored:
        """Remove every commit after this savepoint's, for all readers and for good.

        Stop the writers first. If it is interrupted, only another call opens the table again.
        """
        with self._of_thread("restore") as mine, mine._alone("restore"):
            mine._known = mine._left = None
            return mine._upkeep.service.restore(savepoint)

    def roll_back_dead(self) -> tuple[RolledBack | RollbackRefused, ...]:
        """Roll back dead writers' instants now. `RollbackRefused`: one was committed, and stays."""
        with self._of_thread("roll back") as mine, mine._alone("roll back"):
            return mine._upkeep.service.take_back()

    def _add(self, rows: pa.Table, retries: int) -> Committed:
        with self._alone("append"):
            config, mode = self._open().config, concurrency_mode(self._options)
        if config.merged or config.hashed or mode == NON_BLOCKING:
            from lockkit.table.arrow_write import rewrite_by

            if committed := self._renewed(lambda: rewrite_by(self, "insert", rows, retries)):
                return committed
            rows = rows.slice(0, 0)  # all are older than the table's rows
        return self._renewed(
            lambda: retried(lambda: self._append(rows), retries, self.clock, self.emit)
        )

    def _append(self, rows: pa.Table) -> Committed:
        with self._alone("append"):
            see_conditions(self.store, self.clock)
            known = self._open()
            self._upkeep.before_write(known)
            schema = evolve(self._schema, rows.schema)
            refuse_unfit(known.config, rows.schema)
            refuse_lacking(known.config, self._schema)
            rows = conform(rows, schema)
            new = NewRows(
                lambda target: self._files(target, rows), avro_schema(schema, known.config.name),
                self._partitions, grows=schema != self._schema, schema_at=self._schema_at,
            )  # fmt: skip
            host = StoreHost(self._context, self.heartbeat)
            attempt = WriteAttempt(host, self.strategy, self._upkeep.before_commit)
            try:
                committed = run(attempt.append(known, new), self.store, self.clock)
            finally:
                self._known = attempt.known or known
            self._known = replace(self._known, newest=max(self._known.newest, committed.instant))
            self._schema, self._schema_at = schema, committed.instant
            self._partitions |= {partition for partition, _ in attempt.groups}
            prepared = attempt.prepared
            assert prepared is not None
        with after_commit(committed):
            seen = prepared.transaction.timeline.commits
            self._upkeep.after_append(sum(each > known.newest for each in seen))
        return committed

    def _write(
        self, operation: str, rows: pa.Table, retries: int,
        partitions: frozenset[str] = frozenset(), *, partial: bool | None = None,
    ) -> Committed | None:  # fmt: skip
        from lockkit.table.arrow_write import rewrite_by

        refuse_no_table(rows)
        with self._of_thread(operation) as mine:
            return mine._renewed(
                lambda: rewrite_by(mine, operation, rows, retries, partitions, partial)
            )

    def _renewed(self, way: Callable[[], T]) -> T:
        """`way`, again with the table read anew if commits that the handle knew are archived."""
        for _ in range(OUTDATED_MAX):
            with suppress(OutdatedHandle):
                return way()
        return way()

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
        for each in (self, *self._further):
            each._pid = None
            each._upkeep.close()
        if self._own_lock:
            self.lock.close()
        data = {id(each._data): each._data for each in (self, *self._further)}
        for store in filter(None, (self.store, *data.values())):
            store.close()

    def __repr__(self) -> str:
        config = self._known and self._known.config
        about = f"{config.name}, {config.mode} mode" if config else "not read yet"
        return f"<Table {self.url}: {about}, {self.concurrency_control.mode}, {self.lock!r}>"

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what it knows ---------------------------------------------------------------------------

    @contextmanager
    def _of_thread(self, what: str) -> Iterator[Table]:
        """This handle, or another one while a thread writes with this one (group commit)."""
        mine = object()
        try:
            self._turn.append(mine)
            if self._turn[0] is mine:
                yield self
                return
        finally:
            if mine in self._turn:
                self._turn.remove(mine)
        from lockkit.table.further import further_handle
        with further_handle(self, what) as other:
            yield other

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        # Hudi's caveat: one client shared by two threads mixes their transactions.
        mine = object()
        try:
            self._busy.append(mine)
            if self._busy[0] is not mine:
                from lockkit.table.further import HandleInUse
                raise HandleInUse(what)
            if self._pid != os.getpid():  # a fork copies reserved instants, and no thread
                how = "closed" if self._pid is None else f"made by process {self._pid}, before fork"
                raise RuntimeError(f"{what}: this handle was {how}; open the table again")
            yield
        except TableError:
            self._known = self._left = None  # the table may have changed
            raise
        finally:
            if mine in self._busy:
                self._busy.remove(mine)

    def _open(self) -> TableCache:
        if self._known is None:
            self._load()
        assert self._known is not None
        return self._known

    def _load(self) -> Snapshot:
        self._left = run(look_over(), self.store, self.clock, self.emit)
        self._known, snapshot = self._left
        if self._described:
            from lockkit.table.format.gate import refuse_other
            refuse_other(self._described, self._known.config)
        if self._known.config.mode == HUDI:
            from lockkit.table.read.bucket_groups import refuse_unsaid
            refuse_unsaid(snapshot, self.store, self.clock)
        self._schema = None
        if snapshot.schema:
            from lockkit.table.format.schema_reading import arrow_schema
            self._schema = arrow_schema(snapshot.schema)
        self._schema_at = snapshot.covered.newest
        self._partitions = frozenset(partition for partition, _ in snapshot.groups)
        self._upkeep.opened(snapshot.covered.count)
        return snapshot

    def _files(self, target: Target, rows: pa.Table) -> list[BaseFile]:
        parts = list(by_partition(target.config, rows))
        wrote: Callable[[int], object] = int
        if len(parts) > FEW or rows.num_rows > MANY:
            from lockkit.runtime.progress import WorkDone
            how = "rows", target.instant, self.emit, self.clock
            wrote = WorkDone("wrote", rows.num_rows, *how).more
        return [write_inserts(target, part, file_id=free_file_id(self.clock), task=TaskId(number),
                              wrote=wrote) for number, (_, part) in enumerate(parts)]  # fmt: skip
