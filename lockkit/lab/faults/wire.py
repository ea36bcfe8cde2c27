"""An HTTP/1.1 message as raw bytes, parsed only as far as needed to pass it on.

Bytes are relayed as they are, chunk framing and header spelling included: a signature covers them
(SigV4, SharedKey), and aws-chunked bodies carry their own. So there is no HTTP library in between.
aiohttp's client also sends a PUT again when a kept-alive connection breaks, which is the mistake
that the faults are meant to show.
"""

from __future__ import annotations

import re
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs

HEAD_BYTES_MAX = 64 * 1024
PIECE_BYTES = 64 * 1024
_CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}")


class WireError(Exception):
    """A message that cannot be relayed; has the status to answer with."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


@dataclass(frozen=True, slots=True)
class MessageHead:
    """The first line and the headers: as bytes, and parsed (names in lower case)."""

    raw: bytes
    first: tuple[str, str, str]
    headers: Mapping[str, str]

    @property
    def method(self) -> str:
        return self.first[0]

    @property
    def target(self) -> str:
        return self.first[1]

    @property
    def path(self) -> str:
        """The target without its query, still quoted. (urlsplit would take //name for a host.)"""
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        values = parse_qs(self.target.partition("?")[2], keep_blank_values=True)
        return {name: each[0] for name, each in values.items()}

    @property
    def status(self) -> int:
        return int(self.first[1])

    @property
    def last(self) -> bool:
        """Whether the sender closes the connection after this message."""
        spoken = next(part for part in (self.first[0], self.first[2]) if part.startswith("HTTP/"))
        connection = self.headers.get("connection", "").lower()
        return "close" in connection or (spoken == "HTTP/1.0" and "keep-alive" not in connection)

    def without(self, name: str) -> bytes:
        """The same bytes without one header."""
        unwanted = name.lower().encode() + b":"
        lines = self.raw.split(b"\r\n")
        return b"\r\n".join(line for line in lines if not line.lower().startswith(unwanted))


async def read_head(reader: StreamReader) -> MessageHead | None:
    """The next message's head; None if the other side ended the connection between messages."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except IncompleteReadError as end:
        if end.partial.strip():
            raise
        return None
    except LimitOverrunError:
        raise WireError(431, f"the head of a request has at most {HEAD_BYTES_MAX} bytes") from None
    if len(raw) > HEAD_BYTES_MAX:
        raise WireError(431, f"the head of a request has at most {HEAD_BYTES_MAX} bytes")
    return parse_head(raw)


def parse_head(raw: bytes) -> MessageHead:
    """Parse a head's bytes; `WireError` if they are not a head."""
    lines = raw.decode("latin-1").strip("\r\n").split("\r\n")
    first = lines[0].split(" ", 2)
    if len(first) == 2 and first[0].startswith("HTTP/"):
        first.append("")  # an answer may leave its reason out, with the space before it
    if len(first) != 3 or not (first[0].startswith("HTTP/1.") or first[2].startswith("HTTP/1.")):
        raise WireError(400, "not HTTP/1.1")
    if first[0].startswith("HTTP/") and not re.fullmatch(r"[1-5]\d\d", first[1]):
        raise WireError(502, "an answer without a status")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise WireError(400, "a header without a colon")
        headers[name.strip().lower()] = value.strip()
    return MessageHead(raw, (first[0], first[1], first[2]), headers)


# --- bodies ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FixedLength:
    """A body of a known number of bytes."""

    length: int


@dataclass(frozen=True, slots=True)
class Chunked:
    """A body in chunks, ended by an empty chunk and trailers."""


@dataclass(frozen=True, slots=True)
class UntilClose:
    """A body (of an answer) that ends with the connection."""


Framing = FixedLength | Chunked | UntilClose


def framing_of_request(head: MessageHead) -> Framing:
    framing = _declared(head)
    return FixedLength(0) if framing is None else framing


def framing_of_answer(head: MessageHead, *, method: str) -> Framing:
    if method == "HEAD" or head.status in (204, 304) or head.status < 200:
        return FixedLength(0)
    framing = _declared(head)
    return UntilClose() if framing is None else framing


def _declared(head: MessageHead) -> Framing | None:
    if "chunked" in head.headers.get("transfer-encoding", "").lower():
        return Chunked()
    length = head.headers.get("content-length")
    if length is None:
        return None
    if not (length.isascii() and length.isdigit()):
        raise WireError(400, "Content-Length is not a number")
    return FixedLength(int(length))


async def read_body(reader: StreamReader, framing: Framing) -> AsyncIterator[bytes]:
    """Read the body in pieces, framing included."""
    match framing:
        case FixedLength(length):
            async for piece in _exactly(reader, length):
                yield piece
        case Chunked():
            async for piece in _chunks(reader):
                yield piece
        case UntilClose():
            while piece := await reader.read(PIECE_BYTES):
                yield piece


async def _exactly(reader: StreamReader, length: int) -> AsyncIterator[bytes]:
    while length:
        piece = await reader.read(min(length, PIECE_BYTES))
        if not piece:
            raise IncompleteReadError(b"", length)
        length -= len(piece)
        yield piece


async def _chunks(reader: StreamReader) -> AsyncIterator[bytes]:
    size = -1
    while size != 0:
        line = await _line(reader)
        size_line = _CHUNK_SIZE.match(line)
        if size_line is None:
            raise WireError(400, "a chunk without a size")
        size = int(size_line[0], 16)
        yield line
        if size:
            async for piece in _exactly(reader, size + 2):
                yield piece
    line = b""
    while line != b"\r\n":
        line = await _line(reader)
        yield line


async def _line(reader: StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n")
    except LimitOverrunError:
        raise WireError(400, "the line after a chunk has no end") from None


def unframed(body: bytes, framing: Framing) -> bytes:
    """The payload of a body that was read with its framing."""
    if not isinstance(framing, Chunked):
        return body
    payload: list[bytes] = []
    at = 0
    while True:
        end = body.index(b"\r\n", at)
        size_line = _CHUNK_SIZE.match(body, at, end)
        assert size_line is not None, "unframed() is for a body that read_body() has read"
        size = int(size_line[0], 16)
        if size == 0:
            return b"".join(payload)
        payload.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2


# --- answers of our own ------------------------------------------------------------------

_REASONS = {400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
            409: "Conflict", 412: "Precondition Failed", 413: "Content Too Large",
            429: "Too Many Requests", 431: "Request Header Fields Too Large",
            500: "Internal Server Error", 502: "Bad Gateway", 503: "Service Unavailable",
            504: "Gateway Timeout"}  # fmt: skip


def answer(
    status: int, body: bytes, content_type: str, *, method: str = "GET", **headers: str
) -> bytes:
    """An answer of our own, ready to send. Header names are written with `_` for `-`."""
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Error' if status >= 400 else 'OK')}"]
    lines += [f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if method == "HEAD" else body)
