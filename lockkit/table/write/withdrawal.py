"""The withdrawal of an attempt that made no commit: its own instant is rolled back at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from lockkit.errors import LockBusy, TableError
from lockkit.runtime import Procedure
from lockkit.table.format.properties import FENCED, HUDI, load_config
from lockkit.table.occ import rollback
from lockkit.table.occ.commit import EpochGuard
from lockkit.table.occ.transaction import TakenInstant

if TYPE_CHECKING:
    from lockkit.table.write.contract import AttemptHost

Paths = Collection[str] | None


def withdraw_attempt(
    host: AttemptHost, taken: TakenInstant, paths: Paths, certain: bool,
    error: BaseException | None,
) -> Procedure[bool]:  # fmt: skip
    """Whether nothing is left to do. `certain`: it was certainly not decided."""
    try:
        return (yield from _withdraw(host, taken, paths, certain, error))
    except TableError:
        config, version = yield from host.run(load_config())
        if (taken.known.config.mode, config.mode) != (FENCED, HUDI):
            raise
        # Closing the fence settled it: what is pending still was not decided, and never will be.
        known = replace(taken.known, config=config, config_version=version)
        return (yield from _withdraw(host, replace(taken, known=known), paths, True, error))


def _withdraw(
    host: AttemptHost, taken: TakenInstant, paths: Paths, certain: bool,
    error: BaseException | None,
) -> Procedure[bool]:  # fmt: skip
    """The same in the mode that the table had when the instant was taken."""
    instant = taken.instant
    if taken.known.config.mode == FENCED:
        if certain:
            yield from host.run(rollback.withdraw(taken, EpochGuard(0), paths=paths))
        else:
            settled = yield from host.run(rollback.settle_own(taken, paths))
            if isinstance(settled, rollback.RollbackRefused):
                _add_note(error, f"{instant} was committed before the interrupt.")
                return True
    elif not certain or isinstance(error, LockBusy):
        return False
    else:
        yield from host.hold(lambda host, held: host.run(rollback.withdraw(
            taken, held.guard, believe=held.believe, base=host.base, paths=paths
        )))  # fmt: skip
    if not isinstance(error, Exception):
        _add_note(error, f"{instant} was not committed; what it had written was taken back.")
    return True


def _add_note(error: BaseException | None, note: str) -> None:
    if error is not None:
        error.add_note(note)
