"""Markers: the data files that a writer is about to write, recorded before it writes them.

`.hoodie/.temp/<instant>/<data file's path>.marker.CREATE|MERGE`, empty, as Hudi's direct markers.
With them a rollback finds a dead writer's files, including those of failed tasks. And a writer that
would lose its commit to one that began earlier can stop before its work is wasted.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, create, delete, listing, read
from lockkit.stores import ListEntry
from lockkit.table.errors import DamagedFile, EarlyConflict, RefusedOption
from lockkit.table.format.layout import PLAIN, FileGroup
from lockkit.table.format.option_values import flag
from lockkit.table.format.partition import is_inside
from lockkit.table.format.timeline import HOODIE, Timeline, TimelineNames, load_timeline
from lockkit.table.occ.conflict import SIMPLE, ConflictStrategy, find_conflict, shared, winners
from lockkit.table.occ.conflicting import Conflict, OwnChanges, Pending, Winner
from lockkit.table.occ.covered import read_commit
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.liveness import HEARTBEATS, discard, lives

MARKERS = HOODIE + ".temp/"
EARLY_KEY = "hoodie.write.concurrency.early.conflict.detection.enable"
EARLY_STRATEGY_KEY = "hoodie.write.concurrency.early.conflict.detection.strategy"
EARLY_COMMITS_KEY = "hoodie.write.concurrency.early.conflict.check.commit.conflict"
EARLY_STRATEGY = "SimpleDirectMarkerBasedDetectionStrategy"
SERVED_BYTES_MAX = 16_000_000
LISTED = "MARKERS0"

Io = Literal["CREATE", "MERGE", "APPEND"]

_INSTANT = re.compile(r"[0-9]{17}|[0-9]{14}")
_MARKER = re.compile(r"(?:(.+)/)?([^/_]+)_([^/]+)\.marker\.(CREATE|MERGE|APPEND)", re.S)
# Hudi's timeline server keeps its markers' names as lines of files, beside a file with their type.
_SERVED = re.compile(r"MARKERS\d+")


@dataclass(frozen=True, slots=True)
class Marker:
    """A data file that an instant wrote or was about to write."""

    path: str
    group: FileGroup
    io: str


def early_detection(options: Mapping[str, Any]) -> bool:
    """Whether Hudi's options enable `early_conflict`; `TableError` for another strategy."""
    strategy = str(options.get(EARLY_STRATEGY_KEY, EARLY_STRATEGY))
    wanted = flag(options, EARLY_KEY)
    if wanted and strategy.rpartition(".")[2] != EARLY_STRATEGY:
        raise RefusedOption(
            EARLY_STRATEGY_KEY,
            f"needs Hudi's timeline server or ZooKeeper; only {EARLY_STRATEGY} is known here",
            value=strategy[:120],
        )
    return wanted


def early_commits(options: Mapping[str, Any]) -> bool:
    """Whether Hudi's options also enable `overtaken`."""
    return early_detection(options) and flag(options, EARLY_COMMITS_KEY)


def marker_key(instant: str, path: str, io: Io) -> str:
    """The key for the data file at `path`, relative to the table, partition first."""
    assert io in get_args(Io), io
    return f"{MARKERS}{instant}/{path}.marker.{io}"


def mark(instant: str, path: str, io: Io) -> Procedure[None]:
    """Written and proven before the data file, so that no data file exists without its marker."""
    yield from create(marker_key(instant, path, io), b"")


def mark_all(instant: str, logs: Collection[str]) -> list[Procedure[Any]]:
    """Mark these log files, before any of them is written: several in one list.

    Such lists are those of Hudi's timeline server. Without the file of their type Hudi looks for
    single markers, and meets the list (since 0.12, HUDI-4517).
    """
    return [create(*each) for each in _marks(instant, logs).items()]


def unmark_all(instant: str, logs: Collection[str]) -> list[Procedure[None]]:
    """Delete the markers of these log files, without a listing."""
    return [discard(key) for key in _marks(instant, logs)]


def _marks(instant: str, logs: Collection[str]) -> dict[str, bytes]:
    keys = [marker_key(instant, path, "APPEND") for path in logs]
    if len(keys) < 2:
        return dict.fromkeys(keys, b"")
    folder = f"{MARKERS}{instant}/"
    names = "".join(key.removeprefix(folder) + "\n" for key in keys)
    return {folder + LISTED: names.encode()}


def unlist(instant: str) -> Procedure[None]:
    """Where there is a list, Hudi reads no single markers: so it goes before any are written.

    No data file of the list may have been written.
    """
    yield from delete(f"{MARKERS}{instant}/{LISTED}")


def unmark(instant: str) -> Procedure[None]:
    """After the commit or the end of a rollback: the markers are no longer needed."""
    entries: list[ListEntry] = yield from listing(f"{MARKERS}{instant}/")
    yield from all_of(discard(each.key) for each in entries)


def files_of(instant: str) -> Procedure[tuple[Marker, ...]]:
    """Every data file that the instant's markers name, by path, including those that Hudi wrote."""
    folder = f"{MARKERS}{instant}/"
    entries: list[ListEntry] = yield from listing(folder)
    names = [each.key.removeprefix(folder) for each in entries]
    served = yield from all_of(_served(folder + each) for each in names if _SERVED.fullmatch(each))
    for lines in served:
        names += lines
    found = {marker.path: marker for name in names if (marker := parse_marker(name))}
    return tuple(found[path] for path in sorted(found))


def parse_marker(name: str) -> Marker | None:
    """Parse a name below the instant's folder; None if it is no marker, or leads elsewhere."""
    match = _MARKER.fullmatch(name)
    if match is None or not is_inside(name):
        return None
    partition, file_id, rest, io = match.groups()
    path = f"{file_id}_{rest}"
    group = partition or "", file_id.removeprefix(".")  # of a log file
    return Marker(f"{partition}/{path}" if partition else path, group, io)


def _served(key: str) -> Procedure[list[str]]:
    match (yield from read(key)):
        case Found(body, _) if len(body) <= SERVED_BYTES_MAX:
            return re.split("\r?\n", body.decode(errors="replace"))  # other breaks are in names
        case Found(body, _):
            raise DamagedFile(
                key, f"has {len(body)} bytes, which no list of markers has",
                "find out which program wrote it",
            )  # fmt: skip
        case _missing:
            return []


def early_conflict(
    mine: OwnChanges,
    *,
    rules: HeartbeatRules = HeartbeatRules(),
    strategy: ConflictStrategy = SIMPLE,
) -> Procedure[None]:
    """Raise `EarlyConflict` if a living writer of an earlier instant has marked what I write.

    Check after marking. Of two writers that mark one file group, the later instant then sees the
    earlier one's marker, or it marked first and sees the marker at its next check. Only the later
    one stops, so two never stop each other. Commits in `mine` are done and cannot conflict.
    """
    entries: list[ListEntry] = yield from listing(HEARTBEATS)
    for instant in (os.path.basename(each.key) for each in entries):
        if not _INSTANT.fullmatch(instant) or instant >= mine.instant or mine.covers(instant):
            continue
        marked = yield from files_of(instant)
        # In a merge-on-read table only a compaction merges: it hides nothing that I write.
        theirs = frozenset(
            each.group for each in marked if not (mine.merged and each.io == "MERGE")
        )
        both = shared(mine.writes | mine.replaced, theirs, strategy.unit)
        if both and (yield from lives(instant, rules)):
            conflict = Conflict(
                instant, min(both), "began earlier and is writing",
                "nothing more was written; begin again when that commit is done",
            )  # fmt: skip
            raise conflict.refusal(mine.instant, EarlyConflict)


def overtaken(
    names: TimelineNames, mine: OwnChanges, *, strategy: ConflictStrategy = SIMPLE
) -> Procedure[None]:
    """Raise `EarlyConflict` if a commit that completed since I began conflicts with mine."""
    now = yield from load_timeline(names, after=mine.horizon)
    won = []
    for instant in winners(mine, now):
        files = yield from read_commit(names, instant, now)
        won.append(Winner.of(files, now.completed[instant]))
    if conflict := find_conflict(mine, won, strategy=strategy):
        raise conflict.refusal(mine.instant, EarlyConflict)


def at_work(
    names: TimelineNames, now: Timeline, *, mine: str, rules: HeartbeatRules = HeartbeatRules()
) -> Procedure[tuple[Pending, ...]]:
    """Writers that live and have not committed, with what they marked; for `prefer_writer`.

    `inputs` is None if nothing is marked yet. Hudi's table services yield to such a writer only
    under `hoodie.clustering.fail.on.pending.ingestion.during.conflict.resolution`; otherwise leave
    it out.
    """
    found = []
    for instant, action in now.pending.items():
        if action not in PLAIN or instant == mine:
            continue
        if not (yield from lives(instant, rules, names.requested(instant))):
            continue
        marked = yield from files_of(instant)
        groups = frozenset(each.group for each in marked) if marked else None
        found.append(Pending(instant, action, groups))
    return tuple(found)
