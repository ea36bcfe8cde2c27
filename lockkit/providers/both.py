"""Two locks as one, while the writers of a live table move from the first to the second.

A table's writers cannot all change their lock at the same moment. So each moves in two steps: from
the old lock to both, and then, once no writer takes only the old one, from both to the new one. Any
two writers then share a lock at all times. (Terraform moves a state from DynamoDB to its lock file
in the same way.)
"""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from lockkit import config as settings
from lockkit.errors import LockBusy, LockLost, StoreError
from lockkit.lock.aio import ProcedureHandle
from lockkit.lock.handle import FencingToken, Lock
from lockkit.providers.leased import LeasedLock
from lockkit.runtime import BlockingCall, Procedure, Request, Sleep, carry_out, relay
from lockkit.stores.arguments import refused

T = TypeVar("T")


class DoubleLock:
    """Takes the old lock, then the new one, under one deadline; releases them in reverse.

    It is held while both are held, and lost if either is lost. Fences of two services are not
    comparable: `fences` has both.

    :param old: the lock that every writer takes so far.
    :param new: the lock that every writer is to take.
    :param acquire_timeout: the longest wait of `with`, in seconds; None: the old lock's.
    """

    def __init__(
        self, old: Lock | LeasedLock, new: Lock | LeasedLock, *,
        acquire_timeout: float | None = None,
    ) -> None:
        for name, lock in (("old", old), ("new", new)):
            if not hasattr(lock, "acquiring"):
                raise refused(name, lock, "must be a handle, as open_lock(url) returns it")
        self.old, self.new = old, new
        self.acquire_timeout = old.acquire_timeout
        if acquire_timeout is not None:
            self.acquire_timeout = settings.limit_s(True, acquire_timeout, "acquire_timeout")
        self._busy = old
        self.lane = new.lane

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Return False if either is still held by another at the deadline; then holds neither."""
        limit_s = settings.limit_s(blocking, timeout)
        return carry_out(self.acquiring(limit_s, threading.current_thread()), self.perform)

    def acquiring(self, limit_s: float | None, party: object) -> Procedure[bool]:
        """`acquire` as a procedure of calls and waits."""
        clock = self.old.clock
        ends_ms = math.inf if limit_s is None else clock.boot_ms() + limit_s * 1000
        self._busy = self.old
        if not (yield from _calls(self.old, self.old.acquiring(limit_s, party))):
            return False
        got = False
        try:
            left_s = None if limit_s is None else max(0.0, (ends_ms - clock.boot_ms()) / 1000)
            self._busy = self.new
            got = yield from _calls(self.new, self.new.acquiring(left_s, party))
            if got:
                self.old.assert_held()  # it may have been lost during the wait for the new one
        except GeneratorExit:  # the process is gone and sends nothing more
            raise
        except BaseException:
            yield BlockingCall(partial(self._undo, self.new if got else None, party))
            raise
        if not got:
            yield BlockingCall(partial(self.old.release_by, party))
        return got

    def perform(self, request: Request) -> Any:
        match request:
            case BlockingCall(function):
                return function()
            case Sleep(seconds, woken) if woken is not None:
                return self.old.clock.wait(woken, seconds)
            case _:
                raise AssertionError(f"only calls and waits that can be ended: {request!r}")

    def release(self) -> None:
        """Release both, even if the first fails. Raises `LockLost` if either was lost."""
        self.release_by(threading.current_thread())

    def release_by(self, party: object) -> None:
        """`release`; `party` is the thread or the task that calls it."""
        try:
            self.new.release_by(party)
        finally:
            self.old.release_by(party)

    def renew(self) -> None:
        carry_out(self.renewing(), self.perform)

    def renewing(self) -> Procedure[None]:
        """`renew` as a procedure of calls: one lock after the other."""
        yield BlockingCall(self.old.renew)
        yield BlockingCall(self.new.renew)

    def extend(self) -> None:
        """`renew` under redis-py's name."""
        self.renew()

    def cancel(self) -> bool:
        """Make the `acquire` that waits in another thread give up, and return False."""
        return self.old.cancel() or self.new.cancel()

    def contenders(self) -> list[str] | None:
        """The new lock's contenders; None if its service does not know them."""
        return self.new.contenders()

    def assert_held(self) -> None:
        """Raise `LockLost` unless both are held now. Sends no request."""
        self.old.assert_held()
        self.new.assert_held()

    def owned(self) -> bool:
        return self.old.owned() and self.new.owned()

    def locked(self) -> bool:
        """Whether either lock is held, by any owner."""
        return self.old.locked() or self.new.locked()

    def mark_committed(self) -> None:
        self.old.mark_committed()
        self.new.mark_committed()

    @property
    def fences(self) -> tuple[FencingToken | None, FencingToken | None]:
        return self.old.fence, self.new.fence

    def busy_reason(self) -> str:
        return self._busy.busy_reason()

    def busy_error(self) -> LockBusy:
        return self._busy.busy_error()

    def close(self) -> None:
        self.new.close()
        self.old.close()

    def __enter__(self) -> Self:
        if not self.acquire(timeout=self.acquire_timeout):
            raise self.busy_error()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            self.new.__exit__(kind, error, trace)
        finally:
            self.old.__exit__(kind, error, trace)

    def __str__(self) -> str:
        return f"{self.old} and {self.new}"

    def __repr__(self) -> str:
        return f"<Both {self.old!r} {self.new!r}>"

    def _undo(self, new: Lock | LeasedLock | None, party: object) -> None:
        """After an exception neither lock stays held; the caller gets that exception."""
        for each in (new, self.old):
            try:
                if each is not None:
                    each.release_by(party)
            except (LockLost, StoreError, RuntimeError):
                pass


def _calls(lock: Lock | LeasedLock, procedure: Procedure[T]) -> Procedure[T]:
    """The same procedure, with its requests performed by that lock."""

    def ask(request: Request) -> Procedure[Any]:
        if isinstance(request, Sleep):
            return (yield request)
        return (yield BlockingCall(partial(lock.perform, request)))

    return relay(procedure, ask)


if TYPE_CHECKING:  # the type checker verifies that each handle fulfils the contract

    def _handles(lock: Lock, leased: LeasedLock, both: DoubleLock) -> tuple[ProcedureHandle, ...]:
        return lock, leased, both
