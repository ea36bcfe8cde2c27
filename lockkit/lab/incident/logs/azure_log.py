"""azure-core's log: `http_logging_policy` (INFO), or `logging_enable=True` with its bodies."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from lockkit.lab.incident.logs.clockwork import LogTimes
from lockkit.lab.incident.logs.wire import NAMES, SentRequest, answered, asked, with_body

MARK = re.compile(r"azure\.(core\.pipeline\.policies\.http_log|storage\.\S{1,60}policies\b)")
TRACE = re.compile(r"azure\.storage\.\S{1,60}policies\b.{0,40}Request URL: ")
"""The storage SDK's own policy says the same once more, and more of it."""
POLICY = "http_logging_policy"
_URL = re.compile(r"Request URL: ['\"](\S{1,8000})['\"]")
_METHOD = re.compile(r"Request method: '([A-Z]+)'")
_FIELD = re.compile(r"    '([A-Za-z0-9-]{1,60})': '([^']*)'\s*$")
_STATUS = re.compile(r"Response status: (\d{3})")
_BODY = re.compile(r"(b'(?:[^'\\]|\\.)*')\s*$")


def exchanges(lines: Iterable[str], who: str, times: LogTimes) -> tuple[list[SentRequest], int]:
    """The requests, and how many of this form's lines could not be read."""
    read = _Reader(who, times)
    lines = list(lines)
    traced = any(TRACE.search(line) for line in lines)
    for line in lines:
        times.line(line)
        if not traced or (MARK.search(line) and POLICY not in line):
            read.line(line)
    read.finish()
    return read.done, read.unread


class _Reader:
    """Holds the request under way: of its lines, some come before what they belong to."""

    def __init__(self, who: str, times: LogTimes) -> None:
        self.done: list[SentRequest] = []
        self.unread = 0
        self._who, self._times = who, times
        self._clear("")

    def _clear(self, url: str) -> None:
        self._url, self._method, self._status = url, "", 0
        self._asked: dict[str, str] = {}
        self._told: dict[str, str] = {}
        self._body, self._sent_ms = b"", self._times.step()

    def line(self, line: str) -> None:
        if found := _URL.search(line):
            self.finish()
            self._clear(found[1])
        elif "Request URL" in line:
            self.unread += 1
        elif found := _METHOD.search(line):
            self._method = found[1]
        elif found := _STATUS.search(line):
            self._status, self._answered_ms = int(found[1]), self._times.step()
        elif found := _FIELD.search(line):
            if (name := found[1].lower()) in NAMES and found[2] != "REDACTED":
                (self._told if self._status else self._asked)[name] = found[2]
            if name == "date" and self._status:
                self._times.date(found[2])
        elif not self._status and (found := _BODY.search(line)):
            self._body = ast.literal_eval(found[1])

    def finish(self) -> None:
        if not self._url or not self._method:
            return
        sent = asked(self._who, self._method, self._url, self._asked, self._sent_ms)
        if self._body:
            sent = with_body(sent, self._body)
        if self._status:
            sent = answered(sent, self._status, self._told, self._answered_ms)
        self.done.append(sent)
        self._url = ""
