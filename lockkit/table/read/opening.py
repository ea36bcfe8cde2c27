"""Opens a table: reads its config, starts from what is known, and lists what is later.

Every reader, writer and service begins here. The commits that a saved checkpoint or an earlier
snapshot covers are not read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from lockkit.protocol.outcome import Version
from lockkit.runtime import Parallel, Procedure
from lockkit.runtime.proven import all_of
from lockkit.table.errors import RefusedOption, UnsupportedTable
from lockkit.table.format.properties import FENCED, GROUP, TableConfig, load_config
from lockkit.table.format.timeline import Timeline, TimelineNames, instant_ms, load_timeline
from lockkit.table.occ.covered import (
    CheckedHorizon,
    has_archived,
    pending_commits,
    read_commit,
    settle,
)
from lockkit.table.occ.transaction import TableCache, Transaction
from lockkit.table.read import checkpoint
from lockkit.table.read.buckets import is_bucketed
from lockkit.table.read.checkpoint import read_checkpoint
from lockkit.table.read.snapshot import Snapshot, advance, nothing

# --- which commits are wanted ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SnapshotPoint:
    """Which completed commits a snapshot contains: those that all of these fields allow."""

    covering: CheckedHorizon | None = None
    as_of: str | None = None
    """An instant: the commits at or before it."""
    completed_by: str | None = None
    """A completion time (layout 2)."""

    def commits(self, now: Timeline) -> list[str]:
        """Those of a listing, oldest first."""
        return [each for each in now.commits if self.has(each, now.completion.get(each, ""))]

    def has(self, instant: str, completion: str) -> bool:
        return (
            (self.covering is None or instant in self.covering)
            and (self.as_of is None or instant_ms(instant) <= instant_ms(self.as_of))
            and (self.completed_by is None or completion <= self.completed_by)
        )

    def has_all(self, covered: CheckedHorizon, now: Timeline) -> bool:
        """Whether every commit in `covered` is wanted; `now` begins after `lowest`."""
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
        """The instant after which the listing for `has_all` begins: a transaction covers every
        commit up to the horizon of `covering`.
        """
        if self.covering is None:
            return covered.listed_after
        return min(covered.listed_after, self.covering.listed_after)


# --- opening a table ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """An opened table: what was known already, and a listing of what is later."""

    config: TableConfig
    version: Version
    """Of the properties file."""
    before: Snapshot
    now: Timeline
    after: str
    """The listing shows instants later than this; "": all."""


def load_snapshot(
    *,
    covering: CheckedHorizon | None = None,
    since: Snapshot | None = None,
    as_of: str | None = None,
) -> Procedure[Snapshot]:
    """The table as of now, or of one moment. It reads each commit's file once, several at a time.

    :param covering: exactly these commits: `transaction.covered`.
    :param since: an earlier snapshot: only later commits are read, as with the table's checkpoint.
    :param as_of: an instant.
    """
    point = SnapshotPoint(covering, None if as_of is None else known_instant(as_of))
    opened = yield from open_table(point, since=since)
    return (yield from snapshot_at(opened, point))


def snapshot_for(transaction: Transaction, since: Snapshot) -> Procedure[Snapshot]:
    """The snapshot that `transaction` covers, from its own listing if that begins early enough."""
    point = SnapshotPoint(transaction.covered)
    if transaction.config.sliced and transaction.beside:  # it stands on what its handle has left
        return since
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
        raise RefusedOption(
            "instant", "is not an instant", "write 'yyyyMMddHHmmssSSS' in UTC", value=str(text)[:40]
        ) from None
    return text


def open_table(
    point: SnapshotPoint = SnapshotPoint(), *, since: Snapshot | None = None
) -> Procedure[OpenedTable]:
    """The config, the checkpoint (or `since`), and the timeline after it: three requests, the
    first two at once.
    """
    if since is None:
        (config, version), since = yield Parallel((load_config(), read_checkpoint()))
    else:
        config, version = yield from load_config()
    if since is None or since.config != config:
        since = nothing(config)
    after = point.lowest(since.covered)
    now = yield from load_commits(config.names, config.commit == GROUP, after)
    return OpenedTable(config, version, since, now, after)


def load_commits(
    names: TimelineNames, grouped: bool, after: str = ""
) -> Procedure[Timeline]:  # fmt: skip
    """The timeline with all that was acknowledged when this began; with group commit it waits."""
    if grouped:
        from lockkit.table.occ.group.tail import load_decided

        return (yield from load_decided(names, after=after))
    return (yield from load_timeline(names, after=after))


def snapshot_at(opened: OpenedTable, point: SnapshotPoint) -> Procedure[Snapshot]:
    """The snapshot of the wanted commits, read from the start if `before` cannot be used."""
    names, before, now = opened.config.names, opened.before, opened.now
    if opened.config.sliced:
        from lockkit.table.read.listed import list_for_writer

        yield from refuse_log_files(now, opened.config)
        wanted = point.commits(now)
        found = yield from list_for_writer(opened.config, now, wanted, point.as_of)
        return _covering(found, now, wanted)
    stands = before.covered.stands_in(now, opened.after) and point.has_all(before.covered, now)
    if stands and before.covered.may_miss_archived:
        stands = not (yield from has_archived(opened.config.archive_prefix))
    if not stands:
        before = nothing(opened.config)
    if not before.covered.count:
        if opened.after:
            now = yield from load_commits(names, opened.config.commit == GROUP)
        # Read after the timeline: what left it before the listing is in the archive by now.
        if (yield from has_archived(opened.config.archive_prefix)):
            from lockkit.table.read.archived_base import load_archived_base  # rarely needed

            before = yield from load_archived_base(opened.config, now, opened.before, point)
    yield from refuse_log_files(now, opened.config)
    wanted = point.commits(now)
    new = [each for each in wanted if each not in before.covered]
    commits = yield from all_of([read_commit(names, each, now) for each in new])
    return _covering(advance(before, commits), now, wanted)


def _covering(snapshot: Snapshot, now: Timeline, wanted: Sequence[str]) -> Snapshot:
    if snapshot.config.mode != FENCED:
        firm = bool(wanted) and not any(each < min(wanted) for each in pending_commits(now))
        return replace(snapshot, covered=CheckedHorizon(later=frozenset(wanted), firm=firm))
    covered = settle(snapshot.covered, now, wanted)
    standing = {
        group: at for group, at in snapshot.replaced.items()
        if at > covered.horizon or is_bucketed(group[1])
    }  # fmt: skip
    return replace(snapshot, covered=covered, replaced=MappingProxyType(standing))


# --- what a writer must know ----------------------------------------------------------------------


def look_over(*, every: int | None = None) -> Procedure[tuple[TableCache, Snapshot]]:
    """What a writer needs before it begins, and the snapshot; saves a checkpoint if it is due.

    With checkpoints the cost does not depend on the table's age. One is due after `every` commits,
    by default `CHECKPOINT_EVERY`.
    """
    opened = yield from open_table()
    snapshot = yield from snapshot_at(opened, SnapshotPoint())
    yield from keep_checkpoint(snapshot, opened.before.covered.count, every=every)
    return known_by(opened, snapshot), snapshot


def known_by(opened: OpenedTable, snapshot: Snapshot) -> TableCache:
    covered = snapshot.covered
    return TableCache(opened.config, opened.version, covered.horizon, covered.newest)


def keep_checkpoint(snapshot: Snapshot, saved: int, *, every: int | None = None) -> Procedure[int]:
    """Save it if it is due; return how many commits the checkpoint has (it had `saved`)."""
    if snapshot.covered.count < saved + (every or checkpoint.CHECKPOINT_EVERY):
        return saved
    from lockkit.table.read.checkpoint_writing import write_checkpoint  # rarely due

    yield from write_checkpoint(snapshot, every=every)
    return snapshot.covered.count


# --- what is not read -----------------------------------------------------------------------------


def refuse_log_files(now: Timeline, config: TableConfig) -> Procedure[None]:
    """Raise if the timeline shows that base files alone are not the table's content."""
    for instant, action in (*now.completed.items(), *now.pending.items()):
        if action in ("deltacommit", "compaction", "logcompaction") and not config.merged:
            why = f"({action}) made log files, and the table is not merge-on-read"
            raise UnsupportedTable(instant, why, "read it with Hudi")
        if action == "restore" and instant in now.pending:
            from lockkit.table.read.table_files import refuse_restore  # rarely there
            yield from refuse_restore(config.names, instant)
