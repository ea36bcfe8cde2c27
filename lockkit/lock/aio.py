"""The lock for asyncio: `async with AsyncLock(url): ...`, over the procedures that `Lock` runs.

What goes to the store goes through a thread, so the event loop never waits for it; waiting between
two looks is asyncio's own. The lease is renewed by threads, also while the event loop is blocked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from lockkit import config as settings
from lockkit.errors import LockBusy, LockLost, StoreError
from lockkit.lock import grant
from lockkit.lock.handle import Cancelled, FencingToken, Lock, warn_late
from lockkit.runtime import BlockingCall, Procedure, Request, Sleep

T = TypeVar("T")


class AsyncLock:
    """A `Lock` whose waiting blocks no event loop. It takes what `Lock` takes.

    A task that is cancelled while it acquires gives back what it had won, or may yet win, before
    `CancelledError` goes on: that takes as long as the request under way, and 5 s at most for the
    release. A release that has begun ends, cancelled or not. The lease is renewed until it is
    released, or until the event loop's thread ends. `on_danger(lock)` and `on_lost(lock, why)` get
    the `Lock` and are called from a thread: use `loop.call_soon_threadsafe`. Opening the store's
    client in the constructor may take a moment.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._lock = Lock(url, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: asyncio.Event | None = None

    # --- acquire and release ----------------------------------------------------------------------

    async def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """As `Lock.acquire`: False if it was not free in time, or `cancel` ended the wait."""
        limit_s = settings.limit_s(blocking, timeout)
        with self._lock.acquires() as client:
            self._loop, self._woken = asyncio.get_running_loop(), asyncio.Event()
            try:
                return await self._carry_out(self._lock.claim(limit_s))
            except Cancelled:
                return False
            except BaseException as error:  # a cancellation may come after the grant
                if client.state.grant is not None:
                    interrupted = not isinstance(error, Exception)
                    await self._carry_out(grant.undo(client, interrupted=interrupted))
                raise
            finally:
                self._woken = None

    async def release(self) -> None:
        """As `Lock.release`."""
        await _in_thread(self._lock.release)

    async def renew(self) -> None:
        """As `Lock.renew`: extend the lease now. Raises `LockLost` if it is no longer ours."""
        self._lock.check()
        await self._carry_out(grant.renew(self._lock._client, self._lock.check))

    async def extend(self) -> None:
        """`renew` under redis-py's name."""
        await self.renew()

    def cancel(self) -> bool:
        """As `Lock.cancel`, from any thread: the `acquire` that waits returns False."""
        cancelled, loop, woken = self._lock.cancel(), self._loop, self._woken
        if cancelled and loop is not None and woken is not None:
            with suppress(RuntimeError):  # the loop is closed: nothing waits
                loop.call_soon_threadsafe(woken.set)
        return cancelled

    # --- what is known without a request ----------------------------------------------------------

    @property
    def url(self) -> str:
        return self._lock.url

    @property
    def timeout(self) -> float | None:
        """The longest wait of `async with`, its constructor's `acquire_timeout`."""
        return self._lock.timeout

    @property
    def fence(self) -> FencingToken:
        """The guard for a commit under this grant. Raises `LockLost` if there is none."""
        return self._lock.fence

    def check(self) -> None:
        """Raise `LockLost` unless this handle may act as the holder at this moment."""
        self._lock.check()

    def owned(self) -> bool:
        return self._lock.owned()

    def published(self) -> None:
        """Say that the work is published: losing the lease is then only a warning."""
        self._lock.published()

    def contenders(self) -> list[str] | None:
        """None: an object store knows of no waiters."""
        return self._lock.contenders()

    def busy_because(self) -> str:
        return self._lock.busy_because()

    def busy_error(self) -> LockBusy:
        return self._lock.busy_error()

    # --- the rest ---------------------------------------------------------------------------------

    async def locked(self) -> bool:
        """Whether anybody holds it. One read."""
        return await _in_thread(self._lock.locked)

    async def close(self) -> None:
        """As `Lock.close`: stop renewing, close the store's client. Does not release."""
        if self._woken is not None:
            self._woken.set()
        await _in_thread(self._lock.close)

    async def __aenter__(self) -> AsyncLock:
        if not await self.acquire(timeout=self.timeout):
            raise self.busy_error()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        try:
            await self.release()
        except (LockLost, StoreError, RuntimeError, Warning) as failed:
            if error is None:
                raise
            warn_late(error, failed)

    def __str__(self) -> str:
        return str(self._lock)

    def __repr__(self) -> str:
        return f"<Async{repr(self._lock)[1:]}"

    # --- the interpreter --------------------------------------------------------------------------

    async def _carry_out(self, procedure: Procedure[T]) -> T:
        """Each request in a thread, each wait in the event loop; errors are met at the request."""
        try:
            request = procedure.send(None)
            while True:
                try:
                    answer = await self._perform(request)
                except BaseException as error:  # noqa: BLE001 - handed on, not swallowed
                    request = procedure.throw(error)
                else:
                    request = procedure.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result

    async def _perform(self, request: Request) -> Any:
        match request:
            case Sleep(seconds):
                return await self._sleep(seconds)
            case BlockingCall(function):
                return await _in_thread(function)
            case _:
                return await _in_thread(lambda: self._lock._client.carry_out(_alone(request)))

    async def _sleep(self, seconds: float) -> None:
        woken = self._woken
        if woken is None:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(woken.wait(), max(0.0, seconds))
        woken.clear()
        self._lock.check_wait()


def _alone(request: Request) -> Procedure[Any]:
    return (yield request)


async def _in_thread(function: Callable[[], T]) -> T:
    """What `function` returns. It has ended when this ends, also when the task is cancelled."""
    under_way = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(under_way)
    except asyncio.CancelledError:
        while not under_way.done():
            with suppress(asyncio.CancelledError, Exception):
                await asyncio.shield(under_way)
        if not under_way.cancelled():
            under_way.exception()  # it is known to be lost with the cancellation
        raise
