"""What became of an instant that may be archived, where writers decide together."""

from __future__ import annotations

from collections.abc import Callable

from lockkit.runtime import Procedure
from lockkit.runtime.proven import listing
from lockkit.table.format.properties import load_config
from lockkit.table.format.timeline import COMMITS, V9, parse_timeline
from lockkit.table.occ.fence import COMMIT
from lockkit.table.occ.group import REFUSED

ArchivedAs = Callable[[str], Procedure[str]]


def archived_outcome(instant: str) -> Procedure[str]:
    """`commit` or `refused`; the fence says that nothing is open up to this instant.

    The timeline first: what leaves it is in the archive before.
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


def completion_of(instant: str) -> Procedure[str | None]:
    """The completion time of a commit in the timeline; None if it is none."""
    now = parse_timeline((yield from listing(V9.folder + instant)), V9)
    return now.completion.get(instant) if now.completed.get(instant) in COMMITS else None
