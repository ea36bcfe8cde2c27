"""The scenario `lease`: clients that acquire, hold, renew, release, take over, and commit.

Each runs what `Lock` runs: the procedures of `grant` to acquire, renew and release, and `Renewal`
beside them. Under its grant it replaces one resource as the fence's rule allows. The run is judged
while it goes, and by `assert_held`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from lockkit.errors import LockLost
from lockkit.lab.verify.mutants import Invariant, Mutant, fence_of
from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.run import SeedRun
from lockkit.lab.verify.sim.task import Node, Violated, WaitUntil
from lockkit.lab.verify.sim.world import SimWorld, drawn_world
from lockkit.lab.verify.wrong_rules import CommitGuard
from lockkit.lock import grant
from lockkit.lock.polling import PollingPace
from lockkit.lock.renewal import Renewal
from lockkit.lock.storage import LOCK_KEY, StorageClient
from lockkit.protocol.outcome import Found, Missing, over
from lockkit.protocol.policy import Expiry, Policy
from lockkit.protocol.record import Garbled, Record, decode
from lockkit.protocol.state import Identity
from lockkit.runtime import Exclusive, Get, Procedure, Put, Sleep, relay
from lockkit.runtime.proven import put_once
from lockkit.stores import Capabilities

RESOURCE_KEY = "resource.json"
TTL_MS = 10_000
SKEW_MS = 1400
"""`wall` is right up to `drift + margin`."""
SPREAD_MS = 1000
"""`store` is right up to `slack`, less the second that HTTP dates are floored by."""
LATE_MS = 2_000
OFF_MS = 3_600_000
"""How wrong a wall clock may be for the policies that do not trust it."""
GRANTS_MAX, BEATS_MAX = 40, 4
LIMIT_S, TRIED_ONCE = 60.0, 0.15
"""The longest wait of an acquire, and how often it tries once."""
INTERRUPTED, INTERRUPTED_AT_MOST = 0.1, 8
"""How often an acquire is interrupted, and after how many requests at most."""
ORPHANED = 0.2
"""How often a holder's thread ends before it releases: then renewal stops."""
POLLS_MS, RENEWALS_MS = (0.0, 4_000.0, 20_000.0), (1_000.0, 4_000.0, 12_000.0)
"""The write interval that waiters poll by, and the time between renewals; the last is too long."""

T = TypeVar("T")
Beside = Callable[[Procedure[bool]], Procedure[bool]]


class Interrupted(BaseException):
    """Stands for Ctrl-C, or for the cancellation of a task."""


def unchanged(procedure: Procedure[bool]) -> Procedure[bool]:
    """Return the procedure as it is: no further requests."""
    return procedure


@dataclass(slots=True)
class NoRequests:
    """The part of a store that a client needs besides requests: its limits on writes."""

    capabilities: Capabilities


@dataclass(slots=True)
class LeaseSession:
    """One client from the start of its process to its crash, and what it believes."""

    node: Node
    client: StorageClient
    believes_until_ms: float = 0.0
    """True time; 0 once it does not."""
    busy: bool = False
    """Whether one of its procedures has the client to itself."""
    orphaned: bool = False
    attempt: str = ""
    """The attempt of its last write."""
    looked: tuple[str, float] = "", 0.0
    """That attempt when it last looked, and when that was."""

    def assert_held(self) -> None:
        grant.assert_held(self.client, self.node.name)


@dataclass(slots=True)
class LeaseRun(SeedRun):
    """All clients of one world, and the invariants between them."""

    policy: Policy
    fence: CommitGuard = CommitGuard.CAS
    """What guards a commit: a mistake's own, or compare-and-set."""
    ttl_ms: int = TTL_MS
    poll_ms: float = POLLS_MS[1]
    renew_ms: float = RENEWALS_MS[1]
    prefix: str = ""
    """Of the keys, where a world has several locks."""
    sessions: dict[str, LeaseSession] = field(default_factory=dict)
    """By node: its latest life."""
    top: int = 0
    """The highest epoch that was ever applied."""
    grants: int = 0
    standing: Record | None = None
    landed_ms: float = 0.0
    """When it was written."""
    writer: str = ""
    commits: int = 0
    last_epoch: int = 0

    # --- what must hold --------------------------------------------------------------------------

    def on_write(self, decided: DecidedRequest, after: StoredObject | None) -> None:
        """A write was applied."""
        key = getattr(decided.request, "key", "")
        if key == RESOURCE_KEY and after is not None:
            self._judge_commit(after.body)
        if key != LOCK_KEY:
            return
        record = None if after is None else decode(after.body)
        assert not isinstance(record, Garbled)
        was, self.standing = self.standing, record
        self.landed_ms = self.world.time.now_ms
        if record is None or record.expired:
            return
        handle = record.attempt.rpartition("/")[0]
        granted = was is None or was.expired or was.epoch != record.epoch or self.writer != handle
        self.writer = handle
        if granted and record.epoch <= self.top:
            because = f"{decided.client} was granted epoch {record.epoch} after epoch {self.top}"
            raise Violated(Invariant.EPOCHS_RISE, because)
        self.top = max(self.top, record.epoch)

    def _judge_commit(self, body: bytes) -> None:
        fields = json.loads(body)
        if fields["epoch"] < self.last_epoch:
            raise Violated(
                Invariant.NO_STALE_WRITE,
                f"epoch {fields['epoch']} committed after epoch {self.last_epoch}",
            )
        if fields["base"] != self.commits:
            raise Violated(
                Invariant.NO_LOST_UPDATE,
                f"a commit was made from number {fields['base']} of {self.commits}",
            )
        self.commits, self.last_epoch = self.commits + 1, fields["epoch"]

    def on_event(self, session: LeaseSession, kind: str, data: dict[str, Any]) -> None:
        """A client reports what it believes from now on."""
        now_ms, clock = self.world.time.now_ms, session.node.clock
        match kind:
            case "ask" if data["op"] == "look":
                session.looked = session.attempt, now_ms
            case "ask":
                session.attempt = data["attempt"]
            case "held" | "renewed":
                until = session.client.state.until_ms
                assert until is not None
                for other in self.sessions.values():
                    believes = other.believes_until_ms > now_ms and not self.world.by_hand
                    if other is not session and believes:
                        both = f"{session.node.name} and {other.node.name}"
                        because = f"{both} count on the lock at once"
                        raise Violated(Invariant.ONE_BELIEVER, because)
                session.believes_until_ms = clock.true_ms(until)
                self.grants += kind == "held"
            case "heard" if data["event"] in ("quit", "give up"):
                session.believes_until_ms = 0.0
            case "lost" | "waiting":
                believed = session.believes_until_ms > now_ms + 1
                session.believes_until_ms = 0.0
                if (kind == "waiting" or believed) and self._is_own(session):
                    because = f"{session.node.name} was refused because of its own write"
                    raise Violated(Invariant.NO_SELF_LOSS, f"{kind}: {because}")

    def _is_own(self, session: LeaseSession) -> bool:
        record, (attempt, looked_ms) = self.standing, session.looked
        if record is None or record.expired:
            return False
        later = record.attempt == attempt and looked_ms < self.landed_ms  # the next look shows it
        return not later and record.attempt.startswith(f"{session.client.identity.handle}/")

    def admits(self, put: Put, before: StoredObject | None) -> bool:
        """Whether the resource accepts a write, if the fence is not a compare-and-set."""
        if self.fence is CommitGuard.OFF or before is None:
            return True
        rises: bool = json.loads(put.body)["epoch"] >= json.loads(before.body)["epoch"]
        return rises

    def lock_removed(self) -> None:
        """Remove the lock object by hand: its holder still believes, and the epochs restart."""
        self.top, self.world.by_hand = 0, True

    def crashed(self, node: Node) -> None:
        self.sessions.pop(node.name, None)

    # --- what they do ----------------------------------------------------------------------------

    def live(self, node: Node) -> Procedure[None]:
        return self.life(self.join(node))

    def join(self, node: Node) -> LeaseSession:
        """Start a new client without any knowledge."""
        world = self.world
        handle = f"{node.name}.{node.life}"
        session: LeaseSession

        def record(kind: str, **data: Any) -> None:
            found: Violated | None = None
            try:
                self.on_event(session, kind, data)
            except Violated as violated:
                found = violated
            if data.get("until_ms"):
                left_ms = (data["until_ms"] - node.clock.wall_ms()) / node.clock.rate
                data["until_ms"] = world.time.now_ms + left_ms
            world.record(node.name, kind, data)  # also what breaks an invariant
            if found is not None:
                world.broken = world.broken or found
                raise found

        # Two sessions of one process have one owner: only attempts distinguish them.
        owner = "a shared owner" if node.clock.offset_ms % 3 == 0 else node.name
        interval_s = world.profile.write_interval_ms / 1000
        offers = Capabilities(name="sim", poll_min_s=0.0, write_interval_min_s=interval_s)
        client = StorageClient(
            where="sim://", store=NoRequests(offers),  # type: ignore[arg-type]
            identity=Identity(owner, self.ttl_ms, node.name, handle), policy=self.policy,
            clock=node.clock, polling=PollingPace(self.poll_ms), sink=record, late_ms=LATE_MS,
            interval_ms=self.renew_ms,
        )  # fmt: skip
        session = LeaseSession(node, client)
        self.sessions[node.name] = session
        return session

    def life(self, session: LeaseSession) -> Procedure[None]:
        dice = self.world.dice.random
        for _ in range(GRANTS_MAX):
            if (yield from self.acquire(session)):
                yield from self.hold(session)
                yield from self.release(session)
            yield Sleep(dice() * 3)

    def acquire(self, session: LeaseSession, beside: Beside = unchanged) -> Procedure[bool]:
        """Like `Lock.acquire`, with a random timeout; sometimes interrupted."""
        client, dice = session.client, self.world.dice.random
        limit_s = 0.0 if dice() < TRIED_ONCE else dice() * dice() * LIMIT_S
        procedure = grant.acquire(client, limit_s, hold=lambda: self.renewal(session))
        background = beside(self.in_turn(session, procedure))
        try:
            won = yield from self.interrupted(background)
        except Interrupted:
            self.world.reached.add("back-out")
            won = False
        if not won and (client.state.grant is not None or client.renewal is not None):
            raise Violated(Invariant.NOTHING_LEFT, f"{session.node.name} gave up, and still holds")
        return won

    def renewal(self, session: LeaseSession) -> Renewal:
        """Like `Renewal`, which runs each of the two procedures in a thread."""
        node, world = session.node, self.world

        def start(renewal: Procedure[None]) -> bool:
            world.spawn(node, self.in_turn(session, renewal), f"{node.name} renews")
            return True

        session.orphaned = False
        new = Renewal(
            held=session.client, start=start,
            orphaned=lambda: session.orphaned, report=world.reached.add,
        )  # fmt: skip
        world.spawn(node, new.watch(), f"{node.name} watches")
        return new

    def hold(self, session: LeaseSession) -> Procedure[None]:
        """Commit and wait, repeatedly, as long as the client believes; a random number of times."""
        client, dice = session.client, self.world.dice.random
        session.orphaned = dice() < ORPHANED
        for _ in range(BEATS_MAX):
            if dice() < 0.5:
                yield from self.commit(session)
            if dice() < 0.2:
                return
            yield Sleep(dice() * dice() * TTL_MS * 1.2 / 1000)
            if dice() < 0.2:
                try:
                    yield from self.in_turn(session, grant.renew(client, session.assert_held))
                except LockLost:
                    return
            if client.state.until_ms is None:
                return

    def release(self, session: LeaseSession) -> Procedure[None]:
        """Like `Lock.release`; after an interrupt the lease ends by itself."""
        procedure = self.in_turn(session, grant.release(session.client))
        try:
            yield from self.interrupted(procedure)
        except Interrupted:
            self.world.reached.add("interrupted release")
        if session.client.state.grant is not None:
            raise Violated(Invariant.NOTHING_LEFT, f"{session.node.name} released, and still holds")

    def in_turn(self, session: LeaseSession, procedure: Procedure[T]) -> Procedure[T]:
        """The same procedure; an `Exclusive` part waits until the client is not in use."""

        def ask(request: Any) -> Procedure[Any]:
            if isinstance(request, Get | Put) and self.prefix:
                return (yield replace(request, key=self.prefix + request.key))
            if not isinstance(request, Exclusive):
                return (yield request)
            if session.busy:
                yield WaitUntil(lambda: not session.busy)  # type: ignore[misc]
            session.busy = True
            try:
                return (yield from relay(request.procedure, ask))
            finally:
                session.busy = False

        return relay(procedure, ask)

    def interrupted(self, procedure: Procedure[T]) -> Procedure[T]:
        """The same procedure; sometimes one of its requests ends with an interrupt."""
        dice, left = self.world.dice.random, 0
        if dice() < INTERRUPTED:
            left = 1 + int(dice() * INTERRUPTED_AT_MOST)

        def ask(request: Any) -> Procedure[Any]:
            nonlocal left
            answer = yield request
            if left and not isinstance(request, WaitUntil):
                left -= 1
                if not left:
                    raise Interrupted
            return answer

        return relay(procedure, ask)

    def commit(self, session: LeaseSession) -> Procedure[None]:
        """Read the resource, look at the lease, replace what was read."""
        grant = session.client.state.grant
        assert grant is not None
        match (yield Get(RESOURCE_KEY)):
            case Found(found, version):
                base, condition = json.loads(found)["number"], over(version)
            case Missing():
                base, condition = 0, over(None)
            case _:
                return
        until = session.client.state.until_ms
        if until is None or session.node.clock.boot_ms() >= until:
            return
        yield from self.before_the_write(session)
        body = {"number": base + 1, "base": base, "epoch": grant.epoch}
        yield from put_once(RESOURCE_KEY, json.dumps(body).encode(), condition)

    def before_the_write(self, _session: LeaseSession) -> Procedure[None]:
        """Between the check of the lease and the write that relies on it. Nothing happens here."""
        yield from ()


def world_of(
    dice: random.Random, seed: str, steps: int, mutant: Mutant | None
) -> tuple[SimWorld, Policy, int]:
    """The world of a seed, the policy of its nodes, and the largest clock error in ms."""
    policy = Policy(expiry=dice.choice(tuple(Expiry)))
    spread_ms, skew_ms = SPREAD_MS, SKEW_MS
    if mutant is not None:
        policy = mutant.of(policy)
        spread_ms = SPREAD_MS if mutant.spread_ms is None else mutant.spread_ms
        skew_ms = SKEW_MS if mutant.skew_ms is None else mutant.skew_ms
    world = drawn_world(dice, seed, steps, mutant, spread_ms=spread_ms)
    return world, policy, skew_ms // 2 if policy.expiry is Expiry.WALL else OFF_MS


def set_up(seed: str, steps: int, mutant: Mutant | None) -> LeaseRun:
    dice = random.Random(f"lease {seed}")
    world, policy, off_ms = world_of(dice, seed, steps, mutant)
    run = LeaseRun(world, policy, fence_of(mutant))
    run.poll_ms, run.renew_ms = dice.choice(POLLS_MS), dice.choice(RENEWALS_MS)
    run.watch()
    if run.fence is not CommitGuard.CAS:
        world.memory_store.judges[RESOURCE_KEY] = run.admits
    run.processes(dice, "W", off_ms)
    return run
