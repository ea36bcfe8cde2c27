"""S3 as its clients use it beside plain objects: parts that are copied, tags, signed links."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from lockkit.lab.server import Emulator
from lockkit.lab.server.policy import read_policy

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


def test_tags_are_kept_copied_replaced_and_taken_away_without_another_version(
    s3: Any, bucket: str
) -> None:
    at = {"Bucket": bucket, "Key": "tagged"}

    def of(**which: str) -> dict[str, str]:
        return {tag["Key"]: tag["Value"] for tag in s3.get_object_tagging(**which)["TagSet"]}

    first = s3.put_object(**at, Body=b"1", Tagging="team=lake%20one&empty=")
    assert of(**at) == {"team": "lake one", "empty": ""}
    assert s3.get_object(**at)["TagCount"] == s3.head_object(**at)["TagCount"] == 2
    s3.put_object_tagging(**at, Tagging={"TagSet": [{"Key": "ü/&", "Value": "<1>"}]})
    assert of(**at, VersionId=first["VersionId"]) == {"ü/&": "<1>"}
    assert s3.head_object(**at)["VersionId"] == first["VersionId"]
    other = {"Bucket": bucket, "Key": "copy"}
    s3.copy_object(**other, CopySource=at, MetadataDirective="REPLACE")
    assert of(**other) == {"ü/&": "<1>"}
    s3.copy_object(**other, CopySource=at, TaggingDirective="REPLACE", Tagging="a=b")
    assert of(**other) == {"a": "b"}
    s3.delete_object_tagging(**at)
    assert of(**at) == {} and "TagCount" not in s3.head_object(**at)
    parts = {**at, "UploadId": s3.create_multipart_upload(**at, Tagging="in=parts")["UploadId"]}
    tag = s3.upload_part(**parts, PartNumber=1, Body=b"x")["ETag"]
    s3.complete_multipart_upload(
        **parts, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": tag}]}
    )
    assert of(**at) == {"in": "parts"}


def test_tags_beyond_amazons_limits_are_refused(s3: Any, bucket: str) -> None:
    at = {"Bucket": bucket, "Key": "tagged"}
    s3.put_object(**at, Body=b"1", Tagging="kept=1")
    many = "&".join(f"key{n}=" for n in range(11))
    assert refused(s3.put_object, **at, Body=b"2", Tagging=many) == (400, "BadRequest")
    for keys in (["same", "same"], ["x" * 129]):
        said = {"TagSet": [{"Key": key, "Value": "v"} for key in keys]}
        assert refused(s3.put_object_tagging, **at, Tagging=said) == (400, "InvalidTag")
    assert s3.get_object(**at)["Body"].read() == b"1" and s3.head_object(**at)["TagCount"] == 1
    assert refused(s3.get_object_tagging, Bucket=bucket, Key="none") == (404, "NoSuchKey")


def test_a_policy_allows_tags_apart_from_objects() -> None:
    statement = {"Effect": "Allow", "Resource": "*",
                 "Action": ["s3:PutObject", "s3:GetObject", "s3:GetObjectTagging"]}  # fmt: skip
    policy = read_policy([json.dumps({"Statement": [statement]})])
    with Emulator(policy=policy) as server:
        s3, at = client_of(server.s3), {"Bucket": "lake", "Key": "tagged"}
        version = s3.put_object(**at, Body=b"1")["VersionId"]
        assert s3.get_object_tagging(**at)["TagSet"] == []
        said = {"TagSet": [{"Key": "a", "Value": "b"}]}
        for forbidden in (
            lambda: s3.put_object(**at, Body=b"2", Tagging="a=b"),
            lambda: s3.put_object_tagging(**at, Tagging=said),
            lambda: s3.get_object_tagging(**at, VersionId=version),
        ):
            assert refused(forbidden) == (403, "AccessDenied")
