"""Seeds as moments: a simulated run up to one of its moves, as text, and other continuations.

    lease:1234@57                  move 57 of the run of seed 1234
    lease/fence off:1234@57        the same with a mistake planted
    lease/fence off:1234@57+3@80   after move 57 with other dice (the third); move 80 of that run

A link to the playground names the same: `#scenario=lease&seed=1234&step=57`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lockkit.lab.verify.mutants import LEASE_MUTANTS, Mutant
from lockkit.lab.verify.sim import LEASE, Branch, SeedOutcome, SimScenario, simulate
from lockkit.lab.widgets.links import moment_of

MOMENT_CHARS_MAX = 500
BRANCHES_MAX = 10
SHOWN_CHARS = 60
NO_CLIENT_YET = "moves 1 to {} set up the store; no client has moved yet"
_ABOUT = re.compile(r"\s*([\w.-]+)\s*(?:/\s*([^:@]+?)\s*)?:\s*(\d{1,9})\s*", re.ASCII)
_BRANCH = re.compile(r"@\s*(\d{1,6})\s*\+\s*(\d{1,6})\s*", re.ASCII)
_STEP = re.compile(r"@\s*(\d{1,6})\s*", re.ASCII)


class UnknownScenario(ValueError):
    """The message lists those that there are."""


@dataclass(frozen=True, slots=True)
class SeedMoment:
    """A move of a simulated run; `step` None: its end."""

    scenario: str
    seed: int
    step: int | None = None
    mutant: str = ""
    branches: tuple[Branch, ...] = ()

    def __str__(self) -> str:
        about = f"{self.scenario}/{self.mutant}" if self.mutant else self.scenario
        ways = "".join(f"@{each.move}+{each.way}" for each in self.branches)
        return f"{about}:{self.seed}{ways}{'' if self.step is None else f'@{self.step}'}"

    @classmethod
    def of(cls, text: str) -> SeedMoment:
        """Parse a moment, or a link to one.

        Raises `ValueError` for an invalid one, or an unknown scenario.
        """
        text = moment_of(text)
        brief = text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"
        known = _ABOUT.match(text) if len(text) <= MOMENT_CHARS_MAX else None
        if known is None:
            raise ValueError(f"{brief!r} is not a moment; one is written 'lease:1234@57'")
        place, step = known.end(), None
        branches: list[Branch] = []
        while (found := _BRANCH.match(text, place)) and len(branches) < BRANCHES_MAX:
            branches.append(Branch(int(found[1]), int(found[2])))
            place = found.end()
        if found := _STEP.match(text, place):
            step, place = int(found[1]), found.end()
        if place < len(text):
            raise ValueError(f"{brief!r}: cannot read {text[place:][:20]!r} of this moment; "
                             "one is written 'lease:1234@57', a move with at most six digits")
        mutant = mutant_of(known[2] or "", scenario_of(known[1]).name)
        return cls(known[1], int(known[3]), step, mutant.name if mutant else "", tuple(branches))

    def within(self, outcome: SeedOutcome) -> SeedMoment:
        """The nearest move at which the run can stop: none of those that set its world up."""
        if self.step is None:
            return self
        return replace(self, step=max(outcome.begins, min(self.step, outcome.steps)))

    def way(self, number: int) -> SeedMoment:
        """Another continuation, from this move to its end."""
        assert self.step is not None
        branches = (*self.branches, Branch(self.step, number))
        return replace(self, branches=branches, step=None)


def play(moment: SeedMoment) -> SeedOutcome:
    """The run up to that move. Its `steps` are fewer if it ended, or went wrong, before.

    Raises `ValueError` if it ended before a move that the moment's other ways name.
    """
    scenario = scenario_of(moment.scenario)
    outcome = simulate(
        scenario, moment.seed, mutant=mutant_of(moment.mutant, scenario.name),
        branches=moment.branches, until=moment.step,
    )  # fmt: skip
    ended = moment.step is None or outcome.steps < moment.step
    for each in moment.branches:
        if ended and each.move > outcome.steps:
            raise ValueError(f"{moment}: its run ends at move {outcome.steps}, so no other way "
                             f"begins at move {each.move}")
    return outcome


@dataclass(frozen=True, slots=True)
class OtherOutcomes:
    """The outcomes of other continuations; `wrong` are those that ended in a violation."""

    moment: SeedMoment
    runs: int
    wrong: tuple[tuple[SeedMoment, str], ...]

    def __str__(self) -> str:
        said = f"{len(self.wrong)} of {self.runs} other ways to go on from {self.moment} go wrong"
        if self.wrong:
            first, why = self.wrong[0]
            said += f", the first of them {first} ({why})"
        return said


def others(moment: SeedMoment, runs: int = 50) -> OtherOutcomes:
    """Other continuations: the same past, other dice. Raises `ValueError` without a step."""
    return deque(others_so_far(moment, runs), maxlen=1).pop()


def others_so_far(moment: SeedMoment, runs: int) -> Iterator[OtherOutcomes]:
    """Yield the outcomes after each run, so that the caller can show them or stop."""
    if moment.step is None:
        raise ValueError(f"{moment} names no step to continue from: write {moment}@57")
    if runs < 1:
        raise ValueError(f"the number of other ways must be at least 1, not {runs}")
    if (here := play(moment)).violation:
        raise ValueError(f"move {here.steps} is wrong already, so every way on from it is: go "
                         "back some moves, and try other ways from there")
    wrong: list[tuple[SeedMoment, str]] = []
    for number in range(1, runs + 1):
        way = moment.way(number)
        outcome = play(way)
        if outcome.violation:
            wrong.append((replace(way, step=outcome.steps), outcome.violation))
        yield OtherOutcomes(moment, number, tuple(wrong))


# --- what can be simulated ------------------------------------------------------------------------


def scenario_of(name: str) -> SimScenario:
    """Raises `ValueError`, and says which there are."""
    if name == LEASE.name:
        return LEASE
    known = scenarios()
    if name not in known:
        raise UnknownScenario(f"no scenario {name!r}; there are: {', '.join(known)}")
    return known[name]


def scenarios() -> dict[str, SimScenario]:
    """All of them by name."""
    from lockkit.lab.verify.scenarios import SCENES, mor
    from lockkit.lab.verify.table.archiver import SCENARIO as ARCHIVED
    from lockkit.lab.verify.table.archiver import TOGETHER as ARCHIVED_TOGETHER
    from lockkit.lab.verify.table.late import SCENARIO as LATE
    from lockkit.lab.verify.table.restorer import SCENARIO as RESTORED
    from lockkit.lab.verify.table.scenario import BESIDE_HUDI, SCENARIO, TOGETHER

    patterns = [scene.SCENARIO for scene in SCENES.values()]
    tables = (SCENARIO, TOGETHER, BESIDE_HUDI, mor.SCENARIO, ARCHIVED, ARCHIVED_TOGETHER,
              RESTORED, LATE)  # fmt: skip
    return {each.name: each for each in (LEASE, *tables, *patterns)}


def mutant_of(name: str, scenario: str) -> Mutant | None:
    """None for ""; the name of a rule alone is its first mistake. Raises `ValueError`."""
    if not name:
        return None
    mutants = mutants_of(scenario)
    of_rule = (each for each in mutants if each.startswith(f"{name} "))
    found = name if name in mutants else next(of_rule, "")
    if not found:
        raise ValueError(f"no rule or mistake {name!r}; there are: {', '.join(mutants)}")
    return mutants[found]


def mutants_of(scenario: str) -> dict[str, Mutant]:
    """The mistakes that can be planted in a scenario, by name."""
    if scenario == LEASE.name:
        return LEASE_MUTANTS
    from lockkit.lab.verify.scenarios import SCENES, mor

    scenes = {**SCENES, mor.SCENARIO.name: mor}
    found: dict[str, Mutant] = scenes[scenario].MUTANTS if scenario in scenes else LEASE_MUTANTS
    return found
