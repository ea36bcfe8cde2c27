"""A table whose writers append at once, on a store with a latency, in virtual time.

It runs what a handle's append runs. Processors take no time; `play` asserts nothing by a clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from lockkit.lab.verify.mutants import fence_of
from lockkit.lab.verify.sim.distant import DistantWorld
from lockkit.lab.verify.sim.lease import LeaseRun
from lockkit.lab.verify.sim.memory_store import PROFILES
from lockkit.lab.verify.sim.task import Node
from lockkit.lab.verify.table.host import SimHost
from lockkit.lab.verify.table.ledger import TrackedAttempt
from lockkit.lab.verify.table.scenario import TableRun
from lockkit.lab.verify.table.writers import SimWriter
from lockkit.protocol.policy import Policy
from lockkit.runtime import Procedure, Sleep
from lockkit.table.format.properties import FENCED, GROUP, TableConfig
from lockkit.table.occ.creation import create_table

LATENCY_MS, MOVES_MAX = 60.0, 10_000_000
PREPARES_S = 0.05


@dataclass(slots=True)
class Appending:
    """`writers` processes that append in a closed loop; each prepares its rows for a moment."""

    writers: int
    profile: str = "gcs"
    version: int = 6
    every_s: float = 0.0
    """0: at once; else each begins an append so often, and its time counts from when it was due."""
    waits_s: list[float] = field(default_factory=list)
    commits: Counter[str] = field(default_factory=Counter)
    run: TableRun = field(init=False)

    def __post_init__(self) -> None:
        world = DistantWorld("appending", MOVES_MAX, PROFILES[self.profile], uniform=True,
                             spread_ms=0, latency_ms=LATENCY_MS)  # fmt: skip
        config = TableConfig(name="t", record_key="id", version=self.version, buckets=2,
                             mode=FENCED, commit=GROUP)  # fmt: skip
        self.run = TableRun(world, LeaseRun(world, Policy(), fence_of(None)), config, False, 16,
                            ("",), False)  # fmt: skip
        world.run(create_table(config))
        world.memory_store.truth.clear()
        world.memory_store.on_write, world.on_note = self.run.on_write, self.run.noted
        for number in range(1, self.writers + 1):
            node = world.node(f"W{number}")
            world.spawn(node, self.loop(node))

    def loop(self, node: Node) -> Procedure[None]:
        world, ledger = self.run.world, self.run.ledger
        writer = SimWriter(self.run, SimHost(self.run, self.run.leases.join(node)))
        due_ms = world.time.now_ms + 1000 * self.every_s * world.dice.random()
        while True:
            pause_s = max(0.0, due_ms - world.time.now_ms) / 1000
            yield Sleep(pause_s if self.every_s else PREPARES_S * (0.5 + world.dice.random()))
            began_ms, due_ms = world.time.now_ms, due_ms + 1000 * self.every_s
            if self.every_s:
                began_ms = due_ms - 1000 * self.every_s
            token = f"{node.name}/{self.commits[node.name]}"
            mine = TrackedAttempt(token, token, "append")
            ledger.begins(node.name)
            yield from writer.append(mine, "")
            ledger.acknowledged(mine)
            self.commits[node.name] += 1
            self.waits_s.append((world.time.now_ms - began_ms) / 1000)

    def play(self, seconds: float) -> Appending:
        world = self.run.world
        until_ms = world.time.now_ms + 1000 * seconds
        while world.time.now_ms < until_ms:
            world.play(1)
        return self

    @property
    def least_share(self) -> float:
        """Of the mean one, that of the writer with the fewest commits."""
        least = min(self.commits[f"W{number}"] for number in range(1, self.writers + 1))
        return least * self.writers / max(1, self.commits.total())
