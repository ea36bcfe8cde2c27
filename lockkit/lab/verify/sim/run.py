"""One seed of a scenario: its world, the processes in it, and what must hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import Node
from lockkit.lab.verify.sim.world import SimWorld
from lockkit.runtime import Procedure

RATE_OFF = 0.002
"""How much faster or slower than true time a node's clock may run."""
Live = Callable[[Node], Procedure[None]]


def around(dice: random.Random, most: float) -> float:
    return (2 * dice.random() - 1) * most


@dataclass(slots=True)
class SeedRun:
    """A scenario overrides what it needs: what its clients do, and what is judged, and when."""

    world: SimWorld

    def live(self, node: Node) -> Procedure[None]:
        """What a client does, from the start of its process to its end."""
        raise NotImplementedError

    def on_write(self, decided: DecidedRequest, after: StoredObject | None) -> None:
        """A write was applied. Raises `Violated`."""

    def noted(self, kind: str, data: dict[str, Any]) -> None:
        """A procedure has reported something."""

    def crashed(self, node: Node) -> None:
        """A process was killed."""

    def end(self) -> None:
        """After the last move: let the world come to rest and judge it. Raises `Violated`.

        Most scenarios wait for nothing: a holder may keep its belief.
        """

    def watch(self) -> None:
        """From now on judge each write, crash and note."""
        world = self.world
        world.memory_store.on_write = self.on_write
        world.on_crash, world.on_note = self.crashed, self.noted

    def process(
        self, name: str, live: Live, *, rate: float = 1.0, offset_ms: int = 0, steps_ms: int = 0
    ) -> None:
        """Start a process on a machine of its own. After each crash it starts again."""
        node = self.world.node(name, rate=rate, offset_ms=offset_ms)
        node.clock_steps_ms, node.birth = steps_ms, partial(self._born, live)
        node.birth(node)

    def _born(self, live: Live, node: Node) -> None:
        self.world.spawn(node, live(node))

    def processes(self, dice: random.Random, letter: str, off_ms: int) -> None:
        """Two or three clients, whose clocks are wrong by up to `off_ms`, and differ in speed."""
        for number in range(1, 3 + int(dice.random() * 2)):
            rate, offset_ms = 1 + around(dice, RATE_OFF), int(around(dice, off_ms))
            self.process(
                f"{letter}{number}", self.live, rate=rate, offset_ms=offset_ms, steps_ms=off_ms
            )
