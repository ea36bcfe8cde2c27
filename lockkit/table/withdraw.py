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
from lockkit.outcome import Found
from lockkit.state import LockLost
from lockkit.stores import Store, StoreError
from lockkit.table.ask import TableError, read
from lockkit.table.commit import Guard, trust
from lockkit.table.covered import Covered
from lockkit.table.decide import CommitUnknown
from lockkit.table.heartbeat import Heartbeat
from lockkit.table.markers import unmark
from lockkit.table.plans import NO_BASE, hadoop_base
from lockkit.table.properties import FENCED
from lockkit.table.rollback import RolledBack, Spared, roll_back, written_by
from lockkit.table.timeline import load_timeline
from lockkit.table.transaction import Taken, discard, is_ours
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
        return None  # never taken; or somebody took us for dead, and rolled it back
    if now.latest < instant:
        if not (yield from is_ours(taken, now)):
            return None
        return (yield from roll_back(
            instant, guard, taken.known, believe=believe, base=base, paths=paths
        ))  # fmt: skip
    if paths is None:
        paths = [path for _, path in (yield from written_by(instant))]
    yield from discard(taken, now, paths)
    yield from unmark(instant)
    return None


def settle_own(
    taken: Taken, paths: Collection[str] | None
) -> Procedure[RolledBack | Spared | None]:
    """Roll an own instant back that may have been decided, or find that it was (fenced tables)."""
    match (yield from read(taken.requested)):
        case Found(body, _) if body == taken.body:
            return (yield from roll_back(taken.instant, Epoch(0), taken.known, paths=paths))
        case _:  # never taken, or rolled back: then what we sent can decide nothing any more
            return (yield from withdraw(taken, Epoch(0), paths=paths))


def _add_note(error: BaseException | None, note: str) -> None:
    if error is not None:
        error.add_note(note)


@dataclass(slots=True)
class BackOut:
    """How a writer of the table at `url` leaves an attempt that failed, on a real store."""

    url: str
    turns: Turns
    store: Store
    clock: Clock
    emit: Emit

    def __call__(
        self, error: BaseException | None, taken: Taken, heart: Heartbeat | None,
        paths: Collection[str] | None = None, *, undecided: bool = False,
    ) -> None:  # fmt: skip
        """Withdraw `taken` after `error`, or without one; raises nothing but an interrupt.

        What cannot be done now is left to the next writer: the heartbeat is ended, so nobody waits
        for it to expire. After `CommitUnknown` nothing is touched, for the rows may be visible.
        After an interrupt the commit may have been decided, unless it is known to be `undecided`:
        on a fenced table the rollback finds that out; on another, nothing is touched.
        """
        if heart is not None:
            heart.stop()
        if isinstance(error, CommitUnknown):
            return
        certain = error is None or isinstance(error, Exception) or undecided
        done = False
        with suppress(TableError, StoreError, LockBusy, LockLost, CommitUnknown, RuntimeError):
            done = self._withdraw(taken, paths, certain, error)
        if heart is not None and done:
            heart.finish()
        elif heart is not None and certain:
            heart.give_up()

    def _withdraw(
        self, taken: Taken, paths: Collection[str] | None, certain: bool,
        error: BaseException | None,
    ) -> bool:  # fmt: skip
        """Whether nothing is left to be done."""
        instant = taken.instant
        if taken.known.config.mode == FENCED:
            if certain:
                self._run(withdraw(taken, Epoch(0), paths=paths))
            elif isinstance(self._run(settle_own(taken, paths)), Spared):
                _add_note(error, f"{instant} was committed before the interrupt.")
                return True
        elif not certain or isinstance(error, LockBusy):
            return False
        else:
            with self.turns.hold() as held:
                self._run(withdraw(
                    taken, held.guard, believe=held.believe, base=hadoop_base(self.url),
                    paths=paths,
                ))  # fmt: skip
        if not isinstance(error, Exception):
            _add_note(error, f"{instant} was not committed; what it had written was taken back.")
        return True

    def _run(self, way: Procedure) -> RolledBack | Spared | None:
        outcome: RolledBack | Spared | None = run(way, self.store, self.clock, self.emit)
        return outcome
