"""The sweep as a panel: Run, Stop, how far it is, and one figure that grows."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import ipywidgets as widgets

from lockkit.lab.widgets.panels import FAST
from lockkit.lab.widgets.seeds.errand import BackgroundTask
from lockkit.lab.widgets.seeds.sweep import RATIOS, WAYS, SweepResult, swept

RUNS, RUNS_FAST = 40, 6
RUN_TIMEOUT_S = 60.0
COLOURS = ("#D55E00", "#2E8BC0", "#0F9D78", "#C2649A")
SYMBOLS, DASHES = ("x", "circle", "diamond", "square"), ("solid", "dot", "dash", "dashdot")
GREY = "#888888"

_newest: Sweep | None = None


class Sweep:
    """How often a stall does harm, by its length in leases, with and without the fence.

    `run()` does it here and now and returns what it `found`; the button does it beside the kernel.
    """

    def __init__(
        self, runs: int | None = None, *, ratios: Sequence[float] = RATIOS,
        ways: Mapping[str, str] = WAYS,
    ) -> None:  # fmt: skip
        global _newest
        if _newest is not None:
            _newest.close()
        _newest = self
        self.found = SweepResult()
        self._runs = runs or (RUNS_FAST if os.environ.get(FAST) else RUNS)
        self._ratios, self._ways = tuple(ratios), dict(ways)
        self._errand = BackgroundTask(self._failed)
        self.start_button = _button("Run", "play", "lockkit-sweep-run", self.start)
        self.stop_button = _button("Stop", "stop", "lockkit-sweep-stop", self.stop)
        self.stop_button.disabled = True
        self._progress = widgets.IntProgress(
            max=len(self._ratios) * len(self._ways), layout=widgets.Layout(width="260px")
        )
        self._status = widgets.HTML()
        self.figure: Any = None
        """Plotly's, from the first run on: with it, 5 MB go to the page."""
        bar = [self.start_button, self.stop_button, self._progress]
        self.view = widgets.VBox([widgets.HBox(bar), self._status])
        self.view.add_class("lockkit-sweep")
        total = self._runs * self._progress.max
        self._say(f"{total} simulated runs: {self._runs} for each point.")

    def start(self) -> None:
        """As the button does: in a thread, until it is done or stopped."""
        self.start_button.disabled, self.stop_button.disabled = True, False
        self._errand.ask(self._sweep)

    def run(self) -> SweepResult:
        """Here and now."""
        self._errand.stop()
        self._errand.wait(RUN_TIMEOUT_S)
        self.start_button.disabled, self.stop_button.disabled = True, False
        self._sweep(threading.Event())
        return self.found

    def stop(self) -> None:
        """At once; what was found stays."""
        self._errand.stop()

    def wait(self, timeout_s: float = RUN_TIMEOUT_S) -> bool:
        return self._errand.wait(timeout_s)

    def close(self) -> None:
        self.stop()
        self.start_button.disabled = True

    def _sweep(self, over: threading.Event) -> None:
        self.found = SweepResult()
        if self.figure is None:
            self.figure = _figure(self._ways)
            self.view.children = (*self.view.children, self.figure)
        self._draw()
        ratios, ways = self._ratios, self._ways
        for found in swept(self._runs, ratios=ratios, ways=ways, over=over.is_set):
            self.found = found
            self._draw()
        done = self._progress.value == self._progress.max
        self._say(("" if done else "Stopped. ") + f"{self.found}.")
        self.start_button.disabled, self.stop_button.disabled = False, True

    def _draw(self) -> None:
        found, done = self.found, len(self.found.points)
        self._progress.value = done
        self._say(f"{done} of {self._progress.max} points, {self._runs} runs each …")
        with self.figure.batch_update():
            for trace, way in zip(self.figure.data, self._ways, strict=True):
                points = found.of(way)
                trace.x = [each.ratio for each in points]
                trace.y = [each.rate * 100 for each in points]
                trace.customdata = [f"{each.wrong} of {each.runs} runs<br>{escape(each.first)}"
                                    for each in points]  # fmt: skip

    def _failed(self, why: str, trace: str) -> None:
        self.start_button.disabled, self.stop_button.disabled = False, True
        self._status.value = (
            f"<span role='alert'><b>It failed:</b> {escape(why)}</span><details><summary>more"
            f"</summary><pre>{escape(trace)}</pre></details>"
        )

    def _say(self, text: str) -> None:
        self._status.value = f"<span role='status'>{escape(text)}</span>"

    def __repr__(self) -> str:
        return f"{self.found!r}\n{self.found}" if self.found.points else str(self.found)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = self.view._repr_mimebundle_(**options)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        data["text/plain"] = repr(self)
        return bundle


def _figure(ways: Mapping[str, str]) -> Any:
    """Legible on a light and on a dark page; curves told apart by shape and dash, too."""
    import plotly.graph_objects as go

    axis = {"gridcolor": "rgba(128,128,128,.25)", "zerolinecolor": "rgba(128,128,128,.4)"}
    drawn = go.FigureWidget(layout={
        "autosize": True, "height": 340, "margin": {"l": 60, "r": 20, "t": 20, "b": 50},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": GREY}, "legend": {"orientation": "h", "y": 1.12},
        "xaxis": {"title": {"text": "length of a stall, in leases"}, "range": [-0.1, 3.1], **axis},
        "yaxis": {"title": {"text": "runs that go wrong (%)"}, "range": [-4, 104], **axis},
        "shapes": [{"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper",
                    "line": {"color": GREY, "dash": "dot", "width": 1}}],
        "annotations": [{"x": 1, "y": 1, "yref": "paper", "text": "one lease", "showarrow": False,
                         "xanchor": "left", "yanchor": "top"}],
    })  # fmt: skip
    for number, way in enumerate(ways):
        place = number % len(COLOURS)
        drawn.add_scatter(
            name=way, mode="lines+markers", hovertemplate="%{customdata}<extra>%{x} leases</extra>",
            line={"color": COLOURS[place], "dash": DASHES[place]},
            marker={"symbol": SYMBOLS[place], "size": 9, "color": COLOURS[place]},
        )  # fmt: skip
    return drawn


def _button(text: str, icon: str, name: str, press: Any) -> widgets.Button:
    made = widgets.Button(description=text, icon=icon, layout=widgets.Layout(width="auto"))
    made.on_click(lambda _: press())
    made.add_class(name)
    return made
