"""The archived commits of an increment's window."""

from __future__ import annotations

from lockkit.runtime import Procedure
from lockkit.table.format.archived import load_archived
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.timeline import COMMITS
from lockkit.table.occ.covered import has_archived


def archived_in(
    config: TableConfig, start: str, until: str
) -> Procedure[tuple[str, frozenset[str]]]:
    """Where the last one of (`start`, `until`] stands, or "", and all their instants.

    The bounds are completion times; in version 6, whose archive has none, instants.
    """
    if not (yield from has_archived(config.archive_prefix)):
        return "", frozenset()
    at = {
        each.instant: each.completed or each.instant
        for each in (yield from load_archived(config)) if each.action in COMMITS
    }  # fmt: skip
    found = frozenset(each for each, done in at.items() if start < done <= until)
    return max((at[each] for each in found), default=""), found
