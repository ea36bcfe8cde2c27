"""The DynamoDB table of the locks. Each request is sent once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from lockkit.clock import Clock
from lockkit.errors import NoAnswer, StoreError
from lockkit.protocol.outcome import Applied, Unknown, WriteAnswer
from lockkit.providers.lease_events import LeaseEvents
from lockkit.stores import StoreOptions
from lockkit.stores.endpoint import (
    ANY_CODE,
    ANY_STATUS,
    Endpoint,
    ErrorResponse,
    ForeignAnswer,
    RefusalKind,
    Table,
    meaning,
)

KEY = "key"
"""The key attribute of Hudi's lock tables, a string."""
NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")
BILLING = ("PAY_PER_REQUEST", "PROVISIONED")

# docs.aws.amazon.com: DynamoDB "Error handling". Rows marked (docs) were never observed by tests.
TABLE: Table = {
    (ANY_STATUS, "ConditionalCheckFailedException"): RefusalKind.CONDITION_FAILED,
    (ANY_STATUS, "ResourceInUseException"): RefusalKind.CONDITION_FAILED,  # the table exists
    (ANY_STATUS, "ResourceNotFoundException"): RefusalKind.MISSING,
    (ANY_STATUS, "ProvisionedThroughputExceededException"): RefusalKind.THROTTLED,
    (ANY_STATUS, "ThrottlingException"): RefusalKind.THROTTLED,  # (docs)
    (ANY_STATUS, "RequestLimitExceeded"): RefusalKind.THROTTLED,  # (docs)
    (
        ANY_STATUS,
        "LimitExceededException",
    ): RefusalKind.THROTTLED,  # (docs) many tables are being created
    (ANY_STATUS, "ReplicatedWriteConflictException"): RefusalKind.THROTTLED,  # (docs) global tables
    (408, ANY_CODE): RefusalKind.UNKNOWN,
}

CURES: Mapping[tuple[int, str], str] = {
    (ANY_STATUS, "AccessDeniedException"): "access is denied: these credentials need {right} "
    "(datasets/policies/dynamodb.json has all rights)",
    (ANY_STATUS, "UnrecognizedClientException"): "AWS does not know this access key; check it",
    (ANY_STATUS, "InvalidSignatureException"): "the secret key or this machine's clock is wrong",
    (ANY_STATUS, "ExpiredTokenException"): "the credentials have expired; log in again",
    (ANY_STATUS, "ValidationException"): "check the names of table and partition key",
}


RIGHTS = {
    "read": "dynamodb:GetItem on the table", "describe": "dynamodb:DescribeTable on the table",
    "make": "dynamodb:CreateTable, because there is no such table",
    **dict.fromkeys(("take", "write"), "dynamodb:PutItem on the table"),
    **dict.fromkeys(("renew", "count"), "dynamodb:UpdateItem on the table"),
    "": "dynamodb:DeleteItem on the table",
}  # fmt: skip


class DynamoTable:
    """Errors name `who`. Raises `ValueError` for an invalid name or billing mode."""

    def __init__(
        self,
        name: str,
        who: str,
        options: StoreOptions,
        *,
        clock: Clock,
        events: LeaseEvents,
        billing_mode: str,
        read_capacity: int,
        write_capacity: int,
        creation_timeout_s: float,
    ) -> None:
        if not NAME.fullmatch(name):
            raise ValueError(f"a table's name has 3 to 255 of A-Z a-z 0-9 _ . -; not {name!r:.100}")
        if billing_mode not in BILLING:
            raise ValueError(f"billing_mode is {' or '.join(BILLING)}, not {billing_mode!r:.40}")
        self.name, self._who, self._clock, self._events = name, who, clock, events
        self._making: dict[str, Any] = {"BillingMode": billing_mode}
        if billing_mode == "PROVISIONED":
            self._making["ProvisionedThroughput"] = {
                "ReadCapacityUnits": read_capacity, "WriteCapacityUnits": write_capacity,
            }  # fmt: skip
        self._creation_timeout_s = creation_timeout_s
        self._ready = False
        self._making_since_ms: float | None = None
        self._endpoint = Endpoint(who, options, cures=CURES, rights=RIGHTS)
        self._client = _client(options, self._endpoint)

    def close(self) -> None:
        self._client.close()

    def prepare(self) -> None:
        """Make sure that the table exists. Raises `NoAnswer` while it is being created, and
        `StoreError` if its key is another one or it does not become active in time."""
        if self._ready:
            return
        said = self.ask("describe the table", "describe_table")
        if said is not None and said["Table"]["TableStatus"] in ("ACTIVE", "UPDATING"):
            self._guard_key(said["Table"])
            self._ready, self._making_since_ms = True, None
            return
        if said is None:
            self.write(
                "make the table", "create_table", **self._making,
                KeySchema=[{"AttributeName": KEY, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": KEY, "AttributeType": "S"}],
            )  # fmt: skip
        now_ms = self._clock.boot_ms()
        if self._making_since_ms is None:
            self._making_since_ms = now_ms
        if now_ms - self._making_since_ms >= self._creation_timeout_s * 1000:
            raise StoreError(
                f"{self._who}: the table {self.name} is not active after "
                f"{self._creation_timeout_s:g} s; check it in AWS, or raise creation_timeout_s"
            )
        raise NoAnswer(f"{self._who}: the table {self.name} is being created; try again")

    def ask(self, doing: str, operation: str, **about: Any) -> Mapping[str, Any] | None:
        """Answer of a repeatable request; None if there is no table. Raises `NoAnswer`."""
        said = self._events.ask(operation, lambda: self._send(doing, operation, about))
        if (
            isinstance(said, ErrorResponse)
            and meaning(TABLE, said.status, said.code) is RefusalKind.MISSING
        ):
            self._ready = False
            return None
        if isinstance(said, ErrorResponse | Unknown):
            self._endpoint.listing(TABLE, said, doing)
        return said

    def write(self, doing: str, operation: str, **about: Any) -> WriteAnswer:
        """Result of a conditional write; `PreconditionFailed` also if there is no table."""
        said = self._events.ask(operation, lambda: self._send(doing, operation, about))
        if isinstance(said, ErrorResponse | Unknown):
            return self._endpoint.write(TABLE, said, doing)
        return Applied("")

    def _send(
        self, doing: str, operation: str, about: Mapping[str, Any]
    ) -> Mapping[str, Any] | ErrorResponse | Unknown:
        from lockkit.stores import aws

        try:
            with self._endpoint.call():
                said: Mapping[str, Any] = getattr(self._client, operation)(
                    TableName=self.name, **about
                )
        except aws.SDK_ERRORS as error:
            return aws.refusal(error, self._endpoint, doing)
        self._endpoint.mark_answered()
        return said

    def _guard_key(self, said: Mapping[str, Any]) -> None:
        kinds = {
            each["AttributeName"]: each["AttributeType"] for each in said["AttributeDefinitions"]
        }
        names = [each["AttributeName"] for each in said["KeySchema"]]
        if [(name, kinds.get(name)) for name in names] != [(KEY, "S")]:
            described = ", ".join(f"{name!r} ({kinds.get(name)})" for name in names)
            raise StoreError(
                f"{self._who}: the table {self.name} has another key, {described[:300]}; a lock "
                f"table of Hudi's has one string, {KEY!r}: name another table; it will be created"
            )


def _client(options: StoreOptions, endpoint: Endpoint) -> Any:
    try:
        from lockkit.stores import aws
    except ModuleNotFoundError as missing:
        raise endpoint.unusable(
            f"the Python package {missing.name!r} is not installed", "pip install 'lockkit[s3]'"
        ) from None
    try:
        made = aws.client("dynamodb", options, options.endpoint)
    except aws.SDK_ERRORS as error:
        aws.refusal(error, endpoint, "open it")
        raise endpoint.misconfigured(error) from None
    made.meta.events.register("before-parse.dynamodb", _refuse_foreign)
    return made


def _refuse_foreign(operation_model: Any, response_dict: Mapping[str, Any], **_: Any) -> None:
    """botocore reads any page with status 200 as `{}`, which would say that there is no item."""
    if response_dict["status_code"] >= 300:
        return
    try:
        said = json.loads(response_dict["body"])
    except (ValueError, RecursionError):
        said = None
    kind = str(response_dict["headers"].get("content-type", ""))
    is_own = kind.startswith("application/x-amz-json") and isinstance(said, dict)
    if not is_own or (operation_model.name == "DescribeTable" and "Table" not in said):
        raise ForeignAnswer("DynamoDB")
