"""What goes wrong, and how often: each seed has a weather of its own (swarm testing)."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum


class Trouble(StrEnum):
    """Of a write: before and after the store applied it; of a node: all at once."""

    LOST_BEFORE = "lost before it was applied"
    LOST_AFTER = "answer lost after it was applied"
    LATE = "applied late"
    RETRY = "hidden retry"
    THROTTLED = "429"
    CONFLICT = "409"
    BUSY = "503"
    ERROR_200 = "200 with an error"
    BLIND = "read without an answer"
    STALL = "stall"
    CRASH = "crash and restart"
    CLOCK = "clock step"


OF_WRITES = (
    Trouble.LOST_BEFORE, Trouble.LOST_AFTER, Trouble.LATE, Trouble.RETRY,
    Trouble.THROTTLED, Trouble.CONFLICT, Trouble.BUSY, Trouble.ERROR_200,
)  # fmt: skip
OF_NODES = (Trouble.STALL, Trouble.CRASH, Trouble.CLOCK)
SHARES = (0.02, 0.06, 0.15)
"""Of all writes (and of reads), how many meet trouble; of moves, a tenth of it meets a node."""


@dataclass(frozen=True, slots=True)
class Weather:
    """Chances, each of one request or of one move."""

    writes: float = 0.0
    reads: float = 0.0
    nodes: float = 0.0
    of_writes: tuple[Trouble, ...] = OF_WRITES
    of_nodes: tuple[Trouble, ...] = OF_NODES

    @classmethod
    def of(cls, dice: random.Random, kinds: Collection[Trouble] = frozenset(Trouble)) -> Weather:
        """Half of the kinds, at random: a storm of all of them would hide what one can do."""
        writes = tuple(each for each in OF_WRITES if each in kinds and dice.random() < 0.5)
        nodes = tuple(each for each in OF_NODES if each in kinds and dice.random() < 0.5)
        share, blind = dice.choice(SHARES), Trouble.BLIND in kinds and dice.random() < 0.5
        return cls(
            share if writes else 0.0, share / 2 if blind else 0.0, share / 10 if nodes else 0.0,
            writes, nodes,
        )  # fmt: skip


CALM = Weather()
