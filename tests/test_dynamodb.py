"""A DynamoDB item as a lock: beside Hudi's own client, under lost answers, by nobody's clock."""

from __future__ import annotations

import itertools
import uuid
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from lock_world import PATIENCE_S, Suspendable, Tale, until

from lockkit import Fault, LockLost, Proxy, StoreError
from lockkit.clock import process_name
from lockkit.errors import NoAnswer
from lockkit.events import Event
from lockkit.lock.handle import UnprovenRelease
from lockkit.protocol.outcome import PreconditionFailed
from lockkit.providers.dynamodb import COUNTER, DynamoDBLock, LockItem, item_of
from lockkit.stores import StoreOptions, aws

pytestmark = pytest.mark.xdist_group("dynamodb")
TABLE = "locks"
_NAMES = itertools.count()


@pytest.fixture
def key() -> str:
    """A partition key that no other test uses."""
    return f"orders-{next(_NAMES)}-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def sdk(dynamodb: Any) -> Any:
    return aws.client("dynamodb", StoreOptions(endpoint=dynamodb.endpoint), dynamodb.endpoint)


@pytest.fixture
def lock(dynamodb: Any, key: str) -> Callable[..., DynamoDBLock]:
    """A handle of its own on the test's item."""

    def open_(endpoint: str = "", **options: Any) -> DynamoDBLock:
        options = {"lease_s": 30.0, "look_s": 0.05} | options
        return DynamoDBLock(TABLE, key, endpoint_url=endpoint or dynamodb.endpoint, **options)

    return open_


def stored(sdk: Any, key: str) -> dict[str, str] | None:
    """The item's attributes; None if there is none. All of them are strings."""
    found = sdk.get_item(TableName=TABLE, Key={"key": {"S": key}}, ConsistentRead=True).get("Item")
    return found and {name: value["S"] for name, value in found.items()}


# --- Hudi's own client ----------------------------------------------------------------------------


class JavaClient:
    """dynamodb-lock-client 1.4's requests, one method each, and the order that Hudi sends them in.

    Read from AmazonDynamoDBLockClient.java. Its clock is what the test says.
    """

    def __init__(self, sdk: Any, key: str, lease_ms: int = 60_000) -> None:
        self.sdk, self.key, self.lease_ms = sdk, key, lease_ms
        self.owner, self.version = f"ip-10-0-0-1-{uuid.uuid4()}", ""
        self.now_ms = 0
        self._seen: tuple[str, int, int] | None = None

    def try_acquire(self) -> bool:
        """One turn of acquireLock's loop."""
        found = stored(self.sdk, self.key)
        if found is None:
            return self._put("attribute_not_exists(#pk)", {"#pk": "key"}, {})
        if "isReleased" in found:
            names = {"#pk": "key", "#ir": "isReleased"}
            return self._put("attribute_exists(#pk) AND #ir = :ir", names, {":ir": {"S": "1"}})
        version, lease_ms = found["recordVersionNumber"], int(found["leaseDuration"])
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, self.now_ms, lease_ms)
            return False
        if self.now_ms - self._seen[1] <= self._seen[2]:
            return False
        names = {"#pk": "key", "#rvn": "recordVersionNumber"}
        return self._put("attribute_exists(#pk) AND #rvn = :rvn", names, {":rvn": {"S": version}})

    def heartbeat(self) -> bool:
        new = str(uuid.uuid4())
        done = self._conditional(
            self.sdk.update_item, UpdateExpression="SET #ld = :ld, #rvn = :newRvn",
            names={"#ld": "leaseDuration"},
            values={":ld": {"S": str(self.lease_ms)}, ":newRvn": {"S": new}},
        )  # fmt: skip
        self.version = new if done else self.version
        return done

    def release(self, *, delete: bool = True) -> bool:
        if delete:
            return self._conditional(self.sdk.delete_item, names={}, values={})
        return self._conditional(
            self.sdk.update_item, UpdateExpression="SET #ir = :ir", names={"#ir": "isReleased"},
            values={":ir": {"S": "1"}},
        )  # fmt: skip

    def _put(self, condition: str, names: dict[str, str], values: dict[str, Any]) -> bool:
        version = str(uuid.uuid4())
        item = {
            "key": {"S": self.key}, "ownerName": {"S": self.owner},
            "leaseDuration": {"S": str(self.lease_ms)}, "recordVersionNumber": {"S": version},
        }  # fmt: skip
        more = {"ExpressionAttributeValues": values} if values else {}
        try:
            self.sdk.put_item(TableName=TABLE, Item=item, ConditionExpression=condition,
                              ExpressionAttributeNames=names, **more)  # fmt: skip
        except self.sdk.exceptions.ConditionalCheckFailedException:
            return False
        self.version = version
        return True

    def _conditional(self, send: Any, *, names: Any, values: Any, **more: Any) -> bool:
        try:
            send(
                TableName=TABLE, Key={"key": {"S": self.key}},
                ConditionExpression="attribute_exists(#pk) AND #rvn = :rvn AND #on = :on",
                ExpressionAttributeNames={"#pk": "key", "#rvn": "recordVersionNumber",
                                          "#on": "ownerName", **names},
                ExpressionAttributeValues={":rvn": {"S": self.version}, ":on": {"S": self.owner},
                                           **values}, **more,
            )  # fmt: skip
        except self.sdk.exceptions.ConditionalCheckFailedException:
            return False
        return True


def test_the_item_is_the_java_clients_and_is_gone_after_the_release(
    lock: Callable[..., DynamoDBLock], sdk: Any, key: str
) -> None:
    mine = lock()
    with mine:
        found = stored(sdk, key)
        assert found is not None
        java = {"key", "ownerName", "leaseDuration", "recordVersionNumber"}
        assert set(found) - java == {"holderProcess", "grantedMs"}
        assert found["holderProcess"] == process_name()
        assert (found["key"], found["ownerName"], found["leaseDuration"]) == (
            key, mine.owner, "30000",
        )  # fmt: skip
        assert str(uuid.UUID(found["recordVersionNumber"])) == found["recordVersionNumber"]
    assert stored(sdk, key) is None


@pytest.mark.parametrize("delete", [True, False], ids=["deletes", "marks as released"])
def test_hudis_client_and_ours_exclude_each_other_and_tokens_rise_across_its_turns(
    lock: Callable[..., DynamoDBLock], sdk: Any, key: str, delete: bool
) -> None:
    mine = lock()
    java, epochs = JavaClient(sdk, key), []
    for _ in range(2):
        with mine:
            assert mine.fence
            epochs.append(mine.fence.epoch)
            assert not java.try_acquire()
            java.now_ms += 30_001  # its clock: a whole lease of ours
            mine.renew()
            assert not java.try_acquire(), "a heartbeat makes it count anew"
        assert java.try_acquire()
        assert not mine.acquire(timeout=0)
        assert java.owner in mine.busy_reason()
        assert java.heartbeat()
        assert not mine.acquire(timeout=0)
        assert java.release(delete=delete)
    assert epochs == [1, 2]


def test_a_crashed_holder_of_either_kind_is_succeeded_by_the_other(
    lock: Callable[..., DynamoDBLock], sdk: Any, key: str
) -> None:
    clock, java = Suspendable(), JavaClient(sdk, key)
    mine = lock(clock=clock)
    assert mine.acquire(timeout=5)
    mine.close()  # it beats no more
    assert not java.try_acquire()
    java.now_ms += 30_001
    assert java.try_acquire()
    other = lock(clock=clock)
    assert not other.acquire(timeout=0)
    clock.slept_ms += 60_001  # its lease, as the item says
    assert other.acquire(timeout=0)
    assert not java.heartbeat() and not java.release()
    other.release()


# --- observed versions ----------------------------------------------------------------------------


def test_an_unchanged_version_is_waited_for_a_whole_lease_of_its_own_and_a_changed_one_anew(
    lock: Callable[..., DynamoDBLock],
) -> None:
    clock = Suspendable()
    holder, waiter = lock(), lock(clock=clock, lease_s=10.0)
    assert holder.acquire(timeout=5)
    assert not waiter.acquire(timeout=0)
    clock.slept_ms += 29_000
    assert not waiter.acquire(timeout=0), "the holder's lease counts, not the waiter's"
    holder.renew()
    clock.slept_ms += 29_000
    assert not waiter.acquire(timeout=0)
    clock.slept_ms += 31_000
    assert waiter.acquire(timeout=0)
    with pytest.raises(LockLost, match=f"its item is now of '{waiter.owner}'"):
        holder.renew()
    with pytest.raises(LockLost):
        holder.release()
    waiter.assert_held()
    waiter.release()


def test_a_lock_that_changed_since_it_was_read_is_not_taken(
    lock: Callable[..., DynamoDBLock], sdk: Any, key: str
) -> None:
    """Absent, unchanged for a lease, given back: each look is too old by the time of its write."""
    holder, late, java = lock(), lock(), JavaClient(sdk, key)
    absent = late._read()
    assert absent is None and holder.acquire(timeout=5)
    assert late._put(absent) == PreconditionFailed()
    expired = late._read()
    holder.renew()
    assert late._put(expired) == PreconditionFailed()
    holder.release()
    assert java.try_acquire() and java.release(delete=False)
    free = late._read()
    assert free and free.free and holder.acquire(timeout=5)
    assert late._put(free) == PreconditionFailed()
    holder.release()


# --- trouble --------------------------------------------------------------------------------------


def test_a_lost_request_or_answer_makes_neither_a_second_holder_nor_a_lost_grant(
    dynamodb: Any, lock: Callable[..., DynamoDBLock], sdk: Any, key: str
) -> None:
    """Of a look, of the item's write, of the token's and of the proof's."""
    with Proxy(dynamodb.endpoint) as proxy:
        mine, other, epochs = lock(proxy.url), lock(), []
        for when, (operation, nth) in itertools.product(
            ("before", "after"), (("get", 1), ("put", 1), ("put", 2), ("put", 3))
        ):
            made = len(proxy.faults)
            proxy.inject(Fault("drop", when=when, operation=operation, nth=nth))
            assert mine.acquire(timeout=PATIENCE_S), (when, operation, nth)
            assert [each["method"] for each in proxy.faults[made:]] == [operation]
            assert mine.fence
            epochs.append(mine.fence.epoch)
            mine.renew()
            assert not other.acquire(timeout=0)
            mine.release()
            assert stored(sdk, key) is None
    assert all(one < two for one, two in itertools.pairwise(epochs))


def test_a_write_that_lands_late_finds_the_lock_taken(
    dynamodb: Any, lock: Callable[..., DynamoDBLock]
) -> None:
    lock().locked()
    recorded: list[Event] = []
    with Proxy(dynamodb.endpoint, on_fault=recorded.append) as proxy:
        mine = lock(proxy.url)
        proxy.inject(Fault("late", operation="put", delay_s=0.05))
        assert mine.acquire(timeout=PATIENCE_S)
        until(lambda: any("was delivered" in each.data.get("text", "") for each in recorded))
        mine.renew()
        mine.release()


def test_the_next_beat_settles_an_unanswered_one_and_an_unanswered_release_is_settled(
    dynamodb: Any, lock: Callable[..., DynamoDBLock], sdk: Any, key: str
) -> None:
    with Proxy(dynamodb.endpoint) as proxy:
        mine = lock(proxy.url)
        assert mine.acquire(timeout=PATIENCE_S)
        for when in ("before", "after"):
            proxy.inject(Fault("drop", operation="put", when=when))
            with pytest.raises(NoAnswer):
                mine.renew()
        mine.renew()
        proxy.inject(Fault("drop", operation="delete", when="after"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # UnprovenRelease, LateLoss
            mine.release()
    assert stored(sdk, key) is None


def test_releasing_a_lock_that_was_deleted_by_hand_is_a_loss(
    lock: Callable[..., DynamoDBLock], sdk: Any, key: str
) -> None:
    mine = lock()
    assert mine.acquire(timeout=5)
    sdk.delete_item(TableName=TABLE, Key={"key": {"S": key}})
    with pytest.raises(LockLost, match="its item is now gone"):
        mine.release()


class Hurried(Suspendable):
    """Where somebody sleeps, the machine slept."""

    def sleep(self, seconds: float) -> None:
        self.slept_ms += round(seconds * 1000)


def test_a_deletion_of_an_earlier_grant_proves_nothing_about_this_one(
    dynamodb: Any, lock: Callable[..., DynamoDBLock], sdk: Any, key: str
) -> None:
    with Proxy(dynamodb.endpoint) as proxy:
        mine = lock(proxy.url, clock=Hurried())
        assert mine.acquire(timeout=PATIENCE_S)
        proxy.inject(Fault("drop", operation="delete", when="before", next="every"))
        with pytest.warns(UnprovenRelease):
            mine.release()
        proxy.clear()
        assert mine.acquire(timeout=PATIENCE_S)
        sdk.delete_item(TableName=TABLE, Key={"key": {"S": key}})
        with pytest.raises(LockLost, match="its item is now gone"):
            mine.release()


def test_both_a_waiter_and_a_holder_wait_out_throttling(
    dynamodb: Any, lock: Callable[..., DynamoDBLock]
) -> None:
    with Proxy(dynamodb.endpoint) as proxy:
        mine = lock(proxy.url)
        proxy.inject(Fault("status", code=400, next=2))
        assert mine.acquire(timeout=PATIENCE_S)
        proxy.inject(Fault("status", code=400, operation="put"))
        with pytest.raises(NoAnswer, match="throttled"):
            mine.renew()
        mine.assert_held()
        proxy.inject(Fault("status", code=400, operation="delete"))
        mine.release()
        assert [each["method"] for each in proxy.faults] == ["other", "other", "put", "delete"]


def test_a_service_that_is_down_at_the_start_is_reported_and_the_wait_is_bounded(
    lock: Callable[..., DynamoDBLock],
) -> None:
    mine = lock("http://127.0.0.1:1")
    for timeout in (0, 0.2):
        with pytest.raises(NoAnswer, match="connection refused"):
            mine.acquire(timeout=timeout)
    assert not mine.owned()


def test_a_service_that_stops_answering_costs_the_lock_and_the_next_holder_is_granted(
    dynamodb: Any, lock: Callable[..., DynamoDBLock]
) -> None:
    clock, tale = Suspendable(), Tale()
    with Proxy(dynamodb.endpoint) as proxy:
        mine, next_one = lock(proxy.url, clock=clock, beat_s=0.1, emit=tale), lock(clock=clock)
        assert mine.acquire(timeout=PATIENCE_S)
        assert not next_one.acquire(timeout=0)
        proxy.inject(Fault("reset", next="every"))
        until(lambda: tale.of("danger"))
        mine.assert_held()
        clock.slept_ms += 31_000
        until(lambda: tale.of("lost"))
        with pytest.raises(LockLost, match="the lease ran out"):
            mine.assert_held()
        assert not next_one.acquire(timeout=0)
        clock.slept_ms += 31_000
        assert next_one.acquire(timeout=0)
        next_one.release()


# --- the table, and what stands in it ------------------------------------------------------------


def test_the_table_is_created_with_the_given_options(dynamodb: Any, sdk: Any) -> None:
    name = f"made-{uuid.uuid4().hex}"
    mine = DynamoDBLock(
        name, "orders", endpoint_url=dynamodb.endpoint, billing_mode="PROVISIONED",
        read_capacity=7, write_capacity=3,
    )  # fmt: skip
    with mine:
        said = sdk.describe_table(TableName=name)["Table"]
    assert said["KeySchema"] == [{"AttributeName": "key", "KeyType": "HASH"}]
    assert said["ProvisionedThroughput"]["ReadCapacityUnits"] == 7
    assert said["ProvisionedThroughput"]["WriteCapacityUnits"] == 3


def test_a_table_with_another_key_is_refused_and_left_alone(dynamodb: Any, sdk: Any) -> None:
    name = f"terraform-{uuid.uuid4().hex}"
    sdk.create_table(
        TableName=name, BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "LockID", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "LockID", "AttributeType": "S"}],
    )  # fmt: skip
    mine = DynamoDBLock(name, "orders", endpoint_url=dynamodb.endpoint)
    with pytest.raises(StoreError, match=r"has another key, 'LockID' \(S\).*name another table"):
        mine.acquire(timeout=PATIENCE_S)
    assert sdk.scan(TableName=name)["Count"] == 0


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"Info": {"S": "terraform"}},
        {"ownerName": {"S": "x"}, "leaseDuration": {"S": "-1"}, "recordVersionNumber": {"S": "v"}},
        {"ownerName": {"S": "x"}, "leaseDuration": {"N": "5"}, "recordVersionNumber": {"S": "v"}},
        {"ownerName": {"S": "x"}, "leaseDuration": {"S": "٣"}, "recordVersionNumber": {"S": "v"}},
        {"ownerName": {"S": "x"}, "leaseDuration": {"S": "9" * 5000},
         "recordVersionNumber": {"S": "v"}},
        {"ownerName": {"S": "x" * 9_000}},
    ],
)  # fmt: skip
def test_an_item_that_is_no_lock_is_refused_and_never_written_over(item: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match="not dynamodb-lock-client's") as refused:
        item_of({"key": {"S": "orders"}, **item}, "the lock")
    assert len(str(refused.value)) < 400


def test_a_foreign_item_stays_as_it_was(
    lock: Callable[..., DynamoDBLock], sdk: Any, key: str
) -> None:
    lock().acquire(timeout=5)
    sdk.put_item(TableName=TABLE, Item={"key": {"S": key}, "Info": {"S": "not a lock"}})
    with pytest.raises(StoreError, match="it has Info, key"):
        lock().acquire(timeout=5)
    assert stored(sdk, key) == {"key": key, "Info": "not a lock"}


def test_an_item_of_the_java_client_is_read_with_any_extra_fields() -> None:
    said = {
        "key": {"S": "orders"}, "ownerName": {"S": "o"}, "leaseDuration": {"S": "60000"},
        "recordVersionNumber": {"S": "v"}, "data": {"B": b"x"}, "isReleased": {"S": "1"},
    }  # fmt: skip
    assert item_of(said, "") == LockItem("v", "o", 60_000, True)


def test_no_lock_has_the_key_of_anothers_counter() -> None:
    with pytest.raises(ValueError, match="partition key"):
        DynamoDBLock(TABLE, "x" * 3000)
    assert COUNTER.startswith("#")
