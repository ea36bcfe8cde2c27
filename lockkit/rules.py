"""Every safety decision of the protocol, as a switch.

Production uses the defaults. Tests, the explorer and the notebooks turn one off and show the
shortest story in which that breaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Expiry(Enum):
    """Who says that a lease has run out."""

    STORE = "store"
    """The store's own clock: Last-Modified + ttlMs + slack against the answer's Date."""
    WALL = "wall"
    """My wall clock against `validUntil + drift` (Hudi's rule)."""
    OBSERVED = "observed"
    """I watched the same version for a whole lease on my own clock (the DynamoDB client's rule)."""


class Ambiguous(Enum):
    """What to make of a 412 or of no answer, for a write of our own."""

    READ_BACK = "read back"
    OURS = "assume it is ours"
    LOST = "assume it is lost"


class Recognise(Enum):
    """By what a read-back knows our own write."""

    ATTEMPT = "attempt"
    OWNER = "owner"


class Release(Enum):
    """What release leaves behind."""

    TOMBSTONE = "tombstone"
    DELETE_IF_MATCH = "conditional delete"
    DELETE = "read, then delete"


class Fence(Enum):
    """How a commit is guarded. The lease hands out the epoch; the commit enforces it."""

    CAS = "compare-and-set"
    """Publishing fails if anything was published since the check began (docs/protocol.md)."""
    TOKEN = "token"
    """Only the epoch is compared, and only at commit: loses updates (Kleppmann's tokens, V13)."""
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """One field for each thing that somebody, somewhere, decided otherwise and regretted."""

    expiry: Expiry = Expiry.STORE
    drift_ms: int = 500
    """`wall`: how far a challenger waits past `validUntil`. Hudi's CLOCK_DRIFT_BUFFER_MS."""
    drift_for_holder: bool = False
    """Hudi also gives the holder the buffer: on both sides it cancels out (mistake V2)."""
    slack_ms: int = 2_000
    """`store`: 1 s of flooring by HTTP dates, and up to 1 s between the store's front ends."""
    margin_ms: int = 1_000
    """A holder stops believing this long before its lease ends; at most a tenth of the ttl."""
    count_from_send: bool = True
    """The lease counts from before the request left: the store may have applied it then."""
    recognise: Recognise = Recognise.ATTEMPT
    confirm: bool = True
    """A write that was found by reading back is believed only after a further guarded write."""
    claim_412: Ambiguous = Ambiguous.READ_BACK
    claim_unknown: Ambiguous = Ambiguous.READ_BACK
    renew_412: Ambiguous = Ambiguous.READ_BACK
    renew_unknown: Ambiguous = Ambiguous.READ_BACK
    release: Release = Release.TOMBSTONE
    fence: Fence = Fence.CAS
