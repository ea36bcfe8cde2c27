"""The controller: one thread that owns a fleet and reports its state to the panel.

Buttons only enqueue: which thread runs a widget's callback depends on ipykernel's version, and a
callback that waits would freeze the page. Everything that takes time, and every change of a widget,
happens in this thread. It starts with the first command and ends with `close`.

One file because this one thread owns everything that the commands change.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from lockkit.clock import Clock
from lockkit.events import Event, HistoryNarrator
from lockkit.lab.widgets.ahead import Ahead
from lockkit.lab.widgets.launch import PROVIDERS, LaunchSettings, has_room
from lockkit.lab.widgets.models import HistoryModel
from lockkit.lab.widgets.predict import IN_VOILA
from lockkit.lab.widgets.scene import Scene, facts, scene, text

TICK_S, FIRST_TICK_S = 0.25, 0.05
"""Between two looks at the writers; until their first event."""
WINDOW_MS = 15_000.0
"""How much of the past the live picture shows; the replay after Stop shows all of it."""
LIVE_ARROWS_MAX = 120
STALL_ARROWS_MAX, STALL_LEAD_MS = 200, 1_000.0
"""The same while a writer stands still: the picture goes back to where it stopped. The arrows are
counted on both sides of what a long stall has no room for."""
LOG_LINES_MAX = 40
QUIET_TICKS = 4
"""While nothing happens only the clock moves: the page is updated once a second."""
DEADMAN_S = 120.0
"""Browsers let a hidden tab send once a minute: a shorter silence means nothing."""
VERDICT_SHARE = 0.1
"""At most this part of the time goes into checking: a long history is checked less often."""
VERDICT_PAUSE_MS_MIN = 1_000.0
STARTING = {"starting"}
SILENT_MS = 15_000.0
"""After this silence an app's page counts as closed, or its tab as hidden."""
SAID_MS = 15_000.0
"""How long the line beside the state shows what happened."""
COMMAND_TIMEOUT_S = 30.0
HOT = "; this store takes one write per second to an object: the first commit takes some 4 s"
CLOSED = "This workbench was closed because a newer one was made. Use the newer one."


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelUpdate:
    """Everything that the panel shows at one moment."""

    state: str
    said: str
    scene: Scene
    writers: dict[str, str]
    verdict: Any = None
    facts: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    error: str = ""
    trace: str = ""
    live: bool = False
    kind: str = ""
    """Of the writers: plain, connect or jvm; "" if nothing was launched."""
    coming: str = ""
    """Of the writers that start beside them, to replace them."""
    ready: bool = False
    """Those work, and wait until the reader wants to see them."""
    starting: bool = False
    """A launch waits for the first request of a writer."""


@dataclass(slots=True)
class Command:
    """A request to the controller, and a way to learn that it is done."""

    do: str
    args: dict[str, Any] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


class Controller:
    """Carries out commands one after the other, and checks its fleet four times a second."""

    def __init__(
        self, report: Callable[[PanelUpdate], None], *, fleet_of: Callable[..., Any],
        likely: Callable[[], LaunchSettings],
    ) -> None:
        """`likely`: the settings of the next launch, as far as they are known."""
        self._send = report
        self._fleet_of = fleet_of
        self._ahead = Ahead(likely, self._made, self._discard)
        self._clock = Clock()
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._page_seen = threading.Event()
        self._page_spoke = threading.Event()
        self._spoke_ms = 0.0
        self._closed = False
        self.fleet: Any = None
        self._coming: Any = None
        """Writers that start while others run; they replace them with their first request."""
        self.verdict: Any = None
        self._reset()

    def _reset(self) -> None:
        self._story = HistoryModel()
        self._teller = HistoryNarrator()
        self._log: deque[str] = deque(maxlen=LOG_LINES_MAX)
        self._taken = 0
        self._checked = 0
        self._check_after_ms = 0.0
        self._armed: set[str] = set()
        self._quiet = 0
        self._said = self._error = self._trace = ""
        self._said_before, self._said_ms = "", 0.0
        self._touched = False
        self.verdict = None

    # --- for any thread -------------------------------------------------------------------------

    def ask(self, do: str, **args: Any) -> Command:
        """Put a command into the queue; returns at once."""
        command = Command(do, args)
        if self._closed:
            command.error = RuntimeError(CLOSED)
            command.done.set()
            return command
        self._closed = do == "close"
        self._commands.put(command)
        with self._starting:
            if self._thread is None and do != "close":
                self._thread = threading.Thread(
                    target=self._run, name="lockkit-workbench", daemon=True
                )
                self._thread.start()
        return command

    def wait(self, command: Command) -> None:
        """Wait until it is done; raise its error."""
        if not command.done.wait(COMMAND_TIMEOUT_S):
            raise TimeoutError(f"{command.do}: the workbench is busy; press Stop and try again")
        if command.error is not None:
            raise command.error

    def beat(self) -> None:
        """Note a sign of life from the page."""
        was_silent, self._spoke_ms = self._is_silent(), self._clock.boot_ms()
        if was_silent:
            self.ask("look")
        if not self._page_seen.is_set():
            self._page_seen.set()
            self.ask("ahead")
        self._page_spoke.set()

    def busy(self) -> None:
        """Note that our caller blocks the kernel: missing messages do not mean a closed page."""
        self._page_spoke.set()

    @property
    def events(self) -> list[Event]:
        return self.fleet.events() if self.fleet is not None else []

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        going = True
        while going:
            command = self._next()
            try:
                going = command is None or self._obey(command)
                self._look(by_user=command is not None)
            except Exception as error:  # noqa: BLE001 - no caller to raise to: it is shown
                self._failed(error)
                if command is not None:
                    command.error = error
            finally:
                if command is not None:
                    command.done.set()

    def _next(self) -> Command | None:
        """The next command; None when it is time to look at the fleet."""
        if self._running():
            wait_s: float | None = TICK_S if self._story.seen else FIRST_TICK_S
        else:
            wait_s = DEADMAN_S if self._ahead.waits else None
        try:
            return self._commands.get(timeout=wait_s)
        except Empty:
            if not self._running():
                self._give_up_unseen()
            return None

    def _give_up_unseen(self) -> None:
        """End processes that wait while no page shows the panel; its next beat starts others."""
        if not self._page_spoke.is_set():
            self._ahead.drop()
            self._page_seen.clear()
        self._page_spoke.clear()

    def _running(self) -> bool:
        return self.fleet is not None and self.fleet.alive

    def _obey(self, command: Command) -> bool:
        fleet, args = self.fleet, command.args
        match command.do:
            case "launch":
                self._launch(args["settings"])
            case "ahead" if not self._running():
                self._start_ahead()
            case "stop":
                self._start_ahead()
                self._stop()
            case "close":
                self._stop()
                self._discard(self.fleet)
                self._ahead.drop()
            case "prepare" if self._running():
                self._prepare(args["settings"])
            case "prepare":
                self._launch(args["settings"])
            case "ahead" | "snapshot":
                pass
            case _ if not self._running():
                self._said = f"{command.do}: nothing runs; press Launch first"
            case "stall":
                fleet.stall(args["writer"], at=args["at"])
                self._armed.add(args["writer"])
                self._touched = True
                where = "at its next commit, holding the lock" if args["at"] == "commit" else "now"
                self._said = f"{args['writer']} will be paused (SIGSTOP) {where}"
            case "resume":
                self._armed.discard(args["writer"])
                fleet.resume(args["writer"])
                self._said = f"{args['writer']} continues"
            case "lose":
                self._touched = True
                fleet.lose_response(args["writer"])
                self._said = (
                    f"the next write of the lock or the fence by {args['writer'] or 'any writer'} "
                    "will be applied, and its response dropped"
                )
            case "fence":
                fleet.fence(args["on"])
                how = "with" if args["on"] else "WITHOUT"
                self._said = f"commits begun from now on go {how} the fence"
        return command.do != "close"

    def _launch(self, settings: LaunchSettings) -> None:
        self._stop()
        self._discard(self.fleet)
        self._reset()
        self.fleet = None
        self.fleet = self._made(settings, **self._ahead.take(settings))
        self.fleet.launch()
        slow = HOT if settings.provider == "gcs" else ""
        if settings.kind != "plain":
            slow = "; Spark takes some 10 to 30 s to start"
        store = PROVIDERS.get(settings.provider, settings.provider)
        self._said = f"launched {settings.writers} writers on {store}{slow}"

    def _start_ahead(self) -> None:
        """Start the next launch's writers; while others run, from their first commit on."""
        if self._page_seen.is_set() and self._coming is None:
            self._ahead.start()

    def _prepare(self, settings: LaunchSettings) -> None:
        """Start other writers beside those that run, on a table of their own; or show them."""
        if self._works(self._coming):
            self._replace()
            return
        self._drop_coming()
        self._ahead.drop()
        self._coming = self._made(settings)
        self._coming.launch()
        self._said = (
            "PySpark starts in the background, in 10 to 30 s; these writers continue until then"
        )

    def _made(self, settings: LaunchSettings, **more: Any) -> Any:
        return self._fleet_of(
            kind=settings.kind, writers=settings.writers, provider=settings.provider,
            overlap=settings.overlap, ttl_s=settings.lease_s, rounds=settings.rounds,
            renew_interval_s=settings.lease_s / 10, fence=settings.fence,
            latency_ms=settings.latency_ms, **more,
            deadman_s=DEADMAN_S if self._page_seen.is_set() else None,
        )  # fmt: skip

    def _switch(self) -> None:
        """Show the prepared writers as soon as one of them works; end the others.

        A run in which a reader stalled a writer or lost a response stays until the reader is done.
        """
        if self._coming is None:
            return
        if self._coming.error:
            self._said = text(f"PySpark did not start: {self._coming.error}", limit=500)
            self._drop_coming()
        elif self._works(self._coming):
            if self._touched:
                self._said = "PySpark has started: press PySpark to see it; this run then ends"
            else:
                self._replace()

    def _replace(self) -> None:
        fleet, self._coming = self._coming, None
        self.fleet.stop()
        self._discard(self.fleet)
        self._reset()
        self.fleet = fleet
        self._said = "PySpark has started: these are its writers, on a table of their own"

    @staticmethod
    def _works(fleet: Any) -> bool:
        return fleet is not None and any(each.kind == "ask" for each in fleet.events())

    def _drop_coming(self) -> None:
        if self._coming is not None:
            self._coming.stop()
            self._discard(self._coming)
            self._coming = None

    def _stop(self) -> None:
        self._drop_coming()
        if self.fleet is None:
            return
        if self.fleet.alive:
            self._show(self._news("stopping", "stopping every writer"))
        self.fleet.stop()
        self._take()
        self._judge(at_last=True)
        keys = "drag the slider, or press Tab and the arrow keys"
        self._said = f"stopped; {self._story.seen} events: {keys}"

    @staticmethod
    def _discard(fleet: Any) -> None:
        """Remove an earlier run's files: its store and its logs."""
        if fleet is None or fleet.error:
            return  # its message names the logs
        fleet.remove_files()

    def _failed(self, error: Exception) -> None:
        self._error = f"{type(error).__name__}: {error}"
        self._trace = traceback.format_exc()
        self._show(self._news("failed", ""))

    # --- looking --------------------------------------------------------------------------------

    def _look(self, *, by_user: bool) -> None:
        if self.fleet is None:
            self._show(self._news("idle", self._said))
            return
        self._switch()
        if self._page_spoke.is_set():
            self._page_spoke.clear()
            self.fleet.beat()
            if self._coming is not None:
                self._coming.beat()
        fresh = self._take()
        if self.fleet.error:
            self._error = text(" ".join(self.fleet.error.split()), limit=2_000)
        alive = self._running()
        if alive:
            self._forget()
        self._judge(at_last=not alive)
        self._quiet = 0 if fresh or by_user or not alive else self._quiet + 1
        if self._quiet % QUIET_TICKS == 0:
            self._show(self._news(self._state(alive), self._said))

    def _forget(self) -> None:
        """Take away what was said a while ago: beside a run that goes on it reads as of now."""
        now_ms = self._clock.boot_ms()
        if self._said != self._said_before:
            self._said_before, self._said_ms = self._said, now_ms
        states = set(self.fleet.writers.values())
        lasts = self._coming is not None or "stalled" in states or states == STARTING
        if not lasts and now_ms - self._said_ms > SAID_MS:
            self._said = ""

    def _show(self, news: PanelUpdate) -> None:
        if self._is_silent():
            return  # the tab was closed; what is sent to it counts as use of the kernel
        if not self._closed:  # a closed panel has said so, and stays that way
            self._send(news)

    def _is_silent(self) -> bool:
        silent_ms = self._clock.boot_ms() - self._spoke_ms
        return IN_VOILA and self._spoke_ms > 0 and silent_ms > SILENT_MS

    def _take(self) -> int:
        """Add the new events to the story; return their number."""
        fresh = self.fleet.events(self._taken)
        self._taken += len(fresh)
        self._story.add(fresh)
        for each in fresh:
            if (line := self._teller.narrate(each)) is not None:
                self._log.append(text(line))
            if each.kind in ("stalled", "exited"):
                self._armed.discard(each.who)
            if each.kind == "published" and not self._ahead.waits and has_room():
                self._start_ahead()
            if each.kind == "stalled":
                self._said = f"{each.who} is paused (SIGSTOP): {each.get('why') or 'by hand'}"
            if each.kind == "fault":
                self._said = f"a response to {each['client'] or 'a writer'} was lost"
        return len(fresh)

    def _judge(self, *, at_last: bool) -> None:
        """Judge the history so far; less often the longer that takes."""
        from lockkit.lab.verify.check import check

        now_ms = self._clock.boot_ms()
        if self._checked == self._taken or (now_ms < self._check_after_ms and not at_last):
            return
        if not (at_last or any(each.decided_ms is not None for each in self._story.exchanges)):
            return  # the server's record comes a moment after the clients'
        self.verdict = check(self.fleet.events())
        self._checked = self._taken
        spent_ms = self._clock.boot_ms() - now_ms
        pause_ms = max(VERDICT_PAUSE_MS_MIN, spent_ms / VERDICT_SHARE)
        self._check_after_ms = self._clock.boot_ms() + pause_ms

    def _state(self, alive: bool) -> str:
        if not alive:
            return "failed" if self._error else "stopped"
        states = set(self.fleet.writers.values())
        if "stalled" in states:
            return "stalled"
        return "starting" if states == STARTING else "running"

    def _news(self, state: str, said: str) -> PanelUpdate:
        live = self._running()
        now_ms = float(self._clock.wall_ms())
        drawn = scene(
            self._story,
            now_ms=now_ms if live and self._story.seen else None,
            **(window(self._story, now_ms) if live else {}),
            evidence=self.verdict.evidence if self.verdict else (),
        )
        writers = dict(self.fleet.writers) if self.fleet is not None else {}
        for name in self._armed & set(writers):
            writers[name] = "armed"
        waits = live and state != "stopping" and not self._story.at_work
        return PanelUpdate(
            state=state, said=said, scene=drawn, writers=writers, verdict=self.verdict,
            facts=facts(self._story), log=tuple(self._log), error=self._error,
            trace=self._trace, live=live, starting=waits,
            kind="" if self.fleet is None else self.fleet.plan.kind,
            coming="" if self._coming is None else self._coming.plan.kind,
            ready=self._touched and self._works(self._coming),
        )  # fmt: skip


def window(story: HistoryModel, now_ms: float) -> dict[str, Any]:
    """What the live picture shows: the newest seconds, and all of a pause that still lasts."""
    stalled_ms = [each.began_ms for each in story.stalls if each.ended_ms is None]
    if not stalled_ms:
        return {"window_ms": WINDOW_MS, "arrows_max": LIVE_ARROWS_MAX}
    since_ms = now_ms - min(stalled_ms) + STALL_LEAD_MS
    return {"window_ms": max(WINDOW_MS, since_ms), "arrows_max": STALL_ARROWS_MAX}
