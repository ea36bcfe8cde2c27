"""The decision of a group commit: what one replacement of the fence accepts of several offers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockkit.clock import Clock
from lockkit.protocol.outcome import Applied, Found, IfAbsent, IfVersion
from lockkit.runtime import run
from lockkit.stores import open_store
from lockkit.table.errors import BrokenFence
from lockkit.table.format.timeline import V9, instant_of
from lockkit.table.occ.fence import FENCE_KEY, NO_INSTANT
from lockkit.table.occ.group.client import GroupClient, timeline_key
from lockkit.table.occ.group.combine import roll_back
from lockkit.table.occ.group.decision import (
    UNPUBLISHED_MAX,
    UNPUBLISHED_MAX_6,
    WINDOW_MOST,
    GroupFence,
    Offer,
    close_for,
    decide,
    evict,
    proven_until,
    reaches,
    refuse,
    seen_until,
    shows_left,
    whole,
)
from lockkit.table.occ.group.fence import (
    format_group_fence,
    format_offer,
    is_tombstone,
    parse_group_fence,
    parse_offer,
    read_group_fence,
    tombstone,
)
from lockkit.table.occ.group.view import look, open_offers

T = "202501061012000{:02}".format
GROUP = ("eu", "f-1")
EMPTY, EMPTY_9 = GroupFence("new"), GroupFence("new", completion=NO_INSTANT)
"""Of table version 6 and 9."""


def offer(number: int, *groups: str, base: int = 0, **more: bool) -> Offer:
    return Offer(T(number), base, frozenset(("eu", each) for each in groups), **more)


def kinds(fence: GroupFence) -> list[tuple[str, str]]:
    return [(each.instant, each.why or each.kind) for each in fence.window]


def test_offers_of_one_batch_are_judged_by_each_other_in_the_order_of_their_instants() -> None:
    after = decide(EMPTY, [offer(3, "b"), offer(2, "a", "b"), offer(1, "a")], attempt="1")
    assert kinds(after) == [(T(1), "commit"), (T(2), "conflict"), (T(3), "commit")]
    assert after.window[1].by == T(1) and after.newest == T(3)


def test_a_commit_that_the_owner_has_seen_is_no_conflict() -> None:
    before = decide(EMPTY, [offer(1, "a")], attempt="1")
    assert kinds(decide(before, [offer(2, "a", base=1)], attempt="2"))[-1][1] == "commit"
    assert kinds(decide(before, [offer(2, "a")], attempt="2"))[-1][1] == "conflict"


def test_an_offer_with_a_base_before_the_window_is_left_unless_it_is_an_append() -> None:
    fence = replace(EMPTY, first=5)
    assert kinds(decide(fence, [offer(1, "a", base=3)], attempt="1")) == []
    assert kinds(decide(fence, [offer(1, "a", base=4)], attempt="1")) == [(T(1), "commit")]
    assert kinds(decide(fence, [offer(1, "a", blind=True)], attempt="1")) == [(T(1), "commit")]


def test_long_names_of_partitions_do_not_make_a_fence_that_nobody_can_read() -> None:
    """A commit whose names have no room conflicts with each rewrite that has not seen it."""
    fence = GroupFence("new", completion=NO_INSTANT)
    for number in range(60):
        instant = instant_of(1_736_000_000_000 + number)
        writes = frozenset((f"{'ы' * 40}{each}", f"f-{number}") for each in range(60))
        fence = decide(fence, [Offer(instant, number, writes)], attempt="a", timely={instant},
                       proven=range(1, number + 1))  # fmt: skip
    assert fence == parse_group_fence(format_group_fence(fence))
    assert {each.kind for each in fence.window} == {"commit"}
    assert fence.window[0].writes and fence.window[-1].writes is None
    unseen = Offer(instant_of(1_736_000_001_000), fence.last - 1, frozenset({GROUP}), reserved=True)
    after = decide(fence, [unseen], attempt="b", proven=range(1, 61))
    assert after.window[-1].why == "conflict"


def test_a_fence_with_a_decision_of_no_known_kind_is_broken() -> None:
    """It would be taken for a refusal, and the tombstone of an acknowledged commit be written."""
    body = format_group_fence(decide(GroupFence("new"), [offer(1)], attempt="a"))
    assert b'"commit"' in body
    for kind in (b'"<b>x"', b'""', b'"closed"'):
        with pytest.raises(BrokenFence, match="no known kind"):
            parse_group_fence(body.replace(b'"commit"', kind))


def test_a_fence_that_lacks_a_decision_or_counts_one_too_many_as_published_is_broken() -> None:
    fence = decide(EMPTY, [offer(1), offer(2), offer(3)], attempt="a")
    one, _, three = fence.window
    gap = replace(fence, window=(one, three))
    for wrong, why in ((gap, "decision 2 is missing"), (replace(fence, published=4), "counts")):
        with pytest.raises(BrokenFence, match=why):
            parse_group_fence(format_group_fence(wrong))


@pytest.mark.parametrize("name", ["newest", "since", "archived", "completion"])
def test_a_fence_whose_own_instants_are_none_is_broken(name: str) -> None:
    for value in ("x", "<b>", "20261301000000000"):
        body = format_group_fence(replace(EMPTY, **{name: value}))
        with pytest.raises(BrokenFence, match="its own instants"):
            parse_group_fence(body)


def test_a_fence_with_a_decision_that_names_no_file_of_a_commit_is_broken() -> None:
    body = format_group_fence(decide(replace(EMPTY, completion=T(1)), [offer(1)], attempt="a"))
    (each,) = parse_group_fence(body).window
    assert each.completion is not None
    for field, value in (("action", "../x"), ("completion", "../x")):
        wrong = json.dumps({field: getattr(each, field)})[1:-1].replace(": ", ":").encode()
        assert body.count(b'"seq"') == 1 and wrong in body
        with pytest.raises(BrokenFence, match="names no instant"):
            parse_group_fence(body.replace(wrong, f'"{field}":"{value}"'.encode()))
    assert parse_offer(format_offer(replace(offer(1), action="../x"))) is None


def test_a_late_instant_needs_a_listing_that_its_owner_or_the_decider_made() -> None:
    fence = decide(EMPTY, [offer(5)], attempt="1")
    assert kinds(decide(fence, [offer(4)], attempt="2"))[-1] == (T(4), "late")
    assert kinds(decide(fence, [offer(4, reserved=True)], attempt="2"))[-1] == (T(4), "commit")
    assert kinds(decide(fence, [offer(4)], attempt="2", timely={T(4)}))[-1] == (T(4), "commit")


def test_no_late_commit_and_no_archiver_lowers_what_the_fence_has_reached() -> None:
    """Otherwise later ones are accepted behind a reader, or an archived one is decided again."""
    fence = decide(EMPTY, [offer(5)], attempt="1")
    after = decide(fence, [offer(4, reserved=True)], attempt="2")
    assert kinds(after)[-1] == (T(4), "commit") and after.newest == T(5)
    closed = close_for(replace(EMPTY, archived=T(9)), T(1), (), "3")
    assert closed is not None and closed.archived == T(9)


def test_an_offer_to_another_table_is_not_decided() -> None:
    fence = replace(EMPTY, table="here")
    mine, others = (replace(offer(n, blind=True), table=of) for n, of in ((1, "here"), (2, "gone")))
    assert kinds(decide(fence, [mine, others], attempt="1")) == [(T(1), "commit")]


def test_an_overwrite_does_not_conflict_with_what_was_refused_or_rolled_back() -> None:
    over = Offer(T(3), 0, frozenset({whole("eu")}))
    for why in ("", "late"):
        fence = refuse(EMPTY, T(1), "1", why=why)
        assert kinds(decide(fence, [over], attempt="2"))[-1] == (T(3), "commit")
    fence = decide(EMPTY, [offer(1, blind=True)], attempt="1")
    assert kinds(decide(fence, [over], attempt="2"))[-1] == (T(3), "conflict")


def test_what_has_left_the_window_counts_as_proven() -> None:
    """A rollback that makes room does not count it."""
    one = decide(EMPTY, [offer(1)], attempt="1")
    fence = replace(one, first=5, published=2, window=(replace(one.window[0], seq=5),))
    assert (proven_until(fence, ()), proven_until(fence, {5})) == (4, 5)


def test_an_append_with_the_tables_columns_keeps_nobody_from_adding_one() -> None:
    before = replace(EMPTY, schema="old")
    fence = decide(before, [replace(offer(1, blind=True), schema="old")], attempt="1")
    grows = replace(offer(2), schema="new", grows_schema=True)
    assert kinds(decide(fence, [grows], attempt="2"))[-1] == (T(2), "commit")


def test_a_schema_grows_only_from_the_one_that_the_owner_has_seen() -> None:
    old, new = offer(2), replace(offer(1), schema="new", grows_schema=True)
    other = replace(offer(3), schema="other", grows_schema=True)
    after = decide(EMPTY, [old, new, other], attempt="1")
    assert kinds(after) == [(T(1), "commit"), (T(2), "schema"), (T(3), "schema")]
    assert after.schema == "new"
    again = replace(other, instant=T(4), base=3)
    assert kinds(decide(after, [again], attempt="2"))[-1] == (T(4), "commit")


def test_a_closed_fence_refuses_and_a_withdrawal_or_rollback_is_a_decision() -> None:
    assert kinds(decide(replace(EMPTY, closed=True), [offer(1)], attempt="1")) == [(T(1), "closed")]
    assert kinds(refuse(EMPTY, T(1), "1", why="withdrawn")) == [(T(1), "withdrawn")]
    assert kinds(refuse(EMPTY, T(1), "1")) == [(T(1), "rollback")]


def test_rollbacks_in_a_row_do_not_let_the_fence_grow_and_each_leaves_with_its_tombstone() -> None:
    """A fence of more than `FENCE_BYTES_MAX` can never be read again."""
    store = open_store("memory://many-rollbacks")
    store.put(FENCE_KEY, format_group_fence(EMPTY_9), IfAbsent())
    dead = [instant_of(1_736_000_000_000 + each) for each in range(WINDOW_MOST + 3)]
    for each in dead:
        store.put(timeline_key(V9, each, "requested"), b"a", IfAbsent())
        assert run(roll_back(GroupClient(), each, "data/"), store, Clock())
    fence, _ = run(read_group_fence(), store, Clock())
    assert len(fence.window) == WINDOW_MOST and fence.last == len(dead)
    assert [each.instant for each in fence.window] == dead[3:]
    for each in dead:
        found = store.get(timeline_key(V9, each, "offer"))
        assert isinstance(found, Found) and is_tombstone(found.body)


def test_an_offer_that_was_refused_since_it_was_read_is_none() -> None:
    """It counts by the version that the listing shows, not by what its client has read before."""
    store, clock, instant = open_store("memory://read-before"), Clock(), T(1)
    store.put(FENCE_KEY, format_group_fence(EMPTY_9), IfAbsent())
    store.put(timeline_key(V9, instant, "requested"), b"a", IfAbsent())
    key, client = timeline_key(V9, instant, "offer"), GroupClient()
    made = store.put(key, format_offer(offer(1, "a")), IfAbsent())
    assert isinstance(made, Applied)
    assert run(open_offers(run(look(client), store, clock)), store, clock) == [offer(1, "a")]
    store.put(key, tombstone(instant), IfVersion(made.version))
    assert not run(open_offers(run(look(client), store, clock)), store, clock)


def test_only_proven_decisions_leave_the_window_and_none_is_added_while_many_are_not() -> None:
    fence = decide(EMPTY, [offer(each) for each in range(1, 5)], attempt="1")
    after = decide(fence, [], attempt="2", proven={1, 2, 4}, window_max=1)
    assert (after.first, [each.seq for each in after.window]) == (3, [3, 4])
    assert reaches(after, 2) and not reaches(after, 1)
    for empty, most in ((EMPTY, UNPUBLISHED_MAX_6), (EMPTY_9, UNPUBLISHED_MAX)):
        many = [offer(each) for each in range(most + 5)]
        full = decide(empty, many, attempt="1")
        assert len(full.window) == most
        assert decide(full, many[-2:], attempt="2").window == full.window


def test_a_listing_of_a_commit_shows_earlier_rounds_and_in_version_9_all_before_it() -> None:
    first = decide(EMPTY, [offer(1), offer(2)], attempt="1")
    fence = decide(first, [offer(3), offer(4), offer(5)], attempt="2")
    assert seen_until(fence, {T(4)}.__contains__) == 2
    assert seen_until(fence, {T(3), T(5)}.__contains__) == 3
    refused = decide(EMPTY, [offer(1, "a"), offer(2, "a"), offer(3, "b")], attempt="1")
    assert seen_until(refused, {T(1), T(3)}.__contains__) == 3
    nine = decide(decide(EMPTY_9, [offer(1), offer(2)], attempt="1"), [offer(3)], attempt="2")
    assert seen_until(nine, {T(2)}.__contains__) == 2
    assert seen_until(nine, {T(1), T(3)}.__contains__) == 3


def test_in_version_6_a_round_that_has_partly_left_the_window_shows_nothing_of_what_left() -> None:
    whole = decide(EMPTY, [offer(1), offer(2)], attempt="1")
    part = evict(whole, {1}, 1)
    assert (part.first, part.window) == (2, whole.window[1:])
    assert not shows_left(part, part.window) and seen_until(part, {T(2)}.__contains__) == 0
    later = decide(part, [replace(offer(3), base=2)], attempt="2")
    assert shows_left(later, later.window[-1:]) and seen_until(later, {T(2)}.__contains__) == 0
    assert seen_until(later, {T(2), T(3)}.__contains__) == 3
    nine = decide(EMPTY_9, [offer(1), offer(2)], attempt="1")
    assert shows_left(evict(nine, {1}, 1), nine.window[1:])


OFFERS = st.builds(
    offer, st.integers(1, 30), st.sampled_from("abc"), st.sampled_from("abcd"),
    base=st.integers(0, 9), reserved=st.booleans(), blind=st.just(False),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.lists(OFFERS, max_size=6), st.integers(1, 6)), max_size=5))
def test_for_any_offers_decisions_have_no_gap_and_no_commit_misses_another(
    rounds: list[tuple[list[Offer], int]],
) -> None:
    fence = replace(EMPTY, completion=T(0))
    every: dict[int, tuple[str, frozenset[tuple[str, str]], str | None]] = {}
    offered: dict[str, Offer] = {}
    for number, (offers, window_max) in enumerate(rounds):
        fresh = {each.instant: each for each in offers if each.instant not in offered}
        known = [replace(each, base=min(each.base, fence.last)) for each in fresh.values()]
        fence = decide(fence, known, attempt=str(number), proven=every, window_max=window_max)
        assert [each.seq for each in fence.window] == list(range(fence.first, fence.last + 1))
        offered |= {each.instant: each for each in known}
        for each in fence.window:
            if each.kind == "commit" and each.seq not in every:
                base = offered[each.instant].base
                assert not any(
                    seq > base and writes & each.writes for seq, (_, writes, _) in every.items()
                )
                times = [done for _, _, done in every.values() if done]
                assert each.completion and each.completion > max([each.instant, *times])
            if each.seq not in every:
                writes = each.writes if each.kind == "commit" else frozenset()
                every[each.seq] = (each.instant, writes, each.completion)
    assert len(every) == fence.last and len({one for one, _, _ in every.values()}) == len(every)


@pytest.mark.parametrize("name", ['},{"seq":9', '"},{"', 'a,"window":[{}', "]}", "\\"])
def test_a_fence_is_read_whatever_its_partitions_are_called_and_whoever_has_formatted_it(
    name: str,
) -> None:
    offers = [Offer(f"2026010100000000{number}", 0, frozenset({(name, f"f{number}")}))
              for number in range(2)]  # fmt: skip
    fence = decide(GroupFence("a"), offers, attempt="b")
    body = format_group_fence(fence)
    assert len(fence.window) == 2
    assert parse_group_fence(body) == fence
    assert parse_group_fence(json.dumps(json.loads(body)).encode()) == fence
