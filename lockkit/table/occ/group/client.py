"""What a client of a group commit knows, and what it writes: hints for its next requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from lockkit.protocol.outcome import Found, Version
from lockkit.runtime import Procedure
from lockkit.stores import ListEntry
from lockkit.table.errors import BrokenFence, TableChanged
from lockkit.table.format.kept import kept
from lockkit.table.format.layout import CommitFiles, FileGroup, parse_commit
from lockkit.table.format.schema_reading import arrow_schema
from lockkit.table.format.timeline import V6, V9, TimelineNames
from lockkit.table.occ.fence import COMMIT, FENCE_KEY, NO_INSTANT, digest
from lockkit.table.occ.group.archived import ArchivedAs, archived_outcome
from lockkit.table.occ.group.decision import (
    GROUP_WINDOW_MAX,
    WHOLE_TABLE,
    GroupDecision,
    GroupFence,
    Offer,
    seen_until,
    whole,
)
from lockkit.table.occ.group.fence import packed
from lockkit.table.occ.group.rate import FenceRate

OVERWRITE, CLUSTERING = "replacecommit", "clustering"
COMPLETED = {CLUSTERING: OVERWRITE}
"""The name of a completed action, where it differs from that of the pending one."""
TURNS_MAX = 40
FOLLOWS_MS = 2_000
"""A pending instant that is older may be a dead writer's."""
TRIP_LEAST_MS, TRIP_MOST_MS = 5, 500
INSTANT_DIGITS = 17
CONTENDED_FOR = 4
FAST_RUN_MAX = 4
"""After at most so many commits without a listing a writer lists, and decides what others
offered."""
LOST = 2
"""An append that lost the fence so often in a row is offered beside its next replacement."""


def groups_of(body: bytes) -> frozenset[FileGroup]:
    """What a commit writes, replaces and empties, as the fence names it."""
    return named(parse_commit("", "an inflight file", body))


def named(files: CommitFiles) -> frozenset[FileGroup]:
    emptied = files.overwrites
    marks = {WHOLE_TABLE} if emptied.whole_table else set(map(whole, emptied.partitions))
    return files.writes | marks


@kept(16, 100_000)
def schema_id(found: str | None) -> str:
    """Equal for equal columns, in any order and form."""
    columns = sorted((each.name, str(each.type)) for each in arrow_schema(found)) if found else []
    return digest(repr(columns).encode())[:16] if columns else ""


@dataclass(slots=True)
class GroupClient:
    """One process's last view of the fence: a hint for its next request."""

    groups_of: Callable[[bytes], frozenset[FileGroup]] = groups_of
    """The file groups that an inflight file names."""
    window_max: int = GROUP_WINDOW_MAX
    archived_as: ArchivedAs = archived_outcome
    names: TimelineNames = V9
    """The data files of the table, in the form of its version."""
    horizon: str = ""
    """Up to this instant every commit is over and published; listings begin after it."""
    archived: str = NO_INSTANT
    """Up to this instant nothing is published any more: it may have left the timeline."""
    known: GroupFence | None = None
    version: Version = ""
    overtaken: int = 0
    """So many of its next rewrites list before they make their files, because another commit
    passed one that listed beside its files."""
    contended: int = 0
    """For so many more commits it expects other clients to replace the fence."""
    in_vain: int = 0
    """For how many more rewrites it does not wait for the offers of others (`gather`)."""
    lost: int = 0
    """How many of its appends in a row have lost the fence to another client."""
    soon_trips: float = 0.5
    """An append that mostly loses the fence first looks so many round trips after its offer."""
    near_ms: int = 0
    """The shortest of its latest round trips; `trip_ms` may have waited for a processor."""
    trip_ms: int = TRIP_LEAST_MS
    """How long the last round trip took."""
    wins: int = 0
    run: int = 1
    """After so many commits without a listing it lists: soon after it has met another client, then
    ever later, up to `FAST_RUN_MAX`."""
    won: set[int] = field(default_factory=set)
    """Rounds of the window that this client decided."""
    checked_ms: int = 0
    """When the table's properties were read last, by this client's clock."""
    proven: set[int] = field(default_factory=set)
    """Numbers of the decisions whose outcome file this client has seen or written."""

    name: str = ""
    """The name of this client in the fence while it publishes; set with its first decision."""
    publishing: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread of this client that publishes."""
    watches: bool = True
    """Whether it then looks for what others decide next, and publishes it."""
    idle: str = ""
    """The client that the fence names, if it does not publish. If the fence names it again after
    another one, it is at work again."""
    bodies: dict[str, bytes] = field(default_factory=dict)
    """Its own inflight files that are not published yet."""
    behind: list[GroupDecision] = field(default_factory=list)
    """Acknowledged commits that are still to be published."""
    read: dict[tuple[str, Version | None], Offer | None] = field(default_factory=dict)
    """Offers of others. An object that is listed with the same version has the same content."""
    beside: Procedure[None] | None = None
    """What is sent in parallel with this client's next replacement of the fence."""
    ahead: list[Any] = field(default_factory=list)
    """The instant that is reserved for the next commit, and when its request was sent."""
    reserves: bool = False
    """Whether it reserves instants ahead; unused reservations are then given back."""
    timeline: Any = None
    """What the last listing of a write showed."""
    listed_after: str = ""
    """The instant after which that listing began."""
    met: dict[str, int] = field(default_factory=dict)
    """Pending instants that it gave way to, and when it first met each of them."""
    own: set[str] = field(default_factory=set)
    """Instants that this process works on; its services leave them alone."""
    process: Any = None
    """The threads of its process that commit to this table, each with its own client
    (`GroupProcess`)."""
    thread: Callable[[], int] = threading.get_ident
    held: threading.Lock = field(default_factory=threading.Lock)
    """Held by its thread during a commit; each commit has another one."""
    boot_ms: Callable[[], int] = int
    """This process's monotonic clock."""
    writing: GroupWrite | None = None
    """The latest commit of this client: after an interrupt it shows whether the commit was
    offered."""
    acked_ms: int = -(10**9)
    """When its last commit was acknowledged."""
    knew_ms: int = -(10**9)
    """When the fence that it knows was sent or read."""
    rate: FenceRate = field(default_factory=FenceRate)
    """How soon the fence may be replaced again."""
    place_ms: int = -1
    """The place of its last instant. The next one keeps a distance of whole periods
    (`spread_ms`)."""
    answer_trips: float = 2.0
    """So many round trips after its offer an upsert first looks for the decision."""
    gather_trips: float = 2.5
    """The first upsert of a round waits so many round trips for the offers of the others."""
    closing: threading.Event = field(default_factory=threading.Event)
    """Set when the client closes: nobody waits for another client's work any more."""

    def knows(self, fence: GroupFence, version: Version) -> None:
        """Raises `TableChanged` if it is the fence of another table, made in this one's place."""
        if self.known is not None and self.known.table != fence.table:
            self.forget()
            self.names = names_of(fence)
            raise TableChanged(
                FENCE_KEY, "is another table's: the table was deleted and made again",
                "open it again",
            )  # fmt: skip
        refuse_form(fence, self.names)
        rounds = fence.round - (self.known.round if self.known else fence.round - 1)
        self.known, self.version, self.knew_ms = fence, version, self.boot_ms()
        if rounds > 0:
            self.rate.saw(rounds, self.knew_ms)
        else:
            self.rate.unchanged(version, self.knew_ms)
        self.idle = self.idle if fence.combiner == self.idle else ""
        self.archived = max(self.archived, fence.archived)
        self.proven = {each for each in frozenset(self.proven) if each >= fence.first}
        self.won = {each for each in self.won if fence.window and each >= fence.window[0].round}

    @property
    def loses(self) -> bool:
        """Whether its appends mostly lose the fence to a client that is nearer."""
        return self.lost > LOST

    @property
    def ours(self) -> set[str]:
        """Instants that this process works on, or lately did."""
        return self.own | set(list(self.process.taken) if self.process else ())

    @property
    def lists(self) -> bool:
        """Whether its next commit lists: it may have missed what others offered."""
        return self.wins >= (FAST_RUN_MAX if self.contended else self.run)

    def listed(self) -> None:
        self.wins, self.run = 0, 1 if self.contended else min(FAST_RUN_MAX, 2 * self.run)

    def takes(self, instant: str) -> None:
        if self.process is not None:
            self.process.takes(instant, self)

    @property
    def is_slow(self) -> bool:
        """Whether the store takes one write a second to the fence."""
        return self.rate.is_slow(self.boot_ms())

    def took(self, sent_ms: int, until_ms: int) -> None:
        """A round trip took this long."""
        self.trip_ms = min(TRIP_MOST_MS, max(TRIP_LEAST_MS, until_ms - sent_ms))
        self.near_ms = min(self.trip_ms, self.near_ms * 3 // 2 + 8)

    def saw(self, table: str, published: Iterable[int]) -> None:
        """The outcome files of these decisions exist.

        The table may have been made again since the request was sent. Decisions of the new table
        have the same numbers, so the table's id is compared.
        """
        if self.known is not None and self.known.table == table:
            self.proven |= set(published)

    def forget(self) -> None:
        """Forget everything about a table that is gone."""
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

    @property
    def is_replaced(self) -> bool:
        """Whether another client has replaced the fence meanwhile."""
        before, fence = self.before, self.fence
        return before is not None and fence is not None and fence.round > before.round


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
    """The content of `T.inflight`, and later of `T.commit`."""
    listed: bool = True
    """Whether its owner has listed the timeline since it reserved the instant."""
    only: Version = ""
    """For a rewrite without a listing: the version of the fence that its snapshot shows."""
    began: int = 0
    """How many requests for the fence its process had sent by then."""
    sent: bool = False
    """Whether a request was sent that may have the instant decided, and that was not certainly
    refused."""
    doubtful: bool = False
    """Whether such a request has no answer."""
    offered: str = ""
    """The object that offers it."""
    action: str = COMMIT
    table: str = ""
    surveyed: bool = False
    """Whether its base is from the fence that was read beside its snapshot's listing."""
    follows: bool = False
    """Whether that listing shows an earlier commit under way, whose owner may decide this one."""
    earlier: frozenset[str] = frozenset()
    """The earlier instants that are under way by that listing."""
    meets: bool = False
    """Whether another client replaced the fence since the one that was known before its listing."""
    ahead: Procedure[None] | None = None
    """The reservation of its client's next instant, beside its first look for the decision."""
    eager: bool = False
    """Whether its offer is sent beside the replacement of the fence: its writer was idle before,
    and saves time by one more request."""
    made: Version | Found | None = None
    """The answer to that offer."""
    later: frozenset[str] = frozenset()
    """For a rewrite: the later instants under way that this listing does not show as offered."""

    def see(self, fence: GroupFence) -> None:
        """Raise the base to the last decision up to which its snapshot has every commit."""
        self.table = fence.table
        self.base = max(self.base, seen_until(
            fence, lambda each: each in self.seen or each <= self.horizon
        ))  # fmt: skip

    def sees_columns(self, fence: GroupFence | None, instant: str) -> None:
        """Raise the base of an append to a commit whose columns its owner knows: it is compared
        with nothing else. That commit may not be published yet, so that no listing shows it."""
        known = (each.seq for each in (fence.window if fence else ()) if each.instant == instant)
        self.base = max(self.base, *known, 0)

    def offer(self) -> Offer:
        return Offer(
            self.instant, self.base, self.writes, digest(self.body), self.schema,
            self.grows_schema, reserved=self.listed, blind=self.blind, table=self.table,
            action=self.action, body=packed(self.body),
        )  # fmt: skip


def names_of(fence: GroupFence) -> TimelineNames:
    """Version 6 has no completion times, and other names."""
    return V6 if fence.completion is None else V9


def refuse_form(fence: GroupFence, names: TimelineNames) -> None:
    """Raise `BrokenFence` if readers of this table would not know the completed files of commits
    that this fence decides."""
    if (fence.completion is None) != (names.layout == 1):
        raise BrokenFence(
            FENCE_KEY, "has the form of another table version than this table's",
            "restore its last good version if no writer has committed since",
        )  # fmt: skip


def timeline_key(names: TimelineNames, instant: str, state: str) -> str:
    return f"{names.folder}{instant}.{state}"


def completed_key(each: GroupDecision) -> str:
    """In table version 9 the name contains the completion time that the fence gave."""
    names = V9 if each.completion else V6
    return names.completed(each.instant, each.action, each.completion or None)


def plain_keys(entries: Iterable[ListEntry]) -> frozenset[str]:
    """The keys of a listing, with the same names for a commit, an overwrite and a clustering."""
    return frozenset(each.key.replace(f".{OVERWRITE}.inflight", ".inflight")
                     .replace(f".{CLUSTERING}.inflight", ".inflight")
                     .replace(f".{OVERWRITE}", ".commit") for each in entries)  # fmt: skip


def instant_in(key: str) -> str:
    return key.rpartition("/")[2][:INSTANT_DIGITS]


def decision_in(fence: GroupFence | None, instant: str) -> str:
    window = fence.window if fence else ()
    return next((each.kind for each in window if each.instant == instant), "")


def rounds(fence: GroupFence) -> list[list[GroupDecision]]:
    if fence.completion is not None:
        return [[each] for each in fence.window]
    return [list(each) for _, each in groupby(fence.window, lambda decision: decision.round)]
