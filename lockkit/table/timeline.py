"""The timeline: which instants a table has, and how far each of them got.

Names are those of Hudi's timeline layout 1 (table version 6): `T.commit.requested`, `T.inflight`,
`T.commit`, and the same for the other actions. What is in the files is for other rooms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from lockkit.drive import Procedure
from lockkit.stores import Entry
from lockkit.table.ask import TableError, listing

HOODIE = ".hoodie/"
TIMELINE_PREFIX = HOODIE + "2"
"""Instants of the years 2000 to 2999 and nothing else: markers, locks, archive and audit files live
under the same folder and may be thousands, and nobody's commit should page through them."""
PAGE_KEYS = 1000
"""A listing this long may have come in several pages (S3 and GCS page at 1,000, Azure at 5,000)."""
LISTINGS_MAX = 6
AHEAD_MAX_MS = 24 * 3600 * 1000

# What Hudi writes for a copy-on-write table. `commit` drops its name while inflight.
_ACTIONS = ("commit", "replacecommit", "clean", "rollback", "restore", "savepoint", "indexing",
            "schemacommit", "deltacommit", "compaction", "logcompaction", "clustering")  # fmt: skip
_STATES = {
    "inflight": ("commit", "inflight"),
    **{action: (action, "completed") for action in _ACTIONS},
    **{f"{action}.inflight": (action, "inflight") for action in _ACTIONS},
    **{f"{action}.requested": (action, "requested") for action in _ACTIONS},
}
_NAME = re.compile(r"(\d{17}|\d{14})\.([a-z.]+)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

COMMITS = frozenset({"commit", "replacecommit"})
"""Completed actions that change what a reader of a copy-on-write table sees."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """What one listing showed: instants by action; a completed one is not also pending."""

    completed: Mapping[str, str]
    pending: Mapping[str, str]
    inflight: frozenset[str]
    """Instants of commits whose `T.inflight` is there, completed or not."""
    foreign: tuple[str, ...]
    """Names that are no instant of any kind known here; they are nobody's commit."""

    @property
    def commits(self) -> list[str]:
        """Completed commits and replacecommits, oldest first."""
        return [instant for instant, action in self.completed.items() if action in COMMITS]

    @property
    def newest_ms(self) -> int | None:
        """The time of the newest instant, however far it got; None on an empty timeline."""
        times = [instant_ms(each) for each in (*self.completed, *self.pending)]
        return max(times, default=None)


# --- names --------------------------------------------------------------------------------------


def requested_key(instant: str) -> str:
    return f"{HOODIE}{instant}.commit.requested"


def inflight_key(instant: str) -> str:
    return f"{HOODIE}{instant}.inflight"


def completed_key(instant: str, action: str = "commit") -> str:
    return f"{HOODIE}{instant}.{action}"


# --- time ---------------------------------------------------------------------------------------


def instant_of(wall_ms: int) -> str:
    """yyyyMMddHHmmssSSS in UTC, as `hoodie.table.timeline.timezone=UTC` says."""
    at = _EPOCH + timedelta(milliseconds=wall_ms)
    return at.strftime("%Y%m%d%H%M%S") + f"{at.microsecond // 1000:03d}"


def instant_ms(instant: str) -> int:
    """Epoch ms of an instant; 14 digits mean the end of their second, as Hudi reads them."""
    # Not strptime: a timeline of 10,000 instants would cost every commit a tenth of a second.
    month, day, hour, minute, second = (int(instant[i : i + 2]) for i in range(4, 14, 2))
    at = datetime(int(instant[:4]), month, day, hour, minute, second, tzinfo=UTC)
    return (at - _EPOCH) // timedelta(milliseconds=1) + int(instant[14:] or "999")


def next_instant_ms(timeline: Timeline, wall_ms: int) -> int:
    """The time for a new instant: now, and later than all that is there.

    A rewrite must sort after every slice that it read, or readers would keep the old one: with
    writers' clocks that disagree, the wall clock alone does not give that.
    """
    newest_ms = timeline.newest_ms
    if newest_ms is None or newest_ms < wall_ms:
        return wall_ms
    if newest_ms > wall_ms + AHEAD_MAX_MS:
        raise TableError(
            f"the newest instant, {instant_of(newest_ms)}, is more than a day ahead of this clock "
            f"({instant_of(wall_ms)}, UTC); put the clock right, or find out who wrote that instant"
        )
    return newest_ms + 1


# --- a listing ----------------------------------------------------------------------------------


def parse_timeline(entries: Iterable[Entry]) -> Timeline:
    """What a listing of the timeline's folder says; names that say nothing are foreign."""
    completed: dict[str, str] = {}
    pending: dict[str, str] = {}
    inflight: set[str] = set()
    foreign: list[str] = []
    for entry in entries:
        name = entry.key.removeprefix(HOODIE)
        parsed = _parse_name(name)
        if parsed is None:
            foreign.append(name)
            continue
        instant, action, state = parsed
        if state == "completed":
            completed[instant] = action
        else:
            pending.setdefault(instant, action)
        if (action, state) == ("commit", "inflight"):
            inflight.add(instant)
    return Timeline(
        completed=MappingProxyType(dict(sorted(completed.items()))),
        pending=MappingProxyType({k: v for k, v in sorted(pending.items()) if k not in completed}),
        inflight=frozenset(inflight),
        foreign=tuple(foreign),
    )


def _parse_name(name: str) -> tuple[str, str, str] | None:
    match = _NAME.fullmatch(name)
    if match is None or match[2] not in _STATES:
        return None
    try:
        instant_ms(match[1])
    except ValueError:
        return None  # seventeen digits, but no date
    return match[1], *_STATES[match[2]]


def glance() -> Procedure[Timeline]:
    """One listing. Several pages are no snapshot: only for who can prove that nothing moved."""
    return parse_timeline((yield from listing(TIMELINE_PREFIX)))


def load_timeline() -> Procedure[Timeline]:
    """A listing that is a snapshot: of one page, or the same twice in a row."""
    entries = yield from listing(TIMELINE_PREFIX)
    for _ in range(LISTINGS_MAX):
        if len(entries) < PAGE_KEYS:
            return parse_timeline(entries)
        again = yield from listing(TIMELINE_PREFIX)
        if [e.key for e in again] == [e.key for e in entries]:
            return parse_timeline(again)
        entries = again
    raise TableError(
        f"the timeline changed between any two of {LISTINGS_MAX} listings of {len(entries)} files; "
        "try again when fewer writers are about, or archive old instants"
    )
