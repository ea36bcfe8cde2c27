"""An offer of group commit: what its owner may deny, reads again and compares; who decides it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from test_group_waiting import BODY, T, carried_out, client_of, decisions, fence_of

from lockkit.errors import StoreError, TableError
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    NotModified,
    PreconditionFailed,
)
from lockkit.runtime import Get, List, Parallel, Procedure, Put, Sleep, Unique, WallMs
from lockkit.stores import ListEntry, Listing
from lockkit.table.format.timeline import V9, instant_ms
from lockkit.table.occ.fence import COMMIT, FENCE_KEY, ROLLBACK
from lockkit.table.occ.group import offer as group_offer
from lockkit.table.occ.group.client import GroupClient, GroupWrite, timeline_key
from lockkit.table.occ.group.commit import (
    GATHER_MOST,
    IN_VAIN,
    decided,
    gather,
    list_before_offer,
)
from lockkit.table.occ.group.decision import REFUSED, UNPUBLISHED_MAX, GroupDecision, GroupFence
from lockkit.table.occ.group.fence import (
    format_group_fence,
    format_offer,
    parse_group_fence,
    parse_offer,
    tombstone,
)
from lockkit.table.occ.group.offer import (
    PATIENCE_MAX,
    missed_conflict,
    offer,
    offer_beside,
    take_turn,
)
from lockkit.table.occ.group.view import GroupView, look_at_one

LARGE = Random(1).randbytes(9_000)
"""No name and no fence contains it."""
NAMED, OTHER = frozenset({("p", "f")}), frozenset({("p", "g")})
OWN = timeline_key(V9, T(9), "offer")


def upsert(**how: Any) -> GroupWrite:
    how = {"writes": NAMED, "body": BODY, "table": "t", "surveyed": True} | how
    return GroupWrite(T(9), "mine", how.pop("base", 1), how.pop("seen", frozenset({T(1)})), **how)


class Objects:
    """A store with these objects; each write gives the next version, and replaces as it says."""

    def __init__(self, fence: GroupFence, **there: bytes) -> None:
        self.there = {FENCE_KEY: format_group_fence(fence)} | {
            key.replace("_own", OWN): body for key, body in there.items()}  # fmt: skip
        self.versions = dict.fromkeys(self.there, 1)
        self.asked, self.puts = list[Any](), list[tuple[str, Any]]()

    @property
    def fence(self) -> GroupFence:
        return parse_group_fence(self.there[FENCE_KEY])

    def __call__(self, request: Any) -> Any:
        match request:
            case Parallel(procedures):
                return tuple(carried_out(each, self)[0] for each in procedures)
            case Get(key):
                self.asked.append(key)
                if key not in self.there:
                    return Missing()
                found = Found(self.there[key], f"v{self.versions[key]}")
                return NotModified(0) if request.unless == found.version else found
            case Put(key, body, condition):
                self.puts.append((key, condition))
                seen = f"v{self.versions[key]}" if key in self.there else None
                if condition != (IfAbsent() if seen is None else IfVersion(seen)):
                    return PreconditionFailed()
                self.there[key], self.versions[key] = body, self.versions.get(key, 0) + 1
                return Applied(f"v{self.versions[key]}")
            case List(prefix):
                entries = [ListEntry(each, 9, f"v{self.versions[each]}")
                           for each in sorted(self.there) if each.startswith(prefix)]  # fmt: skip
                return Listing(entries)
        return {WallMs: instant_ms(T(9)), Unique: "attempt"}[type(request)]


def left_window() -> GroupFence:
    """A fence that no longer reaches the base of the upsert."""
    window = tuple(replace(each, seq=each.seq + 4, writes=OTHER) for each in decisions(2))
    return fence_of(window, first=5, published=6)


# --- what its owner may deny ----------------------------------------------------------------------


def test_a_commit_counts_as_sent_before_its_offer_is_requested() -> None:
    """From then on any client may decide it, whatever becomes of its owner's next requests."""
    mine, store = upsert(), Objects(fence_of(decisions(1), published=1))

    def answer(request: Any) -> Any:
        if isinstance(request, Parallel):
            return tuple(carried_out(each, answer)[0] for each in request.procedures)
        assert mine.sent == bool(mine.offered) and (mine.sent or not isinstance(request, Put))
        return store(request)

    assert carried_out(offer(client_of(store.fence), mine), answer)[0] == COMMIT


def test_a_tombstone_in_the_place_of_an_offer_ends_it() -> None:
    """Its refusal has left the window, and so has the base of the owner, who was away for long."""
    store = Objects(left_window(), _own=tombstone(T(9)))
    mine = upsert(body=LARGE)
    client = client_of(store.fence)
    kind, _ = carried_out(offer(client, mine), store)
    assert kind == REFUSED and all(key == OWN for key, _ in store.puts)
    assert (OWN, "v1") not in client.read or client.read[OWN, "v1"] is None


def test_an_owner_that_finds_the_offer_of_an_earlier_call_of_its_own_goes_on_with_it() -> None:
    store = Objects(left_window(), _own=format_offer(upsert(base=3, body=LARGE).offer()))
    mine = upsert(body=LARGE)
    client = client_of(store.fence)
    assert carried_out(offer(client, mine), store)[0] == COMMIT
    own = [condition for key, condition in store.puts if key == OWN]
    assert own == [IfAbsent(), IfVersion("v1")]
    said = parse_offer(store.there[OWN])
    assert said is not None and said.base == 6 and client.read[OWN, "v2"] == said


def test_an_owner_decides_by_its_own_base_though_an_earlier_call_has_offered_an_older_one() -> None:
    """That call had raised the base of its named offer; by now, that one has left the window, too.
    So no other client can decide it."""
    earlier = format_offer(upsert(base=2).offer())
    store = Objects(left_window(), _own=earlier, **{V9.requested(T(9)): b"mine"})
    mine = upsert()
    mine.made, mine.offered, mine.sent = "v1", V9.folder + "its name", True
    assert carried_out(offer(client_of(store.fence), mine), store)[0] == COMMIT
    assert [key for key, _ in store.puts] == [OWN, FENCE_KEY] and mine.base == 6


def test_an_owner_whose_turns_are_over_withdraws_its_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_offer, "TURNS_MAX", 0)
    store = Objects(fence_of(decisions(1), published=1))
    assert carried_out(offer(client_of(store.fence), upsert()), store)[0] == REFUSED
    assert store.fence.window[-1].why == "withdrawn"


@pytest.mark.parametrize("error", [StoreError("denied"), TableError("a", "b", "c")])
def test_an_offer_beside_the_replacement_of_the_fence_may_fail(error: Exception) -> None:
    mine = upsert()
    way = offer_beside(client_of(fence_of(decisions(1))), mine)
    assert mine.sent and mine.offered
    request = next(way)
    with pytest.raises(StopIteration):
        while True:
            request = way.throw(error) if isinstance(request, Put) else way.send(None)
    assert mine.made is None


def test_an_owner_for_which_the_fence_has_no_room_makes_some_and_decides_then(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    window = decisions(UNPUBLISHED_MAX)
    full = fence_of(tuple(replace(each, instant=T(100 + each.seq)) for each in window))
    store, made = Objects(full), list[int]()

    def make_room(client: GroupClient, fence: GroupFence) -> Procedure[None]:
        yield from ()
        made.append(fence.last)
        client.proven |= {each.seq for each in fence.window}

    monkeypatch.setattr(group_offer, "make_room", make_room)
    mine = upsert(base=full.last, writes=OTHER)
    assert carried_out(offer(client_of(full), mine), store)[0] == COMMIT
    assert made == [full.last] and [key for key, _ in store.puts].count(FENCE_KEY) == 1


# --- what is compared -----------------------------------------------------------------------------


@pytest.mark.parametrize(("seen", "horizon", "clashes"), [
    (frozenset(), "", True), (frozenset({T(1)}), "", False), (frozenset(), T(1), False)
])  # fmt: skip
@pytest.mark.parametrize("where", [
    "window", "completed", "overwritten", "commit", "replacecommit", "clustering"])  # fmt: skip
def test_a_commit_that_its_snapshot_lacks_is_compared_wherever_its_files_are_named(
    where: str, seen: frozenset[str], horizon: str, clashes: bool
) -> None:
    """In the fence, in its completed file, or in its inflight file, if that one is gone."""
    action = where if where == "replacecommit" else COMMIT
    done = V9.completed(T(1), "replacecommit" if where == "overwritten" else action, T(90))
    fence, third = fence_of(decisions(1, writes=NAMED) if where == "window" else ()), T(3)
    other = V9.completed(third, COMMIT, T(90))
    keys = {each.replace("replacecommit", COMMIT) for each in (done, other)}
    view = GroupView(fence, "v1", {each.instant: each for each in fence.window},
                     frozenset() if where == "window" else frozenset(keys))  # fmt: skip
    place = done if where in ("completed", "overwritten") else V9.inflight(T(1), where)
    store = Objects(fence, **({place: BODY} if where != "window" else {}), **{other: b"other"})
    mine = upsert(base=0, seen=seen | {third}, horizon=horizon)
    client = client_of(fence)
    client.groups_of = lambda body: NAMED if body == BODY else OTHER
    assert carried_out(missed_conflict(client, view, mine), store)[0] == clashes
    mine.writes = OTHER
    assert not carried_out(missed_conflict(client, view, mine), store)[0], "it has seen the third"
    del store.there[place if where != "window" else other]
    gone = where != "window" and clashes
    assert carried_out(missed_conflict(client, view, mine), store)[0] == gone


def test_a_commit_that_its_listing_shows_is_no_conflict_in_a_fence_read_later() -> None:
    """Its client knew an older fence when it began."""
    newer = fence_of(decisions(2, writes=NAMED), published=2)
    client, store = client_of(fence_of(decisions(1, writes=NAMED))), Objects(newer)
    mine = upsert(seen=frozenset({T(1), T(2)}))
    client.knows(newer, "v1")
    view = GroupView(newer, "v1", {}, frozenset())
    assert carried_out(decided(client, mine, view=view), store)[0] == COMMIT
    assert mine.base == 2


@pytest.mark.parametrize(("listed", "kind", "sent"), [
    (T(8), "", False), (T(10), REFUSED, True), (T(9), COMMIT, False)])  # fmt: skip
def test_an_instant_that_was_reserved_ahead_is_offered_only_if_no_later_one_is_completed(
    listed: str, kind: str, sent: bool
) -> None:
    fence = fence_of(decisions(1), published=1)
    store = Objects(fence, **{V9.completed(listed, COMMIT, T(90)): BODY})
    mine = upsert(listed=False)
    assert carried_out(list_before_offer(client_of(fence), mine), store)[0] == kind
    assert mine.listed == (not kind) and bool(store.puts) == sent
    assert not sent or store.fence.window[-1].why == "late"


def test_a_rollback_does_not_end_what_the_fence_has_decided() -> None:
    its = GroupDecision(2, 2, ROLLBACK, T(9))
    store = Objects(fence_of((*decisions(1), its), published=1))
    view, _ = carried_out(look_at_one(client_of(store.fence), T(9)), store)
    assert view.decided[T(9)] == its


# --- how long it waits ----------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["nobody", "own", "decided", "offered", "begun", "later"])
def test_the_first_rewrite_of_a_round_waits_only_for_others_that_may_still_offer(who: str) -> None:
    """Not for its process's other threads, nor for what is decided, or offered by now."""
    fence = fence_of((*decisions(1), GroupDecision(2, 2, REFUSED, T(20))), published=2)
    at = {"own": T(11), "decided": T(20), "offered": T(12), "begun": T(13), "later": T(14)}
    keys = [V9.requested(at[who])] if who in ("own", "decided", "offered", "begun") else []
    keys += [timeline_key(V9, T(12), "offer")] * (who == "offered")
    store, client = Objects(fence, **dict.fromkeys(keys, b"x")), client_of(fence)
    client.own.add(T(11))
    mine = upsert(later=frozenset({T(14)} if who == "later" else ()))
    view = GroupView(fence, "v1", {}, frozenset())
    waits = who in ("begun", "later")
    slept = [each for each in carried_out(gather(client, view, mine), store)[1]
             if isinstance(each, Sleep)]  # fmt: skip
    assert (len(slept) > 1) == waits and sum(e.seconds for e in slept) <= (
        GATHER_MOST * client.trip_ms / 1000)  # fmt: skip
    assert client.in_vain == IN_VAIN * waits
    assert mine.later == ({at[who]} if waits else set())


@pytest.mark.parametrize("turn", [0, PATIENCE_MAX])
def test_an_owner_that_loses_the_fence_again_pauses_before_its_next_turn(turn: int) -> None:
    fence = fence_of(decisions(1), published=1)
    store, client = Objects(replace(fence, attempt="newer")), client_of(fence)
    view = GroupView(fence, "v0", {}, frozenset())
    kind, asked = carried_out(take_turn(client, view, upsert(), turn), store)
    pauses = [each for each in asked if isinstance(each, Sleep)]
    assert kind == "" and [key for key, _ in store.puts] == [FENCE_KEY]
    assert len(pauses) == (turn >= PATIENCE_MAX) and all(each.seconds > 0 for each in pauses)
