"""Objects and buckets as Google's JSON API writes them."""

from __future__ import annotations

import base64
import json
import re
from typing import Any
from urllib.parse import quote

from lockkit.lab.server import crc32c
from lockkit.lab.server.call import DialectError, DialectRequest, Reply, RequestEffect
from lockkit.lab.server.markup import iso
from lockkit.lab.server.objects import Object, Objects

_NAMES = {
    "contentType": "content-type",
    "contentEncoding": "content-encoding",
    "cacheControl": "cache-control",
    "contentDisposition": "content-disposition",
    "contentLanguage": "content-language",
}
"""Google's names for the metadata that is stored under HTTP's names."""
_MADE = "2024-01-01T00:00:00.000Z"


def fields_of(body: bytes) -> dict[str, Any]:
    """The JSON object in a request's body."""
    try:
        fields = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise DialectError(400, "parseError", "the metadata is not JSON") from None
    if not isinstance(fields, dict):
        raise DialectError(400, "parseError", "the metadata is not a JSON object")
    return fields


def meta_of(fields: dict[str, Any], kept: dict[str, Any] | None = None) -> dict[str, Any]:
    """The metadata of a resource; a patch changes what was `kept` (null removes a field)."""
    meta = dict(kept or {})
    for name, header in _NAMES.items():
        if fields.get(name):
            meta[header] = str(fields[name])
        elif name in fields:
            meta.pop(header, None)
    own = fields.get("metadata", {})
    if own is None:
        return {name: value for name, value in meta.items() if not name.startswith("meta-")}
    if not isinstance(own, dict):
        raise DialectError(400, "invalid", "metadata is not a JSON object")
    for name, value in own.items():
        if value is None:
            meta.pop(f"meta-{name}", None)
        else:
            meta[f"meta-{name}"] = str(value)
    return meta


def resource(
    call: DialectRequest, object: Object, objects: Objects | None = None
) -> dict[str, Any]:
    """An object; with `objects`, as one of a list of versions (only those have an end time)."""
    name, bucket = quote(object.key, safe=""), quote(object.bucket, safe="")
    made = iso(object.at_ms)
    fields: dict[str, Any] = {
        "kind": "storage#object",
        "id": f"{object.bucket}/{object.key}/{object.id}",
        "selfLink": f"http://{call.host}/storage/v1/b/{bucket}/o/{name}",
        "mediaLink": f"http://{call.host}/download/storage/v1/b/{bucket}/o/{name}"
        f"?generation={object.id}&alt=media",
        "name": object.key, "bucket": object.bucket, "generation": str(object.id),
        "metageneration": str(object.metageneration), "storageClass": "STANDARD",
        "size": str(object.size), "etag": etag(object), "timeCreated": made, "updated": made,
        "timeStorageClassUpdated": made, **_digests(object),
    }  # fmt: skip
    for theirs, header in _NAMES.items():
        if header in object.meta:
            fields[theirs] = object.meta[header]
    own = {k.removeprefix("meta-"): v for k, v in object.meta.items() if k.startswith("meta-")}
    if own:
        fields["metadata"] = own
    ended = None if objects is None else objects.superseded_ms(object)
    if ended is not None:
        fields["timeDeleted"] = iso(ended)
    return fields


def _digests(object: Object) -> dict[str, Any]:
    """A composed or multipart object has no MD5, as at Google."""
    found: dict[str, Any] = {}
    if re.fullmatch("[0-9a-f]{32}", object.etag):
        found["md5Hash"] = base64.b64encode(bytes.fromhex(object.etag)).decode()
    if "crc32c" in object.meta:
        found["crc32c"] = object.meta["crc32c"]
    count = object.etag.partition("-")[2]
    return found | ({"componentCount": int(count)} if count.isdecimal() else {})


def hash_header(object: Object) -> str:
    found = _digests(object)
    return ",".join(f"{short}={found[name]}" for name, short in
                    (("md5Hash", "md5"), ("crc32c", "crc32c")) if name in found)  # fmt: skip


def headers(object: Object) -> dict[str, str]:
    """The headers that accompany the bytes."""
    headers = {
        "ETag": etag(object),
        "Content-Type": "application/octet-stream",
        "x-goog-generation": str(object.id),
        "x-goog-metageneration": str(object.metageneration),
        "x-goog-stored-content-length": str(object.size),
        "x-goog-storage-class": "STANDARD",
        "x-goog-hash": hash_header(object),
    }
    for name, value in object.meta.items():
        if name in _NAMES.values():
            headers[name.title()] = value
        elif name.startswith("meta-"):
            headers[f"x-goog-{name}"] = value
    return headers


def etag(object: Object) -> str:
    return base64.b64encode(f"{object.id}/{object.metageneration}".encode()).decode()


def checksums(body: bytes, declared: dict[str, str]) -> dict[str, str]:
    """The CRC-32C to keep: computed, or for a long body the client's own; 400 if they differ."""
    found = crc32c.digest_of(body)
    claimed = declared.get("crc32c")
    if found is not None and claimed is not None and found != claimed:
        raise DialectError(
            400, "invalid",
            f"Provided CRC32C {claimed!r} doesn't match calculated CRC32C {found!r}.",
        )  # fmt: skip
    kept = found or claimed
    return {} if kept is None else {"crc32c": kept}


def bucket(name: str) -> dict[str, Any]:
    return {
        "kind": "storage#bucket", "id": name, "name": name, "location": "LOCAL",
        "storageClass": "STANDARD", "metageneration": "1", "etag": "CAE=", "timeCreated": _MADE,
        "updated": _MADE, "versioning": {"enabled": True},
    }  # fmt: skip


def answer(fields: dict[str, Any], deed: RequestEffect, status: int = 200) -> Reply:
    body = json.dumps(fields).encode()
    return Reply(status, {"Content-Type": "application/json; charset=UTF-8"}, body, deed)
