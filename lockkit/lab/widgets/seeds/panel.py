"""The sweep as a panel: Run, Stop, its progress, and one figure that grows."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import ipywidgets as widgets

from lockkit.lab.widgets.errand import BackgroundTask
from lockkit.lab.widgets.seeds.sweep import RATIOS, WAYS, SweepResult, swept
from lockkit.lab.widgets.ui import (
    AXIS,
    FAST,
    GREY,
    FitFigures,
    Newest,
    Status,
    button,
    column,
    figure_widget,
    plot_layout,
    refill,
    row,
)

RUNS, RUNS_FAST = 40, 6
RUN_TIMEOUT_S = 60.0
COLOURS = ("#D55E00", "#2E8BC0", "#0F9D78", "#C2649A")
SYMBOLS, DASHES = ("x", "circle", "diamond", "square"), ("solid", "dot", "dash", "dashdot")


class Sweep(Newest):
    """How often a stall does harm, by its length in leases, with and without the fence.

    `run()` runs it now and returns what it `found`; the button runs it in a thread.

    :param runs: simulated runs for each point; None: the default number.
    :param ratios: lengths of the stall, in leases.
    :param ways: the curves: name and text.
    """

    def __init__(
        self, runs: int | None = None, *, ratios: Sequence[float] = RATIOS,
        ways: Mapping[str, str] = WAYS,
    ) -> None:  # fmt: skip
        self.close_older()
        self.found = SweepResult()
        self._runs = runs or (RUNS_FAST if os.environ.get(FAST) else RUNS)
        self._ratios, self._ways = tuple(ratios), dict(ways)
        self._errand = BackgroundTask(lambda error: self._status.fail(error), self._busy)
        self.start_button = button("Run", self.start, name="sweep-run", icon="play")
        self.stop_button = button("Stop", self.stop, name="sweep-stop", icon="stop")
        self._busy(False)
        self._progress = widgets.IntProgress(
            max=len(self._ratios) * len(self._ways), layout=widgets.Layout(width="260px")
        )
        self._status = Status()
        self.figure: Any = None
        """Plotly's, from the first run on: with it, 5 MB go to the page."""
        self.view = column(
            "sweep", row(self.start_button, self.stop_button, self._progress), self._status
        )
        total = self._runs * self._progress.max
        self._status.say(f"{total} simulated runs: {self._runs} for each point.")

    def start(self) -> None:
        """Run it in a thread, as the button does, until it is done or stopped."""
        self._errand.ask(self._sweep)

    def _busy(self, busy: bool) -> None:
        self.start_button.disabled, self.stop_button.disabled = busy, not busy

    def run(self) -> SweepResult:
        """Run it now and return its result."""
        self._errand.stop()
        self._errand.wait(RUN_TIMEOUT_S)
        self._busy(True)
        self._sweep(threading.Event())
        self._busy(False)
        return self.found

    def stop(self) -> None:
        """Stop at once; the findings stay."""
        self._errand.stop()

    def wait(self, timeout_s: float = RUN_TIMEOUT_S) -> bool:
        return self._errand.wait(timeout_s)

    def close(self) -> None:
        self.stop()
        self.start_button.disabled = True

    def _sweep(self, over: threading.Event) -> None:
        self.found = SweepResult()
        if self.figure is None:
            self.view.children = (*self.view.children, FitFigures(self._drawn))
            self.figure = _figure(self._ways)
            self.view.children = (*self.view.children, self.figure)
        self._draw()
        ratios, ways = self._ratios, self._ways
        for found in swept(self._runs, ratios=ratios, ways=ways, over=over.is_set):
            self.found = found
            self._draw()
        done = self._progress.value == self._progress.max
        self._status.say(("" if done else "Stopped. ") + f"{self.found}.")

    def _draw(self) -> None:
        done = len(self.found.points)
        self._progress.value = done
        self._status.say(f"{done} of {self._progress.max} points, {self._runs} runs each …")
        self._fill()

    def _drawn(self) -> None:
        refill(self.figure, self._fill)

    def _fill(self) -> None:
        found = self.found
        with self.figure.batch_update():
            for trace, way in zip(self.figure.data, self._ways, strict=True):
                points = found.of(way)
                trace.x = [each.ratio for each in points]
                trace.y = [each.rate * 100 for each in points]
                trace.customdata = [f"{each.wrong} of {each.runs} runs<br>{escape(each.first)}"
                                    for each in points]  # fmt: skip

    def __repr__(self) -> str:
        return f"{self.found!r}\n{self.found}" if self.found.points else str(self.found)


def _figure(ways: Mapping[str, str]) -> Any:
    """Legible on a light and on a dark page; curves differ in marker and dash as well."""
    import plotly.graph_objects as go

    drawn = go.Figure(layout=plot_layout(
        height=340, margin={"l": 60, "r": 20, "t": 20, "b": 50},
        legend={"orientation": "h", "y": 1.12},
        xaxis={"title": {"text": "length of a stall, in leases"}, "range": [-0.1, 3.1], **AXIS},
        yaxis={"title": {"text": "runs that go wrong (%)"}, "range": [-4, 104], **AXIS},
        shapes=[{"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper",
                 "line": {"color": GREY, "dash": "dot", "width": 1}}],
        annotations=[{"x": 1, "y": 1, "yref": "paper", "text": "one lease", "showarrow": False,
                      "xanchor": "left", "yanchor": "top"}],
    ))  # fmt: skip
    for number, way in enumerate(ways):
        place = number % len(COLOURS)
        drawn.add_scatter(
            name=way, mode="lines+markers", hovertemplate="%{customdata}<extra>%{x} leases</extra>",
            line={"color": COLOURS[place], "dash": DASHES[place]},
            marker={"symbol": SYMBOLS[place], "size": 9, "color": COLOURS[place]},
        )  # fmt: skip
    return figure_widget(drawn)
