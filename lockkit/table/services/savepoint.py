"""Savepoints: a commit whose files stay, so that the table can be restored to it.

The savepoint's inflight file comes first. A clean that plans after it keeps the commit's files, and
one that planned before it is found on the timeline. Only then the files are looked up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from lockkit.protocol.outcome import Found
from lockkit.runtime import Note, Procedure, WallMs
from lockkit.runtime.proven import all_of, create, delete, listing, read
from lockkit.table.errors import RefusedOption, TableBlocked, TableChanged
from lockkit.table.format.base_file import Slice
from lockkit.table.format.layout import LOG_FILE
from lockkit.table.format.plans import parse_clean_plan
from lockkit.table.format.properties import FENCED, GROUP, TableConfig, recheck_config
from lockkit.table.format.savepoint_files import format_savepoint, parse_savepoint
from lockkit.table.format.timeline import (
    Timeline,
    TimelineNames,
    instant_ms,
    instant_of,
    load_timeline,
)
from lockkit.table.occ.commit import StateChange
from lockkit.table.occ.covered import pending_commits
from lockkit.table.occ.transaction import TableCache
from lockkit.table.read.listed import list_snapshot
from lockkit.table.read.log_slice import LogSlice
from lockkit.table.read.opening import load_commits, load_snapshot

BY = "lockkit"


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A commit that the table can be restored to."""

    instant: str
    files: int
    """Number of files that stay for it."""


def save(
    known: TableCache, held: StateChange, instant: str = "", *, user: str = "", comment: str = ""
) -> Procedure[Savepoint]:
    """Under the table's lock: keep what the commit `instant` shows; "": the newest commit.

    A savepoint that exists is left as it is; one that another process began is completed. Raises
    `TableError` if the commit is not on the timeline, or if its files are not all there any more.
    """
    refuse_no_text(instant=instant, user=user, comment=comment)
    config = yield from recheck_config(known.config, known.config_version)
    names = config.names
    now = yield from load_commits(names, config.commit == GROUP)
    if not now.commits:
        raise TableBlocked("the table", "has no completed commit to save", "write to it first")
    instant = instant or max(now.commits)
    if instant not in now.commits:
        raise RefusedOption(
            "instant", "is no completed commit of the timeline; nothing was saved",
            "lockkit table show lists the commits", value=instant[:40],
        )  # fmt: skip
    if (standing := (yield from saved_files(names, instant))) is not None:
        return Savepoint(instant, len(standing))
    _refuse_overlap(now, instant)
    held.believe()
    inflight = names.inflight(instant, "savepoint")
    yield from create(inflight, b"")
    try:
        paths = yield from _shown(config, instant)
        yield from _refuse_doomed(names, (yield from load_timeline(names)), instant, paths)
        yield from refuse_gone(instant, paths)
        held.believe()
    except Exception:
        yield from delete(inflight)
        raise
    at_ms = yield WallMs()
    done = instant_of(max(at_ms, instant_ms(instant) + 1)) if names.layout == 2 else None
    body = format_savepoint(paths, user=user or BY, comment=comment, at_ms=at_ms)
    yield from create(names.completed(instant, "savepoint", done), body)
    yield Note("note", {"text": f"saved {len(paths)} files", "instant": instant})
    return Savepoint(instant, len(paths))


def refuse_no_text(**given: object) -> None:
    for name, value in given.items():
        if not isinstance(value, str):
            raise RefusedOption(name, f"takes a text; this is a {type(value).__name__}")


def _refuse_overlap(now: Timeline, instant: str) -> None:
    """Raise if the instants and the completion times do not say the same of what came before."""
    at = place(now, instant)
    around = [each for each in now.commits if (each > instant) != (place(now, each) > at)]
    if not now.completion:  # its instant alone says where it will belong
        around += [each for each in pending_commits(now) if each < instant]
    if around:
        raise RefusedOption(
            "instant", f"overlapped {around[0]}, and readers disagree on which of the two came "
            "first; nothing was saved", "choose another commit", value=instant,
        )  # fmt: skip


def place(now: Timeline, instant: str) -> str:
    """What orders commits for a restore: completion times, or instants in version 6."""
    return now.completion.get(instant, instant)


def delete_savepoint(known: TableCache, held: StateChange, instant: str) -> Procedure[bool]:
    """Under the table's lock: let cleans delete the files again. False: there was no savepoint."""
    refuse_no_text(instant=instant)
    names = known.config.names
    now = yield from load_timeline(names)
    if restores := [each for each, action in now.pending.items() if action == "restore"]:
        raise TableBlocked(restores[0], "is a restore that is not finished", "finish it first")
    keys = yield from _keys(names, instant)
    held.believe()
    for key in sorted(keys, key=lambda each: not each.endswith(".savepoint")):
        yield from delete(key)  # the completed file first: the other one still protects
    return bool(keys)


def saved_files(names: TimelineNames, instant: str) -> Procedure[frozenset[str] | None]:
    """The paths that a completed savepoint keeps; None if there is none."""
    for key in (yield from _keys(names, instant)):
        if key.endswith(".savepoint"):
            match (yield from read(key, limit=None)):
                case Found(body, _):
                    return parse_savepoint(key, body) if body else frozenset()
    return None


def paths_of(slices: Iterable[Slice]) -> frozenset[str]:
    return frozenset(
        path for each in slices
        for path in (each.path, *(each.logs if isinstance(each, LogSlice) else ())) if path
    )  # fmt: skip


def refuse_gone(instant: str, paths: frozenset[str]) -> Procedure[None]:
    """Raise if a file of these does not exist."""
    folders = sorted({path.rpartition("/")[0] for path in paths})
    listed = yield from all_of(listing(f"{each}/" if each else "") for each in folders)
    if gone := sorted(paths - {each.key for entries in listed for each in entries}):
        raise TableChanged(
            gone[0], f"is gone, as one of {len(gone)} files that the table had at {instant}: a "
            "clean deleted it", "choose a later commit",
        )  # fmt: skip


def instant_keys(names: TimelineNames, instant: str) -> Procedure[list[str]]:
    """The keys of an instant's files, of every action."""
    listed = yield from listing(names.folder + instant)
    own = re.compile(rf"{re.escape(names.folder + instant)}(_\d+)?\.[a-z.]+")
    return [each.key for each in listed if own.fullmatch(each.key)]


def _keys(names: TimelineNames, instant: str) -> Procedure[list[str]]:
    return [each for each in (yield from instant_keys(names, instant)) if ".savepoint" in each]


def _shown(config: TableConfig, instant: str) -> Procedure[frozenset[str]]:
    load = load_snapshot if config.mode == FENCED else list_snapshot
    shown = paths_of((yield from load(as_of=instant)).slices)
    # In version 6 a log file of a later slice has no row of this commit, and may yet go.
    later = (each for each in shown if config.sliced and _slice_of(each) > instant)
    return shown.difference(later)


def _slice_of(path: str) -> str:
    """Version 6: the instant of a log file's slice; "" for a base file."""
    log = LOG_FILE.fullmatch(path.rpartition("/")[2])
    return log[2] if log else ""


def _refuse_doomed(
    names: TimelineNames, now: Timeline, instant: str, paths: frozenset[str]
) -> Procedure[None]:
    """Raise if a clean that planned before the savepoint is going to delete its files."""
    for each, action in now.pending.items():
        key = names.requested(each, "clean")
        found = (yield from read(key)) if action == "clean" else None
        planned = parse_clean_plan(key, found.body).files if isinstance(found, Found) else ()
        if not paths.isdisjoint(path for _, path in planned):
            raise TableBlocked(
                each, f"(a clean) is going to delete files that the table had at {instant}; "
                "nothing was saved", "choose a later commit",
            )  # fmt: skip
