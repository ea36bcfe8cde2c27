"""How far a service has come that works for longer than a few seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from lockkit.clock import Clock

EVERY_MS = 5_000


@dataclass(slots=True)
class GroupsDone:
    """Counts the file groups that are finished, by any thread, and says so now and then."""

    did: str
    total: int
    say: Callable[[str], object]
    clock: Clock
    _done: int = 0
    _said_ms: float = field(init=False)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._said_ms = self.clock.boot_ms()

    def one_more(self) -> None:
        with self._turn:
            self._done += 1
            now_ms = self.clock.boot_ms()
            if self._done == self.total or now_ms - self._said_ms < EVERY_MS:
                return
            self._said_ms = now_ms
            done = self._done
        self.say(f"{self.did} {done} of {self.total} file groups")
