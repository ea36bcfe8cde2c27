"""The scenarios `stalls-1.25`: what a stall does, by its length in leases.

Two writers take turns. Before each write that relies on the lease, one in four stalls for so long;
nothing else goes wrong, and requests take no time next to a lease.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

from lockkit.lab.verify.mutants import Mutant, fence_of
from lockkit.lab.verify.sim import SimScenario
from lockkit.lab.verify.sim.fault_profile import CALM
from lockkit.lab.verify.sim.lease import RESOURCE_KEY, SPREAD_MS, TTL_MS, LeaseRun, LeaseSession
from lockkit.lab.verify.sim.memory_store import PROFILES, SOUND
from lockkit.lab.verify.sim.schedule import Prompt
from lockkit.lab.verify.sim.task import Node
from lockkit.lab.verify.sim.world import SimWorld
from lockkit.lab.verify.wrong_rules import CommitGuard
from lockkit.protocol.policy import Expiry, Policy
from lockkit.runtime import Procedure, Sleep

STALLED = 0.25
MOVES = 200


@dataclass(slots=True)
class StallingRun(LeaseRun):
    """Writers that stall between the check of the lease and the write."""

    stall_ms: float = 0.0

    def before_the_write(self, session: LeaseSession) -> Procedure[None]:
        if self.stall_ms and self.world.dice.random() < STALLED:
            yield from stalled(self.world, session.node, self.stall_ms, "the scenario")


def stalled(world: SimWorld, node: Node, for_ms: float, why: str) -> Procedure[None]:
    """Stop a whole process, its renewals too, from inside one of its procedures."""
    node.stalled, node.stalled_ms = True, world.time.now_ms + for_ms
    world.record(node.name, "stalled", {"pid": node.life, "why": why})
    yield Sleep(0)


def stalling(ratio: float) -> SimScenario:
    """The scenario `stalls-1.25`: each stall takes that many leases."""
    return SimScenario(
        f"stalls-{ratio:g}", "two writers, one of which stalls now and then", MOVES,
        partial(_set_up, ratio),
    )  # fmt: skip


def _set_up(ratio: float, seed: str, steps: int, mutant: Mutant | None) -> StallingRun:
    dice = random.Random(f"stalls {seed}")
    policy = Policy(expiry=dice.choice(tuple(Expiry)))
    policy = policy if mutant is None else mutant.of(policy)
    world = SimWorld(seed, steps, PROFILES[dice.choice(SOUND)], CALM, spread_ms=SPREAD_MS)
    world.schedule = Prompt(world.dice, world.passing)
    run = StallingRun(world, policy, fence_of(mutant), stall_ms=ratio * TTL_MS)
    run.watch()
    if run.fence is not CommitGuard.CAS:
        world.memory_store.judges[RESOURCE_KEY] = run.admits
    for name in ("W1", "W2"):
        node = world.node(name)
        world.spawn(node, run.live(node))
    return run
