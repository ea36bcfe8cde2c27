"""Containers and blobs as Azure writes them: in headers, in listings, and their versions' names."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from typing import Any

from lockkit.lab.server import tags
from lockkit.lab.server.call import DialectError, DialectRequest
from lockkit.lab.server.objects import Object

SNAPSHOTS = "\0snapshots"
"""The suffix of a container's name for the bucket of its snapshots; no client can use it."""
_CONTENT = {
    "x-ms-blob-content-type": "content-type",
    "x-ms-blob-content-encoding": "content-encoding",
    "x-ms-blob-content-language": "content-language",
    "x-ms-blob-content-disposition": "content-disposition",
    "x-ms-blob-cache-control": "cache-control",
}


def tag(object: Object) -> str:
    """Identifies the write, not the bytes: equal bytes get another one. A snapshot has its blob's.
    """
    return f"0x8{object.meta.get('of', object.id):014X}"


def etag(object: Object) -> str:
    return f'"{tag(object)}"'


def version_id(object: Object) -> str:
    """A time to 100 ns, as Azure's are: the object's id in microseconds and a zero."""
    moment = datetime.fromtimestamp(object.id // 1_000_000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{object.id % 1_000_000:06}0Z"


def id_of(version: str) -> int:
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{6})\dZ", version, re.ASCII)
    try:
        moment = datetime.fromisoformat(found[1]) if found else None
    except ValueError:
        moment = None
    if found is None or moment is None:
        raise DialectError(400, "InvalidQueryParameterValue", "the version id is not one of ours")
    return int(moment.replace(tzinfo=UTC).timestamp()) * 1_000_000 + int(found[2])


def meta_of(call: DialectRequest) -> dict[str, Any]:
    kept = {new: call.headers[old] for old, new in _CONTENT.items() if old in call.headers}
    for name, value in call.headers.items():
        if name.startswith("x-ms-meta-"):
            kept[name.removeprefix("x-ms-")] = value
    if "x-ms-tags" in call.headers:
        kept["tags"] = tags.of_header(call.headers["x-ms-tags"])
    return kept


def meta_headers(meta: dict[str, Any]) -> dict[str, str]:
    headers = {"Content-Type": "application/octet-stream", **meta.get("copied", {})}
    for name, value in meta.items():
        if name.startswith("meta-"):
            headers[f"x-ms-{name}"] = value
        elif name == "tags" and value:
            headers["x-ms-tag-count"] = str(value.count("&") + 1)
        elif name in _CONTENT.values():
            headers[name.title()] = value
    return headers


def md5_of(object: Object) -> str:
    """The MD5 of a blob that was put whole or in blocks; S3's multipart objects have none."""
    raw = bytes.fromhex(object.etag) if len(object.etag) == 32 else b""
    return base64.b64encode(raw).decode()
