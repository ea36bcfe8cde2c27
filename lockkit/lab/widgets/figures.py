"""The figures of a contention for one lock, computed from its history alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from lockkit.events import Event
from lockkit.lab.verify.check.lanes import Belief, sort

WRITES = {"put_item", "update_item", "delete_item", "make its blob"}
"""The requests that a service bills as writes; on an object store a write has an attempt."""


@dataclass(frozen=True, slots=True)
class Price:
    """US$ for a million writes, and for a million other requests; 0 if requests are not billed."""

    writes: float
    reads: float
    says: str


@dataclass(frozen=True, slots=True)
class SideFigures:
    """One side's figures. A hand-off lasts from a release to the next grant; times in seconds."""

    grants: int = 0
    per_s: float = 0.0
    hand_off_p50_s: float | None = None
    wait_max_s: float | None = None
    longest_run: int = 0
    """Most grants in a row to one process."""
    taken_over_s: tuple[float, ...] = ()
    """From each stall or crash of a holder to the next grant."""
    overlap_s: float = 0.0
    """For how long two processes counted on the lock at once."""
    requests_per_grant: float | None = None
    """The requests of all contenders together, including the waiters."""
    million_grants_usd: float | None = None
    """At this rate, for requests only."""
    price: Price | None = None


def figures(history: Sequence[Event], price: Price | None = None) -> SideFigures:
    granted, end_ms = beliefs(history), history[-1].at_ms if history else 0.0
    if not granted:
        return SideFigures(price=price)
    lasted_s = (granted[-1].start.at_ms - granted[0].start.at_ms) / 1000
    handed = [
        (b.start.at_ms - until_ms(a, end_ms)) / 1000 for a, b in pairwise(granted)
        if let_go(a) and a.who != b.who and b.start.at_ms >= until_ms(a, end_ms)
    ]  # fmt: skip
    requests = [each for each in history if each.kind == "ask"]
    writes = sum(bool(each["attempt"]) or each.get("call") in WRITES for each in requests)
    return SideFigures(
        grants=len(granted),
        per_s=len(granted) / lasted_s if lasted_s else 0.0,
        hand_off_p50_s=median(handed) if handed else None,
        wait_max_s=_longest_wait_s(granted, end_ms),
        longest_run=_longest_run(granted),
        taken_over_s=_taken_over_s(history, granted),
        overlap_s=sum(
            max(0.0, min(until_ms(a, end_ms), until_ms(b, end_ms)) - b.start.at_ms) / 1000
            for a, b in pairwise(granted) if a.who != b.who
        ),
        requests_per_grant=len(requests) / len(granted),
        million_grants_usd=None if price is None else (
            writes * price.writes + (len(requests) - writes) * price.reads
        ) / len(granted),
        price=price,
    )  # fmt: skip


def beliefs(history: Sequence[Event]) -> list[Belief]:
    """The grants, in the order in which they were recorded."""
    return [each for each in sort(history).beliefs if each.start.kind == "held"]


def until_ms(belief: Belief, end_ms: float) -> float:
    """Its end, by the history up to `end_ms`."""
    return max(belief.start.at_ms, min(belief.until_ms, end_ms))


def let_go(belief: Belief) -> bool:
    return belief.end is not None and belief.end.kind in ("ask", "released")


def _taken_over_s(history: Sequence[Event], granted: Sequence[Belief]) -> tuple[float, ...]:
    struck = [each for each in history if each.kind in ("stalled", "killed")]
    took = [
        next((each.start.at_ms for each in granted
              if each.start.at_ms > at.at_ms and each.who != at.who), None)
        for at in struck
    ]  # fmt: skip
    return tuple(
        (next_ms - at.at_ms) / 1000
        for at, next_ms in zip(struck, took, strict=True) if next_ms is not None
    )  # fmt: skip


def _longest_run(granted: Sequence[Belief]) -> int:
    run = longest = 1
    for a, b in pairwise(granted):
        run = run + 1 if a.who == b.who else 1
        longest = max(longest, run)
    return longest


def _longest_wait_s(granted: Sequence[Belief], end_ms: float) -> float | None:
    """From one grant of a process to its next."""
    last: dict[str, float] = {}
    longest: float | None = None
    for each in granted:
        if each.who in last:
            longest = max(longest or 0.0, (each.start.at_ms - last[each.who]) / 1000)
        last[each.who] = until_ms(each, end_ms)
    return longest
