"""The tail of group commit: what is decided and not yet published, for readers and rewrites.

A commit is acknowledged once the fence names it, and published a moment later. A client that lists
the timeline meanwhile waits for that, and publishes the commit if its publisher is gone. So a
listing shows all that was acknowledged before the listing was requested.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from lockkit.errors import StoreError, Unanswered
from lockkit.protocol.outcome import Found, Version
from lockkit.runtime import Parallel, Procedure, Sleep, WallMs
from lockkit.runtime.proven import listing, read
from lockkit.table.errors import DamagedFile, ModeSwitched
from lockkit.table.format.timeline import (
    Timeline,
    TimelineNames,
    instant_ms,
    load_timeline,
    parse_timeline,
)
from lockkit.table.occ.fence import COMMIT
from lockkit.table.occ.group.client import COMPLETED, OVERWRITE, GroupClient, refuse_form
from lockkit.table.occ.group.copied import refuse_copied
from lockkit.table.occ.group.decision import GroupFence, shows_left
from lockkit.table.occ.group.fence import read_group_fence, unpacked
from lockkit.table.occ.group.outcomes import publish, unpublished_bodies
from lockkit.table.occ.group.view import GroupView

WAITS_MAX, WAIT_LEAST_S, WAIT_MOST_S = 8, 0.02, 0.1
WAY_MS, WAY_POLL_S = 5_000, 0.1
"""The longest wait for an earlier instant, from when it began; and how often to look."""
NEVER = -WAY_MS


def load_decided(names: TimelineNames, *, after: str = "") -> Procedure[Timeline]:
    """A listing that shows every commit that was decided when this began.

    If the fence cannot be read, nobody knows what it has decided: an error.
    """
    began_ms = yield WallMs()
    now = yield from _list_beside(names, after)
    return (yield from _wait_published(names, now, after, began_ms))


def load_with_tail(names: TimelineNames, after: str) -> Procedure[Timeline]:
    """The same for a writer, which does not wait for commits that the fence repeats in full."""
    began_ms = yield WallMs()
    now = yield from _list_beside(names, after)
    if may_be_archived(now, after):
        now = yield from _list_beside(names, after)
    known = None
    if now.fence is not None and not may_be_archived(now, after):
        known = with_tail(now.fence[0], now, after)
    return known or (yield from _wait_published(names, now, after, began_ms))


def may_be_archived(now: Timeline, after: str) -> bool:
    """Whether the listing beside the fence has no file at all of one of its commits.

    Either that commit began after the listing, or an archiver moved it after the fence was read.
    Then other commits, which this fence does not name, may also have left the timeline, and the
    snapshot would lack them.
    """
    commits = [each.instant for each in (now.fence[0].window if now.fence else ())
               if each.kind == COMMIT]  # fmt: skip
    begun = now.inflight | now.pending.keys()
    return any(not is_shown(each, now, after) and each not in begun for each in commits)


def _list_beside(names: TimelineNames, after: str) -> Procedure[Timeline]:
    now: Timeline
    now, read = yield Parallel((load_timeline(names, after=after), _fence(names)))
    if read is None:  # the mode may have been switched since that listing began
        now = yield from load_timeline(names, after=after)
    bodies = {each.instant: body for each in (read[0].window if read else ())
              if (body := unpacked(each))}  # fmt: skip
    return replace(now, fence=read, bodies=bodies)


def _wait_published(
    names: TimelineNames, now: Timeline, after: str, began_ms: int
) -> Procedure[Timeline]:
    if now.fence is None or shows_all(now.fence[0], now, after):
        return now
    read, shown = now.fence, None
    fence, _ = read
    trip_s = max(WAIT_LEAST_S, min(WAIT_MOST_S, ((yield WallMs()) - began_ms) / 1000))
    try:
        shown = yield from _published(names, fence, now, after, trip_s)
    except ModeSwitched:
        pass  # before that, all that was decided has been published
    except StoreError as error:
        if isinstance(error, Unanswered):
            raise
        shown = yield from _unpublished(names, fence, now, after)  # its reader may not write
        return replace(shown, fence=read)
    shown = shown or (yield from load_timeline(names, after=after))
    return replace(shown, fence=read, bodies=now.bodies)


def list_in_turn(
    names: TimelineNames, instant: str, action: str, after: str, met: dict[str, int]
) -> Procedure[Timeline]:
    """`load_with_tail` once it is this instant's turn."""
    now: Timeline = yield from load_with_tail(names, after)
    if (yield from give_way(names, instant, action, now, met)):
        now = yield from load_with_tail(names, after)
    return now


def give_way(
    names: TimelineNames, instant: str, action: str, now: Timeline, met: dict[str, int]
) -> Procedure[bool]:
    """Wait for an earlier overwrite; an overwrite waits for every earlier commit. True: it waited.

    A commit that an overwrite has not seen refuses the overwrite. So under steady appends no
    overwrite would ever be decided. No rule of safety depends on this wait.

    :param met: when this client first met each instant that it waits for. It waits five seconds in
        all for each, also if that one's clock is ahead.
    """
    meets = (OVERWRITE, COMMIT) if action == OVERWRITE else (OVERWRITE,)
    sooner = [each for each, of in now.pending.items() if each < instant and of in meets]
    began_ms, waited = (yield WallMs()), False
    for gone in met.keys() - now.pending.keys():
        del met[gone]
    for each in sooner:
        if each not in met:
            met[each] = NEVER if (yield from _clusters(names, each, now)) else began_ms
        until_ms = min(met[each], began_ms, instant_ms(each)) + WAY_MS
        while (yield WallMs()) < until_ms:
            waited = True
            yield Sleep(WAY_POLL_S)
            its = parse_timeline((yield from listing(names.folder + each)), names)
            if each not in its.pending:
                break
    return waited


def _clusters(names: TimelineNames, instant: str, now: Timeline) -> Procedure[bool]:
    """Whether a pending instant is a clustering: version 6 calls it an overwrite, too."""
    if names.layout == 2 or now.pending[instant] != OVERWRITE:
        return False
    from lockkit.table.format.plans import parse_replace_plan  # few commits need it

    key = names.requested(instant, OVERWRITE)
    found = yield from read(key)
    with suppress(DamagedFile):
        return isinstance(found, Found) and parse_replace_plan(key, found.body).clusters
    return False


def shows_all(fence: GroupFence, now: Timeline, after: str) -> bool:
    """Whether the listing has every commit that this fence, or one before it, decided.

    The commits that stayed in the window show those that have left it (`shows_left`).
    """
    commits = [each for each in fence.window if each.kind == COMMIT]
    shown = [each for each in commits if is_shown(each.instant, now, after)]
    return len(shown) == len(commits) and shows_left(fence, shown)


def with_tail(fence: GroupFence, now: Timeline, after: str) -> Timeline | None:
    """The listing; decisions that are not published count as completed.

    None if the fence does not repeat all of them, or if the listing may lack what left the window.
    """
    commits = [each for each in fence.window if each.kind == COMMIT]
    hidden = [each for each in commits if not is_shown(each.instant, now, after)]
    shown = [each for each in commits if each not in hidden]
    if not shows_left(fence, shown) or not all(e.instant in now.bodies for e in hidden):
        return None
    tail = {each.instant: each for each in hidden}
    actions = {each: COMPLETED.get(of.action, of.action) for each, of in tail.items()}
    done = {**now.completed, **actions}
    times = {each: of.completion for each, of in tail.items() if of.completion}
    return replace(
        now, completed=MappingProxyType(dict(sorted(done.items()))),
        pending=MappingProxyType({e: of for e, of in now.pending.items() if e not in tail}),
        completion=MappingProxyType({**now.completion, **times}), tail=frozenset(tail),
        inflight=now.inflight | set(tail),
    )  # fmt: skip


def as_decided(client: GroupClient, after: str) -> Timeline | None:
    """Every commit that the known fence decided: those of the last listing and of the window.

    None if the two leave a gap: the caller lists the timeline.
    """
    version, known, before = client.version, client.known, client.timeline
    if known is None or before is None:  # (a service in another thread may know a newer fence now)
        return None
    repeated = {each.instant: body for each in known.window if (body := unpacked(each))}
    before = replace(before, bodies={**before.bodies, **repeated})
    now = with_tail(known, before, after)
    if now is None:
        return None
    return replace(now, fence=(known, version), tail=now.tail | before.tail)


def is_shown(instant: str, now: Timeline, after: str) -> bool:
    return instant in now.completed or instant <= after


def _published(
    names: TimelineNames, fence: GroupFence, now: Timeline, after: str, trip_s: float
) -> Procedure[Timeline | None]:
    """List until all of this fence is published; after a while, publish it, and return None."""
    hidden = [each for each in fence.window
              if each.kind == COMMIT and not is_shown(each.instant, now, after)]  # fmt: skip
    for _ in range(WAITS_MAX if hidden else 0):
        yield Sleep(trip_s)
        now = yield from load_timeline(names, after=after)
        if shows_all(fence, now, after):
            return now
    client = GroupClient(names=names)
    client.knows(fence, "")
    later, _ = yield from read_group_fence()
    client.archived = later.archived  # what was archived meanwhile
    named = {each.instant for each in later.window}  # a restore may have taken back the others
    client.proven = {each.seq for each in fence.window if each.instant not in named or (
        each.kind == COMMIT and is_shown(each.instant, now, after))}  # fmt: skip
    left = [each for each in hidden
            if each.instant > client.archived and each.instant not in now.completed]  # fmt: skip
    yield from refuse_copied(names, fence, left)
    yield from publish(client, GroupView(fence, "", {}, frozenset()))
    return None


def _unpublished(
    names: TimelineNames, fence: GroupFence, now: Timeline, after: str
) -> Procedure[Timeline]:
    """The listing, with what stays unpublished, from the fence or from its inflight files."""
    shown = yield from load_timeline(names, after=after)
    left = [each for each in fence.window if not is_shown(each.instant, shown, after)]
    view = GroupView(fence, "", {}, frozenset())
    found = yield from unpublished_bodies(GroupClient(names=names), view, left)
    bodies = {**now.bodies, **{each: body for each, body in found.items() if body}}
    shown = replace(shown, bodies=bodies)
    return with_tail(fence, shown, after) or shown


def _fence(names: TimelineNames) -> Procedure[tuple[GroupFence, Version] | None]:
    try:
        fence, version = yield from read_group_fence()
    except ModeSwitched:  # before that, all that was decided has been published
        return None
    refuse_form(fence, names)
    return fence, version
