"""A fleet: writers that commit to one table at the same time, under a supervisor that owns them.

The kernel (or a test, or the demo) holds a `Fleet`. The processes belong to the supervisor, which
the fleet starts in a session of its own. Interrupting the kernel's group does not reach it; the end
of the kernel ends every process below it.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from lockkit.cli.shipped import ROOT
from lockkit.clock import Clock
from lockkit.errors import StatedError
from lockkit.events import Event
from lockkit.lab.processes.child import ChildProcess, Said, last_words
from lockkit.lab.processes.process import FLEET, leftovers
from lockkit.lab.processes.temporary import TemporaryFolder

__all__ = ["Fleet", "FleetError", "Plan", "leftovers"]

Kind = Literal["plain", "connect", "jvm"]
Provider = Literal["s3", "gcs", "azure"]

KINDS = ("plain", "connect", "jvm")
TABLES = {"s3": "s3://lake/orders", "gcs": "gs://lake/orders", "azure": "az://lake/orders"}
WRITERS_MAX = 8
SPAWN_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
KILL_TIMEOUT_S = 2.0


class FleetError(StatedError, ValueError):
    """A fleet that cannot be launched: names the setting and its allowed values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of a supervisor's run. Their defaults are those of `Fleet`."""

    fleet: str
    run_dir: str
    url: str
    endpoint: str | None
    """The URL of a running server; None: the embedded one if `hosted`, else a real bucket."""
    hosted: bool
    kind: str
    writers: int
    provider: str
    profile: str | None
    overlap: float
    ttl_s: float
    renew_interval_s: float
    rounds: int | None
    fence: bool
    latency_ms: float
    deadman_s: float | None
    dataset: str
    pause_s: float

    def __post_init__(self) -> None:
        for wrong, what in (
            (self.kind not in KINDS, f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}"),
            (
                self.provider not in TABLES,
                f"provider must be {', '.join(TABLES)}, not {self.provider!r}",
            ),
            (
                not 1 <= self.writers <= WRITERS_MAX,
                f"writers must be from 1 to {WRITERS_MAX}, not {self.writers}",
            ),
            (not 0 <= self.overlap <= 1, f"overlap must be from 0 to 1, not {self.overlap}"),
            (self.ttl_s <= 0, f"ttl_s must be more than 0, not {self.ttl_s}"),
            (
                not 0 < self.renew_interval_s <= self.ttl_s / 10 * (1 + 1e-9),
                f"renew_interval_s must be > 0, at most ttl_s / 10, not {self.renew_interval_s}",
            ),
            (
                self.rounds is not None and self.rounds < 1,
                f"rounds must be at least 1, or None, not {self.rounds}",
            ),
            (self.latency_ms < 0, f"latency_ms must be at least 0, not {self.latency_ms}"),
        ):
            if wrong:
                raise FleetError("this fleet", f"cannot be launched: {what}")


class Fleet:
    """Concurrent writers, live: launch, stall, resume, kill and stop them, and read their history.

    `events()` holds them in the order in which they arrived; `at_ms` says when each happened.
    `launch()` starts it and returns at once; a later failure is in `error`.

    :param kind: which writers run: plain Python or PySpark.
    :param writers: the number of writers.
    :param provider: the lock that they take.
    :param profile: the provider that the embedded server imitates.
    :param overlap: the share of writes to the same files, from 0 to 1.
    :param ttl_s: the length of the lease, in seconds.
    :param renew_interval_s: the time between renewals, in seconds.
    :param rounds: commits of each writer; None: until `stop`.
    :param fence: whether commits check the fence.
    :param run_dir: the folder of the run's files; None: a temporary one.
    :param latency_ms: added to each request, in milliseconds.
    :param url: the table; None: the provider's own on the embedded server.
    :param endpoint: the URL of a running store; None: the embedded server, or a real bucket with
        `url`.
    :param dataset: the folder of the input; None: `datasets/orders`.
    :param pause_s: the pause between two commits, in seconds.
    :param deadman_s: end the run after this many seconds without a sign from this process; None:
        never.
    :param prepared: a fleet whose prepared processes, id and folder this one takes.
    :raises FleetError: if the settings cannot be launched.
    """

    def __init__(
        self,
        *,
        kind: Kind = "plain",
        writers: int = 3,
        provider: Provider = "s3",
        profile: str | None = None,
        overlap: float = 0.5,
        ttl_s: float = 4.0,
        renew_interval_s: float = 0.4,
        rounds: int | None = None,
        fence: bool = True,
        run_dir: str | Path | None = None,
        latency_ms: float = 0,
        url: str | None = None,
        endpoint: str | None = None,
        dataset: str | Path | None = None,
        pause_s: float = 0.3,
        deadman_s: float | None = None,
        prepared: Fleet | None = None,
    ) -> None:
        """`prepared`: takes the processes of that fleet, its id and its folder."""
        self.id: str = prepared.id if prepared else Clock().unique()
        self._temporary: TemporaryFolder | None = prepared._temporary if prepared else None
        if not prepared and run_dir is None:
            self._temporary = TemporaryFolder("lockkit-fleet-")
        named = self._temporary.path if self._temporary else Path(run_dir or "")
        self.run_dir: Path = prepared.run_dir if prepared else named
        self.plan = Plan(
            fleet=self.id,
            run_dir=str(self.run_dir),
            url=url or TABLES.get(provider, ""),
            endpoint=endpoint,
            hosted=url is None and endpoint is None,
            kind=kind,
            writers=writers,
            provider=provider,
            profile=profile,
            overlap=overlap,
            ttl_s=ttl_s,
            renew_interval_s=renew_interval_s,
            rounds=rounds,
            fence=fence,
            latency_ms=latency_ms,
            deadman_s=deadman_s,
            dataset=str(dataset or ROOT / "datasets" / "orders"),
            pause_s=pause_s,
        )
        self.error: str | None = None
        self.endpoint: str | None = endpoint
        """The store itself (no faults on the way), once it answers: for looking at the table."""
        self.url = self.plan.url
        self._states = {f"W{number}": "starting" for number in range(1, writers + 1)}
        self._events: list[Event] = []
        self._news = threading.Condition()
        self._spawned = threading.Event()
        self._supervisor: ChildProcess | None = prepared._supervisor if prepared else None
        self._keeper: threading.Thread | None = None
        self._killed = False

    # --- life ---

    def __repr__(self) -> str:
        states = ", ".join(f"{writer} {state}" for writer, state in self.writers.items())
        now = f"failed: {self.error}" if self.error else states if self._keeper else "not launched"
        return f"<Fleet {self.id}: {now}>"

    def prepare(self) -> None:
        """Start the processes of plain writers ahead, for a fleet made with `prepared=` this one.

        They import what they need on any provider and wait. Then `launch` takes a fraction of a
        second.
        """
        others = [url for each, url in TABLES.items() if each != self.plan.provider]
        self._supervisor = self._spawn(ahead=asdict(self.plan), others=others)

    @property
    def waits(self) -> bool:
        """Whether its processes were started by `prepare`, and still wait."""
        return self._keeper is None and self._supervisor is not None and self._supervisor.alive

    def launch(self) -> None:
        """Start everything; returns at once. A fleet is launched once."""
        if self._keeper is not None:
            raise FleetError("this fleet", "was launched before", "make a new one")
        # The supervisor dies with the *thread* that starts it: this one lives as long as the fleet.
        self._keeper = threading.Thread(target=self._keep, name="lockkit-fleet", daemon=True)
        self._keeper.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """End every process, even a paused one. May be called at any time, and repeatedly."""
        if self._keeper is None:
            if self._supervisor is not None:
                self._supervisor.close()
                self._supervisor.end(KILL_TIMEOUT_S)
            return
        self._send(do="stop")
        self._keeper.join(STOP_TIMEOUT_S)
        if self._keeper.is_alive() and self._supervisor is not None:
            self._killed = True
            self._supervisor.process.kill()  # the kernel's parent-death signal ends what it owned
            self._keeper.join(KILL_TIMEOUT_S)
        for pid in leftovers(self.id):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        atexit.unregister(self.stop)

    @property
    def alive(self) -> bool:
        return self._keeper is not None and self._keeper.is_alive()

    @property
    def pid(self) -> int | None:
        """The supervisor's."""
        return self._supervisor.pid if self._supervisor else None

    def __enter__(self) -> Fleet:
        self.launch()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- faults on demand ---

    def stall(
        self, writer: str, at: Literal["commit", "now"] = "commit", *, tree: bool = False
    ) -> None:
        """SIGSTOP a writer: now, or after its next conflict check, while it holds the lock.

        `tree` stops its JVM and Python workers as well, as a frozen machine would.
        """
        self._send(do="stall", writer=self._known(writer), at=at, tree=tree)

    def resume(self, writer: str) -> None:
        self._send(do="resume", writer=self._known(writer))

    def kill(self, writer: str) -> None:
        """SIGKILL a writer and every process that it started."""
        self._send(do="kill", writer=self._known(writer))

    def lose_response(self, writer: str | None = None) -> None:
        """The next write of lock or fence (by that writer) is applied, its answer dropped."""
        self._send(do="lose_response", writer=writer and self._known(writer))

    def fence(self, on: bool) -> None:
        """Switch the fence on or off for commits that begin from now on."""
        self._send(do="fence", on=on)

    def hold(self, writer: str, on: bool) -> None:
        """Let a writer wait with its next commit, prepared and without the lock; or let it go on.

        A commit that has begun to wait for the lock is not held.
        """
        self._send(do="hold", writer=self._known(writer), on=on)

    def beat(self) -> None:
        """Send a sign of life, if the fleet has `deadman_s`."""
        self._send(do="beat")

    # --- what happened

    @property
    def writers(self) -> dict[str, str]:
        """Each writer's state: starting, running, stalled or exited."""
        with self._news:
            return dict(self._states)

    def events(self, since: int = 0) -> list[Event]:
        with self._news:
            return self._events[since:]

    def wait(self, predicate: Callable[[Event], bool], timeout_s: float, *, since: int = 0) -> bool:
        """Whether some event, past (from number `since` on) or to come, satisfies `predicate`."""
        clock = Clock()
        end_ms = clock.boot_ms() + timeout_s * 1000
        while True:
            with self._news:
                if since == len(self._events) and self.alive:
                    self._news.wait(min(0.5, max(0.0, (end_ms - clock.boot_ms()) / 1000)))
                fresh = self._events[since:]
            if any(predicate(each) for each in fresh):
                return True
            since += len(fresh)
            if not fresh and (clock.boot_ms() >= end_ms or not self.alive):
                return False

    def remove_files(self) -> None:
        """Remove the run's folder now, unless the caller named it."""
        if self._temporary:
            self._temporary.remove()

    def keep_files(self) -> None:
        """Keep the run's folder: an error names a log in it."""
        if self._temporary:
            self._temporary.keep()

    # --- the thread that keeps the supervisor ---

    def _spawn(self, **settings: Any) -> ChildProcess:
        if sys.platform == "win32":
            raise FleetError("a fleet", "stops processes by signals", "use Linux, macOS or WSL")
        self.run_dir.mkdir(parents=True, exist_ok=True)
        return ChildProcess(
            "lockkit.lab.processes.supervisor", settings, log=self.run_dir / "supervisor.log",
            env=os.environ | {FLEET: self.id}, session=True,
        )  # fmt: skip

    def _keep(self) -> None:
        try:
            plan = asdict(self.plan)
            if self._supervisor is None:
                self._supervisor = self._spawn(plan=plan)
            else:
                self._supervisor.send(plan=plan)
            self._spawned.set()
            for each in self._supervisor.said():
                self._take(each)
            code = self._supervisor.process.wait()
        except Exception as error:  # noqa: BLE001 - a thread has no caller to raise to: it is shown
            self.error, code = f"the fleet could not be kept: {error}", 1
        finally:
            self._spawned.set()
        with self._news:
            if code and self.error is None and not self._killed:
                said = last_words(self.run_dir / "supervisor.log")
                self.error = f"the supervisor ended with code {code}: {said}"
            self._states = dict.fromkeys(self._states, "exited")
            self._news.notify_all()

    def _take(self, said: Said) -> None:
        """An event, or a message about the fleet itself."""
        if not isinstance(said, Event):
            with self._news:
                self.error = said.get("error", self.error)
                self.endpoint = said.get("endpoint", self.endpoint)
                self._news.notify_all()
            return
        with self._news:
            self._events.append(said)
            if said.who in self._states:
                self._states[said.who] = _state(said, self._states[said.who])
            self._news.notify_all()

    def _send(self, **command: Any) -> None:
        if self._keeper is None:
            raise FleetError("this fleet", "was not launched yet", "call launch()")
        self._spawned.wait(SPAWN_TIMEOUT_S)
        if self._supervisor is not None:
            self._supervisor.send(**command)

    def _known(self, writer: str) -> str:
        if writer not in self._states:
            raise FleetError(
                f"no writer {writer!r}", "", f"this fleet has {', '.join(self._states)}"
            )
        return writer


def _state(happened: Event, before: str) -> str:
    match happened.kind:
        case "stalled" | "exited":
            return happened.kind
        case "started":
            return "starting"
        case "killed" | "note":
            return before
        case "resumed":
            return "running"
        case _:  # it sends events itself; the last ones before its stop may arrive late
            return "running" if before == "starting" else before
