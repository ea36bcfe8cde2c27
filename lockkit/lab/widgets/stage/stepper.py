"""The stepper: a stage with buttons, undo to any decision, and a second run for comparison."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape
from typing import Any

import ipywidgets as widgets

from lockkit.lab.widgets.export import judged
from lockkit.lab.widgets.links import stage_link
from lockkit.lab.widgets.stage.decisions import Decision
from lockkit.lab.widgets.stage.fork import (
    COMMIT,
    Difference,
    at,
    compare,
    follow,
    fork,
    stage,
    stage_moment,
)
from lockkit.lab.widgets.stage.panel import SHORTER, StagePanel
from lockkit.lab.widgets.stage.scenarios import RIGHT, mistakes
from lockkit.lab.widgets.stage.steps import VARIANTS
from lockkit.lab.widgets.ui import Html, Newest, Status, button, column, row, row_layout, table

MODES = [
    ("fenced: the store decides", ""),
    ("hudi: the lock decides", "hudi mode"),
    ("fenced, table version 9", "version 9"),
    ("hudi, table version 9", "hudi mode, version 9"),
]
BODY_CHARS = 300
FIRST, FORK = 0, 1


class StageView(Newest):
    """Buttons for the possible next steps, and each actor's requests.

    `steps` is the first run. Code may move it as well; `show()` then draws it. `other` is the
    second run, once `fork` has made one. Running the cell again ends the earlier view.
    """

    options: list[tuple[str, str]]
    label: str

    def __init__(self, play: str, mistake: str = "") -> None:
        self.close_older(play)
        self.play = play
        self.runs: list[Any] = [stage(play, mistake)]
        self._panels: list[StagePanel] = []
        self._said = ""
        self._status = Status()
        self._past = widgets.SelectionSlider(
            options=[("the beginning", 0)], description="Decision", continuous_update=False,
            layout=widgets.Layout(width="628px", margin="0 8px 0 0"),
        )  # fmt: skip
        again = button(
            "Start over", self._tried(lambda: self.go_back(0)), name="again",
            tip="from the beginning",
        )  # fmt: skip
        self._fork = button(
            "Fork here", self._tried(lambda: self.fork(self._past.value)), name="fork",
            tip="a second run beside this one, which continues after this decision",
        )  # fmt: skip
        self._back = button(
            "Go back to here", self._tried(lambda: self.go_back(self._past.value)), name="back",
            tip="undo what was decided after this",
        )  # fmt: skip
        self._unfork = button(
            "Drop the fork", self.drop_fork, name="unfork", tip="keep the first run only"
        )
        self._both = widgets.HBox(layout=row_layout("stretch"))
        bar = row(again, self._past, self._fork, self._back, self._unfork)
        self.view = column("stepper", bar, self._status, self._both)
        self._put(FIRST, self.steps, "No decision was made yet.")

    def below(self, run: Any) -> str:
        """The readers' rows and the checker's verdict on a run, as HTML."""
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

    # --- undo and fork ------------------------------------------------------------------------

    def fork(self, decisions: int | None = None) -> Any:
        """Start a second run after that many decisions of the first (None: all of them)."""
        new = fork(self.steps, decisions)
        self._put(FORK, new, f"The fork continues after decision {len(new.decisions)}.")
        return new

    def drop_fork(self) -> None:
        del self.runs[FORK:], self._panels[FORK:]
        self._said = "The fork is gone."
        self.show()

    def go_back(self, decisions: int) -> None:
        """Undo the first run's decisions after that many."""
        said = f"Back to decision {decisions}." if decisions else "Started over."
        self._put(FIRST, fork(self.steps, decisions), said)

    def paste(self, moment: str, number: int = FIRST) -> None:
        """Move a run (the fork is number 1) to a moment of this play. Raises `ValueError`."""
        if stage_moment(moment).play != self.play:
            raise ValueError(f"this moment is of another scenario; the panel shows {self.play!r}")
        new = at(moment)
        self._put(number, new, f"At that moment: {len(new.decisions)} decisions were made.")

    def plant(self, mistake: str, number: int = FIRST) -> None:
        """Restart the first run with this mistake; the fork repeats its decisions."""
        new, said = stage(self.play, mistake), "Started over."
        if number == FORK:
            why = follow(new, self.runs[FORK].decisions)
            said = f"The same decisions, as far as they go. {why}".strip()
        self._put(number, new, said)

    # --- what it shows ----------------------------------------------------------------------------

    def show(self) -> None:
        """Draw the current state, whether buttons or code led to it."""
        difference = self.difference
        marks = {} if difference is None else difference.lines
        titles = ("Run", "") if self.other is None else ("First run", "Fork")
        for panel, title in zip(self._panels, titles, strict=False):
            panel.show(title, self.below(panel.run), marks)
        self._both.children = [each.view for each in self._panels]
        self._show_past()
        self._unfork.disabled = self.other is None
        said = escape(self._said)
        if difference is not None:
            said += f"<br><b>Difference:</b> {escape(str(difference))}."
        if self.play != COMMIT:  # which needs pyarrow
            there = escape(stage_link(self.steps.moment))
            said += f" <a href='{there}' target='_blank'>Open in the browser</a>"
        self._status.say_html(said)

    def _show_past(self) -> None:
        made = self.steps.decisions
        options = [("the beginning", 0), *((f"{n}: {each}", n) for n, each in enumerate(made, 1))]
        if list(self._past.options) != options:
            self._past.options = options
            self._past.value = len(made)

    def _put(self, number: int, run: Any, said: str) -> None:
        """Put another run in this place; its panel and the reader's focus stay."""
        if number == len(self._panels):
            self.runs[number:] = [run]
            self._panels.append(self._panel(number))
        self.runs[number] = self._panels[number].run = run
        self._said = said
        self.show()

    def _panel(self, number: int) -> StagePanel:
        choice = widgets.Dropdown(
            options=self.options, value=self.runs[number].mistake, description=self.label,
            layout=widgets.Layout(width="400px"),
        )  # fmt: skip
        return StagePanel(
            self.runs[number], choice,
            press=lambda decision: self._tried(partial(self._decide, number, decision))(),
            finish=lambda who: self._tried(partial(self._finish, number, who))(),
            plant=partial(self._planted, number), paste=partial(self._pasted, number),
        )  # fmt: skip

    def _planted(self, number: int, mistake: str) -> None:
        if mistake != self.runs[number].mistake:  # else we have just shown it ourselves
            self._tried(lambda: self.plant(mistake, number))()

    def _pasted(self, number: int, moment: str) -> None:
        if moment != str(self.runs[number].moment):
            self._tried(lambda: self.paste(moment, number))()

    def _decide(self, number: int, decision: Decision) -> None:
        run = self.runs[number]
        line = run.decide(decision)
        reported = f": {line.request} → {line.answered}" if line and line.answered else ""
        ended = getattr(run.actors.get(decision.who), "ended", "")
        self._said = f"{decision}{reported}" + (f". {decision.who} ended: {ended}" if ended else "")

    def _finish(self, number: int, who: str) -> None:
        self._said = f"{who} ended: {self.runs[number].finish(who)}"

    def _tried(self, act: Callable[[], Any]) -> Callable[[], None]:
        """Show an impossible step instead of raising: a callback has no caller to raise to."""

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
                lines += [f"  {each.request} -> {each.answered}" for each in actor.lines]
        if self.difference is not None:
            lines.append(f"difference: {self.difference}")
        return "\n".join(lines)


class Stepper(StageView):
    """W1 and W2 are about to commit another amount for the same order: press *Next* on either.

    :param mode: the table's: fenced or hudi.
    :param version: the table's: 6 or 9.
    """

    options, label = MODES, "Table"

    def __init__(self, mode: str = "fenced", *, version: int = 6) -> None:
        names = {of: name for name, of in VARIANTS.items()}
        super().__init__("commit", names.get((mode, version), mode))

    def below(self, run: Any) -> str:
        rows = ", ".join(f"{order} = {amount}" for order, amount in run.rows.items())
        sees = f"<b>A reader sees:</b> {escape(rows) or 'nothing'}"
        if not any(each.ended for each in run.actors.values()):  # there is nothing to judge yet
            return sees
        said = judged(run.verdict)
        because, _, _ = said["because"].partition("; not exercised")
        return (
            f"{sees}<br><b>The checker says:</b> {escape(said['verdict'])}: {escape(because)}"
        )

    def __repr__(self) -> str:
        return f"{super().__repr__()}\na reader sees {self.steps.rows}"


class PatternStepper(StageView):
    """Two actors of a protocol (`lock`, `election`, `wal`, ...), with a mistake to plant.

    :param pattern: the protocol.
    :param mistake: the planted mistake; "": none.
    """

    label = "Mistake"

    def __init__(self, pattern: str = "election", mistake: str = "") -> None:
        self.options = [(RIGHT, ""), *((each, each) for each in mistakes(pattern))]
        super().__init__(pattern, mistake)

    def below(self, run: Any) -> str:
        """The task and the objects; the picture below them has the verdict."""
        rows = (
            (key.replace(*SHORTER), Html(f"<code>{escape(body[:BODY_CHARS])}</code>"))
            for key, body in run.objects.items()
        )
        there = table((), rows, "lockkit-objects")
        return (
            f"<i>{escape(run.play.says)}</i>"
            f"<details><summary>The objects in the store</summary>{there}</details>"
        )
