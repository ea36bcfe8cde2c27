"""Amazon S3's dialect, as boto3, pyarrow and object_store speak it (path style)."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from urllib.parse import quote
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

XMLNS = "http://s3.amazonaws.com/doc/2006-03-01/"
_KEPT_HEADERS = (
    "content-type", "content-encoding", "cache-control", "content-disposition", "content-language",
    "expires",
)  # fmt: skip


class S3:
    """`answer(call)` for every request that the SDKs were seen to send; the rest is a 501."""

    def __init__(self, objects: Objects, profile: Profile) -> None:
        self.objects = objects
        self.profile = profile

    def answer(self, call: Call) -> Reply:
        bucket, _, rest = call.path.lstrip("/").partition("/")
        deed = Deed(call.method.lower())
        try:
            deed.bucket, deed.key = key_of(bucket), key_of(rest)
            return self._route(call, deed)
        except Refusal as refusal:
            deed.answer = refusal.answer
            return self.refuse(call, refusal, deed)

    def refuse(self, call: Call, refusal: Refusal, deed: Deed) -> Reply:
        if refusal.status == 304:
            return Reply(304, {"ETag": refusal.message}, b"", deed)
        body = _xml(
            f"<Error><Code>{refusal.code}</Code><Message>{escape(refusal.message)}</Message>"
            f"<Resource>{escape(call.path)}</Resource><RequestId>{_request_id(call)}</RequestId></Error>"
        )
        if call.method == "HEAD":
            return Reply(refusal.status, {}, b"", deed)
        return Reply(refusal.status, {"Content-Type": "application/xml"}, body, deed)

    def _route(self, call: Call, deed: Deed) -> Reply:
        query = call.query
        match (call.method, bool(deed.bucket), bool(deed.key)):
            case ("GET", False, False):
                return self._list_buckets(deed)
            case (_, True, False):
                return self._bucket(call, deed)
            case ("PUT", True, True) if "partNumber" in query and "uploadId" in query:
                return self._put_part(call, deed)
            case ("PUT", True, True) if not query.keys() & {"tagging", "acl", "retention"}:
                return self._put(call, deed)
            case ("GET" | "HEAD", True, True) if "uploadId" in query:
                return self._list_parts(call, deed)
            case ("GET" | "HEAD", True, True) if not query.keys() & {"tagging", "acl", "torrent"}:
                return self._get(call, deed)
            case ("DELETE", True, True) if "uploadId" in query:
                self._upload(call)
                self.objects.end_upload(query["uploadId"])
                deed.method, deed.answer = "abort", "deleted"
                return Reply(204, deed=deed)
            case ("DELETE", True, True) if "tagging" not in query:
                return self._delete(call, deed)
            case ("POST", True, True) if "uploads" in query:
                return self._start_upload(call, deed)
            case ("POST", True, True) if "uploadId" in query:
                return self._complete_upload(call, deed)
        raise _not_built(call)

    # --- buckets -----------------------------------------------------------------------------------

    def _bucket(self, call: Call, deed: Deed) -> Reply:
        query, bucket = call.query, deed.bucket
        asked = query.keys() & {
            "location", "versioning", "versions", "delete", "uploads", "object-lock", "tagging",
            "acl", "policy", "cors", "lifecycle", "encryption",
        }  # fmt: skip
        match (call.method, next(iter(asked), "")):
            case ("PUT", ""):
                deed.answer = "applied" if self.objects.add_bucket(bucket) else "found"
                return Reply(200, {"Location": f"/{bucket}"}, deed=deed)
            case ("HEAD", ""):
                deed.answer = "found"  # made on first use
                return Reply(200, {"x-amz-bucket-region": "us-east-1"}, deed=deed)
            case ("DELETE", ""):
                if self.objects.list(bucket, "", limit=1):
                    raise Refusal(409, "BucketNotEmpty", "the bucket still has objects")
                self.objects.remove_bucket(bucket)
                deed.answer = "deleted"
                return Reply(204, deed=deed)
            case ("GET", ""):
                return self._list(call, deed)
            case ("GET", "versions"):
                return self._list_versions(call, deed)
            case ("GET", "location"):
                deed.answer = "found"
                return _document(f'<LocationConstraint xmlns="{XMLNS}"></LocationConstraint>', deed)
            case ("GET", "versioning"):
                deed.answer = "found"
                return _document(
                    f'<VersioningConfiguration xmlns="{XMLNS}"><Status>Enabled</Status>'
                    "</VersioningConfiguration>",
                    deed,
                )
            case ("PUT", "versioning"):
                deed.answer = "found"  # every version is kept anyway
                return Reply(200, deed=deed)
            case ("GET", "uploads"):
                return self._list_uploads(call, deed)
            case ("POST", "delete"):
                return self._bulk_delete(call, deed)
        raise _not_built(call)

    def _list_buckets(self, deed: Deed) -> Reply:
        deed.method, deed.answer = "list", "listed"
        names = "".join(
            f"<Bucket><Name>{escape(name)}</Name><CreationDate>2024-01-01T00:00:00.000Z"
            "</CreationDate></Bucket>"
            for name in self.objects.buckets()
        )
        owner = "<Owner><ID>lockkit</ID></Owner>"
        return _document(
            f'<ListAllMyBucketsResult xmlns="{XMLNS}">{owner}<Buckets>{names}</Buckets>'
            "</ListAllMyBucketsResult>",
            deed,
        )

    def _list(self, call: Call, deed: Deed) -> Reply:
        query = call.query
        second = query.get("list-type") == "2"
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        token = query.get("continuation-token")
        if second:
            after = _untoken(token) if token is not None else query.get("start-after", "")
        else:
            after = query.get("marker", "")
        limit = _number(query.get("max-keys", "1000"), "max-keys")
        show = _shower(query.get("encoding-type"))
        deed.method, deed.key, deed.answer = "list", prefix, "listed"
        contents, prefixes, last = page(
            self.objects, deed.bucket, prefix, delimiter, after, min(limit, 1000)
        )
        more = last is not None
        rows = "".join(
            f"<Contents><Key>{show(each.key)}</Key><LastModified>{_iso(each.at_ms)}</LastModified>"
            f'<ETag>"{each.etag}"</ETag><Size>{each.size}</Size>'
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for each in contents
        ) + "".join(
            f"<CommonPrefixes><Prefix>{show(each)}</Prefix></CommonPrefixes>" for each in prefixes
        )
        head = (
            f"<Name>{escape(deed.bucket)}</Name><Prefix>{show(prefix)}</Prefix>"
            f"<MaxKeys>{limit}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>"
        )
        if delimiter:
            head += f"<Delimiter>{show(delimiter)}</Delimiter>"
        if query.get("encoding-type") == "url":
            head += "<EncodingType>url</EncodingType>"
        if second:
            head += f"<KeyCount>{len(contents) + len(prefixes)}</KeyCount>"
            if token is not None:
                head += f"<ContinuationToken>{escape(token)}</ContinuationToken>"
            if last is not None:
                head += f"<NextContinuationToken>{_token(last)}</NextContinuationToken>"
        else:
            head += f"<Marker>{show(after)}</Marker>"
            if last is not None:
                head += f"<NextMarker>{show(last)}</NextMarker>"
        return _document(f'<ListBucketResult xmlns="{XMLNS}">{head}{rows}</ListBucketResult>', deed)

    def _list_versions(self, call: Call, deed: Deed) -> Reply:
        query = call.query
        prefix = query.get("prefix", "")
        limit = min(_number(query.get("max-keys", "1000"), "max-keys"), 1000)
        show = _shower(query.get("encoding-type"))
        marker = query.get("version-id-marker", "")
        behind = int(marker) if marker.isdigit() else 0
        found = self.objects.history(
            deed.bucket, prefix, (query.get("key-marker", ""), behind), limit + 1
        )
        deed.method, deed.key, deed.answer = "list", prefix, "listed"
        more, found = len(found) > limit, found[:limit]
        rows = []
        for each in found:
            newest = self.objects.present(deed.bucket, each.key)
            latest = str(newest is not None and newest.id == each.id).lower()
            common = (
                f"<Key>{show(each.key)}</Key><VersionId>{each.id}</VersionId>"
                f"<IsLatest>{latest}</IsLatest><LastModified>{_iso(each.at_ms)}</LastModified>"
            )
            if each.deleted:
                rows.append(f"<DeleteMarker>{common}</DeleteMarker>")
            else:
                rows.append(
                    f'<Version>{common}<ETag>"{each.etag}"</ETag><Size>{each.size}</Size>'
                    "<StorageClass>STANDARD</StorageClass></Version>"
                )
        head = (
            f"<Name>{escape(deed.bucket)}</Name><Prefix>{show(prefix)}</Prefix>"
            f"<MaxKeys>{limit}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>"
        )
        if more:
            head += (
                f"<NextKeyMarker>{show(found[-1].key)}</NextKeyMarker>"
                f"<NextVersionIdMarker>{found[-1].id}</NextVersionIdMarker>"
            )
        if query.get("encoding-type") == "url":
            head += "<EncodingType>url</EncodingType>"
        return _document(
            f'<ListVersionsResult xmlns="{XMLNS}">{head}{"".join(rows)}</ListVersionsResult>', deed
        )

    # --- objects -----------------------------------------------------------------------------------

    def _put(self, call: Call, deed: Deed) -> Reply:
        if "x-amz-copy-source" in call.headers:
            return self._copy(call, deed)
        body = _payload(call)
        _verify(call, body)
        meta = _meta(call)
        check = self._check(call, deed)
        before, after = self.objects.write(deed.bucket, deed.key, body, check, meta=meta)
        _applied(deed, before, after, body)
        return Reply(200, {"ETag": f'"{after.etag}"', "x-amz-version-id": str(after.id)}, b"", deed)

    def _copy(self, call: Call, deed: Deed) -> Reply:
        source = call.headers["x-amz-copy-source"].lstrip("/")
        bucket, _, rest = source.partition("/")
        path, _, version = rest.partition("?versionId=")
        bucket, key = key_of(bucket), key_of(path)
        found = (
            self.objects.at(bucket, key, int(version))
            if version.isdigit()
            else self.objects.current(bucket, key)
        )
        if found is None or found.deleted:
            raise Refusal(404, "NoSuchKey", "the object to copy does not exist", "missing")
        body = self.objects.body(found)
        if body is None:
            raise Refusal(410, "Gone", "this past version was too large to keep")
        replace = call.headers.get("x-amz-metadata-directive", "COPY").upper() == "REPLACE"
        meta = _meta(call) if replace else found.meta
        before, after = self.objects.write(
            deed.bucket, deed.key, body, self._check(call, deed), meta=meta
        )
        _applied(deed, before, after, body)
        deed.method = "copy"
        return _document(
            f'<CopyObjectResult xmlns="{XMLNS}"><ETag>"{after.etag}"</ETag>'
            f"<LastModified>{_iso(after.at_ms)}</LastModified></CopyObjectResult>",
            deed,
        )

    def _check(self, call: Call, deed: Deed) -> Check:
        """The write's condition, to be judged inside the store's transaction."""
        absent, match = call.headers.get("if-none-match"), call.headers.get("if-match")
        if absent is not None:
            deed.condition = "if-absent"
            if absent.strip() != "*":
                raise Refusal(501, "NotImplemented", "If-None-Match on a write accepts only *")
        elif match is not None:
            deed.condition = f"if-version {match}"

        def check(before: Object | None) -> None:
            deed.before = _version(before)
            throttle(self.objects, self.profile, before)
            if not self.profile.put_conditions:
                return
            if absent is not None and before is not None:
                raise _failed_condition()
            if match is not None:
                if before is None:  # S3 answers 404, not 412, to If-Match on a missing object
                    raise Refusal(
                        404, "NoSuchKey", "The specified key does not exist.", "precondition_failed"
                    )
                if not _same_etag(match, before.etag):
                    raise _failed_condition()

        return check

    def _get(self, call: Call, deed: Deed) -> Reply:
        wanted = call.query.get("versionId")
        if wanted is not None:
            found = (
                self.objects.at(deed.bucket, deed.key, int(wanted)) if wanted.isdigit() else None
            )
            if found is not None and found.deleted:
                raise Refusal(405, "MethodNotAllowed", "this version is a delete marker")
        else:
            found = self.objects.current(deed.bucket, deed.key)
        if found is None:
            raise Refusal(404, "NoSuchKey", "The specified key does not exist.", "missing")
        deed.version, etag = f'"{found.etag}"', f'"{found.etag}"'
        none, match = call.headers.get("if-none-match"), call.headers.get("if-match")
        if match is not None and not _same_etag(match, found.etag):
            raise _failed_condition()
        if none is not None:
            deed.condition = f"unless-version {none}"
            if _same_etag(none, found.etag):
                raise Refusal(304, "NotModified", etag, "not_modified")
        deed.answer = "found"
        headers = {"x-amz-version-id": str(found.id), **found.meta}
        if call.method == "HEAD":
            headers |= {
                "ETag": etag, "Last-Modified": http_date(found.at_ms), "Accept-Ranges": "bytes",
            }  # fmt: skip
            span = byte_range(call.headers.get("range"), found.size)
            return Reply(
                200 if span is None else 206, headers, b"", deed,
                found.size if span is None else span[1] - span[0],
            )  # fmt: skip
        reply = read_object(call, found, self.objects.body(found), etag)
        reply.headers = headers | reply.headers
        reply.deed = deed
        return reply

    def _delete(self, call: Call, deed: Deed) -> Reply:
        version = call.query.get("versionId")
        if version is not None:
            if not version.isdigit():
                raise Refusal(400, "InvalidArgument", "Invalid version id specified")
            self.objects.remove_version(deed.bucket, deed.key, int(version))
            deed.answer = "deleted"
            return Reply(204, {"x-amz-version-id": version}, b"", deed)
        match = call.headers.get("if-match")
        if match is not None:
            deed.condition = f"if-version {match}"

        def check(before: Object | None) -> None:
            deed.before = _version(before)
            if match is None:
                return
            if before is None:
                raise Refusal(
                    404, "NoSuchKey", "The specified key does not exist.", "precondition_failed"
                )
            if not _same_etag(match, before.etag):
                raise _failed_condition()

        _, marker = self.objects.remove(deed.bucket, deed.key, check)
        deed.answer, deed.applied = "applied", marker is not None
        return Reply(204, deed=deed)

    def _bulk_delete(self, call: Call, deed: Deed) -> Reply:
        root = _parse(_payload(call), "Delete")
        rows = []
        for each in root.iter():
            if _local(each) != "Object":
                continue
            fields = {_local(child): child.text or "" for child in each}
            key, match = fields.get("Key", ""), fields.get("ETag")
            try:
                self._delete(
                    Call("DELETE", "", {}, {"if-match": match} if match else {}, b""),
                    Deed("delete", deed.bucket, key),
                )
                rows.append(f"<Deleted><Key>{escape(key)}</Key></Deleted>")
            except Refusal as refusal:
                rows.append(
                    f"<Error><Key>{escape(key)}</Key><Code>{refusal.code}</Code>"
                    f"<Message>{escape(refusal.message)}</Message></Error>"
                )
        quiet = any(_local(each) == "Quiet" and each.text == "true" for each in root)
        if quiet:
            rows = [row for row in rows if row.startswith("<Error>")]
        deed.method, deed.answer, deed.applied = "delete", "applied", True
        return _document(f'<DeleteResult xmlns="{XMLNS}">{"".join(rows)}</DeleteResult>', deed)

    # --- multipart ---------------------------------------------------------------------------------

    def _upload(self, call: Call) -> tuple[str, dict[str, object]]:
        found = self.objects.upload(call.query["uploadId"])
        if found is None:
            raise Refusal(404, "NoSuchUpload", "The specified upload does not exist.", "missing")
        return found[1], found[2]

    def _start_upload(self, call: Call, deed: Deed) -> Reply:
        upload = self.objects.start_upload(deed.bucket, deed.key, _meta(call))
        deed.method, deed.answer = "upload", "found"
        return _document(
            f'<InitiateMultipartUploadResult xmlns="{XMLNS}"><Bucket>{escape(deed.bucket)}</Bucket>'
            f"<Key>{escape(deed.key)}</Key><UploadId>{upload}</UploadId>"
            "</InitiateMultipartUploadResult>",
            deed,
        )

    def _put_part(self, call: Call, deed: Deed) -> Reply:
        self._upload(call)
        number = _number(call.query["partNumber"], "partNumber")
        if not 1 <= number <= 10_000:
            raise Refusal(400, "InvalidArgument", "partNumber is 1 to 10000")
        if "x-amz-copy-source" in call.headers:
            raise _not_built(call)
        body = _payload(call)
        _verify(call, body)
        etag = self.objects.add_part(call.query["uploadId"], f"{number:05}", number, body)
        deed.method, deed.answer = "part", "found"
        return Reply(200, {"ETag": f'"{etag}"'}, b"", deed)

    def _list_parts(self, call: Call, deed: Deed) -> Reply:
        self._upload(call)
        upload = call.query["uploadId"]
        rows = "".join(
            f'<Part><PartNumber>{number}</PartNumber><ETag>"{etag}"</ETag><Size>{size}</Size></Part>'
            for _, number, etag, size in self.objects.parts(upload)
        )
        deed.method, deed.answer = "list", "listed"
        return _document(
            f'<ListPartsResult xmlns="{XMLNS}"><Bucket>{escape(deed.bucket)}</Bucket>'
            f"<Key>{escape(deed.key)}</Key><UploadId>{upload}</UploadId>"
            f"<IsTruncated>false</IsTruncated>{rows}</ListPartsResult>",
            deed,
        )

    def _list_uploads(self, call: Call, deed: Deed) -> Reply:
        rows = "".join(
            f"<Upload><Key>{escape(key)}</Key><UploadId>{upload}</UploadId></Upload>"
            for key, upload in self.objects.uploads(deed.bucket, call.query.get("prefix", ""))
        )
        deed.method, deed.answer = "list", "listed"
        return _document(
            f'<ListMultipartUploadsResult xmlns="{XMLNS}"><Bucket>{escape(deed.bucket)}</Bucket>'
            f"<IsTruncated>false</IsTruncated>{rows}</ListMultipartUploadsResult>",
            deed,
        )

    def _complete_upload(self, call: Call, deed: Deed) -> Reply:
        _, meta = self._upload(call)
        upload = call.query["uploadId"]
        kept = {number: (name, etag) for name, number, etag, _ in self.objects.parts(upload)}
        chosen: list[int] = []
        for part in _parse(_payload(call), "CompleteMultipartUpload"):
            fields = {_local(child): (child.text or "").strip() for child in part}
            number = _number(fields.get("PartNumber", ""), "PartNumber")
            if number not in kept or fields.get("ETag", "").strip('"') != kept[number][1]:
                raise Refusal(400, "InvalidPart", f"part {number} was not uploaded, or differs")
            if chosen and number <= chosen[-1]:
                raise Refusal(400, "InvalidPartOrder", "parts are not in ascending order")
            chosen.append(number)
        if not chosen:
            raise Refusal(400, "MalformedXML", "an upload is completed with at least one part")
        body = b"".join(self.objects.part(upload, kept[number][0]) or b"" for number in chosen)
        digests = b"".join(bytes.fromhex(kept[number][1]) for number in chosen)
        etag = f"{hashlib.md5(digests).hexdigest()}-{len(chosen)}"
        check = self._check(call, deed)
        before, after = self.objects.write(deed.bucket, deed.key, body, check, etag=etag, meta=meta)
        self.objects.end_upload(upload)
        _applied(deed, before, after, body)
        deed.method = "put"
        return _document(
            f'<CompleteMultipartUploadResult xmlns="{XMLNS}"><Bucket>{escape(deed.bucket)}</Bucket>'
            f'<Key>{escape(deed.key)}</Key><ETag>"{etag}"</ETag></CompleteMultipartUploadResult>',
            deed,
        )


# --- pieces --------------------------------------------------------------------------------------------


def _applied(deed: Deed, before: Object | None, after: Object, body: bytes) -> None:
    deed.answer, deed.applied, deed.body = "applied", True, body
    deed.before, deed.version, deed.at_ms = _version(before), _version(after), after.at_ms


def _version(object: Object | None) -> str:
    return "" if object is None else f'"{object.etag}"'


def _failed_condition() -> Refusal:
    return Refusal(
        412,
        "PreconditionFailed",
        "At least one of the pre-conditions you specified did not hold",
        "precondition_failed",
    )


def _same_etag(header: str, etag: str) -> bool:
    wanted = [each.strip().removeprefix("W/").strip('"') for each in header.split(",")]
    return "*" in wanted or etag in wanted


def _payload(call: Call) -> bytes:
    """The object's bytes: aws-chunked framing and its trailers are taken off and checked."""
    encoded = call.headers.get("content-encoding", "")
    framed = call.headers.get("x-amz-content-sha256", "").startswith("STREAMING-")
    if not framed and "aws-chunked" not in encoded:
        return call.body
    out, rest, trailers = bytearray(), call.body, {}
    while True:
        line, found, rest = rest.partition(b"\r\n")
        size_hex = line.split(b";")[0]
        if not found or not re.fullmatch(rb"[0-9a-fA-F]{1,16}", size_hex):
            raise Refusal(400, "IncompleteBody", "the aws-chunked body is broken")
        size = int(size_hex, 16)
        if size == 0:
            break
        if len(rest) < size + 2 or rest[size : size + 2] != b"\r\n":
            raise Refusal(400, "IncompleteBody", "the aws-chunked body ends too soon")
        out += rest[:size]
        rest = rest[size + 2 :]
    for line in rest.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if colon:
            trailers[name.strip().lower().decode("latin-1")] = value.strip().decode("latin-1")
    body = bytes(out)
    declared = call.headers.get("x-amz-decoded-content-length")
    if declared is not None and declared != str(len(body)):
        raise Refusal(400, "IncompleteBody", "x-amz-decoded-content-length does not agree")
    _verify_crc(trailers.get("x-amz-checksum-crc32"), body)
    return body


def _verify(call: Call, body: bytes) -> None:
    md5 = call.headers.get("content-md5")
    if md5 is not None and base64.b64encode(hashlib.md5(body).digest()).decode() != md5:
        raise Refusal(400, "BadDigest", "The Content-MD5 you specified did not match")
    _verify_crc(call.headers.get("x-amz-checksum-crc32"), body)
    sha = call.headers.get("x-amz-checksum-sha256")
    if sha is not None and base64.b64encode(hashlib.sha256(body).digest()).decode() != sha:
        raise Refusal(400, "BadDigest", "The sha256 you specified did not match")


def _verify_crc(wanted: str | None, body: bytes) -> None:
    if wanted is None:
        return
    if base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode() != wanted:
        raise Refusal(400, "BadDigest", "The CRC32 you specified did not match")


def _meta(call: Call) -> dict[str, str]:
    kept = {
        name: value
        for name, value in call.headers.items()
        if name in _KEPT_HEADERS or name.startswith("x-amz-meta-")
    }
    encodings = [e.strip() for e in kept.get("content-encoding", "").split(",")]
    encodings = [each for each in encodings if each and each != "aws-chunked"]
    kept.pop("content-encoding", None)
    if encodings:
        kept["content-encoding"] = ",".join(encodings)
    return kept


def _parse(body: bytes, root: str) -> ElementTree.Element:
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:  # no entity is ever expanded
        raise Refusal(400, "MalformedXML", "a document type is not accepted")
    try:
        element = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise Refusal(400, "MalformedXML", f"the XML is not well-formed: {error}") from None
    if _local(element) != root:
        raise Refusal(400, "MalformedXML", f"expected <{root}>")
    return element


def _local(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _number(text: str, name: str) -> int:
    if not text.isdigit() or len(text) > 10:
        raise Refusal(400, "InvalidArgument", f"{name} is not a number")
    return int(text)


def _shower(encoding: str | None):  # type: ignore[no-untyped-def]
    if encoding == "url":
        return lambda text: quote(text, safe="/")
    # XML 1.0 cannot carry most control characters at all; encoding-type=url is S3's way out.
    return lambda text: re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "?", escape(text))


def _token(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _untoken(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except ValueError:
        raise Refusal(400, "InvalidArgument", "the continuation token is not one of ours") from None


def _iso(at_ms: float) -> str:
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(at_ms % 1000):03}Z"


def _xml(text: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()


def _document(text: str, deed: Deed) -> Reply:
    return Reply(200, {"Content-Type": "application/xml"}, _xml(text), deed)


def _request_id(call: Call) -> str:
    return hashlib.md5(repr((call.method, call.path)).encode()).hexdigest()[:16].upper()


def _not_built(call: Call) -> Refusal:
    asked = ", ".join(call.query) or "no sub-resource"
    return Refusal(
        501, "NotImplemented", f"this server does not do {call.method} {call.path} ({asked})"
    )
