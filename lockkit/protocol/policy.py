"""What a user may choose about the lease: who decides that it has run out, and the allowances.

Everything else about the protocol is fixed: `lease.TRANSITIONS` and the functions beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Expiry(Enum):
    """Which clock decides that a lease has run out."""

    STORE = "store"
    """The store's own clock: Last-Modified + ttlMs + slack against the answer's Date."""
    WALL = "wall"
    """My wall clock against `validUntil + drift` (Hudi's rule)."""
    OBSERVED = "observed"
    """I watched the same version for a whole lease on my own clock (the DynamoDB client's rule)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The choices that a user of a lock has. All times are in ms."""

    expiry: Expiry = Expiry.STORE
    drift_ms: int = 500
    """`wall`: how far a challenger waits past `validUntil`. Hudi's CLOCK_DRIFT_BUFFER_MS."""
    slack_ms: int = 2_000
    """`store`: 1 s of flooring by HTTP dates, and up to 1 s between the store's front ends."""
    margin_ms: int = 1_000
    """A holder stops believing this long before its lease ends; at most a tenth of the ttl."""
