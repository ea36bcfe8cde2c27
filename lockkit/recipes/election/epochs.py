"""The epochs of an election as a store holds them: names, and what may be collected."""

from __future__ import annotations

import re

from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, listing
from lockkit.stores import ListEntry
from lockkit.table.occ.liveness import discard

PREFIX = "lock_"
EPOCH_MAX = 10**10 - 1
"""Ten digits: beyond them, the order of names is not that of numbers."""
KEPT, COLLECT_MAX = 10, 1_000
_KEY = re.compile(r"lock_(\d{10})\.json")
RESIGNED = re.compile(rb'\s*\{\s*"expired"\s*:\s*true\s*\}\s*')
"""What Morling's own leader leaves behind, and what a hand writes to set an election free."""


def epoch_key(epoch: int) -> str:
    return f"{PREFIX}{epoch:010}.json"


def epochs_in(entries: list[ListEntry]) -> list[int]:
    """In rising order; whatever else has such a name is left alone."""
    names = (_KEY.fullmatch(each.key) for each in entries)
    return [int(match[1]) for match in names if match]


def collect(keep: int = KEPT) -> Procedure[int]:
    """Delete the objects of past epochs but the newest `keep`; how many."""
    doomed = past(epochs_in((yield from listing(PREFIX))), keep)[:COLLECT_MAX]
    yield from all_of(discard(epoch_key(each)) for each in doomed)
    return len(doomed)


def past(epochs: list[int], keep: int) -> list[int]:
    """Never the highest: its number would be given twice."""
    return epochs[: -max(1, keep)]
