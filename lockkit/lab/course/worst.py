"""The worst moment of each protocol, played by code with and without a planted mistake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

import ipywidgets as widgets

from lockkit.lab.widgets.stage.scenarios import RESOURCE_KEY, PatternSteps
from lockkit.recipes.guarded import read_guarded

UNLOOKED = "the resource does not look at the epoch"
AS_NO, AS_YES = "a lost answer to a claim is a no", "a lost answer to a claim is a yes"
FORGETFUL = "the file does not remember past writes"
UNASKED, UNGUARDED = (
    "a lost answer is not looked into", "an unlock deletes whatever is there by then",
)  # fmt: skip
OF_W2, OF_W1 = "the value of W2, the current leader", "the value of W1, the former leader"
GUESSES = (OF_W2, OF_W1)
"""The final content of the resource after a leader was late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """How both clients ended, and whether that agrees with the store."""

    pattern: str
    mistake: str
    ended: Mapping[str, str]
    well: bool
    because: str
    stands: str = ""
    """For the election: whose value is in the resource."""

    def __str__(self) -> str:
        return {"W1": OF_W1, "W2": OF_W2}.get(self.stands, self.because)

    def __repr__(self) -> str:
        reported = "; ".join(f"{who}: {said}" for who, said in self.ended.items() if said)
        mark, planted = "✓" if self.well else "✗", self.mistake or "as it should be"
        return f"{mark} {self.because} ({planted})\n  {reported}"

    def _repr_html_(self) -> str:
        reported = "".join(
            f"<div><b>{escape(who)}</b> {escape(said)}</div>" for who, said in self.ended.items()
        )
        mark, word = ("✓", "agrees") if self.well else ("✗", "does not agree")
        return (
            f"<div><i>Mistake:</i> {escape(self.mistake or 'none')}</div>{reported}"
            f"<div>{mark} <b>What was told and what is there {word}:</b> {escape(self.because)}"
            "</div>"
        )

    @property
    def view(self) -> widgets.HTML:
        return widgets.HTML(self._repr_html_())


def play(pattern: str, mistake: str = "") -> WorstCase:
    """Take W1 to its worst moment, cause the worst fault, and let both clients run to the end.

    Raises `ValueError` for an unknown pattern or mistake.
    """
    if pattern not in WORST:
        raise ValueError(f"no worst moment for {pattern!r}; there are {', '.join(WORST)}")
    steps = PatternSteps(pattern, mistake)
    WORST[pattern](steps)
    well, because = steps.verdict
    stands = steps.read(read_guarded(RESOURCE_KEY)).value if pattern == "election" else ""
    played = WorstCase(
        pattern=pattern, mistake=mistake, well=well, because=because, stands=stands,
        ended={name: actor.ended for name, actor in steps.actors.items()},
    )  # fmt: skip
    steps.close()
    return played


def _late_leader(steps: PatternSteps) -> None:
    """W1 leads and is paused before its write; W2 leads after it."""
    steps.until("W1", RESOURCE_KEY, "PUT")
    steps.finish("W2")
    steps.finish("W1")


def _untold_claim(steps: PatternSteps) -> None:
    """The answer to W1's claim of a slot is lost; with `AS_YES` the claim itself is lost."""
    steps.until("W1", "1.json", "PUT")
    never_arrived = steps.mistake == AS_YES
    steps.step("W1", lose=not never_arrived, drop=never_arrived)
    steps.finish("W1")
    steps.finish("W2")


def _untold_push(steps: PatternSteps) -> None:
    """The answer to W1's push is lost; before W1 reads again, W2 has done the job."""
    steps.until("W1", "queue.json", "PUT")
    steps.step("W1", lose=True)
    steps.finish("W2")
    steps.finish("W1")


def _state(steps: PatternSteps) -> None:
    """The answer to W1's lock is lost, or W2 breaks the lock and takes it as W1 unlocks."""
    if steps.mistake == UNASKED:
        steps.until("W1", ".tflock", "PUT")
        steps.step("W1", lose=True)
    else:
        steps.until("W1", ".tflock", "DELETE")
        steps.finish("W2")
    steps.finish("W1")


WORST = {
    "election": _late_leader, "wal": _untold_claim, "queue": _untold_push, "statelock": _state,
}  # fmt: skip
