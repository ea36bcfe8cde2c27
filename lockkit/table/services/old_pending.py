"""Old pending instants: which of them a writer's commits look at, because a writer may be dead."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lockkit.clock import Clock
from lockkit.errors import LockLost
from lockkit.runtime import Procedure
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.timeline import instant_ms, is_ahead, load_timeline
from lockkit.table.occ.commit import First, StateChange
from lockkit.table.occ.covered import pending_commits
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.prepared import Prepared

if TYPE_CHECKING:
    from lockkit.table.occ.liveness import HeartbeatRead

OVERDUE_MAX = 3
"""How many old pending instants one commit checks."""


@dataclass(slots=True)
class OldPending:
    """The old pending instants that a writer's commits look at: their writers may be dead."""

    rules: HeartbeatRules
    clock: Clock
    own: Collection[str]
    base: Callable[[TableConfig], str]
    """The table's address, as `roll_back` takes it."""
    failed: Callable[[Exception], None]
    """Called with the error of a rollback; the commit continues."""
    _look_again_ms: dict[str, int] = field(default_factory=dict)
    """When to look again at the heartbeat of an old pending instant whose writer lives."""

    def before_commit(self, prepared: Prepared, *, whole: bool = False) -> Procedure[First | None]:
        """What `prepared` does first under its lock: it rolls back the dead writers that it met.

        With `whole` it lists the whole timeline for them; otherwise its transaction has listed it.
        """
        known = prepared.transaction.taken.known
        try:
            dead = yield from self._dead(prepared, whole)
        except Exception as error:  # noqa: BLE001 - the commit does not need it
            self.failed(error)
            return None

        def first(held: StateChange) -> Procedure[None]:
            from lockkit.table.occ.failed import roll_back_met

            base = self.base(known.config)
            try:
                yield from roll_back_met(dead, held, known, rules=self.rules, base=base)
            except LockLost:
                raise
            except Exception as error:  # noqa: BLE001 - the commit does not need it
                self.failed(error)

        return first if dead else None

    def _dead(self, prepared: Prepared, whole: bool) -> Procedure[tuple[HeartbeatRead, ...]]:
        """The dead ones of at most `OVERDUE_MAX` instants that are older than a heartbeat may be.

        A commit that meets no such instant sends nothing.
        """
        seen, rules = prepared.transaction.timeline, self.rules
        if whole:
            seen = yield from load_timeline(prepared.names)
        wall_ms = self.clock.wall_ms()
        again = {each: at for each, at in self._look_again_ms.items() if each in seen.pending}
        old = [
            each for each in pending_commits(seen)
            if each != prepared.instant and each not in self.own
            and _is_old(each, wall_ms, rules)
            and again.get(each, 0) <= wall_ms
        ][:OVERDUE_MAX]  # fmt: skip
        self._look_again_ms = again | dict.fromkeys(old, wall_ms + rules.interval_ms)
        if not old:
            return ()
        from lockkit.table.occ.failed import failed_writes

        met = replace(seen, pending={each: seen.pending[each] for each in old})
        return (yield from failed_writes(prepared.names, met, "LAZY", rules, own=self.own))


def _is_old(instant: str, wall_ms: int, rules: HeartbeatRules) -> bool:
    """Whether its writer may be dead: it is older than a heartbeat may be, or of a wrong clock."""
    old = wall_ms - instant_ms(instant) > rules.ttl_ms + rules.drift_ms
    return old or is_ahead(instant, wall_ms)
