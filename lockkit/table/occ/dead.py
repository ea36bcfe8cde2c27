"""Dead writers: the rollback of their instants under a lock that is held already."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of
from lockkit.table.format.properties import recheck_config
from lockkit.table.format.timeline import load_timeline
from lockkit.table.occ.commit import StateChange
from lockkit.table.occ.failed import half_done
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.liveness import HeartbeatRead, end, forget
from lockkit.table.occ.pending import load_rollback_plan
from lockkit.table.occ.rollback import RollbackRefused, RolledBack, roll_back
from lockkit.table.occ.transaction import TableCache


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
            known = replace(known, config=replace(known.config, metadata=False))


def roll_back_held(
    target: str, held: StateChange, known: TableCache, *, base: str, resume: str | None = None
) -> Procedure[RolledBack | RollbackRefused]:
    """Roll `target` back; the caller must know that its writer is dead."""
    if known.config.metadata:
        from lockkit.table.occ.metadata_off import switch_metadata_off

        yield from switch_metadata_off(known.config, held.believe)
    outcome = yield from roll_back(
        target, held.guard, known, believe=held.believe, resume=resume, base=base
    )
    if isinstance(outcome, RollbackRefused):
        yield from forget(target)
    return outcome
