"""The increment: what changed in (start, end], and where the next one begins.

An increment is rows whose `_hoodie_commit_time` is of a commit in the window, as they stand at its
end: a row that was written twice in it comes once, one that was only copied into a new file does
not come, and one that clustering moved comes if it changed. Deleted rows do not show, as in Hudi.

Its `end` is where the next one starts, and no commit may appear behind it later. In layout 1 the
order is that of the instants, and a writer that began early may complete late: so an increment ends
before the first pending commit (Hudi's policy BLOCK), dead writers' too, until they are rolled
back. `held_back` then says which instant that is. Below it nothing new appears, as `covered.py`
shows. A pending instant at or before `start` holds nothing back: its rows would not be in the
window, and it cannot complete any more (a request that arrived late, after its writer had gone).

In layout 2 the order is that of the completion times. They rise from entry to entry of the fence,
and nobody replaces an entry before the completed file of that entry's commit is there: so a listing
that shows a completion time shows every smaller one, and no pending commit has to be waited for.
(`hudi` mode: they are taken under the lock, and are in order as long as it excludes.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lockkit.errors import TableError
from lockkit.runtime import Procedure
from lockkit.table.format.base_file import Slice
from lockkit.table.format.schema import COMMIT_TIME
from lockkit.table.format.timeline import Timeline, load_timeline
from lockkit.table.occ.condition import HeldBack, held_back
from lockkit.table.occ.covered import first_pending
from lockkit.table.read.log_slice import instants_of
from lockkit.table.read.opening import (
    OpenedTable,
    SnapshotPoint,
    known_instant,
    open_table,
    snapshot_at,
)
from lockkit.table.read.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class Increment:
    """The window (`start`, `end`], and the slices in which its rows are; `end` is the next start.

    Both are instants in layout 1 and completion times in layout 2.
    """

    start: str
    end: str
    snapshot: Snapshot | None
    """The table as of `end`; None where nothing changed."""
    slices: tuple[Slice, ...] = ()
    instants: frozenset[str] | None = None
    """The window's commits, where their own names do not order them (layout 2)."""
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
    """What changed after `start` (empty: ever) and up to `end`, which is included (None: now).

    `settled` says that an earlier increment ended at `end`. What is pending below it now was taken
    later, so its survey fails: it holds nothing back. `TableError` if `end` is gone from the table.
    """
    for bound in filter(None, (start, end)):
        known_instant(bound)
    opened = yield from open_table()
    if opened.config.names.layout == 1:
        found = yield from _by_instant(opened, start, end, settled)
    else:
        found = yield from _by_completion(opened, start, end)
    if settled and end is not None and found.end < end:
        raise TableError(
            f"the commit of {end}, where an earlier increment ended, is gone from the timeline: "
            "the table was restored to an earlier state, or made anew; read it again from the start"
        )
    return found


def _by_instant(
    opened: OpenedTable, start: str, end: str | None, settled: bool
) -> Procedure[Increment]:
    if end is not None and end < opened.before.covered.horizon:
        opened = yield from _from_the_start(opened)
    barred = max(start, end) if settled and end is not None else start
    until = settled_until(opened.now, barred, end)
    held = yield from held_back(opened.config.names, opened.now, barred, end)
    if until <= start:
        return Increment(start, start, None, held_back=held)
    snapshot = yield from snapshot_at(opened, SnapshotPoint(as_of=until))
    slices = tuple(each for each in snapshot.slices if each.instant > start)
    return Increment(start, until, snapshot, slices, held_back=held)


def settled_until(now: Timeline, start: str, end: str | None) -> str:
    """The newest commit, not after `end`, that no pending one later than `start` precedes; empty
    if there is none.
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
    if until <= start:
        return Increment(start, start, None)
    snapshot = yield from snapshot_at(opened, SnapshotPoint(completed_by=until))
    window = frozenset(each for each, at in times.items() if start < at <= until)
    slices = tuple(each for each in snapshot.slices if instants_of(each) & window)
    return Increment(start, until, snapshot, slices, window)


def _from_the_start(opened: OpenedTable) -> Procedure[OpenedTable]:
    return replace(opened, now=(yield from load_timeline(opened.config.names)), after="")
