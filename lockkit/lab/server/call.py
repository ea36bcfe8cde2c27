"""One request and its answer, as values: the input and the output of a dialect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from typing import Literal
from urllib.parse import parse_qsl, unquote

from lockkit.lab.server.objects import Object
from lockkit.stores.endpoint import epoch_ms

KEY_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True)
class DialectRequest:
    """A request: `path` is still quoted; header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    host: str = ""
    target: str = ""
    """The target as in the request line, for a signature."""
    id: str = ""
    """The request's id in the answer's headers and errors; it ends with its number."""
    at_ms: float = 0.0
    """When it arrived."""


@dataclass(slots=True)
class RequestEffect:
    """What a request did to which object, for the request record."""

    method: str
    """put, get, head, list, delete, copy, patch, upload, part, abort, bucket, batch"""
    bucket: str = ""
    key: str = ""
    condition: str = ""
    answer: str = "error"
    before: str = ""
    version: str = ""
    applied: bool = False
    """An object changed."""
    generation: int = 0
    body: bytes | None = None
    """The bytes that a write sent, even if it was refused."""
    at_ms: float | None = None


@dataclass(slots=True)
class Reply:
    """An answer, and the request's entry in the record."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    deed: RequestEffect | None = None
    length: int | None = None
    """Content-Length of a HEAD, whose body is not sent."""
    inner: list[Reply] = field(default_factory=list)
    """The answers to the requests of a batch: each one is recorded instead of the batch."""


class DialectError(Exception):
    """Raised anywhere in a dialect: this answer, and nothing was applied."""

    def __init__(self, status: int, code: str, message: str, answer: str = "error") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.answer = answer


def call_of(
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    host: str = "",
    id: str = "",
    at_ms: float = 0.0,
) -> DialectRequest:
    if "://" in target.partition("?")[0]:  # to a forward proxy: http://host/path
        target = "/" + target.partition("://")[2].partition("/")[2]
    path, _, query = target.partition("?")
    pairs = dict(parse_qsl(query, keep_blank_values=True, encoding="utf-8", errors="replace"))
    return DialectRequest(
        method, path, pairs, headers, body, headers.get("host", host), target, id, at_ms
    )


def key_of(quoted: str) -> str:
    """The decoded key; a key that is not UTF-8 is refused."""
    try:
        return checked_key(unquote(quoted, errors="strict"))
    except UnicodeDecodeError:
        raise DialectError(400, "InvalidURI", "the key is not UTF-8") from None


def checked_key(key: object) -> str:
    if not isinstance(key, str):
        raise DialectError(400, "invalid", "a name is a string")
    if len(key.encode("utf-8", "surrogatepass")) > KEY_BYTES_MAX:
        raise DialectError(400, "KeyTooLongError", f"a key has at most {KEY_BYTES_MAX} bytes")
    if re.search("[\x00\ud800-\udfff]", key):
        raise DialectError(400, "InvalidURI", "a key holds no NUL and no half of a surrogate pair")
    return key


def wrote(deed: RequestEffect, after: Object) -> None:
    """The record's entry for a write; the dialect gives the versions before and after."""
    deed.answer, deed.applied = "applied", True
    deed.generation, deed.at_ms = after.id, after.at_ms


def removed(deed: RequestEffect, marker: Object | None) -> None:
    deed.answer, deed.applied = "applied", marker is not None
    if marker is not None:
        deed.generation, deed.at_ms = marker.id, marker.at_ms


def http_date(at_ms: float) -> str:
    return _http_date(int(at_ms // 1000))


@lru_cache(maxsize=64)
def _http_date(at_s: int) -> str:
    return formatdate(at_s, usegmt=True)


def judged(
    headers: Mapping[str, str], tag: str, at_ms: float
) -> Literal["", "unchanged", "failed"]:
    """The conditions on a version. A date counts only without an ETag condition (RFC 9110)."""
    match, unless = headers.get("if-match"), headers.get("if-none-match")
    at_s, since = int(at_ms // 1000), epoch_ms(headers.get("if-unmodified-since"))
    if match is not None:
        failed = not same_tag(match, tag)
    else:
        failed = since is not None and at_s > since // 1000
    since = epoch_ms(headers.get("if-modified-since"))
    if unless is not None:
        unchanged = same_tag(unless, tag)
    else:
        unchanged = since is not None and at_s <= since // 1000
    return "failed" if failed else "unchanged" if unchanged else ""


def same_tag(header: str, etag: str) -> bool:
    """Does this If-Match or If-None-Match name the tag (quoted or not, weak or not)?"""
    wanted = [each.strip().removeprefix("W/").strip('"') for each in header.split(",")]
    return "*" in wanted or etag in wanted


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """`bytes=a-b` as (start, end exclusive); None: the whole, or several ranges (RFC 9110)."""
    found = re.fullmatch(r"bytes=\s*(\d{0,999})-(\d{0,999})\s*", header or "", re.ASCII)
    if found is None or not found[1] + found[2]:
        return None
    if not found[1]:
        if int(found[2]) == 0 or size == 0:
            raise DialectError(416, "InvalidRange", "The range specified is not satisfiable.")
        return max(0, size - int(found[2])), size
    start = int(found[1])
    if found[2] and int(found[2]) < start:
        return None
    if start >= size:
        raise DialectError(416, "InvalidRange", "The range specified is not satisfiable.")
    return start, min(int(found[2]) + 1, size) if found[2] else size


def number(text: str, name: str) -> int:
    if not re.fullmatch(r"\d{1,19}", text, re.ASCII):
        raise DialectError(400, "InvalidArgument", f"{name} is not a number")
    return int(text)
