"""The history: the completed instants of a table's timeline."""

from __future__ import annotations

from dataclasses import dataclass

from lockkit.runtime import Procedure
from lockkit.table.format.properties import load_config
from lockkit.table.format.timeline import load_timeline


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One completed instant."""

    instant: str
    """yyyyMMddHHmmssSSS in UTC: when its writer began, and what `read(as_of=...)` takes."""
    action: str
    """commit, replacecommit, clean, rollback, ..."""
    completed: str | None
    """When it completed, in the same form: what `changes` counts by; None in version 6, whose
    timeline does not tell."""


def load_history() -> Procedure[list[HistoryEntry]]:
    """Newest first."""
    config, _ = yield from load_config()
    now = yield from load_timeline(config.names)
    return [
        HistoryEntry(instant, action, now.completion.get(instant))
        for instant, action in sorted(now.completed.items(), reverse=True)
    ]
