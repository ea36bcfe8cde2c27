"""The scenario `striped`: clients take several stripes at a time, each of them a lease of its own.

The leases are the scenario `lease`'s, with the very `LeaseClient` that `Lock` runs; what is taken
in which order, given back, and agreed on is what `StripedLock` runs. Judged while it goes, and by
the checker for each stripe as if that were the only lock.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from lockkit.errors import Unanswered
from lockkit.events import Event
from lockkit.lab.verify.check import Kind, check
from lockkit.lab.verify.mutants import Mutant, catalogue
from lockkit.lab.verify.planting import answering
from lockkit.lab.verify.sim import SimScenario
from lockkit.lab.verify.sim.fault_injection import stall
from lockkit.lab.verify.sim.fault_profile import FaultProfile
from lockkit.lab.verify.sim.lease import OFF_MS, SKEW_MS, TTL_MS, LeaseRun, LeaseSession
from lockkit.lab.verify.sim.memory_store import PROFILES, SOUND, DecidedRequest, StoredObject
from lockkit.lab.verify.sim.run import SeedRun
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.lab.verify.sim.world import SimWorld
from lockkit.lock.storage import LOCK_KEY
from lockkit.protocol.policy import Expiry, Policy
from lockkit.protocol.state import believes
from lockkit.recipes.errors import StripesDiffer
from lockkit.recipes.stripes import agree, indexes, of_stripe, stripe_key
from lockkit.recipes.taking import AcquireLock, ReleaseLock, Taking, confirmed, give_all, take_all
from lockkit.runtime import Delete, Procedure, Put, Sleep, relay

STEPS = 500
STRIPES, KEYS = 4, [f"k{number}" for number in range(6)]
CALLS_MAX, ACTS_MAX, LAYOUTS_MAX = 30, 3, 5
STALLS = 0.15
"""The share of grants after which the client is paused."""
ALONE = "a client that acts on a key is its only holder"
CIRCLE = "nobody waits in a circle"
EMPTY = "a call that could not take all stripes holds none"
JUDGED = "each stripe is a lock"


@dataclass(slots=True)
class StripedWorld(SimWorld):
    """A world whose history shows one stripe, because the checker knows one lock."""

    stripe: int = 0

    def history(self) -> list[Event]:
        return list(of_stripe(SimWorld.history(self), self.stripe))


@dataclass(slots=True, eq=False)
class StripedClient:
    """One client: its number of stripes, what it holds and waits for."""

    node: Node
    stripes: int
    held: dict[int, LeaseSession] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    taken: list[int] = field(default_factory=list)
    waits: int | None = None


@dataclass(slots=True)
class StripedRun(SeedRun):
    """All clients of one world, and the invariants between them."""

    leases: list[LeaseRun]
    draw: random.Random
    configured: dict[str, int] = field(default_factory=dict)
    """By node: the number of stripes in its user's call."""
    actors: dict[str, StripedClient] = field(default_factory=dict)

    # --- what must hold --------------------------------------------------------------------------

    def on_write(self, decided: DecidedRequest, after: StoredObject | None) -> None:
        if not isinstance(decided.request, Put | Delete):
            return
        for stripe, leases in enumerate(self.leases):
            if decided.request.key == stripe_key(stripe) + LOCK_KEY:
                request = replace(decided.request, key=LOCK_KEY)
                leases.on_write(decided._replace(request=request), after)

    def crashed(self, node: Node) -> None:
        self.actors.pop(node.name, None)
        for leases in self.leases:
            leases.crashed(node)

    def refuse_circle(self, actor: StripedClient, stripe: int) -> None:
        """Raise if the waiting clients form a circle: none would ever continue."""
        way, wanted = actor.node.name, stripe
        for _ in self.actors:
            other = next((each for each in self.actors.values() if wanted in each.taken), None)
            if other is None:
                return
            way += f" waits for stripe {wanted}, which {other.node.name} has"
            if other is actor:
                raise Violated(CIRCLE, way)
            if other.waits is None:
                return
            way, wanted = f"{way}; {other.node.name}", other.waits

    def act(self, actor: StripedClient) -> None:
        """Act on all of its keys now."""
        now_ms = self.world.time.now_ms
        for other in self.actors.values():
            both = set(other.keys) & set(actor.keys) if other is not actor else ()
            for key in sorted(both):
                (stripe,) = indexes([key], other.stripes)
                held = other.held.get(stripe)
                if held is not None and held.believes_until_ms > now_ms:
                    because = f"{actor.node.name} acts on {key}, but {other.node.name} also counts"
                    raise Violated(ALONE, f"{because} on its lock, in stripe {stripe}")

    def end(self) -> None:
        history = SimWorld.history(self.world)
        for stripe in range(len(self.leases)):
            verdict = check(of_stripe(history, stripe))
            if verdict.kind is Kind.INVALID:
                raise Violated(JUDGED, f"stripe {stripe}: {verdict.because}")

    # --- what they do ----------------------------------------------------------------------------

    def live(self, node: Node) -> Procedure[None]:
        if node.name not in self.configured:
            other = self.draw.random() < 0.3
            self.configured[node.name] = STRIPES // 2 if other else STRIPES
        dice, actor = self.world.dice, StripedClient(node, self.configured[node.name])
        if not (yield from self.agreed(actor)):
            return
        self.actors[actor.node.name] = actor
        for _ in range(CALLS_MAX):
            keys = tuple(dice.sample(KEYS, 1 + int(dice.random() * 3)))
            keys += keys[:1] if dice.random() < 0.2 else ()  # named twice
            yield from self.call(actor, keys)
            yield Sleep(dice.random() * 2)

    def agreed(self, actor: StripedClient) -> Procedure[bool]:
        """Like `StripedLock.begin`."""
        for _ in range(LAYOUTS_MAX):
            try:
                yield from agree(actor.stripes, "sim:/")
            except Unanswered:
                continue
            except StripesDiffer:
                self.world.reached.add("refused number")
                return False
            return True
        return False

    def call(self, actor: StripedClient, keys: tuple[str, ...]) -> Procedure[None]:
        """Like `StripedKeys`: take all, act, release all."""
        plan = indexes(keys, actor.stripes)
        for stripe in plan:
            if stripe not in actor.held:
                actor.held[stripe] = self.joined(actor.node, stripe)
        take, give = partial(self.take, actor), partial(self.give, actor)
        missed = yield from played(take_all(plan), take, give)
        if missed is not None:
            self.world.reached |= {"backed out"} if len(plan) > 1 else set()
            if actor.taken:
                raise Violated(EMPTY, f"{actor.node.name} still has stripe {actor.taken[0]}")
            return
        if confirmed(partial(self.checked, actor, plan)):
            actor.keys = keys
            self.act(actor)
            for _ in range(int(self.world.dice.random() * ACTS_MAX)):
                yield Sleep(self.world.dice.random() * TTL_MS / 3000)
                if not self.checked(actor, plan):
                    self.world.reached.add("lost one")
                    break
                self.act(actor)
        actor.keys = ()
        yield from played(give_all(plan), take, give)

    def checked(self, actor: StripedClient, plan: tuple[int, ...]) -> bool:
        """Like `StripedKeys.assert_held`."""
        now = actor.node.clock.now()
        return all(believes(actor.held[each].client.state, now) for each in plan)

    # --- one stripe ------------------------------------------------------------------------------

    def joined(self, node: Node, stripe: int) -> LeaseSession:
        session = self.leases[stripe].join(node)
        session.client.sink = partial(session.client.sink, stripe=stripe)
        return session

    def take(self, actor: StripedClient, stripe: int) -> Procedure[bool]:
        self.refuse_circle(actor, stripe)
        session, actor.waits = actor.held[stripe], stripe
        if any(stripe in each.taken for each in self.actors.values()):
            self.world.reached.add("waited")
        won = yield from self.leases[stripe].acquire(session)
        actor.waits = None
        if won:
            actor.taken.append(stripe)
            if self.world.fault_profile.nodes and self.world.dice.random() < STALLS:
                stall(self.world, actor.node)
        return won

    def give(self, actor: StripedClient, stripe: int) -> Procedure[None]:
        yield from self.leases[stripe].release(actor.held[stripe])
        actor.taken.remove(stripe)


def played(
    taking: Taking[int, int | None] | Taking[int, None],
    take: Callable[[int], Procedure[bool]], give: Callable[[int], Procedure[None]],
) -> Procedure[int | None]:  # fmt: skip
    """Like `taking.carry_out`, but taking and releasing take moves of the world."""
    def ask(request: AcquireLock[int] | ReleaseLock[int]) -> Procedure[bool] | Procedure[None]:
        return (take if isinstance(request, AcquireLock) else give)(request.lock)

    return relay(taking, ask)


def set_up(seed: str, steps: int, mutant: Mutant | None) -> StripedRun:
    dice = random.Random(f"striped {seed}")
    lease = Policy(expiry=dice.choice(tuple(Expiry)))
    profile = PROFILES[dice.choice(SOUND)]
    if mutant is not None:
        profile = PROFILES[mutant.profile] if mutant.profile else profile
    fault_profile, uniform = FaultProfile.of(dice), dice.random() < 0.3
    world = StripedWorld(
        seed, steps, profile, fault_profile, uniform, stripe=dice.randrange(STRIPES)
    )
    leases = [LeaseRun(world, lease, prefix=stripe_key(each)) for each in range(STRIPES)]
    run = StripedRun(world, leases, dice)
    run.watch()
    run.processes(dice, "W", SKEW_MS // 2 if lease.expiry is Expiry.WALL else OFF_MS)
    return run


SCENARIO = SimScenario(
    "striped", "clients hold several stripes at once, all of them or none", STEPS, set_up,
    ("takeover", "lost response", "stall", "restart", "waited", "backed out", "lost one",
     "refused number"),
)  # fmt: skip


_HANDLE = "lockkit.recipes.striped.handle"
MUTANTS = catalogue(
    Mutant("ordered", "stripes are taken in the order in which keys are named",
           {"lockkit.recipes.stripes:in_order": list}),
    Mutant("once", "a stripe is taken once for each of its keys",
           {"lockkit.recipes.stripes:each_once": list}),
    Mutant("give_back", "a call that cannot take all stripes keeps those that it has",
           {"lockkit.recipes.taking:to_give_back": lambda _taken: ()}),
    Mutant("agreed", "each client uses its own number of stripes",
           {f"{__name__}:agree": answering(None), f"{_HANDLE}:agree": answering(None)}),
    Mutant("check", "once the last stripe is taken, the first ones are not checked again",
           {f"{__name__}:confirmed": lambda _held: True,
            f"{_HANDLE}:confirmed": lambda _held: True}),
)  # fmt: skip
