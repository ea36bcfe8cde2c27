"""An attempt: one writer's instant, from taking it to the acknowledgement or to its withdrawal.

`Table.append`, a Spark write, a clustering and the simulator's writers all run this code, each with
its `AttemptHost`: how a step is carried out, what sends heartbeats, and how the lock is held.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from lockkit.clock import Clock, back_off_s
from lockkit.errors import LockBusy, LockLost, StoreError, TableError
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of
from lockkit.sinks import Emit
from lockkit.table.errors import (
    CommitConflict,
    CommitUnknown,
    HeartbeatExpired,
    NoTable,
    RefusedOption,
)
from lockkit.table.format.layout import FileGroup, WriteStat
from lockkit.table.format.properties import FENCED, GROUP, HUDI
from lockkit.table.occ.commit import Committed, EpochGuard, First, StateChange
from lockkit.table.occ.conflict import SIMPLE, ConflictStrategy
from lockkit.table.occ.prepared import Prepared, begin_files, is_begun
from lockkit.table.occ.publish import after_commit, note_if_interrupted
from lockkit.table.occ.transaction import TableCache, TakenInstant, Transaction, begin
from lockkit.table.write.append import NewRows, prepare_append
from lockkit.table.write.settling import settled, stays_open

if TYPE_CHECKING:
    from lockkit.table.occ.held import LockReads, TableNow
    from lockkit.table.write.contract import AttemptHeartbeat, AttemptHost, Files

RETRY_FIRST_S, RETRY_LONGEST_S = 0.1, 10.0
T = TypeVar("T")
Planner = Callable[[], "tuple[TableCache, bytes] | None"]
"""Looks at the table and plans; None: there is nothing to do."""


def meets_nobody(_prepared: Prepared) -> Procedure[First | None]:
    yield from ()
    return None


@dataclass(slots=True)
class WriteAttempt:
    """One attempt. If it ends without a commit, its instant is taken back at once."""

    host: AttemptHost
    strategy: ConflictStrategy = SIMPLE
    before_commit: Callable[[Prepared], Procedure[First | None]] = meets_nobody
    """Called before the lock is acquired; what it returns is done once the lock is held."""
    prepared: Prepared | None = None
    known: TableCache | None = None
    """What an append found out about the table, even if it failed."""
    groups: list[FileGroup] = field(default_factory=list)
    _undecided: bool = True
    """Whether the write that decides has certainly not been sent, unless `prepared` says so."""
    _taken: TakenInstant | None = None
    _sent_ms: int = 0  # when `_taken` was requested
    _heart: AttemptHeartbeat | None = None
    _spent: AttemptHeartbeat | None = None
    """That of the previous, useless instant."""
    _ahead: LockReads | None = None
    """Of a short write beside Hudi: has its heartbeat until the instant is taken."""
    _paths: Collection[str] | None = ()
    """Its files, if it knows them all."""
    _first: First | None = None

    # --- the two kinds of write ------------------------------------------------------------------

    def append(self, known: TableCache, new: NewRows) -> Procedure[Committed]:
        """Commit new file groups."""
        way = self._acknowledged(self._append(known, new))
        if known.config.commit == GROUP:
            from lockkit.table.write.withdrawal import in_time
            grouped = replace(new, way=self.host.in_group())
            way = in_time(known, lambda k: self._acknowledged(self._append(k, grouped)))
        committed = yield from way
        assert committed is not None
        return committed

    def write(
        self, known: TableCache, files: Files, *, action: str = "commit", plan: bytes = b"",
        short: bool = False, anew: Planner | None = None,
        at_hand: frozenset[str] | None = None,
    ) -> Procedure[Committed | None]:  # fmt: skip
        """Begin, write `files` on the table as it then is, and commit; None if there are none.

        `at_hand` are the commits after which `files` has nothing to read. Beside Hudi, if no other
        commit is there once the lock is held, it is held until the commit.
        With `short`, its heartbeat begins only once it takes long, unless Hudi writes too. `anew`
        looks and plans again, under the lock if there is one when the instant is taken; None: no.
        """
        follows = known.shown is not None or not known.config.sliced
        if at_hand is not None and follows and known.config.mode == HUDI:
            return (yield from self._acknowledged(self._write_short(known, files, action, at_hand)))
        short = short and known.config.mode == FENCED
        way = self._write(known, files, action, plan, short, anew)
        return (yield from self._acknowledged(way))

    def _append(self, known: TableCache, new: NewRows) -> Procedure[Committed]:
        if known.config.mode != HUDI:
            prepared = yield from self._prepare_append(self.host, known, new)
            return (yield from self._publish(prepared))
        return (yield from self.host.hold(
            lambda host, held: self._append_under_lock(host, held, known, new)
        ))  # fmt: skip

    def _append_under_lock(
        self, host: AttemptHost, held: StateChange, known: TableCache, new: NewRows
    ) -> Procedure[Committed]:
        prepared = yield from self._prepare_append(host, known, new)
        return (yield from self._commit_under_lock(host, held, prepared))

    def _commit_under_lock(
        self, host: AttemptHost, held: StateChange, prepared: Prepared,
        table: TableNow | None = None,
    ) -> Procedure[Committed]:  # fmt: skip
        from lockkit.table.occ.committing import commit

        heart = self._heart
        assert heart is not None
        self._first = yield from host.run(self.before_commit(prepared))
        table = table if self._first is None else None
        yield from host.run(self._do_first(held))

        def believe() -> None:
            held.believe()
            heart.assert_alive()

        def once() -> Procedure[Committed]:
            return host.run(commit(
                prepared, held.guard, believe=believe, strategy=self.strategy, table=table
            ))  # fmt: skip

        with note_if_interrupted(prepared):
            committed = yield from settled(once, prepared, stays_open)
            releases = held.published()
        if releases:  # meanwhile
            yield from self._finish(committed)
        return committed

    def _write_short(
        self, known: TableCache, files: Files, action: str, at_hand: frozenset[str]
    ) -> Procedure[Committed | None]:
        from lockkit.table.occ.committing import wait_out
        from lockkit.table.occ.held import FromListing, FromShown, LockReads, Outrun
        from lockkit.table.occ.markers import unlist

        self._ahead = reads = LockReads(known, action, self.host.first_beat)

        def begins(
            host: AttemptHost, held: StateChange
        ) -> Procedure[Transaction | Committed | None]:
            """A transaction that is to go on without the lock; else the commit, or None."""
            table = reads.found
            kind = FromListing if known.shown is None else FromShown
            way = None if table is None else kind(table.timeline, reads.instant)
            began = yield from self._begin(host, known, action=action, way=way)
            if table is not None and at_hand.issuperset(table.timeline.commits):
                try:
                    return (yield from self._written(began, files, lambda prepared:
                        self._commit_under_lock(host, held, prepared, table)))  # fmt: skip
                except Outrun as outrun:
                    began = outrun.began
                    yield from host.run(unlist(began.instant))
            yield from host.run(wait_out(began.instant))
            return began

        done = yield from self.host.hold(begins, reads)
        if isinstance(done, Transaction):
            return (yield from self._written(done, files, self._publish))
        return done

    def _prepare_append(
        self, host: AttemptHost, known: TableCache, new: NewRows
    ) -> Procedure[Prepared]:
        way = prepare_append(known, new, self._tries, self._begins_quietly, self._wrote)
        self.prepared, self.known = yield from host.run(way)
        return self.prepared

    def _write(
        self, known: TableCache, files: Files, action: str, plan: bytes, short: bool,
        anew: Planner | None,
    ) -> Procedure[Committed | None]:  # fmt: skip
        host, grouped = self.host, action == "commit" and known.config.commit == GROUP

        def take() -> Procedure[Transaction | None]:
            nonlocal known, plan
            if anew is not None:
                if (found := anew()) is None:
                    return None
                known, plan = found
            # Hudi's s3a creates a requested file without a condition: two could have one instant.
            transaction = yield from self._begin(
                host, known, action=action, plan=plan,
                began=self._begins_quietly if short else None,
                way=host.in_group(rewrites=True) if short and grouped else None,
            )  # fmt: skip
            if known.config.mode == HUDI:
                from lockkit.table.occ.committing import wait_out  # only where Hudi writes too
                yield from host.run(wait_out(transaction.instant))
            return transaction

        transaction = yield from host.take_instant(known.config, take)
        if transaction is None:
            return None
        return (yield from self._written(transaction, files, self._publish))

    def _begin(self, host: AttemptHost, known: TableCache, **how: Any) -> Procedure[Transaction]:
        transaction = yield from host.run(begin(known, trying=self._tries, **how))
        host.own.add(transaction.instant)
        self._taken = transaction.taken
        if self._heart is None:
            self._heart = yield from host.beat(transaction.taken)
        return transaction

    def _written(
        self, began: Transaction, files: Files,
        publish: Callable[[Prepared], Procedure[Committed]],
    ) -> Procedure[Committed | None]:  # fmt: skip
        assert self._heart is not None
        self._paths = None
        if is_begun(began.taken) and began.beside is None:
            yield from self.host.run(begin_files(began.taken))
        self.prepared = yield from files(began, self._heart)
        return None if self.prepared is None else (yield from publish(self.prepared))

    # --- its instant -----------------------------------------------------------------------------

    def _tries(self, taken: TakenInstant) -> Procedure[bool]:
        """Another instant, because the one before was of no use. False: another writer has it."""
        self._spent = self._spent or self._heart
        self._taken, self._heart, self._paths = taken, None, ()
        self._sent_ms = self.host.boot_ms() - taken.early_ms
        if taken.known.config.mode == HUDI:
            yield from self._finish_spent()
            # Hudi, without the lock, rolls back pending instants that have no heartbeat.
            ahead = self._ahead.beat_of(taken.instant) if self._ahead else None
            begun = (yield from self.host.run(ahead)) if ahead else None
            with suppress(HeartbeatExpired):  # another writer has one at this instant
                self._heart = yield from self.host.beat(taken, begun)
        return self._heart is not None or taken.known.config.mode != HUDI

    def _begins_quietly(self, taken: TakenInstant) -> Procedure[None]:
        self._taken, self._heart = taken, self._heart or self.host.beat_later(taken, self._sent_ms)
        yield from self._finish_spent()

    def _finish_spent(self) -> Procedure[None]:
        spent, self._spent = self._spent, None
        if spent is not None:
            yield from self.host.run(spent.finished())

    def _wrote(self, stats: tuple[WriteStat, ...]) -> None:
        self._paths = [each.path for each in stats]
        self.groups = [each.group for each in stats]

    # --- its commit ------------------------------------------------------------------------------

    def _acknowledged(self, way: Procedure[Committed | None]) -> Procedure[Committed | None]:
        try:
            committed = yield from way
            if committed is None:
                yield from self._leave(None)
                return None
        except GeneratorExit:  # its process is gone and sends nothing more
            raise
        except BaseException as error:
            yield from self._leave(error)
            raise
        finally:
            if self._taken is not None:
                self.host.own.discard(self._taken.instant)
        yield from self._finish(committed)
        return committed

    def _finish(self, committed: Committed) -> Procedure[None]:
        heart, self._heart = self._heart, None
        if heart is not None:
            with after_commit(committed), suppress(Exception):  # otherwise the heartbeat expires
                heart.stop()
                yield from self.host.run(all_of([heart.finished(), *self._unmark()]))

    @property
    def is_short(self) -> bool:
        """Whether its markers are known without a listing, and are deleted (`FromShown`)."""
        began = self.prepared and self.prepared.transaction
        return bool(began and began.beside and began.config.sliced)

    def _unmark(self) -> list[Procedure[None]]:
        if self.prepared is None or not self.is_short:
            return []
        from lockkit.table.occ.markers import unmark_all
        return unmark_all(self.prepared.instant, [each.path for each in self.prepared.stats])

    def _publish(self, prepared: Prepared) -> Procedure[Committed]:
        assert self._heart is not None
        self._first = yield from self.host.run(self.before_commit(prepared))
        self._heart.assert_alive()
        self._undecided = prepared.transaction.config.mode == HUDI
        return (yield from settled(
            lambda: self.host.publish(prepared, self.strategy, self._first and self._do_first),
            prepared, self._undo,
        ))  # fmt: skip

    def _do_first(self, held: StateChange) -> Procedure[None]:
        """Once, and before anything can be decided, so that an interrupt here is certain."""
        first, self._first = self._first, None
        if first is not None:
            before, self._undecided = self._undecided, True
            yield from first(held)
            self._undecided = before

    def _undo(self, prepared: Prepared) -> Procedure[bool]:
        """Whether a transaction that was refused after an unknown outcome is now rolled back.

        What it sent may still land while the fence is unchanged; the rollback replaces the fence.
        """
        from lockkit.table.occ.rollback import RolledBack, roll_back

        began = prepared.transaction
        if began.config.mode != FENCED:
            return False
        paths = [stat.path for stat in prepared.stats]
        way = roll_back(prepared.instant, EpochGuard(0), began.taken.known, paths=paths)
        try:
            return isinstance((yield from self.host.run(way)), RolledBack)
        except (TableError, StoreError, CommitUnknown):
            return False

    # --- how it is left --------------------------------------------------------------------------

    @property
    def _unsent(self) -> bool:
        return self._undecided and not (self.prepared and self.prepared.sent_as)

    def _leave(self, error: BaseException | None) -> Procedure[None]:
        """Withdraw the instant after `error`, or without one.

        Raises nothing but an interrupt, or `NoTable` if the table was deleted meanwhile.
        What cannot be done now is left to the next writer. The heartbeat is ended; no writer waits
        for it to expire. After `CommitUnknown` nothing is touched, because the rows may be visible.
        After an interrupt the commit may have been decided, unless that step had not begun. On a
        fenced table the rollback finds that out; on another table nothing is touched.
        """
        taken, heart = self._taken, self._heart
        if taken is None:
            if self._ahead is not None:
                yield from self.host.run(self._ahead.beat_of(""))
            return
        yield from self._finish_spent()
        if heart is not None:
            heart.stop()
        if isinstance(error, CommitUnknown):
            return
        certain = error is None or isinstance(error, Exception) or self._unsent
        done, gone = False, None
        with suppress(TableError, StoreError, LockBusy, LockLost, CommitUnknown, RuntimeError):
            from lockkit.table.write.withdrawal import withdraw_attempt  # rarely needed
            try:
                of = self.host, taken, self._paths, certain, error, self.prepared
                done = yield from withdraw_attempt(*of)
            except NoTable as deleted:
                done, gone = True, deleted
            except KeyboardInterrupt as again:
                if not certain:
                    taken.note_unknown(again)
                raise
        if heart is not None and done:
            yield from self.host.run(heart.finished())
        elif heart is not None and certain:
            yield from heart.given_up()
        if gone is not None and (error is None or isinstance(error, Exception)):
            raise gone from error


def retried(once: Callable[[], T], retries: int, clock: Clock, emit: Emit) -> T:
    """Call `once` until it returns, or until the last of `retries` further attempts conflicts."""
    if type(retries) is not int or retries < 0:
        raise RefusedOption("retries", "must be a whole number from 0", value=repr(retries)[:60])
    for tries in range(retries):
        try:
            return once()
        except CommitConflict as conflict:
            emit("note", text=f"attempt {tries + 1} of {retries + 1}: {conflict}")
        clock.sleep(back_off_s(tries, clock, first_s=RETRY_FIRST_S, longest_s=RETRY_LONGEST_S))
    return once()
