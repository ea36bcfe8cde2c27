"""Opening a table: its config, what is known of it already, and a listing of what is later.

Every reader, writer and service begins here. A saved checkpoint, or an earlier snapshot, spares the
commits that it covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from lockkit.errors import TableError
from lockkit.protocol.outcome import Version
from lockkit.runtime import Parallel, Procedure
from lockkit.runtime.proven import all_of
from lockkit.table.format.properties import FENCED, TableConfig, load_config
from lockkit.table.format.timeline import Timeline, instant_ms, load_timeline
from lockkit.table.occ.covered import CheckedHorizon, has_archived, read_commit, settle
from lockkit.table.occ.transaction import TableCache, Transaction
from lockkit.table.read import checkpoint
from lockkit.table.read.buckets import is_bucketed
from lockkit.table.read.checkpoint import read_checkpoint
from lockkit.table.read.snapshot import Snapshot, advance, nothing

# --- which commits are wanted ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SnapshotPoint:
    """Which completed commits a snapshot contains: those that every field allows."""

    covering: CheckedHorizon | None = None
    as_of: str | None = None
    """An instant: the commits at or before it."""
    completed_by: str | None = None
    """A completion time (layout 2)."""

    def commits(self, now: Timeline) -> list[str]:
        """Those of a listing, oldest first."""
        return [each for each in now.commits
                if (self.covering is None or each in self.covering)
                and (self.as_of is None or instant_ms(each) <= instant_ms(self.as_of))
                and (self.completed_by is None or now.completion[each] <= self.completed_by)
                ]  # fmt: skip

    def has_all(self, covered: CheckedHorizon, now: Timeline) -> bool:
        """Whether every commit that is `covered` is wanted; `now` begins after `lowest`."""
        if self.as_of is not None and covered.newest > self.as_of:
            return False
        if self.completed_by is not None and covered.completion > self.completed_by:
            return False
        # A transaction that began when an older instant was pending does not cover that one.
        settled = [each for each in now.commits if each <= covered.horizon]
        if self.covering is not None and any(each not in self.covering for each in settled):
            return False
        return covered.later <= set(self.commits(now))

    def lowest(self, covered: CheckedHorizon) -> str:
        """After which instant a listing has to begin for `has_all`: up to the horizon of `covering`
        a transaction covers whatever is there.
        """
        if self.covering is None:
            return covered.listed_after
        return min(covered.listed_after, self.covering.listed_after)


# --- opening a table ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """A table at its opening: what was known already, and a listing of what is later."""

    config: TableConfig
    version: Version
    """Of the properties file."""
    before: Snapshot
    now: Timeline
    after: str
    """The listing shows instants later than this; empty: all."""


def load_snapshot(
    *,
    covering: CheckedHorizon | None = None,
    since: Snapshot | None = None,
    as_of: str | None = None,
) -> Procedure[Snapshot]:
    """The table as of now, as of an instant, or of exactly `covering`: `transaction.covered`.

    Reads each commit's file once, some at a time; with `since`, an earlier snapshot, or with the
    table's checkpoint, only those of later commits.
    """
    point = SnapshotPoint(covering, None if as_of is None else known_instant(as_of))
    opened = yield from open_table(point, since=since)
    return (yield from snapshot_at(opened, point))


def snapshot_for(transaction: Transaction, since: Snapshot) -> Procedure[Snapshot]:
    """The snapshot that `transaction` covers, by its own listing if that begins early enough."""
    point = SnapshotPoint(transaction.covered)
    config, after = transaction.config, CheckedHorizon(transaction.horizon).listed_after
    if since.config != config or point.lowest(since.covered) < after:
        return (yield from load_snapshot(covering=transaction.covered, since=since))
    version = transaction.taken.known.config_version
    opened = OpenedTable(config, version, since, transaction.timeline, after)
    return (yield from snapshot_at(opened, point))


def known_instant(text: str) -> str:
    """The instant; `TableError` if it is none."""
    try:
        if not text.isdecimal() or len(text) not in (14, 17):
            raise ValueError
        instant_ms(text)
    except (ValueError, AttributeError):
        raise TableError(
            f"{str(text)[:40]!r} is no instant; write 'yyyyMMddHHmmssSSS' in UTC"
        ) from None
    return text


def open_table(
    point: SnapshotPoint = SnapshotPoint(), *, since: Snapshot | None = None
) -> Procedure[OpenedTable]:
    """The config, the checkpoint (or `since`), and the timeline from there on: three requests,
    the first two at once.
    """
    if since is None:
        (config, version), since = yield Parallel((load_config(), read_checkpoint()))
    else:
        config, version = yield from load_config()
    if since is None or since.config != config:
        since = nothing(config)
    after = point.lowest(since.covered)
    now = yield from load_timeline(config.names, after=after)
    return OpenedTable(config, version, since, now, after)


def snapshot_at(opened: OpenedTable, point: SnapshotPoint) -> Procedure[Snapshot]:
    """The snapshot of the commits that are wanted, from the start where `before` does not serve."""
    names, before, now = opened.config.names, opened.before, opened.now
    if not (
        before.covered.stands_in(now, opened.after) and point.has_all(before.covered, now)
    ):
        before = nothing(opened.config)
    if not before.covered.count:
        # After the timeline: what was moved before it was listed is in the archive by now.
        archived = yield from has_archived(opened.config.archive_prefix)
        if opened.after:
            now = yield from load_timeline(names)
        if archived:
            from lockkit.table.read.archived_base import load_archived_base  # rarely needed

            before = yield from load_archived_base(
                opened.config, now, past=(point.as_of or point.completed_by) is not None
            )
    refuse_log_files(now, opened.config)
    wanted = point.commits(now)
    new = [each for each in wanted if each not in before.covered]
    commits = yield from all_of([read_commit(names, each, now) for each in new])
    return _covering(advance(before, commits), now, wanted)


def _covering(snapshot: Snapshot, now: Timeline, wanted: Sequence[str]) -> Snapshot:
    if snapshot.config.mode != FENCED:
        return replace(snapshot, covered=CheckedHorizon(later=frozenset(wanted)))
    covered = settle(snapshot.covered, now, wanted)
    standing = {
        group: at for group, at in snapshot.replaced.items()
        if at > covered.horizon or is_bucketed(group[1])
    }  # fmt: skip
    return replace(snapshot, covered=covered, replaced=MappingProxyType(standing))


# --- what a writer must know ----------------------------------------------------------------------


def look_over(*, every: int | None = None) -> Procedure[tuple[TableCache, Snapshot]]:
    """What a writer must know before it begins, and the snapshot; saves a checkpoint if it is due.

    The checkpoint keeps the cost of both independent of the table's age. One is due after `every`
    commits, by default `CHECKPOINT_EVERY`.
    """
    opened = yield from open_table()
    snapshot = yield from snapshot_at(opened, SnapshotPoint())
    yield from keep_checkpoint(snapshot, opened.before.covered.count, every=every)
    return known_by(opened, snapshot), snapshot


def known_by(opened: OpenedTable, snapshot: Snapshot) -> TableCache:
    covered = snapshot.covered
    return TableCache(opened.config, opened.version, covered.horizon, covered.newest)


def keep_checkpoint(snapshot: Snapshot, saved: int, *, every: int | None = None) -> Procedure[int]:
    """Save it if it is due, where `saved` commits are in the checkpoint; how many are now."""
    if snapshot.covered.count < saved + (every or checkpoint.CHECKPOINT_EVERY):
        return saved
    from lockkit.table.read.checkpoint_writing import write_checkpoint  # rarely due

    yield from write_checkpoint(snapshot, every=every)
    return snapshot.covered.count


# --- what is not read -----------------------------------------------------------------------------


def refuse_log_files(now: Timeline, config: TableConfig) -> None:
    """Raise where the timeline shows that base files alone do not show what is in the table."""
    for instant, action in (*now.completed.items(), *now.pending.items()):
        if action in ("deltacommit", "compaction", "logcompaction") and not config.merged:
            raise TableError(
                f"the timeline holds {instant} ({action}): log files belong to a merge-on-read "
                "table, and this is none; read it with Hudi"
            )
        if action == "restore" and instant in now.pending:
            raise TableError(
                f"the timeline holds {instant} (a pending restore), which takes completed commits "
                "back one by one; let it finish, then read"
            )
