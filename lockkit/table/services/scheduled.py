"""A compaction in two steps: a plan that stays pending, and a process that carries it out later.

As Hudi's `HoodieCompactor` in the modes `schedule` and `execute`, which can do either step for us.
A plan without `OURS` in its parameters belongs to nobody: no rollback of dead writers takes it.
While a process carries it out, it has a heartbeat of ours. If that process dies, the plan is
rolled back with what it wrote, because only the fence can say that it decides nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from lockkit.errors import StoreError, TableError
from lockkit.protocol.outcome import Found
from lockkit.runtime import Note, Procedure, Unique
from lockkit.runtime.proven import delete, read
from lockkit.table.errors import CommitUnknown, RefusedOption, TableBlocked, TableChanged
from lockkit.table.format.compaction_plan import (
    CompactionPlan,
    format_compaction_plan,
    parse_compaction_plan,
)
from lockkit.table.format.plans import OURS
from lockkit.table.format.properties import HUDI
from lockkit.table.format.timeline import Timeline, load_timeline
from lockkit.table.occ.commit import Committed, StateChange
from lockkit.table.occ.committing import wait_out
from lockkit.table.occ.conflict import refuse_unreadable
from lockkit.table.occ.covered import CheckedHorizon
from lockkit.table.occ.discarding import attempt_in
from lockkit.table.occ.executions import delete_executions, execution, was_begun
from lockkit.table.occ.liveness import read_heartbeat
from lockkit.table.occ.markers import unmark
from lockkit.table.occ.prepared import Prepared
from lockkit.table.occ.transaction import TakenInstant, Transaction, begin, is_ours, take
from lockkit.table.read.opening import load_snapshot
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.services.compact import (
    PLANS_MAX,
    Compacted,
    VoidPlan,
    after_its_inputs,
    compact,
    merged,
    never_carried_out,
    plan_for,
    planned_twice,
    stands,
    waits,
)
from lockkit.table.services.context import ServiceContext, StoreHost
from lockkit.table.services.view import TableView, look_again, look_at
from lockkit.table.write.attempt import WriteAttempt
from lockkit.table.write.contract import AttemptHeartbeat, Files
from lockkit.table.write.withdrawal import withdraw_attempt

MODES = SCHEDULE, EXECUTE, BOTH = "schedule", "execute", "scheduleAndExecute"
"""Of Hudi's `HoodieCompactor`."""
COMPACTION = "compaction"
SHOWN = 40
"""How many characters of a wrong instant an error shows."""


def refuse_mode(mode: str, instant: str) -> None:
    """Raise for a mode that is not Hudi's, or an instant that it does not take."""
    if mode not in MODES:
        cure = f"choose {', '.join(MODES[:-1])} or {MODES[-1]}"
        raise RefusedOption("mode", "is not known here", cure, value=repr(mode)[:SHOWN])
    if not isinstance(instant, str) or (instant and mode != EXECUTE):
        why = f"names a pending compaction, as a text, and is for mode={EXECUTE!r}"
        raise RefusedOption("instant", why, value=repr(instant)[:SHOWN])


def schedule(context: ServiceContext, view: TableView) -> Compacted | None:
    """Write a plan and leave it pending; None if there is nothing to merge."""
    if view.config.mode == HUDI:
        return _scheduled_under_lock(context, view)
    for _ in range(PLANS_MAX):
        plan = plan_for(context, view)
        if plan is None:
            return None
        plan = replace(plan, params={})
        taken = _planned(context, view, plan)
        if taken is not None:
            context.report(f"planned the compaction of {len(plan.slices)} file groups", taken)
            return _outcome(taken, plan, pending=True)
        view, _saved = context.run(look_again(view))
    why = f"changed between each of {PLANS_MAX} looks and plans of a compaction; none was scheduled"
    raise TableChanged(f"table {view.config.name!r}", why, "try again when fewer writers commit")


def compacted(context: ServiceContext, view: TableView) -> Compacted | None:
    """`compact`, which in version 6 takes two steps, because no plan is withdrawn there.

    If there is nothing to plan, it carries out the oldest plan that nobody has begun.
    """
    if not view.config.sliced:
        return compact(context, view)
    planned = schedule(context, view)
    view, _saved = context.run(look_at(None, 0))
    instant = planned.instant if planned else context.run(not_begun(view))
    return execute(context, view, instant) if instant else None


def past_void_plans(
    compaction: Callable[[], Compacted | None], take_back: Callable[..., object]
) -> Compacted | None:
    """Compact; each plan that nobody can carry out is rolled back first.

    Beside busy writers a plan becomes void by a commit that was completed before the plan's
    instant, and appeared after its log files were looked up. Left there, it would keep its file
    groups from every later compaction.
    """
    for _ in range(PLANS_MAX):
        try:
            return compaction()
        except VoidPlan as void:
            take_back(only=(void.what,))
    return compaction()


def not_begun(view: TableView) -> Procedure[str]:
    """The oldest pending compaction that no process carries out; "" if there is none."""
    for each, action in sorted(view.now.pending.items()):
        if action == COMPACTION and each not in view.now.inflight:
            if (yield from read_heartbeat(each)).version is None:
                return each
    return ""


def _scheduled_under_lock(context: ServiceContext, view: TableView) -> Compacted | None:
    """The same beside Hudi: under the lock no commit and no other plan comes between.

    A plan that is withdrawn fails a reader of Hudi's that has listed it and reads it then. In
    version 6 none may be (`executions.put_back`).
    """
    with context.concurrency_control.hold() as held:
        view, _saved = context.run(look_again(view))
        plan = plan_for(context, view)
        if plan is None:
            return None
        plan = replace(plan, params={})
        instant = context.run(put_plan(view, plan, held))
    context.report(f"planned the compaction of {len(plan.slices)} file groups", instant)
    return _outcome(instant, plan, pending=True)


def put_plan(view: TableView, plan: CompactionPlan, held: StateChange) -> Procedure[str]:
    """Write a plan of what `view` showed under this very lock; its instant."""
    refuse_unreadable(view.now, view.config, known=frozenset(view.now.completed))
    held.believe()
    body = format_compaction_plan(plan)
    taken = yield from take(after_its_inputs(view), action=COMPACTION, plan=body)
    yield from wait_out(taken.instant)
    return taken.instant


def _planned(context: ServiceContext, view: TableView, plan: CompactionPlan) -> str | None:
    """The plan's instant; None if a commit or another plan came before it: it is withdrawn."""
    known, body = after_its_inputs(view), format_compaction_plan(plan)
    with context.taking_an_instant(view.config):
        transaction = context.run(begin(known, action=COMPACTION, plan=body))
    snapshot = context.run(load_snapshot(covering=transaction.covered, since=view.snapshot))
    twice = context.run(planned_twice(plan, transaction))
    if not twice and stands(plan, snapshot, transaction.instant):
        return transaction.instant
    host = StoreHost(context, context.rules.heartbeat)
    context.run(withdraw_attempt(host, transaction.taken, (), True, None))
    return None


def execute(context: ServiceContext, view: TableView, instant: str = "") -> Compacted | None:
    """Carry out the plan of `instant`, or the oldest one; None if no plan is pending.

    Raises `RefusedOption` if the instant is no pending compaction, `TableBlocked` if another
    process carries it out or its log files were replaced, and what a commit raises. Then the plan
    stays pending.
    """
    found = context.run(to_execute(view, instant))
    if found is None:
        return None
    taken, plan = found
    attempt = PlanAttempt(StoreHost(context, context.rules.heartbeat), context.rules.strategy)

    def files(transaction: Transaction, heart: AttemptHeartbeat) -> Procedure[Prepared | None]:
        yield from ()
        return _carried_out(context, plan, view.snapshot, transaction, heart)

    context.run(attempt.resume(taken, files))
    with suppress(Exception):  # it is committed; what is left here is cleaned up later
        context.run(unmark(taken.instant))
    return _outcome(taken.instant, plan, pending=False)


def to_execute(
    view: TableView, instant: str
) -> Procedure[tuple[TakenInstant, CompactionPlan] | None]:
    """The pending compaction of `instant`, or the oldest one, if it may be carried out."""
    plans = yield from pending_plans(view)
    free = sorted(each for each, (taken, plan) in plans.items() if OURS not in plan.params)
    if not instant and not free:
        return None
    instant = instant or free[0]
    if instant not in plans:
        why = _what_it_is(instant, view.now)
        raise RefusedOption("instant", why, _instead(free), value=instant[:SHOWN])
    taken, plan = plans[instant]
    if OURS in plan.params:
        why = "is a compaction that the process which planned it carries out itself"
        raise TableBlocked(instant, why, "wait; if it died, the next compaction rolls it back")
    if (yield from read_heartbeat(instant)).version is not None:
        raise TableBlocked(instant, "is being carried out by another process", "wait for it")
    if (yield from was_begun(view.config.names, view.now, instant)):
        raise TableBlocked(
            instant, "was begun by a process whose execution of it was rolled back",
            "try again in some minutes; or, if that process has ended: "
            f"lockkit table rollback URL --instant {instant} --stopped",
        )  # fmt: skip
    if instant in view.now.inflight:
        raise waits(instant, view.now, view.config.sliced)
    return taken, plan


def _carried_out(
    context: ServiceContext, plan: CompactionPlan, before: Snapshot, transaction: Transaction,
    heart: AttemptHeartbeat,
) -> Prepared | None:  # fmt: skip
    # A process that was paused in an execution before this one must not overwrite its files.
    task = execution(transaction.taken.attempt)
    prepared = merged(context, plan, before, transaction, heart, task)
    if prepared is None:
        raise never_carried_out(transaction.instant, transaction.config)
    return prepared


def pending_plans(view: TableView) -> Procedure[dict[str, tuple[TakenInstant, CompactionPlan]]]:
    """The pending compactions, each as an instant that can be carried out."""
    found, names = {}, view.config.names
    for instant, action in view.now.pending.items():
        if action != COMPACTION:
            continue
        key = names.requested(instant, action)
        match (yield from read(key)):
            case Found(body, version):
                attempt = yield Unique()
                taken = TakenInstant(instant, attempt, action, view.known, body, version)
                found[instant] = taken, parse_compaction_plan(key, body)
            case _missing:
                pass
    return found


def _outcome(instant: str, plan: CompactionPlan, *, pending: bool) -> Compacted:
    logs = sum(len(each.logs) for each in plan.slices)
    return Compacted(instant, len(plan.slices), logs, pending)


def _what_it_is(instant: str, now: Timeline) -> str:
    if instant in now.completed:
        return f"is no pending compaction: it is a completed {now.completed[instant]}"
    if instant in now.pending:
        return f"is no pending compaction: it is a pending {now.pending[instant]}"
    return "is no pending compaction: it is not on the timeline"


def _instead(free: list[str]) -> str:
    if not free:
        return "no compaction is pending: schedule one first"
    return f"pending compactions are {', '.join(free[:5])}{', ...' if len(free) > 5 else ''}"


@dataclass(slots=True)
class PlanAttempt(WriteAttempt):
    """An attempt to carry a pending plan out. If it ends without a commit, the plan stays."""

    def resume(self, taken: TakenInstant, files: Files) -> Procedure[Committed | None]:
        """Write the plan's `files`, and commit. Raises `HeartbeatExpired` if another process does.
        """
        return (yield from self._acknowledged(self._resume(taken, files)))

    def _resume(self, taken: TakenInstant, files: Files) -> Procedure[Committed | None]:
        host = self.host
        self._heart = yield from host.beat(taken)
        transaction = yield from host.run(resumed(taken))
        host.own.add(taken.instant)
        self._taken, self._paths = taken, None
        self.prepared = yield from files(transaction, self._heart)
        return None if self.prepared is None else (yield from self._publish(self.prepared))

    def _leave(self, error: BaseException | None) -> Procedure[None]:
        taken, heart = self._taken, self._heart
        if heart is None:
            return
        certain = error is None or isinstance(error, Exception) or self._unsent
        if isinstance(error, CommitUnknown) or (taken is not None and not certain):
            yield from WriteAttempt._leave(self, error)  # by the fence: it may be decided
            return
        heart.stop()
        with suppress(TableError, StoreError):  # else its heartbeat expires: it is rolled back
            if taken is not None:
                yield from self.host.run(put_back(taken))
            yield from heart.left()


def resumed(taken: TakenInstant) -> Procedure[Transaction]:
    """The transaction of a plan, once the caller's heartbeat keeps other processes from it.

    Later instants may be completed: they do not rewrite what the plan rewrites (`find_conflict`).
    The horizon is below the instant, because the plan is pending.
    """
    after = CheckedHorizon(taken.known.horizon).listed_after
    now = yield from load_timeline(taken.names, after=after)
    refuse_unreadable(now, taken.known.config, known=frozenset(now.completed))
    if not (yield from is_ours(taken, now)) or taken.instant in now.inflight:
        why = "is not pending as it was: another process carried it out, or rolled it back"
        raise TableChanged(taken.instant, why, "look at the table again")
    yield Note("began", {"instant": taken.instant})
    return Transaction(taken, now)


def put_back(taken: TakenInstant) -> Procedure[None]:
    """Delete what this attempt wrote for the plan, which certainly was not decided."""
    yield from delete_executions(taken.instant, taken.attempt)
    inflight = taken.names.inflight(taken.instant, taken.action)
    match (yield from read(inflight)):
        case Found(body, version) if attempt_in(inflight, body) == taken.attempt:
            yield from delete(inflight, version)
