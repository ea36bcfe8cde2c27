"""The services and the readers of the scenario `table`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockkit.drive import Procedure, Sleep
from lockkit.sim.lease import Session
from lockkit.sim.task import Violated
from lockkit.table.basefile import BaseFile
from lockkit.table.buckets import free_file_id
from lockkit.table.clean import carry_out, plan_clean, resume_clean
from lockkit.table.cluster import ClusterRules, action_of, plan_cluster, stands
from lockkit.table.failed import about_to_go, failed_writes, half_done
from lockkit.table.incremental import Increment, load_increment
from lockkit.table.look import Look, look_at
from lockkit.table.pending import load_rollback_plan
from lockkit.table.plans import ReplacePlan, format_cluster_plan
from lockkit.table.pulse import Policy, end, forget
from lockkit.table.retention import CleanRules
from lockkit.table.rollback import roll_back
from lockkit.table.simulation.heart import RULES
from lockkit.table.simulation.ledger import NEEDED, Attempt, Stream
from lockkit.table.simulation.reader import Row
from lockkit.table.simulation.rows import SCHEMA, Gone, base_file, put_files, read_rows
from lockkit.table.simulation.turn import let_go, take_turn
from lockkit.table.simulation.work import EXPECTED, Work
from lockkit.table.snapshot import load_snapshot
from lockkit.table.timeline import load_timeline
from lockkit.table.transaction import Prepared, Transaction, begin, prepare

if TYPE_CHECKING:
    from lockkit.table.simulation.scenario import TableRun

ROUNDS_MAX = 60
RETAINED = CleanRules(commits=3)


@dataclass(slots=True)
class Service:
    """One process that cleans, clusters and rolls dead writers back, as `table.service` does."""

    run: TableRun
    session: Session
    rounds: int = 0

    def live(self) -> Procedure[None]:
        dice = self.run.world.dice
        for self.rounds in range(ROUNDS_MAX):
            yield Sleep(dice.random() * 4)
            if not self.run.busy():
                return
            self.run.ledger.begins(self.session.node.name)
            try:
                look, _ = yield from look_at(None, 0)
                yield from dice.choice((self.take_back, self.clean, self.cluster))(look)
            except EXPECTED:
                yield from let_go(self.run, self.session)

    def take_back(self, look: Look, policy: Policy = "LAZY") -> Procedure[None]:
        """Finish rollbacks that are half done; roll dead writers back."""
        names = look.config.names
        for instant in (yield from half_done(look.config, look.now, "rollback", RULES)):
            plan = yield from load_rollback_plan(names, instant)
            if plan is not None:
                yield from self._roll_back(look, plan.target, instant)
        now = yield from load_timeline(names)
        for pulse in (yield from failed_writes(names, now, policy, RULES)):
            if (yield from end(pulse)):
                yield from self._roll_back(look, pulse.instant)

    def _roll_back(self, look: Look, target: str, resume: str | None = None) -> Procedure[None]:
        self.run.ledger.begins(self.session.node.name)
        turn = yield from take_turn(self.run, self.session)
        yield from roll_back(
            target, turn.guard, look.known, believe=turn.believe, resume=resume
        )
        yield from let_go(self.run, self.session)
        yield from forget(target)
        self.run.world.reached.add("rollback")

    def clean(self, look: Look) -> Procedure[None]:
        for instant in (yield from half_done(look.config, look.now, "clean", RULES)):
            yield from resume_clean(instant, look.config.names, look.snapshot)
        plan = yield from plan_clean(look.known, RETAINED)
        if plan.instant:
            yield from carry_out(plan, look.config.names)
            self.run.world.reached.add("clean")

    # --- clustering ------------------------------------------------------------------------------

    def cluster(self, look: Look) -> Procedure[None]:
        """As `lockkit.table.clustering.cluster`, which rewrites parquet."""
        busy = yield from about_to_go(look.config.names, look.now)
        layout = ClusterRules(layout=self.run.world.dice.choice(("free", "bucketed")))
        plan = yield from plan_cluster(look.snapshot, layout, busy=busy)
        if plan is None:
            return
        names = look.config.names
        transaction = yield from begin(
            look.known, action=action_of(names), plan=format_cluster_plan(plan)
        )
        token = f"{self.session.node.name}.{self.session.node.life}/{transaction.instant}"
        work = Work(self.run, self.session, Attempt(token, token, "cluster"))
        try:
            yield from work.began(transaction.taken)
            prepared = yield from self._clustered(look, plan, transaction, work.attempt)
            if prepared is not None:
                yield from work.publish(prepared)
        except EXPECTED as error:
            self.run.ledger.refused(work.attempt, type(error).__name__)
            yield from work.back_out(error)
            raise
        if prepared is None:
            yield from work.back_out(None)
            return
        self.run.ledger.acknowledged(work.attempt)
        self.run.world.reached.add("clustering")

    def _clustered(
        self, look: Look, plan: ReplacePlan, transaction: Transaction, attempt: Attempt
    ) -> Procedure[Prepared | None]:
        """The rewritten files, and their commit; None where the table moved on."""
        snapshot = yield from load_snapshot(covering=transaction.covered, since=look.snapshot)
        if not stands(plan, snapshot):
            return None
        assert plan.inputs is not None
        self.run.ledger.tries(attempt)
        inputs = [snapshot.groups[each.partition, each.file_id]
                  for group in plan.groups for each in group.slices]  # fmt: skip
        rows = [row for _, rows in (yield from read_rows(inputs)) for row in rows]
        stats = yield from put_files(self._rewritten(transaction.instant, rows))
        return (yield from prepare(
            transaction, stats, schema=SCHEMA, operation="CLUSTER", replaced=plan.inputs,
            known_partitions=frozenset(partition for partition, _ in snapshot.groups),
            extra={"token": attempt.token},
        ))  # fmt: skip

    def _rewritten(self, instant: str, rows: list[Row]) -> list[BaseFile]:
        """Into one new file group for each partition."""
        clock = self.session.node.clock
        partitions = sorted({row.partition for row in rows})
        return [
            base_file(instant, (partition, free_file_id(clock)),
                      [row for row in rows if row.partition == partition])
            for partition in partitions
        ]  # fmt: skip


# --- readers --------------------------------------------------------------------------------------


def read_table(run: TableRun) -> Procedure[None]:
    """Snapshots, again and again, each read slowly."""
    ledger, dice = run.ledger, run.world.dice
    for _ in range(ROUNDS_MAX):
        yield Sleep(dice.random() * 3)
        if not run.busy():
            return
        since = len(ledger.commits)
        try:
            snapshot = yield from load_snapshot()
            found = yield from read_rows(snapshot.slices)
        except Gone as error:
            if len(ledger.commits) - since < RETAINED.commits:
                raise Violated(NEEDED, f"a reader inside the retention: {error}") from error
        except EXPECTED:
            continue
        else:
            ledger.read([row for _, rows in found for row in rows], since)


def follow(run: TableRun, stream: Stream) -> Procedure[None]:
    """Increments, each from where the last one ended."""
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
    """As `Increment.where` says it to Arrow."""
    if increment.instants is not None:
        return commit_time in increment.instants
    return increment.start < commit_time <= increment.end
