"""Waiting for a lock: two services with a stalled holder, and Hudi's retry keys."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from lockkit.events import Event, event
from lockkit.lab.course.table_testbed import LeapingClock
from lockkit.lab.course.ticking import ticks
from lockkit.lab.server import Emulator
from lockkit.lab.verify.check import Kind, check
from lockkit.lab.widgets.contention import Contention
from lockkit.lab.widgets.figures import SideFigures
from lockkit.lock.handle import Lock
from lockkit.providers import open_lock

NOT_AT_ALL, UNTIL_IT_LOOKS, LEASE_AND_A_HALF = (
    "not at all", "until the first one looks at the lock again", "for a lease and a half",
)  # fmt: skip
GUESSES = (LEASE_AND_A_HALF, UNTIL_IT_LOOKS, NOT_AT_ALL)
GRANTS = 6
LEASE_S, HOUR_S, GIVE_UP_S = 60.0, 3600.0, 120.0
SHORT_LEASE_S = 2.0
URL = "az://lake/orders"  # of the three SDKs, the one that creates clients fastest
PREFIX = "hoodie.write.lock."


# --- a paused holder ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServiceHandoff:
    """The outcome of two services whose holder was paused for two and a half leases."""

    sides: tuple[tuple[str, SideFigures], ...]

    @property
    def overlap_s(self) -> float:
        """The longest time for which two processes counted on one lock."""
        return max(figures.overlap_s for _, figures in self.sides)

    def __str__(self) -> str:
        return NOT_AT_ALL if self.overlap_s == 0 else f"for {self.overlap_s:.1f} s"

    def __repr__(self) -> str:
        return "\n".join(
            f"{name:12}{each.grants} grants; takeover after "
            f"{', '.join(f'{s:.1f} s' for s in each.taken_over_s)}; "
            f"two holders {self._said(each)}"
            for name, each in self.sides
        )

    @staticmethod
    def _said(figures: SideFigures) -> str:
        return NOT_AT_ALL if figures.overlap_s == 0 else f"for {figures.overlap_s:.1f} s"


@ticks
def stall_both(
    first: str, second: str, *, report: Callable[[str], None] = print
) -> ServiceHandoff:
    """Start three processes on each and pause both holders until another process takes over."""
    contest = Contention((first, second), lease_s=SHORT_LEASE_S)
    try:
        report(f"until each was granted {GRANTS} times …")
        granted = contest.until_granted(GRANTS)
        report(f"stopping {', '.join(str(side.strike('stall')) for side in contest.sides)} …")
        if not (granted and contest.until_taken_over()):
            raise TimeoutError("no client was granted the lock within a minute; try again")
    finally:
        contest.stop()
    return ServiceHandoff(tuple((side.name, side.figures()) for side in contest.sides))


# --- how long a writer waits, by Hudi's keys ------------------------------------------------------


@dataclass
class SkippedWaits(LeapingClock):
    """A clock on which waiting takes no real time, for the thread that made it."""

    of: threading.Thread = field(default_factory=threading.current_thread)

    def sleep(self, seconds: float) -> None:
        self.wait(threading.Event(), seconds)

    def wait(self, woken: threading.Event, seconds: float) -> bool:
        if threading.current_thread() is not self.of:
            return super().wait(woken, seconds)
        if not woken.is_set():
            self.leap(max(0.0, seconds))
        return woken.is_set()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitOutcome:
    """How a writer with these keys fared behind two dead holders with given leases."""

    longest_s: float
    """The longest total wait that the keys allow."""
    outlived: bool
    """Whether it got the lock after a lease of one minute."""
    gave_up_s: float | None
    """When it reported that it cannot get the lock; None: not within two minutes."""
    events: tuple[Event, ...]
    kinds: tuple[Kind, ...]

    @property
    def solved(self) -> bool:
        return self.outlived and self.gave_up_s is not None and set(self.kinds) == {Kind.VALID}

    def __str__(self) -> str:
        return "solved" if self.solved else "not yet"

    def __repr__(self) -> str:
        minute = "it got the lock" if self.outlived else "it gave up too early"
        reported = f"after {self.gave_up_s:.0f} s it gave up" if self.gave_up_s else (
            f"after {GIVE_UP_S:g} s it was still waiting")  # fmt: skip
        return (
            f"{self}. These keys allow {self.longest_s:g} s. One holder died with a one-minute "
            f"lease: {minute}. Another died with a lease of one hour: {reported}. The checker: "
            f"{' and '.join(self.kinds)}"
        )


def wait(wait_time_ms: int, num_retries: int, wait_between_ms: int = 5_000) -> WaitOutcome:
    """Try Hudi's three keys behind a dead holder. Raises `ValueError` for an invalid value."""
    config = {
        "hoodie.base.path": URL,
        f"{PREFIX}provider": "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
        f"{PREFIX}wait_time_ms": str(wait_time_ms),
        f"{PREFIX}client.num_retries": str(num_retries),
        f"{PREFIX}client.wait_time_ms_between_retry": str(wait_between_ms),
    }
    minute, hour = _behind(LEASE_S, config), _behind(HOUR_S, config)
    return WaitOutcome(
        longest_s=minute.longest_s, outlived=minute.granted,
        gave_up_s=hour.seconds if hour.seconds <= GIVE_UP_S else None,
        events=hour.events, kinds=(check(minute.events).kind, check(hour.events).kind),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Attempt:
    longest_s: float
    granted: bool
    seconds: float
    events: tuple[Event, ...]


def _behind(lease_s: float, config: dict[str, str]) -> _Attempt:
    """One client that died right after its grant and one that waits; no real time passes."""
    clock, reported = SkippedWaits(), list[Event]()

    def emit_of(who: str) -> Callable[..., None]:
        def emit(kind: str, **fields: Any) -> None:
            reported.append(event(clock.stamp_ms(), who, kind, **fields))

        return emit

    with Emulator(profile="azure", clock=clock) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning about a long wait: expected here
        options: dict[str, Any] = {"endpoint": server.azure, "clock": clock}
        with closing(Lock(URL, ttl_s=lease_s, client="W1", emit=emit_of("W1"), **options)) as dead:
            dead.acquire()
        waiter = open_lock(config, client="W2", emit=emit_of("W2"), **options)
        with closing(waiter):
            began_ms, longest_s = clock.boot_ms(), waiter.acquire_timeout or 0.0
            granted = waiter.acquire(timeout=min(longest_s, GIVE_UP_S + 1))
            seconds = (clock.boot_ms() - began_ms) / 1000
            if granted:
                waiter.release()
        events = sorted([*server.requests(), *reported], key=lambda each: each.at_ms)
    return _Attempt(longest_s, granted, seconds, tuple(events))
