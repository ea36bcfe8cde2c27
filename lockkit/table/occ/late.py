"""Files that leave the timeline, and a commit that is completed too late to find it there.

A manifest that names an instant makes it archived for good. So its files may be deleted by any
process, with the lock or without it, in the one order that hides no file from Hudi's readers: they
take a data file that is older than the timeline's first commit for archived, so the oldest commit
leaves first.

A process may sleep between the decision of its commit and the creation of the completed file.
Others go on meanwhile: the next writer publishes the commit for it, a restore may take it back, and
archiving takes its files off the timeline, so that its name is free again. A completed file that is
created then is the timeline's first commit to Hudi's readers, and hides the archived ones.

So archiving leaves alone what was completed less than `SETTLED_MS` ago, by the store's clock. A
process that has published within `commit.LATE_MS` of its decision, by the clock that runs while it
is suspended, is certainly early enough. A later one looks at the inflight file, which leaves the
timeline first: before it creates the completed file, and again afterwards. If it is gone, the file
that came too late is removed, and the archive and the restores say what became of the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lockkit.protocol.outcome import Found, Missing, NotModified, Version
from lockkit.runtime import Note, Procedure
from lockkit.runtime.progress import WorkDone
from lockkit.runtime.proven import all_of, create, delete, listing, read
from lockkit.stores import ListEntry
from lockkit.table.errors import DamagedFile
from lockkit.table.format.archived import (
    COLUMNS,
    LOG,
    load_archived,
    load_archived_commits,
    load_manifest,
    read_history,
    read_log,
)
from lockkit.table.format.properties import TableConfig, load_config
from lockkit.table.format.restored import is_kept_name, kept_names
from lockkit.table.format.taken_back import TakenBack, taken_back_by
from lockkit.table.format.timeline import (
    COMMITS,
    Timeline,
    TimelineNames,
    instant_ms,
    load_timeline,
    parse_timeline,
)
from lockkit.table.occ.fence import COMMIT, Decided, Fence, digest, read_fence

if TYPE_CHECKING:
    from lockkit.table.occ.transaction import TakenInstant
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
    every = replace(now, completed={**parsed.completed, **now.completed},
                    completion={**parsed.completion, **now.completion})  # fmt: skip
    # Not all that this listing has more: a rollback or a clean may have been completed meanwhile.
    kept = frozenset(parsed.completed.keys() & now.taken_back)
    here = {each for each, action in now.completed.items()
            if action in ARCHIVED_ACTIONS and each not in now.savepoints}  # fmt: skip
    has = archive or (yield from _latest(config, now, here))
    return Leavers(frozenset(here & has), kept, max(has, default=""), every,
                   _by_instant(entries, names),
                   tuple(name(*each) for each in now.first
                         if each[0] not in every.completed and is_kept_name(now, *each)
                         for name in (names.inflight, names.requested)))  # fmt: skip


def _by_instant(entries: Iterable[ListEntry], names: TimelineNames) -> dict[str, tuple[str, ...]]:
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
    progress = WorkDone("deleted", len(first) + len(done), "files of archived instants")
    yield from progress.all_of(delete(key) for key in first)
    for key in done:
        yield from progress.all_of([delete(key)])


def completed_file(names: TimelineNames, now: Timeline, instant: str) -> str:
    return names.completed(instant, now.completed[instant], now.completion.get(instant))


SETTLED_MS = 4_000
"""Longer than `commit.LATE_MS`: by 2 s, because times in HTTP are whole seconds and a store's front
ends may differ by one, and by 1 s for clocks that run at different speeds."""


def is_settled(completed: Found, named: str, wall_ms: int) -> bool:
    """Whether each process that may still create this file looks before and afterwards.

    `named` is the time in the file's name, which counts if the store does not say its own.
    """
    modified_ms = instant_ms(named) if completed.modified_ms is None else completed.modified_ms
    return (completed.date_ms or wall_ms) - modified_ms > SETTLED_MS


def publish_late(
    names: TimelineNames, decided: Decided, key: str, body: bytes
) -> Procedure[Version | Found | Missing | TakenBack]:
    """Create the completed file `key` of a decision that was made some time ago.

    Returns its version, also if it is archived; what is there instead; `Missing` if nobody knows.
    """
    if isinstance((yield from read(names.inflight(decided.instant, decided.action))), Missing):
        return (yield from _settled(names, decided.instant, key, body))
    return (yield from create_and_look(names, decided, key, body))


def create_and_look(
    names: TimelineNames, decided: Decided, key: str, body: bytes
) -> Procedure[Version | Found | Missing | TakenBack]:
    """The same, after the inflight file was seen."""
    standing = yield from create(key, body)
    inflight = names.inflight(decided.instant, decided.action)
    if isinstance(standing, Found) or not isinstance((yield from read(inflight)), Missing):
        return standing
    return (yield from _settled(names, decided.instant, key, body))


def _settled(
    names: TimelineNames, instant: str, key: str, body: bytes
) -> Procedure[Version | Found | Missing | TakenBack]:
    """What became of a commit whose inflight file is gone. A late completed file is removed."""
    config, _ = yield from load_config()
    now = yield from load_timeline(names)
    archive = {each.instant for each in (yield from load_archived(config))}
    if instant in archive:
        leavers = yield from load_leavers(config, now, archive)
        yield from leave(names, leavers, leavers.leaving())
        return "archived"
    by = (yield from kept_names(now, names)).get(instant, "")
    found = yield from read(key, limit=None)
    assert not isinstance(found, NotModified)
    if not by or (isinstance(found, Found) and found.body != body):
        return found.version if isinstance(found, Found) and found.body == body else found
    if isinstance(found, Found):
        yield from delete(key, found.version)
    return TakenBack(by)


def archived_as(taken: TakenInstant) -> Procedure[Decided | None]:
    """The decision on an own instant whose commit is archived; None if it is not."""
    for each in (yield from load_archived_commits(taken.known.config)):
        if each.instant == taken.instant and each.attempt == taken.attempt:
            done = each.completion if taken.names.layout == 2 else None
            return Decided(COMMIT, each.instant, taken.action, done)
    return None


def roll_forward(
    names: TimelineNames, fence: Fence, done: str, rolled_forward: list[str]
) -> Procedure[None]:
    """Create `done`, the completed file of the fence's last decision, which was seen missing."""
    head = fence.head
    inflight = names.inflight(head.instant, head.action)
    standing: Version | Found | Missing | NotModified | TakenBack
    match (yield from read(inflight)):
        case Found(body, _) if digest(body) == fence.sha256:
            standing = yield from create_and_look(names, head, done, body)
        case _:
            standing = yield from read(done)  # again: a restore may have come in between
    match standing:
        case Missing():
            if (yield from read_fence()).attempt != fence.attempt:
                return  # others went on and archived it: what the caller decides is refused
            why = f"is not what the fence decided, and {done} is missing; nothing was committed"
            raise DamagedFile(inflight, why, "restore one of them from its versions")
        case TakenBack():
            return  # likewise
        case Found(body, _):
            if digest(body) != fence.sha256 and not taken_back_by(done, body):
                cure = "restore one of them: until then nothing more is committed to this table"
                raise DamagedFile(done, "differs from its inflight file, which is decided", cure)
            return
    rolled_forward.append(head.instant)
    yield Note(
        "note",
        {"text": f"rolled {head.instant} forward: it was decided, but its file was not there yet",
         "instant": head.instant, "rolled_forward": True},
    )  # fmt: skip
