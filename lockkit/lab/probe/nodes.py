"""One store through several endpoints, such as nodes of a cluster: each sees the others' writes.

The races spread their writers over the endpoints too; here one request follows another.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockkit.clock import Clock
from lockkit.errors import NoAnswer, Unanswered
from lockkit.lab.probe.report import Check, CheckOutcome
from lockkit.lab.probe.serial import put
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    NotModified,
    PreconditionFailed,
    ReadAnswer,
    Unknown,
)
from lockkit.runtime import run
from lockkit.runtime.proven import read
from lockkit.stores import Store

ROUNDS_MAX = 20


def across(ways: Sequence[Store], place: str, rounds: int, clock: Clock) -> Check:
    """Write at each endpoint in turn, and continue at the next one."""
    rounds, looks = min(max(rounds, len(ways)), ROUNDS_MAX), list[ReadAnswer]()
    for number in range(rounds):
        here, there = ways[number % len(ways)], ways[(number + 1) % len(ways)]
        try:
            failure, finding = _continued(here, there, f"{place}/across/{number}", clock, looks)
        except (NoAnswer, Unanswered) as error:
            failure, finding = f"an endpoint did not answer: {error}", CheckOutcome.UNDECIDED
        if failure:
            evidence = {"round": number + 1, "wrote": here.server, "asked": there.server}
            return Check("across", finding, f"{failure} ({here.server}, {there.server})", evidence)
    unchanged = sum(isinstance(each, NotModified) for each in looks)
    because = (
        f"each of {len(ways)} endpoints saw the writes of another at once, {rounds} times; "
        f"{unchanged} reads with another endpoint's version got a 304"
    )
    said = {"rounds": rounds, "ways": len(ways), "unchanged": unchanged}
    return Check("across", CheckOutcome.PASSED, because, said)


def _continued(
    here: Store, there: Store, key: str, clock: Clock, looks: list[ReadAnswer]
) -> tuple[str, CheckOutcome]:
    """What was wrong when `there` read, refused and replaced what `here` had written.

    `looks` gets the answer of `there` to a read under the version of `here`. Raises `NoAnswer` or
    `Unanswered` for a request that stays open.
    """
    def write(way: Store, body: bytes, condition: Condition) -> Applied | PreconditionFailed:
        answer = run(put(key, body, condition), way, clock)
        if isinstance(answer, Applied | PreconditionFailed):
            return answer
        why = answer.why if isinstance(answer, Unknown) else "it throttles"
        raise NoAnswer(f"{key} could not be written ({why})")

    first = write(here, b"one", IfAbsent())
    if not isinstance(first, Applied):
        return "the object could not be written", CheckOutcome.UNDECIDED
    match run(read(key), there, clock):
        case Found(b"one", version) if version == first.version:
            pass
        case _:
            return "a read did not see the write before it at another endpoint", CheckOutcome.FAILED
    looks.append(run(read(key, unless=first.version), there, clock))
    if isinstance(looks[-1], Missing):
        return "a conditional read at another endpoint failed", CheckOutcome.FAILED
    if isinstance(write(there, b"again", IfAbsent()), Applied):
        return "an object that another endpoint had created was created again", CheckOutcome.FAILED
    second = write(there, b"two", IfVersion(first.version))
    if not isinstance(second, Applied):
        return "a version of another endpoint could not be replaced", CheckOutcome.FAILED
    if isinstance(write(here, b"three", IfVersion(first.version)), Applied):
        because = "a write over a version that another endpoint had replaced was applied"
        return because, CheckOutcome.FAILED
    match run(read(key), here, clock):
        case Found(b"two", version) if version == second.version:
            pass
        case _:
            return "a read did not see another endpoint's replacement", CheckOutcome.FAILED
    if isinstance(run(read(key, unless=first.version), here, clock), NotModified):
        stale = "a version that another endpoint has replaced was unchanged (304)"
        return stale, CheckOutcome.FAILED
    if [entry.key for entry in here.list(key)] != [key]:
        return "a listing did not show the writes of two endpoints", CheckOutcome.FAILED
    return "", CheckOutcome.PASSED
