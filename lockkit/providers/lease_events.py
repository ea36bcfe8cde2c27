"""Records a provider's requests and their results as events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import TypeVar

from lockkit.errors import NoAnswer, clipped
from lockkit.protocol.outcome import Unknown
from lockkit.sinks import Emit
from lockkit.stores.endpoint import ErrorResponse

WHY_CHARS_MAX = 200
T = TypeVar("T")

_OP: ContextVar[str] = ContextVar("lockkit_provider_op", default="look")


@contextmanager
def during(op: str) -> Iterator[None]:
    """Label this thread's requests with their purpose: acquire, renew, release or look."""
    before = _OP.set(op)
    try:
        yield
    finally:
        _OP.reset(before)


class LeaseEvents:
    """The events of one lock; `key` is its URL."""

    def __init__(self, emit: Emit, key: str) -> None:
        self._emit, self._key, self._numbers = emit, key, count(1)

    def ask(self, call: str, send: Callable[[], T]) -> T:
        """Call `send` and record request and result. `call` is the service's name for it."""
        number, op = next(self._numbers), _OP.get()
        self._emit("ask", request=number, op=op, key=self._key, attempt="", call=call)
        outcome, why = "refused", ""
        try:
            said = send()
            outcome = _outcome(said)
            return said
        except NoAnswer as error:
            outcome, why = "unknown", str(error)
            raise
        finally:
            self._emit("answer", request=number, op=op, outcome=outcome, version="",
                       why=clipped(why, WHY_CHARS_MAX))  # fmt: skip


def _outcome(said: object) -> str:
    match said:
        case Unknown():
            return "unknown"
        case ErrorResponse():
            return "refused"
    return "answered"
