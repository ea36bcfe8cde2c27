"""Group commit as procedures: reserve, commit, offer, combine, publish, roll back, read.

For fence format 3. The simulator runs these procedures (`lockkit simulate --scenario group`), and
`group_publish` runs them for a table; docs/concepts/group_commit.md has the rules.
One file because its procedures call each other: who commits also decides, publishes and reads.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby

from lockkit.errors import TableError
from lockkit.protocol.outcome import Found, IfVersion, Missing, Version
from lockkit.runtime import Parallel, Procedure, Sleep, Unique, WallMs
from lockkit.runtime.proven import all_of, create, delete, listing, read, settle_write
from lockkit.table.errors import CommitUnknown
from lockkit.table.format.layout import FileGroup
from lockkit.table.format.timeline import HOODIE, instant_ms, instant_of
from lockkit.table.occ.fence import COMMIT, FENCE_BYTES_MAX, FENCE_KEY, NO_INSTANT, digest
from lockkit.table.occ.group import (
    GROUP_WINDOW_MAX,
    REFUSED,
    GroupDecision,
    GroupFence,
    Offer,
    conflicts,
    decide,
    is_proven,
    may_judge,
    reaches,
    refuse,
)
from lockkit.table.occ.group_fence import (
    format_group_fence,
    format_offer,
    is_tombstone,
    parse_group_fence,
    parse_offer,
    read_group_fence,
    tombstone,
)

GROUP_TIMELINE = HOODIE + "timeline/"
RESERVATIONS_MAX = 10
TURNS_MAX = 40
PAUSE_FIRST_S, PAUSE_LONGEST_S = 0.02, 0.5
"""Between two turns of a client whose instant is offered: more, the more turns it has lost."""
INSTANT_DIGITS = 17
FAST_RUN_MAX = 4
"""After so many commits without a listing a writer lists, and decides what others offered."""


@dataclass(slots=True)
class GroupClient:
    """What one process knows of the fence: it is a hint for its next request."""

    groups_of: Callable[[bytes], frozenset[FileGroup]]
    """The file groups that an inflight file names."""
    window_max: int = GROUP_WINDOW_MAX
    horizon: str = ""
    """Up to this instant everything is over and published; listings begin after it."""
    known: GroupFence | None = None
    version: Version = ""
    wins: int = 0
    won: int = 0
    """The last round that this client decided."""
    checked_ms: int = 0
    """When the table's properties were read last, by this client's clock."""
    proven: set[int] = field(default_factory=set)
    """Numbers of the decisions whose outcome file this client has seen or written."""

    def knows(self, fence: GroupFence, version: Version) -> None:
        self.known, self.version = fence, version
        self.proven = {each for each in self.proven if each >= fence.first}


@dataclass(slots=True)
class GroupView:
    """A fence, a listing, and every decision that the listing may not show."""

    fence: GroupFence
    version: Version
    decided: dict[str, GroupDecision]
    keys: frozenset[str]

    horizon: str = ""

    def completed(self) -> frozenset[str]:
        return frozenset(instant_in(key) for key in self.keys if key.endswith(".commit"))

    def pending(self) -> frozenset[str]:
        started = [key for key in self.keys if key.endswith((".requested", ".inflight"))]
        return frozenset(map(instant_in, started)) - self.completed()

    def commits(self) -> frozenset[str]:
        """All that is committed at this fence, published or not."""
        return self.completed() | {each.instant for each in self.decided.values()
                                   if each.kind == COMMIT}  # fmt: skip


@dataclass(slots=True)
class GroupWrite:
    """One attempt to commit an instant, on the snapshot that its owner has read."""

    instant: str
    attempt: str
    base: int
    seen: frozenset[str]
    """The commits of its snapshot later than `horizon`."""
    horizon: str = ""
    """Its snapshot has every commit up to this instant."""
    writes: frozenset[FileGroup] = frozenset()
    schema: str = ""
    grows_schema: bool = False
    blind: bool = False
    body: bytes = b""
    """Of `T.inflight`, and later of `T.commit`."""
    sent: bool = False
    """Whether a request was sent, and not certainly refused, that may have it decided."""

    def see(self, fence: GroupFence) -> None:
        """Raise the base to the last decision in its snapshot.

        In table version 9 outcomes appear in the order of the decisions: it has all before that.
        """
        if fence.completion is not None:
            self.base = max([self.base, *(
                each.seq for each in fence.window if each.kind == COMMIT
                and (each.instant in self.seen or each.instant <= self.horizon)
            )])  # fmt: skip

    def offer(self) -> Offer:
        return Offer(
            self.instant, self.base, self.writes, digest(self.body), self.schema,
            self.grows_schema, reserved=True, blind=self.blind,
        )  # fmt: skip


def timeline_key(instant: str, state: str) -> str:
    return f"{GROUP_TIMELINE}{instant}.{state}"


def completed_key(each: GroupDecision) -> str:
    """In table version 9 with the completion time that the fence gave it."""
    done = f"_{each.completion}" if each.completion else ""
    return timeline_key(each.instant + done, "commit")


def instant_in(key: str) -> str:
    return key.removeprefix(GROUP_TIMELINE)[:INSTANT_DIGITS]


# --- knowing the fence ----------------------------------------------------------------------------


def has_gap(before: GroupFence | None, fence: GroupFence) -> bool:
    """Whether decisions may have left the window unseen: the listing must then be newer."""
    return before is None or not reaches(fence, before.last)


def look(client: GroupClient) -> Procedure[GroupView]:
    """The listing and the fence, read in parallel; a gap between two fences costs a listing."""
    before = client.known
    after = f"{GROUP_TIMELINE}{client.horizon}~" if client.horizon else ""
    listed = listing(GROUP_TIMELINE, after=after)
    entries, (fence, version) = yield Parallel((listed, read_group_fence()))
    if has_gap(before, fence):
        entries = yield from listing(GROUP_TIMELINE, after=after)
    client.knows(fence, version)
    decided = known_decisions(before, fence)
    keys = frozenset(each.key for each in entries)
    view = GroupView(fence, version, decided, keys, client.horizon)
    done = view.completed()
    client.proven |= {each.seq for each in fence.window if each.kind == COMMIT
                      and (each.instant in done or each.instant <= client.horizon)}  # fmt: skip
    return view


def known_decisions(before: GroupFence | None, fence: GroupFence) -> dict[str, GroupDecision]:
    """Those of both windows: what the listing is too old to show stands in one of them."""
    window = (*(before.window if before else ()), *fence.window)
    return {each.instant: each for each in window}


def outcome(view: GroupView, instant: str) -> Procedure[str]:
    """`commit`, another decision's kind, or '': not decided at this fence."""
    if decision := view.decided.get(instant):
        return decision.kind
    return (yield from recorded_outcome(view, instant))


def recorded_outcome(view: GroupView, instant: str) -> Procedure[str]:
    """What the timeline says of an instant that is in no window."""
    if is_completed(view, instant):
        return COMMIT
    key = timeline_key(instant, "offer")
    if key in view.keys and isinstance(found := (yield from read(key)), Found):
        return REFUSED if is_tombstone(found.body) else ""
    return ""


# --- a writer -------------------------------------------------------------------------------------


def next_group_instant(wall_ms: int, newest: str) -> str:
    return instant_of(max(wall_ms, instant_ms(newest) + 1))


def is_passed(view: GroupView, instant: str) -> bool:
    """Whether a later instant is committed: a reader may have passed this one, or has read it."""
    return max(view.commits() | {view.fence.newest}) >= instant


def reserve(client: GroupClient) -> Procedure[GroupWrite]:
    """An instant of one's own, and a snapshot that was read after it was reserved."""
    newest = client.known.newest if client.known else NO_INSTANT
    for _ in range(RESERVATIONS_MAX):
        attempt, instant = (yield Unique()), next_group_instant((yield WallMs()), newest)
        taken = yield from create(timeline_key(instant, "requested"), attempt.encode())
        if not isinstance(taken, Found):
            view = yield from look(client)
            ended = yield from reservation_ended(view, instant)
            if not ended and not is_passed(view, instant):
                return GroupWrite(instant, attempt, view.fence.last, view.commits())
            yield from delete(timeline_key(instant, "requested"), taken)
            newest = max(view.fence.newest, *map(instant_in, view.keys))
        newest = max(newest, instant)  # what was given up is never used again
    raise TableError(f"no instant was free in {RESERVATIONS_MAX} tries; try again")


def reservation_ended(view: GroupView, instant: str) -> Procedure[str]:
    """What was decided on it meanwhile: a service may have rolled it back.

    Its owner's snapshot then lies after that decision, and would never find it again.
    """
    return (yield from outcome(view, instant))


def commit(client: GroupClient, write: GroupWrite, files: dict[str, bytes]) -> Procedure[str]:
    """Send the data, then have the instant decided: `commit`, or the kind of what was decided.

    Raises `CommitUnknown` if an offer or a replacement of the fence may still be carried out.
    """
    objects = files | {timeline_key(write.instant, "inflight"): write.body}
    yield from prove_data(objects)
    return (yield from decided(client, write))


def decided(client: GroupClient, write: GroupWrite) -> Procedure[str]:
    """Have an instant decided whose data and inflight file are proven."""
    if kind := decision_in(client.known, write.instant):
        return kind
    view, offers = None, list[Offer]()
    if client.known is None or client.wins >= FAST_RUN_MAX:
        client.wins = 0
        view = yield from look(client)
        if kind := (yield from outcome(view, write.instant)):
            return kind
        offers += yield from open_offers(view)
        write.see(view.fence)
    elif goes_alone(client, client.known, write):
        view = GroupView(client.known, client.version, {}, frozenset(), client.horizon)
    if view is not None:
        replaced = yield from decide_once(client, view, [write.offer(), *offers])
        client.wins += replaced
        write.sent = True
        if replaced and (kind := decision_in(client.known, write.instant)):
            return kind
    client.wins = 0
    return (yield from offer(client, write))


def decision_in(fence: GroupFence | None, instant: str) -> str:
    window = fence.window if fence else ()
    return next((each.kind for each in window if each.instant == instant), "")


def prove_data(objects: dict[str, bytes]) -> Procedure[None]:
    """Each object is proven before the instant is offered: any client may then decide it."""
    yield from all_of([create(key, body) for key, body in objects.items()])


def goes_alone(client: GroupClient, known: GroupFence, write: GroupWrite) -> bool:
    """Whether no listing is needed: every decision since the reservation is known."""
    undecided = all(each.instant != write.instant for each in known.window)
    return client.wins < FAST_RUN_MAX and reaches(known, write.base) and undecided


def offer(client: GroupClient, write: GroupWrite) -> Procedure[str]:
    """Offer the instant, then help to decide what is offered until it is decided.

    A client that loses to another one reads what that one decided, and pauses before it tries
    again, so that many clients do not replace the fence against each other.
    """
    if client.known:
        write.see(client.known)
    key = timeline_key(write.instant, "offer")
    settled: Version | Found | Missing = yield from create(key, format_offer(write.offer()))
    write.sent = True
    if isinstance(settled, Found):  # an earlier call offered it, or a tombstone refuses it
        before = parse_offer(settled.body)
        write.base, settled = (before.base if before else write.base), settled.version
    version = settled if isinstance(settled, Version) else ""
    for turn in range(TURNS_MAX):
        view = yield from look(client)
        if kind := (yield from outcome(view, write.instant)):
            return kind
        if not may_judge(view.fence, write.offer()):
            if (yield from missed_conflict(client, view, write)):
                return (yield from withdraw(client, write.instant))
            write.base = view.fence.last
            body = format_offer(write.offer())
            settled = yield from settle_write(key, body, IfVersion(version))
            if isinstance(settled, Found | Missing):
                continue  # a tombstone: the next look finds the decision
            version = settled
        yield from decide_once(client, view, (yield from open_offers(view)))
        if kind := decision_in(client.known, write.instant):
            return kind
        if turn % 3 == 2:
            yield from publish(client)  # a full window takes no more decisions
        yield Sleep((yield from pause_s(turn)))
    return (yield from withdraw(client, write.instant))


def pause_s(turn: int) -> Procedure[float]:
    """Longer with each lost turn, and different for each client."""
    dice = zlib.crc32((yield Unique()).encode()) / 2**32
    return dice * min(PAUSE_LONGEST_S, PAUSE_FIRST_S * 2.0**turn)


def missed_conflict(client: GroupClient, view: GroupView, write: GroupWrite) -> Procedure[bool]:
    """Whether a commit since the owner's snapshot wrote a file group of this write."""
    if conflicts(write.offer(), view.decided.values()):
        return True
    for instant in sorted(view.commits() - write.seen - {write.instant}):
        if instant <= write.horizon:
            continue
        found = yield from read(timeline_key(instant, "inflight"))
        if isinstance(found, Found) and client.groups_of(found.body) & write.writes:
            return True
    return False


def withdraw(client: GroupClient, instant: str) -> Procedure[str]:
    """A decision against one's own offer; another client's decision may come first."""
    for _ in range(TURNS_MAX):
        view = yield from look(client)
        if kind := (yield from outcome(view, instant)):
            return kind
        after = refuse(view.fence, instant, (yield Unique()), why="withdrawn")
        if (yield from replace_group_fence(client, view, after)):
            return REFUSED
    why = "it is offered and not decided: another client may still commit it"
    raise CommitUnknown(instant, why, (FENCE_KEY, timeline_key(instant, "commit")))


# --- deciding -------------------------------------------------------------------------------------


def open_offers(view: GroupView) -> Procedure[list[Offer]]:
    """Offers that no decision in the windows, no completed file and no tombstone has ended."""
    found: list[Offer] = []
    for key in sorted(view.keys):
        instant = instant_in(key)
        if key.endswith(".offer") and is_open(view, instant):
            body = yield from read(key)
            parsed = parse_offer(body.body) if isinstance(body, Found) else None
            found += [parsed] if parsed else []
    return found


def is_open(view: GroupView, instant: str) -> bool:
    started = timeline_key(instant, "inflight") in view.keys
    return started and instant not in view.decided and not is_completed(view, instant)


def is_completed(view: GroupView, instant: str) -> bool:
    if timeline_key(instant, "commit") in view.keys:
        return True
    return instant in view.completed()


def timely(view: GroupView) -> frozenset[str]:
    """Pending instants that no completed one is later than: no reader has passed them."""
    newest = max(view.completed(), default="")
    return frozenset(each for each in view.pending() if each > newest)


def combine(client: GroupClient) -> Procedure[bool]:
    """Decide whatever is offered. Any client may; two at once are harmless."""
    view = yield from look(client)
    return (yield from decide_once(client, view, (yield from open_offers(view))))


def decide_once(client: GroupClient, view: GroupView, offers: list[Offer]) -> Procedure[bool]:
    """Replace this very fence by one that decides these offers; False: that decided nothing."""
    after = decide(
        view.fence, offers, attempt=(yield Unique()), timely=timely(view),
        proven=client.proven, now=instant_of((yield WallMs())), window_max=client.window_max,
    )  # fmt: skip
    return after.last > view.fence.last and (yield from replace_group_fence(client, view, after))


def replace_group_fence(
    client: GroupClient, view: GroupView, after: GroupFence
) -> Procedure[bool]:
    settled = yield from settle_write(
        FENCE_KEY, format_group_fence(after), IfVersion(view.version), limit=FENCE_BYTES_MAX
    )
    if isinstance(settled, Found):  # replaced since; it may also have been by a successor of ours
        with suppress(TableError):  # the next look says what is wrong with it
            client.knows(parse_group_fence(settled.body), settled.version)
    if isinstance(settled, Found | Missing):
        return False
    client.knows(after, settled)
    client.won = after.round
    return True


# --- publishing -----------------------------------------------------------------------------------


def publish(client: GroupClient) -> Procedure[None]:
    """Create the outcome files of all decisions: a round only after every earlier round.

    In table version 9 one by one, in the order of their completion times: a reader of increments
    that sees one has seen all before it.
    """
    view = yield from look(client)
    bodies = yield from unpublished_bodies(client, view)
    for together in rounds(view.fence):
        yield from all_of([publish_one(client, view, each, bodies) for each in together])


def unpublished_bodies(client: GroupClient, view: GroupView) -> Procedure[dict[str, bytes]]:
    """The inflight files of the commits that have no completed file, read in parallel."""
    left = [each.instant for each in view.fence.window
            if each.kind == COMMIT and not is_proven(view.fence, each, client.proven)
            and not is_completed(view, each.instant)]  # fmt: skip
    found = yield from all_of([read(timeline_key(each, "inflight")) for each in left])
    return {instant: each.body for instant, each in zip(left, found, strict=True)
            if isinstance(each, Found)}  # fmt: skip


def rounds(fence: GroupFence) -> list[list[GroupDecision]]:
    if fence.completion is not None:
        return [[each] for each in fence.window]
    return [list(each) for _, each in groupby(fence.window, lambda decision: decision.round)]


def publish_one(
    client: GroupClient, view: GroupView, each: GroupDecision, bodies: Mapping[str, bytes]
) -> Procedure[None]:
    if is_proven(view.fence, each, client.proven):
        return
    if each.kind != COMMIT:
        yield from bury(each.instant)
    elif not is_completed(view, each.instant):
        body = bodies.get(each.instant, b"")
        if digest(body) != each.sha256:
            raise TableError(
                f"{each.instant} is decided, and {timeline_key(each.instant, 'inflight')} is "
                "missing or is not what was decided: restore it from its versions"
            )
        if isinstance((yield from create(completed_key(each), body)), Found):
            raise TableError(
                f"{completed_key(each)} differs from its inflight file, which the fence names; "
                "nothing more is published until one of them is restored"
            )
    client.proven.add(each.seq)


def bury(instant: str) -> Procedure[None]:
    """The tombstone of an instant that the fence has decided against."""
    key, body = timeline_key(instant, "offer"), tombstone(instant)
    settled = yield from create(key, body)
    while isinstance(settled, Found) and not is_tombstone(settled.body):
        replaced = yield from settle_write(key, body, IfVersion(settled.version))
        settled = replaced if isinstance(replaced, Found) else ""


def roll_back(client: GroupClient, instant: str, prefix: str) -> Procedure[bool]:
    """Decide against an instant whose writer is dead, or that was refused; delete its files.

    `prefix` is that of its data files.
    """
    view = yield from look_at_one(client, instant)
    kind = yield from outcome(view, instant)
    if kind == COMMIT or not view.keys:
        return False
    if not (yield from decide_against(client, view, instant, kind)):
        return False
    yield from bury(instant)
    for entry in (yield from listing(prefix)):
        yield from delete(entry.key)
    for state in ("inflight", "requested"):
        yield from delete(timeline_key(instant, state))
    return True


def look_at_one(client: GroupClient, instant: str) -> Procedure[GroupView]:
    """The fence, and then one instant's own files: what left the window before has its outcome."""
    fence, version = yield from read_group_fence()
    entries = yield from listing(GROUP_TIMELINE + instant)
    decided = {each.instant: each for each in fence.window}
    return GroupView(fence, version, decided, frozenset(each.key for each in entries))


def decide_against(
    client: GroupClient, view: GroupView, instant: str, kind: str
) -> Procedure[bool]:
    """Whether the fence has decided against the instant, now or before (`kind`)."""
    if kind:
        return True
    after = refuse(view.fence, instant, (yield Unique()))
    return (yield from replace_group_fence(replace(client), view, after))


# --- readers --------------------------------------------------------------------------------------


def snapshot(client: GroupClient) -> Procedure[tuple[int, frozenset[str]]]:
    """All that was decided at one fence, and the number of its last decision."""
    view = yield from look(client)
    return view.fence.last, view.commits()


def increment() -> Procedure[str]:
    """The instant up to which a reader may pull: nothing at or before it is pending.

    Table version 6: the listing alone decides. A decided instant that is not published holds back
    the reader like any other pending one. Version 9: the greatest completion time in the listing.
    """
    entries = yield from listing(GROUP_TIMELINE)
    times = [each.key.rpartition("_")[2][:INSTANT_DIGITS] for each in entries
             if "_" in each.key and each.key.endswith(".commit")]  # fmt: skip
    if times:
        return max(times)
    view = GroupView(GroupFence(""), "", {}, frozenset(each.key for each in entries))
    return pull_until(view)


def pull_until(view: GroupView) -> str:
    first = min(view.pending(), default="~")
    return max((each for each in view.completed() if each < first), default="")
