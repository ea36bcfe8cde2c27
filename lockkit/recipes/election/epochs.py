"""The names of an election's epoch objects, and which of them may be deleted."""

from __future__ import annotations

import re

from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, listing
from lockkit.stores import ListEntry
from lockkit.table.occ.liveness import discard

PREFIX = "lock_"
EPOCH_MAX = 10**10 - 1
"""Ten digits. With more, names would not sort in the order of their numbers."""
KEPT, COLLECT_MAX = 10, 1_000
_KEY = re.compile(r"lock_(\d{10})\.json")
RESIGNED = re.compile(rb'\s*\{\s*"expired"\s*:\s*true\s*\}\s*')
"""Written by Morling's own leader when it resigns, and by an operator to end a term."""


def epoch_key(epoch: int) -> str:
    return f"{PREFIX}{epoch:010}.json"


def epochs_in(entries: list[ListEntry]) -> list[int]:
    """In ascending order; other names are ignored."""
    names = (_KEY.fullmatch(each.key) for each in entries)
    return [int(match[1]) for match in names if match]


def collect(keep: int = KEPT) -> Procedure[int]:
    """Delete past epochs except the newest `keep`. Returns how many were deleted."""
    doomed = past(epochs_in((yield from listing(PREFIX))), keep)[:COLLECT_MAX]
    yield from all_of(discard(epoch_key(each)) for each in doomed)
    return len(doomed)


def past(epochs: list[int], keep: int) -> list[int]:
    """The epochs to delete. Never the highest: its number would be granted twice."""
    return epochs[: -max(1, keep)]
