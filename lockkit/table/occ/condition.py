"""The condition of a table: its pending instants, their writers, and the readers that wait.

A pending commit holds readers back only on tables of version 6, where incremental reads follow the
order of the instants (`read.incremental`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lockkit.events import clock_time
from lockkit.runtime import Procedure, WallMs
from lockkit.table.format.plans import OURS, ReplacePlan
from lockkit.table.format.properties import FENCED, GROUP, TableConfig, load_config
from lockkit.table.format.timeline import Timeline, TimelineNames, instant_ms, load_timeline
from lockkit.table.occ.covered import pending_commits
from lockkit.table.occ.executions import was_begun
from lockkit.table.occ.failed import service_plans
from lockkit.table.occ.fence import Fence, read_fence
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.liveness import HeartbeatRead, expired, read_heartbeat

if TYPE_CHECKING:
    from lockkit.table.occ.group.decision import GroupFence


@dataclass(frozen=True, slots=True)
class PendingInstant:
    """An instant that is requested and not completed, with what is known about its writer."""

    instant: str
    action: str
    """`clustering` also in version 6, where its files are named `replacecommit`."""
    inflight: bool
    heartbeat: HeartbeatRead
    age_ms: int
    """Time since its last heartbeat, or since it began if there is no heartbeat."""
    lives: bool
    """Whether a writer may still work on it. True also for a plan of Hudi's, or one that is
    scheduled, which some process will carry out. Of no use for a rollback or a clean, because any
    later run of the service finishes those."""
    damaged: str = ""
    """Why its plan cannot be read, and what to do."""

    @property
    def given_up(self) -> bool:
        """Whether it may be taken away at once: a compaction that nobody has begun, or a damaged
        plan that nobody carries out (of a clean at any time: the next one plans anew).
        """
        begun = self.inflight and self.action != "clean"
        idle = self.action == "compaction" or bool(self.damaged)
        return idle and not begun and self.heartbeat.version is None

    @property
    def silent(self) -> bool:
        """Whether a process may work on it that keeps no heartbeat, as Hudi's services do."""
        plan = self.action in ("compaction", "clustering") or bool(self.damaged)
        return plan and self.lives and self.heartbeat.version is None


@dataclass(frozen=True, slots=True)
class TableCondition:
    """A table as one inspection found it."""

    config: TableConfig
    timeline: Timeline
    pending: tuple[PendingInstant, ...]
    fence: Fence | None
    group: GroupFence | None = None
    """The fence of a table with group commit."""


def condition(rules: HeartbeatRules = HeartbeatRules()) -> Procedure[TableCondition]:
    """Inspect the table. Only reads: one to three requests for each pending instant."""
    config, _version = yield from load_config()
    now = yield from load_timeline(config.names)
    wall_ms, pending = (yield WallMs()), []
    for instant in now.pending:
        pending.append((yield from unfinished(config.names, now, instant, wall_ms, rules)))
    if config.commit == GROUP:
        from lockkit.table.occ.group.fence import read_group_fence

        together, _ = yield from read_group_fence()
        return TableCondition(config, now, tuple(pending), None, together)
    fence = (yield from read_fence()).fence if config.mode == FENCED else None
    return TableCondition(config, now, tuple(pending), fence)


def unfinished(
    names: TimelineNames, now: Timeline, instant: str, wall_ms: int, rules: HeartbeatRules
) -> Procedure[PendingInstant]:
    """Look up one pending instant: its plan if it is a service's, and its heartbeat."""
    action = now.pending[instant]
    alone = replace(now, pending={instant: action})
    damaged: dict[str, str] = {}
    plan = (yield from service_plans(names, alone, damaged, ("clean", "rollback"))).get(instant)
    heartbeat = yield from read_heartbeat(instant, names.requested(instant, action))
    hudis = heartbeat.attempt is None and (
        OURS not in plan.params if plan else bool(damaged) and heartbeat.version is None
    )
    if hudis and action == "compaction":
        hudis = not (yield from was_begun(names, now, instant))
    since_ms = instant_ms(instant) if heartbeat.modified_ms is None else heartbeat.modified_ms
    until_ms = wall_ms if heartbeat.date_ms is None else heartbeat.date_ms
    return PendingInstant(
        instant, "clustering" if isinstance(plan, ReplacePlan) else action,
        instant in now.inflight, heartbeat, max(0, until_ms - since_ms),
        hudis or not expired(heartbeat, wall_ms, rules), damaged.get(instant, ""),
    )  # fmt: skip


# --- what holds readers back ----------------------------------------------------------------------


class ReaderHeldBack(UserWarning):
    """Completed commits are not read yet, because an earlier instant is still pending."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Why an incremental read ends before the newest commit."""

    instant: str
    """The pending instant that the reader waits for."""
    action: str
    since_ms: int
    """When that instant began."""
    alive: bool
    """Whether its writer may still be working on it."""
    last_beat_ms: int | None
    """The writer's last heartbeat; None if it never sent one."""
    waiting: int
    """Number of completed commits behind it, which the incremental read leaves out."""

    @property
    def since(self) -> str:
        return clock_time(self.since_ms)

    def describe(self, url: str = "URL") -> str:
        """What holds the reader back, and the next step; the command uses `url`."""
        beat = None if self.last_beat_ms is None else clock_time(self.last_beat_ms)
        if self.alive:
            writer = f"alive: last heartbeat {beat}" if beat else "alive: no heartbeat yet"
            remedy = "reads continue once that writer has committed or is rolled back"
        else:
            writer = f"dead: no heartbeat since {beat or 'it began'}"
            remedy = (
                "a lockkit writer rolls it back at one of its next commits; to do so now: "
                f"lockkit table rollback {url} --instant {self.instant}"
            )
        waits = "commit waits" if self.waiting == 1 else "commits wait"
        return (
            f"held back since {self.since} by instant {self.instant} (writer {writer}); "
            f"{self.waiting} completed {waits} behind it; {remedy}"
        )

    def __str__(self) -> str:
        return self.describe()


def held_back(
    names: TimelineNames, now: Timeline, start: str = "", end: str | None = None
) -> Procedure[HeldBack | None]:
    """What holds increments of (`start`, `end`] back; None in version 9, or if no commit waits."""
    barrier, waiting = _barrier(names, now, start, end)
    if not waiting:
        return None
    by = yield from unfinished(names, now, barrier, (yield WallMs()), HeartbeatRules())
    return _held_by(by, waiting)


def held_in(found: TableCondition) -> HeldBack | None:
    """The same for a table that was already inspected."""
    barrier, waiting = _barrier(found.config.names, found.timeline, "", None)
    by = next((each for each in found.pending if each.instant == barrier), None)
    return _held_by(by, waiting) if by and waiting else None


def _barrier(names: TimelineNames, now: Timeline, start: str, end: str | None) -> tuple[str, int]:
    """The first pending commit after `start`, and how many completed commits wait for it."""
    barrier = first_pending(now, start)
    behind = [each for each in now.commits if each > barrier and (end is None or each <= end)]
    return barrier, len(behind) if names.layout == 1 else 0


def _held_by(by: PendingInstant, waiting: int) -> HeldBack:
    beat_ms = None if by.heartbeat.version is None else by.heartbeat.modified_ms
    return HeldBack(by.instant, by.action, instant_ms(by.instant), by.lives, beat_ms, waiting)


def first_pending(now: Timeline, after: str = "") -> str:
    """The first pending commit later than `after`; "~", which sorts after all, if there is none.
    """
    return min((each for each in pending_commits(now) if each > after), default="~")
