"""Calls of programs, from their logs: with their copies, and whether they were applied.

A write was applied if its answer says so, if its exact bytes were read later, or if its client went
on from a version that it can know only from the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lockkit.lab.incident.logs import TIME_MS_MIN
from lockkit.lab.incident.logs.wire import SentRequest
from lockkit.lab.verify.check.lanes import LOCK_NAME, name_of
from lockkit.protocol.record import Record
from lockkit.table.inspect.versions import Generation

AGAIN = (0, 408, 429)
"""And 5xx: what SDKs send once more by themselves."""
SECOND_MS = 1_000
ALIKE_MAX = 100


@dataclass(frozen=True, slots=True)
class SeenVersion:
    """A version of an object, and digests of its bytes: by an answer, or by a bucket's listing."""

    version: str
    digests: frozenset[str]
    at_ms: float
    record: Record | None = None


@dataclass(slots=True)
class SdkCall:
    """One call of a program, which its SDK may have sent several times."""

    number: int
    sent: list[SentRequest]
    landed: SeenVersion | None = None
    """The version that it made, where its answer or a later look proves it."""

    @property
    def first(self) -> SentRequest:
        return self.sent[0]

    @property
    def last(self) -> SentRequest:
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


class LockObservations:
    """The observed versions of the lock, by digest and by version."""

    def __init__(self, seen: Iterable[SeenVersion]) -> None:
        self._by_digest: dict[str, list[SeenVersion]] = {}
        self.records: dict[str, Record] = {}
        for each in seen:
            for digest in each.digests:
                self._by_digest.setdefault(digest, []).append(each)
            if each.record:
                self.records.setdefault(each.version, each.record)

    def of(self, call: SdkCall) -> SeenVersion | None:
        """The first look at these bytes after they were sent; a bucket's times are to the second.

        Of equal bytes that were read very often, the first reads count.
        """
        found = [each for digest in sorted(call.first.digests)
                 for each in self._by_digest.get(digest, ())[:ALIKE_MAX]
                 if each.at_ms >= call.first.sent_ms - SECOND_MS]  # fmt: skip
        return found[0] if found else None


class LaterWrites:
    """Whether a client's later writes of the lock were applied, and over which versions."""

    def __init__(self, calls: list[SdkCall]) -> None:
        done = [each for each in calls if each.done and each.first.writes
                and name_of(each.first.key) == LOCK_NAME]  # fmt: skip
        self._last = max((each.number for each in done), default=0)
        self._over = {each.first.condition: each.number for each in done}

    def any(self, call: SdkCall) -> bool:
        return self._last > call.number

    def over(self, call: SdkCall, version: str) -> bool:
        return self._over.get(f"if-version {version}", 0) > call.number


def calls_of(
    sent: Iterable[SentRequest], seen: Sequence[SeenVersion] = ()
) -> tuple[list[SdkCall], LockObservations]:
    """Calls in order of time, each with the version it created; and all observations."""
    named = _named([each for each in sent if each.method in ("GET", "HEAD", "PUT", "DELETE")])
    calls = _calls(sorted(named, key=lambda each: each.sent_ms))
    looks = LockObservations([*seen, *sorted(_looks(named), key=lambda each: each.at_ms)])
    after: dict[tuple[str, str], SdkCall] = {}
    for call in reversed(calls):
        place = call.first.who, call.first.key
        if call.first.writes:
            call.landed = _landed(call, after.get(place), looks)
        after[place] = call
    return calls, looks


def identity(each: SentRequest) -> tuple[object, ...]:
    """Equal for one request in two logs, or in overlapping parts of one."""
    who = each.who if each.sent_ms < TIME_MS_MIN else ""  # an order is of one log alone
    return (each.sent_ms, who, each.method, each.key, each.condition, each.status, each.version,
            each.digests)  # fmt: skip


def unnamed(sent: Iterable[SentRequest]) -> int:
    """The number of writes whose object is unknown."""
    return sum(each.key.endswith("/") for each in _named(list(sent)) if each.writes)


def _named(sent: list[SentRequest]) -> list[SentRequest]:
    """urllib3's line of an upload to GCS names no object; its generation, read elsewhere, does."""
    keys = {each.version: each.key for each in sent if each.version and each.key[-1:] != "/"}
    return [
        replace(each, key=keys.get(each.condition.partition(" ")[2], each.key))
        if each.key.endswith("/") else each for each in sent
    ]  # fmt: skip


def _calls(sent: list[SentRequest]) -> list[SdkCall]:
    """Requests that one client sent again after no answer, a 429 or a 5xx, put together."""
    calls: list[SdkCall] = []
    newest: dict[tuple[str, str], SdkCall] = {}
    for each in sent:
        before = newest.get((each.who, each.key))
        if before and _is_again(before.last, each):
            before.sent.append(each)
            continue
        calls.append(SdkCall(len(calls) + 1, [each]))
        newest[each.who, each.key] = calls[-1]
    return calls


def _is_again(one: SentRequest, other: SentRequest) -> bool:
    same = (one.method, one.condition, one.record) == (other.method, other.condition, other.record)
    return same and one.digests == other.digests and (one.status in AGAIN or one.status >= 500)


def _looks(sent: list[SentRequest]) -> list[SeenVersion]:
    return [
        SeenVersion(each.version, each.found, each.answered_ms or each.sent_ms)
        for each in sent
        if each.method in ("GET", "HEAD") and each.version and 200 <= each.status < 300
    ]


def _landed(call: SdkCall, after: SdkCall | None, looks: LockObservations) -> SeenVersion | None:
    """The version that this write created: from its answer, a later read, or a later use.

    `after` is the same client's next request for the same object.
    """
    at_ms, digests, version = call.first.sent_ms, call.first.digests, call.last.version
    if call.done and version:
        return SeenVersion(
            version, digests, call.last.sent_ms, call.record or looks.records.get(version)
        )
    read = looks.of(call)
    if read is not None:
        return replace(read, record=call.record or read.record)
    if not call.done or after is None:
        return None
    word, _, version = after.first.condition.partition(" ")
    # Nothing was read in between, so the version came from this write's answer.
    return SeenVersion(version, digests, at_ms, call.record) if word == "if-version" else None


def seen(kept: Sequence[Generation]) -> list[SeenVersion]:
    """Versions for logs beside them, which may lack a write's version."""
    return [
        SeenVersion(each.number.version, each.digests, each.number.modified_ms, each.record)
        for each in kept if isinstance(each.record, Record)
    ]  # fmt: skip
