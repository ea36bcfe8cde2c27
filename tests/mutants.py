"""Which search finds which planted mistake: a table for people, and `seeds.json` for the tests.

`python -m tests.mutants` prints the table; `--rewrite` also writes down the seeds that it found.
Each search has 20 s of processor time for each mistake. Mistakes of order are out of the reach of
property tests, which judge data; mistakes of shape out of the explorer's, which has next to none.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import shape_mutants
import test_shapes
from table_mutants import MUTANTS as TABLE_MUTANTS
from table_mutants import planted
from test_table_schedules import SEARCHES

from lockkit.lab.verify.explore import SCENARIOS as ROWS
from lockkit.lab.verify.explore import explore
from lockkit.lab.verify.mutants import LEASE_MUTANTS
from lockkit.lab.verify.sim import LEASE, SimScenario, simulate
from lockkit.lab.verify.table.scenario import SCENARIO as TABLE

SEEDS_FILE = Path(__file__).parent / "seeds.json"
BUDGET_S = 20.0
BEYOND = "beyond its bounds | | "


@dataclass(frozen=True)
class Found:
    """What the simulator needed: the scenario, the seed, its steps, and all that it played."""

    scenario: str
    seed: int
    violation: str
    steps: int
    played: int
    seconds: float


def search(
    scenario: SimScenario, mutant: Any = None,
    room: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Found | None:  # fmt: skip
    """Seeds from 1 on, until one finds a violation or the time is over."""
    began, played, seed = time.process_time(), 0, 0
    while time.process_time() - began < BUDGET_S:
        seed += 1
        with room():
            outcome = simulate(scenario, seed, mutant=mutant, judge=False)
        played += outcome.steps
        if outcome.violation:
            seconds = time.process_time() - began
            return Found(scenario.name, seed, outcome.violation, outcome.steps, played, seconds)
    return None


Row = tuple[str, str, str, Found | None, str]
"""(name, in words, what the explorer says, what the simulator found, what property tests did)."""
NO_PROPERTY = "–"


def lease_rows() -> Iterator[Row]:
    explored = {each.name: each for each in ROWS}
    for name, mutant in LEASE_MUTANTS.items():
        said = BEYOND
        if name in explored:
            row = explore(explored[name])
            said = f"{row.steps} | {row.states:,} | {row.seconds:.1f}"
        yield name, mutant.says, said, search(LEASE, mutant), NO_PROPERTY


def table_rows() -> Iterator[Row]:
    for name in TABLE_MUTANTS:
        said = BEYOND
        if name in SEARCHES:
            scene, began = SEARCHES[name].scene(), time.process_time()
            with planted(name):
                result = scene.search(SEARCHES[name].faults)
            seconds = time.process_time() - began
            said = f"{len(result.story)} | {result.states:,} | {seconds:.1f}"
        yield name, name, said, search(TABLE, room=lambda name=name: planted(name)), NO_PROPERTY


def shape_rows() -> Iterator[Row]:
    for mistake in shape_mutants.MISTAKES:
        with shape_mutants.planted(mistake):
            began = time.process_time()
            try:
                with redirect_stdout(io.StringIO()):
                    getattr(test_shapes, mistake.found_by)()
                said = "not found"
            except Exception:  # noqa: BLE001 - the falsifying example, or what it made of the test
                said = f"{time.process_time() - began:.1f} s"
            found = (_tried(each) for each in (LEASE, TABLE))
            simulated = next((each for each in found if each is not None), None)
        yield mistake.says, mistake.says, BEYOND, simulated, said


def _tried(scenario: SimScenario) -> Found | None:
    """The simulator with a function that may raise what no procedure expects."""
    try:
        return search(scenario)
    except Exception:  # noqa: BLE001 - it noticed, and gave no verdict: not counted as found
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rewrite", action="store_true", help="write tests/seeds.json")
    args = parser.parse_args()
    seeds = json.loads(SEEDS_FILE.read_text())
    print("| mistake | explorer: steps | states | s | simulator: seeds | steps | of all | s "
          "| property tests |")  # fmt: skip
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for rows in (lease_rows(), table_rows(), shape_rows()):
        for name, says, explored, found, properties in rows:
            simulated = "not found | | |"
            if found is not None:
                simulated = (
                    f"{found.seed:,} | {found.steps} | {found.played:,} | {found.seconds:.1f} |"
                )
                if properties == NO_PROPERTY:
                    seeds["mutants"][name] = {
                        "scenario": found.scenario, "seed": found.seed, "steps": found.steps,
                        "violation": found.violation.partition(":")[0],
                    }  # fmt: skip
            print(f"| {says} | {explored} | {simulated} {properties} |", flush=True)
    if args.rewrite:
        SEEDS_FILE.write_text(json.dumps(seeds, indent=1) + "\n")


if __name__ == "__main__":
    main()
