"""Group commit as procedures: reserve, commit, offer, combine, publish, roll back, read.

For fence format 3, which `Table` does not use yet. The simulator runs these procedures (`lockkit
simulate --scenario group`); docs/concepts/group_commit.md has the rules.
One file because its procedures call each other: who commits also decides, publishes and reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any

from lockkit.errors import TableError
from lockkit.protocol.outcome import Found, IfVersion, Missing, Version
from lockkit.runtime import Parallel, Procedure, Sleep, Unique, WallMs
from lockkit.runtime.proven import all_of, create, delete, listing, read, settle_write
from lockkit.table.errors import CommitUnknown
from lockkit.table.format.layout import FileGroup
from lockkit.table.format.timeline import HOODIE, instant_ms, instant_of
from lockkit.table.occ.fence import COMMIT, FENCE_KEY, NO_INSTANT, digest
from lockkit.table.occ.group import (
    GROUP_WINDOW_MAX,
    REFUSED,
    GroupDecision,
    GroupFence,
    Offer,
    conflicts,
    decide,
    may_judge,
    reaches,
    refuse,
)

GROUP_TIMELINE = HOODIE + "timeline/"
GROUP_FORMAT = 3
RESERVATIONS_MAX = 10
TURNS_MAX = 12
PATIENCE_S = 0.4
FAST_RUN_MAX = 4
"""After so many commits without a listing a writer lists, and decides what others offered."""


@dataclass(slots=True)
class GroupClient:
    """What one process knows of the fence: it is a hint for its next request."""

    name: str
    groups_of: Callable[[bytes], frozenset[FileGroup]]
    """The file groups that an inflight file names."""
    files_of: Callable[[str], str]
    """The prefix of an instant's data files."""
    window_max: int = GROUP_WINDOW_MAX
    known: GroupFence | None = None
    version: Version = ""
    wins: int = 0
    proven: set[int] = field(default_factory=set)
    """Numbers of the decisions whose outcome file this client has seen or written."""


@dataclass(slots=True)
class GroupView:
    """A fence, a listing, and every decision that the listing may not show."""

    fence: GroupFence
    version: Version
    decided: dict[str, GroupDecision]
    keys: frozenset[str]

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
    """The commits of its snapshot."""
    writes: frozenset[FileGroup] = frozenset()
    schema: str = ""
    blind: bool = False
    body: bytes = b""
    """Of `T.inflight`, and later of `T.commit`."""

    def offer(self) -> Offer:
        return Offer(self.instant, self.base, self.writes, digest(self.body), self.schema,
                     reserved=True, blind=self.blind)  # fmt: skip


def timeline_key(instant: str, state: str) -> str:
    return f"{GROUP_TIMELINE}{instant}.{state}"


def instant_in(key: str) -> str:
    return key.removeprefix(GROUP_TIMELINE).partition(".")[0]


# --- the objects ----------------------------------------------------------------------------------


def format_group_fence(fence: GroupFence) -> bytes:
    fields = {"format": GROUP_FORMAT, **asdict(fence)}
    for each in fields["window"]:
        each["writes"] = sorted(each["writes"])
    return json.dumps(fields, separators=(",", ":")).encode()


def parse_group_fence(body: bytes) -> GroupFence:
    fields = json.loads(body)
    if fields.pop("format") != GROUP_FORMAT:
        why = f"has a format other than {GROUP_FORMAT}: use the lockkit version that wrote it"
        raise TableError(f"{FENCE_KEY} {why}")
    window = (GroupDecision(**each | {"writes": _groups(each)}) for each in fields["window"])
    return GroupFence(**fields | {"window": tuple(window)})


def format_offer(offer: Offer) -> bytes:
    return json.dumps(asdict(offer) | {"writes": sorted(offer.writes)}).encode()


def parse_offer(body: bytes) -> Offer | None:
    """The offer; None for a tombstone: the fence has decided against the instant."""
    fields = json.loads(body)
    return None if REFUSED in fields else Offer(**fields | {"writes": _groups(fields)})


def _groups(fields: dict[str, Any]) -> frozenset[FileGroup]:
    return frozenset((partition, file_id) for partition, file_id in fields["writes"])


def read_group_fence() -> Procedure[tuple[GroupFence, Version]]:
    found = yield from read(FENCE_KEY)
    if not isinstance(found, Found):
        raise TableError(f"{FENCE_KEY} is missing; it may have held commits, so none is made")
    return parse_group_fence(found.body), found.version


# --- knowing the fence ----------------------------------------------------------------------------


def has_gap(before: GroupFence | None, fence: GroupFence) -> bool:
    """Whether decisions may have left the window unseen: the listing must then be newer."""
    return before is None or not reaches(fence, before.last)


def look(client: GroupClient) -> Procedure[GroupView]:
    """The listing and the fence, read in parallel; a gap between two fences costs a listing."""
    before = client.known
    entries, (fence, version) = yield Parallel((listing(GROUP_TIMELINE), read_group_fence()))
    if has_gap(before, fence):
        entries = yield from listing(GROUP_TIMELINE)
    client.known, client.version = fence, version
    decided = known_decisions(before, fence)
    return GroupView(fence, version, decided, frozenset(each.key for each in entries))


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
    if timeline_key(instant, "commit") in view.keys:
        return COMMIT
    key = timeline_key(instant, "offer")
    if key in view.keys and isinstance(found := (yield from read(key)), Found):
        return "" if parse_offer(found.body) else REFUSED
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
    if client.known and goes_alone(client, client.known, write):
        client.wins += 1
        known = GroupView(client.known, client.version, {}, frozenset())
        if (yield from decide_once(client, known, [write.offer()])):
            decision = next(e for e in client.known.window if e.instant == write.instant)
            return decision.kind
    client.wins = 0
    return (yield from offer(client, write))


def prove_data(objects: dict[str, bytes]) -> Procedure[None]:
    """Each object is proven before the instant is offered: any client may then decide it."""
    yield from all_of([create(key, body) for key, body in objects.items()])


def goes_alone(client: GroupClient, known: GroupFence, write: GroupWrite) -> bool:
    """Whether no listing is needed: every decision since the reservation is known."""
    undecided = all(each.instant != write.instant for each in known.window)
    return client.wins < FAST_RUN_MAX and reaches(known, write.base) and undecided


def offer(client: GroupClient, write: GroupWrite) -> Procedure[str]:
    """Offer the instant, then wait for a decision, or make one."""
    key = timeline_key(write.instant, "offer")
    version = yield from create(key, format_offer(write.offer()))
    if isinstance(version, Found):
        return (yield from withdraw(client, write.instant))
    for turn in range(TURNS_MAX):
        view = yield from look(client)
        if kind := (yield from outcome(view, write.instant)):
            return kind
        if not may_judge(view.fence, write.offer()):
            if (yield from missed_conflict(client, view, write)):
                return (yield from withdraw(client, write.instant))
            write.seen, write.base = view.commits(), view.fence.last
            body = format_offer(write.offer())
            settled = yield from settle_write(key, body, IfVersion(version))
            if isinstance(settled, Found | Missing):
                continue  # a tombstone: the next look finds the decision
            version = settled
        if view.fence.combiner in ("", client.name) or turn % 2:
            yield from decide_once(client, view, (yield from open_offers(view)))
        else:
            yield Sleep(PATIENCE_S)
        if turn % 3 == 2:
            yield from publish(client)  # a full window takes no more decisions
    return (yield from withdraw(client, write.instant))


def missed_conflict(client: GroupClient, view: GroupView, write: GroupWrite) -> Procedure[bool]:
    """Whether a commit since the owner's snapshot wrote a file group of this write."""
    if conflicts(write.offer(), view.decided.values()):
        return True
    for instant in sorted(view.commits() - write.seen - {write.instant}):
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
    return timeline_key(instant, "commit") in view.keys


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
    combiner = client.name if len(offers) > 1 else ""
    after = decide(
        view.fence, offers, attempt=(yield Unique()), combiner=combiner, timely=timely(view),
        proven=client.proven, now=instant_of((yield WallMs())), window_max=client.window_max,
    )  # fmt: skip
    return after.last > view.fence.last and (yield from replace_group_fence(client, view, after))


def replace_group_fence(
    client: GroupClient, view: GroupView, after: GroupFence
) -> Procedure[bool]:
    settled = yield from settle_write(
        FENCE_KEY, format_group_fence(after), IfVersion(view.version)
    )
    if isinstance(settled, Found | Missing):
        return False  # replaced since; it may also have been by a successor of ours: look again
    client.known, client.version = after, settled
    return True


# --- publishing -----------------------------------------------------------------------------------


def publish(client: GroupClient) -> Procedure[None]:
    """Create the outcome files of all decisions: a round only after every earlier round."""
    view = yield from look(client)
    for together in rounds(view.fence):
        yield from all_of([publish_one(client, view, each) for each in together])


def rounds(fence: GroupFence) -> list[list[GroupDecision]]:
    return [list(each) for _, each in groupby(fence.window, lambda decision: decision.round)]


def publish_one(client: GroupClient, view: GroupView, each: GroupDecision) -> Procedure[None]:
    if each.seq in client.proven:
        return
    if each.kind != COMMIT:
        yield from bury(each.instant)
    elif not is_completed(view, each.instant):
        found = yield from read(timeline_key(each.instant, "inflight"))
        if not isinstance(found, Found) or digest(found.body) != each.sha256:
            raise TableError(f"{each.instant} is decided, and its inflight file is not the same")
        yield from create(timeline_key(each.instant, "commit"), found.body)
    client.proven.add(each.seq)


def bury(instant: str) -> Procedure[None]:
    """The tombstone of an instant that the fence has decided against."""
    key, body = timeline_key(instant, "offer"), json.dumps({REFUSED: instant}).encode()
    settled = yield from create(key, body)
    while isinstance(settled, Found) and parse_offer(settled.body):
        replaced = yield from settle_write(key, body, IfVersion(settled.version))
        settled = replaced if isinstance(replaced, Found) else ""


def roll_back(client: GroupClient, instant: str) -> Procedure[bool]:
    """Decide against an instant whose writer is dead, or that was refused; delete its files."""
    fence, version = yield from read_group_fence()
    entries = yield from listing(GROUP_TIMELINE)
    decided = {each.instant: each for each in fence.window}
    view = GroupView(fence, version, decided, frozenset(each.key for each in entries))
    kind = yield from outcome(view, instant)
    if kind == COMMIT or not any(instant_in(key) == instant for key in view.keys):
        return False
    if not kind:
        after = refuse(fence, instant, (yield Unique()))
        if not (yield from replace_group_fence(replace(client), view, after)):
            return False
    yield from bury(instant)
    for entry in (yield from listing(client.files_of(instant))):
        yield from delete(entry.key)
    for state in ("inflight", "requested"):
        yield from delete(timeline_key(instant, state))
    return True


# --- readers --------------------------------------------------------------------------------------


def snapshot(client: GroupClient) -> Procedure[tuple[int, frozenset[str]]]:
    """All that was decided at one fence, and the number of its last decision."""
    view = yield from look(client)
    return view.fence.last, view.commits()


def increment() -> Procedure[str]:
    """The instant up to which a reader may pull: nothing at or before it is pending.

    Table version 6: the listing alone decides. A decided instant that is not published holds back
    the reader like any other pending one.
    """
    entries = yield from listing(GROUP_TIMELINE)
    view = GroupView(GroupFence(""), "", {}, frozenset(each.key for each in entries))
    return pull_until(view)


def pull_until(view: GroupView) -> str:
    first = min(view.pending(), default="~")
    return max((each for each in view.completed() if each < first), default="")
