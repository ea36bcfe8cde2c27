"""Instants far in the future, taken by a writer with a wrong clock, and how a table recovers.

A new instant is later than every completed one. So a commit or a rollback that is days ahead would
move every later instant ahead too. Writers refuse to follow it until an operator checks it. The
commit itself stays. Once its instant is accepted, new instants follow it until the clocks have
caught up. (An instant that is only pending blocks no writer, and its rollback is not placed ahead
of it.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lockkit.runtime import Procedure, WallMs
from lockkit.table.errors import RefusedOption
from lockkit.table.format.properties import ACCEPTED, TableConfig, load_config
from lockkit.table.format.timeline import instant_ms, is_ahead, load_timeline
from lockkit.table.occ.commit import trust
from lockkit.table.occ.mode import say_in_properties


@dataclass(frozen=True, slots=True)
class FutureInstant:
    """The newest instant of a table that is too far ahead to be followed."""

    instant: str
    action: str
    hours: int


def newest_ahead() -> Procedure[FutureInstant | None]:
    """The newest such instant; None if writers may continue. Reads only."""
    config, _ = yield from load_config()
    now, wall_ms = (yield from load_timeline(config.names)), (yield WallMs())
    if not is_ahead(now.latest, wall_ms, config.accepted):
        return None
    hours = (instant_ms(now.latest) - wall_ms) // 3_600_000
    return FutureInstant(now.latest, now.completed.get(now.latest, "rollback"), hours)


def accept(instant: str, *, believe: Callable[[], None] = trust) -> Procedure[bool]:
    """Let new instants follow this one, the newest; False if they already do.

    Call it under the table's lock. Raises `TableError` if another instant is the newest.
    """
    found = yield from newest_ahead()
    if found is None:
        return False
    if found.instant != instant:
        raise RefusedOption(
            instant[:40],
            f"is not the newest instant that is ahead: that is {found.instant}; nothing was "
            "changed",
        )

    def accepted(config: TableConfig) -> dict[str, str]:
        return {} if config.accepted == instant else {ACCEPTED: instant}

    return (yield from say_in_properties(accepted, believe))
