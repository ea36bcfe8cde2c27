"""The total time that one call to a store may take, whatever its server sends.

An SDK's own timeouts bound each wait for bytes, so a server that sends one byte a second can hold a
request for hours. Here each call has a total time, counted from its first byte on the network:
`timeout_s`, plus the time that its bodies beyond `FREE_BYTES` take at `RATE_MIN`. So a large body
may take long as long as it makes progress; a trickle may not.

Only bytes that the caller wants add time: the request that is sent, and the body of a successful
answer, up to its Content-Length and to the requested length. Headers, interim answers (1xx), error
bodies and bodies of unknown length add none, so a server cannot hold a call by flooding it.

The deadline belongs to the thread that makes the call. `timed_socket` enforces it on each read
and write; no other thread is needed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from lockkit.clock import Clock
from lockkit.stores.within import limit_ms

FREE_BYTES = 256 * 1024
"""A call that moves no more than this has `timeout_s` in all; a page of a listing is no longer."""
RATE_MIN = 64 * 1024
"""Bytes per second, on average; a slower large body is abandoned."""
PAUSE_S = 30.0
"""The time that a retrying SDK can spend between two attempts."""
EARNED_S_MAX = 2 * 3600.0
"""The most time that a call can gain, whatever Content-Length its server claims."""

T = TypeVar("T")

_clock = Clock()
_thread = threading.local()


class DeadlinePassed(Exception):
    """A call took longer than it may. The outcome of its request is unknown.

    Not an `OSError`: SDKs retry those, and Azure's does so even with retries switched off.
    """


class Deadline:
    """The deadline of one call: one request, or a few related ones. Starts with the first byte."""

    __slots__ = ("_attempt_ends_ms", "_attempts", "_bytes", "_ends_ms", "_extended_ms",
                 "_limit_ms", "_sent_bytes", "_timeout_ms", "_wanted_bytes")  # fmt: skip

    def __init__(self, timeout_s: float, attempts: int = 1, limit_ms: float = math.inf) -> None:
        self._timeout_ms, self._attempts, self._limit_ms = timeout_s * 1000, attempts, limit_ms
        self._ends_ms: float | None = None
        self._attempt_ends_ms = math.inf
        self._extended_ms = 0.0
        self._bytes = self._sent_bytes = 0
        self._wanted_bytes = math.inf

    def begin(self) -> None:
        """A request is about to be sent: the call's first one, a further one, or a retry."""
        now_ms = _clock.boot_ms()
        if self._ends_ms is None:
            self._ends_ms = now_ms + self._whole_ms()
        self._attempt_ends_ms = now_ms + self._timeout_ms
        self._sent_bytes = self._bytes

    def extend(self, share: float) -> None:
        """Add a share of the call's whole time: for keys of a listing, which are progress."""
        self._extended_ms += share * self._whole_ms()

    def want(self, count: float) -> None:
        """The caller wants only `count` bytes: those beyond add no time."""
        self._wanted_bytes = min(self._wanted_bytes, count)

    def sending(self) -> None:
        """Bytes of a request are about to be sent."""
        _thread.sends = sends() + 1

    def sent(self, count: int) -> None:
        """Bytes of the request were sent: progress, which may add time."""
        self._bytes += count

    def received(self, count: int) -> None:
        """Bytes of a successful answer's body were received: progress, which may add time."""
        counted = int(min(count, self._wanted_bytes))
        self._wanted_bytes -= counted
        self._bytes += counted

    def left_s(self) -> float:
        """Seconds that are left for the next read or write, more than 0.

        Raises `DeadlinePassed` if the call's time is over. If only this attempt's time is over, it
        raises `TimeoutError`, after which an SDK may try again.
        """
        if self._ends_ms is None:
            self.begin()
        assert self._ends_ms is not None
        now_ms = _clock.boot_ms()
        earned = min(earned_ms(self._bytes) + self._extended_ms, EARNED_S_MAX * 1000)
        call_ms = min(self._limit_ms, self._ends_ms + earned) - now_ms
        attempt_ms = self._attempt_ends_ms + earned_ms(self._bytes - self._sent_bytes) - now_ms
        if call_ms <= 0 or (attempt_ms <= 0 and self._attempts == 1):
            raise DeadlinePassed("the whole answer did not come in time")
        if attempt_ms <= 0:
            raise TimeoutError("the whole answer did not come in time")
        return min(call_ms, attempt_ms) / 1000

    def _whole_ms(self) -> float:
        """The call's time before any addition: all attempts, and the pauses between them."""
        return self._timeout_ms * self._attempts + PAUSE_S * 1000 * (self._attempts - 1)


def earned_ms(moved: int) -> float:
    """The time that a call gains by `moved` bytes."""
    return min(max(0, moved - FREE_BYTES) / RATE_MIN, EARNED_S_MAX) * 1000


def current() -> Deadline | None:
    """The deadline of the call that this thread is making."""
    return getattr(_thread, "deadline", None)


def sends() -> int:
    """How often this thread's calls have sent bytes of a request, or may have."""
    count: int = getattr(_thread, "sends", 0)
    return count


@contextmanager
def deadline(timeout_s: float, attempts: int = 1) -> Iterator[Deadline]:
    """The deadline of a call; a call inside another one shares the outer deadline."""
    outer = current()
    if outer is not None:
        yield outer
        return
    mine = Deadline(timeout_s, attempts, limit_ms())
    _thread.deadline = mine
    try:
        yield mine
    finally:
        _thread.deadline = None


def in_time(method: Callable[..., T]) -> Callable[..., T]:
    """Run a store's method as one call with a deadline, through the store's `_endpoint`.

    If the method is called with a `limit`, bytes beyond that limit add no time.
    """

    @wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> T:
        with self._endpoint.call() as mine:
            if options.get("limit") is not None:
                mine.want(options["limit"] + 1)
            return method(self, *args, **options)

    return call
