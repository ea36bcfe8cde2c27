"""Credentials and tokens, requested within the time of the call that needs them.

SDKs renew them by requests (IMDS, STS, OAuth) or by programs, which do not keep our deadlines. So
each renewal runs in its own thread, and a call waits for it only within its own time. While the
current credentials are still valid, no call waits at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from lockkit.clock import Clock
from lockkit.stores.deadline import Deadline, DeadlinePassed, deadline
from lockkit.stores.within import limit_ms

OPENING_S_MIN = 30.0
"""Minimum time for opening a client: it reads files, and may run a program."""
RENEWAL_S_MAX = 60.0
"""After this time a renewal without an answer no longer prevents the next one."""
VALID_MS_MIN = 30_000
"""A token that ends sooner than this is not sent: its request may take longer."""

OPENING = "open it (find its credentials)"

T = TypeVar("T")

_clock = Clock()


def opening(timeout_s: float) -> Deadline:
    """The time for opening a client; `within` may limit it further."""
    return Deadline(max(timeout_s, OPENING_S_MIN), limit_ms=limit_ms())


class Awaited(Generic[T]):
    """The result of a function that runs in its own thread."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._found: list[T] = []
        self._error: BaseException | None = None
        self._began_ms = _clock.boot_ms()
        self._thread = threading.Thread(target=self._run, name="lockkit-credentials", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads: then only the SDK's own timeouts apply
            self._run()

    @property
    def is_over(self) -> bool:
        late = _clock.boot_ms() - self._began_ms > RENEWAL_S_MAX * 1000
        return late or not self._thread.is_alive()

    def found(self) -> T | None:
        """The result, if it is available."""
        return self._found[0] if self._found else None

    def within(self, call: Deadline) -> T:
        """Wait for the result while the call has time. Raises what the function raised."""
        if self._thread.ident is not None:
            self._thread.join(call.left_s())
        if self._error is not None:
            raise self._error
        if not self._found:
            raise DeadlinePassed("the credentials did not come in time")
        return self._found[0]

    def _run(self) -> None:
        try:
            with deadline(RENEWAL_S_MAX):
                self._found.append(self._ask())
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            self._error = error


class TokenRenewal(Generic[T]):
    """Renews credentials, one renewal at a time: all calls wait for the same answer."""

    def __init__(self) -> None:
        self._under_way: Awaited[T] | None = None
        self._lock = threading.Lock()

    def begin(self, ask: Callable[[], T]) -> Awaited[T]:
        """The renewal in progress, otherwise a new one."""
        with self._lock:
            if self._under_way is None or self._under_way.is_over:
                self._under_way = Awaited(ask)
            return self._under_way


def is_good(expires_ms: float) -> bool:
    """Whether a token that ends then may still be sent."""
    return expires_ms - _clock.wall_ms() > VALID_MS_MIN
