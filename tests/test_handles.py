"""What every lock handle offers, `cancel` and `contenders` among it; and the one for asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lockkit import AsyncLock, Lock, LockBusy, LockHandle, LockLost, open_store
from lockkit.providers.both import DoubleLock
from lockkit.providers.filesystem import FilesystemLock
from lockkit.providers.process import ProcessLock

TTL_S = 30.0
SOON_S = 5.0
"""Well before a lease of `TTL_S` ends: whoever gets the lock by then did not wait for it to."""


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}/t"


def make(kind: str, name: str, folder: Path) -> Callable[[], LockHandle]:
    match kind:
        case "storage":
            return lambda: Lock(f"memory://{name}/t", ttl_s=TTL_S)
        case "process":
            return lambda: ProcessLock(name)
        case "filesystem":
            return lambda: FilesystemLock(folder)
    return lambda: DoubleLock(ProcessLock(name), Lock(f"memory://{name}/t", ttl_s=TTL_S))


@pytest.fixture(params=["storage", "process", "filesystem", "both"])
def handle(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], LockHandle]:
    return make(request.param, uuid.uuid4().hex, tmp_path)


# --- every handle ---------------------------------------------------------------------------------


def test_every_handle_keeps_the_contract(handle: Callable[[], LockHandle]) -> None:
    lock = handle()
    assert isinstance(lock, LockHandle)
    with lock:
        lock.extend()
        lock.assert_held()
    with pytest.raises(LockLost):
        lock.extend()
    lock.close()


@contextmanager
def waiting(lock: LockHandle) -> Iterator[list[bool]]:
    """A thread waits for the lock; what its `acquire` returned is in the list afterwards."""
    got: list[bool] = []
    thread = threading.Thread(target=lambda: got.append(lock.acquire(timeout=60)))
    thread.start()
    try:
        yield got
    finally:
        thread.join(SOON_S)
        assert not thread.is_alive()


def test_a_waiter_that_is_cancelled_returns_false_and_can_acquire_later(
    handle: Callable[[], LockHandle],
) -> None:
    holder, waiter = handle(), handle()
    assert not waiter.cancel(), "nothing is waited for"
    with holder, waiting(waiter) as got:
        began = time.monotonic()
        while not waiter.cancel():
            assert time.monotonic() - began < SOON_S
    assert got == [False]
    assert waiter.acquire(timeout=SOON_S)
    waiter.release()


def test_contenders_are_the_holder_and_then_those_that_wait(tmp_path: Path) -> None:
    name = uuid.uuid4().hex
    holder, waiter = ProcessLock(name), ProcessLock(name, owner="second")
    with holder, waiting(waiter):
        began = time.monotonic()
        while len(holder.contenders()) < 2:
            assert time.monotonic() - began < SOON_S
        assert holder.contenders() == [f"thread {threading.current_thread().name}", "second"]
        waiter.cancel()
    assert holder.contenders() == []
    assert FilesystemLock(tmp_path).contenders() is None


# --- asyncio, over every handle -------------------------------------------------------------------


def test_every_handle_can_be_awaited(handle: Callable[[], Any]) -> None:
    async def go() -> None:
        one, two = AsyncLock(handle()), AsyncLock(handle())
        async with one:
            one.assert_held()
            await one.extend()
            assert not await asyncio.create_task(two.acquire(timeout=0.05))
            waits = asyncio.create_task(two.acquire(timeout=SOON_S))
            await asyncio.sleep(0.05)
            assert not waits.done()
        assert await waits, "the waiter gets it when the holder lets go"
        await two.release()
        assert not await one.locked()

    asyncio.run(go())


def test_a_waiting_task_of_every_handle_can_be_cancelled(handle: Callable[[], Any]) -> None:
    async def go() -> None:
        one, two = AsyncLock(handle()), AsyncLock(handle())
        async with one:
            by_hand, by_task = asyncio.create_task(two.acquire()), AsyncLock(handle())
            while not two.cancel():
                await asyncio.sleep(0.01)
            assert not await by_hand
            task = asyncio.create_task(by_task.acquire())
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not by_task.owned()
        assert await two.acquire(timeout=SOON_S), "the cancelled task stands in nobody's way"
        await two.release()

    asyncio.run(go())


@pytest.mark.parametrize("turns", range(1, 25))
def test_a_task_cancelled_at_any_await_leaves_nothing_held(
    handle: Callable[[], Any], turns: int
) -> None:
    """After so many turns of the event loop, with a short wait beside them for the threads."""

    async def go() -> None:
        lock = AsyncLock(handle())
        task = asyncio.create_task(lock.acquire())
        for _ in range(turns):
            await asyncio.sleep(0.0002 if turns % 2 else 0)
        if task.done() or not task.cancel():
            await lock.release()
        else:
            try:
                await task
            except asyncio.CancelledError:
                assert not lock.owned()
            else:
                await lock.release()
        async with AsyncLock(handle()):
            pass

    asyncio.run(asyncio.wait_for(go(), SOON_S))


def test_a_task_cannot_take_its_process_lock_twice_and_another_task_waits() -> None:
    name = uuid.uuid4().hex

    async def go() -> None:
        async with AsyncLock(ProcessLock(name)) as one:
            with pytest.raises(RuntimeError, match="this task holds it already"):
                await AsyncLock(ProcessLock(name)).acquire()
            other = AsyncLock(ProcessLock(name))
            waits = asyncio.create_task(other.acquire())
            await asyncio.sleep(0.01)
            with pytest.raises(RuntimeError, match="must release it"):
                await asyncio.create_task(one.release())
        assert await waits
        await other.release()  # the task that took it has ended

    asyncio.run(go())


# --- asyncio --------------------------------------------------------------------------------------


def test_the_lock_is_held_within_async_with_and_excludes_others(url: str) -> None:
    async def go() -> tuple[int, int]:
        async with AsyncLock(url, ttl_s=TTL_S) as one:
            one.assert_held()
            await one.extend()
            assert await AsyncLock(url, ttl_s=TTL_S).locked()
            with pytest.raises(LockBusy):
                async with AsyncLock(url, ttl_s=TTL_S, acquire_timeout=0.1):
                    pass
            first = one.fence.epoch
        assert not one.owned()
        async with AsyncLock(url, ttl_s=TTL_S) as two:
            return first, two.fence.epoch

    assert asyncio.run(go()) == (1, 2)


def test_a_waiter_leaves_the_event_loop_to_others(url: str) -> None:
    async def go() -> bool:
        one, two = AsyncLock(url, ttl_s=TTL_S), AsyncLock(url, ttl_s=TTL_S)
        assert await one.acquire()
        waits = asyncio.create_task(two.acquire(timeout=SOON_S))
        await asyncio.sleep(0)
        await one.release()  # would never run beside a wait that blocks
        return await waits

    assert asyncio.run(go())


def test_more_waiters_than_threads_do_not_keep_the_holder_from_its_release(url: str) -> None:
    async def go() -> None:
        async def turn() -> None:
            async with AsyncLock(url, ttl_s=TTL_S):
                await asyncio.sleep(0)

        await asyncio.gather(*(turn() for _ in range(40)))

    asyncio.run(go())


def test_cancel_ends_a_wait_from_another_thread(url: str) -> None:
    async def go() -> bool:
        one, two = AsyncLock(url, ttl_s=TTL_S), AsyncLock(url, ttl_s=TTL_S)
        async with one:
            waits = asyncio.create_task(two.acquire())
            while not await asyncio.to_thread(two.cancel):
                await asyncio.sleep(0)
            return await waits

    assert not asyncio.run(go())


def test_the_lease_is_renewed_while_the_event_loop_is_blocked(url: str) -> None:
    async def go() -> None:
        async with AsyncLock(url, ttl_s=1.0) as lock:
            time.sleep(2.5)
            lock.assert_held()

    asyncio.run(go())


class CancelsAt:
    """A store in whose n-th request, once it is done, a task is cancelled."""

    def __init__(self, url: str, number: int) -> None:
        self._store, self._left = open_store(url), number
        self.cancel: Callable[[], Any] = bool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, *args: Any, **options: Any) -> Any:
        return self._counted(self._store.get(*args, **options))

    def put(self, *args: Any, **options: Any) -> Any:
        return self._counted(self._store.put(*args, **options))

    def _counted(self, answer: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            self.cancel()
        return answer


@pytest.mark.parametrize("number", range(1, 5))
def test_a_cancelled_task_leaves_nothing_held_and_nothing_renewed(url: str, number: int) -> None:
    """In the look, the claim, the release; and in no request at all, under the lock."""
    store: Any = CancelsAt(url, number)
    lock = AsyncLock(url, ttl_s=TTL_S, store=store)

    async def use() -> None:
        async with lock:
            await asyncio.sleep(0)
            await asyncio.Event().wait() if number > 3 else await asyncio.sleep(0)

    async def go() -> None:
        task, loop = asyncio.create_task(use()), asyncio.get_running_loop()
        store.cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        if number > 3:
            while not lock.owned():
                await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())
    assert not lock.owned()
    rival, began = Lock(url, ttl_s=TTL_S), time.monotonic()
    assert rival.acquire(timeout=SOON_S)
    assert time.monotonic() - began < SOON_S
    rival.release()
