"""Two lock services side by side: start both, pause or kill the holders, restart the service."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from html import escape
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go

from lockkit.clock import Clock
from lockkit.lab.widgets.contention import LEASE_S, PROVIDERS, Contention, Side
from lockkit.lab.widgets.errand import BackgroundTask
from lockkit.lab.widgets.figures import SideFigures, beliefs, until_ms
from lockkit.lab.widgets.ui import (
    AXIS,
    Html,
    Newest,
    Status,
    button,
    choice,
    column,
    named,
    plot_layout,
    row,
    table,
)

REDRAW_S = 1.0
SHOWN_S = 45.0
COLOURS = {"W1": "#0072B2", "W2": "#E69F00", "W3": "#009E73"}
STALLED = "#D55E00"
GUESSES = [
    ("– predict first: after the holder is paused, which side hands over sooner? –", ""),
    ("the first", "first"), ("the second", "second"), ("neither does", "neither"),
]  # fmt: skip


class Providers(Newest):
    """Three processes contend for a lock on each of two services. Has buttons and methods.

    `contest` is the running contention, or None. Running the cell again ends the earlier one.
    """

    def __init__(self, first: str = "storage", second: str = "zookeeper") -> None:
        self.close_older()
        self.contest: Contention | None = None
        self._errand = BackgroundTask(self._failed, self._enable)
        self._over = threading.Event()
        self._build(first, second)

    # --- the panel -------------------------------------------------------------------------------

    def _build(self, first: str, second: str) -> None:
        names = [(each.says, name) for name, each in PROVIDERS.items()]
        self.first = choice("First", names, first, "300px")
        self.second = choice("Second", names, second, "300px")
        self.prediction = named(
            widgets.Dropdown(options=GUESSES, value="", layout=widgets.Layout(width="480px")),
            "prediction",
        )
        self.buttons = {
            name: button(text, partial(self._ask, getattr(self, name)), name=name)
            for name, text in (("start", "Start"), ("stall", "Stall the holder"),
                               ("kill", "Kill the holder"), ("restart", "Restart the service"),
                               ("stop", "Stop"))
        }  # fmt: skip
        self.prediction.observe(lambda _: self._enable(busy=not self._errand.idle), "value")
        self._status = Status()
        self._status.say("Predict, then press Start.")
        self._figures = [figure(), figure()]
        self._table = widgets.HTML()
        self.view = column(
            "providers", row(self.first, self.second), self.prediction,
            row(*self.buttons.values()), self._status, *self._figures, self._table,
        )  # fmt: skip
        self._enable(busy=False)

    def _enable(self, busy: bool) -> None:
        runs = self.contest is not None
        for name, each in self.buttons.items():
            each.disabled = busy or runs is (name == "start")
        if not runs and not self.prediction.value:
            self.buttons["start"].disabled = True

    def _ask(self, do: Callable[[], None]) -> None:
        """Give work to the thread that owns the processes; disable the buttons until it is done."""

        def act(_: threading.Event) -> None:
            try:
                do()
            finally:
                if self._over.is_set():  # the panel was closed meanwhile
                    self.stop()

        self._errand.ask(act)

    def _failed(self, error: Exception) -> None:
        self.stop()
        self._status.fail(error)

    # --- the same by code ------------------------------------------------------------------------

    def start(self) -> None:
        """Raises `ServiceUnavailable` if a service is not installed, or `ServiceStartFailed`."""
        self.stop()
        self._status.say("Starting both services and their processes; a JVM takes some seconds…")
        self.contest = Contention((self.first.value, self.second.value))
        self._status.say(f"Both run. A lease lasts {LEASE_S:g} s.")
        threading.Thread(target=self._redraw, args=(self.contest,), daemon=True).start()

    def stall(self) -> None:
        """Pause the holder on both sides for two and a half leases."""
        self._strike("stall", "stopped")

    def kill(self) -> None:
        self._strike("kill", "killed")

    def restart(self) -> None:
        if self.contest is not None:
            for side in self.contest.sides:
                done = "restarted" if side.restart() else "there is no service"
                self._status.say(f"{side.name}: {done}")

    def stop(self) -> None:
        contest, self.contest = self.contest, None
        if contest is not None:
            self.show(contest)
            contest.stop()
            self._status.say("Stopped; every process has ended.")

    def close(self) -> None:
        self._over.set()
        self.stop()

    def _strike(self, how: str, done: str) -> None:
        if self.contest is not None:
            struck = [(side.name, side.strike(how)) for side in self.contest.sides]
            self._status.say("; ".join(
                f"{name}: {f'{done} {who}' if who else 'nobody held it'}" for name, who in struck
            ))  # fmt: skip

    # --- what it shows ---------------------------------------------------------------------------

    def _redraw(self, contest: Contention) -> None:
        while self.contest is contest and not Clock().wait(self._over, REDRAW_S):
            self.show(contest)

    def show(self, contest: Contention) -> None:
        for side, drawn in zip(contest.sides, self._figures, strict=True):
            draw(drawn, side)
        rows = {side.name: side.figures() for side in contest.sides}
        self._table.value = figures_html(rows, self.prediction.value)

    def __repr__(self) -> str:
        return "two lock services; nothing was started" if self.contest is None else "running"


def figure() -> go.FigureWidget:
    # Set at once: Voila's page does not receive what is added before the page is open.
    bars = [
        go.Bar(orientation="h", width=0.6),
        go.Bar(orientation="h", width=0.25, marker={"color": STALLED}),
    ]
    return go.FigureWidget(bars, layout=plot_layout(
        height=190, margin={"l": 60, "r": 20, "t": 30, "b": 40}, barmode="overlay",
        showlegend=False, xaxis={"title": {"text": "s"}, **AXIS},
        yaxis={"autorange": "reversed", **AXIS},
    ))  # fmt: skip


def draw(drawn: go.FigureWidget, side: Side) -> None:
    """Which process believed that it held the lock, and which was paused (the narrow bars)."""
    history = side.history
    if not history:
        return
    start_ms, end_ms = history[0].at_ms, history[-1].at_ms
    since_ms = max(start_ms, end_ms - SHOWN_S * 1000)
    held = [
        (each.who, each.start.at_ms, to_ms) for each in beliefs(history)
        if (to_ms := until_ms(each, end_ms)) >= since_ms
    ]  # fmt: skip
    still = [each for each in stalls(history, end_ms) if each[2] >= since_ms]
    with drawn.batch_update():
        drawn.layout.title = {"text": escape(side.name), "font": {"size": 13}}
        bars, stops = drawn.data
        bars.y = [who for who, _, _ in held]
        bars.base = [(from_ms - start_ms) / 1000 for _, from_ms, _ in held]
        bars.x = [(to_ms - from_ms) / 1000 for _, from_ms, to_ms in held]
        bars.marker.color = [COLOURS.get(who, "#888") for who, _, _ in held]
        stops.y = [who for who, _, _ in still]
        stops.base = [(from_ms - start_ms) / 1000 for _, from_ms, _ in still]
        stops.x = [(to_ms - from_ms) / 1000 for _, from_ms, to_ms in still]
        drawn.layout.xaxis.range = [(since_ms - start_ms) / 1000, (end_ms - start_ms) / 1000 + 0.5]
        drawn.layout.yaxis.categoryorder = "category descending"


def stalls(history: list[Any], end_ms: float) -> list[tuple[str, float, float]]:
    """The times (ms) in which a process was paused or dead."""
    open_: dict[str, float] = {}
    found = []
    for each in history:
        if each.kind in ("stalled", "killed"):
            open_[each.who] = each.at_ms
        elif each.kind == "resumed" and each.who in open_:
            found.append((each.who, open_.pop(each.who), each.at_ms))
    return found + [(who, from_ms, end_ms) for who, from_ms in open_.items()]


ROWS: list[tuple[str, Callable[[SideFigures], str]]] = [
    ("grants", lambda f: str(f.grants)),
    ("grants a second", lambda f: f"{f.per_s:.2f}"),
    ("hand-off, median", lambda f: _seconds(f.hand_off_p50_s)),
    ("longest wait of a process", lambda f: _seconds(f.wait_max_s)),
    ("most in a row to one", lambda f: str(f.longest_run)),
    ("takeover after a pause or crash",
     lambda f: ", ".join(map(_seconds, f.taken_over_s)) or "–"),
    ("two believed at once for", lambda f: _seconds(f.overlap_s)),
    ("requests per grant, of all who want it",
     lambda f: "–" if f.requests_per_grant is None else f"{f.requests_per_grant:.1f}"),
    ("a million grants cost", lambda f: cost(f)),
]  # fmt: skip


def figures_html(rows: dict[str, SideFigures], prediction: str) -> str:
    body = ((said, *(show(each) for each in rows.values())) for said, show in ROWS)
    outcome = sooner(list(rows.values()))
    guessed = {value: text for text, value in GUESSES if value}.get(prediction, "nothing")
    said = f"<p>You predicted: {guessed}. It was: {outcome}.</p>" if outcome else ""
    return table((Html(), *rows), body, "lockkit-figures") + said


def cost(side: SideFigures) -> str:
    """The price of its requests at this rate, or of the units that are billed instead."""
    if side.price is None or side.million_grants_usd is None:
        return "–"
    if not side.price.writes:
        return side.price.says
    return f"US$ {side.million_grants_usd:.2f} ({side.price.says})"


def sooner(sides: list[SideFigures]) -> str:
    """Which side took over sooner, once both have; "" before."""
    if len(sides) < 2 or not all(each.taken_over_s for each in sides):
        return ""
    one, other = (each.taken_over_s[0] for each in sides[:2])
    if abs(one - other) < 0.25 * max(one, other):
        return f"about the same ({one:.1f} and {other:.1f} s)"
    which = "first" if one < other else "second"
    return f"the {which} ({min(one, other):.1f}, not {max(one, other):.1f} s)"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
