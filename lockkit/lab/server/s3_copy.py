"""The object that a CopyObject or an UploadPartCopy reads, under the conditions of its headers."""

from __future__ import annotations

import re

from lockkit.lab.server.call import DialectError, DialectRequest, judged, key_of, number
from lockkit.lab.server.objects import Object, Objects
from lockkit.lab.server.s3_conditions import failed_condition

_NAMED = "x-amz-copy-source"
_SPAN = re.compile(r"bytes=(\d{1,18})-(\d{1,18})", re.ASCII)


def source(objects: Objects, call: DialectRequest) -> tuple[Object, bytes]:
    """The source and its bytes, or the part of them that `x-amz-copy-source-range` names."""
    place, _, version = call.headers[_NAMED].partition("?versionId=")
    bucket, _, key = key_of(place.lstrip("/")).partition("/")
    if objects.lacks(bucket):
        raise no_bucket()
    if version:
        found = objects.at(bucket, key, number(version, "versionId"))
    else:
        found = objects.current(bucket, key)
    if found is None or found.deleted:
        raise DialectError(404, "NoSuchKey", "The object to copy does not exist.", "missing")
    _judge(call, found)
    body = objects.body(found, *_span(call, found.size))
    if body is None:
        raise DialectError(410, "Gone", "this past version was too large for this server to keep")
    return found, body


def no_bucket() -> DialectError:
    return DialectError(404, "NoSuchBucket", "The specified bucket does not exist", "missing")


def _judge(call: DialectRequest, found: Object) -> None:
    """Amazon answers 412, even where a read would get a 304."""
    said = {name.removeprefix(f"{_NAMED}-"): value for name, value in call.headers.items()
            if name.startswith(f"{_NAMED}-if-")}  # fmt: skip
    if judged(said, found.etag, found.at_ms):
        raise failed_condition()


def _span(call: DialectRequest, size: int) -> tuple[int, int]:
    header = call.headers.get(f"{_NAMED}-range")
    if header is None:
        return 0, size
    named = _SPAN.fullmatch(header)
    if named is None or not int(named[1]) <= int(named[2]) < size:
        raise DialectError(
            400, "InvalidArgument",
            f"Range specified is not valid for source object of size: {size}",
        )  # fmt: skip
    return int(named[1]), int(named[2]) + 1
