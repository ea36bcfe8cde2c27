"""Translates request lines and the headers of requests and answers into a history's terms.

Only this is taken from a log: method, object, condition, time, status, version, digests, and the
lock record in a body. No header of another name and no URL parameter is kept, so no credential is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import parse_qs, unquote, urlsplit

from lockkit.errors import clipped
from lockkit.protocol.record import RECORD_BYTES_MAX, Record, decode
from lockkit.stores.endpoint import bucket_in

KEY_CHARS_MAX = 1_024
WHO_CHARS_MAX = 40
NAMES = (
    "if-match", "if-none-match", "x-amz-checksum-crc32", "content-md5", "x-ms-blob-content-md5",
    "etag", "x-goog-generation", "x-goog-hash", "x-ms-error-code", "date", "host", "user-agent",
)  # fmt: skip
"""The headers that are read; all others are ignored."""
OTHER_PARTS = {"comp", "restype", "uploads", "uploadId", "delete", "versioning", "tagging", "acl"}
"""Parameters that ask for something else than the object."""
SHORT_CODES = {"BlobAlreadyExists", "ConditionalRequestConflict"}
_HEX32 = re.compile(r"[0-9a-f]{32}")
_AGENT = re.compile(r"lockkit-client/([A-Za-z0-9._-]{1,40})")
_GCS = re.compile(r"/(?:upload/|download/)?storage/v1/b/([^/]+)/o(?:/(.*))?$")
_GCS_NAME = re.compile(rb'"name": ?"([^"\\]{1,1024})"')
_GCS_BODY = re.compile(rb"\r\n\r\n(?=[^\r\n])")
_RECORD = re.compile(rb'\{[^{}]{0,60000}"validUntil"[^{}]{0,60000}\}')


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRequest:
    """One HTTP request as its sender's log shows it."""

    who: str
    method: str
    """GET, HEAD, PUT or DELETE of an object; LIST; OTHER."""
    key: str
    """bucket/key; "bucket/" where the log does not say."""
    condition: str
    """As in a history's `request`."""
    sent_ms: float
    answered_ms: float | None = None
    """None: the log ends, or goes on, without an answer."""
    status: int = 0
    """0: no answer."""
    code: str = ""
    version: str = ""
    """That the answer names."""
    record: Record | None = None
    """What it wrote or read, as far as the log shows it."""
    digests: frozenset[str] = frozenset()
    """Of the bytes that it wrote."""
    found: frozenset[str] = frozenset()
    """Of the bytes that the answer brought."""

    @property
    def writes(self) -> bool:
        return self.method in ("PUT", "DELETE")


def sent_request(
    who: str, method: str, url: str, headers: Mapping[str, str], at_ms: float
) -> SentRequest:
    """A request by its line and headers (names in lower case)."""
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets in the place of its host
        parts = urlsplit(url.replace("[", "%5B").replace("]", "%5D"))
    query = parse_qs(parts.query, keep_blank_values=True)
    agent = _AGENT.search(headers.get("user-agent", ""))
    gcs = _GCS.search(parts.path)
    if gcs:
        bucket, name = unquote(gcs[1]), unquote(gcs[2] or query.get("name", [""])[0])
        is_upload = "/upload/" in parts.path
        kind = "PUT" if is_upload else method if name else "LIST"
        key, condition = f"{bucket}/{name}", _generation(query)
    else:
        bucket = bucket_in(parts.netloc or headers.get("host", ""))
        key, kind = f"{bucket}/{unquote(parts.path).lstrip('/')}".lstrip("/"), _kind(method, query)
        condition = _condition(kind, headers)
    who = clipped(agent[1] if agent else who, WHO_CHARS_MAX)
    return SentRequest(
        who=who, method=kind, key=key[:KEY_CHARS_MAX],
        condition=condition, sent_ms=at_ms, digests=_digests(headers),
        version=query.get("generation", [""])[0] if gcs else "",
    )  # fmt: skip


def _kind(method: str, query: Mapping[str, list[str]]) -> str:
    """The kind of a request in S3's or Azure's dialect."""
    if query.keys() & {"list-type", "versions"} or query.get("comp") == ["list"]:
        return "LIST"
    if query.keys() & OTHER_PARTS or method not in ("GET", "HEAD", "PUT", "DELETE"):
        return "OTHER"
    return method


def _generation(query: Mapping[str, list[str]]) -> str:
    match query.get("ifGenerationMatch", [""])[0], query.get("ifGenerationNotMatch", [""])[0]:
        case "0", _:
            return "if-absent"
        case number, _ if number.isdecimal():
            return f"if-version {number}"
        case _, number if number.isdecimal():
            return f"unless-version {number}"
        case _:
            return ""


def _condition(kind: str, headers: Mapping[str, str]) -> str:
    match, none = headers.get("if-match", ""), headers.get("if-none-match", "")
    if none == "*" and kind == "PUT":
        return "if-absent"
    if match:
        return f"if-version {match}"
    return f"unless-version {none}" if none and none != "*" else ""


def with_body(sent: SentRequest, body: bytes) -> SentRequest:
    """Add the bytes that it wrote; for GCS's multipart upload, the object's name and content."""
    name = _GCS_NAME.search(body)
    if sent.key.endswith("/") and name:
        parts = _GCS_BODY.split(body)
        sent = replace(sent, key=sent.key + name[1].decode("utf-8", "replace"))
        body = parts[2].rpartition(b"\r\n--")[0] if len(parts) > 2 else body
    return replace(sent, record=record_in(body), digests=sent.digests | {_md5(body)})


def record_in(body: bytes) -> Record | None:
    """The lock record in some bytes of a log, if there is one."""
    if len(body) > 2 * RECORD_BYTES_MAX:
        return None
    found = _RECORD.search(body)
    record = decode(found[0]) if found else None
    return record if isinstance(record, Record) else None


def answered(
    sent: SentRequest, status: int, headers: Mapping[str, str], at_ms: float
) -> SentRequest:
    code = headers.get("x-ms-error-code", "")
    return replace(
        sent, answered_ms=at_ms, status=status, code=code if code in SHORT_CODES else "",
        version=headers.get("x-goog-generation") or headers.get("etag", "") or sent.version,
        found=_digests(headers) | _etag(headers),
    )  # fmt: skip


def _digests(headers: Mapping[str, str]) -> frozenset[str]:
    found = set()
    if crc32 := headers.get("x-amz-checksum-crc32"):
        found.add(f"crc32:{crc32}")
    reported = [headers.get("content-md5", ""), headers.get("x-ms-blob-content-md5", "")]
    reported += re.findall(r"md5=([A-Za-z0-9+/=]+)", headers.get("x-goog-hash", ""))
    return frozenset(found | {f"md5:{each}" for each in map(hex_of, reported) if each})


def _etag(headers: Mapping[str, str]) -> frozenset[str]:
    """S3's ETag of an object that was written at once, and without KMS, is its MD5."""
    bare = headers.get("etag", "").strip('"')
    return frozenset({f"md5:{bare}"} if _HEX32.fullmatch(bare) else ())


def hex_of(base64_: object) -> str:
    """The hex form of a digest in base64; "" if it is not one."""
    try:
        raw = base64.b64decode(str(base64_), validate=True)
    except (binascii.Error, ValueError):
        return ""
    return raw.hex() if len(raw) == 16 else ""


def _md5(body: bytes) -> str:
    return "md5:" + hashlib.md5(body, usedforsecurity=False).hexdigest()
