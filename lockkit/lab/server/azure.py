"""Azure Blob Storage's dialect, as azure-storage-blob, pyarrow and object_store speak it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from lockkit.lab.server import (
    azure_blocks,
    azure_conditions,
    azure_lease,
    azure_lists,
    azure_query,
    azure_shape,
    azure_snapshots,
    markup,
    mime,
    tags,
)
from lockkit.lab.server.azure_shape import (
    etag,
    id_of,
    md5_of,
    meta_headers,
    meta_of,
    version_id,
)
from lockkit.lab.server.call import (
    DialectError,
    DialectRequest,
    Reply,
    RequestEffect,
    byte_range,
    http_date,
    key_of,
    removed,
    wrote,
)
from lockkit.lab.server.markup import plain
from lockkit.lab.server.objects import Object, Objects
from lockkit.lab.server.profiles import ServerProfile, throttle

API_VERSION = "2023-11-03"
# The C++ SDK (pyarrow) hangs on an answer that lacks one of these.
_CONTAINER_HEADERS = {
    "x-ms-lease-status": "unlocked",
    "x-ms-lease-state": "available",
    "x-ms-has-immutability-policy": "false",
    "x-ms-has-legal-hold": "false",
    "x-ms-immutable-storage-with-versioning-enabled": "false",
    "x-ms-default-encryption-scope": "$account-encryption-key",
    "x-ms-deny-encryption-scope-override": "false",
}
_CODES = {429: "ServerBusy", 500: "InternalError", 503: "ServerBusy", 507: "InternalError"}
_ACCOUNT = re.compile(r"(?:SharedKey|SharedKeyLite) ([^:]+):")


class Azure:
    """`answer(call)` for `/account/container/blob`; a request that no SDK sends is a 501."""

    def __init__(self, objects: Objects, profile: ServerProfile) -> None:
        self.objects = objects
        self.profile = profile

    def answer(self, call: DialectRequest) -> Reply:
        deed = RequestEffect(call.method.lower())
        try:
            container, blob = _place(call, call.path)
            deed.bucket, deed.key = key_of(container), key_of(blob)
            return self._route(call, deed)
        except DialectError as refusal:
            deed.answer = refusal.answer
            return self.refuse(call, refusal, deed)

    def refuse(self, call: DialectRequest, refusal: DialectError, deed: RequestEffect) -> Reply:
        code = _CODES.get(refusal.status, refusal.code)
        headers = {"x-ms-error-code": code}
        if refusal.status == 304:
            return Reply(304, headers | {"ETag": refusal.message}, b"", deed)
        if call.method == "HEAD":
            return Reply(refusal.status, headers, b"", deed)
        reply = markup.document(
            f"<Error><Code>{code}</Code><Message>{plain(refusal.message)}\nRequestId:{call.id}"
            f"\nTime:{markup.iso(self.objects.clock.stamp_ms())}</Message></Error>",
            deed,
            refusal.status,
        )
        reply.headers |= headers
        return reply

    def request_ids(self, call: DialectRequest) -> dict[str, str]:
        headers = {
            "x-ms-request-id": call.id,
            "x-ms-version": call.headers.get("x-ms-version", API_VERSION),
        }
        if "x-ms-client-request-id" in call.headers:
            headers["x-ms-client-request-id"] = call.headers["x-ms-client-request-id"]
        return headers

    # --- which operation -------------------------------------------------------------------------

    def _route(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        comp, kind = call.query.get("comp", ""), call.query.get("restype", "")
        if "action" in call.query or call.query.get("resource") == "filesystem":
            # The Data Lake API: pyarrow asks here whether directories are real, and accepts no.
            raise DialectError(
                400, "HierarchicalNamespaceNotEnabled",
                "This server has a flat namespace, and does not offer the Data Lake API.",
            )  # fmt: skip
        azure_query.check(call)
        makes = not deed.key and (call.method, comp, kind) == ("PUT", "", "container")
        if deed.bucket and not makes and self.objects.lacks(deed.bucket):
            raise DialectError(
                404, "ContainerNotFound", "The specified container does not exist.", "missing"
            )
        if not deed.bucket or not deed.key:
            return self._container(call, deed, comp, kind)
        match call.method, comp:
            case "PUT", "" if "x-ms-copy-source" in call.headers:
                return self._copy(call, deed)
            case "PUT", "":
                return self._put(call, deed)
            case "PUT", "lease":
                return self._lease(call, deed)
            case "PUT", "block":
                azure_lease.guard(self.objects, call, deed)
                return azure_blocks.put(self.objects, call, deed)
            case "PUT", "blocklist":
                return self._put_block_list(call, deed)
            case "GET", "blocklist":
                return azure_blocks.listed(self.objects, call, deed)
            case (("GET" | "HEAD"), "" | "metadata"):
                return self._get(call, deed)
            case "DELETE", "":
                return self._delete(call, deed)
            case "PUT", "snapshot":
                found = self._wanted(call, deed)
                return azure_snapshots.make(self.objects, call, deed, found)
            case (("GET" | "PUT"), "tags"):
                return self._tags(call, deed)
            case "PUT", "metadata" | "properties":
                return self._describe(call, deed, comp)
        raise _not_built(call)

    def _container(self, call: DialectRequest, deed: RequestEffect, comp: str, kind: str) -> Reply:
        there = {"ETag": '"0x8D0000000000000"', "Last-Modified": http_date(1_704_067_200_000)}
        match call.method, kind, comp:
            case "POST", _, "batch":
                return self._batch(call, deed)
            case "GET", "", "list" if not deed.bucket:
                return azure_lists.containers(self.objects, call, deed)
            case (("GET" | "HEAD"), "account", "properties"):
                deed.answer = "found"
                account = {"x-ms-sku-name": "Standard_LRS", "x-ms-account-kind": "StorageV2"}
                return Reply(200, {**account, "x-ms-is-hns-enabled": "false"}, b"", deed)
            case _ if not deed.bucket or kind != "container":
                raise _not_built(call)
            case "GET", _, "list":
                return azure_lists.blobs(self.objects, call, deed)
            case (("GET" | "HEAD"), _, "" | "metadata"):
                deed.answer = "found"
                return Reply(200, {**there, **_CONTAINER_HEADERS}, b"", deed)
            case "PUT", _, "":
                deed.method = "bucket"
                if not self.objects.add_bucket(deed.bucket):
                    raise DialectError(
                        409, "ContainerAlreadyExists", "The specified container already exists."
                    )
                deed.answer = "applied"
                return Reply(201, there, b"", deed)
            case "DELETE", _, "":
                for each in self.objects.under(deed.bucket, "", limit=-1):
                    self.objects.remove(deed.bucket, each.key)
                hidden = deed.bucket + azure_shape.SNAPSHOTS
                for each in self.objects.generations(hidden, "", limit=-1):
                    self.objects.remove_version(hidden, each.key, each.id)
                self.objects.remove_bucket(deed.bucket)
                deed.method, deed.answer = "bucket", "applied"
                return Reply(202, {}, b"", deed)
        raise _not_built(call)

    # --- reading ---------------------------------------------------------------------------------

    def _wanted(self, call: DialectRequest, deed: RequestEffect) -> Object:
        found = self._named(deed.bucket, deed.key, call.query)
        if found is None or found.deleted:
            raise DialectError(404, "BlobNotFound", "The specified blob does not exist.", "missing")
        deed.version, deed.generation = etag(found), found.id
        return found

    def _named(self, container: str, blob: str, query: Mapping[str, str]) -> Object | None:
        """The blob, or the version or the snapshot of it that a query names."""
        if "snapshot" in query:
            return azure_snapshots.at(self.objects, container, blob, query["snapshot"])
        if "versionid" in query:
            return self.objects.at(container, blob, id_of(query["versionid"]))
        return self.objects.current(container, blob)

    def _get(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        found = self._wanted(call, deed)
        azure_lease.guard(self.objects, call, deed)
        azure_conditions.judge_read(call, deed, found)
        deed.answer = "found"
        lease = azure_lease.lease_headers(*azure_lease.read(self.objects, deed.bucket, deed.key))
        current = "true" if self.objects.superseded_ms(found) is None else "false"
        version = {"x-ms-version-id": version_id(found), "x-ms-is-current-version": current}
        headers = {
            **meta_headers(found.meta), "ETag": etag(found),
            "Last-Modified": http_date(found.at_ms),
            "Accept-Ranges": "bytes", "x-ms-blob-type": "BlockBlob",
            "x-ms-creation-time": http_date(found.at_ms),
            **({} if "snapshot" in call.query else lease | version),
            "x-ms-server-encrypted": "true", "x-ms-access-tier": "Hot",
            **azure_query.wanted_headers(call),
        }  # fmt: skip
        span = byte_range(call.headers.get("x-ms-range") or call.headers.get("range"), found.size)
        md5 = md5_of(found)
        if call.method == "HEAD":
            return Reply(
                200, headers | ({"Content-MD5": md5} if md5 else {}), b"", deed, found.size
            )
        body = self.objects.body(found, *(span or (0, None)))
        if body is None:
            raise DialectError(
                410, "Gone", "this past version was too large for this server to keep"
            )
        if span is None:
            return Reply(200, headers | ({"Content-MD5": md5} if md5 else {}), body, deed)
        if md5:
            headers["x-ms-blob-content-md5"] = md5
        if call.headers.get("x-ms-range-get-content-md5", "").lower() == "true":
            headers["Content-MD5"] = _b64(hashlib.md5(body).digest())
        headers["Content-Range"] = f"bytes {span[0]}-{span[1] - 1}/{found.size}"
        return Reply(206, headers, body, deed)

    # --- writing ---------------------------------------------------------------------------------

    def _write(
        self, call: DialectRequest, deed: RequestEffect, body: bytes, meta: dict[str, Any]
    ) -> Reply:
        deed.body = body
        check = azure_conditions.of_write(self.objects, self.profile, call, deed)
        _, after = self.objects.write(deed.bucket, deed.key, body, check, meta=meta)
        wrote(deed, after)
        deed.version = etag(after)
        headers = {
            "ETag": etag(after), "Last-Modified": http_date(after.at_ms),
            "Content-MD5": md5_of(after), "x-ms-version-id": version_id(after),
            "x-ms-request-server-encrypted": "true",
        }  # fmt: skip
        return Reply(201, headers, b"", deed)

    def _put(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        kind = call.headers.get("x-ms-blob-type", "")
        if kind != "BlockBlob":
            raise DialectError(501, "NotImplemented", f"this server has no blob type {kind!r}")
        md5 = call.headers.get("content-md5") or call.headers.get("x-ms-blob-content-md5")
        if md5 is not None and _b64(hashlib.md5(call.body).digest()) != md5:
            raise DialectError(
                400, "Md5Mismatch", "The MD5 value specified did not match the bytes."
            )
        reply = self._write(call, deed, call.body, meta_of(call))
        azure_blocks.end(self.objects, deed)
        return reply

    def _put_block_list(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        deed.method = "put"
        body, blocks = azure_blocks.joined(self.objects, call, deed)
        reply = self._write(call, deed, body, {**meta_of(call), "blocks": blocks})
        azure_blocks.end(self.objects, deed)
        return reply

    def _copy(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        deed.method = "copy"
        source = urlsplit(call.headers["x-ms-copy-source"])
        container, blob = (key_of(each) for each in _place(call, source.path))
        found = self._named(container, blob, dict(parse_qsl(source.query)))
        body = None if found is None else self.objects.body(found)
        if found is None or found.deleted or body is None:
            raise DialectError(
                404, "CannotVerifyCopySource", "The source does not exist.", "missing"
            )
        azure_conditions.judge_source(call, found)
        kept = {name: value for name, value in found.meta.items() if name not in ("tags", "of")}
        if call.headers.get("x-ms-copy-source-tag-option", "").upper() == "COPY":
            kept["tags"] = found.meta.get("tags", "")
        copied = {
            "x-ms-copy-id": call.id, "x-ms-copy-status": "success",
            "x-ms-copy-source": call.headers["x-ms-copy-source"].partition("?")[0],
            "x-ms-copy-progress": f"{found.size}/{found.size}",
            "x-ms-copy-completion-time": http_date(self.objects.clock.stamp_ms()),
        }  # fmt: skip
        reply = self._write(call, deed, body, {**kept, **meta_of(call), "copied": copied})
        reply.status = 202
        reply.headers |= {"x-ms-copy-id": call.id, "x-ms-copy-status": "success"}
        return reply

    def _describe(self, call: DialectRequest, deed: RequestEffect, comp: str) -> Reply:
        """Set Blob Metadata, Set Blob Properties: a new version with the same bytes."""
        deed.method = "patch"
        found = self._wanted(call, deed)
        body = self.objects.body(found)
        assert body is not None, "the bytes of a current version are always kept"
        replaced = "meta-" if comp == "metadata" else "content-"
        kept = {name: v for name, v in found.meta.items() if not name.startswith(replaced)}
        reply = self._write(call, deed, body, kept | meta_of(call))
        reply.status = 200
        return reply

    def _tags(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        """Get Blob Tags, Set Blob Tags: tags are not part of the blob, so its ETag stays."""
        found = self._wanted(call, deed)
        azure_lease.guard(self.objects, call, deed)
        if call.method == "GET":
            deed.answer = "found"
            return markup.document(f"<Tags>{tags.document(found)}</Tags>", deed)
        said = tags.of_document(call.body, "Tags")
        self.objects.annotate(found, {**found.meta, "tags": said})
        deed.method, deed.answer = "patch", "applied"
        return Reply(204, {}, b"", deed)

    def _lease(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        deed.method = "lease"
        with self.objects.writing():
            found = self._wanted(call, deed)
            azure_conditions.judge(call, found)
            status, more = azure_lease.act(self.objects, call, found)
        deed.answer = "applied"
        headers = {"ETag": etag(found), "Last-Modified": http_date(found.at_ms)}
        return Reply(status, headers | more, b"", deed)

    def _delete(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        version = call.query.get("versionid")
        if version is not None:
            self.objects.remove_version(deed.bucket, deed.key, id_of(version))
            deed.answer = "applied"
            return Reply(202, {}, b"", deed)
        if "if-match" in call.headers:
            deed.condition = f"if-version {call.headers['if-match']}"

        def check(before: Object | None) -> None:
            deed.before = "" if before is None else etag(before)
            throttle(self.objects, self.profile, deed.bucket, deed.key)
            # Azurite's 412 if it is missing; Azure itself is unverified.
            azure_conditions.judge(call, before)
            if before is None:
                raise DialectError(
                    404, "BlobNotFound", "The specified blob does not exist.", "missing"
                )
            azure_lease.guard(self.objects, call, deed)
            azure_snapshots.guard(self.objects, call, deed)

        if call.headers.get("x-ms-delete-snapshots", "").lower() == "only":
            check(self.objects.current(deed.bucket, deed.key))
        elif "snapshot" not in call.query:
            removed(deed, self.objects.remove(deed.bucket, deed.key, check)[1])
        return azure_snapshots.remove(self.objects, call, deed)

    def _batch(self, call: DialectRequest, deed: RequestEffect) -> Reply:
        replies = []
        for part in mime.parts(call.body, call.headers.get("content-type", "")):
            reply = self.answer(mime.request(part, call))
            reply.headers |= self.request_ids(call)
            replies.append((part.headers.get("content-id", ""), reply))
        deed.method, deed.answer = "batch", "applied"
        boundary = f"batchresponse_{call.id}"
        headers = {"Content-Type": f"multipart/mixed; boundary={boundary}"}
        body = mime.answers(replies, boundary)
        return Reply(202, headers, body, deed, inner=[reply for _, reply in replies])


def _place(call: DialectRequest, path: str) -> tuple[str, str]:
    """Container and blob, still quoted. The account comes first, unless Host names it."""
    first, _, rest = path.removeprefix("/").partition("/")
    named = _ACCOUNT.match(call.headers.get("authorization", ""))
    if ".blob." in call.host or (named is not None and named[1] != first):
        return first, rest
    container, _, blob = rest.partition("/")
    return container, blob


def _not_built(call: DialectRequest) -> DialectError:
    query = ", ".join(f"{k}={v}" for k, v in call.query.items() if k in ("comp", "restype"))
    return DialectError(
        501, "NotImplemented", f"this server does not do {call.method} {call.path} ({query})"
    )


def _b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
