"""A writer's commit: it reserves an instant, sends its data, and has the instant decided.

The simulator runs these procedures (`lockkit simulate --scenario group`), and
`publish` runs them for a table; docs/concepts/group_commit.md has the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lockkit.errors import TableError
from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure, Sleep, Unique, WallMs
from lockkit.runtime.proven import all_of, create, delete
from lockkit.table.format.timeline import instant_ms, instant_of
from lockkit.table.occ.fence import NO_INSTANT
from lockkit.table.occ.group.client import (
    CONTENDED_FOR,
    FOLLOWS_MS,
    LOST,
    GroupClient,
    GroupWrite,
    decision_in,
    instant_in,
    timeline_key,
)
from lockkit.table.occ.group.combine import decide_alone, withdraw
from lockkit.table.occ.group.decision import GroupFence, may_judge, reaches
from lockkit.table.occ.group.fence import OFFERS, goes_without
from lockkit.table.occ.group.offer import LATER, SOONER, offer, offer_beside
from lockkit.table.occ.group.view import GroupView, look, open_offers, outcome, view_of_known

PASSED = "passed"
"""What became of a rewrite that is neither decided nor offered, and never will be."""
RESERVATIONS_MAX = 10
OWN_BODIES_MAX = 64
"""A client keeps so many files of its own commits, whose outcomes it may never look at."""
CROWD, CROWD_TRIPS = 4, 2
"""If a listing shows so many earlier commits of the last round trips that are neither decided
nor offered, one of them mostly comes first."""
GATHER_SOONEST, GATHER_LATEST, GATHER_AGAIN, GATHER_MOST = 0.25, 2.5, 0.5, 4.0
"""The first of several rewrites waits for the offers of the others as many round trips as its
client has learned (at least, at most), then looks; and again, until it has spent so many in all."""
IN_VAIN = 2
"""After it has waited for an offer that did not come, it does not wait in so many commits: that
writer's requests take longer, or it is gone."""
LATELY_TRIPS, MOST = 8, 0.8
"""It expects this part of the rewrites that were decided, of instants that began within so many
round trips."""
FAR_TRIPS, SLOW_TRIPS = 8, 4
"""A rewrite does not wait for the owner of an offer whose instant is earlier by so many; nor for
one that has not offered in so many: its files take longer, or it will begin again."""


def next_group_instant(wall_ms: int, newest: str) -> str:
    return instant_of(max(wall_ms, instant_ms(newest) + 1))


def is_passed(view: GroupView, instant: str) -> bool:
    """Whether a later instant is committed: a reader may have passed this one, or has read it."""
    return max(view.commits() | {view.fence.newest}) >= instant


def reserve(
    client: GroupClient, looks: Callable[[GroupClient], Procedure[GroupView]]
) -> Procedure[GroupWrite]:  # fmt: skip
    """A client's own instant, and a snapshot that was read after it was reserved.

    :param looks: `look` where nothing is archived, or for an append, which is compared with
        nothing; else `look_whole`.
    """
    newest = max(client.known.newest, client.known.since) if client.known else NO_INSTANT
    for _ in range(RESERVATIONS_MAX):
        attempt, instant = (yield Unique()), next_group_instant((yield WallMs()), newest)
        requested = timeline_key(client.names, instant, "requested")
        taken = yield from create(requested, attempt.encode())
        if not isinstance(taken, Found):
            view = yield from looks(client)
            ended = yield from reservation_ended(view, instant)
            if not ended and not is_passed(view, instant):
                return GroupWrite(instant, attempt, view.fence.last, view.commits(),
                                  view.fence.archived, table=view.fence.table)  # fmt: skip
            yield from delete(requested, taken)
            newest = max(view.fence.newest, *map(instant_in, view.keys))
        newest = max(newest, instant)  # what was given up is never used again
    raise TableError("no instant", f"was free in {RESERVATIONS_MAX} tries", "try again")


def reservation_ended(view: GroupView, instant: str) -> Procedure[str]:
    """Whether the instant was decided meanwhile: a service may have rolled it back.

    Its owner's snapshot then begins after that decision, and would never show it.
    """
    return (yield from outcome(view, instant))


def commit(client: GroupClient, write: GroupWrite, files: dict[str, bytes]) -> Procedure[str]:
    """Send the data, then have the instant decided: `commit`, or the kind of what was decided.

    A small commit has no inflight file. Raises `CommitUnknown` if an offer or a replacement of the
    fence may still be carried out.
    """
    inflight = {client.names.inflight(write.instant): write.body}
    yield from prove_data(files if goes_without(write.action, write.body) else files | inflight)
    return (yield from decided(client, write))


def decided(
    client: GroupClient, write: GroupWrite, *, view: GroupView | None = None
) -> Procedure[str]:
    """Have an instant decided whose data and inflight file are proven.

    `view` has a listing that was made with the reservation: the offers that it shows are decided
    with this commit. A client without one lists after a few commits in a row (`GroupClient.run`).
    """
    if kind := decision_in(client.known, write.instant):
        return kind
    client.bodies[write.instant] = write.body
    for oldest in list(client.bodies)[:-OWN_BODIES_MAX]:  # its publisher reads the inflight file
        client.bodies.pop(oldest, None)
    if write.only:
        return (yield from decided_over(client, write, view))
    shared = client.process is not None and client.process.is_shared(client.known)
    if view is None and (shared or looks_first(client, write)):
        client.listed()
        view = yield from look(client)
    elif view is None and client.known and goes_alone(client, client.known, write):
        view = view_of_known(client, client.known)
    if view is not None:
        if kind := (yield from outcome(view, write.instant)):
            return kind
        if not shared and gathers(client, view, write):
            view = yield from gather(client, view, write)
            if kind := (yield from outcome(view, write.instant)):
                return kind
        write.see(view.fence)
        crowded = not shared and not write.eager and is_crowded(client, view, write)
        write.follows |= crowded
        judged = not crowded and may_judge(view.fence, write.offer())
        if judged and (yield from is_due(client, write)):
            others = yield from open_offers(view)
            decides = client.process.decide if client.process else decide_alone
            if write.eager and not shared and not client.is_slow:
                client.beside = offer_beside(client, write)
            won = yield from decides(client, view, others, write)
            client.wins += won
            client.lost = 0 if won else client.lost + write.blind
            client.contended = CONTENDED_FOR if others else client.contended
            if won and (kind := decision_in(client.known, write.instant)):
                return kind
            write.follows = write.blind and client.contended > 0
    client.wins = 0
    if not write.listed and (kind := (yield from list_before_offer(client, write))):
        return kind
    return (yield from offer(client, write))


def decided_over(
    client: GroupClient, write: GroupWrite, view: GroupView | None = None
) -> Procedure[str]:
    """Have a rewrite that began without a listing decided over exactly the fence that its snapshot
    shows.

    A commit that it overlooked may hold its keys in another file group, and no fence compares that.
    So if that fence was replaced, the rewrite has `PASSED`, and begins again with a listing. `view`
    has a listing that was made beside its files: what others have offered is decided with it.
    """
    if client.process:
        client.process.carry(client, write)
    known = client.known
    if known and client.version == write.only:
        write.see(known)
        if may_judge(known, write.offer()):
            view = view or view_of_known(client, known)
            others = yield from open_offers(view)
            decides = client.process.decide if client.process else decide_alone
            client.wins += yield from decides(client, view, others, write)
            client.contended = CONTENDED_FOR if others else client.contended
            if kind := decision_in(client.known, write.instant):
                return kind
    client.wins = 0
    view = yield from look(client)
    if kind := (yield from outcome(view, write.instant)):
        return kind
    newest = view.fence.newest
    if write.sent and view.version == write.only:  # without an answer it may still be carried out
        return (yield from withdraw(client, write.instant, why="late", by=newest))
    write.sent = False  # it is not offered, so nothing decides it any more
    return PASSED


def looks_first(client: GroupClient, write: GroupWrite) -> bool:
    """Whether a commit lists before it is sent: then it is decided with what others have offered.

    A commit that follows another is offered at once, and the owner of the other one decides it.
    """
    if client.known is None or client.lists:
        return True
    return write.surveyed and client.contended > 0 and not write.follows


def is_crowded(client: GroupClient, view: GroupView, write: GroupWrite) -> bool:
    """Whether an append is offered at once: its replacement of the fence would mostly fail.

    Its listing shows so many earlier commits that will replace the fence first. Somebody must have
    replaced the fence lately. A commit that began long before sends large files, and decides
    nothing soon, so it does not count.
    """
    since_ms = instant_ms(write.instant) - CROWD_TRIPS * client.trip_ms
    soon = {each for each in write.earlier if instant_ms(each) >= since_ms}
    first = soon - view.decided.keys() - offered_in(view)
    met = write.blind and write.meets and len(first) >= CROWD
    return met and client.rate.is_tried(client.boot_ms())


def is_left_over(
    client: GroupClient, write: GroupWrite, earlier: str, offered: bool
) -> bool:  # fmt: skip
    """Whether an earlier instant began long ago. If it is offered, its owner is far away, or waits
    for another one, and this commit decides it.
    """
    old_ms = (FAR_TRIPS if offered else SLOW_TRIPS) * client.trip_ms
    return instant_ms(earlier) < instant_ms(write.instant) - old_ms


def see_others(
    client: GroupClient, write: GroupWrite, under_way: frozenset[str], listed: Iterable[str]
) -> None:
    """Note which commits are under way by the listing beside the files, and whether to wait for an
    earlier one. `listed` has the names of offers."""
    others = under_way - {each.instant for each in (client.known.window if client.known else ())}
    offers = {instant_in(each) for each in listed if each.endswith(OFFERS)}
    own_ms = instant_ms(write.instant)
    write.earlier = frozenset(each for each in others if each < write.instant)
    later = {each for each in others if 0 < instant_ms(each) - own_ms < FOLLOWS_MS}
    write.later = frozenset(later - offers)
    write.follows = any(not is_left_over(client, write, e, e in offers) for e in write.earlier)


def loses(client: GroupClient, write: GroupWrite) -> bool:
    """Whether an append that meets one other writer will lose the fence to it, which is nearer."""
    return write.blind and client.contended > 0 and client.lost >= LOST and len(write.earlier) < 2


def gathers(client: GroupClient, view: GroupView, write: GroupWrite) -> bool:
    """Whether a rewrite that is the first of those under way decides for those that began with it.

    Writers that one decision answers begin again together. So it expects about as many others as
    were decided lately.
    """
    known, met = client.known, write.later | offered_in(view)
    if write.blind or write.only or not client.contended or client.is_slow or known is None:
        return False
    if client.in_vain:
        client.in_vain -= 1
        return False
    since_ms = instant_ms(write.instant) - LATELY_TRIPS * client.trip_ms
    lately = sum(each.writes != frozenset() and instant_ms(each.instant) > since_ms
                 for each in known.window)  # fmt: skip
    return bool(write.later) or 1 + len(met - view.decided.keys()) < lately * MOST


def gather(client: GroupClient, view: GroupView, write: GroupWrite) -> Procedure[GroupView]:
    """Wait until the others under way have offered, but no longer than `GATHER_MOST`.

    The first look sets the time of this client's next one.
    """
    spent, trips = 0.0, client.gather_trips
    while spent < GATHER_MOST:
        yield Sleep(client.trip_ms / 1000 * trips)
        missed = max(view.completed(), default="") > view.fence.newest
        view = yield from look(client, at_known=not missed)
        begun = {each for each in view.pending() if each > write.instant}
        write.later = (write.later | begun) - client.ours - offered_in(view) - view.decided.keys()
        if not spent:
            next_trips = trips + (LATER if write.later else -SOONER)
            client.gather_trips = max(GATHER_SOONEST, min(GATHER_LATEST, next_trips))
        if not write.later:
            break
        spent, trips = spent + 1 + trips, GATHER_AGAIN
    client.in_vain = IN_VAIN if write.later else 0
    return view


def offered_in(view: GroupView) -> frozenset[str]:
    return frozenset(instant_in(each) for each in view.keys if each.endswith(OFFERS))


def is_due(client: GroupClient, write: GroupWrite) -> Procedure[bool]:
    """Whether a commit is sent before it is offered.

    On a store with one write a second to the fence, it is offered at once, for the next
    replacement. A client that meets no other one waits for that time instead.
    """
    early_ms = client.rate.early_ms(client.boot_ms())
    if early_ms and not client.contended and not write.earlier:
        yield Sleep(early_ms / 1000)
        return True
    return not early_ms and not (client.is_slow and write.earlier)


def list_before_offer(client: GroupClient, write: GroupWrite) -> Procedure[str]:
    """List: an instant that was reserved ahead is offered only if no later one is completed.

    Otherwise it is withdrawn, since a reader of increments may have passed it. No listing was
    needed before: the fence that its owner knew had not been replaced, so nothing had been decided.
    """
    view = yield from look(client)
    if kind := (yield from outcome(view, write.instant)):
        return kind
    newest = max(view.completed(), default="")
    if newest >= write.instant:
        return (yield from withdraw(client, write.instant, why="late", by=newest))
    write.listed = True
    return ""


def prove_data(objects: dict[str, bytes]) -> Procedure[None]:
    """Each object is proven before the instant is offered: any client may then decide it."""
    yield from all_of([create(key, body) for key, body in objects.items()])


def goes_alone(client: GroupClient, known: GroupFence, write: GroupWrite) -> bool:
    """Whether no listing is needed: every decision since the reservation is known."""
    fresh = not client.contended and not client.lists
    in_order = write.listed or known.newest < write.instant
    return fresh and in_order and reaches(known, write.base)
