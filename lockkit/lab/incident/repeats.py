"""Evidence that is there more than once: a file beside its copy, doubled lines, a log appended to
itself. Identical events are one event: two writes of one moment would accuse a sound store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from typing import TypeVar

from lockkit.events import Event

T = TypeVar("T")
LINES_MIN = 3
"""Fewer equal lines without the part of a second may be what happened twice."""
PLACES_MAX = 100
"""Places at which a log may begin again that are tried."""
_TIME = re.compile(r"\d\d:\d\d:\d\d")
_STAMP = re.compile(r"[\[(]?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]\d")
"""Of a part of a second: two requests with a stamp to the second may be two."""


def unseen(
    found: Sequence[T], identity: Callable[[T], object], seen: set[object], what: str
) -> tuple[list[T], str]:
    """Those whose identity is not in `seen`, which gets it; and a note on how many others."""
    new = []
    for each in found:
        same = identity(each)
        if same not in seen:
            seen.add(same)
            new.append(each)
    count = len(found) - len(new)
    return new, f"; {count} repeated {what} left out" if count else ""


def event_identity(each: Event) -> object:
    """Equal for events that differ in no field."""
    return json.dumps([each.at_ms, each.who, each.kind, dict(each.data)], sort_keys=True)


def lines_once(lines: list[str]) -> list[str]:
    """A log's lines without repeats of the same text with the same times.

    Lines without times are repeats only if the whole log is there several times.
    """
    while _is_doubled(lines):
        lines = lines[::2]
    return _begun_once(_stamped_once(lines))


def _is_doubled(lines: list[str]) -> bool:
    """Of an odd number of lines, the last one's copy is missing."""
    pairs = zip(lines[::2], lines[1::2], strict=False)
    is_long = len(set(lines)) >= LINES_MIN and any(map(_TIME.search, lines))
    return is_long and all(one == other for one, other in pairs)


def _stamped_once(lines: list[str]) -> list[str]:
    """Drop a stamped line, with the lines that belong to it, that follows its equal."""
    parts: list[list[str]] = [[]]
    for line in lines:
        if _STAMP.match(line):
            parts.append([])
        parts[-1].append(line)
    kept = parts[:1]
    kept += [each for before, each in pairwise(parts) if each != before]
    return [line for part in kept for line in part]


def _begun_once(lines: list[str]) -> list[str]:
    """Drop the copies of a log that follow it."""
    again = (at for at in range(1, len(lines) // 2 + 1) if lines[at] == lines[0])
    for length in islice(again, PLACES_MAX):
        first, end = lines[:length], length
        while lines[end : end + length] == first:
            end += length
        whole = end == len(lines) and length >= LINES_MIN and any(map(_TIME.search, first))
        if end > length and (whole or any(map(_STAMP.match, first))):
            return first + lines[end:]
    return lines
