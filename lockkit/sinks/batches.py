"""How many entries one write decided together: for recorders, and for telemetry."""

from __future__ import annotations

from lockkit import sinks
from lockkit.clock import Clock


def report_batch(url: str, who: str, size: int) -> None:
    """Report one write that decided `size` entries to the listeners of this process."""
    if sinks._listeners:
        from lockkit.events import event  # only a recording needs the schema

        text = f"{size} entries in one write"
        sinks.overheard(url, event(Clock().stamp_ms(), who, "note", text=text, batch=size))
