"""S3's multipart uploads: started, gathered part by part, judged when completed."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from lockkit.lab.server import markup, s3_copy, s3_lists
from lockkit.lab.server.call import DialectError, DialectRequest, Reply, RequestEffect, number
from lockkit.lab.server.objects import Object, Objects
from lockkit.lab.server.s3_body import received, sums_of, sums_of_parts

ALGORITHMS = ("crc32", "crc32c", "crc64nvme", "sha1", "sha256")
PARTS_MAX = 10_000
PART_BYTES_MIN = 5 << 20
"""The smallest size of every part but the last."""


def start(
    objects: Objects, call: DialectRequest, deed: RequestEffect, meta: dict[str, str]
) -> Reply:
    # The uploads of one key are listed by their start, and a page's marker is an id: it begins so.
    upload = f"s3-{objects.clock.wall_ns():017x}-{objects.clock.unique()}"
    if call.headers.get("x-amz-checksum-type", "").upper() != "FULL_OBJECT":
        meta["algorithm"] = call.headers.get("x-amz-checksum-algorithm", "").lower()
    begun: dict[str, Any] = {**meta, "initiated_ms": objects.clock.stamp_ms()}
    objects.start_upload(upload, deed.bucket, deed.key, begun)
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
    if found is None or found[:2] != (deed.bucket, deed.key) or "done" in found[2]:
        raise DialectError(404, "NoSuchUpload", "The specified upload does not exist.", "missing")
    return found[2]


def put_part(objects: Objects, call: DialectRequest, deed: RequestEffect) -> Reply:
    deed.method = "part"
    known(objects, call, deed)
    place = number(call.query["partNumber"], "partNumber")
    if not 1 <= place <= PARTS_MAX:
        raise DialectError(400, "InvalidArgument", f"partNumber is 1 to {PARTS_MAX}")
    copies = "x-amz-copy-source" in call.headers
    body, sums = (s3_copy.source(objects, call)[1], {}) if copies else received(call)
    etag = objects.add_part(call.query["uploadId"], f"{place:05}", place, body)
    deed.answer = "applied"
    if copies:
        copied = markup.iso(objects.clock.stamp_ms())
        text = f"<LastModified>{copied}</LastModified><ETag>\"{etag}\"</ETag>"
        return s3_lists.answer("CopyPartResult", text, deed)
    headers = {f"x-amz-{name}": value for name, value in sums.items()}
    return Reply(200, {"ETag": f'"{etag}"', **headers}, b"", deed)


def abort(objects: Objects, call: DialectRequest, deed: RequestEffect) -> Reply:
    """Amazon takes it again for hours, also for a completed upload (minio/minio, issue 2250)."""
    deed.method, upload = "abort", call.query["uploadId"]
    if _over(objects, call, deed) is None:
        known(objects, call, deed)
        objects.end_upload(upload)
        objects.start_upload(upload, deed.bucket, deed.key, {"done": None})
    deed.answer = "applied"
    return Reply(204, deed=deed)


def joined(
    objects: Objects, call: DialectRequest, algorithm: str
) -> tuple[bytes, str, dict[str, str]]:
    """The bytes of the parts that the request lists, with the ETag and the checksums of Amazon."""
    upload = call.query["uploadId"]
    kept = {number: (name, etag, size) for name, number, etag, size in objects.parts(upload)}
    listed = _listed(call)
    for place, etag in listed:
        if place not in kept or etag != kept[place][1]:
            raise DialectError(400, "InvalidPart", f"part {place} is missing or has another ETag")
    if any(kept[place][2] < PART_BYTES_MIN for place, _ in listed[:-1]):
        raise DialectError(
            400, "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size"
        )
    bodies = [objects.part(upload, kept[place][0]) or b"" for place, _ in listed]
    claimed = {name: value for name in ALGORITHMS
               if (value := call.headers.get(f"x-amz-checksum-{name}"))}  # fmt: skip
    whole = b"".join(bodies)
    sums = sums_of_parts(algorithm, bodies) if algorithm else sums_of(claimed, whole)
    if any(sums.get(f"checksum-{name}", value) != value for name, value in claimed.items()):
        raise DialectError(400, "BadDigest", "The checksum you specified did not match.")
    return whole, _etag(listed), {f"checksum-{name}": v for name, v in claimed.items()} | sums


def checksum_fields(after: Object) -> str:
    """A completion's answer names the checksum of the whole."""
    return "".join(
        f"<Checksum{name.upper()}>{after.meta[key]}</Checksum{name.upper()}>"
        for name in ALGORITHMS
        if (key := f"checksum-{name}") in after.meta
    )


def completed(objects: Objects, call: DialectRequest, deed: RequestEffect) -> Object | None:
    """The object of this upload, for a client that lost the answer and completes it again.

    Amazon answers as it did the first time (adobe/S3Mock, issue 2586). That it does not judge the
    condition again is unverified.
    """
    done = (_over(objects, call, deed) or {}).get("done")
    found = None if done is None else objects.at(deed.bucket, deed.key, done)
    if found is None:
        return None
    if _etag(_listed(call)) != found.etag:
        raise DialectError(400, "InvalidPart", "the upload was completed with other parts")
    deed.method, deed.answer = "part", "found"
    return found


def _over(objects: Objects, call: DialectRequest, deed: RequestEffect) -> dict[str, Any] | None:
    """Of an upload that was completed or aborted: the object that it became, or None."""
    bucket, key, kept = objects.upload(call.query["uploadId"]) or ("", "", {})
    return kept if (bucket, key) == (deed.bucket, deed.key) and "done" in kept else None


def finish(objects: Objects, call: DialectRequest, after: Object) -> None:
    upload = call.query["uploadId"]
    objects.end_upload(upload)
    objects.start_upload(upload, after.bucket, after.key, {"done": after.id})


def _listed(call: DialectRequest) -> list[tuple[int, str]]:
    """Numbers and ETags of the parts that a completion names."""
    listed: list[tuple[int, str]] = []
    # Its checksum headers are the object's, not this document's.
    for part in markup.read(call.body, "CompleteMultipartUpload", "MalformedXML"):
        fields = markup.fields(part)
        place = number(fields.get("PartNumber", "").strip(), "PartNumber")
        if listed and place <= listed[-1][0]:
            raise DialectError(400, "InvalidPartOrder", "The parts are not in ascending order.")
        listed.append((place, fields.get("ETag", "").strip().strip('"')))
    if not listed:
        raise DialectError(400, "MalformedXML", "completing an upload needs at least one part")
    if not all(re.fullmatch("[0-9a-f]{32}", etag) for _, etag in listed):
        raise DialectError(400, "InvalidPart", "an ETag is not that of an uploaded part")
    return listed


def _etag(listed: list[tuple[int, str]]) -> str:
    digests = b"".join(bytes.fromhex(etag) for _, etag in listed)
    return f"{hashlib.md5(digests).hexdigest()}-{len(listed)}"
