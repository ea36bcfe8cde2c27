"""Withdraw: a writer takes back its own attempt, whose rows will not be committed.

A pending instant holds back incremental readers of a version 6 table, and the horizon of every
table. So a writer that was refused, failed or was interrupted does not leave its instant to others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from lockkit.clock import Clock
from lockkit.drive import Emit, Procedure, run
from lockkit.lock import LockBusy
from lockkit.state import LockLost
from lockkit.stores import Store, StoreError
from lockkit.table.ask import TableError
from lockkit.table.commit import Guard, trust
from lockkit.table.covered import Covered
from lockkit.table.decide import CommitUnknown
from lockkit.table.heartbeat import Heartbeat
from lockkit.table.markers import unmark
from lockkit.table.plans import NO_BASE, hadoop_base
from lockkit.table.properties import FENCED
from lockkit.table.rollback import RolledBack, Spared, roll_back, written_by
from lockkit.table.timeline import load_timeline
from lockkit.table.transaction import Taken, discard
from lockkit.table.turns import Epoch, Turns


def withdraw(
    taken: Taken,
    guard: Guard,
    *,
    believe: Callable[[], None] = trust,
    base: str = NO_BASE,
    paths: Collection[str] | None = None,
) -> Procedure[RolledBack | Spared | None]:
    """Take an own instant back that was certainly not decided; None where no rollback was needed.

    Where a later instant is completed, nobody can commit this one any more, and its files are just
    deleted. Otherwise a rollback makes sure of that first: nobody ever uses the instant again.
    `paths` as for `roll_back`, and the same errors.
    """
    names, instant = taken.names, taken.instant
    now = yield from load_timeline(names, after=Covered(taken.known.horizon).listed_after)
    if instant not in now.pending:
        return None  # somebody took us for dead, and rolled it back
    if now.latest < instant:
        return (yield from roll_back(
            instant, guard, taken.known, believe=believe, base=base, paths=paths
        ))  # fmt: skip
    if paths is None:
        paths = [path for _, path in (yield from written_by(instant))]
    yield from discard(taken, now, paths)
    yield from unmark(instant)
    return None


@dataclass(slots=True)
class BackOut:
    """How a writer of the table at `url` leaves an attempt that failed, on a real store."""

    url: str
    turns: Turns
    store: Store
    clock: Clock
    emit: Emit

    def __call__(
        self, error: BaseException | None, taken: Taken, heart: Heartbeat,
        paths: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        """Withdraw `taken` after `error`, or without one; raises nothing but an interrupt.

        What cannot be done now is left to the next writer: the heartbeat is ended, so nobody waits
        for it to expire. After `CommitUnknown` nothing is touched, for the rows may be visible.
        After an interrupt the commit may have been decided: the rollback finds that out.
        """
        heart.stop()
        if isinstance(error, CommitUnknown):
            return
        fenced = taken.known.config.mode == FENCED
        certain = error is None or isinstance(error, Exception)
        done = False
        with suppress(TableError, StoreError, LockBusy, LockLost, CommitUnknown, RuntimeError):
            if fenced and certain:
                self._run(withdraw(taken, Epoch(0), paths=paths))
                done = True
            elif fenced and error is not None:
                self._settle(error, taken, paths)
                done = True
            elif certain and not isinstance(error, LockBusy):
                base = hadoop_base(self.url)
                with self.turns.hold() as held:
                    self._run(withdraw(
                        taken, held.guard, believe=held.believe, base=base, paths=paths
                    ))  # fmt: skip
                done = True
        if done:
            heart.finish()
        elif certain:
            heart.give_up()

    def _settle(
        self, error: BaseException, taken: Taken, paths: Collection[str] | None
    ) -> None:
        outcome = self._run(roll_back(taken.instant, Epoch(0), taken.known, paths=paths))
        if isinstance(outcome, Spared):
            error.add_note(f"{taken.instant} was committed before the interrupt.")
        else:
            error.add_note(f"{taken.instant} was not committed; it was rolled back.")

    def _run(self, way: Procedure) -> RolledBack | Spared | None:
        outcome: RolledBack | Spared | None = run(way, self.store, self.clock, self.emit)
        return outcome
