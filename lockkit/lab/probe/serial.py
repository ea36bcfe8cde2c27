"""Checks that need no race: sequential requests, as procedures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockkit.lab.probe.report import Check, CheckOutcome
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    NotModified,
    PreconditionFailed,
    Throttled,
    Unknown,
    WriteAnswer,
)
from lockkit.runtime import Delete, Get, Procedure, Sleep, WallMs
from lockkit.runtime.proven import put_once

TRIES_MAX = 5
THROTTLED_WAIT_S = 1.1
"""Longer than the one second between writes to one key that GCS and R2 ask for."""
RATE_WRITES = 8
CLOCKS_AGREE_MS = 2000
"""Last-Modified against Date of a fresh write: 1 s of flooring and 1 s between front ends."""

OFFSET_MS_MAX, STANDS_STILL_S = 60_000, 1.1
"""A store's clock that is further from ours is read again after this time, to see if it moves."""


def conditions(key: str) -> Procedure[list[Check]]:
    """Create, create again, write over the current version, write over a stale one: 5 requests."""
    one, two, three = b'{"probe":1}', b'{"probe":2}', b'{"probe":3}'
    first = yield from put(key, one, IfAbsent())
    if not isinstance(first, Applied):
        return [_cannot("create", "the first object could not be written", first)]
    again = yield from put(key, two, IfAbsent())
    checks = [_loses("create", "a second create-if-absent of one key", again)]
    # Whichever write was applied, continue from this version.
    current = again.version if isinstance(again, Applied) else first.version
    swapped = yield from put(key, two + b"\n", IfVersion(current))
    match swapped:
        case Applied():
            stale = yield from put(key, three, IfVersion(current))
            checks.append(_loses("compare-and-set", "a write over a version that is gone", stale))
        case PreconditionFailed():
            because = (
                "a write over the current version is refused (old releases of Ceph RGW do this, "
                "which compare the quoted ETag of If-Match with an unquoted one)"
            )
            checks.append(Check("compare-and-set", CheckOutcome.FAILED, because, _shown(swapped)))
        case _:
            checks.append(_cannot("compare-and-set", "the object could not be rewritten", swapped))
    yield from delete(key)
    return checks


def missing(key: str) -> Procedure[list[Check]]:
    """A write over a version of a missing object must be refused."""
    first = yield from put(key, b"once", IfAbsent())
    if not isinstance(first, Applied):
        return [_cannot("missing", "the object could not be written", first)]
    yield from delete(key)
    answer = yield from put(key, b"twice", IfVersion(first.version))
    return [_loses("missing", "a write over a version of a deleted object", answer)]


def reading(key: str) -> Procedure[list[Check]]:
    """Reads see the last write, and a conditional read detects a change."""
    first = yield from put(key, b"one", IfAbsent())
    if not isinstance(first, Applied):
        return [_cannot("read", "the object could not be written", first)]
    same = yield Get(key, unless=first.version)
    second = yield from put(key, b"two", IfVersion(first.version))
    changed = yield Get(key, unless=first.version)
    seen = {"unchanged": type(same).__name__, "changed": type(changed).__name__}
    match changed:
        case Found(b"two", version) if isinstance(second, Applied) and version == second.version:
            fresh = Check("read", CheckOutcome.PASSED, "a read sees the write before it", seen)
        case Unknown():
            fresh = _cannot("read", "the object could not be read", changed)
        case _:
            fresh = Check(
                "read", CheckOutcome.FAILED, "a read did not see the write before it", seen
            )
    if isinstance(same, NotModified):
        polled = Check("conditional-read", CheckOutcome.PASSED, "an unchanged object answers 304")
    elif isinstance(same, Unknown):
        polled = _cannot("conditional-read", "the object could not be read", same)
    else:
        because = "an unchanged object is sent whole, so waiting costs full reads"
        polled = Check("conditional-read", CheckOutcome.NOTED, because, seen)
    return [fresh, polled]


def deleting(key: str) -> Procedure[list[Check]]:
    """A conditional delete; no lock here needs one, because release rewrites the object."""
    first = yield from put(key, b"one", IfAbsent())
    if not isinstance(first, Applied):
        return [_cannot("delete", "the object could not be written", first)]
    second = yield from put(key, b"two", IfVersion(first.version))
    if not isinstance(second, Applied):
        return [_cannot("delete", "the object could not be rewritten", second)]
    stale = yield from delete(key, IfVersion(first.version))
    left = yield Get(key)
    if isinstance(stale, PreconditionFailed) and isinstance(left, Found):
        return [Check("delete", CheckOutcome.PASSED, "a delete of a stale version is refused")]
    because = "a delete of a stale version is not refused (no lock here relies on it)"
    return [Check("delete", CheckOutcome.NOTED, because, _shown(stale))]


def rewriting(key: str) -> Procedure[list[Check]]:
    """Whether equal bytes have equal versions, so that A-B-A would look like A."""
    versions: list[str] = []
    for body in (b"A", b"B", b"A"):
        condition = IfVersion(versions[-1]) if versions else IfAbsent()
        answer = yield from put(key, body, condition)
        if not isinstance(answer, Applied):
            return [_cannot("content-versions", "the object could not be written", answer)]
        versions.append(answer.version)
    is_hash = versions[2] == versions[0]
    because = (
        "equal bytes have equal versions: every write needs a unique attempt in its body"
        if is_hash
        else "versions are not content hashes"
    )
    evidence = {"content_versions": is_hash}
    return [Check("content-versions", CheckOutcome.NOTED, because, evidence)]


def times(key: str) -> Procedure[list[Check]]:
    """Compare a new write's Date with its Last-Modified and with our clock."""
    first = yield from put(key, b"now", IfAbsent())
    sent_ms = yield WallMs()
    answer = yield Get(key)
    received_ms = yield WallMs()
    if not isinstance(first, Applied) or not isinstance(answer, Found):
        return [_cannot("clocks", "the object could not be written and read", answer)]
    if answer.date_ms is None or answer.modified_ms is None:
        because = "answers carry no Date or no Last-Modified: leases can expire by wall clock only"
        return [Check("clocks", CheckOutcome.NOTED, because)]
    apart_ms = answer.date_ms - answer.modified_ms
    # HTTP floors to a second: the true Date is up to 999 ms later than it says.
    floored_ms = 500 if answer.date_ms % 1000 == 0 else 0
    offset_ms = round((sent_ms + received_ms) / 2 - (answer.date_ms + floored_ms))
    evidence = {"date_minus_modified_ms": apart_ms, "our_clock_ahead_ms": offset_ms}
    if abs(offset_ms) > OFFSET_MS_MAX:  # a clock that stands still seldom shows our time
        yield Sleep(STANDS_STILL_S)
        later = yield Get(key)
        if isinstance(later, Found) and later.date_ms == answer.date_ms:
            because = "Date stands still: no lease ends by the store's clock, use expiry 'wall'"
            return [Check("clocks", CheckOutcome.NOTED, because, evidence)]
    if -1000 <= apart_ms <= CLOCKS_AGREE_MS:
        because = "Date and Last-Modified agree: leases can expire by the store's own clock"
        return [Check("clocks", CheckOutcome.PASSED, because, evidence)]
    because = f"Date is {apart_ms} ms from Last-Modified of a fresh write: use expiry 'wall'"
    return [Check("clocks", CheckOutcome.NOTED, because, evidence)]


def rate(key: str) -> Procedure[list[Check]]:
    """How many rapid writes to one key pass before the store answers 429."""
    answer = yield from put_once(key, b"0", IfAbsent())
    applied, throttled = int(isinstance(answer, Applied)), int(isinstance(answer, Throttled))
    began_ms = yield WallMs()
    for number in range(1, RATE_WRITES):
        if not isinstance(answer, Applied):
            break
        answer = yield from put_once(key, str(number).encode(), IfVersion(answer.version))
        applied += isinstance(answer, Applied)
        throttled += isinstance(answer, Throttled)
    ended_ms = yield WallMs()
    evidence = {"applied": applied, "throttled": throttled, "ms": ended_ms - began_ms}
    because = (
        f"writes to one key are throttled (429 after {applied})"
        if throttled
        else f"{applied} writes to one key in {ended_ms - began_ms} ms, none throttled"
    )
    return [Check("write-rate", CheckOutcome.NOTED, because, evidence)]


SERIAL: dict[str, Callable[[str], Procedure[list[Check]]]] = {
    "missing": missing,
    "read": reading,
    "delete": deleting,
    "content-versions": rewriting,
    "clocks": times,
    "write-rate": rate,
}


def put(key: str, body: bytes, condition: Condition) -> Procedure[WriteAnswer]:
    """Write once; retry while the store throttles, because then nothing was written."""
    answer: WriteAnswer = Throttled()
    for _ in range(TRIES_MAX):
        answer = yield from put_once(key, body, condition)
        if not isinstance(answer, Throttled):
            return answer
        yield Sleep(max(answer.retry_after_s or 0.0, THROTTLED_WAIT_S))
    return answer


def delete(key: str, condition: IfVersion | None = None) -> Procedure[WriteAnswer]:
    """As `put`: Google's limit of one mutation a second counts deletes too."""
    answer: WriteAnswer = Throttled()
    for _ in range(TRIES_MAX):
        answer = yield Delete(key, condition)
        if not isinstance(answer, Throttled):
            return answer
        yield Sleep(max(answer.retry_after_s or 0.0, THROTTLED_WAIT_S))
    return answer


def _loses(name: str, what: str, answer: WriteAnswer) -> Check:
    match answer:
        case PreconditionFailed():
            return Check(name, CheckOutcome.PASSED, f"{what} is refused", _shown(answer))
        case Applied():
            return Check(name, CheckOutcome.FAILED, f"{what} was applied", _shown(answer))
        case _:
            return Check(name, CheckOutcome.UNDECIDED, f"{what} was not decided", _shown(answer))


def _cannot(name: str, why: str, answer: object) -> Check:
    refused = " (it was refused: 412)" if isinstance(answer, PreconditionFailed) else ""
    because = f"{why} ({answer.why})" if isinstance(answer, Unknown) else why + refused
    return Check(name, CheckOutcome.UNDECIDED, because, _shown(answer))


def _shown(answer: object) -> dict[str, Any]:
    shown: dict[str, Any] = {"answer": type(answer).__name__}
    return shown | ({"why": answer.why} if isinstance(answer, Unknown) else {})
