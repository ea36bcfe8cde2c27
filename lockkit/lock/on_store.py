"""The common base of an election's epoch and a writer's heartbeat, both renewed by a `Renewer`."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

from lockkit.clock import Clock
from lockkit.runtime import Exclusive, Procedure, Request, carry_out, perform
from lockkit.sinks import silent
from lockkit.stores import Store

T = TypeVar("T")


class OnStore:
    """The common part of every `Renewable` that is an object of a store."""

    shaken = False

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self.clock = store, clock
        self.turn = threading.RLock()

    def note(self, text: str) -> None:
        """Without a history there is nothing to record."""

    def note_danger(self) -> None:
        """Without a history there is nothing to record."""

    def carry_out(self, procedure: Procedure[T]) -> T:
        return carry_out(procedure, self._perform)

    def _perform(self, request: Request) -> Any:
        if isinstance(request, Exclusive):
            with self.turn:
                return self.carry_out(request.procedure)
        return perform(request, self._store, self.clock, silent)
