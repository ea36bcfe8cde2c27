"""Withdraw: a writer takes back its own attempt, whose rows will not be committed.

A pending instant holds back incremental readers of a version 6 table, and the horizon of every
table. So a writer that was refused, failed or was interrupted does not leave its instant to others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure, read
from lockkit.table.format.plans import NO_BASE
from lockkit.table.format.timeline import load_timeline
from lockkit.table.occ.commit import Guard, trust
from lockkit.table.occ.concurrency import Epoch
from lockkit.table.occ.covered import Covered
from lockkit.table.occ.markers import unmark
from lockkit.table.occ.rollback import RolledBack, Spared, roll_back, written_by
from lockkit.table.occ.transaction import Taken, discard, is_ours


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
