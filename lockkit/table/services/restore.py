"""Restores a table to a savepoint: the commits after it are taken back, as in Hudi.

The order keeps every writer and reader out until the table is consistent again. The plan is on the
timeline first; each writer and reader of lockkit that lists it stops. In the mode `fenced` the
fence is closed next, so that a writer that listed the timeline earlier is refused. The archive's
next number is taken, so that an archiver that listed it earlier is refused, too. Then a second
listing shows whether anything was committed, archived, or is pending, that the plan does not know;
if so, the restore is withdrawn. Only then files and instants are deleted, the newest commit first.
If the process crashes, the same call carries the plan out.

In the mode `fenced` a writer may have been decided, paused, and overtaken by another one, which
published its commit. So the names of the commits that go are kept (`taken_back`), and it publishes
nothing more when it wakes. In the mode `hudi` only the lock keeps others out, as in Hudi.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lockkit.protocol.outcome import Found
from lockkit.runtime import Note, Procedure, WallMs
from lockkit.runtime.progress import WorkDone
from lockkit.runtime.proven import all_of, create, delete, read
from lockkit.table.errors import RefusedOption, TableBlocked, TableChanged, UnsupportedTable
from lockkit.table.format import avro
from lockkit.table.format.archived import load_archived
from lockkit.table.format.layout import is_written_by
from lockkit.table.format.properties import FENCED, TableConfig, recheck_config
from lockkit.table.format.restored import KEEPS
from lockkit.table.format.savepoint_files import (
    RestorePlan,
    format_restore,
    format_restore_plan,
    parse_restore_plan,
)
from lockkit.table.format.taken_back import keep_name
from lockkit.table.format.timeline import (
    COMMITS,
    HOODIE,
    Timeline,
    TimelineNames,
    instant_ms,
    instant_of,
    load_timeline,
)
from lockkit.table.occ.commit import StateChange
from lockkit.table.occ.covered import CheckedHorizon, has_archived, read_commit
from lockkit.table.occ.log_rollback import parts, take_back
from lockkit.table.occ.markers import unmark
from lockkit.table.occ.mode import set_fence
from lockkit.table.occ.own_files import own_keys
from lockkit.table.occ.transaction import TableCache, take
from lockkit.table.read.checkpoint import CHECKPOINT_KEY
from lockkit.table.read.listed import snapshot_of
from lockkit.table.read.log_slice import LogSlice
from lockkit.table.read.opening import load_snapshot
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.read.table_files import cannot_begin
from lockkit.table.services.archive_history import take_next
from lockkit.table.services.savepoint import (
    instant_keys,
    paths_of,
    place,
    refuse_gone,
    refuse_no_text,
    saved_files,
)

BESIDE = tuple(f".{action}{state}" for action in ("clean", "rollback", "savepoint")
               for state in ("", ".inflight", ".requested"))  # fmt: skip
"""The endings of files that another action of the same millisecond has."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The table is as it was at the savepoint."""

    instant: str
    savepoint: str
    taken_back: tuple[str, ...]
    """The commits that are gone, newest first."""
    files: int
    """Number of deleted files."""


# --- the plan -------------------------------------------------------------------------------------


def plan_restore(config: TableConfig, savepoint: str) -> Procedure[RestorePlan]:
    """What `restore` would take back; reads only. Raises `TableError` where it cannot be right."""
    now = yield from load_timeline(config.names)
    saved = yield from saved_files(config.names, savepoint)
    if saved is None or savepoint not in now.commits:
        raise RefusedOption(
            "savepoint", "is no savepoint of this table; nothing was changed",
            f"its savepoints: {', '.join(sorted(now.savepoints)) or 'none'}", value=savepoint[:40],
        )  # fmt: skip
    _refuse_pending(now, savepoint)
    if later := sorted(each for each in now.savepoints if each > savepoint):
        raise TableBlocked(
            later[0], f"is a savepoint later than {savepoint}, whose commit would go",
            "delete that savepoint first",
        )  # fmt: skip
    since = place(now, savepoint)
    gone = sorted((each for each in now.commits if place(now, each) > since),
                  key=lambda each: place(now, each), reverse=True)  # fmt: skip
    if archived := (yield from _archived_since(config, since)):
        raise UnsupportedTable(
            archived[0], f"is archived, and later than the savepoint {savepoint}: it cannot be "
            "taken back",
        )  # fmt: skip
    yield from _refuse_other_files(config, now, savepoint, frozenset(gone), saved)
    return RestorePlan(savepoint, tuple((each, now.completed[each]) for each in gone))


def _archived_since(config: TableConfig, since: str) -> Procedure[list[str]]:
    """Archived commits whose place is later."""
    if not (yield from has_archived(config.archive_prefix)):
        return []
    archived = yield from load_archived(config)
    return [each.instant for each in archived
            if each.action in COMMITS and (each.completed or each.instant) > since]  # fmt: skip


def _refuse_pending(now: Timeline, savepoint: str) -> None:
    pending = {each: action for each, action in now.pending.items() if action != "savepoint"}
    for instant, action in pending.items():
        raise TableBlocked(
            instant, f"({action}) is pending, so the table is not restored to {savepoint}",
            "let its writer finish, or stop it and run: lockkit table rollback URL",
        )  # fmt: skip


def _refuse_other_files(
    config: TableConfig, now: Timeline, savepoint: str, gone: frozenset[str],
    saved: frozenset[str],
) -> Procedure[None]:  # fmt: skip
    """Raise unless the commits that stay show exactly the savepoint's files, and all exist."""
    left = frozenset(now.commits) - gone
    if config.mode == FENCED:
        after = yield from load_snapshot(covering=CheckedHorizon(later=left))
    else:
        after = yield from snapshot_of(left)
    shown = paths_of(after.slices)
    if config.sliced:
        shown = yield from _without_what_goes(config, now, after, gone, saved)
    if other := sorted(shown ^ saved):
        raise UnsupportedTable(
            other[0], f"is in only one of the savepoint {savepoint} and the commits that would "
            "stay: another commit overlapped the savepoint's", "restore it with Hudi",
        )  # fmt: skip
    yield from refuse_gone(savepoint, shown)


def _without_what_goes(
    config: TableConfig, now: Timeline, after: Snapshot, gone: frozenset[str],
    saved: frozenset[str],
) -> Procedure[frozenset[str]]:  # fmt: skip
    """Version 6: the shown files without those that came later and have no row of what stays.

    A slice has the log files of all commits. So those are looked at that the savepoint lacks.
    """
    commits = yield from all_of(read_commit(config.names, each, now) for each in gone)
    known = saved | {stat.path for each in commits for stat in each.stats}
    later = set[str]()
    for of in after.slices:
        if not isinstance(of, LogSlice):
            continue
        more = [each for each in of.logs if each not in known]
        if more and not (yield from _has_rows(of, more)):
            later |= {*more}
    return paths_of(after.slices) - later - (known - saved)


def _has_rows(of: LogSlice, logs: list[str]) -> Procedure[bool]:
    """Whether a completed commit, which no command takes back, has rows in these log files."""
    from lockkit.table.read.merging_logs import visible_blocks  # it loads what reads log files

    found = yield from all_of(read(each, limit=None) for each in logs)
    if any(not isinstance(each, Found) for each in found):
        raise TableChanged(min(logs), "or another log file was listed and is gone", "run it again")
    bodies = {log: memoryview(each.body) for log, each in zip(logs, found, strict=True)
              if isinstance(each, Found)}  # fmt: skip
    return bool(visible_blocks(bodies, of))


# --- carrying it out ------------------------------------------------------------------------------


def restore(known: TableCache, held: StateChange, savepoint: str) -> Procedure[Restored]:
    """Under the table's lock: take back every commit after `savepoint`.

    Raises `TableError`, and then nothing was changed unless a pending restore is on the timeline;
    run it again to finish that one. `StoreError`, `LockLost`: likewise.
    """
    refuse_no_text(savepoint=savepoint)
    config = yield from recheck_config(known.config, known.config_version)
    names = config.names
    now = yield from load_timeline(names)
    begun = [each for each, action in now.pending.items() if action == "restore"]
    if begun and (yield from cannot_begin(names, begun[0])):
        held.believe()
        yield from delete(names.requested(begun.pop(), "restore"))
    if begun:
        instant, plan = begun[0], (yield from _load(names, begun[0]))
        if plan.savepoint != savepoint:
            why = f"is a restore to {plan.savepoint} that is not finished"
            raise TableBlocked(instant, why, "finish that one first")
    else:
        yield from open_fence(config, held)
        plan = yield from plan_restore(config, savepoint)
        if not plan.instants:
            return Restored("", savepoint, (), 0)
        held.believe()
        newest = max((known.newest, *now.completed, *now.completion.values()))
        taken = yield from take(replace(known, config=config, newest=newest), action="restore",
                                plan=format_restore_plan(plan))  # fmt: skip
        instant = taken.instant
    if config.mode == FENCED:
        yield from set_fence(config, held.guard, held.believe, closed=True)
    if names.inflight(instant, "restore") not in (yield from instant_keys(names, instant)):
        yield from take_next(config, held.believe)
        yield from _refuse_news(config, instant, plan, held)
    if config.metadata or config.unblocked:
        from lockkit.table.occ.rewriting import keep_metadata_off
        yield from keep_metadata_off(config, held.believe)
    held.believe()
    done = yield from _carry_out(config, instant, plan, held.believe)
    yield from delete(CHECKPOINT_KEY)
    yield from open_fence(config, held)
    yield Note("note", {"text": f"restored to {savepoint}: {len(plan.instants)} commits are gone",
                        "instant": instant})  # fmt: skip
    return done


def open_fence(config: TableConfig, held: StateChange) -> Procedure[None]:
    """Open the fence that a restore has closed, perhaps one that died since."""
    if config.mode == FENCED:
        yield from set_fence(config, held.guard, held.believe, closed=False)


def _load(names: TimelineNames, instant: str) -> Procedure[RestorePlan]:
    key = names.requested(instant, "restore")
    found = yield from read(key, limit=None)
    return parse_restore_plan(key, found.body if isinstance(found, Found) else b"")


def _refuse_news(
    config: TableConfig, instant: str, plan: RestorePlan, held: StateChange
) -> Procedure[None]:
    """Withdraw the restore, and raise, if a commit is pending, archived or unknown to the plan."""
    now = yield from load_timeline(config.names)
    known = {each for each, _ in plan.instants}
    since = place(now, plan.savepoint)
    new = [each for each in now.commits if each not in known and place(now, each) > since]
    new += [each for each, action in now.pending.items()
            if each != instant and action not in ("savepoint", "clean", "rollback")]  # fmt: skip
    new += yield from _archived_since(config, since)
    if not new:
        yield from create(config.names.inflight(instant, "restore"), b"")
        return
    held.believe()
    yield from delete(config.names.requested(instant, "restore"))
    yield from open_fence(config, held)
    raise TableChanged(
        min(new), "was begun, committed or archived while the restore was planned; nothing was "
        "changed", "stop the table's writers, and run it again",
    )  # fmt: skip


def _carry_out(
    config: TableConfig, instant: str, plan: RestorePlan, believe: Callable[[], None]
) -> Procedure[Restored]:
    """Delete, the newest commit first; of each its data, then its files on the timeline."""
    began_ms, names, fenced = (yield WallMs()), config.names, config.mode == FENCED
    schema = (yield from _schema_of(names, plan.savepoint)) if fenced else ""
    data = [key for key in (yield from own_keys()) if not key.startswith(HOODIE)]
    deleted = {each: [key for key in data if is_written_by(key, each)]
               for each, _ in plan.instants}  # fmt: skip
    if config.sliced:
        now = yield from load_timeline(names)
        for each in now.completed.keys() & deleted.keys():  # else its data is gone
            commit = yield from read_commit(names, each, now)
            logs = {stat.path for stat in commit.stats if stat.is_log}
            deleted[each] = sorted({*deleted[each], *logs})
    gone, did, total = dict(plan.instants), "deleted", sum(map(len, deleted.values()))
    if config.sliced:
        did = "took back"
        total = sum(len(part) for each in gone for part in parts(each, deleted[each], gone))
    progress = WorkDone(did, total, "files", instant)
    for each, action in plan.instants:
        believe()
        if config.sliced:
            deleted[each] = yield from take_back(each, deleted[each], gone, progress)
        else:
            yield from progress.all_of(delete(key) for key in deleted[each])
        yield from unmark(each)
        for key in sorted((yield from instant_keys(names, each)), key=_last_requested):
            if fenced and key.endswith(f".{action}"):
                yield from keep_name(key, action, by=instant, schema=schema, version=config.version)
            elif not key.endswith(BESIDE):
                yield from delete(key)
    took_ms = (yield WallMs()) - began_ms
    # The same name for each process that finishes it; the plan's instant is later than all others.
    done = instant_of(instant_ms(instant) + 1) if names.layout == 2 else None
    body = format_restore(plan, instant, deleted, took_ms=took_ms)
    body = avro.stamp(body, KEEPS, "true") if fenced else body
    yield from create(names.completed(instant, "restore", done), body)
    files = sum(map(len, deleted.values()))
    return Restored(instant, plan.savepoint, tuple(each for each, _ in plan.instants), files)


def _schema_of(names: TimelineNames, savepoint: str) -> Procedure[str]:
    """The table's schema as of the savepoint: Hudi's readers look for it in the newest commit."""
    now = yield from load_timeline(names)
    for each in reversed([each for each in now.commits if each <= savepoint]):
        if schema := (yield from read_commit(names, each, now)).schema:
            return schema
    return ""


def _last_requested(key: str) -> int:
    """Completed, inflight, requested: until the last one, the next run finds what is left."""
    return 2 if key.endswith(".requested") else int(key.endswith("inflight"))
