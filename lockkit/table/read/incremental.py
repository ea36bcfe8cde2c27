"""The increment: what changed in (start, end], and where the next one begins.

An increment has the rows whose `_hoodie_commit_time` names a commit in the window, as they are at
its end. A row that was written twice in it appears once. A row that was only copied to a new file
does not appear, and a clustered row appears only if it changed. As in Hudi, it does not contain
deleted rows.

The next increment starts at its `end`, so no commit may appear before that end later. Layout 1
orders commits by instant, and a writer that began early may complete late. So an increment ends
before the first pending commit (Hudi's policy BLOCK), even one of a dead writer, until that is
rolled back; `held_back` names it. `covered.py` shows why nothing new appears below it. A pending
instant at or before `start` does not matter: its rows would be outside the window, and it cannot
complete any more (it is a request that arrived after its writer had ended).

Layout 2 orders commits by completion time. These times rise from entry to entry of the fence, and
an entry is replaced only after its commit's completed file exists. So a listing that shows one
completion time shows every smaller one, and no increment waits for a pending commit. (In mode
`hudi` the times are taken under the lock, and are in order as long as the lock excludes.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lockkit.runtime import Procedure
from lockkit.table.errors import TableChanged
from lockkit.table.format.archived import load_archived
from lockkit.table.format.base_file import Slice
from lockkit.table.format.properties import GROUP, TableConfig
from lockkit.table.format.schema import COMMIT_TIME
from lockkit.table.format.timeline import COMMITS, Timeline, load_timeline
from lockkit.table.occ.condition import HeldBack, first_pending, held_back
from lockkit.table.occ.covered import has_archived
from lockkit.table.read.log_slice import instants_of
from lockkit.table.read.opening import (
    OpenedTable,
    SnapshotPoint,
    known_instant,
    load_commits,
    open_table,
    snapshot_at,
)
from lockkit.table.read.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow.compute as pc
@dataclass(frozen=True, slots=True)
class Increment:
    """The window (`start`, `end`], and the slices with its rows; the next one starts at `end`.

    Both are instants in layout 1 and completion times in layout 2.
    """

    start: str
    end: str
    snapshot: Snapshot | None
    """The table as of `end`; None if nothing changed."""
    slices: tuple[Slice, ...] = ()
    instants: frozenset[str] | None = None
    """The window's commits, if their names do not order them (layout 2)."""
    held_back: HeldBack | None = None
    """The pending instant that keeps completed commits out of this increment (layout 1)."""

    @property
    def where(self) -> pc.Expression:
        """An Arrow filter: true for the rows of the window."""
        import pyarrow.compute as pc

        time = pc.field(COMMIT_TIME)
        if self.instants is not None:
            return time.isin(sorted(self.instants))
        return (time > self.start) & (time <= self.end)


def load_increment(
    start: str = "", end: str | None = None, *, settled: bool = False
) -> Procedure[Increment]:
    """What changed after `start` ("": from the first commit on), up to and with `end` (None: now).

    `settled` means that an earlier increment ended at `end`. An instant that is pending below it
    now began later, and will fail, so it delays nothing. `TableError` if `end` left the timeline.

    :param start: where the last increment ended; "": before the first commit.
    :param end: the last instant to include; None: now.
    :param settled: whether an earlier increment ended at `end`.
    """
    if not isinstance(start, str) or start:
        known_instant(start)
    if end is not None:
        known_instant(end)
    opened = yield from open_table()
    if opened.config.sliced:
        from lockkit.table.read.listed import list_increment, writing

        found = yield from list_increment(start, end)
        held = yield from held_back(opened.config.names, writing(opened.now), start, end)
        return replace(found, held_back=held)
    if opened.config.names.layout == 1:
        found = yield from _by_instant(opened, start, end, settled)
    else:
        found = yield from _by_completion(opened, start, end)
    if settled and end is not None and found.end < end:
        raise TableChanged(
            end,
            "is gone from the timeline, and an earlier increment ended there: the table was "
            "restored to an earlier state, or created again", "read it again from the start",
        )  # fmt: skip
    return found


def _by_instant(
    opened: OpenedTable, start: str, end: str | None, settled: bool
) -> Procedure[Increment]:
    if end is not None and end < opened.before.covered.horizon:
        opened = yield from _from_the_start(opened)
    if opened.now.tail:  # a smaller instant may still be published before those
        now = yield from load_timeline(opened.config.names, after=opened.after)
        opened = replace(opened, now=now)
    barred = max(start, end) if settled and end is not None else start
    until = settled_until(opened.now, barred, end)
    held = yield from held_back(opened.config.names, opened.now, barred, end)
    if end is not None and opened.now.commits and end < opened.now.commits[0]:
        until, _ = yield from _archived(opened, start, end)
    if until <= start:
        return Increment(start, start, None, held_back=held)
    snapshot = yield from snapshot_at(opened, SnapshotPoint(as_of=until))
    slices = tuple(each for each in snapshot.slices if each.instant > start)
    return Increment(start, until, snapshot, slices, held_back=held)


def settled_until(now: Timeline, start: str, end: str | None) -> str:
    """The newest commit up to `end` without a pending one between it and `start`; "" if there is
    none.
    """
    barrier = first_pending(now, start)
    known = (each for each in now.commits if each < barrier and (end is None or each <= end))
    return max(known, default="")


def _by_completion(opened: OpenedTable, start: str, end: str | None) -> Procedure[Increment]:
    if start < opened.before.covered.completion:
        opened = yield from _from_the_start(opened)  # the names of the window's commits
    now = opened.now
    times = {each: now.completion[each] for each in now.commits}
    until = max((at for at in times.values() if end is None or at <= end), default="")
    first, older = min(times.values(), default=""), frozenset[str]()
    if end is not None and end < first:
        until, older = yield from _archived(opened, start, end)
    if until <= start:
        return Increment(start, start, None)
    # Archived are the smallest instants, and one of them may have completed after `start`, unless
    # the commits at or below the horizon all completed before it, and it is still on the timeline.
    if not opened.after or opened.before.covered.horizon not in now.completed:
        _, older = yield from _archived(opened, start, until)
    snapshot = yield from snapshot_at(opened, SnapshotPoint(completed_by=until))
    window = older | {each for each, at in times.items() if start < at <= until}
    slices = tuple(each for each in snapshot.slices if instants_of(each) & window)
    return Increment(start, until, snapshot, slices, window)


def _archived(opened: OpenedTable, start: str, end: str) -> Procedure[tuple[str, frozenset[str]]]:
    found: tuple[str, frozenset[str]] = yield from archived_in(opened.config, start, end)
    return found


def _from_the_start(opened: OpenedTable) -> Procedure[OpenedTable]:
    now = yield from load_commits(opened.config.names, opened.config.commit == GROUP)
    return replace(opened, now=now, after="")


def archived_in(
    config: TableConfig, start: str, until: str
) -> Procedure[tuple[str, frozenset[str]]]:
    """Where the last one of (`start`, `until`] stands, or "", and all their instants.

    The bounds are completion times; in version 6, whose archive has none, instants.
    """
    if not (yield from has_archived(config.archive_prefix)):
        return "", frozenset()
    at = {
        each.instant: each.completed or each.instant
        for each in (yield from load_archived(config)) if each.action in COMMITS
    }  # fmt: skip
    found = frozenset(each for each, done in at.items() if start < done <= until)
    return max((at[each] for each in found), default=""), found
