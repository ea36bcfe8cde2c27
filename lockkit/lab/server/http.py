"""HTTP/1.1 for a server: it reads requests with whole bodies, and sends the answers in order.

It is not a library because latency matters here: a request is parsed and answered in the socket's
own callback, without a task, a future or a second turn of the event loop.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

HEAD_BYTES_MAX = 64 * 1024
CHUNK_LINE_BYTES_MAX = 1024
PIPELINED_BYTES_MAX = 1 << 20
"""The bytes that a client may send ahead while its last request is being answered."""
_REQUEST_LINE = re.compile(rb"([A-Z]{1,20}) ([\x21-\x7e\x80-\xff]{1,16384}) HTTP/1\.([01])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*?)[ \t]*")
_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?")
_EXPECTS = re.compile(rb"\r\nexpect: *100-continue", re.IGNORECASE)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_BODILESS = (204, 304)


class Malformed(Exception):
    """Not HTTP, or ambiguous HTTP: it is answered, and then the connection is closed."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(slots=True)
class HttpRequest:
    """Header names are in lower case; repeated headers are joined by commas."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    keeps_alive: bool


@dataclass(slots=True)
class HttpResponse:
    status: int
    headers: dict[str, str]
    body: bytes = b""
    length: int | None = None
    """The length of a HEAD's body, which is not sent."""


Later = asyncio.Future[HttpResponse]
Handler = Callable[[HttpRequest], HttpResponse | Later]


def head_of(head: bytes) -> HttpRequest:
    """The request line and the headers."""
    first, *lines = head.split(b"\r\n")
    found = _REQUEST_LINE.fullmatch(first)
    if found is None:
        raise Malformed(400, "the request line is not HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise Malformed(400, "a header line is not readable")
        name = field[1].decode("ascii").lower()
        value = field[2].decode("utf-8", "surrogateescape")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    closes = headers.get("connection", "").lower()
    keeps_alive = "close" not in closes and (found[3] == b"1" or "keep-alive" in closes)
    target = found[2].decode("utf-8", "replace")
    return HttpRequest(found[1].decode("ascii"), target, headers, b"", keeps_alive)


def length_of(request: HttpRequest, most: int) -> int | None:
    """Content-Length (0 without one); None for a chunked body."""
    coding, length = request.headers.get("transfer-encoding"), request.headers.get("content-length")
    if coding is not None:
        if length is not None:  # request smuggling (RFC 9112, 6.3)
            raise Malformed(400, "Content-Length and Transfer-Encoding exclude each other")
        if coding.lower() != "chunked":
            raise Malformed(501, "the only supported transfer coding is chunked")
        return None
    if length is None:
        return 0
    if re.fullmatch("[0-9]{1,15}", length) is None:
        raise Malformed(400, "Content-Length is not a number")
    if int(length) > most:
        raise Malformed(413, f"at most {most} bytes in one request")
    return int(length)


class Connection(asyncio.BufferedProtocol):
    """One client's requests, answered one after another.

    `buffer` receives arriving bytes; all connections of a loop may share it. (Without it, asyncio
    maps and unmaps 256 KiB of memory for every packet.)
    """

    def __init__(
        self, handler: Handler, open_ones: set[Connection], buffer: bytearray, body_bytes_max: int
    ) -> None:
        self._handler = handler
        self._open = open_ones
        self._buffer = buffer
        self._most = body_bytes_max
        self._waiting = bytearray()
        self._request: HttpRequest | None = None
        self._length: int | None = 0
        self._chunks = bytearray()
        self._task: Later | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)  # a running request is still carried out, so it may be applied

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._waiting += memoryview(self._buffer)[:nbytes]
        if self._task is not None:
            if len(self._waiting) > PIPELINED_BYTES_MAX:
                self._transport.pause_reading()
            return
        self._advance()

    def close(self) -> Later | None:
        """Close the connection, or return the running request to wait for."""
        if self._task is None:
            self._transport.close()
        elif self._request is not None:
            self._request.keeps_alive = False
        return self._task

    # --- reading -------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Answer every request that is complete."""
        try:
            while self._task is None and not self._transport.is_closing():
                if self._request is None and not self._read_head():
                    return
                assert self._request is not None
                body = self._read_chunks() if self._length is None else self._read_body()
                if body is None:
                    return
                self._request.body = body
                self._dispatch(self._request)
        except Malformed as malformed:
            text = f"{malformed}\n".encode()
            request = self._request or HttpRequest("GET", "", {}, b"", False)
            request.keeps_alive = False
            self._send(
                request, HttpResponse(malformed.status, {"Content-Type": "text/plain"}, text)
            )

    def _read_head(self) -> bool:
        while self._waiting[:2] == b"\r\n":  # some clients send one too many after a body
            del self._waiting[:2]
        end = self._waiting.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
        if end < 0:
            if len(self._waiting) >= HEAD_BYTES_MAX:
                raise Malformed(431, f"the headers are longer than {HEAD_BYTES_MAX} bytes")
            return False
        head = bytes(self._waiting[:end])
        del self._waiting[: end + 4]
        if not self._waiting and _EXPECTS.search(head):
            self._transport.write(_CONTINUE)  # at once: boto3 waits for it before every body
        request = head_of(head)
        self._length = length_of(request, self._most)
        self._request = request
        return True

    def _read_body(self) -> bytes | None:
        assert self._length is not None
        if len(self._waiting) < self._length:
            return None
        body = bytes(memoryview(self._waiting)[: self._length])
        del self._waiting[: self._length]
        return body

    def _read_chunks(self) -> bytes | None:
        """The body once its last chunk has arrived; trailers are read and ignored."""
        while True:
            end = self._waiting.find(b"\r\n", 0, CHUNK_LINE_BYTES_MAX)
            if end < 0:
                if len(self._waiting) >= CHUNK_LINE_BYTES_MAX:
                    raise Malformed(400, "a chunk's size is not readable")
                return None
            size = _SIZE.fullmatch(self._waiting, 0, end)
            if size is None:
                raise Malformed(400, "a chunk's size is not readable")
            length = int(size[1], 16)
            if len(self._chunks) + length > self._most:
                raise Malformed(413, f"at most {self._most} bytes in one request")
            if length == 0:
                return self._read_trailers(end + 2)
            after = end + 2 + length
            if len(self._waiting) < after + 2:
                return None
            if self._waiting[after : after + 2] != b"\r\n":
                raise Malformed(400, "a chunk does not end where it should")
            self._chunks += self._waiting[end + 2 : after]
            del self._waiting[: after + 2]

    def _read_trailers(self, start: int) -> bytes | None:
        if self._waiting[start : start + 2] == b"\r\n":
            end = start
        else:
            end = self._waiting.find(b"\r\n\r\n", start, start + HEAD_BYTES_MAX) + 2
            if end < 2:
                if len(self._waiting) > start + HEAD_BYTES_MAX:
                    raise Malformed(431, "the trailers are too long")
                return None
        del self._waiting[: end + 2]
        body = bytes(self._chunks)
        self._chunks.clear()
        return body

    # --- answering -----------------------------------------------------------------------------

    def _dispatch(self, request: HttpRequest) -> None:
        answer = self._handler(request)
        if isinstance(answer, HttpResponse):
            self._send(request, answer)
        else:
            self._task = answer
            answer.add_done_callback(partial(self._answer, request))

    def _answer(self, request: HttpRequest, answer: Later) -> None:
        self._task = None
        self._send(request, answer.result())
        self._transport.resume_reading()
        self._advance()

    def _send(self, request: HttpRequest, response: HttpResponse) -> None:
        self._request = None
        if self._transport.is_closing():
            return
        status, body = response.status, response.body
        phrase = HTTPStatus(status).phrase if status in _PHRASES else "Other"
        lines = [f"HTTP/1.1 {status} {phrase}"]
        lines += [f"{name}: {value}" for name, value in response.headers.items()]
        if status not in _BODILESS:
            length = len(body) if response.length is None else response.length
            lines.append(f"Content-Length: {length}")
        if not request.keeps_alive:
            lines.append("Connection: close")
        head = "\r\n".join(lines).encode("utf-8", "replace") + b"\r\n\r\n"
        if request.method == "HEAD" or status in _BODILESS:
            body = b""
        self._transport.write(head + body if len(body) < HEAD_BYTES_MAX else head)
        if len(body) >= HEAD_BYTES_MAX:
            self._transport.write(body)
        if not request.keeps_alive:
            self._transport.close()


_PHRASES = {int(each) for each in HTTPStatus}
