"""What `http.client` prints with debuglevel=1, below every SDK: send, reply and header lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from lockkit.lab.incident.logs.clockwork import LogTimes
from lockkit.lab.incident.logs.wire import NAMES, SentRequest, answered, asked, with_body

MARK = re.compile(r"^send: b['\"]", re.M)
_SEND = re.compile(r"send: (b(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"))")
_REPLY = re.compile(r"reply: ['\"]HTTP/[\d.]+ (\d{3})")
_HEADER = re.compile(r"header: ([A-Za-z0-9-]{1,60}): (.*)")
_LINE = re.compile(rb"([A-Z]{3,7}) (\S{1,8000}) HTTP/1")


def exchanges(lines: Iterable[str], who: str, times: LogTimes) -> tuple[list[SentRequest], int]:
    """The requests, and how many of this form's lines could not be read."""
    done: list[SentRequest] = []
    sent: SentRequest | None = None
    status, headers, unread = 0, dict[str, str](), 0

    def finish() -> None:
        nonlocal sent, status, headers
        if sent is not None:
            done.append(answered(sent, status, headers, times.step()) if status else sent)
        sent, status, headers = None, 0, {}

    for line in lines:
        times.line(line)
        if found := _SEND.search(line):
            data = _bytes(found[1])
            if start := _LINE.match(data):
                finish()
                sent = asked(
                    who, start[1].decode(), start[2].decode("latin-1"), _told(data), times.step()
                )
                data = data.partition(b"\r\n\r\n")[2]
            if sent is not None and data:
                sent = with_body(sent, data)
        elif found := _REPLY.search(line):
            status = int(found[1])
        elif found := _HEADER.match(line):
            name = found[1].lower()
            if name in NAMES:
                headers[name] = found[2]
            if name == "date":
                times.date(found[2])
        elif line.startswith(("send:", "header:")):
            unread += 1
    finish()
    return done, unread


def _bytes(shown: str) -> bytes:
    try:
        data = ast.literal_eval(shown)
    except (ValueError, SyntaxError, MemoryError):
        return b""
    return data if isinstance(data, bytes) else b""


def _told(head: bytes) -> dict[str, str]:
    pairs = (line.partition(b":") for line in head.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:])
    named = ((name.strip().lower().decode("latin-1"), value) for name, _, value in pairs)
    return {name: value.strip().decode("latin-1") for name, value in named if name in NAMES}
