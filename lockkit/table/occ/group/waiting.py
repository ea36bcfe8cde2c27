"""How a commit waits for the client that publishes it, with group commit."""

from __future__ import annotations

from lockkit.runtime import Procedure, Sleep
from lockkit.table.occ.group.client import GroupClient
from lockkit.table.occ.group.decision import GroupDecision, GroupFence
from lockkit.table.occ.group.outcomes import is_published, unproven

WAITS_MAX, WAIT_LEAST_S = 8, 0.02
"""How often, and how long, a commit waits for the client that publishes it."""
GLANCES_MAX = 64
"""A commit that is acknowledged waits in so many parts. After each its client may know more."""
CLOSING_TRIPS = 3
"""A closed client waits so many round trips at a time."""


def others_publish(
    client: GroupClient, fence: GroupFence, mine: GroupDecision, patience_s: float | None
) -> Procedure[bool]:
    """Whether another client publishes it; False once nobody has published anything for a while.

    With `patience_s` that time begins anew whenever this client has seen that an earlier commit is
    published, or that the fence names another client for it: that costs no request.
    """
    trip_s = max(WAIT_LEAST_S, client.trip_ms / 1000)
    part_s = max(patience_s or 0, trip_s * WAITS_MAX) / 2
    idle_s, at_work = 0.0, ""
    for _ in range(WAITS_MAX if patience_s is None else GLANCES_MAX):
        left = unproven_by_now(client, fence, mine)
        before = min(len(left), WAITS_MAX)  # the owner of the oldest one is the first to lose it
        yield Sleep((trip_s * before if patience_s is None else part_s) if left else 0,
                    client.closing)  # fmt: skip
        if left and client.closing.is_set():  # of many that end together, each would publish it all
            yield Sleep(trip_s * CLOSING_TRIPS)
        still = unproven_by_now(client, fence, mine)
        if patience_s is not None and still and not client.closing.is_set():
            same = still[0] is left[0] and at_work == newest_known(client, fence).combiner
            at_work = newest_known(client, fence).combiner
            idle_s = idle_s + part_s if same else part_s
            if idle_s < part_s * (1 + before):
                continue
        if not still or (yield from is_published(client, fence.table, still)):
            return True
        if len(still) == len(left) and not (
            yield from is_published(client, fence.table, still[:1])
        ):
            return False
        idle_s = 0.0
    return False


def newest_known(client: GroupClient, fence: GroupFence) -> GroupFence:
    """This fence, or the newer one of the same table that the client knows by now."""
    known = client.known
    same = known is not None and known.table == fence.table and known.round >= fence.round
    return known if known is not None and same else fence


def unproven_by_now(
    client: GroupClient, fence: GroupFence, mine: GroupDecision
) -> list[GroupDecision]:
    """`unproven`, also by what the fence that this client has read since says."""
    left = unproven(client, fence, mine)
    return [each for each in left if each.seq > newest_known(client, fence).published]
