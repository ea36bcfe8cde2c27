"""How others take a lock on an object store, request by request, through the same boto3.

Each shape is written from its source or its RFC (Hudi's StorageBasedLockProvider reads, then writes
twice; Terraform creates, reads and deletes). All with SDK retries off, as Hudi has them.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

KEY = "orders/.hoodie/.locks/table_lock.json"


def client(endpoint: str, name: str = "") -> Any:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="lockkit",
        aws_secret_access_key="lockkit",
        config=Config(
            retries={"mode": "standard", "total_max_attempts": 1},
            s3={"addressing_style": "path"},
            user_agent_extra=f"lockkit-client/{name}" if name else None,
        ),
    )


def body(owner: str, *, expired: bool) -> bytes:
    until = int(time.time() * 1000) + 60_000
    fields = {"expired": expired, "validUntil": until, "owner": owner, "n": uuid.uuid4().hex}
    return json.dumps(fields).encode()


class TwoPuts:
    """The floor: two bare PUTs with If-Match, nobody else there."""

    def __init__(self, endpoint: str, bucket: str, name: str) -> None:
        self.s3, self.bucket = client(endpoint, name), bucket
        answer = self.s3.put_object(Bucket=bucket, Key=KEY, Body=body("", expired=True))
        self.etag = answer["ETag"]

    def _put(self, *, expired: bool) -> None:
        answer = self.s3.put_object(
            Bucket=self.bucket, Key=KEY, Body=body("me", expired=expired), IfMatch=self.etag
        )
        self.etag = answer["ETag"]

    def acquire(self) -> None:
        self._put(expired=False)

    def release(self) -> None:
        self._put(expired=True)


class Hudi:
    """GET, PUT if unchanged, PUT if unchanged; waiters poll after uniform(0, 100) ms.

    (Hudi itself sleeps a flat second between tries; this poll is kinder.)
    """

    def __init__(self, endpoint: str, bucket: str, name: str) -> None:
        self.s3, self.bucket, self.etag = client(endpoint, name), bucket, ""

    def _try(self) -> bool:
        try:
            found = self.s3.get_object(Bucket=self.bucket, Key=KEY)
            fields, condition = json.load(found["Body"]), {"IfMatch": found["ETag"]}
            if not fields["expired"] and fields["validUntil"] + 500 > time.time() * 1000:
                return False
        except ClientError as error:
            if error.response["Error"]["Code"] not in ("NoSuchKey", "404"):
                raise
            condition = {"IfNoneMatch": "*"}
        try:
            answer = self.s3.put_object(
                Bucket=self.bucket, Key=KEY, Body=body("me", expired=False), **condition
            )
        except ClientError:
            return False
        self.etag = answer["ETag"]
        return True

    def acquire(self) -> None:
        while not self._try():
            time.sleep(random.uniform(0, 0.1))

    def release(self) -> None:
        self.s3.put_object(
            Bucket=self.bucket, Key=KEY, Body=body("me", expired=True), IfMatch=self.etag
        )


class Terraform:
    """PUT if absent, GET, DELETE; waiters poll after uniform(0, 100) ms (Terraform: 1 to 16 s)."""

    def __init__(self, endpoint: str, bucket: str, name: str) -> None:
        self.s3, self.bucket, self.key = client(endpoint, name), bucket, KEY + ".tflock"

    def acquire(self) -> None:
        while True:
            try:
                self.s3.put_object(
                    Bucket=self.bucket, Key=self.key, Body=b'{"ID":"1"}', IfNoneMatch="*"
                )
                return
            except ClientError:
                time.sleep(random.uniform(0, 0.1))

    def release(self) -> None:
        self.s3.get_object(Bucket=self.bucket, Key=self.key)["Body"].read()
        self.s3.delete_object(Bucket=self.bucket, Key=self.key)


class Lockkit:
    """lockkit's own Lock, as a user gets it."""

    def __init__(self, endpoint: str, bucket: str, name: str) -> None:
        from lockkit import Lock

        self.lock = Lock(
            f"s3://{bucket}/orders", endpoint=endpoint, ttl_s=10, renew_interval_s=1, client=name
        )

    def acquire(self) -> None:
        assert self.lock.acquire()

    def release(self) -> None:
        self.lock.release()


SHAPES: dict[str, type[Any]] = {
    "two bare PUTs": TwoPuts,
    "lockkit": Lockkit,
    "Hudi's shape (GET, PUT, PUT)": Hudi,
    "Terraform's shape (PUT, GET, DELETE)": Terraform,
}
