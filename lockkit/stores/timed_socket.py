"""A socket whose reads and writes keep the deadline of the call that uses it.

It needs no other thread. Only HTTP clients load this module.
"""

from __future__ import annotations

import io
import math
import socket
from collections.abc import Callable
from typing import Any

from lockkit.stores.deadline import Deadline, DeadlinePassed, earned_ms

SEND_BYTES = 64 * 1024
"""How much of a body is sent at a time."""
OVERHEAD_BYTES_MAX = 1024 * 1024
"""Limit of the headers, interim answers and error body of one request; no store sends more."""
BUFFER_BYTES = 4 * 1024 * 1024
"""Sent bytes that the system may still buffer: the answer can only come after they have left."""


class AnswerTooLong(DeadlinePassed):
    """The server sends more than the call can use; the call is abandoned early."""


class TimedSocket:
    """A connected socket, TLS or not, whose reads and writes keep the call's deadline.

    The SDK's timeout still bounds each wait for bytes. Only the wait for the answer to a large body
    may be longer, by the time that the bytes in the system's buffers may take.
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

    def begin(self, call: Deadline | None) -> None:
        """A request of this call is about to be sent; the head of its answer comes next."""
        self.deadline = call
        self._body_bytes, self._overhead_bytes = 0, OVERHEAD_BYTES_MAX

    def answered(self, status: int, length: int | None) -> None:
        """The head of an answer is complete: note whether the caller wants its body."""
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
        self._sending()
        count: int = self._timed(self._inner.send, *args)
        self._sent(count)
        return count

    def sendall(self, data: Any, *args: Any) -> None:
        # In parts, because `socket.sendall` applies one wait's timeout to all of it.
        self._sending()
        view = memoryview(data).cast("B")
        for at in range(0, len(view), SEND_BYTES):
            part = view[at : at + SEND_BYTES]
            self._timed(self._inner.sendall, part, *args)
            self._sent(len(part))

    def makefile(self, mode: str = "r", buffering: int | None = None, **_: Any) -> Any:
        """For `http.client`, to read; each read goes through `recv_into`."""
        assert mode == "rb", f"opened to {mode!r}, only reading is timed"
        self._files += 1
        raw = socket.SocketIO(self, "r")  # type: ignore[arg-type]
        return io.BufferedReader(raw, buffering or io.DEFAULT_BUFFER_SIZE)

    def close(self) -> None:
        """Close at once, or with the last file made of it, as a socket does."""
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
            self.deadline.left_s()  # if the call's own time is over, that is the error
            raise

    def _buffered_s(self) -> float:
        return earned_ms(min(self._unanswered, BUFFER_BYTES)) / 1000

    def _sending(self) -> None:
        if self.deadline is not None:
            self.deadline.sending()

    def _sent(self, count: int) -> None:
        self._unanswered += count
        if self.deadline is not None:
            self.deadline.sent(count)

    def _received(self, count: int) -> None:
        """Raises `AnswerTooLong` if more comes before or instead of a body than any store sends."""
        self._unanswered = 0
        body = min(count, self._body_bytes)
        self._body_bytes -= body
        self._overhead_bytes -= count - body
        if self.deadline is None:
            return
        if self._overhead_bytes < 0:
            raise AnswerTooLong("the answer's head or its error is too long to be read")
        self.deadline.received(body)
