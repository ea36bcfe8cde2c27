"""Two lock services side by side: start both, pause or kill the holders, restart the service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from html import escape

import ipywidgets as widgets

from lockkit.clock import Clock
from lockkit.events import Event
from lockkit.lab.widgets.charts import BAD, HUES, INK
from lockkit.lab.widgets.contention import LEASE_S, PROVIDERS, Contention, Side
from lockkit.lab.widgets.errand import BackgroundTask
from lockkit.lab.widgets.figures import SideFigures, beliefs, until_ms
from lockkit.lab.widgets.scene import hues
from lockkit.lab.widgets.ui import Html, Newest, Status, button, choice, column, named, row, table

REDRAW_S = 1.0
SHOWN_S = 45.0
TICK_S = 5
CHAR_PERCENT = 2.2
"""Of the axis, in a notebook of 800 pixels: so much a character beside a mark takes."""
SERVICE = "service"
SIGN_PX = 12
"""How wide the sign of a mark is."""
CHART_STYLE = f"""<style>
.lp-chart{{font-size:12px;margin:6px 0}}.lp-chart p{{display:flex;margin:0;line-height:20px}}
.lp-chart em{{flex:0 0 60px;font-style:normal;font-weight:600}}
.lp-chart span{{position:relative;flex:1 1 auto;height:20px;overflow:hidden}}
.lp-chart i,.lp-chart u,.lp-chart s,.lp-chart q{{position:absolute}}
.lp-chart u{{top:0;bottom:0;border-left:1px solid rgba(125,133,142,.28)}}
.lp-chart s{{text-decoration:none;color:{INK}}}
.lp-grant{{top:4px;height:12px;min-width:2px;border-radius:2px}}
.lp-still{{top:7px;height:6px;border:1px solid {INK};background:repeating-linear-gradient(45deg,
{INK} 0 2px,transparent 2px 5px)}}
.lp-at{{top:3px;height:14px;width:2px;background:{BAD}}}
.lp-chart .lp-struck span{{height:36px}}
.lp-chart q{{quotes:none;color:{BAD};font-weight:600;white-space:nowrap;overflow:hidden;
margin-left:-4px;line-height:16px;top:18px}}
</style>"""
Place = Callable[[float], float]
"""A moment (ms) as a place on the axis, in percent."""
GUESSES = [
    ("– predict: which hands over sooner after a pause? –", ""),
    ("the first is sooner", "first"), ("the second is sooner", "second"), ("neither is", "neither"),
]  # fmt: skip


class Providers(Newest):
    """Three processes contend for a lock on each of two services. Has buttons and methods.

    `contest` is the running contention, or None. Running the cell again ends the earlier one.

    :param first, second: the two services that are compared.
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
        self._chart = widgets.HTML()
        self._table = widgets.HTML()
        self.view = column(
            "providers", row(self.first, self.second), self.prediction,
            row(*self.buttons.values()), self._status, self._chart, self._table,
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
        self._strike("stall", "paused")

    def kill(self) -> None:
        self._strike("kill", "killed")

    def restart(self) -> None:
        if self.contest is not None:
            for side in self.contest.sides:
                done = "restarted" if side.restart() else "there is no service"
                self._status.say(f"{side.says}: {done}")

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
            struck = [(side.says, side.strike(how)) for side in self.contest.sides]
            self._status.say("; ".join(
                f"{name}: {f'{done} {who}' if who else 'no holder'}" for name, who in struck
            ))  # fmt: skip

    # --- what it shows ---------------------------------------------------------------------------

    def _redraw(self, contest: Contention) -> None:
        while self.contest is contest and not Clock().wait(self._over, REDRAW_S):
            self.show(contest)

    def show(self, contest: Contention) -> None:
        self._chart.value = chart_html(contest.sides)
        rows = {side.says: side.figures() for side in contest.sides}
        self._table.value = figures_html(rows, self.prediction.value)

    def __repr__(self) -> str:
        return "two lock services; nothing was started" if self.contest is None else "running"


def chart_html(sides: Sequence[Side]) -> str:
    """Which process held the lock, which was paused or dead, and what was struck, and when.

    Both sides have one axis of time: the same moment is at the same place in both.
    """
    histories = [side.history for side in sides]
    if not any(histories):
        return ""
    start_ms = min(each[0].at_ms for each in histories if each)
    end_ms = max(each[-1].at_ms for each in histories if each) + 500
    since_ms = max(start_ms, end_ms - SHOWN_S * 1000)

    def place(at_ms: float) -> float:
        return 100 * (max(at_ms, since_ms) - since_ms) / (end_ms - since_ms)

    ticks = [
        (place(start_ms + s * 1000), s)
        for s in range(0, 1 + int((end_ms - start_ms) / 1000), TICK_S)
        if start_ms + s * 1000 >= since_ms
    ]  # fmt: skip
    grid = "".join(f"<u style='left:{x:.2f}%'></u>" for x, _ in ticks)
    body = "".join(
        f"<b>{escape(side.says)}</b>{_rows(history, end_ms, place, grid)}"
        for side, history in zip(sides, histories, strict=True)
    )
    room = 100 - CHAR_PERCENT * len(f"{ticks[-1][1]} s")  # later, a label would be cut
    axis = "".join(f"<s style='left:{x:.2f}%'>{s} s</s>" for x, s in ticks if x <= room)
    return f"{CHART_STYLE}<div class='lp-chart'>{body}<p><em></em><span>{axis}</span></p></div>"


def _rows(history: Sequence[Event], end_ms: float, place: Place, grid: str) -> str:
    """One line of the chart for each process, and one for the service if it was struck."""

    def bar(kind: str, from_ms: float, to_ms: float, colour: str, says: str) -> str:
        left, right = place(from_ms), place(to_ms)
        if right <= 0:
            return ""
        at = f"left:{left:.2f}%;width:{right - left:.2f}%;{colour}"
        return f"<i class='lp-{kind}' style='{at}' title='{escape(says)}'></i>"

    names = sorted({each.who for each in history}, key=lambda who: (who == SERVICE, who))
    drawn: dict[str, str] = dict.fromkeys(names, grid)
    tints = {who: HUES[hue % len(HUES)] for who, hue in hues(names).items()}
    for each in beliefs(history):
        to_ms = until_ms(each, end_ms)
        lasted = f"{each.who} held the lock for {(to_ms - each.start.at_ms) / 1000:.2f} s"
        drawn[each.who] += bar(
            "grant", each.start.at_ms, to_ms, f"background:{tints[each.who]}", lasted
        )
    for who, from_ms, to_ms in stalls(history, end_ms):
        drawn[who] += bar("still", from_ms, to_ms, "", f"{who} did nothing")
    marks = [(who, place(at_ms), says) for who, at_ms, says in struck(history)]
    for n, (who, x, says) in enumerate(marks):
        beside = min((other for each, other, _ in marks[n + 1:] if each == who), default=100.0)
        tight = beside - x < CHAR_PERCENT * len(says)
        said = says[0] if tight else says  # the sign alone
        before = max((other for each, other, _ in marks[:n] if each == who), default=-100.0)
        if x > 0:
            left = f"max({x:.2f}%, {before:.2f}% + {SIGN_PX}px)"
            room = f"left:{left};max-width:{'none' if tight else f'{beside - x:.2f}%'}"
            drawn[who] += f"<i class='lp-at' style='left:{x:.2f}%'></i>"
            drawn[who] += f"<q style='{room}' title='{escape(says)}'>{escape(said)}</q>"
    return "".join(
        f"<p{' class=lp-struck' * ('<q' in line)}><em style='color:{tints[who]}'>{escape(who)}</em>"
        f"<span>{line}</span></p>"
        for who, line in drawn.items()
    )


def struck(history: Sequence[Event]) -> list[tuple[str, float, str]]:
    """Who was killed or started again, and when (ms)."""
    return [
        (each.who, each.at_ms, "▶ started again" if up else "✗ killed")
        for each in history
        if (up := each.who == SERVICE and each.get("text") != "killed")
        or each.kind == "killed" or each.who == SERVICE
    ]  # fmt: skip


def stalls(history: Sequence[Event], end_ms: float) -> list[tuple[str, float, float]]:
    """The times (ms) in which a process was paused or dead, or the service was down."""
    open_: dict[str, float] = {}
    found = []
    for each in history:
        down = each.who == SERVICE and each.get("text") == "killed"
        if each.kind in ("stalled", "killed") or down:
            open_[each.who] = each.at_ms
        elif (each.kind == "resumed" or each.who == SERVICE) and each.who in open_:
            found.append((each.who, open_.pop(each.who), each.at_ms))
    return found + [(who, from_ms, end_ms) for who, from_ms in open_.items()]


ROWS: list[tuple[str, Callable[[SideFigures], str]]] = [
    ("grants", lambda f: str(f.grants)),
    ("grants a second", lambda f: f"{f.per_s:.2f}"),
    ("hand-off, median", lambda f: _seconds(f.hand_off_p50_s)),
    ("longest wait of a process", lambda f: _seconds(f.wait_max_s)),
    ("most grants in a row to one process", lambda f: str(f.longest_run)),
    ("takeover after a pause or crash",
     lambda f: ", ".join(map(_seconds, f.taken_over_s)) or "–"),
    ("two holders at once for", lambda f: _seconds(f.overlap_s)),
    ("requests per grant, by all processes",
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
    return f"the {which} is sooner ({min(one, other):.1f}, not {max(one, other):.1f} s)"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
