"""How often a waiter looks, and when a releaser may compete again.

A waiter cannot queue on an object store: it can only look. Looking too often costs requests, on a
hot object the holder's own writes; looking too seldom costs hand-off time. So each handle learns,
from what it sees in the object, how long a turn takes and who else takes turns, and sleeps through
one turn of each: what emerges is round robin, without a word between them.

Others are counted by name, not by how many turns went by between two of one's own: of handles that
race, the lucky ones would see few, come the sooner, and race the more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

STREAK_MAX = 64
"""Grants in a row after which a handle that never met anybody stands back once more."""
CONTENDERS_MAX = 64
"""Others that are remembered."""
LEARN = 0.25
"""Weight of the newest turn in the running averages."""
LOOK_FLOOR_MS = 20.0
"""Nobody looks more often than this, however near the store is."""
THINNING = 0.1
"""Of a grant's age between two looks: a hand-off is seen at most this much of the hold later."""
SLEEP_LONGEST_MS = 2000.0
"""Nobody sleeps longer on what was learned: it may be past. Rivals leave, turns shorten."""


def requested_s(requested_s: float | None, left_s: float) -> float:
    """As long as the store asked to be left alone, but no more than half of the time that is left.

    So a `Retry-After` longer than the lease is honoured only as far as the lease permits.
    """
    return max(0.0, min(requested_s or 0.0, left_s / 2))


@dataclass(slots=True)
class PollingPace:
    """Milliseconds on the handle's boot clock throughout."""

    write_interval_ms: float = 0.0
    """The store's own floor between two writes of one object: it cannot be handed over faster."""
    trip_ms: float = 0.0
    """One request and its answer, learned; 0 before the first."""
    turn_ms: float = 0.0
    """From one grant to the next while somebody waits, learned; 0 before two were seen.

    The hours in which this handle neither held nor wanted the lock are left out: nobody's turn.
    """
    _met: dict[str, None] = field(default_factory=dict)
    """Who else writes the object, the one that was seen longest ago first."""
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
        """Others that take turns, as far as they were met."""
        return len(self._met)

    def answered(self, took_ms: float) -> None:
        self.trip_ms += (LEARN if self.trip_ms else 1.0) * (took_ms - self.trip_ms)

    def wants(self, now_ms: float) -> None:
        """The lock is wanted from now on; until now, and since the release, it was not.

        As long as a turn of each rival takes it was theirs, whether this handle wanted it or not.
        """
        idle_ms = now_ms
        if self._released_ms is not None and self._released_ms >= self._epoch_at_ms:
            idle_ms = max(0.0, now_ms - self._released_ms - self.contenders * self.turn_ms)
        self._epoch_at_ms = min(now_ms, self._epoch_at_ms + idle_ms)

    def met(self, who: str) -> None:
        """Somebody else's write is in the object, a grant or a tombstone."""
        self._met.pop(who, None)
        self._met[who] = None
        if len(self._met) > CONTENDERS_MAX:
            self._forget(1)

    def _forget(self, count: int) -> None:
        for who in list(self._met)[:count]:
            del self._met[who]

    def saw(self, epoch: int, now_ms: float) -> None:
        """A grant of this epoch stands in the object."""
        if epoch <= self._epoch:
            return
        if self._epoch:
            turn = (now_ms - self._epoch_at_ms) / (epoch - self._epoch)
            # A turn as long as a pause of this process is forgotten at once.
            learn = LEARN if turn > self.turn_ms / 2 > 0 else 1.0
            self.turn_ms += learn * (turn - self.turn_ms)
        self._epoch, self._epoch_at_ms = epoch, now_ms

    def granted(self, epoch: int, now_ms: float) -> None:
        between = epoch - self._own_epoch - 1 if self._own_epoch else 0
        if between > 0:
            self._streak, self._patience = 1, 1
        elif self._stood_back:  # the round passed and nobody came
            self._streak, self._patience = 1, min(2 * self._patience, STREAK_MAX)
        else:
            self._streak += 1
        self._stood_back = False
        # Who was not there twice in a row has left. Once may be my luck: half of them, then.
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
        """How long to leave the lock to others after a release of one's own.

        Nobody can tell a releaser that others wait. One that met others lately leaves them their
        turns; one that never did tries it after 2 grants in a row, then 4, 8, ... up to 64.
        """
        if self._released_ms is None or self._streak < self._patience:
            return 0.0
        self._stood_back = True
        round_ms = max(2 * self.often_ms(), (self.contenders - 0.25) * self.turn_ms)
        return max(0.0, self._released_ms + min(round_ms, SLEEP_LONGEST_MS) - now_ms)

    @property
    def outdated(self) -> bool:
        """Others were left their turns, and probably took them: look again before a claim."""
        return self._stood_back and bool(self._met)

    def often_ms(self) -> float:
        """From one look to the next, for who is next in line."""
        return max(self.trip_ms, LOOK_FLOOR_MS, self.write_interval_ms / 4)

    def look_ms(self, waited_grants: int, now_ms: float) -> float:
        """Until the next look is sent: often for who is next, after their turns for who is not.

        The longer one grant stands, the longer it may yet: looks thin out with its age, so that a
        holder of minutes is not asked after every trip.
        """
        ahead = self.contenders - waited_grants
        age_ms = now_ms - self._epoch_at_ms if self._epoch else 0.0
        wait = max(self.often_ms() - self.trip_ms, min(age_ms * THINNING, SLEEP_LONGEST_MS))
        if ahead > 0.75 and self.turn_ms:
            wait = max(wait, min((ahead - 0.25) * self.turn_ms, SLEEP_LONGEST_MS))
        return wait
