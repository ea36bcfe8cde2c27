"""How a commit waits for the client that publishes it, with group commit."""

from __future__ import annotations

from lockkit.runtime import Procedure, Sleep
from lockkit.table.occ.group.client import GroupClient
from lockkit.table.occ.group.decision import GroupDecision, GroupFence
from lockkit.table.occ.group.outcomes import is_published, unproven

WAITS_MAX, WAIT_LEAST_S = 8, 0.02
"""How often, and how long, a commit waits for the client that publishes it."""
CLOSING_TRIPS = 3
"""A closed client waits so many round trips at a time."""


def others_publish(
    client: GroupClient, fence: GroupFence, mine: GroupDecision, patience_s: float | None
) -> Procedure[bool]:
    """Whether another client publishes it; False once nobody has published anything for a while."""
    trip_s = max(WAIT_LEAST_S, client.trip_ms / 1000)
    for _ in range(WAITS_MAX):
        left = unproven_by_now(client, fence, mine)
        before = min(len(left), WAITS_MAX)  # the owner of the oldest one is the first to lose it
        patient_s = max(patience_s or 0, trip_s * WAITS_MAX) * (1 + before) / 2
        wait_s = trip_s * before if patience_s is None else patient_s
        yield Sleep(wait_s if left else 0, client.closing)
        if left and client.closing.is_set():  # of many that end together, each would publish it all
            yield Sleep(trip_s * CLOSING_TRIPS)
        still = unproven_by_now(client, fence, mine)
        if not still or (yield from is_published(client, fence.table, still)):
            return True
        if len(still) == len(left) and not (
            yield from is_published(client, fence.table, still[:1])
        ):
            return False
    return False


def unproven_by_now(
    client: GroupClient, fence: GroupFence, mine: GroupDecision
) -> list[GroupDecision]:
    """`unproven`, also by what the fence that this client has read since says."""
    known, left = client.known, unproven(client, fence, mine)
    if known is None or known.table != fence.table:
        return left
    return [each for each in left if each.seq > known.published]
