"""Processes that die, are interrupted or do something else at one of their requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from lockkit.stores import Store

REQUESTS = "get", "put", "list", "delete", "get_file", "put_file"
Due: TypeAlias = Callable[[str, Any], bool]
Send: TypeAlias = Callable[[], Any]


class AtRequest:
    """A store in which `strike` stands in for the request for which `due` is true.

    `due` gets each request's name and key, one at a time; with `on`, every later one is due, too.
    `at` is the key of the first.
    """

    def __init__(
        self, store: Store, due: Due, strike: Callable[[Send], Any], *, on: bool = False
    ) -> None:
        self._store, self._due, self._strike, self._on = store, due, strike, on
        self._turn, self.struck, self.at = threading.Lock(), False, ""

    def __getattr__(self, name: str) -> Any:
        of = getattr(self._store, name)
        if name not in REQUESTS:
            return of

        def answered(*given: Any, **named: Any) -> Any:
            with self._turn:
                due = self._on if self.struck else self._due(name, given[0] if given else "")
                if due and not self.struck:
                    self.struck, self.at = True, str(given[0]) if given else ""
            send = partial(of, *given, **named)
            return self._strike(send) if due else send()

        return answered


def nth(most: int) -> Due:
    """Whether a request is the n-th."""
    left = [most]

    def due(_name: str, _key: Any) -> bool:
        left[0] -= 1
        return left[0] == 0

    return due


class Died(BaseException):
    """The process is gone: nothing catches this, and no request after it is answered."""


class Mortal(AtRequest):
    """A store whose client dies after `most` requests: before the next is sent, or its answer."""

    def __init__(self, store: Store, most: int, *, sent: bool) -> None:
        sends = [sent]

        def dies(send: Send) -> None:
            if sends and sends.pop():
                send()
            raise Died

        super().__init__(store, nth(most + 1), dies, on=True)
