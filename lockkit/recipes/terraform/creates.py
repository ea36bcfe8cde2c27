"""What is known of the creates of a lock file when a signal interrupts them."""

from __future__ import annotations

from typing import Any

from lockkit.protocol.outcome import PreconditionFailed, Throttled
from lockkit.runtime import Procedure, Put, Request
from lockkit.stores import Store
from lockkit.stores.deadline import sends


class Creates:
    """The creates of one `lock`: whether one was sent, and whether one has no answer."""

    def __init__(self, store: Store) -> None:
        self._counted = bool(store.server) and store.options.faults is None
        self._first, self._unanswered = sends(), list[int]()

    @property
    def sent(self) -> bool:
        """Whether one was sent, or may have been: not every store counts."""
        return self._since(self._first)

    @property
    def out(self) -> bool:
        """Whether one has no answer, and may still be applied."""
        return any(map(self._since, self._unanswered))

    def _since(self, before: int) -> bool:
        return not self._counted or sends() > before

    def counted(self, request: Request) -> Procedure[Any]:
        """Send a request of `lock`, and note a create."""
        if not isinstance(request, Put):
            return (yield request)
        self._unanswered.append(sends())
        answer = yield request
        if isinstance(answer, PreconditionFailed | Throttled):
            self._unanswered.pop()
        return answer
