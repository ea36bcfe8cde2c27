"""What the archive has leaves the timeline, also if its archiver died, or it came back late.

A manifest that names an instant makes it archived for good. So these files may be deleted by any
process, with the lock or without it, in the one order that hides no file from Hudi's readers: they
take a data file that is older than the timeline's first commit for archived, so the oldest commit
leaves first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, delete, listing
from lockkit.stores import ListEntry
from lockkit.table.format.archived import COLUMNS, LOG, load_manifest, read_history, read_log
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.restored import is_kept_name
from lockkit.table.format.timeline import (
    COMMITS,
    Timeline,
    TimelineNames,
    parse_timeline,
)

ARCHIVED_ACTIONS = COMMITS | {"clean", "rollback"}


@dataclass(frozen=True, slots=True)
class Leavers:
    """What the timeline has beside its own commits."""

    archived: frozenset[str]
    """Instants that the archive has, too: a crash, or a request that arrived late."""
    kept: frozenset[str]
    """Commits that a restore took back, whose names it keeps."""
    newest: str
    """The newest instant of the archive; "" if it is empty."""
    every: Timeline
    """The timeline with these names."""
    keys: Mapping[str, tuple[str, ...]]
    """The files of each instant."""
    late: tuple[str, ...]
    """What writers that slept requested in names that a restore kept, and that have left."""

    def leaving(self, more: Iterable[str] = ()) -> list[str]:
        """With `more`, which the archive has now, oldest first.

        What a restore took back is not archived. Its name leaves when later commits do: a commit
        that stays before those that left would hide their files from Hudi's readers.
        """
        archived = {*more, *self.archived}
        newest = max({*archived, self.newest})
        return sorted(archived | {each for each in self.kept if each < newest})


def load_leavers(
    config: TableConfig, now: Timeline, archive: set[str] | None = None
) -> Procedure[Leavers]:
    """What may leave beside `now`, which was listed before.

    `archive` is what the archive has: by default only where the latest archiver may have died.
    """
    names, entries = config.names, (yield from listing(config.names.prefix))
    parsed = parse_timeline(entries, names)
    every = replace(now, completed={**parsed.completed, **now.completed})
    here = {each for each, action in now.completed.items()
            if action in ARCHIVED_ACTIONS and each not in now.savepoints}  # fmt: skip
    has = archive or (yield from _latest(config, now, here))
    return Leavers(frozenset(here & has), frozenset(every.completed.keys() - now.completed.keys()),
                   max(has, default=""), every, _by_instant(entries, names),
                   tuple(name(*each) for each in now.first
                         if each[0] not in every.completed and is_kept_name(now, *each)
                         for name in (names.inflight, names.requested)))  # fmt: skip


def _by_instant(
    entries: Iterable[ListEntry], names: TimelineNames
) -> dict[str, tuple[str, ...]]:
    keys: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        instant = entry.key.removeprefix(names.folder).partition(".")[0].partition("_")[0]
        keys[instant] = (*keys.get(instant, ()), entry.key)
    return keys


def _latest(config: TableConfig, now: Timeline, here: set[str]) -> Procedure[set[str]]:
    """The archive's newest instant, and those of the files that may have an instant of `here`."""
    prefix = config.archive_prefix
    names = [each.key for each in (yield from listing(prefix)) if each.size]
    if config.names.layout == 2:
        _, files = yield from load_manifest(prefix, names)
        newest = max((each for each, of in now.completed.items() if of == "clean"), default="")
        oldest, last = min(here - {newest}, default="~"), {each.split("_")[1] for each in files}
        ways = [read_history(prefix + each, COLUMNS[:1]) for each in files
                if each.split("_")[1] >= oldest]  # fmt: skip
    else:
        logs = {int(found[1]): each for each in names
                if (found := LOG.fullmatch(each.removeprefix(prefix)))}  # fmt: skip
        ways, last = [read_log(logs[max(logs)], COLUMNS)] if logs else [], set()
    has = {row["instantTime"] for rows in (yield from all_of(ways)) for row in rows}
    return has | ({max(last)} if last else set())


def leave(names: TimelineNames, leavers: Leavers, instants: Sequence[str]) -> Procedure[None]:
    """The requested and inflight files go first: without its completed file an instant would look
    pending, and readers would drop its files. Those of a clean or rollback of the same instant
    stay: it may be under way.
    """
    now, keys = leavers.every, leavers.keys
    done = [completed_file(names, now, each) for each in instants]
    beside = {each: ("savepoint", "clean", "rollback") if now.completed[each] in COMMITS
              else ("savepoint",) for each in instants}  # fmt: skip
    first = [key for each in instants for key in keys.get(each, ()) if key not in done
             and not any(f".{action}" in key for action in beside[each])]  # fmt: skip
    yield from all_of(delete(key) for key in first)
    for key in done:
        yield from delete(key)


def completed_file(names: TimelineNames, now: Timeline, instant: str) -> str:
    return names.completed(instant, now.completed[instant], now.completion.get(instant))
