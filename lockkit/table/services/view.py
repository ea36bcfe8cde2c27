"""The table as one run of the services found it."""

from __future__ import annotations

from dataclasses import dataclass

from lockkit.runtime import Procedure
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.timeline import Timeline, load_timeline
from lockkit.table.occ.transaction import TableCache
from lockkit.table.read.opening import (
    SnapshotPoint,
    keep_checkpoint,
    known_by,
    open_table,
    snapshot_at,
)
from lockkit.table.read.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class TableView:
    """The table as one run of the services found it."""

    known: TableCache
    snapshot: Snapshot
    now: Timeline
    """The whole timeline: a plan may be older than everything that a snapshot has to list."""

    @property
    def config(self) -> TableConfig:
        return self.known.config


def look_at(since: Snapshot | None, saved: int) -> Procedure[tuple[TableView, int]]:
    """The table as it is now, and how many commits its checkpoint has; saves one if it is due."""
    opened = yield from open_table(since=since)
    snapshot = yield from snapshot_at(opened, SnapshotPoint())
    saved = opened.before.covered.count if since is None else saved
    saved = yield from keep_checkpoint(snapshot, saved)
    now = opened.now if not opened.after else (yield from load_timeline(opened.config.names))
    return TableView(known_by(opened, snapshot), snapshot, now), saved


def look_again(view: TableView) -> Procedure[tuple[TableView, int]]:
    """`look_at` the same table later; in version 6 nothing is kept of the earlier look."""
    since = None if view.config.sliced else view.snapshot
    return look_at(since, since.covered.count if since else 0)
