"""How often a stall does harm, by its length in leases: simulated, with and without the fence.

Two writers take turns. Before each write that relies on the lease, one in four stalls for so long;
nothing else goes wrong, and requests take no time next to a lease.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lockkit.lab.verify.mutants import LEASE_MUTANTS, Mutant, fence_of
from lockkit.lab.verify.sim import SimScenario, simulate
from lockkit.lab.verify.sim.fault_profile import CALM
from lockkit.lab.verify.sim.lease import RESOURCE_KEY, SPREAD_MS, TTL_MS, LeaseRun, LeaseSession
from lockkit.lab.verify.sim.memory_store import PROFILES, SOUND
from lockkit.lab.verify.sim.schedule import Prompt
from lockkit.lab.verify.sim.task import Node
from lockkit.lab.verify.sim.world import SimWorld
from lockkit.lab.verify.wrong_rules import CommitGuard
from lockkit.lab.widgets.seeds.moments import SeedMoment
from lockkit.protocol.policy import Expiry, Policy
from lockkit.runtime import Procedure, Sleep

STALLED = 0.25
MOVES = 200
RATIOS = (0.0, 0.5, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0)
"""Lengths of a stall, in leases."""
WAYS = {"no fence": "fence off", "fenced": ""}
"""Each curve's name, and the mistake that is planted."""
NAME = "stalls-"


@dataclass(slots=True)
class StallSweep(LeaseRun):
    """Writers that stall between the check of the lease and the write."""

    stall_ms: float = 0.0

    def before_the_write(self, session: LeaseSession) -> Procedure[None]:
        if self.stall_ms and self.world.dice.random() < STALLED:
            yield from stalled(self.world, session.node, self.stall_ms, "the sweep")


def stalled(world: SimWorld, node: Node, for_ms: float, why: str) -> Procedure[None]:
    """Stop a whole process, its renewals too, from inside one of its procedures."""
    node.stalled, node.stalled_ms = True, world.time.now_ms + for_ms
    world.record(node.name, "stalled", {"pid": node.life, "why": why})
    yield Sleep(0)


def stalling(ratio: float) -> SimScenario:
    """The scenario `stalls-1.25`: each stall takes that many leases."""
    return SimScenario(
        f"{NAME}{ratio:g}", "two writers, one of which stalls now and then", MOVES,
        partial(_set_up, ratio),
    )  # fmt: skip


def _set_up(ratio: float, seed: str, steps: int, mutant: Mutant | None) -> StallSweep:
    dice = random.Random(f"stalls {seed}")
    policy = Policy(expiry=dice.choice(tuple(Expiry)))
    policy = policy if mutant is None else mutant.of(policy)
    world = SimWorld(seed, steps, PROFILES[dice.choice(SOUND)], CALM, spread_ms=SPREAD_MS)
    world.schedule = Prompt(world.dice, world.passing)
    run = StallSweep(world, policy, fence_of(mutant), stall_ms=ratio * TTL_MS)
    run.watch()
    if run.fence is not CommitGuard.CAS:
        world.memory_store.judges[RESOURCE_KEY] = run.admits
    for name in ("W1", "W2"):
        node = world.node(name)
        world.spawn(node, run.live(node))
    return run


# --- the sweep ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """The outcome of some runs: `first` is the moment of the first violation, "" without one."""

    way: str
    ratio: float
    runs: int
    wrong: int = 0
    first: str = ""

    @property
    def rate(self) -> float:
        return self.wrong / self.runs


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep found so far; `str` is its outcome in a sentence, `repr` the table."""

    points: tuple[SweepPoint, ...] = ()

    def of(self, way: str) -> tuple[SweepPoint, ...]:
        return tuple(each for each in self.points if each.way == way)

    @property
    def ways(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.way for each in self.points))

    def __str__(self) -> str:
        said = []
        for way in self.ways:
            wrong = [each for each in self.of(way) if each.wrong]
            if not wrong:
                runs = sum(each.runs for each in self.of(way))
                said.append(f"{way}: no run of {runs} went wrong")
                continue
            worst = max(wrong, key=lambda each: each.rate)
            said.append(
                f"{way}: runs go wrong from stalls of {min(each.ratio for each in wrong):g} leases "
                f"on, {worst.rate:.0%} of them at {worst.ratio:g}"
            )
        return "; ".join(said) or "nothing was run yet"

    def __repr__(self) -> str:
        head = f"{'stall / lease':>13}" + "".join(f"  {way:>16}" for way in self.ways)
        ratios = sorted({each.ratio for each in self.points})
        found = {(each.way, each.ratio): each for each in self.points}
        rows = [
            f"{ratio:>13g}" + "".join(
                f"  {f'{each.wrong} of {each.runs}':>16}" if (each := found.get((way, ratio)))
                else f"  {'':>16}" for way in self.ways
            )
            for ratio in ratios
        ]  # fmt: skip
        return "\n".join([head, *rows])


def swept(
    runs: int = 40, *, ratios: Sequence[float] = RATIOS, ways: Mapping[str, str] = WAYS,
    over: Callable[[], bool] = lambda: False,
) -> Iterator[SweepResult]:  # fmt: skip
    """Simulate each ratio with and without the fence; yield the findings after every point.

    Ends once `over()`; an unfinished point is dropped.
    """
    points: list[SweepPoint] = []
    for ratio in ratios:
        for way, mutant in ways.items():
            outcomes = []
            for seed in range(1, runs + 1):
                if over():
                    return
                outcomes.append(_one(ratio, seed, mutant))
            wrong = [each for each in outcomes if each]
            points.append(SweepPoint(way, ratio, runs, len(wrong), wrong[0] if wrong else ""))
            yield SweepResult(tuple(points))


def _one(ratio: float, seed: int, mutant: str) -> str:
    """The moment at which this run went wrong; "" if it did not."""
    scenario = stalling(ratio)
    outcome = simulate(scenario, seed, mutant=LEASE_MUTANTS[mutant] if mutant else None)
    return str(SeedMoment(scenario.name, seed, outcome.steps, mutant)) if outcome.violation else ""
