"""The history: the completed instants of a table's timeline."""

from __future__ import annotations

from dataclasses import dataclass

from lockkit.runtime import Procedure
from lockkit.table.read.listed import list_history


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One completed instant."""

    instant: str
    """When its writer began, as yyyyMMddHHmmssSSS in UTC (unless Hudi's writers use local time).
    `read(as_of=...)` takes it."""
    action: str
    """commit, replacecommit, clean, rollback, ..."""
    completed: str | None
    """When it completed, in the same form, which orders `changes`; None in version 6, whose
    timeline does not record it."""


def load_history() -> Procedure[list[HistoryEntry]]:
    """Newest first, with the instants that Hudi archived."""
    now, archived = yield from list_history()
    here = [
        HistoryEntry(instant, action, now.completion.get(instant))
        for instant, action in now.completed.items()
    ]
    older = [HistoryEntry(each.instant, each.action, each.completed) for each in archived]
    return sorted(here + older, key=lambda each: each.instant, reverse=True)
