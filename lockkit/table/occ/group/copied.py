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
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.timeline import COMMITS, Timeline, TimelineNames, load_timeline
from lockkit.table.occ.fence import COMMIT, FENCE_KEY, NO_INSTANT, ROLLBACK
from lockkit.table.occ.group.client import GroupClient, schema_id
from lockkit.table.occ.group.decision import GroupDecision, GroupFence, without_oldest
from lockkit.table.occ.group.fence import read_group_fence
from lockkit.table.occ.group.outcomes import unpublished_bodies
from lockkit.table.occ.group.view import GroupView

UNSHOWN = "its completed file is missing"
"""The fence says that it is published. All its other files are there."""


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
            "copy the table again while nobody writes to it; or drop such commits from this copy, "
            "or publish them if they are whole: lockkit table repair-fence URL",
        )  # fmt: skip


def missing(
    names: TimelineNames, fence: GroupFence, left: Iterable[GroupDecision]
) -> Procedure[list[tuple[GroupDecision, str]]]:
    """Those of `left` of which files are missing, each with what is.

    A commit's instant and its data files are in the store before it is decided. One that was
    published meanwhile, or that has left the fence's window, is not missing.
    """
    found, commits = dict[str, str](), [each for each in left if each.kind == COMMIT]
    bodies = yield from bodies_of(names, fence, commits)
    for each in commits:
        began = yield from listing(names.folder + each.instant)
        body = bodies.get(each.instant) or b""
        paths = paths_in(body)
        looked = yield from all_of([listing(path) for path in paths])
        gone = [path for path, entries in zip(paths, looked, strict=True) if not entries]
        if gone or not (began and body):
            what = f"{gone[0]} is missing" if gone else "the timeline lacks its files"
            found[each.instant] = what
        elif each.seq <= fence.published:
            found[each.instant] = UNSHOWN
    if not found:
        return []
    named = {each.instant for each in (yield from read_group_fence())[0].window}
    now = yield from load_timeline(names)
    still = found.keys() & named - now.completed.keys()
    return [(each, found[each.instant]) for each in commits if each.instant in still]


def bodies_of(
    names: TimelineNames, fence: GroupFence, commits: list[GroupDecision]
) -> Procedure[dict[str, bytes]]:
    """What their completed files say; b"" if nothing in the store has it."""
    view = GroupView(fence, "", {}, frozenset())
    return (yield from unpublished_bodies(GroupClient(names=names), view, commits))


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
    config: TableConfig, columns_of: Callable[[TimelineNames, Timeline], Procedure[str]]
) -> Procedure[tuple[str, Version, GroupFence, str] | None]:
    """What is wrong with a copy's fence, its version, one that fits the copy's files, and what that
    is made from. None if it fits: it may be newer or older than they are."""
    names = config.names
    fence, version = yield from read_group_fence()
    hidden = yield from unpublished(names, fence)
    over = (yield from in_archive(config, hidden)) if hidden else []
    hidden = [each for each in hidden if each not in over]
    lacks = yield from missing(names, fence, hidden)
    lost = [each for each, what in lacks if what != UNSHOWN]
    left = [each for each in hidden if each not in lost]
    schema = yield from columns_left(names, fence, left, columns_of)
    after = replace(fence, round=fence.round + 1, closed=False, schema=schema)
    after = without(without_archived(after, over, left), lost, hidden)
    if lacks:
        listed = ", ".join(each.instant for each, _ in lacks)
        kept = f"; {len(lost)} of those commits are dropped, the others are published"
        return (f"names commits whose files are missing ({len(lacks)}): {listed}", version,
                after, f"its other decisions{kept}")  # fmt: skip
    if over:
        what = f"is older than the archive, which has commits that it names ({len(over)}): "
        what += ", ".join(each.instant for each in over)
        return what, version, after, "its other decisions; the archived commits stay"
    if fence.closed:
        what = ("is closed: a restore or a switch of the mode is under way or was interrupted, or "
                "this is a copy that was made during one")  # fmt: skip
        return what, version, after, "the same fence, opened"
    if schema == fence.schema:
        return None
    return ("is older than the newest commit, which changed the table's columns", version, after,
            "its decisions, and that commit's columns")  # fmt: skip


def in_archive(
    config: TableConfig, commits: list[GroupDecision]
) -> Procedure[list[GroupDecision]]:  # fmt: skip
    from lockkit.table.format.archived import load_archived  # rarely needed

    archived = {each.instant for each in (yield from load_archived(config))
                if each.action in COMMITS}  # fmt: skip
    return [each for each in commits if each.instant in archived]


def without_archived(
    fence: GroupFence, over: list[GroupDecision], left: Iterable[GroupDecision]
) -> GroupFence:
    """The fence without `over`, which are archived and newer than it says.

    All up to the last of them leaves its window. Raises `BrokenFence` if one of `left`, which are
    not published, would leave with them, or is not later: then nobody would publish it.
    """
    if not over:
        return fence
    last, until = max(each.seq for each in over), max(each.instant for each in over)
    if early := [each.instant for each in left if each.seq <= last or each.instant <= until]:
        raise BrokenFence(
            FENCE_KEY, f"names {early[0]} as committed, which is not published here, and commits "
            "beside it are archived: this is a copy whose archive is hours newer than its timeline",
            "copy the table again while nobody writes to it",
        )  # fmt: skip
    window = tuple(each for each in fence.window if each.seq > last)
    after = replace(fence, first=last + 1, window=window, archived=until)
    return without_oldest(after, until, ())


def columns_left(
    names: TimelineNames, fence: GroupFence, left: list[GroupDecision],
    columns_of: Callable[[TimelineNames, Timeline], Procedure[str]],
) -> Procedure[str]:  # fmt: skip
    """The columns of the newest commit; it may be one of `left`, which are not published yet."""
    now = yield from load_timeline(names)
    newest = max((each.instant for each in left), default=NO_INSTANT)
    if newest <= max(now.commits, default=NO_INSTANT):
        return (yield from columns_of(names, now))
    body = (yield from bodies_of(names, fence, left))[newest]
    return schema_id(parse_commit("", newest, body).schema)


def without(
    fence: GroupFence, lost: Iterable[GroupDecision], hidden: Iterable[GroupDecision]
) -> GroupFence:
    """The fence that decided against `lost`; nothing `hidden` counts as published."""
    over = {each.seq for each in lost}
    window = tuple(
        replace(each, kind=ROLLBACK, completion=None, sha256="", writes=frozenset(), schema="",
                body="") if each.seq in over else each
        for each in fence.window
    )  # fmt: skip
    published = min([fence.published, *(each.seq - 1 for each in hidden)])
    return replace(fence, window=window, published=published)
