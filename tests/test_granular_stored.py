"""Granular locks on object storage: shared and exclusive, in order, with a limit for a holder."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lock_world import until

from lockkit.clock import Clock
from lockkit.errors import LockBusy, LockLost
from lockkit.providers.leased import ServiceGrant
from lockkit.recipes.errors import OutOfOrder, StripesDiffer
from lockkit.recipes.granular.locks import GranularLocks
from lockkit.recipes.granular.operations import (
    BUCKET_OPERATIONS,
    KEY_OPERATIONS,
    VOLUME_OPERATIONS,
    Level,
)
from lockkit.recipes.granular.queued import NotAQueue, decode
from lockkit.recipes.granular.stored import QueuedLock, StoredGranularLocks
from lockkit.recipes.stripes import index_of

COMMIT, BUCKET = KEY_OPERATIONS["CommitKey"], BUCKET_OPERATIONS["SetProperty"]
STRIPES = dict.fromkeys(Level, 16)
_NAMES = itertools.count()
Make = Callable[..., StoredGranularLocks]


@pytest.fixture
def locks() -> Iterator[Make]:
    url, made = f"memory://granular-{next(_NAMES)}", []

    def one(**options: Any) -> StoredGranularLocks:
        made.append(StoredGranularLocks(url, **{"stripes": STRIPES} | options))
        return made[-1]

    yield one
    for each in made:
        each.close()


def other_key(key: str) -> str:
    """A key of another stripe."""
    names = (f"k{n}" for n in range(99))
    at = index_of(f"v\0b\0{key}", 16)
    return next(each for each in names if index_of(f"v\0b\0{each}", 16) != at)


def test_two_clients_share_a_bucket_and_exclude_each_other_from_a_key(locks: Make) -> None:
    one, other = locks(), locks()
    with one.hold(COMMIT, "v", "b", ["a"]) as held:
        held.assert_held()
        with other.hold(COMMIT, "v", "b", [other_key("a")]):
            queue = other.look(Level.BUCKET, index_of("v\0b", 16))
            assert [each.mode.name for each in queue.entries] == ["READ", "READ"]
        with pytest.raises(LockBusy, match="v/b/a") as busy:
            with other.hold(COMMIT, "v", "b", ["a"], acquire_timeout=0):
                pass
        assert "CommitKey" in str(busy.value)
        assert "see who that is: StoredGranularLocks.look" in str(busy.value)
        with pytest.raises(LockBusy), other.hold(BUCKET, "v", "b", acquire_timeout=0):
            pass
    with other.hold(BUCKET, "v", "b", acquire_timeout=0):
        with pytest.raises(LockBusy), one.hold(COMMIT, "v", "b", ["a"], acquire_timeout=0):
            pass
    assert one.look(Level.BUCKET, index_of("v\0b", 16)).entries == (), "nothing is left"


def test_a_reader_that_comes_later_does_not_overtake_a_writer_that_waits(locks: Make) -> None:
    reader, writer, late = locks(), locks(), locks()
    stripe = index_of("v\0b", 16)
    order: list[str] = []

    def write() -> None:
        with writer.hold(BUCKET, "v", "b"):
            order.append("writer")

    with reader.hold(COMMIT, "v", "b", ["a"]):
        thread = threading.Thread(target=write)
        thread.start()
        until(lambda: len(reader.look(Level.BUCKET, stripe).entries) == 2, 10)
        with pytest.raises(LockBusy):
            with late.hold(COMMIT, "v", "b", ["z"], acquire_timeout=0):
                pass
    thread.join(20)
    assert order == ["writer"]


def test_a_holder_that_takes_too_long_is_reported_and_then_loses_the_lock(locks: Make) -> None:
    mine = locks(ttl_s=3.0, warn_s=0.0, limit_s=0.0)
    with pytest.raises(LockLost, match="limit is 0 s"), mine.hold(BUCKET, "v", "b") as held:
        (lock,) = held.locks.values()
        with pytest.raises(LockLost):
            lock.renew()
        held.assert_held()
    left = mine.look(Level.BUCKET, index_of("v\0b", 16)).entries
    assert left == (), "the others need not wait for the end of its lease"
    warned: list[float] = []
    patient = locks(ttl_s=3.0, warn_s=0.0, on_slow=lambda _lock, seconds: warned.append(seconds))
    with patient.hold(VOLUME_OPERATIONS["SetProperty"], "w") as held:
        until(lambda: warned, 20)
        (lock,) = held.locks.values()
        lock.check_time()
        assert len(warned) == 1, "one warning for each grant"


def test_a_wait_for_the_next_lock_does_not_count_for_the_limit(locks: Make) -> None:
    """A committer shares the bucket while it waits for a key that another one has too long."""
    slow, patient = locks(ttl_s=3.0), locks(ttl_s=3.0, warn_s=0.0, limit_s=0.0)
    done: list[str] = []
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            with patient.hold(COMMIT, "v", "b", ["a"], acquire_timeout=60) as held:
                done.append("began")
                until(lambda: not all(each.owned() for each in held.locks.values()), 20)
        except LockLost as lost:
            failed.append(lost)

    with slow.hold(COMMIT, "v", "b", ["a"]):
        waiter = threading.Thread(target=wait)
        waiter.start()
        stripe, beats = index_of("v\0b", 16), set[int]()

        def renewed() -> bool:
            beats.update(each.beat for each in slow.look(Level.BUCKET, stripe).entries[1:])
            return len(beats) > 3

        until(renewed, 30)
        assert waiter.is_alive() and not done
    waiter.join(60)
    assert done == ["began"], failed
    assert "v/b" in str(failed[0]) and "its limit is 0 s" in str(failed[0])


def test_a_slow_holder_is_logged_with_its_key(
    locks: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with locks(ttl_s=3.0, warn_s=0.0).hold(COMMIT, "v", "b", ["a/key"]) as held:
        until(lambda: caplog.text.count(" is held for ") == len(held.locks), 20)
    assert "v/b/a/key (memory://" in caplog.text and "v/b (memory://" in caplog.text


def test_a_limit_ends_a_hold_when_it_is_over_and_not_at_the_next_renewal(locks: Make) -> None:
    slow: list[float] = []
    hasty = locks(
        ttl_s=3_600.0, warn_s=0.1, limit_s=0.2, on_slow=lambda _lock, s: slow.append(1 / (s - s))
    )
    with pytest.raises(LockLost, match=r"v/b/a was held .* its limit is 0\.2 s"):
        with hasty.hold(COMMIT, "v", "b", ["a"]) as held:
            until(lambda: not any(each.owned() for each in held.locks.values()), 60)
    assert not slow, "on_slow raised, and the limit was kept all the same"
    with locks().hold(COMMIT, "v", "b", ["a"], acquire_timeout=0):
        pass


def test_an_on_slow_that_blocks_delays_no_limit(locks: Make) -> None:
    blocked = threading.Event()
    hasty = locks(
        ttl_s=3_600.0, warn_s=0.0, limit_s=0.1, on_slow=lambda _lock, _s: blocked.wait(60)
    )
    try:
        with pytest.raises(LockLost, match=r"its limit is 0\.1 s"):
            with hasty.hold(COMMIT, "v", "b", ["a"]) as held:
                until(lambda: not any(each.owned() for each in held.locks.values()), 30)
    finally:
        blocked.set()


def test_a_holder_that_was_stalled_beyond_its_limit_learns_it_at_its_first_question(
    locks: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    mine = locks(ttl_s=3_600.0, limit_s=600.0, clock=clock)
    with pytest.raises(LockLost, match="its limit is 600 s"):
        with mine.hold(COMMIT, "v", "b", ["a"]) as held:
            held.assert_held()
            boot_ms = clock.boot_ms
            monkeypatch.setattr(clock, "boot_ms", lambda: boot_ms() + 900_000)
            with pytest.raises(LockLost, match="its limit is 600 s"):
                held.assert_held()


def test_the_time_of_a_release_does_not_count_for_the_limit(
    locks: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    late, give_back = 0, QueuedLock._give_back

    def slowly(lock: QueuedLock, taken: ServiceGrant) -> None:
        nonlocal late
        late += 100_000
        lock.check_time()  # as the thread that watches the time does
        give_back(lock, taken)

    boot_ms = clock.boot_ms
    monkeypatch.setattr(clock, "boot_ms", lambda: boot_ms() + late)
    monkeypatch.setattr(QueuedLock, "_give_back", slowly)
    with locks(ttl_s=3_600.0, limit_s=60.0, clock=clock).hold(COMMIT, "v", "b", ["a"]):
        pass
    assert late == 200_000


@pytest.mark.parametrize("name", ["limit_s", "warn_s"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, "x", True])
def test_a_limit_that_is_no_time_is_refused_by_its_name(
    name: str, value: object, locks: Make
) -> None:
    for make in (locks, GranularLocks):
        with pytest.raises(ValueError, match=f"{name}=.* must be a number of seconds, from 0"):
            make(**{name: value})


def test_an_order_that_could_deadlock_is_refused_and_so_are_other_numbers(locks: Make) -> None:
    mine = locks()
    with mine.hold(COMMIT, "v", "b", ["a"]):
        with pytest.raises(OutOfOrder), mine.hold(BUCKET, "v", "b"):
            pass
    other = locks(stripes=dict.fromkeys(Level, 8))
    with pytest.raises(StripesDiffer), other.hold(BUCKET, "v", "b"):
        pass


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[1]", b'{"format":2}', b'{"format":1,"epoch":1,"entries":[{}]}'],
)
def test_an_object_that_is_not_a_queue_never_counts_as_a_free_lock(body: bytes) -> None:
    with pytest.raises(NotAQueue):
        decode("key/1.json", body, "v1")
