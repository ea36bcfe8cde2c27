"""Group commit as procedures: reserve, commit, offer, combine, publish, roll back, read.

The simulator runs these procedures (`lockkit simulate --scenario group`), and
`publish` runs them for a table; docs/concepts/group_commit.md has the rules.
One file because its procedures call each other: who commits also decides, publishes and reads.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Any

from lockkit.errors import TableError
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    Throttled,
    Unknown,
    Version,
    WriteAnswer,
)
from lockkit.runtime import Parallel, Procedure, Put, Sleep, Unique, WallMs
from lockkit.runtime.proven import all_of, create, delete, listing, read, settle_write
from lockkit.runtime.proven import pause_s as throttled_s
from lockkit.stores import ListEntry
from lockkit.table.errors import CommitUnknown, TableChanged
from lockkit.table.format.layout import CommitFiles, FileGroup, parse_commit
from lockkit.table.format.properties import PROPERTIES_KEY
from lockkit.table.format.property_keys import FENCE_FORMAT, PROPERTIES_BYTES_MAX, parse_properties
from lockkit.table.format.taken_back import taken_back_by
from lockkit.table.format.timeline import V6, V9, TimelineNames, instant_ms, instant_of
from lockkit.table.occ.fence import COMMIT, FENCE_BYTES_MAX, FENCE_KEY, NO_INSTANT, digest
from lockkit.table.occ.group.archived import ArchivedAs, archived_outcome
from lockkit.table.occ.group.decision import (
    GROUP_WINDOW_MAX,
    REFUSED,
    UNPUBLISHED_MAX,
    WHOLE_TABLE,
    WINDOW_MOST,
    GroupDecision,
    GroupFence,
    Offer,
    clash,
    conflicts,
    decide,
    has_room,
    is_over,
    is_proven,
    may_judge,
    proven_until,
    reaches,
    refuse,
    seen_until,
    whole,
)
from lockkit.table.occ.group.fence import (
    blind_name,
    blind_offer,
    format_group_fence,
    format_offer,
    goes_without,
    is_tombstone,
    packed,
    parse_group_fence,
    parse_offer,
    read_group_fence,
    tombstone,
    unpacked,
)
from lockkit.table.occ.group.rate import FenceRate

OVERWRITE, CLUSTERING = "replacecommit", "clustering"
COMPLETED = {CLUSTERING: OVERWRITE}
"""What an action is called once it is completed, where that is another name."""
STARTED = ("requested", "commit.requested", "inflight")
RESERVATIONS_MAX = 10
TURNS_MAX = 40
PUBLISHING_TURNS_MAX = 8 * UNPUBLISHED_MAX
"""So many round trips a thread waits for another one of its process, which publishes for it."""
PAUSE_FIRST_S, PAUSE_LONGEST_S = 0.02, 0.5
"""Between two turns of a client whose instant is offered: more, the more turns it has lost."""
EXPECTED_MAX = 3
"""So many offers a client reads in parallel with a listing that may show them."""
OFFERS_MAX = 256
"""So many offers that it has read a client keeps."""
LOOK_TRIPS = (1.25, 0.75, 1.25, 1.75)
APPEND_TRIPS, UPSERT_TRIPS = (1.75, 1.0, 1.5), (1.0, 2.0, 1.5)
"""When a client looks whether it is decided: after an older offer, after its own one. An upsert
that sees others decided then waits until the next one has listed, read the offers, and decided."""
ROUND_TRIPS, RANK_MAX, ROUNDS_MAX = 2, 4, 4
"""Where the fence takes one write a second: so many round trips after the next one is due a client
looks, that often again for each older offer up to so many, and for so many replacements."""
FRESH_ROUNDS = 2
"""What was decided in the latest rounds is not published by others yet."""
LEFT_MAX = 8
"""So many round trips at most a client leaves the publishing to another one that it met."""
READ_AHEAD = 8
"""So many inflight files a publisher reads while it publishes those before."""
BESIDE_LEAST = 3
"""Of fewer decisions it reads the fence when they are published."""
ROOM_TRIPS = 8
"""So many round trips a client waits for the one that publishes, before it looks."""
PUBLISHER_TRIPS = (1.5, 3, 6)
"""When the client that publishes for others reads the fence again, while there is nothing new."""
FULL_TRIPS = 4
"""It looks no sooner while nothing more is decided before something is published."""
FOLLOWS_MS = 2_000
"""An older instant that is pending may be a dead writer's."""
PATIENCE_MAX = 2
"""So many turns a client leaves the decision to the owner of an older offer."""
TRIP_LEAST_MS, TRIP_MOST_MS = 5, 500
INSTANT_DIGITS = 17
CONTENDED_FOR = 4
SURE_MS = 500
"""How long a fence that was read counts as that of the same table; `confirmed` looks later."""
OWN_BODIES_MAX = 64
"""Of its own commits, whose outcome it may never look at, a client keeps so many files."""
FAST_RUN_MAX = 4
"""Commits without a listing after which a writer lists, and decides what others offered."""


def groups_of(body: bytes) -> frozenset[FileGroup]:
    """What a commit writes, replaces and empties, as the fence names it."""
    return named(parse_commit("", "an inflight file", body))


def named(files: CommitFiles) -> frozenset[FileGroup]:
    emptied = files.overwrites
    marks = {WHOLE_TABLE} if emptied.whole_table else set(map(whole, emptied.partitions))
    return files.writes | files.replaced | marks


Offers = dict[tuple[str, Version | None], Offer | None]


@dataclass(slots=True)
class GroupClient:
    """One process's last view of the fence: a hint for its next request."""

    groups_of: Callable[[bytes], frozenset[FileGroup]] = groups_of
    """The file groups that an inflight file names."""
    window_max: int = GROUP_WINDOW_MAX
    archived_as: ArchivedAs = archived_outcome
    names: TimelineNames = V9
    """Those of the table's files, by its version."""
    horizon: str = ""
    """Up to this instant everything is over and published; listings begin after it."""
    archived: str = NO_INSTANT
    """Up to this instant nothing is published any more: it may have left the timeline."""
    known: GroupFence | None = None
    version: Version = ""
    contended: int = 0
    """For how many more commits it counts that another client has replaced the fence."""
    trip_ms: int = TRIP_LEAST_MS
    """How long the last round trip took."""
    wins: int = 0
    won: set[int] = field(default_factory=set)
    """Rounds of the window that this client decided."""
    checked_ms: int = 0
    """When the table's properties were read last, by this client's clock."""
    proven: set[int] = field(default_factory=set)
    """Numbers of the decisions whose outcome file this client has seen or written."""

    name: str = ""
    """The fence names it while it publishes; given with its first decision."""
    publishing: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread of this client that publishes."""
    idle: str = ""
    """A client that the fence named, and that did not publish."""
    bodies: dict[str, bytes] = field(default_factory=dict)
    """Of this client's own inflight files that are not published yet."""
    behind: list[GroupDecision] = field(default_factory=list)
    """Acknowledged, and still to be published."""
    read: dict[tuple[str, Version | None], Offer | None] = field(default_factory=dict)
    """Others' offers; an object that is listed with the same version has the same content."""
    coming: frozenset[str] = frozenset()
    """Others' instants that were under way by the last listing of an upsert: their offers may be
    read before a listing shows them."""
    beside: Procedure[None] | None = None
    """What is sent in parallel with this client's next replacement of the fence."""
    ahead: list[Any] = field(default_factory=list)
    """The instant that is reserved for the next commit, and when that was sent."""
    reserves: bool = False
    """Whether it reserves ahead; then unused reservations are given back."""
    timeline: Any = None
    """What the last listing of a write showed."""
    listed_after: str = ""
    """After which instant it began."""
    own: set[str] = field(default_factory=set)
    """Instants that this process works on; its services leave them alone."""
    process: Any = None
    """The threads of its process that commit to this table, with a client each (`GroupProcess`)."""
    held: threading.Lock = field(default_factory=threading.Lock)
    """By its thread, during a commit; another one for each."""
    boot_ms: Callable[[], int] = int
    """This process's monotonic clock."""
    writing: GroupWrite | None = None
    """The latest commit of this client, to say after an interrupt whether it was offered."""
    acked_ms: int = -(10**9)
    """When its last commit was acknowledged."""
    knew_ms: int = -(10**9)
    """When the fence that it knows was sent or read."""
    rate: FenceRate = field(default_factory=FenceRate)
    """How soon the fence may be replaced again."""
    closing: threading.Event = field(default_factory=threading.Event)
    """Whoever waits for another client's work waits no longer."""

    def knows(self, fence: GroupFence, version: Version) -> None:
        """Raises `TableChanged` if it is the fence of another table, made in this one's place."""
        if self.known is not None and self.known.table != fence.table:
            self.forget()
            raise TableChanged(
                FENCE_KEY, "is another table's: the table was deleted and made again",
                "open it again",
            )  # fmt: skip
        rounds = fence.round - (self.known.round if self.known else fence.round - 1)
        self.known, self.version, self.knew_ms = fence, version, self.boot_ms()
        if rounds > 0:
            self.rate.saw(rounds, self.knew_ms)
        else:
            self.rate.unchanged(version, self.knew_ms)
        self.archived = max(self.archived, fence.archived)
        self.proven = {each for each in frozenset(self.proven) if each >= fence.first}
        self.won = {each for each in self.won if fence.window and each >= fence.window[0].round}

    @property
    def is_slow(self) -> bool:
        """Whether the store takes one write a second to the fence."""
        return self.rate.is_slow(self.boot_ms())

    def took(self, sent_ms: int, until_ms: int) -> None:
        """A round trip took this long."""
        self.trip_ms = min(TRIP_MOST_MS, max(TRIP_LEAST_MS, until_ms - sent_ms))

    def saw(self, table: str, published: Iterable[int]) -> None:
        """The outcome files of these decisions of a table are there.

        The table may have been made anew since that request was sent: the decisions of the new one
        have the same numbers.
        """
        if self.known is not None and self.known.table == table:
            self.proven |= set(published)

    def forget(self) -> None:
        """Of a table that is gone nothing counts any more."""
        self.known, self.version, self.timeline, self.archived = None, "", None, NO_INSTANT
        self.wins = self.contended = self.checked_ms = 0
        for each in (self.won, self.proven, self.bodies, self.behind, self.ahead, self.read):
            each.clear()


@dataclass(slots=True)
class ListedBeside:
    """The fence that was known before a commit's listing began, and the one read beside it."""

    before: GroupFence | None
    fence: GroupFence | None
    version: Version = ""


@dataclass(slots=True)
class GroupView:
    """A fence, a listing, and every decision that the listing may not show."""

    fence: GroupFence
    version: Version
    decided: dict[str, GroupDecision]
    keys: frozenset[str]

    horizon: str = ""
    versions: Mapping[str, Version | None] = field(default_factory=dict)
    """Of the offers, as they were listed."""
    read: dict[tuple[str, Version | None], Offer | None] = field(default_factory=dict)
    """Offers that its client has read before, by key and version."""
    archived_as: ArchivedAs = archived_outcome
    """Finds the outcome of an instant that may be archived."""

    @property
    def names(self) -> TimelineNames:
        return names_of(self.fence)

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
    listed: bool = True
    """Whether its owner has listed the timeline since it reserved the instant."""
    only: Version = ""
    """Of a rewrite without a listing: the version of the fence that its snapshot shows."""
    sent: bool = False
    """Whether a request was sent, and not certainly refused, that may have it decided."""
    doubtful: bool = False
    """Whether the answer to one that may have decided it is not known."""
    offered: bool = False
    action: str = COMMIT
    table: str = ""
    surveyed: bool = False
    """Whether its base is from the fence that was read beside its snapshot's listing."""
    follows: bool = False
    """Whether that listing shows an earlier commit under way, whose owner may decide this one."""
    earlier: frozenset[str] = frozenset()
    """The earlier instants that are under way by that listing."""

    def see(self, fence: GroupFence) -> None:
        """Raise the base to the last decision up to which its snapshot has all."""
        self.table = fence.table
        self.base = max(self.base, seen_until(
            fence, lambda each: each in self.seen or each <= self.horizon
        ))  # fmt: skip

    def offer(self) -> Offer:
        return Offer(
            self.instant, self.base, self.writes, digest(self.body), self.schema,
            self.grows_schema, reserved=self.listed, blind=self.blind, table=self.table,
            action=self.action, body=packed(self.body),
        )  # fmt: skip


def names_of(fence: GroupFence) -> TimelineNames:
    """Version 6 has no completion times, and other names."""
    return V6 if fence.completion is None else V9


def timeline_key(names: TimelineNames, instant: str, state: str) -> str:
    return f"{names.folder}{instant}.{state}"


def completed_key(each: GroupDecision) -> str:
    """In table version 9 with the completion time that the fence gave it."""
    names = V9 if each.completion else V6
    return names.completed(each.instant, each.action, each.completion or None)


def plain_keys(entries: Iterable[ListEntry]) -> frozenset[str]:
    """Of a listing, with the same names for a commit, an overwrite and a clustering."""
    return frozenset(each.key.replace(f".{OVERWRITE}.inflight", ".inflight")
                     .replace(f".{CLUSTERING}.inflight", ".inflight")
                     .replace(f".{OVERWRITE}", ".commit") for each in entries)  # fmt: skip


def instant_in(key: str) -> str:
    return key.rpartition("/")[2][:INSTANT_DIGITS]


# --- knowing the fence ----------------------------------------------------------------------------


def has_gap(before: GroupFence | None, fence: GroupFence) -> bool:
    """Whether decisions may have left the window unseen: the listing must then be newer."""
    return before is None or not reaches(fence, before.last)


def look(client: GroupClient) -> Procedure[GroupView]:
    """The listing and the fence, read in parallel; a gap between two fences costs a listing."""
    before, sent_ms = client.known, (yield WallMs())
    entries, (fence, version), *_ = yield Parallel(
        (list_instants(client), read_group_fence(), *expected_offers(client))
    )
    client.took(sent_ms, (yield WallMs()))
    if has_gap(before, fence):
        entries = yield from list_instants(client)
    client.knows(fence, version)
    decided = known_decisions(before, fence)
    versions = {each.key: each.version for each in entries if each.key.endswith(".offer")}
    if len(client.read) > OFFERS_MAX:
        client.read.clear()
    view = GroupView(fence, version, decided, plain_keys(entries), client.horizon, versions,
                     client.read, client.archived_as)  # fmt: skip
    done = view.completed()
    client.proven |= {each.seq for each in fence.window if each.kind == COMMIT
                      and (each.instant in done or each.instant <= client.horizon)}  # fmt: skip
    client.bodies = {each: body for each, body in client.bodies.items()
                     if each not in done and each > client.horizon}  # fmt: skip
    return view


def expected_offers(client: GroupClient) -> list[Procedure[None]]:
    """Reads of the offers that a listing beside them may show: then they need no reads after it."""
    client.coming -= {each.instant for each in (client.known.window if client.known else ())}
    keys = {timeline_key(client.names, each, "offer") for each in client.coming}
    unread = sorted(keys - {key for key, _ in client.read})
    return [read_offer(client.read, key) for key in unread[:EXPECTED_MAX]]


def read_offer(offers: Offers, key: str) -> Procedure[None]:
    found = yield from read(key)
    if isinstance(found, Found):
        offers[key, found.version] = parse_offer(found.body)


def look_whole(client: GroupClient) -> Procedure[GroupView]:
    """The same, again if it may lack a commit that was archived before the listing, and that the
    fence beside it does not call archived yet.
    """
    view = yield from look(client)
    for _ in range(TURNS_MAX):
        if (yield from archived_by_now(view)) <= view.fence.archived:
            return view
        view = yield from look(client)
    raise TableError("the timeline", "is archived faster than it is listed", "try again")


def archived_by_now(view: GroupView) -> Procedure[str]:
    """Up to which instant commits may have left the timeline before this view listed it."""
    found = yield from read(FENCE_KEY, unless=view.version, limit=FENCE_BYTES_MAX)
    newer = parse_group_fence(found.body) if isinstance(found, Found) else view.fence
    return max(view.fence.archived, newer.archived)


def list_instants(client: GroupClient) -> Procedure[list[ListEntry]]:
    """Those after its horizon."""
    after = f"{client.names.folder}{client.horizon}~" if client.horizon else ""
    return (yield from listing(client.names.prefix, after=after))


def view_beside(
    client: GroupClient, listed: ListedBeside, keys: frozenset[str]
) -> GroupView | None:
    """The listing of the commit under way, and the fence; None if a decision may be missing."""
    before, fence = listed.before, listed.fence
    if client.known is None or before is None or fence is None:
        return None
    if fence.round > client.known.round:
        client.contended = CONTENDED_FOR
        client.knows(fence, listed.version)
    if has_gap(before, client.known):
        return None
    client.wins = 0
    decided = known_decisions(before, client.known)
    return GroupView(client.known, client.version, decided, keys, client.horizon)


def known_decisions(before: GroupFence | None, fence: GroupFence) -> dict[str, GroupDecision]:
    """Those of both windows: what the listing is too old to show stands in one of them."""
    window = (*(before.window if before else ()), *fence.window)
    return {each.instant: each for each in window}


def outcome(view: GroupView, instant: str) -> Procedure[str]:
    """`commit`, another decision's kind, or '': not decided at this fence.

    What may be archived, or was begun before a switch of the mode, is certainly over, and the
    timeline need not show how.
    """
    if decision := view.decided.get(instant):
        return decision.kind
    kind = yield from recorded_outcome(view, instant)
    if not kind and is_over(view.fence, instant):
        kind = yield from view.archived_as(instant)
    return kind


def recorded_outcome(view: GroupView, instant: str) -> Procedure[str]:
    """What the timeline says of an instant that is in no window."""
    if is_completed(view, instant):
        return COMMIT
    key = timeline_key(view.names, instant, "offer")
    if view.read.get((key, view.versions.get(key))):
        return ""  # it has been read, or written, and is an offer still
    if key in view.keys and isinstance(found := (yield from read(key)), Found):
        return REFUSED if is_tombstone(found.body) else ""
    return ""


# --- a writer -------------------------------------------------------------------------------------


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
    """What was decided on it meanwhile: a service may have rolled it back.

    Its owner's snapshot then lies after that decision, and would never find it again.
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

    `view` has a listing that was made with the reservation: what it shows as offered is decided
    with this commit. A client without one lists after `FAST_RUN_MAX` commits in a row.
    """
    if kind := decision_in(client.known, write.instant):
        return kind
    client.bodies[write.instant] = write.body
    for oldest in list(client.bodies)[:-OWN_BODIES_MAX]:  # its publisher reads the inflight file
        client.bodies.pop(oldest, None)
    if write.only:
        return (yield from decided_over(client, write))
    shared = client.process is not None and client.process.is_shared(client.known)
    if view is None and (shared or looks_first(client, write)):
        client.wins = 0
        view = yield from look(client)
    elif view is None and client.known and goes_alone(client, client.known, write):
        view = view_of_known(client, client.known)
    if view is not None:
        if kind := (yield from outcome(view, write.instant)):
            return kind
        write.see(view.fence)
        if may_judge(view.fence, write.offer()) and (yield from is_due(client, write)):
            others = yield from open_offers(view)
            decides = client.process.decide if client.process else decide_alone
            won = yield from decides(client, view, others, write)
            client.wins += won
            client.contended = CONTENDED_FOR if others else client.contended
            if won and (kind := decision_in(client.known, write.instant)):
                return kind
            write.follows = write.blind and client.contended > 0
    client.wins = 0
    if not write.listed and (kind := (yield from list_before_offer(client, write))):
        return kind
    return (yield from offer(client, write))


def view_of_known(client: GroupClient, known: GroupFence) -> GroupView:
    return GroupView(known, client.version, {}, frozenset(), client.horizon,
                     archived_as=client.archived_as)  # fmt: skip


def decided_over(client: GroupClient, write: GroupWrite) -> Procedure[str]:
    """Have a rewrite without a listing decided over the very fence that its snapshot shows.

    A commit that it overlooked may hold its keys in another file group, which no fence compares. So
    if that fence was replaced it is withdrawn, and begins again with a listing.
    """
    known = client.known
    if known and client.version == write.only and goes_alone(client, known, write):
        write.see(known)
        if may_judge(known, write.offer()):
            client.wins += yield from decide_alone(client, view_of_known(client, known), [], write)
            if kind := decision_in(client.known, write.instant):
                return kind
    client.wins, client.timeline = 0, None
    newest = client.known.newest if client.known else ""
    return (yield from withdraw(client, write.instant, why="late", by=newest))


def looks_first(client: GroupClient, write: GroupWrite) -> bool:
    """Whether a commit lists before it is sent: then it is decided with what others have offered.

    One that follows another is offered at once, and decided by the owner of that other one.
    """
    if client.known is None or client.wins >= FAST_RUN_MAX:
        return True
    return write.surveyed and client.contended > 0 and not write.follows


def is_due(client: GroupClient, write: GroupWrite) -> Procedure[bool]:
    """Whether a commit is sent before it is offered.

    Where the fence takes one write a second, it is offered at once, for the next one. A client that
    meets no other one waits for that instead.
    """
    early_ms = client.rate.early_ms(client.boot_ms())
    if early_ms and not client.contended and not write.earlier:
        yield Sleep(early_ms / 1000)
        return True
    return not early_ms and not (client.is_slow and write.earlier)


def list_before_offer(client: GroupClient, write: GroupWrite) -> Procedure[str]:
    """An instant that was reserved ahead is offered only if no later one is completed by now.

    Otherwise it is withdrawn, since a reader of increments may have passed it. While the very fence
    was replaced that its owner knew, no listing was needed: nothing had been decided since.
    """
    view = yield from look(client)
    if kind := (yield from outcome(view, write.instant)):
        return kind
    newest = max(view.completed(), default="")
    if newest >= write.instant:
        return (yield from withdraw(client, write.instant, why="late", by=newest))
    write.listed = True
    return ""


def decision_in(fence: GroupFence | None, instant: str) -> str:
    window = fence.window if fence else ()
    return next((each.kind for each in window if each.instant == instant), "")


def prove_data(objects: dict[str, bytes]) -> Procedure[None]:
    """Each object is proven before the instant is offered: any client may then decide it."""
    yield from all_of([create(key, body) for key, body in objects.items()])


def goes_alone(client: GroupClient, known: GroupFence, write: GroupWrite) -> bool:
    """Whether no listing is needed: every decision since the reservation is known."""
    undecided = all(each.instant != write.instant for each in known.window)
    fresh = not client.contended and client.wins < FAST_RUN_MAX
    in_order = write.listed or known.newest < write.instant
    return fresh and in_order and reaches(known, write.base) and undecided


def offer(client: GroupClient, write: GroupWrite) -> Procedure[str]:
    """Offer the instant, then help to decide what is offered until it is decided.

    The owner of the oldest offer decides; the others wait for it, and decide if it does not. A
    client that loses the fence finds its decision in the fence that it reads next, or tries again.
    """
    if not write.blind and not write.surveyed:  # its offer says what its owner has seen
        write.see((yield from look(client)).fence)
    write.sent = write.offered = True
    key, body = offered_as(client.names, write.offer(), write.body)
    view: GroupView | None = None
    if write.follows or client.is_slow:
        sent_ms = yield WallMs()
        made = yield from create(key, body)
        client.took(sent_ms, (yield WallMs()))
    else:
        made, view = yield Parallel((create(key, body), look(client)))
    settled: Version | Found | Missing = made
    if isinstance(settled, Found):  # an earlier call offered it, or a tombstone refuses it
        before = parse_offer(settled.body)
        write.base, settled = (before.base if before else write.base), settled.version
    version = settled if isinstance(settled, Version) else ""
    if version and settled is made:
        client.read[key, version] = write.offer()
    if view is None:
        trips = APPEND_TRIPS if write.blind else UPSERT_TRIPS
        waits = await_decision(client, write.instant, trips, write.earlier)
        if client.is_slow:
            waits = await_round(client, write.instant, write.earlier)
        if kind := (yield from waits):
            return kind
    for turn in range(TURNS_MAX):
        if turn or view is None:
            view = yield from look(client)
        if kind := (yield from outcome(view, write.instant)):
            return kind
        if not may_judge(view.fence, write.offer()):
            if (yield from missed_conflict(client, view, write)):
                return (yield from withdraw(client, write.instant, why="conflict"))
            write.base = view.fence.last
            body = format_offer(write.offer())
            settled = yield from settle_write(key, body, IfVersion(version))
            if isinstance(settled, Found | Missing):
                continue  # a tombstone: the next look finds the decision
            version = settled
            client.read[key, version] = write.offer()
        if not has_room(view.fence, client.proven):
            yield from make_room(client, view.fence)  # no more decisions are taken
            continue
        if kind := (yield from take_turn(client, view, write, turn)):
            return kind
    return (yield from withdraw(client, write.instant))


def take_turn(client: GroupClient, view: GroupView, write: GroupWrite, turn: int) -> Procedure[str]:
    """Decide what is open, or wait for the owner of an older offer; '' if nothing was decided."""
    blind, keys = offered(view)
    older = {*(each.instant for each in blind), *map(instant_in, keys)}
    older = {each for each in older if each < write.instant}
    early_ms = client.rate.early_ms(client.boot_ms())
    if early_ms > ROUND_TRIPS * client.trip_ms or (client.is_slow and turn < PATIENCE_MAX):
        if older or early_ms:
            return (yield from await_round(client, write.instant, older))
    if turn < PATIENCE_MAX and older:
        return (yield from await_decision(client, write.instant, LOOK_TRIPS, older))
    others = yield from open_offers(view)
    won = yield from decide_once(client, view, [write.offer(), *others], write)
    client.contended = CONTENDED_FOR if others else client.contended
    if won:
        return decision_in(client.known, write.instant)
    if turn >= PATIENCE_MAX:
        yield Sleep((yield from pause_s(turn)))
    return ""


def await_decision(
    client: GroupClient, instant: str, trips: tuple[float, ...], older: Collection[str] = ()
) -> Procedure[str]:
    """Read the fence at the pace of round trips, until it decides this instant or they have passed.

    The owner of the oldest offer sees the others in its listing, and then replaces the fence:
    earlier reads are useless. Once every `older` one is decided, it is this client's turn.
    """
    left = set(older)
    for each in trips:
        full = client.known is not None and not has_room(client.known, client.proven)
        least = min(len(left), FULL_TRIPS) if full else 0  # one is decided as one is published
        yield Sleep(client.trip_ms / 1000 * max(each, least))
        found = yield from read(FENCE_KEY, unless=client.version, limit=FENCE_BYTES_MAX)
        if isinstance(found, Found):
            fence = parse_group_fence(found.body)
            client.knows(fence, found.version)
            left -= {each.instant for each in fence.window}
            if (kind := decision_in(fence, instant)) or not left:
                return kind  # decided, or it is this client's turn
        else:
            client.rate.unchanged(client.version, client.boot_ms())
    return ""


def await_round(client: GroupClient, instant: str, older: Collection[str]) -> Procedure[str]:
    """Read the fence once its next replacement is due, where it takes one write a second.

    The owner of the oldest offer lists just before that, and decides for all who have offered by
    then. The others read what it decided. If it is late, it is the next one's turn.
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


def offered_as(names: TimelineNames, offer: Offer, body: bytes = b"") -> tuple[str, bytes]:
    """The object that offers it; a blind offer says everything by its name.

    Only who publishes it reads what it contains, in place of an inflight file.
    """
    if offer.blind:
        return names.folder + blind_name(offer), body if offer.body else b""
    return timeline_key(names, offer.instant, "offer"), format_offer(offer)


def pause_s(turn: int) -> Procedure[float]:
    """Longer with each lost turn, and different for each client."""
    dice = zlib.crc32((yield Unique()).encode()) / 2**32
    return dice * min(PAUSE_LONGEST_S, PAUSE_FIRST_S * 2.0**turn)


def missed_conflict(client: GroupClient, view: GroupView, write: GroupWrite) -> Procedure[bool]:
    """Whether a commit since the owner's snapshot wrote a file group of this write.

    So it counts if a commit may be archived that the snapshot lacks: then nothing shows its files.
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
        own = [each for each in view.keys if instant_in(each) == instant]
        keys = [client.names.inflight(instant, each) for each in (COMMIT, OVERWRITE, CLUSTERING)]
        for key in [each for each in own if each.endswith(".commit")] + keys:
            if isinstance(found := (yield from read(key)), Found):
                break
        else:
            return True
        if not taken_back_by(key, found.body) and clash(write.writes, client.groups_of(found.body)):
            return True
    return False


def withdraw(
    client: GroupClient, instant: str, *, why: str = "withdrawn", by: str = ""
) -> Procedure[str]:
    """A decision against the client's own offer; another client's decision may come first."""
    for _ in range(TURNS_MAX):
        view = yield from look(client)
        if kind := (yield from outcome(view, instant)):
            return kind
        after = yield from refused_in(client, view.fence, instant, why, by)
        if (yield from replace_group_fence(client, view, after)):
            return REFUSED
    doubt = "it is offered and not decided: another client may still commit it"
    raise CommitUnknown(instant, doubt, (FENCE_KEY, timeline_key(client.names, instant, COMMIT)))


# --- deciding -------------------------------------------------------------------------------------


def open_offers(view: GroupView) -> Procedure[list[Offer]]:
    """Offers that no decision in the windows, no completed file and no tombstone has ended."""
    found, keys = offered(view)
    listed = {key: (key, view.versions.get(key)) for key in keys}
    unread = [key for key in keys if listed[key] not in view.read]
    for key, each in zip(unread, (yield from all_of([read(key) for key in unread])), strict=True):
        if isinstance(each, Found):
            listed[key] = key, each.version
            view.read[listed[key]] = parse_offer(each.body)
    return found + [offer for key in keys if (offer := view.read.get(listed[key]))]


def offered(view: GroupView) -> tuple[list[Offer], list[str]]:
    """The open offers that say all by their names, and the keys of those that must be read.

    Without those that were read before, and were no offer: a tombstone stays one.
    """
    found, keys = list[Offer](), list[str]()
    for key in sorted(view.keys):
        if key.endswith(".offer") and is_open(view, instant_in(key)):
            ended = view.read.get((key, view.versions.get(key)), key) is None
            keys += [] if ended else [key]
        elif key.endswith(".append") and (by_name := blind_offer(key.rpartition("/")[2])):
            refused = timeline_key(view.names, by_name.instant, "offer") in view.keys
            found += [by_name] if is_open(view, by_name.instant) and not refused else []
    return found, keys


def is_open(view: GroupView, instant: str) -> bool:
    started = any(timeline_key(view.names, instant, each) in view.keys for each in STARTED)
    return started and instant not in view.decided and not is_completed(view, instant)


def is_completed(view: GroupView, instant: str) -> bool:
    if timeline_key(view.names, instant, COMMIT) in view.keys:
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


def decide_alone(
    client: GroupClient, view: GroupView, others: list[Offer], write: GroupWrite
) -> Procedure[bool]:
    """Decide this commit, and what others have offered; False: nothing is decided yet."""
    return (yield from decide_once(client, view, [write.offer(), *others], write))


def decide_once(
    client: GroupClient, view: GroupView, offers: list[Offer], write: GroupWrite | None = None
) -> Procedure[bool]:
    """Replace this very fence by one that decides these offers; False: that decided nothing yet.

    Sent once (not `settle_write`). Without an answer it may land later; then the fence that is read
    next shows what it decided. `write` is the caller's own among the offers.
    """
    if early_ms := client.rate.early_ms(client.boot_ms()):
        yield Sleep(early_ms / 1000)
    attempt = yield Unique()
    client.name = client.name or attempt
    after = decide(
        view.fence, offers, attempt=attempt, combiner=publisher(client, view.fence),
        timely=timely(view), proven=client.proven, now=instant_of((yield WallMs())),
        window_max=client.window_max,
    )  # fmt: skip
    if after.last == view.fence.last:
        return False
    replacing = Put(FENCE_KEY, format_group_fence(after), IfVersion(view.version))
    sent_ms, began_ms = client.boot_ms(), (yield WallMs())
    beside, client.beside = client.beside if write else None, None
    answer, *_ = yield from all_of([answered(replacing, write), *([beside] if beside else [])])
    client.took(began_ms, (yield WallMs()))
    if isinstance(answer, Applied):
        client.knows(after, answer.version)
        client.knew_ms = sent_ms
        client.won.add(after.round)
        met = client.is_slow and len(offers) > 1  # it counts no lost fence then
        client.contended = CONTENDED_FOR if met else max(0, client.contended - 1)
        return True
    client.contended = CONTENDED_FOR
    if isinstance(answer, Throttled):
        client.rate.refused(view.version, client.boot_ms(), answer.retry_after_s)
    if isinstance(answer, Throttled) and not client.is_slow:
        yield Sleep(throttled_s(0, answer.retry_after_s))
    return False


def publisher(client: GroupClient, fence: GroupFence) -> str:
    """Who publishes what this client decides: whoever is at work, so that two do not do the same.

    A hint: what stays unpublished for a while is published by whoever waits for it.
    """
    all_done = proven_until(fence, client.proven) == fence.last
    return client.name if all_done or fence.combiner in ("", client.idle) else fence.combiner


def answered(request: Put, write: GroupWrite | None) -> Procedure[WriteAnswer]:
    """It counts as sent, also if Ctrl-C comes before the answer, unless it is certainly refused."""
    answer: WriteAnswer
    if write is None:
        answer = yield request
        return answer
    before, write.sent = write.sent, True
    try:
        answer = yield request
    except Exception:
        write.sent = before
        raise
    write.sent = before or not isinstance(answer, Throttled)
    write.doubtful |= isinstance(answer, Unknown)
    return answer


def replace_group_fence(client: GroupClient, view: GroupView, after: GroupFence) -> Procedure[bool]:
    settled = yield from settle_write(
        FENCE_KEY, format_group_fence(after), IfVersion(view.version), limit=FENCE_BYTES_MAX
    )
    if isinstance(settled, Found):  # replaced since; it may also have been by a successor of ours
        with suppress(TableError):  # the next look says what is wrong with it
            client.knows(parse_group_fence(settled.body), settled.version)
    if isinstance(settled, Found | Missing):
        return False
    client.knows(after, settled)
    client.won.add(after.round)
    return True


# --- publishing -----------------------------------------------------------------------------------


def publish(
    client: GroupClient, view: GroupView | None = None, *,
    beside: Procedure[GroupFence | None] | None = None,
) -> Procedure[GroupFence | None]:  # fmt: skip
    """Create the outcome files of all decisions: a round only after every earlier round.

    In table version 6 those of a round in parallel. In version 9 one by one, in the order of their
    completion times: a reader of increments that sees one has seen all before it.
    `beside` is carried out in parallel with the last ones; its result is returned.
    """
    view = view or (yield from look(client))
    left = [each for each in view.fence.window if not is_proven(view.fence, each, client.proven)]
    parts = rounds(replace(view.fence, window=tuple(left)))
    if view.fence.completion is not None:
        parts = [left[at : at + READ_AHEAD] for at in range(0, len(left), READ_AHEAD)]
    bodies = (yield from unpublished_bodies(client, view, parts[0])) if parts else {}
    for part, coming in pairwise(parts):
        work = publish_part(client, view, part, bodies)
        bodies, _ = yield Parallel((unpublished_bodies(client, view, coming), work))
    last = [publish_part(client, view, part, bodies) for part in parts[-1:]]
    beside = beside if len(left) >= BESIDE_LEAST else None
    done = yield from all_of([*last, *([beside] if beside else [])])
    newer: GroupFence | None = done[-1] if beside else None
    return newer


def publish_part(
    client: GroupClient, view: GroupView, part: list[GroupDecision], bodies: Mapping[str, bytes]
) -> Procedure[None]:
    for together in rounds(replace(view.fence, window=tuple(part))):
        met = yield from all_of([publish_one(client, view, each, bodies) for each in together])
        if any(met):
            yield from let_publish(client, view.fence, part)


def let_publish(
    client: GroupClient, fence: GroupFence, due: list[GroupDecision]
) -> Procedure[None]:
    """Another client publishes the same: leave some to it, and list what it has published."""
    left = [each for each in due if not is_proven(fence, each, client.proven)]
    if not is_publisher(client, fence):
        yield Sleep(client.trip_ms / 1000 * min(len(left), LEFT_MAX), client.closing)
    if len(left) > 1:
        yield from are_published(client, fence.table, left)


def make_room(client: GroupClient, fence: GroupFence) -> Procedure[None]:
    """Wait until some decisions are published; publish them if the client named for it does not.

    Otherwise each writer that waits would read and publish the same files.
    """
    left = [each for each in fence.window if not is_proven(fence, each, client.proven)]
    at_work = client.publishing.locked() if is_publisher(client, fence) else fence.combiner
    # A rollback has its tombstone already: waiting shows nothing, so all are looked at below.
    if left and left[0].kind == COMMIT and at_work and fence.combiner != client.idle:
        yield Sleep(client.trip_ms / 1000 * ROOM_TRIPS, client.closing)
        if (yield from is_published(client, fence.table, left[:1])):
            return
        client.idle = fence.combiner
    yield from publish(client)


def unpublished_bodies(
    client: GroupClient, view: GroupView, due: list[GroupDecision]
) -> Procedure[dict[str, bytes]]:
    """What the commits without a completed file will say in it, read in parallel."""
    left = [each for each in due
            if each.kind == COMMIT and not is_completed(view, each.instant)]
    own = {each.instant: body for each in left
           if (body := client.bodies.get(each.instant) or unpacked(each))}  # fmt: skip
    others = [each for each in left if each.instant not in own]
    found = yield from all_of([decided_body(view, each) for each in others])
    return own | {each.instant: body for each, body in zip(others, found, strict=True)}


def decided_body(view: GroupView, each: GroupDecision) -> Procedure[bytes]:
    """The content of its inflight file, or of an append's offer; b"" if neither is there.

    That offer's name has the columns of the fence, unless these have changed since.
    """
    by_name = Offer(each.instant, 0, sha256=each.sha256, blind=True, table=view.fence.table,
                    schema=each.schema or view.fence.schema)  # fmt: skip
    keys = [view.names.inflight(each.instant, each.action)]
    if each.writes is not None and not each.writes:
        keys.insert(0, view.names.folder + blind_name(by_name))
    if body := (yield from first_with(each.sha256, keys)):
        return body
    entries = yield from listing(f"{view.names.folder}{each.instant}.")
    keys = [entry.key for entry in entries if entry.key.endswith(".append")]
    return (yield from first_with(each.sha256, keys))


def first_with(sha256: str, keys: Iterable[str]) -> Procedure[bytes]:
    """The first content with this digest; b"" if none of these objects has it."""
    for key in keys:
        found = yield from read(key)
        if isinstance(found, Found) and digest(found.body) == sha256:
            return found.body
    return b""


def rounds(fence: GroupFence) -> list[list[GroupDecision]]:
    if fence.completion is not None:
        return [[each] for each in fence.window]
    return [list(each) for _, each in groupby(fence.window, lambda decision: decision.round)]


def publish_one(
    client: GroupClient, view: GroupView, each: GroupDecision, bodies: Mapping[str, bytes]
) -> Procedure[bool]:
    """Whether its completed file was there before."""
    met = False
    if is_proven(view.fence, each, client.proven) or each.instant <= client.archived:
        return met
    if each.kind != COMMIT:
        yield from bury(client.names, each.instant)
    elif not is_completed(view, each.instant):
        body = bodies.get(each.instant, b"")
        if digest(body) != each.sha256:
            raise TableError(
                each.instant,
                f"is decided, and {view.names.inflight(each.instant, each.action)} is missing or "
                "is not what was decided, and no offer has it",
                "restore that object, or the offer, from its versions",
            )

        def is_ours(there: bytes) -> bool:
            nonlocal met
            met = there == body
            return met

        settled = yield from settle_write(completed_key(each), body, IfAbsent(), is_ours=is_ours)
        if isinstance(settled, Found):
            raise TableError(
                completed_key(each), "differs from its inflight file, which the fence names",
                "restore one of them: until then nothing more is published",
            )
    client.saw(view.fence.table, [each.seq])
    client.bodies.pop(each.instant, None)
    return met


def publish_round(client: GroupClient, fence: GroupFence, mine: GroupDecision) -> Procedure[bool]:
    """Publish `mine`, with all that this client knows to be decided.

    The client that the fence names goes on with what others have decided by then. False: the
    table is gone, or another one was made in its place, so nothing is published.
    """
    for _ in range(PUBLISHING_TURNS_MAX):
        if mine_alone := client.publishing.acquire(blocking=False):
            break
        yield Sleep(client.trip_ms / 1000)  # another thread of this client is at it
        if is_proven(fence, mine, client.proven):
            return True
    try:
        more: GroupFence | None = fence
        while more is not None:
            fence = more
            view = GroupView(fence, client.version, {}, frozenset(), client.horizon)
            left = [e for e in fence.window if not is_proven(fence, e, client.proven)]
            if len(left) > 1 and left[0].round < fence.round - FRESH_ROUNDS:
                yield from are_published(client, fence.table, left)  # perhaps by others
            if not (yield from is_there(client, fence.table, client.boot_ms() - SURE_MS)):
                return False
            newer = yield from publish(client, view, beside=fence_beside(client, fence))
            more = newer or (yield from to_be_published(client, fence))
    finally:
        if mine_alone:
            client.publishing.release()
    return (yield from stays(client, fence, client.boot_ms() - SURE_MS))


def fence_beside(client: GroupClient, done: GroupFence) -> Procedure[GroupFence | None]:
    """What was decided since, read while this client publishes what was decided before.

    Also the first inflight files that are to be published then.
    """
    if not client.contended or not is_publisher(client, done):
        return None
    began_ms = client.boot_ms()
    found = yield from read(FENCE_KEY, limit=FENCE_BYTES_MAX)
    if not isinstance(found, Found) or (fence := parse_group_fence(found.body)).table != done.table:
        return None
    client.knew_ms = max(client.knew_ms, began_ms)
    client.archived = max(client.archived, fence.archived)
    if not is_publisher(client, fence) or fence.last == done.last:
        return None
    new = [each for each in fence.window if each.seq > done.last][:READ_AHEAD]
    view = GroupView(fence, found.version, {}, frozenset())
    client.bodies |= yield from unpublished_bodies(client, view, new)
    return fence


def to_be_published(client: GroupClient, done: GroupFence) -> Procedure[GroupFence | None]:
    """What was decided since, while the fence names this client and others commit too.

    It is read again a few times, more and more seldom. `client.known` is not changed: its main
    thread works with that.
    """
    known, version = done, ""
    for trips in (0, *PUBLISHER_TRIPS):
        yield Sleep(client.trip_ms / 1000 * trips, client.closing)
        if client.known is not None and client.known.round > known.round:
            known = client.known
        elif trips and client.contended and not client.closing.is_set():
            found = yield from read(FENCE_KEY, unless=version or None, limit=FENCE_BYTES_MAX)
            if isinstance(found, Found):
                known, version = parse_group_fence(found.body), found.version
        if known.table != done.table or not is_publisher(client, known):
            return None
        if known.last > done.last:
            return known
    return None


def is_publisher(client: GroupClient, fence: GroupFence) -> bool:
    return bool(client.name) and fence.combiner == client.name


def stays(client: GroupClient, fence: GroupFence, since_ms: int) -> Procedure[bool]:
    """Whether what was published since then is in the table of this fence; else delete it again."""
    if (yield from is_there(client, fence.table, since_ms)):
        return True
    for each in fence.window:
        found = yield from read(completed_key(each))
        if isinstance(found, Found) and digest(found.body) == each.sha256:
            if (yield from is_there(client, fence.table, since_ms)):  # it was only moved away
                return True
            yield from delete(completed_key(each), found.version)
    return False


def is_there(client: GroupClient, table: str, since_ms: int) -> Procedure[bool]:
    """Whether the table is still there, by its fence if that was not seen since then.

    A paused publisher must not put a commit into the table that was made in its place.
    """
    known, version = client.known, client.version
    same = known is not None and known.table == table
    if same and client.knew_ms >= since_ms:
        return True
    began_ms = client.boot_ms()
    found = yield from read(FENCE_KEY, unless=version if same else None, limit=FENCE_BYTES_MAX)
    if isinstance(found, Found):
        read_fence = parse_group_fence(found.body)
        same = read_fence.table == table
        client.archived = max(client.archived, read_fence.archived if same else "")
    if isinstance(found, Missing):
        return (yield from has_lost_fence(client, table))
    if same:
        client.knew_ms = max(client.knew_ms, began_ms)
    return same


def has_lost_fence(client: GroupClient, table: str) -> Procedure[bool]:
    """Whether the table is there, and its fence is not: somebody may put the fence back.

    A new table gets its fence before its properties. One that is being deleted soon has neither.
    """
    yield Sleep(SURE_MS / 1000, client.closing)
    found = yield from read(PROPERTIES_KEY, limit=PROPERTIES_BYTES_MAX)
    if not isinstance(found, Found) or FENCE_FORMAT not in parse_properties(found.body):
        return False
    again = yield from read(FENCE_KEY, limit=FENCE_BYTES_MAX)
    return not isinstance(again, Found) or parse_group_fence(again.body).table == table


def unproven(client: GroupClient, fence: GroupFence, mine: GroupDecision) -> list[GroupDecision]:
    """Up to `mine`, what this client does not know to be published."""
    every = [*(each for each in fence.window if each.seq < mine.seq), mine]
    return [each for each in every if not is_proven(fence, each, client.proven)]


def are_published(client: GroupClient, table: str, left: list[GroupDecision]) -> Procedure[bool]:
    """Whether the last of these is published; notes each that is. By one listing."""
    if len(left) == 1:
        return (yield from is_published(client, table, left))
    keys = {each.key for each in (yield from list_instants(client))}
    there = [each for each in left if completed_key(each) in keys]
    client.saw(table, [each.seq for each in there])
    return left[-1] in there


def is_published(client: GroupClient, table: str, left: list[GroupDecision]) -> Procedure[bool]:
    """Whether the last of these is published, by one small read.

    If it is a commit, those of earlier rounds are published, too; in table version 9 all before it.
    """
    last = left[-1]
    commit, refused = last.kind == COMMIT, timeline_key(client.names, last.instant, "offer")
    found = yield from read(completed_key(last) if commit else refused)
    if not isinstance(found, Found) or (not commit and not is_tombstone(found.body)):
        return False
    before = {each.seq for each in left if last.completion or each.round < last.round}
    client.saw(table, {last.seq} | (before if commit else set()))
    return True


def bury(names: TimelineNames, instant: str) -> Procedure[None]:
    """The tombstone of an instant that the fence has decided against."""
    key, body = timeline_key(names, instant, "offer"), tombstone(instant)
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
    yield from bury(client.names, instant)
    for entry in (yield from listing(prefix)):
        yield from delete(entry.key)
    for state in ("inflight", "requested"):
        yield from delete(timeline_key(client.names, instant, state))
    return True


def look_at_one(client: GroupClient, instant: str) -> Procedure[GroupView]:
    """The fence, and then one instant's own files: what left the window before has its outcome."""
    fence, version = yield from read_group_fence()
    entries = yield from listing(client.names.folder + instant)
    decided = {each.instant: each for each in fence.window}
    return GroupView(fence, version, decided, plain_keys(entries), archived_as=client.archived_as)


def decide_against(
    client: GroupClient, view: GroupView, instant: str, kind: str
) -> Procedure[bool]:
    """Whether the fence has decided against the instant, now or before (`kind`)."""
    if kind:
        return True
    after = yield from refused_in(client, view.fence, instant)
    return (yield from replace_group_fence(replace(client), view, after))


def refused_in(
    client: GroupClient, fence: GroupFence, instant: str, why: str = "", by: str = ""
) -> Procedure[GroupFence]:
    """The fence that decides against the instant. It has room: a fence that grew with each dead
    writer would in the end be too long to be read, and nobody could commit any more.
    """
    attempt = yield Unique()
    after = refuse(fence, instant, attempt, why=why, by=by, proven=client.proven)
    if len(after.window) > WINDOW_MOST:
        yield from publish(client)
        after = refuse(fence, instant, attempt, why=why, by=by, proven=client.proven)
    return after


# --- readers --------------------------------------------------------------------------------------


def snapshot(client: GroupClient) -> Procedure[tuple[int, frozenset[str]]]:
    """All that was decided at one fence, and the number of its last decision."""
    view = yield from look(client)
    return view.fence.last, view.commits()


def increment(names: TimelineNames) -> Procedure[str]:
    """The instant up to which a reader may pull: nothing at or before it is pending.

    Table version 6: the listing alone decides. A decided instant that is not published holds back
    the reader like any other pending one. Version 9: the greatest completion time in the listing.
    """
    entries = yield from listing(names.prefix)
    times = [each.key.rpartition("_")[2][:INSTANT_DIGITS] for each in entries
             if "_" in each.key and each.key.endswith(".commit")]  # fmt: skip
    if times:
        return max(times)
    view = GroupView(GroupFence(""), "", {}, frozenset(each.key for each in entries))
    return pull_until(view)


def pull_until(view: GroupView) -> str:
    first = min(view.pending(), default="~")
    return max((each for each in view.completed() if each < first), default="")
