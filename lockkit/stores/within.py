"""A time limit for a thread's requests to a store; `deadline` enforces those of the network."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lockkit.clock import Clock

_clock = Clock()
_thread = threading.local()


def limit_ms() -> float:
    """When this thread's calls must have ended, on the boot clock."""
    ends_ms: float = getattr(_thread, "limit_ms", math.inf)
    return ends_ms


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limit all calls that this thread makes inside to `seconds` in total.

    A call that begins later ends at once without an answer. So a procedure (`runtime.run`) inside
    ends in that time, however many requests and pauses it has.
    """
    outer_ms = limit_ms()
    _thread.limit_ms = min(outer_ms, _clock.boot_ms() + seconds * 1000)
    try:
        yield
    finally:
        _thread.limit_ms = outer_ms


def left_s() -> float | None:
    """The seconds that `within` leaves this thread; None if it sets no limit."""
    ends_ms = limit_ms()
    return None if ends_ms == math.inf else max(0.0, (ends_ms - _clock.boot_ms()) / 1000)
