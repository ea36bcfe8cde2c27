"""The table services: failed writes taken back, old files cleaned, small ones joined.

Hudi's three ways to run them. A: a writer does, after its commit. B: a thread beside the writer
(both: `upkeep`). They share the writer's `turns`, so where it needs no lock, neither do they. C:
another process, which takes the table's lock like any writer. Readers take part in none of this:
what they hold is not touched inside the retention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from lockkit.clock import Clock
from lockkit.drive import Emit, Procedure, run, silent
from lockkit.lock import LockBusy
from lockkit.state import LockLost
from lockkit.stores import Store, StoreError
from lockkit.table.ask import TableError, listing
from lockkit.table.clean import Cleaned, carry_out, plan_clean, resume_clean
from lockkit.table.cluster import action_of, plan_cluster, stands
from lockkit.table.commit import Committed
from lockkit.table.conflict import PREFER_WRITER, CommitConflict, find_conflict
from lockkit.table.covered import Covered
from lockkit.table.decide import CommitUnknown
from lockkit.table.failed import about_to_go, failed_writes, half_done
from lockkit.table.heartbeat import Heartbeat
from lockkit.table.look import Look, look_at
from lockkit.table.markers import at_work, unmark
from lockkit.table.pending import load_rollback_plan
from lockkit.table.plans import NO_BASE, ReplacePlan, format_cluster_plan, hadoop_base
from lockkit.table.properties import HUDI, TableConfig
from lockkit.table.pulse import Policy, end, forget
from lockkit.table.rewrite import Rewrite
from lockkit.table.rollback import RolledBack, Spared, roll_back
from lockkit.table.serving import ServiceRules, clean_due, cluster_due
from lockkit.table.snapshot import Snapshot, load_snapshot
from lockkit.table.timeline import Timeline, load_timeline, parse_timeline
from lockkit.table.transaction import Known, Prepared, Transaction, abandon, begin, prepare
from lockkit.table.turns import SINGLE, Turns

UNKNOWN_TRIES_MAX = 3


@dataclass(frozen=True, slots=True)
class Clustered:
    """A clustering that is committed."""

    instant: str
    replaced: int
    """File groups that are gone."""
    files: int


@dataclass(frozen=True, slots=True)
class Served:
    """What one run did."""

    taken_back: tuple[RolledBack | Spared, ...] = ()
    cleaned: tuple[Cleaned, ...] = ()
    clustered: Clustered | None = None
    yielded: str = ""
    """Why a clustering gave way to a writer; the next run tries again."""


class Service:
    """The services of one table, for one thread at a time; `before_write` may come from another.

    `turns` are the writer's (models A and B), or a `ByLock` of its own (C). Raises `TableError`,
    `StoreError`, `LockBusy`; whatever was begun is finished by the next run, of any process.
    """

    def __init__(
        self, url: str, store: Store, turns: Turns, *, rules: ServiceRules = ServiceRules(),
        clock: Clock | None = None, emit: Emit = silent,
    ) -> None:  # fmt: skip
        self.url, self.store, self.turns, self.rules = url, store, turns, rules
        self.clock, self.emit = clock or Clock(), emit
        self._own: set[str] = set()
        self._snapshot: Snapshot | None = None
        self._saved = 0
        """Commits in the table's checkpoint, as far as is known here."""
        self._looked_at, self._since = "", ""
        """The newest commit that was looked at for garbage in vain, and what that retained from."""

    def run(self) -> Served:
        """All that is due; a clustering that gives way is not an error here."""
        look = self._look()
        taken_back = self._take_back_failed(look)
        cleaned = self._resume_cleans(look)
        if clean_due(look.now, self.rules, self._looked_at):
            cleaned += self._clean(look.known)
        due = self._run(cluster_due(look.config.names, look.now, self.rules))
        try:
            clustered = self._cluster(look) if due else None
        except CommitConflict as conflict:
            return Served(taken_back, cleaned, yielded=str(conflict))
        return Served(taken_back, cleaned, clustered)

    # --- failed writes ---------------------------------------------------------------------------

    def before_write(self, known: Known) -> None:
        """EAGER: take back whatever is pending and not this process's; for its next write."""
        if self.rules.failed == "EAGER":
            with self.turns.hold():  # so that no clustering of ours is pending and not noted
                after = Covered(known.horizon).listed_after
                now = self._run(load_timeline(known.config.names, after=after))
                own = frozenset(self._own)
            self._take_back(known, now, "EAGER", own)

    def _take_back_failed(self, look: Look) -> tuple[RolledBack | Spared, ...]:
        """Finish rollbacks that are half done, then take dead writers back if LAZY."""
        done = self._resume_rollbacks(look)
        policy: Policy = "LAZY" if self.rules.failed == "LAZY" else "NEVER"
        now = self._run(load_timeline(look.config.names)) if done else look.now
        return (*done, *self._take_back(look.known, now, policy, frozenset(self._own)))

    def _take_back(
        self, known: Known, now: Timeline, policy: Policy, own: frozenset[str]
    ) -> tuple[RolledBack | Spared, ...]:
        dead = failed_writes(known.config.names, now, policy, self.rules.heartbeat, own=own)
        return tuple(
            self.roll_back(known, pulse.instant)
            for pulse in self._run(dead) if self._run(end(pulse))
        )  # fmt: skip

    def _resume_rollbacks(self, look: Look) -> tuple[RolledBack | Spared, ...]:
        names, done = look.config.names, []
        for instant in self._run(
            half_done(look.config, look.now, "rollback", self.rules.heartbeat)
        ):
            with self.turns.hold():
                now = parse_timeline(self._run(listing(names.folder + instant)), names)
                plan = self._run(load_rollback_plan(names, instant))
            if instant in now.pending and plan is not None:
                done.append(self.roll_back(look.known, plan.target, resume=instant))
        return tuple(done)

    def roll_back(
        self, known: Known, instant: str, *, resume: str | None = None
    ) -> RolledBack | Spared:
        """Whatever its writer does: whether it is dead is for the caller to know."""
        with self.turns.hold() as held:
            way = roll_back(
                instant, held.guard, known, believe=held.believe, resume=resume,
                base=self._base(known.config),
            )  # fmt: skip
            outcome: RolledBack | Spared = self._run(way)
        self._run(forget(instant))
        return outcome

    # --- clean -----------------------------------------------------------------------------------

    def clean(self) -> tuple[Cleaned, ...]:
        """Finish cleans that are half done, then make one, due or not."""
        look = self._look()
        return self._resume_cleans(look) + self._clean(look.known)

    def _resume_cleans(self, look: Look) -> tuple[Cleaned, ...]:
        found = half_done(look.config, look.now, "clean", self.rules.heartbeat)
        ways = [resume_clean(each, look.config.names, look.snapshot) for each in self._run(found)]
        return tuple(done for way in ways if (done := self._run(way)) is not None)

    def _clean(self, known: Known) -> tuple[Cleaned, ...]:
        with self._instant(known.config):
            plan = self._run(plan_clean(
                known, self.rules.clean, base=self._base(known.config), since=self._since
            ))  # fmt: skip
        if not plan.instant:
            self._looked_at, self._since = plan.last_completed, plan.retain_from
            return ()
        self._tell(f"deleting {len(plan.files)} files", plan.instant)
        return (self._run(carry_out(plan, known.config.names)),)

    # --- clustering ------------------------------------------------------------------------------

    def cluster(self) -> Clustered | None:
        """Rewrite small files, due or not; None where there is nothing to gain.

        Raises `CommitConflict` where a writer was faster: nothing changed.
        """
        return self._cluster(self._look())

    def _cluster(self, look: Look) -> Clustered | None:
        way = plan_cluster(
            look.snapshot, self.rules.cluster, base=self._base(look.config),
            busy=self._run(about_to_go(look.config.names, look.now)),
        )  # fmt: skip
        plan: ReplacePlan | None = self._run(way)
        if plan is None:
            return None
        transaction, heartbeat = self._begin(look.known, plan)
        try:
            with heartbeat:
                return self._rewrite(plan, look.snapshot, transaction, heartbeat)
        except CommitUnknown:
            raise  # it may be visible: nothing is deleted
        except BaseException as error:
            self._tell(f"taking the clustering back: {error!r:.200}", transaction.instant)
            # A plan that stands makes writers give way. What cannot be reached now is for the next.
            with suppress(TableError, StoreError, LockBusy, LockLost):
                outcome = self.roll_back(look.known, transaction.instant)
                if isinstance(outcome, Spared):
                    self._tell("it was committed all the same", transaction.instant)
            raise
        finally:
            self._own.discard(transaction.instant)

    def _begin(self, known: Known, plan: ReplacePlan) -> tuple[Transaction, Heartbeat]:
        with self._instant(known.config):
            way = begin(
                known, action=action_of(known.config.names), plan=format_cluster_plan(plan)
            )
            transaction: Transaction = self._run(way)
            self._own.add(transaction.instant)
            return transaction, Heartbeat(
                transaction.instant, self.store, clock=self.clock, rules=self.rules.heartbeat
            )

    def _rewrite(
        self, plan: ReplacePlan, before: Snapshot, transaction: Transaction, heartbeat: Heartbeat
    ) -> Clustered | None:
        snapshot: Snapshot = self._run(
            load_snapshot(covering=transaction.covered, since=before)
        )
        if not stands(plan, snapshot):  # somebody committed before the plan was there
            self._run(abandon(transaction.taken))
            heartbeat.finish()
            return None
        assert plan.inputs is not None and snapshot.schema is not None
        self._tell(f"rewriting {len(plan.inputs)} file groups", transaction.instant)
        stats = Rewrite(
            plan, snapshot, transaction.target, self.store, self.clock, heartbeat.check
        ).carry_out()
        prepared: Prepared = self._run(prepare(
            transaction, stats, schema=snapshot.schema, operation="CLUSTER", replaced=plan.inputs,
            known_partitions=frozenset(partition for partition, _ in snapshot.groups),
        ))  # fmt: skip
        if self.rules.strategy is PREFER_WRITER:
            self._yield_to_writers(prepared)
        heartbeat.check()
        committed = self._publish(prepared)
        heartbeat.finish()
        self._run(unmark(committed.instant))
        return Clustered(committed.instant, len(plan.inputs), len(stats))

    def _yield_to_writers(self, prepared: Prepared) -> None:
        now = self._run(load_timeline(prepared.names))
        writers = self._run(at_work(now, mine=prepared.instant, rules=self.rules.heartbeat))
        if conflict := find_conflict(prepared.mine, (), pending=writers, strategy=PREFER_WRITER):
            raise CommitConflict(prepared.instant, conflict)

    def _publish(self, prepared: Prepared) -> Committed:
        for _ in range(UNKNOWN_TRIES_MAX - 1):
            with suppress(CommitUnknown):
                return self.turns.publish(
                    prepared, self.store, self.clock, self.emit, strategy=self.rules.strategy
                )
        return self.turns.publish(
            prepared, self.store, self.clock, self.emit, strategy=self.rules.strategy
        )

    # --- what they share -------------------------------------------------------------------------

    def _look(self) -> Look:
        look, saved = self._run(look_at(self._snapshot, self._saved))
        self._snapshot, self._saved = look.snapshot, saved
        assert isinstance(look, Look)
        return look

    @contextmanager
    def _instant(self, config: TableConfig) -> Iterator[None]:
        """Where Hudi writes too an instant is taken under the lock; a mutex costs nothing."""
        with self.turns.hold() if config.mode == HUDI or self.turns.mode == SINGLE else (
            nullcontext()
        ):
            yield

    def _base(self, config: TableConfig) -> str:
        return hadoop_base(self.url) if config.mode == HUDI else NO_BASE

    def _run(self, way: Procedure[Any]) -> Any:
        return run(way, self.store, self.clock, self.emit)

    def _tell(self, text: str, instant: str) -> None:
        self.emit("note", text=text, instant=instant)
