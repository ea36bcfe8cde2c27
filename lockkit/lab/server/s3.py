"""Amazon S3's dialect, as boto3, pyarrow and object_store speak it."""

from __future__ import annotations

import re

from lockkit.lab.server import markup, s3_conditions, s3_copy, s3_lists, s3_uploads, tags
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
from lockkit.lab.server.markup import plain
from lockkit.lab.server.objects import Check, Object, Objects
from lockkit.lab.server.policy import AccessPolicy
from lockkit.lab.server.profiles import ServerProfile
from lockkit.lab.server.s3_body import checksum_headers, crc32_of, payload, received
from lockkit.lab.server.sigv4 import MALFORMED, REGION

KEPT_HEADERS = (
    "content-type", "content-encoding", "cache-control", "content-disposition", "content-language",
    "expires",
)  # fmt: skip
DELETES_MAX = 1000
_ASPECTS = {
    "accelerate", "acl", "analytics", "attributes", "cors", "delete", "encryption", "inventory",
    "legal-hold", "lifecycle", "location", "logging", "metrics", "notification", "object-lock",
    "ownershipControls", "partNumber", "policy", "policyStatus", "publicAccessBlock",
    "replication", "requestPayment", "restore", "retention", "select", "tagging", "torrent",
    "uploadId", "uploads", "versioning", "versions", "website",
}  # fmt: skip
"""Query parameters that select another operation."""
_HOSTED = re.compile(r"^([a-z0-9][a-z0-9.-]*)\.localhost(?::\d+)?$")


class S3:
    """`answer(call)` for every request that the SDKs send; any other is a 501."""

    def __init__(
        self, objects: Objects, profile: ServerProfile, policy: AccessPolicy | None = None
    ) -> None:
        self.objects = objects
        self.profile = profile
        self.policy = policy

    def answer(self, call: DialectRequest) -> Reply:
        deed = RequestEffect(call.method.lower())
        hosted = _HOSTED.match(call.host) if ".localhost" in call.host else None
        path = f"/{hosted[1]}{call.path}" if hosted else call.path
        bucket, _, rest = path[1:].partition("/")
        try:
            deed.bucket, deed.key = key_of(bucket), key_of(rest)
            if self.policy is not None:
                self.policy.check(call, deed.bucket, deed.key)
            return self._route(call, deed)
        except DialectError as refusal:
            shown = self._visible(refusal, deed)
            deed.answer = shown.answer
            return self.refuse(call, shown, deed)

    def _visible(self, refusal: DialectError, deed: RequestEffect) -> DialectError:
        """The answer for a caller who may not know that an object is missing."""
        if self.policy is not None and refusal.status == 404 and deed.key:
            try:
                self.policy.missing(deed.bucket)
            except DialectError as denied:
                return denied
        return refusal

    def refuse(self, call: DialectRequest, refusal: DialectError, deed: RequestEffect) -> Reply:
        if refusal.status == 304:
            return Reply(304, {"ETag": refusal.message}, b"", deed)
        if call.method == "HEAD":
            return Reply(refusal.status, {}, b"", deed)
        region = f"<Region>{REGION}</Region>" if refusal.code == MALFORMED else ""
        return markup.document(
            f"<Error><Code>{refusal.code}</Code><Message>{plain(refusal.message)}</Message>{region}"
            f"<Resource>{plain(call.path)}</Resource><RequestId>{call.id}</RequestId></Error>",
            deed,
            refusal.status,
        )

    def request_ids(self, call: DialectRequest) -> dict[str, str]:
        return {"x-amz-request-id": call.id, "x-amz-id-2": call.id}

    # --- which operation -------------------------------------------------------------------------

    def _route(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        aspects = call.query.keys() & _ASPECTS
        if not deed.bucket:
            if call.method == "GET" and not aspects:
                return s3_lists.buckets(self.objects, deed)
            raise _not_built(call)
        if self.objects.lacks(deed.bucket) and (call.method != "PUT" or deed.key or aspects):
            raise s3_copy.no_bucket()
        if not deed.key:
            return self._bucket(call, deed, next(iter(aspects), ""))
        match call.method, tuple(sorted(aspects)):
            case "PUT", ():
                return self._put(call, deed)
            case (("GET" | "HEAD"), () | ("partNumber",)):
                return self._get(call, deed)
            case "DELETE", ():
                return self._delete(call, deed)
            case (("GET" | "PUT" | "DELETE"), ("tagging",)):
                return self._tagging(call, deed)
            case "POST", ("uploads",):
                return s3_uploads.start(self.objects, call, deed, meta_of(call))
            case "PUT", ("partNumber", "uploadId"):
                return self._put_part(call, deed)
            case "POST", ("uploadId",):
                return self._complete(call, deed)
            case "DELETE", ("uploadId",):
                return s3_uploads.abort(self.objects, call, deed)
            case "GET", ("uploadId",):
                s3_uploads.known(self.objects, call, deed)
                return s3_lists.parts(self.objects, call, deed)
        raise _not_built(call)

    def _bucket(self, call: DialectRequest, deed: RequestEffect, aspect: str) -> Reply:
        bucket, objects = deed.bucket, self.objects
        match call.method, aspect:
            case "GET", "":
                return s3_lists.contents(objects, call, deed)
            case "GET", "versions":
                return s3_lists.versions(objects, call, deed)
            case "GET", "uploads":
                return s3_lists.uploads(objects, call, deed)
            case "POST", "delete":
                return self._bulk_delete(call, deed)
            case "PUT", "":
                objects.add_bucket(bucket)
                deed.method, deed.answer = "bucket", "applied"
                return Reply(200, {"Location": f"/{bucket}"}, deed=deed)
            case "DELETE", "":
                if objects.under(bucket, "", limit=1):
                    raise DialectError(409, "BucketNotEmpty", "The bucket still holds objects.")
                objects.remove_bucket(bucket)
                deed.method, deed.answer = "bucket", "applied"
                return Reply(204, deed=deed)
            case "HEAD", "":  # one that is missing was refused before
                deed.answer = "found"
                return Reply(200, {"x-amz-bucket-region": REGION}, deed=deed)
            case "GET", "location":
                deed.answer = "found"
                return s3_lists.answer("LocationConstraint", "", deed)
            case (("GET" | "PUT"), "versioning"):
                return self._versioning(call, deed)
        raise _not_built(call)

    def _versioning(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        """Every version is kept, whatever the setting; only some conditions depend on it."""
        deed.answer = "found"
        if self.profile.versioned_conditions:
            return s3_lists.answer("VersioningConfiguration", "<Status>Enabled</Status>", deed)
        if call.method == "PUT":
            root = markup.read(payload(call), "VersioningConfiguration", "MalformedXML")
            on = markup.fields(root).get("Status", "").strip() == "Enabled"
            self.objects.set_versioned(deed.bucket, on)
            deed.method, deed.answer = "bucket", "applied"
        status = "<Status>Enabled</Status>" if self.objects.is_versioned(deed.bucket) else ""
        return s3_lists.answer("VersioningConfiguration", status, deed)

    # --- writing ---------------------------------------------------------------------------------

    def _put(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        if "x-amz-copy-source" in call.headers:
            return self._copy(call, deed)
        body, sums = received(call)
        after = self._write(call, deed, body, meta_of(call) | sums)
        headers = {"ETag": f'"{after.etag}"', **self._tags(after), **checksum_headers(sums)}
        return Reply(200, headers, b"", deed)

    def _write(
        self,
        call: DialectRequest,
        deed: RequestEffect,
        body: bytes,
        meta: dict[str, str],
        etag: str | None = None,
    ) -> Object:
        deed.body, check = body, self._check(call, deed)
        _, after = self.objects.write(deed.bucket, deed.key, body, check, etag=etag, meta=meta)
        wrote(deed, after)
        deed.version = self._version(after)
        return after

    def _copy(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        deed.method = "copy"
        found, body = s3_copy.source(self.objects, call)
        replaces = call.headers.get("x-amz-metadata-directive", "").upper() == "REPLACE"
        kept = {name: value for name, value in found.meta.items()
                if not replaces or name.startswith("checksum-")}  # fmt: skip
        meta = {**kept, **(meta_of(call) if replaces else {})}
        if call.headers.get("x-amz-tagging-directive", "").upper() == "REPLACE":
            meta["tags"] = tags.of_header(call.headers.get("x-amz-tagging", ""))
        else:
            meta["tags"] = found.meta.get("tags", "")
        after = self._write(call, deed, body, meta)
        return s3_lists.answer(
            "CopyObjectResult",
            f'<ETag>"{after.etag}"</ETag><LastModified>{markup.iso(after.at_ms)}</LastModified>',
            deed,
        )

    def _put_part(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        return s3_uploads.put_part(self.objects, call, deed)

    def _complete(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        after = s3_uploads.completed(self.objects, call, deed)
        if after is None:
            deed.method = "put"
            meta = s3_uploads.known(self.objects, call, deed)
            meta.pop("initiated_ms", None)
            body, etag, sums = s3_uploads.joined(self.objects, call, meta.pop("algorithm", ""))
            after = self._write(call, deed, body, meta | sums, etag)
            s3_uploads.finish(self.objects, call, after)
        reply = s3_lists.answer(
            "CompleteMultipartUploadResult",
            f"<Location>http://{plain(call.host)}{plain(call.path)}</Location>"
            f"<Bucket>{plain(deed.bucket)}</Bucket><Key>{plain(deed.key)}</Key>"
            f'<ETag>"{after.etag}"</ETag>{s3_uploads.checksum_fields(after)}',
            deed,
        )
        reply.headers |= self._tags(after)
        return reply

    def _delete(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        version = call.query.get("versionId")
        if version is not None:
            self.objects.remove_version(deed.bucket, deed.key, number(version, "versionId"))
            deed.answer = "applied"
            return Reply(204, {"x-amz-version-id": version}, b"", deed)
        _, marker = self.objects.remove(deed.bucket, deed.key, self._delete_check(call, deed))
        removed(deed, marker)
        if marker is None:
            return Reply(204, deed=deed)
        return Reply(
            204, {"x-amz-delete-marker": "true", "x-amz-version-id": str(marker.id)}, b"", deed
        )

    def _bulk_delete(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        root = markup.read(payload(call), "Delete", "MalformedXML")
        wanted = [markup.fields(each) for each in root if markup.local(each) == "Object"]
        if len(wanted) > DELETES_MAX:
            raise DialectError(400, "MalformedXML", f"at most {DELETES_MAX} objects in one request")
        quiet = markup.fields(root).get("Quiet", "").strip() == "true"
        rows, inner = [], []
        for fields in wanted:
            key = fields.get("Key", "")
            query = {"versionId": fields["VersionId"]} if fields.get("VersionId") else {}
            headers = {"if-match": fields["ETag"]} if fields.get("ETag") else {}
            one = RequestEffect("delete", deed.bucket, key)
            try:
                checked_key(key)
                inner.append(self._delete(DialectRequest("DELETE", "", query, headers, b""), one))
                if not quiet:
                    rows.append(f"<Deleted><Key>{plain(key)}</Key></Deleted>")
            except DialectError as refusal:
                one.answer = refusal.answer
                inner.append(Reply(refusal.status, {}, b"", one))
                rows.append(
                    f"<Error><Key>{plain(key)}</Key><Code>{refusal.code}</Code>"
                    f"<Message>{plain(refusal.message)}</Message></Error>"
                )
        deed.method, deed.answer = "batch", "applied"
        reply = s3_lists.answer("DeleteResult", "".join(rows), deed)
        reply.inner = inner
        return reply

    # --- reading ---------------------------------------------------------------------------------

    def _wanted(self, call: DialectRequest, deed: RequestEffect) -> Object:
        wanted = call.query.get("versionId")
        if wanted is None:
            found = self.objects.current(deed.bucket, deed.key)
        else:
            found = self.objects.at(deed.bucket, deed.key, number(wanted, "versionId"))
        if found is None:
            raise DialectError(404, "NoSuchKey", "The specified key does not exist.", "missing")
        if found.deleted:
            raise DialectError(
                405, "MethodNotAllowed", "This version is a delete marker.", "missing"
            )
        deed.version, deed.generation = self._version(found), found.id
        return found

    def _tagging(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        found = self._wanted(call, deed)
        deed.answer = "found"
        if call.method == "GET":
            reply = s3_lists.answer("Tagging", tags.document(found), deed)
            reply.headers |= self._tags(found)
            return reply
        puts = call.method == "PUT"
        said = tags.of_document(payload(call), "Tagging") if puts else ""
        self.objects.annotate(found, {**found.meta, "tags": said})
        deed.method, deed.answer = "patch", "applied"
        return Reply(200 if puts else 204, self._tags(found), b"", deed)

    def _get(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        found = self._wanted(call, deed)
        etag = f'"{found.etag}"'
        s3_conditions.judge_read(call, deed, found)
        deed.answer = "found"
        headers = {
            **_meta_headers(found.meta), **self._tags(found), "ETag": etag,
            "Last-Modified": http_date(found.at_ms), "Accept-Ranges": "bytes",
        }  # fmt: skip
        for name, value in call.query.items():
            if name.startswith("response-") and name[9:] in KEPT_HEADERS:
                headers[name[9:].title()] = value
        span = byte_range(call.headers.get("range"), found.size)
        if span is not None:
            headers["Content-Range"] = f"bytes {span[0]}-{span[1] - 1}/{found.size}"
        start, end = span or (0, found.size)
        status = 200 if span is None else 206
        wants = call.headers.get("x-amz-checksum-mode", "").lower() == "enabled" and span is None
        sums = checksum_headers(found.meta) if wants else {}
        if call.method == "HEAD":
            return Reply(status, headers | sums, b"", deed, end - start)
        body = self.objects.body(found, start, end)
        if body is None:
            raise DialectError(
                410, "Gone", "this past version was too large for this server to keep"
            )
        if wants and not sums:  # written by another dialect, or in parts without an algorithm
            sums = checksum_headers({"checksum-crc32": crc32_of(body)})
        return Reply(status, headers | sums, body, deed)

    # --- what Google's XML API does otherwise ----------------------------------------------------

    def _check(self, call: DialectRequest, deed: RequestEffect) -> Check:
        return s3_conditions.of_write(self.objects, self.profile, call, deed)

    def _delete_check(self, call: DialectRequest, deed: RequestEffect) -> Check:
        return s3_conditions.of_delete(self.objects, self.profile, call, deed)

    def _version(self, object: Object | None) -> str:
        return s3_conditions.version(object)

    def _tags(self, object: Object) -> dict[str, str]:
        return {"x-amz-version-id": str(object.id)}


def meta_of(call: DialectRequest) -> dict[str, str]:
    """The entity headers and the user's metadata, as every dialect keeps them."""
    kept = {name: call.headers[name] for name in KEPT_HEADERS if name in call.headers}
    if "content-encoding" in kept:
        encodings = [each.strip() for each in kept.pop("content-encoding").split(",")]
        encodings = [each for each in encodings if each and each != "aws-chunked"]
        if encodings:
            kept["content-encoding"] = ",".join(encodings)
    for name, value in call.headers.items():
        if name.startswith("x-amz-meta-"):
            kept[name.removeprefix("x-amz-")] = value
    if "x-amz-tagging" in call.headers:
        kept["tags"] = tags.of_header(call.headers["x-amz-tagging"])
    return kept


def _meta_headers(meta: dict[str, str]) -> dict[str, str]:
    headers = {"Content-Type": "binary/octet-stream"}
    for name, value in meta.items():
        if name.startswith("meta-"):
            headers[f"x-amz-{name}"] = value
        elif name == "tags" and value:
            headers["x-amz-tagging-count"] = str(value.count("&") + 1)
        elif name in KEPT_HEADERS:
            headers[name.title()] = value
    return headers


def _not_built(call: DialectRequest) -> DialectError:
    aspects = ", ".join(sorted(call.query.keys() & _ASPECTS)) or "no sub-resource"
    return DialectError(
        501, "NotImplemented", f"this server does not do {call.method} {call.path} ({aspects})"
    )
