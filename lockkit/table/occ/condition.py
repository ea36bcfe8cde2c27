"""The condition of a table: what is decided, what is pending, and whether anybody works on it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lockkit.runtime import Procedure, WallMs
from lockkit.table.format.plans import OURS
from lockkit.table.format.properties import FENCED, TableConfig, load_config
from lockkit.table.format.timeline import Names, Timeline, instant_ms, load_timeline
from lockkit.table.occ.failed import clusterings
from lockkit.table.occ.fence import Fence, read_fence
from lockkit.table.occ.liveness import HeartbeatRules, Pulse, expired, look


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A pending instant."""

    instant: str
    action: str
    """`clustering` also in version 6, whose files are called `replacecommit`."""
    inflight: bool
    pulse: Pulse
    age_ms: int
    """Since its last beat; without a heartbeat, since it was begun."""
    lives: bool
    """Whether somebody may be at it, or take it up as Hudi does its own clusterings. Of a rollback
    or a clean nobody knows: any run of a service finishes it."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A table as one look found it."""

    config: TableConfig
    timeline: Timeline
    pending: tuple[Unfinished, ...]
    fence: Fence | None


def condition(rules: HeartbeatRules = HeartbeatRules()) -> Procedure[Condition]:
    """Reads only; one request for each pending instant."""
    config, _version = yield from load_config()
    now = yield from load_timeline(config.names)
    wall_ms, pending = (yield WallMs()), []
    for instant in now.pending:
        pending.append((yield from unfinished(config.names, now, instant, wall_ms, rules)))
    fence = (yield from read_fence()).fence if config.mode == FENCED else None
    return Condition(config, now, tuple(pending), fence)


def unfinished(
    names: Names, now: Timeline, instant: str, wall_ms: int, rules: HeartbeatRules
) -> Procedure[Unfinished]:
    """What a pending instant is, and whether anybody works on it: one read, or two."""
    action = now.pending[instant]
    alone = replace(now, pending={instant: action})
    plan = (yield from clusterings(names, alone)).get(instant)
    pulse = yield from look(instant, names.requested(instant, action))
    hudis = plan is not None and OURS not in plan.params
    since_ms = instant_ms(instant) if pulse.modified_ms is None else pulse.modified_ms
    until_ms = wall_ms if pulse.date_ms is None else pulse.date_ms
    return Unfinished(
        instant, "clustering" if plan else action, instant in now.inflight, pulse,
        max(0, until_ms - since_ms), hudis or not expired(pulse, wall_ms, rules),
    )  # fmt: skip
