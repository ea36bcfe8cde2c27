"""The type of every lock handle, and the type of what renewal renews."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self, TypeVar, runtime_checkable

from lockkit.clock import Clock
from lockkit.errors import LockBusy
from lockkit.runtime import Procedure

T = TypeVar("T")


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
        """Whether the lock is held, by any owner. One read."""
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


class Renewable(Protocol):
    """Something that is renewed while it is held."""

    @property
    def clock(self) -> Clock:
        """The clock that decides."""

    @property
    def proven_ms(self) -> float:
        """When the request that proves the grant was about to be sent, on the boot clock."""

    @property
    def shaken(self) -> bool:
        """The connection was lost: a renewal that fails now is reported as danger at once."""

    @property
    def renew_ms(self) -> float | None:
        """Milliseconds from one renewal to the next."""

    @property
    def until_ms(self) -> float | None:
        """When the grant ends locally, on the boot clock; None: it has ended."""

    def notice_end(self) -> None:
        """End the grant if its time is over. Sends no request."""

    def lose(self, why: str) -> None:
        """End the grant at once."""

    def renewed(self) -> Procedure[tuple[bool, float | None]]:
        """One try: whether it is proven, and the pause in seconds that the server requested."""

    def note(self, text: str) -> None:
        """A note for the history."""

    def note_danger(self) -> None:
        """Record in the history that renewal is overdue."""

    def carry_out(self, procedure: Procedure[T]) -> T:
        """Run it for real; an `Exclusive` request waits until others have finished."""


class HeldGrant(Protocol):
    """What is held."""

    @property
    def epoch(self) -> int: ...


class RenewalThread(Protocol):
    """Renews a grant in the background."""

    def stop(self) -> None:
        """Stop renewing. Does not wait for a renewal in progress."""
        ...


Hold = Callable[[], RenewalThread | None]
"""Starts the renewal of a grant; None: no renewal is needed."""
