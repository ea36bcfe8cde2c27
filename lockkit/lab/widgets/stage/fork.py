"""Going back to a moment of a stage, another run from there, and where the two differ."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest

from lockkit.lab.widgets.links import fields_of
from lockkit.lab.widgets.stage.decisions import Decision, ScenarioMoment
from lockkit.lab.widgets.stage.scenarios import SCENARIOS, PatternSteps
from lockkit.lab.widgets.stage.staged import Stage

COMMIT = "commit"


def stage(play: str, mistake: str = "") -> Stage:
    """A play from its beginning. Raises `ValueError` for an unknown play."""
    if play != COMMIT:
        if play not in SCENARIOS:
            raise ValueError(
                f"there is no play {play!r}; there are {COMMIT}, {', '.join(SCENARIOS)}"
            )
        return PatternSteps(play, mistake)
    from lockkit.lab.widgets.stage.steps import VARIANTS, Steps

    if mistake not in VARIANTS:
        known = ", ".join(repr(each) for each in VARIANTS if each)
        raise ValueError(f"commit has no variant {mistake!r}; it has {known}")
    mode, version = VARIANTS[mistake]
    return Steps(mode, version=version)


def at(moment: ScenarioMoment | str) -> Stage:
    """A stage in the state that these decisions lead to.

    Raises `ValueError` for a text that is not a moment, and for an impossible decision, which it
    names.
    """
    moment = stage_moment(moment) if isinstance(moment, str) else moment
    new = stage(moment.play, moment.mistake)
    if why := follow(new, moment.decisions):
        new.close()
        raise ValueError(why)
    return new


def stage_moment(said: str) -> ScenarioMoment:
    """A stage's moment, given as text or as a link. Raises `ValueError`."""
    if "#" not in said:
        return ScenarioMoment.of(said)
    fields = fields_of(said, "play", "rule", "decisions")
    about = "/".join(filter(None, (fields["play"], fields.get("rule", ""))))
    return ScenarioMoment.of(f"{about}: {fields.get('decisions', '')}")


def follow(run: Stage, decisions: Iterable[Decision]) -> str:
    """Make these decisions as far as possible; return "", or why it stopped early."""
    for number, each in enumerate(decisions, 1):
        try:
            run.decide(each)
        except ValueError as error:
            return f"decision {number}: {error}"
    return ""


def fork(run: Stage, decisions: int | None = None) -> Stage:
    """A second run with the first decisions of this one; it may then continue differently.

    None: all of them. Raises `ValueError` for more than this run made.
    """
    made = run.moment.decisions
    if decisions is not None and not 0 <= decisions <= len(made):
        raise ValueError(f"{decisions}: this run made {len(made)} decisions so far")
    return at(ScenarioMoment(run.play_name, run.mistake, made[:decisions]))


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two runs of a play differ: `str` says so in sentences."""

    decision: int | None
    """The first one that differs, counted from 0; None: there is none."""
    made: tuple[Decision | None, Decision | None] = (None, None)
    lines: dict[str, frozenset[int]] = field(default_factory=dict)
    """By actor: which of its lines are other ones, or are in one run only; counted from 0."""

    def __str__(self) -> str:
        if self.decision is None and not self.lines:
            return "no difference"
        one, other = (each or "nothing yet" for each in self.made)
        said = [] if self.decision is None else [
            f"the first other decision is number {self.decision + 1}: {one}, and {other}"
        ]  # fmt: skip
        for who, lines in self.lines.items():
            numbers = ", ".join(str(each + 1) for each in sorted(lines))
            said.append(f"{who}'s lines differ: {numbers}")
        return "; ".join(said)


def compare(one: Stage, other: Stage) -> Difference:
    """The first decision that differs, and the lines of each actor that do."""
    pairs = list(zip_longest(one.decisions, other.decisions))
    number = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
    lines = {}
    for who in one.actors.keys() & other.actors.keys():
        reported = zip_longest(one.actors[who].lines, other.actors[who].lines)
        differ = frozenset(place for place, (a, b) in enumerate(reported) if a != b)
        if differ:
            lines[who] = differ
    made = (None, None) if number is None else pairs[number]
    return Difference(number, made, dict(sorted(lines.items())))
