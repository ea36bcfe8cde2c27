"""A lock that is an item of a DynamoDB table, as AWS's dynamodb-lock-client (and so Hudi) keeps it.

The item holds the length of its lease (`leaseDuration`) and its version (`recordVersionNumber`),
but no time. A waiter may take it after seeing the same version for a whole lease by its own clock.
A release deletes the item, as Hudi's does. An item kept and marked `isReleased` is free too.

The token comes from a counter in a second item, which Hudi's clients never touch. It is drawn after
the lock is won, and then the lock is proven again. So an earlier grant has a lower token.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from lockkit.clock import process_name
from lockkit.config import seconds
from lockkit.errors import NoAnswer, StoreError, clipped
from lockkit.protocol.outcome import PreconditionFailed, Unknown, WriteAnswer
from lockkit.providers.dynamodb_table import KEY, DynamoTable
from lockkit.providers.holder import ServiceHolder
from lockkit.providers.leased import GrantOver, LeasedLock, NotFree, ServiceGrant
from lockkit.stores import StoreOptions
from lockkit.stores.arguments import SERVICE_S_MAX, check_texts, whole
from lockkit.stores.keywords import check_endpoint

OWNER, LEASE, VERSION, RELEASED = (
    "ownerName", "leaseDuration", "recordVersionNumber", "isReleased",
)  # fmt: skip
PROCESS, SINCE = "holderProcess", "grantedMs"
"""Attributes that lockkit adds for people: other clients ignore them."""
COUNTER, EPOCH = "#lockkit-epoch", "epoch"
"""Suffix of the counter item's key, and its attribute."""
BEATS_PER_LEASE = 3
"""As Hudi: a heartbeat every third of a lease."""
LOOK_S = 1.0
"""How often a waiter polls: dynamodb-lock-client's default."""
TRIES_MAX = 3
"""Rounds of one try: read and write; after an unanswered write, read and write again."""
VERSIONS_MAX = 50
"""Unanswered writes that are still recognised. An older one that lands blocks for one lease."""
KEY_BYTES_MAX = 2048 - len(COUNTER)
PROCESS_CHARS = 300
LEASE_TEXT = re.compile(r"\d{1,15}", re.ASCII)


@dataclass(frozen=True, slots=True)
class LockItem:
    """The lock's item, whichever client wrote it."""

    version: str
    owner: str
    lease_ms: int
    free: bool
    process: str = ""
    since_ms: int | None = None
    """When it was taken, by the holder's clock."""


class DynamoDBLock(LeasedLock):
    """The item `partition_key` of `table`; Hudi's keys are `hoodie.write.lock.dynamodb.*`.

    A missing table is created. A table whose key is not one string called `key` is refused
    (`StoreError`).

    :param table: the table's name.
    :param partition_key: the lock's name, the value of the table's column `key`.
    :param region: the table's region; None: AWS_REGION, otherwise boto3's configuration.
    :param endpoint_url: another server than AWS's own, as `http://host:port`.
    :param lease_s: the length of the lease, in seconds (`hoodie.write.lock.wait_time_ms` in Hudi).
    :param beat_s: the time between renewals, in seconds; None: a third of the lease.
    :param look_s: the time between two looks of a waiter, in seconds.
    :param billing_mode: of a table that is created: `PAY_PER_REQUEST` or `PROVISIONED`.
    :param read_capacity: of a created table that is `PROVISIONED`: reads per second.
    :param write_capacity: the same for writes.
    :param creation_timeout_s: how long to wait for a created table, in seconds.
    :param client: the name of this handle in events and in the User-Agent.
    :param aws: further arguments of boto3's client (profile_name, aws_access_key_id, ...).
    :param options: the keywords of every lock; `LeasedLock` lists them.
    """

    service = "dynamodb"
    lease_keyword = ("lease_s", 1)

    def __init__(
        self,
        table: str,
        partition_key: str,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        lease_s: float = 60.0,
        beat_s: float | None = None,
        look_s: float = LOOK_S,
        billing_mode: str = "PAY_PER_REQUEST",
        read_capacity: int = 20,
        write_capacity: int = 10,
        creation_timeout_s: float = 600.0,
        client: str = "",
        aws: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        check_texts(table=table, partition_key=partition_key)
        check_endpoint(endpoint_url, f"cannot open dynamodb://{table}", "endpoint_url")
        lease_s, look_s = seconds("lease_s", lease_s, SERVICE_S_MAX), seconds("look_s", look_s)
        beat_s = seconds("beat_s", lease_s / BEATS_PER_LEASE if beat_s is None else beat_s)
        creation_timeout_s = seconds("creation_timeout_s", creation_timeout_s, least=0.0)
        read_capacity = whole("read_capacity", read_capacity)
        write_capacity = whole("write_capacity", write_capacity)
        if not 2 * beat_s <= lease_s:
            raise ValueError(
                f"a lease of {lease_s} s needs at least two renewals; beat_s={beat_s} is too long"
            )
        if not 0 < len(partition_key.encode()) <= KEY_BYTES_MAX:
            raise ValueError(f"a partition key must have 1 to {KEY_BYTES_MAX} bytes")
        where = f"dynamodb://{table}/{partition_key}"
        super().__init__(where, ttl_s=lease_s, beat_s=beat_s, client=client, **options)
        self._key, self._look_s, self._lease = partition_key, look_s, str(round(lease_s * 1000))
        self._versions: deque[str] = deque(maxlen=VERSIONS_MAX)
        """The versions that prove the item ours: the confirmed one and those without an answer."""
        self._deleted = False
        region = region or os.environ.get("AWS_REGION")
        at = f"?endpoint={endpoint_url}" if endpoint_url else ""
        key = quote(partition_key, safe="")
        self.address = f"dynamodb://{region or 'REGION'}/{table}/{key}{at}"
        store = StoreOptions(
            endpoint=endpoint_url, client=client, timeout_s=min(10.0, max(0.2, lease_s / 5)),
            extra=({"region_name": region} if region else {}) | dict(aws or {}),
        )  # fmt: skip
        self._table = DynamoTable(
            table, str(self), store, clock=self.clock, events=self._events,
            billing_mode=billing_mode,
            read_capacity=read_capacity, write_capacity=write_capacity,
            creation_timeout_s=creation_timeout_s,
        )  # fmt: skip

    # --- the provider's requests -----------------------------------------------------------------

    def _take(self) -> ServiceGrant | NotFree:
        self._table.prepare()
        for _ in range(TRIES_MAX):
            found = self._read()
            if found is None or found.version not in self._versions:
                busy = self._judge(found)
                if busy is not None:
                    return busy
                answer = self._put(found)
                if isinstance(answer, Unknown) or not self._landed(answer):
                    continue  # another client wrote, or ours landed without an answer: read
            try:
                return self._win()
            except GrantOver:
                continue  # a whole lease passed since our write
        raise NoAnswer(f"{self}: its writes got no definite answer; try again")

    def _win(self) -> ServiceGrant:
        """Draw the token, then prove that no other client was granted the lock in between."""
        epoch, sent_ms = self._draw(), self.clock.boot_ms()
        self._renew()
        self._deleted = False  # no deletion of this version was sent
        return ServiceGrant(self._key, epoch, sent_ms)

    def _withdraw(self) -> None:
        if self._versions:
            found = self._read()
            if found and found.version in self._versions:
                self._delete()
            self._versions.clear()

    def _beat(self, taken: ServiceGrant) -> None:
        self._renew()

    def _give_back(self, taken: ServiceGrant) -> None:
        self._delete()
        self._versions.clear()

    def _holder(self) -> ServiceHolder | None:
        found = self._read()
        if found is None or found.free:
            return None
        lease_s = found.lease_ms / 1000
        return ServiceHolder(
            found.owner, found.version, f"{lease_s:g} s after its last renewal", found.since_ms,
            process=found.process, lease_s=lease_s, clock="its holder's clock",
            overdue_s=lease_s * (BEATS_PER_LEASE - 1) / BEATS_PER_LEASE,
        )  # fmt: skip

    def _break_grant(self, version: str) -> bool:
        """A renewal writes a new version, so the lock of a living holder is not broken."""
        answer = self._table.write(
            "break it", "delete_item", Key=_key(self._key),
            ConditionExpression=f"{VERSION} = :seen AND attribute_not_exists({RELEASED})",
            ExpressionAttributeValues={":seen": {"S": version}},
        )  # fmt: skip
        return self._landed(answer)

    def _shut(self) -> None:
        self._table.close()

    def _judge(self, found: LockItem | None) -> NotFree | None:
        """None: it may be taken. A lease counts from our first answer that showed this version."""
        if found is None or found.free:
            return None
        left_s = self._left_s(found.version, found.lease_ms / 1000)
        return NotFree(found.owner, min(self._look_s, left_s)) if left_s >= 0 else None

    # --- requests --------------------------------------------------------------------------------

    def _read(self) -> LockItem | None:
        said = self._table.ask("read it", "get_item", Key=_key(self._key), ConsistentRead=True)
        return item_of(said["Item"], str(self)) if said and said.get("Item") else None

    def _put(self, found: LockItem | None) -> WriteAnswer:
        """Take it if it is as we read it: absent, released, or unchanged for a lease."""
        if found is None:
            guard: dict[str, Any] = {
                "ConditionExpression": "attribute_not_exists(#key)",
                "ExpressionAttributeNames": {"#key": KEY},
            }
        else:
            # A release that keeps the item does not change its version.
            still = "attribute_exists" if found.free else "attribute_not_exists"
            guard = {
                "ConditionExpression": f"{VERSION} = :seen AND {still}({RELEASED})",
                "ExpressionAttributeValues": {":seen": {"S": found.version}},
            }
        version, self._deleted = self.clock.unique(), False
        self._versions.append(version)
        item = {
            **_key(self._key), OWNER: {"S": self.owner}, LEASE: {"S": self._lease},
            VERSION: {"S": version}, PROCESS: {"S": process_name()},
            SINCE: {"S": str(self.clock.wall_ms())},
        }  # fmt: skip
        return self._table.write("take it", "put_item", Item=item, **guard)

    def _draw(self) -> int:
        """Return the next number. A number whose answer is lost is skipped."""
        said = self._table.ask(
            "count the grant", "update_item", Key=_key(self._key + COUNTER),
            UpdateExpression=f"ADD {EPOCH} :one", ExpressionAttributeValues={":one": {"N": "1"}},
            ReturnValues="UPDATED_NEW",
        )  # fmt: skip
        if said is None:
            raise NoAnswer(f"{self}: its table is gone; try again")
        return int(said["Attributes"][EPOCH]["N"])

    def _renew(self) -> None:
        """Write a new version if the present one is ours; waiters restart their count."""
        guard, values = self._while_ours()
        new = self.clock.unique()
        self._versions.append(new)
        answer = self._table.write(
            "renew it", "update_item", Key=_key(self._key),
            UpdateExpression=f"SET {VERSION} = :new, {LEASE} = :lease", ConditionExpression=guard,
            ExpressionAttributeValues=values | {":new": {"S": new}, ":lease": {"S": self._lease}},
        )  # fmt: skip
        self._settle(answer)
        self._versions.clear()
        self._versions.append(new)

    def _delete(self) -> None:
        guard, values = self._while_ours()
        answer = self._table.write(
            "give it back", "delete_item", Key=_key(self._key),
            ConditionExpression=guard, ExpressionAttributeValues=values,
        )  # fmt: skip
        if self._deleted and isinstance(answer, PreconditionFailed) and self._read() is None:
            return  # an earlier deletion of ours landed; only its answer was lost
        self._deleted = self._deleted or isinstance(answer, Unknown)
        self._settle(answer)

    def _while_ours(self) -> tuple[str, dict[str, Any]]:
        """The condition that the item is ours, and its values."""
        values = {f":v{n}": {"S": each} for n, each in enumerate(self._versions)}
        guard = f"{VERSION} IN ({', '.join(values)}) AND {OWNER} = :owner"
        return guard, values | {":owner": {"S": self.owner}}

    def _settle(self, answer: WriteAnswer) -> None:
        if not self._landed(answer):
            found = self._read()
            now = "gone" if found is None else f"of {clipped(repr(found.owner), 200)}"
            raise GrantOver(f"its item is now {now}")


def item_of(said: Mapping[str, Any], who: str) -> LockItem:
    """Raise `StoreError` for an item that is not a lock's; nothing overwrites it."""
    version, owner, lease = (said.get(name, {}).get("S") for name in (VERSION, OWNER, LEASE))
    if version is None or owner is None or not LEASE_TEXT.fullmatch(lease or ""):
        raise StoreError(
            f"{who}: the item there is not dynamodb-lock-client's (it has "
            f"{', '.join(sorted(said))[:200]}); use another partition key, or delete it"
        )
    process = str(said.get(PROCESS, {}).get("S", ""))[:PROCESS_CHARS]
    since = str(said.get(SINCE, {}).get("S", ""))
    since_ms = int(since) if LEASE_TEXT.fullmatch(since) else None
    return LockItem(version, owner, int(lease), RELEASED in said, process, since_ms)


def _key(value: str) -> dict[str, Any]:
    return {KEY: {"S": value}}
