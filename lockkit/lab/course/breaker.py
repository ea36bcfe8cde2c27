"""The hunt's panel: choose a scenario, switch a rule off, predict, play seeds, see the harm."""

from __future__ import annotations

import threading
from html import escape
from queue import SimpleQueue
from typing import Any

import ipywidgets as widgets

from lockkit.lab.course.breaking import GUESSES, SCENARIOS, SEEDS, MutantHunt, hunting, rules_of
from lockkit.lab.widgets.predict import Predict
from lockkit.lab.widgets.ui import Shown, column, named, shown

CLOSED = "This panel was closed because its cell was run again. Use the newer one."

_newest: Breaker | None = None


class Breaker(Shown):
    """Play starts a hunt once a guess is picked; Stop ends it.

    Running the cell again closes the earlier panel. `hunt` is the last hunt, or None.
    """

    def __init__(self, scenario: str = "lease", rule: str = "drift", seeds: int = SEEDS) -> None:
        global _newest
        if _newest is not None:
            _newest.close()
        _newest = self
        self.hunt: MutantHunt | None = None
        self.seeds = seeds
        self._stopped, self._closed = threading.Event(), threading.Event()
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self._build(scenario)
        self.rule.value = rule
        threading.Thread(target=self._obey, name="lockkit-breaker", daemon=True).start()

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
        self.button = _button("Play", "play", "success", f"Play up to {self.seeds} seeds")
        self.stop = _button("Stop", "stop", "danger", "End this hunt and show what was found")
        self.stop.disabled = True
        self.bar = widgets.IntProgress(max=self.seeds, layout=widgets.Layout(width="260px"))
        self._said, self._guess, self._drawn = widgets.HTML(), widgets.Box(), widgets.Box()
        self._drawn.layout.display = "block"
        self.scenario.observe(self._other_scenario, "value")
        self.rule.observe(lambda _: self._ask_first(), "value")
        self.button.on_click(self._play)
        self.stop.on_click(lambda _: self._stopped.set())
        self.view = column(
            "breaker", self.scenario, self.rule, self.chosen, self._guess,
            widgets.HBox([self.button, self.stop, self.bar]), self._said, self._drawn,
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

    def _play(self, _: Any) -> None:
        """The callback only starts it: a hunt takes seconds, and the page must not freeze."""
        self.button.disabled = True
        self._requests.put(True)

    def _obey(self) -> None:
        while self._requests.get() and not self._closed.is_set():
            try:
                self.play()
            except Exception as error:  # noqa: BLE001 - no caller to raise to: it is shown
                self._say(f"{type(error).__name__}: {error}")

    def _running(self, runs: bool) -> None:
        self.scenario.disabled = self.rule.disabled = self.button.disabled = runs
        self.stop.disabled = not runs
        self.predict.working(runs)

    # --- the same by code -------------------------------------------------------------------------

    def play(self) -> MutantHunt:
        """Do what the Play button does; return when the hunt has ended."""
        self._stopped.clear()
        self._running(True)
        try:
            for found in hunting(self.scenario.value, self.rule.value, self.seeds):
                self.hunt = found
                if found.seeds % max(1, self.seeds // 50) == 0:
                    self.bar.value = found.seeds
                    self._say(repr(found))
                if self._stopped.is_set() or self._closed.is_set():
                    break
            assert self.hunt is not None
            if not self._closed.is_set():
                self._show(self.hunt)
            return self.hunt
        finally:
            self._running(self._closed.is_set())

    def _show(self, found: MutantHunt) -> None:
        self._say(repr(found))
        if found.harms or found.seeds == self.seeds:  # a stopped hunt does not prove "never"
            self.predict.show(str(found))
        self._drawn.children = (found.shortest.draw(),) if found.harms else ()

    def close(self) -> None:
        """Disable the panel; a running hunt ends after its current seed."""
        self._closed.set()
        self._requests.put(False)
        self._running(True)
        self.stop.disabled = True
        self._say(CLOSED)

    def _say(self, text: str) -> None:
        self._said.value = f"<span role='status'>{escape(text)}</span>"

    def __repr__(self) -> str:
        found = repr(self.hunt) if self.hunt else "no seed was played yet"
        return f"{self.scenario.value} without {self.rule.value!r}: {found}"


def _rules(scenario: str) -> list[tuple[str, str]]:
    return [(f"{name}: {each.says}", name) for name, each in rules_of(scenario).items()]


def _button(text: str, icon: str, style: str, tooltip: str) -> Any:
    return widgets.Button(description=text, icon=icon, button_style=style, tooltip=tooltip)
