"""Google Cloud Storage's JSON API, as google-cloud-storage and pyarrow speak it."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from lockkit.lab.server import gcs_lists, gcs_resource, gcs_uploads, mime
from lockkit.lab.server.call import (
    DialectError,
    DialectRequest,
    Reply,
    RequestEffect,
    byte_range,
    checked_key,
    http_date,
    key_of,
    number,
    removed,
    wrote,
)
from lockkit.lab.server.gcs_resource import answer, fields_of, resource
from lockkit.lab.server.gcs_xml import GcsXml
from lockkit.lab.server.objects import Check, Object, Objects
from lockkit.lab.server.profiles import ServerProfile, throttle

SOURCES_MAX = 32
_JSON_API = re.compile(r"/(?:resumable/)?(?:upload/|download/)?storage/v1(/b(?:/.*)?)")
_OBJECTS = re.compile(r"/b/([^/]+)/o/?")
_OBJECT = re.compile(r"/b/([^/]+)/o/(.+)")
_MOVE = re.compile(r"/b/([^/]+)/o/(.+)/(rewriteTo|copyTo)/b/([^/]+)/o/(.+)")
_RENAME = re.compile(r"/b/([^/]+)/o/(.+)/moveTo/o/(.+)")
_REASONS = {
    304: "notModified", 400: "invalid", 403: "forbidden", 404: "notFound",
    405: "methodNotAllowed", 409: "conflict", 412: "conditionNotMet", 413: "uploadTooLarge",
    416: "requestedRangeNotSatisfiable", 429: "rateLimitExceeded", 500: "backendError",
    501: "notImplemented", 503: "backendError", 507: "backendError",
}  # fmt: skip


class Gcs:
    """`answer(call)` for every request that the SDKs send; any other is a 501."""

    def __init__(self, objects: Objects, profile: ServerProfile) -> None:
        self.objects = objects
        self.profile = profile
        self._xml = GcsXml(objects, profile)

    def answer(self, call: DialectRequest) -> Reply:
        deed = RequestEffect(call.method.lower())
        try:
            if call.path.startswith("/batch/storage/v1"):
                return self._batch(call, deed)
            found = _JSON_API.fullmatch(call.path)
            if found is None:
                return self._xml.answer(call)
            return self._route(call, deed, found[1])
        except DialectError as refusal:
            deed.answer = refusal.answer
            return self.refuse(call, refusal, deed)

    def refuse(self, call: DialectRequest, refusal: DialectError, deed: RequestEffect) -> Reply:
        status = refusal.status
        if status == 304:
            return Reply(304, {}, b"", deed)
        if call.path.startswith("/download/"):  # Google answers in plain text there
            text = {"Content-Type": "text/html; charset=UTF-8"}
            return Reply(status, text, refusal.message.encode("utf-8", "replace"), deed)
        error = {
            "message": refusal.message,
            "domain": "usageLimits" if status == 429 else "global",
            "reason": _REASONS.get(status, "invalid"),
        }
        fields = {"code": status, "message": refusal.message, "errors": [error]}
        return answer({"error": fields}, deed, status)

    def request_ids(self, call: DialectRequest) -> dict[str, str]:
        return {"x-guploader-uploadid": call.id}

    # --- which operation -------------------------------------------------------------------------

    def _route(self, call: DialectRequest, deed: RequestEffect, path: str) -> Reply:
        if path == "/b":
            return self._buckets(call, deed)
        if re.fullmatch(r"/b/[^/]+", path):
            deed.bucket = self._known(path[3:])
            return self._bucket(call, deed)
        if named := _OBJECTS.fullmatch(path):
            deed.bucket = self._known(named[1])
            if "/upload/" in call.path:
                return self._upload(call, deed)
            if call.method == "GET":
                return self._list(call, deed)
        elif call.method == "POST" and (moved := _MOVE.fullmatch(path)):
            return self._copy(call, deed, moved)
        elif call.method == "POST" and (renamed := _RENAME.fullmatch(path)):
            return self._rename(call, deed, renamed)
        elif named := _OBJECT.fullmatch(path):
            deed.bucket, deed.key = self._known(named[1]), key_of(named[2])
            media = call.query.get("alt") == "media" or call.path.startswith("/download/")
            match call.method:
                case "GET" if media:
                    return self._download(call, deed)
                case "GET":
                    found = self._wanted(call, deed)
                    deed.answer = "found"
                    return answer(resource(call, found), deed)
                case "DELETE":
                    return self._delete(call, deed)
                case "PATCH" | "PUT":
                    return self._patch(call, deed)
                case "POST" if deed.key.endswith("/compose"):
                    deed.key = deed.key.removesuffix("/compose")
                    return self._compose(call, deed)
        raise DialectError(
            501, "notImplemented", f"this server does not do {call.method} {call.path}"
        )

    # --- buckets ---------------------------------------------------------------------------------

    def _known(self, quoted: str) -> str:
        bucket = key_of(quoted)
        if self.objects.lacks(bucket):
            raise DialectError(404, "notFound", "The specified bucket does not exist.", "missing")
        return bucket

    def _buckets(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        if call.method == "GET":
            deed.method, deed.answer = "list", "listed"
            items = [gcs_resource.bucket(name) for name in self.objects.buckets()]
            return answer({"kind": "storage#buckets", "items": items}, deed)
        deed.method = "bucket"
        deed.bucket = checked_key(fields_of(call.body).get("name", ""))
        if call.method != "POST" or not deed.bucket:
            raise DialectError(400, "invalid", "a bucket is made by a POST that names it")
        if not self.objects.add_bucket(deed.bucket):
            raise DialectError(409, "conflict", "You already own this bucket. Select another name.")
        deed.answer = "applied"
        return answer(gcs_resource.bucket(deed.bucket), deed)

    def _bucket(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        match call.method:
            case "GET" | "PATCH" | "PUT":
                deed.answer = "found"
                return answer(gcs_resource.bucket(deed.bucket), deed)
            case "DELETE":
                if self.objects.under(deed.bucket, "", limit=1):
                    raise DialectError(
                        409, "conflict", "The bucket you tried to delete is not empty."
                    )
                self.objects.remove_bucket(deed.bucket)
                deed.method, deed.answer = "bucket", "applied"
                return Reply(204, deed=deed)
        raise DialectError(
            501, "notImplemented", f"this server does not do {call.method} {call.path}"
        )

    # --- reading ---------------------------------------------------------------------------------

    def _wanted(self, call: DialectRequest, deed: RequestEffect) -> Object:
        wanted = call.query.get("generation")
        if wanted is None:
            found = self.objects.current(deed.bucket, deed.key)
        else:
            found = self.objects.at(deed.bucket, deed.key, number(wanted, "generation"))
        if found is None or found.deleted:
            raise DialectError(
                404, "notFound", f"No such object: {deed.bucket}/{deed.key}", "missing"
            )
        deed.version, deed.generation = str(found.id), found.id
        other = call.query.get("ifGenerationNotMatch")
        if other is not None:
            deed.condition = f"unless-version {other}"
        self._judge(call.query, found, reading=True)
        return found

    def _list(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        return gcs_lists.contents(self.objects, call, deed)

    def _download(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        found = self._wanted(call, deed)
        headers = {
            **gcs_resource.headers(found),
            "Last-Modified": http_date(found.at_ms), "Accept-Ranges": "bytes",
        }  # fmt: skip
        span = byte_range(call.headers.get("range"), found.size)
        body = self.objects.body(found, *(span or (0, None)))
        if body is None:
            raise DialectError(
                410, "gone", "this past generation was too large for this server to keep"
            )
        deed.answer = "found"
        if span is None:
            return Reply(200, headers, body, deed)
        headers["Content-Range"] = f"bytes {span[0]}-{span[1] - 1}/{found.size}"
        return Reply(206, headers, body, deed)

    # --- writing ---------------------------------------------------------------------------------

    def _upload(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        kind, upload = call.query.get("uploadType", "media"), call.query.get("upload_id")
        if kind == "resumable" and upload is not None:
            return self._resume(call, deed, upload)
        if kind not in ("media", "multipart", "resumable") or call.method not in ("POST", "PUT"):
            raise DialectError(501, "notImplemented", f"this server has no {kind!r} {call.method}")
        fields, body = (
            (fields_of(call.body), b"") if kind == "resumable" else gcs_uploads.whole(call)
        )
        deed.key = checked_key(str(fields.get("name") or call.query.get("name", "")))
        if not deed.key:
            raise DialectError(400, "required", "an object needs a name")
        if kind == "resumable":
            self._check(call.query, deed)(self.objects.current(deed.bucket, deed.key))
            return gcs_uploads.start(self.objects, call, deed, fields)
        return self._insert(call, deed, call.query, fields, body)

    def _insert(
        self, call: DialectRequest, deed: RequestEffect, query: Any, fields: dict[str, Any],
        body: bytes, etag: str | None = None,
    ) -> Reply:  # fmt: skip
        deed.method = "put"
        meta = gcs_uploads.described(call, fields, body)
        return answer(resource(call, self._write(deed, query, body, meta, etag)), deed)

    def _resume(self, call: DialectRequest, deed: RequestEffect, upload: str) -> Reply:
        known = self.objects.upload(upload)
        if known is None:
            raise DialectError(404, "notFound", "No such resumable upload.", "missing")
        deed.bucket, deed.key, kept = known
        if call.method == "DELETE":
            self.objects.end_upload(upload)
            deed.method, deed.answer = "abort", "applied"
            return Reply(499, deed=deed)
        if "done" in kept:
            done = self.objects.at(deed.bucket, deed.key, kept["done"])
            deed.method, deed.answer = "part", "found"
            return answer({} if done is None else resource(call, done), deed)
        had = gcs_uploads.receive(self.objects, call, upload)
        if had is not None:
            return gcs_uploads.incomplete(had, deed)
        body = gcs_uploads.gathered(self.objects, upload)
        reply = self._insert(call, deed, kept["conditions"], kept["resource"], body)
        gcs_uploads.finish(self.objects, upload, deed)
        return reply

    def _write(
        self, deed: RequestEffect, query: Any, body: bytes, meta: dict[str, Any],
        etag: str | None = None,
    ) -> Object:  # fmt: skip
        deed.body, check = body, self._check(query, deed)
        _, after = self.objects.write(deed.bucket, deed.key, body, check, etag=etag, meta=meta)
        wrote(deed, after)
        deed.version = str(after.id)
        return after

    def _bytes_of(self, bucket: str, key: str, generation: str | None) -> tuple[Object, bytes]:
        if generation is None:
            found = self.objects.current(bucket, key)
        else:
            found = self.objects.at(bucket, key, number(generation, "generation"))
        body = None if found is None or found.deleted else self.objects.body(found)
        if found is None or body is None:
            raise DialectError(404, "notFound", f"No such object: {bucket}/{key}", "missing")
        return found, body

    def _copy(self, call: DialectRequest, deed: RequestEffect, moved: re.Match[str]) -> Reply:
        deed.bucket, deed.key, deed.method = self._known(moved[4]), key_of(moved[5]), "copy"
        found, body = self._bytes_of(
            self._known(moved[1]), key_of(moved[2]), call.query.get("sourceGeneration")
        )
        self._judge_source(call, found)
        fields = fields_of(call.body)
        meta = {**found.meta, **gcs_resource.meta_of(fields)}
        after = resource(call, self._write(deed, call.query, body, meta))
        if moved[3] == "copyTo":
            return answer(after, deed)
        document = {"kind": "storage#rewriteResponse", "done": True, "resource": after}
        sizes = {"totalBytesRewritten": after["size"], "objectSize": after["size"]}
        return answer(document | sizes, deed)

    def _rename(self, call: DialectRequest, deed: RequestEffect, named: re.Match[str]) -> Reply:
        """Move an object within its bucket: one step, recorded as a copy and a delete."""
        bucket = deed.bucket = self._known(named[1])
        deed.key, deed.method = key_of(named[3]), "copy"
        source = RequestEffect("delete", bucket, key_of(named[2]))
        found, body = self._bytes_of(bucket, source.key, None)
        self._judge_source(call, found)
        after = self._write(deed, call.query, body, dict(found.meta), found.etag)
        source.before = str(found.id)
        removed(source, self.objects.remove(bucket, source.key)[1])
        reply = answer(resource(call, after), deed)
        reply.inner = [Reply(200, deed=deed), Reply(200, deed=source)]
        return reply

    def _judge_source(self, call: DialectRequest, found: Object) -> None:
        said = {name.replace("ifSource", "if"): value for name, value in call.query.items()
                if name.startswith("ifSource")}  # fmt: skip
        self._judge(said, found)

    def _compose(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        deed.method = "put"
        fields = fields_of(call.body)
        sources = fields.get("sourceObjects")
        if not isinstance(sources, list) or not 1 <= len(sources) <= SOURCES_MAX:
            raise DialectError(
                400, "invalid", f"a composition has 1 to {SOURCES_MAX} sourceObjects"
            )
        bodies = [self._component(deed.bucket, each if isinstance(each, dict) else {})
                  for each in sources]  # fmt: skip
        own, body = fields.get("destination"), b"".join(bodies)
        # The SDK sends the destination as it last saw it, with the checksums that it had then.
        own = {name: value for name, value in (own if isinstance(own, dict) else {}).items()
               if name not in ("crc32c", "md5Hash")}  # fmt: skip
        etag = f"{hashlib.md5(body).hexdigest()}-{len(bodies)}"
        return self._insert(call, deed, call.query, own, body, etag)

    def _component(self, bucket: str, named: dict[str, Any]) -> bytes:
        """One source of a composition; JSON may write its generation as a number or as text."""
        generation = named.get("generation")
        wanted = None if generation is None else str(generation)
        found, body = self._bytes_of(bucket, str(named.get("name", "")), wanted)
        said = named.get("objectPreconditions")
        same = said.get("ifGenerationMatch") if isinstance(said, dict) else None
        if same is not None:
            self._judge({"ifGenerationMatch": str(same)}, found)
        return body

    def _patch(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        deed.method = "patch"
        found = self._wanted(call, deed)
        throttle(self.objects, self.profile, deed.bucket, deed.key)
        kept = found.meta if call.method == "PATCH" else {}
        after = self.objects.annotate(found, gcs_resource.meta_of(fields_of(call.body), kept))
        deed.answer = "applied"
        return answer(resource(call, after), deed)

    def _delete(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        wanted = call.query.get("generation")
        if wanted is not None:
            self._judge(call.query, self._wanted(call, deed))
            self.objects.remove_version(deed.bucket, deed.key, number(wanted, "generation"))
            deed.answer = "applied"
            return Reply(204, deed=deed)
        judge = self._check(call.query, deed)

        def check(before: Object | None) -> None:
            if before is None:
                raise DialectError(
                    404, "notFound", f"No such object: {deed.bucket}/{deed.key}", "missing"
                )
            judge(before)

        removed(deed, self.objects.remove(deed.bucket, deed.key, check)[1])
        return Reply(204, deed=deed)

    def _batch(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        """multipart/mixed of whole requests, as `client.batch()` sends them."""
        replies = []
        for part in mime.parts(call.body, call.headers.get("content-type", "")):
            id = part.headers.get("content-id", "").strip("<>")
            replies.append((f"<response-{id}>", self.answer(mime.request(part, call))))
        deed.method, deed.answer = "batch", "applied"
        headers = {"Content-Type": f"multipart/mixed; boundary=batch_{call.id}"}
        body = mime.answers(replies, f"batch_{call.id}")
        return Reply(200, headers, body, deed, inner=[reply for _, reply in replies])

    # --- conditions ------------------------------------------------------------------------------

    def _check(self, query: Any, deed: RequestEffect) -> Check:
        wanted = query.get("ifGenerationMatch")
        if wanted is not None:
            deed.condition = "if-absent" if wanted == "0" else f"if-version {wanted}"

        def check(before: Object | None) -> None:
            deed.before = "" if before is None else str(before.id)
            throttle(self.objects, self.profile, deed.bucket, deed.key)
            if self.profile.put_conditions:
                self._judge(query, before)

        return check

    def _judge(self, query: Any, present: Object | None, *, reading: bool = False) -> None:
        states = {
            "Generation": 0 if present is None else present.id,
            "Metageneration": 0 if present is None else present.metageneration,
        }
        for what, now in states.items():
            same, other = query.get(f"if{what}Match"), query.get(f"if{what}NotMatch")
            if other is not None and number(other, what) == now and reading:
                raise DialectError(304, "notModified", "", "not_modified")
            failed = same is not None and number(same, what) != now
            if failed or (other is not None and number(other, what) == now):
                raise DialectError(
                    412, "conditionNotMet",
                    "At least one of the pre-conditions you specified did not hold.",
                    "precondition_failed",
                )  # fmt: skip
