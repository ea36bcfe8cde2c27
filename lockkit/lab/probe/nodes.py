"""One store through several endpoints, such as nodes of a cluster: each sees the others' writes.

The races spread their writers over the endpoints too; here one request follows another.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockkit.clock import Clock
from lockkit.lab.probe.report import Check, CheckOutcome
from lockkit.lab.probe.serial import put
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    NotModified,
    ReadAnswer,
)
from lockkit.runtime import run
from lockkit.stores import Store

ROUNDS_MAX = 20


def across(ways: Sequence[Store], place: str, rounds: int, clock: Clock) -> Check:
    """Write at each endpoint in turn, and continue at the next one."""
    rounds, unchanged = min(max(rounds, len(ways)), ROUNDS_MAX), 0
    for number in range(rounds):
        here, there = ways[number % len(ways)], ways[(number + 1) % len(ways)]
        key = f"{place}/across/{number}"
        failure, finding, answered_304 = _continued(here, there, key, clock)
        unchanged += answered_304
        if failure:
            evidence = {"round": number + 1, "wrote": here.server, "asked": there.server}
            return Check("across", finding, f"{failure} ({here.server}, {there.server})", evidence)
    because = (
        f"each of {len(ways)} endpoints saw the writes of another at once, {rounds} times, and "
        f"{unchanged} times answered a read under another's version as unchanged (304)"
    )
    said = {"rounds": rounds, "ways": len(ways), "unchanged": unchanged}
    return Check("across", CheckOutcome.PASSED, because, said)


def _continued(here: Store, there: Store, key: str, clock: Clock) -> tuple[str, CheckOutcome, bool]:
    """What was wrong when `there` read, refused and replaced what `here` had written.

    Also whether `there` answered a read under the version of `here` with 304.
    """
    look: ReadAnswer = Missing()

    def ended(
        why: str, finding: CheckOutcome = CheckOutcome.FAILED
    ) -> tuple[str, CheckOutcome, bool]:
        return why, finding, isinstance(look, NotModified)

    first = run(put(key, b"one", IfAbsent()), here, clock)
    if not isinstance(first, Applied):
        return ended("the object could not be written", CheckOutcome.UNDECIDED)
    match there.get(key):
        case Found(b"one", version) if version == first.version:
            pass
        case _:
            return ended("a read did not see the write before it at another endpoint")
    look = there.get(key, unless=first.version)
    if not isinstance(look, NotModified | Found):
        return ended("a conditional read at another endpoint failed")
    if isinstance(run(put(key, b"again", IfAbsent()), there, clock), Applied):
        return ended("a create of what another endpoint had created was applied")
    second = run(put(key, b"two", IfVersion(first.version)), there, clock)
    if not isinstance(second, Applied):
        return ended("a version of another endpoint could not be replaced")
    if isinstance(run(put(key, b"three", IfVersion(first.version)), here, clock), Applied):
        return ended("a write over what another endpoint had replaced was applied")
    match here.get(key):
        case Found(b"two", version) if version == second.version:
            pass
        case _:
            return ended("a read did not see another endpoint's replacement")
    if isinstance(here.get(key, unless=first.version), NotModified):
        return ended("what another endpoint had replaced was answered as unchanged (304)")
    if [entry.key for entry in here.list(key)] != [key]:
        return ended("a listing did not show what two endpoints had written")
    return ended("", CheckOutcome.PASSED)
