"""The hunt's panel: choose a scenario, switch a rule off, predict, play seeds, see the harm."""

from __future__ import annotations

import threading
from typing import Any

import ipywidgets as widgets

from lockkit.lab.course.breaking import GUESSES, SCENARIOS, SEEDS, MutantHunt, hunting, rules_of
from lockkit.lab.widgets.errand import BackgroundTask
from lockkit.lab.widgets.predict import Predict
from lockkit.lab.widgets.ui import Newest, Status, button, column, named, row, shown

CLOSED = "This panel was closed because its cell was run again. Use the newer one."


class Breaker(Newest):
    """Play starts a hunt once a guess is picked; Stop ends it.

    Running the cell again closes the earlier panel. `hunt` is the last hunt, or None.
    """

    def __init__(self, scenario: str = "lease", rule: str = "drift", seeds: int = SEEDS) -> None:
        self.close_older()
        self.hunt: MutantHunt | None = None
        self.seeds = seeds
        self._closed = False
        self._said = Status()
        self._errand = BackgroundTask(self._said.fail)
        self._build(scenario)
        self.rule.value = rule

    # --- the panel --------------------------------------------------------------------------------

    def _build(self, scenario: str) -> None:
        wide = widgets.Layout(width="640px")
        said = [(f"{name}: {each.says}", name) for name, each in SCENARIOS.items()]
        self.scenario = widgets.Dropdown(
            options=said, value=scenario, description="Scenario", layout=wide
        )
        self.rule = widgets.Dropdown(options=_rules(scenario), description="Rule off", layout=wide)
        self.chosen = named(widgets.HTML(), "chosen")
        """What a narrow page cuts off in the two lists, in full."""
        self.button = button(
            "Play", self._play, icon="play", style="success", tip=f"Play up to {self.seeds} seeds"
        )
        self.stop = button(
            "Stop", self._errand.stop, icon="stop", style="danger",
            tip="End this hunt and show what was found",
        )  # fmt: skip
        self.stop.disabled = True
        self.bar = widgets.IntProgress(max=self.seeds, layout=widgets.Layout(width="260px"))
        self._guess, self._drawn = widgets.Box(), widgets.Box()
        self._drawn.layout.display = "block"
        self.scenario.observe(self._other_scenario, "value")
        self.rule.observe(lambda _: self._ask_first(), "value")
        self.view = column(
            "breaker", self.scenario, self.rule, self.chosen, self._guess,
            row(self.button, self.stop, self.bar), self._said, self._drawn,
        )  # fmt: skip
        self._ask_first()

    def _other_scenario(self, _change: Any) -> None:
        self.rule.options = _rules(self.scenario.value)
        self._ask_first()

    def _ask_first(self) -> None:
        """A guess applies to one rule only."""
        self.predict = Predict("How soon does a seed do harm?", GUESSES, then="press Play")
        self.predict.locks(self.button)
        self._guess.children = [self.predict.view]
        self._drawn.children = ()
        self.bar.value, self._said.value = 0, ""
        chosen = f"{self.scenario.label}. Off: {self.rule.label}."
        self.chosen.value = f"<span class='lk-note'>{shown(chosen)}</span>"

    def _play(self) -> None:
        self.button.disabled = True
        self._errand.ask(self.play)

    def _running(self, runs: bool) -> None:
        self.scenario.disabled = self.rule.disabled = self.button.disabled = runs
        self.stop.disabled = not runs
        self.predict.working(runs)

    # --- the same by code -------------------------------------------------------------------------

    def play(self, over: threading.Event = threading.Event()) -> MutantHunt:
        """Do what the Play button does; return when the hunt has ended, or `over` is set."""
        self._running(True)
        try:
            for found in hunting(self.scenario.value, self.rule.value, self.seeds):
                self.hunt = found
                if found.seeds % max(1, self.seeds // 50) == 0:
                    self.bar.value = found.seeds
                    self._said.say(repr(found))
                if over.is_set():
                    break
            assert self.hunt is not None
            if not self._closed:
                self._show(self.hunt)
            return self.hunt
        finally:
            self._running(self._closed)

    def _show(self, found: MutantHunt) -> None:
        self._said.say(repr(found))
        if found.harms or found.seeds == self.seeds:  # a stopped hunt does not prove "never"
            self.predict.show(str(found))
        self._drawn.children = (found.shortest.draw(),) if found.harms else ()

    def close(self) -> None:
        """Disable the panel; a running hunt ends after its current seed."""
        self._closed = True
        self._errand.stop()
        self._running(True)
        self.stop.disabled = True
        self._said.say(CLOSED)

    def __repr__(self) -> str:
        found = repr(self.hunt) if self.hunt else "no seed was played yet"
        return f"{self.scenario.value} without {self.rule.value!r}: {found}"


def _rules(scenario: str) -> list[tuple[str, str]]:
    return [(f"{name}: {each.says}", name) for name, each in rules_of(scenario).items()]
