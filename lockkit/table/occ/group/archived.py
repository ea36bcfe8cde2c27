"""What became of an instant that may be archived, where writers decide together."""

from __future__ import annotations

from collections.abc import Callable

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import listing, read
from lockkit.table.format.properties import load_config
from lockkit.table.format.taken_back import refuse_taken_back
from lockkit.table.format.timeline import COMMITS, TimelineNames, parse_timeline
from lockkit.table.occ.fence import COMMIT
from lockkit.table.occ.group.decision import REFUSED

ArchivedAs = Callable[[str], Procedure[str]]


def archived_outcome(instant: str) -> Procedure[str]:
    """`commit` or `refused`; the fence says that nothing is open up to this instant.

    It looks in the timeline first: an instant is in the archive before it leaves the timeline.
    """
    from lockkit.table.format.archived import load_archived  # rarely needed

    config, _ = yield from load_config()
    names = config.names
    now = parse_timeline((yield from listing(names.folder + instant)), names)
    if now.completed.get(instant) in COMMITS:
        return COMMIT
    archived = yield from load_archived(config)
    found = any(each.instant == instant and each.action in COMMITS for each in archived)
    return COMMIT if found else REFUSED


def completion_of(names: TimelineNames, instant: str) -> Procedure[str | None]:
    """The completion time of a commit in the timeline or the archive; None if there is no such
    commit.

    In table version 6 it is "". Raises `TableChanged` if a restore has taken the commit back.
    """
    now = parse_timeline((yield from listing(names.folder + instant)), names)
    if (action := now.completed.get(instant)) in COMMITS:
        key = names.completed(instant, action, now.completion.get(instant))
        if isinstance(left := (yield from read(key, limit=None)), Found):
            refuse_taken_back(instant, key, left)
        return now.completion.get(instant, "")
    from lockkit.table.format.archived import load_archived  # rarely needed

    archived = yield from load_archived((yield from load_config())[0])
    return next((each.completed or "" for each in archived
                 if each.instant == instant and each.action in COMMITS), None)  # fmt: skip
