"""The timeline: which instants a table has, and how far each of them got.

Names are those of Hudi's timeline layout 1 (table version 6: `T.commit.requested`, `T.inflight`,
`T.commit`, and the same for the other actions) or 2 (version 9: in a folder of their own, and
completed as `T_C.commit`, C being the completion time). Other modules know what is in the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from lockkit.protocol.outcome import Version
from lockkit.runtime import Procedure, Sleep
from lockkit.runtime.proven import listing, pause_s
from lockkit.stores import ListEntry, Listing
from lockkit.table.errors import TableBlocked, TableChanged

HOODIE = ".hoodie/"
PAGE_KEYS = 1000
"""A plain list this long may have come in several pages; a `Listing` says so itself."""
LISTINGS_MAX = 6
AHEAD_MAX_MS = 24 * 3600 * 1000
"""Clocks count as wrong by at most this. An instant further ahead is followed only after it was
accepted (`occ.mode`), because every later instant will be further ahead too."""

# What Hudi writes. `commit` drops its name while inflight.
_ACTIONS = ("commit", "replacecommit", "clean", "rollback", "restore", "savepoint", "indexing",
            "schemacommit", "deltacommit", "compaction", "logcompaction", "clustering")  # fmt: skip
_STATES = {
    "inflight": ("commit", "inflight"),
    **{action: (action, "completed") for action in _ACTIONS},
    **{f"{action}.inflight": (action, "inflight") for action in _ACTIONS},
    **{f"{action}.requested": (action, "requested") for action in _ACTIONS},
}
_NAME = re.compile(r"([0-9]{17}|[0-9]{14})(?:_(2[0-9]{16}))?\.([a-z.]+)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

LANES = ("commit", "replacecommit", "clustering", "clean", "rollback",
         "deltacommit", "compaction", "logcompaction")  # fmt: skip
"""An action's instants are those whose milliseconds, modulo 8, are its place in this list.

The first file of an instant carries the action in its name, so create-if-absent alone does not keep
a commit and an overwrite from taking the same instant. With a lane for each action it does."""
UNUSED = ("deltacommit", "compaction", "logcompaction")
"""A table with group commit is copy-on-write, and has none of these. Many writers ask for instants
there at once, so its commits take these lanes, too."""

COMMITS = frozenset({"commit", "replacecommit", "deltacommit"})
"""Completed actions that change what a reader sees."""
_BESIDE = frozenset({"clean", "rollback", "savepoint"})
"""Actions that may share the instant of a commit and must not hide it: a savepoint always does, the
others if two processes took the same millisecond for different actions."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The result of one listing: instants by action. A completed one is not also pending."""

    completed: Mapping[str, str]
    pending: Mapping[str, str]
    inflight: frozenset[str]
    """Instants whose inflight file is there, completed or not."""
    foreign: tuple[str, ...]
    """Names that are no instant of any known kind. None of them is a commit."""
    completion: Mapping[str, str] = field(default_factory=dict)
    """Completion times by instant; empty in layout 1, whose names do not contain them."""
    savepoints: frozenset[str] = frozenset()
    """Commits whose files must stay, also of savepoints that are still being made."""
    rollbacks: Mapping[str, bool] = field(default_factory=dict)
    """Whether each is completed; also of those that a commit of the same millisecond hides."""
    doubled: frozenset[str] = frozenset()
    """Instants that more than one action requested: each creates a file of its own name."""
    taken_back: frozenset[str] = frozenset()
    """Instants that a restore took back and whose names it keeps; they are in none of the above."""
    first: Mapping[tuple[str, str], Version | None] = field(default_factory=dict)
    """The listed version of each requested file, by instant and action."""
    fence: Any = field(default=None, compare=False)
    """With group commit: the fence that was read beside it, and its version."""
    tail: frozenset[str] = frozenset()
    bodies: Mapping[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    """Of `completed`, what is not published yet but in that fence; commits that it repeats."""

    @property
    def latest(self) -> str:
        """The greatest instant of a completed commit, rollback or restore; "" if there is none.

        A new instant before it could never commit: every `survey` refuses it. With group commit
        also the one up to which a switch of the mode has ended everything."""
        since = [self.fence[0].since] if self.fence else []
        ends = [each for each, action in self.completed.items() if action in (*COMMITS, "restore")]
        return max((*ends, *since, *(each for each, done in self.rollbacks.items() if done)),
                   default="")  # fmt: skip

    @property
    def commits(self) -> list[str]:
        """Completed instants of `COMMITS`, oldest first."""
        return [instant for instant, action in self.completed.items() if action in COMMITS]


# --- names --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimelineNames:
    """The keys of an instant's files, by the timeline's layout (1 or 2)."""

    layout: int

    @property
    def folder(self) -> str:
        return HOODIE if self.layout == 1 else HOODIE + "timeline/"

    @property
    def prefix(self) -> str:
        """Instants of the years 2000 to 2999 and nothing else: markers, locks, archive and audit
        files live under the same folder and may be thousands; no commit pages through them.
        """
        return self.folder + "2"

    def requested(self, instant: str, action: str = "commit") -> str:
        return f"{self.folder}{instant}.{action}.requested"

    def inflight(self, instant: str, action: str = "commit") -> str:
        state = "inflight" if action == "commit" else f"{action}.inflight"
        return f"{self.folder}{instant}.{state}"

    def completed(self, instant: str, action: str = "commit", completion: str | None = None) -> str:
        """`completion` is part of the name in layout 2, and of no name in layout 1.

        A clustering is a replacecommit once it is completed, and a compaction is a commit.
        """
        assert (completion is None) == (self.layout == 1), (self, completion)
        done = {"clustering": "replacecommit", "compaction": "commit"}.get(action, action)
        return f"{self.folder}{instant}{f'_{completion}' if completion else ''}.{done}"


V6, V9 = TimelineNames(1), TimelineNames(2)


# --- time ---------------------------------------------------------------------------------------


def instant_of(wall_ms: int) -> str:
    """yyyyMMddHHmmssSSS in UTC, as `hoodie.table.timeline.timezone=UTC` says."""
    at = _EPOCH + timedelta(milliseconds=wall_ms)
    return at.strftime("%Y%m%d%H%M%S") + f"{at.microsecond // 1000:03d}"


@lru_cache(maxsize=65_536)
def instant_ms(instant: str) -> int:
    """Epoch ms of an instant; 14 digits mean the end of their second, as Hudi reads them.

    Raises `ValueError` for what is none: int() alone takes `+1`, ` 1` and other scripts' digits.
    """
    if not (len(instant) in (14, 17) and instant.isascii() and instant.isdigit()):
        raise ValueError(f"{instant[:40]!r} is not an instant")
    # Not strptime: a timeline of 10,000 instants would cost every commit a tenth of a second.
    month, day, hour, minute, second = (int(instant[i : i + 2]) for i in range(4, 14, 2))
    at = datetime(int(instant[:4]), month, day, hour, minute, second, tzinfo=UTC)
    return (at - _EPOCH) // timedelta(milliseconds=1) + int(instant[14:] or "999")


def next_instant_ms(
    newest: str, wall_ms: int, action: str, lead_ms: int = 0, grouped: bool = False
) -> int:
    """The time of a new instant for `action`, in its lane (`LANES`), in epoch ms.

    It is at least now, and `lead_ms` later than `newest` ("" on an empty timeline): a rewrite must
    sort after every slice that it read, or readers would keep the old slice. Writers' clocks
    disagree, so the wall clock alone does not guarantee that. `grouped`: with group commit."""
    at_ms = max(_after(newest, wall_ms) + lead_ms, wall_ms)
    more = UNUSED if grouped and action == "commit" else ()
    lanes = map(LANES.index, ("rollback" if action == "restore" else action, *more))
    return at_ms + min((lane - at_ms) % len(LANES) for lane in lanes)


def _after(newest: str, wall_ms: int) -> int:
    if not newest or instant_ms(newest) < wall_ms:
        return wall_ms
    return instant_ms(newest) + 1


def is_ahead(instant: str, wall_ms: int, accepted: str = "") -> bool:
    """Whether an instant is too far ahead of this clock, and of the one that was `accepted`."""
    followed_ms = max(wall_ms, instant_ms(accepted) if accepted else 0)
    return bool(instant) and instant_ms(instant) > followed_ms + AHEAD_MAX_MS


def refuse_ahead(newest: str, wall_ms: int, accepted: str) -> None:
    """Raise where the table's newest instant is too far ahead to be followed."""
    if is_ahead(newest, wall_ms, accepted):
        hours = (instant_ms(newest) - wall_ms) // 3_600_000
        raise TableBlocked(
            newest, f"is the newest instant, and {hours} hours ahead of this clock "
            f"({instant_of(wall_ms)}, UTC); nothing was written",
            "correct this clock if it is wrong. If the clock of that instant's writer was wrong, "
            f"accept the instant: lockkit table accept-instant URL {newest}",
        )  # fmt: skip


# --- a listing ----------------------------------------------------------------------------------


def parse_timeline(entries: Iterable[ListEntry], names: TimelineNames) -> Timeline:
    """Parse a listing of the timeline's folder; unknown names are kept as foreign."""
    completed: dict[str, str] = {}
    completion: dict[str, str] = {}
    pending: dict[str, str] = {}
    inflight: set[str] = set()
    savepoints: set[str] = set()
    requested: dict[str, str] = {}
    doubled: set[str] = set()
    rollbacks: dict[str, bool] = {}
    first: dict[tuple[str, str], Version | None] = {}
    foreign: list[str] = []
    folder = names.folder
    for entry in entries:
        name = entry.key.removeprefix(folder)
        parsed = _parse_name(name, names.layout)
        if parsed is None:
            foreign.append(name)
            continue
        instant, done, action, state = parsed
        if action == "savepoint":
            savepoints.add(instant)
        if action == "rollback":
            rollbacks[instant] = rollbacks.get(instant, False) or state == "completed"
        if state == "requested":
            first[instant, action] = entry.version
            if requested.setdefault(instant, action) != action:
                doubled.add(instant)
        into = completed if state == "completed" else pending
        if into.get(instant, "clean") in _BESIDE:
            into[instant] = action
            if done:
                completion[instant] = done
        if state == "inflight":
            inflight.add(instant)
    for instant, action in pending.items():
        if action not in _BESIDE and completed.get(instant) in _BESIDE:
            del completed[instant]
    return Timeline(
        completed=MappingProxyType(dict(sorted(completed.items()))),
        pending=MappingProxyType({k: v for k, v in sorted(pending.items()) if k not in completed}),
        inflight=frozenset(inflight),
        foreign=tuple(foreign),
        completion=MappingProxyType(completion),
        savepoints=frozenset(savepoints),
        rollbacks=MappingProxyType(dict(sorted(rollbacks.items()))),
        doubled=frozenset(doubled),
        first=MappingProxyType(first),
    )


@lru_cache(maxsize=8_192)
def _parse_name(name: str, layout: int) -> tuple[str, str | None, str, str] | None:
    match = _NAME.fullmatch(name)
    if match is None or match[3] not in _STATES:
        return None
    instant, done, (action, state) = match[1], match[2], _STATES[match[3]]
    if (done is not None) != (layout == 2 and state == "completed"):
        return None
    try:
        instant_ms(instant)
        instant_ms(done or instant)
    except ValueError:
        return None  # seventeen digits, but no date
    return instant, done, action, state


def glance(names: TimelineNames, *, after: str = "") -> Procedure[Timeline]:
    """One listing, which need not be a snapshot: the caller must prove that nothing changed.

    With `after`, an instant, only what is later than it."""
    entries = yield from listing(names.prefix, after=_past(names, after))
    return (yield from _standing(entries, names))


def load_timeline(names: TimelineNames, *, after: str = "") -> Procedure[Timeline]:
    """A listing that is a snapshot: the store guarantees it, or a second one proves it.

    If what the pages before the last one show is still the same afterwards, all of it was there
    when the last page was read. Only new instants change, and they are on the last page.
    """
    past = _past(names, after)
    entries = yield from listing(names.prefix, after=past)
    for tries in range(LISTINGS_MAX):
        if _is_snapshot(entries):
            return (yield from _standing(entries, names))
        again = yield from listing(names.prefix, after=past)
        if _keys_before_last_page(entries, again) == _keys_before_last_page(entries, entries):
            return (yield from _standing(entries, names))
        yield Sleep(pause_s(tries))
        entries = again
    raise TableChanged(
        "the timeline",
        f"changed between any two of {LISTINGS_MAX} listings of {len(entries)} files",
        "try again when fewer writers are active, or archive old instants",
    )


def _standing(entries: list[ListEntry], names: TimelineNames) -> Procedure[Timeline]:
    """The timeline of a listing, without the commits that a restore took back."""
    now = parse_timeline(entries, names)
    if "restore" in now.completed.values():
        from lockkit.table.format.restored import without_taken_back  # few tables are

        now = yield from without_taken_back(now, names)
    return now


def _is_snapshot(entries: list[ListEntry]) -> bool:
    return entries.snapshot if isinstance(entries, Listing) else len(entries) < PAGE_KEYS


def _keys_before_last_page(listed: list[ListEntry], again: list[ListEntry]) -> list[str]:
    """The keys of `again` up to the last one of the pages of `listed` before its last page."""
    keys = [each.key for each in again]
    before = listed.last_page if isinstance(listed, Listing) else len(listed)
    if not before or before == len(listed):
        return keys
    return [each for each in keys if each <= listed[before - 1].key]


def _past(names: TimelineNames, after: str) -> str:
    """The greatest possible key of a file of `after`: `~` sorts behind `.` and `_`."""
    return f"{names.folder}{after}~" if after else ""
