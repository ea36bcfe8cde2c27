"""Further handles of a table with group commit: several threads use one `Table`.

Each thread has its own knowledge of the table and its own client of the fence, so two transactions
are never mixed. Store, lock and services are those of the handle that the threads share.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar

from lockkit.errors import LockkitError
from lockkit.table.format.properties import GROUP
from lockkit.table.services.upkeep import Upkeep

H = TypeVar("H")


class HandleInUse(LockkitError, RuntimeError):
    """Another thread is using this handle, and the table has no group commit. Nothing was done."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            f"{what}: another thread is using this handle; open a Table of its own for each thread"
        )


@contextmanager
def further_handle(shared: H, what: str) -> Iterator[H]:
    """A `Table` that no other thread uses now; `HandleInUse` if the table has no group commit.

    All that were made stay in the list of the shared handle: closing it closes those in use too.
    """
    further: list[Any] = shared._further  # type: ignore[attr-defined]
    mine: Any
    token = object()
    try:
        for mine in tuple(further):
            mine._turn.append(token)
            if mine._turn[0] is token:  # one that a thread has left
                break
            mine._turn.remove(token)
        else:
            mine = _made(shared)
            mine._turn.append(token)
            further.append(mine)
        with mine._alone(what):
            if mine._open().config.commit != GROUP:
                raise HandleInUse(what)
        yield mine
    finally:
        for mine in further:
            if token in mine._turn:
                mine._turn.remove(token)


def _made(shared: Any) -> Any:
    mine = copy(shared)
    mine._busy, mine._turn, mine._further = [], [], []
    mine._known = mine._left = mine._schema = None
    mine._schema_at, mine._partitions = "", frozenset()
    mine._upkeep = _upkeep_of(shared._upkeep)
    return mine


def _upkeep_of(shared: Upkeep) -> Upkeep:
    """With a client of its own; the services stay those of the shared handle."""
    mine: Any = copy(shared)
    mine.context = replace(shared.context, together=[], lingering=[])
    mine._old = None
    for service in ("before_write", "after_append", "after_commit", "opened"):
        setattr(mine, service, getattr(shared, service))
    made: Upkeep = mine
    return made
