"""Offering a commit, and waiting until a client decides it: the path among other writers."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from contextlib import suppress

from lockkit.errors import StoreError, TableError
from lockkit.protocol.outcome import Found, Missing, Version, over
from lockkit.runtime import Parallel, Procedure, Sleep, Unique, WallMs
from lockkit.runtime.proven import all_of, create, read, settle_write
from lockkit.table.format.taken_back import taken_back_by
from lockkit.table.format.timeline import TimelineNames
from lockkit.table.occ.fence import COMMIT, FENCE_BYTES_MAX, FENCE_KEY, NO_INSTANT
from lockkit.table.occ.group.client import (
    CLUSTERING,
    CONTENDED_FOR,
    OVERWRITE,
    TURNS_MAX,
    GroupClient,
    GroupWrite,
    decision_in,
    instant_in,
    timeline_key,
)
from lockkit.table.occ.group.combine import decide_alone, withdraw
from lockkit.table.occ.group.decision import (
    GroupFence,
    Offer,
    clash,
    conflicts,
    has_room,
    may_judge,
)
from lockkit.table.occ.group.fence import (
    FULL,
    blind_name,
    format_offer,
    full_name,
    parse_group_fence,
    parse_offer,
)
from lockkit.table.occ.group.outcomes import make_room
from lockkit.table.occ.group.view import (
    GroupView,
    archived_by_now,
    look,
    offered,
    open_offers,
    outcome,
)

PAUSE_FIRST_S, PAUSE_LONGEST_S = 0.02, 0.5
"""The pause between two turns of a client whose instant is offered. It grows with each lost
turn."""
LOOK_TRIPS = (1.25, 0.75, 1.25, 1.75)
APPEND_TRIPS, UPSERT_TRIPS = (1.75, 1.0, 1.5), (0.25, 0.5)
"""When a client looks whether its instant is decided: after an older offer, after its own offer.
An upsert's first look comes after the time that its client has learned."""
EAGER_TRIPS = (0.5, 0.3, 0.5, 1.5)
"""When a writer looks that was idle before, once its replacement beside its offer has failed."""
SOONER, LATER, SOONEST, LATEST, SOON_MOST = 0.1, 0.2, 1.0, 4.0, 2.0
"""After a look that showed the decision, the next commit's first look is so many round trips
sooner; after one that did not, so many later. The limits follow."""
NEXT_TRIPS, FEW = 2.5, 4
"""An upsert whose turn it is waits so long before it decides if at least so many others came first:
they have offered again by then."""
ROUND_TRIPS, RANK_MAX, ROUNDS_MAX = 2, 4, 4
"""On a store with one write a second to the fence: a client looks so many round trips after the
next replacement is due, once more for each older offer up to so many, and for so many
replacements."""
FULL_TRIPS = 4
"""It looks no sooner while nothing more is decided before something is published."""
PATIENCE_MAX = 2
"""For so many turns at most a client leaves the decision to the owners of older offers. The owner
of the second oldest one, if it rewrites, does so for none: while it looked, the oldest one's had
its time."""


def offer(client: GroupClient, write: GroupWrite) -> Procedure[str]:
    """Offer the instant, then help to decide the offers until this one is decided.

    The owner of the oldest offer decides; the others wait for it, and decide if it does not. A
    client that loses the fence finds its decision in the next fence that it reads, or tries again.
    """
    if not write.blind and not write.surveyed:  # its offer says what its owner has seen
        write.see((yield from look(client)).fence)
    own = timeline_key(client.names, write.instant, "offer")
    made: Version | Found | None = write.made
    view: GroupView | None = None
    if made is None:
        key, body = offered_as(client.names, write.offer(), write.body, client.known)
        write.sent, write.offered = True, key
    if made is None and (write.follows or client.is_slow):
        sent_ms = yield WallMs()
        made = yield from create_offer(client.names, write, body)
        client.took(sent_ms, (yield WallMs()))
    elif made is None:
        made, view = yield Parallel((create_offer(client.names, write, body), look(client)))
    assert made is not None
    settled: Version | Found | Missing = made
    if isinstance(settled, Found):  # an earlier call offered it, or a tombstone refuses it
        before = parse_offer(settled.body)
        write.base, settled = (before.base if before else write.base), settled.version
    version = settled if isinstance(settled, Version) else ""
    if version and settled is made:
        client.read[write.offered, version] = write.offer()
    version = version if write.offered == own else ""
    if view is None:
        first = () if write.blind else (client.answer_trips,)
        blind = EAGER_TRIPS if write.eager else APPEND_TRIPS
        if loses := write.eager and client.loses:
            blind = (client.soon_trips, *EAGER_TRIPS[1:])
        trips = blind if write.blind else first + UPSERT_TRIPS
        waits = await_decision(
            client, write.instant, trips, write.earlier, learns=not write.blind, loses=loses,
            beside=write.ahead,
        )  # fmt: skip
        if client.is_slow:
            waits = await_round(client, write.instant, write.earlier)
        if kind := (yield from waits):
            return kind
    for turn in range(TURNS_MAX):
        if turn or view is None:
            at_known = not turn and is_next(client, write)
            if at_known and len(write.earlier) >= FEW:
                yield Sleep(client.trip_ms / 1000 * NEXT_TRIPS)
            view = yield from look(client, at_known=at_known)
        if kind := (yield from outcome(view, write.instant)):
            return kind
        if not may_judge(view.fence, write.offer()):
            if (yield from missed_conflict(client, view, write)):
                return (yield from withdraw(client, write.instant, why="conflict"))
            write.base = view.fence.last
            body = format_offer(write.offer())
            settled = yield from settle_write(own, body, over(version or None))
            if isinstance(settled, Found) and parse_offer(settled.body):
                version = settled.version  # an earlier call's
            if isinstance(settled, Found | Missing):
                continue  # a tombstone: the next look finds the decision
            version = settled
            client.read[own, version] = write.offer()
        if not has_room(view.fence, client.proven):
            yield from make_room(client, view.fence)  # no more decisions are taken
            continue
        if kind := (yield from take_turn(client, view, write, turn)):
            return kind
    return (yield from withdraw(client, write.instant))


def offer_beside(client: GroupClient, write: GroupWrite) -> Procedure[None]:
    """Offer a commit beside the replacement of the fence that decides it: if that fails, the next
    replacement may decide it.

    Both name one instant, which is decided once. From now on it counts as sent.
    """
    write.offered, body = offered_as(client.names, write.offer(), write.body, client.known)
    write.sent = True
    return _offer_beside(client, write, body)


def _offer_beside(client: GroupClient, write: GroupWrite, body: bytes) -> Procedure[None]:
    with suppress(StoreError, TableError):  # if the replacement fails, it is offered again
        write.made = yield from create_offer(client.names, write, body)


def create_offer(
    names: TimelineNames, write: GroupWrite, body: bytes
) -> Procedure[Version | Found]:  # fmt: skip
    """Create the offer by its name; by a shorter name if the store takes no key of that length."""
    if write.offered.endswith(FULL):
        with suppress(StoreError):
            return (yield from create(write.offered, body))
        write.offered, body = offered_as(names, write.offer(), write.body)
    return (yield from create(write.offered, body))


def is_next(client: GroupClient, write: GroupWrite) -> bool:
    """Whether the fence that it has just read decides all instants before its rewrite."""
    older = () if write.blind or client.is_slow else write.earlier
    return bool(older) and all(decision_in(client.known, each) for each in older)


def take_turn(client: GroupClient, view: GroupView, write: GroupWrite, turn: int) -> Procedure[str]:
    """Decide the open offers, or wait for the owner of an older one; '' if nothing was decided."""
    blind, keys = offered(view)
    older = {*(each.instant for each in blind), *map(instant_in, keys)}
    older = {each for each in older if each < write.instant}
    early_ms = client.rate.early_ms(client.boot_ms())
    if early_ms > ROUND_TRIPS * client.trip_ms or (client.is_slow and turn < PATIENCE_MAX):
        if older or early_ms:
            return (yield from await_round(client, write.instant, older))
    bound = PATIENCE_MAX if write.blind or client.is_slow else len(older) - 1
    patience = min(PATIENCE_MAX, bound)
    if turn < patience and older:
        return (yield from await_decision(client, write.instant, LOOK_TRIPS, older))
    others = yield from open_offers(view)
    won = yield from decide_alone(client, view, others, write)
    client.contended = CONTENDED_FOR if others else client.contended
    if won:
        return decision_in(client.known, write.instant)
    if turn >= PATIENCE_MAX:
        yield Sleep((yield from pause_s(turn)))
    return ""


def await_decision(
    client: GroupClient, instant: str, trips: tuple[float, ...], older: Collection[str] = (), *,
    learns: bool = False, loses: bool = False, beside: Procedure[None] | None = None,
) -> Procedure[str]:  # fmt: skip
    """Read the fence after each of these round trips, until it decides this instant.

    The owner of the oldest offer sees the others in its listing, and then replaces the fence:
    earlier reads are useless. Once every `older` instant is decided, it is this client's turn. With
    `learns`, the first look sets the time of the next commit's first look. `beside` is sent in
    parallel with the first look.
    """
    left = set(older)
    for looks, each in enumerate(trips):
        full = client.known is not None and not has_room(client.known, client.proven)
        least = min(len(left), FULL_TRIPS) if full else 0  # one is decided as one is published
        yield Sleep(client.trip_ms / 1000 * max(each, least))
        look_ = read(FENCE_KEY, unless=client.version, limit=FENCE_BYTES_MAX)
        found, *_ = yield from all_of([look_, *([beside] if beside and not looks else [])])
        if isinstance(found, Found):
            fence = parse_group_fence(found.body)
            client.knows(fence, found.version)
            left -= {each.instant for each in fence.window}
        kind = decision_in(client.known, instant)
        if learns and not looks:
            next_trips = client.answer_trips + (-SOONER if kind else LATER)
            client.answer_trips = max(SOONEST, min(LATEST, next_trips))
        if loses and not looks:
            next_trips = client.soon_trips + (-SOONER if kind else LATER)
            client.soon_trips = max(0.0, min(SOON_MOST, next_trips))
        if isinstance(found, Found):
            if kind or not left:
                return kind  # decided, or it is this client's turn
        else:
            client.rate.unchanged(client.version, client.boot_ms())
    return ""


def await_round(client: GroupClient, instant: str, older: Collection[str]) -> Procedure[str]:
    """On a store with one write a second to the fence: read the fence once its next replacement is
    due.

    The owner of the oldest offer lists just before that, and decides all offers. The others read
    the decision. If the owner is late, the next one takes its turn.
    """
    decided = {each.instant for each in (client.known.window if client.known else ())}
    left = set(older) - decided
    for _ in range(ROUNDS_MAX):
        trip_s = client.trip_ms / 1000
        if not left:
            yield Sleep(max(0.0, client.rate.early_ms(client.boot_ms()) / 1000 - trip_s))
            return ""
        before = client.known.round if client.known else 0
        yield Sleep(client.rate.next_ms(client.boot_ms()) / 1000)
        for _ in range(1 + min(RANK_MAX, len(left))):
            yield Sleep(trip_s * ROUND_TRIPS)
            found = yield from read(FENCE_KEY, unless=client.version, limit=FENCE_BYTES_MAX)
            if isinstance(found, Found):
                fence = parse_group_fence(found.body)
                client.knows(fence, found.version)
                client.contended = CONTENDED_FOR
                left -= {each.instant for each in fence.window}
                if kind := decision_in(fence, instant):
                    return kind
                break
            client.rate.unchanged(client.version, client.boot_ms())
        if client.known is None or client.known.round == before:
            return ""  # nobody has replaced it
    return ""


def offered_as(
    names: TimelineNames, offer: Offer, body: bytes = b"", known: GroupFence | None = None
) -> tuple[str, bytes]:
    """The object that offers the commit.

    If everything fits, its name says everything. Otherwise an append's name says all that a decider
    needs, and only the client that publishes the append reads the object.
    """
    if known and (name := full_name(offer, body, known)):
        return names.folder + name, format_offer(offer)
    if offer.blind:
        return names.folder + blind_name(offer), body if offer.body else b""
    return f"{names.folder}{offer.instant}.offer", format_offer(offer)


def pause_s(turn: int) -> Procedure[float]:
    """Longer with each lost turn, and different for each client."""
    dice = zlib.crc32((yield Unique()).encode()) / 2**32
    return dice * min(PAUSE_LONGEST_S, PAUSE_FIRST_S * 2.0**turn)


def missed_conflict(client: GroupClient, view: GroupView, write: GroupWrite) -> Procedure[bool]:
    """Whether a commit since the owner's snapshot wrote a file group of this write.

    True also if a commit that the snapshot lacks may be archived: then nothing shows its files.
    """
    unseen = [each for each in view.decided.values()
              if each.instant not in write.seen and each.instant > write.horizon]  # fmt: skip
    if conflicts(write.offer(), unseen):
        return True
    if (yield from archived_by_now(view)) > (write.horizon or NO_INSTANT):
        return True
    for instant in sorted(view.completed() - view.decided.keys() - write.seen):
        if instant <= write.horizon:
            continue
        done = [each.removesuffix(COMMIT) for each in view.keys
                if instant_in(each) == instant and each.endswith(f".{COMMIT}")]  # fmt: skip
        own = [each + action for each in done for action in (COMMIT, OVERWRITE)]  # `plain_keys`
        keys = [client.names.inflight(instant, each) for each in (COMMIT, OVERWRITE, CLUSTERING)]
        for key in own + keys:
            if isinstance(found := (yield from read(key)), Found):
                break
        else:
            return True
        if not taken_back_by(key, found.body) and clash(write.writes, client.groups_of(found.body)):
            return True
    return False
