"""A conditional write in parts: S3's multipart upload, whose completion has the condition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from lockkit.protocol.outcome import Applied, Throttled, Unknown, WriteAnswer
from lockkit.stores import aws

PART_BYTES = 8 << 20
"""S3 requires at least 5 MiB in each part except the last, and allows 10,000 parts."""


def put_in_parts(
    client: Any, where: Mapping[str, str], body: bytes, condition: Mapping[str, str],
    meant: Callable[[Exception], WriteAnswer],
) -> WriteAnswer:  # fmt: skip
    """One upload, completed once. `meant` translates an error of the SDK for a write.

    Before the completion is sent, the object cannot exist. An error up to then counts as throttled:
    try again, with a new upload (as S3 requires after its 409).
    """
    upload, completing = "", False
    try:
        upload = client.create_multipart_upload(**where).get("UploadId") or ""
        parts = []
        for number, at in enumerate(range(0, len(body), PART_BYTES), 1):
            part = client.upload_part(
                **where, UploadId=upload, PartNumber=number, Body=body[at : at + PART_BYTES]
            )
            parts.append({"PartNumber": number, "ETag": part.get("ETag", "")})
        completing = True
        answer = client.complete_multipart_upload(
            **where, UploadId=upload, MultipartUpload={"Parts": parts}, **condition
        )
    except aws.SDK_ERRORS as error:
        try:
            said = meant(error)
        finally:
            _abort(client, where, upload)
        if completing:
            return said
        return said if isinstance(said, Throttled) else Throttled()
    if not answer.get("ETag"):
        return Unknown(f"a 200 without an ETag to the completion of {where['Key']}")
    return Applied(answer["ETag"])


def _abort(client: Any, where: Mapping[str, str], upload: str) -> None:
    """Parts cost money until they are deleted. A completed upload is not affected."""
    if upload:
        with suppress(*aws.SDK_ERRORS):
            client.abort_multipart_upload(**where, UploadId=upload)
