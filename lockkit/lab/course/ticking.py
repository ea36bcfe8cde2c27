"""A long step shows its progress: the seconds so far, in one line that is overwritten."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from lockkit.clock import Clock

QUIET_S, TICK_S = 3.0, 1.0
BLANK = " " * 12

P = ParamSpec("P")
T = TypeVar("T")


def ticks(act: Callable[P, T]) -> Callable[P, T]:
    """Print the seconds that `act` has taken: each second, from the third on."""

    @wraps(act)
    def ticked(*args: P.args, **kwargs: P.kwargs) -> T:
        over = threading.Event()
        clock = threading.Thread(target=_tick, args=(over,), daemon=True)
        clock.start()
        try:
            return act(*args, **kwargs)
        finally:
            over.set()
            clock.join()

    return ticked


def _tick(over: threading.Event) -> None:
    clock, wait_s = Clock(), QUIET_S
    began_ms, printed = clock.boot_ms(), False
    while not clock.wait(over, wait_s):
        said = f"{(clock.boot_ms() - began_ms) / 1000:.0f} s …"
        _write(f"{said:<{len(BLANK)}}\r")
        wait_s, printed = TICK_S, True
    if printed:
        _write(f"{BLANK}\r")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
