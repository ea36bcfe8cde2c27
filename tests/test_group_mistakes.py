"""Each planted mistake of group commit in a table is found by a seed that is clean without it."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from first_seeds import found_by
from group_mutants import LARGE, MUTANTS, SCENARIO

from lockkit.lab.verify.mutants import Mutant
from lockkit.lab.verify.sim import SeedOutcome, simulate

WITHIN = 90
OVERTAKEN, WIDE = 1060, 9
STEADY = (4, 7, 22)
QUICK = ("unlisted tail", "own files", "nothing at once", "reader's tail", "tail given up",
         "acknowledged", "unpublished", "unlisted", "begun as known")  # fmt: skip


pytestmark = pytest.mark.xdist_group("worlds of group commit")
"""One worker plays a seed once without a mistake."""


@cache
def of_the_right_code(seed: int | str) -> SeedOutcome:
    return simulate(SCENARIO, seed)


@pytest.mark.parametrize("name", [
    pytest.param(each, marks=() if each in QUICK else pytest.mark.soak) for each in MUTANTS
])  # fmt: skip
def test_a_mistake_is_found_by_a_seed_that_is_clean_without_it(name: str) -> None:
    found = found_by(SCENARIO, MUTANTS[name], WITHIN)
    assert found is not None
    assert of_the_right_code(found.seed).violation is None


def test_commits_that_are_too_large_for_the_fence_break_nothing() -> None:
    large = Mutant("large", "each commit is large", LARGE)
    assert simulate(SCENARIO, WIDE, mutant=large).violation is None


def test_a_clustering_that_waits_for_earlier_commits_is_not_overtaken_again_and_again() -> None:
    """By writers whose clocks are ahead of its own."""
    assert of_the_right_code(OVERTAKEN).violation is None


def test_worlds_reach_rewrites_without_a_listing_and_those_that_have_nothing_to_do() -> None:
    reached = Counter(what for seed in STEADY for what in of_the_right_code(seed).reached)
    assert min(reached["unlisted commit"], reached["nothing to do unlisted"]) >= 2, reached
