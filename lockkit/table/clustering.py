"""A clustering: a plan made durable, its files rewritten, and their commit.

One that is refused, fails or is interrupted is taken back at once, for a plan that stands makes
writers give way.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from lockkit.table.cluster import action_of, plan_cluster, stands
from lockkit.table.conflict import PREFER_WRITER, CommitConflict, find_conflict
from lockkit.table.desk import Desk
from lockkit.table.failed import about_to_go
from lockkit.table.heartbeat import Heartbeat
from lockkit.table.look import Look
from lockkit.table.markers import at_work, unmark
from lockkit.table.plans import ReplacePlan, format_cluster_plan
from lockkit.table.properties import FENCED
from lockkit.table.rewrite import Rewrite
from lockkit.table.snapshot import Snapshot, load_snapshot
from lockkit.table.timeline import load_timeline
from lockkit.table.transaction import Known, Prepared, Transaction, begin, prepare
from lockkit.table.turns import Epoch, publish_and_settle
from lockkit.table.withdraw import BackOut, withdraw


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
    leave = BackOut(desk.url, desk.turns, desk.store, desk.clock, desk.emit)
    try:
        clustered = _rewrite(desk, plan, look.snapshot, transaction, heartbeat)
    except BaseException as error:
        desk.tell(f"taking the clustering back: {error!r:.200}", transaction.instant)
        leave(error, transaction.taken, heartbeat)
        raise
    finally:
        desk.own.discard(transaction.instant)
    if clustered is None:
        leave(None, transaction.taken, heartbeat)
    return clustered


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
            if known.config.mode == FENCED:
                desk.run(withdraw(transaction.taken, Epoch(0), paths=()))
            raise
        desk.own.add(transaction.instant)
        return transaction, heartbeat


def _rewrite(
    desk: Desk, plan: ReplacePlan, before: Snapshot, transaction: Transaction, heartbeat: Heartbeat
) -> Clustered | None:
    snapshot: Snapshot = desk.run(load_snapshot(covering=transaction.covered, since=before))
    if not stands(plan, snapshot):  # somebody committed before the plan was there
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
    committed = publish_and_settle(
        desk.turns, prepared, desk.store, desk.clock, desk.emit, strategy=desk.rules.strategy
    )
    with suppress(Exception):  # it is committed; what is left here is tidied away later
        heartbeat.finish()
        desk.run(unmark(committed.instant))
    return Clustered(committed.instant, len(plan.inputs), len(stats))


def _yield_to_writers(desk: Desk, prepared: Prepared) -> None:
    now = desk.run(load_timeline(prepared.names))
    look = at_work(prepared.names, now, mine=prepared.instant, rules=desk.rules.heartbeat)
    writers = desk.run(look)
    if conflict := find_conflict(prepared.mine, (), pending=writers, strategy=PREFER_WRITER):
        raise CommitConflict(prepared.instant, conflict)
