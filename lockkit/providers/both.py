"""Two locks as one, while the writers of a live table move from the first to the second.

A table's writers cannot all change their lock at the same moment. So each moves in two steps: from
the old lock to both, and, when no writer is left that takes the old one alone, from both to the new
one. Any two writers then have a lock in common at all times. (Terraform does so where a state moves
from DynamoDB to its lock file.)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

from lockkit import config as settings
from lockkit.errors import LockBusy, LockLost, StoreError
from lockkit.lock.contract import LockHandle
from lockkit.lock.handle import FencingToken, Lock
from lockkit.providers.leased import LeasedLock


class DoubleLock:
    """The old lock, then the new one, under one deadline; given back in reverse.

    It is held while both are, and lost with either. `timeout` is that of `with`, in seconds (None:
    the old lock's). Fences of two services are not comparable: `fences` has that of each.
    """

    def __init__(
        self, old: Lock | LeasedLock, new: Lock | LeasedLock, *, timeout: float | None = None
    ) -> None:
        self.old, self.new = old, new
        self.timeout = old.timeout if timeout is None else timeout
        self._busy = old
        self.lane = new.lane

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """False if either is still somebody else's when the time is over; then none is held."""
        limit_s, clock = settings.limit_s(blocking, timeout), self.old.clock
        ends_ms = math.inf if limit_s is None else clock.boot_ms() + limit_s * 1000
        self._busy = self.old
        if not self.old.acquire(timeout=limit_s):
            return False
        got = False
        try:
            left_s = None if limit_s is None else max(0.0, (ends_ms - clock.boot_ms()) / 1000)
            self._busy = self.new
            got = self.new.acquire(timeout=left_s)
            if got:
                self.old.check()  # it may have been lost while the new one was waited for
        except BaseException:
            self._undo(self.new if got else None)
            raise
        if not got:
            self.old.release()
        return got

    def release(self) -> None:
        """Both, whatever becomes of the first. Raises `LockLost` if either was lost."""
        try:
            self.new.release()
        finally:
            self.old.release()

    def renew(self) -> None:
        self.old.renew()
        self.new.renew()

    def extend(self) -> None:
        """`renew` under redis-py's name."""
        self.renew()

    def cancel(self) -> bool:
        """Make the `acquire` that waits in another thread give up, and return False."""
        return self.old.cancel() or self.new.cancel()

    def contenders(self) -> list[str] | None:
        """Those of the new lock; None where its service does not know them."""
        return self.new.contenders()

    def check(self) -> None:
        """Raise `LockLost` unless both are held at this moment. No request."""
        self.old.check()
        self.new.check()

    def owned(self) -> bool:
        return self.old.owned() and self.new.owned()

    def locked(self) -> bool:
        """Whether anybody holds either."""
        return self.old.locked() or self.new.locked()

    def published(self) -> None:
        self.old.published()
        self.new.published()

    @property
    def fences(self) -> tuple[FencingToken | None, FencingToken | None]:
        return self.old.fence, self.new.fence

    def busy_because(self) -> str:
        return self._busy.busy_because()

    def busy_error(self) -> LockBusy:
        return self._busy.busy_error()

    def close(self) -> None:
        self.new.close()
        self.old.close()

    def __enter__(self) -> Self:
        if not self.acquire(timeout=self.timeout):
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

    def _undo(self, new: Lock | LeasedLock | None) -> None:
        """After an exception nothing stays half-held; that exception is what is told."""
        for each in (new, self.old):
            try:
                if each is not None:
                    each.release()
            except (LockLost, StoreError, RuntimeError):
                pass


if TYPE_CHECKING:  # so that the type checker holds each handle to the contract

    def _handles(lock: Lock, leased: LeasedLock, both: DoubleLock) -> tuple[LockHandle, ...]:
        return lock, leased, both
