"""A clustering: a plan made durable, its files rewritten, and their commit.

One that is refused, fails or is interrupted is taken back at once, for a plan that stands makes
writers give way.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from lockkit.runtime import Procedure
from lockkit.table.format.plans import ReplacePlan, format_cluster_plan
from lockkit.table.format.timeline import load_timeline
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.conflict import PREFER_WRITER, find_conflict
from lockkit.table.occ.failed import about_to_go
from lockkit.table.occ.markers import at_work, unmark
from lockkit.table.occ.transaction import Prepared, Transaction, prepare
from lockkit.table.read.lookup import Look
from lockkit.table.read.snapshot import Snapshot, load_snapshot
from lockkit.table.services.cluster import action_of, plan_cluster, stands
from lockkit.table.services.context import Desk
from lockkit.table.services.host import StoreHost
from lockkit.table.services.rewrite import Rewrite
from lockkit.table.write.attempt import Attempt, Heart


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
    attempt = Attempt(StoreHost(desk, desk.rules.heartbeat), desk.rules.strategy)

    def files(transaction: Transaction, heart: Heart) -> Procedure[Prepared | None]:
        yield from ()
        try:
            return _rewrite(desk, plan, look.snapshot, transaction, heart)
        except BaseException as error:
            desk.tell(f"taking the clustering back: {error!r:.200}", transaction.instant)
            raise

    way = attempt.write(
        look.known, files, action=action_of(look.config.names), plan=format_cluster_plan(plan)
    )
    committed: Committed | None = desk.run(way)
    if committed is None:
        return None
    with suppress(Exception):  # it is committed; what is left here is tidied away later
        desk.run(unmark(committed.instant))
    assert plan.inputs is not None and attempt.prepared is not None
    return Clustered(committed.instant, len(plan.inputs), len(attempt.prepared.stats))


def _rewrite(
    desk: Desk, plan: ReplacePlan, before: Snapshot, transaction: Transaction, heart: Heart
) -> Prepared | None:
    snapshot: Snapshot = desk.run(load_snapshot(covering=transaction.covered, since=before))
    if not stands(plan, snapshot):  # somebody committed before the plan was there
        return None
    assert plan.inputs is not None and snapshot.schema is not None
    desk.tell(f"rewriting {len(plan.inputs)} file groups", transaction.instant)
    stats = Rewrite(
        plan, snapshot, transaction.target, desk.store, desk.clock, heart.check
    ).carry_out()
    prepared: Prepared = desk.run(prepare(
        transaction, stats, schema=snapshot.schema, operation="CLUSTER", replaced=plan.inputs,
        known_partitions=frozenset(partition for partition, _ in snapshot.groups),
    ))  # fmt: skip
    if desk.rules.strategy is PREFER_WRITER:
        _yield_to_writers(desk, prepared)
    return prepared


def _yield_to_writers(desk: Desk, prepared: Prepared) -> None:
    now = desk.run(load_timeline(prepared.names))
    look = at_work(prepared.names, now, mine=prepared.instant, rules=desk.rules.heartbeat)
    writers = desk.run(look)
    if conflict := find_conflict(prepared.mine, (), pending=writers, strategy=PREFER_WRITER):
        raise conflict.refusal(prepared.instant)
