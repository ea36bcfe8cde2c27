"""S3's multipart uploads: started, gathered part by part, judged when completed."""

from __future__ import annotations

import hashlib

from lockkit.lab.server import markup, s3_lists
from lockkit.lab.server.call import DialectError, DialectRequest, Reply, RequestEffect, number
from lockkit.lab.server.objects import Objects
from lockkit.lab.server.s3_body import payload

PARTS_MAX = 10_000


def start(objects: Objects, deed: RequestEffect, meta: dict[str, str]) -> Reply:
    upload = f"s3-{objects.clock.unique()}"
    objects.start_upload(upload, deed.bucket, deed.key, meta)
    deed.method, deed.answer = "upload", "applied"
    return s3_lists.answer(
        "InitiateMultipartUploadResult",
        f"<Bucket>{markup.plain(deed.bucket)}</Bucket><Key>{markup.plain(deed.key)}</Key>"
        f"<UploadId>{upload}</UploadId>",
        deed,
    )


def known(objects: Objects, call: DialectRequest, deed: RequestEffect) -> dict[str, str]:
    """What the upload was started with; 404 for an upload that is not under way for this key."""
    found = objects.upload(call.query["uploadId"])
    if found is None or found[:2] != (deed.bucket, deed.key):
        raise DialectError(404, "NoSuchUpload", "The specified upload does not exist.", "missing")
    return found[2]


def put_part(objects: Objects, call: DialectRequest, deed: RequestEffect) -> Reply:
    deed.method = "part"
    known(objects, call, deed)
    place = number(call.query["partNumber"], "partNumber")
    if not 1 <= place <= PARTS_MAX:
        raise DialectError(400, "InvalidArgument", f"partNumber is 1 to {PARTS_MAX}")
    if "x-amz-copy-source" in call.headers:
        raise DialectError(501, "NotImplemented", "this server does not do UploadPartCopy")
    etag = objects.add_part(call.query["uploadId"], f"{place:05}", place, payload(call))
    deed.answer = "applied"
    return Reply(200, {"ETag": f'"{etag}"'}, b"", deed)


def abort(objects: Objects, call: DialectRequest, deed: RequestEffect) -> Reply:
    deed.method = "abort"
    known(objects, call, deed)
    objects.end_upload(call.query["uploadId"])
    deed.answer = "applied"
    return Reply(204, deed=deed)


def joined(objects: Objects, call: DialectRequest) -> tuple[bytes, str]:
    """The bytes of the parts that the request lists, and the ETag that Amazon would give them."""
    upload = call.query["uploadId"]
    kept = {number: (name, etag) for name, number, etag, _ in objects.parts(upload)}
    chosen: list[int] = []
    for part in markup.read(payload(call), "CompleteMultipartUpload", "MalformedXML"):
        fields = markup.fields(part)
        place = number(fields.get("PartNumber", "").strip(), "PartNumber")
        if place not in kept or fields.get("ETag", "").strip().strip('"') != kept[place][1]:
            raise DialectError(400, "InvalidPart", f"part {place} was not uploaded, or is another")
        if chosen and place <= chosen[-1]:
            raise DialectError(400, "InvalidPartOrder", "The parts are not in ascending order.")
        chosen.append(place)
    if not chosen:
        raise DialectError(400, "MalformedXML", "an upload is completed with at least one part")
    body = b"".join(objects.part(upload, kept[place][0]) or b"" for place in chosen)
    digests = b"".join(bytes.fromhex(kept[place][1]) for place in chosen)
    return body, f"{hashlib.md5(digests).hexdigest()}-{len(chosen)}"
