"""Publishes a transaction until its outcome is known."""

from __future__ import annotations

from collections.abc import Callable

from lockkit.runtime import Procedure
from lockkit.table.errors import CommitConflict, CommitUnknown
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.prepared import Prepared

SETTLE_TRIES_MAX = 3
"""How often a commit with an unknown outcome is published again to find it out."""


def settled(
    once: Callable[[], Procedure[Committed]], prepared: Prepared,
    undo: Callable[[Prepared], Procedure[bool]],
) -> Procedure[Committed]:  # fmt: skip
    """Publish, and if the outcome is not known, publish again: that reads what became of it.

    Raises `CommitUnknown`, with the transaction in `prepared`, after `SETTLE_TRIES_MAX` tries. Once
    the outcome was unknown, an error that leaves it open is raised as `CommitUnknown` as well;
    `undo` says whether a refusal is final.
    """
    unknown: CommitUnknown | None = None
    for _ in range(SETTLE_TRIES_MAX):
        try:
            return (yield from once())
        except CommitUnknown as error:
            unknown = unknown if unknown is not None and unknown.decided else error
        except Exception as error:
            if unknown is None:
                raise
            if not isinstance(error, CommitConflict) or not (yield from undo(prepared)):
                unknown.prepared = prepared
                raise unknown from error
            raise
    assert unknown is not None
    unknown.prepared = prepared
    raise unknown


def stays_open(_prepared: Prepared) -> Procedure[bool]:
    """Without a fence nothing can take back what was sent."""
    yield from ()
    return False
