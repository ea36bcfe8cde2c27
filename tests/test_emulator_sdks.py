"""Each dialect, as the real SDKs speak it: the status, the code and the bytes of every answer."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

KEYS = [
    "a/1", "a/2", "a/b/3", "b", "c/4", "ü/ß €", "x y+z%2F&=?#", "..", "dots/../up", "line\nbreak",
]  # fmt: skip
BIG = bytes(range(256)) * 40_000  # 10 MB


# --- S3 ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3(shared_emulator: Any) -> Iterator[Any]:
    boto3 = pytest.importorskip("boto3")
    from botocore.config import Config

    client = boto3.client(
        "s3", endpoint_url=shared_emulator.s3, region_name="us-east-1",
        aws_access_key_id="any", aws_secret_access_key="thing",
        config=Config(retries={"total_max_attempts": 1}),
    )  # fmt: skip
    yield client
    client.close()


def refused(call: Callable[..., Any], **arguments: Any) -> tuple[int, str]:
    """(status, error code) of a boto3 call that must fail."""
    from botocore.exceptions import ClientError

    with pytest.raises(ClientError) as caught:
        call(**arguments)
    answer = caught.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]


def test_s3_conditional_writes_answer_as_amazon_documents(s3: Any, bucket: str) -> None:
    at = {"Bucket": bucket, "Key": "lock"}
    first = s3.put_object(**at, Body=b"1", IfNoneMatch="*")
    assert refused(s3.put_object, **at, Body=b"2", IfNoneMatch="*") == (412, "PreconditionFailed")
    second = s3.put_object(**at, Body=b"2", IfMatch=first["ETag"])
    assert refused(s3.put_object, **at, Body=b"3", IfMatch=first["ETag"]) == (
        412, "PreconditionFailed",
    )  # fmt: skip
    missing = {"Bucket": bucket, "Key": "missing"}
    assert refused(s3.put_object, **missing, Body=b"", IfMatch='"0"') == (404, "NoSuchKey")
    assert refused(s3.get_object, **missing) == (404, "NoSuchKey")
    assert refused(s3.get_object, **at, IfNoneMatch=second["ETag"]) == (304, "304")
    assert refused(s3.get_object, **at, IfMatch=first["ETag"])[0] == 412
    assert refused(s3.delete_object, **at, IfMatch=first["ETag"]) == (412, "PreconditionFailed")
    assert s3.get_object(**at)["Body"].read() == b"2"
    s3.delete_object(**at, IfMatch=second["ETag"])
    s3.delete_object(**at)
    assert refused(s3.head_object, **at)[0] == 404
    s3.put_object(**at, Body=b"again", IfNoneMatch="*")  # a delete marker counts as absent


def test_s3_hands_back_every_key_and_its_bytes(s3: Any, bucket: str) -> None:
    for key in KEYS:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode(), Metadata={"who": "me"})
    for key in KEYS:
        got = s3.get_object(Bucket=bucket, Key=key)
        assert got["Body"].read() == key.encode() and got["Metadata"] == {"who": "me"}
        assert got["LastModified"] is not None
    listed = s3.list_objects_v2(Bucket=bucket)
    assert [each["Key"] for each in listed["Contents"]] == sorted(KEYS)


def test_s3_listings_page_by_key_and_roll_up_at_a_delimiter(s3: Any, bucket: str) -> None:
    for key in KEYS:
        s3.put_object(Bucket=bucket, Key=key, Body=b".")
    for operation in ("list_objects_v2", "list_objects"):
        pages = s3.get_paginator(operation).paginate(
            Bucket=bucket, Delimiter="/", PaginationConfig={"PageSize": 2}
        )
        pages = list(pages)
        assert all(
            len(page.get("Contents", [])) + len(page.get("CommonPrefixes", [])) <= 2
            for page in pages
        )
        keys = [each["Key"] for page in pages for each in page.get("Contents", [])]
        rolled = [each["Prefix"] for page in pages for each in page.get("CommonPrefixes", [])]
        assert keys == sorted(key for key in KEYS if "/" not in key)
        assert rolled == ["a/", "c/", "dots/", "ü/"]
    behind = s3.list_objects_v2(Bucket=bucket, StartAfter="a/2", Prefix="a/")
    assert [each["Key"] for each in behind["Contents"]] == ["a/b/3"]
    inside = s3.list_objects_v2(Bucket=bucket, Prefix="a/", Delimiter="/")
    assert [each["Prefix"] for each in inside["CommonPrefixes"]] == ["a/b/"]
    assert s3.list_objects_v2(Bucket=bucket, MaxKeys=0)["KeyCount"] == 0
    assert "Contents" not in s3.list_objects_v2(Bucket=f"{bucket}-never-seen")


def test_s3_reads_ranges(s3: Any, bucket: str) -> None:
    at = {"Bucket": bucket, "Key": "digits"}
    s3.put_object(**at, Body=b"0123456789")
    for span, expected in {
        "bytes=2-4": b"234", "bytes=7-": b"789", "bytes=-3": b"789", "bytes=8-99": b"89",
        "bytes=0-1,4-5": b"0123456789", "lines=1-2": b"0123456789",
    }.items():  # fmt: skip
        assert s3.get_object(**at, Range=span)["Body"].read() == expected
    for behind in ("bytes=10-", f"bytes={'9' * 30}-"):
        assert refused(s3.get_object, **at, Range=behind) == (416, "InvalidRange")
    assert s3.get_object(**at, Range="bytes=2-4")["ContentRange"] == "bytes 2-4/10"
    head = s3.head_object(**at)
    assert head["ContentLength"] == 10 and head["ETag"] == '"781e5e245d69b566979b86e28d23f2c7"'


def test_s3_reads_by_date(s3: Any, bucket: str) -> None:
    from datetime import timedelta

    at = {"Bucket": bucket, "Key": "dated"}
    s3.put_object(**at, Body=b"x")
    changed = s3.head_object(**at)["LastModified"]
    hour = timedelta(hours=1)
    assert refused(s3.get_object, **at, IfModifiedSince=changed)[0] == 304
    assert refused(s3.get_object, **at, IfUnmodifiedSince=changed - hour)[0] == 412
    assert s3.get_object(**at, IfModifiedSince=changed - hour)["Body"].read() == b"x"
    assert s3.get_object(**at, IfUnmodifiedSince=changed)["Body"].read() == b"x"


def test_s3_multipart_is_judged_when_it_is_completed(s3: Any, bucket: str) -> None:
    at = {"Bucket": bucket, "Key": "big"}
    upload = {**at, "UploadId": s3.create_multipart_upload(**at, Metadata={"m": "1"})["UploadId"]}
    tags = [
        s3.upload_part(**upload, PartNumber=number, Body=BIG[start : start + 5_242_880])["ETag"]
        for number, start in enumerate(range(0, len(BIG), 5_242_880), 1)
    ]
    assert [part["ETag"] for part in s3.list_parts(**upload)["Parts"]] == tags
    listed = s3.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [each["Key"] for each in listed] == ["big"]
    assert refused(s3.head_object, **at)[0] == 404
    s3.put_object(**at, Body=b"quicker")
    parts = {"Parts": [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(tags, 1)]}
    assert refused(
        s3.complete_multipart_upload, **upload, MultipartUpload=parts, IfNoneMatch="*"
    ) == (412, "PreconditionFailed")
    s3.delete_object(**at)
    done = s3.complete_multipart_upload(**upload, MultipartUpload=parts, IfNoneMatch="*")
    assert done["ETag"].endswith('-2"')
    got = s3.get_object(**at)
    assert got["Body"].read() == BIG and got["Metadata"] == {"m": "1"}
    again = s3.complete_multipart_upload(**upload, MultipartUpload=parts)
    assert again["VersionId"] == done["VersionId"]  # its answer may have been lost
    fewer = {"Parts": parts["Parts"][:1]}
    assert refused(s3.complete_multipart_upload, **upload, MultipartUpload=fewer) == (
        400, "InvalidPart",
    )  # fmt: skip
    assert refused(s3.upload_part, **upload, PartNumber=1, Body=b"")[1] == "NoSuchUpload"
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)
    other = {**at, "UploadId": s3.create_multipart_upload(**at)["UploadId"]}
    s3.abort_multipart_upload(**other)
    assert refused(s3.upload_part, **other, PartNumber=1, Body=b"")[1] == "NoSuchUpload"


def test_s3_multipart_refuses_parts_that_were_not_uploaded(s3: Any, bucket: str) -> None:
    at = {"Bucket": bucket, "Key": "holes"}
    upload = {**at, "UploadId": s3.create_multipart_upload(**at)["UploadId"]}
    tag = s3.upload_part(**upload, PartNumber=1, Body=b"x")["ETag"]

    def complete(*parts: tuple[int, str]) -> tuple[int, str]:
        named = {"Parts": [{"PartNumber": n, "ETag": each} for n, each in parts]}
        return refused(s3.complete_multipart_upload, **upload, MultipartUpload=named)

    assert complete((1, tag), (2, tag)) == (400, "InvalidPart")
    assert complete((1, '"00000000000000000000000000000000"')) == (400, "InvalidPart")
    s3.upload_part(**upload, PartNumber=2, Body=b"x")
    assert complete((2, tag), (1, tag)) == (400, "InvalidPartOrder")
    assert complete((1, tag), (2, tag)) == (400, "EntityTooSmall")


def test_s3_copies_and_bulk_deletes(s3: Any, bucket: str) -> None:
    for key in ("one", "two/ü"):
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode(), Metadata={"k": "v"})
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "two/ü"})
    got = s3.get_object(Bucket=bucket, Key="copy")
    assert got["Body"].read() == "two/ü".encode() and got["Metadata"] == {"k": "v"}
    tag = s3.head_object(Bucket=bucket, Key="one")["ETag"]
    answer = s3.delete_objects(
        Bucket=bucket,
        Delete={"Objects": [
            {"Key": "one", "ETag": tag}, {"Key": "copy", "ETag": '"stale"'}, {"Key": "never"},
        ]},
    )  # fmt: skip
    assert {each["Key"] for each in answer["Deleted"]} == {"one", "never"}
    assert [(each["Key"], each["Code"]) for each in answer["Errors"]] == [
        ("copy", "PreconditionFailed")
    ]
    left = s3.list_objects_v2(Bucket=bucket)["Contents"]
    assert [each["Key"] for each in left] == ["copy", "two/ü"]


def test_s3_keeps_every_version(s3: Any, bucket: str) -> None:
    at = {"Bucket": bucket, "Key": "lock"}
    for body in (b"1", b"2", b"3"):
        s3.put_object(**at, Body=body)
    s3.delete_object(**at)
    listed = s3.list_object_versions(Bucket=bucket, Prefix="lock")
    assert [each["IsLatest"] for each in listed["DeleteMarkers"]] == [True]
    bodies = [
        s3.get_object(**at, VersionId=each["VersionId"])["Body"].read()
        for each in listed["Versions"]
    ]
    assert bodies == [b"3", b"2", b"1"]
    pages = s3.get_paginator("list_object_versions").paginate(
        Bucket=bucket, PaginationConfig={"PageSize": 1}
    )
    assert sum(len(page.get("Versions", [])) for page in pages) == 3
    assert s3.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"


def test_s3_bodies_with_trailers_are_unpacked_and_their_checksums_verified(
    s3: Any, bucket: str
) -> None:
    at = {"Bucket": bucket, "Key": "trailer"}
    for algorithm in ("CRC32", "SHA1", "SHA256"):
        body = BIG[: 200_000 + len(algorithm)]
        s3.put_object(**at, Body=io.BytesIO(body), ChecksumAlgorithm=algorithm)
        assert s3.get_object(**at)["Body"].read() == body
    code = refused(s3.put_object, **at, Body=b"x", ChecksumCRC32="AAAAAA==")
    assert code == (400, "BadDigest")
    assert refused(s3.put_object, **at, Body=b"x", ContentMD5="AAAAAAAAAAAAAAAAAAAAAA==") == (
        400, "BadDigest",
    )  # fmt: skip


def test_s3_buckets_are_created_on_first_use_and_can_be_listed(s3: Any, bucket: str) -> None:
    s3.head_bucket(Bucket=bucket)
    s3.create_bucket(Bucket=bucket)
    assert bucket in [each["Name"] for each in s3.list_buckets()["Buckets"]]
    s3.put_object(Bucket=bucket, Key="k", Body=b"")
    assert refused(s3.delete_bucket, Bucket=bucket) == (409, "BucketNotEmpty")
    s3.delete_object(Bucket=bucket, Key="k")
    s3.delete_bucket(Bucket=bucket)
    assert s3.get_bucket_location(Bucket=bucket)["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_a_request_of_s3_that_this_server_does_not_have_is_a_501_that_names_it(
    s3: Any, bucket: str
) -> None:
    from botocore.exceptions import ClientError

    with pytest.raises(ClientError, match="policy") as caught:
        s3.put_bucket_policy(Bucket=bucket, Policy="{}")
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 501
    assert caught.value.response["Error"]["Code"] == "NotImplemented"
    s3.put_object(Bucket=bucket, Key="k", Body=b"")
    assert refused(s3.get_object_legal_hold, Bucket=bucket, Key="k") == (
        501, "NotImplemented",
    )  # fmt: skip
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"", IfNoneMatch='"tag"')[0] == 501


# --- Google Cloud Storage ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gcs(shared_emulator: Any) -> Iterator[Any]:
    storage = pytest.importorskip("google.cloud.storage")
    from google.auth.credentials import AnonymousCredentials

    client = storage.Client(
        project="p", credentials=AnonymousCredentials(),
        client_options={"api_endpoint": shared_emulator.gcs},
    )  # fmt: skip
    yield client
    client.close()


def gcs_refused(call: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[int, str]:
    """(status, reason) of a call that must fail, retries off."""
    from google.api_core.exceptions import GoogleAPICallError

    with pytest.raises(GoogleAPICallError) as caught:
        call(*arguments, **named, retry=None)
    reasons = [each.get("reason", "") for each in caught.value.errors]
    return int(caught.value.code), (reasons or [""])[0]


def test_gcs_generations_guard_every_write(gcs: Any, bucket: str) -> None:
    place = gcs.bucket(bucket)
    blob = place.blob("lock")
    blob.upload_from_string(b"1", if_generation_match=0, retry=None)
    first = blob.generation
    assert first > 1_600_000_000_000_000  # microseconds, as Google's are
    write = place.blob("lock").upload_from_string
    assert gcs_refused(write, b"2", if_generation_match=0)[0] == 412
    blob.upload_from_string(b"2", if_generation_match=first, retry=None)
    assert blob.generation > first
    assert gcs_refused(write, b"3", if_generation_match=first)[0] == 412
    missing = place.blob("missing")
    assert gcs_refused(missing.upload_from_string, b"", if_generation_match=first)[0] == 412
    assert gcs_refused(missing.download_as_bytes)[0] == 404
    assert gcs_refused(missing.reload) == (404, "notFound")
    assert gcs_refused(missing.delete) == (404, "notFound")
    read = place.blob("lock").download_as_bytes
    assert gcs_refused(read, if_generation_not_match=blob.generation)[0] == 304
    assert gcs_refused(read, if_generation_match=first)[0] == 412
    assert gcs_refused(place.blob("lock").delete, if_generation_match=first) == (
        412, "conditionNotMet",
    )  # fmt: skip
    assert read() == b"2"
    place.blob("lock").delete(if_generation_match=blob.generation)
    assert not place.blob("lock").exists()


def test_gcs_metadata_has_generations_of_its_own(gcs: Any, bucket: str) -> None:
    blob = gcs.bucket(bucket).blob("described")
    blob.metadata = {"Owner": "me"}
    blob.upload_from_string(b"x", content_type="text/plain")
    generation, before = blob.generation, blob.metageneration
    blob.metadata = {"Owner": "you", "more": "1"}
    blob.patch(if_metageneration_match=before)
    fresh = gcs.bucket(bucket).get_blob("described")
    assert fresh.metadata == {"Owner": "you", "more": "1"} and fresh.content_type == "text/plain"
    assert (fresh.generation, fresh.metageneration) == (generation, before + 1)
    assert gcs_refused(blob.patch, if_metageneration_match=before)[0] == 412
    assert gcs_refused(blob.upload_from_string, b"", if_metageneration_match=before)[0] == 412


def test_gcs_hands_back_every_key_in_pages(gcs: Any, bucket: str) -> None:
    place = gcs.bucket(bucket)
    for key in KEYS:
        place.blob(key).upload_from_string(key.encode())
    for key in KEYS:
        if key != "..":  # requests folds /../ away before it sends it
            assert place.blob(key).download_as_bytes() == key.encode()
    assert [blob.name for blob in place.list_blobs(page_size=3)] == sorted(KEYS)
    rolled = place.list_blobs(delimiter="/", page_size=2)
    assert [blob.name for blob in rolled] == sorted(key for key in KEYS if "/" not in key)
    assert rolled.prefixes == {"a/", "c/", "dots/", "ü/"}
    offset = place.list_blobs(start_offset="a/2", end_offset="c")
    assert [blob.name for blob in offset] == ["a/2", "a/b/3", "b"]
    assert place.blob("b").download_as_bytes(start=0, end=0) == b"b"


def test_gcs_resumable_uploads_arrive_in_chunks_and_are_guarded(gcs: Any, bucket: str) -> None:
    blob = gcs.bucket(bucket).blob("big")
    blob.chunk_size = 4 * 256 * 1024
    blob.upload_from_file(io.BytesIO(BIG), if_generation_match=0, size=len(BIG))
    assert gcs.bucket(bucket).blob("big").download_as_bytes() == BIG
    again = gcs.bucket(bucket).blob("big", chunk_size=1024 * 1024)
    assert gcs_refused(again.upload_from_file, io.BytesIO(BIG), if_generation_match=0)[0] == 412
    unsized = gcs.bucket(bucket).blob("stream")
    with unsized.open("wb", chunk_size=256 * 1024) as stream:
        stream.write(BIG[:700_000])
    assert unsized.download_as_bytes() == BIG[:700_000]


def test_a_gcs_resumable_upload_reports_its_progress(gcs: Any, bucket: str) -> None:
    http, base = gcs._http, gcs.api_endpoint
    started = http.post(
        f"{base}/upload/storage/v1/b/{bucket}/o?uploadType=resumable", json={"name": "slow"}
    )
    place = started.headers["Location"]

    def send(data: bytes, span: str) -> Any:
        return http.put(place, data=data, headers={"Content-Range": span}, allow_redirects=False)

    empty = send(b"", "bytes */*")
    assert empty.status_code == 308 and "Range" not in empty.headers
    assert send(b"a" * 10, "bytes 0-9/30").status_code == 308
    asked = send(b"", "bytes */30")
    assert (asked.status_code, asked.headers["Range"]) == (308, "bytes=0-9")
    overlapping = send(b"a" * 5 + b"b" * 10, "bytes 5-19/30")  # a resend after a lost answer
    assert overlapping.headers["Range"] == "bytes=0-19"
    done = send(b"c" * 10, "bytes 20-29/30")
    assert done.status_code == 200 and done.json()["size"] == "30"
    late = send(b"", "bytes */30")  # the answer was lost: ask again
    assert late.status_code == 200 and late.json()["generation"] == done.json()["generation"]
    assert gcs.bucket(bucket).blob("slow").download_as_bytes() == b"a" * 10 + b"b" * 10 + b"c" * 10


def test_gcs_copies_composes_and_deletes_in_batches(gcs: Any, bucket: str) -> None:
    place = gcs.bucket(bucket)
    for key in ("one", "two/ü"):
        place.blob(key).upload_from_string(key.encode())
    place.copy_blob(place.blob("two/ü"), place, "copied")
    token, _, _ = place.blob("rewritten").rewrite(place.blob("one"))
    assert token is None
    place.blob("joined").compose([place.blob("one"), place.blob("two/ü")])
    assert place.blob("copied").download_as_bytes() == "two/ü".encode()
    assert place.blob("joined").download_as_bytes() == "onetwo/ü".encode()
    missed: list[Any] = []
    place.delete_blobs(["one", "never", "copied"], on_error=missed.append)
    assert [each if isinstance(each, str) else each.name for each in missed] == ["never"]
    with gcs.batch():
        place.blob("joined").delete()
        place.blob("rewritten").delete()
    assert [blob.name for blob in place.list_blobs()] == ["two/ü"]


def test_gcs_keeps_every_generation(gcs: Any, bucket: str) -> None:
    place = gcs.bucket(bucket)
    blob = place.blob("lock")
    for body in (b"1", b"2", b"3"):
        blob.upload_from_string(body)
    listed = list(place.list_blobs(versions=True))
    kept = [place.blob("lock", generation=each.generation) for each in listed]
    assert [each.download_as_bytes() for each in kept] == [b"1", b"2", b"3"]
    assert [each.time_deleted is None for each in listed] == [False, False, True]
    assert listed[0].time_deleted <= listed[1].updated
    assert len(list(place.list_blobs(versions=True, page_size=1))) == 3


def test_gcs_bucket_is_there_and_what_is_not_built_is_a_501(gcs: Any, bucket: str) -> None:
    assert gcs.bucket(bucket).exists()
    gcs.create_bucket(bucket)
    assert bucket in [each.name for each in gcs.list_buckets()]
    assert gcs_refused(gcs.create_bucket, bucket)[0] == 409
    assert gcs_refused(gcs.bucket(bucket).get_iam_policy) == (501, "notImplemented")
    gcs.bucket(bucket).delete()


# --- Azure ---------------------------------------------------------------------------------------

ACCOUNT = "devstoreaccount1"
# Public: Microsoft's documentation names it for local servers.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.fixture(scope="module")
def azure(shared_emulator: Any) -> Iterator[Any]:
    blob = pytest.importorskip("azure.storage.blob")
    service = blob.BlobServiceClient(
        f"{shared_emulator.azure}/{ACCOUNT}",
        credential={"account_name": ACCOUNT, "account_key": KEY},
        retry_total=0,
        max_single_put_size=1 << 20,
        max_block_size=1 << 20,
    )
    yield service
    service.close()


def azure_refused(call: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[int, str]:
    from azure.core.exceptions import HttpResponseError

    with pytest.raises(HttpResponseError) as caught:
        call(*arguments, **named)
    assert caught.value.response is not None
    code = caught.value.response.headers.get("x-ms-error-code", "")
    return int(caught.value.status_code or 0), code


def unless_moved(etag: str) -> dict[str, Any]:
    from azure.core import MatchConditions

    return {"etag": etag, "match_condition": MatchConditions.IfNotModified}


def test_azure_etags_guard_every_write(azure: Any, bucket: str) -> None:
    from azure.core import MatchConditions

    blob = azure.get_blob_client(bucket, "lock")
    first = blob.upload_blob(b"1", overwrite=False)["etag"]
    assert azure_refused(blob.upload_blob, b"2", overwrite=False) == (409, "BlobAlreadyExists")
    second = blob.upload_blob(b"1", overwrite=True, **unless_moved(first))["etag"]
    assert second != first  # also for equal bytes
    stale = azure_refused(blob.upload_blob, b"3", overwrite=True, **unless_moved(first))
    assert stale == (412, "ConditionNotMet")
    missing = azure.get_blob_client(bucket, "missing")
    absent = azure_refused(missing.upload_blob, b"", overwrite=True, **unless_moved(first))
    assert absent == (412, "ConditionNotMet")
    assert azure_refused(missing.download_blob) == (404, "BlobNotFound")
    assert azure_refused(missing.delete_blob) == (404, "BlobNotFound")
    assert azure_refused(missing.delete_blob, **unless_moved(first)) == (412, "ConditionNotMet")
    changed = {"etag": second, "match_condition": MatchConditions.IfModified}
    assert azure_refused(blob.download_blob, **changed)[0] == 304
    assert azure_refused(blob.download_blob, **unless_moved(first)) == (412, "ConditionNotMet")
    assert azure_refused(blob.delete_blob, **unless_moved(first)) == (412, "ConditionNotMet")
    assert blob.download_blob().readall() == b"1"
    blob.delete_blob(**unless_moved(second))
    assert not blob.exists()


def test_azure_hands_back_every_name_in_pages(azure: Any, bucket: str) -> None:
    place = azure.get_container_client(bucket)
    names = [key for key in KEYS if ".." not in key]  # requests folds /../ before it sends
    for name in names:
        place.upload_blob(name, name.encode(), metadata={"who": "me"})
    for name in names:
        assert place.download_blob(name).readall() == name.encode()
    assert [blob.name for blob in place.list_blobs(results_per_page=3)] == sorted(names)
    rolled = [each.name for each in place.walk_blobs(delimiter="/", results_per_page=2)]
    assert sorted(rolled) == sorted(
        {"a/", "c/", "ü/"} | {name for name in names if "/" not in name}
    )
    listed = next(iter(place.list_blobs(include=["metadata"], name_starts_with="b")))
    assert listed.metadata == {"who": "me"} and listed.size == 1
    assert place.get_blob_client("b").get_blob_properties().metadata == {"who": "me"}


def test_azure_blocks_become_a_blob_when_the_list_is_put(azure: Any, bucket: str) -> None:
    from azure.storage.blob import BlobBlock

    blob = azure.get_blob_client(bucket, "big")
    blob.upload_blob(BIG, overwrite=False)  # ten blocks
    assert blob.download_blob(max_concurrency=1).readall() == BIG
    assert azure_refused(blob.upload_blob, BIG, overwrite=False)[0] == 409
    pieces = azure.get_blob_client(bucket, "pieces")
    for name in ("a1", "b1", "c1"):
        pieces.stage_block(name, name.encode())
    assert not pieces.exists()
    _, staged = pieces.get_block_list("all")
    assert sorted(each.id for each in staged) == ["a1", "b1", "c1"]
    pieces.commit_block_list([BlobBlock("b1"), BlobBlock("a1")])
    assert pieces.download_blob().readall() == b"b1a1"
    pieces.stage_block("d1", b"d1")
    pieces.commit_block_list([BlobBlock("a1"), BlobBlock("d1")])  # one old, one new
    assert pieces.download_blob().readall() == b"a1d1"
    assert azure_refused(pieces.commit_block_list, [BlobBlock("zz")]) == (400, "InvalidBlockList")


def test_azure_reads_ranges_and_empty_blobs(azure: Any, bucket: str) -> None:
    blob = azure.get_blob_client(bucket, "digits")
    blob.upload_blob(b"0123456789")
    assert blob.download_blob(offset=2, length=3).readall() == b"234"
    assert blob.download_blob(offset=7).readall() == b"789"
    assert azure_refused(blob.download_blob, offset=10, length=1) == (416, "InvalidRange")
    empty = azure.get_blob_client(bucket, "empty")
    empty.upload_blob(b"")
    assert empty.download_blob().readall() == b""


def test_azure_copies_describes_and_deletes_in_batches(azure: Any, bucket: str) -> None:
    place = azure.get_container_client(bucket)
    for name in ("one", "two"):
        place.upload_blob(name, name.encode(), metadata={"k": "v"})
    source = place.get_blob_client("two")
    copied = place.get_blob_client("copied")
    assert copied.start_copy_from_url(source.url)["copy_status"] == "success"
    assert copied.download_blob().readall() == b"two"
    assert copied.get_blob_properties().metadata == {"k": "v"}
    before = copied.get_blob_properties().etag
    copied.set_blob_metadata({"new": "1"})
    described = copied.get_blob_properties()
    assert described.metadata == {"new": "1"} and described.etag != before
    answers = list(place.delete_blobs("one", "never", "copied", raise_on_any_failure=False))
    assert [each.status_code for each in answers] == [202, 404, 202]
    assert [blob.name for blob in place.list_blobs()] == ["two"]


def test_azure_keeps_every_version(azure: Any, bucket: str) -> None:
    place = azure.get_container_client(bucket)
    for body in (b"1", b"2", b"3"):
        place.upload_blob("lock", body, overwrite=True)
    listed = list(place.list_blobs(include=["versions"], name_starts_with="lock"))
    blob = place.get_blob_client("lock")
    assert [blob.download_blob(version_id=each.version_id).readall() for each in listed] == [
        b"1", b"2", b"3",
    ]  # fmt: skip
    assert [bool(each.is_current_version) for each in listed] == [False, False, True]


def test_azure_containers_and_what_is_not_built(azure: Any, bucket: str) -> None:
    place = azure.get_container_client(bucket)
    assert place.exists()
    place.create_container()
    assert azure_refused(place.create_container) == (409, "ContainerAlreadyExists")
    assert bucket in [each.name for each in azure.list_containers()]
    blob = place.get_blob_client("k")
    assert azure_refused(blob.create_append_blob) == (501, "NotImplemented")
    blob.upload_blob(b"")
    assert azure_refused(place.acquire_lease)[0] == 501  # a container's; a blob's are here
    place.delete_container()
    assert not list(place.list_blobs())


# --- one room behind three doors -----------------------------------------------------------------


def test_an_object_written_in_one_dialect_is_read_in_the_others(
    s3: Any, gcs: Any, azure: Any, bucket: str
) -> None:
    s3.put_object(
        Bucket=bucket, Key="a", Body=json.dumps({"n": 1}), ContentType="application/json",
        Metadata={"who": "s3"},
    )  # fmt: skip
    through_gcs = gcs.bucket(bucket).get_blob("a")
    assert through_gcs.download_as_bytes() == b'{"n": 1}'
    assert through_gcs.content_type == "application/json"
    assert through_gcs.metadata == {"who": "s3"}
    blob = azure.get_blob_client(bucket, "a")
    properties = blob.get_blob_properties()
    assert properties.content_settings.content_type == "application/json"
    assert properties.metadata == {"who": "s3"}
    blob.upload_blob(b"2", overwrite=True, metadata={"who": "azure"})
    got = s3.get_object(Bucket=bucket, Key="a")
    assert got["Body"].read() == b"2" and got["Metadata"] == {"who": "azure"}
