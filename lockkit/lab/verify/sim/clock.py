"""Virtual time: one true time for the world, and one clock for each node."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from lockkit.clock import Clock

START_MS = 1_767_225_600_000
"""What a right wall clock shows when a world begins: 2026-01-01T00:00:00Z."""


@dataclass(slots=True)
class Time:
    """The true time in ms since the world began. Every move takes a microsecond of it."""

    now_ms: float = 0.0


@dataclass
class VirtualClock(Clock):
    """A node's clock: its boot clock has a rate, its wall clock an offset that may change.

    Procedures yield `WallMs` and `Sleep`; a lock client reads this clock directly.
    """

    time: Time = field(default_factory=Time)
    dice: random.Random = field(default_factory=random.Random)
    rate: float = 1.0
    grain_ms: int = 1
    """How coarse its wall clock is."""

    def boot_ms(self) -> int:
        return int(self.time.now_ms * self.rate)

    def wall_ms(self) -> int:
        exact_ms = START_MS + int(self.time.now_ms) + self.offset_ms
        return exact_ms - exact_ms % self.grain_ms

    def wall_ns(self) -> int:
        return self.wall_ms() * 1_000_000

    def true_ms(self, boot_ms: float) -> float:
        """The true time at which the boot clock shows `boot_ms`."""
        return boot_ms / self.rate

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.dice.random()

    def unique(self) -> str:
        return f"{self.dice.getrandbits(128):032x}"

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps here: a procedure yields Sleep")
