"""Deletes what a useless instant left behind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lockkit.errors import TableError, Unanswered
from lockkit.protocol.outcome import Found
from lockkit.runtime import Note, Procedure
from lockkit.runtime.proven import all_of, delete, read
from lockkit.table.format.layout import parse_commit
from lockkit.table.format.timeline import Timeline

if TYPE_CHECKING:
    from lockkit.table.occ.transaction import TakenInstant


def discard(taken: TakenInstant, now: Timeline, paths: Iterable[str] = ()) -> Procedure[None]:
    """Delete what a useless instant left, `paths` first; `now` was listed after it was taken.

    A timeline file is deleted only if it holds this attempt, and by the version that was read. One
    exception: if the instant is ours and a later one is completed, every other survey of it fails
    too, so any inflight file beside ours is garbage and is deleted by name. If the store does not
    answer, the rest is left to the rollback of dead writers.
    """
    requested, inflight = taken.requested, taken.names.inflight(taken.instant, taken.action)
    try:
        yield from all_of(delete(path) for path in paths)
        ours = yield from taken.own_version(now)
        if ours is not None:
            if now.latest > taken.instant:
                yield from delete(inflight)
            yield from delete(requested, ours)
        elif _is_kept_name(now, taken):
            for key in (inflight, requested):
                yield from _delete_own(taken, key)
        elif taken.instant in now.inflight:
            # A rollback may have deleted the requested file before our inflight file landed.
            yield from _delete_own(taken, inflight)
    except Unanswered as error:
        yield Note("note", {"text": f"left to a rollback: {error}", "instant": taken.instant})


def _is_kept_name(now: Timeline, taken: TakenInstant) -> bool:
    from lockkit.table.format.restored import is_kept_name  # few tables were restored

    return is_kept_name(now, taken.instant, taken.action)


def _delete_own(taken: TakenInstant, key: str) -> Procedure[None]:
    found = yield from read(key)
    if isinstance(found, Found) and (
        found.body == taken.body or attempt_in(key, found.body) == taken.attempt
    ):
        yield from delete(key, found.version)


def attempt_in(key: str, body: bytes) -> str | None:
    try:
        return parse_commit("", key, body).attempt
    except TableError:  # half written, or another program's
        return None
