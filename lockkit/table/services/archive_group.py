"""Archiving where writers decide together: the fence first says that nothing old is decided.

A paused writer finds its instant neither in the fence's window nor in the timeline once that is
archived, and would have it decided again. So an archiver first replaces the fence by one that
decides nothing up to the last instant that leaves (`archived`). Everything up to there is over
then: no instant is pending, and every decision has its outcome file. Whoever asks for one later
looks in the archive, and what is not there was not committed.

A publisher may be paused, too, and create a completed file again after it was archived. A publisher
reads the fence at most a second before it publishes, and no request is valid for longer than an
hour. So nothing is archived that is younger than `REPUBLISHED_MS`, in each mode of a table that had
group commit once. If it still happens, the next archiver deletes that file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure, Sleep, Unique, WallMs
from lockkit.runtime.proven import read
from lockkit.stores import ListEntry
from lockkit.table.errors import TableBlocked
from lockkit.table.format.properties import PROPERTIES_KEY
from lockkit.table.format.property_keys import PROPERTIES_BYTES_MAX, TABLE_ID, parse_properties
from lockkit.table.format.timeline import instant_of
from lockkit.table.occ.covered import HARMLESS
from lockkit.table.occ.group.client import GroupClient, instant_in
from lockkit.table.occ.group.combine import replace_group_fence
from lockkit.table.occ.group.decision import close_for, without_oldest
from lockkit.table.occ.group.fence import OFFERS
from lockkit.table.occ.group.offer import pause_s
from lockkit.table.occ.group.view import GroupView, is_completed, look

REPUBLISHED_MS = 2 * 3_600_000
ROUNDS_MAX = 40


def group_barriers(
    client: GroupClient, newest: str, young_ms: int | None
) -> Procedure[list[tuple[str, str]]]:
    """Instants from which on everything stays, and why; `newest` is the last that could leave."""
    found = [(each, f"{each} is among the fence's latest decisions")
             for each in (yield from named_by_fence(client, newest))]  # fmt: skip
    return [*found, (yield from young(young_ms))]


def young(young_ms: int | None) -> Procedure[tuple[str, str]]:
    """The instant from which on a paused publisher may create a completed file again."""
    young_ms = REPUBLISHED_MS if young_ms is None else young_ms
    since = instant_of((yield WallMs()) - young_ms)
    return since, f"what is later than {since} could still be published again"


def had_group_commit() -> Procedure[bool]:
    """Whether a publisher may have been paused before the table's mode was switched."""
    found = yield from read(PROPERTIES_KEY, limit=PROPERTIES_BYTES_MAX)
    return isinstance(found, Found) and TABLE_ID in parse_properties(found.body)


def named_by_fence(client: GroupClient, newest: str) -> Procedure[list[str]]:
    """The instants that the fence names also without its oldest decisions, up to `newest`."""
    view = yield from look(client)
    left = without_oldest(view.fence, newest, client.proven).window
    return [each.instant for each in left]


def decide_nothing_until(client: GroupClient, until: str) -> Procedure[None]:
    """Have the fence say so. Raises `TableBlocked` if others replaced it in each try."""
    for turn in range(ROUNDS_MAX):
        view = yield from look(client)
        if until <= view.fence.archived:
            return
        if pending_until(view, until):
            break
        after = close_for(view.fence, until, client.proven, (yield Unique()))
        if after is not None and (yield from replace_group_fence(client, view, after)):
            return
        yield Sleep((yield from pause_s(min(turn, 4))))
    raise TableBlocked(
        "archiving", "found the table's instants not over yet; nothing was archived", "run it again"
    )


def strays(entries: Iterable[ListEntry], standing: Collection[str], archived: str) -> list[str]:
    """The offers and the tombstones of instants that nobody asks for any more."""
    offers = {each.key: instant_in(each.key) for each in entries if each.key.endswith(OFFERS)}
    return [key for key, of in offers.items() if of <= archived and of not in standing]


def pending_until(view: GroupView, until: str) -> bool:
    """Whether an instant up to this one may still be decided or published."""
    started = (key for key in view.keys if key.endswith((".requested", ".inflight"))
               and not any(f".{each}." in key for each in HARMLESS))  # fmt: skip
    return any(each <= until and not is_completed(view, each) for each in map(instant_in, started))
