"""A clustering: a plan made durable, its files rewritten, and their commit.

One that is refused, fails or is interrupted is taken back at once, for a plan that stands makes
writers give way.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from lockkit.lock import LockBusy
from lockkit.state import LockLost
from lockkit.stores import StoreError
from lockkit.table.ask import TableError
from lockkit.table.cluster import action_of, plan_cluster, stands
from lockkit.table.commit import Committed
from lockkit.table.conflict import PREFER_WRITER, CommitConflict, find_conflict
from lockkit.table.decide import CommitUnknown
from lockkit.table.desk import Desk
from lockkit.table.failed import about_to_go
from lockkit.table.heartbeat import Heartbeat
from lockkit.table.look import Look
from lockkit.table.markers import at_work, unmark
from lockkit.table.plans import ReplacePlan, format_cluster_plan
from lockkit.table.rewrite import Rewrite
from lockkit.table.rollback import Spared
from lockkit.table.snapshot import Snapshot, load_snapshot
from lockkit.table.timeline import load_timeline
from lockkit.table.transaction import Known, Prepared, Transaction, abandon, begin, prepare

UNKNOWN_TRIES_MAX = 3


@dataclass(frozen=True, slots=True)
class Clustered:
    """A clustering that is committed."""

    instant: str
    replaced: int
    """File groups that are gone."""
    files: int


def plan_for(desk: Desk, look: Look) -> ReplacePlan | None:
    """What would be rewritten now."""
    plan: ReplacePlan | None = desk.run(plan_cluster(
        look.snapshot, desk.rules.cluster, base=desk.base(look.config),
        busy=desk.run(about_to_go(look.config.names, look.now)),
    ))  # fmt: skip
    return plan


def cluster(desk: Desk, look: Look) -> Clustered | None:
    """None where there is nothing to gain, or where the table moved on since it was looked at.

    Raises `CommitConflict` where a writer was faster, `CommitUnknown`, and what a commit raises.
    """
    plan = plan_for(desk, look)
    if plan is None:
        return None
    transaction, heartbeat = _begin(desk, look.known, plan)
    try:
        with heartbeat:
            return _rewrite(desk, plan, look.snapshot, transaction, heartbeat)
    except CommitUnknown:
        raise  # it may be visible: nothing is deleted
    except BaseException as error:
        desk.tell(f"taking the clustering back: {error!r:.200}", transaction.instant)
        # What cannot be reached now is for the next run, once the heartbeat has expired.
        with suppress(TableError, StoreError, LockBusy, LockLost):
            outcome = desk.roll_back(look.known, transaction.instant)
            if isinstance(outcome, Spared):
                desk.tell("it was committed all the same", transaction.instant)
        raise
    finally:
        desk.own.discard(transaction.instant)


def _begin(desk: Desk, known: Known, plan: ReplacePlan) -> tuple[Transaction, Heartbeat]:
    with desk.taking_an_instant(known.config):
        way = begin(
            known, action=action_of(known.config.names), plan=format_cluster_plan(plan)
        )
        transaction: Transaction = desk.run(way)
        try:
            heartbeat = Heartbeat(
                transaction.instant, desk.store, clock=desk.clock, rules=desk.rules.heartbeat
            )
        except BaseException:
            desk.run(abandon(transaction.taken))
            raise
        desk.own.add(transaction.instant)
        return transaction, heartbeat


def _rewrite(
    desk: Desk, plan: ReplacePlan, before: Snapshot, transaction: Transaction, heartbeat: Heartbeat
) -> Clustered | None:
    snapshot: Snapshot = desk.run(load_snapshot(covering=transaction.covered, since=before))
    if not stands(plan, snapshot):  # somebody committed before the plan was there
        desk.run(abandon(transaction.taken))
        heartbeat.finish()
        return None
    assert plan.inputs is not None and snapshot.schema is not None
    desk.tell(f"rewriting {len(plan.inputs)} file groups", transaction.instant)
    stats = Rewrite(
        plan, snapshot, transaction.target, desk.store, desk.clock, heartbeat.check
    ).carry_out()
    prepared: Prepared = desk.run(prepare(
        transaction, stats, schema=snapshot.schema, operation="CLUSTER", replaced=plan.inputs,
        known_partitions=frozenset(partition for partition, _ in snapshot.groups),
    ))  # fmt: skip
    if desk.rules.strategy is PREFER_WRITER:
        _yield_to_writers(desk, prepared)
    heartbeat.check()
    committed = _publish(desk, prepared)
    heartbeat.finish()
    desk.run(unmark(committed.instant))
    return Clustered(committed.instant, len(plan.inputs), len(stats))


def _yield_to_writers(desk: Desk, prepared: Prepared) -> None:
    now = desk.run(load_timeline(prepared.names))
    look = at_work(prepared.names, now, mine=prepared.instant, rules=desk.rules.heartbeat)
    writers = desk.run(look)
    if conflict := find_conflict(prepared.mine, (), pending=writers, strategy=PREFER_WRITER):
        raise CommitConflict(prepared.instant, conflict)


def _publish(desk: Desk, prepared: Prepared) -> Committed:
    def once() -> Committed:
        return desk.turns.publish(
            prepared, desk.store, desk.clock, desk.emit, strategy=desk.rules.strategy
        )

    for _ in range(UNKNOWN_TRIES_MAX - 1):
        with suppress(CommitUnknown):  # the same again finds out
            return once()
    return once()
