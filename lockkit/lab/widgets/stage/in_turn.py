"""A procedure, one request at a time, for an actor whose requests a reader watches."""

from __future__ import annotations

from typing import Any, TypeVar

from lockkit.runtime import Exclusive, Parallel, Procedure, Request, relay

T = TypeVar("T")


def in_turn(procedure: Procedure[T]) -> Procedure[T]:
    """The same procedure; `Parallel` requests are sent in turn, `Exclusive` ones unchanged."""

    def ask(request: Request) -> Procedure[Any]:
        match request:
            case Parallel(procedures):
                results = []
                for each in procedures:
                    results.append((yield from in_turn(each)))
                return tuple(results)
            case Exclusive(alone):
                return (yield from in_turn(alone))
            case _:
                return (yield request)

    return relay(procedure, ask)
