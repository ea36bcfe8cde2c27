"""The scenario `lease`: clients that acquire, hold, renew, release, take over, and commit.

Each runs the very `Client` that `Lock` runs, with as much patience as the dice give it, and under
its grant it replaces one resource as the fence's rule allows. Judged while it goes, and by `check`.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from lockkit.client import LOCK_KEY, Client
from lockkit.drive import Get, Procedure, Put, Sleep
from lockkit.lockfile import Garbled, Record, decode
from lockkit.mutants import Invariant, Mutant
from lockkit.outcome import Found, Missing, over
from lockkit.pace import Pace
from lockkit.rules import Expiry, Fence, Rules
from lockkit.sim.shelf import PROFILES, SOUND, Decided, Stored
from lockkit.sim.weather import Weather
from lockkit.sim.world import Node, Violated, World
from lockkit.state import (
    Action,
    Beat,
    GiveUp,
    Granted,
    Me,
    Pause,
    Phase,
    Quit,
    Released,
    Tick,
    Want,
)
from lockkit.stores import Capabilities

RESOURCE_KEY = "resource.json"
TTL_MS = 10_000
SKEW_MS = 1400
"""`wall` is right up to `drift + margin`."""
SPREAD_MS = 1000
"""`store` is right up to `slack`, less the second that HTTP dates are floored by."""
OFF_MS = 3_600_000
"""How wrong a wall clock may be for the policies that do not trust it."""
RATE_OFF = 0.002
GRANTS_MAX, LOOKS_MAX, BEATS_MAX, RELEASES_MAX = 40, 12, 4, 6


@dataclass(slots=True)
class Unreachable:
    """What a client asks its store for besides requests: how it paces its writes."""

    capabilities: Capabilities


@dataclass(slots=True)
class Session:
    """One client's life from its process's start to its crash, and what it believes."""

    node: Node
    client: Client
    believes_until_ms: float = 0.0
    """True time; 0 once it does not."""


@dataclass(slots=True)
class LeaseRun:
    """Everybody in one world, and the invariants between them."""

    world: World
    rules: Rules
    sessions: dict[str, Session] = field(default_factory=dict)
    """By node: its latest life."""
    top: int = 0
    """The highest epoch that was ever applied."""
    grants: int = 0
    standing: Record | None = None
    writer: str = ""
    commits: int = 0
    last_epoch: int = 0

    # --- what must hold --------------------------------------------------------------------------

    def heard(self, told: Decided, after: Stored | None) -> None:
        """A write was applied."""
        key = getattr(told.request, "key", "")
        if key == RESOURCE_KEY and after is not None:
            self._judge_commit(after.body)
        if key != LOCK_KEY:
            return
        record = None if after is None else decode(after.body)
        assert not isinstance(record, Garbled)
        was, self.standing = self.standing, record
        if record is None or record.expired:
            return
        handle = record.attempt.rpartition("/")[0]
        granted = was is None or was.expired or was.epoch != record.epoch or self.writer != handle
        self.writer = handle
        if granted and record.epoch <= self.top:
            raise Violated(Invariant.EPOCHS_RISE, f"{record.epoch} was granted after {self.top}")
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

    def told(self, session: Session, kind: str, data: dict[str, Any]) -> None:
        """A client tells what it believes from now on."""
        now_ms, clock = self.world.time.now_ms, session.node.clock
        match kind:
            case "held" | "renewed":
                until = session.client.state.until_ms
                assert until is not None
                for other in self.sessions.values():
                    if other is not session and other.believes_until_ms > now_ms:
                        because = f"{session.node.name} and {other.node.name} believe at once"
                        raise Violated(Invariant.ONE_BELIEVER, because)
                session.believes_until_ms = clock.true_ms(until)
                self.grants += kind == "held"
            case "lost" | "waiting":
                believed = session.believes_until_ms > now_ms + 1
                session.believes_until_ms = 0.0
                if (kind == "waiting" or believed) and self._is_own(session):
                    because = f"{session.node.name} was told so of its own write"
                    raise Violated(Invariant.NO_SELF_LOSS, f"{kind}: {because}")

    def _is_own(self, session: Session) -> bool:
        record = self.standing
        return (
            record is not None and not record.expired
            and record.attempt.startswith(f"{session.client.me.handle}/")
        )  # fmt: skip

    def admits(self, put: Put, before: Stored | None) -> bool:
        """What the resource itself accepts, where the fence is no compare-and-set."""
        if self.rules.fence is Fence.OFF or before is None:
            return True
        return json.loads(put.body)["epoch"] >= json.loads(before.body)["epoch"]

    def crashed(self, node: Node) -> None:
        self.sessions.pop(node.name, None)

    def end(self) -> None:
        """Whoever believes goes on believing: there is nothing to wait for."""

    # --- what they do ----------------------------------------------------------------------------

    def begin(self, node: Node) -> None:
        """A process starts."""
        self.world.spawn(node, self.life(self.join(node)))

    def join(self, node: Node) -> Session:
        """A new client, which knows nothing."""
        world = self.world
        handle = f"{node.name}.{node.life}"
        session: Session

        def tell(kind: str, **data: Any) -> None:
            try:
                self.told(session, kind, data)
            finally:  # what breaks an invariant is in the history, too
                if data.get("until_ms"):
                    left_ms = (data["until_ms"] - node.clock.wall_ms()) / node.clock.rate
                    data["until_ms"] = world.time.now_ms + left_ms
                world.tell(node.name, kind, data)

        # Two sessions of one process have one owner: only attempts tell them apart.
        owner = "W" if node.clock.offset_ms % 3 == 0 else node.name
        interval_s = world.profile.write_interval_ms / 1000
        offers = Capabilities(name="sim", poll_min_s=0.0, write_interval_min_s=interval_s)
        client = Client(
            where="sim://", store=Unreachable(offers),  # type: ignore[arg-type]
            me=Me(owner, TTL_MS, node.name, handle), rules=self.rules, clock=node.clock,
            pace=Pace(), tell=tell,
        )  # fmt: skip
        session = Session(node, client)
        self.sessions[node.name] = session
        return session

    def life(self, session: Session) -> Procedure[None]:
        dice = self.world.dice.random
        for _ in range(GRANTS_MAX):
            if (yield from self.acquire(session)):
                yield from self.hold(session)
                yield from self.release(session)
            yield Sleep(dice() * 3)

    def acquire(self, session: Session) -> Procedure[bool]:
        """As `Lock.acquire`, with whatever patience; gives up in the middle now and then."""
        client, clock, dice = session.client, session.node.clock, self.world.dice.random
        client.begin()
        told = yield from client.steps(Want(clock.now()))
        for _ in range(LOOKS_MAX):
            if any(isinstance(each, Granted) for each in told):
                return True
            yield Sleep(wait_s(told, dice(), client))
            if dice() < 0.1:
                break
            told = yield from client.steps(Tick(clock.now()))
        yield from client.steps(GiveUp(clock.now()))
        return False

    def hold(self, session: Session) -> Procedure[None]:
        """Commit, renew, commit, as long as it is believed and the dice like."""
        client, clock, dice = session.client, session.node.clock, self.world.dice.random
        for _ in range(BEATS_MAX):
            if dice() < 0.5:
                yield from self.commit(session)
            if dice() < 0.2:
                return
            yield Sleep(dice() * dice() * TTL_MS * 1.2 / 1000)
            now = clock.now()
            held = client.state.phase is Phase.HELD
            yield from client.steps(Beat(now) if held else Tick(now), patient=True)
            if client.state.until_ms is None:
                return

    def release(self, session: Session) -> Procedure[None]:
        client, clock, dice = session.client, session.node.clock, self.world.dice.random
        session.believes_until_ms = 0.0
        told = yield from client.steps(Quit(clock.now()))
        for _ in range(RELEASES_MAX):
            if any(isinstance(each, Released) for each in told):
                return
            yield Sleep(wait_s(told, dice(), client))
            told = yield from client.steps(Tick(clock.now()))
        yield from client.steps(GiveUp(clock.now()))

    def commit(self, session: Session) -> Procedure[None]:
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
        yield Put(RESOURCE_KEY, json.dumps(body).encode(), condition)

    def before_the_write(self, _session: Session) -> Procedure[None]:
        """Between the look at the lease and the write that relies on it; here nothing happens."""
        yield from ()


def wait_s(told: list[Action], lot: float, client: Client) -> float:
    """Until the next look: soon, or when the lease that was seen runs out, or as was asked."""
    asked = next((each.seconds for each in told if isinstance(each, Pause)), None)
    busy = client.busy
    if busy is not None and busy.frees_ms is not None and lot < 0.7:
        return max(0.001, (busy.frees_ms - client.clock.boot_ms() + 1) / 1000)
    return max(asked or 0.0, 0.05 + 3 * lot)


def set_up(seed: str, steps: int, mutant: Mutant | None) -> LeaseRun:
    """One seed's world: its provider, weather, clocks and policy."""
    dice = random.Random(f"lease {seed}")
    rules = Rules(expiry=dice.choice(tuple(Expiry)))
    profile, spread_ms, skew_ms = PROFILES[dice.choice(SOUND)], SPREAD_MS, SKEW_MS
    if mutant is not None:
        rules = mutant.of(rules)
        profile = PROFILES[mutant.profile] if mutant.profile else profile
        spread_ms = SPREAD_MS if mutant.spread_ms is None else mutant.spread_ms
        skew_ms = SKEW_MS if mutant.skew_ms is None else mutant.skew_ms
    weather, uniform = Weather.of(dice), dice.random() < 0.3
    world = World(seed, steps, profile, weather, uniform, spread_ms)
    run = LeaseRun(world, rules)
    world.shelf.heard, world.on_crash = run.heard, run.crashed
    if rules.fence is not Fence.CAS:
        world.shelf.judges[RESOURCE_KEY] = run.admits
    off_ms = skew_ms // 2 if rules.expiry is Expiry.WALL else OFF_MS
    for number in range(1, 3 + int(dice.random() * 2)):
        rate, offset_ms = 1 + around(dice, RATE_OFF), int(around(dice, off_ms))
        node = world.node(f"W{number}", rate=rate, offset_ms=offset_ms)
        node.clock_steps_ms, node.birth = off_ms, run.begin
        run.begin(node)
    return run


def around(dice: random.Random, most: float) -> float:
    return (2 * dice.random() - 1) * most
