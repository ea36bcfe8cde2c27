"""The way in which a fenced table commits: how it goes over to group commit, and back.

Both ways replace the fence before the properties say so. A writer that began earlier finds a fence
of the other format, and commits nothing. Group commit is first closed: then every offer is refused,
everything that was decided is published, and the fence names no decision any more. A restore closes
it in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from lockkit.protocol.outcome import Found, IfVersion, Missing, over
from lockkit.runtime import Procedure, Sleep, Unique
from lockkit.runtime.proven import read, settle_write
from lockkit.table.errors import Unanswered
from lockkit.table.format.java_properties import PROPERTIES_BYTES_MAX, parse_properties
from lockkit.table.format.properties import PROPERTIES_KEY, TableConfig
from lockkit.table.format.timeline import load_timeline
from lockkit.table.occ.commit import ROUNDS_MAX, Guard
from lockkit.table.occ.covered import has_archived
from lockkit.table.occ.decide import commits_under_way, is_in_use, lost_fence, settle
from lockkit.table.occ.fence import (
    FENCE_BYTES_MAX,
    FENCE_KEY,
    NO_INSTANT,
    format_fence,
    is_grouped,
    opened,
    read_fence,
)
from lockkit.table.occ.group import GroupFence, is_proven
from lockkit.table.occ.group_commit import (
    GroupClient,
    look,
    pause_s,
    publish,
    replace_group_fence,
)
from lockkit.table.occ.group_fence import format_group_fence
from lockkit.table.occ.rewriting import rewrite_properties

CLOSINGS_MAX = 40
TABLE_ID = "lockkit.fence.table"
"""Of a table that had group commit: the id in its fence, which another table does not have."""


def has_group_fence() -> Procedure[bool]:
    """Whether the fence is of group commit, whatever the properties say."""
    found = yield from read(FENCE_KEY, limit=FENCE_BYTES_MAX)
    return isinstance(found, Found) and is_grouped(found.body)


def set_closed(
    client: GroupClient, believe: Callable[[], None], *, closed: bool
) -> Procedure[None]:
    """Close group commit, with all that was decided published, or open it again.

    Raises `Unanswered` if other clients replaced the fence in each try.
    """
    for turn in range(CLOSINGS_MAX):
        if closed:
            yield from publish(client)
        view = yield from look(client)
        fence, proven = view.fence, client.proven
        done = all(is_proven(fence, each, proven) for each in fence.window)
        if fence.closed == closed and not (closed and fence.window):
            return
        if done or not closed:
            attempt = yield Unique()
            after = replace(fence, attempt=attempt, round=fence.round + 1, closed=closed)
            believe()
            if (yield from replace_group_fence(client, view, emptied(after) if closed else after)):
                return
        yield Sleep((yield from pause_s(min(turn, 4))))
    raise Unanswered(
        f"{'closing' if closed else 'opening'} the fence", "lost the race for it "
        f"{CLOSINGS_MAX} times", "stop some writers, and try again", doubt=False,
    )  # fmt: skip


def emptied(fence: GroupFence) -> GroupFence:
    """Without its decisions: each is published, or its tombstone is there."""
    return replace(fence, first=fence.last + 1, published=fence.last, window=())


def _named_table() -> Procedure[str]:
    """The id that the table's last fence of group commit had, or a new one.

    A publisher that finds another id deletes what it has published: there it is another table.
    """
    found = yield from read(PROPERTIES_KEY, limit=PROPERTIES_BYTES_MAX)
    said = parse_properties(found.body).get(TABLE_ID) if isinstance(found, Found) else None
    return said or (yield Unique())


def to_group(config: TableConfig, believe: Callable[[], None]) -> Procedure[None]:
    """Replace the fence of a table whose writers take turns; its last decision is visible then."""
    archived = NO_INSTANT
    if (yield from has_archived(config.archive_prefix)):
        from lockkit.table.format.archived import load_archived  # few tables have any

        archived = max((each.instant for each in (yield from load_archived(config))),
                       default=NO_INSTANT)  # fmt: skip
    table = yield from _named_table()
    for _ in range(ROUNDS_MAX):
        seen = yield from read_fence()
        now = yield from load_timeline(config.names)
        if seen.fence is None and is_in_use(now):
            raise lost_fence(commits_under_way(now))
        yield from settle(config.names, seen, frozenset(now.commits), [])
        now = yield from load_timeline(config.names)
        before = seen.fence.completion if seen.fence else None
        times = [*now.completion.values(), *filter(None, [before])]
        fence = GroupFence(
            (yield Unique()), table, newest=max(now.latest, archived),
            completion=max(times, default=NO_INSTANT), archived=archived,
        )  # fmt: skip
        believe()
        made = yield from settle_write(
            FENCE_KEY, format_group_fence(fence), over(seen.version), limit=FENCE_BYTES_MAX
        )
        if not isinstance(made, Found | Missing):
            return
    raise _lost()


def from_group(guard: Guard, believe: Callable[[], None]) -> Procedure[None]:
    """Close group commit, and put a fence for writers that take turns in its place."""
    client = GroupClient()
    for _ in range(ROUNDS_MAX):
        yield from set_closed(client, believe, closed=True)
        assert client.known is not None
        named = {TABLE_ID: client.known.table}
        yield from rewrite_properties(partial(_unless_said, named), believe)
        fence = opened(guard.epoch, (yield Unique()), completion=client.known.completion)
        believe()
        body, condition = format_fence(fence), IfVersion(client.version)
        made = yield from settle_write(FENCE_KEY, body, condition, limit=FENCE_BYTES_MAX)
        if not isinstance(made, Found | Missing):
            return
    raise _lost()


def _unless_said(named: dict[str, str], keys: Mapping[str, str]) -> dict[str, str]:
    return {} if named.items() <= keys.items() else named


def _lost() -> Unanswered:
    return Unanswered(
        "replacing the fence", f"lost the race for it {ROUNDS_MAX} times", "try again", doubt=False
    )
