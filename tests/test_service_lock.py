"""The handle of a service's lock, over a service that does as the test says."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from lock_world import until

from lockkit import LockLost, open_lock
from lockkit.errors import LossReason, NoAnswer, StoreError
from lockkit.lock.handle import UnprovenRelease
from lockkit.providers.dynamodb import DynamoDBLock
from lockkit.providers.filesystem import FilesystemLock
from lockkit.providers.holder import ServiceHolder
from lockkit.providers.leased import GrantOver, LeasedLock, NotFree, ServiceGrant
from lockkit.providers.process import ProcessLock

TTL_S, BEAT_S = 1.0, 0.1


class Scripted(LeasedLock):
    """Grants at once; each request does what `script` has for it, else nothing."""

    service = "scripted"

    def __init__(self, ttl_s: float = TTL_S, **options: Any) -> None:
        super().__init__("scripted://x", ttl_s=ttl_s, beat_s=BEAT_S, **options)
        self.script: dict[str, Callable[[], Any]] = {}
        self.asked: list[str] = []

    def _do(self, what: str) -> Any:
        self.asked.append(what)
        return self.script.get(what, lambda: None)()

    def _take(self) -> ServiceGrant | NotFree:
        return self._do("take") or ServiceGrant("grant", 7)

    def _withdraw(self) -> None:
        self._do("withdraw")

    def _beat(self, taken: ServiceGrant) -> None:
        self._do("beat")

    def _give_back(self, taken: ServiceGrant) -> None:
        self._do("give back")

    def _holder(self) -> ServiceHolder | None:
        found: ServiceHolder | None = self._do("look")
        return found

    def _abandon(self) -> None:
        self._do("abandon")


def no_answer() -> None:
    raise NoAnswer("the service is silent")


def not_ours() -> None:
    raise GrantOver("another has it")


def test_danger_and_loss_are_reported_on_time_while_the_service_hangs_in_a_renewal() -> None:
    hangs, heard = threading.Event(), []
    lock = Scripted(
        on_danger=lambda _: heard.append(("danger", time.monotonic())),
        on_lost=lambda _, why: heard.append((why, time.monotonic())),
    )
    lock.script["beat"] = lambda: hangs.wait(30)
    began = time.monotonic()
    lock.acquire()
    until(lambda: len(heard) == 2, 10)
    assert [what for what, _ in heard] == ["danger", "the lease ran out"]
    assert heard[1][1] - began < 5 * TTL_S, "the renewal hangs for 30 s"
    with pytest.raises(LockLost) as lost:
        lock.assert_held()
    assert lost.value.reason is LossReason.EXPIRED
    hangs.set()
    with pytest.raises(LockLost):
        lock.release()


def test_a_renewal_that_is_answered_after_the_end_of_the_lease_revives_nothing() -> None:
    hangs = threading.Event()
    lock = Scripted()
    lock.script["beat"] = lambda: hangs.wait(30)
    lock.acquire()
    until(lambda: not lock.owned(), 10)
    hangs.set()
    until(lambda: not lock._client.renewal or lock._client.renewal.stopped, 10)
    assert not lock.owned()
    with pytest.raises(LockLost):
        lock.release()


def test_a_lost_connection_is_a_danger_at_once_unless_the_next_renewal_is_answered() -> None:
    heard: list[str] = []
    lock = Scripted(ttl_s=300.0, on_danger=lambda _: heard.append("danger"))
    lock.acquire()
    lock._client.beat_s = 300.0
    lock._doubt()
    until(lambda: "beat" in lock.asked, 10)
    assert heard == []
    lock.script["beat"] = no_answer
    lock._doubt()
    until(lambda: heard == ["danger"], 10)
    assert lock.owned()
    lock.release()


def test_a_grant_that_the_service_ends_is_lost_at_once() -> None:
    heard: list[str] = []
    lock = Scripted(ttl_s=300.0, on_lost=lambda _, why: heard.append(why))
    lock.acquire()
    lock._note_lost("the session expired")
    until(lambda: heard == ["the session expired"], 10)
    assert "abandon" in lock.asked
    with pytest.raises(LockLost) as lost:
        lock.release()
    assert lost.value.reason is LossReason.REVOKED


def test_a_release_without_an_answer_is_tried_again_and_then_abandoned() -> None:
    lock = Scripted()
    lock.script["give back"] = no_answer
    lock.acquire()
    with pytest.warns(UnprovenRelease):
        lock.release()
    assert lock.asked.count("give back") > 1 and lock.asked[-1] == "abandon"
    lock.script.clear()
    assert lock.acquire(timeout=0), "the handle is free"
    lock.release()


def test_a_release_that_is_refused_leaves_the_handle_free() -> None:
    def refused() -> None:
        raise StoreError("403")

    lock = Scripted()
    lock.script["give back"] = refused
    lock.acquire()
    with pytest.raises(StoreError, match="403"):
        lock.release()
    assert lock.asked[-1] == "abandon" and not lock.owned()


def test_an_acquire_that_is_never_answered_raises_and_withdraws() -> None:
    lock = Scripted()
    lock.script["take"] = no_answer
    with pytest.raises(NoAnswer):
        lock.acquire(timeout=0.2)
    assert lock.asked[-1] == "withdraw"


def test_a_grant_that_is_answered_too_late_is_released() -> None:
    lock = Scripted(ttl_s=0.2)
    lock.script["take"] = lambda: ServiceGrant("grant", 7, lock.clock.boot_ms() - 1_000)
    with pytest.raises(NoAnswer, match="before the answer came"):
        lock.acquire(timeout=0)
    assert "give back" in lock.asked and not lock.owned()


def test_a_release_finds_that_another_took_the_lock() -> None:
    lock = Scripted()
    lock.script["give back"] = not_ours
    lock.acquire()
    with pytest.raises(LockLost, match="another has it"):
        lock.release()


@pytest.mark.parametrize(
    "url",
    [
        "filesystem:///srv/my%20locks?expire_minutes=5",
        "zookeeper://zk-1:2181,zk-2:2181/hudi/locks/orders?session_timeout_s=20",
        "dynamodb://eu-west-1/locks/orders?endpoint=http://127.0.0.1:8000",
        "azure-lease://lake/orders?endpoint=http://127.0.0.1:10000",
        "hive://127.0.0.1:9083/sales/orders",
    ],
    ids=lambda url: url.partition(":")[0],
)
def test_a_busy_lock_says_how_to_see_its_holder_by_the_url_that_opened_it(url: str) -> None:
    lock = open_lock(url)
    assert str(lock.busy_error()).endswith(f"see who that is: lockkit lock show {shlex.quote(url)}")


def test_a_busy_lock_that_no_url_opened_is_shown_by_its_parts() -> None:
    folder = FilesystemLock("/srv/my locks")
    assert folder.look_by() == "lockkit lock show filesystem:///srv/my%20locks"
    table = DynamoDBLock("locks", "a/b", region="eu-west-1", endpoint_url="http://127.0.0.1:8000")
    there = "dynamodb://eu-west-1/locks/a%2Fb?endpoint=http://127.0.0.1:8000"
    assert table.look_by() == f"lockkit lock show {shlex.quote(there)}"
    assert "lock show" not in ProcessLock("orders").look_by(), "no other process can look"
