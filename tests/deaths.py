"""Processes that die at one of their requests."""

from __future__ import annotations

import threading
from typing import Any

from lockkit.stores import Store


class Died(BaseException):
    """The process is gone: nothing catches this, and no request after it is answered."""


class Mortal:
    """A store whose client dies at its n-th request: before it is sent, or before its answer."""

    def __init__(self, store: Store, most: int, *, sent: bool) -> None:
        self._store, self._left, self._sent, self._turn = store, most, sent, threading.Lock()

    def __getattr__(self, name: str) -> Any:
        of = getattr(self._store, name)
        if name not in ("get", "put", "list", "delete", "get_file", "put_file"):
            return of

        def answered(*given: Any, **named: Any) -> Any:
            with self._turn:
                self._left -= 1
                if self._left < 0:
                    if self._left == -1 and self._sent:
                        of(*given, **named)
                    raise Died
            return of(*given, **named)

        return answered
