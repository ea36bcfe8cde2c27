"""Who hears what a handle tells: its own observer, and whoever records the process meanwhile."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from lockkit.clock import Clock
from lockkit.drive import Emit, silent
from lockkit.history import Event, event

Listener = Callable[[str, Event], None]
"""`listener(url, event)`: of which lock or table; "" where it is a store's own record."""

# Of the process, not of a context: a heartbeat's thread, and threads of the block's own, belong in.
_listeners: list[Listener] = []


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Hear everything that is told from now on, by handles that are open already, too.

    The listener is called from any thread, in the middle of a lease: it must be quick, and not
    raise.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def overheard(url: str, told: Event) -> None:
    for listener in tuple(_listeners):
        listener(url, told)


class ObserverFailed(UserWarning):
    """An observer raised an error at an event. What it observes is not affected."""


def warn_of(kind: str, error: Exception) -> None:
    """Say that an observer failed; never raises, also under `-W error`."""
    text = (
        f"the observer of {kind!r} raised {error!r:.200}; what it observes goes on, and its "
        "history has a gap"
    )
    with suppress(Warning):
        warnings.warn(ObserverFailed(text), stacklevel=3)


@dataclass(frozen=True, slots=True)
class Voice:
    """An `Emit` of one handle in the lane `who`: its own observer's, overheard by listeners.

    An observer cannot fail what it observes: its first error is a warning (`ObserverFailed`).
    """

    url: str
    who: str
    emit: Emit = silent
    clock: Clock = field(default_factory=Clock)
    _failed: list[str] = field(default_factory=list, repr=False, compare=False)

    def __call__(self, kind: str, **fields: Any) -> None:
        try:
            self._tell(kind, fields)
        except Exception as error:  # noqa: BLE001 - whatever somebody's observer raises
            if not self._failed:
                self._failed.append(kind)
                warn_of(kind, error)

    def _tell(self, kind: str, fields: dict[str, Any]) -> None:
        if _listeners:
            until_ms = fields.get("until_ms")
            shown = dict(fields)
            if until_ms is not None:  # a wrong clock's; a history has only one
                shown["until_ms"] = until_ms - self.clock.offset_ms
            overheard(self.url, event(Clock().stamp_ms(), self.who, kind, **shown))
        self.emit(kind, **fields)
