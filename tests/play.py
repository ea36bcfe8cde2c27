"""A play: actors in a simulated world, each a process of its own; who dies stays dead.

Answers get lost, writes arrive late, actors die. A seed is a schedule: the same one plays the same
again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lockkit.lab.verify.sim.fault_profile import FaultKind, FaultProfile
from lockkit.lab.verify.sim.task import Node, Task, WaitUntil
from lockkit.lab.verify.sim.world import QUIET_MAX, SimWorld
from lockkit.runtime import Procedure

OFF_MS = 1000


@dataclass(frozen=True)
class Faults:
    """How often, of a hundred requests of its kind, each trouble comes."""

    lost: int = 0
    late: int = 0
    crash: int = 0
    """Of ten thousand moves, one of an actor that may die."""

    @property
    def fault_profile(self) -> FaultProfile:
        lost = (FaultKind.LOST_BEFORE, FaultKind.LOST_AFTER) * self.lost
        kinds = lost + (FaultKind.LATE,) * (2 * self.late)
        return FaultProfile(
            (self.lost + self.late) / 100, self.lost / 100, self.crash / 10_000, kinds,
            (FaultKind.CRASH,),
        )  # fmt: skip


@dataclass
class Actor:
    """One who acts; `ended` is () until it has, and then what it came to."""

    task: Task
    dead: bool = False

    @property
    def ended(self) -> tuple[Any, ...]:
        if not self.task.ended:
            return ()
        return ("crashed",) if self.dead and self.task.result is None else (self.task.result,)


class Play:
    """The actors of one seed, their store, and what is still on its way to it."""

    def __init__(self, seed: str, faults: Faults, *, leased: bool) -> None:
        self.sim = SimWorld(seed, QUIET_MAX, uniform=True)
        self.faults = faults
        self.leased = leased
        """What a dead actor had under way arrives before anybody can have its lock."""
        self.dice = self.sim.dice
        self.actors: list[Actor] = []
        self.holder: Node | None = None
        self.sim.on_crash = self._crashed

    @property
    def steps(self) -> list[str]:
        return self.sim.trace

    def run(self, procedure: Procedure[Any]) -> Any:
        """To its end, while nobody else moves and nothing fails."""
        return self.sim.run(procedure)

    def add(self, name: str, procedure: Procedure[Any], *, dies: bool = False) -> Actor:
        off_ms = int(self.dice.uniform(-OFF_MS, OFF_MS))  # their clocks disagree
        node = self.sim.node(name, offset_ms=off_ms)
        if dies:
            node.birth = _stays_dead
        self.actors.append(Actor(self.sim.spawn(node, procedure)))
        return self.actors[-1]

    def play(self) -> None:
        """Until nobody waits for anything."""
        self.sim.fault_profile = self.faults.fault_profile
        self.sim.play(QUIET_MAX)
        assert not self.sim.tasks, "a schedule that does not end"

    def land(self) -> None:
        """All that is under way arrives."""
        self.sim.land()

    def take_lock(self) -> Procedure[None]:
        """Waits until nobody else holds it."""
        yield WaitUntil(lambda: self.holder is None)  # type: ignore[misc] # a request of this world
        self.holder = self.sim.going

    def let_go(self) -> None:
        self.holder = None

    def _crashed(self, node: Node) -> None:
        for each in self.actors:
            each.dead |= each.task.node is node
        if self.leased:
            self.land()
        if self.holder is node:
            self.holder = None


def _stays_dead(_: Node) -> None:
    """Its process is not started again."""
