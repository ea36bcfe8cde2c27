"""The worst moment of each protocol, played by code with and without a planted mistake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

import ipywidgets as widgets

from lockkit.lab.widgets.lanes import Lanes
from lockkit.lab.widgets.scene import Scene
from lockkit.lab.widgets.stage.picture import picture
from lockkit.lab.widgets.stage.scenarios import RESOURCE_KEY, PatternSteps
from lockkit.lab.widgets.ui import Shown
from lockkit.recipes.guarded import read_guarded
from lockkit.recipes.wal.reader import poll

UNLOOKED = "the resource does not check the epoch"
AS_NO = "a lost answer to a claim counts as failure"
AS_YES = "a lost answer to a claim counts as success"
FORGETFUL = "the file does not remember past writes"
UNASKED, UNGUARDED = (
    "a lost answer is not read back", "an unlock deletes whatever is there by then",
)  # fmt: skip
PLANTED = {"election": UNLOOKED, "wal": AS_NO, "queue": FORGETFUL, "statelock": UNASKED}
"""The mistake of each protocol that a guess is about, under a name that does not tell it."""
OF_W2, OF_W1 = "the value of W2, the current leader", "the value of W1, the former leader"
GUESSES = (OF_W2, OF_W1)
"""The final content of the resource after a leader was late."""
LOG_GUESSES = ("never", "once", "twice")
"""How often a reader of the log finds W1's record."""
DONE_ONCE, DONE_TWICE = "it knows that the push was applied", "it pushes the job a second time"
JOB_GUESSES = (DONE_ONCE, DONE_TWICE)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase(Shown):
    """How both clients ended, and whether that agrees with the store."""

    pattern: str
    mistake: str
    ended: Mapping[str, str]
    well: bool
    because: str
    outcome: str
    """What happened, in the words of a guess."""
    scene: Scene = field(repr=False, hash=False)

    def __str__(self) -> str:
        return self.outcome

    def __repr__(self) -> str:
        reported = "; ".join(f"{who}: {said}" for who, said in self.ended.items() if said)
        mark, planted = "✓" if self.well else "✗", self.mistake or "as it should be"
        return f"{mark} {self.because} ({planted})\n  {reported}"

    def _html(self) -> str:
        reported = "".join(
            f" <b>{escape(who)}</b> {escape(said)}." for who, said in self.ended.items() if said
        )
        mark, word = ("✓", "agree") if self.well else ("✗", "do not agree")
        return (
            f"<div><i>Mistake:</i> {escape(self.mistake or 'none')}.{reported}</div>"
            f"<div>{mark} <b>The answers and the store {word}:</b> {escape(self.because)}"
            "</div>"
        )

    @property
    def view(self) -> widgets.VBox:
        """The same in words, and its picture."""
        said = widgets.HTML(f"<div style='line-height:1.5'>{self._html()}</div>")
        return widgets.VBox([said, Lanes(scene=self.scene, status={"state": "replay"})])


def play(pattern: str, mistake: str = "") -> WorstCase:
    """Take W1 to its worst moment, cause the worst fault, and let both clients run to the end.

    Raises `ValueError` for an unknown pattern or mistake.
    """
    if pattern not in WORST:
        raise ValueError(f"no worst moment for {pattern!r}; there are {', '.join(WORST)}")
    steps = PatternSteps(pattern, mistake)
    WORST[pattern](steps)
    well, because = steps.verdict
    played = WorstCase(
        pattern=pattern, mistake=mistake, well=well, because=because,
        outcome=_outcome(steps, because), scene=picture(steps),
        ended={name: actor.ended for name, actor in steps.actors.items()},
    )  # fmt: skip
    steps.close()
    return played


def _outcome(steps: PatternSteps, because: str) -> str:
    match steps.play_name:
        case "election":
            stands = steps.read(read_guarded(RESOURCE_KEY)).value
            return {"W1": OF_W1, "W2": OF_W2}.get(stands, because)
        case "wal":
            _, entries = steps.read(poll())
            records = [each.record for each in entries]
            return LOG_GUESSES[min(2, records.count("W1 was here"))]
        case "queue":
            return DONE_ONCE if steps.verdict.well else DONE_TWICE
        case _:
            return because


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
