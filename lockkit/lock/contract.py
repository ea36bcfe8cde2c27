"""What every lock handle offers: `Lock`, the locks of other services, and `DoubleLock`."""

from __future__ import annotations

from typing import Protocol, Self, runtime_checkable

from lockkit.errors import LockBusy


@runtime_checkable
class LockHandle(Protocol):
    """A handle of one lock. It has one holder at a time and is not reentrant.

    All times are seconds. A method raises `StoreError` if the service cannot be used, and
    `RuntimeError` for double use and for use after fork. `LockLost` comes from `assert_held`,
    `renew`, `extend` and `release` once the grant is over.
    """

    acquire_timeout: float | None
    """The longest wait of `with`, its constructor's `acquire_timeout`; None: for ever."""
    lane: str
    """The handle's name in events."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take the lock; False if it was not free in time, or `cancel` ended the wait.

        The parameters are those of `threading.Lock.acquire`, which a handle can replace.
        """
        ...

    def release(self) -> None:
        """Release it. Raises `LockLost` if it was lost before `mark_committed` was called."""
        ...

    def renew(self) -> None:
        """Prove and extend the grant now."""
        ...

    def extend(self) -> None:
        """`renew` under redis-py's name."""
        ...

    def cancel(self) -> bool:
        """Make an `acquire` that waits in another thread return False; False: none is waiting."""
        ...

    def contenders(self) -> list[str] | None:
        """The owners that hold or await the lock, in order; None: the service does not know."""
        ...

    def assert_held(self) -> None:
        """Raise `LockLost` unless this handle may act as the holder now. Sends no request."""
        ...

    def owned(self) -> bool:
        """Whether this handle holds it, by its own knowledge. Sends no request."""
        ...

    def locked(self) -> bool:
        """Whether anybody holds it. One read."""
        ...

    def mark_committed(self) -> None:
        """Declare the work published: losing the lock is then only a warning."""
        ...

    def busy_reason(self) -> str:
        """Who holds it, and the next step, as text."""
        ...

    def busy_error(self) -> LockBusy:
        """The same as an error, with its facts as fields."""
        ...

    def close(self) -> None:
        """Stop renewing and close the service's client. Does not release."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: object
    ) -> None: ...
