"""One request and its answer, as values: what a dialect is given, and what it gives back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qsl, unquote

from lockkit.emulator.objects import Object


@dataclass(frozen=True, slots=True)
class Call:
    """A request: `path` is still quoted; header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    host: str = ""


@dataclass(slots=True)
class Reply:
    """An answer, and what the record says of the request."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    deed: Deed | None = None
    length: int | None = None
    """Content-Length of a HEAD, whose body is not sent."""


@dataclass(slots=True)
class Deed:
    """What a request did to which object, for the record of truth."""

    method: str
    bucket: str = ""
    key: str = ""
    condition: str = ""
    answer: str = "error"
    before: str = ""
    version: str = ""
    applied: bool = False
    body: bytes | None = None
    at_ms: float | None = None


class Refusal(Exception):
    """Raised anywhere in a dialect: this answer, and nothing was applied."""

    def __init__(self, status: int, code: str, message: str, answer: str = "error") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.answer = answer


def call_of(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Call:
    path, _, query = target.partition("?")
    pairs = dict(parse_qsl(query, keep_blank_values=True, encoding="utf-8", errors="replace"))
    return Call(method, path, pairs, headers, body, headers.get("host", ""))


def key_of(quoted: str) -> str:
    """A key as the client meant it; one that is no UTF-8 is refused."""
    try:
        key = unquote(quoted, errors="strict")
    except UnicodeDecodeError:
        raise Refusal(400, "InvalidURI", "the key is not UTF-8") from None
    if len(key.encode()) > 1024:
        raise Refusal(400, "KeyTooLongError", "a key has at most 1024 bytes")
    return key


def http_date(at_ms: float) -> str:
    return formatdate(at_ms / 1000, usegmt=True)


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """`bytes=a-b` as (start, end exclusive); None: the whole. Several ranges: the whole (RFC 9110)."""
    if not header or not header.startswith("bytes=") or "," in header:
        return None
    first, dash, last = header[len("bytes=") :].strip().partition("-")
    if not dash or not (first + last).isdigit():
        return None
    if not first:
        if int(last) == 0 or size == 0:
            raise Refusal(416, "InvalidRange", "the range is not satisfiable")
        return max(0, size - int(last)), size
    start = int(first)
    end = min(int(last) + 1, size) if last else size
    if start >= size:
        raise Refusal(416, "InvalidRange", "the range is not satisfiable")
    if end <= start:
        return None
    return start, end


def read_object(call: Call, object: Object, body: bytes | None, etag: str) -> Reply:
    """The common part of GET and HEAD in every dialect: whole or range, and the dates."""
    headers = {"ETag": etag, "Last-Modified": http_date(object.at_ms), "Accept-Ranges": "bytes"}
    if body is None:
        raise Refusal(
            410, "Gone", "this past version was too large to keep; only its place is known"
        )
    span = byte_range(call.headers.get("x-ms-range") or call.headers.get("range"), object.size)
    if span is None:
        return Reply(200, headers, body)
    headers["Content-Range"] = f"bytes {span[0]}-{span[1] - 1}/{object.size}"
    return Reply(206, headers, body[span[0] : span[1]])


def attempt_in(body: bytes | None) -> tuple[str, Any]:
    """The attempt id in a small JSON body, and the body as parsed; ("", None) for anything else."""
    if not body or len(body) > 64 * 1024 or body[:1] != b"{":
        return "", None
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return "", None
    attempt = fields.get("attempt") if isinstance(fields, dict) else None
    return (attempt if isinstance(attempt, str) else ""), fields
