"""The files of a table that Hudi made, as its folders show them beside its timeline."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import listing, read
from lockkit.table.errors import (
    DamagedFile,
    NotWritable,
    TableBlocked,
    TableChanged,
    UnsupportedTable,
)
from lockkit.table.format.base_file import Slice
from lockkit.table.format.column_ids import (
    HISTORY_FILE,
    SCHEMAS_PREFIX,
    ColumnIds,
    keeps_names,
    parse_ids,
)
from lockkit.table.format.layout import (
    BASE_FILE,
    LOG_FILE,
    PARTITION_FILE,
    CommitFiles,
    FileGroup,
    parse_commit,
)
from lockkit.table.format.log_blocks import COMMAND, blocks
from lockkit.table.format.partition import is_inside
from lockkit.table.format.readable import ReadableTable, load_readable
from lockkit.table.format.savepoint_files import parse_restore_plan
from lockkit.table.format.timeline import HOODIE, Timeline, TimelineNames, load_timeline
from lockkit.table.occ.covered import NO_ARCHIVE, first_active

COMMITS = frozenset({"commit", "replacecommit", "deltacommit"})
_SAME_COLUMNS = frozenset({"CLUSTER", "COMPACT", "LOG_COMPACT", "INDEX"})


@dataclass(frozen=True, slots=True)
class Listed:
    """A table as found: its properties, its timeline, and every data file."""

    table: ReadableTable
    now: Timeline
    bases: tuple[Slice, ...]
    logs: tuple[tuple[FileGroup, str, int, str, str], ...]
    """(file group, instant, version, write token, key)."""
    histories: tuple[str, ...] = ()
    """The files with the versions of the schema, oldest first."""
    archives: bool = True
    """Whether instants may have left the timeline. In layout 2 the archive shows it."""

    @property
    def commits(self) -> list[str]:
        """Completed instants with rows, oldest first."""
        return [each for each, action in self.now.completed.items() if action in COMMITS]

    @property
    def first(self) -> str:
        """Older instants are archived, but a savepoint keeps its commit in the timeline.

        "" if the table has no archive: an older instant in a file's name is a failed writer's then,
        whose file arrived after the rollback.
        """
        return first_active(self.commits, self.now) if self.archives else ""

    def order(self, instant: str) -> str:
        """What orders an active instant in increments."""
        return self.now.completion.get(instant, instant)


def load_listed() -> Procedure[Listed]:
    """Read properties, timeline, then files, so that the files of all its commits exist."""
    table = yield from load_readable()
    now = yield from load_timeline(table.config.names)
    for instant, action in now.pending.items():
        if action == "restore":
            yield from refuse_restore(table.config.names, instant)
    return (yield from list_files(table, now))


def refuse_restore(names: TimelineNames, instant: str) -> Procedure[None]:
    """Raise if a pending restore may take commits back while the table is read."""
    if not (yield from cannot_begin(names, instant)):
        why = "is a pending restore, which takes completed commits back one by one"
        cure = "let it finish, then read; if its process is gone, any other can finish it: lockkit "
        raise TableBlocked(instant, why, f"{cure}table restore URL with the same savepoint")


def cannot_begin(names: TimelineNames, instant: str) -> Procedure[bool]:
    """Whether a restore has deleted nothing, and neither lockkit nor Hudi can read its plan."""
    key = names.requested(instant, "restore")
    found = yield from read(key, limit=None)
    if isinstance((yield from read(names.inflight(instant, "restore"))), Found):
        return False
    try:
        parse_restore_plan(key, found.body if isinstance(found, Found) else b"")
    except DamagedFile:
        return isinstance(found, Found)
    return False


def list_files(table: ReadableTable, now: Timeline) -> Procedure[Listed]:
    """Every data file; `now` must be listed before. Hudi's readers know no other folder than those
    with a partition file, so what was copied into another one is no row.

    A request in the name of an archived commit hides none of its files: see `_without_late`.
    """
    bases, logs, histories, partitions = [], [], [], set()
    entries, prefix = (yield from listing("")), table.config.archive_prefix
    for entry in entries:
        if HISTORY_FILE.fullmatch(entry.key):
            histories.append(entry.key)
        if entry.key.startswith(HOODIE) or not is_inside(entry.key):
            continue
        partition, _, name = entry.key.rpartition("/")
        if name.startswith(PARTITION_FILE):
            partitions.add(partition)
        elif found := BASE_FILE.fullmatch(name):
            bases.append(Slice(partition, found[1], found[3], entry.key))
        elif table.merged and (found := LOG_FILE.fullmatch(name)):
            group = (partition, found[1])
            logs.append((group, found[2], int(found[3]), found[4] or "", entry.key))
    archives = table.config.names.layout == 1 or any(
        each.key.startswith(prefix) and not each.key.endswith(NO_ARCHIVE) for each in entries
    )
    bases = [each for each in bases if each.partition in partitions]
    logs = [each for each in logs if each[0][0] in partitions]
    files = tuple(bases), tuple(sorted(logs)), tuple(sorted(histories))
    listed = Listed(table, now, *files, archives)
    if any(each < listed.first for each in now.pending):
        listed = yield from _without_late(listed)
    return listed


class HiddenCommits(NotWritable):
    """Commits left for the archive, and one that is older than they is still in the timeline.

    `until` is the newest of those that left.
    """

    until: str = ""


def refuse_hidden(found: Listed) -> Procedure[None]:
    """Raise `HiddenCommits` if there are some: readers take their files for failed writers'.

    A write would not find their keys, and its log files would hide them for good. A savepoint kept
    the older commit from Hudi's archiver, or that archiver died.
    """
    from lockkit.table.format.archived import load_archived  # rarely needed

    over = {*found.now.completed, *found.now.pending}
    wrote = {*(of.instant for of in found.bases), *(log[1] for log in found.logs)}
    hidden = {each for each in wrote - over if each > found.first}
    if hidden:
        hidden &= {each.instant for each in (yield from load_archived(found.table.config))}
    if hidden:
        refused = HiddenCommits(
            found.first, f"is in the timeline, and {min(hidden)} is archived, though later: "
            "readers hide its rows", "archive the first one, too: lockkit table archive URL",
        )  # fmt: skip
        refused.until = max(hidden)
        raise refused


def refuse_lost_base(
    names: TimelineNames, at: str, now: Timeline, group: FileGroup
) -> Procedure[None]:
    """Raise if the compaction `at` wrote a base file of this file group, which is not there.

    One of Hudi's writes none if the log files have no rows.
    """
    if now.completed.get(at) != "commit":
        return
    key = names.completed(at, "commit", now.completion.get(at))
    match (yield from read(key)):
        case Found(body, _):
            of: Any = parse_commit(at, key, body, lambda place, fields: {**fields, "in": place})
            for stat in of.stats:
                if (stat["in"], stat.get("fileId")) == group:
                    raise DamagedFile(
                        str(stat.get("path"))[:200], "is gone, and log files count on it: the "
                        f"compaction {at} wrote it", "restore it from a backup",
                    )  # fmt: skip


def refuse_lost_plan(
    names: TimelineNames, at: str, key: str, completed: Container[object]
) -> Procedure[None]:
    """Raise if a log file of the slice `at`, which the timeline lacks, has rows of others.

    That of a writer that failed has none: only a compaction's slice gets log files before its base
    file is there.
    """
    match (yield from read(key, limit=None)):
        case Found(body, _):
            for each in blocks(key, body):
                if each.kind != COMMAND and each.instant != at and each.instant in completed:
                    raise DamagedFile(
                        names.requested(at, "compaction"),
                        f"is gone, and {key} behind that plan has rows of the commit "
                        f"{each.instant}", "restore it from a backup",
                    )  # fmt: skip


def cleans(now: Timeline) -> set[str]:
    every = (*now.completed.items(), *now.pending.items())
    return {instant for instant, action in every if action == "clean"}


def _without_late(found: Listed) -> Procedure[Listed]:
    """The same without requests in the names of archived commits, and without their files.

    The name of an archived instant is free, so a request that arrives late, or a writer whose clock
    is far behind, can take it again. It never completes. Hudi's readers hide the commit's own files
    until the request is deleted. Here they count, and any other file of that instant does not.
    """
    from lockkit.table.format.archived import load_archived_commits  # rarely needed

    own = {
        each.instant: {stat.path for stat in each.stats}
        for each in (yield from load_archived_commits(found.table.config))
        if each.instant in found.now.pending
    }
    pending = {each: its for each, its in found.now.pending.items() if each not in own}
    named = own if found.table.config.names.layout == 2 else {}  # else by its base file's instant
    return replace(
        found, now=replace(found.now, pending=pending),
        bases=tuple(of for of in found.bases if of.path in own.get(of.instant, (of.path,))),
        logs=tuple(log for log in found.logs if log[4] in named.get(log[1], (log[4],))),
    )  # fmt: skip


def says_columns(found: Listed, commit: CommitFiles) -> bool:
    """Whether the table's columns are those of this commit's schema.

    Where columns have ids, not of one that cannot change them (Hudi's `canUpdateSchema`): that of a
    clustering has a schema, and no ids.
    """
    return bool(commit.schema) and not (found.histories and commit.operation in _SAME_COLUMNS)


def load_ids(found: Listed, newest: str, latest: str) -> Procedure[ColumnIds | None]:
    """The ids of the columns as of the `newest` commit with a schema, if they have any.

    A commit keeps the history before it completes, so the last file may be of one that failed.
    """
    histories = {match[1]: each for each in found.histories
                 if (match := HISTORY_FILE.fullmatch(each)) and match[1] in found.now.completed
                 }  # fmt: skip
    numbered = [each for each in histories if latest or each <= newest]
    if not numbered and not latest:
        return None
    if not numbered:
        why = f"is missing, and the commit {newest} needs its schemas: columns may be renamed"
        raise DamagedFile(SCHEMAS_PREFIX, why, "restore the folder from a backup")
    key = histories[max(numbered)]
    match (yield from read(key)):
        case Found(body, _) if latest:
            return parse_ids(key, latest, body)
        case Found(body, _):  # a writer without ids came later: Hudi reads by names then
            if keeps_names(key, body):
                return None
            why = "has no ids of the columns, and commits before it renamed or dropped some by ids"
            raise UnsupportedTable(newest, why, "read the table with Hudi")
        case _missing:
            raise TableChanged(key, "was listed and is gone: a commit replaced it", "read again")
