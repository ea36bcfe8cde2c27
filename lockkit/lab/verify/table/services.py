"""The services and the readers of the scenario `table`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.lab.verify.table.heart import RULES
from lockkit.lab.verify.table.host import EXPECTED, SimHost
from lockkit.lab.verify.table.ledger import NEEDED, Stream, TrackedAttempt
from lockkit.lab.verify.table.reader import TableRow
from lockkit.lab.verify.table.rows import SCHEMA, SnapshotFileGone, base_file, put_files, read_rows
from lockkit.runtime import Procedure, Sleep
from lockkit.table.format.base_file import BaseFile
from lockkit.table.format.plans import ReplacePlan, format_cluster_plan
from lockkit.table.format.timeline import load_timeline
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.covered import load_rollback_plan
from lockkit.table.occ.failed import about_to_go, failed_writes, half_done, roll_back_held
from lockkit.table.occ.heartbeat_rules import Policy
from lockkit.table.occ.liveness import end
from lockkit.table.occ.prepared import Prepared, prepare
from lockkit.table.occ.transaction import Transaction
from lockkit.table.read.buckets import free_file_id
from lockkit.table.read.incremental import Increment, load_increment
from lockkit.table.read.opening import load_snapshot
from lockkit.table.services.clean import carry_out, plan_clean, resume_clean
from lockkit.table.services.cluster import action_of, plan_cluster, stands
from lockkit.table.services.rules import CleanRules, ClusterRules
from lockkit.table.services.view import TableView, look_at
from lockkit.table.write.attempt import WriteAttempt
from lockkit.table.write.contract import AttemptHeartbeat

if TYPE_CHECKING:
    from lockkit.lab.verify.table.scenario import TableRun

ROUNDS_MAX = 60
RETAINED = CleanRules(commits=3)


@dataclass(slots=True)
class SimService:
    """One process that cleans, clusters and rolls back dead writers, as `table.service` does."""

    run: TableRun
    host: SimHost
    rounds: int = 0

    @property
    def node(self) -> Node:
        return self.host.session.node

    def live(self) -> Procedure[None]:
        dice = self.run.world.dice
        for self.rounds in range(ROUNDS_MAX):
            yield Sleep(dice.random() * (1 if self.run.hasty else 4))
            if not self.run.busy():
                return
            self.run.ledger.begins(self.node.name)
            try:
                view, _ = yield from look_at(None, 0)
                yield from dice.choice(self.ways())(view)
            except EXPECTED:
                pass

    def ways(self) -> tuple[Callable[[TableView], Procedure[None]], ...]:
        """What one round may do, each as likely as the others."""
        return self._tidy, self.clean, self.cluster

    def cluster_once(self) -> Procedure[None]:
        self.run.ledger.begins(self.node.name)
        try:
            view, _ = yield from look_at(None, 0)
            yield from self.cluster(view, ClusterRules(layout="bucketed"))
        except EXPECTED:
            pass

    def _tidy(self, view: TableView) -> Procedure[None]:
        hasty = self.run.hasty and self.run.world.dice.random() < 0.5
        return self.take_back(view, "EAGER" if hasty else "LAZY")

    def take_back(self, view: TableView, policy: Policy = "LAZY") -> Procedure[None]:
        """Finish rollbacks that were begun; roll back dead writers."""
        names = view.config.names
        for instant in (yield from half_done(view.config, view.now, "rollback", RULES)):
            plan = yield from load_rollback_plan(names, instant)
            if plan is not None:
                yield from self._roll_back(view, plan.target, instant)
        now = yield from load_timeline(names)
        for heartbeat in (yield from failed_writes(names, now, policy, RULES)):
            if (yield from end(heartbeat)):
                yield from self._roll_back(view, heartbeat.instant)

    def _roll_back(
        self, view: TableView, target: str, resume: str | None = None
    ) -> Procedure[None]:
        self.run.ledger.begins(self.node.name)
        yield from self.host.hold(
            lambda _host, held: roll_back_held(
                target, held, view.known, resume=resume, base=self.host.base_of(view.config)
            )
        )
        self.run.world.reached.add("rollback")

    def clean(self, view: TableView) -> Procedure[None]:
        for instant in (yield from half_done(view.config, view.now, "clean", RULES)):
            yield from resume_clean(instant, view.config.names, view.snapshot)
        base = self.host.base_of(view.config)
        plan = yield from self.host.take_instant(
            view.config, lambda: plan_clean(view.known, RETAINED, base=base)
        )
        if plan.instant:
            yield from carry_out(plan, view.config.names)
            self.run.world.reached.add("clean")

    # --- clustering ------------------------------------------------------------------------------

    def cluster(self, view: TableView, rules: ClusterRules | None = None) -> Procedure[None]:
        """Like `lockkit.table.services.cluster.cluster`, which rewrites parquet."""
        busy = yield from about_to_go(view.config.names, view.now)
        rules = rules or ClusterRules(layout=self.run.world.dice.choice(("free", "bucketed")))
        base = self.host.base_of(view.config)
        plan = yield from plan_cluster(view.snapshot, rules, busy=busy, base=base)
        if plan is None:
            return
        mine = TrackedAttempt(self.token, self.token, "cluster")

        def files(transaction: Transaction, _heart: AttemptHeartbeat) -> Procedure[Prepared | None]:
            return self._clustered(view, plan, transaction, mine)

        done = WriteAttempt(self.host).write(
            view.known, files, action=action_of(view.config.names), plan=format_cluster_plan(plan)
        )
        yield from self.tracked(mine, done, "clustering")

    @property
    def token(self) -> str:
        """The name of the attempt that this round makes."""
        return f"{self.node.name}.{self.node.life}/{self.rounds}"

    def tracked(
        self, mine: TrackedAttempt, done: Procedure[Committed | None], reached: str
    ) -> Procedure[None]:
        """Carry an attempt out, and record its answer."""
        try:
            committed = yield from done
        except EXPECTED as error:
            self.run.ledger.refused(mine, type(error).__name__)
            raise
        if committed is not None:
            self.run.ledger.acknowledged(mine)
            self.run.world.reached.add(reached)

    def _clustered(
        self, view: TableView, plan: ReplacePlan, transaction: Transaction, mine: TrackedAttempt
    ) -> Procedure[Prepared | None]:
        """The rewritten files and their commit; None if the table has changed."""
        snapshot = yield from load_snapshot(covering=transaction.covered, since=view.snapshot)
        if not stands(plan, snapshot):
            return None
        assert plan.inputs is not None
        self.run.ledger.tries(mine)
        inputs = [snapshot.groups[each.partition, each.file_id]
                  for group in plan.groups for each in group.slices]  # fmt: skip
        rows = [row for _, rows in (yield from read_rows(inputs)) for row in rows]
        stats = yield from put_files(self._rewritten(transaction.instant, rows))
        return (yield from prepare(
            transaction, stats, schema=SCHEMA, operation="CLUSTER", replaced=plan.inputs,
            known_partitions=frozenset(partition for partition, _ in snapshot.groups),
            extra={"token": mine.token},
        ))  # fmt: skip

    def _rewritten(self, instant: str, rows: list[TableRow]) -> list[BaseFile]:
        """Rewrite into one new file group for each partition."""
        clock = self.node.clock
        partitions = sorted({row.partition for row in rows})
        return [
            base_file(instant, (partition, free_file_id(clock)),
                      [row for row in rows if row.partition == partition])
            for partition in partitions
        ]  # fmt: skip


# --- readers --------------------------------------------------------------------------------------


def read_table(run: TableRun) -> Procedure[None]:
    """Read snapshots repeatedly and slowly."""
    ledger, dice = run.ledger, run.world.dice
    for _ in range(ROUNDS_MAX):
        yield Sleep(dice.random() * 3)
        if not run.busy():
            return
        since = ledger.acknowledgeable()
        try:
            snapshot = yield from load_snapshot()
            found = yield from read_rows(snapshot.slices)
        except SnapshotFileGone as error:
            if any(each in str(error) for each in ledger.mistimed):
                continue  # Hudi may roll it back
            if ledger.within(since, RETAINED.commits):
                raise Violated(NEEDED, f"a reader inside the retention: {error}") from error
        except EXPECTED:
            continue
        else:
            ledger.read([row for _, rows in found for row in rows], since)


def follow(run: TableRun, stream: Stream) -> Procedure[None]:
    """Read increments, each from the end of the last one."""
    for _ in range(ROUNDS_MAX):
        yield Sleep(run.world.dice.random() * 2)
        if not run.busy():
            return
        yield from pull(run, stream)


def pull(run: TableRun, stream: Stream) -> Procedure[None]:
    try:
        increment: Increment = yield from load_increment(stream.end)
        found = yield from read_rows(increment.slices)
    except EXPECTED:
        return
    rows = [row for _, rows in found for row in rows if _is_of(increment, row.commit_time)]
    run.ledger.pulled(stream, increment.end, rows)


def _is_of(increment: Increment, commit_time: str) -> bool:
    """The filter of `Increment.where`, without Arrow."""
    if increment.instants is not None:
        return commit_time in increment.instants
    return increment.start < commit_time <= increment.end
