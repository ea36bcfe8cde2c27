"""The host of a simulated attempt: tasks instead of threads, and the real lock's own client."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from lockkit.errors import LockBusy, LockLost, LossReason, NoAnswer, TableError
from lockkit.lab.verify.sim.fault_profile import FaultKind
from lockkit.lab.verify.sim.lease import LeaseSession
from lockkit.lab.verify.sim.task import LateWrite, Violated
from lockkit.lab.verify.table.heart import SimHeartbeat, first_state
from lockkit.lab.verify.table.interruption import Interruption, Shielded
from lockkit.lock import grant
from lockkit.lock.storage import LOCK_KEY
from lockkit.protocol.outcome import Unknown
from lockkit.protocol.state import WritePurpose
from lockkit.runtime import Get, Parallel, Procedure, Put, Request, Sleep, relay
from lockkit.table.errors import CommitUnknown
from lockkit.table.format.layout import NO_BASE, NO_COMMIT
from lockkit.table.format.properties import FENCED, GROUP, HUDI, TableConfig
from lockkit.table.occ.commit import Committed, EpochGuard, First, StateChange, trust
from lockkit.table.occ.committing import commit, commit_alone
from lockkit.table.occ.conflict import ConflictStrategy
from lockkit.table.occ.fence import FENCE_KEY, parse_fence, read_fence
from lockkit.table.occ.group.ahead import GroupAppend
from lockkit.table.occ.group.client import CONTENDED_FOR, GroupClient
from lockkit.table.occ.group.fence import parse_group_fence
from lockkit.table.occ.group.publish import in_group, new_client, publish_behind, publish_together
from lockkit.table.occ.heartbeat import FirstBeat, begin_ahead
from lockkit.table.occ.prepared import Prepared
from lockkit.table.occ.publish import Scout, publish_under
from lockkit.table.occ.transaction import TakenInstant
from lockkit.table.write.contract import AttemptHost
from lockkit.table.write.groups import OwnFiles

if TYPE_CHECKING:
    from lockkit.lab.verify.table.scenario import TableRun

CUT_OFF_MS, HELD_MS, OVERTAKEN_WAITS_MAX = 20_000, 600_000, 40
FILES_S = 0.1
"""So long a writer takes at most to make its files, where it hardly pauses otherwise."""
GOOD_GRANT = "a grant is good for a commit"
EXPECTED = (TableError, LockLost, LockBusy, CommitUnknown, NoAnswer)
"""How a writer's procedure may end, besides well."""
T = TypeVar("T")


@dataclass(slots=True)
class SimHost:
    """One simulated process, as its attempts and its services see it."""

    table: TableRun
    session: LeaseSession
    own: set[str] = field(default_factory=set)
    base: str = "memory://t"
    together: GroupClient = field(init=False)
    appending: GroupAppend | None = None
    """With group commit: how the attempt under way took its instant."""
    interruption: Interruption | None = None
    """What cuts the attempt under way short."""
    own_files: OwnFiles = field(default_factory=OwnFiles)
    """What this process has written last."""
    late: LateWrite | None = None
    """A decision that was sent while a clustering began beside it, and has not landed yet."""

    def __post_init__(self) -> None:
        names, boot_ms = self.table.config.names, self.session.node.clock.boot_ms
        self.together = new_client(names, boot_ms, self.own, reserves=True)
        self.together.window_max = self.table.window_max
        self.together.thread = lambda: id(self)

    def base_of(self, config: TableConfig) -> str:
        return self.base if config.mode == HUDI else NO_BASE

    def run(self, way: Procedure[T]) -> Procedure[T]:
        return way if self.interruption is None else self.interruption.through(way)

    def interrupt(self) -> None:
        """An attempt begins; it may be interrupted."""
        chance = self.table.interrupts
        hit = chance > 0 and self.table.world.dice.random() < chance
        world = self.table.world
        commits = self.table.ledger.commits
        self.late = None
        self.interruption = Interruption.drawn(world, self.session.node, commits) if hit else None

    def land(self) -> None:
        """Apply a late decision now, right after its sender was refused."""
        late, self.late = self.late, None
        if late is not None:
            late.at_ms = min(late.at_ms, self.table.world.time.now_ms)

    def first_beat(self, instant: str) -> Procedure[FirstBeat]:
        return begin_ahead(first_state(instant, self.session.node))

    def beat(self, taken: TakenInstant, begun: FirstBeat | None = None) -> Procedure[SimHeartbeat]:
        heart = self._heart(taken)
        yield from heart.begin(begun)
        self.table.begins(taken.instant, heart)  # not before: another client may have one
        return heart

    def boot_ms(self) -> int:
        return self.session.node.clock.boot_ms()

    def beat_later(self, taken: TakenInstant, sent_ms: int) -> SimHeartbeat:
        heart = self._heart(taken, sent_ms)
        self.table.begins(taken.instant, heart)
        heart.go_on(heart.beats.interval_s / 2)
        return heart

    def _heart(self, taken: TakenInstant, quiet_since_ms: int | None = None) -> SimHeartbeat:
        return SimHeartbeat.of(
            taken.instant, self.table.world, self.session.node, quiet_since_ms=quiet_since_ms
        )

    def take_instant(self, config: TableConfig, block: Callable[[], Procedure[T]]) -> Procedure[T]:
        self.appending = None
        if config.mode == FENCED:
            return block()
        return self.hold(lambda _host, _held: block())

    def hold(
        self, block: Callable[[AttemptHost, StateChange], Procedure[T]], scout: Scout | None = None
    ) -> Procedure[T]:
        hold = SimCommitLock(self.table, self.session)
        if self.table.config.commit == GROUP:
            return (yield from block(self, StateChange(EpochGuard(0))))
        if self.table.at_rest or not self.table.locked:
            if scout is not None:
                yield from scout.prefetch(True)
            seen = yield from read_fence()
            held = StateChange(EpochGuard(seen.fence.epoch if seen.fence else 0))
            return (yield from block(self, held))
        yield from hold.acquire(scout)
        try:
            result = yield from block(self, StateChange(hold.guard, hold.believe, trust))
        except (GeneratorExit, Violated):
            raise
        except BaseException as error:
            yield from hold.leave(error)
            raise
        yield from hold.leave(None)
        return result

    def behind(self, way: Procedure[None], name: str) -> Procedure[None]:
        yield from ()
        self.table.world.spawn(self.session.node, way)

    def in_group(self, *, rewrites: bool = False) -> GroupAppend | None:
        self._may_forget()
        self.appending = in_group([self.together], rewrites)
        return self.appending

    def publish(
        self, prepared: Prepared, strategy: ConflictStrategy, first: First | None = None
    ) -> Procedure[Committed]:
        """Publish; without a lock, like a process that is the only writer by its options."""
        if self.table.steady and not self.table.meets:  # to make the files takes a while
            yield Sleep(self.table.world.dice.random() * FILES_S)
        if self.table.config.commit == GROUP:
            if first is not None:
                yield from self.run(first(StateChange(EpochGuard(0))))
            way = self._decide_together(prepared, strategy)
        elif self.table.at_rest or not self.table.locked:
            way = self._publish_alone(prepared, strategy, first)
        else:
            way = self._publish_locked(prepared, strategy, first)
        world = self.table.world
        chance, late = self.table.cut_off, FaultKind.LATE in world.fault_profile.of_writes
        cut_off = late and world.dice.random() < chance
        if self.table.clusters_beside:
            cut_off = yield from self._is_overtaken(prepared)
        cut_off = cut_off and world.fault_profile.writes > 0
        return (yield from self.run(self._cut_off(way) if cut_off else way))

    def _may_forget(self) -> None:
        """That it has met others is a hint: whatever it believes, nothing may break."""
        hints = self.table.hints
        if hints is not None and self.table.meets and hints.random() < 0.8:
            self.together.contended = CONTENDED_FOR
        elif hints is not None and hints.random() < (0.9 if self.table.steady else 0.5):
            self.together.contended = 0

    def _publish_alone(
        self, prepared: Prepared, strategy: ConflictStrategy, first: First | None
    ) -> Procedure[Committed]:
        if not self.table.unguarded:
            return (yield from commit_alone(prepared, strategy=strategy, first=first))
        if first is not None:
            yield from first(StateChange(EpochGuard(0)))
        return (yield from commit(prepared, EpochGuard(0), fence=False, strategy=strategy))

    def _decide_together(
        self, prepared: Prepared, strategy: ConflictStrategy
    ) -> Procedure[Committed]:
        """What was decided is published by a task of its own."""
        self._may_forget()
        unlisted = self.appending is not None and bool(self.appending.only)
        self.table.world.reached |= {"unlisted"} if unlisted else set()
        self.together.held = threading.Lock()
        with self.together.held:
            done = yield from publish_together(self.together, prepared, strategy, self.appending)
        self.table.world.reached |= {"unlisted commit"} if unlisted else set()
        write = self.together.writing
        if write is not None and self.appending is not None and write.only != self.appending.only:
            self.table.world.reached.add("carried")
        if self.appending is not None and self.appending.beside is not None:
            self.table.world.reached.add("listed beside its files")
        while self.together.behind:
            way = publish_behind(self.together, self.together.behind.pop())
            self.table.world.spawn(self.session.node, way)
        return done

    def _is_overtaken(self, prepared: Prepared) -> Procedure[bool]:
        """A writer that rewrites file groups waits until a later instant is decided, if any is.

        Then a withdrawal of its own does not replace the fence; only a rollback would.
        """
        if not (prepared.replaced or any(each.previous != NO_COMMIT for each in prepared.stats)):
            return False
        objects = self.table.world.memory_store.objects
        for _ in range(OVERTAKEN_WAITS_MAX):
            body = objects[FENCE_KEY].body
            grouped = self.table.config.commit == GROUP
            newest = parse_group_fence(body).newest if grouped else parse_fence(body).head.instant
            if newest > prepared.instant:
                return True
            yield Sleep(self.table.world.dice.random() / 4)
        return False

    def _publish_locked(
        self, prepared: Prepared, strategy: ConflictStrategy, first: First | None
    ) -> Procedure[Committed]:
        fenced = prepared.transaction.config.mode == FENCED and not self.table.unguarded
        hold, floor = SimCommitLock(self.table, self.session), self.table.fence_epoch
        try:
            return (yield from publish_under(
                hold, prepared, strategy=strategy, fenced=fenced, first=first
            ))  # fmt: skip
        except LockLost as error:
            superseded = error.reason is LossReason.SUPERSEDED
            if fenced and superseded and hold.last_epoch <= floor:
                raise Violated(GOOD_GRANT, f"{hold.last_epoch} is not above {floor}") from error
            raise

    def _cut_off(self, way: Procedure[Committed]) -> Procedure[Committed]:
        """From now on the process cannot replace the fence; its first request is applied late."""
        world, node, landing = self.table.world, self.session.node, False

        def ask(request: Any) -> Procedure[Any]:
            nonlocal landing
            if not (isinstance(request, Put) and request.key == FENCE_KEY):
                return (yield request)
            if not landing:
                # With a clustering beside it, it lands once its sender is refused (`land`).
                at_ms = world.time.now_ms + world.dice.random() * CUT_OFF_MS
                late = LateWrite(node.name, request, world.time.now_ms, at_ms, world.dice.random())
                world.flying.append(late)
                if self.table.clusters_beside:
                    late.at_ms += HELD_MS
                    self.late = late
                    self.table.cluster_beside(node)
            landing = True
            return Unknown("cut off")

        return (yield from relay(way, ask))


@dataclass(slots=True)
class SimCommitLock:
    """The table's lock, with the client that `Lock` has."""

    table: TableRun
    session: LeaseSession
    last_epoch: int = 0

    @property
    def guard(self) -> EpochGuard:
        held = self.session.client.state.grant
        if held is None:
            raise _lost("the lease was lost")
        self.last_epoch = held.epoch
        return EpochGuard(held.epoch)

    def believe(self) -> None:
        until = self.session.client.state.until_ms
        if until is None or self.session.node.clock.boot_ms() >= until:
            raise _lost("the lease ran out")

    def run(self, way: Procedure[T]) -> Procedure[T]:
        return way

    def acquire(self, scout: Scout | None) -> Procedure[None]:
        """Raises `LockBusy` after the waiter's timeout."""
        yield from self.leave(None)
        beside = partial(_beside, self.session, scout)
        if not (yield from self.table.leases.acquire(self.session, beside)):
            raise self.session.client.busy_error()

    def rise_above(self, epoch: int) -> Procedure[None]:
        """Like `Lock.rise_above`."""
        session = self.session
        procedure = grant.rise_above(session.client, "the lock", session.assert_held, epoch)
        return self.table.leases.in_turn(session, procedure)

    def complete(self, way: Procedure[T]) -> Procedure[T]:
        done: T
        done, _ = yield Parallel((way, Shielded(self.leave(None))))
        return done

    def leave(self, _error: BaseException | None) -> Procedure[None]:
        if self.session.client.state.grant is not None:
            yield from self.table.leases.release(self.session)


def _lost(why: str) -> LockLost:
    return LockLost("the lock", why, "begin again", reason=LossReason.EXPIRED)


def _beside(
    session: LeaseSession, scout: Scout | None, procedure: Procedure[bool]
) -> Procedure[bool]:
    """The lock's requests, with the scout's reads in parallel to each look and each claim."""

    def ask(request: Request) -> Procedure[Any]:
        claiming = _claiming(session, request)
        if scout is None or claiming is None:
            return (yield request)
        answer, _ = yield Parallel((_ask(request), scout.prefetch(claiming)))
        return answer

    return relay(procedure, ask)


def _claiming(session: LeaseSession, request: Request) -> bool | None:
    """Whether a request claims the lock; None: it is neither a claim nor a look."""
    match request:
        case Get(key) if key == LOCK_KEY:
            return False
        case Put(key) if key == LOCK_KEY:
            out = session.client.state.out
            return True if out is not None and out.purpose is WritePurpose.CLAIM else None
        case _:
            return None


def _ask(request: Request) -> Procedure[Any]:
    answer = yield request
    return answer
