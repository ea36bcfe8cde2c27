"""S3 as its clients use it beside plain objects: parts that are copied, tags, signed links."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

PART_BYTES = 5 << 20
BODY = bytes(range(256)) * (2 * PART_BYTES // 256) + b"end"


def client_of(url: str, key: str = "any", secret: str = "thing") -> Any:
    return boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id=key,
        aws_secret_access_key=secret, config=Config(retries={"total_max_attempts": 1}),
    )  # fmt: skip


@pytest.fixture(scope="module")
def s3(shared_emulator: Any) -> Iterator[Any]:
    client = client_of(shared_emulator.s3)
    yield client
    client.close()


def refused(call: Callable[..., Any], **arguments: Any) -> tuple[int, str]:
    """(status, error code) of a call that must fail."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    answer = caught.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]


def test_a_large_object_is_copied_in_parts_under_the_sources_conditions(
    s3: Any, bucket: str
) -> None:
    source = {"Bucket": bucket, "Key": "from/ü 1"}
    stored = s3.put_object(**source, Body=BODY, Metadata={"kept": "yes"})
    at = {"Bucket": bucket, "Key": "to"}
    upload = {**at, "UploadId": s3.create_multipart_upload(**at)["UploadId"]}
    parts = []
    for place, start in enumerate(range(0, len(BODY), PART_BYTES), 1):
        last = min(start + PART_BYTES, len(BODY)) - 1
        copied = s3.upload_part_copy(
            **upload, PartNumber=place, CopySource=source, CopySourceRange=f"bytes={start}-{last}",
            CopySourceIfMatch=stored["ETag"],
        )  # fmt: skip
        parts.append({"PartNumber": place, "ETag": copied["CopyPartResult"]["ETag"]})
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    assert s3.get_object(**at)["Body"].read() == BODY

    upload = {**at, "UploadId": s3.create_multipart_upload(**at)["UploadId"], "PartNumber": 1}
    copy = s3.upload_part_copy
    assert refused(copy, **upload, CopySource=source, CopySourceRange="bytes=0-99999999") == (
        400, "InvalidArgument",
    )  # fmt: skip
    stale = {"CopySourceIfMatch": '"other"'}
    assert refused(copy, **upload, CopySource=source, **stale)[0] == 412
    none = {"Bucket": bucket, "Key": "none"}
    assert refused(copy, **upload, CopySource=none) == (404, "NoSuchKey")


def test_a_copy_obeys_the_conditions_on_its_source(s3: Any, bucket: str) -> None:
    source, at = {"Bucket": bucket, "Key": "from"}, {"Bucket": bucket, "Key": "to"}
    tag = s3.put_object(**source, Body=b"1")["ETag"]
    changed, hour = s3.head_object(**source)["LastModified"], timedelta(hours=1)
    for failed in (
        {"CopySourceIfMatch": '"other"'}, {"CopySourceIfNoneMatch": tag},
        {"CopySourceIfModifiedSince": changed}, {"CopySourceIfUnmodifiedSince": changed - hour},
    ):  # fmt: skip
        assert refused(s3.copy_object, **at, CopySource=source, **failed) == (
            412, "PreconditionFailed",
        )  # fmt: skip
    older = {**source, "VersionId": s3.head_object(**source)["VersionId"]}
    s3.put_object(**source, Body=b"2")
    s3.copy_object(**at, CopySource=older, CopySourceIfMatch=tag)
    assert s3.get_object(**at)["Body"].read() == b"1"
