"""Credentials and tokens, requested within the time of the call that needs them.

SDKs renew them by requests (IMDS, STS, OAuth) or by programs, which keep no deadline of ours. So
each renewal runs in a thread of its own, and a call waits for it no longer than it may. While the
current credentials are still good, no call waits at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from lockkit.clock import Clock
from lockkit.stores.deadline import Deadline, DeadlinePassed, deadline

OPENING_S_MIN = 30.0
"""How long opening a client may at least take: it reads files, and may run a program."""
RENEWAL_S_MAX = 60.0
"""After this long a renewal that got no answer no longer keeps the next one from starting."""
VALID_MS_MIN = 30_000
"""A token that ends sooner than this is not sent any more: its request may be under way longer."""

T = TypeVar("T")

_clock = Clock()


class Awaited(Generic[T]):
    """The result of a function that runs in a thread of its own."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._found: list[T] = []
        self._error: BaseException | None = None
        self._began_ms = _clock.boot_ms()
        self._thread = threading.Thread(target=self._run, name="lockkit-credentials", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads: the SDK's own timeouts are the bound
            self._run()

    @property
    def is_over(self) -> bool:
        late = _clock.boot_ms() - self._began_ms > RENEWAL_S_MAX * 1000
        return late or not self._thread.is_alive()

    def found(self) -> T | None:
        """The result, if it is there."""
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
    """Renews credentials, once at a time: calls that need them wait for the same answer."""

    def __init__(self) -> None:
        self._under_way: Awaited[T] | None = None
        self._lock = threading.Lock()

    def begin(self, ask: Callable[[], T]) -> Awaited[T]:
        """The renewal that is under way, else a new one."""
        with self._lock:
            if self._under_way is None or self._under_way.is_over:
                self._under_way = Awaited(ask)
            return self._under_way


def is_good(expires_ms: float) -> bool:
    """Whether a token that ends then may still be sent."""
    return expires_ms - _clock.wall_ms() > VALID_MS_MIN
