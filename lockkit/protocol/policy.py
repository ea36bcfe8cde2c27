"""What a user may choose about the lease: the clock that ends it, and the allowances."""

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
    """The same version was seen for a whole lease by my own clock (the DynamoDB client's rule)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A user's choices about a lock. All times are in ms."""

    expiry: Expiry = Expiry.STORE
    """Which clock ends a lease."""
    drift_ms: int = 500
    """`wall`: how far a challenger waits past `validUntil`. Hudi's CLOCK_DRIFT_BUFFER_MS."""
    slack_ms: int = 2_000
    """`store`: 1 s because HTTP dates are floored, and up to 1 s between the store's front ends."""
    margin_ms: int = 1_000
    """A holder stops acting this long before its lease ends; at most a tenth of the ttl."""
