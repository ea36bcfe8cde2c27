"""The numbers beside the diagram: one plotly figure, created when the panel is unfolded.

A figure brings plotly's whole bundle into the page (5 MB), so a kernel has only one: that of the
panel that was unfolded last. Unfolding another panel closes it. Choosing a point also chooses the
event in the diagram and its row in the table, and vice versa.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets

from lockkit.clock import Clock
from lockkit.lab.widgets.lanes import Lanes
from lockkit.lab.widgets.numbers import (
    BINS,
    LOCK,
    OUTCOMES,
    NumbersFigure,
    PlotPoint,
    Ribbon,
    numbers,
)
from lockkit.lab.widgets.ui import FitFigures, figure_widget, load_plotly, refill

HUES = ("#2a8fd0", "#d9660c", "#0f9f78", "#c46aa0", "#8b6cf0", "#a98600")
INK, RULE, BAD = "#7a828b", "rgba(125,133,142,.28)", "#d8434f"
"""Legible on white and on black: plotly does not follow the page's theme."""
SYMBOLS = dict(zip(OUTCOMES, ("circle", "x", "triangle-up", "diamond-open"), strict=True))
COLOURS = {OUTCOMES[1]: BAD, OUTCOMES[2]: "#c98a12", OUTCOMES[3]: BAD}
LIVE_PAUSE_MS = 2_000
HEIGHT = 620
TITLES = ("generation of the lock object", "ms to an answer (log)", "refusals per s", "leases")
ROOM = ((0.74, 1.0), (0.44, 0.68), (0.25, 0.38), (0.0, 0.19))
"""Where the four parts are, from the bottom of the figure."""

_unfolded: Charts | None = None


class Charts(widgets.Accordion):  # type: ignore[misc]  # ipywidgets has no types
    """A folded panel under `lanes`; nothing is computed or sent before it is unfolded.

    :param lanes: the picture whose numbers it draws.
    """

    def __init__(self, lanes: Lanes) -> None:
        super().__init__(children=[widgets.VBox()], titles=("Numbers",), selected_index=None)
        self.add_class("lockkit-numbers")
        self.lanes = lanes
        self.figure: Any = None
        self._loading: threading.Thread | None = None
        self._drawn_ms = 0
        self._clock = Clock()
        self._turn = threading.RLock()
        self._points: dict[str, float] = {}
        self.observe(self._folded, "selected_index")
        lanes.observe(self._scene_changed, "scene")
        lanes.observe(self._chosen, "selected")

    def _folded(self, change: Any) -> None:
        global _unfolded
        if change["new"] is None:
            return
        if _unfolded is not None and _unfolded is not self:
            _unfolded.let_go()
        _unfolded = self
        fresh = self.figure is None
        if fresh:
            self.children[0].children = [FitFigures(self._plotted)]
            self.figure = figure_widget(_filled(self.lanes.scene))
            for trace in self.figure.data:
                trace.on_click(self._clicked)
        self._draw()
        if fresh:  # filled before it is shown: a page draws it once
            self.children[0].children = (*self.children[0].children, self.figure)

    def let_go(self) -> None:
        """Fold, and remove the figure from the kernel and the page."""
        with self._turn:
            figure, self.figure = self.figure, None
            self.selected_index = None
            self.children[0].children = []
            if figure is not None:
                figure.close()

    def _scene_changed(self, _: Any) -> None:
        marks = self.lanes.scene.get("marks", ()) if self.lanes.live and not self._loading else ()
        if any(each["kind"] == "published" for each in marks):  # not while writers start
            self._loading = threading.Thread(target=load_plotly, name="lockkit-plotly", daemon=True)
            self._loading.start()
        pause_ms = LIVE_PAUSE_MS if self.lanes.live else 0
        if self._open and self._clock.boot_ms() - self._drawn_ms >= pause_ms:
            self._draw()

    @property
    def _open(self) -> bool:
        return self.figure is not None and self.selected_index is not None

    def _draw(self) -> None:
        """Draw the scene's numbers into the one figure."""
        with self._turn:
            self._drawn_ms = self._clock.boot_ms()
            if self.figure is None or not self.lanes.scene:
                return
            said = numbers(self.lanes.scene)
            self._points = {each.id: each.at_s for each in (*said.steps, *said.trips)}
            fill(self.figure, said)
            self._mark()

    def _plotted(self) -> None:
        with self._turn:
            if self.figure is not None:
                refill(self.figure, self._draw)

    def _clicked(self, trace: Any, points: Any, _state: Any) -> None:
        if self._open and points.point_inds:
            self.lanes.selected = str(trace.customdata[points.point_inds[0]])

    def _chosen(self, _: Any) -> None:
        with self._turn:
            if self._open:
                self._mark()

    def _mark(self) -> None:
        """A line through all four parts at the chosen event's time."""
        at_s = self._points.get(self.lanes.selected)
        if at_s is None:
            at_s = _time_of(self.lanes)
        line = {
            "type": "line", "xref": "x", "yref": "paper", "x0": at_s, "x1": at_s, "y0": 0, "y1": 1,
            "line": {"color": "#1a8ff0", "width": 2},
        }  # fmt: skip
        layout = self.figure.layout
        layout.shapes = ()  # without this the page would keep the old ones
        if at_s is not None:
            layout.shapes = [line]


def _time_of(lanes: Lanes) -> float | None:
    """When the event that is chosen in the diagram began, in seconds."""
    scene, chosen = lanes.scene, lanes.selected
    for kind in ("arrows", "marks", "bars") if chosen else ():
        for each in scene.get(kind, ()):
            if each["id"] == chosen:
                times = each["t"] if isinstance(each["t"], Sequence) else [each["t"]]
                return float(next(t for t in times if t is not None)) / 1000
    return None


# --- the figure -----------------------------------------------------------------------------------


def _filled(scene: dict[str, Any]) -> Any:
    figure = _empty()
    if scene:
        fill(figure, numbers(scene))
    return figure


def _empty() -> Any:
    """Four parts over one axis of time; the traces are made once and then refilled."""
    import plotly.graph_objects as go

    figure = go.Figure()
    marked = {"mode": "markers", "hovertemplate": "%{text}<br>%{x:.3f} s<extra></extra>"}
    figure.add_scatter(
        **{**marked, "mode": "lines+markers"}, name="generation", yaxis="y", showlegend=False,
        line={"shape": "hv", "color": RULE, "width": 1.5}, marker={"size": 6},
    )  # fmt: skip
    for outcome in OUTCOMES:
        figure.add_scatter(
            **marked, name=outcome, yaxis="y2", marker={"symbol": SYMBOLS[outcome], "size": 7},
            showlegend=outcome in COLOURS, legendgroup=outcome,
        )  # fmt: skip
    for outcome, shape in ((OUTCOMES[1], ""), (OUTCOMES[2], "/")):
        figure.add_bar(
            name=outcome, yaxis="y3", showlegend=False, hovertemplate="%{text}<extra></extra>",
            textposition="none", marker={"pattern": {"shape": shape}},
        )  # fmt: skip
    for name, shape in (("lease", ""), ("past the lease", "/")):
        figure.add_bar(
            name=name, yaxis="y4", orientation="h", hovertemplate="%{text}<extra></extra>",
            textposition="none", showlegend=bool(shape),
            marker={"pattern": {"shape": shape}, "line": {"width": 0}},
        )  # fmt: skip
    figure.add_scatter(  # an answer's dot has its writer's colour, and the legend has no writer's
        name=OUTCOMES[0], mode="markers", yaxis="y2", legendgroup=OUTCOMES[0], legendrank=1,
        marker={"symbol": SYMBOLS[OUTCOMES[0]], "size": 7, "color": INK},
    )  # fmt: skip
    figure.update_layout(**_layout())
    return figure


def _layout() -> dict[str, Any]:
    clear = "rgba(0,0,0,0)"
    axes: dict[str, Any] = {}
    for n, (title, room) in enumerate(zip(TITLES, ROOM, strict=True), 1):
        axes[f"yaxis{n if n > 1 else ''}"] = {
            "title": {"text": title, "font": {"size": 11}}, "domain": room, "gridcolor": RULE,
            "zeroline": False, "automargin": True, "anchor": "x",
        }  # fmt: skip
    axes["yaxis2"] |= {"type": "log", "nticks": 5}
    axes["yaxis4"] |= {"type": "category", "autorange": "reversed"}
    return axes | {
        "template": None, "autosize": True, "height": HEIGHT, "barmode": "overlay",
        "paper_bgcolor": clear, "plot_bgcolor": clear, "font": {"color": INK, "size": 11},
        "margin": {"l": 70, "r": 16, "t": 34, "b": 40}, "hovermode": "closest",
        "legend": {"orientation": "h", "y": 1.08, "x": 0}, "uirevision": "lockkit",
        "xaxis": {
            "title": "seconds since the history began", "gridcolor": RULE, "zeroline": False,
            "anchor": "y4",
        },
    }  # fmt: skip


def fill(figure: Any, said: NumbersFigure) -> None:
    """Put the numbers into the figure's traces: every array of a trace, or colours go astray."""
    by_outcome = {each: [p for p in said.trips if p.outcome == each] for each in OUTCOMES}
    shown = [list(said.steps), *by_outcome.values()]
    rates = [[p for p in said.refusals if p.outcome == each] for each in OUTCOMES[1:3]]
    ribbons = [[each for each in said.ribbons if each.over is over] for over in (False, True)]
    with figure.batch_update():
        for trace, points in zip(figure.data, [*shown, *rates], strict=False):
            _place(trace, points)
        for trace, points in zip(figure.data[:1], shown[:1], strict=True):
            trace.marker.color = [HUES[p.hue % len(HUES)] for p in points]
        for trace, points in zip(figure.data[1:5], shown[1:], strict=True):
            trace.marker.color = [COLOURS.get(p.outcome, HUES[p.hue % len(HUES)]) for p in points]
        for trace, points in zip(figure.data[5:7], rates, strict=True):
            trace.marker.color = [COLOURS[p.outcome] for p in points]
            trace.width = 0.9 * (said.span_s[1] - said.span_s[0]) / BINS or 1.0
        for trace, bars in zip(figure.data[7:9], ribbons, strict=True):
            _stretch(trace, bars)
        figure.data[9].x = figure.data[9].y = [None]  # else it is not in the legend
        figure.layout.xaxis.range = list(said.span_s)
        figure.layout.yaxis4.categoryarray = [LOCK, *said.lanes]


def _place(trace: Any, points: list[PlotPoint]) -> None:
    trace.x, trace.y = [p.at_s for p in points], [p.y for p in points]
    trace.text, trace.customdata = [p.said for p in points], [p.id for p in points]


def _stretch(trace: Any, ribbons: list[Ribbon]) -> None:
    trace.base, trace.x = [r.began_s for r in ribbons], [r.lasted_s for r in ribbons]
    trace.y = [r.lane for r in ribbons]
    trace.text, trace.customdata = [r.said for r in ribbons], [r.id for r in ribbons]
    trace.marker.color = [BAD if r.over else HUES[r.hue % len(HUES)] for r in ribbons]
