"""The lock as a program uses it: exclusion, waiting, losing, renewing, releasing."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import time
import uuid
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from lock_world import (
    SCHEMES,
    Suspendable,
    Tale,
    add_one,
    as_hudi,
    body,
    counting,
    holder,
    memory,
    overwrite,
    process,
    read_as_hudi,
    record,
    said,
    until,
)

from lockkit.clock import Clock
from lockkit.errors import LockBusy, LockLost, StoreError
from lockkit.lock.handle import LOCK_KEY, LateLoss, Lock
from lockkit.lock.hudi_keys import UnknownKey
from lockkit.lock.oddities import ClockSkew
from lockkit.protocol.policy import Expiry, Policy
from lockkit.protocol.state import Now
from lockkit.sinks import ObserverFailed

QUICK: dict[str, Any] = {"ttl_s": 1.0, "renew_interval_s": 0.1}
TAKES: dict[str, Any] = {"ttl_s": 10.0, "policy": Policy(slack_ms=100)}
"""Memory tells the time to the millisecond: a challenger there need not allow for flooring."""


@pytest.fixture(params=["memory", *SCHEMES])
def place(
    request: pytest.FixtureRequest, bucket: str, shared_emulator: Any
) -> tuple[str, dict[str, Any]]:
    """A table of this test's own: in memory, and behind each of the three real SDKs."""
    if request.param == "memory":
        return memory(), {}
    endpoint = getattr(shared_emulator, request.param)
    return f"{SCHEMES[request.param]}://{bucket}/table", {"endpoint": endpoint}


# --- exclusion -----------------------------------------------------------------------------------


def test_four_processes_that_count_in_one_file_lose_no_count(
    shared_emulator: Any, bucket: str, tmp_path: Path
) -> None:
    path = tmp_path / "count"
    path.write_text("0")
    options = {"endpoint": shared_emulator.s3, "ttl_s": 10.0}
    given = (f"s3://{bucket}/table", options, str(path), 8)
    with process(counting, *given) as (_, a), process(counting, *given) as (_, b):
        with process(counting, *given) as (_, c), process(counting, *given) as (_, d):
            assert [said(each) for each in (a, b, c, d)] == ["done"] * 4
    assert path.read_text() == "32"


@pytest.mark.parametrize("owner", [None, "the same owner"])
def test_ten_threads_with_a_handle_each_exclude_each_other(
    tmp_path: Path, owner: str | None
) -> None:
    url, path = memory(), tmp_path / "count"
    path.write_text("0")

    def count(_: int) -> None:
        lock = Lock(url, ttl_s=10, owner=owner)
        for _ in range(10):
            assert lock.acquire(timeout=60)
            add_one(str(path))
            lock.release()

    with ThreadPoolExecutor(10) as threads:
        list(threads.map(count, range(10)))
    assert path.read_text() == "100"


def test_without_a_lock_the_same_count_comes_out_short(tmp_path: Path) -> None:
    path = tmp_path / "count"
    path.write_text("0")
    with ThreadPoolExecutor(10) as threads:
        list(threads.map(lambda _: _try_to_add_one(str(path)), range(100)))
    assert int(path.read_text() or 0) < 100


def _try_to_add_one(path: str) -> None:
    try:
        add_one(path)
    except ValueError:  # it was empty at that moment: someone was writing
        pass


def test_two_handles_of_one_owner_never_write_one_attempt() -> None:
    """If attempts were named by owner, each would take the other's write for its own."""
    url, attempts = memory(), []
    for _ in range(2):
        lock = Lock(url, owner="etl")
        with lock:
            attempts.append(record(lock).attempt)
            assert record(lock).owner == "etl"
    assert len(set(attempts)) == 2
    assert {each.partition("/")[2] for each in attempts} == {"1"}


def test_a_handle_acquires_again_with_a_higher_epoch_after_its_release(
    place: tuple[str, dict[str, Any]]
) -> None:
    url, options = place
    lock, other = Lock(url, **QUICK, **options), Lock(url, **QUICK, **options)
    epochs = []
    for _ in range(3):
        assert lock.acquire(timeout=10)
        assert lock.owned() and other.locked() and not other.owned()
        assert not other.acquire(blocking=False)
        epochs.append(lock.fence.epoch)
        lock.release()
        assert not lock.owned() and not other.locked()
        with other:
            epochs.append(other.fence.epoch)
            assert other.fence.owner == other.owner
    assert epochs == [1, 2, 3, 4, 5, 6]


# --- waiting -------------------------------------------------------------------------------------


def test_a_try_returns_at_once_and_a_timeout_when_it_is_over() -> None:
    url = memory()
    with Lock(url, ttl_s=10):
        other = Lock(url, ttl_s=10)
        began = time.monotonic()
        assert other.acquire(blocking=False) is False
        assert other.acquire(timeout=0) is False
        assert time.monotonic() - began < 3
        assert other.acquire(timeout=0.3) is False
        assert 0.25 < time.monotonic() - began < 8


@pytest.mark.parametrize(
    ("options", "part"),
    [({"timeout": -1}, "None waits for ever"), ({"blocking": False, "timeout": 3}, "no timeout")],
)
def test_a_contradictory_wait_is_refused(options: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        Lock(memory()).acquire(**options)


def test_a_waiter_is_granted_the_lock_soon_after_the_release() -> None:
    url = memory()
    lock, other = Lock(url, ttl_s=10), Lock(url, ttl_s=10)
    lock.acquire()
    with ThreadPoolExecutor(1) as threads:
        got = threads.submit(other.acquire, timeout=10)
        until(lambda: other.busy_reason().find("held by") > 0)
        lock.release()
        began = time.monotonic()
        assert got.result() is True
        assert time.monotonic() - began < 5, "not at the end of a lease"
    other.release()


def test_a_waiter_reads_once_more_when_its_time_is_over() -> None:
    """A waiter that sleeps while others hold the lock must not sleep past its own deadline."""
    url = memory()
    lock, other = Lock(url, ttl_s=10), Lock(url, ttl_s=10)
    lock.acquire()
    for n in range(20):
        other._client.polling.met(f"W{n}")
    other._client.polling.turn_ms = 1000.0  # it would sleep for 2 s
    threading.Timer(0.15, lock.release).start()
    began = time.monotonic()
    assert other.acquire(timeout=0.4)
    assert time.monotonic() - began < 1.9
    other.release()


def test_other_handles_are_counted_whatever_their_owner_and_never_oneself() -> None:
    url = memory()
    first, second, third = (Lock(url, ttl_s=10, owner="one") for _ in range(3))
    for other in (first, second):
        with other:
            assert not third.acquire(timeout=0)
    assert third._client.polling.contenders == 2
    overwrite(first, as_hudi(until_ms=first.clock.wall_ms() + 1000, owner="hudi"))
    assert third.acquire(timeout=30)
    assert third._client.polling.contenders == 3
    third.release()
    third._client.forget()
    assert third.acquire(timeout=0)
    assert third._client.identity.handle not in third._client.polling._met
    third.release()


def test_a_waiter_has_at_most_one_request_out(shared_emulator: Any, bucket: str) -> None:
    url, tale = f"s3://{bucket}/table", Tale()
    lock = Lock(url, endpoint=shared_emulator.s3, ttl_s=5)
    other = Lock(url, endpoint=shared_emulator.s3, ttl_s=5, emit=tale)
    with lock:
        assert not other.acquire(timeout=0.6)
    kinds = [each.kind for each in tale.events if each.kind in ("ask", "answer")]
    assert kinds == ["ask", "answer"] * (len(kinds) // 2)
    assert 3 <= len(kinds) / 2 <= 0.6 / 0.018 + 2  # it waits: no faster than every 20 ms


def test_a_busy_with_block_raises_an_error_with_holder_expiry_and_next_step() -> None:
    url = memory()
    with Lock(url, owner="7f3c0b1e", client="orders", ttl_s=10):
        with pytest.raises(LockBusy) as busy:
            with Lock(url, acquire_timeout=0.05):
                pytest.fail("the block ran without the lock")
    text = str(busy.value)
    assert "'7f3c0b1e'" in text and "/orders'" in text and "epoch 1" in text
    assert re.search(r"until \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", text)
    assert f"lockkit lock show {url}" in text


def test_an_owner_with_markup_and_control_characters_is_escaped() -> None:
    url = memory()
    lock = Lock(url, owner="\x1b[31m<b>\u202e\n" + "x" * 500, ttl_s=10)
    with lock:
        other = Lock(url)
        assert not other.acquire(timeout=0)
    text = other.busy_reason()
    assert "\\x1b[31m<b>\\u202e\\n" in text
    assert text.isprintable() and len(text) < 500


# --- double use ----------------------------------------------------------------------------------


def test_a_handle_is_not_reentrant_and_releases_only_what_it_holds() -> None:
    lock = Lock(memory())
    with pytest.raises(RuntimeError, match="not held by this handle"):
        lock.release()
    with lock:
        with pytest.raises(RuntimeError, match="already holds it"):
            lock.acquire()
        assert lock.owned()
    with pytest.raises(RuntimeError, match="not held by this handle"):
        lock.release()


def test_only_the_holder_can_release() -> None:
    url = memory()
    lock, other = Lock(url), Lock(url, owner="x")
    lock.acquire()
    with pytest.raises(RuntimeError, match="not held by this handle"):
        other.release()
    assert lock.owned() and not record(lock).expired
    lock.release()


def test_two_threads_on_one_handle_are_refused() -> None:
    url = memory()
    lock = Lock(url)
    with Lock(url, ttl_s=10), ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lock.acquire, timeout=0.3)
        until(lambda: "held by" in lock.busy_reason())
        with pytest.raises(RuntimeError, match="two threads acquire one handle"):
            lock.acquire(timeout=0)
        assert waiting.result() is False


def test_of_two_threads_that_release_one_is_refused() -> None:
    lock = Lock(memory())
    lock.acquire()

    def release(_: int) -> str:
        try:
            lock.release()
        except RuntimeError as error:
            return str(error)
        return "released"

    with ThreadPoolExecutor(2) as threads:
        outcomes = sorted(threads.map(release, range(2)))
    assert outcomes[0] == "released" and "not held" in outcomes[1]


@pytest.mark.parametrize("use", ["acquire", "release", "renew", "assert_held", "fence", "locked"])
def test_a_forked_child_is_refused_with_the_reason(use: str) -> None:
    lock = Lock(memory(), ttl_s=10)
    lock.acquire()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of a fork with threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            assert not lock.owned()
            lock.close()  # does nothing to the parent's store
            found = getattr(lock, use)
            found()
        except RuntimeError as error:
            code = 0 if "used after fork" in str(error) and "new Lock" in str(error) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert lock.owned()
    lock.release()


# --- losing it -----------------------------------------------------------------------------------


def lost(lock: Lock, clock: Suspendable) -> None:
    """The machine sleeps through the whole lease."""
    clock.slept_ms += 60_000
    assert not lock.owned()


def test_a_loss_before_publishing_is_raised_on_leaving_with() -> None:
    clock = Suspendable()
    lock = Lock(memory(), ttl_s=10, clock=clock)
    with pytest.raises(LockLost, match="repeat the work"):
        with lock:
            lost(lock, clock)
            with pytest.raises(LockLost, match="start over"):
                lock.assert_held()
    with lock:  # the handle can be used again
        lock.assert_held()


def test_a_loss_after_publishing_is_only_a_warning() -> None:
    clock = Suspendable()
    lock = Lock(memory(), ttl_s=10, clock=clock)
    with pytest.warns(LateLoss, match="after the work was published"):
        with lock:
            lock.mark_committed()
            lost(lock, clock)
    with pytest.raises(LockLost):  # that was the last grant's; this one published nothing
        with lock:
            lost(lock, clock)


def test_the_blocks_own_error_is_not_masked_by_the_loss() -> None:
    clock = Suspendable()
    lock = Lock(memory(), ttl_s=10, clock=clock)
    with pytest.warns(LateLoss), pytest.raises(ZeroDivisionError):
        with lock:
            lost(lock, clock)
            1 / 0


def test_the_blocks_own_error_is_not_masked_by_a_release_by_hand() -> None:
    lock = Lock(memory())
    with pytest.warns(UserWarning, match="not held"), pytest.raises(ZeroDivisionError):
        with lock:
            lock.release()
            1 / 0
    with pytest.raises(RuntimeError, match="not held"):
        with lock:
            lock.release()


def test_after_a_loss_the_handle_must_be_released_before_it_acquires() -> None:
    clock = Suspendable()
    lock = Lock(memory(), ttl_s=10, clock=clock)
    lock.acquire()
    lost(lock, clock)
    with pytest.raises(LockLost):
        lock.renew()
    with pytest.raises(RuntimeError, match=r"holds it|lost it"):
        lock.acquire()
    with pytest.raises(LockLost):
        lock.release()
    assert lock.acquire(timeout=10)
    lock.release()


@pytest.mark.parametrize("by", ["deleted", "taken"])
def test_a_lock_that_was_taken_away_by_hand_is_lost(by: str) -> None:
    reported: list[str] = []
    lock = Lock(memory(), **QUICK, on_lost=lambda _, why: reported.append(why))
    lock.acquire()
    if by == "deleted":
        lock.store.delete(LOCK_KEY)
    else:
        overwrite(lock, as_hudi(until_ms=int(time.time() * 1000) + 60_000))
    until(lambda: reported)
    with pytest.raises(LockLost):
        lock.assert_held()
    with pytest.raises(LockLost):
        lock.release()
    if by == "taken":
        assert read_as_hudi(body(lock) or b"")[0] is False, "somebody else's lock was released"


def test_a_lock_that_was_taken_over_is_lost_even_if_only_the_release_detects_it() -> None:
    lock = Lock(memory(), ttl_s=100, renew_interval_s=10)
    lock.acquire()
    overwrite(lock, as_hudi(until_ms=1, owner="thief", expired=True))
    assert lock.owned()
    with pytest.raises(LockLost, match=r"'thief' .* was in the lock object"):
        lock.release()
    lock.acquire()
    lock.store.delete(LOCK_KEY)
    with pytest.raises(LockLost, match="deleted while it was held"):
        lock.release()


# --- renewing ------------------------------------------------------------------------------------


def renewing(before: set[threading.Thread]) -> list[threading.Thread]:
    """Heartbeats that were begun since."""
    begun = set(threading.enumerate()) - before
    return [thread for thread in begun if thread.name == "lockkit-renew"]


def test_the_heartbeat_renews_at_its_interval_and_keeps_the_epoch() -> None:
    tale, before = Tale(), set(threading.enumerate())
    lock = Lock(memory(), ttl_s=5.0, renew_interval_s=0.1, emit=tale)
    with lock:
        until(lambda: len(tale.of("renewed")) >= 8)
        epochs = {each["epoch"] for each in tale.of("renewed")}
    at = [each.at_ms for each in tale.of("renewed")]
    gaps = sorted(b - a for a, b in pairwise(at))
    assert 80 <= gaps[len(gaps) // 2] <= 1000
    assert epochs == {1}
    count = len(tale.of("renewed"))
    until(lambda: not renewing(before), 5)
    assert len(tale.of("renewed")) == count, "it renews a lock that was released"


def test_a_lease_outlives_its_length_while_it_is_renewed(shared_emulator: Any, bucket: str) -> None:
    def story(kind: str) -> None:
        url, options, tale = memory(), {}, Tale()
        if kind in SCHEMES:
            url = f"{SCHEMES[kind]}://{bucket}-{kind}/table"
            options = {"endpoint": getattr(shared_emulator, kind)}
        lock = Lock(url, ttl_s=5.0, renew_interval_s=0.2, emit=tale, **options)
        lock.acquire()
        ends = time.monotonic() + 5.5
        while time.monotonic() < ends:
            assert lock.owned(), tale.events
            time.sleep(0.05)
        assert not Lock(url, **options).acquire(timeout=0)
        lock.release()

    kinds = ["memory", *SCHEMES]
    with ThreadPoolExecutor(len(kinds)) as threads:
        list(threads.map(story, kinds))


def test_renew_extends_the_lease_at_once() -> None:
    lock = Lock(memory(), ttl_s=100, renew_interval_s=10)
    with lock:
        first = record(lock)
        lock.renew()
        assert record(lock).attempt != first.attempt
        assert record(lock).valid_until_ms >= first.valid_until_ms
        assert record(lock).epoch == first.epoch
    with pytest.raises(LockLost, match="never acquired"):
        lock.renew()


def test_a_dropped_handle_is_neither_renewed_nor_released() -> None:
    url = memory()
    Lock(url, **QUICK).acquire()
    gc.collect()
    other = Lock(url, **TAKES)
    assert not record(other).expired, "garbage collection released a lock"
    assert other.acquire(timeout=10), "a handle that nobody has is renewed for ever"
    other.release()


def test_a_holding_thread_that_has_ended_leaves_no_orphan_heartbeat() -> None:
    """As in Hudi's own test: no thread is left that could release, so the lease expires."""
    url, tale = memory(), Tale()
    lock = Lock(url, **QUICK, emit=tale)
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join()
    assert lock.owned()
    until(lambda: tale.of("lost"), 10)
    assert any("ended without a release" in each["text"] for each in tale.of("note"))
    with Lock(url, **TAKES):
        pass


def test_a_thread_that_works_under_the_lock_keeps_it_alive() -> None:
    lock = Lock(memory(), **QUICK)
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join()
    lock.assert_held()  # this thread uses it now
    time.sleep(1.2)
    lock.assert_held()
    lock.release()


# --- what it costs -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SCHEMES)
def test_a_warm_uncontended_cycle_costs_two_requests(
    shared_emulator: Any, bucket: str, kind: str
) -> None:
    """A pause in which others may acquire takes time, and no request."""
    name = f"c-{uuid.uuid4().hex[:8]}"
    endpoint = getattr(shared_emulator, kind)
    lock = Lock(f"{SCHEMES[kind]}://{bucket}/table", endpoint=endpoint, client=name, ttl_s=100)
    with lock:
        pass
    before = _requests(shared_emulator, name)
    for _ in range(20):
        with lock:
            pass
    assert _requests(shared_emulator, name) - before == 40


def _requests(emulator: Any, client: str) -> int:
    return sum(each["client"] == client for each in emulator.requests())


def test_a_cold_cycle_costs_three_requests_on_a_store_that_is_proven(
    shared_emulator: Any, bucket: str
) -> None:
    """A process tests each endpoint once for conditional writes."""
    tale = Tale()
    with Lock(f"s3://{bucket}/one", endpoint=shared_emulator.s3, ttl_s=100):
        pass
    with Lock(f"s3://{bucket}/two", endpoint=shared_emulator.s3, ttl_s=100, emit=tale):
        pass
    assert tale.ops() == ["look Missing", "acquire Applied", "release Applied"]


# --- the lock file -------------------------------------------------------------------------------


def test_our_lock_file_parses_by_hudis_rules_live_and_released() -> None:
    lock = Lock(memory(), ttl_s=10)
    with lock:
        expired, live_until, owner = read_as_hudi(body(lock) or b"")
        assert (expired, owner) == (False, lock.owner)
        assert 8_000 < live_until - time.time() * 1000 <= 10_000
        assert (body(lock) or b"").startswith(b'{"expired":false,"validUntil":')
    expired, dead_until, owner = read_as_hudi(body(lock) or b"")
    assert (expired, dead_until, owner) == (True, live_until, lock.owner), "Hudi keeps both"
    assert uuid.UUID(owner).version == 4


def test_a_hudi_writers_lease_is_respected_and_taken_500_ms_after_its_end() -> None:
    lock = Lock(memory(), ttl_s=10)
    ends_ms = int(time.time() * 1000) + 300
    overwrite(lock, as_hudi(until_ms=ends_ms))
    assert not lock.acquire(timeout=0)
    assert "a Hudi writer" in lock.busy_reason()
    assert lock.acquire(timeout=10)
    assert time.time() * 1000 > ends_ms + 500
    lock.release()


def test_epochs_continue_after_hudi_dropped_our_fields() -> None:
    lock = Lock(memory(), ttl_s=10)
    for _ in range(3):
        with lock:
            pass
    overwrite(lock, as_hudi(until_ms=1, expired=True))
    with lock:
        assert lock.fence.epoch == 4  # this handle remembers
    overwrite(lock, as_hudi(until_ms=1, expired=True))
    newcomer = Lock(lock.url, ttl_s=10)
    newcomer.observe_epoch(41)  # from the fence
    with newcomer:
        assert newcomer.fence.epoch == 42
    for wrong in (-1, True, "7", 2**63):
        with pytest.raises(ValueError, match=r"not an epoch|epoch="):
            newcomer.observe_epoch(wrong)  # type: ignore[arg-type]


# --- Hudi's configuration ------------------------------------------------------------------------

HUDI = "hoodie.write.lock.storage."


def test_hudis_configuration_passes_over_no_key_in_silence() -> None:
    base = {"hoodie.base.path": memory()}
    with pytest.warns(UnknownKey, match="mean hoodie.write.lock.storage.validity.timeout.secs"):
        Lock.from_hudi(base | {"hoodie.write.lock.storage.validity.timeout.sec": "20"}).close()
    lock = Lock.from_hudi(base | {
        "HOODIE.write.lock.storage.validity.timeout.secs": "20",
        "HOODIE.write.lock.storage.renew.interval.secs": "2",
    })  # fmt: skip
    assert lock._client.identity.ttl_ms == 20_000
    with pytest.raises(ValueError, match=r"provider is empty"):
        Lock.from_hudi(base | {"hoodie.write.lock.provider": ""})
    with pytest.raises(ValueError, match=r"provider names another lock.*open_lock"):
        Lock.from_hudi(base | {"hoodie.write.lock.provider": "x.ZookeeperBasedLockProvider"})
    with pytest.warns(UnknownKey, match=r"access.key has no effect: pass them as options"):
        Lock.from_hudi(base | {"hoodie.aws.access.key": "AKIA"}).close()


def test_hudis_keys_and_defaults_describe_a_lock() -> None:
    lock = Lock.from_hudi({"hoodie.base.path": memory()})
    assert (lock._client.identity.ttl_ms, lock._client.renew_ms, lock.acquire_timeout) == (
        300_000,
        30_000,
        60,
    )
    lock = Lock.from_hudi(
        {
            "hoodie.base.path": memory(),
            HUDI + "validity.timeout.secs": "20",
            HUDI + "heartbeat.poll.secs": "2",  # the older name
            "hoodie.write.lock.wait_time_ms": "1500",
        }
    )
    assert (lock._client.identity.ttl_ms, lock._client.renew_ms, lock.acquire_timeout) == (
        20_000,
        2_000,
        1.5,
    )


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"hoodie.base.path": ""}, "hoodie.base.path is empty"),
        ({HUDI + "validity.timeout.secs": "9"}, "at least 10"),
        ({HUDI + "renew.interval.secs": "0"}, "at least 1"),
        ({HUDI + "validity.timeout.secs": "299"}, "at least 10 renew intervals"),
        ({HUDI + "validity.timeout.secs": "five minutes"}, "timeout.secs is a number"),
        ({"hoodie.write.lock.wait_time_ms": "nan"}, "wait_time_ms is a number"),
    ],
)
def test_an_impossible_hudi_configuration_is_refused(config: dict[str, str], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        Lock.from_hudi({"hoodie.base.path": memory(), **config})


@pytest.mark.parametrize(
    "options",
    [
        {"ttl_s": 10, "renew_interval_s": 1.1},
        {"ttl_s": 10, "renew_interval_s": 0},
        {"ttl_s": 0},
        {"ttl_s": float("nan")},
        {"ttl_s": float("inf")},
        {"ttl_s": 10, "renew_interval_s": float("nan")},
    ],
)
def test_a_lease_that_cannot_be_renewed_in_time_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"ttl_s"):
        Lock(memory(), **options)
    Lock(memory(), ttl_s=1.0, renew_interval_s=0.1)  # exactly ten, in spite of floating point


# --- clocks --------------------------------------------------------------------------------------


HOUR_MS = 3_600_000


@pytest.mark.filterwarnings("ignore::lockkit.lock.oddities.ClockSkew")
def test_a_clock_an_hour_off_breaks_no_exclusion_and_delays_no_takeover() -> None:
    """Only the store's clock counts, not the holder's and not the challenger's."""

    def story(offsets_ms: tuple[int, int]) -> None:
        url = memory()
        holds = Lock(url, **QUICK, clock=Clock(offset_ms=offsets_ms[0]))
        wants = Lock(url, **TAKES, clock=Clock(offset_ms=offsets_ms[1]))
        assert holds.acquire(timeout=10)
        assert not wants.acquire(timeout=1.3), "taken from a holder that renews"
        assert holds.owned()
        holds.close()  # as a crash would: no release, no renewal
        began = time.monotonic()
        assert wants.acquire(timeout=10)
        assert time.monotonic() - began < 1.0 + 0.1 + 1.0  # lease, slack, grace
        wants.release()

    pairs = [(0, HOUR_MS), (0, -HOUR_MS), (HOUR_MS, 0), (-HOUR_MS, 0)]
    with ThreadPoolExecutor(len(pairs)) as threads:
        list(threads.map(story, pairs))


def test_under_the_wall_policy_a_client_an_hour_ahead_takes_a_held_lock() -> None:
    """Why it is not the default: it is safe only if clocks differ by at most `drift + margin`."""
    url, wall = memory(), Policy(expiry=Expiry.WALL)
    holds = Lock(url, ttl_s=10, policy=wall)
    holds.acquire()
    with pytest.warns(ClockSkew):
        ahead = Lock(url, ttl_s=10, policy=wall, clock=Clock(offset_ms=HOUR_MS))
        assert ahead.acquire(timeout=0)
    assert holds.owned() and ahead.owned(), "the limit that the documentation states"
    with pytest.raises(LockLost):
        holds.release()
    ahead.release()


def test_an_offset_over_the_drift_is_warned_of_once_and_shown() -> None:
    url, tale = memory(), Tale()
    with Lock(url):
        pass
    lock = Lock(url, clock=Clock(offset_ms=5_000), emit=tale)
    with pytest.warns(ClockSkew, match=r"differ by about 5\.\d s.*NTP") as reported:
        for _ in range(3):
            lock.acquire()
            lock.release()
            lock._client.forget()  # look again
    assert len(reported) == 1
    assert len(tale.of("note")) == 1
    assert lock.store_offset_ms == pytest.approx(-5_000, abs=100)


@pytest.mark.parametrize("offset_ms", [-400, 0, 1_400], ids=str)
def test_an_offset_that_flooring_explains_is_not_warned_of(offset_ms: int) -> None:
    url = memory()
    with Lock(url):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Lock(url, clock=Clock(offset_ms=offset_ms)):
            pass


# --- loss callbacks ------------------------------------------------------------------------------


def silence(lock: Lock) -> None:
    """From now on the store refuses every request, as after credentials were revoked."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise StoreError("access is denied: the credentials have expired; log in again")

    lock.store.put = lock.store.get = refuse  # type: ignore[method-assign]


def test_danger_is_reported_before_loss_from_the_thread_that_watches_the_clock() -> None:
    reported: list[tuple[str, str]] = []
    tale = Tale()
    lock = Lock(
        memory(),
        **QUICK,
        emit=tale,
        on_danger=lambda _: reported.append(("danger", threading.current_thread().name)),
        on_lost=lambda _, why: reported.append((why, threading.current_thread().name)),
    )
    lock.acquire()
    silence(lock)
    until(lambda: len(reported) == 2)
    assert reported == [
        ("danger", "lockkit-watch"),
        ("the lease ran out before a renewal was proven", "lockkit-watch"),
    ]
    assert [each.kind for each in tale.events if each.kind in ("danger", "lost")] == [
        "danger",
        "lost",
    ]
    assert any("access is denied" in each["text"] for each in tale.of("note"))
    with pytest.raises(LockLost, match="ran out"):
        lock.assert_held()


def test_a_callback_that_raises_costs_neither_lease_nor_loss() -> None:
    def danger(_: Lock) -> None:
        raise ZeroDivisionError("in danger")

    reported: list[str] = []
    tale = Tale()
    lock = Lock(
        memory(), **QUICK, emit=tale, on_danger=danger, on_lost=lambda _, why: reported.append(why)
    )
    with pytest.warns(RuntimeWarning, match="on_danger .* raised ZeroDivisionError"):
        lock.acquire()
        silence(lock)
        until(lambda: reported)
    assert any("on_danger" in each["text"] for each in tale.of("note"))


def test_an_unexpected_exception_in_the_heartbeat_is_reported() -> None:
    reported: list[str] = []
    tale = Tale()
    lock = Lock(memory(), **QUICK, emit=tale, on_lost=lambda _, why: reported.append(why))
    lock.acquire()

    def broken(*_: Any, **__: Any) -> Any:
        raise MemoryError("out of memory")

    put, lock.store.put = lock.store.put, broken  # type: ignore[method-assign]
    until(lambda: tale.of("note"))
    lock.store.put = put  # type: ignore[method-assign]
    until(lambda: len(tale.of("renewed")) >= 3)
    lock.assert_held()  # some beats failed, the next ones did not
    lock.store.put = lock.store.get = broken  # type: ignore[method-assign]
    until(lambda: reported)
    with pytest.raises(LockLost):
        lock.assert_held()


def test_an_exception_in_a_protocol_step_is_reported_as_a_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[str] = []
    lock = Lock(memory(), **QUICK, on_lost=lambda _, why: reported.append(why))
    lock.acquire()

    def broken(*_: Any) -> Any:
        raise AssertionError("a bug of ours")

    monkeypatch.setattr("lockkit.lock.storage.step", broken)
    until(lambda: reported)
    assert "heartbeat died" in reported[0] and "a bug of ours" in reported[0]
    with pytest.raises(LockLost, match="heartbeat died"):
        lock.assert_held()


def test_an_observer_that_fails_costs_no_lease() -> None:
    def broken(kind: str, **_: Any) -> None:
        raise BrokenPipeError(kind)

    lock = Lock(memory(), **QUICK, emit=broken)
    with pytest.warns(ObserverFailed, match="its history has a gap") as reported:
        with lock:
            time.sleep(1.2)
            lock.assert_held()
    assert len(reported) == 1


# --- the end -------------------------------------------------------------------------------------


def test_closing_wakes_a_waiter_and_abandons_the_lease() -> None:
    url = memory()
    lock, other = Lock(url, **QUICK), Lock(url, ttl_s=10)
    lock.acquire()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(other.acquire, timeout=30)
        until(lambda: "held by" in other.busy_reason())
        other.close()
        with pytest.raises(RuntimeError, match="closed while it waited"):
            waiting.result(5)
    with pytest.raises(RuntimeError, match="was closed"):
        other.acquire()
    lock.close()
    assert not record(Lock(url)).expired
    with pytest.warns(UserWarning, match="ends with its lease"):
        lock.release()
    with Lock(url, **TAKES):
        pass


def test_a_hundred_quick_cycles_leave_no_thread() -> None:
    lock, before = Lock(memory(), **QUICK), set(threading.enumerate())
    for _ in range(100):
        with lock:
            pass
    until(lambda: not renewing(before), 5)
    assert record(lock).epoch == 100


# --- what it tells -------------------------------------------------------------------------------


def test_events_join_requests_to_answers_and_grants_to_the_wall_clock(
    shared_emulator: Any, bucket: str
) -> None:
    tale, began_ms = Tale(), time.time() * 1000
    url = f"s3://{bucket}/table"
    lock = Lock(url, endpoint=shared_emulator.s3, ttl_s=10, emit=tale)
    with lock:
        other = Lock(url, endpoint=shared_emulator.s3, emit=(others := Tale()))
        assert not other.acquire(timeout=1)
    asks, answers = tale.of("ask"), tale.of("answer")
    assert [each["request"] for each in asks] == list(range(1, len(asks) + 1))
    assert [each["request"] for each in answers] == [each["request"] for each in asks]
    held = tale.of("held")[0]
    assert began_ms + 8_000 < held["until_ms"] < time.time() * 1000 + 10_000
    waiting, looks = others.of("waiting"), others.of("ask")
    words = 1 + len(tale.of("renewed"))
    assert len(waiting) <= words < len(looks), "who waits says so once, not at every look"
    assert waiting[0]["owner"] == lock.owner and waiting[0]["epoch"] == 1
    stored = {each["attempt"] for each in shared_emulator.requests() if each["bucket"] == bucket}
    assert {each["attempt"] for each in asks if each["op"] in ("acquire", "release")} <= stored


def test_the_moment_of_a_stop_is_counted_from_before_the_request_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = Lock(memory(), ttl_s=10)
    put = lock.store.put

    def slow(*arguments: Any) -> Any:
        time.sleep(0.3)
        return put(*arguments)

    monkeypatch.setattr(lock.store, "put", slow)
    before: Now = lock.clock.now()
    lock.acquire()
    until_ms = lock._client.state.until_ms
    assert until_ms is not None and until_ms <= before.boot_ms + 10_000 - 1_000 + 50
    lock.release()


# --- a process that sleeps -----------------------------------------------------------------------


def test_a_holder_that_was_stopped_for_longer_than_its_lease_has_lost_it(
    shared_emulator: Any, bucket: str
) -> None:
    """A real SIGSTOP. Another client takes over after the lease; the stopped one then sees it."""
    url, options = f"s3://{bucket}/table", {"endpoint": shared_emulator.s3, "ttl_s": 2.0}
    with process(holder, url, options) as (child, pipe), process(holder, url, options) as two:
        for each in (pipe, two[1]):
            assert said(each) == "ready"
            each.send(("acquire", {"timeout": 0}))
            if each is pipe:
                assert said(each) == ("returned", True)
                stop(child.pid)
        assert said(two[1]) == ("returned", False), "a stopped holder still has its lease"
        other = Lock(url, endpoint=shared_emulator.s3, ttl_s=10)
        assert other.acquire(timeout=20)
        go_on(child.pid)
        pipe.send(("assert_held", {}))
        outcome, text = said(pipe)
        assert outcome == "raised" and text.startswith("LockLost")
        pipe.send(("release", {}))
        outcome, text = said(pipe)
        assert outcome == "raised" and text.startswith("LockLost")
        other.assert_held()
        assert record(other).owner == other.owner and not record(other).expired
        other.release()


def test_a_paused_holder_that_resumes_with_a_release_learns_of_its_loss(
    shared_emulator: Any, bucket: str
) -> None:
    url, options = f"s3://{bucket}/table", {"endpoint": shared_emulator.s3, "ttl_s": 1.0}
    with process(holder, url, options) as (child, pipe):
        assert said(pipe) == "ready"
        pipe.send(("acquire", {}))
        assert said(pipe) == ("returned", True)
        stop(child.pid)
        pipe.send(("release", {}))  # it is the first thing that it will do
        time.sleep(1.2)
        go_on(child.pid)
        outcome, text = said(pipe)
        assert outcome == "raised" and text.startswith("LockLost")


def stop(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    state = Path(f"/proc/{pid}/stat")
    if state.exists():
        until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")


def go_on(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGCONT)
