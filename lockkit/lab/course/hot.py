"""A hot object: what a limit of one write per second costs a lock, and how often waiters poll."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from lockkit.clock import Clock
from lockkit.events import Event
from lockkit.lab.course.lock_testbed import LockTestbed
from lockkit.lock.handle import LOCK_KEY
from lockkit.protocol.outcome import Applied, IfAbsent, IfVersion
from lockkit.protocol.record import Record, encode
from lockkit.stores import open_store

FREE, HELD = "the lock is free", "the lock object still says that W1 holds it"
GUESSES = (FREE, HELD)
TTL_S = 60.0
WAIT_S = 1.0


class RequestCount(Counter[str]):
    """How often each request was sent."""

    def __str__(self) -> str:
        return ", ".join(f"{count} x {what}" for what, count in sorted(self.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class LockUse:
    """A lock that was acquired and released, or waited for, and the store's record of it."""

    free: bool
    """The final content of the lock object."""
    seconds: float
    events: tuple[Event, ...]
    verdict: Any = None

    def requests(self, who: str) -> RequestCount:
        """A client's requests, by method and status."""
        return RequestCount(
            f"{each['method'].upper()} {each['status']}"
            for each in self.events if each.kind == "request" and each["client"] == who
        )  # fmt: skip

    def __str__(self) -> str:
        return FREE if self.free else HELD

    def __repr__(self) -> str:
        who = sorted({each["client"] for each in self.events if each.kind == "request"})
        reported = [f"{each}: {self.requests(each)}" for each in who]
        return f"{self}, after {self.seconds:.1f} s. {'; '.join(reported)}"


class FrozenClock(Clock):
    """A server's clock that does not advance, so two writes come within one second."""

    def __init__(self) -> None:
        super().__init__()
        self._at_ns = super().wall_ns()

    def wall_ns(self) -> int:
        return self._at_ns


def release_once(provider: str) -> LockUse:
    """Claim, then release at once by a guarded write that is sent only once."""
    clock = Clock()
    began_ms = clock.boot_ms()
    with LockTestbed(provider, clock=FrozenClock()) as testbed:
        with closing(open_store(testbed.url, endpoint=testbed.proxy.url, client="W1")) as store:
            until_ms = clock.wall_ms() + round(TTL_S * 1000)
            held = Record("W1", until_ms, epoch=1, attempt="W1/1")
            claimed = store.put(LOCK_KEY, encode(held), IfAbsent())
            assert isinstance(claimed, Applied), claimed
            tombstone = replace(held, expired=True, attempt="W1/2")
            store.put(LOCK_KEY, encode(tombstone), IfVersion(claimed.version))
        return _used(testbed, clock, began_ms)


def use(provider: str, times: int = 2) -> LockUse:
    """Acquire and release `Lock` a number of times in a row, with no work in between."""
    clock = Clock()
    began_ms = clock.boot_ms()
    with LockTestbed(provider) as testbed:
        lock = testbed.lock("W1", ttl_s=TTL_S)
        for _ in range(times):
            lock.acquire()
            lock.release()
        return _used(testbed, clock, began_ms, testbed.verdict)


def wait(provider: str) -> LockUse:
    """W1 holds the lock; W2 waits for `WAIT_S` and does not get it."""
    clock = Clock()
    with LockTestbed(provider) as testbed:
        holder, waiter = (testbed.lock(name, ttl_s=TTL_S) for name in ("W1", "W2"))
        holder.acquire()
        began_ms = clock.boot_ms()
        waiter.acquire(timeout=WAIT_S)
        return _used(testbed, clock, began_ms, testbed.verdict)


def _used(testbed: LockTestbed, clock: Clock, began_ms: int, verdict: Any = None) -> LockUse:
    seconds, events = (clock.boot_ms() - began_ms) / 1000, tuple(testbed.events)
    free = not testbed.lock("reader").locked()
    return LockUse(free=free, seconds=seconds, events=events, verdict=verdict)
