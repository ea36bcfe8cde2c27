"""A fence and a listing that were read together, and what they say about each instant: decided,
offered or open.

Readers need no more (`snapshot`, `increment`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lockkit.errors import TableError
from lockkit.protocol.outcome import Found, Version
from lockkit.runtime import Parallel, Procedure, WallMs
from lockkit.runtime.proven import all_of, listing, read
from lockkit.stores import ListEntry
from lockkit.table.format.timeline import TimelineNames
from lockkit.table.occ.fence import COMMIT, FENCE_BYTES_MAX, FENCE_KEY
from lockkit.table.occ.group.archived import ArchivedAs, archived_outcome
from lockkit.table.occ.group.client import (
    CONTENDED_FOR,
    INSTANT_DIGITS,
    TURNS_MAX,
    GroupClient,
    ListedBeside,
    instant_in,
    names_of,
    plain_keys,
    refuse_form,
    timeline_key,
)
from lockkit.table.occ.group.decision import (
    REFUSED,
    GroupDecision,
    GroupFence,
    Offer,
    is_over,
    reaches,
)
from lockkit.table.occ.group.fence import (
    OFFERS,
    blind_offer,
    full_offer,
    is_tombstone,
    parse_group_fence,
    parse_offer,
    read_group_fence,
)

STARTED = ("requested", "commit.requested", "inflight")
OFFERS_MAX = 256
"""A client keeps so many offers that it has read."""


@dataclass(slots=True)
class GroupView:
    """A fence, a listing, and every decision that the listing may not show."""

    fence: GroupFence
    version: Version
    decided: dict[str, GroupDecision]
    keys: frozenset[str]

    horizon: str = ""
    versions: Mapping[str, Version | None] = field(default_factory=dict)
    """The versions of the offers, as they were listed."""
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
        """All commits of this fence, published or not."""
        return self.completed() | {each.instant for each in self.decided.values()
                                   if each.kind == COMMIT}  # fmt: skip


def has_gap(before: GroupFence | None, fence: GroupFence) -> bool:
    """Whether decisions may have left the window unseen: then a newer listing is needed."""
    return before is None or not reaches(fence, before.last)


def look(client: GroupClient, *, at_known: bool = False) -> Procedure[GroupView]:
    """The listing and the fence, read in parallel; a gap between two fences costs a listing.

    `at_known`: the client has just read the fence, and does not read it again.
    """
    before, fence, version = client.known, client.known, client.version
    sent_ms, reads = (yield WallMs()), [] if at_known and fence else [read_group_fence()]
    entries, *found = yield Parallel((list_instants(client), *reads))
    client.took(sent_ms, (yield WallMs()))
    if reads:
        fence, version = found[0]
        if has_gap(before, fence):
            entries = yield from list_instants(client)
        client.knows(fence, version)
    assert fence is not None
    decided = known_decisions(before, fence)
    versions = {each.key: each.version for each in entries if each.key.endswith(OFFERS)}
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


def look_whole(client: GroupClient) -> Procedure[GroupView]:
    """The same; it lists again if the listing may lack a commit that was archived before, and
    that the fence beside it does not call archived yet."""
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
    client.listed()
    decided = known_decisions(before, client.known)
    return GroupView(client.known, client.version, decided, keys, client.horizon)


def known_decisions(before: GroupFence | None, fence: GroupFence) -> dict[str, GroupDecision]:
    """The decisions of both windows: one of them has what the listing is too old to show."""
    window = (*(before.window if before else ()), *fence.window)
    return {each.instant: each for each in window}


def view_of_known(client: GroupClient, known: GroupFence) -> GroupView:
    return GroupView(known, client.version, {}, frozenset(), client.horizon,
                     archived_as=client.archived_as)  # fmt: skip


def look_at_one(client: GroupClient, instant: str) -> Procedure[GroupView]:
    """The fence, and then one instant's own files: what left the window before has its outcome."""
    fence, version = yield from read_group_fence()
    refuse_form(fence, client.names)
    entries = yield from listing(client.names.folder + instant)
    decided = {each.instant: each for each in fence.window}
    return GroupView(fence, version, decided, plain_keys(entries), archived_as=client.archived_as)


def outcome(view: GroupView, instant: str) -> Procedure[str]:
    """`commit`, another decision's kind, or '': not decided at this fence.

    An instant that may be archived, or that began before a switch of the mode, is certainly over,
    even if the timeline does not show how.
    """
    if decision := view.decided.get(instant):
        return decision.kind
    kind = yield from recorded_outcome(view, instant)
    if not kind and is_over(view.fence, instant):
        kind = yield from view.archived_as(instant)
    return kind


def recorded_outcome(view: GroupView, instant: str) -> Procedure[str]:
    """What the timeline says about an instant that is in no window."""
    if is_completed(view, instant):
        return COMMIT
    key = timeline_key(view.names, instant, "offer")
    if view.read.get((key, view.versions.get(key))):
        return ""  # it has been read, or written, and is an offer still
    if key in view.keys and isinstance(found := (yield from read(key)), Found):
        return REFUSED if is_tombstone(found.body) else ""
    return ""


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
    """The open offers whose names say all, and the keys of those that must be read.

    It leaves out objects that it has read before and that were no offers: a tombstone stays one.
    `T.offer` may be an offer, or its owner's later version.
    """
    found, keys = list[Offer](), list[str]()
    for key in sorted(view.keys):
        if not key.endswith(OFFERS) or not is_open(view, instant_in(key)):
            continue
        name, later = key.rpartition("/")[2], timeline_key(view.names, instant_in(key), "offer")
        if key != later and later in view.keys:
            continue
        if by_name := blind_offer(name) or full_offer(name, view.fence):
            found.append(by_name)
        elif not key.endswith(".append"):
            ended = view.read.get((key, view.versions.get(key)), key) is None
            keys += [] if ended else [key]
    return found, keys


def is_open(view: GroupView, instant: str) -> bool:
    started = any(timeline_key(view.names, instant, each) in view.keys for each in STARTED)
    return started and instant not in view.decided and not is_completed(view, instant)


def is_completed(view: GroupView, instant: str) -> bool:
    if timeline_key(view.names, instant, COMMIT) in view.keys:
        return True
    return instant in view.completed()


def timely(view: GroupView) -> frozenset[str]:
    """Pending instants without a later completed one: no reader has passed them."""
    newest = max(view.completed(), default="")
    return frozenset(each for each in view.pending() if each > newest)


def snapshot(client: GroupClient) -> Procedure[tuple[int, frozenset[str]]]:
    """All decisions up to one fence, and the number of the last one."""
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
