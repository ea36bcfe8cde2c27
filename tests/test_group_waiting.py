"""Writers that wait for others: they send little, and only one of them publishes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")

from lockkit.clock import Clock
from lockkit.errors import StoreError, TableError, Unanswered
from lockkit.lab.course.together import ANOTHER, Combining, Writing, batches, figure, rates
from lockkit.lab.widgets.lanes import Lanes
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    NotModified,
    PreconditionFailed,
    Throttled,
    Unknown,
    WriteAnswer,
)
from lockkit.runtime import (
    Delete,
    Get,
    List,
    Note,
    Parallel,
    Procedure,
    Put,
    Sleep,
    Unique,
    WallMs,
    carry_out,
    run,
)
from lockkit.runtime.proven import TRIES_MAX
from lockkit.stores import ListEntry, Listing, open_store
from lockkit.table import CommitConflict, CommitUnknown
from lockkit.table.errors import NoTable
from lockkit.table.format.plans import (
    ClusteringGroup,
    ClusteringInput,
    ReplacePlan,
    format_cluster_plan,
    format_overwrite_plan,
)
from lockkit.table.format.properties import FENCED, GROUP, PROPERTIES_KEY, TableConfig
from lockkit.table.format.property_keys import FENCE_FORMAT
from lockkit.table.format.timeline import (
    LANES,
    V6,
    V9,
    Timeline,
    instant_ms,
    instant_of,
    load_timeline,
    next_instant_ms,
    parse_timeline,
)
from lockkit.table.occ.fence import COMMIT, FENCE_KEY, GROUP_FORMAT, ROLLBACK, digest
from lockkit.table.occ.group.ahead import (
    AHEAD_MS,
    LEFT_MAX,
    GroupAppend,
    GroupRewrite,
    give_back,
    is_base,
    release,
    reserve_ahead,
)
from lockkit.table.occ.group.client import (
    FAST_RUN_MAX,
    LOST,
    TURNS_MAX,
    GroupClient,
    GroupWrite,
    ListedBeside,
    completed_key,
    instant_in,
    names_of,
    timeline_key,
)
from lockkit.table.occ.group.combine import answered, withdraw
from lockkit.table.occ.group.commit import (
    CROWD,
    GATHER_LATEST,
    GATHER_MOST,
    GATHER_SOONEST,
    IN_VAIN,
    PASSED,
    decided,
    decided_over,
    gather,
    gathers,
    is_left_over,
    loses,
)
from lockkit.table.occ.group.decision import (
    REFUSED,
    UNPUBLISHED_MAX,
    GroupDecision,
    GroupFence,
    Offer,
    has_room,
)
from lockkit.table.occ.group.fence import (
    blind_name,
    format_group_fence,
    packed,
    parse_group_fence,
    parse_offer,
    tombstone,
)
from lockkit.table.occ.group.gone import is_gone
from lockkit.table.occ.group.offer import (
    FEW,
    LATER,
    LATEST,
    LOOK_TRIPS,
    PATIENCE_MAX,
    SOON_MOST,
    SOONER,
    SOONEST,
    await_decision,
    offer,
    offered_as,
    take_turn,
)
from lockkit.table.occ.group.outcomes import (
    PUBLISHER_READS,
    PUBLISHER_TRIPS,
    REWRITER_READS,
    SURE_MS,
    bury,
    has_lost_fence,
    is_published,
    make_room,
    publish_one,
    publish_round,
    publishes,
    to_be_published,
)
from lockkit.table.occ.group.places import SPREAD_MAX_MS, behind_ms, spread_ms
from lockkit.table.occ.group.publish import _entry_of, _raise_format, linger, see_published
from lockkit.table.occ.group.refused import noting, refusal_of
from lockkit.table.occ.group.settings import recheck
from lockkit.table.occ.group.tail import give_way
from lockkit.table.occ.group.view import GroupView, look, offered, outcome, view_beside
from lockkit.table.occ.transaction import (
    LEAD_MAX_MS,
    TableCache,
    TakenInstant,
    overtaking,
    take,
)

BODY = b"inflight"


def T(number: int) -> str:
    return instant_of(1_767_225_600_000 + number)


def decisions(count: int, **more: Any) -> tuple[GroupDecision, ...]:
    """Commits that nobody has published; the fence repeats what their inflight files say."""
    return tuple(GroupDecision(n, n, COMMIT, T(n), T(n + 5_000), digest(BODY),
                               body=packed(BODY), **more) for n in range(1, count + 1))  # fmt: skip


def fence_of(window: tuple[GroupDecision, ...], **more: Any) -> GroupFence:
    more.setdefault("completion", T(9_000))
    more.setdefault("combiner", "W2")
    return GroupFence("a", "t", round=len(window), window=window, **more)


def client_of(fence: GroupFence, name: str = "W1") -> GroupClient:
    client = GroupClient(name=name, names=names_of(fence))
    client.knows(fence, "v1")
    return client


def carried_out(way: Procedure[Any], answer: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
    """What it returns, and its requests; `Sleep` is answered by None."""
    asked = []
    try:
        request = way.send(None)
        while True:
            asked.append(request)
            request = way.send(None if isinstance(request, Sleep) else answer(request))
    except StopIteration as done:
        return done.value, asked


def nothing(request: Any) -> Any:
    raise AssertionError(f"sent {request}")


def test_of_sixteen_writers_one_publishes_and_hardly_any_completed_file_is_sent_twice() -> None:
    playing = Writing(16).play(9.0)
    sent = [each.answer for each in playing.world.memory_store.truth
            if isinstance(each.request, Put) and each.request.key.endswith(".commit")]  # fmt: skip
    assert len(playing.acked) > UNPUBLISHED_MAX, "the window was full for a while"
    twice = sum(isinstance(each, PreconditionFailed) for each in sent)
    assert twice <= len(sent) / 20


def test_version_6_takes_more_commits_than_can_be_published_one_by_one_and_its_rounds_in_order(
) -> None:
    nine, six = Writing(16, version=9).play(5.0), Writing(16, version=6).play(5.0)
    assert len(six.acked) > 1.3 * len(nine.acked)
    round_of: dict[str, int] = {}
    published: list[str] = []
    for each in six.world.memory_store.truth:
        if not isinstance(each.request, Put) or not isinstance(each.answer, Applied):
            continue
        if each.request.key == FENCE_KEY:
            window = parse_group_fence(each.request.body).window
            round_of |= {decision.instant: decision.round for decision in window}
        elif each.request.key.endswith(".commit"):
            published.append(instant_in(each.request.key))
    rounds = [round_of[each] for each in published]
    assert rounds == sorted(rounds), "one is published before an earlier round"
    assert len(set(rounds)) < len(rounds) / 2


def test_a_thread_waits_as_long_as_another_one_of_its_process_publishes() -> None:
    fence = replace(fence_of(decisions(UNPUBLISHED_MAX)), combiner="W1")
    client = client_of(fence)
    client.publishing.acquire()
    way, asked = publish_round(client, fence, fence.window[-1]), []
    request = way.send(None)
    for _ in range(2 * TURNS_MAX):
        asked.append(request)
        request = way.send(None)
    assert all(isinstance(each, Sleep) for each in asked)
    client.proven |= {each.seq for each in fence.window}
    assert carried_out(way, nothing) == (True, [])


def test_a_writer_for_which_the_window_has_no_room_publishes_nothing_while_another_one_does() -> (
    None
):
    fence = fence_of(decisions(UNPUBLISHED_MAX))
    client = client_of(fence)
    _, asked = carried_out(make_room(client, fence), lambda _: Found(BODY, "v"))
    assert [each for each in asked if not isinstance(each, Sleep)] == [
        Get(completed_key(fence.window[0]), None, 64_000_000)
    ]
    assert has_room(fence, client.proven)


def test_a_writer_for_which_the_window_has_no_room_publishes_if_the_named_client_does_not() -> None:
    fence = fence_of(decisions(UNPUBLISHED_MAX))
    client = client_of(fence)

    def answer(request: Any) -> Any:
        match request:
            case Get(key) if key == FENCE_KEY:
                return Found(format_group_fence(fence), "v1")
            case Get():
                return Missing()
            case List():
                return []
            case WallMs():
                return 0
            case Put():
                return Applied("v")
            case _:  # in parallel: one after the other here
                return tuple(carried_out(each, answer)[0] for each in request.procedures)

    carried_out(make_room(client, fence), answer)
    assert client.idle == "W2"
    assert client.proven == {each.seq for each in fence.window}


def test_one_read_shows_that_all_up_to_a_commit_are_published() -> None:
    window = decisions(5)
    fence = fence_of(window)
    client = client_of(fence)
    looking = is_published(client, fence.table, list(window))
    done, asked = carried_out(looking, lambda _: Found(BODY, "v"))
    assert done
    assert [each.key for each in asked] == [completed_key(window[-1])]
    assert client.proven == {1, 2, 3, 4, 5}


def test_what_is_published_last_shows_nothing_of_its_own_round_in_version_6_and_a_tombstone_nothing(
) -> None:
    first, *rest = decisions(3)
    six = [replace(each, completion=None) for each in (first, *(replace(e, round=2) for e in rest))]
    refused = GroupDecision(4, 3, REFUSED, T(4), why="late")
    for left, proven in ((six, {1, 3}), ([*six, refused], {4})):
        fence = fence_of(tuple(left), completion=None)
        client = client_of(fence)
        looking = is_published(client, fence.table, left)
        assert carried_out(looking, lambda _: Found(tombstone("x"), "v"))[0]
        assert client.proven == proven


def test_a_tombstone_is_written_over_each_later_offer_of_its_owner() -> None:
    """It counts as proven afterwards, so that the refusal may leave the window."""
    owners, over = [b'{"offer": 1}', b'{"offer": 2}', b'{"offer": 3}'], list[Any]()

    def answer(request: Any) -> Any:
        left = owners[min(len(over), len(owners)) - 1]
        if isinstance(request, Get):
            return Found(left, f"v{len(over)}")
        over.append(request.condition)
        return Applied("v9") if len(over) > len(owners) else PreconditionFailed()

    carried_out(bury(V9, T(1)), answer)
    assert over == [IfAbsent(), *map(IfVersion, ("v1", "v2", "v3"))]


@pytest.mark.parametrize(("body", "why"), [(b"other", "is missing or is not what was decided"),
                                           (BODY, "differs from its inflight file")])  # fmt: skip
def test_a_publisher_creates_nothing_but_what_was_decided_and_says_what_else_is_there(
    body: bytes, why: str
) -> None:
    (each,) = decisions(1)
    fence = fence_of((each,))
    client, view = client_of(fence), GroupView(fence, "v1", {}, frozenset())
    answers = {Put: PreconditionFailed(), Get: Found(b"another's", "v")} if body == BODY else {}
    with pytest.raises(TableError, match=why):
        way = publish_one(client, view, each, {each.instant: body})
        carried_out(way, lambda request: answers[type(request)])
    assert not client.proven


@pytest.mark.parametrize(("body", "proven"), [(tombstone("x"), {1}), (b"{}", set())])
def test_a_refusal_is_over_once_its_tombstone_is_there(body: bytes, proven: set[int]) -> None:
    refused = GroupDecision(1, 1, REFUSED, T(1), why="late")
    fence = fence_of((refused,))
    client = client_of(fence)
    looking = is_published(client, fence.table, [refused])
    done, asked = carried_out(looking, lambda _: Found(body, "v"))
    assert done == bool(proven)
    assert client.proven == proven
    assert [each.key for each in asked] == [timeline_key(V9, refused.instant, "offer")]


def test_a_writer_learns_from_the_fence_that_its_commit_is_published() -> None:
    window = decisions(3)
    fence = fence_of(window)
    client = client_of(fence)
    client.knows(replace(fence, published=3), "v2")
    way = see_published(client, window[-1], patience_s=0.5, fence=fence)
    published, asked = carried_out(way, lambda _: None)
    assert not published
    assert {type(each).__name__ for each in asked} <= {"Sleep", "Note"}


def growing(client: GroupClient, parts: dict[int, Callable[[], None]]) -> Callable[[Any], Any]:
    """Nothing is published; before its n-th pause the client learns something from its writer."""
    pauses = 0

    def answer(request: Any) -> Any:
        nonlocal pauses
        match request:
            case Sleep():
                pauses += 1
                parts.get(pauses, lambda: None)()
                return None
            case Get(key) if key == FENCE_KEY:
                assert client.known is not None
                return Found(format_group_fence(client.known), client.version)
            case Get():
                return Missing()
            case List():
                return []
            case Put():
                return Applied("v")
            case Parallel(procedures):
                return tuple(carry_out(each, answer) for each in procedures)
            case _:
                return 0 if isinstance(request, WallMs) else None

    return answer


def seen_by(client: GroupClient, way: Procedure[Any], parts: dict[int, Callable[[], None]]) -> Any:
    """Its requests and pauses in order, also those in parallel."""
    asked, answer = [], growing(client, parts)

    def kept(request: Any) -> Any:
        if not isinstance(request, Parallel):
            asked.append(request)
            return answer(request)
        return tuple(carry_out(each, kept) for each in request.procedures)

    return carry_out(way, kept), asked


def test_a_publisher_that_the_fence_names_anew_is_at_work_again() -> None:
    """Otherwise two clients publish each commit from then on."""
    fence = fence_of(decisions(3))
    client = client_of(fence)
    client.idle = "W2"
    for who, expected in (("W2", True), ("W3", False), ("W2", False)):
        fence = replace(fence, round=fence.round + 1, combiner=who)
        client.knows(fence, "v2")
        assert publishes(client, fence) == expected


def test_a_writer_takes_over_the_publishing_of_all_that_was_decided_since_the_publisher_was_killed(
) -> None:
    """Not only up to its own commit: the fence names the killed one until this writer wins it.
    That one had taken over from another publisher."""
    every = decisions(9)
    fence, *later = (fence_of(every[:count]) for count in (2, 6, 9))
    newer, newest = (replace(each, combiner="W3") for each in later)
    client = client_of(fence)
    way = see_published(client, fence.window[0], patience_s=0.5, fence=fence)
    parts = {1: lambda: client.knows(newer, "v2"), 5: lambda: client.knows(newest, "v3")}
    published, asked = seen_by(client, way, parts)
    assert published and client.idle == "W3"
    sent = [each.key for each in asked if isinstance(each, Put)]
    assert sent == [completed_key(each) for each in every]
    first = next(at for at, each in enumerate(asked) if isinstance(each, Put))
    assert sum(each.seconds for each in asked[:first] if isinstance(each, Sleep)) < 1


def test_a_writer_waits_for_a_publisher_that_goes_on_and_sends_nothing() -> None:
    """What its own listings show costs no request; each commit that they show begins the wait
    anew, and so does another publisher."""
    fence = fence_of(decisions(8))
    client = client_of(fence)

    def shows(number: int) -> Callable[[], None]:
        return lambda: client.proven.add(number)

    def another() -> None:
        client.knows(replace(fence, round=99, combiner="W3"), "v2")

    way = see_published(client, fence.window[-1], patience_s=0.5, fence=fence)
    parts = {2 * number: shows(number) for number in range(1, 9)} | {15: another}
    published, asked = seen_by(client, way, parts)
    assert not published and not client.idle
    assert {type(each) for each in asked} == {Sleep, Note}
    assert sum(isinstance(each, Sleep) for each in asked) == 16


def test_a_closed_client_looks_again_and_publishes_nothing_while_another_one_publishes() -> None:
    window = decisions(6)
    fence = fence_of(window)
    client = client_of(fence)
    client.closing.set()
    looks = 0

    def answer(request: Any) -> Any:
        """At each look at the last one, another one is published."""
        nonlocal looks
        if not isinstance(request, Get):
            return None
        keys = [completed_key(each) for each in window]
        looks += request.key == keys[-1]
        return Found(BODY, "v") if request.key in keys[:looks] else Missing()

    way = see_published(client, window[-1], patience_s=0.5, fence=fence)
    published, asked = carried_out(way, answer)
    assert not published
    assert not [each for each in asked if isinstance(each, Put)]


def test_a_writer_among_others_keeps_its_place_within_each_round_trip() -> None:
    """Writers that begin together then do not ask for the same instant again and again."""
    client, newest = client_of(fence_of(decisions(1))), T(0)
    client.trip_ms, start_ms = 60, instant_ms(newest)

    def places() -> set[int]:
        found = set()
        for wall_ms in range(start_ms + 1, start_ms + 1_500, 37):
            lead_ms, _ = carried_out(spread_ms(client, newest, wall_ms), lambda _: "mine")
            assert 0 <= lead_ms < 1.25 * client.trip_ms
            found.add((wall_ms + lead_ms) % 64)
        return found

    assert len(places()) > 30, "it meets no other writer: the clock gives its instant"
    client.contended = 1
    assert len(places()) == 1, "by chance at first"
    client.place_ms = start_ms + 5
    assert places() == {(start_ms + 5) % 64}, "then where its last instant was"


@pytest.mark.parametrize(
    ("wall", "lead_ms"), [(180, 8), (50, 9 + 100 + 60 + 8 - 50), (2, 9 + 100 + 60 + 8 - 20)]
)
def test_a_writer_whose_clock_is_behind_goes_on_from_the_fences_newest_instant(
    wall: int, lead_ms: int
) -> None:
    """Otherwise others' commits pass its instant before it lists. No further than its own clock has
    gone on since, and a round trip: then instants do not run ahead of the clocks."""
    client = client_of(replace(fence_of(decisions(1)), newest=T(9)))
    client.trip_ms, client.boot_ms, client.knew_ms = 60, lambda: 5_100, 5_000
    wall_ms = instant_ms(T(wall))
    assert behind_ms(client, T(20), 8, wall_ms) == 8, "it meets no other writer"
    client.contended = 1
    assert behind_ms(client, T(20), 8, wall_ms) == lead_ms


def test_a_writer_whose_clock_is_behind_begins_again_as_far_ahead_as_the_first_time() -> None:
    """The lead after a useless instant, 50 ms at first, is less than others go on meanwhile."""
    client = client_of(replace(fence_of(decisions(1)), newest=T(9)))
    client.trip_ms, client.boot_ms, client.knew_ms, client.contended = 60, lambda: 5_100, 5_000, 1
    config = TableConfig(name="t", record_key="id", mode=FENCED, commit=GROUP)
    known = TableCache(config, "v", newest=T(20))

    def answer(request: Any) -> Any:
        return {Put: Applied("v"), WallMs: instant_ms(T(2)), Unique: "mine"}[type(request)]

    way = GroupAppend(client).take(known, action=COMMIT, lead_ms=50, trying=None)
    assert carried_out(way, answer)[0].instant >= T(9 + 100 + 60)


def test_an_upsert_does_not_begin_on_a_fence_that_names_a_later_instant() -> None:
    begun = fence_of(decisions(3))
    client = client_of(begun)
    config = TableConfig(name="t", record_key="id", mode=FENCED, commit=GROUP)
    for number, expected in ((1, False), (8, True)):
        taken = TakenInstant(T(number), "mine", COMMIT, TableCache(config, "v"), b"", "v")
        begun = client.known = replace(begun, newest=T(5), window=begun.window[1:])
        assert is_base(client, begun, taken) == expected
    taken = replace(taken, instant=begun.window[-1].instant)
    client.known = begun = replace(begun, newest=T(1))
    assert not is_base(client, begun, taken), "a service has rolled it back"


def test_a_writer_keeps_its_place_though_its_clock_goes_on_while_it_takes_an_instant() -> None:
    """Otherwise its place moves from commit to commit, to that of another writer in the end."""
    client = client_of(fence_of(()))
    client.trip_ms, client.contended, client.place_ms = 60, 4, instant_ms(T(5))
    config = TableConfig(name="t", record_key="id", mode=FENCED, commit=GROUP)
    wall_ms = instant_ms(T(20_000))

    def answer(request: Any) -> Any:
        nonlocal wall_ms
        wall_ms += 1
        return {Put: Applied("v"), WallMs: wall_ms, Unique: "mine"}[type(request)]

    for _ in range(9):
        known = TableCache(config, "v", newest=T(20))
        way = GroupAppend(client).take(known, action=COMMIT, lead_ms=0, trying=None)
        taken, _ = carried_out(way, answer)
        assert (instant_ms(taken.instant) - instant_ms(T(5))) % 64 == 0
        wall_ms += 450


@pytest.mark.parametrize(("ahead_ms", "by_ms"), [(0, 1), (70, 71), (3_600_000, AHEAD_MS)])
def test_a_handle_takes_no_instant_again_and_follows_no_clock_that_has_jumped_back(
    ahead_ms: int, by_ms: int
) -> None:
    client, now_ms = client_of(fence_of(())), instant_ms(T(20_000)) // len(LANES) * len(LANES)
    client.place_ms = now_ms + ahead_ms
    known = TableCache(TableConfig(name="t", record_key="id", mode=FENCED, commit=GROUP), "v")

    def answer(request: Any) -> Any:
        return {Put: Applied("v"), WallMs: now_ms, Unique: "mine"}[type(request)]

    way = GroupAppend(client).take(known, action=COMMIT, lead_ms=0, trying=None)
    taken, _ = carried_out(way, answer)
    assert by_ms <= instant_ms(taken.instant) - now_ms < by_ms + len(LANES)


@pytest.mark.parametrize(
    ("commit", "spread"), [(GROUP, [8, 16, 32, 32, 32]), ("serial", [1, 3, 5, 7, 9])]
)
def test_writers_that_lose_the_same_instants_spread_over_the_next_ones(
    commit: str, spread: list[int]
) -> None:
    config = TableConfig(name="t", record_key="id", mode=FENCED, commit=commit)
    places, ways, seen = [set[int]() for _ in spread], set[tuple[int, ...]](), list[int]()

    def lost(mine: TakenInstant) -> Procedure[bool]:
        yield from ()
        seen.append(instant_ms(mine.instant))
        return len(seen) > len(spread)

    for number in range(600):
        answers = {Put: Applied("v"), WallMs: instant_ms(T(0)), Unique: f"writer {number}"}
        seen.clear()
        carried_out(
            take(TableCache(config, "v"), trying=lost), lambda each, of=answers: of[type(each)]
        )
        for found, (at_ms, next_ms) in zip(places, pairwise(seen), strict=True):
            least_ms = next_instant_ms("", at_ms + 1, COMMIT, 0, commit == GROUP)
            found.add((next_ms - least_ms) // len(LANES))
        ways.add(tuple(seen))
    assert places == [set(range(each)) for each in spread]
    assert len(ways) > max(spread), "two that meet at one instant need not meet at the next one"


def test_the_properties_are_read_again_after_ten_seconds_and_until_they_were_read() -> None:
    client, now_ms = client_of(fence_of(())), instant_ms(T(0))
    known = TableCache(TableConfig(name="t", record_key="id", mode=FENCED, commit=GROUP), "v")
    taken = TakenInstant(T(1), "mine", COMMIT, known, b"", "v")
    found: Any = NotModified(0)

    def is_read(later_ms: int) -> bool:
        def answer(request: Any) -> Any:
            return now_ms + later_ms if isinstance(request, WallMs) else found

        return len(carried_out(recheck(client, taken), answer)[1]) > 1

    assert [is_read(each) for each in (0, 9_999, 10_000, 19_999)] == [True, False, True, False]
    found = Missing()
    for _ in range(2):
        with pytest.raises(NoTable):
            is_read(20_000)
    found = NotModified(0)
    assert is_read(20_000) and is_read(-1), "the clock was put back"


@pytest.mark.parametrize("own", [False, True])
def test_a_writer_that_lost_an_instant_takes_another_one_while_it_reads_whose_it_is(
    own: bool,
) -> None:
    """A hidden retry is refused because of its own first request: nothing of that stays."""
    known = TableCache(TableConfig(name="t", record_key="id", mode=FENCED, commit=GROUP), "v")
    first, asked = list[Put](), list[Any]()

    def answer(request: Any) -> Any:
        asked.append(request)
        match request:
            case Parallel(procedures):
                return tuple(carried_out(each, answer)[0] for each in procedures)
            case Put() if not first:
                first.append(request)
                return PreconditionFailed()
            case Get(key):
                assert key == first[0].key
                return Found(first[0].body if own else b"another's", "v")
        return {Put: Applied("v2"), Delete: Applied("v"), WallMs: 1_767_225_600_000,
                Unique: "mine"}[type(request)]  # fmt: skip

    taken, _ = carried_out(take(known), answer)
    assert (taken.version, taken.requested == first[0].key) == ("v2", False)
    sent = [each for each in asked if not isinstance(each, Unique | WallMs)]
    assert [type(each) for each in sent][:4] == [Put, Parallel, Put, Get]
    assert [each.key for each in sent[4:]] == ([first[0].key] if own else [])


@pytest.mark.parametrize("joins", [False, True])
def test_what_nobody_waits_for_is_done_at_once_where_no_thread_is_joined(joins: bool) -> None:
    done_by, lingering = list[int](), list[threading.Thread]() if joins else None

    def way() -> Procedure[None]:
        done_by.append(threading.get_ident())
        yield from ()

    linger(SimpleNamespace(lingering=lingering, store=None, clock=Clock(), emit=None), way(), "it")
    for each in lingering or ():
        each.join()
    assert (done_by == [threading.get_ident()]) == (not joins) and len(done_by) == 1


@pytest.mark.parametrize("answered", [Throttled(), Unknown("no answer")])
@pytest.mark.parametrize("own", [False, True])
def test_a_reservation_without_an_answer_is_read_before_another_one_is_made(
    own: bool, answered: Any
) -> None:
    known = TableCache(TableConfig(name="t", record_key="id", mode=FENCED, commit=GROUP), "v")
    sent = list[Put]()

    def answer(request: Any) -> Any:
        match request:
            case Put():
                sent.append(request)
                return answered if len(sent) == 1 else Applied("v2")
            case Get(key):
                assert (key, len(sent)) == (sent[0].key, 1)
                return Found(sent[0].body if own else b"another's", "v1")
        return {WallMs: 1_767_225_600_000, Unique: "mine"}[type(request)]

    taken, _ = carried_out(take(known), answer)
    assert (taken.version, len(sent)) == (("v1", 1) if own else ("v2", 2))
    assert taken.requested == sent[-1].key


def test_the_plan_of_a_service_is_read_back_after_a_hidden_retry_and_not_given_up() -> None:
    """Left behind, it would block the table."""
    known = TableCache(TableConfig(name="t", record_key="id", mode=FENCED, commit=GROUP), "v")
    sent = list[Put]()

    def answer(request: Any) -> Any:
        match request:
            case Put():
                sent.append(request)
                return PreconditionFailed()
            case Get():
                return Found(sent[0].body, "v1")
        return {WallMs: 1_767_225_600_000, Unique: "mine"}[type(request)]

    taken, _ = carried_out(take(known, action="clean", plan=format_overwrite_plan()), answer)
    assert (taken.version, taken.requested, len(sent)) == ("v1", sent[0].key, 1)


def test_a_writer_whose_instant_is_taken_tries_one_that_is_not_behind_its_clock() -> None:
    known = TableCache(TableConfig(name="t", record_key="id", mode=FENCED, commit=GROUP), "v")
    wall_ms = 1_767_225_600_000

    def answer(request: Any) -> Any:
        nonlocal wall_ms
        if isinstance(request, WallMs):
            return wall_ms
        if isinstance(request, Unique):
            return "mine"
        if isinstance(request, Parallel):
            began_ms = wall_ms
            done = [carried_out(each, answer)[0] for each in request.procedures]
            wall_ms = began_ms + 60
            return done
        wall_ms += 60
        if isinstance(request, Get):
            return Found(b"another's", "v")
        return Applied("v") if wall_ms > 1_767_225_600_300 else PreconditionFailed()

    taken, _ = carried_out(take(known), answer)
    assert instant_ms(taken.instant) >= wall_ms - 60, "later ones may be completed already"


def test_an_instant_under_way_far_ahead_of_the_clock_does_not_pull_the_next_one_after_it() -> None:
    """It may be a dead writer's, whose clock was wrong."""
    store, clock = open_store("memory://far-ahead"), Clock()
    near, far = T(LEAD_MAX_MS - 1), T(LEAD_MAX_MS)
    for each in (near, far):
        store.put(V9.requested(each, COMMIT), b"another's", IfAbsent())
    known = TableCache(TableConfig(name="t", record_key="id", mode=FENCED, commit=GROUP), "v")
    mine = TakenInstant(T(0), "mine", "clustering", known, b"", "")
    assert overtaking(mine, run(load_timeline(V9), store, clock)) == [near]


def test_a_client_that_never_gets_to_raise_the_fences_format_gives_up() -> None:
    old, versions = replace(fence_of(()), format=3), iter(range(1_000))
    sent = list[GroupFence]()

    def answer(request: Any) -> Any:
        if isinstance(request, Get):
            return Found(format_group_fence(old), f"v{next(versions)}")
        if isinstance(request, Parallel):
            return tuple(carried_out(each, answer)[0] for each in request.procedures)
        if isinstance(request, Put):
            sent.append(parse_group_fence(request.body))
        return {Put: PreconditionFailed(), List: [], WallMs: 0, Unique: "u"}[type(request)]

    with pytest.raises(TableError, match="in 40 tries"):
        carried_out(_raise_format(client_of(old)), answer)
    raised = replace(old, format=GROUP_FORMAT, attempt="u", round=old.round + 1)
    assert len(sent) >= 40 and set(sent) == {raised}


def test_a_writer_looks_again_at_once_when_all_older_offers_are_decided() -> None:
    window = decisions(2)
    client = client_of(fence_of(window[:1]))
    mine, others = T(9), {each.instant for each in window}
    after = Found(format_group_fence(fence_of(window)), "v2")
    kind, asked = carried_out(await_decision(client, mine, LOOK_TRIPS, others), lambda _: after)
    assert (kind, len(asked)) == ("", 2), "one pause and one read"
    kind, asked = carried_out(await_decision(client, mine, LOOK_TRIPS, {T(0)}), lambda _: after)
    assert (kind, len(asked)) == ("", 2 * len(LOOK_TRIPS)), "its owner may still decide"


@pytest.mark.parametrize("offered_first", [False, True])
@pytest.mark.parametrize("others", [0, 1])
def test_a_writer_that_decides_for_others_counts_as_one_among_others(
    others: int, offered_first: bool
) -> None:
    client = client_of(fence_of(decisions(1), published=1))
    client.contended = 1
    instants = [T(n) for n in range(8, 8 + others)]
    offers = [Offer(each, 1, sha256=digest(BODY), blind=True, table="t") for each in instants]
    keys = {offered_as(V9, each)[0] for each in offers} | {V9.inflight(each) for each in instants}
    assert client.known is not None
    view = GroupView(client.known, "v1", {}, frozenset(keys))
    mine = GroupWrite(T(9), "mine", 1, frozenset(), blind=True, body=BODY, table="t")

    def answer(request: Any) -> Any:
        return {Put: Applied("v2"), WallMs: 1_767_225_700_000, Unique: "attempt"}[type(request)]

    way = (take_turn(client, view, mine, PATIENCE_MAX) if offered_first
           else decided(client, mine, view=view))  # fmt: skip
    kind, _ = carried_out(way, answer)
    assert kind == COMMIT
    assert bool(client.contended) == bool(others)


@pytest.mark.parametrize(
    ("offered", "tried", "meets", "later_ms", "sent"),
    [(0, True, True, 99, "offer"), (1, True, True, 99, "fence"), (0, False, True, 99, "fence"),
     (0, True, False, 99, "fence"), (0, True, True, 199, "fence")],
)  # fmt: skip
def test_an_append_is_offered_at_once_behind_many_that_will_replace_the_fence(
    offered: int, tried: bool, meets: bool, later_ms: int, sent: str
) -> None:
    """Its own replacement would mostly fail. Not so if those are offered, began long before (they
    send large files), or are dead: then nobody has decided since it knew the fence. And a client
    that has never tried does not know how often the store takes a replacement.
    """
    client = client_of(fence_of(decisions(1), published=1))
    client.trip_ms = 60
    if tried:
        client.rate.judged_ms = 0
    earlier = [T(8 * n) for n in range(1, CROWD + 1)]
    keys = {timeline_key(V9, each, "requested") for each in earlier}
    keys |= {timeline_key(V9, each, "offer") for each in earlier[:offered]}
    assert client.known is not None
    view = GroupView(client.known, "v1", {}, frozenset(keys))
    mine = GroupWrite(T(later_ms), "mine", 1, frozenset(), blind=True, body=BODY, table="t",
                      earlier=frozenset(earlier), meets=meets)  # fmt: skip

    def answer(request: Any) -> Any:
        if isinstance(request, Put):
            raise InterruptedError(request.key)
        return {Get: Missing(), WallMs: 1_767_225_700_000, Unique: "attempt"}[type(request)]

    with pytest.raises(InterruptedError) as first:
        carried_out(decided(client, mine, view=view), answer)
    assert (str(first.value) == FENCE_KEY) == (sent == "fence"), first.value


@pytest.mark.parametrize("others", [FEW - 1, FEW])
def test_a_rewrite_that_a_round_of_many_left_out_waits_until_they_are_back(others: int) -> None:
    """It decides for them, too; a few may take longer than it."""
    group, waits = frozenset({("p", "f")}), list[float]()
    window = tuple(GroupDecision(n, n, COMMIT, T(n), None, writes=group)
                   for n in range(1, others + 1))  # fmt: skip
    after = fence_of(window, completion=None, published=others)
    client = client_of(replace(after, window=(), round=0, combiner=""))
    client.trip_ms, client.answer_trips = 100, LATEST
    mine = GroupWrite(T(90), "mine", 0, frozenset(), body=BODY, table="t", follows=True,
                      surveyed=True, earlier=frozenset(e.instant for e in window))  # fmt: skip

    def answer(request: Any) -> Any:
        if isinstance(request, Parallel | List):
            raise InterruptedError
        return {Get: Found(format_group_fence(after), "v2"), Put: Applied("v"),
                WallMs: instant_ms(T(90)), Unique: "a"}[type(request)]  # fmt: skip

    def kept(way: Procedure[Any]) -> Procedure[Any]:
        request = next(way)
        while True:
            waits.extend([request.seconds] if isinstance(request, Sleep) else [])
            request = way.send((yield request))

    with pytest.raises(InterruptedError):
        carried_out(kept(offer(client, mine)), answer)
    assert len(waits) == (2 if others == FEW else 1)


def test_a_writer_that_has_met_another_one_lists_after_one_two_and_then_each_four_commits() -> None:
    client, runs = client_of(fence_of(())), list[int]()
    for client.contended in (1, 0):
        if client.contended:
            client.listed()
        for _ in range(0 if client.contended else 15):
            client.wins += 1
            if client.lists:
                runs.append(client.wins)
                client.listed()
    assert runs == [1, 2, 4, 4, 4]
    client.run, client.contended, client.wins = 1, 4, FAST_RUN_MAX - 1
    assert not client.lists, "it lists beside its files as it is"


@pytest.mark.parametrize("lately", [0, 3])
@pytest.mark.parametrize("later", [0, 1])
@pytest.mark.parametrize("blind", [False, True])
def test_the_first_of_several_rewrites_waits_for_the_offers_of_the_others_and_decides_for_all(
    lately: int, later: int, blind: bool
) -> None:
    """Those that its listing shows reserved, or that were decided lately and begin again."""
    group = frozenset({("p", "f")})
    window = tuple(GroupDecision(n, n, COMMIT, T(-n), None, writes=group)
                   for n in range(1, lately + 1))  # fmt: skip
    client = client_of(fence_of(window, completion=None, published=lately))
    client.trip_ms, client.contended, client.names = 60, 4, V6
    mine = GroupWrite(T(8), "mine", lately, frozenset(each.instant for each in window), blind=blind,
                      body=BODY, table="t", later=frozenset({T(16)} if later else ()))  # fmt: skip
    begun = {timeline_key(V6, each, "requested") for each in (T(8), T(16))}
    theirs = Offer(T(16), lately, frozenset({("p", "g")}), digest(BODY), table="t", reserved=True)
    key, content = offered_as(V6, theirs)

    def answer(request: Any) -> Any:
        if isinstance(request, Put):
            raise InterruptedError(request.body)
        listed = Listing(ListEntry(each, 1, "v") for each in sorted({*begun, key}))
        return {Get: Found(content, "v"), List: listed, WallMs: instant_ms(T(8)), Unique: "a",
                Parallel: [listed]}[type(request)]  # fmt: skip

    assert client.known is not None
    view = GroupView(client.known, "v1", {}, frozenset(begun))
    with pytest.raises(InterruptedError) as replaced:
        carried_out(decided(client, mine, view=view), answer)
    made = parse_group_fence(replaced.value.args[0])
    together = {each.instant for each in made.window} >= {T(8), T(16)}
    assert together == (not blind and bool(lately or later))


def test_a_rewrite_that_waited_in_vain_waits_for_nobody_in_its_next_ones() -> None:
    """The other writer's requests take longer than its waits, or that writer is gone."""
    client = client_of(fence_of(()))
    client.trip_ms, client.contended, client.names = 60, 4, V6
    begun = frozenset(timeline_key(V6, each, "requested") for each in (T(8), T(16)))
    listed = Listing(ListEntry(each, 1, "v") for each in sorted(begun))
    assert client.known is not None
    view = GroupView(client.known, "v1", {}, begun)
    mine = GroupWrite(T(8), "mine", 0, frozenset(), body=BODY, table="t", later=frozenset({T(16)}))
    assert gathers(client, view, mine)
    answers = {List: listed, WallMs: instant_ms(T(8)), Parallel: [listed]}
    carried_out(gather(client, view, mine), lambda request: answers[type(request)])
    assert [gathers(client, view, mine) for _ in range(IN_VAIN + 1)] == [False] * IN_VAIN + [True]


def test_the_first_rewrite_of_a_round_waits_as_long_as_offers_took_in_the_rounds_before() -> None:
    client = client_of(fence_of(()))
    client.trip_ms, client.contended, client.names = 60, 4, V6
    begun = frozenset(timeline_key(V6, each, "requested") for each in (T(8), T(16)))
    offered, _ = offered_as(V6, Offer(T(16), 0, frozenset({("p", "g")}), digest(BODY), table="t"))
    assert client.known is not None
    view = GroupView(client.known, "v1", {}, begun)

    def waits(*names: str) -> list[float]:
        """How long it sleeps before each look, in round trips."""
        client.trip_ms = 60
        mine = GroupWrite(T(8), "mine", 0, frozenset(), body=BODY, table="t",
                          later=frozenset({T(16)}))  # fmt: skip
        listed = Listing(ListEntry(each, 1, "v") for each in sorted({*begun, *names}))
        now_ms = iter(range(instant_ms(T(8)), instant_ms(T(9_000)), 60))
        slept, way = list[float](), gather(client, view, mine)
        answer: Any = None
        try:
            while True:
                request = way.send(answer)
                slept += [request.seconds / 0.06] if isinstance(request, Sleep) else []
                answer = [listed] if isinstance(request, Parallel) else None
                answer = next(now_ms) if isinstance(request, WallMs) else answer
        except StopIteration:
            return slept

    first = [waits(offered)[0] for _ in range(40)]
    assert first == sorted(first, reverse=True)
    assert first[0] == pytest.approx(GATHER_LATEST)
    assert first[-1] == pytest.approx(GATHER_SOONEST)
    late = waits()
    assert sum(late) + len(late) < GATHER_MOST + GATHER_LATEST, "it gives up"
    assert waits()[0] == pytest.approx(GATHER_SOONEST + LATER)
    for _ in range(40):
        waits()
    assert waits()[0] == pytest.approx(GATHER_LATEST)


def test_the_owner_of_the_second_oldest_offer_waits_no_longer_for_that_of_the_oldest() -> None:
    client = client_of(fence_of(()))
    client.names = V9
    keys = {timeline_key(V9, each, "requested") for each in (T(1), T(2), T(3))}
    keys |= {V9.folder + blind_name(Offer(each, 0, blind=True, table="t", sha256=digest(BODY)))
             for each in (T(1), T(2), T(3))}  # fmt: skip
    assert client.known is not None
    view = GroupView(client.known, "v1", {}, frozenset(keys))

    def answer(request: Any) -> Any:
        if isinstance(request, Put):
            raise InterruptedError(request.key)
        return {Get: NotModified(0), WallMs: instant_ms(T(8)), Unique: "a"}[type(request)]

    def turn_of(instant: str) -> Any:
        mine = GroupWrite(instant, "mine", 0, frozenset(), body=BODY, table="t")
        return carried_out(take_turn(client, view, mine, 0), answer)

    for first in (T(1), T(2)):
        with pytest.raises(InterruptedError, match=FENCE_KEY):
            turn_of(first)
    assert turn_of(T(3))[0] == ""


def test_a_far_writer_takes_its_instant_further_ahead() -> None:
    client = client_of(fence_of(()))
    client.contended, client.place_ms = 4, 0
    ahead = []
    for trip_ms in (60, 240):
        for _ in range(9):
            client.took(0, trip_ms)
        done, _ = carried_out(spread_ms(client, "", 128 * 10_000), nothing)
        ahead.append(done)
    assert ahead == [0, 2 * (240 - SPREAD_MAX_MS)]


def test_a_rewrite_does_not_wait_for_the_owner_of_an_old_offer_or_of_files_that_take_long() -> None:
    client = client_of(fence_of(()))
    client.trip_ms = 60
    mine = GroupWrite(T(1_000), "mine", 0, frozenset())
    ages = {(each, offered): is_left_over(client, mine, T(each), offered)
            for each in (500, 600, 740, 800) for offered in (False, True)}  # fmt: skip
    left = [each for each, found in ages.items() if found]
    assert left == [(500, False), (500, True), (600, False), (740, False)]


def test_an_append_that_lost_the_fence_twice_to_one_other_writer_is_offered_beside() -> None:
    client = client_of(fence_of(()))
    client.contended = 4
    mine = GroupWrite(T(8), "mine", 0, frozenset(), blind=True, earlier=frozenset({T(1)}))
    for client.lost, expected in ((LOST - 1, False), (LOST, True)):
        assert loses(client, mine) == expected
    crowd = replace(mine, earlier=frozenset({T(1), T(2)}))
    assert not loses(client, crowd) and not loses(client, replace(mine, blind=False))
    decided_one = Found(format_group_fence(fence_of(decisions(1))), "v2")
    before = client.soon_trips
    carried_out(await_decision(client, T(1), (1.0,), (), loses=True), lambda _: NotModified(0))
    assert before < client.soon_trips < SOON_MOST
    for _ in range(99):
        way = await_decision(client, T(1), (1.0,), (), loses=True)
        carried_out(way, lambda _: decided_one)
    assert client.soon_trips == 0


@pytest.mark.parametrize(
    ("kind", "lost", "early_ms", "used"),
    [(GroupAppend, LOST + 1, 90, True), (GroupAppend, LOST + 1, 91, False),
     (GroupAppend, LOST, 9, False), (GroupRewrite, LOST + 1, 9, False)],
)  # fmt: skip
def test_an_append_that_mostly_loses_the_fence_uses_an_instant_that_was_just_reserved(
    kind: type[GroupAppend], lost: int, early_ms: int, used: bool
) -> None:
    """An older one would be passed before it lists, and a rewrite begins on a newer fence."""
    client = client_of(replace(fence_of(()), newest=T(20)))
    client.trip_ms, client.boot_ms, client.knew_ms = 60, lambda: 5_000, 4_990
    client.contended, client.lost = 4, lost
    config = TableConfig(name="t", record_key="id", mode=FENCED, commit=GROUP)
    known = TableCache(config, "v", newest=T(20))
    before = TakenInstant(T(9), "mine", COMMIT, known, b"", "v")

    def answer(request: Any) -> Any:
        if isinstance(request, Parallel):
            return [carried_out(each, answer)[0] for each in request.procedures]
        return {WallMs: instant_ms(T(100)), Unique: "mine", Put: Applied("v")}.get(
            type(request), Missing()
        )

    carried_out(reserve_ahead(client, before), answer)
    ((ahead, _),) = client.ahead
    assert instant_ms(ahead.instant) >= instant_ms(T(100)) + client.trip_ms
    client.boot_ms = lambda: 5_000 + early_ms
    taken, asked = carried_out(
        kind(client).take(known, action=COMMIT, lead_ms=0, trying=None), answer
    )
    assert (taken.instant == ahead.instant) == used == (not asked) and not client.ahead


@pytest.mark.parametrize("whose", ["mine", "another's", "nobody's"])
@pytest.mark.parametrize("again", [True, False])
def test_an_instant_that_was_reserved_ahead_without_an_answer_is_given_back(
    whose: str, again: bool
) -> None:
    """Pending, it would hold back all readers of increments of version 6. It may be another's."""
    client = client_of(replace(fence_of(()), newest=T(20)))
    config = TableConfig(name="t", record_key="id", mode=FENCED, commit=GROUP)
    known = TableCache(config, "v", newest=T(20))
    before = TakenInstant(T(9), "mine", COMMIT, known, b"", "v")
    bodies: dict[str, bytes] = {}
    wall_ms = instant_ms(T(100))

    def answer(request: Any) -> Any:
        match request:
            case Parallel(procedures):
                return [carried_out(each, answer)[0] for each in procedures]
            case Put(key, body) if not bodies:
                bodies[key] = body if whose == "mine" else b"another's"
                return Unknown("lost")
            case Get(key):
                return Missing() if whose == "nobody's" else Found(bodies[key], "v7")
            case Delete(key, IfVersion("v7")):
                del bodies[key]
        return {WallMs: wall_ms, Unique: "mine"}.get(type(request), Applied("v8"))

    carried_out(reserve_ahead(client, before), answer)
    wall_ms += 9
    ((ahead, _),) = client.ahead
    if again:
        way = GroupAppend(client).take(known, action=COMMIT, lead_ms=0, trying=None)
        taken, _ = carried_out(way, answer)
        assert taken.instant > ahead.instant and taken.version == "v8"
    else:
        carried_out(give_back(client), answer)
    assert bool(bodies) == (whose != "mine")
    assert not client.ahead and ahead.instant not in client.own


def test_a_reservation_that_the_store_did_not_give_back_is_given_back_by_the_next_commit() -> None:
    """Meanwhile it is a dead writer's: its process's services, too, may roll it back."""
    client = client_of(replace(fence_of(()), newest=T(20)))
    config = TableConfig(name="t", record_key="id", mode=FENCED, commit=GROUP)
    known = TableCache(config, "v", newest=T(20))
    before = TakenInstant(T(9), "mine", COMMIT, known, b"", "v")
    deletes: list[WriteAnswer] = [Unknown("silent")] * 2 * TRIES_MAX + [Applied("")]
    wall_ms = instant_ms(T(100))

    def answer(request: Any) -> Any:
        match request:
            case Parallel(procedures):
                return [carried_out(each, answer)[0] for each in procedures]
            case Delete():
                return deletes.pop(0)
        return {WallMs: wall_ms, Unique: "mine"}.get(type(request), Applied("v8"))

    carried_out(reserve_ahead(client, before), answer)
    ((ahead, _),) = client.ahead
    assert ahead.instant in client.own
    carried_out(give_back(client), answer)
    assert ahead.instant not in client.own
    for left in (1, 0):
        assert deletes
        wall_ms, client.contended = wall_ms + 9, 1  # among others it uses none of its own
        way = GroupAppend(client).take(known, action=COMMIT, lead_ms=0, trying=None)
        assert carried_out(way, answer)[0].instant > ahead.instant
        assert len(client.ahead) == left
    assert not deletes


@pytest.mark.parametrize(("why", "left"), [(StoreError, 0), (Unanswered, LEFT_MAX)])
def test_reservations_that_the_store_does_not_give_back_do_not_grow(why: Any, left: int) -> None:
    """A role without the right to delete keeps none for a further try."""
    client = client_of(replace(fence_of(()), newest=T(20)))
    known = TableCache(TableConfig(name="t", record_key="id", mode=FENCED, commit=GROUP), "v")
    error = StoreError("denied") if why is StoreError else Unanswered("x", doubt=False)
    for number in range(5):
        mine = TakenInstant(T(30 + number), "mine", COMMIT, known, b"", "v"), 0
        client.ahead.append(mine)
        way = release(client, mine)
        assert isinstance(way.send(None), Delete)
        with pytest.raises(StopIteration):
            way.throw(error)
    assert len(client.ahead) == left


def test_an_append_that_mostly_loses_the_fence_reserves_its_next_instant_beside_its_first_look(
) -> None:
    client = client_of(fence_of(decisions(1)))
    client.contended, client.lost, sent = 4, LOST + 1, list[str]()

    def reserved() -> Procedure[None]:
        yield Put("next.requested", b"", IfAbsent())

    def answer(request: Any) -> Any:
        if isinstance(request, Parallel):
            return [carried_out(each, answer)[0] for each in request.procedures]
        sent.append(request.key)
        return NotModified(0) if isinstance(request, Get) else Applied("v")

    mine = GroupWrite(T(9), "mine", 1, frozenset(), blind=True, eager=True, ahead=reserved())
    way = await_decision(client, mine.instant, (0.0, 0.5), loses=True, beside=mine.ahead)
    carried_out(way, answer)
    assert sent == [FENCE_KEY, "next.requested", FENCE_KEY]


def test_an_upsert_learns_when_to_look_first_whether_it_is_decided() -> None:
    client = client_of(fence_of(()))
    decided_one = Found(format_group_fence(fence_of(decisions(1))), "v2")
    before = client.answer_trips
    carried_out(await_decision(client, T(1), (1.0,), (), learns=True), lambda _: NotModified(0))
    assert client.answer_trips == before + LATER
    for _ in range(99):
        way = await_decision(client, T(1), (1.0,), (), learns=True)
        carried_out(way, lambda _: decided_one)
    assert client.answer_trips == SOONEST
    carried_out(await_decision(client, T(1), (1.0,)), lambda _: decided_one)
    assert client.answer_trips == SOONEST, "an append's time is given"


@pytest.mark.parametrize("blind", [True, False])
@pytest.mark.parametrize("trips", [1.1, 1.9])
def test_an_offer_is_first_looked_for_after_the_time_that_its_client_has_learned(
    trips: float, blind: bool
) -> None:
    """An upsert's, and that of an append that mostly loses the fence; each learns its own."""
    client = client_of(fence_of(decisions(1)))
    client.contended, client.lost = 4, LOST + 1
    client.answer_trips, client.soon_trips = (0.3, trips) if blind else (trips, 0.3)
    mine = GroupWrite(T(9), "mine", 1, frozenset({T(1)}), blind=blind, body=BODY, table="t",
                      eager=blind, follows=True, surveyed=True,
                      earlier=frozenset({T(8)}))  # fmt: skip
    client.trip_ms, now_ms = 100, iter(range(0, 9_900, 100))
    after = fence_of((*decisions(1), GroupDecision(2, 2, COMMIT, mine.instant)))

    def answer(request: Any) -> Any:
        match request:
            case WallMs():
                return next(now_ms)
            case Get():
                return Found(format_group_fence(after), "v2")
            case _:
                return Applied("o")

    kind, asked = carried_out(offer(client, mine), answer)
    assert kind == COMMIT
    assert [e.seconds for e in asked if isinstance(e, Sleep)] == [pytest.approx(trips / 10)]
    learned = client.soon_trips if blind else client.answer_trips
    assert learned == pytest.approx(trips - SOONER)
    assert (client.answer_trips if blind else client.soon_trips) == 0.3


def test_only_the_first_look_says_when_to_look_next_time() -> None:
    client = client_of(fence_of(()))
    before = client.answer_trips, client.soon_trips
    way = await_decision(client, T(1), (1.0,) * 3, (T(0),), learns=True, loses=True)
    carried_out(way, lambda _: NotModified(0))
    assert (client.answer_trips, client.soon_trips) == tuple(each + LATER for each in before)
    for _ in range(40):
        way = await_decision(client, T(1), (1.0,), (T(0),), learns=True, loses=True)
        carried_out(way, lambda _: NotModified(0))
    assert (client.answer_trips, client.soon_trips) == (LATEST, SOON_MOST)


@pytest.mark.parametrize("clashes", [False, True])
def test_an_owner_whose_base_has_left_the_window_raises_it_once_and_decides(clashes: bool) -> None:
    """It looks once, and compares its commit with what its snapshot lacks before it does so."""
    named = frozenset({("p", "f")})
    window = tuple(replace(each, seq=each.seq + 4, writes=named) for each in decisions(2))
    fence = fence_of(window, first=5, published=6)
    client = client_of(fence)
    writes = named if clashes else frozenset({("p", "g")})
    mine = GroupWrite(T(9), "mine", 1, frozenset(), writes=writes, body=BODY, table="t",
                      surveyed=True)  # fmt: skip
    sent, lists = list[tuple[str, bytes]](), list[str]()

    def answer(request: Any) -> Any:
        match request:
            case Parallel(procedures):
                return tuple(carried_out(each, answer)[0] for each in procedures)
            case Get(_, unless):
                return NotModified(0) if unless else Found(format_group_fence(fence), "v1")
            case Put(key, body):
                sent.append((key, body))
                return Applied("v9")
            case List(prefix):
                lists.append(prefix)
                return Listing([])
        return instant_ms(T(9)) if isinstance(request, WallMs) else "attempt"

    kind, _ = carried_out(offer(client, mine), answer)
    own = timeline_key(V9, mine.instant, "offer")
    keys, bodies = zip(*sent, strict=True)
    assert kind == (REFUSED if clashes else COMMIT)
    if clashes:
        assert keys == (mine.offered, FENCE_KEY) and parse_group_fence(bodies[1]).window[-1].why
    else:
        raised = parse_offer(bodies[1])
        assert keys == (mine.offered, own, FENCE_KEY) and len(lists) == 1
        assert raised is not None and raised.base == fence.last == mine.base


def test_an_owner_that_lost_the_fence_looks_again_and_is_not_decided_a_second_time() -> None:
    before = fence_of(decisions(1), published=1)
    client = client_of(before)
    mine = GroupWrite(T(9), "mine", 1, frozenset({T(1)}), body=BODY, table="t", surveyed=True)
    its = GroupDecision(2, 2, COMMIT, mine.instant, T(9_100))
    after = fence_of((*before.window, its), published=1)
    sent = list[str]()

    def answer(request: Any) -> Any:
        match request:
            case Parallel(procedures):
                return tuple(carried_out(each, answer)[0] for each in procedures)
            case Put(key):
                sent.append(key)
                return PreconditionFailed() if key == FENCE_KEY else Applied("o")
            case Get():
                lost = FENCE_KEY in sent
                return Found(format_group_fence(after if lost else before), f"v{1 + lost}")
            case List():
                return Listing([])
        return instant_ms(T(9)) if isinstance(request, WallMs) else "attempt"

    assert carried_out(offer(client, mine), answer)[0] == COMMIT
    assert sent == [mine.offered, FENCE_KEY]


def test_a_rewrite_that_was_rolled_back_while_it_waited_for_others_is_not_decided() -> None:
    fence = fence_of(())
    client = client_of(fence)
    client.trip_ms, client.contended = 60, 4
    begun = frozenset(timeline_key(V9, each, "requested") for each in (T(8), T(16)))
    mine = GroupWrite(T(8), "mine", 0, frozenset(), body=BODY, table="t", later=frozenset({T(16)}))
    after = fence_of((GroupDecision(1, 1, ROLLBACK, mine.instant),))
    listed = Listing(ListEntry(each, 1, "v") for each in sorted(begun))

    def answer(request: Any) -> Any:
        read = (after, "v2")
        return {WallMs: instant_ms(T(8)), Parallel: (listed, read), Unique: "attempt",
                Get: Found(format_group_fence(after), "v2")}[type(request)]  # fmt: skip

    later = V9.completed(T(20), COMMIT, T(21))  # so it reads the fence again when it looks
    view = GroupView(fence, "v1", {}, begun | {later})
    assert carried_out(decided(client, mine, view=view), answer)[0] == ROLLBACK


@pytest.mark.parametrize("first", [2, 3])
def test_a_look_has_the_decisions_of_both_fences_and_lists_again_after_a_gap(first: int) -> None:
    window = decisions(4)
    before, lists = fence_of(window[:1]), list[str]()
    fence = replace(fence_of(window[first - 1 :], first=first, published=first), round=9)

    def answer(request: Any) -> Any:
        match request:
            case Parallel(procedures):
                return tuple(carried_out(each, answer)[0] for each in procedures)
            case List(prefix):
                lists.append(prefix)
                return Listing([])
            case Get():
                return Found(format_group_fence(fence), "v2")
        return instant_ms(T(9))

    view, _ = carried_out(look(client_of(before)), answer)
    assert len(lists) == first - 1
    assert view.decided.keys() == {each.instant for each in (*before.window, *fence.window)}
    beside = view_beside(client_of(before), ListedBeside(before, fence, "v2"), frozenset())
    assert (beside is None) == (first == 3)
    assert beside is None or beside.decided == view.decided


def test_an_owners_later_offer_counts_in_place_of_its_first_and_its_tombstone_ends_both() -> None:
    mine = Offer(T(9), 0, blind=True, table="t", sha256=digest(BODY))
    own = timeline_key(V9, mine.instant, "offer")
    keys = {timeline_key(V9, mine.instant, "requested"), V9.folder + blind_name(mine)}
    first, later = (GroupView(fence_of(()), "v1", {}, frozenset(each))
                    for each in (keys, {*keys, own}))  # fmt: skip
    assert [each.instant for each in offered(first)[0]] == [mine.instant]
    assert offered(later) == ([], [own])
    kind, _ = carried_out(outcome(later, mine.instant), lambda _: Found(tombstone(T(9)), "v"))
    assert kind == REFUSED


@pytest.mark.parametrize("is_decided", [True, False])
def test_an_owner_that_withdraws_finds_its_decision_or_says_that_it_is_unknown(
    is_decided: bool
) -> None:
    its = GroupDecision(1, 1, COMMIT, T(9), T(9_100))
    fence, sent = fence_of((its,) if is_decided else ()), list[str]()

    def answer(request: Any) -> Any:
        match request:
            case Parallel(procedures):
                return tuple(carried_out(each, answer)[0] for each in procedures)
            case Put(key):
                sent.append(key)
                return PreconditionFailed()
            case List():
                return Listing([])
            case Get():
                now = replace(fence, attempt=f"{len(sent)}", round=len(sent) + 1)
                return Found(format_group_fence(now), f"v{len(sent)}")
        return instant_ms(T(9)) if isinstance(request, WallMs) else "attempt"

    way = withdraw(client_of(fence), T(9))
    if is_decided:
        assert carried_out(way, answer)[0] == COMMIT and not sent
    else:
        with pytest.raises(CommitUnknown, match="another client may still commit it"):
            carried_out(way, answer)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    ("result", "sent", "doubtful"),
    [(Applied("v"), True, False), (PreconditionFailed(), True, False), (Unknown(""), True, True),
     (Throttled(None), False, False), (StoreError("denied"), False, False)],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
def test_a_commit_counts_as_sent_unless_each_request_was_certainly_refused(
    result: Any, sent: bool, doubtful: bool, before: bool
) -> None:
    mine = GroupWrite(T(9), "mine", 1, frozenset(), sent=before)
    way = answered(Put(FENCE_KEY, b"", IfVersion("v1")), mine)
    way.send(None)
    assert mine.sent, "Ctrl-C may come before the answer"
    with pytest.raises(StoreError if isinstance(result, StoreError) else StopIteration):
        _ = way.throw(result) if isinstance(result, StoreError) else way.send(result)
    assert (mine.sent, mine.doubtful) == (before or sent, doubtful)


@pytest.mark.parametrize(("sent", "said"), [(False, "was neither decided nor offered before"),
                                            (True, "another client may commit it")])  # fmt: skip
def test_an_interrupt_says_whether_the_commit_was_sent(sent: bool, said: str) -> None:
    client = client_of(fence_of(()))
    mine = client.writing = GroupWrite(T(9), "mine", 0, frozenset(), body=BODY, sent=sent)
    left = list[GroupWrite]()
    client.process = SimpleNamespace(leave=left.append)
    prepared: Any = SimpleNamespace(instant=mine.instant)
    with pytest.raises(KeyboardInterrupt) as interrupt, noting(client, prepared):
        raise KeyboardInterrupt
    assert said in interrupt.value.__notes__[0] and left == [mine]


@pytest.mark.parametrize(
    ("known_ms", "tables", "body", "ends"),
    [(-9_000, "u", BODY, []), (0, "uu", BODY, ["put", "delete"]), (0, "u", b"its", ["put"]),
     (0, "ut", BODY, ["put"]), (0, "t", BODY, ["put"])],
)  # fmt: skip
def test_a_publisher_whose_table_was_made_again_creates_nothing_or_deletes_what_it_created(
    known_ms: int, tables: str, body: bytes, ends: list[str]
) -> None:
    """Each fence that it reads is of its own table, `t`, or of the next one. It deletes nothing of
    the next one, nor if its table was only moved away."""
    (each,) = decisions(1)
    fence = fence_of((each,))
    client, left, sent = client_of(fence), list(tables), list[str]()
    client.knew_ms, client.boot_ms = known_ms, lambda: 1_000 * len(sent)

    def answer(request: Any) -> Any:
        match request:
            case Get(key) if key == FENCE_KEY:
                return Found(format_group_fence(replace(fence, table=left.pop(0))), "v2")
            case Get():
                return Found(body, "v7")
        assert request.key == completed_key(each)
        sent.append(type(request).__name__.lower())
        return Applied("v7")

    done, _ = carried_out(publish_round(client, fence, each), answer)
    assert (done, sent, left) == (tables[-1] == "t", ends, [])


def test_a_publisher_creates_nothing_that_was_archived_since_its_writer_read_the_fence() -> None:
    """Before the first instant of the timeline it would hide all in between from Hudi's readers."""
    (each,) = decisions(1)
    fence = fence_of((each,))
    client = client_of(fence)
    client.knew_ms = -SURE_MS - 1
    later = Found(format_group_fence(replace(fence, archived=T(50))), "v2")
    answers = {Get: later}
    done, sent = carried_out(publish_round(client, fence, each), lambda ask: answers[type(ask)])
    assert done and [ask.key for ask in sent if isinstance(ask, Get)] == [FENCE_KEY]


@pytest.mark.parametrize(("again", "stands"), [("t", True), ("u", False), ("", True)])
def test_a_table_without_its_fence_stands_unless_the_next_one_has_its_own_by_now(
    again: str, stands: bool
) -> None:
    fence = fence_of(decisions(1))

    def answer(request: Any) -> Any:
        if request.key == PROPERTIES_KEY:
            return Found(f"{FENCE_FORMAT}=4\n".encode(), "p")
        found = Found(format_group_fence(replace(fence, table=again)), "v2")
        return found if again else Missing()

    client = client_of(fence)
    assert carried_out(has_lost_fence(client, "t"), answer)[0] == stands
    client.saw("u", [1])
    assert not client.proven, "numbers of another table's decisions"


@pytest.mark.parametrize("there", [False, True], ids=["gone", "the fence is there"])
def test_a_commit_is_not_denied_while_the_fence_of_a_table_without_properties_is_there(
    there: bool
) -> None:
    """Another client may still decide its offer over that fence."""
    mine, deleted = GroupWrite(T(9), "mine", 0, frozenset(), offered="offer"), list[str]()
    taken = SimpleNamespace(known=SimpleNamespace(config_version="p"))
    prepared: Any = SimpleNamespace(transaction=SimpleNamespace(config=None, taken=taken))

    def answer(request: Any) -> Any:
        if isinstance(request, Delete):
            deleted.append(request.key)
            return Applied("")
        return Found(b"{}", "v") if there and request.key == FENCE_KEY else Missing()

    assert carried_out(is_gone(mine, prepared), answer)[0] == (not there)
    assert deleted == ["offer"] * (not there)
    mine.doubtful = True
    assert carried_out(is_gone(mine, prepared), nothing) == (False, [])


@pytest.mark.parametrize("only", ["", "v1"])
def test_a_commit_that_its_client_knows_to_be_decided_sends_nothing(only: str) -> None:
    its = GroupDecision(2, 2, COMMIT, T(9), T(9_100))
    before, after = fence_of(decisions(1)), fence_of((*decisions(1), its))
    mine = GroupWrite(T(9), "mine", 1, frozenset({T(1)}), body=BODY, table="t", only=only)
    assert carried_out(decided(client_of(after), mine), nothing) == (COMMIT, [])
    view = GroupView(before, "v1", {mine.instant: its}, frozenset())
    mine = replace(mine, only="")
    assert carried_out(decided(client_of(before), mine, view=view), nothing) == (COMMIT, [])


@pytest.mark.parametrize(("first", "listed"), [(5, True), (1, False), (1, True)])
def test_an_append_replaces_the_fence_without_a_listing_only_if_it_knows_all_since_it_began(
    first: int, listed: bool
) -> None:
    """Its instant may be decided by a decision that left the window, or be passed."""
    window = tuple(replace(each, seq=each.seq + first - 1) for each in decisions(2))
    client = client_of(fence_of(window, first=first, published=first + 1, newest=T(20)))
    mine = GroupWrite(T(9), "mine", 1, frozenset(), blind=True, body=BODY, table="t", listed=listed)

    def answer(request: Any) -> Any:
        if isinstance(request, Put | Parallel):
            raise InterruptedError(getattr(request, "key", ""))
        return instant_ms(T(9)) if isinstance(request, WallMs) else "attempt"

    with pytest.raises(InterruptedError) as sent:
        carried_out(decided(client, mine), answer)
    assert (str(sent.value) == FENCE_KEY) == (first == 1 and listed)


@pytest.mark.parametrize("offered_first", [False, True])
def test_an_owner_whose_own_replacement_of_the_fence_refuses_its_commit_says_so(
    offered_first: bool
) -> None:
    named = frozenset({("p", "f")})
    fence = fence_of(decisions(1, writes=named), published=1)
    client = client_of(fence)
    mine = GroupWrite(T(9), "mine", 0, frozenset(), writes=named, body=BODY, table="t",
                      surveyed=True)  # fmt: skip
    view = GroupView(fence, "v1", {}, frozenset())

    def answer(request: Any) -> Any:
        if isinstance(request, Parallel):
            return tuple(carried_out(each, answer)[0] for each in request.procedures)
        found = Found(format_group_fence(fence), "v1")
        return {Put: Applied("v2"), Get: found, List: Listing([]), WallMs: instant_ms(T(9)),
                Unique: "attempt"}[type(request)]  # fmt: skip

    way = offer(client, mine) if offered_first else decided(client, mine, view=view)
    assert carried_out(way, answer)[0] == REFUSED
    assert client.known is not None and client.known.window[-1].why == "conflict"


@pytest.mark.parametrize("refused", [PreconditionFailed(), Throttled(None)], ids=["lost", "429"])
def test_an_append_offered_beside_its_replacement_is_not_offered_again_and_stays_sent(
    refused: WriteAnswer
) -> None:
    """Whatever becomes of the replacement: from then on another client may decide it."""
    client = client_of(fence_of(decisions(1), published=1))
    mine = GroupWrite(T(9), "mine", 1, frozenset(), blind=True, body=BODY, table="t", eager=True)
    after = fence_of((*decisions(1), GroupDecision(2, 2, COMMIT, mine.instant)))
    sent = list[str]()

    def answer(request: Any) -> Any:
        if isinstance(request, Parallel):
            return [carried_out(each, answer)[0] for each in request.procedures]
        if isinstance(request, Put):
            sent.append(request.key)
            return refused if request.key == FENCE_KEY else Applied("o")
        assert mine.sent, "not even the second of them may be denied"
        found = Found(format_group_fence(after), "v2")
        return {Get: found, WallMs: 1_767_225_700_000, Unique: "attempt"}[type(request)]

    assert client.known is not None
    view = GroupView(client.known, "v1", {}, frozenset())
    kind, _ = carried_out(decided(client, mine, view=view), answer)
    assert kind == COMMIT and sent == [FENCE_KEY, mine.offered]


def test_a_writer_reads_the_fence_more_seldom_while_the_window_has_no_room() -> None:
    pauses = {}
    for count in (1, UNPUBLISHED_MAX):
        client = client_of(fence_of(decisions(count)))
        older = {T(n) for n in range(40, 49)}
        way = await_decision(client, T(99), LOOK_TRIPS, older)
        _, asked = carried_out(way, lambda _: NotModified(0))
        pauses[count] = [each.seconds for each in asked if isinstance(each, Sleep)]
    assert min(pauses[UNPUBLISHED_MAX]) > max(pauses[1])


def test_a_publisher_reads_inflight_files_while_it_publishes_those_before() -> None:
    named = frozenset({("p", "f")})
    window = tuple(replace(each, body="", writes=named) for each in decisions(20))
    fence = replace(fence_of(window), combiner="W1")
    client, together = client_of(fence), list[set[str]]()

    def answer(request: Any) -> Any:
        match request:
            case Get(key) if key == FENCE_KEY:
                return Found(format_group_fence(fence), "v1")
            case Get(key):
                assert key in {V9.inflight(each.instant) for each in window}
                return Found(BODY, "v")
            case Put():
                return Applied("v")
            case List():
                return []
            case _:
                results, kinds = [], set()
                for each in request.procedures:
                    result, asked = carried_out(each, answer)
                    results.append(result)
                    kinds |= {type(one).__name__ for one in asked}
                together.append(kinds)
                return tuple(results)

    carried_out(publish_round(client, fence, window[-1]), answer)
    assert client.proven == set(range(1, 21))
    assert sum("Put" in kinds and len(kinds) > 1 for kinds in together) == 2, together


def newer_fence(combiner: str = "W1") -> GroupFence:
    return replace(fence_of(decisions(2)), combiner=combiner)


@pytest.mark.parametrize(("combiner", "goes_on"), [("W1", True), ("W2", False)])
@pytest.mark.parametrize("knows", [True, False], ids=["its writer has read it", "the store has it"])
def test_a_publisher_goes_on_with_what_was_decided_since_while_the_fence_names_it(
    combiner: str, goes_on: bool, knows: bool
) -> None:
    done, now = replace(fence_of(decisions(1)), combiner="W1"), newer_fence(combiner)
    client = client_of(done)
    client.contended = 1
    if knows:
        client.knows(now, "v2")
    answer = nothing if knows else lambda _: Found(format_group_fence(now), "v2")
    found, _ = carried_out(to_be_published(client, done), answer)
    assert (found is not None and found.last == 2) is goes_on
    assert (client.known is not None and client.known.last == 2) is knows, "its writer's own"


@pytest.mark.parametrize(("blind", "times"), [(True, PUBLISHER_READS), (False, REWRITER_READS)])
def test_a_publisher_whose_writer_is_idle_reads_the_fence_and_then_stops(
    blind: bool, times: tuple[int, ...]
) -> None:
    done = replace(fence_of(decisions(1)), combiner="W1")
    client = client_of(done)
    client.contended = 1
    client.writing = GroupWrite(T(1), "mine", 0, frozenset(), blind=blind)
    found, sent = carried_out(to_be_published(client, done), lambda _: NotModified(0))
    reads = [each for each in sent if isinstance(each, Get)]
    assert found is None and len(reads) == len(times) > 0
    assert len(sent) == PUBLISHER_TRIPS + 1 + len(reads), "it looks once in each round trip"


def test_the_picture_of_a_killed_combiner_is_a_recorded_run_and_not_an_idle_panel() -> None:
    panel = Combining().kill_and_go_on()
    (lanes,) = (each for each in panel.view.children if isinstance(each, Lanes))
    assert lanes.scene["marks"] and lanes.status["state"] == "replay"


def test_the_picture_opens_at_the_kill_and_a_new_run_at_its_start() -> None:
    panel = Combining()
    for _ in range(2):
        panel.kill()
        marks = {each["id"]: each for each in panel._lanes.scene["marks"]}
        opened = marks[panel._lanes.selected]
        assert (opened["kind"], opened["lane"]) == ("killed", panel.victim)
        assert opened["t"] == pytest.approx(panel.killed_ms, abs=1)
    panel.start()
    assert not panel._lanes.selected


def test_the_panel_says_whether_the_killed_combiners_offers_are_decided() -> None:
    panel = Combining()
    panel.kill()
    assert not panel.rescued and "None of them is decided yet." in repr(panel)
    panel.go_on()
    (decider,) = set(panel.rescued.values())
    assert f" {len(panel.rescued)} of them were decided by {decider}." in repr(panel)


def test_each_further_combiner_that_is_killed_leaves_offers_that_another_writer_decides() -> None:
    """Its own commit may not be offered: then it is no offer that was lost."""
    panel = Combining()
    for left in (3, 2, 1, 3):  # with one writer left the run starts again
        panel.kill_and_go_on()
        assert len({each.node.name for each in panel.play.world.tasks}) == left
        assert str(panel) == ANOTHER, panel


def test_one_button_kills_the_combiner_goes_on_until_its_offers_are_decided_and_starts_again() -> (
    None
):
    panel = Combining()
    said = []
    states = {lane["id"]: lane["state"] for lane in panel.kill_and_go_on()._lanes.scene["lanes"]}
    assert states[panel.victim] == "killed" and [*states.values()].count("running") == 3
    panel.start()
    while len(said) < 2 or said[-1] != "Kill the combiner":
        said.append(panel.next.description)
        panel.next.click()
        assert len(said) < 20
    first, *between, again, last = said
    assert (first, set(between), again, last) == (
        "Kill the combiner", {"Go on"}, "Start again", "Kill the combiner",
    )  # fmt: skip


def test_a_wait_that_has_not_ended_counts_as_a_wait() -> None:
    """Alone, one of the writers wins the fence each time: the others must not be forgotten."""
    alone = rates(helping=False)
    assert "zoom" in figure(alone).layout.modebar.remove, "tools would hide a narrow chart's title"
    assert alone.without[16] == 15 and alone.longest_s[16] > 11
    together = rates(helping=True)
    assert together.without[16] == 0 and together.longest_s[16] < 2


@pytest.mark.parametrize("goes", range(5))
def test_pressing_the_buttons_first_does_not_change_the_outcome_of_the_run(goes: int) -> None:
    panel = Combining()
    panel.kill()
    for _ in range(goes):
        panel.go_on()
    assert str(panel.kill_and_go_on()) == ANOTHER, panel


def test_a_writer_that_lists_no_offers_wins_the_fence_four_times_in_a_row_at_most() -> None:
    """The lesson says so of the picture."""
    panel = Combining().kill_and_go_on()
    sizes = [len(owners) for _, _, owners in batches(panel.play.events).batches]
    assert max(sizes) > 1 and sizes.index(max(sizes)) <= FAST_RUN_MAX == 4


def test_time_does_not_pass_without_a_writer() -> None:
    with pytest.raises(ValueError, match="only if somebody writes: 0 writers"):
        Writing(0)


def test_the_batches_of_a_run_are_shown_with_the_picture_that_the_lesson_describes() -> None:
    found = batches(Writing(5).play(2.0).events)
    (lanes,) = (each for each in found.view.children if isinstance(each, Lanes))
    labels = {each.get("label", "") for part in ("arrows", "marks") for each in lanes.scene[part]}
    largest = max(len(owners) for _, _, owners in found.batches)
    assert found.helped and {"offer", f"decides {largest}"} <= labels
    assert any(each.startswith("decided by W") for each in labels)


NOW_MS = 1_790_000_000_000


def waited_s(instant: str, now_ms: int, met: dict[str, int], *, plan: bytes | None = None) -> float:
    """How long a commit, whose clock says `now_ms`, gives way to a pending overwrite."""
    names = V9 if plan is None else V6
    key = names.requested(instant, "replacecommit")
    entries = Listing([ListEntry(key, 9, '"1"')])
    now, slept = parse_timeline(entries, names), 0.0
    way = give_way(names, instant_of(instant_ms(instant) + 1), COMMIT, now, met)
    try:
        request = way.send(None)
        while True:
            match request:
                case WallMs():
                    request = way.send(now_ms + round(slept * 1000))
                case Sleep():
                    slept += request.seconds
                    request = way.send(None)
                case Get():
                    request = way.send(Found(plan or b"", '"1"'))
                case _:
                    request = way.send(entries)
    except StopIteration:
        return round(slept, 1)


@pytest.mark.parametrize(("version", "puts"), [("v1", 1), ("v2", 0)])
def test_an_upsert_without_a_listing_is_decided_over_no_fence_but_its_own(
    version: str, puts: int
) -> None:
    """Its client, which also publishes, may have read another one meanwhile."""
    client = client_of(fence_of(decisions(1)))
    mine = GroupWrite(T(8), "mine", 1, frozenset({T(1)}), only=version)
    fence = Found(format_group_fence(fence_of(decisions(2))), "v3")

    def answer(request: Any) -> Any:
        if isinstance(request, Parallel):
            return (Listing([]), (parse_group_fence(fence.body), fence.version))
        given = {Put: PreconditionFailed(), WallMs: instant_ms(T(9)), Unique: "mine", Get: fence}
        return given[type(request)]

    sent: list[Any] = []

    def noted(request: Any) -> Any:
        sent.append(request)
        return answer(request)

    listed = client.timeline = Timeline({}, {}, frozenset(), ())
    assert carried_out(decided_over(client, mine), noted)[0] == PASSED
    assert client.timeline is listed, "with the next fence it may show all; then nothing is listed"
    assert not mine.sent, "its owner may report that it is not committed"
    assert sum(isinstance(each, Put) for each in sent) == puts


@pytest.mark.parametrize("ahead_ms", [0, 3_600_000])
def test_a_client_gives_way_to_one_overwrite_for_five_seconds_in_all(ahead_ms: int) -> None:
    met: dict[str, int] = {}
    instant, began_ms = instant_of(NOW_MS + ahead_ms), NOW_MS
    assert waited_s(instant, began_ms, met) == 5
    assert waited_s(instant, began_ms + 5_000, met) == 0
    assert waited_s(instant_of(NOW_MS + ahead_ms + 7), began_ms + 6_000, met) <= 5
    assert list(met) == [instant_of(NOW_MS + ahead_ms + 7)]


def test_a_commit_does_not_give_way_to_a_clustering_of_version_6() -> None:
    met: dict[str, int] = {}
    old = ClusteringInput("EU", "a-0", "EU/a-0_0-0-0_1.parquet")
    plan = ReplacePlan((ClusteringGroup((old,)),))
    assert waited_s(instant_of(NOW_MS), NOW_MS, met, plan=format_cluster_plan(plan)) == 0
    assert waited_s(instant_of(NOW_MS + 1), NOW_MS, met, plan=format_overwrite_plan()) == 5


def test_a_refusal_that_another_client_decided_is_a_conflict_and_no_rollback() -> None:
    """The tombstone was listed beside the fence from before the decision."""
    instant, other = instant_of(NOW_MS + 1), instant_of(NOW_MS)
    before = GroupFence("a", "t", round=1)
    entry = GroupDecision(1, 1, REFUSED, instant, why="conflict", by=other)
    after = replace(before, round=2, window=(entry,), attempt="b")
    client = GroupClient(known=before, version='"1"', names=V6)
    way = _entry_of(client, instant, REFUSED)
    assert isinstance(way.send(None), Get)
    with pytest.raises(StopIteration) as end:
        way.send(Found(format_group_fence(after), '"2"'))
    assert isinstance(refusal_of(instant, REFUSED, end.value.value), CommitConflict)
