"""The stepper: a stage under buttons, back to any decision, and a second run beside the first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape
from typing import Any

import ipywidgets as widgets

from lockkit.workbench.decisions import Decision, Moment
from lockkit.workbench.export import judged
from lockkit.workbench.fork import Difference, at, compare, follow, fork, stage
from lockkit.workbench.plays import RIGHT, mistakes
from lockkit.workbench.stage_panel import StagePanel, button, row
from lockkit.workbench.steps import VARIANTS

MODES = [
    ("fenced: the store decides", ""),
    ("hudi: the lock decides", "hudi mode"),
    ("fenced, table version 9", "version 9"),
    ("hudi, table version 9", "hudi mode, version 9"),
]
BODY_CHARS = 300
FIRST, FORK = 0, 1

_newest: dict[str, StageView] = {}
"""By what is on the stage."""


class StageView:
    """Buttons for what could happen next, beside what each actor asked.

    `steps` is the first run, to be moved by code as well (`show()` then draws it), and `other` the
    second, once `fork` has made one. Running the cell again ends the one before.
    """

    options: list[tuple[str, str]]
    label: str

    def __init__(self, play: str, mistake: str = "") -> None:
        if before := _newest.pop(play, None):
            before.close()
        _newest[play] = self
        self.play = play
        self.runs: list[Any] = [stage(play, mistake)]
        self._panels: list[StagePanel] = []
        self._said = "Nothing is decided yet."
        self._status = widgets.HTML()
        self._past = widgets.SelectionSlider(
            options=[("the beginning", 0)], description="Decision", continuous_update=False,
            layout=widgets.Layout(width="440px"),
        )  # fmt: skip
        self._fork = button(
            "Fork here", "a second run beside this one, which goes on from after this decision",
            self._tried(lambda: self.fork(self._past.value)), "lockkit-fork",
        )  # fmt: skip
        self._back = button(
            "Go back to here", "undo what was decided after this",
            self._tried(lambda: self.go_back(self._past.value)), "lockkit-back",
        )  # fmt: skip
        self._unfork = button(
            "Drop the fork", "keep the first run only", self.drop_fork, "lockkit-unfork"
        )
        again = button("Start over", "from the beginning", self._tried(lambda: self.go_back(0)),
                       "lockkit-again")  # fmt: skip
        bar = [again, self._past, self._fork, self._back, self._unfork]
        self._both = widgets.HBox(layout=row("stretch"))
        self.view = widgets.VBox([widgets.HBox(bar, layout=row()), self._status, self._both])
        self.view.add_class("lockkit-stepper")
        self._rebuild()

    def below(self, run: Any) -> str:
        """What readers and the judge say of a run, as HTML."""
        raise NotImplementedError

    def close(self) -> None:
        for run in self.runs:
            run.close()

    @property
    def steps(self) -> Any:
        return self.runs[FIRST]

    @property
    def other(self) -> Any:
        """The second run; None before there is one."""
        return self.runs[FORK] if len(self.runs) > FORK else None

    @property
    def difference(self) -> Difference | None:
        """Where the two runs differ; None while there is one."""
        return None if self.other is None else compare(self.steps, self.other)

    # --- going back, and another way -----------------------------------------------------------

    def fork(self, decisions: int | None = None) -> Any:
        """A second run beside the first, after so many of its decisions (None: all of them)."""
        new = fork(self.steps, decisions)
        self.runs[FORK:] = [new]
        self._rebuild(f"The fork goes on from after decision {len(new.decisions)}.")
        return new

    def drop_fork(self) -> None:
        del self.runs[FORK:]
        self._rebuild("The fork is gone.")

    def go_back(self, decisions: int) -> None:
        """Undo what the first run decided after so many."""
        self.runs[FIRST] = fork(self.steps, decisions)
        self._rebuild(f"Back after decision {decisions}." if decisions else "Back at the start.")

    def paste(self, moment: str, number: int = FIRST) -> None:
        """Take a run (the fork is number 1) to a moment of this play. Raises `ValueError`."""
        if Moment.of(moment).play != self.play:
            raise ValueError(f"this stage plays {self.play!r}, and that is another play's moment")
        self.runs[number] = at(moment)
        self._rebuild(f"At that moment: {len(self.runs[number].decisions)} decisions were made.")

    def plant(self, mistake: str, number: int = FIRST) -> None:
        """The first run starts over with this mistake; the fork makes its decisions once more."""
        new = stage(self.play, mistake)
        why = follow(new, self.runs[number].decisions) if number == FORK else ""
        self.runs[number] = new
        said = f"The same decisions, as far as they go. {why}" if number else "Started over."
        self._rebuild(said.strip())

    # --- what it shows ----------------------------------------------------------------------------

    def show(self) -> None:
        """Draw what is; whatever was decided, by button or by code."""
        difference = self.difference
        marks = {} if difference is None else difference.lines
        titles = ("Run", "") if self.other is None else ("First run", "Fork")
        for panel, title in zip(self._panels, titles, strict=False):
            panel.show(title, self.below(panel.run), marks)
        self._show_past()
        self._unfork.disabled = self.other is None
        said = escape(self._said)
        if difference is not None:
            said += f"<br><b>Difference:</b> {escape(str(difference))}."
        self._status.value = f"<span role='status'>{said}</span>"

    def _show_past(self) -> None:
        made = self.steps.decisions
        options = [("the beginning", 0), *((f"{n}: {each}", n) for n, each in enumerate(made, 1))]
        if list(self._past.options) != options:
            self._past.options = options
            self._past.value = len(made)

    def _rebuild(self, said: str = "") -> None:
        """Panels for the runs that there are now."""
        self._said = said or self._said
        self._panels = [self._panel(number, run) for number, run in enumerate(self.runs)]
        self._both.children = [each.view for each in self._panels]
        self.show()

    def _panel(self, number: int, run: Any) -> StagePanel:
        choice = widgets.Dropdown(
            options=self.options, value=run.mistake, description=self.label,
            layout=widgets.Layout(width="400px"),
        )  # fmt: skip
        choice.observe(lambda change: self.plant(change["new"], number), "value")
        panel = StagePanel(
            run, choice,
            press=lambda decision: self._tried(partial(self._decide, run, decision))(),
            finish=lambda who: self._tried(partial(self._finish, run, who))(),
        )  # fmt: skip
        panel.moment.observe(
            lambda change: self._pasted(run, change["new"], number), "value"
        )
        return panel

    def _decide(self, run: Any, decision: Decision) -> None:
        line = run.decide(decision)
        told = f": {line.asked} → {line.answered}" if line and line.answered else ""
        ended = getattr(run.actors.get(decision.who), "ended", "")
        self._said = f"{decision}{told}" + (f". {decision.who} ended: {ended}" if ended else "")

    def _finish(self, run: Any, who: str) -> None:
        self._said = f"{who} ended: {run.finish(who)}"

    def _pasted(self, run: Any, text: str, number: int) -> None:
        if text != str(run.moment):
            self._tried(lambda: self.paste(text, number))()

    def _tried(self, act: Callable[[], Any]) -> Callable[[], None]:
        """What can't be done is said, not raised: a callback has nobody to raise to."""

        def press() -> None:
            try:
                act()
            except ValueError as error:
                self._said = f"Not done: {error}"
            self.show()

        return press

    def __repr__(self) -> str:
        lines = []
        for run in self.runs:
            lines.append(str(run.moment))
            for name, actor in run.actors.items():
                lines += [f"{name}: {actor.ended or 'under way'}"]
                lines += [f"  {each.asked} -> {each.answered}" for each in actor.lines]
        if self.difference is not None:
            lines.append(f"difference: {self.difference}")
        return "\n".join(lines)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = self.view._repr_mimebundle_(**options)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        data["text/plain"] = repr(self)
        return bundle


class Stepper(StageView):
    """W1 and W2 are about to commit another amount for the same order: press *Next* on either."""

    options, label = MODES, "Table"

    def __init__(self, mode: str = "fenced", *, version: int = 6) -> None:
        names = {of: name for name, of in VARIANTS.items()}
        super().__init__("commit", names.get((mode, version), mode))

    def below(self, run: Any) -> str:
        rows = ", ".join(f"{order} = {amount}" for order, amount in run.rows.items())
        said = judged(run.verdict)
        return (
            f"<b>A reader sees:</b> {escape(rows) or 'nothing'}<br>"
            f"<b>The checker says:</b> {escape(said['verdict'])}: {escape(said['because'])}"
        )

    def __repr__(self) -> str:
        return f"{super().__repr__()}\na reader sees {self.steps.rows}"


class PatternStepper(StageView):
    """Two actors of a protocol (`lock`, `election`, `wal`, ...), with a mistake to plant."""

    label = "Mistake"

    def __init__(self, pattern: str = "election", mistake: str = "") -> None:
        self.options = [(RIGHT, ""), *((each, each) for each in mistakes(pattern))]
        super().__init__(pattern, mistake)

    def below(self, run: Any) -> str:
        rows = "".join(
            f"<tr><td>{escape(key)}</td><td><code>{escape(body[:BODY_CHARS])}</code></td></tr>"
            for key, body in run.objects.items()
        )
        well, because = run.verdict
        colour, word = ("good", "✓ agrees") if well else ("bad", "✗ does not agree")
        return (
            f"<i>{escape(run.play.says)}</i><table>{rows}</table>"
            f"<b class='{colour}'>What was told and what is there {word}:</b> {escape(because)}"
        )
