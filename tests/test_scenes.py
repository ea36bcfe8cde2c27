"""The patterns in the simulator: right in every world, wrong once a rule is off, the same again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

import pytest
from evidence import shows_its_harm
from first_seeds import FIRST, StaleSeed, catalogues, found_by
from went_wrong import went_wrong

from lockkit.cli.main import main
from lockkit.lab.verify.scenarios import SCENES
from lockkit.lab.verify.sim import SeedOutcome, SimScenario, simulate
from lockkit.protocol.policy import Policy
from lockkit.recipes.queue import QueuePolicy

REACHED_WITHIN = 8


@dataclass(frozen=True)
class Played:
    """A scene, and how much of it is played here."""

    seeds: int
    rules: type[Any] | None
    steps: int
    """Of a seed, at least, on average: else nothing much happened."""
    settings: frozenset[str] = frozenset()
    """Fields of its rules that are no decision here."""


PLAYED = {
    "wal": Played(20, None, 500),
    "queue": Played(20, QueuePolicy, 400, frozenset({"recent_max"})),
    "striped": Played(30, None, 200),
    "election": Played(60, Policy, 250),
    "statelock": Played(100, None, 200),
    "group": Played(12, None, 900),
    "shared": Played(30, None, 200),
}
REACHED_BY = {"group": (36,)}
"""Seeds that reach what few do: they are played next, then all. One that reaches nothing any more
costs time only."""
EACH = [pytest.param(name, marks=pytest.mark.xdist_group(f"worlds of {name}")) for name in PLAYED]
MISTAKES = [(name, each) for name in PLAYED for each in SCENES[name].MUTANTS]


@pytest.fixture(scope="module")
def worlds() -> Iterator[dict[str, list[SeedOutcome]]]:
    """By scene, each played when it is first asked for."""
    yield {}


def played(name: str, worlds: dict[str, list[SeedOutcome]]) -> list[SeedOutcome]:
    if name not in worlds:
        seeds = range(1, PLAYED[name].seeds + 1)
        worlds[name] = [simulate(SCENES[name].SCENARIO, seed) for seed in seeds]
    return worlds[name]


def test_every_scene_is_played_here() -> None:
    assert set(SCENES) == set(PLAYED)


@pytest.mark.parametrize("name", EACH)
def test_a_scene_is_right_in_every_world(name: str, worlds: dict[str, list[SeedOutcome]]) -> None:
    outcomes = played(name, worlds)
    assert not went_wrong(SCENES[name].SCENARIO, outcomes)
    assert sum(each.steps for each in outcomes) > PLAYED[name].steps * len(outcomes)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", PLAYED)
def test_a_scene_is_right_in_a_thousand_worlds(name: str) -> None:
    plays = (simulate(SCENES[name].SCENARIO, seed) for seed in range(1, 1_001))
    assert not went_wrong(SCENES[name].SCENARIO, plays)


@pytest.mark.parametrize("name", EACH)
def test_the_worlds_of_a_scene_reach_every_case(
    name: str, worlds: dict[str, list[SeedOutcome]]
) -> None:
    scenario, first = SCENES[name].SCENARIO, played(name, worlds)
    outcomes = list(first)
    reached = Counter(what for each in outcomes for what in each.reached)
    later = range(len(outcomes) + 1, REACHED_WITHIN * len(outcomes))
    for seed in (*REACHED_BY.get(name, ()), *later):
        if all(reached[each] for each in scenario.sometimes):
            break
        outcomes.append(simulate(scenario, seed))  # a case that few worlds reach
        reached.update(outcomes[-1].reached)
    assert all(reached[each] for each in scenario.sometimes), reached
    assert not went_wrong(scenario, outcomes[len(first):])
    assert len({each.run.world.profile.name for each in outcomes}) > 1


@pytest.mark.parametrize("name", EACH)
def test_the_same_seed_plays_the_same_again(
    name: str, worlds: dict[str, list[SeedOutcome]]
) -> None:
    first = played(name, worlds)[6]
    again, other = (simulate(SCENES[name].SCENARIO, seed) for seed in (7, 8))
    assert again.to_json() == first.to_json()
    assert again.run.world.history() == first.run.world.history()
    assert again.trace_hash != other.trace_hash


@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_each_mistake_is_found_in_a_world_that_is_right_without(name: str, mistake: str) -> None:
    scenario, mutant = SCENES[name].SCENARIO, SCENES[name].MUTANTS[mistake]
    found = found_by(scenario, mutant)
    assert found is not None
    assert shows_its_harm(found, name)
    assert simulate(scenario, found.seed).violation is None


def test_a_first_seed_is_of_a_mistake_that_there_is() -> None:
    for scenario, mutants in catalogues():
        assert FIRST[scenario.name].keys() <= mutants.keys()


def test_a_search_names_the_seed_that_finds_a_mistake_where_its_first_one_does_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played: list[int] = []

    def simulated(_scenario: SimScenario, seed: int, **_: Any) -> Any:
        played.append(seed)
        return SimpleNamespace(seed=seed, violation="broken" if seed == 3 else None)

    wal = SCENES["wal"]
    monkeypatch.setattr("first_seeds.simulate", simulated)
    monkeypatch.setitem(FIRST["wal"], "voids", 8)
    with pytest.warns(StaleSeed, match="'voids' is found by seed 3, and no more by 8"):
        found_by(wal.SCENARIO, wal.MUTANTS["voids"])
    assert played == [8, 1, 2, 3]


@pytest.mark.parametrize("name", PLAYED)
def test_every_choice_of_a_policy_is_wrong_in_some_mistake(name: str) -> None:
    off = {field for each in SCENES[name].MUTANTS.values() for field in each.policy}
    rules = PLAYED[name].rules
    choices = set() if rules is None else {each.name for each in fields(rules)}
    assert off == choices - PLAYED[name].settings


@pytest.mark.parametrize(
    ("name", "mistake", "because"),
    [
        ("queue", "not fifo", "first claims come in the order of the pushes"),
        ("striped", "once", "nobody waits in a circle"),
    ],
)
def test_simulate_exits_with_0_for_a_scenario_and_with_1_for_a_mistake_in_it(
    name: str, mistake: str, because: str, capsys: pytest.CaptureFixture[str]
) -> None:
    play = ["simulate", "--scenario", name, "--seeds", "1..3"]
    assert main(play) == 0
    assert main([*play, "--mutant", mistake]) == 1
    assert because in capsys.readouterr().err
