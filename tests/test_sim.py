"""The simulator: the library under a seed, right in every world, and wrong once a rule is off.

`tests/seeds.json` holds, for each planted mistake, a seed that finds it, and seeds that once found
a mistake of ours. After a change of the simulator a seed plays something else:
`python -m tests.mutants --rewrite` looks for them anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from evidence import shows_its_harm
from suite_plugin import rest_in_soak
from table_mutants import MUTANTS as TABLE_MUTANTS
from table_mutants import planted
from test_table_schedules import SEARCHES
from went_wrong import went_wrong

from lockkit.cli.main import main
from lockkit.lab.verify.check import Kind, check
from lockkit.lab.verify.explore import SCENARIOS as EXPLORED
from lockkit.lab.verify.mutants import LEASE_MUTANTS
from lockkit.lab.verify.sim import LEASE, SeedOutcome, simulate
from lockkit.lab.verify.sim.fault_profile import OF_NODES, OF_WRITES, FaultKind
from lockkit.lab.verify.table.scenario import SCENARIO as TABLE
from lockkit.lab.verify.wrong_rules import LEASE as WRONG
from lockkit.lab.verify.wrong_rules import RIGHT
from lockkit.protocol.policy import Policy

SEEDS: dict[str, Any] = json.loads((Path(__file__).parent / "seeds.json").read_text())
FOUND_BY: dict[str, dict[str, Any]] = SEEDS["mutants"]
ONCE_WRONG: list[dict[str, Any]] = SEEDS["once wrong"]
LEASE_SEEDS, LEASE_SEEDS_MANY = 200, 5_000


def seed_of(entry: dict[str, Any]) -> str:
    return f"{entry['scenario']} {entry['seed']}"


# --- every world ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def leases() -> list[SeedOutcome]:
    return [simulate(LEASE, seed) for seed in range(1, LEASE_SEEDS + 1)]


@pytest.mark.xdist_group("worlds of the lease")
def test_the_lease_is_right_in_two_hundred_worlds(leases: list[SeedOutcome]) -> None:
    wrong = went_wrong(LEASE, leases)
    assert not wrong
    assert sum(each.steps for each in leases) > 180 * LEASE_SEEDS


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_lease_is_right_in_five_thousand_worlds() -> None:
    plays = (simulate(LEASE, seed) for seed in range(1, LEASE_SEEDS_MANY + 1))
    assert not went_wrong(LEASE, plays)


@pytest.mark.xdist_group("worlds of the lease")
def test_the_worlds_of_the_lease_reach_every_case_and_every_fault(
    leases: list[SeedOutcome]
) -> None:
    reached = Counter(name for each in leases for name in each.reached)
    assert all(reached[each] > LEASE_SEEDS // 20 for each in LEASE.sometimes), reached
    faults = Counter[str]()
    for each in leases:
        faults.update(each.faults)
    assert set(faults) == set(FaultKind) == {*OF_WRITES, *OF_NODES, FaultKind.BLIND}
    assert len({each.run.world.profile.name for each in leases}) == 4
    assert {each.run.world.uniform for each in leases} == {False, True}


def test_the_same_seed_plays_the_same_again() -> None:
    one, again, other = (simulate(LEASE, seed) for seed in (7, 7, 8))
    assert one.to_json() == again.to_json()
    assert one.run.world.history() == again.run.world.history()
    assert one.trace_hash != other.trace_hash


@pytest.mark.parametrize("scenario", rest_in_soak(["lease", "table"], "lease"))
def test_another_process_replays_the_same_run(scenario: str) -> None:
    """Also where strings hash otherwise, and sets are in another order."""
    command = [sys.executable, "-m", "lockkit", "simulate", "--scenario", scenario]
    traces = set()
    for hashing in ("1", "2"):
        said = subprocess.run(
            [*command, "--seeds", "1..10", "--json"], capture_output=True, text=True, check=True,
            timeout=60, env={**os.environ, "PYTHONHASHSEED": hashing},
        )  # fmt: skip
        traces.add(json.loads(said.stdout)["trace_hash"])
    assert len(traces) == 1


def test_the_checker_of_real_runs_judges_a_simulated_history() -> None:
    outcome = next(each for seed in range(1, 50)
                   if "takeover" in (each := simulate(LEASE, seed)).reached)  # fmt: skip
    verdict = check(outcome.run.world.history())
    assert verdict.kind is Kind.VALID, verdict.because
    assert "never two holders at once" in verdict.because


@pytest.mark.parametrize("entry", ONCE_WRONG, ids=seed_of)
def test_a_seed_that_once_found_a_mistake_of_ours_finds_none(entry: dict[str, Any]) -> None:
    outcome = simulate(LEASE, entry["seed"])
    assert outcome.violation is None, entry["was"]


# --- planted mistakes -----------------------------------------------------------------------------


def found_again(entry: dict[str, Any], outcome: SeedOutcome) -> None:
    assert outcome.violation is not None
    assert outcome.violation.startswith(entry["violation"])
    assert outcome.steps == entry["steps"]


@pytest.mark.parametrize("name", LEASE_MUTANTS)
def test_the_simulator_finds_each_mistake_of_the_lease_and_nothing_without(name: str) -> None:
    entry = FOUND_BY[name]
    outcome = simulate(LEASE, entry["seed"], mutant=LEASE_MUTANTS[name])
    found_again(entry, outcome)
    assert shows_its_harm(outcome, "lease")
    assert simulate(LEASE, entry["seed"]).violation is None


@cache
def of_the_right_table(seed: int) -> SeedOutcome:
    return simulate(TABLE, seed)


@pytest.mark.xdist_group("worlds of the table")
@pytest.mark.parametrize("name", [each for each in TABLE_MUTANTS if each in FOUND_BY])
def test_the_simulator_finds_a_mistake_of_the_table_and_nothing_without(name: str) -> None:
    entry = FOUND_BY[name]
    with planted(name):
        outcome = simulate(TABLE, entry["seed"])
    found_again(entry, outcome)
    assert of_the_right_table(entry["seed"]).violation is None


def test_every_mistake_is_found_by_one_search_and_nine_of_ten_by_the_simulator() -> None:
    every = {*LEASE_MUTANTS, *TABLE_MUTANTS}
    explored = {*SEARCHES, *(each.name for each in EXPLORED if each.breaks is not None)}
    assert len(every) >= 40
    assert every == explored | FOUND_BY.keys()
    assert len(FOUND_BY.keys() & every) >= 0.9 * len(every)


def test_every_rule_is_switched_off_by_some_mutant() -> None:
    right = RIGHT | asdict(Policy())
    off = [(rule, each.off[rule]) for each in LEASE_MUTANTS.values() for rule in each.off]
    assert {rule for rule, value in off if value != right[rule]} == right.keys()
    assert {each for each in off if each[0] in RIGHT and each[0] != "fence"} == WRONG.keys()


# --- the command ----------------------------------------------------------------------------------


def simulated(
    capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, dict[str, Any], str]:
    code = main(["simulate", *arguments, "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out), said.err


def test_the_command_prints_the_same_twice_except_for_timings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (code, one, _), (_, again, _) = (simulated(capsys, "--seeds", "1..40") for _ in range(2))
    for each in (one, again):
        assert each.pop("seconds") >= 0
        each.pop("steps_per_s")
    assert code == 0
    assert one == again
    assert {"violations", "steps", "faults", "reached", "trace_hash"} <= set(one)
    assert one["never"] == []


def test_the_command_prints_the_seed_of_a_violation(capsys: pytest.CaptureFixture[str]) -> None:
    entry = FOUND_BY["drift"]
    code, said, errors = simulated(capsys, "--seeds", str(entry["seed"]), "--mutant", "drift")
    assert code == 1
    assert [each["seed"] for each in said["violations"]] == [str(entry["seed"])]
    assert f"seed {entry['seed']}, after {entry['steps']} steps: {entry['violation']}" in errors


def test_the_command_plays_whole_transactions(capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = simulated(capsys, "--scenario", "table", "--seeds", "1..3")
    assert (code, said["violations"]) == (0, [])
    assert said["reached"]["rollback"] > 0


def test_a_run_without_events_is_reported_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--seeds", "1..2", "--steps", "3"]) == 0
    assert "not exercised: takeover, " in capsys.readouterr().out


def test_the_command_writes_a_history_that_check_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.jsonl"
    assert main(["simulate", "--seeds", "3", "--history", str(file)]) == 0
    assert main(["check", str(file)]) == 0
    assert "VALID" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seeds", "9..1"], "not a range"),
        (["--seeds", "some"], "not a range"),
        (["--scenario", "tea"], "there are: lease"),
        (["--moment", "clean:1@30"], "no scenario 'clean'; there are: lease"),
        (["--mutant", "tea"], "there are: count_from_send"),
        (["--steps", "0"], "at least 1"),
    ],
)
def test_the_error_of_a_wrong_call_lists_what_exists(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments]) == 64
    assert says in capsys.readouterr().err
