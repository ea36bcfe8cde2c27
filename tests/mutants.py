"""Which search finds which planted mistake: a table for people, and `seeds.json` for the tests.

`python -m tests.mutants` prints the table; `--rewrite` also looks for the seeds anew. Each search
has 12 s of processor time for each mistake.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lockkit.explore import SCENARIOS as ROWS
from lockkit.explore import explore
from lockkit.mutants import LEASE_MUTANTS
from lockkit.sim import LEASE, Outcome, simulate

SEEDS_FILE = Path(__file__).parent / "seeds.json"
BUDGET_S = 12.0


@dataclass(frozen=True)
class Found:
    """What the simulator needed: the seed, its steps, and all that it played."""

    seed: int
    violation: str
    steps: int
    played: int
    seconds: float


def search(play: Callable[[int], Outcome], budget_s: float = BUDGET_S) -> Found | None:
    """Seeds from 1 on, until one finds a violation or the time is over."""
    began, played, seed = time.process_time(), 0, 0
    while time.process_time() - began < budget_s:
        seed += 1
        outcome = play(seed)
        played += outcome.steps
        if outcome.violation:
            seconds = time.process_time() - began
            return Found(seed, outcome.violation, outcome.steps, played, seconds)
    return None


def lease_rows() -> Iterator[tuple[str, str, str, Found | None]]:
    """(name, in words, what the explorer says, what the simulator found)."""
    explored = {each.name: each for each in ROWS}
    for name, mutant in LEASE_MUTANTS.items():
        said = "not in its world | | "
        if name in explored:
            row = explore(explored[name])
            said = f"{row.steps} | {row.states:,} | {row.seconds:.1f}"
        yield name, mutant.says, said, search(
            lambda seed, mutant=mutant: simulate(LEASE, seed, mutant=mutant, judge=False)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rewrite", action="store_true", help="write tests/seeds.json")
    args = parser.parse_args()
    seeds = json.loads(SEEDS_FILE.read_text())
    print("| mistake | explorer: steps | states | s | simulator: seed | steps | of all | s |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name, says, explored, found in lease_rows():
        simulated = "not found | | |"
        if found is not None:
            simulated = f"{found.seed} | {found.steps} | {found.played:,} | {found.seconds:.1f} |"
            seeds["mutants"][name] = {
                "scenario": LEASE.name, "seed": found.seed, "steps": found.steps,
                "violation": found.violation.partition(":")[0],
            }  # fmt: skip
        print(f"| {says} | {explored} | {simulated}", flush=True)
    if args.rewrite:
        lines = json.dumps(seeds, indent=1)
        SEEDS_FILE.write_text(lines + "\n")


if __name__ == "__main__":
    main()
