"""A handle's events as lines of the log `lockkit`; loaded only if that log is on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from lockkit.errors import clipped, utc

WHY_CHARS_MAX = 500

# For each event: the level, the text and the event's fields of its log line.
LINES: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "waiting": (logging.INFO, "waits for the lock", ("owner", "epoch", "until_ms")),
    "held": (logging.INFO, "acquired the lock", ("epoch", "until_ms")),
    "renewed": (logging.INFO, "renewed the lock", ("epoch", "until_ms")),
    "danger": (logging.INFO, "may lose the lock", ("epoch", "until_ms")),
    "lost": (logging.INFO, "lost the lock", ("epoch", "why")),
    "released": (logging.INFO, "released the lock", ("epoch", "proven")),
    "began": (logging.INFO, "began a commit", ("instant",)),
    "published": (logging.INFO, "committed", ("instant", "epoch")),
    "refused": (logging.INFO, "was refused a commit", ("instant", "epoch", "error", "why")),
    "ask": (logging.DEBUG, "asks", ("request", "op", "key")),
    "answer": (logging.DEBUG, "is answered", ("request", "op", "outcome", "why")),
    "note": (logging.DEBUG, "notes", ("instant", "text")),
}


def log_event(
    log: logging.Logger, url: str, who: str, kind: str, fields: Mapping[str, Any]
) -> None:
    """One line for an event of the handle at `url`, whose lane is `who`."""
    line = LINES.get(kind)
    if line is None:
        return
    level, what, shown = line
    if kind == "note" and "instant" in fields:
        level = logging.INFO  # a rollback, or what it found
    if log.isEnabledFor(level):
        facts = "".join(_fact(name, fields.get(name)) for name in shown)
        log.log(level, "%s [%s] %s%s", url, who, what, facts)


def _fact(name: str, value: Any) -> str:
    if value is None or value == "":
        return ""
    if name == "until_ms":
        return f" until {utc(value)}"
    return f" {name}={clipped(str(value), WHY_CHARS_MAX)}"
