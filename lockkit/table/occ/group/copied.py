"""A copy of a table made while writers committed: its fence may be newer than its other files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from lockkit.protocol.outcome import Version
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, listing
from lockkit.table.errors import BrokenFence, TableError
from lockkit.table.format.layout import parse_commit
from lockkit.table.format.timeline import Timeline, TimelineNames, load_timeline, parse_timeline
from lockkit.table.occ.fence import COMMIT, FENCE_KEY, NO_INSTANT, ROLLBACK
from lockkit.table.occ.group.client import GroupClient
from lockkit.table.occ.group.decision import GroupDecision, GroupFence
from lockkit.table.occ.group.fence import read_group_fence
from lockkit.table.occ.group.outcomes import unpublished_bodies
from lockkit.table.occ.group.view import GroupView


def refuse_copied(
    names: TimelineNames, fence: GroupFence, left: Iterable[GroupDecision]
) -> Procedure[None]:
    """Raise `BrokenFence` if files of a decided commit are missing: nobody may publish it.

    `left` are the commits that are not published.
    """
    for each, what in (yield from missing(names, fence, left)):
        raise BrokenFence(
            FENCE_KEY, f"names {each.instant} as committed, and {what}: this may be a copy that "
            "was made while writers committed",
            "copy the table again while nobody writes to it; or drop such commits from this copy: "
            "lockkit table repair-fence URL",
        )  # fmt: skip


def missing(
    names: TimelineNames, fence: GroupFence, left: Iterable[GroupDecision]
) -> Procedure[list[tuple[GroupDecision, str]]]:
    """Those of `left` of which files are missing, each with what is.

    A commit's instant and its data files are in the store before it is decided. One that was
    published or archived meanwhile is not missing.
    """
    found, commits = [], [each for each in left if each.kind == COMMIT]
    view = GroupView(fence, "", {}, frozenset())
    bodies = yield from unpublished_bodies(GroupClient(names=names), view, commits)
    for each in commits:
        began = yield from listing(names.folder + each.instant)
        body = bodies.get(each.instant) or b""
        paths = paths_in(body)
        looked = yield from all_of([listing(path) for path in paths])
        gone = [path for path, entries in zip(paths, looked, strict=True) if not entries]
        if began and body and not gone:
            continue
        archived = (yield from read_group_fence())[0].archived
        now = parse_timeline((yield from listing(names.folder + each.instant)), names)
        if each.instant > archived and each.instant not in now.completed:
            what = f"{gone[0]} is missing" if gone else "the timeline lacks its files"
            found.append((each, what))
    return found


def paths_in(body: bytes) -> list[str]:
    """The data files that a commit names; none if it cannot be read, which its readers report."""
    with suppress(TableError):
        return [stat.path for stat in parse_commit("", "it", body).stats]
    return []


def unpublished(names: TimelineNames, fence: GroupFence) -> Procedure[list[GroupDecision]]:
    """The commits that the fence names, and that neither the timeline nor the archive has."""
    now = yield from load_timeline(names)
    return [each for each in fence.window if each.kind == COMMIT
            and each.instant > fence.archived and each.instant not in now.completed]  # fmt: skip


def fitted(
    names: TimelineNames, columns_of: Callable[[TimelineNames, Timeline], Procedure[str]]
) -> Procedure[tuple[str, Version, GroupFence, str] | None]:
    """What is wrong with a copy's fence, its version, one that fits the copy's files, and what that
    is made from. None if it fits: it may be newer or older than they are."""
    fence, version = yield from read_group_fence()
    hidden = yield from unpublished(names, fence)
    lost = [each for each, _ in (yield from missing(names, fence, hidden))]
    now = yield from load_timeline(names)
    if not lost and (hidden or not is_older(fence, now)):
        return None
    after = replace(fence, round=fence.round + 1, schema=(yield from columns_of(names, now)))
    if lost:
        listed = ", ".join(each.instant for each in lost)
        return (f"names commits whose files are missing ({len(lost)}): {listed}", version,
                without(after, lost), "its other decisions; those commits are dropped")  # fmt: skip
    if after.schema == fence.schema:
        return None
    return ("is older than the newest commit, which changed the table's columns", version, after,
            "its decisions, and that commit's columns")  # fmt: skip


def without(fence: GroupFence, lost: Iterable[GroupDecision]) -> GroupFence:
    """The fence that decided against these commits."""
    over = {each.seq for each in lost}
    window = tuple(
        replace(each, kind=ROLLBACK, completion=None, sha256="", writes=frozenset(), schema="",
                body="") if each.seq in over else each
        for each in fence.window
    )  # fmt: skip
    return replace(fence, window=window, published=min([fence.published, *(n - 1 for n in over)]))


def is_older(fence: GroupFence, now: Timeline) -> bool:
    """Whether a commit is visible that this fence had not decided yet: a copy has both."""
    return max(now.commits, default=NO_INSTANT) > fence.newest
