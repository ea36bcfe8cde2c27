"""The files that executions of a pending compaction plan write, each under the plan's instant."""

from __future__ import annotations

import zlib
from collections.abc import Collection

from lockkit.protocol.outcome import Found
from lockkit.runtime import Note, Procedure
from lockkit.runtime.proven import all_of, delete, listing, read
from lockkit.table.errors import DamagedFile
from lockkit.table.format.compaction_plan import parse_compaction_plan
from lockkit.table.format.layout import BASE_FILE, LOG_FILE, TaskId
from lockkit.table.format.timeline import Timeline, TimelineNames
from lockkit.table.occ.discarding import attempt_in
from lockkit.table.occ.liveness import forget, read_heartbeat
from lockkit.table.occ.markers import files_of, marker_key

EXECUTIONS = 1 << 30
"""The first attempt number in names of files that lockkit writes for a pending plan. No job of
Spark's has so many attempts."""


def put_back(target: str, names: TimelineNames) -> Procedure[tuple[str, ...]]:
    """Delete what lockkit wrote for a compaction in version 6, and leave its plan.

    Writers that see the plan name their log files after it. Without its base file their slice would
    lack all earlier rows, for every reader. So no such plan is ever taken away; Hudi begins it
    again, too. What Hudi wrote for it stays: it may carry the plan out just now.

    A plan that cannot be read is deleted, unless a log file is named after it: see `is_damaged`.
    Nothing is done if another execution has begun since the caller ended the last one. The files
    are listed first: one that begins later has other files, even if this client pauses here.
    """
    found = yield from _executions_of(target)
    begun = yield from read_heartbeat(target)
    if begun.version is not None and not begun.ended:
        return ()
    if isinstance((yield from read(names.completed(target, "compaction"))), Found):
        return ()
    files = yield from _delete_executions(target, found)
    inflight = names.inflight(target, "compaction")
    if (yield from is_damaged(target, names)):
        yield from delete(inflight)
        yield from delete(names.requested(target, "compaction"))
        yield from forget(target)
        return files
    match (yield from read(inflight)):
        case Found(body, version) if attempt_in(inflight, body) is not None:
            yield from delete(inflight, version)
    yield from forget(target)
    text = f"{target} (compaction) is to be carried out: its plan stays, {len(files)} files are "
    yield Note("note", {"text": text + "deleted", "instant": target})
    return files


def is_damaged(target: str, names: TimelineNames) -> Procedure[bool]:
    """Whether a plan of version 6 cannot be read, and no log file is named after it.

    Raises `DamagedFile` if one is: the plan has to stay.
    """
    requested = names.requested(target, "compaction")
    match (yield from read(requested)):
        case Found(body, _):
            try:
                parse_compaction_plan(requested, body)
            except DamagedFile:
                for each in (yield from listing("")):
                    log = LOG_FILE.fullmatch(each.key.rpartition("/")[2])
                    if log is not None and log[2] == target:
                        raise DamagedFile(
                            requested, f"cannot be read, and {each.key} counts on the base file "
                            "that the compaction would write", "restore the plan from a backup",
                        ) from None  # fmt: skip
                return True
    return False


def was_begun(names: TimelineNames, now: Timeline, instant: str) -> Procedure[bool]:
    """Whether the inflight file of a compaction without a heartbeat is an execution's of lockkit's.

    Then that execution has been rolled back: its heartbeat was written first. The store applied the
    file late, or the process wrote it after a pause, and stopped.
    """
    if instant not in now.inflight:
        return False
    key = names.inflight(instant, "compaction")
    found = yield from read(key)
    return isinstance(found, Found) and attempt_in(key, found.body) is not None


def execution(attempt: str) -> TaskId:
    """The task in the names of the files that this attempt writes for a plan of anybody's."""
    return TaskId(attempt=EXECUTIONS + (zlib.crc32(attempt.encode()) >> 2))


def delete_executions(target: str, attempt: str = "") -> Procedure[tuple[str, ...]]:
    """Delete what attempts of lockkit's, or this one, wrote for the plan `target`, with markers.

    An attempt that was paused may find that Hudi carries the same plan out, or has done so.
    """
    return (yield from _delete_executions(target, (yield from _executions_of(target, attempt))))


def _executions_of(target: str, attempt: str = "") -> Procedure[tuple[str, ...]]:
    """The files that attempts of lockkit's, or this one, wrote for the plan `target`."""
    mine = []
    for each in (yield from files_of(target)):
        name = BASE_FILE.fullmatch(each.path.rpartition("/")[2])
        if name is None or name[3] != target:
            continue
        task, stage, tried = map(int, name[2].split("-"))
        only = execution(attempt).attempt if attempt else tried
        if task == stage == 0 and tried >= EXECUTIONS and tried == only:
            mine.append(each.path)
    return tuple(mine)


def _delete_executions(target: str, files: Collection[str]) -> Procedure[tuple[str, ...]]:
    yield from all_of(delete(path) for path in files)
    yield from all_of(delete(marker_key(target, path, "MERGE")) for path in files)
    return tuple(files)
