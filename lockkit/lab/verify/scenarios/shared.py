"""The scenario `shared`: readers and writers queue for one lock object, renew, release, and stall.

Clients run the procedures of `StoredGranularLocks`, `attend` and `leave`, and count their leases as
its handle does. The run is judged as it proceeds, by true time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from lockkit.errors import NoAnswer, Unanswered
from lockkit.lab.verify.mutants import Mutant, catalogue
from lockkit.lab.verify.sim import SimScenario
from lockkit.lab.verify.sim.fault_injection import stall
from lockkit.lab.verify.sim.lease import OFF_MS, TTL_MS
from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.run import SeedRun
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.lab.verify.sim.world import drawn_world
from lockkit.providers.leased import lease_end_ms
from lockkit.recipes.granular.queued import (
    EntryGone,
    LockQueue,
    QueueEntry,
    QueuePlace,
    attend,
    decode,
    leave,
)
from lockkit.recipes.stripes import Mode
from lockkit.runtime import Procedure, Sleep

KEY = "shared.json"
STEPS = 400
CALLS_MAX, BEATS_MAX = 40, 4
LIMIT_S, WRITERS = 60.0, 0.4
STALLS = 0.15
"""The share of grants after which the client is paused."""
ONE_WRITER = "a writer holds it alone among writers"
NO_READER = "a reader and a writer do not hold it together"
IN_ORDER = "no client overtakes one that came earlier"
LEFT = "an entry that has left does not come back"
EPOCHS = "epochs rise with each entry"


@dataclass(slots=True, eq=False)
class QueueBelief:
    """One grant: its holder, its mode, and until when the holder relies on it (true time)."""

    node: Node
    mode: Mode
    until_ms: float = 0.0


@dataclass(slots=True)
class SharedRun(SeedRun):
    """All clients of one world, and the invariants between them."""

    beliefs: dict[str, QueueBelief] = field(default_factory=dict)
    """By entry."""
    arrived: dict[str, int] = field(default_factory=dict)
    """By entry that is in the queue: its number, in the order of arrival."""
    modes: dict[str, Mode] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    """Entries whose client has proven that they left the queue."""
    epoch: int = 0

    # --- what must hold --------------------------------------------------------------------------

    def on_write(self, decided: DecidedRequest, after: StoredObject | None) -> None:
        queue = LockQueue() if after is None else decode(KEY, after.body, after.version)
        now = {each.id: each for each in queue.entries}
        for id in [each for each in self.arrived if each not in now]:
            belief = self.beliefs.get(id)
            if belief is None or belief.node.name != decided.client:
                self.world.reached.add("takeover")
            del self.arrived[id]
        for id, entry in now.items():
            if id in self.gone:
                raise Violated(LEFT, f"{entry.holder}'s entry is in the queue again")
            if id not in self.arrived:
                if entry.epoch <= self.epoch:
                    raise Violated(EPOCHS, f"{entry.epoch} after {self.epoch}")
                self.epoch, self.modes[id] = entry.epoch, entry.mode
                self.arrived[id] = entry.epoch

    def believes(self, place: QueuePlace, belief: QueueBelief) -> None:
        """A client says that it holds the lock from now on."""
        now_ms = self.world.time.now_ms
        mode = belief.mode.name.lower()
        self.world.belief(belief.node.name, "held", of=f"to {mode}", until_ms=now_ms + TTL_MS)
        for id, other in self.beliefs.items():
            if id == place.id or other.until_ms <= now_ms:
                continue
            both = {other.mode, belief.mode}
            names = f"{belief.node.name} and {other.node.name}"
            if both == {Mode.WRITE}:
                raise Violated(ONE_WRITER, f"{names} write at once")
            if Mode.WRITE in both:
                raise Violated(NO_READER, f"{names} read and write at once")
            self.world.reached.add("shared")
        mine = self.arrived.get(place.id, self.epoch)
        for id, number in self.arrived.items():
            if number < mine and Mode.WRITE in (self.modes[id], belief.mode):
                raise Violated(IN_ORDER, f"{belief.node.name} was let in before an earlier entry")

    def crashed(self, node: Node) -> None:
        for id in [each for each, belief in self.beliefs.items() if belief.node is node]:
            del self.beliefs[id]

    # --- what they do ----------------------------------------------------------------------------

    def live(self, node: Node) -> Procedure[None]:
        dice = self.world.dice.random
        for _ in range(CALLS_MAX):
            mode = Mode.WRITE if dice() < WRITERS else Mode.READ
            place = QueuePlace(
                key=KEY, mode=mode, ttl_ms=TTL_MS, clock=node.clock,
                holder=f"{node.name}.{node.life}",
            )  # fmt: skip
            belief = QueueBelief(node, mode)
            try:
                if (yield from self.acquire(place, belief)):
                    yield from self.hold(place, belief)
            except EntryGone:
                self.world.reached.add("lost one")
            except (Unanswered, NoAnswer):
                pass
            belief.until_ms = 0.0
            self.world.belief(node.name, "released")
            id = place.id
            try:
                yield from leave(place)
            except (Unanswered, NoAnswer):
                self.world.reached.add("in doubt")
            else:
                self.gone.add(id)
            self.beliefs.pop(id, None)
            yield Sleep(dice() * 3)

    def acquire(self, place: QueuePlace, belief: QueueBelief) -> Procedure[bool]:
        """Like `QueuedLock._take` in a loop, up to a deadline."""
        dice, clock = self.world.dice.random, place.clock
        ends_ms = clock.boot_ms() + dice() * dice() * LIMIT_S * 1000
        while True:
            before = yield from attend(place)
            self.beliefs[place.id] = belief
            assert place.proven_ms is not None
            until_ms = lease_end_ms(place.proven_ms, TTL_MS / 1000)
            if not before and clock.boot_ms() < until_ms:
                self.believes(place, belief)
                belief.until_ms = belief.node.clock.true_ms(until_ms)
                if self.world.fault_profile.nodes and dice() < STALLS:
                    stall(self.world, belief.node)
                return True
            self.world.reached.add("waited")
            if clock.boot_ms() >= ends_ms:
                return False
            yield Sleep(dice() * 2)

    def hold(self, place: QueuePlace, belief: QueueBelief) -> Procedure[None]:
        """Renew a random number of times, as long as the client believes."""
        dice, clock = self.world.dice.random, place.clock
        for _ in range(int(dice() * BEATS_MAX)):
            yield Sleep(dice() * TTL_MS / 2000)
            if belief.until_ms <= self.world.time.now_ms:
                return
            sent_ms = clock.boot_ms()
            yield from attend(place, renew=True)
            until_ms = lease_end_ms(sent_ms, TTL_MS / 1000)
            if belief.until_ms > self.world.time.now_ms:  # what has ended never comes back
                belief.until_ms = belief.node.clock.true_ms(until_ms)
                self.world.belief(belief.node.name, "renewed", until_ms=belief.until_ms)


def set_up(seed: str, steps: int, mutant: Mutant | None) -> SharedRun:
    dice = random.Random(f"shared {seed}")
    world = drawn_world(dice, seed, steps, mutant)
    run = SharedRun(world)
    run.watch()
    run.processes(dice, "Q", OFF_MS)
    return run


SCENARIO = SimScenario(
    "shared", "readers and writers share one lock object, first come, first served", STEPS, set_up,
    ("takeover", "stall", "restart", "waited", "shared", "lost one"),
)  # fmt: skip

def readers_first(
    entries: tuple[QueueEntry, ...], new: QueueEntry
) -> tuple[QueueEntry, ...]:
    """A reader joins the readers, before the writers that wait."""
    if new.mode is Mode.WRITE:
        return (*entries, new)
    at = next((n for n, each in enumerate(entries) if n and each.mode is Mode.WRITE), len(entries))
    return (*entries[:at], new, *entries[at:])


_WHERE = "lockkit.recipes.granular.queued"
MUTANTS = catalogue(
    Mutant("two writers", "two clients hold it to write: only readers exclude writers",
           {f"{_WHERE}:conflicts": lambda one, other: one is not other}),
    Mutant("reader beside writer",
           "a reader holds it beside a writer: only writers exclude each other",
           {f"{_WHERE}:conflicts": lambda one, other: one is other is Mode.WRITE}),
    Mutant("readers first", "a reader overtakes the writers that wait, and starves them",
           {f"{_WHERE}:with_new": readers_first}),
    Mutant("impatient", "an entry is removed after a third of its lease",
           {f"{_WHERE}:is_over": lambda unchanged_ms, ttl_ms: unchanged_ms > ttl_ms / 3}),
    Mutant("count_from_send", "a lease is counted from the answer",
           {f"{_WHERE}:counted_from": lambda _sent_ms, now_ms: now_ms}),
)  # fmt: skip
