"""The conformance of a store: what its conditional writes do, as against what is documented.

Three kinds of store give a lock no exclusion: one that refuses conditions (501), one that ignores
them (200), and one that honours them but checks and writes in two steps. The first two show in a
dozen requests one after another; the last only in races, and then only by chance: a probe can
convict, never acquit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from lockkit.clock import Clock
from lockkit.drive import (
    Delete,
    Emit,
    Get,
    Procedure,
    Put,
    Sleep,
    WallMs,
    run,
    silent,
)
from lockkit.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    NotModified,
    PreconditionFailed,
    Throttled,
    Unknown,
    WriteAnswer,
)
from lockkit.stores import NoAnswer, Store, StoreError, reopen

SCRATCH = ".lockkit_probe"
TRIES_MAX = 5
THROTTLED_WAIT_S = 1.1
"""Longer than the one second between writes to one key that GCS and R2 ask for."""
RATE_WRITES = 8
CLOCKS_AGREE_MS = 2000
"""Last-Modified against Date of a fresh write: 1 s of flooring and 1 s between front ends."""


class Verdict(Enum):
    """What a lock may do with the store; only `FULL` is safe to lock on."""

    FULL = "full"
    CREATE_ONLY = "create-only"
    IGNORES_CONDITIONS = "ignores-conditions"
    NOT_ATOMIC = "not-atomic"
    REFUSED = "refused"


class Finding(Enum):
    """How one check went. `NOTED` is neither good nor bad: a property to know."""

    PASSED = "passed"
    FAILED = "failed"
    NOTED = "noted"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Check:
    """One question put to the store."""

    name: str
    finding: Finding
    because: str
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict on a store, and all that it rests on."""

    url: str
    verdict: Verdict
    conclusion: str
    checks: tuple[Check, ...]
    refusals: tuple[tuple[int, str, int], ...] = ()
    """(status, error code, how often) of every refusal met on the way."""

    @property
    def safe(self) -> bool:
        return self.verdict is Verdict.FULL

    def check(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)

    def to_json(self) -> dict[str, Any]:
        checks = [{**asdict(check), "finding": check.finding.value} for check in self.checks]
        return {
            "url": self.url,
            "verdict": self.verdict.value,
            "safe": self.safe,
            "conclusion": self.conclusion,
            "checks": checks,
            "refusals": [
                {"status": status, "code": code, "times": times}
                for status, code, times in self.refusals
            ],
        }


def quick_probe(store: Store, *, clock: Clock | None = None) -> Report:
    """Whether `store` minds its conditions, one request after another; at most six (more only
    where it throttles). Says nothing about atomicity."""
    clock = clock or Clock()
    place = f"{SCRATCH}/{clock.unique()}"
    checks = _guarded("create", conditions(f"{place}/quick"), store, clock)
    return _report(store, checks)


def probe(
    store: Store,
    *,
    rounds: int = 50,
    racers: int = 16,
    also: Sequence[Store] = (),
    clock: Clock | None = None,
    emit: Emit = silent,
) -> Report:
    """Everything that a lock depends on, on scratch keys that are deleted afterwards.

    `also` are other ways to the same place (the other nodes of a cluster): the racers are spread
    over them, for some clusters are atomic per node only (RustFS #1659).
    """
    clock = clock or Clock()
    place = f"{SCRATCH}/{clock.unique()}"
    checks: list[Check] = []
    try:
        emit("note", text=f"probing {store.url}: one request after another")
        checks += _guarded("create", conditions(f"{place}/conditions"), store, clock)
        if not _fatal(checks):
            for name, procedure in SERIAL.items():
                checks += _guarded(name, procedure(f"{place}/{name}"), store, clock)
            checks.append(_listing(store, place, clock))
            emit("note", text=f"racing {racers} clients, {rounds} rounds of each kind")
            checks += _races(store, place, rounds, racers, also, clock)
    except NoAnswer as error:
        checks.append(Check("create-race", Finding.UNDECIDED, str(error)))
    except StoreError as error:
        checks.append(Check("create-race", Finding.FAILED, str(error), {"refused": True}))
    finally:
        checks.append(_cleaned(store, place, clock))
    return _report(store, checks)


# --- one request after another: procedures ---------------------------------------------------


def conditions(key: str) -> Procedure[list[Check]]:
    """Create, create again, write over the current version, write over a stale one: 5 requests."""
    one, two, three = b'{"probe":1}', b'{"probe":2}', b'{"probe":3}'
    first = yield from _put(key, one, IfAbsent())
    if not isinstance(first, Applied):
        return [_cannot("create", "the first object could not be written", first)]
    again = yield from _put(key, two, IfAbsent())
    checks = [_loses("create", "a second create-if-absent of one key", again)]
    # Whichever write it let through, this is the version to go on from.
    current = again.version if isinstance(again, Applied) else first.version
    swapped = yield from _put(key, two + b"\n", IfVersion(current))
    match swapped:
        case Applied():
            stale = yield from _put(key, three, IfVersion(current))
            checks.append(_loses("compare-and-set", "a write over a version that is gone", stale))
        case PreconditionFailed():
            because = "a write over the current version is refused (wrong quoting of ETags?)"
            checks.append(Check("compare-and-set", Finding.FAILED, because, _shown(swapped)))
        case _:
            checks.append(_cannot("compare-and-set", "the object could not be rewritten", swapped))
    yield Delete(key)
    return checks


def missing(key: str) -> Procedure[list[Check]]:
    """A write over a version of an object that is not there must lose."""
    first = yield from _put(key, b"once", IfAbsent())
    if not isinstance(first, Applied):
        return [_cannot("missing", "the object could not be written", first)]
    yield Delete(key)
    answer = yield from _put(key, b"twice", IfVersion(first.version))
    return [_loses("missing", "a write over a version of a deleted object", answer)]


def reading(key: str) -> Procedure[list[Check]]:
    """Reads see the last write, and a conditional read tells an unchanged object from a changed."""
    first = yield from _put(key, b"one", IfAbsent())
    if not isinstance(first, Applied):
        return [_cannot("read", "the object could not be written", first)]
    same = yield Get(key, unless=first.version)
    second = yield from _put(key, b"two", IfVersion(first.version))
    changed = yield Get(key, unless=first.version)
    seen = {"unchanged": type(same).__name__, "changed": type(changed).__name__}
    match changed:
        case Found(b"two", version) if isinstance(second, Applied) and version == second.version:
            fresh = Check("read", Finding.PASSED, "a read sees the write before it", seen)
        case _:
            fresh = Check("read", Finding.FAILED, "a read did not see the write before it", seen)
    if isinstance(same, NotModified):
        polled = Check("conditional-read", Finding.PASSED, "an unchanged object answers 304")
    else:
        because = "an unchanged object is sent whole, so waiting costs full reads"
        polled = Check("conditional-read", Finding.NOTED, because, seen)
    return [fresh, polled]


def deleting(key: str) -> Procedure[list[Check]]:
    """A conditional delete; no lock here needs one, for release rewrites the object."""
    first = yield from _put(key, b"one", IfAbsent())
    if not isinstance(first, Applied):
        return [_cannot("delete", "the object could not be written", first)]
    second = yield from _put(key, b"two", IfVersion(first.version))
    if not isinstance(second, Applied):
        return [_cannot("delete", "the object could not be rewritten", second)]
    stale = yield Delete(key, IfVersion(first.version))
    left = yield Get(key)
    if isinstance(stale, PreconditionFailed) and isinstance(left, Found):
        return [Check("delete", Finding.PASSED, "a delete of a stale version is refused")]
    because = "a delete of a stale version is not refused (no lock here relies on it)"
    return [Check("delete", Finding.NOTED, because, _shown(stale))]


def rewriting(key: str) -> Procedure[list[Check]]:
    """Whether equal bytes have equal versions, so that A-B-A would pass for A."""
    first = yield from _put(key, b"A", IfAbsent())
    if not isinstance(first, Applied):
        return [_cannot("content-versions", "the object could not be written", first)]
    second = yield from _put(key, b"B", IfVersion(first.version))
    if not isinstance(second, Applied):
        return [_cannot("content-versions", "the object could not be rewritten", second)]
    third = yield from _put(key, b"A", IfVersion(second.version))
    if not isinstance(third, Applied):
        return [_cannot("content-versions", "the object could not be rewritten", third)]
    is_hash = third.version == first.version
    because = (
        "equal bytes have equal versions: every write needs a unique attempt in its body"
        if is_hash
        else "versions are not content hashes"
    )
    evidence = {"content_versions": is_hash}
    return [Check("content-versions", Finding.NOTED, because, evidence)]


def times(key: str) -> Procedure[list[Check]]:
    """How Date and Last-Modified of a fresh write agree, and how our clock does with Date."""
    first = yield from _put(key, b"now", IfAbsent())
    sent_ms = yield WallMs()
    answer = yield Get(key)
    heard_ms = yield WallMs()
    if not isinstance(first, Applied) or not isinstance(answer, Found):
        return [_cannot("clocks", "the object could not be written and read", answer)]
    if answer.date_ms is None or answer.modified_ms is None:
        because = "answers carry no Date or no Last-Modified: leases can expire by wall clock only"
        return [Check("clocks", Finding.NOTED, because)]
    apart_ms = answer.date_ms - answer.modified_ms
    # HTTP floors to a second: the true Date is up to 999 ms later than it says.
    floored_ms = 500 if answer.date_ms % 1000 == 0 else 0
    offset_ms = round((sent_ms + heard_ms) / 2 - (answer.date_ms + floored_ms))
    evidence = {"date_minus_modified_ms": apart_ms, "our_clock_ahead_ms": offset_ms}
    if -1000 <= apart_ms <= CLOCKS_AGREE_MS:
        because = "Date and Last-Modified agree: leases can expire by the store's own clock"
        return [Check("clocks", Finding.PASSED, because, evidence)]
    because = f"Date is {apart_ms} ms from Last-Modified of a fresh write: use expiry 'wall'"
    return [Check("clocks", Finding.NOTED, because, evidence)]


def rate(key: str) -> Procedure[list[Check]]:
    """How many writes to one key pass in quick succession before the store says 429."""
    answer: WriteAnswer = yield Put(key, b"0", IfAbsent())
    applied, throttled = int(isinstance(answer, Applied)), int(isinstance(answer, Throttled))
    began_ms = yield WallMs()
    for number in range(1, RATE_WRITES):
        if not isinstance(answer, Applied):
            break
        answer = yield Put(key, str(number).encode(), IfVersion(answer.version))
        applied += isinstance(answer, Applied)
        throttled += isinstance(answer, Throttled)
    ended_ms = yield WallMs()
    evidence = {"applied": applied, "throttled": throttled, "ms": ended_ms - began_ms}
    because = (
        f"writes to one key are throttled (429 after {applied})"
        if throttled
        else f"{applied} writes to one key in {ended_ms - began_ms} ms, none throttled"
    )
    return [Check("write-rate", Finding.NOTED, because, evidence)]


SERIAL: dict[str, Callable[[str], Procedure[list[Check]]]] = {
    "missing": missing,
    "read": reading,
    "delete": deleting,
    "content-versions": rewriting,
    "clocks": times,
    "write-rate": rate,
}


def _put(key: str, body: bytes, condition: Condition) -> Procedure[WriteAnswer]:
    """One write, again while the store throttles: nothing was written then."""
    answer: WriteAnswer = Throttled()
    for _ in range(TRIES_MAX):
        answer = yield Put(key, body, condition)
        if not isinstance(answer, Throttled):
            return answer
        yield Sleep(max(answer.retry_after_s or 0.0, THROTTLED_WAIT_S))
    return answer


def _loses(name: str, what: str, answer: WriteAnswer) -> Check:
    match answer:
        case PreconditionFailed():
            return Check(name, Finding.PASSED, f"{what} is refused", _shown(answer))
        case Applied():
            return Check(name, Finding.FAILED, f"{what} was applied", _shown(answer))
        case _:
            return Check(name, Finding.UNDECIDED, f"{what} was not decided", _shown(answer))


def _cannot(name: str, why: str, answer: object) -> Check:
    return Check(name, Finding.UNDECIDED, why, _shown(answer))


def _shown(answer: object) -> dict[str, Any]:
    shown: dict[str, Any] = {"answer": type(answer).__name__}
    return shown | ({"why": answer.why} if isinstance(answer, Unknown) else {})


def _guarded(
    name: str, procedure: Procedure[list[Check]], store: Store, clock: Clock
) -> list[Check]:
    """The procedure's checks; a refusal to serve at all is a finding too."""
    try:
        return run(procedure, store, clock)
    except NoAnswer as error:
        return [Check(name, Finding.UNDECIDED, str(error))]
    except StoreError as error:
        return [Check(name, Finding.FAILED, str(error), {"refused": True})]


# --- all at once: races over separate clients --------------------------------------------------


def _listing(store: Store, place: str, clock: Clock) -> Check:
    """A listing shows what was written before it, and what was deleted no longer."""
    keys = [f"{place}/listing/{number}" for number in range(3)]
    for key in keys:
        run(_put(key, b"x", IfAbsent()), store, clock)
    store.delete(keys[1])
    try:
        seen = [entry.key for entry in store.list(f"{place}/listing/")]
    except StoreError as error:
        return Check("list", Finding.UNDECIDED, str(error))
    if seen == [keys[0], keys[2]]:
        return Check("list", Finding.PASSED, "a listing shows each write and delete before it")
    because = "a listing lags behind the writes and deletes before it"
    return Check("list", Finding.FAILED, because, {"expected": 2, "seen": len(seen)})


def _races(
    store: Store, place: str, rounds: int, racers: int, also: Sequence[Store], clock: Clock
) -> list[Check]:
    """Create races, then compare-and-set races on the same keys, over one client per racer."""
    if rounds == 0:
        return []
    with ExitStack() as stack:
        ways = [store, *also]
        clients = [
            stack.enter_context(closing(reopen(ways[number % len(ways)])))
            for number in range(racers)
        ]
        pool = stack.enter_context(ThreadPoolExecutor(racers))
        keys = [f"{place}/race/{number}" for number in range(rounds)]
        create = _race(
            "create-race", clients, pool, [(key, IfAbsent()) for key in keys], clock, store
        )
        if create.finding is Finding.FAILED:
            return [create]
        aims: list[tuple[str, Condition]] = []
        for key in keys:
            match store.get(key):
                case Found(_, version):
                    aims.append((key, IfVersion(version)))
        clock.sleep(1.1 * store.capabilities.write_interval_min_s)
        swap = _race("compare-and-set-race", clients, pool, aims, clock, store)
    return [create, swap]


def _race(
    name: str,
    clients: Sequence[Store],
    pool: ThreadPoolExecutor,
    aims: Sequence[tuple[str, Condition]],
    clock: Clock,
    reader: Store,
) -> Check:
    """Per aim: all clients write at once under one condition; at most one may be told *applied*."""
    tally = {"rounds": 0, "clients": len(clients), "winners": 0, "throttled": 0}
    tally |= {"unknown": 0, "no_winner": 0, "double_winners": 0, "wrong_body": 0}
    start = threading.Barrier(len(clients))

    def write(number: int, key: str, condition: Condition) -> WriteAnswer:
        start.wait()
        return clients[number].put(key, _entry(name, number), condition)

    for key, condition in aims:
        futures = [pool.submit(write, number, key, condition) for number in range(len(clients))]
        try:
            answers = [future.result() for future in futures]
        except StoreError as error:
            return Check(name, Finding.FAILED, str(error), {**tally, "refused": True})
        winners = [n for n, answer in enumerate(answers) if isinstance(answer, Applied)]
        unknown = sum(isinstance(answer, Unknown) for answer in answers)
        tally["winners"] += len(winners)
        tally["throttled"] += sum(isinstance(answer, Throttled) for answer in answers)
        tally["unknown"] += unknown
        tally["no_winner"] += not winners
        tally["double_winners"] += len(winners) > 1
        # Read through a client that did not write it.
        match winners, reader.get(key):
            case [winner], Found(body, version):
                applied = answers[winner]
                assert isinstance(applied, Applied)
                tally["wrong_body"] += (body, version) != (_entry(name, winner), applied.version)
            case [_], Missing():
                tally["wrong_body"] += 1
        tally["rounds"] += 1
        if tally["double_winners"] or tally["wrong_body"]:
            break  # one is enough to convict
    return _judged(name, tally)


def _entry(race: str, number: int) -> bytes:
    """No two writes to one key have equal bytes: where versions are content hashes, a rewrite of
    the same bytes leaves the version as it was, and the next racer would rightly win as well."""
    return f'{{"race":"{race}","racer":{number}}}'.encode()


def _judged(name: str, tally: dict[str, int]) -> Check:
    rounds = f"{tally['rounds']} rounds of {tally['clients']} clients"
    if tally["double_winners"]:
        because = f"{tally['double_winners']} of {rounds} had more than one winner"
        return Check(name, Finding.FAILED, because, tally)
    if tally["wrong_body"]:
        because = f"after {tally['wrong_body']} of {rounds} the winner's object was not there"
        return Check(name, Finding.FAILED, because, tally)
    if tally["winners"] == 0:
        return Check(name, Finding.UNDECIDED, f"none of {rounds} had a winner", tally)
    because = f"never more than one winner in {rounds}"
    return Check(name, Finding.PASSED, because, tally)


# --- afterwards ----------------------------------------------------------------------------------


def _cleaned(store: Store, place: str, clock: Clock) -> Check:
    """Delete every scratch object, and say what stays."""
    left: list[str] = []
    try:
        for entry in store.list(f"{place}/"):
            answer: WriteAnswer = Throttled()
            for _ in range(TRIES_MAX):
                answer = store.delete(entry.key)
                if not isinstance(answer, Throttled):
                    break
                clock.sleep(THROTTLED_WAIT_S)
            if not isinstance(answer, Applied):
                left.append(entry.key)
        left += [entry.key for entry in store.list(f"{place}/") if entry.key not in left]
    except StoreError as error:
        because = f"could not clean up under {place}/, delete it by hand: {error}"
        return Check("clean-up", Finding.NOTED, because)
    if left:
        because = f"{len(left)} scratch objects could not be deleted; delete {place}/ by hand"
        return Check("clean-up", Finding.NOTED, because, {"left": left[:10]})
    try:
        kept = len(store.versions(f"{place}/conditions"))
    except StoreError:
        kept = 0
    if kept:
        because = (
            f"all deleted; the bucket keeps their old versions under {place}/ by its own rules"
        )
        return Check("clean-up", Finding.NOTED, because)
    return Check("clean-up", Finding.PASSED, "nothing was left behind")


def _fatal(checks: Sequence[Check]) -> bool:
    return any(check.finding in (Finding.FAILED, Finding.UNDECIDED) for check in checks)


def _report(store: Store, checks: Sequence[Check]) -> Report:
    verdict, because = _verdict(checks)
    raced = any(check.name.endswith("-race") for check in checks)
    doubt = "" if raced or verdict is not Verdict.FULL else " (atomicity was not tried)"
    safe = "safe to lock on" if verdict is Verdict.FULL else "not safe to lock on"
    refusals: Any = getattr(store, "refusals", {})
    return Report(
        url=store.url,
        verdict=verdict,
        conclusion=f"{store.url} is {safe}: {because}{doubt}.",
        checks=tuple(checks),
        refusals=tuple((status, code, times) for (status, code), times in sorted(refusals.items())),
    )


def _verdict(checks: Sequence[Check]) -> tuple[Verdict, str]:
    """The worst finding decides; where nothing failed but something is open, so is the store."""
    by_name = {check.name: check for check in checks}

    def failed(name: str, *, refused: bool = False) -> Check | None:
        check = by_name.get(name)
        if check and check.finding is Finding.FAILED:
            return check if bool(check.evidence.get("refused")) is refused else None
        return None

    for name in (
        "create",
        "compare-and-set",
        "missing",
        "read",
        "create-race",
        "compare-and-set-race",
    ):
        if check := failed(name, refused=True):
            return Verdict.REFUSED, check.because
    if check := failed("create"):
        return Verdict.IGNORES_CONDITIONS, f"it ignores conditions, {check.because}"
    if check := failed("create-race"):
        return Verdict.NOT_ATOMIC, f"conditional writes are not atomic, {check.because}"
    if check := failed("compare-and-set") or failed("missing"):
        return Verdict.CREATE_ONLY, f"only creating is conditional, {check.because}"
    if check := failed("compare-and-set-race") or failed("read"):
        return Verdict.NOT_ATOMIC, f"conditional writes are not atomic, {check.because}"
    for name in ("create", "compare-and-set", "create-race", "compare-and-set-race"):
        check = by_name.get(name)
        if check and check.finding is not Finding.PASSED:
            return Verdict.REFUSED, f"it did not answer what a lock needs, {check.because}"
    return Verdict.FULL, "conditional creates and writes have exactly one winner"
