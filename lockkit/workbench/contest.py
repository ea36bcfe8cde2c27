"""The same contention on two lock services, side by side, and what is done to it. No widgets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from lockkit.clock import Clock
from lockkit.history import Event, event, parse
from lockkit.services.contender import LETS_GO
from lockkit.services.dynamodb import DynamoDB
from lockkit.services.hive import HiveMetastore
from lockkit.services.objects import ObjectServer
from lockkit.services.service import Service
from lockkit.services.zookeeper import ZooKeeper
from lockkit.spark.process import kill_tree
from lockkit.spark.supervisor import PLAY_CREDENTIALS, directly

CONTENDERS, LEASE_S, HOLD_S, THINK_S = 3, 4.0, 0.3, 0.05
STALL_LEASES = 2.5
STOP_S = 5.0
STRIKE_TRIES, STRIKE_POLL_S = 500, 0.01
ENTRY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Provider:
    """How one service is started, and what a lock on it is told."""

    says: str
    make: Callable[[Path], Service | None]
    options: Callable[[float], dict[str, Any]]
    """Of a lease of so many seconds."""


PROVIDERS = {
    "storage": Provider("one object, S3's dialect", ObjectServer, lambda s: {"ttl_s": s}),
    "zookeeper": Provider("ZooKeeper", ZooKeeper, lambda s: {"session_timeout_s": s}),
    "dynamodb": Provider("DynamoDB's API", DynamoDB, lambda s: {"lease_s": s}),
    "hive": Provider("Hive Metastore", HiveMetastore, lambda s: {"heartbeat_interval_s": s / 4}),
    # Azure leases nothing for less than 15 s.
    "azure-lease": Provider("an Azure blob's lease", ObjectServer, lambda _: {"ttl_s": 15}),
    "filesystem": Provider("a file", lambda _: None, lambda s: {"expire_minutes": s / 60}),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What one side came to. A hand-off is from letting go to the next grant; times in seconds."""

    grants: int
    per_s: float
    hand_off_p50_s: float | None
    wait_max_s: float | None
    longest_run: int
    """Most grants in a row to one process."""
    taken_over_s: tuple[float, ...]
    """From each stall or crash of a holder to the next grant."""
    overlap_s: float
    """For how long two believed that they held it."""
    requests_per_grant: float | None
    """Where the service's own record tells."""


@dataclass(slots=True)
class Side:
    """One service and the processes that want its lock."""

    name: str
    folder: Path
    lease_s: float
    events: list[Event] = field(default_factory=list)
    service: Service | None = None
    children: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    stalled: dict[str, threading.Timer] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def start(self, contenders: int, hold_s: float, think_s: float) -> None:
        """Raises `ServiceUnavailable` or `ServiceFailed`."""
        provider = PROVIDERS[self.name]
        self.folder.mkdir(parents=True, exist_ok=True)
        made = provider.make(self.folder / "service")
        if made is not None:
            self.service = made.start()
        for number in range(1, contenders + 1):
            self._launch(f"W{number}", hold_s, think_s)

    def _launch(self, name: str, hold_s: float, think_s: float) -> None:
        log = (self.folder / f"{name}.log").open("a")
        with log:
            child = subprocess.Popen(
                [sys.executable, "-m", "lockkit.services.contender"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1,
                start_new_session=True,
                env=os.environ | PLAY_CREDENTIALS | directly(dict(os.environ))
                | {"PYTHONPATH": str(ENTRY)},
            )  # fmt: skip
        self.children[name] = child
        asked = {
            "name": name, "parent": os.getpid(), "lock": self.lock(), "hold_s": hold_s,
            "think_s": think_s, "options": self.options(),
        }  # fmt: skip
        assert child.stdin is not None
        child.stdin.write(json.dumps(asked) + "\n")
        self.tell(name, "started", pid=child.pid)
        threading.Thread(target=self._hear, args=(name, child), daemon=True).start()

    def lock(self) -> Any:
        if self.service is None:
            return f"filesystem://{self.folder}/lock"
        if self.name == "azure-lease" and isinstance(self.service, ObjectServer):
            return f"azure-lease://lake/orders?endpoint={self.service.azure}"
        return self.service.url or self.service.recipe()

    def options(self) -> dict[str, Any]:
        options = PROVIDERS[self.name].options(self.lease_s)
        if self.name == "storage" and isinstance(self.service, ObjectServer):
            options["endpoint"] = self.service.endpoint
        return options

    def _hear(self, name: str, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            with self._turn:
                self.events.append(parse(line))
        code = child.wait()
        self.tell(name, "exited", pid=child.pid, code=code)

    def tell(self, who: str, kind: str, **fields: Any) -> None:
        with self._turn:
            self.events.append(event(self.clock.stamp_ms(), who, kind, **fields))

    @property
    def history(self) -> list[Event]:
        with self._turn:
            return sorted(self.events, key=lambda each: each.at_ms)

    # --- what is done to it ----------------------------------------------------------------------

    def holder(self) -> str | None:
        """Who was granted it last, has not let go, and runs."""
        last = next(
            (each for each in reversed(self.history) if each.kind in ("held", "released")), None
        )
        if last is None or last.kind == "released" or last.who in self.stalled:
            return None
        return last.who if self.children[last.who].poll() is None else None

    def stall(self) -> str | None:
        """SIGSTOP the holder for two and a half leases; who it was."""
        who = self.holder()
        if who is not None:
            child = self.children[who]
            os.kill(child.pid, signal.SIGSTOP)
            self.tell(who, "stalled", pid=child.pid, why="by hand")
            timer = threading.Timer(STALL_LEASES * self.lease_s, self._resume, (who,))
            self.stalled[who] = timer
            timer.daemon = True
            timer.start()
        return who

    def strike(self, how: str) -> str | None:
        """`stall` or `kill` whoever holds it next, within seconds; who it was."""
        for _ in range(STRIKE_TRIES):  # between two grants nobody holds
            who = self.stall() if how == "stall" else self.kill()
            if who is not None:
                return who
            self.clock.sleep(STRIKE_POLL_S)
        return None

    def _resume(self, who: str) -> None:
        child = self.children[who]
        if child.poll() is None:
            os.kill(child.pid, signal.SIGCONT)
            self.tell(who, "resumed", pid=child.pid)
        self.stalled.pop(who, None)

    def kill(self) -> str | None:
        """SIGKILL the holder; who it was."""
        who = self.holder()
        if who is not None:
            self.children[who].kill()
            self.tell(who, "killed", pid=self.children[who].pid)
        return who

    def restart(self) -> bool:
        """Kill the service and start it again on its data; False: there is none."""
        if self.service is None:
            return False
        self.tell("service", "note", text="killed")
        self.service.kill()
        self.service.start()
        self.tell("service", "note", text="started again")
        return True

    def stop(self) -> None:
        for timer in list(self.stalled.values()):
            timer.cancel()
        for who in list(self.stalled):
            self._resume(who)
        for child in self.children.values():
            if child.stdin is not None:
                child.stdin.close()
        for child in self.children.values():
            try:
                child.wait(STOP_S)
            except subprocess.TimeoutExpired:
                pass
            kill_tree(child.pid)
        if self.service is not None:
            self.service.stop()

    def figures(self) -> Figures:
        return figures(self.history, self._requests())

    def _requests(self) -> int | None:
        return self.service.requests() if isinstance(self.service, ObjectServer) else None


class Contest:
    """Some processes on each of two services' locks; by code what the panel does by click."""

    def __init__(
        self, names: Sequence[str] = ("storage", "zookeeper"), *, contenders: int = CONTENDERS,
        lease_s: float = LEASE_S, hold_s: float = HOLD_S, think_s: float = THINK_S,
    ) -> None:  # fmt: skip
        unknown = [each for each in names if each not in PROVIDERS]
        if unknown:
            raise ValueError(f"no provider {unknown[0]!r}; there are {', '.join(PROVIDERS)}")
        self._folder = tempfile.TemporaryDirectory(prefix="lockkit-contest-")
        self.sides = [
            Side(each, Path(self._folder.name) / f"{n}-{each}", lease_s)
            for n, each in enumerate(names)
        ]
        try:
            for side in self.sides:
                side.start(contenders, hold_s, think_s)
        except BaseException:
            self.stop()
            raise

    def until_granted(self, times: int) -> bool:
        """Until each side was granted so often; False: not within a minute."""
        return self.until(lambda side: sum(each.kind == "held" for each in side.history) >= times)

    def until_taken_over(self) -> bool:
        """Until somebody else holds what a stopped or killed holder had; False: not in a minute."""

        def taken_over(side: Side) -> bool:
            struck = sum(each.kind in ("stalled", "killed") for each in side.history)
            return len(side.figures().taken_over_s) >= struck

        return self.until(taken_over)

    def until(self, enough: Callable[[Side], bool], timeout_s: float = 60.0) -> bool:
        """Until that is so of every side; False: not within the time."""
        clock = Clock()
        end_ms = clock.boot_ms() + timeout_s * 1000
        while not all(enough(side) for side in self.sides):
            if clock.boot_ms() > end_ms:
                return False
            clock.sleep(0.05)
        return True

    def stop(self) -> None:
        for side in self.sides:
            side.stop()
        self._folder.cleanup()


# --- what it came to ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """One grant: who, and from when to when it was believed (ms)."""

    who: str
    from_ms: float
    to_ms: float
    ended: str
    """`released`, `lost`, `killed`, or "" where the history does not say."""


def spans(history: Sequence[Event]) -> list[Span]:
    """Grants in the order in which they were told."""
    found: list[Span] = []
    open_: dict[str, tuple[float, float]] = {}
    end_ms = history[-1].at_ms if history else 0.0

    def close(who: str, at_ms: float, how: str) -> None:
        began_ms, until_ms = open_.pop(who)
        found.append(Span(who, began_ms, max(began_ms, min(at_ms, until_ms)), how))

    for each in history:
        match each.kind:
            case "held":
                open_[each.who] = each.at_ms, _until(each)
            case "renewed" if each.who in open_:
                open_[each.who] = open_[each.who][0], _until(each)
            case "note" if each["text"] == LETS_GO and each.who in open_:
                close(each.who, each.at_ms, "released")
            case "lost" | "killed" if each.who in open_:
                close(each.who, each.at_ms, each.kind)
    for who in list(open_):
        close(who, end_ms, "")
    return sorted(found, key=lambda each: each.from_ms)


def _until(held: Event) -> float:
    until = held["until_ms"]
    return float("inf") if until is None else float(until)


def figures(history: Sequence[Event], requests: int | None = None) -> Figures:
    granted = spans(history)
    struck = [each for each in history if each.kind in ("stalled", "killed")]
    lasted_s = (granted[-1].from_ms - granted[0].from_ms) / 1000 if len(granted) > 1 else 0.0
    handed = [
        (b.from_ms - a.to_ms) / 1000 for a, b in pairwise(granted)
        if a.ended == "released" and a.who != b.who and b.from_ms >= a.to_ms
    ]  # fmt: skip
    run = longest = 1 if granted else 0
    for a, b in pairwise(granted):
        run = run + 1 if a.who == b.who else 1
        longest = max(longest, run)
    took = [
        next((each.from_ms for each in granted if each.from_ms > at.at_ms and each.who != at.who),
             None)
        for at in struck
    ]  # fmt: skip
    return Figures(
        grants=len(granted),
        per_s=len(granted) / lasted_s if lasted_s else 0.0,
        hand_off_p50_s=median(handed) if handed else None,
        wait_max_s=_longest_wait_s(granted),
        longest_run=longest,
        taken_over_s=tuple(
            (next_ms - at.at_ms) / 1000
            for at, next_ms in zip(struck, took, strict=True) if next_ms is not None
        ),
        overlap_s=sum(
            max(0.0, min(a.to_ms, b.to_ms) - b.from_ms) / 1000
            for a, b in pairwise(granted) if a.who != b.who
        ),
        requests_per_grant=requests / len(granted) if requests and granted else None,
    )  # fmt: skip


def _longest_wait_s(granted: Sequence[Span]) -> float | None:
    """From one grant of a process to its next."""
    last: dict[str, float] = {}
    longest: float | None = None
    for each in granted:
        if each.who in last:
            longest = max(longest or 0.0, (each.from_ms - last[each.who]) / 1000)
        last[each.who] = each.to_ms
    return longest
