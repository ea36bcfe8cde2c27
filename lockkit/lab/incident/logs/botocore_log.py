"""botocore's debug log (`boto3.set_stream_logger('')`): each request sent, each answer parsed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lockkit.lab.incident.logs.clockwork import LogTimes
from lockkit.lab.incident.logs.wire import NAMES, SentRequest, answered, asked

MARK = re.compile(r"Sending http request: <AWSPreparedRequest")
_SENDING = re.compile(
    r"Sending http request: <AWSPreparedRequest .{0,80}?method=([A-Z]+), url=([^\s,]{1,8000}), "
    r"headers=(\{.*)"
)
_STATUS = re.compile(r'"([A-Z]{3,7}) \S{1,8000} HTTP/[\d.]+" (\d{3})')
_HEADERS = re.compile(r"Response headers: (\{.*)")
_FIELD = re.compile(r"'([A-Za-z0-9-]{1,60})': b?'([^']*)'")


def exchanges(lines: Iterable[str], who: str, times: LogTimes) -> tuple[list[SentRequest], int]:
    """The requests, and how many of this form's lines could not be read.

    One request is under way at a time: of a program whose threads share a log, what was sent last
    gets the next answer of its method.
    """
    done: list[SentRequest] = []
    sent: SentRequest | None = None
    status, unread = 0, 0
    for line in lines:
        times.line(line)
        if "Sending http request" in line:
            done += [sent] if sent else []
            found = _SENDING.search(line)
            unread += found is None
            sent, status = None, 0
            if found:
                sent = asked(who, found[1], found[2], _fields(found[3]), times.step())
        elif found := _STATUS.search(line):
            status = int(found[2])
        elif found := _HEADERS.search(line):
            headers = _fields(found[1])
            times.date(headers.get("date", ""))
            if sent and status:
                done.append(answered(sent, status, headers, times.step()))
                sent = None
            else:
                unread += 1
    return [*done, *([sent] if sent else [])], unread


def _fields(shown: str) -> dict[str, str]:
    found = ((name.lower(), value) for name, value in _FIELD.findall(shown))
    return {name: value for name, value in found if name in NAMES}
