"""Ozone's granular locks in one process: readers and writers on stripes, for threads.

    locks = GranularLocks()
    with locks.hold(KEY_OPERATIONS["RenameKey"], "vol", "bucket", ["a", "b"], acquire_timeout=5):
        ...

Each stripe is first come, first served. One deadline covers all locks of a call (Ozone's master has
only a blocking `lock()`). Wait and hold times are counted.

A thread cannot be stopped, so a lock cannot be taken from a holder that never returns: with
`warn_s` it is logged by its key, and with `limit_s` other threads stop waiting for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from lockkit.clock import Clock
from lockkit.config import limit_s
from lockkit.errors import LockBusy
from lockkit.recipes.granular.operations import (
    STRIPES,
    Level,
    Operation,
    StripeRequest,
    ends_ms,
    hold_limit,
    plan,
    refuse_to_nest,
    report_slow,
    wants_of,
)
from lockkit.recipes.stripes import Mode, rounded
from lockkit.recipes.taking import carry_out, give_all, take_all
from lockkit.sinks import LOG

TIMEOUT_S = 600.0
"""Ozone's pull request #8217: ten minutes, per lock there, per call here."""

HOLDERS_MAX = 5
"""How many holders of a stripe an error names."""
WATCH_S_MIN, WATCH_S_MAX = 0.01, 60.0
"""How often a thread that waits looks for slow holders: a holder may come after it has begun."""


class ReadWrite:
    """One stripe: many readers or one writer, first come, first served. Not reentrant."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._readers, self._writing = 0, False
        self._queue: deque[tuple[Mode, threading.Event]] = deque()

    def take(
        self, mode: Mode, seconds: float, clock: Clock, watch: Callable[[], float] | None = None
    ) -> bool:
        """False if it was not free within `seconds`.

        `watch` is called while it waits; it returns how long to wait until it is called again, or
        raises.
        """
        turn, until_ms = threading.Event(), clock.boot_ms() + seconds * 1000
        try:
            with self._guard:
                self._queue.append((mode, turn))
                self._admit()
            while not turn.is_set():
                left_s = max(0.0, (until_ms - clock.boot_ms()) / 1000)
                pause_s = left_s if watch is None else min(left_s, watch())
                if clock.wait(turn, min(pause_s, threading.TIMEOUT_MAX)) or left_s <= pause_s:
                    break
        except BaseException:
            if not self._withdraw(mode, turn):
                self.give(mode)
            raise
        return not self._withdraw(mode, turn)

    def give(self, mode: Mode) -> None:
        with self._guard:
            if mode is Mode.WRITE:
                self._writing = False
            else:
                self._readers -= 1
            self._admit()

    def _withdraw(self, mode: Mode, turn: threading.Event) -> bool:
        """Leave the queue. False: its turn had come, so it holds the lock."""
        with self._guard:
            if turn.is_set():
                return False
            if (mode, turn) in self._queue:
                self._queue.remove((mode, turn))
            self._admit()  # readers may have waited behind a writer that has left
            return True

    def _admit(self) -> None:
        while self._queue:
            mode, turn = self._queue[0]
            if self._writing or (mode is Mode.WRITE and self._readers):
                return
            self._queue.popleft()
            if mode is Mode.WRITE:
                self._writing = True
            else:
                self._readers += 1
            turn.set()


@dataclass(slots=True)
class LockMetrics:
    """Counts and times of the locks of one level and mode; times in ms."""

    taken: int = 0
    timed_out: int = 0
    waited_ms: int = 0
    waited_max_ms: int = 0
    held_ms: int = 0
    held_max_ms: int = 0


@dataclass(slots=True, eq=False)
class HeldLocks:
    """The locks that one call holds, and how long it waited for them."""

    operation: str
    wants: tuple[StripeRequest, ...]
    since_ms: dict[StripeRequest, int] = field(default_factory=dict)
    """When it got each lock that it holds, in ms of the boot clock."""
    waited_ms: int = 0
    warned: bool = False
    complete_ms: int | None = None
    """When it had all its locks: from then on its own work, and no wait, keeps others waiting."""

    def describe(self, want: StripeRequest) -> str:
        """The operation, and what it locks by this stripe."""
        names = ", ".join(want.names)
        return f"{self.operation}{names and f' of {names}'}"


class GranularLocks:
    """The locks of one process. Thread-safe.

    :param stripes: the number of locks of each level, rounded up to a power of two. The default is
        Ozone's.
    :param warn_s: a call that has held all its locks for longer is logged with its keys, once, and
        `on_slow(call, seconds)` is called: while a thread waits for it, else when it ends.
    :param limit_s: seconds; `LockBusy` at once if a call with the lock has held all its locks for
        longer.
    :param clock: the source of time; tests replace it.
    :param on_slow: `on_slow(call, seconds)`, called in a thread of its own; see `warn_s`.
    :raises ValueError: if a number of stripes is outside of 1 to 2**30, or a time is no number.
    """

    def __init__(
        self, *, stripes: Mapping[Level, int] = STRIPES, warn_s: float | None = None,
        limit_s: float | None = None, on_slow: Callable[[HeldLocks, float], None] | None = None,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.warn_s, self.limit_s = hold_limit("warn_s", warn_s), hold_limit("limit_s", limit_s)
        self._on_slow = on_slow
        self.stripes = {level: rounded(stripes[level]) for level in Level}
        self.clock = clock or Clock()
        self._locks: dict[tuple[Level, int], ReadWrite] = {}
        self._guard = threading.Lock()
        self._figures = {(level, mode): LockMetrics() for level in Level for mode in Mode}
        self._calls: list[HeldLocks] = []
        self._mine = threading.local()

    @contextmanager
    def hold(
        self, operation: Operation, volume: str, bucket: str = "", keys: Sequence[str] = (), *,
        acquire_timeout: float | None = TIMEOUT_S,
    ) -> Iterator[HeldLocks]:  # fmt: skip
        """Hold all locks of the operation, taken within `acquire_timeout` seconds (None: no limit).

        Raises `LockBusy` after the timeout, and `OutOfOrder` at once if the call could deadlock. In
        both cases it holds none of them.
        """
        wants = wants_of(operation, volume, bucket, keys, stripes=self.stripes)
        with self.hold_all(operation.name, wants, acquire_timeout=acquire_timeout) as held:
            yield held

    @contextmanager
    def hold_all(
        self,
        name: str,
        wants: Sequence[StripeRequest],
        *,
        acquire_timeout: float | None = TIMEOUT_S,
    ) -> Iterator[HeldLocks]:
        """Like `hold`, for locks that are in no table."""
        most_s = limit_s(True, acquire_timeout)
        held = HeldLocks(name, plan(wants))
        mine: list[HeldLocks] = self._mine.__dict__.setdefault("held", [])
        refuse_to_nest((each for call in mine for each in call.since_ms), held.wants)
        until_ms = ends_ms(self.clock.boot_ms(), most_s)
        mine.append(held)
        with self._guard:
            self._calls.append(held)
        try:
            missed = carry_out(
                take_all(held.wants),
                lambda each: self._take(held, each, until_ms), lambda each: self._give(held, each),
            )  # fmt: skip
            if missed is not None:
                raise self._busy(held, missed, f"within {most_s or 0:g} s")
            try:
                held.complete_ms = self.clock.boot_ms()
                yield held
            finally:
                carry_out(
                    give_all(held.wants),
                    lambda _: False, lambda each: self._give(held, each),
                )  # fmt: skip
        finally:
            mine.remove(held)
            with self._guard:
                self._calls.remove(held)

    def holds(self) -> bool:
        """Whether this thread is within a `hold`."""
        return bool(self._mine.__dict__.get("held"))

    def calls(self) -> list[tuple[str, int, int]]:
        """(operation, number of locks it holds, ms since it got the first) of each running call."""
        now_ms = self.clock.boot_ms()
        with self._guard:
            held = [(call.operation, sorted(call.since_ms.values())) for call in self._calls]
        return [(name, len(since), now_ms - since[0] if since else 0) for name, since in held]

    def figures(self) -> dict[str, LockMetrics]:
        """By level and mode, e.g. `key write`."""
        with self._guard:
            return {
                f"{level.name} {mode.name}".lower(): LockMetrics(**_fields(each))
                for (level, mode), each in self._figures.items()
            }

    def _busy(self, call: HeldLocks, missed: StripeRequest, when: str) -> LockBusy:
        held_by = "; ".join(
            f"{other.describe(each)}, for {ms / 1000:.1f} s"
            for ms, other, each in self._holders(missed)[:HOLDERS_MAX]
        )
        return LockBusy(
            f"{call.operation}: {missed}",
            why=f"was not free to {missed.mode.name.lower()} {when}"
            + (f", held by {held_by}" if held_by else ""),
            cure="none of its locks is held: try again, or see who holds it with calls()",
        )

    def _holders(self, wanted: StripeRequest) -> list[tuple[int, HeldLocks, StripeRequest]]:
        """The calls that hold that stripe, for how many ms and as what, the longest first."""
        now_ms = self.clock.boot_ms()
        with self._guard:
            found = [
                (now_ms - since_ms, call, each)
                for call in self._calls
                for each, since_ms in call.since_ms.items()
                if (each.level, each.stripe) == (wanted.level, wanted.stripe)
            ]
        return sorted(found, key=lambda each: each[0], reverse=True)

    def _watch(self, call: HeldLocks, want: StripeRequest) -> float:
        """Report slow holders of a stripe that `call` waits for; how long until the next look."""
        next_s = WATCH_S_MAX
        for _, other, each in self._holders(want):
            if other.complete_ms is None:
                continue
            held_s = (self.clock.boot_ms() - other.complete_ms) / 1000
            if self.warn_s is not None and held_s >= self.warn_s:
                self._slow(other, each, held_s)
            if self.limit_s is not None and held_s >= self.limit_s:
                when = f"and a holder is over the limit of {self.limit_s:g} s"
                raise self._busy(call, want, when)
            for most_s in (self.warn_s, self.limit_s):
                if most_s is not None and most_s > held_s:
                    next_s = min(next_s, most_s - held_s)
        return max(next_s, WATCH_S_MIN)

    def _slow(self, call: HeldLocks, want: StripeRequest, held_s: float) -> None:
        with self._guard:
            if call.warned:
                return
            call.warned = True
        LOG.warning("%s holds %s for %.1f s", call.describe(want), want, held_s)
        report_slow(self._on_slow, call, held_s)

    # --- one lock --------------------------------------------------------------------------------

    def _take(self, held: HeldLocks, want: StripeRequest, until_ms: float | None) -> bool:
        began_ms = self.clock.boot_ms()
        left_s = threading.TIMEOUT_MAX if until_ms is None else (until_ms - began_ms) / 1000
        watched = self.warn_s is not None or self.limit_s is not None
        watch = (lambda: self._watch(held, want)) if watched else None
        taken = self._lock(want).take(want.mode, left_s, self.clock, watch)
        now_ms = self.clock.boot_ms()
        held.waited_ms += now_ms - began_ms
        with self._guard:
            figures = self._figures[want.level, want.mode]
            figures.waited_ms += now_ms - began_ms
            figures.waited_max_ms = max(figures.waited_max_ms, now_ms - began_ms)
            if taken:
                figures.taken += 1
                held.since_ms[want] = now_ms
            else:
                figures.timed_out += 1
        return taken

    def _give(self, held: HeldLocks, want: StripeRequest) -> None:
        self._lock(want).give(want.mode)
        now_ms = self.clock.boot_ms()
        with self._guard:
            held_ms = now_ms - held.since_ms.pop(want)
            figures = self._figures[want.level, want.mode]
            figures.held_ms += held_ms
            figures.held_max_ms = max(figures.held_max_ms, held_ms)
        if held.complete_ms is not None and self.warn_s is not None:
            if (held_s := (now_ms - held.complete_ms) / 1000) >= self.warn_s:
                self._slow(held, want, held_s)

    def _lock(self, want: StripeRequest) -> ReadWrite:
        # Few of the 131,072 stripes are in use at a time; a dict's setdefault is atomic.
        return self._locks.setdefault((want.level, want.stripe), ReadWrite())


def _fields(figures: LockMetrics) -> dict[str, int]:
    return {name: getattr(figures, name) for name in LockMetrics.__slots__}
