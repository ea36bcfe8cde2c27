"""How a fenced table changes to group commit, and back.

Both ways replace the fence before they change the properties. A writer that began earlier finds a
fence of the other format, and commits nothing. Group commit is first closed: every offer is
refused, all decisions are published, and the fence names no decision any more. A restore closes it
in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from lockkit.protocol.outcome import Found, IfVersion, Missing, over
from lockkit.runtime import Procedure, Sleep, Unique, WallMs
from lockkit.runtime.proven import read, settle_write
from lockkit.table.errors import DamagedFile, TableBlocked, Unanswered
from lockkit.table.format.properties import PROPERTIES_KEY, TableConfig
from lockkit.table.format.property_keys import PROPERTIES_BYTES_MAX, TABLE_ID, parse_properties
from lockkit.table.format.timeline import Timeline, TimelineNames, is_ahead, load_timeline
from lockkit.table.occ.commit import ROUNDS_MAX, Guard
from lockkit.table.occ.covered import has_archived, read_commit
from lockkit.table.occ.decide import commits_under_way, is_in_use, lost_fence, settle
from lockkit.table.occ.fence import (
    FENCE_BYTES_MAX,
    FENCE_KEY,
    NO_INSTANT,
    format_fence,
    is_grouped,
    is_instant,
    opened,
    read_fence,
)
from lockkit.table.occ.group.client import GroupClient, schema_id
from lockkit.table.occ.group.combine import replace_group_fence
from lockkit.table.occ.group.copied import refuse_copied, unpublished
from lockkit.table.occ.group.decision import GroupFence, is_proven
from lockkit.table.occ.group.fence import OFFERS, format_group_fence, read_group_fence
from lockkit.table.occ.group.offer import pause_s
from lockkit.table.occ.group.outcomes import publish
from lockkit.table.occ.group.view import look
from lockkit.table.occ.rewriting import rewrite_properties

CLOSINGS_MAX = 40
LAST, ROUND = "lockkit.fence.last", "lockkit.fence.round"
"""Up to which number the last fence had counted: an open handle knows decisions by their
numbers."""


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
            fence, _ = yield from read_group_fence()
            left = yield from unpublished(client.names, fence)
            yield from refuse_copied(client.names, fence, left)
            yield from publish(client)
        view = yield from look(client)
        fence, proven = view.fence, client.proven
        done = all(is_proven(fence, each, proven) for each in fence.window)
        if fence.closed == closed and not (closed and fence.window):
            return
        if done or not closed:
            attempt = yield Unique()
            after = replace(fence, attempt=attempt, round=fence.round + 1, closed=closed)
            if not closed:  # a restore may have taken back the commit that these columns are of
                now = yield from load_timeline(client.names)
                after = replace(after, schema=(yield from columns(client.names, now)))
            believe()
            if (yield from replace_group_fence(client, view, emptied(after) if closed else after)):
                return
        yield Sleep((yield from pause_s(min(turn, 4))))
    raise Unanswered(
        f"{'closing' if closed else 'opening'} the fence", "lost the race for it "
        f"{CLOSINGS_MAX} times", "stop some writers, and try again", doubt=False,
    )  # fmt: skip


def columns(names: TimelineNames, now: Timeline) -> Procedure[str]:
    """Those of the newest commit that is not taken back; "" if there is none."""
    newest = max(now.commits, default="")
    return schema_id((yield from read_commit(names, newest, now)).schema) if newest else ""


def emptied(fence: GroupFence) -> GroupFence:
    """Without its decisions: each is published, or its tombstone is there."""
    return replace(fence, first=fence.last + 1, published=fence.last, window=())


def _continued() -> Procedure[GroupFence]:
    """A fence that continues the table's last one of group commit, if there was one.

    It has the same id: a publisher that finds another id takes the table for another one, and
    deletes what it has published. It skips one number. So every client finds a gap, and lists what
    was committed in the other mode.
    """
    found = yield from read(PROPERTIES_KEY, limit=PROPERTIES_BYTES_MAX)
    keys = parse_properties(found.body) if isinstance(found, Found) else {}
    last = turn = 0
    if table := keys.get(TABLE_ID):
        last, turn = _count(keys, LAST), _count(keys, ROUND)
    return GroupFence(
        (yield Unique()), table or (yield Unique()), round=turn + 1, first=last + 2,
        published=last + 1,
    )  # fmt: skip


def _count(keys: Mapping[str, str], name: str) -> int:
    text = keys.get(name, "")
    if not re.fullmatch("[0-9]{1,18}", text):
        raise DamagedFile(
            PROPERTIES_KEY, f"says {name}={text[:40]!r}, and must say how far group commit had "
            "counted; nothing was changed",
            "restore that line from an earlier version of the file. If there is none, stop every "
            f"process that has the table open, and remove the lines {TABLE_ID}, {LAST} and {ROUND}",
        )  # fmt: skip
    return int(text)


def _begun(now: Timeline, config: TableConfig) -> Procedure[str]:
    """The greatest instant that is begun, offered or over.

    A rolled-back one left no file; the instant of its rollback is greater.
    """
    offers = [each[:17] for each in now.foreign
              if each.endswith((".requested", *OFFERS)) and is_instant(each[:17])]  # fmt: skip
    begun, wall_ms = max([NO_INSTANT, *now.pending, *offers]), (yield WallMs())
    if is_ahead(begun, wall_ms, config.accepted):
        raise TableBlocked(
            begun, "is pending or offered, and hours ahead of this clock; the mode was not "
            "switched", "correct this clock if it is wrong. Otherwise stop that instant's writer, "
            "run lockkit table rollback URL, and delete the instant's .offer or .append file",
        )  # fmt: skip
    return max([begun, *now.completed, *now.rollbacks])


def to_group(
    config: TableConfig, believe: Callable[[], None],
    columns_of: Callable[[TimelineNames, Timeline], Procedure[str]] = columns,
) -> Procedure[None]:  # fmt: skip
    """Replace the fence of a table whose writers take turns; its last decision is visible then."""
    archived = NO_INSTANT
    if (yield from has_archived(config.archive_prefix)):
        from lockkit.table.format.archived import load_archived  # few tables have any

        archived = max((each.instant for each in (yield from load_archived(config))),
                       default=NO_INSTANT)  # fmt: skip
    continued = yield from _continued()
    for _ in range(ROUNDS_MAX):
        seen = yield from read_fence()
        now = yield from load_timeline(config.names)
        if seen.fence is None and is_in_use(now):
            raise lost_fence(commits_under_way(now))
        yield from settle(config.names, seen, frozenset(now.commits), [])
        now = yield from load_timeline(config.names)
        before = seen.fence.completion if seen.fence else None
        times = [*now.completion.values(), *filter(None, [before])]
        fence = replace(
            continued, attempt=(yield Unique()), newest=max(now.latest, archived),
            completion=max(times, default=NO_INSTANT) if config.names.layout == 2 else None,
            archived=archived, schema=(yield from columns_of(config.names, now)),
            since=max(archived, (yield from _begun(now, config))),
        )  # fmt: skip
        believe()
        made = yield from settle_write(
            FENCE_KEY, format_group_fence(fence), over(seen.version), limit=FENCE_BYTES_MAX
        )
        if not isinstance(made, Found | Missing):
            return
    raise _lost()


def from_group(config: TableConfig, guard: Guard, believe: Callable[[], None]) -> Procedure[None]:
    """Close group commit, and put a fence for writers that take turns in its place."""
    client = GroupClient(names=config.names)
    for _ in range(ROUNDS_MAX):
        yield from set_closed(client, believe, closed=True)
        assert client.known is not None
        known = client.known
        named = {TABLE_ID: known.table, LAST: str(known.last), ROUND: str(known.round)}
        yield from rewrite_properties(partial(_unless_said, named), believe)
        fence = opened(guard.epoch, (yield Unique()), completion=known.completion)
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
