"""A writer that is paused at its commit: one schedule, without the fence and with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import ipywidgets as widgets

from lockkit.clock import Clock
from lockkit.events import STORE, Event
from lockkit.lab.course.ticking import ticks
from lockkit.lab.processes.fleet import Fleet
from lockkit.lab.verify.check import check
from lockkit.lab.widgets.launch import default_settings
from lockkit.lab.widgets.panels import Workbench
from lockkit.lab.widgets.predict import IN_VOILA
from lockkit.lab.widgets.ui import Shown
from lockkit.protocol.outcome import Found
from lockkit.spark.orders import TABLE
from lockkit.stores import open_store
from lockkit.table import read_base_file, read_table

ACCEPTED = "it is accepted"
BY_THE_STORE = "the store refuses it"
BY_ITSELF = "W1 notices that its lease has expired, and gives up"
GUESSES = (ACCEPTED, BY_THE_STORE, BY_ITSELF)
FENCE = "/fence.json"
REFUSED = 412
STEP_TIMEOUT_S = 300.0
"""The longest is the first: Spark starts, and each writer's first files are written. On a machine
with ten times the work that it can do, this has taken 94 s."""
PAUSE_S = 1.0
"""Between two commits of one writer: few of them, so that the picture shows the one that counts."""
CREWS = {"plain": "two plain Python writers", "connect": "two PySpark writers and their Spark"}

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledRun:
    """The fate of W1's commit, and what a reader found afterwards."""

    fence: bool
    kind: str
    """Of writers: plain, or connect (PySpark)."""
    decided: str
    """What became of the commit that was stopped: one of the guesses."""
    reported: int
    """The orders of every acknowledged commit."""
    there: int
    """Those of these orders that a reader of the table finds."""
    events: tuple[Event, ...]
    verdict: Any

    @property
    def lost(self) -> int:
        return self.reported - self.there

    @property
    def title(self) -> str:
        return "Fence on" if self.fence else "Fence off: the lease alone"

    def __str__(self) -> str:
        return self.decided

    def __repr__(self) -> str:
        return (
            f"{self.title}. W1's late commit: {self}. Acknowledged: {self.reported:,} "
            f"orders, a reader finds {self.there:,} of them. {self.verdict.kind}: "
            f"{self.verdict.said}"
        )

    def _repr_html_(self) -> str:
        mark = "✗" if self.lost else "✓"
        lost = f"{mark} {self.lost:,} lost" if self.lost else f"{mark} none lost"
        return (
            f"<div class='lockkit-stalled'><b>{escape(self.title)}</b><br>"
            f"W1's late commit: <b>{escape(str(self))}</b><br>"
            f"acknowledged orders: {self.reported:,}, found by a reader: {self.there:,}, "
            f"<b>{lost}</b></div>"
        )


@ticks
def stall(fence: bool, report: Report = print) -> StalledRun:
    """W1 checks and is paused; W2 takes over the lock and commits; W1 resumes.

    Real processes: PySpark, or plain if `default_settings` says so, and in an app, which shows
    nothing before its last step. Only one writer at a time may commit: of two that rewrite one file
    group, one would always be a little later, and be refused forever. Raises `TimeoutError` if a
    step does not come.
    """
    chosen = default_settings(writers=2, overlap=1.0, fence=fence)
    if IN_VOILA:
        chosen = replace(chosen, kind="plain")
    fleet = Fleet(
        kind=chosen.kind, writers=2, overlap=1.0, fence=fence, ttl_s=chosen.lease_s,  # type: ignore[arg-type]
        renew_interval_s=chosen.lease_s / 10, pause_s=PAUSE_S,
    )  # fmt: skip
    with fleet:
        watch = _Watch(fleet, report)
        fleet.stall("W1", at="commit")
        fleet.hold("W2", True)
        slow = "" if chosen.kind == "plain" else ": 10 to 90 s"
        watch.say(f"{CREWS[chosen.kind]} start{slow} …")
        watch.until("W1", "stalled")
        watch.say("W1 has the lock, has checked, and is paused (SIGSTOP)")
        fleet.hold("W2", False)
        over = watch.until("W2", "published")
        watch.say(f"W2 waited for the lease's end, took over (epoch {over['epoch']}), committed")
        fleet.hold("W2", True)
        mark = len(fleet.events())
        fleet.resume("W1")
        late = watch.until("W1", "published", "refused", since=mark)
        watch.say(f"W1 resumes and goes on with its commit: {decided(fleet.events(), late)}")
        if late.kind == "refused":
            watch.until("W1", "published")
            watch.say("W1 begins again with the current table, and commits")
        events = fleet.events()
        reported, there = orders(fleet.url, fleet.endpoint, events)
        return StalledRun(
            fence=fence, kind=chosen.kind, decided=decided(events, late), reported=reported,
            there=there, events=tuple(events), verdict=check(events),
        )  # fmt: skip


class _Watch:
    """Waits for a fleet's events, one after the other, and prints each with its time."""

    def __init__(self, fleet: Fleet, report: Report) -> None:
        self._fleet, self._report, self._clock = fleet, report, Clock()
        self._began_ms = self._clock.boot_ms()
        self._mark = 0

    def say(self, text: str) -> None:
        self._report(f"{(self._clock.boot_ms() - self._began_ms) / 1000:5.1f} s  {text}")

    def until(self, who: str, *kinds: str, since: int | None = None) -> Event:
        """Wait for the next such event after the last one, or from `since` on."""
        start = self._mark if since is None else since

        def such(each: Event) -> bool:
            return each.who == who and each.kind in kinds

        if not self._fleet.wait(such, STEP_TIMEOUT_S, since=start):
            states = ", ".join(f"{name} {state}" for name, state in self._fleet.writers.items())
            why = self._fleet.error or f"{states}; logs in {self._fleet.run_dir}"
            raise TimeoutError(f"{who} was not seen: {' or '.join(kinds)}: {why}")
        found = self._fleet.events(start)
        place = next(n for n, each in enumerate(found) if such(each))
        self._mark = start + place + 1
        return found[place]


def decided(events: list[Event], late: Event) -> str:
    """Who decided W1's commit, by the store's own record."""
    if late.kind == "published":
        return ACCEPTED
    refused = any(each.who == STORE for each in refusal(events))
    return BY_THE_STORE if refused else BY_ITSELF


def refusal(events: Sequence[Event]) -> tuple[Event, ...]:
    """The fence's refusal of W1 after its pause, and W1's own record of it, as far as there.

    It counts from the pause's start: on a busy machine its end is recorded after W1's next request.
    """
    paused = max(each.at_ms for each in events if each.who == "W1" and each.kind == "stalled")
    after = sorted((e for e in events if e.at_ms >= paused), key=lambda each: each.at_ms)
    store = [each for each in _requests(after, "W1")
             if each["status"] == REFUSED and str(each["key"]).endswith(FENCE)]  # fmt: skip
    own = [each for each in after if each.who == "W1" and each.kind == "refused"]
    return (*store[:1], *own[:1])


def _requests(events: Iterable[Event], client: str) -> Iterator[Event]:
    for each in events:
        if each.who == STORE and each.kind == "request" and each["client"] == client:
            yield each


def orders(url: str, endpoint: str | None, events: list[Event]) -> tuple[int, int]:
    """Count the orders that the published commits of a history wrote, and those in the table.

    Nothing is ever deleted from this table, so every published order must be found.
    """
    published = {str(each["instant"]) for each in events if each.kind == "published"}
    files = {
        str(file["file"])
        for each in events if each.kind == "note" and "files" in each.data
        for file in each["files"]
    }  # fmt: skip
    reported: set[str] = set()
    with closing(open_store(url, endpoint=endpoint)) as store:
        for path in sorted(files):
            if path.removesuffix(".parquet").rpartition("_")[2] in published:
                found = store.get(path)
                assert isinstance(found, Found), f"{path} was published and is lost"
                reported.update(read_base_file(path, found.body)[TABLE.record_key].to_pylist())
        there = set(read_table(store)[TABLE.record_key].to_pylist())
    return len(reported), len(reported & there)


class SideBySide(Shown):
    """Two runs side by side, or one below the other on a narrow page."""

    def __init__(self, *runs: StalledRun) -> None:
        self.runs = runs
        self.view = widgets.HBox(
            [self._column(each) for each in runs],
            layout=widgets.Layout(flex_flow="row wrap", grid_gap="16px"),
        )
        self.view.add_class("lockkit-beside")

    @staticmethod
    def _column(run: StalledRun) -> widgets.VBox:
        picture = Workbench.replay(
            run.events, () if run.decided == ACCEPTED else refusal(run.events)
        )
        stalls = [each["t"][0] for each in picture.scene["bars"]
                  if each["lane"] == "W1" and each["kind"] == "stall"]  # fmt: skip
        late = ("stale", "refused", "conflict")
        picture.selected = next(  # both open at W1's late commit
            (each["id"] for each in picture.scene["marks"] if each["lane"] == "W1"
             and each["kind"] in late and each["t"] >= min(stalls, default=0)), "",
        )  # fmt: skip
        return widgets.VBox(
            [widgets.HTML(run._repr_html_()), picture],
            layout=widgets.Layout(flex="1 1 460px", min_width="0"),
        )

    def __repr__(self) -> str:
        return "\n".join(repr(each) for each in self.runs)
