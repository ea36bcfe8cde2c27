"""A commit whose process slept between the decision and the creation of its completed file.

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

from typing import TYPE_CHECKING

from lockkit.protocol.outcome import Found, Missing, NotModified, Version
from lockkit.runtime import Procedure
from lockkit.runtime.proven import create, delete, read
from lockkit.table.format.archived import load_archived, load_archived_commits
from lockkit.table.format.properties import load_config
from lockkit.table.format.restored import kept_names
from lockkit.table.format.taken_back import TakenBack
from lockkit.table.format.timeline import TimelineNames, instant_ms, load_timeline
from lockkit.table.occ.fence import COMMIT, Decided
from lockkit.table.occ.leaving import leave, load_leavers

if TYPE_CHECKING:
    from lockkit.table.occ.transaction import TakenInstant

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
