"""The specification in TLA+ says what the code does: TLC and the explorer find the same.

`LOCKKIT_REWRITE=1 pytest tests/test_spec.py` writes the configurations of tests/spec afresh.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, fields, replace
from enum import Enum
from pathlib import Path

import pytest
import tlc

from lockkit.lab.verify.explore import SCENARIOS, SearchScenario, explore
from lockkit.lab.verify.explore.parts import Bounds, ExplorerFault
from lockkit.lab.verify.explore.rows import OBSERVED, STORE, WALL
from lockkit.lab.verify.mutants import Invariant
from lockkit.lab.verify.wrong_rules import RIGHT
from lockkit.protocol.policy import Policy

ALONE = Bounds(acquires=(2, 0), tries=(2, 0), renewals=(1, 0), faults=1, gives_up=True)
UNRENEWED = Bounds(tries=(1, 1), renewals=(0, 0), faults=1, gives_up=True)
COMMITTING = Bounds(tries=(1, 1), renewals=(0, 0), commits=(1, 1))
CRASHING = Bounds(tries=(1, 1), renewals=(0, 0), faults=1, kinds=frozenset({ExplorerFault.CRASH}))

# Small enough for every day: TLC is some thirty times as slow as the explorer.
CORRECT = [
    SearchScenario("correct", "", STORE, replace(UNRENEWED, spread=1)),
    SearchScenario("correct, wall", "", WALL, replace(UNRENEWED, offsets=(0, 1))),
    SearchScenario("correct, observed", "", OBSERVED, replace(UNRENEWED, offsets=(0, 3))),
    SearchScenario("correct, alone", "", STORE, ALONE),
    SearchScenario("correct, commit", "", STORE, COMMITTING),
    SearchScenario("correct, crash", "", replace(STORE, slack_ms=0), CRASHING),
]
MUTANTS = [each for each in SCENARIOS if each.breaks is not None]
NOT_SPECIFIED = {"margin_ms", "raises"}
"""`margin_ms` rounds to nothing here. Only the explorer has the renewal that raises an epoch."""
SPECIFIED = [each for each in Invariant if each is not Invariant.NOTHING_LEFT]
"""That one is the simulator's: no acquire of the specification ends without the lock."""
WIDTH = 100
TEXT = tlc.SPEC.read_text(encoding="utf-8")


def name(scenario: SearchScenario) -> str:
    return re.sub(r"\W+", "_", scenario.name)


def path(scenario: SearchScenario) -> Path:
    return tlc.SPEC.parent / f"{name(scenario)}.cfg"


def value(of: object) -> str:
    match of:
        case bool():
            return str(of).upper()
        case Enum():
            return f'"{of.name}"'
        case frozenset():
            there = (each for each in of if each is not Invariant.NOTHING_LEFT)
            return f"{{{', '.join(sorted(map(value, there)))}}}"
        case _:
            return str(of)


def constants(scenario: SearchScenario) -> dict[str, str]:
    """All fields of the rules and the bounds that the specification has."""
    given: dict[str, str] = {}
    for rule, of in (scenario.rules | asdict(scenario.bounds)).items():
        sequence = isinstance(of, tuple)
        given[rule] = f"<- T{''.join(map(str, of))}" if sequence else f"= {value(of)}"
    return {field: said for field, said in given.items() if field not in NOT_SPECIFIED}


def configuration(scenario: SearchScenario) -> str:
    what = scenario.off or "every rule on: nothing breaks"
    lines = [f"\\* {what}", "SPECIFICATION Spec", "CHECK_DEADLOCK FALSE", "CONSTANTS"]
    line = "    NONE = NONE"
    for field, given in constants(scenario).items():
        if len(line) + len(field) + len(given) > WIDTH:
            lines.append(line)
            line = "  "
        line += f"  {field} {given}"
    invariants = " ".join(each.name for each in SPECIFIED)
    return "\n".join([*lines, line, "INVARIANTS", f"    {invariants}"]) + "\n"


# --- the text -----------------------------------------------------------------------------------


def test_the_specification_has_the_codes_constants_and_invariants() -> None:
    declared = re.search(r"\nCONSTANTS\n(.*?)\n\n", TEXT, re.DOTALL)
    assert declared
    names = set(re.findall(r"\b\w+\b", re.sub(r"\\\*.*", "", declared[1])))
    code = RIGHT.keys() | {field.name for each in (Policy, Bounds) for field in fields(each)}
    assert names == (code - NOT_SPECIFIED) | {"NONE"}
    for invariant in SPECIFIED:
        assert re.search(rf"^{invariant.name} ==", TEXT, re.MULTILINE), invariant
    for fault in ExplorerFault:
        assert f'May("{fault.name}")' in TEXT, fault


@pytest.mark.parametrize("scenario", [*CORRECT, *MUTANTS], ids=name)
def test_a_configuration_has_the_rules_and_bounds_of_its_row(scenario: SearchScenario) -> None:
    if os.environ.get("LOCKKIT_REWRITE"):
        path(scenario).write_text(configuration(scenario), encoding="utf-8")
    assert path(scenario).read_text(encoding="utf-8") == configuration(scenario)


def test_every_configuration_has_a_row() -> None:
    there = {each.name for each in tlc.SPEC.parent.glob("*.cfg")}
    assert there == {path(each).name for each in [*CORRECT, *MUTANTS]}


# --- TLC ----------------------------------------------------------------------------------------

run_by_tlc = [
    pytest.mark.skipif(not tlc.is_there(), reason="TLC is not here: make tlc fetches it"),
    pytest.mark.xdist_group("tlc"),
]


QUICK = {
    "correct", "count_from_send", "drift", "skew", "slack", "claim_412 lost", "claim_412 ours",
    "claim_unknown ours", "release deletes if match",
}  # fmt: skip
"""The others have the same rules in larger bounds, or take TLC longer: `make soak`."""


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(each, marks=[*run_by_tlc, *[pytest.mark.soak] * (each.name not in QUICK)])
        for each in [*CORRECT, *MUTANTS]
    ],
    ids=name,
)
def test_tlc_and_the_explorer_agree_on_invariant_depth_and_number_of_states(
    scenario: SearchScenario,
) -> None:
    ours, theirs = explore(scenario), tlc.check(path(scenario))
    assert ours.as_expected
    assert theirs.exhausted is ours.exhausted
    assert theirs.invariant == (scenario.breaks.name if scenario.breaks else None)
    assert theirs.states == ours.states
    if scenario.breaks:
        assert theirs.depth == ours.steps + 1  # TLC counts the first state, too
