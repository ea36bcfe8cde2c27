"""A simulated run under buttons: to any of its moves, and other ways on from there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html import escape
from math import ceil
from typing import Any

import ipywidgets as widgets

from lockkit.lab.verify.check import check
from lockkit.lab.verify.sim import SeedOutcome
from lockkit.lab.widgets.export import told
from lockkit.lab.widgets.lanes import Lanes
from lockkit.lab.widgets.models import HistoryModel
from lockkit.lab.widgets.scene import scene, text
from lockkit.lab.widgets.seeds.errand import BackgroundTask
from lockkit.lab.widgets.seeds.moments import OtherOutcomes, SeedMoment, others, others_so_far, play

RUNS = 50
WAIT_S = 60.0
BAR_CHARS = 25
WRONG_SHOWN = 3
JUMPS = (("To the start", -1_000_000, "before its first move"), ("−10", -10, "ten moves back"),
         ("−1", -1, "one move back"), ("+1", 1, "one move on"), ("+10", 10, "ten moves on"),
         ("To the end", 1_000_000, "or to what went wrong"))  # fmt: skip
STYLE = (
    "<style>.lockkit-ways td{padding:1px 10px;font-size:12px;line-height:1.4;vertical-align:top}"
    ".lockkit-ways td:first-child,.lockkit-ways .bar{white-space:pre}"
    ".lockkit-ways .bar{font-family:var(--jp-code-font-family,monospace)}"
    ".lockkit-ways code{overflow-wrap:anywhere}</style>"
)

_newest: Rerun | None = None


class Rerun:
    """A run of the simulator, up to the move that its moment names: `Rerun("lease:1234@57")`.

    The moment is text, to be copied, changed and pasted. `go` and `others` do by code what the
    buttons do; `outcome` is the run so far. Raises `ValueError` for what is no moment.
    """

    def __init__(self, moment: str | SeedMoment = "lease:1@60") -> None:
        global _newest
        if _newest is not None:
            _newest.close()
        _newest = self
        self.moment = SeedMoment.of(moment) if isinstance(moment, str) else moment
        self.found: dict[str, OtherOutcomes] = {}
        """What other ways on came to, by the moment that they start from."""
        self._drawing = False
        """Whether it is we who change what the reader can change, too."""
        self._errand = BackgroundTask(self._failed)
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
        jumps = [_button(name, says, partial(self._jumped, by), f"lockkit-rerun-{number}")
                 for number, (name, by, says) in enumerate(JUMPS)]  # fmt: skip
        self._others = _button(
            f"Run {RUNS} others from here", "the same past, other dice: how many go wrong?",
            self._asked_others, "lockkit-others",
        )  # fmt: skip
        self._stop = _button("Stop", "after the run that is under way", self._errand.stop,
                             "lockkit-others-stop")  # fmt: skip
        self._progress = widgets.IntProgress(max=RUNS, layout=widgets.Layout(width="160px"))
        self._status, self._ways = widgets.HTML(), widgets.HTML()
        self.lanes = Lanes()
        self.view = widgets.VBox([
            widgets.HBox([self._text, *jumps], layout=_row()),
            widgets.HBox([self._slider, self._others, self._stop, self._progress], layout=_row()),
            self._status, self._ways, self.lanes,
        ])  # fmt: skip
        self.view.add_class("lockkit-rerun")
        self._stop.disabled = True

    # --- by code ----------------------------------------------------------------------------------

    def go(self, moment: str | SeedMoment) -> SeedOutcome:
        """Play up to a moment, and show it; what came of it. Raises `ValueError`."""
        self._go(SeedMoment.of(moment) if isinstance(moment, str) else moment)
        return self.outcome

    def others(self, runs: int = RUNS) -> OtherOutcomes:
        """Other ways on from here: how many of them go wrong."""
        found = others(self.moment, runs)
        self._keep(found)
        return found

    def wait(self, timeout_s: float = WAIT_S) -> bool:
        """Until what was clicked is done; tells whether it is."""
        return self._errand.wait(timeout_s)

    def close(self) -> None:
        self._errand.stop()

    # --- by clicks: they only enqueue -------------------------------------------------------------

    def _pasted(self, said: str) -> None:
        if self._drawing:
            return
        try:
            moment = SeedMoment.of(said)
        except ValueError as error:
            self._say(f"Not done: {error}")
            return
        self._errand.ask(lambda _over: self._go(moment))

    def _jumped(self, by: int) -> None:
        self._moved((self.moment.step or 0) + by)

    def _slid(self, step: int) -> None:
        if not self._drawing:
            self._moved(step)

    def _moved(self, step: int) -> None:
        """To the newest wish: the next click goes on from there, wherever the drawing is."""
        moment = replace(self.moment, step=min(max(step, 0), self._whole.steps))
        self.moment = moment
        self._errand.ask(lambda _over: self._to(moment))

    def _asked_others(self) -> None:
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
        finally:
            self._others.disabled, self._stop.disabled = False, True

    # --- what it shows ----------------------------------------------------------------------------

    def _go(self, moment: SeedMoment) -> None:
        if replace(moment, step=None) != replace(self.moment, step=None):
            self.found, self._ways.value = {}, ""
        self._whole = whole = play(replace(moment, step=None))
        if moment.step is None or moment.step > whole.steps:
            moment = replace(moment, step=whole.steps)
        self.moment = moment
        self._to(moment)

    def _to(self, moment: SeedMoment) -> None:
        whole = self._whole
        over = moment.step == whole.steps
        self.outcome = outcome = whole if over else play(moment)
        self._drawing = True
        try:
            self._text.value = str(moment)
            self._slider.max, self._slider.value = whole.steps, moment.step
        finally:
            self._drawing = False
        wrong = outcome.violation
        because = wrong or ("nothing went wrong" if over else "nothing is wrong so far")
        self._draw(outcome, because)
        where = "the end" if over else f"of {whole.steps}"
        self._say(f"Move {moment.step}{',' if over else ''} {where}: {because}.")

    def _draw(self, outcome: SeedOutcome, because: str) -> None:
        events, story = outcome.run.world.history(), HistoryModel()
        story.add(events)
        wrong = bool(outcome.violation)
        with self.lanes.hold_sync():
            self.lanes.scene = scene(story, evidence=check(events).evidence if wrong else ())
            self.lanes.status = {
                "state": "replay", "log": told(events),
                "verdict": "INVALID" if wrong else "VALID", "because": text(because),
            }  # fmt: skip

    def _keep(self, found: OtherOutcomes) -> None:
        self.found[str(found.moment)] = found
        rows = []
        for each in sorted(self.found.values(), key=lambda each: each.moment.step or 0):
            full = ceil(len(each.wrong) / each.runs * BAR_CHARS)
            bar = "█" * full + "░" * (BAR_CHARS - full)
            some = ", ".join(f"<code>{escape(str(way))}</code>" for way, _ in
                             each.wrong[:WRONG_SHOWN])  # fmt: skip
            rows.append(
                f"<tr><td><code>{escape(str(each.moment))}</code></td><td class='bar'>{bar}</td>"
                f"<td>{len(each.wrong)} of {each.runs} go wrong{': ' if some else ''}{some}</td>"
                "</tr>"
            )
        self._ways.value = f"{STYLE}<table class='lockkit-ways'>{''.join(rows)}</table>"

    def _say(self, said: str) -> None:
        self._status.value = f"<span role='status'>{escape(said)}</span>"

    def _failed(self, why: str, trace: str) -> None:
        self._status.value = (
            f"<span role='alert'><b>It failed:</b> {escape(why)}</span><details><summary>more"
            f"</summary><pre>{escape(trace)}</pre></details>"
        )

    def __repr__(self) -> str:
        said = self.outcome.violation or "nothing is wrong so far"
        return "\n".join([f"{self.moment}: {said}", *(str(each) for each in self.found.values())])

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = self.view._repr_mimebundle_(**options)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        data["text/plain"] = repr(self)
        return bundle


def _button(name: str, says: str, press: Callable[[], None], style: str) -> widgets.Button:
    made = widgets.Button(description=name, tooltip=says, layout=widgets.Layout(width="auto"))
    made.on_click(lambda _: press())
    made.add_class(style)
    return made


def _row() -> widgets.Layout:
    return widgets.Layout(flex_flow="row wrap", align_items="center")
