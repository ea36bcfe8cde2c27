"""The scenario `mor`: each planted mistake is found by a seed that is clean without it."""

from __future__ import annotations

from functools import cache

import pytest
from first_seeds import CRASH, first_seed
from went_wrong import went_wrong

from lockkit.lab.verify.scenarios.mor import MUTANTS, SCENARIO
from lockkit.lab.verify.sim import SeedOutcome, simulate
from lockkit.lab.verify.table.merged_judge import LogWrite, applied


@cache
def of_the_right_code(seed: int) -> SeedOutcome:
    return simulate(SCENARIO, seed)


def test_the_judge_applies_log_files_by_instant_and_by_value() -> None:
    first, second = LogWrite("1", "9", "a", "x", 5), LogWrite("2", "8", "a", "y", 5)
    gone = LogWrite("3", "7", "a", None, 3)
    assert applied({}, [second, first], True) == {"a": ("y", 5)} == applied({}, [first], False) | {
        "a": ("y", 5)
    }
    assert applied({}, [gone, first, second], False) == {}
    assert applied({}, [gone, first], True) == {"a": ("x", 5)}
    assert applied({"a": ("old", 9)}, [first], True) == {"a": ("old", 9)}


@pytest.mark.xdist_group("mor")
@pytest.mark.parametrize("name", MUTANTS)
def test_each_mistake_of_a_merge_on_read_table_is_found_by_a_seed_that_is_clean_without_it(
    name: str,
) -> None:
    seed = first_seed(SCENARIO, MUTANTS[name])
    found = simulate(SCENARIO, seed, mutant=MUTANTS[name], judge=False).violation
    assert found is not None and not found.startswith(CRASH), found
    assert not went_wrong(SCENARIO, [of_the_right_code(seed)])


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_merge_on_read_tables_are_right_in_a_hundred_worlds() -> None:
    assert not went_wrong(SCENARIO, (simulate(SCENARIO, seed) for seed in range(1, 101)))
