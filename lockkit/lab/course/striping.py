"""Locks of many keys: the shortest way to a deadlock, and one hot object against many."""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from html import escape
from itertools import combinations
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go

from lockkit.clock import Clock
from lockkit.lab.course import sequence
from lockkit.lab.course.grid import grid, scrolled
from lockkit.lab.course.ticking import ticks
from lockkit.lab.server import Emulator
from lockkit.lab.verify.deadlocks import CIRCLE, MISTAKES, GranularOperation, deadlock, story
from lockkit.lab.widgets.ui import AXIS, FAST, Shown, column, named, plot_layout
from lockkit.lock.handle import Lock
from lockkit.recipes.granular.operations import BUCKET_OPERATIONS, KEY_OPERATIONS, VOLUME_OPERATIONS
from lockkit.recipes.striped import StripedLock
from lockkit.recipes.stripes import index_of

TTL_S, LATENCY_MS = 60.0, 30
RACE_S, FAST_RACE_S = 10.0, 3.0
RACERS, STRIPES = 6, 64
TABLES = {"volume": VOLUME_OPERATIONS, "bucket": BUCKET_OPERATIONS, "key": KEY_OPERATIONS}
RIGHT = "nothing: as it should be"
FOR_EVER, TWICE, A_MOMENT = (
    "they wait for each other forever", "one key ends up under both names",
    "one waits a moment for the other",
)  # fmt: skip
GUESSES = (A_MOMENT, TWICE, FOR_EVER)
AS_MANY, SOME, PER_WRITER = "about as many", "two or three times", "four times or more"
RACE_GUESSES = (AS_MANY, SOME, PER_WRITER)
STYLE = (
    "<style>.lockkit-rows :is(td,th){text-align:left;padding:1px 10px;font-size:12px;"
    "line-height:1.4}</style>"
)
_STEP = re.compile(r"\d+\. (\w+ \d+) (.+)")
_WAITS = re.compile(r"(\w+ \d+) waits for ([^;]+)")


def operations(level: str = "key") -> widgets.HTML:
    """The locks of each operation: one table of Ozone's design document."""
    rows = "".join(
        f"<tr><td>{escape(each.name)}</td><td>{escape(each.said.replace('`', ''))}</td>"
        f"<td>{escape(each.names)}</td></tr>"
        for each in TABLES[level].values()
    )
    head = "<tr><th>operation</th><th>locks, as the document says it</th><th>names</th></tr>"
    return widgets.HTML(STYLE + scrolled(f"<table class='lockkit-rows'>{head}{rows}</table>"))


@dataclass(frozen=True, slots=True)
class ShortestHarm:
    """The shortest story that does harm, if there is one."""

    lines: tuple[str, ...]
    violation: str

    def __str__(self) -> str:
        return FOR_EVER if self.violation.startswith(CIRCLE) else self.violation or A_MOMENT

    def __repr__(self) -> str:
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        return as_table(self.lines)


def as_table(lines: Sequence[str]) -> str:
    """A story as a table, a column for each operation; in the end, what each of them waits for."""
    steps = [found.groups() for each in lines if (found := _STEP.match(each))]
    harm = next((each.removeprefix("=> ") for each in lines if each.startswith("=> ")), "")
    waits = {who: f"✗ waits for {what}" for who, what in _WAITS.findall(harm)}
    names = sorted({who for who, _ in steps} | waits.keys())
    rows = [["✓ " * what.startswith("takes") + what if who == name else "" for name in names]
            for who, what in steps]  # fmt: skip
    rows += [[waits.get(name, "") for name in names]] * bool(waits)
    harm = f"{CIRCLE}: the wait of row {len(rows)} never ends" if waits else harm
    said = [f"<div class='lockkit-harm'>{escape(harm)}</div>"] if harm else []
    said += [escape(each) for each in lines if not _STEP.match(each) and not each.startswith("=>")]
    table = grid("sequence", ("", *names), ((n, *row) for n, row in enumerate(rows, 1)))
    return f"{sequence.STYLE}{table if rows else ''}{'<br>'.join(said)}"


def rename_at_once(*pairs: tuple[str, str], ordered: bool = True) -> ShortestHarm:
    """Explore renames of (from, to) at the same moment, in every order of their steps.

    `ordered` False: each rename locks its keys in the order in which it names them.
    """
    ops = [GranularOperation(KEY_OPERATIONS["RenameKey"], pair) for pair in pairs]
    with nullcontext() if ordered else MISTAKES["ordered"].mutant.planted():
        found = deadlock(ops)
    if found.violation:
        return ShortestHarm(tuple(story(found)), found.violation)
    return ShortestHarm((f"{found.states} states were searched, and no rule is violated",), "")


@dataclass(frozen=True, slots=True)
class Trio:
    """Three renames without an order: the outcome of each pair, and of all three."""

    twos: tuple[ShortestHarm, ...]
    three: ShortestHarm

    def __str__(self) -> str:
        solved = self.three.violation and not any(each.violation for each in self.twos)
        return "solved" if solved else "not yet"

    def __repr__(self) -> str:
        harmful = sum(bool(each.violation) for each in self.twos)
        return f"{self}: {harmful} of 3 pairs do harm; all three at once: {self.three}"


def three_renames(*pairs: tuple[str, str]) -> Trio:
    """Explore three renames that lock keys in the order given; `ValueError` for another number."""
    if len(pairs) != 3:
        raise ValueError(f"give three renames, each a pair (from, to); not {len(pairs)}")
    twos = tuple(rename_at_once(*two, ordered=False) for two in combinations(pairs, 2))
    return Trio(twos, rename_at_once(*pairs, ordered=False))


class Stories(Shown):
    """The shortest story in which a mistake does harm, of all orders of its operations' steps."""

    def __init__(self, mistake: str = "") -> None:
        said = [(RIGHT, ""), *((each.mutant.says, name) for name, each in MISTAKES.items())]
        self.mistake = widgets.Dropdown(
            options=said, value=mistake, description="Mistake",
            layout=widgets.Layout(width="460px"),
        )  # fmt: skip
        self.chosen, self._story = named(widgets.HTML(), "chosen"), widgets.HTML()
        self.mistake.observe(lambda _: self.show(), "value")
        self.view = column("stories", self.mistake, self.chosen, self._story)
        self.show()

    @property
    def lines(self) -> list[str]:
        name = self.mistake.value
        if name:
            found = MISTAKES[name].search()
            return [*story(found), f"{found.states} states were searched"]
        seen = 0
        for each in MISTAKES.values():
            found = deadlock(each.ops, hangs=each.hangs)
            if found.violation:
                return story(found)
            seen += found.states
        return [f"every order of all these operations: {seen} states, and no rule is violated"]

    def show(self) -> None:
        self.chosen.value = f"<span class='lk-note'>{escape(self.mistake.label)}</span>"
        self._story.value = as_table(self.lines)

    def __repr__(self) -> str:
        return "\n".join(self.lines)


# --- one hot object, or many ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Race:
    """Commits by writers with one key each, under one lock and under a striped lock."""

    writers: int
    seconds: float
    single: tuple[int, ...]
    """Of each writer."""
    striped: tuple[int, ...]
    stripes_met: int

    @property
    def times(self) -> float:
        return sum(self.striped) / max(1, sum(self.single))

    def __str__(self) -> str:
        return AS_MANY if self.times < 1.5 else SOME if self.times < 4 else PER_WRITER

    def figure(self) -> go.Figure:
        names = [f"W{number}" for number in range(1, self.writers + 1)]
        drawn = go.Figure(layout=plot_layout(
            height=260, barmode="group", yaxis=AXIS,
            title={"text": f"commits in {self.seconds:g} s,<br>each writer on its own key"},
            margin={"l": 40, "r": 10, "t": 60, "b": 30}, legend_orientation="h",
        ))  # fmt: skip
        drawn.add_bar(x=names, y=self.single, name="one lock object", marker_color="#0072B2")
        drawn.add_bar(
            x=names, y=self.striped, name=f"{self.stripes_met} lock objects", marker_color="#E69F00"
        )
        return drawn


@ticks
def race(*, report: Callable[[str], None] = print) -> Race:
    """Race threads on a store that takes one write a second per object, as GCS does."""
    seconds = FAST_RACE_S if os.environ.get(FAST) else RACE_S
    keys = [f"part={number}" for number in range(RACERS)]
    with Emulator(profile="gcs", latency_ms=LATENCY_MS) as server:
        options: dict[str, Any] = {"endpoint": server.gcs}
        singles = [
            Lock("gs://lake/single", ttl_s=TTL_S, acquire_timeout=None, **options) for _ in keys
        ]
        handles = [
            StripedLock("gs://lake/striped", stripes=STRIPES, lock={"ttl_s": TTL_S}, **options)
            for _ in keys
        ]
        report(f"one lock object, for {seconds:g} s …")
        single = _contend(singles, seconds, singles)
        report(f"{STRIPES} stripes, for {seconds:g} s …")
        grants = [
            each.keys(key, acquire_timeout=None) for each, key in zip(handles, keys, strict=True)
        ]
        striped = _contend(grants, seconds, handles)
    met = len({index_of(key, STRIPES) for key in keys})
    return Race(RACERS, seconds, single, striped, met)


def _contend(grants: list[Any], seconds: float, handles: Sequence[Any]) -> tuple[int, ...]:
    """How often each writer acquired and released its lock within the time.

    Then the handles are closed, because waiting for a hot object can take long.
    """
    clock, counts = Clock(), [0] * len(grants)
    over = threading.Event()

    def work(place: int) -> None:
        while not over.is_set():
            try:
                with grants[place]:
                    counts[place] += not over.is_set()
            except Exception:  # the handle was closed while a client used it
                if not over.is_set():
                    raise

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(grants))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a release that was cut off
        for each in threads:
            each.start()
        clock.wait(over, seconds)
        over.set()
        for handle in handles:
            handle.close()
        for each in threads:
            each.join()
    return tuple(counts)
