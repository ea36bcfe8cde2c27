"""What the owner of a commit with group commit gets, and how its process publishes the commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from test_group_snapshot import MINE, listed, prepared
from test_group_waiting import T, carried_out, client_of, decisions, fence_of, nothing

from lockkit.clock import Clock
from lockkit.errors import LockLost, StoreError, TableError, Unanswered
from lockkit.protocol.outcome import Applied, Found, Missing
from lockkit.runtime import Get, List, Note, Parallel, Procedure, Put, Unique, WallMs
from lockkit.stores import ListEntry, Listing, open_store
from lockkit.table.errors import CommitConflict, CommitUnknown, ModeSwitched, TableChanged
from lockkit.table.format.timeline import V6, V9
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.conflict import SIMPLE
from lockkit.table.occ.fence import COMMIT, FENCE_KEY, ROLLBACK
from lockkit.table.occ.group import publish as group_publish
from lockkit.table.occ.group.ahead import GroupAppend, GroupRewrite
from lockkit.table.occ.group.client import (
    CONTENDED_FOR,
    LOST,
    GroupClient,
    GroupWrite,
    ListedBeside,
)
from lockkit.table.occ.group.decision import REFUSED, GroupDecision
from lockkit.table.occ.group.fence import format_group_fence
from lockkit.table.occ.group.process import GroupProcess, process_of
from lockkit.table.occ.group.publish import (
    OWNER_PATIENCE_S,
    _entry_of,
    _publish_later,
    in_group,
    publish_behind,
    publish_in_group,
    publish_together,
    see_published,
)
from lockkit.table.occ.group.refused import LateInstant, passed
from lockkit.table.occ.group.view import GroupView

MY_DECISION = GroupDecision(4, 3, COMMIT, MINE, T(9_100))


def answered(request: Any) -> Any:
    """The store has nothing more; the clock stands at 0."""
    if isinstance(request, Parallel):
        return [carried_out(each, answered)[0] for each in request.procedures]
    return {WallMs: 0, Unique: "u", Note: None}[type(request)]


def decides(
    monkeypatch: pytest.MonkeyPatch, result: str | Exception, *, sent: bool = False,
    then: Callable[[GroupClient], None] = lambda _: None,
) -> None:  # fmt: skip
    def decided(client: GroupClient, write: Any, **_: Any) -> Procedure[str]:
        yield from ()
        write.sent = sent
        then(client)
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(group_publish, "decided", decided)


def published_together(client: GroupClient, answer: Callable[[Any], Any] = answered) -> Committed:
    committed: Committed = carried_out(publish_together(client, prepared(listed())), answer)[0]
    return committed


# --- its answer -----------------------------------------------------------------------------------


def test_a_commit_names_the_round_and_the_time_of_its_decision_and_is_to_be_published(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(fence_of((*decisions(3), MY_DECISION)))
    client.boot_ms = lambda: 77
    decides(monkeypatch, COMMIT)
    assert published_together(client) == Committed(MINE, 0, 3, (), T(9_100))
    assert client.behind == [MY_DECISION] and client.acked_ms == 77


@pytest.mark.parametrize(("error", "sent", "raised"), [
    (StoreError("denied"), False, StoreError), (StoreError("denied"), True, CommitUnknown),
    (TableError("a", "b", "c"), False, TableError),
    (TableError("a", "b", "c"), True, CommitUnknown),
    (Unanswered("a", doubt=False), False, Unanswered),
    (Unanswered("a", doubt=True), False, CommitUnknown),
    (TableChanged("a", "b", "c"), True, TableChanged), (RuntimeError("a"), False, CommitUnknown),
    (CommitUnknown(MINE, "why", ("there",)), False, CommitUnknown),
], ids=str)  # fmt: skip
def test_an_error_denies_a_commit_only_if_nothing_was_sent_that_may_have_it_decided(
    monkeypatch: pytest.MonkeyPatch, error: Exception, sent: bool, raised: type[Exception]
) -> None:
    client = client_of(fence_of(()))
    decides(monkeypatch, error, sent=sent)
    with pytest.raises(Exception) as caught:
        published_together(client)
    assert type(caught.value) is raised and (raised is not type(error) or caught.value is error)
    if isinstance(caught.value, CommitUnknown):
        assert caught.value.prepared.instant == MINE and caught.value.read
        assert caught.value is error or FENCE_KEY in caught.value.read


def test_a_commit_that_is_decided_is_not_denied_if_its_decision_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied() -> Procedure[Any]:
        yield from ()
        raise StoreError("denied")

    decides(monkeypatch, COMMIT)
    monkeypatch.setattr(group_publish, "read_group_fence", denied)
    with pytest.raises(CommitUnknown, match="denied"):
        published_together(client_of(fence_of(())))


@pytest.mark.parametrize(("kind", "why", "raised"), [
    (ROLLBACK, "", LockLost), (REFUSED, "conflict", CommitConflict), (REFUSED, "", LockLost),
    (REFUSED, "switched", ModeSwitched),
])  # fmt: skip
def test_a_refused_commit_leaves_its_tombstone_and_is_not_published(
    monkeypatch: pytest.MonkeyPatch, kind: str, why: str, raised: type[Exception]
) -> None:
    """One whose refusal has left the window was rolled back, or its owner was away for long."""
    its, switched = GroupDecision(1, 1, kind, MINE, why=why, by=T(1)), why == "switched"
    fence = fence_of((its,) if (why or kind == ROLLBACK) and not switched else ())
    fence, buried = replace(fence, since=MINE if switched else fence.since), list[str]()
    client = client_of(fence)
    decides(monkeypatch, kind, sent=True)

    def answer(request: Any) -> Any:
        if isinstance(request, Put):
            buried.append(request.key)
            return Applied("v")
        if isinstance(request, Get):
            return Found(format_group_fence(fence), "v1")
        return answered(request)

    with pytest.raises(raised):
        published_together(client, answer)
    assert buried == [f"{V9.folder}{MINE}.offer"] and not client.behind


@pytest.mark.parametrize("names", [V9, V6], ids=["9", "6"])
def test_a_decision_that_has_left_the_window_is_found_in_the_timeline(names: Any) -> None:
    done = T(9_100) if names is V9 else None
    fence = fence_of((), completion=done)
    entries = Listing([ListEntry(names.completed(MINE, COMMIT, done), 9, '"1"')])

    def answer(request: Any) -> Any:
        if isinstance(request, List):
            return entries
        fence_read = request == Get(FENCE_KEY, limit=request.limit)
        return Found(format_group_fence(fence), "v1") if fence_read else Missing()

    found, _ = carried_out(_entry_of(client_of(fence), MINE, COMMIT), answer)
    assert (found.kind, found.instant, found.completion) == (COMMIT, MINE, done)
    entries.clear()
    assert carried_out(_entry_of(client_of(fence), MINE, REFUSED), answer)[0] is None


def test_a_rewrite_that_its_own_listing_has_passed_sends_nothing_more() -> None:
    """A reader may have passed its instant, or a service has rolled it back."""
    late = passed(MINE, T(9_000))
    way = publish_together(client_of(fence_of(())), prepared(listed()),
                           append=GroupRewrite(GroupClient(), late=late))  # fmt: skip
    with pytest.raises(LateInstant) as error:
        carried_out(way, nothing)
    assert error.value is late


# --- what it knows of others ----------------------------------------------------------------------


def seen_by(
    monkeypatch: pytest.MonkeyPatch, client: GroupClient, way: GroupAppend | None,
    grows: bool = False,
) -> tuple[GroupWrite, GroupView | None, bool]:
    """The write and the view that its decision begins with; whether something is sent beside it."""
    found = list[Any]()

    def decided(_: GroupClient, write: GroupWrite, *, view: GroupView | None) -> Procedure[str]:
        yield from ()
        found.append((write, view, client.beside is not None))
        raise TableChanged("a", "b", "c")

    monkeypatch.setattr(group_publish, "decided", decided)
    with pytest.raises(TableChanged):
        mine = prepared(listed(), grows=grows)
        carried_out(publish_together(client, mine, append=way), answered)
    ((write, view, beside),) = found
    return write, view, beside


@pytest.mark.parametrize("earlier", [True, False])
@pytest.mark.parametrize("offered", [True, False])
def test_a_rewrite_that_listed_beside_its_files_follows_earlier_commits_and_expects_later_ones(
    monkeypatch: pytest.MonkeyPatch, earlier: bool, offered: bool
) -> None:
    client = client_of(fence_of(decisions(1)))
    client.own |= {T(4_600), T(5_200)}
    client.trip_ms = 500
    others = [T(4_500)] * earlier + [T(4_600), T(5_100), T(5_200)]
    offers = [f"{V9.folder}{T(5_100)}.offer"] * offered
    beside = listed(*map(V9.requested, others), *offers)
    known = ListedBeside(client.known, client.known, "v1")
    write, view, _ = seen_by(monkeypatch, client, GroupRewrite(client, known, beside=beside))
    assert (write.earlier, write.follows) == (frozenset([T(4_500)] * earlier), earlier)
    assert write.later == frozenset([T(5_100)] * (not offered))
    assert bool(client.contended) == earlier
    assert (view is None) == earlier
    assert view is None or view.pending() == set(others)


@pytest.mark.parametrize(("rested", "lost", "reserves"), [
    (True, 0, True), (False, 0, True), (False, LOST + 1, True), (False, LOST + 1, False)
])  # fmt: skip
def test_an_append_sends_more_beside_its_replacement_only_if_it_saves_time(
    monkeypatch: pytest.MonkeyPatch, rested: bool, lost: int, reserves: bool
) -> None:
    """A client whose process gives back no reservation makes none."""
    client = client_of(fence_of(decisions(1)))
    client.reserves, client.lost, client.acked_ms = reserves, lost, 0
    client.contended = CONTENDED_FOR if rested or lost else 0
    known = ListedBeside(client.known, client.known, "v1")
    monkeypatch.setattr(group_publish, "saves_time", lambda *_: True)
    append = GroupAppend(client, known, rested_ms=60_000 * rested)
    write, view, beside = seen_by(monkeypatch, client, append)
    assert view is not None and not write.meets and write.blind
    assert write.eager == (rested or lost > LOST)
    assert (write.ahead is not None) == (lost > LOST and reserves)
    assert beside == (not client.contended)
    newer = replace(known, fence=fence_of(decisions(2)), version="v2")
    assert seen_by(monkeypatch, client, GroupAppend(client, newer))[0].meets
    client.contended = 0
    assert seen_by(monkeypatch, client, None)[1:] == (None, False)
    unlisted = seen_by(monkeypatch, client, GroupAppend(client))
    assert unlisted[1] is None and not unlisted[0].listed and not unlisted[0].follows
    client.contended = CONTENDED_FOR
    compared = seen_by(monkeypatch, client, GroupAppend(client, known), grows=True)[0]
    assert not compared.eager and compared.ahead is None


# --- publishing it --------------------------------------------------------------------------------


class Memory(SimpleNamespace):
    """What a process commits with; its client is to publish `count` decisions."""

    def __init__(self, count: int = 1, lingering: list[threading.Thread] | None = None) -> None:
        client = client_of(fence_of(decisions(count), combiner="W1"))
        client.behind = list(decisions(count))
        super().__init__(together=[client], lingering=lingering, store=open_store("memory://t"),
                         clock=Clock(), emit=lambda *_, **__: None)  # fmt: skip


@pytest.fixture(params=[StoreError("denied"), TableError("a", "b", "c")], ids=["store", "table"])
def said(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[tuple[str, str]]]:
    """What is published, and in which thread; the first one fails."""
    found = list[tuple[str, str]]()

    def see(client: GroupClient, mine: GroupDecision, **_: Any) -> Procedure[bool]:
        yield from ()
        found.append((mine.instant, threading.current_thread().name))
        if len(found) == 1:
            raise request.param
        return True

    monkeypatch.setattr(group_publish, "see_published", see)
    yield found


def test_without_threads_all_that_was_decided_is_published_before_the_call_returns(
    said: list[tuple[str, str]]
) -> None:
    context = Memory(3)
    _publish_later(context)
    assert sorted(said) == [(T(n), threading.current_thread().name) for n in (1, 2, 3)]
    assert not context.together[0].behind and not context.together[0].watches


def test_threads_that_publish_are_kept_while_they_run(said: list[tuple[str, str]]) -> None:
    kept, go_on = list[threading.Thread](), threading.Event()
    for target in (go_on.wait, lambda: None):
        kept.append(threading.Thread(target=target, name="before", daemon=True))
        kept[-1].start()
    kept[-1].join()
    context = Memory(1, kept)
    context.together[0].closing.set()
    _publish_later(context)
    name = f"lockkit-publish-{T(1)}"
    assert [each.name for each in kept] == ["before", name] and context.together[0].watches
    go_on.set()
    kept[-1].join(30)
    assert said == [(T(1), name)]


def test_a_process_that_begins_no_more_threads_publishes_at_once(
    said: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    context = Memory(1, [])
    context.together[0].closing.set()
    _publish_later(context)
    assert [each for each, _ in said] == [T(1)] and context.lingering == []


@pytest.mark.parametrize("error", [None, StoreError("denied"), TableError("a", "b", "c")])
def test_what_a_writer_publishes_is_decided_by_the_fence_that_it_knew_when_it_was_acknowledged(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """By the time that the thread runs, its handle may write to the next table."""
    fence = fence_of(decisions(1), combiner="W1")
    client, seen, gave_back = client_of(fence), list[Any](), list[int]()
    client.boot_ms = lambda: 77

    def see(_: GroupClient, mine: GroupDecision, *, patience_s: float, fence: Any) -> Any:
        yield from ()
        seen.append((mine, patience_s, fence))
        if error:
            raise error
        return True

    def give_back(_: GroupClient) -> Procedure[None]:
        gave_back.append(1)
        yield from ()

    monkeypatch.setattr(group_publish, "see_published", see)
    monkeypatch.setattr(group_publish, "give_back", give_back)
    way = publish_behind(client, fence.window[0])
    client.known = replace(fence, table="the next")
    done, asked = carried_out(way, answered)
    assert seen == [(fence.window[0], OWNER_PATIENCE_S, fence)] and gave_back == [1]
    assert done == (None if error else 77)
    assert [each.data["text"].endswith(str(error)) for each in asked] == [True] * bool(error)


@pytest.mark.parametrize("named", ["W1", "W2", "idle"])
@pytest.mark.parametrize("there", [True, False])
def test_the_client_that_the_fence_names_publishes_and_others_only_if_it_does_not(
    monkeypatch: pytest.MonkeyPatch, named: str, there: bool
) -> None:
    fence = fence_of(decisions(3), combiner="W1" if named == "W1" else "W2")
    newer = replace(fence, round=4, combiner="W3")
    client, asked = client_of(newer), list[Any]()
    client.won = {2}

    def others(*given: Any) -> Procedure[bool]:
        yield from ()
        asked.append(("waits", *given[1:]))
        return named == "W2"

    def publish(*given: Any) -> Procedure[bool]:
        yield from ()
        asked.append(("publishes", *given[1:]))
        return there

    monkeypatch.setattr(group_publish, "others_publish", others)
    monkeypatch.setattr(group_publish, "publish_round", publish)
    done = []
    for mine in fence.window[:2]:
        way = see_published(client, mine, patience_s=9.0, fence=fence)
        done.append(carried_out(way, answered))
        waits, itself = ("waits", fence, mine, 9.0), ("publishes", fence, mine)
        later = [waits, ("publishes", newer, mine)]
        assert asked == {"W1": [itself], "W2": [waits], "idle": later}[named]
        assert client.idle == ("W3" if named == "idle" else "")
        asked.clear()
        client.idle = ""
    assert [result for result, _ in done] == [named != "W2" and there] * 2
    notes = [(each.kind, each.data.get("batch")) for _, sent in done for each in sent]
    is_there = named == "W2" or there
    assert notes == ([("published", None), ("published", 1)] if is_there else [("note", None)] * 2)


@pytest.mark.parametrize("at", ["decided", "see_published"])
def test_an_interrupt_ends_the_procedure_at_once_and_says_if_the_commit_was_decided(
    monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """A debugger may keep the error for long: what the procedure holds is free nevertheless."""
    client, ended = client_of(fence_of((MY_DECISION,), combiner="W1")), list[bool]()

    def interrupted(*_: Any, **__: Any) -> Procedure[Any]:
        try:
            yield Get("interrupted")
        finally:
            ended.append(client.held.locked())  # then no other thread takes it for one that is gone

    def get(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    decides(monkeypatch, COMMIT)
    monkeypatch.setattr(group_publish, at, interrupted)
    context = Memory(1)
    context.together, context.store = [client], SimpleNamespace(get=get)
    client.process, client.checked_ms = GroupProcess(), Clock().wall_ms()
    with pytest.raises(KeyboardInterrupt) as error:
        publish_in_group(context, prepared(listed()), SIMPLE)
    assert ended == [at == "decided"] and not client.held.locked()
    assert any("was committed before this" in each for each in error.value.__notes__) == (
        at == "see_published"
    )


@pytest.mark.parametrize("lingering", [None, []], ids=["ends at once", "lingers"])
def test_the_first_commit_of_a_process_makes_its_client_and_each_has_a_lock_of_its_own(
    monkeypatch: pytest.MonkeyPatch, lingering: list[threading.Thread] | None
) -> None:
    """An interrupted commit's lock that is taken again would make its thread count as there."""
    context, fence = Memory(0, lingering), fence_of((), combiner="W1")
    context.together, context.own, held = [], {T(1)}, list[Any]()
    context.store = SimpleNamespace(url="memory://t", server="there")

    def recheck(client: GroupClient, *_: Any) -> Procedure[None]:
        yield from ()
        client.knows(fence, "v1")
        held.append(client.held)

    monkeypatch.setattr(group_publish, "_recheck", recheck)
    decides(monkeypatch, RuntimeError("stop"))
    for _ in range(2):
        with pytest.raises(CommitUnknown, match="stop"):
            publish_in_group(context, prepared(listed()), SIMPLE)
    (client,) = context.together
    assert client.own is context.own and client.reserves == (lingering is not None)
    assert client.process is process_of(context.store.url, context.store.server)
    assert client.names is V9 and client.boot_ms == context.clock.boot_ms
    assert held[0] is not held[1]
    assert in_group([], True) is None
    assert [type(in_group([client], each)) for each in (True, False)] == [GroupRewrite, GroupAppend]
