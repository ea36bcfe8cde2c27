"""How soon the fence may be replaced again, on a store that takes one write a second to an object.

GCS and R2 are such stores. No rule of safety depends on this: it only says when a client tries.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockkit.protocol.outcome import Version
from lockkit.runtime.proven import RETRY_AFTER_S_MAX

EVERY_MS = 1_000
"""Documented by GCS and by R2."""
REMEMBERS_MS = 60_000
"""After so long without a refusal a client tries again whether the store takes more."""
ONCE_MS = 2_000
"""The same after a first refusal: any store may refuse a request once."""
REFUSED_MS = 100
"""It waits at least this long after a refusal, because its own count was wrong."""


@dataclass(slots=True)
class FenceRate:
    """What one client has seen. All times are by its own monotonic clock, in ms."""

    seen_ms: int = -(10**9)
    """When it first saw the fence that it knows. After a refusal: `EVERY_MS` before it may try
    again."""
    least_ms: int = -(10**9)
    """The fence that it knows was not made before this time. Counted from the last look, each
    look would be later than that of the round before."""
    unchanged_ms: int = -(10**9)
    """When it last saw that the fence was not replaced yet."""
    throttled: Version = ""
    """The version that it could not replace when it was last throttled, until it has seen a
    newer one."""
    until_ms: int = -(10**9)
    """Until then it expects the store to take one write a second."""

    proven_ms: int = -(10**9)
    """When the store last refused to replace a fence that was still there afterwards."""
    judged_ms: int = -(10**9)
    """When the store last took a replacement by this client, or had another client's first."""

    made: tuple[int, int] = (-1, 0)
    """The last round that this client has made, and when it sent it."""

    def makes(self, number: int, sent_ms: int, now_ms: int) -> None:
        """This client has made a round. Two in a row within half a second show a faster store."""
        before, before_ms = self.made
        if number == before + 1 and now_ms - before_ms < EVERY_MS / 2:
            self.until_ms, self.proven_ms = now_ms, -(10**9)
        self.made = number, sent_ms

    def saw(self, rounds: int, now_ms: int) -> None:
        """A newer fence was seen, so many rounds later. Two within half a second show a faster
        store."""
        if rounds > 1 and now_ms - self.seen_ms < EVERY_MS / 2:
            self.until_ms, self.proven_ms = now_ms, -(10**9)
        self.least_ms = min(now_ms, max(self.least_ms + rounds * EVERY_MS, self.unchanged_ms))
        self.seen_ms = now_ms

    def unchanged(self, version: Version, now_ms: int) -> None:
        """The fence still has this version. If it could not be replaced a while ago, that was no
        race with another writer (S3's 409)."""
        self.unchanged_ms = now_ms
        if version == self.throttled:
            again = now_ms - self.proven_ms < 2 * REMEMBERS_MS
            self.until_ms = now_ms + (REMEMBERS_MS if again else ONCE_MS)
            self.proven_ms, self.throttled = now_ms, ""

    def refused(self, version: Version, now_ms: int, after_s: float | None) -> None:
        """The store throttled a replacement. It may request a pause, within the limit of every
        request."""
        self.throttled = version
        wait_ms = max(REFUSED_MS, int(1000 * min(RETRY_AFTER_S_MAX, after_s or 0)))
        self.seen_ms = max(self.seen_ms, now_ms + wait_ms - EVERY_MS)

    def is_slow(self, now_ms: int) -> bool:
        """A client without a clock (always 0) waits for nothing."""
        return 0 < now_ms < self.until_ms

    def is_tried(self, now_ms: int) -> bool:
        """Whether this client has lately replaced the fence, or lost it to another client. If
        not, it does not know how much the store takes."""
        return now_ms - self.judged_ms < REMEMBERS_MS

    def early_ms(self, now_ms: int) -> int:
        """How long until the fence may be replaced; 0: at once."""
        return max(0, self.seen_ms + EVERY_MS - now_ms) if self.is_slow(now_ms) else 0

    def next_ms(self, now_ms: int) -> int:
        """How long until the next fence is expected."""
        return max(0, self.least_ms + EVERY_MS - now_ms)
