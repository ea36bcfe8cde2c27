"""The lock for asyncio: `async with AsyncLock(url): ...`, over the procedures that `Lock` runs.

Requests to the store or the lock service run in a thread, so they never block the event loop.
Waiting between two looks uses asyncio. Threads renew the lease, even while the event loop is
blocked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from os import PathLike
from typing import Any, Protocol, TypeVar

from lockkit import config as settings
from lockkit.errors import LockBusy, LockLost, StoreError
from lockkit.lock.base import warn_late
from lockkit.lock.client import Wakeup
from lockkit.lock.contract import LockHandle
from lockkit.lock.handle import Lock
from lockkit.runtime import Procedure, Request, Sleep
from lockkit.stores.arguments import wrong_kind

T = TypeVar("T")


class ProcedureHandle(LockHandle, Protocol):
    """A lock handle that also offers its methods as procedures, as all of lockkit's do."""

    def acquiring(self, limit_s: float | None, party: object) -> Procedure[bool]: ...

    def renewing(self) -> Procedure[None]: ...

    def release_by(self, party: object) -> None: ...

    def perform(self, request: Request) -> Any: ...


class AsyncLock:
    """A lock handle whose waiting does not block the event loop.

    If a task is cancelled while it acquires, a lock that it has won or may still win is released
    before `CancelledError` is raised. That takes as long as the current request, plus at most 5 s
    for the release. A release that has begun always completes. The lease is renewed until it is
    released, or until the event loop's thread ends. `on_danger(lock)` and `on_lost(lock, why)` get
    the `Lock` and are called from a thread: use `loop.call_soon_threadsafe`. The constructor opens
    the store's client, which may take a moment.

    :param lock: the URL or the path of a `Lock`, or the handle of any lock (`open_lock`, `Both`);
        nothing else may use that handle.
    :param options: the keywords of `Lock`; only with a URL.
    :raises TypeError: for an unknown option, or an option together with a handle.
    """

    def __init__(self, lock: str | PathLike[str] | ProcedureHandle, **options: Any) -> None:
        if isinstance(lock, str | PathLike):
            self._lock: ProcedureHandle = Lock(lock, **options)
            return
        if not hasattr(lock, "acquiring"):
            raise wrong_kind("lock", lock)
        if options:
            raise TypeError(f"{lock} is open already, and takes no {min(options)}=")
        self._lock = lock

    # --- acquire and release ----------------------------------------------------------------------

    async def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """As `Lock.acquire`: False if it was not free in time, or `cancel` ended the wait."""
        limit_s = settings.limit_s(blocking, timeout)
        return await self._carry_out(self._lock.acquiring(limit_s, asyncio.current_task()))

    async def release(self) -> None:
        """As `Lock.release`."""
        await _in_thread(partial(self._lock.release_by, asyncio.current_task()))

    async def renew(self) -> None:
        """As `Lock.renew`: extend the lease now. Raises `LockLost` if it is no longer ours."""
        self._lock.assert_held()
        await self._carry_out(self._lock.renewing())

    async def extend(self) -> None:
        """`renew` under redis-py's name."""
        await self.renew()

    def cancel(self) -> bool:
        """As `Lock.cancel`, from any thread: the waiting `acquire` returns False."""
        return self._lock.cancel()

    # --- what needs no request --------------------------------------------------------------------

    @property
    def acquire_timeout(self) -> float | None:
        """The longest wait of `async with`, its constructor's `acquire_timeout`, in seconds."""
        return self._lock.acquire_timeout

    @property
    def fence(self) -> Any:
        """As the handle's `fence`: the guard for a commit. Raises `LockLost` if it is not held."""
        return getattr(self._lock, "fence")  # noqa: B009 - `Both` has none: two are not comparable

    def assert_held(self) -> None:
        """Raise `LockLost` unless this handle may act as the holder now."""
        self._lock.assert_held()

    def owned(self) -> bool:
        return self._lock.owned()

    def mark_committed(self) -> None:
        """Declare the work published: losing the lease is then only a warning."""
        self._lock.mark_committed()

    def contenders(self) -> list[str] | None:
        """As the handle's. None: the service does not know its waiters (an object store)."""
        return self._lock.contenders()

    def busy_reason(self) -> str:
        return self._lock.busy_reason()

    def busy_error(self) -> LockBusy:
        return self._lock.busy_error()

    # --- the rest ---------------------------------------------------------------------------------

    async def locked(self) -> bool:
        """Whether the lock is held, by any owner. One read."""
        return await _in_thread(self._lock.locked)

    async def close(self) -> None:
        """As `Lock.close`: stop renewing, close the store's client. Does not release."""
        await _in_thread(self._lock.close)

    async def __aenter__(self) -> AsyncLock:
        if not await self.acquire(timeout=self.acquire_timeout):
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
        """Requests run in a thread, waits in the event loop; errors are raised at the request."""
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
        if not isinstance(request, Sleep):
            return await _in_thread(partial(self._lock.perform, request))
        await _slept(request)
        return None


async def _slept(sleep: Sleep) -> None:
    """Wait until the time is over or another thread sets the sleep's event."""
    woken, loop = sleep.woken, asyncio.get_running_loop()
    if not isinstance(woken, Wakeup):
        await asyncio.sleep(max(0.0, sleep.seconds))
        return
    here = asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed: no task waits
            loop.call_soon_threadsafe(here.set)

    woken.then = wake
    try:
        if not woken.is_set():  # it may have been set before `then` was assigned
            with suppress(TimeoutError):
                await asyncio.wait_for(here.wait(), max(0.0, sleep.seconds))
    finally:
        woken.then = None


async def _in_thread(function: Callable[[], T]) -> T:
    """Return what `function` returns. It always completes, even if the task is cancelled."""
    under_way = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(under_way)
    except asyncio.CancelledError:
        while not under_way.done():
            with suppress(asyncio.CancelledError, Exception):
                await asyncio.shield(under_way)
        if not under_way.cancelled():
            under_way.exception()  # marks it as seen; the cancellation replaces it
        raise
