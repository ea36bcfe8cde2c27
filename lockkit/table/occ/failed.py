"""Failed writes: which pending instants are abandoned, by Hudi's three policies.

`hoodie.clean.failed.writes.policy`. EAGER: before each write, a table's only writer rolls back
every pending instant that is not its own. LAZY: a service rolls back instants whose heartbeat has
expired. NEVER: they stay. A lockkit clustering or compaction whose process crashed is rolled back
under each policy, because others yield to its plan. So is a plan that a lockkit process carried out
for another one. A plan that waits is left to whoever carries it out: Hudi, or `scheduled`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure, WallMs
from lockkit.runtime.proven import all_of, listing, read
from lockkit.table.errors import DamagedFile
from lockkit.table.format.compaction_plan import CompactionPlan, parse_compaction_plan
from lockkit.table.format.layout import FileGroup
from lockkit.table.format.plans import (
    OURS,
    SERVICES,
    ReplacePlan,
    parse_clean_plan,
    parse_replace_plan,
    parse_rollback_plan,
)
from lockkit.table.format.properties import FENCED, TableConfig, recheck_config
from lockkit.table.format.timeline import Timeline, TimelineNames, instant_ms, load_timeline
from lockkit.table.occ.commit import StateChange
from lockkit.table.occ.covered import load_rollback_plan
from lockkit.table.occ.executions import was_begun
from lockkit.table.occ.heartbeat_rules import HeartbeatRules, Policy
from lockkit.table.occ.liveness import (
    HEARTBEATS,
    HeartbeatRead,
    end,
    expired,
    forget,
    read_heartbeat,
)
from lockkit.table.occ.rollback import RollbackRefused, RolledBack, roll_back
from lockkit.table.occ.transaction import TableCache

_WRITES = frozenset({"commit", "replacecommit", "deltacommit"})
"""A clustering, a clean or a rollback that did not complete is resumed by its own service."""


def failed_writes(
    names: TimelineNames,
    now: Timeline,
    policy: Policy,
    rules: HeartbeatRules,
    *,
    own: Collection[str] = (),
) -> Procedure[tuple[HeartbeatRead, ...]]:
    """Pending instants that may be rolled back, each after `end(heartbeat)` has returned True.

    `own` are the instants of this process.
    """
    damaged: dict[str, str] = {}  # left to whoever looks at them: `TableService.take_back`
    plans = yield from service_plans(names, now, damaged)
    spare = frozenset(plans) | frozenset(own) | frozenset(damaged)
    dead = yield from dead_instants(names, now, policy, rules=rules, spare=spare)
    wall_ms, plans_dead = (yield WallMs()), []
    for instant, plan in plans.items():
        ours = OURS in plan.params
        if instant in own or not (ours or isinstance(plan, CompactionPlan)):
            continue
        heartbeat = yield from read_heartbeat(
            instant, names.requested(instant, now.pending[instant])
        )
        alone = not ours and heartbeat.attempt is None
        if alone and not (yield from was_begun(names, now, instant)):
            continue  # Hudi's, or scheduled: no process of ours carries it out
        if policy == "EAGER" or expired(heartbeat, wall_ms, rules):
            plans_dead.append(heartbeat)
    return (*dead, *(yield from _still_pending(names, plans_dead, policy)))


def dead_instants(
    names: TimelineNames,
    now: Timeline,
    policy: Policy,
    *,
    rules: HeartbeatRules = HeartbeatRules(),
    spare: frozenset[str] = frozenset(),
) -> Procedure[tuple[HeartbeatRead, ...]]:
    """Pending writes that may be rolled back, oldest first, each after `end` returned True.

    EAGER: every one (for a table's only writer). LAZY: those whose heartbeat has expired.
    NEVER: none. `spare` are this process's own, and plans that their table service will resume (in
    version 6 a clustering is called `replacecommit`, as an overwrite is).
    """
    if policy == "NEVER":
        return ()
    wall_ms, dead = (yield WallMs()), []
    for instant, action in now.pending.items():
        if action not in _WRITES or instant in spare:
            continue
        heartbeat = yield from read_heartbeat(instant, names.requested(instant, action))
        if policy == "EAGER" or expired(heartbeat, wall_ms, rules):
            dead.append(heartbeat)
    return (yield from _still_pending(names, dead, policy))


def _still_pending(
    names: TimelineNames, dead: Sequence[HeartbeatRead], policy: Policy
) -> Procedure[tuple[HeartbeatRead, ...]]:
    """Those that a timeline loaded now still shows: a heartbeat is deleted after the commit.

    EAGER: all of them, because the table has no other writer.
    """
    if policy == "EAGER" or not dead:
        return tuple(dead)
    again = yield from load_timeline(names)
    return tuple(heartbeat for heartbeat in dead if heartbeat.instant in again.pending)


def service_plans(
    names: TimelineNames, now: Timeline, damaged: dict[str, str] | None = None,
    more: Collection[str] = (),
) -> Procedure[dict[str, ReplacePlan | CompactionPlan]]:
    """The pending clusterings and compactions by instant, including Hudi's.

    Why a plan cannot be read is raised, or put into `damaged`: also of `more` actions.
    """
    found: dict[str, ReplacePlan | CompactionPlan] = {}
    for instant, action in now.pending.items():
        if action not in (*SERVICES, *more):
            continue
        key = names.requested(instant, action)
        answer = yield from read(key)
        try:
            match answer:
                case Found(body, _) if action == "compaction":
                    found[instant] = parse_compaction_plan(key, body)
                case Found(body, _) if action in more:
                    (parse_clean_plan if action == "clean" else parse_rollback_plan)(key, body)
                case Found(body, _) if (plan := parse_replace_plan(key, body)).clusters:
                    found[instant] = plan
        except DamagedFile as error:
            if damaged is None:
                raise
            damaged[instant] = str(error)
    return found


def leftovers(names: TimelineNames, rules: HeartbeatRules) -> Procedure[tuple[str, ...]]:
    """Completed instants whose writer left an expired heartbeat behind."""
    listed = yield from listing(HEARTBEATS)
    now, wall_ms, found = (yield from load_timeline(names)), (yield WallMs()), []
    for instant in (each.key.removeprefix(HEARTBEATS) for each in listed):
        if instant in now.pending or not (instant.isdecimal() and len(instant) in (14, 17)):
            continue
        heartbeat = yield from read_heartbeat(instant)
        if heartbeat.version is not None and expired(heartbeat, wall_ms, rules):
            found.append(instant)
    return tuple(found)


def about_to_go(
    names: TimelineNames, now: Timeline, but: str = ""
) -> Procedure[frozenset[FileGroup]]:
    """File groups that a clustering is planned to replace, or a compaction to write, `but` one."""
    plans = yield from service_plans(names, now)
    return frozenset(
        group for each, plan in plans.items() if each != but for group in plan.inputs or ()
    )


def half_done(
    config: TableConfig, now: Timeline, action: str, rules: HeartbeatRules
) -> Procedure[tuple[str, ...]]:
    """Pending rollbacks or cleans that must be finished by their plan.

    On a fenced table these are all: finishing one that another process works on is harmless. If
    Hudi writes too, it would find a second completed file, so only abandoned ones are finished.
    """
    wall_ms = yield WallMs()
    left_ms = 0 if config.mode == FENCED else rules.ttl_ms + rules.drift_ms
    return tuple(
        instant for instant, its in now.pending.items()
        if its == action and (not left_ms or wall_ms - instant_ms(instant) > left_ms)
    )  # fmt: skip


def roll_back_met(
    dead: Collection[HeartbeatRead], held: StateChange, known: TableCache, *,
    rules: HeartbeatRules, base: str,
) -> Procedure[None]:  # fmt: skip
    """Roll back the dead writers that a commit met before it acquired its lock.

    The properties and the timeline are read again: while the commit waited for the lock, another
    process may have rolled the same instants back, or changed the table's mode. A rollback that
    another process left half done is finished by its plan. One that Hudi may be carrying out is
    left to Hudi. Raises what `roll_back` raises; the commit does not need it.
    """
    names = known.config.names
    config, now = yield from all_of([
        recheck_config(known.config, known.config_version), load_timeline(names)
    ])  # fmt: skip
    known = replace(known, config=config, newest=max(known.newest, now.latest))
    left = yield from half_done(config, now, "rollback", rules)
    begun: dict[str, str] = {}
    for instant in (each for each, done in now.rollbacks.items() if not done):
        plan = yield from load_rollback_plan(names, instant)
        if plan is not None:
            begun[plan.target] = instant
    for heartbeat in dead:
        resume = begun.get(heartbeat.instant)
        if heartbeat.instant not in now.pending or (resume is not None and resume not in left):
            continue
        if (yield from end(heartbeat)):
            yield from roll_back_held(heartbeat.instant, held, known, resume=resume, base=base)
            known = replace(known, config=replace(known.config, metadata=False, unblocked=False))


def roll_back_held(
    target: str, held: StateChange, known: TableCache, *, base: str, resume: str | None = None
) -> Procedure[RolledBack | RollbackRefused]:
    """Roll `target` back; the caller must know that its writer is dead."""
    if known.config.metadata or known.config.unblocked:
        from lockkit.table.occ.rewriting import keep_metadata_off
        yield from keep_metadata_off(known.config, held.believe)
    outcome = yield from roll_back(
        target, held.guard, known, believe=held.believe, resume=resume, base=base
    )
    if isinstance(outcome, RollbackRefused):
        yield from forget(target)
    return outcome
