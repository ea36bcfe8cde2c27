"""The instant of a commit among others, reserved ahead or not, and what the commit begins on."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from test_group_snapshot import KNOWN, SCHEMA, committed, listed
from test_group_waiting import T, carried_out, client_of, decisions, fence_of, nothing

from lockkit.errors import StoreError, TableError
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfVersion,
    Missing,
    NotModified,
    PreconditionFailed,
    Throttled,
    Unknown,
)
from lockkit.runtime import Delete, Get, Note, Parallel, Procedure, Put, Sleep, Unique, WallMs
from lockkit.table.format.timeline import V6, V9, Timeline, instant_ms
from lockkit.table.occ.fence import COMMIT, FENCE_KEY, ROLLBACK
from lockkit.table.occ.group import ahead as group_ahead
from lockkit.table.occ.group.ahead import (
    AHEAD_MS,
    OVERTAKEN_FOR,
    REST_MS,
    GroupAppend,
    GroupRewrite,
    give_back,
    is_busy,
    read_beside,
    release,
    reserve_ahead,
)
from lockkit.table.occ.group.client import LOST, GroupClient, ListedBeside, schema_id
from lockkit.table.occ.group.decision import GroupDecision
from lockkit.table.occ.group.fence import format_group_fence
from lockkit.table.occ.group.refused import LateInstant, passed
from lockkit.table.occ.transaction import TableCache, TakenInstant, Transaction

NEWEST, NOW_MS = T(20), instant_ms(T(100))
CACHE = replace(KNOWN, newest=NEWEST)


def taken_at(instant: str, version: str = "v3", known: TableCache = CACHE) -> TakenInstant:
    return TakenInstant(instant, "mine", COMMIT, known, b"body", version)


class Sent:
    """The requests of a writer whose store does everything; `denied` raises at a delete."""

    def __init__(self, fence: Any = NotModified(), now: Timeline | None = None) -> None:
        self.asked, self.fence, self.now = list[str](), fence, now

    def __call__(self, request: Any) -> Any:
        match request:
            case Parallel(procedures):
                return tuple(carried_out(each, self)[0] for each in procedures)
            case Get(key):
                self.asked.append(f"get {key} unless {request.unless}")
                return self.fence if key == FENCE_KEY else Missing()
            case Put(key):
                self.asked.append(f"put {key}")
                return Applied("v9")
            case Delete(key, condition):
                self.asked.append(f"delete {key} {condition}")
                return Applied("")
        return {WallMs: NOW_MS, Unique: "unique", Note: None}[type(request)]


def alone() -> GroupClient:
    """A client that commits one append after the other; its clock stands."""
    client = client_of(replace(fence_of(decisions(1)), newest=NEWEST))
    client.boot_ms, client.acked_ms, client.reserves = (lambda: 1_000), 1_000, True
    return client


# --- reserved ahead -------------------------------------------------------------------------------


def changed(known: TableCache) -> TableCache:
    return replace(known, config=replace(known.config, name="other"))


@pytest.mark.parametrize(("mine", "ago_ms", "how", "used"), [
    (taken_at(T(21), known=replace(CACHE, newest=T(5))), AHEAD_MS, {}, True),
    (taken_at(T(21)), AHEAD_MS + 1, {}, False),
    (taken_at(T(21), ""), 9, {}, False),
    (taken_at(NEWEST), 9, {}, False),
    (taken_at(T(21), known=changed(CACHE)), 9, {}, False),
    (taken_at(T(21)), 9, {"since": T(21)}, False),
    (taken_at(T(21)), 0, {"contended": 1}, False),
    (taken_at(T(21)), 0, {"contended": 1, "lost": LOST}, False),
    (taken_at(T(21)), 15, {"contended": 1, "lost": LOST + 1}, True),
    (taken_at(T(21)), 16, {"contended": 1, "lost": LOST + 1}, False),
    (taken_at(T(21)), 0, {"contended": 1, "lost": LOST + 1, "kind": GroupRewrite}, False),
    (taken_at(T(21)), 9, {"free": False}, False),
])  # fmt: skip
def test_a_reserved_instant_is_used_only_while_nothing_may_have_passed_it(
    mine: TakenInstant, ago_ms: int, how: dict[str, Any], used: bool
) -> None:
    """Whatever is not used is deleted beside the reservation of the next one."""
    client, tried, taken_by = alone(), list[str](), list[str]()
    client.known = replace(client.known, since=how.get("since", client.known.since))  # type: ignore[type-var]
    client.contended, client.lost = how.get("contended", 0), how.get("lost", 0)
    client.trip_ms, client.process = 10, SimpleNamespace(takes=lambda at, _: taken_by.append(at))
    client.ahead.append((mine, 1_000 - ago_ms))
    client.own.add(mine.instant)

    def trying(taken: TakenInstant) -> Procedure[bool]:
        yield from ()
        tried.append(taken.instant)
        return taken.instant != mine.instant or how.get("free", True)

    store = Sent()
    way = how.get("kind", GroupAppend)(client, ListedBeside(None, None), only="v0")
    took = way.take(CACHE, action=COMMIT, lead_ms=0, trying=trying)
    taken, _ = carried_out(took, store)
    assert (taken.instant == mine.instant) == used and not client.ahead
    assert way.listed is None and not way.only
    if used:
        assert taken.early_ms == ago_ms and taken.known.newest == NEWEST and not store.asked
        assert tried == [mine.instant] and not taken_by
    else:
        deleted = [each for each in store.asked if each.startswith("delete")]
        given_up = how.get("free", True) and mine.version
        assert deleted == [f"delete {mine.requested} {IfVersion('v3')}"] * bool(given_up)
        assert taken.instant > max(NEWEST, mine.instant) and taken.early_ms == 0
        assert client.place_ms == instant_ms(taken.instant) and taken_by == [taken.instant]
        assert (mine.instant in client.own) == (not how.get("free", True))


def test_a_writer_that_begins_again_takes_no_reserved_instant_and_goes_as_far_ahead() -> None:
    client = alone()
    client.ahead.append((taken_at(T(21)), 1_000))
    way = GroupAppend(client).take(CACHE, action=COMMIT, lead_ms=800, trying=None)
    taken, _ = carried_out(way, Sent())
    assert instant_ms(taken.instant) >= NOW_MS + 800 and len(client.ahead) == 1


def test_the_instant_that_was_reserved_last_is_used_first() -> None:
    """Those before it are left over: they could not be given back."""
    client = alone()
    client.ahead += [(taken_at(T(21)), 1_000), (taken_at(T(22)), 1_000)]
    way = GroupAppend(client).take(CACHE, action=COMMIT, lead_ms=0, trying=None)
    assert carried_out(way, Sent())[0].instant == T(22)
    assert [each.instant for each, _ in client.ahead] == [T(21)]


@pytest.mark.parametrize(("how", "busy"), [
    ({}, True), ({"reserves": False}, False), ({"acked_ms": 1_000 - AHEAD_MS - 1}, False),
    ({"contended": 1}, False), ({"names": V6}, False), ({"names": V6, "process": None}, True),
])  # fmt: skip
def test_only_a_writer_that_commits_alone_and_without_a_pause_reserves_ahead(
    how: dict[str, Any], busy: bool
) -> None:
    """In version 6 increments end before a reserved instant, also before another thread commits."""
    client = alone()
    client.process = SimpleNamespace(meets=lambda _: True)
    for name, value in how.items():
        setattr(client, name, value)
    assert is_busy(client) == busy


@pytest.mark.parametrize(("answer", "version"), [
    (Applied("v9"), "v9"), (PreconditionFailed(), ""), (Unknown("lost"), ""),
    (Throttled(None), "")])  # fmt: skip
def test_an_instant_counts_as_reserved_only_once_that_is_proven(answer: Any, version: str) -> None:
    """Whatever the answer, it is an own one until it is used or given back."""
    client, before, taken_by = alone(), taken_at(T(40)), list[str]()
    client.process = SimpleNamespace(takes=lambda at, _: taken_by.append(at))
    store = Sent()
    carried_out(reserve_ahead(client, before),
                lambda each: answer if isinstance(each, Put) else store(each))  # fmt: skip
    ((mine, sent_ms),) = client.ahead
    assert (mine.version, sent_ms, mine.known.newest) == (version, 1_000, T(40))
    assert mine.instant > T(40) and client.place_ms == instant_ms(mine.instant)
    assert client.own == {mine.instant} and taken_by == [mine.instant]


def test_what_is_reserved_ahead_is_later_than_all_that_its_writer_knows() -> None:
    client, far = alone(), T(3_000)
    carried_out(reserve_ahead(client, taken_at(T(40), known=replace(CACHE, newest=far))), Sent())
    assert client.ahead[0][0].instant > far


@pytest.mark.parametrize("error", [StoreError("denied"), TableError("a", "b", "c")])
def test_a_reservation_that_fails_costs_no_commit(error: Exception) -> None:
    way = reserve_ahead(alone(), taken_at(T(40)))
    request = next(way)
    while not isinstance(request, Put):
        request = way.send(Sent()(request))
    with pytest.raises(StopIteration):
        way.throw(error)


def test_a_writer_follows_no_instant_that_is_days_ahead_of_its_clock() -> None:
    client, days = alone(), instant_ms(T(0)) + 3 * 24 * 3_600_000
    far = taken_at(f"{20260105}{'0' * 9}")
    assert instant_ms(far.instant) > days
    store = Sent()
    carried_out(reserve_ahead(client, far), store)
    assert not client.ahead and not store.asked


@pytest.mark.parametrize("used", [True, False])
def test_an_unused_instant_is_given_back_after_a_while_or_when_the_client_closes(
    used: bool
) -> None:
    client, store = alone(), Sent()
    left = [(taken_at(T(21)), 1_000), (taken_at(T(22)), 1_000)]
    client.ahead += left
    client.own |= {T(21), T(22)}
    slept = list[Sleep]()
    way = give_back(client)
    request = next(way)
    with pytest.raises(StopIteration):
        while True:
            if isinstance(request, Sleep):
                slept.append(request)
                if used and len(slept) == 1:
                    client.ahead.remove(left[0])
            request = way.send(None if isinstance(request, Sleep) else store(request))
    assert [(each.seconds, each.woken) for each in slept] == [(AHEAD_MS / 1000, client.closing)] * 2
    gone = left[used:]
    assert store.asked == [f"delete {each.requested} {IfVersion('v3')}" for each, _ in gone]
    assert not client.ahead and client.own == {T(21)} & ({T(21)} if used else set())


@pytest.mark.parametrize(("there", "deleted"), [
    (Found(b"body", "v7"), True), (Found(b"other", "v7"), False), (Missing(), False)])  # fmt: skip
def test_of_a_reservation_without_an_answer_only_its_own_object_is_deleted(
    there: Any, deleted: bool
) -> None:
    client, store = alone(), Sent()
    mine = taken_at(T(21), ""), 1_000
    client.ahead.append(mine)
    carried_out(release(client, mine), lambda each: there if isinstance(each, Get) else store(each))
    assert store.asked == [f"delete {mine[0].requested} {IfVersion('v7')}"] * deleted
    assert not client.ahead
    carried_out(release(client, mine), nothing)


# --- what a commit begins on ----------------------------------------------------------------------

MINE = replace(taken_at(T(50)), early_ms=9)


class Listings:
    """What `survey_checked` finds, one after the other; None: the instant is useless."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *found: Timeline | None) -> None:
        self.left, self.waits, self.met = list(found or [listed()] * 9), list[bool](), list[Any]()
        monkeypatch.setattr(group_ahead, "survey_checked", self._survey)
        monkeypatch.setattr(group_ahead, "give_way", self._give_way)

    def _survey(self, _: Any, taken: TakenInstant, met: Any = None) -> Procedure[Any]:
        yield from ()
        now = self.left.pop(0)
        self.met.append(met)
        return (Transaction(taken, now), now) if now is not None else (None, listed())

    def _give_way(self, *_: Any) -> Procedure[bool]:
        yield from ()
        self.met.append("gives way")
        return bool(self.waits) and self.waits.pop()


def lister(kind: type[GroupAppend]) -> GroupAppend:
    """That of a client alone, which has listed the one commit that its fence names."""
    client = alone()
    client.timeline = listed(*committed(1))
    return kind(client)


def with_(client: GroupClient, how: dict[str, Any]) -> None:
    for name, value in how.items():
        if name in ("newest", "window"):
            client.known = replace(client.known, **{name: value})  # type: ignore[type-var]
        else:
            setattr(client, name, value)


DECIDED = (GroupDecision(1, 1, ROLLBACK, MINE.instant),)


@pytest.mark.parametrize(("early_ms", "how", "lists"), [
    (9, {}, False), (0, {}, True), (9, {"timeline": None}, True), (9, {"wins": 99}, True),
    (9, {"contended": 1}, True), (9, {"newest": MINE.instant}, True),
    (9, {"window": DECIDED}, True)])  # fmt: skip
def test_an_append_alone_begins_without_a_listing_on_what_its_client_has_listed(
    monkeypatch: pytest.MonkeyPatch, early_ms: int, how: dict[str, Any], lists: bool
) -> None:
    way, now = lister(GroupAppend), listed(*committed(1), V9.requested(MINE.instant))
    before, client, found = way.client.timeline, way.client, Listings(monkeypatch, now)
    with_(client, how)
    taken = replace(MINE, early_ms=early_ms, known=replace(CACHE, horizon=T(1)))
    (transaction, shown), asked = carried_out(way.survey(taken), Sent())
    assert transaction.timeline is shown is client.timeline is (now if lists else before)
    assert found.met == [None, "gives way"] * lists
    began = [each for each in asked if isinstance(each, Note)]
    assert [each.data for each in began] == [{"instant": MINE.instant}] * (not lists)
    if lists:
        known = client.known
        assert way.listed is not None and way.listed.before is way.listed.fence is known
        assert way.listed.version == "v1" and client.listed_after == T(0)
        assert way.coming == {each.instant for each in known.window}  # type: ignore[union-attr]
    else:
        assert way.listed is None


def test_an_append_waits_for_nobody_if_its_instant_is_useless(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    way, found = lister(GroupAppend), Listings(monkeypatch, None)
    way.client.proven = {1}
    (transaction, _), _ = carried_out(way.survey(replace(MINE, early_ms=0)), Sent())
    assert transaction is None and found.met == [None] and not way.coming


@pytest.mark.parametrize("contended", [0, 1])
def test_among_others_an_append_reads_the_fence_beside_its_listing(contended: int) -> None:
    client, newer = alone(), fence_of(decisions(2))
    client.contended = contended
    store = Sent(Found(format_group_fence(newer), "v2"))
    beside = ListedBeside(client.known, client.known, "v1")
    carried_out(read_beside(client, beside), store)
    assert store.asked == [f"get {FENCE_KEY} unless v1"] * contended
    assert (beside.fence, beside.version) == ((newer, "v2") if contended else (client.known, "v1"))
    carried_out(read_beside(client, ListedBeside(None, None)), nothing)


def test_an_append_knows_its_columns_by_the_fence_and_misses_a_commit_that_was_taken_back() -> None:
    way, columns = lister(GroupAppend), SCHEMA
    assert not way.has_columns(columns) and not way.has_columns("")
    way.client.known = replace(way.client.known, schema=schema_id(columns))  # type: ignore[type-var]
    assert way.has_columns(columns) and not way.has_columns("")
    assert not way.has_lost(T(9), "", listed()), "it has listed nothing"
    way.listed = ListedBeside(None, replace(fence_of(()), schema="other"))
    way.coming = frozenset({T(8)})
    assert not way.has_columns(columns)
    lost = [way.has_lost(each, T(3), listed(*committed(7))) for each in map(T, (3, 7, 8, 9))]
    assert lost == [False, False, False, True]


@pytest.mark.parametrize(("only", "fence", "stands"), [
    ("", None, True), ("v1", NotModified(), True), ("v1", Found(b"{}", "v2"), False),
    ("v1", Missing(), False)])  # fmt: skip
def test_a_rewrite_that_changes_nothing_stands_if_its_fence_does(
    only: str, fence: Any, stands: bool
) -> None:
    way, store = lister(GroupRewrite), Sent(fence)
    way.only = only
    assert carried_out(way.stands(), store)[0] == stands
    assert store.asked == [f"get {FENCE_KEY} unless v1"] * bool(only)
    assert (way.client.timeline is None) == bool(way.client.contended) == (not stands)


@pytest.mark.parametrize(("how", "reads"), [
    ({}, False), ({"contended": 1}, True), ({"contended": 1, "timeline": None}, False)
])  # fmt: skip
def test_among_others_a_rewrite_reads_the_fence_beside_its_reservation(
    how: dict[str, Any], reads: bool
) -> None:
    way, newer = lister(GroupRewrite), fence_of(decisions(2))
    assert isinstance(way, GroupRewrite)
    with_(way.client, how)
    for fence in (NotModified(), Found(format_group_fence(newer), "v2")):
        before = way.client.known
        way.begun, way.beside, way.late = before, listed(), passed(T(9), T(10))
        store = Sent(fence)
        carried_out(way.take(CACHE, action=COMMIT, lead_ms=0, trying=None), store)
        assert [each for each in store.asked if FENCE_KEY in each] == (
            [f"get {FENCE_KEY} unless v1"] * reads)  # fmt: skip
        assert way.begun is (way.client.known if reads else None)
        assert way.beside is None and way.late is None
        assert (way.client.known is before) == (not reads or isinstance(fence, NotModified))


PASSED_BY: dict[str, Any] = {"listed_after": T(2)}
PROCESS = SimpleNamespace(catches_up=lambda _: answering(True), sent=7)
SHARED: dict[str, Any] = {"process": PROCESS}


def answering(value: Any) -> Procedure[Any]:
    yield from ()
    return value


@pytest.mark.parametrize(("early_ms", "how", "begun", "begins"), [
    (9, {}, False, "at once"), (0, {}, False, "lists"), (9, {"timeline": None}, False, "lists"),
    (9, PASSED_BY, False, "lists"), (9, {"contended": 1}, False, "lists"),
    (9, {"newest": MINE.instant}, False, "lists"), (9, {"window": DECIDED}, False, "lists"),
    (9, {"wins": 99}, False, "beside"), (9, {"acked_ms": 1_000 - REST_MS}, False, "at once"),
    (9, {"acked_ms": 999 - REST_MS}, False, "beside"), (0, SHARED, False, "at once"),
    (0, SHARED | {"contended": 1}, False, "lists"), (0, {"contended": 1}, True, "beside"),
    (0, {"contended": 1} | PASSED_BY, True, "lists"),
    (0, {"contended": 1, "timeline": None}, True, "lists"),
    (0, {"contended": 1, "newest": MINE.instant}, True, "lists"),
    (0, {"contended": 1, "window": DECIDED}, True, "lists"),
    (0, {"contended": 1, "overtaken": 2}, True, "lists"),
    (0, {"contended": 1, "version": "v0"}, True, "lists"),
])  # fmt: skip
def test_a_rewrite_begins_without_a_listing_only_if_what_its_client_knows_shows_all(
    monkeypatch: pytest.MonkeyPatch, early_ms: int, how: dict[str, Any], begun: bool, begins: str
) -> None:
    beside = (fence_of(decisions(2)), "v2") if early_ms else None
    way, now = lister(GroupRewrite), replace(listed(*committed(1)), fence=beside)
    client, found = way.client, Listings(monkeypatch, now)
    assert isinstance(way, GroupRewrite)
    with_(client, how)
    way.begun, way.rested_ms = client.known if begun else None, 1_000 - client.acked_ms
    if client.version == "v0":  # a service in another thread has read a newer fence
        client.knows(replace(client.known, attempt="newer"), "v1")  # type: ignore[type-var]
    taken = replace(MINE, early_ms=early_ms)
    (transaction, shown), _ = carried_out(way.survey(taken), Sent())
    assert shown is transaction.timeline and (found.met == [client.met]) == (begins == "lists")
    assert (transaction.beside is not None) == (begins == "beside")
    assert way.only == ("v1" if begins != "lists" and not begun else "")
    assert way.began == (7 if way.only and "process" in how else 0)
    assert client.overtaken == max(0, how.get("overtaken", 0) - 1)
    if begins == "lists":
        assert way.listed == ListedBeside(client.known, *(beside or (None, "")))
        assert client.timeline is now and client.listed_after == ""
    else:
        assert shown.fence == (client.known, "v1") and way.begun is client.known
        assert shown.commits == [T(1)]


@pytest.mark.parametrize("waits", [False, True])
def test_a_rewrite_that_lists_beside_its_files_decides_by_that_listing(
    monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """After it gave way to an overwrite, by one of its own."""
    way, first, second = lister(GroupRewrite), listed(*committed(1)), listed(*committed(1, 2))
    client, found = way.client, Listings(monkeypatch, first, second)
    assert isinstance(way, GroupRewrite)
    refused = GroupDecision(3, 3, ROLLBACK, T(3))
    way.begun, client.overtaken, client.proven = fence_of((*decisions(2), refused)), 3, set()
    found.waits = [waits]
    taken = replace(MINE, early_ms=0, known=replace(CACHE, horizon=T(1)))
    carried_out(way.list_beside(taken), Sent())
    now = second if waits else first
    assert way.beside is client.timeline is now and client.listed_after == T(0)
    assert way.listed == ListedBeside(way.begun, way.begun, "v1")
    assert client.overtaken == 0 and client.proven == ({1, 2} if waits else {1})
    assert found.met == [None, "gives way"] + [None] * waits


@pytest.mark.parametrize("early_ms", [0, 9])
def test_a_rewrite_that_was_passed_begins_again_and_lists_first_for_a_while(
    monkeypatch: pytest.MonkeyPatch, early_ms: int
) -> None:
    """Once its files are proven, so that they are deleted at once. One that used an instant which
    was reserved ahead met nobody until then."""
    way, found = lister(GroupRewrite), Listings(monkeypatch, None)
    assert isinstance(way, GroupRewrite)
    carried_out(way.list_beside(replace(MINE, early_ms=early_ms)), Sent())
    assert isinstance(way.late, LateInstant) and way.beside is None and found.met == [None]
    assert way.client.overtaken == OVERTAKEN_FOR * (not early_ms)


@pytest.mark.parametrize(("beside", "contended", "only", "follows", "decides"), [
    (True, 1, "", False, True), (True, 1, "", True, False), (True, 1, "v1", True, True),
    (False, 0, "", True, True), (False, 1, "", False, False)])  # fmt: skip
def test_a_rewrite_decides_by_its_listing_unless_another_commit_comes_first(
    beside: bool, contended: int, only: str, follows: bool, decides: bool
) -> None:
    way = lister(GroupRewrite)
    assert isinstance(way, GroupRewrite)
    way.listed, way.only = ListedBeside(None, None), only
    way.beside, way.client.contended = listed() if beside else None, contended
    assert way.decides_by(follows) is (way.listed if decides else None)
