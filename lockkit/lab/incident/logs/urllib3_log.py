"""urllib3's debug lines, as google-cloud-storage over requests writes them: what was answered."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lockkit.lab.incident.logs.clockwork import LogTimes
from lockkit.lab.incident.logs.wire import SentRequest, answered, asked

MARK = re.compile(r"urllib3\.connectionpool|HTTP/1\.[01]\" \d{3}")
_LINE = re.compile(r'"([A-Z]{3,7}) (\S{1,8000}) HTTP/[\d.]+" (\d{3})')


def exchanges(lines: Iterable[str], who: str, times: LogTimes) -> tuple[list[SentRequest], int]:
    """The requests that were answered: of one without an answer urllib3 writes nothing."""
    done = []
    for line in lines:
        times.line(line)
        if found := _LINE.search(line):
            sent = asked(who, found[1], found[2], {}, times.step())
            done.append(answered(sent, int(found[3]), {}, times.step()))
    return done, 0
