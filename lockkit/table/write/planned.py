"""A plan that is pending already, carried out by a process that did not write it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from lockkit.errors import StoreError, TableError
from lockkit.protocol.outcome import Found
from lockkit.runtime import Note, Procedure
from lockkit.runtime.proven import all_of, delete, read
from lockkit.table.errors import CommitUnknown, TableChanged
from lockkit.table.format.timeline import load_timeline
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.conflict import refuse_unreadable
from lockkit.table.occ.covered import CheckedHorizon
from lockkit.table.occ.discarding import attempt_in
from lockkit.table.occ.markers import files_of, unmark
from lockkit.table.occ.transaction import TakenInstant, Transaction, is_ours
from lockkit.table.write.attempt import WriteAttempt
from lockkit.table.write.contract import Files


@dataclass(slots=True)
class PlanAttempt(WriteAttempt):
    """An attempt to carry a pending plan out. If it ends without a commit, the plan stays."""

    def resume(self, taken: TakenInstant, files: Files) -> Procedure[Committed | None]:
        """Write the plan's `files`, and commit. Raises `HeartbeatExpired` if another process does.
        """
        return (yield from self._acknowledged(self._resume(taken, files)))

    def _resume(self, taken: TakenInstant, files: Files) -> Procedure[Committed | None]:
        host = self.host
        self._heart = yield from host.beat(taken)
        transaction = yield from host.run(resumed(taken))
        host.own.add(taken.instant)
        self._taken, self._paths = taken, None
        self.prepared = yield from files(transaction, self._heart)
        return None if self.prepared is None else (yield from self._publish(self.prepared))

    def _leave(self, error: BaseException | None) -> Procedure[None]:
        taken, heart = self._taken, self._heart
        if heart is None:
            return
        certain = error is None or isinstance(error, Exception) or self._undecided
        if isinstance(error, CommitUnknown) or (taken is not None and not certain):
            yield from WriteAttempt._leave(self, error)  # by the fence: it may be decided
            return
        heart.stop()
        with suppress(TableError, StoreError):  # else its heartbeat expires: it is rolled back
            if taken is not None:
                yield from self.host.run(put_back(taken))
            yield from heart.finished()


def resumed(taken: TakenInstant) -> Procedure[Transaction]:
    """The transaction of a plan, once the caller's heartbeat keeps other processes from it.

    Later instants may be completed: they do not rewrite what the plan rewrites (`find_conflict`).
    The horizon is below the instant, because the plan is pending.
    """
    after = CheckedHorizon(taken.known.horizon).listed_after
    now = yield from load_timeline(taken.names, after=after)
    refuse_unreadable(now, taken.known.config, known=frozenset(now.completed))
    if not (yield from is_ours(taken, now)) or taken.instant in now.inflight:
        why = "is not pending as it was: another process carried it out, or rolled it back"
        raise TableChanged(taken.instant, why, "look at the table again")
    yield Note("began", {"instant": taken.instant})
    return Transaction(taken, now)


def put_back(taken: TakenInstant) -> Procedure[None]:
    """Delete what this attempt wrote for the plan, which certainly was not decided."""
    yield from all_of(delete(each.path) for each in (yield from files_of(taken.instant)))
    inflight = taken.names.inflight(taken.instant, taken.action)
    match (yield from read(inflight)):
        case Found(body, version) if attempt_in(inflight, body) == taken.attempt:
            yield from delete(inflight, version)
    yield from unmark(taken.instant)
