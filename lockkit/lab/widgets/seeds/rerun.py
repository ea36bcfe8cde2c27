"""A simulated run with buttons: go to any of its moves, and try other continuations."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from html import escape
from math import ceil

import ipywidgets as widgets

from lockkit.lab.verify.sim import SeedOutcome, in_words
from lockkit.lab.widgets.errand import BackgroundTask
from lockkit.lab.widgets.export import log_lines
from lockkit.lab.widgets.lanes import Lanes
from lockkit.lab.widgets.links import link
from lockkit.lab.widgets.scene import text
from lockkit.lab.widgets.seeds.moments import (
    NO_CLIENT_YET,
    OtherOutcomes,
    SeedMoment,
    others,
    others_so_far,
    play,
)
from lockkit.lab.widgets.seeds.objects import run_scene
from lockkit.lab.widgets.ui import Newest, Status, button, column, row

RUNS = 50
WAIT_S = 60.0
BAR_CHARS = 25
WRONG_SHOWN = 3
NO_PAGE = "(The page in the browser cannot play it: this scenario needs pyarrow.)"
JUMPS = (("Start", -1_000_000, "before its first move"), ("−10", -10, "ten moves back"),
         ("−1", -1, "one move back"), ("+1", 1, "one move on"), ("+10", 10, "ten moves on"),
         ("End", 1_000_000, "the end, or the first harm"))  # fmt: skip
STYLE = (
    "<style>.lockkit-ways td{padding:1px 10px;font-size:12px;line-height:1.4;vertical-align:top}"
    ".lockkit-ways td:first-child,.lockkit-ways .bar{white-space:pre}"
    ".lockkit-ways .bar{font-family:var(--jp-code-font-family,monospace)}"
    ".lockkit-ways code{overflow-wrap:anywhere}.lockkit-ways summary{cursor:pointer}"
    ".lockkit-rerun{container-type:inline-size}"
    "@container (max-width:600px){.lockkit-ways .bar{display:none}"
    ".lockkit-ways td{display:inline-block;padding:0 6px 0 0}}</style>"
)


class Rerun(Newest):
    """A run of the simulator, up to the move that its moment names: `Rerun("lease:1234@57")`.

    The moment is text to copy, change and paste. `go` and `others` do by code what the buttons
    do; `outcome` is the run so far. Raises `ValueError` for an invalid moment.

    :param moment: `scenario/mistake:seed@move`, or its parsed form.
    """

    def __init__(self, moment: str | SeedMoment = "lease:1@60") -> None:
        self.close_older()
        self.moment = SeedMoment.of(moment) if isinstance(moment, str) else moment
        self.found: dict[str, OtherOutcomes] = {}
        """The outcomes of other continuations, by the moment from which they start."""
        self._drawing = False
        """Whether the change comes from code and not from the reader."""
        self._errand = BackgroundTask(lambda error: self._status.fail(error))
        self._build()
        self.go(self.moment)

    def _build(self) -> None:
        self._text = widgets.Text(
            description="Moment", continuous_update=False, layout=widgets.Layout(width="460px"),
            tooltip="scenario/mistake:seed@move: copy it, or paste another and press Enter",
        )  # fmt: skip
        self._slider = widgets.IntSlider(
            description="Move", continuous_update=False, layout=widgets.Layout(width="460px")
        )
        self._text.observe(lambda change: self._pasted(change["new"]), "value")
        self._slider.observe(lambda change: self._slid(change["new"]), "value")
        jumps = [
            button(text, partial(self._jumped, by), name=f"rerun-{number}", tip=says)
            for number, (text, by, says) in enumerate(JUMPS)
        ]
        self._others = button(
            f"Run {RUNS} others from here", self._run_others, name="others",
            tip="the same past, then other random choices: how many runs go wrong?",
        )  # fmt: skip
        self._stop = button(
            "Stop", self._errand.stop, name="others-stop", tip="after the run that is under way"
        )
        self._progress = widgets.IntProgress(max=RUNS, layout=widgets.Layout(width="100px"))
        self._status, self._ways = Status(), widgets.HTML()
        self.lanes = Lanes()
        self.view = column(
            "rerun", row(self._text, *jumps),
            row(self._slider, self._others, self._stop, self._progress),
            self._status, self._ways, self.lanes,
        )  # fmt: skip
        self._stop.disabled = True

    # --- by code ----------------------------------------------------------------------------------

    def go(self, moment: str | SeedMoment) -> SeedOutcome:
        """Play up to a moment, show it and return its outcome. Raises `ValueError`."""
        self._go(SeedMoment.of(moment) if isinstance(moment, str) else moment)
        return self.outcome

    def others(self, runs: int = RUNS) -> OtherOutcomes:
        """Other continuations from here: how many of them go wrong."""
        found = others(self.moment, runs)
        self._keep(found)
        return found

    def wait(self, timeout_s: float = WAIT_S) -> bool:
        """Wait until the clicked action is done; return whether it is."""
        return self._errand.wait(timeout_s)

    def close(self) -> None:
        self._errand.stop()

    # --- by clicks, which only enqueue ------------------------------------------------------------

    def _pasted(self, said: str) -> None:
        if self._drawing:
            return
        try:
            moment = SeedMoment.of(said)
        except ValueError as error:
            self._status.say(f"Not done: {error}")
            return
        self._errand.ask(lambda _over: self._go(moment))

    def _jumped(self, by: int) -> None:
        self._moved((self.moment.step or 0) + by)

    def _slid(self, step: int) -> None:
        if not self._drawing:
            self._moved(step)

    def _moved(self, step: int) -> None:
        """Move to the newest request: the next click continues from there, not from the drawing."""
        moment = replace(self.moment, step=step).within(self._whole)
        self.moment = moment
        self._errand.ask(lambda _over: self._to(moment))

    def _run_others(self) -> None:
        moment = self.moment
        self._others.disabled, self._stop.disabled = True, False
        self._errand.ask(lambda over: self._vary(moment, over))

    def _vary(self, moment: SeedMoment, over: threading.Event) -> None:
        try:
            for found in others_so_far(moment, RUNS):
                self._progress.value = found.runs
                self._keep(found)
                if over.is_set():
                    break
        except ValueError as error:
            self._status.say(f"Not done: {error}")
        finally:
            self._others.disabled, self._stop.disabled = False, True

    # --- what it shows ----------------------------------------------------------------------------

    def _go(self, moment: SeedMoment) -> None:
        if replace(moment, step=None) != replace(self.moment, step=None):
            self.found, self._ways.value = {}, ""
        self._whole = whole = play(replace(moment, step=None))
        if moment.step is None:
            moment = replace(moment, step=whole.steps)
        self.moment = moment = moment.within(whole)
        self._to(moment)

    def _to(self, moment: SeedMoment) -> None:
        whole = self._whole
        over = moment.step == whole.steps
        self.outcome = outcome = whole if over else play(moment)
        self._drawing = True
        try:
            self._text.value = str(moment)
            self._slider.max = whole.steps
            self._slider.min, self._slider.value = whole.begins, moment.step
        finally:
            self._drawing = False
        wrong = outcome.violation and in_words(outcome.violation)
        because = wrong or ("nothing went wrong" if over else "nothing is wrong so far")
        if moment.step == whole.begins > 0:
            because = NO_CLIENT_YET.format(whole.begins)
        self._draw(outcome, because)
        where = "the end" if over else f"of {whole.steps}"
        page = link(moment)
        said = escape(f"Move {moment.step}{',' if over else ''} {where}: {because}.")
        browser = f"<a href='{escape(page)}' target='_blank'>Open in the browser</a>"
        self._status.say_html(f"{said} {browser if page else NO_PAGE}")

    def _draw(self, outcome: SeedOutcome, because: str) -> None:
        with self.lanes.hold_sync():
            self.lanes.scene = run_scene(outcome, self.moment.scenario)
            self.lanes.status = {
                "state": "replay", "log": log_lines(outcome.run.world.history()),
                "verdict": "INVALID" if outcome.violation else "VALID", "because": text(because),
            }  # fmt: skip

    def _keep(self, found: OtherOutcomes) -> None:
        self.found[str(found.moment)] = found
        rows = []
        for each in sorted(self.found.values(), key=lambda each: each.moment.step or 0):
            full = ceil(len(each.wrong) / each.runs * BAR_CHARS)
            bar = "█" * full + "░" * (BAR_CHARS - full)
            some = ", ".join(f"<code>{escape(str(way))}</code>" for way, _ in
                             each.wrong[:WRONG_SHOWN])  # fmt: skip
            some = some and f"<details><summary>some of them</summary>{some}</details>"
            rows.append(
                f"<tr><td><code>{escape(str(each.moment))}</code></td><td class='bar'>{bar}</td>"
                f"<td>{len(each.wrong)} of {each.runs} go wrong{some}</td>"
                "</tr>"
            )
        self._ways.value = f"{STYLE}<table class='lockkit-ways'>{''.join(rows)}</table>"

    def __repr__(self) -> str:
        said = self.outcome.violation or "nothing is wrong so far"
        return "\n".join([f"{self.moment}: {said}", *(str(each) for each in self.found.values())])
