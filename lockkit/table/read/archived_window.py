"""The archived commits of an increment's window (layout 2)."""

from __future__ import annotations

from lockkit.runtime import Procedure
from lockkit.table.format.archived import load_archived
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.timeline import COMMITS
from lockkit.table.occ.covered import has_archived


def archived_in(config: TableConfig, start: str, until: str) -> Procedure[frozenset[str]]:
    """Those that completed in (`start`, `until`]."""
    if not (yield from has_archived(config.archive_prefix)):
        return frozenset()
    return frozenset(
        each.instant for each in (yield from load_archived(config))
        if each.action in COMMITS and start < (each.completed or each.instant) <= until
    )  # fmt: skip
