"""What the lock's tests share: real stores and processes, a recorder, and Hudi's own rules."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
from waiting import until as until

from lockkit.clock import Clock
from lockkit.events import event
from lockkit.lock.handle import LOCK_KEY, Lock
from lockkit.protocol.outcome import Applied, Found, Missing, over
from lockkit.protocol.record import Record, decode
from lockkit.stores import Store, open_store

SPAWN = multiprocessing.get_context("spawn")
SCHEMES = {"s3": "s3", "gcs": "gs", "azure": "az"}
PATIENCE_S = 30.0


def memory() -> str:
    """A table in this process that no other test uses."""
    return f"memory://lock-{uuid.uuid4().hex}/table"


class Tale:
    """All events of a handle, each checked against the event schema."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._turn = threading.Lock()

    def __call__(self, kind: str, **fields: Any) -> None:
        with self._turn:
            self.events.append(event(time.time() * 1000, "T", kind, **fields))

    def of(self, kind: str) -> list[Any]:
        return [each for each in list(self.events) if each.kind == kind]

    def ops(self) -> list[str]:
        """The requests, each with its answer: `acquire Applied`."""
        answers = {each["request"]: each["outcome"] for each in self.of("answer")}
        return [f"{each['op']} {answers.get(each['request'])}" for each in self.of("ask")]


class Suspendable(Clock):
    """The clock of a machine that was suspended: CLOCK_BOOTTIME and the wall clock continued."""

    slept_ms = 0

    def boot_ms(self) -> int:
        return super().boot_ms() + self.slept_ms

    def wall_ns(self) -> int:
        return super().wall_ns() + self.slept_ms * 1_000_000


def body(lock: Lock) -> bytes | None:
    match lock.store.get(LOCK_KEY):
        case Found(found):
            return found
        case Missing():
            return None
        case other:
            pytest.fail(f"{other}")


def record(lock: Lock) -> Record:
    found = decode(body(lock) or b"")
    assert isinstance(found, Record), found
    return found


def stands(store: Store) -> Record:
    """The record in the lock object."""
    found = store.get(LOCK_KEY)
    assert isinstance(found, Found)
    record = decode(found.body)
    assert isinstance(record, Record)
    return record


def overwrite(lock: Lock, new: bytes) -> None:
    """Replace the lock object, as a person or another program may do."""
    store = open_store(
        lock.url, endpoint=lock.store.options.endpoint, timeout_s=10, **lock.store.options.extra
    )
    for _ in range(20):  # the holder may renew between the read and the write
        found = store.get(LOCK_KEY)
        assert isinstance(found, Found | Missing), found
        version = found.version if isinstance(found, Found) else None
        if isinstance(store.put(LOCK_KEY, new, over(version)), Applied):
            return
    raise AssertionError("the lock object was renewed between each read and write")


def as_hudi(*, until_ms: int, owner: str | None = None, expired: bool = False) -> bytes:
    """What Jackson writes: three fields, compact, in the constructor's order."""
    fields = {"expired": expired, "validUntil": until_ms, "owner": owner or str(uuid.uuid4())}
    return json.dumps(fields, separators=(",", ":")).encode()


def read_as_hudi(found: bytes) -> tuple[bool, int, str]:
    """By Jackson's rules: three required, typed fields; unknown ones are ignored."""
    fields = json.loads(found.decode("utf-8"))
    assert isinstance(fields, dict)
    expired, valid_until, owner = fields["expired"], fields["validUntil"], fields["owner"]
    assert type(expired) is bool
    assert type(valid_until) is int and -(2**63) <= valid_until < 2**63
    assert type(owner) is str
    return expired, valid_until, owner


# --- processes -----------------------------------------------------------------------------------


@contextmanager
def process(target: Callable[..., None], *arguments: Any) -> Iterator[tuple[BaseProcess, Any]]:
    """A real process with a pipe to it. It is killed at the end, also if it is stopped."""
    here, there = SPAWN.Pipe()
    child = SPAWN.Process(target=target, args=(*arguments, there))
    child.start()
    there.close()
    try:
        yield child, here
    finally:
        assert child.pid is not None
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
        child.join(10)
        here.close()


def said(pipe: Any, within_s: float = PATIENCE_S) -> Any:
    assert pipe.poll(within_s), f"the process said nothing within {within_s} s"
    return pipe.recv()


def holder(url: str, options: dict[str, Any], pipe: Connection) -> None:
    """Acquires, then calls the methods of `Lock` that the pipe names, and sends their results."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    lock = Lock(url, **options)
    pipe.send("ready")
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = getattr(lock, name)(**arguments)
            pipe.send(("returned", answer if isinstance(answer, bool) else None))
        except KeyboardInterrupt:
            pipe.send(("raised", "KeyboardInterrupt"))
            return
        except Exception as error:  # noqa: BLE001 - told to the test, which judges it
            pipe.send(("raised", f"{type(error).__name__}: {error}"))


def counting(url: str, options: dict[str, Any], path: str, times: int, pipe: Connection) -> None:
    """Adds one to a file that many times; only the lock makes this atomic."""
    lock = Lock(url, **options)
    for _ in range(times):
        assert lock.acquire(timeout=PATIENCE_S)
        add_one(path)
        lock.release()
    pipe.send("done")


def add_one(path: str) -> None:
    with open(path) as file:
        count = int(file.read())
    time.sleep(0.002)
    with open(path, "w") as file:
        file.write(str(count + 1))
