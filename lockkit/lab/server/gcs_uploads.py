"""Google's uploads: in one request (media, multipart), or resumable in chunks."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any
from urllib.parse import quote

from lockkit.lab.server import mime
from lockkit.lab.server.call import DialectError, DialectRequest, Reply, RequestEffect
from lockkit.lab.server.gcs_resource import checksums, fields_of, meta_of
from lockkit.lab.server.objects import Objects

_SPAN = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18}|\*)", re.ASCII)


def whole(call: DialectRequest) -> tuple[dict[str, Any], bytes]:
    """The resource and the bytes of an upload in one request."""
    kind = call.query.get("uploadType", "media")
    content_type = call.headers.get("content-type", "")
    if kind == "media":
        return {"contentType": content_type}, call.body
    parts = mime.parts(call.body, content_type)
    if len(parts) != 2:
        raise DialectError(
            400, "badContent", "a multipart upload has two parts: metadata and media"
        )
    fields = fields_of(parts[0].body)
    fields.setdefault("contentType", parts[1].headers.get("content-type", ""))
    return fields, parts[1].body


def described(call: DialectRequest, fields: dict[str, Any], body: bytes) -> dict[str, Any]:
    """The metadata to keep with the bytes; 400 if a declared checksum does not match them."""
    hashes = dict(
        part.strip().split("=", 1)
        for part in call.headers.get("x-goog-hash", "").split(",")
        if "=" in part
    )
    md5 = fields.get("md5Hash") or hashes.get("md5")
    if md5 is not None and md5 != base64.b64encode(hashlib.md5(body).digest()).decode():
        raise DialectError(400, "invalid", f"Provided MD5 {md5!r} doesn't match the bytes.")
    declared = {"crc32c": fields["crc32c"]} if fields.get("crc32c") else hashes
    return {**meta_of(fields), **checksums(body, declared)}


def start(
    objects: Objects, call: DialectRequest, deed: RequestEffect, fields: dict[str, Any]
) -> Reply:
    conditions = {name: value for name, value in call.query.items() if name.startswith("if")}
    fields.setdefault("contentType", call.headers.get("x-upload-content-type", ""))
    upload = f"gcs-{objects.clock.unique()}"
    started = {"resource": fields, "conditions": conditions}
    objects.start_upload(upload, deed.bucket, deed.key, started)
    deed.method, deed.answer = "upload", "applied"
    place = (
        f"http://{call.host}/upload/storage/v1/b/{quote(deed.bucket, safe='')}/o"
        f"?uploadType=resumable&upload_id={upload}"
    )
    return Reply(200, {"Location": place, "x-guploader-uploadid": upload}, b"", deed)


def receive(objects: Objects, call: DialectRequest, upload: str) -> int | None:
    """Add a chunk; return how many bytes there are, or None when the upload is complete.

    A chunk that is sent again after a lost answer may overlap the stored bytes.
    """
    had = sum(size for _, _, _, size in objects.parts(upload))
    header = call.headers.get("content-range")
    body, total = call.body, len(call.body)
    if header is not None:
        span = _SPAN.fullmatch(header)
        if span is None or (span[1] and int(span[2]) - int(span[1]) + 1 != len(body)):
            raise DialectError(400, "badContent", f"cannot use Content-Range {header[:100]!r}")
        total = -1 if span[3] == "*" else int(span[3])
        first = int(span[1]) if span[1] else had
        # A chunk after a gap is not stored; the answer says where to continue.
        body = body[had - first :] if span[1] and first <= had else b""
    elif had:
        raise DialectError(400, "badContent", "every chunk after the first needs a Content-Range")
    if body:
        objects.add_part(upload, f"{had:020}", had, body)
        had += len(body)
    if 0 <= total < had:
        raise DialectError(400, "badContent", "the body is longer than Content-Range says")
    return None if had == total else had


def gathered(objects: Objects, upload: str) -> bytes:
    return b"".join(objects.part(upload, name) or b"" for name, _, _, _ in objects.parts(upload))


def incomplete(had: int, deed: RequestEffect) -> Reply:
    deed.method, deed.answer = "part", "applied"
    return Reply(308, {"Range": f"bytes=0-{had - 1}"} if had else {}, b"", deed)


def finish(objects: Objects, upload: str, deed: RequestEffect) -> None:
    """Keep only its generation, for a client that lost the answer and retries."""
    objects.end_upload(upload)
    objects.start_upload(upload, deed.bucket, deed.key, {"done": deed.generation})
