"""How often a waiter looks, and when a releaser may compete again.

A waiter cannot queue on an object store: it can only look. Looking too often costs requests and, on a
store that throttles, the holder's own writes; looking too seldom costs hand-off time. So each handle
learns, from the epochs it sees, how long a turn takes and how many turns go by between two of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

STREAK_MAX = 64
"""Grants in a row after which a handle that never met anybody yields once more."""
LEARN = 0.3
"""Weight of the newest turn in the running averages."""


@dataclass(slots=True)
class Pace:
    """Milliseconds on the handle's boot clock throughout."""

    look_min_ms: float
    """The store's own floor for reading one object (`Capabilities.poll_min_s`)."""
    trip_ms: float = 30.0
    """One request and its answer, learned."""
    turn_ms: float = 0.0
    """From one grant to the next, learned; 0 before two were seen."""
    rivals: float = 0.0
    """Grants of others between two of my own, learned."""
    _epoch: int = 0
    _epoch_at_ms: float = 0.0
    _own_epoch: int = 0
    _streak: int = 0
    _patience: int = 2
    _stood_back: bool = False
    _released_ms: float | None = None

    def answered(self, took_ms: float) -> None:
        self.trip_ms += LEARN * (took_ms - self.trip_ms)

    def saw(self, epoch: int, now_ms: float) -> None:
        """Somebody's grant of this epoch stands in the object."""
        if epoch <= self._epoch:
            return
        if self._epoch and epoch - self._epoch < 16:
            turn = (now_ms - self._epoch_at_ms) / (epoch - self._epoch)
            self.turn_ms += (LEARN if self.turn_ms else 1.0) * (turn - self.turn_ms)
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
        self.rivals += LEARN * (min(between, STREAK_MAX) - self.rivals)
        self.saw(epoch, now_ms)
        self._own_epoch = epoch

    def released(self, now_ms: float) -> None:
        self._released_ms = now_ms

    def yield_ms(self, now_ms: float) -> float:
        """How long to stand back before competing again after a release of one's own.

        Nobody can tell a releaser that others wait, so one that met others lately leaves one round
        to them; one that never did tries it after 2 grants in a row, then 4, 8, ... up to 64.
        """
        if self._released_ms is None or self._streak < self._patience:
            return 0.0
        self._stood_back = True
        round_ms = 2 * max(self.look_min_ms, self.trip_ms) + self.trip_ms
        return max(0.0, self._released_ms + round_ms - now_ms)

    def look_ms(self, waited_turns: int) -> float:
        """Until the next look: often for who has waited longest, a turn apart for who came last."""
        often = max(self.look_min_ms, self.trip_ms)
        ahead = self.rivals - waited_turns
        if ahead > 1 and self.turn_ms:
            return max(often, min(ahead - 1, 8) * self.turn_ms)
        return often
