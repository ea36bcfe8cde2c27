"""`lockkit serve --strict-buckets`: what the SDKs are told of a bucket that nobody made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import obstore
import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.storage.blob import BlobServiceClient
from botocore.config import Config
from botocore.exceptions import ClientError
from google.api_core.exceptions import NotFound
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from obstore.store import GCSStore, S3Store

from lockkit.lab.server import Emulator


@pytest.fixture(scope="module")
def strict() -> Iterator[Emulator]:
    with Emulator(strict_buckets=True) as server:
        yield server


def s3_client(server: Emulator) -> Any:
    return boto3.client(
        "s3", endpoint_url=server.s3, region_name="us-east-1", aws_access_key_id="a",
        aws_secret_access_key="b", config=Config(retries={"total_max_attempts": 1}),
    )  # fmt: skip


def refused(error: type[Exception], call: Callable[[], Any]) -> Any:
    with pytest.raises(error) as caught:
        call()
    return caught.value


def test_s3_refuses_every_request_to_a_missing_bucket(strict: Emulator, bucket: str) -> None:
    s3, at = s3_client(strict), {"Bucket": bucket, "Key": "k"}
    made = f"{bucket}-made"
    s3.create_bucket(Bucket=made)
    for call in (
        lambda: s3.put_object(**at, Body=b"1"), lambda: s3.get_object(**at),
        lambda: s3.delete_object(**at), lambda: s3.create_multipart_upload(**at),
        lambda: s3.list_objects_v2(Bucket=bucket), lambda: s3.delete_bucket(Bucket=bucket),
        lambda: s3.copy_object(Bucket=made, Key="k", CopySource=at),
    ):  # fmt: skip
        assert refused(ClientError, call).response["Error"]["Code"] == "NoSuchBucket"
    missing = refused(ClientError, lambda: s3.head_bucket(Bucket=bucket))
    assert missing.response["ResponseMetadata"]["HTTPStatusCode"] == 404
    s3.put_object(Bucket=made, Key="k", Body=b"1")
    s3.delete_object(Bucket=made, Key="k")
    s3.delete_bucket(Bucket=made)
    assert [each["Name"] for each in s3.list_buckets()["Buckets"]] == []


def test_gcs_refuses_every_request_to_a_missing_bucket(strict: Emulator, bucket: str) -> None:
    client = storage.Client(
        project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": strict.gcs}
    )
    place, made = client.bucket(bucket), client.create_bucket(f"{bucket}-made")
    one = made.blob("one")
    one.upload_from_string(b"1")
    for call in (
        lambda: place.blob("k").upload_from_string(b"1", retry=None),
        lambda: place.blob("k").download_as_bytes(retry=None),
        lambda: list(client.list_blobs(bucket)), lambda: client.get_bucket(bucket),
        lambda: made.copy_blob(one, place, "k"),
    ):  # fmt: skip
        assert "bucket does not exist" in str(refused(NotFound, call))
    account = {"gcs_base_url": strict.gcs, "disable_oauth": True, "client_email": "",
               "private_key": "", "private_key_id": ""}  # fmt: skip
    rust = GCSStore(bucket, config={"service_account_key": json.dumps(account)})
    assert "NoSuchBucket" in str(refused(FileNotFoundError, lambda: obstore.put(rust, "k", b"1")))
    made.delete(force=True)
    assert not made.exists()


def test_azure_refuses_every_request_to_a_missing_container(strict: Emulator, bucket: str) -> None:
    account = BlobServiceClient(f"{strict.azure}/account", retry_total=0)
    place = account.get_container_client(bucket)
    for call in (
        lambda: place.upload_blob("k", b"1"), lambda: place.download_blob("k"),
        lambda: list(place.list_blobs()), place.get_container_properties, place.delete_container,
    ):  # fmt: skip
        assert refused(ResourceNotFoundError, call).error_code == "ContainerNotFound"
    place.create_container()
    place.upload_blob("k", b"1")
    place.delete_container()
    assert not place.exists()


def test_object_store_takes_a_missing_bucket_for_something_not_found(
    strict: Emulator, bucket: str
) -> None:
    rust = S3Store(
        bucket, endpoint=strict.s3, access_key_id="a", secret_access_key="b", region="us-east-1",
        client_options={"allow_http": True},
    )  # fmt: skip
    refused(FileNotFoundError, lambda: obstore.put(rust, "k", b"1"))
    refused(FileNotFoundError, lambda: obstore.get(rust, "k"))
    s3_client(strict).create_bucket(Bucket=bucket)
    obstore.put(rust, "k", b"1")
    assert obstore.get(rust, "k").bytes() == b"1"
