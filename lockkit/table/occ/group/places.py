"""Group commit: each writer's instants have a place of their own among those of others."""

from __future__ import annotations

import zlib

from lockkit.runtime import Procedure, Unique
from lockkit.table.format.timeline import instant_ms
from lockkit.table.occ.fence import NO_INSTANT
from lockkit.table.occ.group.client import GroupClient

SPREAD_MAX_MS = 128
"""Writers that begin at one time spread their instants over this, at most one round trip."""


def spread_ms(client: GroupClient, newest: str, wall_ms: int) -> Procedure[int]:
    """How far ahead of the clock a writer takes its instant while other clients commit.

    One decision answers several writers. They begin their next commits at the same time, and would
    reserve the same instant. So each writer keeps its place within a period of about a round trip:
    once no two writers have the same place, their instants differ. A commit takes longer than the
    period, so instants do not run ahead of the clocks.

    A writer whose round trips are longer than that period takes its instant further ahead: its
    listing is answered one and a half of its round trips later, and by then the commits of nearer
    writers would have passed the instant. Its commit takes longer than that, too.
    """
    if not client.contended:
        return 0
    if client.place_ms < 0:
        client.place_ms = zlib.crc32((yield Unique()).encode())
    period_ms = 1 << (min(SPREAD_MAX_MS, client.trip_ms * 5 // 4).bit_length() - 1)
    least_ms = max(wall_ms, instant_ms(newest) + 1 if newest else 0)
    far_ms = 2 * max(0, client.near_ms - SPREAD_MAX_MS)
    return far_ms + (client.place_ms - least_ms) % period_ms


def behind_ms(client: GroupClient, newest: str, spread: int, wall_ms: int) -> int:
    """How far ahead of its clock, and of `newest`, a writer takes its instant among others.

    It counts on from the fence's newest instant by its own clock, and adds a round trip. Otherwise
    others' commits would pass its instant before it lists. The fence's newest instant was reserved
    longer ago than this adds, so instants do not run ahead of the clocks.
    """
    fence = client.known
    if fence is None or not client.contended:
        return spread
    since_ms = max(0, client.boot_ms() - client.knew_ms)
    there_ms = instant_ms(fence.newest) + since_ms + client.trip_ms + spread
    return max(spread, there_ms - max(instant_ms(newest or NO_INSTANT), wall_ms))
