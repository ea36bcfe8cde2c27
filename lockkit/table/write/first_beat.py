"""The heartbeat of an instant that is about to be taken, on a table that Hudi writes too."""

from __future__ import annotations

from lockkit.runtime import Procedure
from lockkit.table.errors import HeartbeatExpired
from lockkit.table.occ.transaction import TakenInstant
from lockkit.table.write.contract import AttemptHeartbeat, AttemptHost


def first_beat(host: AttemptHost, taken: TakenInstant) -> Procedure[AttemptHeartbeat | None]:
    """The heartbeat, proven; None if another writer has one at this instant.

    Without the lock Hudi looks for pending instants without a heartbeat, and rolls them back.
    """
    try:
        return (yield from host.beat(taken))
    except HeartbeatExpired:
        return None
