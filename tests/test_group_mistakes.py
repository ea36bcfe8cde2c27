"""Each planted mistake of group commit in a table is found by a seed that is clean without it."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from group_mutants import LARGE, MUTANTS, SCENARIO

from lockkit.lab.verify.mutants import Mutant
from lockkit.lab.verify.sim import SeedOutcome, simulate

FIRST, LAST = 1, 90
FOUND_BY = {"nothing at once": 356, "tail given up": 2, "begun as known": 81, "begun late": 17,
            "partitions": 106, "completed ignored": 9, "unlisted": 19,
            "carried blindly": 22}
"""A seed that found what is rarely met, or soon: it is played first."""
OVERTAKEN = 1060
STEADY = (2, 17, 206)
QUICK = ("unlisted tail", "own files", "nothing at once", "reader's tail", "tail given up",
         "acknowledged", "unpublished", "begun as known", "unlisted")  # fmt: skip


pytestmark = pytest.mark.xdist_group("worlds of group commit")
"""One worker plays a seed once without a mistake."""


@cache
def of_the_right_code(seed: int | str) -> SeedOutcome:
    return simulate(SCENARIO, seed)


def is_found(name: str) -> int | str | None:
    """The first seed in which it breaks something."""
    plays = (simulate(SCENARIO, seed, mutant=MUTANTS[name], judge=False)
             for seed in (FOUND_BY.get(name, FIRST), *range(FIRST, LAST + 1)))  # fmt: skip
    return next((each.seed for each in plays if each.violation), None)


@pytest.mark.parametrize("name", [
    pytest.param(each, marks=() if each in QUICK else pytest.mark.soak) for each in MUTANTS
])  # fmt: skip
def test_a_mistake_is_found_by_a_seed_that_is_clean_without_it(name: str) -> None:
    seed = is_found(name)
    assert seed is not None
    assert of_the_right_code(seed).violation is None


def test_commits_that_are_too_large_for_the_fence_break_nothing() -> None:
    seed, large = FOUND_BY["completed ignored"], Mutant("large", "each commit is large", LARGE)
    assert simulate(SCENARIO, seed, mutant=large).violation is None


def test_a_clustering_that_waits_for_earlier_commits_is_not_overtaken_again_and_again() -> None:
    """By writers whose clocks are ahead of its own."""
    assert of_the_right_code(OVERTAKEN).violation is None


def test_worlds_reach_rewrites_without_a_listing_and_those_that_have_nothing_to_do() -> None:
    reached = Counter(what for seed in STEADY for what in of_the_right_code(seed).reached)
    assert min(reached["unlisted commit"], reached["nothing to do unlisted"]) >= 2, reached
