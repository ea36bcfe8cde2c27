"""Waiting until every clock has passed an instant, on a table that Hudi writes too."""

from __future__ import annotations

from lockkit.runtime import Procedure, Sleep, WallMs
from lockkit.table.format.timeline import instant_ms

HUDI_SKEW_MS, HUDI_WAIT_MAX_MS = 200, 2_000
"""How far Hudi's clocks may be apart (`hoodie.time.generator.max_expected_clock_skew_ms`). If the
newest instant is further ahead, they are further apart, and no wait helps."""


def wait_out(instant: str) -> Procedure[None]:
    """Under the lock: wait until every clock has passed this instant.

    Hudi takes instants and completion times from its own clock and compares them with none on the
    timeline. It keeps them in order by such a wait under the lock (`SkewAdjustingTimeGenerator`).
    Without ours, a Hudi write right after a commit of ours could have the earlier instant: its rows
    would stay hidden behind ours, and incremental readers would miss them.
    """
    ahead_ms = instant_ms(instant) + HUDI_SKEW_MS + 1 - (yield WallMs())
    if ahead_ms > 0:
        yield Sleep(min(ahead_ms, HUDI_WAIT_MAX_MS) / 1000)
