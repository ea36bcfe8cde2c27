"""The scenario `late-table`: writers that sleep until others restored or archived; mistakes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from went_wrong import went_wrong

from lockkit.lab.verify.planting import planted
from lockkit.lab.verify.sim import SeedOutcome, simulate
from lockkit.lab.verify.table.late import LATE, SCENARIO
from lockkit.lab.verify.table.restorer import AWAY
from lockkit.runtime import Procedure
from lockkit.runtime.proven import create, delete
from lockkit.table.occ import late

pytestmark = pytest.mark.xdist_group("worlds of late writers")
"""One worker plays a seed once without a mistake."""


def creates_it(_names: Any, _decided: Any, key: str, body: bytes) -> Procedure[Any]:
    return (yield from create(key, body))


def looks_afterwards_only(names: Any, decided: Any, key: str, body: bytes) -> Procedure[Any]:
    return (yield from late.create_and_look(names, decided, key, body))


def nothing(*_: Any) -> Procedure[None]:
    yield from ()


def stays(key: str, version: str | None = None) -> Procedure[None]:
    if version is None:
        yield from delete(key)


def never_archived(_taken: Any) -> Procedure[None]:
    yield from ()


_L = "lockkit.table.occ.late"
MISTAKES: dict[str, tuple[dict[str, Callable[..., Any]], int, str]] = {
    "a late writer does not look": ({f"{_L}:publish_late": creates_it}, 3, LATE),
    "a late writer looks, and leaves its file": (
        {f"{_L}:publish_late": looks_afterwards_only, f"{_L}:leave": nothing}, 3, LATE),
    "a late file of what a restore took back stays": (
        {f"{_L}:publish_late": looks_afterwards_only, f"{_L}:delete": stays}, 59, LATE),
    "archiving does not wait for its writers": (
        {"lockkit.table.services.archive:is_settled": lambda *_: True}, 29, LATE),
    "an interrupted writer does not look into the archive": (
        {f"{_L}:archived_as": never_archived}, 59, "a refused commit is never visible"),
    "a restore leaves the archive's next number to an archiver that sleeps": (
        {"lockkit.table.services.restore:take_next": nothing}, 84, AWAY),
}  # fmt: skip
"""What is replaced, by what, the seed that finds it, and the rule that breaks."""
QUICK = ("a late writer does not look", "a late writer looks, and leaves its file")


@cache
def of_the_right_code(seed: int) -> SeedOutcome:
    return simulate(SCENARIO, seed)


@pytest.mark.parametrize("seed", [3, 13, 59])
def test_a_late_writer_leaves_no_file_and_says_what_became_of_its_commit(seed: int) -> None:
    """Seed 13 found that an archiver which dies before its first manifest closed the table, and
    seed 59 an interrupted writer that was told that its archived commit had been taken back.
    """
    outcome = of_the_right_code(seed)
    assert outcome.violation is None and "roll-forward" in outcome.run.world.reached


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_it_is_right_in_a_hundred_worlds() -> None:
    assert not went_wrong(SCENARIO, (simulate(SCENARIO, seed) for seed in range(1, 101)))


@pytest.mark.parametrize("name", [
    pytest.param(each, marks=() if each in QUICK else pytest.mark.soak) for each in MISTAKES
])  # fmt: skip
def test_the_scenario_finds_a_mistake_of_a_late_publication(name: str) -> None:
    plants, seed, breaks = MISTAKES[name]
    with planted(plants):
        outcome = simulate(SCENARIO, seed, judge=False)
    assert outcome.violation is not None and outcome.violation.startswith(breaks)
    assert of_the_right_code(seed).violation is None
