"""Multipart bodies: `multipart/related` uploads, and batches of requests in `multipart/mixed`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus

from lockkit.lab.server.call import DialectError, DialectRequest, Reply, call_of

PARTS_MAX = 1000
_KNOWN = {int(each) for each in HTTPStatus}
_BOUNDARY = re.compile(r'boundary\s*=\s*(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_BLANK = re.compile(rb"\r?\n\r?\n")
_REQUEST_LINE = re.compile(rb"([A-Z]{1,10}) (\S+)(?: HTTP/1\.[01])?\s*$")


@dataclass(frozen=True, slots=True)
class MimePart:
    headers: dict[str, str]
    body: bytes


def parts(body: bytes, content_type: str) -> list[MimePart]:
    """The parts between the boundaries; a broken body is refused with 400."""
    named = _BOUNDARY.search(content_type)
    if named is None:
        raise DialectError(
            400, "badRequest", "a multipart body needs a boundary in its Content-Type"
        )
    mark = re.escape(b"--" + (named[1] or named[2]).encode("latin-1", "replace"))
    # Python's own mail library ends lines with \n only.
    _, *pieces = re.split(rb"\r?\n" + mark, b"\r\n" + body)
    if not pieces or not pieces[-1].startswith(b"--"):
        raise DialectError(400, "badRequest", "the multipart body does not end with its boundary")
    if len(pieces) > PARTS_MAX + 1:
        raise DialectError(400, "badRequest", f"a batch has at most {PARTS_MAX} parts")
    return [MimePart(*_split(piece.partition(b"\n")[2])) for piece in pieces[:-1]]


def _split(text: bytes) -> tuple[dict[str, str], bytes]:
    """Headers and body; headers may be missing."""
    head, *body = _BLANK.split(b"\n" + text, maxsplit=1)
    return _headers(head), b"".join(body)


def _headers(head: bytes) -> dict[str, str]:
    lines = (line.partition(b":") for line in head.split(b"\n"))
    return {
        name.strip().lower().decode("latin-1"): value.strip().decode("utf-8", "replace")
        for name, colon, value in lines
        if colon
    }


def request(part: MimePart, batch: DialectRequest) -> DialectRequest:
    """The HTTP request in one part of a batch, with the client of the batch."""
    line, _, rest = part.body.lstrip(b"\r\n").partition(b"\n")
    parsed = _REQUEST_LINE.match(line)
    if parsed is None:
        raise DialectError(400, "badRequest", "a part of the batch is not an HTTP request")
    inner, body = _split(rest)
    outer = {
        name: batch.headers[name]
        for name in ("user-agent", "x-ms-version", "host", "authorization")
        if name in batch.headers
    }
    headers = outer | inner
    target = parsed[2].decode("utf-8", "replace")
    return call_of(parsed[1].decode("ascii"), target, headers, body, host=batch.host, id=batch.id)


def answers(replies: Iterable[tuple[str, Reply]], boundary: str) -> bytes:
    """A batch's answer; each reply with the Content-ID that its request had."""
    out = []
    for name, reply in replies:
        phrase = HTTPStatus(reply.status).phrase if reply.status in _KNOWN else "Other"
        lines = [f"--{boundary}", "Content-Type: application/http"]
        if name:
            lines.append(f"Content-ID: {name}")
        lines += ["", f"HTTP/1.1 {reply.status} {phrase}"]
        headers = {**reply.headers, "Content-Length": str(len(reply.body))}
        lines += [f"{name}: {value}" for name, value in headers.items()]
        out.append("\r\n".join([*lines, "", ""]).encode() + reply.body + b"\r\n")
    return b"".join(out) + f"--{boundary}--\r\n".encode()
