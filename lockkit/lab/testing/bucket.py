"""A fresh bucket on the embedded server, and its settings for each client."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from functools import cached_property

from lockkit.lab.server import Emulator
from lockkit.lab.testing.faulty import CaseProxy, FaultScript
from lockkit.stores.development import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY

REGION, ACCESS_KEY = "us-east-1", "any"
_NUMBERS = itertools.count(1)


class EmbeddedBucket:
    """`s3`, `gcs` and `azure` are addresses, through the faults if there are any; `name` is the
    bucket (or container), unlike that of every other run, for clients that keep what they read.

    `direct` is the same bucket past the faults.
    """

    def __init__(
        self, server: Emulator, script: FaultScript | None, *, name: str | None = None
    ) -> None:
        self.server = server
        self.name = name or f"lake-{next(_NUMBERS)}"
        self._script = script
        self._proxies = ExitStack()

    def __enter__(self) -> EmbeddedBucket:
        return self

    def __exit__(self, *_: object) -> None:
        self._proxies.close()

    def _address(self, upstream: str) -> str:
        if self._script is None:
            return upstream
        return self._proxies.enter_context(CaseProxy(upstream, self._script)).url

    @cached_property
    def s3(self) -> str:
        return self._address(self.server.s3)

    @cached_property
    def gcs(self) -> str:
        return self._address(self.server.gcs)

    @cached_property
    def azure(self) -> str:
        """The account's address; the account is azurite's."""
        return f"{self._address(self.server.azure)}/{DEVELOPMENT_ACCOUNT}"

    @cached_property
    def direct(self) -> EmbeddedBucket:
        return EmbeddedBucket(self.server, None, name=self.name)

    @property
    def boto3(self) -> dict[str, str]:
        """`boto3.client("s3", **lake.boto3)`."""
        return {
            "endpoint_url": self.s3, "region_name": REGION,
            "aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": ACCESS_KEY,
        }  # fmt: skip

    @property
    def storage_options(self) -> dict[str, str]:
        """For libraries on object_store (deltalake, lance, obstore, polars)."""
        return {
            "aws_endpoint": self.s3, "aws_region": REGION, "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": ACCESS_KEY, "aws_allow_http": "true",
        }  # fmt: skip

    @property
    def azure_connection(self) -> str:
        """A connection string."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={DEVELOPMENT_ACCOUNT};"
            f"AccountKey={DEVELOPMENT_KEY};BlobEndpoint={self.azure};"
        )

    @property
    def environ(self) -> dict[str, str]:
        """The same as environment variables, for code that reads its endpoint from there."""
        return {
            "AWS_ENDPOINT_URL": self.s3, "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": ACCESS_KEY,
            "AWS_ALLOW_HTTP": "true", "STORAGE_EMULATOR_HOST": self.gcs,
            "AZURE_STORAGE_CONNECTION_STRING": self.azure_connection,
        }  # fmt: skip
