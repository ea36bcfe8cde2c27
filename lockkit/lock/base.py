"""The handle of a lock, whatever grants it: acquire, hold, renew, release.

`grant` has the steps, `renewal` the threads, and a `LeaseClient` sends requests to the store or the
service. This is the part that a program uses. `Lock` and the locks of other services add only what
is specific to them.

One file because it is one class: its public methods, and the checks that refuse wrong use.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

from lockkit import config as settings
from lockkit.errors import LockBusy, LockLost, StoreError, masked
from lockkit.lock import grant
from lockkit.lock.client import LeaseClient, Wakeup
from lockkit.lock.renewal import Renewer
from lockkit.runtime import Procedure, Request, Sleep, relay


class UnprovenRelease(UserWarning):
    """The release was never confirmed; the lease ends by itself."""


class LateLoss(UserWarning):
    """The lease was lost, but only after the work under it was published."""


class CallbackFailed(RuntimeWarning):
    """A loss callback raised. The lease is not affected."""


class Cancelled(Exception):
    """Another thread called `cancel` on the waiting handle; `acquire` returns False."""


class AcquireWait:
    """The acquire of a handle that may be in progress; other threads may cancel it."""

    def __init__(self) -> None:
        self.woken = Wakeup()
        """Ends a wait early; then `raise_if_cancelled` gives the reason."""
        self._for: threading.Event | None = None
        self._turn = threading.Lock()
        self._under_way = self._cancelled = False

    def begin(self) -> bool:
        """Return False if another thread is already acquiring this handle."""
        with self._turn:
            begun, self._under_way = not self._under_way, True
            return begun

    def end(self) -> None:
        with self._turn:
            self._under_way = self._cancelled = False
            self.woken.clear()

    def cancel(self) -> bool:
        """Return False if no acquire is in progress."""
        with self._turn:
            if self._under_way:
                self._cancelled = True
                self.wake()
            return self._under_way

    def wake(self) -> None:
        """End the current wait and the next one."""
        self.woken.set()
        if self._for is not None:
            self._for.set()

    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled`, once."""
        with self._turn:
            if self._cancelled:
                self._cancelled = False
                self.woken.clear()
                raise Cancelled

    def wait(self, sleep: Sleep) -> Procedure[None]:
        """The same wait, which `wake` ends."""
        self._for = sleep.woken or self.woken
        if not self.woken.is_set():
            yield Sleep(sleep.seconds, self._for)
        self._for = None


@dataclass(frozen=True, slots=True)
class FencingToken:
    """The guard that a commit attaches to its write: the grant that it belongs to."""

    epoch: int
    owner: str


class BaseLock(ABC):
    """The common part of all lock handles. One handle has one holder at a time."""

    _client: LeaseClient
    on_danger: Callable[[Any], None] | None
    on_lost: Callable[[Any, str], None] | None

    def __init__(
        self, url: str, client: LeaseClient, *, lane: str, acquire_timeout: float | None
    ) -> None:
        self.url, self._client, self.clock = url, client, client.clock
        self.lane = lane
        self.acquire_timeout = settings.limit_s(True, acquire_timeout, "acquire_timeout")
        self._waiting = AcquireWait()
        self._closed = threading.Event()
        self._committed = False
        self._pid = os.getpid()

    # --- the public face -------------------------------------------------------------------------

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take the lock; False if another owner still holds it at the deadline.

        `timeout=None` waits for ever, 0 tries once. After an exception nothing stays held.
        """
        return self._acquire(settings.limit_s(blocking, timeout))

    def _acquire(self, limit_s: float | None, beside: Callable[[bool], None] | None = None) -> bool:
        with self._acquires(threading.current_thread(), beside) as client:
            try:
                return client.carry_out(self._claim(limit_s))
            except Cancelled:
                return False
            except BaseException as error:  # an interrupt may come after the grant
                if client.grant is not None:
                    interrupted = not isinstance(error, Exception)
                    client.carry_out(grant.undo(client, interrupted=interrupted))
                raise

    def cancel(self) -> bool:
        """Make the `acquire` that waits in another thread stop and return False.

        Returns False if none is waiting. An `acquire` that was just granted still returns True.
        """
        return self._waiting.cancel()

    def contenders(self) -> list[str] | None:
        """The owners that hold or await the lock, in order; None: the service does not know."""
        return None

    def release(self) -> None:
        """Release the lock. Raises `LockLost` if it was lost before the work was published.

        Retries after every transient answer; warns (`UnprovenRelease`) if none was definite.
        """
        self.release_by(threading.current_thread())

    def renew(self) -> None:
        """Prove and extend the grant now. Raises `LockLost` if it is no longer ours."""
        self._guard_process()
        self._client.carry_out(self.renewing())

    def extend(self) -> None:
        """`renew` under redis-py's name: the lease's full length starts again now."""
        self.renew()

    def assert_held(self) -> None:
        """Raise `LockLost` unless this handle may act as the holder now. Sends no request."""
        self._guard_process()
        renewal = self._client.renewal
        if renewal is not None:
            renewal.used()
        grant.assert_held(self._client, self)

    def owned(self) -> bool:
        """Whether this handle holds it, by its own knowledge. Sends no request."""
        return self._pid == os.getpid() and self._client.believes()

    @abstractmethod
    def locked(self) -> bool:
        """Whether the lock is held, by any owner. One read."""

    def mark_committed(self) -> None:
        """Declare the work under the lock published: losing the lease is then only a warning."""
        self._committed = True

    def busy_reason(self) -> str:
        """The owner, its end and the next step, as text."""
        return str(self.busy_error())

    def busy_error(self) -> LockBusy:
        """The error for a lock that was not free, with owner, epoch and end as fields."""
        return self._client.busy_error()

    def close(self) -> None:
        """Stop renewing and close the client. Does not release: an abandoned lease expires.

        A thread that waits in `acquire` gets a `RuntimeError`.
        """
        if self._pid != os.getpid():
            return  # the parent process owns the connections
        self._closed.set()
        self._waiting.wake()
        self._client.closed = True
        grant.stop_renewing(self._client)
        self._shut()

    def __enter__(self) -> Self:
        if not self.acquire(timeout=self.acquire_timeout):
            raise self.busy_error()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        leave(self.release, error)

    def __repr__(self) -> str:
        from lockkit.lock.oddities import standing  # only few programs show a handle

        closed = "closed" if self._closed.is_set() else "not held"
        said = standing(self._client, self.owner) or closed
        return masked(f"<{type(self).__name__} {self.url}: {said}>")

    # --- as procedures, for threads and for asyncio ----------------------------------------------

    def acquiring(self, limit_s: float | None, party: object) -> Procedure[bool]:
        """`acquire` as a procedure; `party` is the calling task."""
        with self._acquires(party) as client:
            try:
                return (yield from self._claim(limit_s))
            except Cancelled:
                return False
            except GeneratorExit:  # the process is gone and sends nothing more
                raise
            except BaseException as error:  # a cancellation may come after the grant
                if client.grant is not None:
                    yield from grant.undo(client, interrupted=not isinstance(error, Exception))
                raise

    def _interruptible(self, request: Request) -> Procedure[Any]:
        if not isinstance(request, Sleep):
            return (yield request)
        yield from self._waiting.wait(request)
        if self._closed.is_set():
            raise RuntimeError(f"{self}: closed while it waited")
        self._waiting.raise_if_cancelled()

    @contextmanager
    def _acquires(
        self, party: object, beside: Callable[[bool], None] | None = None
    ) -> Iterator[LeaseClient]:
        """Allow one acquire at a time, and only if nothing is held."""
        self._guard_process()
        if not self._waiting.begin():
            raise RuntimeError(f"{self}: two threads acquire one handle; give each its own")
        try:
            self._guard_double_use()
            self._committed = False
            self._prepare(party, beside)
            yield self._client
        finally:
            self._prepare(None, None)
            self._waiting.end()

    def _claim(self, limit_s: float | None) -> Procedure[bool]:
        user = threading.current_thread()
        claim = grant.acquire(
            self._client, limit_s, floor=self._floor(), hold=lambda: self._hold(user),
            test=self._test,
        )  # fmt: skip
        return relay(claim, self._interruptible)

    def _hold(self, user: threading.Thread) -> Renewer | None:
        if self._client.renew_ms is None:
            return None
        us = weakref.ref(self)
        return Renewer(
            self._client, user, lives=lambda: us() is not None, report=_reporter(us, self._client)
        )

    def perform(self, request: Request) -> Any:
        """One request of `acquiring` or `renewing`, except `Sleep`."""
        return self._client.perform(request)

    def renewing(self) -> Procedure[None]:
        """`renew` as a procedure."""
        return grant.renew(self._client, self.assert_held)

    def release_by(self, party: object) -> None:
        """`release`; `party` is the thread or the task that calls it."""
        self._guard_process()
        self._guard_release(party)
        self._conclude(self._client.carry_out(grant.release(self._client)))

    def _conclude(self, ended: grant.GrantEnd | None) -> None:
        """Report to the user how a grant ended."""
        if ended is None:
            raise RuntimeError(f"{self}: released, but not held by this handle")
        if not ended.proven:
            text = f"{self}: the release had no answer; the lock ends with its lease"
            warnings.warn(UnprovenRelease(text), stacklevel=4)
        loss = ended.loss
        if loss and not self._committed:
            raise grant.lost_error(self, loss, "repeat the work that was not published")
        if loss:
            text = f"{self}: {loss.why}, after the work was published"
            warnings.warn(LateLoss(text), stacklevel=4)

    # --- what a kind of lock overrides -----------------------------------------------------------

    owner: str

    @abstractmethod
    def _shut(self) -> None:
        """Close the connections that this handle opened."""

    def _prepare(  # noqa: B027 - most need not know
        self, party: object, beside: Callable[[bool], None] | None
    ) -> None:
        """An acquire begins for this party; None: it has ended."""

    def _floor(self) -> int:
        """The next grant's epoch must be above this."""
        return 0

    def _guard_release(self, party: object) -> None:  # noqa: B027 - most take any
        """Raise `RuntimeError` where this party may not release."""

    _test: Callable[[float], None] | None = None
    """Checks before the first claim that the store enforces conditions; None: no check needed."""

    # --- refusals --------------------------------------------------------------------------------

    def _guard_double_use(self) -> None:
        if self._closed.is_set():
            raise RuntimeError(f"{self}: this handle was closed; make a new one")
        if self._client.grant is None:
            return
        if self._client.loss:
            raise RuntimeError(f"{self}: the lock was lost; call release(): it raises the reason")
        raise RuntimeError(
            f"{self}: this handle already holds it; it is not reentrant, and two threads need "
            "a handle each"
        )

    def _guard_process(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"{self}: used after fork (made in process {self._pid}); a child that inherits a "
                f"lease would be a second holder: make a new {type(self).__name__} in the child"
            )


def _reporter(us: weakref.ref[BaseLock], client: LeaseClient) -> Callable[[str], None]:
    """Calls the handle's callbacks while the handle exists."""

    def report(kind: str) -> None:
        lock, loss = us(), client.loss
        if lock is None:
            return
        if kind == "danger" and lock.on_danger is not None:
            call("on_danger", lock.on_danger, lock)
        if kind == "lost" and lock.on_lost is not None and loss is not None:
            call("on_lost", lock.on_lost, lock, loss.why)

    def call(name: str, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            callback(*arguments)
        except Exception as error:  # noqa: BLE001 - recorded twice; renewal continues
            text = f"{name} of the lock of {client.where} raised {error!r}"
            client.emit("note", text=text)
            with suppress(CallbackFailed):  # with -W error nothing here could catch it
                warnings.warn(CallbackFailed(text), stacklevel=2)

    return report


def leave(release: Callable[[], None], error: object) -> None:
    """Release at the end of a `with` block; the block's own `error` takes precedence."""
    try:
        release()
    except (LockLost, StoreError, RuntimeError, Warning) as failed:
        if error is None:
            raise
        warn_late(error, failed, stacklevel=4)


def warn_late(error: object, failed: Exception, stacklevel: int = 3) -> None:
    """A release failed at the end of a block that raised `error`; the caller gets `error`."""
    if isinstance(failed, Warning) or (
        isinstance(error, LockLost) and isinstance(failed, LockLost)
    ):
        return  # the user was warned or knows it
    late = LateLoss if isinstance(failed, LockLost) else UnprovenRelease
    with suppress(Warning):  # the block's error takes precedence, even with -W error
        warnings.warn(late(str(failed)), stacklevel=stacklevel)
