"""Whose clock ends a lease: two locks whose wall clocks disagree, and what the explorer finds."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from typing import Any

from lockkit.clock import Clock
from lockkit.events import Event
from lockkit.lab.course.lock_testbed import LockTestbed
from lockkit.lab.verify.explore import SearchRow, explore_rows
from lockkit.protocol.policy import Expiry, Policy

ONE, TWO = "one client counts on the lock", "two clients count on the lock"
GUESSES = (ONE, TWO)
TTL_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockEncounter:
    """W1 holds the lock and renews it; W2 tried once."""

    events: tuple[Event, ...]
    verdict: Any
    warned: tuple[str, ...]
    """The warnings of the locks about the clocks."""

    def __str__(self) -> str:
        return ONE if self.verdict.kind == "VALID" else TWO


def meet(expiry: str, fast_s: float) -> ClockEncounter:
    """W1 has a fresh lease of `TTL_S`; W2, whose wall clock is fast, tries once.

    `expiry` is wall, store or observed; raises `ValueError` for another.
    """
    policy, lost = Policy(expiry=Expiry(expiry)), threading.Event()
    with warnings.catch_warnings(record=True) as caught, LockTestbed("s3") as testbed:
        warnings.simplefilter("always")
        first = testbed.lock("W1", ttl_s=TTL_S, policy=policy, on_lost=lambda *_: lost.set())
        second = testbed.lock("W2", ttl_s=TTL_S, policy=policy, fast_s=fast_s)
        first.acquire()
        if second.acquire(timeout=0):
            Clock().wait(lost, TTL_S)  # until W1 finds out at its next renewal
        warned = tuple(str(each.message) for each in caught)
        return ClockEncounter(events=tuple(testbed.events), verdict=testbed.verdict, warned=warned)


@dataclass(frozen=True, slots=True)
class SearchSummary:
    """What the explorer found: every order of events within a row's bounds, or a counterexample."""

    row: SearchRow

    @property
    def story(self) -> str:
        return "\n".join(self.row.counterexample.story() if self.row.counterexample else [])

    @property
    def events(self) -> list[Event]:
        return self.row.counterexample.history() if self.row.counterexample else []

    def __str__(self) -> str:
        return ONE if self.row.violation is None else TWO

    def __repr__(self) -> str:
        states = f"{self.row.states:,} states"
        return f"{self.row.scenario.name}: {self} ({states}, {self.row.seconds:.1f} s)"


def search(name: str) -> SearchSummary:
    """Run one row of the explorer by its name."""
    return SearchSummary(explore_rows([name])[0])
