"""A server that keeps its clients waiting: it answers one byte at a time, or not at all."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

BYTE_S = 0.05
"""Between two bytes; far less than any timeout of a single wait."""

T = TypeVar("T")

HEAD = (
    b'HTTP/1.1 200 OK\r\nETag: "x"\r\nx-goog-generation: 1\r\nx-ms-request-id: 1\r\n'
    b"Last-Modified: Sat, 21 Nov 2026 10:00:00 GMT\r\nContent-Type: application/xml\r\n"
)


def body(connection: socket.socket) -> None:
    """A head at once, then a long body, byte by byte."""
    connection.sendall(
        HEAD + b"Content-Length: 65000\r\nContent-Range: bytes 0-64999/65000\r\n\r\n"
    )
    _drip(connection, b" ")


def headers(connection: socket.socket) -> None:
    """A head that never ends."""
    connection.sendall(HEAD)
    _drip(connection, b"X-More: 1\r\n")


def status(connection: socket.socket) -> None:
    """A first line that never ends."""
    connection.sendall(b"HTTP/1.1 200 ")
    _drip(connection, b"O")


def promises(connection: socket.socket) -> None:
    """Interim answers for ever: "go on"."""
    _drip(connection, b"HTTP/1.1 100 Continue\r\n\r\n")


def silence(connection: socket.socket) -> None:
    """Takes the request, and says nothing."""
    _drip(connection, b"")


def tls(connection: socket.socket) -> None:
    """The start of a long TLS record, then its bytes one at a time."""
    connection.sendall(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc")
    _drip(connection, b"\x03")


def _drip(connection: socket.socket, each: bytes) -> None:
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        for letter in range(len(each)):
            connection.sendall(each[letter : letter + 1])
            time.sleep(BYTE_S)
        if not each and not connection.recv(1 << 16):
            return


class Trickle:
    """Every request gets `answer`, which may be changed in between."""

    def __init__(self, answer: Callable[[socket.socket], None], scheme: str = "http") -> None:
        self.answer, self.scheme = answer, scheme
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"{scheme}://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while connection.recv(1 << 16):
                self.answer(connection)

    def close(self) -> None:
        self._socket.close()


@contextmanager
def trickle(answer: Callable[[socket.socket], None], scheme: str = "http") -> Iterator[Trickle]:
    server = Trickle(answer, scheme)
    try:
        yield server
    finally:
        server.close()


def ends_within(seconds: float, call: Callable[[], T]) -> T:
    """What `call` returns or raises; fails, without waiting for it, where it takes longer."""
    ended: list[Any] = []

    def run() -> None:
        try:
            ended.append((True, call()))
        except BaseException as error:  # noqa: BLE001 - raised below
            ended.append((False, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert ended, f"the call was still waiting after {seconds} s"
    returned, what = ended[0]
    if not returned:
        raise what
    result: T = what
    return result
