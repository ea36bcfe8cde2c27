"""Google Cloud Storage's JSON API, and the little of its XML API that object_store speaks."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from datetime import UTC, datetime
from email.parser import BytesParser
from typing import Any
from urllib.parse import parse_qsl, quote

from lockkit.emulator.call import Call, Deed, Refusal, Reply, byte_range, http_date, key_of
from lockkit.emulator.listing import page
from lockkit.emulator.objects import Check, Object, Objects
from lockkit.emulator.profiles import Profile, throttle

_PATH = re.compile(r"^/(?:(upload|download|resumable)/)*(?:upload/)?storage/v1(/.*)$")
_OBJECT = re.compile(r"^/b/([^/]+)/o/([^/]+)$")
_MOVE = re.compile(r"^/b/([^/]+)/o/([^/]+)/(rewriteTo|copyTo)/b/([^/]+)/o/([^/]+)$")
_SPAN = re.compile(r"^bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)$")
_REASONS = {
    304: "notModified", 400: "invalid", 404: "notFound", 409: "conflict",
    412: "conditionNotMet", 416: "requestedRangeNotSatisfiable", 429: "rateLimitExceeded",
    500: "backendError", 501: "notImplemented", 507: "backendError",
}  # fmt: skip


class Gcs:
    """`answer(call)` for every request that the SDKs were seen to send; the rest is a 501."""

    def __init__(self, objects: Objects, profile: Profile) -> None:
        self.objects = objects
        self.profile = profile

    def answer(self, call: Call) -> Reply:
        deed = Deed(call.method.lower())
        try:
            return self._route(call, deed)
        except Refusal as refusal:
            deed.answer = refusal.answer
            return self.refuse(call, refusal, deed)

    def refuse(self, call: Call, refusal: Refusal, deed: Deed) -> Reply:
        if refusal.status == 304:
            return Reply(304, {}, b"", deed)
        status = 500 if refusal.status == 507 else refusal.status
        reason = (
            refusal.code if refusal.code in ("noSuchBucket",) else _REASONS.get(status, "error")
        )
        fields = {
            "code": status,
            "message": refusal.message,
            "errors": [{"message": refusal.message, "domain": "global", "reason": reason}],
        }
        return _json({"error": fields}, deed, status)

    def _route(self, call: Call, deed: Deed) -> Reply:
        if call.path.startswith("/batch/storage/v1"):
            return self._batch(call, deed)
        found = _PATH.match(call.path)
        if found is None:
            return self._xml_api(call, deed)
        path, media = found[2], call.query.get("alt") == "media" or "/download/" in call.path
        uploading = "upload/" in call.path
        if path == "/b":
            return self._buckets(call, deed)
        if re.fullmatch(r"/b/[^/]+", path):
            return self._bucket(call, deed, key_of(path[3:]))
        if re.fullmatch(r"/b/[^/]+/o/?", path):
            deed.bucket = key_of(path.split("/")[2])
            if uploading:
                return self._upload(call, deed)
            if call.method == "GET":
                return self._list(call, deed)
        if moved := _MOVE.match(path):
            return self._copy(call, deed, moved)
        if named := _OBJECT.match(path):
            deed.bucket, deed.key = key_of(named[1]), key_of(named[2])
            match call.method:
                case "GET" if media:
                    return self._download(call, deed)
                case "GET" | "HEAD":
                    present = self._wanted(call, deed)
                    deed.answer = "found"
                    return _json(_resource(call, present), deed)
                case "DELETE":
                    return self._delete(call, deed)
                case "PATCH" | "PUT":
                    return self._patch(call, deed)
        raise Refusal(501, "notImplemented", f"this server does not do {call.method} {call.path}")

    # --- buckets -----------------------------------------------------------------------------------

    def _buckets(self, call: Call, deed: Deed) -> Reply:
        if call.method == "POST":
            name = str(_fields(call.body).get("name", ""))
            if not name:
                raise Refusal(400, "invalid", "a bucket needs a name")
            if not self.objects.add_bucket(name):
                raise Refusal(409, "conflict", "You already own this bucket.")
            deed.bucket, deed.answer = name, "applied"
            return _json(_bucket_resource(name), deed)
        deed.method, deed.answer = "list", "listed"
        items = [_bucket_resource(name) for name in self.objects.buckets()]
        return _json({"kind": "storage#buckets", "items": items}, deed)

    def _bucket(self, call: Call, deed: Deed, name: str) -> Reply:
        deed.bucket = name
        match call.method:
            case "GET" | "PATCH":  # made on first use, so every bucket is there
                deed.answer = "found"
                return _json(_bucket_resource(name), deed)
            case "DELETE":
                if self.objects.list(name, "", limit=1):
                    raise Refusal(409, "conflict", "The bucket you tried to delete is not empty.")
                self.objects.remove_bucket(name)
                deed.answer = "deleted"
                return Reply(204, deed=deed)
        raise Refusal(501, "notImplemented", f"this server does not do {call.method} on a bucket")

    def _list(self, call: Call, deed: Deed) -> Reply:
        query = call.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        limit = min(_number(query.get("maxResults", "1000"), "maxResults"), 1000)
        deed.method, deed.key, deed.answer = "list", prefix, "listed"
        token = query.get("pageToken")
        if query.get("versions", "").lower() == "true":  # the SDK writes True
            return self._list_versions(call, deed, prefix, token, limit)
        start = query.get("startOffset", "")
        after = _untoken(token) if token else ""
        contents, prefixes, last = page(
            self.objects, deed.bucket, prefix, delimiter, after, limit, start
        )
        end = query.get("endOffset", "")
        items = [_resource(call, each) for each in contents if not end or each.key < end]
        answer: dict[str, Any] = {"kind": "storage#objects", "items": items}
        if prefixes:
            answer["prefixes"] = prefixes
        if last is not None:
            answer["nextPageToken"] = _token(last)
        return _json(answer, deed)

    def _list_versions(
        self, call: Call, deed: Deed, prefix: str, token: str | None, limit: int
    ) -> Reply:
        key, _, id = _untoken(token).rpartition("\n") if token else ("", "", "0")
        found = self.objects.history(deed.bucket, prefix, (key, int(id)), limit + 1)
        more, found = len(found) > limit, found[:limit]
        items = [_resource(call, each, self.objects) for each in found if not each.deleted]
        answer: dict[str, Any] = {"kind": "storage#objects", "items": items}
        if more:
            answer["nextPageToken"] = _token(f"{found[-1].key}\n{found[-1].id}")
        return _json(answer, deed)

    # --- reading -----------------------------------------------------------------------------------

    def _wanted(self, call: Call, deed: Deed) -> Object:
        wanted = call.query.get("generation")
        if wanted is not None:
            found = self.objects.at(deed.bucket, deed.key, _number(wanted, "generation"))
        else:
            found = self.objects.current(deed.bucket, deed.key)
        if found is None or found.deleted:
            raise Refusal(404, "notFound", f"No such object: {deed.bucket}/{deed.key}", "missing")
        deed.version = str(found.id)
        self._judge(call, deed, found, reading=True)
        return found

    def _download(self, call: Call, deed: Deed) -> Reply:
        found = self._wanted(call, deed)
        return self._bytes(call, deed, found)

    def _bytes(self, call: Call, deed: Deed, found: Object) -> Reply:
        headers = {
            "ETag": _etag(found),
            "Last-Modified": http_date(found.at_ms),
            "Content-Type": str(found.meta.get("contentType", "application/octet-stream")),
            "x-goog-generation": str(found.id),
            "x-goog-metageneration": str(found.metageneration),
            "x-goog-stored-content-length": str(found.size),
            "x-goog-storage-class": "STANDARD",
            "x-goog-hash": f"md5={_md5(found)}",
            "Accept-Ranges": "bytes",
        }
        deed.answer = "found"
        if call.method == "HEAD":
            return Reply(200, headers, b"", deed, found.size)
        span = byte_range(call.headers.get("range"), found.size)
        body = self.objects.body(found, *(span or (0, None)))
        if body is None:
            raise Refusal(410, "gone", "this past generation was too large to keep")
        if span is None:
            return Reply(200, headers, body, deed)
        headers["Content-Range"] = f"bytes {span[0]}-{span[1] - 1}/{found.size}"
        return Reply(206, headers, body, deed)

    # --- writing -----------------------------------------------------------------------------------

    def _upload(self, call: Call, deed: Deed) -> Reply:
        match call.query.get("uploadType", "media"):
            case "media":
                fields: dict[str, Any] = {"contentType": call.headers.get("content-type", "")}
                return self._insert(call, deed, fields, call.body)
            case "multipart":
                fields, body = _related(call)
                return self._insert(call, deed, fields, body)
            case "resumable" if call.query.get("upload_id"):
                return self._resume(call, deed)
            case "resumable":
                return self._start(call, deed)
            case other:
                raise Refusal(501, "notImplemented", f"this server has no upload type {other!r}")

    def _insert(self, call: Call, deed: Deed, fields: dict[str, Any], body: bytes) -> Reply:
        deed.method = "put"
        deed.key = str(fields.get("name") or call.query.get("name", ""))
        if not deed.key or len(deed.key.encode()) > 1024:
            raise Refusal(400, "invalid", "an object's name has 1 to 1024 bytes")
        if "md5Hash" in fields and fields["md5Hash"] != _b64(hashlib.md5(body).digest()):
            raise Refusal(400, "invalid", "the MD5 that was declared does not match the bytes")
        meta = {k: v for k, v in fields.items() if k in _KEPT}
        before, after = self.objects.write(
            deed.bucket, deed.key, body, self._check(call, deed), meta=meta
        )
        _applied(deed, before, after, body)
        return _json(_resource(call, after), deed)

    def _start(self, call: Call, deed: Deed) -> Reply:
        fields = _fields(call.body) if call.body else {}
        name = str(fields.get("name") or call.query.get("name", ""))
        fields["query"] = dict(call.query)
        fields.setdefault("contentType", call.headers.get("x-upload-content-type", ""))
        upload = self.objects.start_upload(deed.bucket, name, fields)
        deed.method, deed.key, deed.answer = "upload", name, "found"
        place = (
            f"http://{call.host}/upload/storage/v1/b/{quote(deed.bucket, safe='')}/o"
            f"?uploadType=resumable&upload_id={upload}"
        )
        return Reply(200, {"Location": place, "x-guploader-uploadid": upload}, b"", deed)

    def _resume(self, call: Call, deed: Deed) -> Reply:
        upload = call.query["upload_id"]
        known = self.objects.upload(upload)
        if known is None:
            raise Refusal(404, "notFound", "no such resumable upload", "missing")
        deed.bucket, deed.key, fields = known
        if call.method == "DELETE":
            self.objects.end_upload(upload)
            deed.method, deed.answer = "abort", "deleted"
            return Reply(499, deed=deed)
        had = sum(size for _, _, _, size in self.objects.parts(upload))
        span = _SPAN.match(call.headers.get("content-range", f"bytes 0-{len(call.body) - 1}/*"))
        if "content-range" not in call.headers:
            total: int | None = len(call.body)
        elif span is None:
            raise Refusal(400, "invalid", "Content-Range is not readable")
        else:
            total = None if span[3] == "*" else int(span[3])
        if call.body and span is not None and span[1] is not None:
            if int(span[1]) != had:
                raise Refusal(503, "backendError", f"the upload continues at byte {had}")
            self.objects.add_part(upload, f"{had:020}", had, call.body)
            had += len(call.body)
        elif call.body:
            self.objects.add_part(upload, f"{had:020}", had, call.body)
            had += len(call.body)
        if total is None or had < total:
            deed.method, deed.answer = "part", "found"
            return Reply(308, {"Range": f"bytes=0-{had - 1}"} if had else {}, b"", deed)
        pieces = (self.objects.part(upload, part[0]) for part in self.objects.parts(upload))
        body = b"".join(piece or b"" for piece in pieces)
        query = fields.pop("query", {})
        first = Call(call.method, call.path, query, call.headers, b"", call.host)
        reply = self._insert(first, deed, {**fields, "name": deed.key}, body)
        self.objects.end_upload(upload)
        return reply

    def _copy(self, call: Call, deed: Deed, moved: re.Match[str]) -> Reply:
        bucket, key = key_of(moved[1]), key_of(moved[2])
        found = self.objects.current(bucket, key)
        body = None if found is None else self.objects.body(found)
        if found is None or body is None:
            raise Refusal(404, "notFound", f"No such object: {bucket}/{key}", "missing")
        deed.bucket, deed.key, deed.method = key_of(moved[4]), key_of(moved[5]), "copy"
        before, after = self.objects.write(
            deed.bucket, deed.key, body, self._check(call, deed), meta=found.meta
        )
        _applied(deed, before, after, body)
        resource = _resource(call, after)
        if moved[3] == "copyTo":
            return _json(resource, deed)
        size = str(after.size)
        return _json(
            {"kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size,
             "done": True, "resource": resource}, deed,
        )  # fmt: skip

    def _patch(self, call: Call, deed: Deed) -> Reply:
        found = self._wanted(call, deed)
        changed = {k: v for k, v in _fields(call.body).items() if k in _KEPT}
        after = self.objects.annotate(found, {**found.meta, **changed})
        deed.answer, deed.method = "found", "patch"
        return _json(_resource(call, after), deed)

    def _delete(self, call: Call, deed: Deed) -> Reply:
        wanted = call.query.get("generation")
        if wanted is not None:
            self.objects.remove_version(deed.bucket, deed.key, _number(wanted, "generation"))
            deed.answer = "deleted"
            return Reply(204, deed=deed)

        def check(before: Object | None) -> None:
            deed.before = "" if before is None else str(before.id)
            if before is None:
                raise Refusal(
                    404, "notFound", f"No such object: {deed.bucket}/{deed.key}", "missing"
                )
            self._judge(call, deed, before)

        self.objects.remove(deed.bucket, deed.key, check)
        deed.answer, deed.applied = "applied", True
        return Reply(204, deed=deed)

    def _batch(self, call: Call, deed: Deed) -> Reply:
        """multipart/mixed of whole requests, as bucket.delete_blobs sends them."""
        parts = _mime(call)
        answers = []
        for part in parts:
            head, _, rest = part.partition(b"\r\n\r\n")
            first, _, more = rest.replace(b"\r\n", b"\n").partition(b"\n")
            words = first.decode("latin-1").split(" ")
            if len(words) < 2:
                raise Refusal(400, "invalid", "a part of the batch is no request")
            target = words[1].partition("://")[2].partition("/")[2]
            path, _, query = (target if target else words[1].lstrip("/")).partition("?")
            headers, _, body = more.partition(b"\n\n")
            inner = Call(
                words[0], "/" + path, dict(parse_qsl(query)),
                {k.lower(): v for k, v in BytesParser().parsebytes(headers).items()}, body, call.host,
            )  # fmt: skip
            reply = self.answer(inner)
            named = re.search(rb"(?i)content-id:\s*<?([^>\r\n]+)>?", head)
            id = (named[1] if named else b"0").replace(b"+", b"+response-")
            answers.append(
                b"Content-Type: application/http\r\nContent-ID: <response-"
                + id
                + b">\r\n\r\n"
                + f"HTTP/1.1 {reply.status} {'OK' if reply.status < 400 else 'Error'}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(reply.body)}\r\n\r\n".encode()
                + reply.body
            )
        deed.method, deed.answer, deed.applied = "delete", "applied", True
        body = b"".join(b"--batch_lockkit\r\n" + each + b"\r\n" for each in answers)
        kind = {"Content-Type": "multipart/mixed; boundary=batch_lockkit"}
        return Reply(200, kind, body + b"--batch_lockkit--", deed)

    # --- conditions ----------------------------------------------------------------------------------

    def _check(self, call: Call, deed: Deed) -> Check:
        wanted = call.query.get("ifGenerationMatch")
        if wanted is not None:
            deed.condition = "if-absent" if wanted == "0" else f"if-version {wanted}"

        def check(before: Object | None) -> None:
            deed.before = "" if before is None else str(before.id)
            throttle(self.objects, self.profile, before)
            if self.profile.put_conditions:
                self._judge(call, deed, before)

        return check

    def _judge(
        self, call: Call, deed: Deed, present: Object | None, *, reading: bool = False
    ) -> None:
        generation = 0 if present is None else present.id
        meta = 0 if present is None else present.metageneration
        query = call.query
        pairs = (("Generation", generation), ("Metageneration", meta))
        for what, is_now in pairs:
            same, other = query.get(f"if{what}Match"), query.get(f"if{what}NotMatch")
            if same is not None and _number(same, what) != is_now:
                raise Refusal(
                    412, "conditionNotMet",
                    "At least one of the pre-conditions you specified did not hold.",
                    "precondition_failed",
                )  # fmt: skip
            if other is not None:
                if reading and what == "Generation":
                    deed.condition = f"unless-version {other}"
                if _number(other, what) == is_now:
                    if reading:
                        raise Refusal(304, "notModified", "", "not_modified")
                    raise Refusal(412, "conditionNotMet", "it does match", "precondition_failed")

    # --- XML API ---------------------------------------------------------------------------------------

    def _xml_api(self, call: Call, deed: Deed) -> Reply:
        """`/bucket/key` with x-goog-if-generation-match: what object_store sends."""
        bucket, _, key = call.path.lstrip("/").partition("/")
        deed.bucket, deed.key = key_of(bucket), key_of(key)
        known = call.query.keys() <= {"generation"}
        query = dict(call.query)
        wanted = call.headers.get("x-goog-if-generation-match")
        if wanted is not None:
            query["ifGenerationMatch"] = wanted
        inner = Call(call.method, call.path, query, call.headers, call.body, call.host)
        match call.method:
            case "GET" | "HEAD" if key and known:
                try:
                    found = self._wanted(inner, deed)
                except Refusal as refusal:
                    if refusal.status == 404:
                        deed.answer = "missing"
                        text = b"<Error><Code>NoSuchKey</Code></Error>"
                        return Reply(404, {}, b"" if call.method == "HEAD" else text, deed)
                    raise
                return self._bytes(call, deed, found)
            case "PUT" if key and known and "x-goog-copy-source" not in call.headers:
                fields = {"name": deed.key, "contentType": call.headers.get("content-type", "")}
                reply = self._insert(inner, deed, fields, call.body)
                stored = json.loads(reply.body)
                headers = {
                    "ETag": f'"{stored["etag"]}"', "x-goog-generation": stored["generation"],
                    "x-goog-metageneration": "1",
                }  # fmt: skip
                return Reply(200, headers, b"", deed)
            case "DELETE" if key and known:
                return self._delete(inner, deed)
        raise Refusal(501, "notImplemented", f"this server does not do {call.method} {call.path}")


_KEPT = {
    "contentType", "contentEncoding", "cacheControl", "contentDisposition", "contentLanguage",
    "metadata",
}  # fmt: skip


def _applied(deed: Deed, before: Object | None, after: Object, body: bytes) -> None:
    deed.answer, deed.applied, deed.body, deed.at_ms = "applied", True, body, after.at_ms
    deed.before, deed.version = "" if before is None else str(before.id), str(after.id)


def _resource(call: Call, object: Object, objects: Objects | None = None) -> dict[str, Any]:
    name, bucket = quote(object.key, safe=""), object.bucket
    link = f"http://{call.host}/storage/v1/b/{bucket}/o/{name}"
    made = _iso(object.at_ms)
    fields = {
        "kind": "storage#object", "id": f"{bucket}/{object.key}/{object.id}", "selfLink": link,
        "mediaLink": f"http://{call.host}/download/storage/v1/b/{bucket}/o/{name}?alt=media",
        "name": object.key, "bucket": bucket, "generation": str(object.id),
        "metageneration": str(object.metageneration), "storageClass": "STANDARD",
        "size": str(object.size), "md5Hash": _md5(object), "etag": _etag(object),
        "timeCreated": made, "updated": made, "timeStorageClassUpdated": made, **object.meta,
    }  # fmt: skip
    if objects is not None:
        newest = objects.current(bucket, object.key)
        if newest is None or newest.id != object.id:
            fields["timeDeleted"] = _iso(newest.at_ms if newest else object.at_ms)
    return fields


def _bucket_resource(name: str) -> dict[str, Any]:
    return {
        "kind": "storage#bucket", "id": name, "name": name, "location": "LOCAL",
        "storageClass": "STANDARD", "metageneration": "1", "etag": "CAE=",
        "timeCreated": "2024-01-01T00:00:00.000Z", "updated": "2024-01-01T00:00:00.000Z",
        "versioning": {"enabled": True},
    }  # fmt: skip


def _md5(object: Object) -> str:
    return _b64(bytes.fromhex(object.etag.partition("-")[0]))


def _b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _etag(object: Object) -> str:
    return _b64(zlib.crc32(str(object.id).encode()).to_bytes(4, "big")).rstrip("=") + "="


def _related(call: Call) -> tuple[dict[str, Any], bytes]:
    """The two parts of multipart/related: the resource as JSON, and the bytes."""
    parts = _mime(call)
    if len(parts) != 2:
        raise Refusal(400, "invalid", "a multipart upload has two parts: metadata and media")
    (head, _, first), (media_head, _, media) = (each.partition(b"\r\n\r\n") for each in parts)
    fields = _fields(first)
    found = re.search(rb"(?i)content-type:\s*([^\r\n]+)", media_head)
    if found:
        fields.setdefault("contentType", found[1].decode("latin-1").strip())
    return fields, media


def _mime(call: Call) -> list[bytes]:
    found = re.search(r'boundary="?([^";]+)"?', call.headers.get("content-type", ""))
    if found is None:
        raise Refusal(400, "invalid", "a multipart body needs a boundary")
    mark = b"--" + found[1].encode()
    pieces = call.body.split(mark)
    # The first piece is the preamble, the last one starts with "--"; each ends in a line break.
    return [
        re.sub(rb"\r?\n$", b"", re.sub(rb"^\r?\n", b"", piece))
        for piece in pieces[1:]
        if not piece.startswith(b"--")
    ]


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise Refusal(400, "parseError", "the metadata is not JSON") from None
    if not isinstance(fields, dict):
        raise Refusal(400, "parseError", "the metadata is not a JSON object")
    return fields


def _number(text: str, name: str) -> int:
    if not text.isdigit() or len(text) > 19:
        raise Refusal(400, "invalid", f"{name} is not a number")
    return int(text)


def _token(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


def _untoken(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except ValueError:
        raise Refusal(400, "invalid", "the page token is not one of ours") from None


def _iso(at_ms: float) -> str:
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(at_ms % 1000):03}Z"


def _json(fields: dict[str, Any], deed: Deed, status: int = 200) -> Reply:
    body = json.dumps(fields).encode()
    return Reply(status, {"Content-Type": "application/json; charset=UTF-8"}, body, deed)
