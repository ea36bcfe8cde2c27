"""A writer by Apache Hudi's rules, on a table in `hudi` mode: it knows none of lockkit's.

It proves no content, has no lanes and no fence. Its instants come from its own clock, it takes an
instant that is free in its eyes, and it rolls back what has no fresh heartbeat (LAZY, the policy of
several writers). Each step names the class of apache/hudi (release 1.2) that it follows. Two things
are lockkit's own: the client of the lock, whose object both share, and the reading of a snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockkit.errors import LockkitError
from lockkit.lab.verify.sim.task import Node
from lockkit.lab.verify.table.heart import RULES
from lockkit.lab.verify.table.host import EXPECTED, SimHost
from lockkit.lab.verify.table.ledger import TrackedAttempt
from lockkit.lab.verify.table.reader import TableRow
from lockkit.lab.verify.table.rows import SCHEMA, put_files, read_rows
from lockkit.lab.verify.table.writers import KEYS, SimWriter
from lockkit.protocol.outcome import Applied, Found, over
from lockkit.runtime import Procedure, Sleep, WallMs
from lockkit.runtime.proven import all_of, create, delete, put_once, read
from lockkit.table.format.base_file import BaseFile, Slice
from lockkit.table.format.layout import format_commit, partition_file
from lockkit.table.format.plans import RollbackPlan, format_rollback, format_rollback_plan
from lockkit.table.format.properties import TableConfig, load_config
from lockkit.table.format.timeline import Timeline, TimelineNames, instant_of, load_timeline
from lockkit.table.occ.covered import load_rollback_plan, read_commit
from lockkit.table.occ.failed import service_plans
from lockkit.table.occ.liveness import heartbeat_key
from lockkit.table.occ.own_files import written_by
from lockkit.table.read.opening import load_snapshot
from lockkit.table.read.snapshot import Snapshot

if TYPE_CHECKING:
    from lockkit.lab.verify.table.scenario import TableRun

OPERATIONS_MAX, CLEANS, WRITES_MAX, BEATS_MAX = 6, 2, 50, 400
SKEW_MS = 200
"""`hoodie.time.generator.max_expected_clock_skew_ms`."""


class HudiFailed(LockkitError):
    """Hudi's write ends with an exception; its instant is left to a later rollback."""


@dataclass(slots=True)
class HudiHeartbeat:
    """`HoodieHeartbeatClient`: an empty file, written over without a condition."""

    instant: str
    node: Node
    beaten_ms: int = 0
    stopped: bool = False

    def beat(self) -> Procedure[None]:
        yield from write_over(heartbeat_key(self.instant), b"")
        self.beaten_ms = self.node.clock.boot_ms()

    def beats(self) -> Procedure[None]:
        for _ in range(BEATS_MAX):
            yield Sleep(RULES.interval_ms / 1000)
            if self.stopped:
                return
            yield from self.beat()

    def abort_if_expired(self) -> None:
        """`HeartbeatUtils.abortIfHeartbeatExpired`."""
        if self.node.clock.boot_ms() - self.beaten_ms > RULES.ttl_ms:
            raise HudiFailed(f"the heartbeat of {self.instant} has expired")


@dataclass(slots=True)
class HudiWriter:
    """One process of Hudi's, which upserts, and rolls failed writes back as it cleans."""

    run: TableRun
    host: SimHost
    config: TableConfig | None = None
    last_instant: str = ""
    """`HoodieInstantTimeGenerator`: the instants of one process rise."""
    own: set[str] = field(default_factory=set)
    operations: int = 0

    @property
    def node(self) -> Node:
        return self.host.session.node

    @property
    def names(self) -> TimelineNames:
        assert self.config is not None
        return self.config.names

    def live(self) -> Procedure[None]:
        self.config, _ = yield from load_config()
        dice, ledger = self.run.world.dice, self.run.ledger
        for self.operations in range(1, OPERATIONS_MAX + 1):
            token = f"{self.node.name}.{self.node.life}/{self.operations}"
            mine = TrackedAttempt(token, token, "upsert")
            ledger.begins(self.node.name)
            keys = tuple(sorted(dice.sample(KEYS, 2)))
            try:
                yield from self._upsert(mine, dice.choice(self.run.partitions), keys)
                ledger.acknowledged(mine)
                for _ in range(CLEANS):
                    yield Sleep(dice.random())
                    yield from self._clean()
            except (HudiFailed, *EXPECTED) as error:
                ledger.refused(mine, f"Hudi's {type(error).__name__}")
            yield Sleep(dice.random())

    # --- a write ---------------------------------------------------------------------------------

    def _upsert(self, mine: TrackedAttempt, partition: str, keys: Sequence[str]) -> Procedure[None]:
        heart = yield from self.host.hold(lambda _host, _held: self._start())
        self.run.world.spawn(self.node, heart.beats(), f"{self.node.name} beats")
        try:
            yield from self._written(mine, heart, partition, keys)
        finally:
            heart.stopped = True
        # `BaseHoodieWriteClient.releaseResources`, after the commit.
        self.own.discard(heart.instant)
        yield from delete(heartbeat_key(heart.instant))

    def _start(self) -> Procedure[HudiHeartbeat]:
        """`BaseHoodieWriteClient.startCommit`, under the lock."""
        heart = HudiHeartbeat((yield from self._new_instant()), self.node)
        self.own.add(heart.instant)
        yield from heart.beat()
        yield from create_immutable(self.names.requested(heart.instant), b"")
        return heart

    def _new_instant(self) -> Procedure[str]:
        """`SkewAdjustingTimeGenerator`: its clock, and a wait in which all others pass it."""
        while True:
            instant = instant_of((yield WallMs()))
            yield Sleep(SKEW_MS / 1000)
            if instant > self.last_instant:
                self.last_instant = instant
                return instant

    def _written(
        self, mine: TrackedAttempt, heart: HudiHeartbeat, partition: str, keys: Sequence[str]
    ) -> Procedure[None]:
        """`BaseHoodieWriteClient.preWrite`, `BaseCommitActionExecutor`, and the commit."""
        instant = heart.instant
        before = yield from load_timeline(self.names)
        snapshot = yield from load_snapshot()
        here = [each for each in snapshot.slices if each.partition == partition]
        found = yield from read_rows(here)
        mine.writes = tuple((partition, key) for key in keys)
        files = self._files(mine, instant, snapshot, partition, found, keys)
        self.run.ledger.tries(mine)
        inflight = self.names.inflight(instant)
        if not (yield from exists(self.names.requested(instant))):
            raise HudiFailed(f"{instant}: its requested file does not exist")
        yield from create_immutable(inflight, self._body(mine, ()))
        yield from create(*partition_file(partition, instant))
        yield from put_files(files)
        heart.abort_if_expired()
        yield from self.host.hold(lambda _host, _held: self._complete(mine, instant, before, files))

    def _files(
        self, mine: TrackedAttempt, instant: str, snapshot: Snapshot, partition: str,
        found: list[tuple[Slice, list[TableRow]]], keys: Sequence[str],
    ) -> list[BaseFile]:  # fmt: skip
        """The bucket index finds the file group of a key, as lockkit's upsert does."""
        writer = SimWriter(self.run, self.host)
        return writer.merged(mine, instant, snapshot, partition, found, keys)

    def _body(self, mine: TrackedAttempt, files: Sequence[BaseFile]) -> bytes:
        assert self.config is not None
        return format_commit(
            [each.stat for each in files], operation="UPSERT", schema=SCHEMA, attempt="",
            extra={"token": mine.token}, version=self.config.version,
        )  # fmt: skip

    def _complete(
        self, mine: TrackedAttempt, instant: str, before: Timeline, files: Sequence[BaseFile]
    ) -> Procedure[None]:
        """Under the lock: `TransactionUtils.resolveWriteConflictIfAny`, then `saveAsComplete`."""
        yield from self._resolve(instant, before, files)
        completion = yield from self._new_instant()
        if not (yield from exists(self.names.inflight(instant))):
            raise HudiFailed(f"{instant}: its inflight file does not exist")
        done = self.names.completed(
            instant, completion=None if self.names.layout == 1 else completion
        )
        yield from create_immutable(done, self._body(mine, files))
        self.run.world.reached.add("Hudi's commit")

    def _resolve(
        self, instant: str, before: Timeline, files: Sequence[BaseFile]
    ) -> Procedure[None]:
        """`SimpleConcurrentFileWritesConflictResolutionStrategy`: a common file group conflicts."""
        now, groups = (yield from load_timeline(self.names)), {each.stat.group for each in files}
        last = max(before.commits, default="")
        others = [each for each in now.commits if each > last or each in before.pending]
        for other in others:
            if other != instant:
                commit = yield from read_commit(self.names, other, now)
                if groups & (commit.writes | commit.replaced):
                    raise HudiFailed(f"{instant} conflicts with {other}")
        for other, plan in (yield from service_plans(self.names, now)).items():
            if groups & (plan.inputs or frozenset()):
                raise HudiFailed(f"{instant} conflicts with the clustering {other}")
        for rollback in now.rollbacks:
            planned = yield from load_rollback_plan(self.names, rollback)
            if planned is not None and planned.target == instant:
                raise HudiFailed(f"{instant} was rolled back")

    # --- the rollback of failed writes -----------------------------------------------------------

    def _clean(self) -> Procedure[None]:
        """`BaseHoodieTableServiceClient.rollbackFailedWrites`, with which each clean begins.

        What is pending and whose heartbeat has expired is found without the lock.
        """
        now = yield from load_timeline(self.names)
        planned = yield from service_plans(self.names, now)
        expired = []
        for instant, action in now.pending.items():
            if action in ("commit", "replacecommit") and instant not in planned:
                if instant not in self.own and (yield from self._is_expired(instant)):
                    expired.append(instant)
        again = yield from load_timeline(self.names)
        half_done: dict[str, str] = {}
        for rollback, done in again.rollbacks.items():
            plan = None if done else (yield from load_rollback_plan(self.names, rollback))
            if plan is not None and plan.target not in planned:
                half_done[plan.target] = rollback
        dead = {*half_done, *(each for each in expired if each in again.pending)}
        for instant in sorted(dead, reverse=True):
            yield from self._roll_back(instant, half_done.get(instant, ""))
            yield from delete(heartbeat_key(instant))

    def _is_expired(self, instant: str) -> Procedure[bool]:
        """`HoodieHeartbeatClient.isHeartbeatExpired`: without a file it beat in 1970."""
        found = yield from read(heartbeat_key(instant))
        beaten_ms = found.modified_ms if isinstance(found, Found) else 0
        wall_ms: int = yield WallMs()
        return wall_ms - (beaten_ms or 0) > RULES.ttl_ms

    def _roll_back(self, target: str, rollback: str) -> Procedure[None]:
        """`BaseHoodieTableServiceClient.rollback`: instant, plan and end are each under the lock.

        The timeline in between is read without it, and a completed instant is rolled back, too.
        """
        if not rollback:
            rollback = yield from self.host.hold(lambda _host, _held: self._new_instant())
            now = yield from load_timeline(self.names)
            action = now.pending.get(target) or now.completed.get(target)
            if action is None:
                return
            plan = yield from self.host.hold(
                lambda _host, _held: self._schedule(rollback, target, action)
            )
        else:
            planned = yield from load_rollback_plan(self.names, rollback)
            if planned is None:
                return
            plan = planned
        yield from write_once(self.names.inflight(rollback, "rollback"))
        yield from self._unpublish(plan)
        yield from all_of(delete(path) for _, path in plan.files)
        yield from self.host.hold(lambda _host, _held: self._finish(plan))
        self.run.world.reached.add("Hudi's rollback")

    def _schedule(self, rollback: str, target: str, action: str) -> Procedure[RollbackPlan]:
        """`BaseRollbackPlanActionExecutor`, by a listing of the files of the instant."""
        files = (yield from written_by(target)) or ()
        plan = RollbackPlan(rollback, target, action, files, self.host.base)
        key = self.names.requested(rollback, "rollback")
        yield from create_immutable(key, format_rollback_plan(plan))
        return plan

    def _unpublish(self, plan: RollbackPlan) -> Procedure[None]:
        """`CopyOnWriteRollbackActionExecutor`: a completed instant becomes an inflight one."""
        now = yield from load_timeline(self.names)
        if plan.target in now.commits:
            completion = now.completion.get(plan.target)
            yield from delete(self.names.completed(plan.target, plan.target_action, completion))

    def _finish(self, plan: RollbackPlan) -> Procedure[None]:
        """`BaseRollbackActionExecutor.finishRollback`, under the lock."""
        target, action = plan.target, plan.target_action
        yield from delete(self.names.inflight(target, action))
        yield from delete(self.names.requested(target, action))
        completion = None if self.names.layout == 1 else (yield from self._new_instant())
        done = self.names.completed(plan.instant, "rollback", completion)
        yield from create_immutable(done, format_rollback(plan, took_ms=0))


# --- `HoodieStorage` on an object store -----------------------------------------------------------


def exists(key: str) -> Procedure[bool]:
    return isinstance((yield from read(key)), Found)


def create_immutable(key: str, body: bytes) -> Procedure[None]:
    """`createImmutableFileInPath`: s3a looks whether the file exists, then writes without a
    condition."""
    if (yield from exists(key)):
        raise HudiFailed(f"{key} exists")
    yield from write_over(key, body)


def write_once(key: str) -> Procedure[None]:
    """An inflight file that an earlier run may have left."""
    if not (yield from exists(key)):
        yield from write_over(key, b"")


def write_over(key: str, body: bytes) -> Procedure[None]:
    """A write without a condition, in a store that has only conditional ones."""
    for _ in range(WRITES_MAX):
        found = yield from read(key)
        version = found.version if isinstance(found, Found) else None
        if isinstance((yield from put_once(key, body, over(version))), Applied):
            return
        yield Sleep(0.05)
    raise HudiFailed(f"{key} could not be written")
