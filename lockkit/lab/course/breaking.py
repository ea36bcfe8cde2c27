"""The simulator with one safety rule off: how soon it does harm, and the shortest such run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

import ipywidgets as widgets

from lockkit.events import Event
from lockkit.lab.course import sequence
from lockkit.lab.course.grid import LEFT, TIGHT, scrolled
from lockkit.lab.course.ticking import ticks
from lockkit.lab.verify.check import Kind, check
from lockkit.lab.verify.mutants import LEASE_MUTANTS, Mutant
from lockkit.lab.verify.scenarios import SCENES
from lockkit.lab.verify.sim import LEASE, SeedOutcome, SimScenario, in_words, simulate
from lockkit.lab.verify.table.scenario import SCENARIO as TABLE
from lockkit.lab.widgets.links import link
from lockkit.lab.widgets.seeds.moments import SeedMoment, mutant_of, scenario_of
from lockkit.lab.widgets.ui import column

SCENARIOS: dict[str, SimScenario] = {
    each.name: each for each in (LEASE, TABLE, *(scene.SCENARIO for scene in SCENES.values()))
}
AT_ONCE, SOON, LATE, NEVER = (
    "in the first seed", "within 20 seeds", "within 300 seeds", "not in 300 seeds",
)  # fmt: skip
GUESSES = (AT_ONCE, SOON, LATE, NEVER)
LAST_GUESSES = ("drift", "claim_412 lost", "confirm", "fence off")
SEEDS, SOON_SEEDS = 300, 20
BAR_PX = 40
SIMULATOR = "according to the simulator, which sees more than the history"


def rules_of(scenario: str) -> dict[str, Mutant]:
    """The rules that can be switched off, by name. `ValueError` for an unknown scenario."""
    name = scenario_of(scenario).name
    mutants: dict[str, Mutant] = SCENES[name].MUTANTS if name in SCENES else LEASE_MUTANTS
    return mutants


# --- one seed -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MutantRun:
    """One seed's run with a rule off, or with all rules on (""), and its outcome."""

    scenario: str
    rule: str
    seed: int
    moves: int
    faults: int
    """Lost, late, doubled or refused requests and answers; no pauses or crashes."""
    harm: str
    """What the simulator's own judge found during the run; "" if nothing."""
    events: tuple[Event, ...]

    @property
    def verdict(self) -> Any:
        """The checker's verdict on the same history."""
        return check(self.events)

    @property
    def calm(self) -> bool:
        """Whether only the clocks and the order of the steps went wrong in that world."""
        troubles = {"fault", "stalled", "killed"}
        return not self.faults and not any(each.kind in troubles for each in self.events)

    def draw(self) -> Any:
        """The run as the playground draws it, with a link to it there.

        Its verdict is the checker's, or the simulator's if that finds more.
        """
        from lockkit.lab.widgets.panels import Workbench
        from lockkit.lab.widgets.seeds.objects import run_scene

        verdict = self.verdict
        seen = verdict.kind is Kind.INVALID
        harm = f"{in_words(self.harm)} ({SIMULATOR})" if self.harm else ""
        because = verdict.because if seen else harm
        if any(each.kind == "held" for each in self.events):
            drawn = Workbench.replay(self.events)
            drawn.scene = run_scene(_simulate(self.scenario, self.rule, self.seed), self.scenario)
            if because and not seen:
                drawn.status = drawn.status | {"verdict": "INVALID", "because": because}
        else:
            drawn = sequence.draw(self.events, because)
        page = link(self.moment)
        there = f"<a href='{escape(page)}' target='_blank'>Open in the browser</a>" if page else ""
        return column("drawn", drawn, widgets.HTML(f"<span class='lk-note'>{there}</span>"))

    def __str__(self) -> str:
        return f"harm after {self.moves} moves" if self.harm else f"no harm in {self.moves} moves"

    def __repr__(self) -> str:
        why = f"; {in_words(self.harm)}" if self.harm else ""
        return f"{self.moment}, {self}{why}"

    @property
    def moment(self) -> SeedMoment:
        """Its last step, as text to copy and share."""
        return SeedMoment(self.scenario, self.seed, self.moves, self.rule)


def play(scenario: str, rule: str, seed: int) -> MutantRun:
    """Raises `ValueError` for an unknown scenario or rule."""
    outcome = _simulate(scenario, rule, seed)
    world = outcome.run.world
    return MutantRun(
        scenario=scenario, rule=rule, seed=seed, moves=outcome.steps, harm=outcome.violation or "",
        faults=sum(outcome.faults.values()), events=tuple(world.history()),
    )  # fmt: skip


def _simulate(scenario: str, rule: str, seed: int) -> SeedOutcome:
    return simulate(scenario_of(scenario), seed, mutant=mutant_of(rule, scenario), judge=False)


# --- many seeds -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MutantHunt:
    """The outcome of a number of seeds with one rule off."""

    scenario: str
    rule: str
    seeds: int
    """The number of seeds played, from 1 on."""
    moves: int
    """Of all seeds."""
    harms: tuple[tuple[int, int], ...] = ()
    """(Moves, seed) of each seed that did harm, in the order of the seeds."""

    @property
    def first(self) -> int | None:
        """The first seed that did harm."""
        return self.harms[0][1] if self.harms else None

    @property
    def shortest(self) -> MutantRun:
        """The run with the fewest steps, played again. `ValueError` if no seed did harm."""
        if not self.harms:
            raise ValueError(f"none of {self.seeds} seeds did harm: there is nothing to see")
        return play(self.scenario, self.rule, min(self.harms)[1])

    def __str__(self) -> str:
        if self.first is None:
            return NEVER
        return AT_ONCE if self.first == 1 else SOON if self.first <= SOON_SEEDS else LATE

    def __repr__(self) -> str:
        played = f"{self.seeds} seeds, {self.moves} moves"
        if self.first is None:
            return f"{played}: no harm"
        moves, seed = min(self.harms)
        return (
            f"{played}: {len(self.harms)} did harm, seed {self.first} first; the shortest, seed "
            f"{seed}, in {moves} moves"
        )


def hunting(scenario: str, rule: str, seeds: int = SEEDS) -> Iterator[MutantHunt]:
    """Yield the hunt after each seed, so that the caller can show it or stop."""
    moves, harms = 0, list[tuple[int, int]]()
    for seed in range(1, seeds + 1):
        outcome = _simulate(scenario, rule, seed)
        moves += outcome.steps
        if outcome.violation:
            harms.append((outcome.steps, seed))
        yield MutantHunt(scenario=scenario, rule=rule, seeds=seed, moves=moves, harms=tuple(harms))


@ticks
def hunt(
    scenario: str, rule: str, seeds: int = SEEDS, report: Callable[[str], None] = print
) -> MutantHunt:
    """Play `seeds` seeds, from 1 on; report four times. `ValueError` for less than one."""
    if seeds < 1:
        raise ValueError("play at least one seed")
    for found in hunting(scenario, rule, seeds):
        if found.seeds % max(1, seeds // 4) == 0:
            report(repr(found))
    return found


@dataclass(frozen=True, slots=True)
class ScenarioSurvey:
    """How soon harm follows without each rule of a scenario, the soonest first."""

    scenario: str
    seeds: int
    firsts: tuple[tuple[str, int | None], ...]
    """By rule: the first seed that did harm."""

    @property
    def hidden(self) -> list[str]:
        """Rules whose absence did no harm with any seed."""
        return [rule for rule, first in self.firsts if first is None]

    def __str__(self) -> str:
        """The rule without which harm takes longest."""
        return self.firsts[-1][0]

    def __repr__(self) -> str:
        return "\n".join(f"{rule:28} {_seed(first):>5}  {rules_of(self.scenario)[rule].says}"
                         for rule, first in self.firsts)  # fmt: skip

    def _repr_html_(self) -> str:
        widest = max((first or 0 for _, first in self.firsts), default=0) or 1
        rows = "".join(
            f"<tr><td {TIGHT}>{escape(rule)}</td>"
            f"<td {TIGHT}>{_seed(first)} {_bar(first, widest)}</td>"
            f"<td {TIGHT}>{escape(rules_of(self.scenario)[rule].says)}</td></tr>"
            for rule, first in self.firsts
        )
        heads = ("rule that is off", "first seed", "what that means")
        head = "".join(f"<th {LEFT}>{each}</th>" for each in heads)
        return scrolled(f"<table class='lockkit-survey'><tr>{head}</tr>{rows}</table>")


@ticks
def survey(scenario: str, seeds: int = SEEDS) -> ScenarioSurvey:
    """Switch off each rule in turn, until a seed does harm."""
    firsts: list[tuple[str, int | None]] = []
    for rule in rules_of(scenario):
        hunts = hunting(scenario, rule, seeds)
        firsts.append((rule, next((each.first for each in hunts if each.first), None)))
    return ScenarioSurvey(
        scenario, seeds, tuple(sorted(firsts, key=lambda each: each[1] or seeds + 1))
    )


def _seed(first: int | None) -> str:
    return "–" if first is None else str(first)


def _bar(first: int | None, widest: int) -> str:
    if first is None:
        return "never"
    width = max(2, round(BAR_PX * first / widest))
    style = f"display:inline-block;width:{width}px;height:9px;background:#0072B2"
    return f"<span style='{style}'></span>"


# --- the ladder -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rung:
    """One task and its judge."""

    task: str
    done: Callable[[MutantRun], bool]


def _two_believers(run: MutantRun) -> bool:
    return "two clients count on the lock" in run.verdict.because


def _lost(run: MutantRun) -> bool:
    return "lost update" in run.verdict.because or "stale commit" in run.verdict.because


def _hidden(run: MutantRun) -> bool:
    """Whether it did harm, with a rule that does none in the first 100 seeds."""
    return bool(run.harm) and run.seed > 100 and not any(
        each.harms for each in hunting(run.scenario, run.rule, 100)
    )  # fmt: skip


RUNGS = (
    Rung("Two clients count on the lock at once: the checker finds them.", _two_believers),
    Rung("A short story: harm within 25 moves.", lambda run: run.moves <= 25),
    Rung("Another protocol than the lease.", lambda run: run.scenario != LEASE.name),
    Rung("Without faults: no fault, no pause and no crash in the whole run.", lambda run: run.calm),
    Rung("Lost data: a table that loses acknowledged rows.", _lost),
    Rung("Well hidden: the first 100 seeds find nothing, and yours does.", _hidden),
)


@dataclass(slots=True)
class Ladder:
    """The rungs climbed so far, in any order."""

    rungs: tuple[Rung, ...] = RUNGS
    by: dict[int, MutantRun] = field(default_factory=dict)
    """The first run that climbed each rung."""
    last: MutantRun | None = None

    def climb(self, scenario: str, rule: str, seed: int) -> Ladder:
        """Play that seed with that rule off, and report which rungs it climbs.

        Raises `ValueError` without a rule: harm there would be a bug in lockkit.
        """
        if not rule:
            raise ValueError(f"switch a rule off; the rules are: {', '.join(rules_of(scenario))}")
        self.last = play(scenario, rule, seed)
        for number, rung in enumerate(self.rungs):
            if number not in self.by and self.last.harm and rung.done(self.last):
                self.by[number] = self.last
        return self

    def __str__(self) -> str:
        done = f"{len(self.by)} of {len(self.rungs)}"
        return f"solved: {done}" if len(self.by) == len(self.rungs) else f"not yet: {done}"

    def __repr__(self) -> str:
        lines = (f"{'✓' if number in self.by else '○'} {rung.task}{self._by(number)}"
                 for number, rung in enumerate(self.rungs))  # fmt: skip
        return "\n".join([repr(self.last), *lines, str(self)])

    def _by(self, number: int) -> str:
        run = self.by.get(number)
        return f" ({run.scenario}, {run.rule}, seed {run.seed})" if run else ""

    def _repr_html_(self) -> str:
        lines: Iterable[str] = (
            f"<tr><td>{'✓' if number in self.by else '○'}</td><td {LEFT}>{escape(rung.task)}</td>"
            f"<td {LEFT}>{escape(self._by(number))}</td></tr>"
            for number, rung in enumerate(self.rungs)
        )
        return (
            f"<div>{escape(repr(self.last))}</div><table class='lockkit-ladder'>{''.join(lines)}"
            f"</table><div><b>{escape(str(self))}</b></div>"
        )
