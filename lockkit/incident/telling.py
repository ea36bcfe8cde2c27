"""Requests from clients' logs, told as a history: what each asked and heard, and what that proves.

A log is belief. The truth lane gets what an answer proves (a 200 to a guarded write: it was
applied), and a write without an answer whose very bytes were read later; everything else stays
unknown. What is concluded, and not written in the log, carries `inferred`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from lockkit.check.lanes import LOCK_NAME, name_of
from lockkit.history import STORE, Event, event
from lockkit.incident.logs.wire import Sent
from lockkit.record import Record

AGAIN = (0, 408, 429)
"""And 5xx: what SDKs send once more by themselves."""
SECOND_MS = 1_000


@dataclass(frozen=True, slots=True)
class Seen:
    """A version of an object, and digests of its bytes: by an answer, or by a bucket's listing."""

    version: str
    digests: frozenset[str]
    at_ms: float
    record: Record | None = None


@dataclass(slots=True)
class Call:
    """What a program asked for once, and its SDK may have sent several times."""

    number: int
    sent: list[Sent]
    landed: Seen | None = None
    """The version that it made, where its answer or a later look proves it."""

    @property
    def first(self) -> Sent:
        return self.sent[0]

    @property
    def last(self) -> Sent:
        return self.sent[-1]

    @property
    def done(self) -> bool:
        return 200 <= self.last.status < 300

    @property
    def record(self) -> Record | None:
        return self.first.record or (self.landed.record if self.landed else None)

    @property
    def attempt(self) -> str:
        known = self.record.attempt if self.record else ""
        return known or f"{self.first.who}/{self.number}"


def tell(sent: Iterable[Sent], seen: Sequence[Seen] = ()) -> list[Event]:
    """The history of some clients' requests. `seen` is what a listing of the bucket adds."""
    named = _named([each for each in sent if each.method in ("GET", "HEAD", "PUT", "DELETE")])
    calls = _calls(sorted(named, key=lambda each: each.sent_ms))
    looks = [*seen, *sorted(_looks(named), key=lambda each: each.at_ms)]
    for place, call in enumerate(calls):
        if call.first.writes:
            call.landed = _landed(call, calls[place + 1 :], looks)
    events: list[Event] = []
    for who in dict.fromkeys(call.first.who for call in calls):
        events += _Client(who, looks).tell([call for call in calls if call.first.who == who])
    return sorted(events, key=lambda each: each.at_ms)


def unnamed(sent: Iterable[Sent]) -> int:
    """Requests whose object nobody can tell."""
    return sum(each.key.endswith("/") for each in _named(list(sent)) if each.writes)


def _named(sent: list[Sent]) -> list[Sent]:
    """urllib3's line of an upload to GCS names no object; its generation, read elsewhere, does."""
    keys = {each.version: each.key for each in sent if each.version and each.key[-1:] != "/"}
    return [
        replace(each, key=keys.get(each.condition.partition(" ")[2], each.key))
        if each.key.endswith("/") else each for each in sent
    ]  # fmt: skip


def _calls(sent: list[Sent]) -> list[Call]:
    """Requests that one client sent again after no answer, a 429 or a 5xx, put together."""
    calls: list[Call] = []
    newest: dict[tuple[str, str], Call] = {}
    for each in sent:
        before = newest.get((each.who, each.key))
        if before and _is_again(before.last, each):
            before.sent.append(each)
            continue
        calls.append(Call(len(calls) + 1, [each]))
        newest[each.who, each.key] = calls[-1]
    return calls


def _is_again(one: Sent, other: Sent) -> bool:
    same = (one.method, one.condition, one.record) == (other.method, other.condition, other.record)
    return same and one.digests == other.digests and (one.status in AGAIN or one.status >= 500)


def _looks(sent: list[Sent]) -> list[Seen]:
    return [
        Seen(each.version, each.found, each.answered_ms or each.sent_ms)
        for each in sent
        if each.method in ("GET", "HEAD") and each.version and 200 <= each.status < 300
    ]


def _landed(call: Call, later: list[Call], looks: list[Seen]) -> Seen | None:
    """The version that this write made: as it was told, as it was read, or as it was used."""
    at_ms, digests = call.first.sent_ms, call.first.digests
    if call.done and call.last.version:
        known = next((each for each in looks if each.version == call.last.version), None)
        record = call.record or (known.record if known else None)
        return Seen(call.last.version, digests, call.last.sent_ms, record)
    read = next((each for each in looks if _may_be(each, call)), None)
    if read is not None:
        return replace(read, record=call.record or read.record)
    if not call.done:
        return None
    for each in later:
        if (each.first.who, each.first.key) != (call.first.who, call.first.key):
            continue
        word, _, version = each.first.condition.partition(" ")
        # Nothing was read in between, so it was this write's answer that told the version.
        return Seen(version, digests, at_ms, call.record) if word == "if-version" else None
    return None


def _may_be(look: Seen, call: Call) -> bool:
    """Whether these bytes are this write's; a bucket's times are to the second."""
    after = look.at_ms >= call.first.sent_ms - SECOND_MS
    return after and bool(look.digests & call.first.digests)


@dataclass(slots=True)
class _Client:
    """One client's calls, told in their order."""

    who: str
    looks: list[Seen]
    events: list[Event] = field(default_factory=list)
    own: dict[str, Record | None] = field(default_factory=dict)
    """Versions that it made."""
    holds: Call | None = None
    """The newest write by which it holds the lock."""
    refused: bool = False
    """Whether its newest write of the lock was not applied, as far as it was told."""

    def tell(self, calls: list[Call]) -> list[Event]:
        for place, call in enumerate(calls):
            op = self._op(call)
            self._exchange(call, op)
            if name_of(call.first.key) == LOCK_NAME:
                self._belief(call, op, calls[place + 1 :])
            if call.landed:
                self.own[call.landed.version] = call.record
        return self.events

    def _op(self, call: Call) -> str:
        first = call.first
        over = first.condition.removeprefix("if-version ")
        if not first.writes:
            return "look"
        if name_of(first.key) != LOCK_NAME:
            return "write"
        if first.method == "DELETE":
            return "release" if self.own else "delete"
        if call.record is None:
            return "acquire" if first.condition == "if-absent" else "write"
        if call.record.expired:
            return "release"
        mine = self.own.get(over)
        goes_on = mine is not None and not mine.expired and mine.owner == call.record.owner
        return "renew" if goes_on else "acquire"

    def _say(self, at_ms: float, kind: str, **data: Any) -> None:
        self.events.append(event(at_ms, self.who, kind, **data))

    def _exchange(self, call: Call, op: str) -> None:
        """What was asked, what the store said to each copy, and what the client was told."""
        first, last = call.first, call.last
        attempt = call.attempt if first.writes else ""
        self._say(first.sent_ms, "ask", request=call.number, op=op, key=first.key, attempt=attempt)
        for number, (one, other) in enumerate(pairwise(call.sent), 1):
            what = f"was answered {one.status}" if one.status else "had no answer"
            text = f"copy {number} of the {op} {what}; the SDK sent it again"
            self._say(other.sent_ms, "note", text=text)
        for each in call.sent:
            applied = first.writes and 200 <= each.status < 300
            if each.status and not (first.writes and (each.status >= 500 or each.status == 408)):
                self._record(call, each, applied=applied)
        if call.landed and not call.done:
            self._proven(call)
        if last.answered_ms is not None or not call.done:
            ended_ms = last.sent_ms if last.answered_ms is None else last.answered_ms
            version = call.landed.version if call.landed and call.done else last.version
            self._say(
                ended_ms + 0.001, "answer", request=call.number, op=op, outcome=outcome(last),
                version=version, why=f"{last.status} {last.code}".strip() if last.status else "",
            )  # fmt: skip

    def _record(self, call: Call, each: Sent, *, applied: bool, **more: Any) -> None:
        """In the truth lane: when is not known, but before its answer."""
        first = call.first
        told = call.landed.version if applied and call.landed else each.version
        gone = first.method == "DELETE" and applied
        ended_ms = each.sent_ms if each.answered_ms is None else each.answered_ms
        before = first.condition.partition(" ")[2] if "if-version" in first.condition else ""
        self.events.append(event(
            ended_ms - min(1.0, (ended_ms - each.sent_ms) / 2), STORE, "request", client=self.who, method=first.method,
            key=first.key, condition=first.condition, status=each.status,
            answer=answer(first, each.status, applied), applied=applied,
            before=before if applied or not first.writes else "",
            version="" if gone else told or (unknown(call) if applied else ""),
            attempt=call.attempt if first.writes else "", began_ms=each.sent_ms,
            **(lease_of(call.record) if applied else {}), **more,
        ))  # fmt: skip

    def _proven(self, call: Call) -> None:
        """A copy without an answer that landed: its bytes were read later."""
        silent = next((each for each in call.sent if each.status == 0 or each.status >= 500), None)
        if silent is None:
            return
        after = [each.sent_ms for each in call.sent if each.sent_ms > silent.sent_ms]
        ended_ms = min([*after, silent.answered_ms or silent.sent_ms + 1])
        assert call.landed is not None
        why = "what was read later is what this write sent"
        self._record(call, replace(silent, answered_ms=ended_ms, status=200), applied=True,
                     inferred=why)  # fmt: skip

    def _belief(self, call: Call, op: str, later: list[Call]) -> None:
        """As far as a log can tell it: only where it shows what was written."""
        at_ms = (call.last.answered_ms or call.last.sent_ms) + 0.002
        record, held = call.record, self.holds.record if self.holds else None
        version = call.landed.version if call.landed else ""
        if op == "look":
            self._waits(call, at_ms)
            return
        self.refused = not call.done
        if call.done and op in ("acquire", "renew") and record:
            until = {"until_ms": float(record.valid_until_ms), "version": version}
            kind = "held" if op == "acquire" else "renewed"
            self._say(at_ms, kind, epoch=record.epoch, **until)
            self.holds = call
        elif op == "release" and held:
            goes_on = any(each.done and each.first.writes for each in later)
            if call.done or not goes_on:
                self._say(at_ms, "released", epoch=held.epoch, proven=call.done)
                self.holds = None
        elif op == "renew" and held and outcome(call.last) == "precondition_failed":
            mine = call.landed.version if call.landed else None
            found_out = any(
                each.done and each.first.condition == f"if-version {mine}" for each in later
            )
            if not found_out:
                why = f"{call.last.status}, and its log shows no write of the lock after it"
                self._say(at_ms, "lost", epoch=held.epoch, why=why, inferred=True)
                self.holds = None

    def _waits(self, call: Call, at_ms: float) -> None:
        """It looks at the lock after it was refused: it waits for whoever it sees there."""
        last = call.last
        version = last.version if last.status != 304 else last.condition.partition(" ")[2]
        if self.holds is not None or not self.refused or not version:
            return
        records = (each.record for each in self.looks if each.version == version)
        record = next((each for each in records if each), None) or self.own.get(version)
        if record is None or not record.expired:
            self._say(
                at_ms, "waiting", owner=record.owner if record else "somebody", inferred=True,
                epoch=record.epoch if record else 0,
                until_ms=float(record.valid_until_ms) if record else at_ms,
            )  # fmt: skip


def outcome(last: Sent) -> str:
    """What the client was told of a call, by its last answer."""
    status = last.status
    if 200 <= status < 300:
        return "applied" if last.writes else "found"
    if status == 304:
        return "not_modified"
    if status == 404 and not last.writes:
        return "missing"
    if status == 412 or (status == 409 and last.code == "BlobAlreadyExists"):
        return "precondition_failed"
    if status == 404 and last.condition:
        return "precondition_failed"  # S3 to If-Match, where there is no object
    if status == 429:
        return "throttled"
    return "refused" if 400 <= status < 500 and status not in (408, 409) else "unknown"


def answer(first: Sent, status: int, applied: bool) -> str:
    """The same in the words of the truth lane."""
    told = outcome(replace(first, status=status))
    if applied or told in ("found", "missing", "not_modified", "precondition_failed", "throttled"):
        return told
    return "precondition_failed" if status == 409 and first.condition == "if-absent" else "error"


def unknown(call: Call) -> str:
    """In place of a version that no log tells; there was one."""
    return f"?{call.number}"


def lease_of(record: Record | None) -> dict[str, Any]:
    """A lock record's fields, as a `request` carries them."""
    if record is None:
        return {}
    return {
        "owner": record.owner, "epoch": record.epoch, "expired": record.expired,
        "valid_until_ms": record.valid_until_ms, "ttl_ms": record.ttl_ms,
    }  # fmt: skip
