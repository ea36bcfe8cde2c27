"""The same contention on two lock services, side by side, with its faults. No widgets."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lockkit.clock import Clock
from lockkit.events import Event, event
from lockkit.lab.processes.child import ChildProcess, Said
from lockkit.lab.processes.services.dynamodb import DynamoDB
from lockkit.lab.processes.services.hive import HiveMetastore
from lockkit.lab.processes.services.objects import ObjectServer
from lockkit.lab.processes.services.service import Service
from lockkit.lab.processes.services.zookeeper import ZooKeeper
from lockkit.lab.processes.supervisor import PLAY_CREDENTIALS, directly
from lockkit.lab.widgets.figures import Price, SideFigures, figures

CONTENDERS, LEASE_S, HOLD_S, THINK_S = 3, 4.0, 0.3, 0.05
"""Processes of each service, their lease, how long each holds the lock, and its pause then."""
STALL_LEASES = 2.5
STOP_S = 5.0
STRIKE_TRIES, STRIKE_POLL_S = 500, 0.01


# List prices of us-east-1 and East US, November 2025; queued requests are billed too.
S3 = Price(5.0, 0.4, "S3 Standard")  # aws.amazon.com/s3/pricing
DYNAMODB = Price(0.625, 0.125, "DynamoDB, on demand")  # aws.amazon.com/dynamodb/pricing/on-demand
# Acquire, renew and release a lease are "other" operations, at the price of a read
# (learn.microsoft.com, "Map each REST operation to a price").
AZURE = Price(5.0, 0.4, "Blob Storage, hot, LRS")


@dataclass(frozen=True, slots=True)
class Provider:
    """How one service is started, the options of a lock on it, and the price of a request."""

    says: str
    make: Callable[[Path], Service | None]
    options: Callable[[float], dict[str, Any]]
    """Of a lease of so many seconds."""
    price: Price


PROVIDERS = {
    "storage": Provider("one object, S3's dialect", ObjectServer, lambda s: {"ttl_s": s}, S3),
    "zookeeper": Provider(
        "ZooKeeper", ZooKeeper, lambda s: {"session_timeout_s": s},
        Price(0, 0, "three servers, by the hour"),
    ),
    "dynamodb": Provider("DynamoDB's API", DynamoDB, lambda s: {"lease_s": s}, DYNAMODB),
    "hive": Provider(
        "Hive Metastore", HiveMetastore, lambda s: {"heartbeat_interval_s": s / 4},
        Price(0, 0, "the metastore, by the hour"),
    ),
    # Azure leases nothing for less than 15 s.
    "azure-lease": Provider("an Azure blob's lease", ObjectServer, lambda _: {"ttl_s": 15}, AZURE),
    "filesystem": Provider(
        "a file", lambda _: None, lambda s: {"expire_minutes": s / 60}, Price(0, 0, "the disk")
    ),
}  # fmt: skip


@dataclass(slots=True)
class Side:
    """One service and the processes that want its lock."""

    name: str
    folder: Path
    lease_s: float
    events: list[Event] = field(default_factory=list)
    service: Service | None = None
    children: dict[str, ChildProcess] = field(default_factory=dict)
    stalled: dict[str, threading.Timer] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def says(self) -> str:
        return PROVIDERS[self.name].says

    def start(self) -> None:
        """Raises `ServiceUnavailable` or `ServiceStartFailed`."""
        provider = PROVIDERS[self.name]
        self.folder.mkdir(parents=True, exist_ok=True)
        made = provider.make(self.folder / "service")
        if made is not None:
            self.service = made.start()
        for number in range(1, CONTENDERS + 1):
            self._launch(f"W{number}")

    def _launch(self, name: str) -> None:
        settings = {
            "name": name, "lock": self.lock(), "options": self.options(), "hold_s": HOLD_S,
            "think_s": THINK_S,
        }  # fmt: skip
        child = self.children[name] = ChildProcess(
            "lockkit.lab.processes.services.contender", settings,
            log=self.folder / f"{name}.log", session=True,
            env=os.environ | PLAY_CREDENTIALS | directly(dict(os.environ)),
        )  # fmt: skip
        self.record(name, "started", pid=child.pid)
        child.listen(partial(self._hear, name))

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

    def _hear(self, name: str, said: Said | None) -> None:
        if isinstance(said, Event):
            with self._turn:
                self.events.append(said)
        elif said is None:
            process = self.children[name].process
            self.record(name, "exited", pid=process.pid, code=process.wait())

    def record(self, who: str, kind: str, **fields: Any) -> None:
        with self._turn:
            self.events.append(event(self.clock.stamp_ms(), who, kind, **fields))

    @property
    def history(self) -> list[Event]:
        with self._turn:
            return sorted(self.events, key=lambda each: each.at_ms)

    # --- what is done to it ----------------------------------------------------------------------

    def holder(self) -> str | None:
        """The process with the last grant, if it has not released it and is running."""
        last = next(
            (each for each in reversed(self.history) if each.kind in ("held", "released")), None
        )
        if last is None or last.kind == "released" or last.who in self.stalled:
            return None
        return last.who if self.children[last.who].alive else None

    def stall(self) -> str | None:
        """SIGSTOP the holder for two and a half leases; return its name."""
        who = self.holder()
        if who is not None:
            child = self.children[who]
            os.kill(child.pid, signal.SIGSTOP)
            self.record(who, "stalled", pid=child.pid, why="by hand")
            timer = threading.Timer(STALL_LEASES * self.lease_s, self._resume, (who,))
            self.stalled[who] = timer
            timer.daemon = True
            timer.start()
        return who

    def strike(self, how: str) -> str | None:
        """`stall` or `kill` the next holder, within seconds; return its name."""
        for _ in range(STRIKE_TRIES):  # there is no holder between two grants
            who = self.stall() if how == "stall" else self.kill()
            if who is not None:
                return who
            self.clock.sleep(STRIKE_POLL_S)
        return None

    def _resume(self, who: str) -> None:
        child = self.children[who]
        if child.alive:
            os.kill(child.pid, signal.SIGCONT)
            self.record(who, "resumed", pid=child.pid)
        self.stalled.pop(who, None)

    def kill(self) -> str | None:
        """SIGKILL the holder; return its name."""
        who = self.holder()
        if who is not None:
            self.children[who].process.kill()
            self.record(who, "killed", pid=self.children[who].pid)
        return who

    def restart(self) -> bool:
        """Kill the service and restart it on its data; False if there is no service process."""
        if self.service is None:
            return False
        self.record("service", "note", text="killed")
        self.service.kill()
        self.service.start()
        self.record("service", "note", text="started again")
        return True

    def stop(self) -> None:
        for timer in list(self.stalled.values()):
            timer.cancel()
        for who in list(self.stalled):
            self._resume(who)
        for child in self.children.values():
            child.close()
        for child in self.children.values():
            child.end(STOP_S)
        if self.service is not None:
            self.service.stop()

    def figures(self) -> SideFigures:
        return figures(self.history, PROVIDERS[self.name].price)


class Contention:
    """Processes that contend on each of two services; the panel's actions as methods.

    :param names: the two services.
    :param lease_s: the length of the lease, in seconds.
    :raises ValueError: for an unknown service.
    """

    def __init__(
        self, names: Sequence[str] = ("storage", "zookeeper"), *, lease_s: float = LEASE_S
    ) -> None:
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
                side.start()
        except BaseException:
            self.stop()
            raise

    def until_granted(self, times: int) -> bool:
        """Wait until each side had that many grants; False if not within a minute."""
        return self.until(lambda side: sum(each.kind == "held" for each in side.history) >= times)

    def until_taken_over(self) -> bool:
        """Wait until another process took over from each lost holder; False if not in a minute."""

        def taken_over(side: Side) -> bool:
            struck = sum(each.kind in ("stalled", "killed") for each in side.history)
            return len(side.figures().taken_over_s) >= struck

        return self.until(taken_over)

    def until(self, enough: Callable[[Side], bool], timeout_s: float = 60.0) -> bool:
        """Wait until that is true of every side; False on a time-out."""
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
