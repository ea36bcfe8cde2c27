"""How far a write or a service has come that takes longer than a few seconds."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from lockkit.clock import Clock
from lockkit.runtime import BootMs, Note, Procedure
from lockkit.runtime.proven import AT_ONCE_MAX, all_of
from lockkit.sinks import Emit, silent

T = TypeVar("T")
EVERY_MS = 5_000
FEW = 32
"""So few requests take no more than a second or two."""


@dataclass(slots=True)
class WorkDone:
    """Counts what is finished, by any thread, and says so now and then: by `emit`, with a `clock`.

    A procedure needs neither: `all_of` yields the clock's reading and the note.
    """

    did: str
    total: int
    what: str = "file groups"
    instant: str = ""
    emit: Emit = silent
    clock: Clock | None = None
    _done: int = 0
    _said_ms: float = math.inf
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.more(0)

    def more(self, count: int = 1) -> None:
        text = "" if self.clock is None else self._due(self.clock.boot_ms(), count)
        if text:
            self.emit("note", text=text, instant=self.instant)

    def through(self, items: Iterable[T]) -> Iterator[T]:
        """The same items; each is finished when the next one is taken."""
        for each in items:
            yield each
            self.more()

    def all_of(self, ways: Iterable[Procedure[T]]) -> Procedure[list[T]]:
        """`proven.all_of`; each of these is one of what is counted."""
        waiting, results = list(ways), list[T]()
        if self.total <= FEW:
            return (yield from all_of(waiting))
        self._due((yield BootMs()), 0)
        for first in range(0, len(waiting), AT_ONCE_MAX):
            batch = waiting[first : first + AT_ONCE_MAX]
            results += yield from all_of(batch)
            if text := self._due((yield BootMs()), len(batch)):
                yield Note("note", {"text": text, "instant": self.instant})
        return results

    def _due(self, now_ms: float, count: int) -> str:
        with self._turn:
            self._done += count
            self._said_ms = min(self._said_ms, now_ms)
            if not 0 < self._done < self.total or now_ms - self._said_ms < EVERY_MS:
                return ""
            self._said_ms = now_ms
            return f"{self.did} {self._done:,} of {self.total:,} {self.what}"
