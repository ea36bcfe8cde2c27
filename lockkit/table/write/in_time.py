"""A write with group commit whose instant was reserved ahead and is late takes a fresh one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from lockkit.runtime import Procedure
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.group.refused import LateInstant
from lockkit.table.occ.transaction import TableCache

if TYPE_CHECKING:
    from lockkit.table.occ.group.ahead import GroupAppend

LATE_MAX = 3
T = TypeVar("T")


def in_time(
    known: TableCache, once: Callable[[TableCache], Procedure[Committed | None]]
) -> Procedure[Committed | None]:
    """Append, and if a later instant was completed before its own was offered, append again.

    Nothing of it is committed by then: the fence has decided against that instant.
    """
    for _ in range(LATE_MAX):
        try:
            return (yield from once(known))
        except LateInstant as late:
            known = replace(known, newest=max(known.newest, late.instant))
    return (yield from once(known))


def changes_nothing(way: GroupAppend | None, instant: str) -> Procedure[None]:
    """Raise `LateInstant` if this is only so by a snapshot that lacks what is decided by now."""
    if way is not None and not (yield from way.stands()):
        raise LateInstant(instant, instant="", cause="was committed first",
                          cure="begin again with the table as it is now")  # fmt: skip


def again_if_late(once: Callable[[], T]) -> T:
    """The same for a write of rows, which reads the table again then."""
    for _ in range(LATE_MAX):
        with suppress(LateInstant):
            return once()
    return once()
