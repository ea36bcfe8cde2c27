"""The scenario `statelock`: runs lock a state, work, unlock; a human unlocks the dead.

Nothing expires here. A lock may be removed by another only if its run has ended: the operator
checks that before each `force-unlock`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from lockkit.errors import NoAnswer, Unanswered
from lockkit.lab.verify.mutants import Mutant, catalogue
from lockkit.lab.verify.sim import SimScenario
from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.run import SeedRun
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.lab.verify.sim.world import drawn_world
from lockkit.recipes.errors import LockUnknown, NotLocked, StateLocked
from lockkit.recipes.terraform.lockinfo import LockInfo, decode
from lockkit.recipes.terraform.statelock import lock, lock_key, read_state, unlock
from lockkit.runtime import Delete, Procedure, Sleep

KEY = lock_key("terraform.tfstate")
STEPS = 250
RUNS_MAX, ROUNDS_MAX, UNLOCKS_MAX = 40, 200, 4
ONE_HOLDER, NO_SELF_WAIT = "one holder at a time", "no client waits for its own lock"
ONLY_OWN = "a lock is removed by its holder, or when its run has ended"
REPORTED = "a reported unlock has happened"


@dataclass(slots=True)
class LockRun(SeedRun):
    """All clients of one world, and the invariants between them."""

    running: dict[str, str] = field(default_factory=dict)
    """By node: the ID that its run locks by, from before the first request to its end."""
    holding: dict[str, str] = field(default_factory=dict)
    """By node: the ID that it holds, as its client reported."""
    standing: str = ""
    removed: set[str] = field(default_factory=set)
    ids: int = 0

    # --- what must hold --------------------------------------------------------------------------

    def on_write(self, decided: DecidedRequest, after: StoredObject | None) -> None:
        before, self.standing = self.standing, "" if after is None else _id(after.body)
        by = decided.client
        if isinstance(decided.request, Delete) and before:
            self.removed.add(before)
            owner = next((node for node, id in self.holding.items() if id == before), by)
            if owner != by:
                raise Violated(ONLY_OWN, f"{by} removed the lock that {owner} holds")
        if self.standing and self.standing not in self.running.values():
            self.world.reached.add("ghost")

    def holds(self, node: Node, id: str) -> None:
        self.world.belief(node.name, "held", of=id)
        if self.holding:
            raise Violated(ONE_HOLDER, f"{node.name} and {', '.join(self.holding)} hold it at once")
        self.holding[node.name] = id

    def refused(self, node: Node, id: str) -> None:
        if self.standing == id:
            raise Violated(NO_SELF_WAIT, f"{node.name} was refused by its own lock {id}")

    def crashed(self, node: Node) -> None:
        self.running.pop(node.name, None)
        self.holding.pop(node.name, None)

    # --- what they do ----------------------------------------------------------------------------

    def live(self, node: Node) -> Procedure[None]:
        dice = self.world.dice.random
        for _ in range(RUNS_MAX):
            self.ids += 1
            id = f"{node.name}.{self.ids}"
            self.running[node.name] = id
            try:
                yield from self.work(node, LockInfo(id=id, who="ci@runner", operation="apply"))
            except StateLocked:
                self.refused(node, id)
            except (LockUnknown, NotLocked, Unanswered, NoAnswer):
                self.world.reached.add("in doubt")
            self.crashed(node)
            yield Sleep(dice() * dice() * 4)

    def work(self, node: Node, info: LockInfo) -> Procedure[None]:
        dice = self.world.dice.random
        yield from lock(KEY, info, timeout_s=dice() * 20)
        self.holds(node, info.id)
        yield Sleep(dice() * dice() * 10)
        for _ in range(UNLOCKS_MAX):
            del self.holding[node.name]
            self.world.belief(node.name, "released")
            try:
                yield from unlock(KEY, info.id)
                break
            except (LockUnknown, Unanswered, NoAnswer):
                self.holding[node.name] = info.id  # as a user who has seen the error would say
                self.world.belief(node.name, "held", of=info.id)
                yield Sleep(dice() * 5)
        if info.id not in self.removed:
            raise Violated(REPORTED, f"{node.name} unlocked {info.id}, which was never removed")

    def operator(self, node: Node) -> Procedure[None]:
        dice = self.world.dice.random
        for _ in range(ROUNDS_MAX):
            yield Sleep(1 + dice() * 9)
            try:
                found = (yield from read_state(KEY)).info
                if isinstance(found, LockInfo) and found.id not in self.running.values():
                    yield from unlock(KEY, found.id)
                    self.world.reached.add("force-unlock")
            except (LockUnknown, NotLocked, Unanswered, NoAnswer):
                pass


def _id(body: bytes) -> str:
    info = decode(body)
    assert isinstance(info, LockInfo)
    return info.id


def set_up(seed: str, steps: int, mutant: Mutant | None) -> LockRun:
    """The world of a seed: its provider and its faults. Clocks decide nothing here."""
    dice = random.Random(f"statelock {seed}")
    world = drawn_world(dice, seed, steps, mutant)
    run = LockRun(world)
    run.watch()
    for number in range(1, 3 + int(dice.random() * 2)):
        run.process(f"T{number}", run.live)
    operator = world.node("O")
    world.spawn(operator, run.operator(operator))
    return run


SCENARIO = SimScenario(
    "statelock", "runs lock a Terraform state, work, unlock; a human unlocks the dead", STEPS,
    set_up, ("force-unlock", "ghost", "in doubt", "stall", "restart"),
)  # fmt: skip

_WHERE = "lockkit.recipes.terraform.statelock"
MUTANTS = catalogue(
    Mutant("settle", "its own lock, answered late, is taken for another client's (OpenTofu #4405)",
           {f"{_WHERE}:is_ours": lambda found, info: found is info}),
    Mutant("recognise", "a lock is recognised by user and host, which other runs have too",
           {f"{_WHERE}:is_ours": lambda found, info: getattr(found, "who", None) == info.who}),
    Mutant("compare_id", "unlocking does not compare the ID",
           {f"{_WHERE}:may_delete": lambda _found, _id: True}),
    Mutant("delete_version", "an unlock deletes whatever lock is there, as Terraform does",
           {f"{_WHERE}:exactly": lambda _version: None}),
)  # fmt: skip
