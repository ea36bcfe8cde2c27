"""What is pending and affects others: plans of table services, and rollbacks in progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, read
from lockkit.table.format.timeline import Timeline, TimelineNames
from lockkit.table.occ.conflicting import Pending

if TYPE_CHECKING:
    from lockkit.table.format.plans import RollbackPlan

REPLACING = frozenset({"replacecommit", "clustering"})


def load_pending(
    names: TimelineNames, now: Timeline, *, since: Timeline | None = None
) -> Procedure[tuple[Pending, ...]]:
    """The plans among a timeline's pending instants; also rollbacks completed after `since`.

    A plan that is gone was completed or rolled back meanwhile: the fence has changed with it.
    """
    reads = [
        *(_pending(names, instant, action) for instant, action in now.pending.items()
          if action in REPLACING),
        *(_pending(names, instant, "rollback") for instant, done in now.rollbacks.items()
          if not done or (since is not None and not since.rollbacks.get(instant))),
    ]  # fmt: skip
    found = yield from all_of(reads)
    return tuple(each for each in found if each is not None)


def _pending(names: TimelineNames, instant: str, action: str) -> Procedure[Pending | None]:
    if action == "rollback":
        plan = yield from load_rollback_plan(names, instant)
        return Pending(instant, action, takes_back=frozenset({plan.target})) if plan else None
    key = names.requested(instant, action)
    match (yield from read(key)):
        case Found(body, _):
            from lockkit.table.format.plans import parse_replace_plan  # few commits need it

            planned = parse_replace_plan(key, body)
            # An insert_overwrite needs no plan: what it replaces shows when it completes.
            kind = "clustering" if planned.clusters else "replacecommit"
            return Pending(instant, kind, planned.inputs)
        case _missing:
            return None


def load_rollback_plan(names: TimelineNames, instant: str) -> Procedure[RollbackPlan | None]:
    """What a rollback removes; None if its plan is gone: it was completed and cleaned up."""
    key = names.requested(instant, "rollback")
    match (yield from read(key)):
        case Found(body, _):
            from lockkit.table.format.plans import parse_rollback_plan  # as above

            return parse_rollback_plan(key, body)
        case _missing:
            return None
