"""The simulator: whole runs of the library with simulated clocks, faults and stores.

The explorer tries every order of a few moves. The simulator plays long runs; a seed chooses every
move, so the same seed plays the same run again. A scenario is anything with `set_up` (see
`SimScenario`).
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from lockkit.errors import LockkitError
from lockkit.lab.verify.check import Kind, check
from lockkit.lab.verify.mutants import Mutant
from lockkit.lab.verify.sim import lease
from lockkit.lab.verify.sim.run import SeedRun
from lockkit.lab.verify.sim.task import UNEXPECTED, Stopped, Violated
from lockkit.lab.verify.sim.world import Branch

__all__ = ["CHECKER", "LEASE", "Branch", "SeedOutcome", "SimScenario", "in_words",
           "simulate"]  # fmt: skip

CHECKER = "the checker: "
"""So begins a violation that only the checker of histories has found."""


def in_words(violation: str) -> str:
    """What happened, before the rule that it broke: a rule alone reads as if it held."""
    rule, _, because = violation.partition(": ")
    if not because or violation.startswith(CHECKER):
        return violation
    return f"{because}. This breaks the rule: {rule}"


@dataclass(frozen=True, slots=True)
class SimScenario:
    """What is simulated, and for how many moves."""

    name: str
    says: str
    steps: int
    set_up: Callable[[str, int, Mutant | None], SeedRun]
    sometimes: tuple[str, ...] = ()
    """What its seeds together are to reach: what never happened was not tried."""


LEASE = SimScenario(
    "lease", "clients acquire, renew, release, take over and commit", 200, lease.set_up,
    ("takeover", "lost response", "ghost", "stall", "restart"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SeedOutcome:
    """The outcome of one seed."""

    seed: str
    violation: str | None
    steps: int
    begins: int
    """So many moves set the world up, without faults; a run cannot stop at one of them."""
    faults: dict[str, int]
    reached: tuple[str, ...]
    trace_hash: str
    run: SeedRun

    def to_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed, "violations": [self.violation] if self.violation else [],
            "steps": self.steps, "faults": self.faults, "reached": list(self.reached),
            "trace_hash": self.trace_hash,
        }  # fmt: skip


def simulate(
    scenario: SimScenario, seed: int | str, *, steps: int | None = None,
    mutant: Mutant | None = None, judge: bool = True, branches: Sequence[Branch] = (),
    until: int | None = None,
) -> SeedOutcome:  # fmt: skip
    """Play one seed, and judge its history by the checker that judges real histories.

    With `until`, stop after that move. What is checked only at the end of a run is then checked
    only if the run has no further move.
    """
    moves = scenario.steps if steps is None else steps
    violation: str | None = None
    reached: tuple[str, ...] = ()
    with warnings.catch_warnings(), nullcontext() if mutant is None else mutant.planted():
        warnings.simplefilter("ignore")  # what a client warns its user of; it is in the history
        run = scenario.set_up(str(seed), moves, mutant)
        world, begins = run.world, run.world.moves
        world.until, world.branches = until, deque(branches)
        try:
            world.play(moves)
            run.end()
        except Stopped:
            pass
        except Violated as violated:
            violation = str(violated)
        except LockkitError as error:  # of the service that ends the run
            violation = str(Violated(UNEXPECTED, repr(error)))
    if judge:
        verdict = check(
            each for each in world.history()
            if each.kind != "refused" or each["instant"] not in world.taken_again
        )  # fmt: skip
        restarted = {"restart"} if any(node.life for node in world.nodes) else set()
        reached = tuple(dict.fromkeys([*verdict.reached, *sorted(world.reached | restarted)]))
        known = not (world.by_hand or world.switches)
        if violation is None and verdict.kind is Kind.INVALID and known:
            violation = f"{CHECKER}{verdict.because}"
    return SeedOutcome(
        str(seed), violation, world.moves, begins, dict(sorted(world.faults.items())), reached,
        world.trace_hash(), run,
    )  # fmt: skip
