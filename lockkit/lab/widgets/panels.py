"""The workbench: nine controls, the diagram below them, and the same actions by code.

    bench = Workbench()
    bench

Nothing starts before Launch is pressed (or `bench.launch()` is called). Stop always works. Running
the cell again closes the previous workbench. Without a browser `repr` shows the same state.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from lockkit.cli.shipped import located
from lockkit.clock import Clock
from lockkit.events import Event, read
from lockkit.lab.widgets.charts import Charts
from lockkit.lab.widgets.control import CLOSED, Controller, PanelUpdate
from lockkit.lab.widgets.export import export_html, judged, log_lines, page_of
from lockkit.lab.widgets.lanes import Lanes
from lockkit.lab.widgets.launch import PROVIDERS, LaunchSettings, default_settings
from lockkit.lab.widgets.scene import Scene, whole
from lockkit.lab.widgets.ui import Newest, button, choice, column, row

CREWS = [
    ("3 PySpark, one shared Spark", ("connect", 3)),
    ("2 PySpark, one shared Spark", ("connect", 2)),
    ("2 PySpark, a JVM each", ("jvm", 2)),
    ("3 plain Python", ("plain", 3)),
    ("2 plain Python", ("plain", 2)),
    ("5 plain Python", ("plain", 5)),
]
SPARK = ("connect", 3)
OVERLAPS = [("never overlap", 0.0), ("sometimes overlap", 0.5), ("always overlap", 1.0)]
LEASES = [("2 s", 2.0), ("4 s", 4.0), ("10 s", 10.0), ("30 s", 30.0)]
EMPTY = """\
Nothing runs yet.
1. Launch: concurrent writers commit orders to one table, under one lock object.
2. Stall W1: its process is paused in the middle of a commit. Watch who takes the lock, and when.
3. Resume W1: it continues as if it still held the lock. Is its commit accepted?
4. Lose next response: the store applies a write, and its writer gets no answer."""
TITLE = "lockkit: what happened"
PREVIEW = "datasets/histories/good/lost_response_recovered.jsonl"
"""A recorded run plays until the first event of a launch."""
UNTIL_TIMEOUT_S = 90.0


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Switch garbage collection off meanwhile: it would take a quarter of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Workbench(Newest):
    """Launch writers, pause one, lose a response, and watch the lock object meanwhile.

    :param fleet_of: makes the fleet from settings; None: `Fleet`.
    :param settings: first values of the controls, by the names of `Fleet`'s parameters.
    """

    def __init__(self, *, fleet_of: Callable[..., Any] | None = None, **settings: Any) -> None:
        self.close_older()
        self._control = Controller(self._show, fleet_of=fleet_of or _fleet, likely=self.settings)
        self._news: PanelUpdate | None = None
        self._mark = 0
        self._build(default_settings(**{"kind": "plain"} | settings))  # they start within a second
        self.lanes.status = {"state": "idle", "empty": EMPTY}

    # --- the panel ------------------------------------------------------------------------------

    def _build(self, start: LaunchSettings) -> None:
        team = (start.kind, start.writers)
        crews = CREWS if team in dict(CREWS).values() else [(f"{team[1]} {team[0]}", team), *CREWS]
        lease = start.lease_s
        leases = LEASES if lease in dict(LEASES).values() else [(f"{lease:g} s", lease), *LEASES]
        overlaps = OVERLAPS
        if start.overlap not in dict(OVERLAPS).values():
            overlaps = [(f"overlap {start.overlap:g}", start.overlap), *OVERLAPS]
        self._rest = start
        stores = [(name, key) for key, name in PROVIDERS.items()]
        self.provider = choice("Provider", stores, start.provider, "210px")
        self.team = choice("Writers", crews, team, "285px")
        self.overlap = choice("Files", overlaps, start.overlap, "200px")
        self.lease = choice("Lease", leases, lease, "125px")
        self.fence_on = widgets.Checkbox(
            value=start.fence, description="Fence", indent=False,
            tooltip="Refuse a commit whose conflict check is out of date",
            layout=widgets.Layout(width="auto"),
        )  # fmt: skip
        self.launch_button = button(
            "Launch", self._clicked_launch, icon="play", style="success", tip="Start the writers"
        )
        self.stop_button = button(
            "Stop", lambda: self._control.ask("stop"), icon="stop", style="danger",
            tip="End every process; always works",
        )  # fmt: skip
        self.lose_button = button(
            "Lose next response", self._clicked_lose, icon="unlink",
            tip="The store applies the next write of the lock or the fence, and its answer is lost",
        )  # fmt: skip
        self.spark_button = button(
            "PySpark", self._clicked_spark, icon="bolt",
            tip="Start PySpark writers; those that run continue until PySpark is ready",
        )  # fmt: skip
        self.stall_buttons = row()
        self.lanes = Lanes(live=True, beats=True, on_beat=self._control.beat, on_export=self._page)
        self._parameters = (self.provider, self.team, self.overlap, self.lease)
        self.lose_button.disabled = True
        self._show_writers({}, live=False)
        self.fence_on.observe(self._clicked_fence, "value")
        self.view = column(
            "workbench",
            # In this order they take three lines of a narrow notebook.
            row(self.provider, self.lease, self.team, self.overlap, self.fence_on),
            row(self.launch_button, self.stop_button, self.spark_button, self.stall_buttons,
                self.lose_button),
            self.lanes, Charts(self.lanes),
        )  # fmt: skip

    def settings(self) -> LaunchSettings:
        """What the controls say."""
        kind, writers = self.team.value
        return replace(
            self._rest, provider=self.provider.value, kind=kind, writers=writers,
            overlap=self.overlap.value, lease_s=self.lease.value, fence=self.fence_on.value,
        )  # fmt: skip

    # Callbacks only enqueue; a button stays disabled until the controller has acknowledged.

    def _clicked_launch(self) -> None:
        if self.launch_button.disabled:
            return  # the second of a double click
        self.launch_button.disabled = True
        self._mark = 0
        self._control.ask("launch", settings=self.settings())

    def _clicked_spark(self) -> None:
        self.spark_button.disabled = True
        kind, writers = SPARK
        self._mark = 0
        self._control.ask("prepare", settings=replace(self.settings(), kind=kind, writers=writers))

    def _clicked_lose(self) -> None:
        self.lose_button.disabled = True
        self._control.ask("lose", writer=None)

    def _clicked_fence(self, _: Any) -> None:
        if self._news is not None and self._news.live:
            self._control.ask("fence", on=self.fence_on.value)

    def _clicked_stall(self, stall: widgets.Button) -> None:
        stall.disabled = True
        name, state = stall.writer, stall.state
        if state == "stalled" or state == "armed":
            self._control.ask("resume", writer=name)
        else:
            self._control.ask("stall", writer=name, at="commit")

    # --- updates by the controller ---------------------------------------------------------------

    def _show(self, news: PanelUpdate) -> None:
        """Runs in the controller's thread, the only one to change widgets while writers run."""
        self._news = news
        live = news.live
        recorded = previewed() if live and news.starting else None
        preview = recorded is not None
        status = {
            "state": news.state, "said": news.said, "recorded": preview,
            "facts": list(news.facts), "log": list(news.log),
            "empty": "Waiting for the first event." if live else EMPTY,
            "error": {"summary": news.error, "traceback": news.trace} if news.error else None,
            **judged(news.verdict if news.scene.get("rows") else None),  # nothing to judge yet
        }  # fmt: skip
        with self.lanes.hold_sync():
            self.lanes.live = not preview and (live or not news.scene["events"])
            self.lanes.scene = recorded or news.scene
            self.lanes.status = status
            if live and not preview:
                self.lanes.cursor = -1.0
        if news.kind == SPARK[0] and self.team.value[0] != news.kind:
            self.team.value = SPARK
        for each in self._parameters:
            each.disabled = live
        self.launch_button.disabled = live
        starts = bool(news.coming) and not news.ready
        self.spark_button.disabled = starts or (live and news.kind != "plain")
        self.lose_button.disabled = not live
        self._show_writers(news.writers, live=live)

    def _show_writers(self, states: dict[str, str], *, live: bool) -> None:
        names = list(states) or [f"W{n + 1}" for n in range(self.team.value[1])]
        if [each.writer for each in self.stall_buttons.children] != names:
            self.stall_buttons.children = [self._stall_button(name) for name in names]
        for each in self.stall_buttons.children:
            each.state = state = states.get(each.writer, "")
            each.description, each.button_style, each.icon = {
                "armed": (f"{each.writer} will stall", "warning", "hourglass-half"),
                "stalled": (f"Resume {each.writer}", "info", "play"),
            }.get(state, (f"Stall {each.writer}", "", "pause"))
            each.disabled = not live or state in ("exited", "")

    def _stall_button(self, name: str) -> widgets.Button:
        made = button(
            f"Stall {name}", icon="pause",
            tip=f"Pause {name}'s process (SIGSTOP) at its next commit, while it holds the lock",
        )  # fmt: skip
        made.writer, made.state = name, ""
        made.on_click(self._clicked_stall)
        return made

    # --- the same by code -------------------------------------------------------------------------

    def launch(self, **changes: Any) -> None:
        """Start the writers; keywords as in `LaunchSettings`. A running fleet is stopped
        first.
        """
        self._mark = 0
        settings = replace(self.settings(), **changes)
        self.fence_on.value = settings.fence  # the box shows what the writers do
        self._do("launch", settings=settings)

    def stall(self, writer: str, at: str = "commit") -> None:
        """Pause a writer's process: at its next commit, while it holds the lock, or now."""
        self._do("stall", writer=writer, at=at)

    def resume(self, writer: str) -> None:
        self._do("resume", writer=writer)

    def lose_response(self, writer: str | None = None) -> None:
        """The next write of the lock or the fence is applied, and its answer dropped."""
        self._do("lose", writer=writer)

    def fence(self, on: bool) -> None:
        self.fence_on.value = on
        self._do("fence", on=on)

    def stop(self) -> Any:
        """End every process; return the verdict on the whole history."""
        self._do("stop")
        return self.verdict

    def until(
        self, *kinds: str, who: str | None = None, timeout_s: float = UNTIL_TIMEOUT_S
    ) -> Event:
        """Wait for the next event of one of these kinds, after the last event waited for."""
        clock = Clock()
        deadline_ms = clock.boot_ms() + timeout_s * 1000
        fleet = self._control.fleet
        while fleet is not None:
            self._control.busy()
            left_s = (deadline_ms - clock.boot_ms()) / 1000
            fleet.wait(lambda _: True, min(1.0, max(0.0, left_s)), since=self._mark)
            for each in fleet.events(self._mark):
                self._mark += 1
                if each.kind in kinds and who in (None, each.who):
                    found: Event = each
                    return found
            if fleet.error or left_s <= 0 or not fleet.alive:
                break
        raise TimeoutError(self._why_not(" or ".join(kinds), who, timeout_s))

    def rehearse(self, *, fence: bool = True) -> Any:
        """Play the whole story: pause, takeover, late commit, lost answer; return the verdict."""
        self.launch(fence=fence, overlap=1.0)
        self.stall("W1")
        self.until("stalled", who="W1")
        self.until("published")  # another writer has taken the lock over, and committed
        self.resume("W1")
        self.until("refused", "published", who="W1")
        self.lose_response()
        self.until("fault")
        self.until("published")
        return self.stop()

    def _why_not(self, kinds: str, who: str | None, timeout_s: float) -> str:
        fleet = self._control.fleet
        wanted = f"{kinds} of {who}" if who else kinds
        if fleet is None:
            return f"no writers run, so there will be no {wanted}; bench.launch() first"
        if fleet.error:
            return f"there will be no {wanted}: {fleet.error}"
        if not fleet.alive:
            return f"there was no {wanted} before the writers ended"
        state = ", ".join(f"{name} {state}" for name, state in fleet.writers.items())
        return f"there was no {wanted} within {timeout_s:g} s ({state}; logs in {fleet.run_dir})"

    def _do(self, what: str, **args: Any) -> None:
        self._control.wait(self._control.ask(what, **args))

    # --- what happened ----------------------------------------------------------------------------

    @property
    def events(self) -> list[Event]:
        return self._control.events

    @property
    def verdict(self) -> Any:
        return self._control.verdict

    @property
    def state(self) -> str:
        return self._news.state if self._news is not None else "idle"

    def _page(self) -> str:
        return page_of(self.events, self.verdict, title=TITLE)

    def export(self, path: str | Path, title: str = TITLE) -> Path:
        """Write the run as one self-contained HTML page."""
        export_html(self.events, self.verdict, path, title=title)
        return Path(path)

    @staticmethod
    def replay(history: str | Path | Iterable[Event], decisive: Iterable[Event] = ()) -> Lanes:
        """Show and judge a recorded history (a JSON lines file, or events).

        A verdict that needs no evidence of its own shows the `decisive` events instead.
        """
        from lockkit.lab.verify.check import check

        if isinstance(history, (str, Path)):
            with Path(history).open(encoding="utf-8") as lines:
                events = list(read(lines))
        else:
            events = list(history)
        with nothing_collected():
            verdict = check(events)
            verdict = replace(verdict, evidence=verdict.evidence or tuple(decisive))
            return Lanes(
                scene=whole(events, evidence=verdict.evidence),
                status={"state": "replay", "log": log_lines(events), **judged(verdict)},
                on_export=lambda: page_of(events, verdict, title=TITLE),
            )

    def close(self) -> None:
        """Stop the writers and disable the panel. Does not wait."""
        self._control.ask("close")
        with suppress(Exception):  # the page and its comm may be gone; the processes are not
            buttons = (self.launch_button, self.stop_button, self.spark_button, self.lose_button)
            for each in (*buttons, *self._parameters):
                each.disabled = True
            self.lanes.status = {"state": "stopped", "said": CLOSED, "empty": CLOSED}

    def __repr__(self) -> str:
        verdict = judged(self.verdict)
        said = f"; {verdict['verdict']}: {verdict['because']}" if verdict else ""
        facts = ", ".join(self._news.facts) if self._news else ""
        return f"Workbench({self.state}{', ' + facts if facts else ''}{said})"


@cache
def previewed() -> Scene | None:
    """The recorded run that plays while writers start; None if its file is not there."""
    try:
        with located(PREVIEW).open(encoding="utf-8") as lines:
            return whole(read(lines))
    except OSError:
        return None


def _fleet(**options: Any) -> Any:
    from lockkit.lab.processes.fleet import Fleet

    return Fleet(**options)
