"""Which faults occur, and how often. Each seed draws its own profile (swarm testing)."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """Faults of a write, before or after the store applied it, and faults of a node."""

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
    FaultKind.LOST_BEFORE, FaultKind.LOST_AFTER, FaultKind.LATE, FaultKind.RETRY,
    FaultKind.THROTTLED, FaultKind.CONFLICT, FaultKind.BUSY, FaultKind.ERROR_200,
)  # fmt: skip
OF_NODES = (FaultKind.STALL, FaultKind.CRASH, FaultKind.CLOCK)
SHARES = (0.02, 0.06, 0.15)
"""Of all writes (and of reads), how many meet trouble; of moves, a tenth of it meets a node."""


@dataclass(frozen=True, slots=True)
class FaultProfile:
    """Probabilities, per request or per move."""

    writes: float = 0.0
    reads: float = 0.0
    nodes: float = 0.0
    of_writes: tuple[FaultKind, ...] = OF_WRITES
    of_nodes: tuple[FaultKind, ...] = OF_NODES

    @classmethod
    def of(
        cls, dice: random.Random, kinds: Collection[FaultKind] = frozenset(FaultKind)
    ) -> FaultProfile:
        """About half of the kinds, at random: all of them at once would hide what one can do."""
        writes = tuple(each for each in OF_WRITES if each in kinds and dice.random() < 0.5)
        nodes = tuple(each for each in OF_NODES if each in kinds and dice.random() < 0.5)
        share, blind = dice.choice(SHARES), FaultKind.BLIND in kinds and dice.random() < 0.5
        return cls(
            share if writes else 0.0, share / 2 if blind else 0.0, share / 10 if nodes else 0.0,
            writes, nodes,
        )  # fmt: skip


CALM = FaultProfile()
