"""A provider's requests, as a history has them: asked, and what came of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import TypeVar

from lockkit.errors import NoAnswer
from lockkit.protocol.outcome import Unknown
from lockkit.sinks import Emit
from lockkit.stores.endpoint import ErrorResponse

WHY_CHARS_MAX = 200
T = TypeVar("T")

_OP: ContextVar[str] = ContextVar("lockkit_provider_op", default="look")


@contextmanager
def during(op: str) -> Iterator[None]:
    """What this thread asks meanwhile is for that: acquire, renew, release or look."""
    before = _OP.set(op)
    try:
        yield
    finally:
        _OP.reset(before)


class LeaseEvents:
    """Of one lock; `key` is its URL."""

    def __init__(self, emit: Emit, key: str) -> None:
        self._emit, self._key, self._numbers = emit, key, count(1)

    def ask(self, call: str, send: Callable[[], T]) -> T:
        """What `send` says, once both are told. `call` is the service's own name of the request."""
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
                       why=why[:WHY_CHARS_MAX])  # fmt: skip


def _outcome(said: object) -> str:
    match said:
        case Unknown():
            return "unknown"
        case ErrorResponse():
            return "refused"
    return "answered"
