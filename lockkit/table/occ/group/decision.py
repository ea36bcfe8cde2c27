"""The decision of a group commit: which of several offers one replacement of the fence accepts.

Pure. docs/concepts/group_commit.md has the rules, each with the counterexample
that it excludes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile

from lockkit.table.format.layout import FileGroup
from lockkit.table.format.timeline import instant_ms, instant_of
from lockkit.table.occ.fence import COMMIT, GROUP_FORMAT, GROUPS_MAX, NO_INSTANT, ROLLBACK

GROUP_WINDOW_MAX = 128
WINDOW_MOST = 2 * GROUP_WINDOW_MAX
"""The longest window: refusals and rollbacks may follow one another without a commit."""
BATCH_MAX = 64
UNPUBLISHED_MAX, UNPUBLISHED_MAX_6 = 24, 64
"""While this many decisions have no proven outcome file, nothing more is decided. In table
version 6 there may be more: a round is published at once."""
WINDOW_GROUPS_MAX = 4_000
"""Number of file groups named in a window. A commit beyond it conflicts with each later rewrite."""
WINDOW_NAMES_MAX = 600_000
"""Number of bytes of their names: with all else the fence stays below `FENCE_BYTES_MAX`."""
BODIES_MAX = 32_000
"""Number of characters that packed inflight files may take in a window; the newest stay."""
REFUSED = "refused"
KINDS = (COMMIT, ROLLBACK, REFUSED)


@dataclass(frozen=True, slots=True)
class Offer:
    """A request to decide an instant, which any client may carry out."""

    instant: str
    base: int
    """Its owner has seen, or has checked, every decision up to this one."""
    writes: frozenset[FileGroup] = frozenset()
    sha256: str = ""
    """Of `T.inflight`."""
    schema: str = ""
    grows_schema: bool = False
    """It changes the table's schema; accepted only if no schema was decided since its base."""
    reserved: bool = False
    """Its owner listed the timeline after it had reserved the instant; no later instant was
    over."""
    blind: bool = False
    """An append into new file groups: it is compared with nothing."""
    table: str = ""
    """The id of the table whose fence its owner knew."""
    action: str = COMMIT
    body: str = ""
    """`T.inflight`, packed, if it is small: then nobody has to read that file."""


@dataclass(frozen=True, slots=True)
class GroupDecision:
    """One decision in the fence; `round` counts the replacements of the fence."""

    seq: int
    round: int
    kind: str
    instant: str
    completion: str | None = None
    sha256: str = ""
    writes: frozenset[FileGroup] | None = frozenset()
    """None: too many to be named here, so the commit conflicts with each rewrite that has not
    seen it."""
    schema: str = ""
    why: str = ""
    """The reason of a refusal: conflict, late, schema, closed or withdrawn."""
    by: str = ""
    """After a conflict: the instant that wrote the same file group."""
    action: str = COMMIT
    body: str = ""
    """Of a commit: `T.inflight`, packed, while it is among the newest (`BODIES_MAX`)."""


@dataclass(frozen=True, slots=True)
class GroupFence:
    """The decisions from number `first` on, without a gap."""

    attempt: str
    table: str = ""
    """Each table that is made has its own id, also at the same address."""
    round: int = 0
    combiner: str = ""
    """The client that currently decides for others: a hint, never a right."""
    closed: bool = False
    newest: str = NO_INSTANT
    """The greatest instant that was ever committed."""
    completion: str | None = None
    """The greatest completion time (table version 9); None in version 6."""
    archived: str = NO_INSTANT
    """Up to this instant nothing is decided any more: its files may have left the timeline."""
    since: str = NO_INSTANT
    """Instants up to this one began before the table's mode was switched: they are not decided
    any more."""
    first: int = 1
    published: int = 0
    """The outcome of every decision up to this one is proven."""
    schema: str = ""
    window: tuple[GroupDecision, ...] = ()
    format: int = GROUP_FORMAT

    @property
    def last(self) -> int:
        return self.first + len(self.window) - 1


def reaches(fence: GroupFence, known: int) -> bool:
    """Whether a client that knows every decision up to `known` knows all of them with this fence.

    If not, a listing that began after this fence was read shows the outcome of all that left the
    window.
    """
    return fence.first <= known + 1


def shows_left(fence: GroupFence, shown: Iterable[GroupDecision]) -> bool:
    """Whether a listing with these commits of the window has all that left the window before.

    Rounds are published in their order; in version 9 also the commits of a round. In version 6 a
    commit of a round may be published and leave the window after the listing has shown another one.
    """
    return fence.first == 1 or any(
        fence.completion is not None or each.round > fence.window[0].round for each in shown
    )


def seen_until(fence: GroupFence, is_seen: Callable[[str], bool]) -> int:
    """The last decision up to which a snapshot has all commits; 0 if the window does not say."""
    shown = [each for each in fence.window if each.kind == COMMIT and is_seen(each.instant)]
    if not shown or not shows_left(fence, shown):
        return 0
    last = shown[-1]
    if fence.completion is not None:
        return last.seq
    here = (each for each in fence.window if each.round >= last.round)
    seen = takewhile(lambda each: each.kind != COMMIT or is_seen(each.instant), here)
    before = (each.seq for each in fence.window if each.round < last.round)
    return max([*before, *(each.seq for each in seen)], default=0)


def is_late(fence: GroupFence, offer: Offer, timely: Collection[str]) -> bool:
    """Whether a reader of increments may have passed this instant, or would not see its columns:
    readers take the columns of the newest instant.

    `timely` are the instants that a listing showed pending, with no later one completed.
    """
    if offer.grows_schema and offer.schema != fence.schema and offer.instant < fence.newest:
        return True
    return not (fence.newest < offer.instant or offer.reserved or offer.instant in timely)


def conflicts(offer: Offer, decided: Iterable[GroupDecision]) -> str:
    """The first later commit that wrote a file group of this offer, or ''."""
    return next(
        (each.instant for each in decided
         if each.kind == COMMIT and each.seq > offer.base and clash(offer.writes, each.writes)), "",
    )  # fmt: skip


def whole(partition: str) -> FileGroup:
    """All file groups of a partition, which an overwrite empties."""
    return partition, ""


WHOLE_TABLE: FileGroup = ("", "*")


def clash(mine: frozenset[FileGroup], theirs: frozenset[FileGroup] | None) -> bool:
    """Whether two commits write one file group, or one empties a partition of the other.

    The fence names no file group of an append, so an overwrite conflicts with each append.
    """
    if theirs is None or mine & theirs:
        return True
    emptied = {group for group in mine if group == whole(group[0]) or group == WHOLE_TABLE}
    if emptied and (not theirs or WHOLE_TABLE in emptied):
        return True
    empties = {group for group in theirs if group == whole(group[0])}
    return WHOLE_TABLE in theirs or any(
        whole(group[0]) in others for groups, others in ((mine, empties), (theirs, emptied))
        for group in groups
    )  # fmt: skip


def fits_schema(fence: GroupFence, offer: Offer) -> bool:
    """Its schema is the table's or the first one, or it adds columns to the one that its owner
    has seen."""
    if offer.schema == fence.schema or not fence.schema:
        return True
    return offer.grows_schema and all(
        each.schema in ("", offer.schema) or each.seq <= offer.base for each in fence.window
    )


def judge(fence: GroupFence, offer: Offer, timely: Collection[str]) -> GroupDecision:
    """The next decision: this offer, accepted or refused."""
    entry = GroupDecision(fence.last + 1, fence.round, REFUSED, offer.instant,
                          action=offer.action)  # fmt: skip
    if fence.closed:
        return replace(entry, why="closed")
    if is_late(fence, offer, timely):
        return replace(entry, why="late", by=fence.newest)
    if not offer.blind and (by := conflicts(offer, fence.window)):
        return replace(entry, why="conflict", by=by)
    if not fits_schema(fence, offer):
        return replace(entry, why="schema")
    named = sum(len(each.writes or ()) for each in fence.window) + len(offer.writes)
    size = sum(_size(each.writes) for each in fence.window) + _size(offer.writes)
    wide = (len(offer.writes) > GROUPS_MAX or named > WINDOW_GROUPS_MAX
            or size > WINDOW_NAMES_MAX)  # fmt: skip
    writes = frozenset[FileGroup]() if offer.blind else None if wide else offer.writes
    return replace(
        entry, kind=COMMIT, sha256=offer.sha256, writes=writes, body=offer.body,
        schema=offer.schema if offer.schema != fence.schema else "",
    )  # fmt: skip


@lru_cache(maxsize=4 * GROUP_WINDOW_MAX)
def _size(groups: frozenset[FileGroup] | None) -> int:
    """How many bytes the fence needs to name them: JSON writes some characters as six or twelve."""
    return len(json.dumps(list(groups or ())))


def may_judge(fence: GroupFence, offer: Offer) -> bool:
    """Whether the window holds all decisions of this table since the offer's base.

    The outcome of an instant that may be archived is not in the timeline, so nobody decides it
    again.
    """
    same = offer.table == fence.table and not is_over(fence, offer.instant)
    return same and (offer.blind or reaches(fence, offer.base))


def is_over(fence: GroupFence, instant: str) -> bool:
    """Whether the timeline and the archive show its outcome, and no fence ever will."""
    return instant <= max(fence.archived, fence.since)


def decide(
    fence: GroupFence, offers: Iterable[Offer], *, attempt: str, combiner: str = "",
    timely: Collection[str] = frozenset(), proven: Collection[int] = frozenset(),
    now: str | None = None, window_max: int = GROUP_WINDOW_MAX,
) -> GroupFence:  # fmt: skip
    """The fence that replaces `fence`. An offer that it cannot judge is left for its owner.

    :param offers: open ones. They are judged in the order of their instants, each also by those
        accepted before it.
    :param timely: see `is_late`.
    :param proven: numbers of the decisions whose outcome files are proven; only they may leave.
    :param now: this client's clock as an instant, for completion times (table version 9).
    """
    after = replace(fence, attempt=attempt, combiner=combiner, round=fence.round + 1,
                    published=proven_until(fence, proven))  # fmt: skip
    room = has_room(after, proven)
    in_order = sorted({each.instant: each for each in offers}.items())
    judged = [each for _, each in in_order if may_judge(fence, each)]
    for offer in judged[: min(room, BATCH_MAX)]:
        after = follow(after, judge(after, offer, timely), now)
    return without_old_bodies(evict(after, proven, window_max))


def without_old_bodies(fence: GroupFence) -> GroupFence:
    """Keep the bodies of the newest decisions while there is room for them.

    It also keeps those that are not proven to be published: there may be no inflight file.
    """
    left, window = BODIES_MAX, list(fence.window)
    for at in reversed(range(len(window))):
        left -= len(window[at].body)
        if left < 0 and window[at].body and window[at].seq <= fence.published:
            window[at] = replace(window[at], body="")
    return replace(fence, window=tuple(window))


def has_room(fence: GroupFence, proven: Collection[int]) -> int:
    """How many more decisions are possible before one is published."""
    unproven = sum(not is_proven(fence, each, proven) for each in fence.window)
    most = UNPUBLISHED_MAX_6 if fence.completion is None else UNPUBLISHED_MAX
    return max(0, most - unproven)


def refuse(
    fence: GroupFence, instant: str, attempt: str, *, why: str = "", by: str = "",
    proven: Collection[int] = frozenset(),
) -> GroupFence:  # fmt: skip
    """The fence that decides against an instant: withdrawn by its owner, else rolled back."""
    kind = REFUSED if why else ROLLBACK
    after = replace(fence, attempt=attempt, round=fence.round + 1)
    entry = GroupDecision(after.last + 1, after.round, kind, instant, why=why, by=by)
    return evict(follow(after, entry, None), proven, WINDOW_MOST)


def without_oldest(fence: GroupFence, until: str, proven: Collection[int]) -> GroupFence:
    """The fence without its oldest decisions that are proven and not after `until`."""
    over = 0
    for each in fence.window:
        if each.instant > until or not is_proven(fence, each, proven):
            break
        over += 1
    return replace(fence, first=fence.first + over, window=fence.window[over:])


def close_for(
    fence: GroupFence, until: str, proven: Collection[int], attempt: str
) -> GroupFence | None:
    """The fence that decides nothing up to `until` any more; None if its window still names such
    an instant."""
    after = without_oldest(fence, until, proven)
    if any(each.instant <= until for each in after.window):
        return None
    published = proven_until(fence, proven)
    return replace(after, attempt=attempt, round=fence.round + 1, published=published,
                   archived=max(fence.archived, until))  # fmt: skip


def follow(fence: GroupFence, entry: GroupDecision, now: str | None) -> GroupFence:
    """The fence with one more decision. Completion times rise with the decisions."""
    if entry.kind != COMMIT:
        return replace(fence, window=(*fence.window, entry))
    completion = fence.completion
    if completion is not None:
        least = max(instant_ms(entry.instant), instant_ms(completion)) + 1
        completion = instant_of(max(least, instant_ms(now) if now else 0))
    return replace(
        fence, window=(*fence.window, replace(entry, completion=completion)),
        newest=max(fence.newest, entry.instant), completion=completion,
        schema=entry.schema or fence.schema,
    )  # fmt: skip


def is_proven(fence: GroupFence, each: GroupDecision, proven: Collection[int]) -> bool:
    """Whether the outcome file of a decision is proven: by this client, or by the fence."""
    return each.seq <= fence.published or each.seq in proven


def proven_until(fence: GroupFence, proven: Collection[int]) -> int:
    """The last decision up to which every outcome is proven."""
    until = fence.published
    while until < fence.last and (until + 1 in proven or until + 1 < fence.first):
        until += 1
    return until


def evict(fence: GroupFence, proven: Collection[int], window_max: int) -> GroupFence:
    """Drop the oldest decisions beyond the window whose outcomes are proven."""
    over = 0
    while len(fence.window) - over > window_max and is_proven(fence, fence.window[over], proven):
        over += 1
    return replace(fence, first=fence.first + over, window=fence.window[over:])
