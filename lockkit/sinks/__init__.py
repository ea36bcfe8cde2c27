"""Event sinks: where a handle's events go, its own observer and process-wide recorders."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.errors import clipped, masked

if TYPE_CHECKING:
    from lockkit.events import Event

Emit = Callable[..., None]
"""`emit(kind, **fields)`: stamps the event with its lane and time, and writes it somewhere."""


def silent(_kind: str, **_fields: Any) -> None:
    """An `Emit` that discards events."""


_masked = lru_cache(256)(masked)  # a handle's texts recur: its key, its owner, its outcomes
Listener = Callable[[str, "Event"], None]
"""`listener(url, event)`: the URL of the lock or table; "" for a store's own record."""

# Process-wide, not per context: heartbeat threads and the block's own threads belong to it.
_listeners: list[Listener] = []


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Receive every event from now on, including those of handles that are already open.

    It is called from any thread, in the middle of a lease. It must be fast, and must not raise.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def overheard(url: str, reported: Event) -> None:
    for listener in tuple(_listeners):
        listener(url, reported)


class ObserverFailed(UserWarning):
    """An observer raised an error at an event. What it observes is not affected."""


def warn_of(kind: str, error: Exception) -> None:
    """Warn that an observer failed; never raises, even under `-W error`."""
    text = (
        f"the observer of {kind!r} raised {clipped(repr(error), 200)}; the lock or table is not "
        "affected; its history has a gap"
    )
    with suppress(Warning):
        warnings.warn(ObserverFailed(text), stacklevel=3)


@dataclass(frozen=True, slots=True)
class EventSink:
    """An `Emit` of one handle in the lane `who`, for its observer, listeners and the log.

    An observer cannot fail what it observes: its first error is a warning (`ObserverFailed`).
    """

    url: str
    who: str
    emit: Emit = silent
    clock: Clock = field(default_factory=Clock)
    _failed: list[str] = field(default_factory=list, repr=False, compare=False)

    def __call__(self, kind: str, **given: Any) -> None:
        fields = {name: _masked(x) if isinstance(x, str) else x for name, x in given.items()}
        if LOG.isEnabledFor(logging.INFO):
            from lockkit.sinks.log_lines import log_event

            log_event(LOG, self.url, self.who, kind, fields)
        try:
            self._emit(kind, fields)
        except Exception as error:  # noqa: BLE001 - an observer may raise anything
            if not self._failed:
                self._failed.append(kind)
                warn_of(kind, error)

    def _emit(self, kind: str, fields: dict[str, Any]) -> None:
        at_ms = fields.pop("stamped_ms", 0.0)  # of an event that was kept back for a while
        if _listeners:
            from lockkit.events import event  # only a recording needs the schema

            until_ms = fields.get("until_ms")
            shown = dict(fields)
            if until_ms is not None:  # undo the wrong clock: a history has one clock
                shown["until_ms"] = until_ms - self.clock.offset_ms
            overheard(self.url, event(at_ms or Clock().stamp_ms(), self.who, kind, **shown))
        self.emit(kind, **fields)


LOG = logging.getLogger("lockkit")
LOG.addHandler(logging.NullHandler())


def log_request(url: str, request: str, key: str, outcome: str) -> None:
    """One DEBUG line for a request of a table that was carried out."""
    LOG.debug("%s %s %s: %s", url, request, key, outcome)
