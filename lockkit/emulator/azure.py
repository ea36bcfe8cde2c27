"""Azure Blob Storage's dialect, as azure-storage-blob, pyarrow and object_store speak it."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from lockkit.emulator.call import (
    Call,
    Deed,
    Refusal,
    Reply,
    byte_range,
    http_date,
    key_of,
    read_object,
)
from lockkit.emulator.listing import page
from lockkit.emulator.objects import Check, Object, Objects
from lockkit.emulator.profiles import Profile, throttle

_STATUS_CODES = {429: "ServerBusy", 507: "InternalError"}


class Azure:
    """`answer(call)` for `/account/container/blob`; what the SDKs were not seen to send is a 501."""

    def __init__(self, objects: Objects, profile: Profile) -> None:
        self.objects = objects
        self.profile = profile

    def answer(self, call: Call) -> Reply:
        deed = Deed(call.method.lower())
        try:
            _account, container, blob = (call.path.lstrip("/").split("/", 2) + ["", ""])[:3]
            deed.bucket, deed.key = key_of(container), key_of(blob)
            return self._plus(call, self._route(call, deed))
        except Refusal as refusal:
            deed.answer = refusal.answer
            return self.refuse(call, refusal, deed)

    def refuse(self, call: Call, refusal: Refusal, deed: Deed) -> Reply:
        status = 500 if refusal.status == 507 else refusal.status
        code = _STATUS_CODES.get(refusal.status, refusal.code)
        headers = {"x-ms-error-code": code}
        if status == 304:
            return self._plus(call, Reply(304, headers | {"ETag": refusal.message}, b"", deed))
        body = _xml(
            f"<Error><Code>{code}</Code><Message>{escape(refusal.message)}</Message></Error>"
        )
        if call.method == "HEAD":
            return self._plus(call, Reply(status, headers, b"", deed))
        headers["Content-Type"] = "application/xml"
        return self._plus(call, Reply(status, headers, body, deed))

    def _plus(self, call: Call, reply: Reply) -> Reply:
        reply.headers.setdefault("x-ms-version", call.headers.get("x-ms-version", "2023-11-03"))
        reply.headers.setdefault("x-ms-request-id", hashlib.md5(call.path.encode()).hexdigest())
        if "x-ms-client-request-id" in call.headers:
            reply.headers["x-ms-client-request-id"] = call.headers["x-ms-client-request-id"]
        return reply

    def _route(self, call: Call, deed: Deed) -> Reply:
        comp, kind = call.query.get("comp", ""), call.query.get("restype", "")
        if not deed.bucket:
            if call.method == "GET" and comp == "list":
                return self._list_containers(deed)
        elif not deed.key:
            match (call.method, kind, comp):
                case ("PUT", "container", ""):
                    if not self.objects.add_bucket(deed.bucket):
                        raise Refusal(409, "ContainerAlreadyExists", "the container is there")
                    deed.answer = "applied"
                    return Reply(201, {"ETag": '"0x1"', "Last-Modified": http_date(0)}, b"", deed)
                case ("GET" | "HEAD", "container", "" | "metadata"):
                    deed.answer = "found"  # made on first use, so every container is there
                    return Reply(200, {"ETag": '"0x1"', "Last-Modified": http_date(0)}, b"", deed)
                case ("DELETE", "container", ""):
                    for each in self.objects.list(deed.bucket, "", limit=1_000_000):
                        self.objects.remove(deed.bucket, each.key)
                    self.objects.remove_bucket(deed.bucket)
                    deed.answer = "deleted"
                    return Reply(202, {}, b"", deed)
                case ("GET", "container", "list"):
                    return self._list(call, deed)
                case ("POST", _, "batch"):
                    pass
        else:
            match (call.method, comp):
                case ("PUT", "") if "x-ms-copy-source" in call.headers:
                    return self._copy(call, deed)
                case ("PUT", ""):
                    return self._put(call, deed)
                case ("PUT", "block"):
                    return self._put_block(call, deed)
                case ("PUT", "blocklist"):
                    return self._put_block_list(call, deed)
                case ("GET", "blocklist"):
                    return self._get_block_list(call, deed)
                case ("GET" | "HEAD", ""):
                    return self._get(call, deed)
                case ("DELETE", ""):
                    return self._delete(call, deed)
                case ("PUT", "metadata"):
                    return self._set_metadata(call, deed)
        raise Refusal(
            501, "NotImplemented",
            f"this server does not do {call.method} {call.path} (comp={comp!r}, restype={kind!r})",
        )  # fmt: skip

    # --- listing -----------------------------------------------------------------------------------

    def _list_containers(self, deed: Deed) -> Reply:
        deed.method, deed.answer = "list", "listed"
        rows = "".join(
            f"<Container><Name>{escape(name)}</Name><Properties><Last-Modified>{http_date(0)}"
            '</Last-Modified><Etag>"0x1"</Etag></Properties></Container>'
            for name in self.objects.buckets()
        )
        return _document(
            f"<EnumerationResults><Containers>{rows}</Containers><NextMarker/>"
            "</EnumerationResults>",
            deed,
        )

    def _list(self, call: Call, deed: Deed) -> Reply:
        query = call.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        limit = query.get("maxresults", "5000")
        if not limit.isdigit() or not 1 <= int(limit) <= 5000:
            raise Refusal(400, "OutOfRangeQueryParameterValue", "maxresults is 1 to 5000")
        deed.method, deed.key, deed.answer = "list", prefix, "listed"
        include = query.get("include", "").split(",")
        marker = _untoken(query.get("marker", ""))
        if "versions" in include:
            key, _, id = marker.rpartition("\n") if marker else ("", "", "0")
            found = self.objects.history(deed.bucket, prefix, (key, int(id)), int(limit) + 1)
            more, found = len(found) > int(limit), found[: int(limit)]
            rows = "".join(self._row(each, versioned=True) for each in found if not each.deleted)
            last = f"{found[-1].key}\n{found[-1].id}" if more else None
        else:
            contents, prefixes, last = page(
                self.objects, deed.bucket, prefix, delimiter, marker, int(limit)
            )
            rows = "".join(self._row(each) for each in contents) + "".join(
                f"<BlobPrefix><Name>{_text(each)}</Name></BlobPrefix>" for each in prefixes
            )
        marker_row = "<NextMarker/>" if last is None else f"<NextMarker>{_token(last)}</NextMarker>"
        account = call.path.lstrip("/").split("/")[0]
        return _document(
            f'<EnumerationResults ServiceEndpoint="http://{escape(call.host)}/{escape(account)}" '
            f'ContainerName="{escape(deed.bucket)}"><Prefix>{_text(prefix)}</Prefix>'
            f"<Blobs>{rows}</Blobs>{marker_row}</EnumerationResults>",
            deed,
        )

    def _row(self, object: Object, *, versioned: bool = False) -> str:
        which = ""
        if versioned:
            newest = self.objects.current(object.bucket, object.key)
            current = newest is not None and newest.id == object.id
            which = f"<VersionId>{_version_id(object)}</VersionId>" + (
                "<IsCurrentVersion>true</IsCurrentVersion>" if current else ""
            )
        kind = escape(str(object.meta.get("content-type", "application/octet-stream")))
        encoded = ' Encoded="true"' if _needs_encoding(object.key) else ""
        return (
            f"<Blob><Name{encoded}>{_text(object.key)}</Name>{which}<Properties>"
            f"<Creation-Time>{http_date(object.at_ms)}</Creation-Time>"
            f"<Last-Modified>{http_date(object.at_ms)}</Last-Modified><Etag>{_bare(object)}</Etag>"
            f"<Content-Length>{object.size}</Content-Length><Content-Type>{kind}</Content-Type>"
            "<BlobType>BlockBlob</BlobType><AccessTier>Hot</AccessTier>"
            "<LeaseStatus>unlocked</LeaseStatus><LeaseState>available</LeaseState>"
            "</Properties></Blob>"
        )

    # --- reading -----------------------------------------------------------------------------------

    def _get(self, call: Call, deed: Deed) -> Reply:
        wanted = call.query.get("versionid")
        if wanted is not None:
            found = self.objects.at(deed.bucket, deed.key, _id_of(wanted))
        else:
            found = self.objects.current(deed.bucket, deed.key)
        if found is None or found.deleted:
            raise Refusal(404, "BlobNotFound", "The specified blob does not exist.", "missing")
        etag = _etag(found)
        deed.version = etag
        match, none = call.headers.get("if-match"), call.headers.get("if-none-match")
        if match is not None and not _same(match, found):
            raise _failed_condition()
        if none is not None:
            deed.condition = f"unless-version {none}"
            if _same(none, found):
                raise Refusal(304, "ConditionNotMet", etag, "not_modified")
        deed.answer = "found"
        headers = {
            "Content-Type": "application/octet-stream",
            "x-ms-blob-type": "BlockBlob",
            "x-ms-creation-time": http_date(found.at_ms),
            "x-ms-lease-status": "unlocked",
            "x-ms-lease-state": "available",
            "x-ms-server-encrypted": "true",
            "x-ms-version-id": _version_id(found),
            "x-ms-is-current-version": str(wanted is None).lower(),
            **found.meta,
        }
        if call.method == "HEAD":
            headers |= {
                "ETag": etag, "Last-Modified": http_date(found.at_ms), "Accept-Ranges": "bytes",
            }  # fmt: skip
            byte_range(None, found.size)
            return Reply(200, headers, b"", deed, found.size)
        reply = read_object(call, found, self.objects.body(found), etag)
        reply.headers = headers | reply.headers
        reply.deed = deed
        return reply

    # --- writing -----------------------------------------------------------------------------------

    def _check(self, call: Call, deed: Deed) -> Check:
        absent, match = call.headers.get("if-none-match"), call.headers.get("if-match")
        if absent == "*":
            deed.condition = "if-absent"
        elif match is not None:
            deed.condition = f"if-version {match}"

        def check(before: Object | None) -> None:
            deed.before = "" if before is None else _etag(before)
            throttle(self.objects, self.profile, before)
            if not self.profile.put_conditions:
                return
            if absent is not None and before is not None and _same(absent, before):
                if absent == "*":  # 409, where S3 and GCS answer 412
                    raise Refusal(
                        409, "BlobAlreadyExists", "The specified blob already exists.",
                        "precondition_failed",
                    )  # fmt: skip
                raise _failed_condition()
            if match is not None and (before is None or not _same(match, before)):
                raise _failed_condition()

        return check

    def _put(self, call: Call, deed: Deed) -> Reply:
        kind = call.headers.get("x-ms-blob-type", "")
        if kind != "BlockBlob":
            raise Refusal(501, "NotImplemented", f"this server has no blob type {kind!r}")
        md5 = call.headers.get("content-md5")
        if md5 is not None and _b64(hashlib.md5(call.body).digest()) != md5:
            raise Refusal(400, "Md5Mismatch", "The MD5 value did not match the bytes.")
        before, after = self.objects.write(
            deed.bucket, deed.key, call.body, self._check(call, deed), meta=_meta(call)
        )
        return self._written(deed, before, after, call.body)

    def _written(self, deed: Deed, before: Object | None, after: Object, body: bytes) -> Reply:
        deed.answer, deed.applied, deed.body, deed.at_ms = "applied", True, body, after.at_ms
        deed.before, deed.version = "" if before is None else _etag(before), _etag(after)
        return Reply(
            201,
            {
                "ETag": _etag(after), "Last-Modified": http_date(after.at_ms),
                "Content-MD5": _b64(hashlib.md5(body).digest()),
                "x-ms-request-server-encrypted": "true", "x-ms-version-id": _version_id(after),
            },
            b"", deed,
        )  # fmt: skip

    def _uncommitted(self, deed: Deed) -> str | None:
        """The upload that gathers this blob's blocks; Azure has one per blob, without an id."""
        for key, upload in self.objects.uploads(deed.bucket, deed.key):
            if key == deed.key:
                return upload
        return None

    def _put_block(self, call: Call, deed: Deed) -> Reply:
        name = call.query.get("blockid", "")
        if not name or len(name) > 128:
            raise Refusal(400, "InvalidQueryParameterValue", "a block id has 1 to 64 bytes")
        upload = self._uncommitted(deed) or self.objects.start_upload(deed.bucket, deed.key, {})
        number = len(self.objects.parts(upload))
        self.objects.add_part(upload, name, number, call.body)
        deed.method, deed.answer = "part", "found"
        return Reply(201, {"Content-MD5": _b64(hashlib.md5(call.body).digest())}, b"", deed)

    def _put_block_list(self, call: Call, deed: Deed) -> Reply:
        if b"<!DOCTYPE" in call.body or b"<!ENTITY" in call.body:
            raise Refusal(400, "InvalidXmlDocument", "a document type is not accepted")
        try:
            root = ElementTree.fromstring(call.body)
        except ElementTree.ParseError:
            raise Refusal(400, "InvalidXmlDocument", "the block list is not XML") from None
        upload = self._uncommitted(deed)
        pieces = []
        for each in root:
            piece = self.objects.part(upload, (each.text or "").strip()) if upload else None
            if piece is None:
                raise Refusal(400, "InvalidBlockList", "the block list names a block not uploaded")
            pieces.append(piece)
        body = b"".join(pieces)
        before, after = self.objects.write(
            deed.bucket, deed.key, body, self._check(call, deed), meta=_meta(call)
        )
        if upload:
            self.objects.end_upload(upload)
        deed.method = "put"
        return self._written(deed, before, after, body)

    def _get_block_list(self, call: Call, deed: Deed) -> Reply:
        upload = self._uncommitted(deed)
        rows = "".join(
            f"<Block><Name>{escape(name)}</Name><Size>{size}</Size></Block>"
            for name, _, _, size in (self.objects.parts(upload) if upload else ())
        )
        deed.method, deed.answer = "list", "listed"
        return _document(
            f"<BlockList><CommittedBlocks/><UncommittedBlocks>{rows}</UncommittedBlocks>"
            "</BlockList>",
            deed,
        )

    def _copy(self, call: Call, deed: Deed) -> Reply:
        source = re.sub(r"^https?://[^/]+/", "", call.headers["x-ms-copy-source"]).partition("?")[0]
        _account, container, blob = (source.split("/", 2) + ["", ""])[:3]
        found = self.objects.current(key_of(container), key_of(blob))
        body = None if found is None else self.objects.body(found)
        if found is None or body is None:
            raise Refusal(
                404, "CannotVerifyCopySource", "the blob to copy does not exist", "missing"
            )
        before, after = self.objects.write(
            deed.bucket, deed.key, body, self._check(call, deed), meta=found.meta
        )
        reply = self._written(deed, before, after, body)
        deed.method, reply.status = "copy", 202
        reply.headers |= {"x-ms-copy-id": _version_id(after), "x-ms-copy-status": "success"}
        return reply

    def _set_metadata(self, call: Call, deed: Deed) -> Reply:
        found = self.objects.current(deed.bucket, deed.key)
        if found is None:
            raise Refusal(404, "BlobNotFound", "The specified blob does not exist.", "missing")
        kept = {k: v for k, v in found.meta.items() if not k.startswith("x-ms-meta-")}
        body = self.objects.body(found) or b""
        before, after = self.objects.write(
            deed.bucket, deed.key, body, self._check(call, deed), meta=kept | _meta(call)
        )
        reply = self._written(deed, before, after, body)
        reply.status = 200
        return reply

    def _delete(self, call: Call, deed: Deed) -> Reply:
        version = call.query.get("versionid")
        if version is not None:
            self.objects.remove_version(deed.bucket, deed.key, _id_of(version))
            deed.answer = "deleted"
            return Reply(202, {}, b"", deed)
        match = call.headers.get("if-match")
        if match is not None:
            deed.condition = f"if-version {match}"

        def check(before: Object | None) -> None:
            deed.before = "" if before is None else _etag(before)
            if before is None:
                if match is not None:  # azurite's answer; the real service is unverified
                    raise _failed_condition()
                raise Refusal(404, "BlobNotFound", "The specified blob does not exist.", "missing")
            if match is not None and not _same(match, before):
                raise _failed_condition()

        self.objects.remove(deed.bucket, deed.key, check)
        deed.answer, deed.applied = "applied", True
        return Reply(202, {"x-ms-delete-type-permanent": "false"}, b"", deed)


def _failed_condition() -> Refusal:
    return Refusal(
        412, "ConditionNotMet",
        "The condition specified using HTTP conditional header(s) is not met.",
        "precondition_failed",
    )  # fmt: skip


def _bare(object: Object) -> str:
    return f"0x8{object.id:015X}"


def _etag(object: Object) -> str:
    return f'"{_bare(object)}"'


def _same(header: str, object: Object) -> bool:
    wanted = [each.strip().removeprefix("W/").strip('"') for each in header.split(",")]
    return "*" in wanted or _bare(object) in wanted


def _version_id(object: Object) -> str:
    """A time to 100 ns, as Azure's are; ours is the object's id in microseconds and a zero."""
    moment = datetime.fromtimestamp(object.id // 1_000_000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{object.id % 1_000_000:06}0Z"


def _id_of(version: str) -> int:
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{6})\dZ", version)
    if found is None:
        raise Refusal(400, "InvalidQueryParameterValue", "the version id is not one of ours")
    moment = datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000 + int(found[2])


def _meta(call: Call) -> dict[str, Any]:
    names = {
        "x-ms-blob-content-type": "content-type",
        "x-ms-blob-content-encoding": "content-encoding",
        "x-ms-blob-cache-control": "cache-control",
        "x-ms-blob-content-disposition": "content-disposition",
        "x-ms-blob-content-language": "content-language",
    }
    meta = {new: call.headers[old] for old, new in names.items() if old in call.headers}
    return meta | {k: v for k, v in call.headers.items() if k.startswith("x-ms-meta-")}


def _needs_encoding(key: str) -> bool:
    return re.search("[\x00-\x1f\ufffe\uffff]", key) is not None


def _text(key: str) -> str:
    from urllib.parse import quote

    return quote(key) if _needs_encoding(key) else escape(key)


def _token(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


def _untoken(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except ValueError:
        raise Refusal(400, "InvalidQueryParameterValue", "the marker is not one of ours") from None


def _b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _xml(text: str) -> bytes:
    return f'<?xml version="1.0" encoding="utf-8"?>{text}'.encode()


def _document(text: str, deed: Deed) -> Reply:
    return Reply(200, {"Content-Type": "application/xml"}, _xml(text), deed)
