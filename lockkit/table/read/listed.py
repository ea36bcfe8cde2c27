"""Reads a table that Hudi's own writers made as Hudi reads it: from a listing of its folders.

Hudi lists the table's folders and keeps the files of completed instants. Instants older than the
timeline's first commit are archived, and thus completed, so a snapshot needs neither the archive
nor the metadata table. (`snapshot.py` is stricter: it reads every commit's own file.)

It leaves out the files of pending and failed writers, and file groups that a completed
replacecommit replaced. Only `history` and increments by completion time read the archive.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from types import MappingProxyType

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, listing, read
from lockkit.table.errors import (
    DamagedFile,
    NotWritable,
    RefusedOption,
    TableChanged,
    UnsupportedTable,
)
from lockkit.table.format import avro_decoding
from lockkit.table.format.archived import ArchivedInstant, load_archived, load_archived_commits
from lockkit.table.format.base_file import Slice
from lockkit.table.format.layout import BASE_FILE, LOG_FILE, CommitFiles, FileGroup, parse_commit
from lockkit.table.format.properties import TableConfig, to_properties
from lockkit.table.format.readable import ReadableTable, load_readable, readable
from lockkit.table.format.timeline import Timeline, instant_ms, load_timeline
from lockkit.table.occ.condition import first_pending
from lockkit.table.occ.covered import CheckedHorizon, has_archived
from lockkit.table.occ.failed import service_plans
from lockkit.table.read.incremental import Increment
from lockkit.table.read.log_slice import LogSlice, VisibleInstants
from lockkit.table.read.opening import known_instant, load_commits
from lockkit.table.read.predicate import SNAPSHOT
from lockkit.table.read.snapshot import LATEST, Snapshot, refuse_renamed
from lockkit.table.read.table_files import (
    COMMITS,
    Listed,
    cleans,
    list_files,
    load_ids,
    load_listed,
    refuse_hidden,
    refuse_lost_base,
    refuse_lost_plan,
    says_columns,
)


class LocalInstants(UserWarning):
    """The table's instants are local times of its writers, not UTC."""


def warn_local(table: ReadableTable) -> None:
    """Warn that the caller's instant is compared with local times."""
    if table.zone != "UTC":
        text = (
            f"instants of table {table.config.name!r} are local times of its writers "
            "(hoodie.table.timeline.timezone is not UTC); they are compared as they are written"
        )
        warnings.warn(LocalInstants(text), stacklevel=3)


# --- the snapshot ---------------------------------------------------------------------------------


def list_snapshot(*, as_of: str | None = None, query: str = SNAPSHOT) -> Procedure[Snapshot]:
    """The table as Hudi's query of this type shows it, now or as of an instant."""
    found = yield from load_listed()
    if as_of is None:
        return (yield from _snapshot(found, found.commits, None, query))
    warn_local(found.table)
    until_ms = instant_ms(known_instant(as_of))
    wanted = [each for each in found.commits if instant_ms(each) <= until_ms]
    return (yield from _snapshot(found, wanted, as_of, query))


def list_for_writer(
    config: TableConfig, now: Timeline, wanted: Collection[str], as_of: str | None = None
) -> Procedure[Snapshot]:
    """The same for a writer or a service of a table of version 6: as of the `wanted` commits of
    `now`, with what the names of the next log files depend on (`next_log`).
    """
    found = yield from list_files(readable(to_properties(config)), now)
    if not found.commits and (yield from has_archived(config.archive_prefix)):
        why = "has archived commits, and the timeline has none: no file is known to be live"
        raise NotWritable(config.archive_prefix, why, "let Hudi commit once, then write")
    yield from refuse_hidden(found)
    if cleaned := sorted(cleans((yield from load_timeline(config.names))) - cleans(now)):
        # It may have deleted a slice that the earlier listing of the timeline still needs.
        raise TableChanged(cleaned[0], "(a clean) ran while the folders were listed", "try again")
    snapshot = yield from _snapshot(found, sorted(wanted), as_of)
    if snapshot.schema is None:  # then the properties may have it
        snapshot = replace(snapshot, schema=(yield from load_readable()).created_with or None)
    if found.histories:  # also where the newest commit's columns have no ids
        refuse_renamed(config.mode, snapshot.schema_from)
    groups, damaged = dict(snapshot.groups), dict[str, str]()
    plans = yield from service_plans(config.names, now, damaged)
    for instant, plan in plans.items():
        for group in plan.inputs or () if now.pending[instant] == "compaction" else ():
            if isinstance(of := groups.get(group), LogSlice):
                groups[group] = replace(of, next_base=max(of.next_base, instant))
    for unknown in (damaged[each] for each in damaged if now.pending[each] == "compaction"):
        groups |= {group: replace(of, no_next=unknown) for group, of in groups.items()
                   if isinstance(of, LogSlice)}  # fmt: skip
    return replace(snapshot, config=config, groups=MappingProxyType(groups))


def snapshot_of(commits: Collection[str]) -> Procedure[Snapshot]:
    """The table if of its timeline there were only these commits."""
    return (yield from _snapshot((yield from load_listed()), sorted(commits), None))


def _snapshot(
    found: Listed, wanted: list[str], until: str | None, query: str = SNAPSHOT
) -> Procedure[Snapshot]:
    """The slices as of the `wanted` commits; `until` is their end, or None."""
    completed = VisibleInstants(frozenset(wanted), frozenset(found.now.pending), found.first, until)
    outlines = yield from all_of(
        _outline(found, each) for each in wanted if found.now.completed[each] == "replacecommit"
    )
    replaced = {group: each.instant for each in outlines for group in each.replaced}
    schema, schema_from, latest = yield from _schema(found, wanted, until)
    groups = _bases(found, completed, replaced)
    if until is not None and until < max(found.commits, default=""):
        yield from _refuse_cleaned(found, until, groups, replaced)
    if query == SNAPSHOT:
        groups |= yield from _with_logs(found, completed, groups, replaced)
    return Snapshot(
        found.table.config,
        CheckedHorizon(later=frozenset(wanted)),
        MappingProxyType(groups),
        MappingProxyType(replaced),
        schema,
        schema_from,
        (yield from load_ids(found, schema_from, latest)),
    )


def _bases(
    found: Listed, completed: VisibleInstants, replaced: dict[FileGroup, str]
) -> dict[FileGroup, Slice]:
    """The newest visible base file of each file group."""
    groups: dict[FileGroup, Slice] = {}
    for of in found.bases:
        group = (of.partition, of.file_id)
        if of.instant in completed and group not in replaced:
            standing = groups.get(group)
            if standing is None or (standing.instant, standing.path) < (of.instant, of.path):
                groups[group] = of
    return groups


def _with_logs(
    found: Listed, completed: VisibleInstants, groups: dict[FileGroup, Slice],
    replaced: dict[FileGroup, str],
) -> Procedure[dict[FileGroup, Slice]]:  # fmt: skip
    """The file groups with log files that are later than their base file.

    A log file's name has the instant of its base file (layout 1) or its own (layout 2). In layout 2
    it is later if it was completed after the base file's instant. A pending compaction needs no
    rule: log files written after it are also later than the current base file.
    """
    logs: dict[FileGroup, list[tuple[str, str]]] = defaultdict(list)
    own = found.table.config.names.layout == 2
    archived: dict[str, str] | None = None
    for group, instant, _version, _token, key in found.logs:
        base = groups[group].instant if group in groups else ""
        if group in replaced or (own and instant not in completed):
            continue
        at = instant
        if own and instant < base:
            if instant not in found.now.completion and archived is None:
                history = yield from load_archived(found.table.config)
                archived = {each.instant: each.completed or each.instant for each in history}
            at = found.now.completion.get(instant) or (archived or {}).get(instant, instant)
        if at >= base:
            logs[group].append((instant, key))
    for group, its in () if own else logs.items():
        base = groups[group].instant if group in groups else ""
        for at in sorted({at for at, _ in its if at > base and at in completed}):
            yield from refuse_lost_base(found.table.config.names, at, found.now, group)
        start = _start(groups.get(group), its, completed)
        for at, key in its:
            if at > start and at not in found.now.pending:
                if not is_of_the_newest(found.now, at, start):
                    yield from refuse_lost_plan(found.table.config.names, at, key, completed)
    return {
        group: LogSlice(
            *group, groups[group].instant if group in groups else "",
            groups[group].path if group in groups else "", kept, found.table.ordering, completed,
            found.table.config.names,
        )
        for group, its in logs.items()
        for start in (_start(groups.get(group), its, completed),)
        if (kept := tuple(key for at, key in its
                          if own or is_of_the_newest(found.now, at, start)))
    }  # fmt: skip


def _start(
    base: Slice | None, logs: Iterable[tuple[str, str]], completed: VisibleInstants
) -> str:
    """The instant of a file group's newest slice in layout 1; "" where none is completed."""
    return base.instant if base else max((at for at, _ in logs if at in completed), default="")


def is_of_the_newest(now: Timeline, at: str, start: str) -> bool:
    """Whether a log file of the slice `at` goes with the slice `start`, the newest one.

    Beside its own there may be those of a compaction that was planned. Any other slice is that of a
    writer that failed: it began the file group too.
    """
    return (
        not start or at == start or now.pending.get(at) == "compaction"
        or now.completed.get(at) == "commit"
    )  # fmt: skip


def _outline(found: Listed, instant: str) -> Procedure[CommitFiles]:
    """A commit without its file statistics, which may describe log files."""
    names, now = found.table.config.names, found.now
    key = names.completed(instant, now.completed[instant], now.completion.get(instant))
    match (yield from read(key)):
        case Found(body, _):
            return parse_commit(instant, key, body, lambda _partition, fields: fields)
        case _missing:
            raise TableChanged(key, "was listed and is gone: it was archived", "read again")


def _schema(
    found: Listed, wanted: list[str], until: str | None
) -> Procedure[tuple[str | None, str, str]]:
    """The schema of the newest commit with one, archived ones too, or of the table's creation;
    that commit, and the ids of the columns in it."""
    for instant in reversed(wanted):
        outline = yield from _outline(found, instant)
        if says_columns(found, outline):
            return outline.schema, instant, outline.extra.get(LATEST, "")
    for commit in reversed((yield from load_archived_commits(found.table.config))):
        early = until is None or instant_ms(commit.instant) <= instant_ms(until)
        if early and says_columns(found, commit):
            return commit.schema, commit.instant, commit.extra.get(LATEST, "")
    return found.table.created_with or None, max(wanted, default="") if found.histories else "", ""


def _refuse_cleaned(
    found: Listed, until: str, groups: dict[FileGroup, Slice], replaced: dict[FileGroup, str]
) -> Procedure[None]:
    """Raise if the cleaner may have deleted a file of that snapshot.

    A clean at or before `until` deleted only files that newer ones had replaced by then. Each later
    clean must still be in the timeline, which names the files that it deleted.
    """
    lost = ""
    if (yield from listing(found.table.config.archive_prefix)):
        history = yield from load_archived(found.table.config)
        lost = max((each.instant for each in history if each.action == "clean"), default="")
        if not history and until < found.first:
            lost = found.first
    names = found.table.config.names
    for instant, action in found.now.completed.items():
        if action == "clean" and instant > until:
            key = names.completed(instant, action, found.now.completion.get(instant))
            body = yield from read(key)
            for group, at in _cleaned(key, body.body) if isinstance(body, Found) else ():
                here = groups[group].instant if group in groups else ""
                if group not in replaced and here < at <= until:
                    lost = instant
    if lost > until:
        raise RefusedOption(
            "instant",
            f"cannot be read any more: the clean of {lost} may have deleted files that the table "
            "had then", "ask for a later instant, and let the cleaner keep more", value=until,
        )  # fmt: skip


def _cleaned(key: str, body: bytes) -> list[tuple[FileGroup, str]]:
    """The deleted files: the file group and the instant of each."""
    try:
        record = avro_decoding.decode(body, "HoodieCleanMetadata")
        files = []
        for partition, each in (record["partitionMetadata"] or {}).items():
            for path in each["deletePathPatterns"]:
                name = str(path).rpartition("/")[2]
                if base := BASE_FILE.fullmatch(name):
                    files.append(((str(partition), base[1]), base[3]))
                elif log := LOG_FILE.fullmatch(name):
                    files.append(((str(partition), log[1]), log[2]))
        return files
    except (LookupError, TypeError, ValueError) as error:
        raise DamagedFile(key, f"is not a clean's file ({str(error)[:120]})") from None


# --- increments -----------------------------------------------------------------------------------


def list_increment(start: str = "", end: str | None = None) -> Procedure[Increment]:
    """What changed after `start` and up to `end`: instants in layout 1, else completion times."""
    for bound in filter(None, (start, end)):
        known_instant(bound)
    found = yield from load_listed()
    if not found.table.meta:
        raise UnsupportedTable(
            "the table", "has no commit times in its rows, so there are no increments"
        )
    if start or end:
        warn_local(found.table)
    before = "~" if found.now.completion else first_pending(writing(found.now), start)
    counted = [(found.order(each), each) for each in found.commits if each < before]
    until = max((at for at, _ in counted if end is None or at <= end), default="")
    if not until and end and (yield from listing(found.table.config.archive_prefix)):
        raise RefusedOption(
            "end", f"is before {found.first}, the first commit that is not archived; what a table "
            "of the mode hudi had then is not known", "end later", value=end,
        )  # fmt: skip
    if until <= start:
        return Increment(start, start, None)
    wanted = [each for at, each in counted if at <= until]
    snapshot = yield from _snapshot(found, wanted, until if end else None)
    instants: Iterable[str] | None = None
    if start and found.now.completion:
        instants = [each for at, each in counted if start < at <= until]
        # Archived are the smallest instants, and one of them may have completed after `start`.
        early = start < min(at for at, _ in counted)
        older = yield from _archived_after(found, start, until, all_of=early)
        instants = [*instants, *older]
    names = None if instants is None else frozenset(instants)
    slices = tuple(
        each for each in snapshot.slices
        if isinstance(each, LogSlice)
        or (each.instant > start if names is None else each.instant in names)
    )  # fmt: skip
    return Increment(start, until, snapshot, slices, names)


def writing(now: Timeline) -> Timeline:
    """Of what is pending, what may add rows; a compaction or clustering only moves them."""
    pending = {each: action for each, action in now.pending.items() if action in COMMITS}
    return replace(now, pending=pending)


def _archived_after(found: Listed, start: str, until: str, *, all_of: bool) -> Procedure[list[str]]:
    """The archived commits that completed in (`start`, `until`]; `TableError` if `all_of` them are
    wanted, and the archive does not name them.
    """
    history: list[ArchivedInstant] = yield from load_archived(found.table.config)
    if all_of and not history and (yield from listing(found.table.config.archive_prefix)):
        raise RefusedOption(
            "start",
            f"is too early: commits from before {found.first} left the timeline, and the archive "
            "does not name them", "begin later, or read the snapshot", value=start,
        )  # fmt: skip
    return [each.instant for each in history
            if each.action in COMMITS and start < (each.completed or each.instant) <= until]


# --- history --------------------------------------------------------------------------------------


def list_history() -> Procedure[tuple[Timeline, list[ArchivedInstant]]]:
    """The timeline, and the instants that were archived from it."""
    table = yield from load_readable()
    now = yield from load_commits(table.config.names, table.grouped)
    warn_local(table)
    archived = yield from load_archived(table.config)
    return now, [each for each in archived if each.instant not in now.completed]


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One completed instant."""

    instant: str
    """When its writer began, as yyyyMMddHHmmssSSS in UTC (unless Hudi's writers use local time).
    `read(as_of=...)` takes it."""
    action: str
    """commit, replacecommit, clean, rollback, ..."""
    completed: str | None
    """When it completed, in the same form, which orders `changes`; None in version 6, whose
    timeline does not record it."""


def load_history() -> Procedure[list[HistoryEntry]]:
    """Newest first, with the instants that Hudi archived."""
    now, archived = yield from list_history()
    here = [
        HistoryEntry(instant, action, now.completion.get(instant))
        for instant, action in now.completed.items()
    ]
    older = [HistoryEntry(each.instant, each.action, each.completed) for each in archived]
    return sorted(here + older, key=lambda each: each.instant, reverse=True)
