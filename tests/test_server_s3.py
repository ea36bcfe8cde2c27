"""S3 as its clients use it beside plain objects: parts that are copied, tags, signed links."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from lockkit.clock import Clock
from lockkit.lab.server import Credentials, Emulator
from lockkit.lab.server.policy import read_policy

PART_BYTES = 5 << 20
BODY = bytes(range(256)) * (2 * PART_BYTES // 256) + b"end"


def client_of(url: str, key: str = "any", secret: str = "thing") -> Any:
    return boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}, signature_version="s3v4"),
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


@pytest.fixture(scope="module")
def signed() -> Iterator[Any]:
    """A server that wants signatures, a client that has the key, and the time of day to turn."""
    clock = ShiftedClock()
    with Emulator(credentials=Credentials("id", "secret"), clock=clock) as server:
        yield server, client_of(server.s3, "id", "secret"), clock


class ShiftedClock(Clock):
    """The real time, and some seconds more."""

    later_s = 0.0

    def stamp_ms(self) -> float:
        return super().stamp_ms() + 1000 * self.later_s


def fetch(url: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """A link is used without the SDK that made it."""
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    method = "GET" if body is None else "PUT"
    try:
        with urlopen(Request(url, data=body, method=method, headers=said)) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()


def test_a_presigned_link_reads_and_writes_until_it_expires(signed: Any) -> None:
    _server, s3, clock = signed
    at = {"Bucket": "lake", "Key": "a b/ü+1"}
    put = s3.generate_presigned_url("put_object", at, ExpiresIn=60)
    assert fetch(put, b"by link")[0] == 200
    get = s3.generate_presigned_url("get_object", at, ExpiresIn=60)
    assert fetch(get) == (200, b"by link")
    clock.later_s = 61
    status, text = fetch(get)
    assert status == 403 and b"Request has expired" in text
    assert fetch(put, b"too late")[0] == 403
    clock.later_s = 0
    assert s3.get_object(**at)["Body"].read() == b"by link"


def test_a_presigned_link_permits_only_the_signed_request(signed: Any) -> None:
    server, s3, _clock = signed
    at = {"Bucket": "lake", "Key": "signed"}
    put = s3.generate_presigned_url("put_object", at | {"ContentType": "text/plain"})
    assert b"SignatureDoesNotMatch" in fetch(put, b"1", Content_Type="text/html")[1]
    assert fetch(put, b"1", Content_Type="text/plain", X_Unsigned="fine")[0] == 200
    get = s3.generate_presigned_url("get_object", at)
    assert fetch(get)[0] == 200 and fetch(get, b"2")[0] == 403
    assert fetch(get.replace("signed?", "other?"))[0] == 403
    assert fetch(get + "&versionId=1")[0] == 403
    assert fetch(get.replace("Expires=3600", "Expires=604801"))[0] == 400
    other = client_of(server.s3, "id", "wrong").generate_presigned_url("get_object", at)
    assert b"SignatureDoesNotMatch" in fetch(other)[1]
    assert s3.get_object(**at)["Body"].read() == b"1"
    second = f"{server.s3}/lake/signed?AWSAccessKeyId=id&Signature=x&Expires=9999999999"
    assert b"Please use AWS4-HMAC-SHA256" in fetch(second)[1]


def test_metadata_with_an_underscore_is_signed_as_well(signed: Any) -> None:
    _server, s3, _clock = signed
    s3.put_object(Bucket="lake", Key="k", Body=b"1", Metadata={"a_b": "c"})
    assert s3.head_object(Bucket="lake", Key="k")["Metadata"] == {"a_b": "c"}


def test_a_read_says_which_headers_its_answer_has(s3: Any, bucket: str) -> None:
    at = {"Bucket": bucket, "Key": "page"}
    s3.put_object(**at, Body=b"1", ContentType="text/plain")
    wanted = {"ResponseContentType": "text/csv", "ResponseCacheControl": "no-store",
              "ResponseContentDisposition": 'attachment; filename="a b.txt"'}  # fmt: skip
    got = s3.get_object(**at, **wanted)
    assert {f"Response{name}": got[name] for name in (
        "ContentType", "CacheControl", "ContentDisposition")} == wanted  # fmt: skip
    assert s3.get_object(**at)["ContentType"] == "text/plain"


def test_the_checksum_of_a_write_comes_back_with_a_head_and_a_read(s3: Any, bucket: str) -> None:
    at, asked = {"Bucket": bucket, "Key": "k"}, {"ChecksumMode": "ENABLED"}
    known = "uU0nuZNNPgilLlLX2n2r+sSE7+N6U4DukIj3rOLvzek="  # printf 'hello world' | sha256sum
    put = s3.put_object(**at, Body=b"hello world", ChecksumAlgorithm="SHA256")
    assert put["ChecksumSHA256"] == known
    for got in (s3.head_object(**at, **asked), s3.get_object(**at, **asked)):
        assert got["ChecksumSHA256"] == known and got["ChecksumType"] == "FULL_OBJECT"
    assert "ChecksumSHA256" not in s3.get_object(**at, **asked, Range="bytes=0-1")
    s3.copy_object(Bucket=bucket, Key="copy", CopySource=at, MetadataDirective="REPLACE")
    copied = s3.head_object(Bucket=bucket, Key="copy", **asked)
    assert copied["ChecksumSHA256"] == known
    s3.put_object(**at, Body=b"1")
    assert "ChecksumCRC32" in s3.head_object(**at, **asked), "boto3 sends it unasked"


def test_an_upload_is_aborted_again_without_an_error_and_without_effect(
    s3: Any, bucket: str
) -> None:
    at = {"Bucket": bucket, "Key": "aborted"}
    upload = {**at, "UploadId": s3.create_multipart_upload(**at)["UploadId"]}
    s3.upload_part(**upload, PartNumber=1, Body=b"x")
    for _ in range(2):
        s3.abort_multipart_upload(**upload)
    gone = (404, "NoSuchUpload")
    assert refused(s3.upload_part, **upload, PartNumber=1, Body=b"x") == gone
    assert refused(s3.list_parts, **upload) == gone
    assert refused(s3.abort_multipart_upload, **{**upload, "UploadId": "s3-never"}) == gone
    assert refused(s3.abort_multipart_upload, **{**upload, "Key": "another"}) == gone

    done = {**at, "UploadId": s3.create_multipart_upload(**at)["UploadId"]}
    tag = s3.upload_part(**done, PartNumber=1, Body=b"y")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": tag}]}
    assert refused(s3.complete_multipart_upload, **upload, MultipartUpload=parts) == gone
    first = s3.complete_multipart_upload(**done, MultipartUpload=parts)["VersionId"]
    s3.abort_multipart_upload(**done)
    assert s3.complete_multipart_upload(**done, MultipartUpload=parts)["VersionId"] == first
    assert s3.get_object(**at)["Body"].read() == b"y"
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)


def started(s3: Any, bucket: str, *keys: str) -> list[str]:
    return [s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"] for key in keys]


def test_uploads_under_way_are_listed_in_pages(s3: Any, bucket: str) -> None:
    before = datetime.now(UTC) - timedelta(seconds=2)
    ids = started(s3, bucket, "b", "a+ /ü", "b", "c/1", "c/2", "b", "d")
    keys = ["b", "a+ /ü", "b", "c/1", "c/2", "b", "d"]
    expected = sorted(zip(keys, ids, strict=True), key=lambda each: each[0])  # then by their start
    for size in (1, 2, 3, 7, 1000):
        seen, marks = [], {}
        for _ in range(10):
            page = s3.list_multipart_uploads(Bucket=bucket, MaxUploads=size, **marks)
            assert page["MaxUploads"] == size and page["Bucket"] == bucket
            assert 1 <= len(page["Uploads"]) <= size
            seen += [(each["Key"], each["UploadId"]) for each in page["Uploads"]]
            assert all(each["Initiated"] > before for each in page["Uploads"])
            if not page["IsTruncated"]:
                break
            marks = {"KeyMarker": page["NextKeyMarker"],
                     "UploadIdMarker": page["NextUploadIdMarker"]}  # fmt: skip
            assert (marks["KeyMarker"], marks["UploadIdMarker"]) == seen[-1]
        assert seen == expected
    paginator = s3.get_paginator("list_multipart_uploads")
    pages = paginator.paginate(Bucket=bucket, PaginationConfig={"PageSize": 2})
    assert [each["UploadId"] for page in pages for each in page["Uploads"]] == [
        upload for _, upload in expected
    ]


def test_a_marker_of_a_key_skips_its_uploads_and_is_what_an_uploads_marker_needs(
    s3: Any, bucket: str
) -> None:
    ids = started(s3, bucket, "b", "b", "c")

    def listed(**how: str) -> list[str]:
        page = s3.list_multipart_uploads(Bucket=bucket, **how)
        return [each["UploadId"] for each in page.get("Uploads", [])]

    assert listed(KeyMarker="b") == ids[2:]
    assert listed(KeyMarker="b", UploadIdMarker=ids[0]) == ids[1:]
    assert listed(UploadIdMarker=ids[1]) == ids, "without a key's marker it has no effect"
    assert listed(KeyMarker="c") == []


def test_uploads_below_a_delimiter_are_one_prefix(s3: Any, bucket: str) -> None:
    started(s3, bucket, "x/a/1", "x/a/2", "x/b", "x/c/1", "y")
    how = {"Bucket": bucket, "Prefix": "x/", "Delimiter": "/"}
    whole = s3.list_multipart_uploads(**how)
    assert [each["Prefix"] for each in whole["CommonPrefixes"]] == ["x/a/", "x/c/"]
    assert [each["Key"] for each in whole["Uploads"]] == ["x/b"]
    first = s3.list_multipart_uploads(**how, MaxUploads=1)
    assert first["IsTruncated"] and first["NextKeyMarker"] == "x/a/" and "Uploads" not in first
    rest = s3.list_multipart_uploads(**how, KeyMarker=first["NextKeyMarker"])
    assert [each["Key"] for each in rest["Uploads"]] == ["x/b"]
    assert [each["Prefix"] for each in rest["CommonPrefixes"]] == ["x/c/"]


def test_the_parts_of_an_upload_are_listed_in_pages(s3: Any, bucket: str) -> None:
    at = {"Bucket": bucket, "Key": "big", "UploadId": started(s3, bucket, "big")[0]}
    numbers = [1, 2, 5, 7, 10_000]
    for number in numbers:
        s3.upload_part(**at, PartNumber=number, Body=b"x")
    first = s3.list_parts(**at, MaxParts=2)
    assert [each["PartNumber"] for each in first["Parts"]] == [1, 2]
    assert first["IsTruncated"] and first["NextPartNumberMarker"] == 2 and first["MaxParts"] == 2
    pages = s3.get_paginator("list_parts").paginate(**at, PaginationConfig={"PageSize": 2})
    assert [each["PartNumber"] for page in pages for each in page["Parts"]] == numbers
    assert "Parts" not in s3.list_parts(**at, PartNumberMarker=10_000)
    for wrong in ({"MaxParts": -1}, {"PartNumberMarker": -1}):
        assert refused(s3.list_parts, **at, **wrong) == (400, "InvalidArgument")
    assert refused(s3.list_multipart_uploads, Bucket=bucket, MaxUploads=-1) == (
        400, "InvalidArgument",
    )  # fmt: skip


def test_parts_have_a_checksum_of_their_checksums(s3: Any, bucket: str) -> None:
    at = {"Bucket": bucket, "Key": "parts"}
    started = s3.create_multipart_upload(**at, ChecksumAlgorithm="SHA256")
    upload = {**at, "UploadId": started["UploadId"]}
    bodies = [b"a" * PART_BYTES, b"b"]
    parts = []
    for number, body in enumerate(bodies, 1):
        done = s3.upload_part(**upload, PartNumber=number, Body=body, ChecksumAlgorithm="SHA256")
        sums = {name: done[name] for name in ("ETag", "ChecksumSHA256")}
        parts.append({"PartNumber": number, **sums})
    digests = b"".join(hashlib.sha256(each).digest() for each in bodies)
    whole = base64.b64encode(hashlib.sha256(digests).digest()).decode() + "-2"
    named = {"MultipartUpload": {"Parts": parts}}
    assert refused(
        s3.complete_multipart_upload, **upload, **named, ChecksumSHA256=f"{'A' * 43}=-2"
    ) == (400, "BadDigest")
    done = s3.complete_multipart_upload(**upload, **named, ChecksumSHA256=whole)
    head = s3.head_object(**at, ChecksumMode="ENABLED")
    assert done["ChecksumSHA256"] == head["ChecksumSHA256"] == whole
    assert head["ChecksumType"] == "COMPOSITE"
    assert s3.get_object(**at, ChecksumMode="ENABLED")["Body"].read() == b"".join(bodies)


def test_an_upload_in_parts_may_have_the_checksum_of_the_whole(s3: Any, bucket: str) -> None:
    at = {"Bucket": bucket, "Key": "whole"}
    wanted = {**at, "ChecksumAlgorithm": "CRC32", "ChecksumType": "FULL_OBJECT"}
    upload = {**at, "UploadId": s3.create_multipart_upload(**wanted)["UploadId"]}
    tag = s3.upload_part(**upload, PartNumber=1, Body=b"body")["ETag"]
    right, wrong = (
        base64.b64encode(zlib.crc32(each).to_bytes(4, "big")).decode() for each in (b"body", b"x")
    )
    upload |= {"MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": tag}]},
               "ChecksumType": "FULL_OBJECT"}  # fmt: skip
    assert refused(s3.complete_multipart_upload, **upload, ChecksumCRC32=wrong)[1] == "BadDigest"
    s3.complete_multipart_upload(**upload, ChecksumCRC32=right)
    head = s3.head_object(**at, ChecksumMode="ENABLED")
    assert (head["ChecksumCRC32"], head["ChecksumType"]) == (right, "FULL_OBJECT")
