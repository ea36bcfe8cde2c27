"""How long one call to a store may take in all, whatever its server sends.

An SDK's own timeouts bound each wait for bytes, so a server that sends one byte a second can hold a
request for hours. Here each call has a total, counted from its first byte on the network:
`timeout_s`, and beyond `FREE_BYTES` as much time as the bodies that were moved take at `RATE_MIN`.
So a large body may take as long as it needs while it makes progress, and a trickle may not.

Only bytes that the caller wants earn time: the request that is sent, and the body of a successful
answer, up to its Content-Length and to what was asked for. Headers, interim answers (1xx), error
bodies and bodies of unknown length earn none, so a server that floods a client holds no call.

The deadline belongs to the thread that makes the call. `TimedSocket` keeps it on each read and
write; no other thread is needed.
"""

from __future__ import annotations

import io
import math
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from lockkit.clock import Clock

FREE_BYTES = 256 * 1024
"""A call that moves no more than this has `timeout_s` in all; a page of a listing is no longer."""
RATE_MIN = 64 * 1024
"""Bytes per second, on average, below which a larger body is given up."""
PAUSE_S = 30.0
"""What an SDK that may retry can spend between two attempts."""
SEND_BYTES = 64 * 1024
"""How much of a body is sent at a time."""
EARNED_S_MAX = 2 * 3600.0
"""The most that a call can earn, whatever Content-Length its server claims."""
OVERHEAD_BYTES_MAX = 1024 * 1024
"""The headers, interim answers and error body of one request; what is longer is no store's."""
BUFFER_BYTES = 4 * 1024 * 1024
"""How much of what was sent the system may still hold back: the answer waits until it has left."""

T = TypeVar("T")

_clock = Clock()
_thread = threading.local()


class DeadlinePassed(Exception):
    """A call took longer than it may. What became of its request is unknown.

    Not an `OSError`: SDKs retry those, Azure's even where retries are switched off.
    """


class AnswerTooLong(DeadlinePassed):
    """The server sends more than the call has any use for: it was given up before its time."""


class Deadline:
    """Of one call: one request, or few that belong together. Starts with the first byte."""

    __slots__ = ("_attempt_ends_ms", "_attempts", "_bytes", "_ends_ms", "_limit_ms", "_sent_bytes",
                 "_timeout_ms", "_wanted_bytes")  # fmt: skip

    def __init__(self, timeout_s: float, attempts: int = 1, limit_ms: float = math.inf) -> None:
        self._timeout_ms, self._attempts, self._limit_ms = timeout_s * 1000, attempts, limit_ms
        self._ends_ms: float | None = None
        self._attempt_ends_ms = math.inf
        self._bytes = self._sent_bytes = 0
        self._wanted_bytes = math.inf

    def begin(self) -> None:
        """A request is about to go out: the call's first one, a further one, or a retry."""
        now_ms = _clock.boot_ms()
        if self._ends_ms is None:
            pauses_ms = PAUSE_S * 1000 * (self._attempts - 1)
            self._ends_ms = now_ms + self._timeout_ms * self._attempts + pauses_ms
        self._attempt_ends_ms = now_ms + self._timeout_ms
        self._sent_bytes = self._bytes

    def restart(self) -> None:
        """The next request has the whole time again, as the next page of a listing has."""
        self._ends_ms, self._bytes = None, 0

    def want(self, count: float) -> None:
        """The caller asked for no more than so many bytes: those beyond earn no time."""
        self._wanted_bytes = min(self._wanted_bytes, count)

    def sent(self, count: int) -> None:
        """So many bytes were sent: progress, which may earn more time."""
        self._bytes += count

    def received(self, count: int) -> None:
        """The same for the body of a successful answer."""
        counted = int(min(count, self._wanted_bytes))
        self._wanted_bytes -= counted
        self._bytes += counted

    def left_s(self) -> float:
        """Seconds that are left, more than 0.

        Raises `DeadlinePassed` when the call's time is over; `TimeoutError`, which an SDK may
        retry, when only that of this attempt is.
        """
        if self._ends_ms is None:
            self.begin()
        assert self._ends_ms is not None
        now_ms = _clock.boot_ms()
        call_ms = min(self._limit_ms, self._ends_ms + _earned_ms(self._bytes)) - now_ms
        earned_ms = _earned_ms(self._bytes - self._sent_bytes)
        attempt_ms = self._attempt_ends_ms + earned_ms - now_ms
        if call_ms <= 0 or (attempt_ms <= 0 and self._attempts == 1):
            raise DeadlinePassed("the whole answer did not come in time")
        if attempt_ms <= 0:
            raise TimeoutError("the whole answer did not come in time")
        return min(call_ms, attempt_ms) / 1000


def _earned_ms(moved: int) -> float:
    return min(max(0, moved - FREE_BYTES) / RATE_MIN, EARNED_S_MAX) * 1000


def current() -> Deadline | None:
    """The deadline of the call that this thread is making."""
    return getattr(_thread, "deadline", None)


@contextmanager
def deadline(timeout_s: float, attempts: int = 1) -> Iterator[Deadline]:
    """A call's time; a call made inside of another shares the outer one's."""
    outer = current()
    if outer is not None:
        yield outer
        return
    mine = Deadline(timeout_s, attempts, getattr(_thread, "limit_ms", math.inf))
    _thread.deadline = mine
    try:
        yield mine
    finally:
        _thread.deadline = None


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """No call that this thread makes inside takes longer than that, whatever its store allows.

    All calls share the time. One that begins after it ends at once, unanswered, so that a procedure
    (`runtime.run`) inside ends in that time, however many requests and pauses it has.
    """
    outer_ms = getattr(_thread, "limit_ms", math.inf)
    _thread.limit_ms = min(outer_ms, _clock.boot_ms() + seconds * 1000)
    try:
        yield
    finally:
        _thread.limit_ms = outer_ms


def left_s() -> float | None:
    """What `within` leaves this thread, in seconds; None where it sets no limit."""
    limit_ms: float = getattr(_thread, "limit_ms", math.inf)
    return None if limit_ms == math.inf else max(0.0, (limit_ms - _clock.boot_ms()) / 1000)


def in_time(method: Callable[..., T]) -> Callable[..., T]:
    """A store's method as one call with a deadline, by the store's `_endpoint`.

    Its `limit`, where it has one, is all that the call wants to read.
    """

    @wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> T:
        with self._endpoint.call() as mine:
            if options.get("limit") is not None:
                mine.want(options["limit"] + 1)
            return method(self, *args, **options)

    return call


class TimedSocket:
    """A connected socket, TLS or not, whose reads and writes keep the call's deadline.

    The timeout that the SDK sets still bounds each wait for bytes. Only the wait for the answer to
    a large body may be longer, by the time that what is still in the system's buffers may take.
    """

    def __init__(self, inner: Any, call: Deadline | None) -> None:
        self.deadline = call
        self._inner = inner
        self._each_s: float | None = inner.gettimeout()
        self._files, self._closed = 0, False
        self._unanswered = 0
        self._body_bytes = 0
        self._overhead_bytes: float = OVERHEAD_BYTES_MAX

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def asked(self, call: Deadline | None) -> None:
        """A request of this call goes out: what comes next is the head of its answer."""
        self.deadline = call
        self._body_bytes, self._overhead_bytes = 0, OVERHEAD_BYTES_MAX

    def answered(self, status: int, length: int | None) -> None:
        """The head of an answer is complete: whether its body is one that the caller wants."""
        if 200 <= status < 300:
            self._body_bytes, self._overhead_bytes = length or 0, math.inf

    def settimeout(self, seconds: float | None) -> None:
        self._each_s = seconds
        self._inner.settimeout(seconds)

    def recv(self, *args: Any) -> bytes:
        found: bytes = self._timed(self._inner.recv, *args, more_s=self._buffered_s())
        self._received(len(found))
        return found

    def recv_into(self, *args: Any) -> int:
        count: int = self._timed(self._inner.recv_into, *args, more_s=self._buffered_s())
        self._received(count)
        return count

    def send(self, *args: Any) -> int:
        count: int = self._timed(self._inner.send, *args)
        self._sent(count)
        return count

    def sendall(self, data: Any, *args: Any) -> None:
        # In parts: `socket.sendall` has the timeout of one wait for all of it.
        view = memoryview(data).cast("B")
        for at in range(0, len(view), SEND_BYTES):
            part = view[at : at + SEND_BYTES]
            self._timed(self._inner.sendall, part, *args)
            self._sent(len(part))

    def makefile(self, mode: str = "r", buffering: int | None = None, **_: Any) -> Any:
        """As `http.client` asks for it, to read; each read goes through `recv_into`."""
        assert mode == "rb", f"opened to {mode!r}, only reading is timed"
        self._files += 1
        raw = socket.SocketIO(self, "r")  # type: ignore[arg-type]
        return io.BufferedReader(raw, buffering or io.DEFAULT_BUFFER_SIZE)

    def close(self) -> None:
        """At once, or when the last file made of it is closed, as a socket does."""
        self._closed = True
        if self._files <= 0:
            self._inner.close()

    def _decref_socketios(self) -> None:
        self._files -= 1
        if self._closed:
            self.close()

    def _timed(self, act: Callable[..., Any], *args: Any, more_s: float = 0.0) -> Any:
        if self.deadline is None:
            return act(*args)
        wait_s = self.deadline.left_s()
        if self._each_s is not None:
            wait_s = min(wait_s, self._each_s + more_s)
        self._inner.settimeout(wait_s)
        try:
            return act(*args)
        except TimeoutError:
            self.deadline.left_s()  # the call's own end is told as such
            raise

    def _buffered_s(self) -> float:
        return _earned_ms(min(self._unanswered, BUFFER_BYTES)) / 1000

    def _sent(self, count: int) -> None:
        self._unanswered += count
        if self.deadline is not None:
            self.deadline.sent(count)

    def _received(self, count: int) -> None:
        """Raises `AnswerTooLong` where no store sends so much before or instead of a body."""
        self._unanswered = 0
        body = min(count, self._body_bytes)
        self._body_bytes -= body
        self._overhead_bytes -= count - body
        if self.deadline is None:
            return
        if self._overhead_bytes < 0:
            raise AnswerTooLong("the answer's head or its error is too long to be read")
        self.deadline.received(body)
