"""The four forms of an SDK's debug log: how each is recognised, and the requests in it.

Every reader returns the requests in the log's order, and how many lines of its form it could not
read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from lockkit.lab.incident.logs.clockwork import LogTimes
from lockkit.lab.incident.logs.wire import NAMES, SentRequest, answered, sent_request, with_body

Found = tuple[list[SentRequest], int]


class Form(NamedTuple):
    """One form of a log."""

    name: str
    mark: re.Pattern[str]
    """Found in every log of this form."""
    exchanges: Callable[[Iterable[str], str, LogTimes], Found]
    """From the lines, the client's name and the log's clock."""


# --- http.client with debuglevel=1, below every SDK: send, reply and header lines -----------------

HTTP_CLIENT = re.compile(r"^send: b['\"]", re.M)
_SEND = re.compile(r"send: (b(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"))")
_REPLY = re.compile(r"reply: ['\"]HTTP/[\d.]+ (\d{3})")
_HEADER = re.compile(r"header: ([A-Za-z0-9-]{1,60}): (.*)")
_REQUEST_LINE = re.compile(rb"([A-Z]{3,7}) (\S{1,8000}) HTTP/1")


def of_http_client(lines: Iterable[str], who: str, times: LogTimes) -> Found:
    done: list[SentRequest] = []
    sent: SentRequest | None = None
    status, headers, unread, mixed = 0, dict[str, str](), 0, False

    def finish() -> None:
        nonlocal sent, status, headers
        if sent is not None:
            done.append(answered(sent, status, headers, times.step()) if status else sent)
        sent, status, headers = None, 0, {}

    for line in lines:
        times.line(line)
        if found := _SEND.search(line):
            data = _bytes(found[1])
            if start := _REQUEST_LINE.match(data):
                finish()
                method, url = start[1].decode(), start[2].decode("latin-1")
                sent = sent_request(who, method, url, _reported(data), times.step())
                data = data.partition(b"\r\n\r\n")[2]
            if sent is not None and data:
                sent = with_body(sent, data)
        elif found := _REPLY.search(line):
            mixed |= status >= 200  # a second answer: threads share the log
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
    return ([], unread + len(done)) if mixed else (done, unread)


def _bytes(shown: str) -> bytes:
    try:
        data = ast.literal_eval(shown)
    except (ValueError, SyntaxError, MemoryError):
        return b""
    return data if isinstance(data, bytes) else b""


def _reported(head: bytes) -> dict[str, str]:
    pairs = (line.partition(b":") for line in head.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:])
    named = ((name.strip().lower().decode("latin-1"), value) for name, _, value in pairs)
    return {name: value.strip().decode("latin-1") for name, value in named if name in NAMES}


# --- botocore (`boto3.set_stream_logger('')`): each request sent, each answer parsed --------------

BOTOCORE = re.compile(r"Sending http request: <AWSPreparedRequest")
_SENDING = re.compile(
    r"Sending http request: <AWSPreparedRequest .{0,80}?method=([A-Z]+), url=([^\s,]{1,8000}), "
    r"headers=(\{.*)"
)
_BOTOCORE_STATUS = re.compile(r'"([A-Z]{3,7}) (\S{1,8000}) HTTP/[\d.]+" (\d{3})')
_HEADERS = re.compile(r"Response headers: (\{.*)")
_BOTOCORE_FIELD = re.compile(r"'([A-Za-z0-9-]{1,60})': b?'([^']*)'")


def of_botocore(lines: Iterable[str], who: str, times: LogTimes) -> Found:
    """The requests, and how many of this form's lines could not be read.

    An answer is that of the newest request of its line: its SDK may have sent it again. If another
    answer to that line follows, threads share the log. Which answer is whose is then not shown,
    and the requests for that object are left out.
    """
    sent: list[tuple[str, SentRequest]] = []
    open_: dict[str, int] = {}
    answers: list[tuple[int, int]] = []
    unread, torn, behind = 0, 0, 0
    known, doubtful = set[str](), set[str]()
    for line in lines:
        times.line(line)
        if "Sending http request" in line:
            if found := _SENDING.search(line):
                name = f"{found[1]} {_target(found[2])}"
                open_[name] = len(sent)
                fields = _fields(found[3])
                sent.append((name, sent_request(who, found[1], found[2], fields, times.step())))
            torn, unread = torn + (found is None), unread + (found is None)
        elif found := _BOTOCORE_STATUS.search(line):
            name = f"{found[1]} {_target(found[2])}"
            if name in open_:
                answers.append((open_.pop(name), int(found[3])))
                known.add(name)
            elif torn:
                torn -= 1
            elif name in known:
                doubtful.add(name.partition(" ")[2])
        elif found := _HEADERS.search(line):
            headers = _fields(found[1])
            times.date(headers.get("date", ""))
            for number, status in answers:  # of several, whose headers these are is not shown
                shown = headers if len(answers) == 1 else {}
                name, request = sent[number]
                sent[number] = name, answered(request, status, shown, times.step())
            unread += not answers and not behind
            behind = max(len(answers), behind) - 1 if answers or behind else 0
            answers.clear()
    kept = [each for name, each in sent if name.partition(" ")[2] not in doubtful]
    return kept, unread + len(sent) - len(kept)


def _target(url: str) -> str:
    """The path of a request's URL: an answer's line has no host, unless a proxy is between."""
    return re.sub(r"^\w+://[^/?]*", "", url).partition("?")[0] or "/"


def _fields(shown: str) -> dict[str, str]:
    found = ((name.lower(), value) for name, value in _BOTOCORE_FIELD.findall(shown))
    return {name: value for name, value in found if name in NAMES}


# --- azure-core: `http_logging_policy` (INFO), or `logging_enable=True` with its bodies -----------

AZURE_CORE = re.compile(r"azure\.(core\.pipeline\.policies\.http_log|storage\.\S{1,60}policies\b)")
TRACE = re.compile(r"azure\.storage\.\S{1,60}policies\b.{0,40}Request URL: ")
"""The storage SDK's own policy says the same once more, and more of it."""
POLICY = "http_logging_policy"
_URL = re.compile(r"Request URL: ['\"](\S{1,8000})['\"]")
_METHOD = re.compile(r"Request method: '([A-Z]+)'")
_AZURE_FIELD = re.compile(r"    '([A-Za-z0-9-]{1,60})': '([^']*)'\s*$")
_AZURE_STATUS = re.compile(r"Response status: (\d{3})")
_BODY = re.compile(r"(b'(?:[^'\\]|\\.)*')\s*$")


def of_azure_core(lines: Iterable[str], who: str, times: LogTimes) -> Found:
    read = _AzureReader(who, times)
    lines = list(lines)
    traced = any(TRACE.search(line) for line in lines)
    for line in lines:
        times.line(line)
        if not traced or (AZURE_CORE.search(line) and POLICY not in line):
            read.line(line)
    read.finish()
    return ([], read.unread + len(read.done)) if read.mixed else (read.done, read.unread)


class _AzureReader:
    """Holds the request under way, because some lines come before the request they belong to."""

    def __init__(self, who: str, times: LogTimes) -> None:
        self.done: list[SentRequest] = []
        self.unread = 0
        self.mixed = False
        """There was a second answer to one request: threads share the log."""
        self._who, self._times = who, times
        self._clear("")

    def _clear(self, url: str) -> None:
        self._url, self._method, self._status = url, "", 0
        self._requested: dict[str, str] = {}
        self._reported: dict[str, str] = {}
        self._body, self._sent_ms = b"", self._times.step()

    def line(self, line: str) -> None:
        if found := _URL.search(line):
            self.finish()
            self._clear(found[1])
        elif "Request URL" in line:
            self.unread += 1
        elif found := _METHOD.search(line):
            self._method = found[1]
        elif found := _AZURE_STATUS.search(line):
            self.mixed |= bool(self._status)
            self._status, self._answered_ms = int(found[1]), self._times.step()
        elif found := _AZURE_FIELD.search(line):
            if (name := found[1].lower()) in NAMES and found[2] != "REDACTED":
                (self._reported if self._status else self._requested)[name] = found[2]
            if name == "date" and self._status:
                self._times.date(found[2])
        elif not self._status and (found := _BODY.search(line)):
            self._body = _bytes(found[1])

    def finish(self) -> None:
        if not self._url or not self._method:
            return
        sent = sent_request(self._who, self._method, self._url, self._requested, self._sent_ms)
        if self._body:
            sent = with_body(sent, self._body)
        if self._status:
            sent = answered(sent, self._status, self._reported, self._answered_ms)
        self.done.append(sent)
        self._url = ""


# --- urllib3, as google-cloud-storage over requests writes it: what was answered ------------------

URLLIB3 = re.compile(r"urllib3\.connectionpool|HTTP/1\.[01]\" \d{3}")
_ANSWERED_LINE = re.compile(
    r'(?:https?://(\S{1,300}) )?"([A-Z]{3,7}) (\S{1,8000}) HTTP/[\d.]+" (\d{3})'
)


def of_urllib3(lines: Iterable[str], who: str, times: LogTimes) -> Found:
    """The requests that were answered: urllib3 logs nothing about the others."""
    done = []
    for line in lines:
        times.line(line)
        if found := _ANSWERED_LINE.search(line):
            host, method, url, status = found.groups()
            sent = sent_request(who, method, url, {"host": host or ""}, times.step())
            done.append(answered(sent, int(status), {}, times.step()))
    return done, 0


FORMS = (
    Form("http.client's debug output", HTTP_CLIENT, of_http_client),
    Form("botocore's debug log", BOTOCORE, of_botocore),
    Form("azure-core's log", AZURE_CORE, of_azure_core),
    Form("urllib3's debug log", URLLIB3, of_urllib3),
)
"""The form with the most detail goes first: a log often has several forms of the same requests."""
