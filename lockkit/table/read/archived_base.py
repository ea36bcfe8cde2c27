"""The base of a table with archived commits: the file slices that those commits left.

An archived commit is completed, and older than the timeline's first one. Hudi's rule for its files
needs no archive: a base file belongs to the table if its instant is older than the first commit of
the timeline and not pending. The commits of the timeline are then read from their own files. Nobody
archives a replacecommit before its replaced files are deleted, so no such file is taken for a live
one.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from lockkit.errors import TableError
from lockkit.runtime import Procedure
from lockkit.table.errors import NotWritable
from lockkit.table.format.archived import load_archived
from lockkit.table.format.base_file import Slice
from lockkit.table.format.layout import FileGroup
from lockkit.table.format.properties import FENCED, TableConfig
from lockkit.table.format.readable import load_readable
from lockkit.table.format.timeline import Timeline, load_timeline
from lockkit.table.occ.covered import first_active
from lockkit.table.occ.pending import REPLACING
from lockkit.table.read.log_slice import VisibleInstants
from lockkit.table.read.snapshot import Snapshot, nothing
from lockkit.table.read.table_files import list_files


def load_archived_base(
    config: TableConfig, now: Timeline, *, past: bool = False
) -> Procedure[Snapshot]:
    """The latest slice that archived commits left of each file group; it covers no commit.

    Raises `NotWritable` where the folders do not show it; `past` says that a snapshot of the past
    is wanted, which `listed` reads.
    """
    if past:
        raise NotWritable("a snapshot of the past, of a table with archived commits")
    if config.mode == FENCED:
        raise NotWritable(
            f"{config.archive_prefix} has archived commits, and in the mode fenced a file counts "
            "only if a commit of the timeline names it; nothing was written. Put the table into "
            "the mode in which Hudi's rule for old files holds: lockkit table mode URL hudi --yes"
        )
    first = first_active(now.commits, now)
    if not first:
        raise NotWritable(
            f"{config.archive_prefix} has archived commits, and the timeline has none: it does not "
            "show which files are live. Let Hudi commit once, then write"
        )
    yield from _refuse_savepoint(config, now, first)
    found = yield from list_files((yield from load_readable()), now)
    later = yield from load_timeline(config.names)
    if cleaned := sorted(_cleans(later) - _cleans(now)):
        # It may have deleted a slice that the timeline as it was listed before still needs.
        raise TableError(f"the clean of {cleaned[0]} ran while the folders were listed; try again")
    archived = VisibleInstants(frozenset(), frozenset(now.pending), first)
    groups: dict[FileGroup, Slice] = {}
    for each in found.bases:
        group = (each.partition, each.file_id)
        if each.instant in archived:
            standing = groups.get(group)
            if standing is None or (standing.instant, standing.path) < (each.instant, each.path):
                groups[group] = each
    return replace(nothing(config), groups=MappingProxyType(groups))


def _cleans(now: Timeline) -> set[str]:
    every = (*now.completed.items(), *now.pending.items())
    return {instant for instant, action in every if action == "clean"}


def _refuse_savepoint(config: TableConfig, now: Timeline, first: str) -> Procedure[None]:
    """Raise where a savepoint keeps files of groups that an archived commit replaced."""
    saved = min((each for each in now.savepoints if each < first), default="")
    if not saved:
        return
    archived = yield from load_archived(config)
    if any(each.instant > saved and each.action in REPLACING for each in archived):
        raise NotWritable(
            f"commits after the savepoint {saved} are archived (hoodie.archive.beyond.savepoint), "
            "and some of them replaced file groups whose files the savepoint keeps: the folders do "
            "not show which are live. Delete the savepoint, let Hudi clean, then write"
        )
