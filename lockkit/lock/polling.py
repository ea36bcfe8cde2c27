"""How often a waiter looks, and when a releaser may compete again.

A waiter cannot queue on an object store; it can only poll. Polling too often costs requests, and on
a contended object it delays the holder's own writes. Polling too seldom delays the hand-off. So
each handle learns from the object how long a turn takes and who else takes turns, and sleeps for
one turn of each of them. The result is round robin without any communication.

Others are counted by name, not by turns: a handle that wins races would count few others, poll
sooner and race even more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

STREAK_MAX = 64
"""Consecutive grants after which a handle that never met another pauses once more."""
CONTENDERS_MAX = 64
"""How many others are remembered."""
LEARN = 0.25
"""Weight of the newest turn in the running averages."""
LOOK_FLOOR_MS = 20.0
"""Shortest time between two looks, however near the store is."""
THINNING = 0.1
"""Share of a grant's age between two looks; limits how late a hand-off is noticed."""
SLEEP_LONGEST_MS = 2000.0
"""Longest sleep based on learned values, which may be stale: others leave, turns become shorter."""


def requested_s(requested_s: float | None, left_s: float) -> float:
    """The pause that the store requested (`Retry-After`), at most half of the time that is left."""
    return max(0.0, min(requested_s or 0.0, left_s / 2))


@dataclass(slots=True)
class PollingPace:
    """All times are milliseconds on the handle's boot clock."""

    write_interval_ms: float = 0.0
    """The store's minimum time between two writes of one object; a hand-off cannot be faster."""
    trip_ms: float = 0.0
    """Average duration of one request and its answer; 0 before the first."""
    turn_ms: float = 0.0
    """Average time from one grant to the next while a handle waits; 0 before two were seen. Time in
    which this handle neither held nor requested the lock does not count."""
    _met: dict[str, None] = field(default_factory=dict)
    """The other writers of the object; the one seen longest ago comes first."""
    _missed: int = 0
    """How many of them took no turn between my last two grants."""
    _epoch: int = 0
    _epoch_at_ms: float = 0.0
    _own_epoch: int = 0
    _streak: int = 0
    _patience: int = 2
    _released_ms: float | None = None
    _stood_back: bool = False

    @property
    def contenders(self) -> int:
        """The number of others that take turns, as far as they were met."""
        return len(self._met)

    def answered(self, took_ms: float) -> None:
        self.trip_ms += (LEARN if self.trip_ms else 1.0) * (took_ms - self.trip_ms)

    def wants(self, now_ms: float) -> None:
        """An acquire begins. Since the last release this handle did not request the lock.

        One turn per rival would have been theirs in any case, so that time counts.
        """
        idle_ms = now_ms
        if self._released_ms is not None and self._released_ms >= self._epoch_at_ms:
            idle_ms = max(0.0, now_ms - self._released_ms - self.contenders * self.turn_ms)
        self._epoch_at_ms = min(now_ms, self._epoch_at_ms + idle_ms)

    def met(self, who: str) -> None:
        """Another client's write is in the object, a grant or a tombstone."""
        self._met.pop(who, None)
        self._met[who] = None
        if len(self._met) > CONTENDERS_MAX:
            self._forget(1)

    def _forget(self, count: int) -> None:
        for who in list(self._met)[:count]:
            del self._met[who]

    def saw(self, epoch: int, now_ms: float) -> None:
        """The object holds a grant of this epoch."""
        if epoch <= self._epoch:
            return
        if self._epoch:
            turn = (now_ms - self._epoch_at_ms) / (epoch - self._epoch)
            # A turn that was long because this process was paused is forgotten at once.
            learn = LEARN if turn > self.turn_ms / 2 > 0 else 1.0
            self.turn_ms += learn * (turn - self.turn_ms)
        self._epoch, self._epoch_at_ms = epoch, now_ms

    def granted(self, epoch: int, now_ms: float) -> None:
        between = epoch - self._own_epoch - 1 if self._own_epoch else 0
        if between > 0:
            self._streak, self._patience = 1, 1
        elif self._stood_back:  # no other handle claimed in that round
            self._streak, self._patience = 1, min(2 * self._patience, STREAK_MAX)
        else:
            self._streak += 1
        self._stood_back = False
        # A client that was absent twice in a row has left. Once may be chance: then drop half.
        missed = max(0, self.contenders - between)
        self._forget(math.ceil(min(missed, self._missed) / 2))
        self._missed = missed
        if between:
            self.saw(epoch, now_ms)
        self._epoch, self._epoch_at_ms = epoch, now_ms
        self._own_epoch = epoch

    def released(self, now_ms: float) -> None:
        self._released_ms = now_ms

    def stand_back_ms(self, now_ms: float) -> float:
        """How long to leave the lock to other handles after a release by this one.

        A releaser cannot know that others wait. A handle that met others recently waits for one
        turn of each. One that never met any pauses after 2 grants in a row, then 4, 8, ..., 64.
        """
        if self._released_ms is None or self._streak < self._patience:
            return 0.0
        self._stood_back = True
        round_ms = max(2 * self.often_ms(), (self.contenders - 0.25) * self.turn_ms)
        return max(0.0, self._released_ms + min(round_ms, SLEEP_LONGEST_MS) - now_ms)

    @property
    def outdated(self) -> bool:
        """Others were left their turns and probably took them: look again before a claim."""
        return self._stood_back and bool(self._met)

    def often_ms(self) -> float:
        """Milliseconds between two looks of the client that is next in line."""
        return max(self.trip_ms, LOOK_FLOOR_MS, self.write_interval_ms / 4)

    def look_ms(self, waited_grants: int, now_ms: float) -> float:
        """Milliseconds to the next look: soon if we are next, otherwise after the others' turns.

        The longer a grant has lasted, the longer it may still last. So looks become rarer with its
        age, and a holder of minutes is not polled after every round trip.
        """
        ahead = self.contenders - waited_grants
        age_ms = now_ms - self._epoch_at_ms if self._epoch else 0.0
        wait = max(self.often_ms() - self.trip_ms, min(age_ms * THINNING, SLEEP_LONGEST_MS))
        if ahead > 0.75 and self.turn_ms:
            wait = max(wait, min((ahead - 0.25) * self.turn_ms, SLEEP_LONGEST_MS))
        return wait
