"""The scenario `restore-table`: savepoints and restores among writers and services; mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from went_wrong import went_wrong

from lockkit.lab.verify.planting import planted
from lockkit.lab.verify.sim import simulate
from lockkit.lab.verify.table.restorer import SCENARIO
from lockkit.runtime import Procedure
from lockkit.runtime.proven import create


def commit_stays(*_: Any, **__: Any) -> Procedure[None]:
    yield from ()


def looks_no_more(config: Any, instant: str, _plan: Any, _held: Any) -> Procedure[None]:
    yield from create(config.names.inflight(instant, "restore"), b"")


def whatever_is_pending(*_: Any) -> None:
    pass


_R = "lockkit.table.services.restore"
MISTAKES: dict[str, tuple[dict[str, Callable[..., Any]], int, str]] = {
    "a commit without its files stays": (
        {f"{_R}:keep_name": commit_stays}, 2, "Hudi's readers"),
    "a restore does not look a second time": (
        {f"{_R}:_refuse_news": looks_no_more}, 69, "a restore takes back the newest"),
    "a restore begins beside pending commits": (
        {f"{_R}:_refuse_pending": whatever_is_pending, f"{_R}:_refuse_news": looks_no_more}, 1,
        "a restore takes back the newest"),
}  # fmt: skip
"""What is replaced, by what, the seed that finds it, and the rule that breaks."""
QUICK = ("a commit without its files stays",)


@pytest.mark.parametrize("seed", [2])
def test_nothing_that_a_restore_took_back_comes_back(seed: int) -> None:
    """A writer sleeps after its decision, another one commits, and an operator restores."""
    outcome = simulate(SCENARIO, seed)
    assert outcome.violation is None and "restore" in outcome.run.world.reached


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_restored_tables_are_right_in_a_hundred_worlds() -> None:
    assert not went_wrong(SCENARIO, (simulate(SCENARIO, seed) for seed in range(1, 101)))


@pytest.mark.parametrize("name", [
    pytest.param(each, marks=() if each in QUICK else pytest.mark.soak) for each in MISTAKES
])  # fmt: skip
def test_the_scenario_finds_a_mistake_of_a_restore(name: str) -> None:
    plants, seed, breaks = MISTAKES[name]
    with planted(plants):
        outcome = simulate(SCENARIO, seed, judge=False)
    assert outcome.violation is not None and outcome.violation.startswith(breaks)
    assert simulate(SCENARIO, seed, judge=False).violation is None
