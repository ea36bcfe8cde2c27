"""Debug logs of the SDKs (botocore, azure-core, http.client and urllib3), read as requests."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lockkit.lab.incident.logs.clockwork import LogTimes
from lockkit.lab.incident.logs.forms import FORMS, Form
from lockkit.lab.incident.logs.wire import SentRequest
from lockkit.lab.incident.repeats import lines_once

TIME_MS_MIN = 1e11
"""A smaller number is no time of day but the order of the lines."""


@dataclass(frozen=True, slots=True)
class ParsedLog:
    """The requests that a log contains."""

    form: str
    sent: tuple[SentRequest, ...]
    lines: int
    unread: int
    """Lines of this form that could not be read."""
    stamped: bool
    zone_ms: float
    """How far its timestamps were ahead of UTC; already subtracted."""
    repeated: int = 0
    """Lines that were left out, because they are there more than once."""


def is_log(text: str) -> bool:
    return any(form.mark.search(text) for form in FORMS)


def read_log(text: str, who: str) -> ParsedLog:
    """The requests in a log, in its order. `who` names the client if the log does not.

    Raises `ValueError` for a text that is not a log by `is_log`.
    """
    given = text.splitlines()
    lines = lines_once(given)
    found = [_in_form(form, lines, who) for form in FORMS if form.mark.search(text)]
    best = max(found, key=lambda log: len(log.sent))  # of equal matches, the most detailed form
    return replace(best, lines=len(given), repeated=len(given) - len(lines))


def _in_form(form: Form, lines: list[str], who: str) -> ParsedLog:
    times = LogTimes()
    sent, unread = form.exchanges(lines, who, times)
    zone_ms = times.zone_ms
    known_ms = next((ms for ms in map(_answered_ms, sent) if ms >= TIME_MS_MIN), 0.0)
    reported = tuple(_at(each, zone_ms, known_ms) for each in sent)
    return ParsedLog(form.name, reported, len(lines), unread, times.stamped, zone_ms)


def _answered_ms(sent: SentRequest) -> float:
    return sent.answered_ms or 0.0


def _at(sent: SentRequest, zone_ms: float, known_ms: float) -> SentRequest:
    """A time in UTC; requests before the log's first known time were sent just before it."""
    began_ms = sent.sent_ms if sent.sent_ms >= TIME_MS_MIN else max(known_ms - 1, sent.sent_ms)
    ended_ms = None if sent.answered_ms is None else sent.answered_ms - zone_ms
    return replace(sent, sent_ms=began_ms - zone_ms, answered_ms=ended_ms)
