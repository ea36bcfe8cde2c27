"""One store through several endpoints, such as nodes of a cluster: each sees the others' writes.

The races spread their writers over the endpoints too; here one request follows another.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockkit.clock import Clock
from lockkit.lab.probe.report import Check, CheckOutcome
from lockkit.lab.probe.serial import put
from lockkit.protocol.outcome import Applied, Found, IfAbsent, IfVersion, NotModified
from lockkit.runtime import run
from lockkit.stores import Store

ROUNDS_MAX = 20


def across(ways: Sequence[Store], place: str, rounds: int, clock: Clock) -> Check:
    """Write at each endpoint in turn, and continue at the next one."""
    rounds = min(max(rounds, len(ways)), ROUNDS_MAX)
    for number in range(rounds):
        here, there = ways[number % len(ways)], ways[(number + 1) % len(ways)]
        failure, finding = _continued(here, there, f"{place}/across/{number}", clock)
        if failure:
            evidence = {"round": number + 1, "wrote": here.server, "asked": there.server}
            return Check("across", finding, f"{failure} ({here.server}, {there.server})", evidence)
    because = f"each of {len(ways)} endpoints saw the writes of another at once, {rounds} times"
    return Check("across", CheckOutcome.PASSED, because, {"rounds": rounds, "ways": len(ways)})


def _continued(here: Store, there: Store, key: str, clock: Clock) -> tuple[str, CheckOutcome]:
    """What was wrong when `there` read, refused and replaced what `here` had written."""
    first = run(put(key, b"one", IfAbsent()), here, clock)
    if not isinstance(first, Applied):
        return "the object could not be written", CheckOutcome.UNDECIDED
    match there.get(key):
        case Found(b"one", version) if version == first.version:
            pass
        case _:
            return "a read did not see the write before it at another endpoint", CheckOutcome.FAILED
    if not isinstance(there.get(key, unless=first.version), NotModified | Found):
        return "a conditional read at another endpoint failed", CheckOutcome.FAILED
    if isinstance(run(put(key, b"again", IfAbsent()), there, clock), Applied):
        return "a create of what another endpoint had created was applied", CheckOutcome.FAILED
    second = run(put(key, b"two", IfVersion(first.version)), there, clock)
    if not isinstance(second, Applied):
        return "a version of another endpoint could not be replaced", CheckOutcome.FAILED
    if isinstance(run(put(key, b"three", IfVersion(first.version)), here, clock), Applied):
        return "a write over what another endpoint had replaced was applied", CheckOutcome.FAILED
    match here.get(key):
        case Found(b"two", version) if version == second.version:
            pass
        case _:
            return "a read did not see another endpoint's replacement", CheckOutcome.FAILED
    if [entry.key for entry in here.list(key)] != [key]:
        return "a listing did not show what two endpoints had written", CheckOutcome.FAILED
    return "", CheckOutcome.PASSED
