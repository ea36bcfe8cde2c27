"""The base of a table with archived commits: the file slices that those commits left.

An archived commit is completed, and older than the timeline's first one. Hudi's rule for its files
does not need the archive: a base file belongs to the table if its instant is older than the
timeline's first commit and not pending. So does a log file, behind the base file that was there
when it was completed. Newer commits are read from their own files. A
replacecommit is archived only after its replaced files were deleted, so none of them looks live.

In mode fenced only what a commit names is a file of the table, so there the archive is read.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

from lockkit.runtime import Procedure
from lockkit.table.errors import NotWritable, TableChanged
from lockkit.table.format.archived import is_said_empty, load_archived, load_archived_commits
from lockkit.table.format.base_file import Slice
from lockkit.table.format.layout import FileGroup
from lockkit.table.format.properties import FENCED, TableConfig
from lockkit.table.format.readable import load_readable
from lockkit.table.format.timeline import Timeline, load_timeline
from lockkit.table.occ.covered import REPLACING, CheckedHorizon, first_active
from lockkit.table.read.log_slice import VisibleInstants, log_slice
from lockkit.table.read.snapshot import Snapshot, advance, nothing
from lockkit.table.read.table_files import cleans, list_files


class Wanted(Protocol):
    """Which snapshot is asked for; the part of `opening.SnapshotPoint` that is needed here."""

    @property
    def as_of(self) -> str | None: ...

    @property
    def completed_by(self) -> str | None: ...

    @property
    def covering(self) -> CheckedHorizon | None: ...

    def has(self, instant: str, completion: str) -> bool: ...

    def has_all(self, covered: CheckedHorizon, now: Timeline) -> bool: ...


def load_archived_base(
    config: TableConfig, now: Timeline, before: Snapshot, point: Wanted
) -> Procedure[Snapshot]:
    """The latest slice that archived commits left of each file group; it covers no active commit.

    Or `before`, if it covers them. It was not used because commits that it covers are archived.

    Raises `NotWritable` if the folders do not show it, or for a snapshot of the past:
    `listed` reads that.
    """
    if config.mode == FENCED:
        saved = before.covered
        sure = saved.count and not saved.may_miss_archived
        if sure and saved.stands_in(now, config.archive_prefix) and point.has_all(saved, now):
            return before
        return (yield from _by_the_archive(config, now, point))
    if point.as_of or point.completed_by:
        raise NotWritable(
            config.archive_prefix, "has archived commits, and a snapshot of the past is asked for"
        )
    first = first_active(now.commits, now)
    if not first:
        raise NotWritable(
            config.archive_prefix,
            "has archived commits, and the timeline has none: it does not show which files are "
            "live", "let Hudi commit once, then write",
        )  # fmt: skip
    yield from _refuse_savepoint(config, now, first)
    found = yield from list_files((yield from load_readable()), now)
    later = yield from load_timeline(config.names)
    if cleaned := sorted(cleans(later) - cleans(now)):
        # It may have deleted a slice that the earlier listing of the timeline still needs.
        raise TableChanged(cleaned[0], "(a clean) ran while the folders were listed", "try again")
    archived = VisibleInstants(frozenset(), frozenset(found.now.pending), first)
    groups: dict[FileGroup, Slice] = {}
    for each in found.bases:
        group = (each.partition, each.file_id)
        if each.instant in archived:
            standing = groups.get(group)
            if standing is None or (standing.instant, standing.path) < (each.instant, each.path):
                groups[group] = each
    groups |= yield from _with_logs(config, found.logs, archived, groups)
    return replace(nothing(config), groups=MappingProxyType(groups))


def _with_logs(
    config: TableConfig, logs: tuple[tuple[FileGroup, str, int, str, str], ...],
    archived: VisibleInstants, bases: dict[FileGroup, Slice],
) -> Procedure[dict[FileGroup, Slice]]:  # fmt: skip
    """The file groups with log files of archived commits that no base file contains yet."""
    left: dict[FileGroup, list[tuple[str, str]]] = defaultdict(list)
    for group, instant, _version, _token, key in logs:
        if instant in archived:
            left[group].append((key, instant))
    if not left:
        return {}
    history = yield from load_archived(config)
    times = {each.instant: each.completed or each.instant for each in history}
    found = {}
    for (partition, file_id), listed in left.items():
        base = bases.get((partition, file_id)) or Slice(partition, file_id, "", "")
        later = [(key, at) for key, instant in listed
                 if (at := times.get(instant, instant)) > base.instant]  # fmt: skip
        if later:
            found[(partition, file_id)] = log_slice(config, base, later)
    return found


def _by_the_archive(config: TableConfig, now: Timeline, point: Wanted) -> Procedure[Snapshot]:
    """In mode fenced a file counts only if a commit names it: so the archived commits are read."""
    archived = yield from load_archived_commits(config)
    if any(each.attempt is None for each in archived) or not (
        archived or (yield from is_said_empty(config))
    ):
        raise NotWritable(
            config.archive_prefix,
            "has archived commits that lockkit did not archive, and in the mode fenced a file "
            "counts only if a commit names it; nothing was written",
            "put the table into the mode in which Hudi's rule for old files holds: lockkit table "
            "mode URL hudi --yes",
        )
    # A transaction without a horizon names the active commits that it covers; older ones, too.
    oldest = min(point.covering.later, default="") if point.covering else ""
    wanted = [
        each for each in archived if each.instant not in now.completed
        and (each.instant < oldest or point.has(each.instant, each.completion))
    ]  # fmt: skip
    covered = CheckedHorizon(
        settled=len(wanted), completion=max((each.completion for each in wanted), default="")
    )
    return replace(advance(nothing(config), wanted), covered=covered)


def _refuse_savepoint(config: TableConfig, now: Timeline, first: str) -> Procedure[None]:
    """Raise if a savepoint keeps files of groups that an archived commit replaced."""
    saved = min((each for each in now.savepoints if each < first), default="")
    if not saved:
        return
    archived = yield from load_archived(config)
    if any(each.instant > saved and each.action in REPLACING for each in archived):
        raise NotWritable(
            saved,
            "is a savepoint, and commits after it are archived (hoodie.archive.beyond.savepoint). "
            "Some of them replaced file groups whose files the savepoint keeps: the folders do "
            "not show which are live", "delete the savepoint, let Hudi clean, then write",
        )  # fmt: skip
