"""Every provider's lock on this machine, and parties that lock what they are told to.

A party is a process, or a thread where a process is all. It is started once and serves all
providers over its pipe. It can be stopped, interrupted and killed; a dead one is replaced when it
is next needed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lockkit import open_lock
from lockkit.clock import Clock
from lockkit.lab.processes.services.dynamodb import DynamoDB
from lockkit.lab.processes.services.objects import ADDRESSES
from lockkit.lab.processes.services.service import Service
from lockkit.lab.server import Emulator
from lockkit.lock.handle import Lock
from lockkit.providers.both import DoubleLock
from lockkit.providers.leased import LeasedLock
from lockkit.spark.connect import free_port

NAMES = ("storage", "zookeeper", "dynamodb", "hive", "azure_lease", "filesystem", "process")
LOCK = "hoodie.write.lock."
AT_ONCE = {f"{LOCK}client.num_retries": "0"}
SPAWN = multiprocessing.get_context("spawn")
PATIENCE_S = 60.0


# --- where there are locks -----------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """One provider's lock that nobody else uses."""

    lock: Any
    """An URL, or Hudi's configuration."""
    options: dict[str, Any] = field(default_factory=dict)
    short: dict[str, Any] = field(default_factory=dict)
    """What makes a holder's silence its end within a few seconds."""
    agreed: bool = False
    """Whether all must be told the same of it."""
    threads: bool = False
    """Its parties are threads of this process."""
    restart: Callable[[], None] | None = None
    age: Callable[[], None] | None = None
    """Lets a lease's time go by for the service alone, where the shortest is too long to wait."""
    turns: int = 8
    """Of each of four writers; fewer where a waiter can only look, once in a second."""


class Server:
    """The embedded server over a file, so that it can be started again where it was."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._db = str(folder / "objects.sqlite")
        self._port = free_port(ADDRESSES)  # named, so that they are the same ones again
        self._clock = Clock()

    def age(self) -> None:
        """To the server it is as if the longest lease's time had gone by."""
        self._clock.offset_ms += 61_000

    def __enter__(self) -> Server:
        self._running = Emulator(db=self._db, port=self._port, clock=self._clock).__enter__()
        self.s3, self.azure = self._running.s3, self._running.azure
        return self

    def __exit__(self, *_: object) -> None:
        self._running.__exit__()

    def restart(self) -> None:
        self.__exit__()
        self.__enter__()


def world(name: str, key: str, service: Any, folder: Path) -> World:
    """The lock `key` of this provider, on this service where it needs one."""
    return globals()[f"_{name}"](key, service, folder)


def _storage(key: str, server: Server, _: Path) -> World:
    options = {"endpoint": server.s3, "ttl_s": 60.0}
    return World(f"s3://providers/{key}", options, {"ttl_s": 1.5}, restart=server.restart)


def _zookeeper(key: str, service: Service, _: Path) -> World:
    config = service.recipe() | {f"{LOCK}zookeeper.lock_key": key} | AT_ONCE
    config |= {f"{LOCK}zookeeper.url": service.address}
    restart = partial(_restarted, service)
    return World(config, short={"session_timeout_s": 1.5}, restart=restart)


def _dynamodb(key: str, service: DynamoDB, _: Path) -> World:
    config = service.recipe() | {f"{LOCK}dynamodb.partition_key": key} | AT_ONCE
    options = {"aws": {"aws_access_key_id": "x", "aws_secret_access_key": "x"}}
    with open_lock(config, **options | {"acquire_timeout": PATIENCE_S}):
        pass  # makes the table: whoever comes first is told to ask again
    restart = partial(_restarted, service) if service.engine == "dynalite" else None
    return World(config, options, {"lease_s": 1.5}, restart=restart, turns=3)


def _hive(key: str, service: Service, _: Path) -> World:
    config = service.recipe() | {f"{LOCK}hivemetastore.table": key} | AT_ONCE
    return World(config, restart=partial(_restarted, service), turns=3)


def _azure_lease(key: str, server: Server, _: Path) -> World:
    config = f"azure-lease://providers/{key}?endpoint={server.azure}"
    return World(config, turns=3, restart=server.restart, age=server.age)


def _filesystem(key: str, _: None, folder: Path) -> World:
    return World(f"filesystem://{folder}/{key}", short={"expire_minutes": 3 / 60}, agreed=True)


def _process(key: str, _: None, __: Path) -> World:
    return World(f"process://{key}", threads=True)


def _restarted(service: Service) -> None:
    service.kill()
    service.start()


# --- inside a party ------------------------------------------------------------------------------


def serve(pipe: Connection) -> None:
    """Does as it is told, a tuple (verb, arguments) at a time, until it is told nothing more."""
    party = _Told(pipe)
    while True:
        try:
            verb, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send(("returned", getattr(party, verb)(**arguments)))
        except KeyboardInterrupt:
            pipe.send(("raised", "KeyboardInterrupt"))
        except Exception as error:  # noqa: BLE001 - told to the test, which judges it
            pipe.send(("raised", f"{type(error).__name__}: {error}"))


class _Told:
    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock: Lock | LeasedLock | DoubleLock | None = None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @property
    def lock(self) -> Any:
        return self._lock

    def open(self, urls: list[Any], options: dict[str, Any]) -> None:
        """One lock, or two as both."""
        self.close()
        found = [open_lock(each, emit=self._tell, **options) for each in urls]
        self._lock = DoubleLock(*found) if len(found) == 2 else found[0]

    def close(self) -> None:
        if self._lock is not None:
            with suppress(Exception):
                self._lock.release()
            self._lock.close()
            self._lock = None

    def acquire(self, timeout: float | None) -> bool:
        return bool(self.lock.acquire(timeout=timeout))

    def release(self) -> None:
        self.lock.release()

    def renew(self) -> None:
        self.lock.renew()

    def assert_held(self) -> None:
        self.lock.assert_held()

    def owned(self) -> bool:
        return bool(self.lock.owned())

    def locked(self) -> bool:
        return bool(self.lock.locked())

    def busy_reason(self) -> str:
        return str(self.lock.busy_reason())

    def count(self, path: str, times: int) -> list[tuple[int, int | None]]:
        """Adds to a number in a file, by no other care than the lock; (number, token) of each."""
        seen = []
        for _ in range(times):
            assert self.lock.acquire(timeout=PATIENCE_S), self.lock.busy_reason()
            number = add_one(path)
            fence = None if isinstance(self.lock, DoubleLock) else self.lock.fence
            seen.append((number, fence and fence.epoch))
            self.lock.release()
        return seen

    def _tell(self, kind: str, **_: Any) -> None:
        if kind == "waiting":
            self._pipe.send(("waiting", None))

    def pairs(self, count: int) -> list[float]:
        """How long each acquire and release took, in ms."""
        taken = []
        for _ in range(count):
            began = now_ms()
            assert self.lock.acquire(timeout=PATIENCE_S)
            self.lock.release()
            taken.append(now_ms() - began)
        return taken

    def acquired_ms(self) -> float:
        assert self.lock.acquire(timeout=PATIENCE_S)
        return now_ms()

    def let_go_ms(self) -> float:
        at = now_ms()
        self.lock.release()
        return at


def now_ms() -> float:
    """On a clock that all processes of this machine share."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) / 1e6


def add_one(path: str) -> int:
    number = int(Path(path).read_text()) + 1
    time.sleep(0.002)  # long enough for another to come in between, if it could
    Path(path).write_text(str(number))
    return number


# --- outside -------------------------------------------------------------------------------------


class Party:
    """A process that serves, or a thread; started when it is first told something."""

    def __init__(self, *, thread: bool) -> None:
        self._pipe, there = SPAWN.Pipe()
        self._owes = 0
        if thread:
            self._process = None
            threading.Thread(target=serve, args=(there,), daemon=True).start()
            return
        self._process = SPAWN.Process(target=serve, args=(there,), daemon=True)
        self._process.start()
        there.close()

    @property
    def pid(self) -> int:
        assert self._process is not None and self._process.pid is not None
        return self._process.pid

    @property
    def usable(self) -> bool:
        """It lives, and no test that failed has left it waiting."""
        return not self._owes and (self._process is None or self._process.is_alive())

    def tell(self, verb: str, **arguments: Any) -> None:
        self._pipe.send((verb, arguments))
        self._owes += 1

    def said(self, *, waiting: bool = False) -> Any:
        """Its next answer; notes that it waits are left out, unless one is asked for."""
        while True:
            assert self._pipe.poll(PATIENCE_S), f"a party said nothing within {PATIENCE_S} s"
            kind, value = self._pipe.recv()
            if kind != "waiting":
                self._owes -= 1
                assert not waiting, f"{kind} {value!r}, and had not to wait"
                return (kind, value)
            if waiting:
                return None

    def ask(self, verb: str, **arguments: Any) -> Any:
        """What it returned; an exception fails the test."""
        self.tell(verb, **arguments)
        kind, value = self.said()
        assert kind == "returned", value
        return value

    def refused(self, verb: str, **arguments: Any) -> str:
        """What it raised."""
        self.tell(verb, **arguments)
        kind, value = self.said()
        assert kind == "raised", f"{verb} returned {value!r}"
        return str(value)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)
        if number == signal.SIGKILL and self._process is not None:
            self._process.join(PATIENCE_S)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def end(self) -> None:
        if self._process is not None and self._process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            self._process.join(10)
        self._pipe.close()


class Parties:
    """Those of one kind, by number."""

    def __init__(self, *, thread: bool) -> None:
        self._thread = thread
        self._made: dict[int, Party] = {}

    def __call__(self, count: int, urls: list[Any], options: dict[str, Any]) -> list[Party]:
        """So many that have opened this lock, each a handle of its own."""
        for number in range(count):
            party = self._made.get(number)
            if party is not None and not party.usable:
                party.end()
            if party is None or not party.usable:
                self._made[number] = Party(thread=self._thread)
        found = [self._made[number] for number in range(count)]
        for each in found:
            each.tell("open", urls=urls, options=options)
        for each in found:
            assert each.said() == ("returned", None)
        return found

    def end(self) -> None:
        for each in self._made.values():
            each.end()
