"""The one event schema of everything that emits or draws events; JSON lines in and out.

There are two kinds of lanes. The *truth* lane is the store's own record of requests
(`who == "store"`). The *belief* lanes are what each client knew at the time. A paused client writes
nothing: the supervisor reports its process events under the client's name.

A line is one JSON object: `at_ms` (epoch ms on the recorder's clock, or virtual ms), `who` (the
lane), `kind`, and the fields that KINDS names for that kind. More fields are allowed and kept.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO, Any

from lockkit.errors import TIME_MS_MAX as TIME_MS_MAX
from lockkit.errors import StatedError, masked

STORE = "store"
LINE_BYTES_MAX = 1_000_000

KINDS: dict[str, tuple[str, ...]] = {
    # truth: one per request, stamped when the store decided it. `answer` is one of applied,
    # precondition_failed, throttled, found, missing, not_modified, listed, error. `before` and
    # `version` are the object's version before and after ("" = absent); `condition` is "",
    # "if-absent", "if-version <v>" or "unless-version <v>"; `attempt` is the id in the body, or "".
    "request": (
        "client",
        "method",
        "key",
        "condition",
        "status",
        "answer",
        "applied",
        "before",
        "version",
        "attempt",
        "began_ms",
    ),
    # belief: requests of a client; `op` is acquire, confirm, renew, release, look, or a commit step
    "ask": ("request", "op", "key", "attempt"),
    "answer": ("request", "op", "outcome", "version", "why"),
    # belief: the next input of `lease.step`, by the client's own clocks: want (with its identity),
    # saw, blind, answered, tick, beat, quit, give up; or forget, lose and ended (the grant ends
    # during a request), which are not events of the protocol
    "heard": ("step", "event", "boot_ms", "wall_ms"),
    # belief: the lease; `until_ms` is when belief ends, on this history's clock
    "held": ("epoch", "until_ms", "version"),
    "renewed": ("epoch", "until_ms", "version"),
    "danger": ("epoch", "until_ms"),
    "released": ("epoch", "proven"),
    "lost": ("epoch", "why"),
    "waiting": ("owner", "epoch", "until_ms"),
    # belief: a commit. `covered` = every published instant its conflict check saw; `writes` = its
    # [partition, file id] pairs; `error` = CommitConflict, LockLost or CommitUnknown
    "began": ("instant",),
    "checked": ("instant", "epoch", "covered", "writes"),
    "fenced": ("instant", "epoch"),
    "published": ("instant", "epoch"),
    "refused": ("instant", "epoch", "error", "why"),
    # belief: a reader's complete read; `groups` = [partition, file id, instant] of each file group
    "saw": ("began_ms", "groups"),
    # processes, reported by the supervisor
    "started": ("pid",),
    "stalled": ("pid", "why"),
    "resumed": ("pid",),
    "killed": ("pid",),
    "exited": ("pid", "code"),
    # an injected fault: `fault` names it, `when` is before or after the store applied it
    "fault": ("fault", "when", "client", "method", "key"),
    "note": ("text",),
}


class HistoryError(StatedError, ValueError):
    """A line that is not an event: names the line, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    :param at_ms: when, in milliseconds of the wall clock.
    :param who: the lane: a client's name, or the store.
    :param kind: what happened, a key of `KINDS`.
    :param data: the fields of that kind.
    """

    at_ms: float
    who: str
    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.data[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.data.get(name, default)

    def to_json(self) -> str:
        return json.dumps(
            {"at_ms": round(self.at_ms, 3), "who": self.who, "kind": self.kind, **self.data},
            separators=(",", ":"),
        )


def event(at_ms: float, who: str, kind: str, **data: Any) -> Event:
    """An event whose fields are checked against KINDS: a typing error fails where it is made."""
    absent = [name for name in KINDS[kind] if name not in data]
    if absent:
        raise HistoryError(f"event {kind!r}", f"needs {', '.join(absent)}")
    return Event(at_ms, who, kind, data)


def parse(line: str, *, number: int = 0) -> Event:
    """One JSON line as an event; `HistoryError` says what is wrong and where."""
    where = f"line {number}" if number else "the line"
    if len(line) > LINE_BYTES_MAX:
        raise HistoryError(where, f"is longer than {LINE_BYTES_MAX} characters")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        why = getattr(error, "msg", error)  # without the position, which names a line, too
        raise HistoryError(where, f"is not JSON ({why})") from None
    if not isinstance(fields, dict):
        raise HistoryError(where, "is not a JSON object")
    try:
        at_ms, who, kind = float(fields.pop("at_ms")), fields.pop("who"), fields.pop("kind")
    except (KeyError, TypeError, ValueError, OverflowError):
        at_ms = math.nan
    if not math.isfinite(at_ms):
        raise HistoryError(where, "needs at_ms (a number), who and kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise HistoryError(
            where, f"is of an unknown kind, {str(kind)[:40]!r}", f"known: {', '.join(KINDS)}"
        )
    absent = [name for name in KINDS[kind] if name not in fields]
    if absent:
        raise HistoryError(f"{where}: event {kind!r}", f"needs {', '.join(absent)}")
    return Event(at_ms, str(who), kind, fields)


def read(lines: Iterable[str]) -> Iterator[Event]:
    """Events from JSON lines, blank lines skipped. A torn last line (a crash) ends the history."""
    previous: str | None = None
    number = 0
    for number, line in enumerate(lines, 1):
        if previous is not None and previous.strip():
            yield parse(previous, number=number - 1)
        previous = line
    if previous is not None and previous.strip():
        if previous.endswith("\n"):
            yield parse(previous, number=number)
        else:
            try:
                yield parse(previous, number=number)
            except HistoryError:
                return


def write(events: Iterable[Event], file: IO[str]) -> None:
    for each in events:
        file.write(each.to_json() + "\n")


def clock_time(at_ms: float | None) -> str:
    """Epoch ms as a UTC time of day, with its date; `-` if unknown."""
    if at_ms is None:
        return "-"
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{at_ms:.0f} ms (beyond any calendar)"
    return at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


# --- in plain words ------------------------------------------------------------------------------


def narrate(events: Iterable[Event], *, start_ms: float | None = None) -> list[str]:
    """One plain sentence for each notable event, with its seconds since the start."""
    teller = HistoryNarrator(start_ms)
    return [line for each in events if (line := teller.narrate(each)) is not None]


@dataclass(slots=True)
class HistoryNarrator:
    """Describes a history event by event; it tracks the holder, so that a stall can name it."""

    start_ms: float | None = None
    _holds: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def narrate(self, each: Event) -> str | None:
        """A line, or None if the event adds nothing to the others."""
        if self.start_ms is None:
            self.start_ms = each.at_ms
        match each.kind:
            case "held" | "renewed":
                self._holds[each.who] = each["epoch"], each["until_ms"]
            case "lost" | "released":
                self._holds.pop(each.who, None)
        said = self._sentence(each)
        return None if said is None else f"{self._time(each.at_ms)}  {said}"

    def _time(self, at_ms: object) -> str:
        if not isinstance(at_ms, int | float) or not abs(at_ms) < TIME_MS_MAX:
            return "an unknown time"
        return f"{(at_ms - (self.start_ms or 0.0)) / 1000:+.3f} s"

    def _sentence(self, each: Event) -> str | None:
        who = plain(each.who)

        def get(name: str) -> str:
            return plain(each.get(name, ""))

        match each.kind:
            case "held":
                until = self._time(each["until_ms"])
                return f"{who} holds the lock, epoch {get('epoch')}, until {until}"
            case "danger":
                until = self._time(each["until_ms"])
                return f"{who} is in danger: epoch {get('epoch')} ends at {until}, not yet renewed"
            case "released" if each["proven"]:
                return f"{who} released the lock, epoch {get('epoch')}"
            case "released":
                return f"{who} released epoch {get('epoch')} without proof: it ends with its lease"
            case "lost":
                return f"{who} has lost the lock, epoch {get('epoch')}: {get('why')}"
            case "waiting":
                epoch = f" (epoch {get('epoch')})" if each["epoch"] else ""
                known = each["until_ms"] != each.at_ms
                until = f", until {self._time(each['until_ms'])}" if known else ""
                return f"{who} waits for {get('owner')}{epoch}{until}"
            case "began":
                return f"{who} began commit {get('instant')}"
            case "checked":
                return f"{who} checked {get('instant')} for conflicts: {_commits(each['covered'])}"
            case "fenced":
                return f"{who} replaced the fence: {get('instant')} is decided"
            case "published":
                return f"{who} published {get('instant')}, epoch {get('epoch')}"
            case "refused":
                return f"{who} did not commit {get('instant')}: {get('error')}: {get('why')}"
            case "note":
                return f"{who}: {get('text')}"
            case "request" | "answer":
                return _exchange(each, who)
            case "fault":
                return _fault(each)
            case "started" | "stalled" | "resumed" | "killed" | "exited":
                return self._process(each, who)
            case _:
                return None

    def _process(self, each: Event, who: str) -> str:
        match each.kind:
            case "started":
                return f"{who} started, process {plain(each['pid'])}"
            case "stalled" if each.who in self._holds:
                epoch, until_ms = self._holds[each.who]
                holding = f"holding epoch {plain(epoch)} until {self._time(until_ms)}"
                return f"{who} stalls (SIGSTOP), {holding}"
            case "stalled":
                return f"{who} stalls (SIGSTOP)"
            case "resumed":
                return f"{who} goes on"
            case "killed":
                return f"{who} was killed"
            case _:
                return f"{who} ended with exit code {plain(each['code'])}"


def _exchange(each: Event, who: str) -> str | None:
    """Describe only the requests and answers that went differently than planned."""
    if each.kind == "request":
        if each["answer"] not in ("precondition_failed", "throttled", "error"):
            return None
        if not _decides(str(each["key"])):
            return None  # a file that already existed
        why = str(each["answer"]).replace("_", " ")
        return (
            f"the store answers {plain(each['client'])}'s {plain(each['method'])} of "
            f"{_name(each['key'])} with {plain(each['status'])}, {why}"
        )
    if str(each["outcome"]).lower() != "unknown":
        return None
    why = f" ({plain(each['why'])})" if each["why"] else ""
    return f"{who} got no answer to its {plain(each['op'])}{why}"


def _decides(key: str) -> bool:
    """Whether a write of this object decides something: the lock, the fence, a commit."""
    return "/.locks/" in f"/{key}" or key.endswith(".commit")


def _fault(each: Event) -> str:
    client = f"{plain(each['client'])}'s " if each["client"] else "a "
    what = f"{client}{plain(each['method'])} of {_name(each['key'])}"
    return f"fault: {plain(each['fault'])}, {plain(each['when'])} the store applied {what}"


def _commits(covered: object) -> str:
    number = len(covered) if isinstance(covered, list | tuple) else 0
    return f"{number} commit{'' if number == 1 else 's'} before it"


def _name(key: object) -> str:
    return plain(str(key).rpartition("/")[2])


INSTANT = re.compile(r"(?<![0-9A-Za-z])(?:\d{17}|\d{14})(?![0-9A-Za-z])")
HANDLE = re.compile(r"\b([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?=/\d)")


def shortened(text: str) -> str:
    """A sentence as the pictures have it: of an instant `..335750`, of an attempt `0f3a9c11/2`."""
    return HANDLE.sub(r"\1", INSTANT.sub(lambda found: f"..{found[0][-6:]}", text))


def plain(value: object, *, limit: int = 300) -> str:
    """Text from a bucket or a file, without passwords and any terminal control characters."""
    text = masked(str(value))
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
