"""Requests from clients' logs as a history: each request, its answer, and what they prove.

A log is belief. The truth lane gets what an answer proves (a 200 to a guarded write: it was
applied), and a write without an answer whose very bytes were read later; everything else stays
unknown. Conclusions that are not in the log itself have `inferred`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from lockkit.events import STORE, Event, event
from lockkit.lab.incident.calls import LaterWrites, LockObservations, SdkCall, SeenVersion, calls_of
from lockkit.lab.incident.logs.wire import SentRequest
from lockkit.lab.verify.check.lanes import LOCK_NAME, name_of
from lockkit.protocol.record import Record, lease_of


def client_events(sent: Iterable[SentRequest], seen: Sequence[SeenVersion] = ()) -> list[Event]:
    """The history of some clients' requests. `seen` are versions from a listing of the bucket."""
    calls, looks = calls_of(sent, seen)
    events: list[Event] = []
    for who in dict.fromkeys(call.first.who for call in calls):
        own = [call for call in calls if call.first.who == who]
        events += _Client(who, looks, LaterWrites(own)).client_events(own)
    return sorted(events, key=lambda each: each.at_ms)


@dataclass(slots=True)
class _Client:
    """One client's calls, recorded in their order."""

    who: str
    looks: LockObservations
    later: LaterWrites
    events: list[Event] = field(default_factory=list)
    own: dict[str, Record | None] = field(default_factory=dict)
    """Versions that it made."""
    holds: SdkCall | None = None
    """The newest write by which it holds the lock."""
    refused: bool = False
    """Whether its newest write of the lock was refused, by the answer that it received."""

    def client_events(self, calls: list[SdkCall]) -> list[Event]:
        for call in calls:
            op = self._op(call)
            self._exchange(call, op)
            if name_of(call.first.key) == LOCK_NAME:
                self._belief(call, op)
            if call.landed:
                self.own[call.landed.version] = call.record
        return self.events

    def _op(self, call: SdkCall) -> str:
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

    def _exchange(self, call: SdkCall, op: str) -> None:
        """Record the request, the store's answer to each copy, and the client's answer."""
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

    def _record(self, call: SdkCall, each: SentRequest, *, applied: bool, **more: Any) -> None:
        """Add to the truth lane: at an unknown time, but before its answer."""
        first = call.first
        reported = call.landed.version if applied and call.landed else each.version
        gone = first.method == "DELETE" and applied
        ended_ms = each.sent_ms if each.answered_ms is None else each.answered_ms
        before = first.condition.partition(" ")[2] if "if-version" in first.condition else ""
        self.events.append(event(
            ended_ms - min(1.0, (ended_ms - each.sent_ms) / 2), STORE, "request",
            client=self.who, method=first.method, key=first.key, condition=first.condition,
            status=each.status, answer=answer(first, each.status, applied), applied=applied,
            before=before if applied or not first.writes else "",
            version="" if gone else reported or (unknown(call) if applied else ""),
            attempt=call.attempt if first.writes else "", began_ms=each.sent_ms,
            **(lease_of(call.record) if applied else {}), **more,
        ))  # fmt: skip

    def _proven(self, call: SdkCall) -> None:
        """Record an unanswered copy that was applied: its bytes were read later."""
        silent = next((each for each in call.sent if each.status == 0 or each.status >= 500), None)
        if silent is None:
            return
        after = [each.sent_ms for each in call.sent if each.sent_ms > silent.sent_ms]
        ended_ms = min([*after, silent.answered_ms or silent.sent_ms + 1])
        assert call.landed is not None
        why = "a later read found what this write sent"
        self._record(call, replace(silent, answered_ms=ended_ms, status=200), applied=True,
                     inferred=why)  # fmt: skip

    def _belief(self, call: SdkCall, op: str) -> None:
        """Record a belief, only if the log shows what was written."""
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
            if call.done or not self.later.any(call):
                self._say(at_ms, "released", epoch=held.epoch, proven=call.done)
                self.holds = None
        elif op == "renew" and held and outcome(call.last) == "precondition_failed":
            mine = call.landed.version if call.landed else ""
            if not self.later.over(call, mine):
                why = f"{call.last.status}, and its log shows no write of the lock after it"
                self._say(at_ms, "lost", epoch=held.epoch, why=why, inferred=True)
                self.holds = None

    def _waits(self, call: SdkCall, at_ms: float) -> None:
        """Record a wait: it reads the lock after a refusal, so it waits for the holder."""
        last = call.last
        version = last.version if last.status != 304 else last.condition.partition(" ")[2]
        if self.holds is not None or not self.refused or not version:
            return
        record = self.looks.records.get(version) or self.own.get(version)
        if record is None or not record.expired:
            self._say(
                at_ms, "waiting", owner=record.owner if record else "another client", inferred=True,
                epoch=record.epoch if record else 0,
                until_ms=float(record.valid_until_ms) if record else at_ms,
            )  # fmt: skip


def outcome(last: SentRequest) -> str:
    """The outcome of a call for its client, by the last answer."""
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


def answer(first: SentRequest, status: int, applied: bool) -> str:
    """The same in the terms of the truth lane."""
    reported = outcome(replace(first, status=status))
    if applied or reported in (
        "found", "missing", "not_modified", "precondition_failed", "throttled",
    ):  # fmt: skip
        return reported
    return "precondition_failed" if status == 409 and first.condition == "if-absent" else "error"


def unknown(call: SdkCall) -> str:
    """A placeholder for a version that no log shows; there was one."""
    return f"?{call.number}"
