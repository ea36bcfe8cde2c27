"""Debug logs of the SDKs: botocore, azure-core, http.client and urllib3, read as what was sent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lockkit.lab.incident.logs import azure_log, botocore_log, http_log, urllib3_log
from lockkit.lab.incident.logs.clockwork import LogTimes
from lockkit.lab.incident.logs.wire import SentRequest

FORMS = (
    ("http.client's debug output", http_log),
    ("botocore's debug log", botocore_log),
    ("azure-core's log", azure_log),
    ("urllib3's debug log", urllib3_log),
)
"""The form that says most goes first: a log often has several, of the same requests."""
TIME_MS_MIN = 1e11
"""What is less is no time of day, but the order of lines."""


@dataclass(frozen=True, slots=True)
class ParsedLog:
    """What a log was found to say."""

    form: str
    sent: tuple[SentRequest, ...]
    lines: int
    unread: int
    """Lines of this form that could not be read."""
    stamped: bool
    zone_ms: float
    """How far its stamps were ahead of UTC; taken off already."""


def is_log(text: str) -> bool:
    return any(form.MARK.search(text) for _, form in FORMS)


def read_log(text: str, who: str) -> ParsedLog:
    """The requests in a log, in its order. `who` names the client where the log does not.

    Raises `ValueError` for a text that `is_log` would not call one.
    """
    lines = text.splitlines()
    found = [_in_form(name, form, lines, who) for name, form in FORMS if form.MARK.search(text)]
    return max(found, key=lambda log: len(log.sent))  # of equals, the form that says most


def _in_form(name: str, form: Any, lines: list[str], who: str) -> ParsedLog:
    times = LogTimes()
    sent, unread = form.exchanges(lines, who, times)
    zone_ms = times.zone_ms
    known_ms = next((ms for ms in map(_answered_ms, sent) if ms >= TIME_MS_MIN), 0.0)
    told = tuple(_at(each, zone_ms, known_ms) for each in sent)
    return ParsedLog(name, told, len(lines), unread, times.stamped, zone_ms)


def _answered_ms(sent: SentRequest) -> float:
    return sent.answered_ms or 0.0


def _at(sent: SentRequest, zone_ms: float, known_ms: float) -> SentRequest:
    """In UTC; what was sent before the first time that the log tells was sent just before it."""
    began_ms = sent.sent_ms if sent.sent_ms >= TIME_MS_MIN else max(known_ms - 1, sent.sent_ms)
    ended_ms = None if sent.answered_ms is None else sent.answered_ms - zone_ms
    return replace(sent, sent_ms=began_ms - zone_ms, answered_ms=ended_ms)
