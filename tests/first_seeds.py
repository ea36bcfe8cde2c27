"""The seed that is played first for a planted mistake: one that finds what few do, or soon.

`python -m tests.first_seeds` plays them, and renews those in `first_seeds.json` that find nothing
any more (some minutes). A change of the simulator, or of a protocol that it plays, moves seeds. A
test then finds the mistake by another one, after a search of up to a minute of processor time, and
warns.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import group_mutants

from lockkit.lab.verify.mutants import Mutant
from lockkit.lab.verify.scenarios import SCENES, mor
from lockkit.lab.verify.sim import SeedOutcome, SimScenario, simulate

FILE = Path(__file__).with_suffix(".json")
FIRST: dict[str, dict[str, int]] = json.loads(FILE.read_text())
"""By scenario and mistake; of one that is not named, seed 1 is played first."""
WITHIN = 400
CRASH = "no client ends by an unexpected error"


class StaleSeed(UserWarning):
    """The first seed of a mistake finds it no more."""


def first_seed(scenario: SimScenario, mutant: Mutant) -> int:
    return FIRST[scenario.name].get(mutant.name, 1)


def found_by(scenario: SimScenario, mutant: Mutant, within: int = WITHIN) -> SeedOutcome | None:
    """The first seed's world, or the first one after it, that the mistake breaks."""
    first = first_seed(scenario, mutant)
    for seed in (first, *range(1, within)):
        found = simulate(scenario, seed, mutant=mutant, judge=False)
        if found.violation:
            if seed != first:
                warnings.warn(StaleSeed(
                    f"{scenario.name}: {mutant.name!r} is found by seed {seed}, and no more by "
                    f"{first}; run: python -m tests.first_seeds"
                ), stacklevel=2)  # fmt: skip
            return found
    return None


def finds(scenario: SimScenario, mutant: Mutant, seed: int) -> bool:
    """Whether the mistake breaks this seed's world, which is right without it."""
    found = simulate(scenario, seed, mutant=mutant, judge=False).violation
    if not found or found.startswith(CRASH):
        return False
    return not simulate(scenario, seed).violation


def catalogues() -> Iterator[tuple[SimScenario, Mapping[str, Mutant]]]:
    """The scenarios whose mistakes have first seeds."""
    yield from ((each.SCENARIO, each.MUTANTS) for each in SCENES.values())
    yield group_mutants.SCENARIO, group_mutants.MUTANTS
    yield mor.SCENARIO, mor.MUTANTS


def main() -> int:
    """Print what changes, and write it down at once; 1 if no seed finds a mistake."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these scenarios or mistakes (default: all)")
    wanted, missed = {*parser.parse_args().names}, 0
    for scenario, mutants in catalogues():
        for mutant in mutants.values():
            if wanted and not wanted & {scenario.name, mutant.name}:
                continue
            first = first_seed(scenario, mutant)
            seeds = (each for each in (first, *range(1, WITHIN)) if finds(scenario, mutant, each))
            seed = next(seeds, None)
            missed += seed is None
            if seed != first:
                print(f"{scenario.name}: {mutant.name}: {first} -> {seed}", flush=True)
            if seed is not None and seed != first:
                FIRST[scenario.name][mutant.name] = seed
                FILE.write_text(json.dumps(FIRST, indent=1) + "\n")
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
