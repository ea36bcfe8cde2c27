"""What a client of a group commit remembers of the fence, and forgets with its table."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from test_group_offer import NAMED, Objects, upsert
from test_group_waiting import BODY, T, carried_out, client_of, decisions, fence_of, nothing

from lockkit.protocol.outcome import Unknown
from lockkit.runtime import Parallel, Put
from lockkit.table.errors import BrokenFence, TableChanged
from lockkit.table.format.layout import WriteStat, format_commit, parse_commit
from lockkit.table.format.schema import avro_schema
from lockkit.table.format.timeline import V6, V9
from lockkit.table.occ.fence import COMMIT, FENCE_KEY, NO_INSTANT, digest
from lockkit.table.occ.group.client import (
    FAST_RUN_MAX,
    OVERWRITE,
    TRIP_LEAST_MS,
    TRIP_MOST_MS,
    ListedBeside,
    completed_key,
    named,
    refuse_form,
    rounds,
    schema_id,
)
from lockkit.table.occ.group.commit import PASSED, decided, decided_over, prove_data
from lockkit.table.occ.group.decision import REFUSED, WHOLE_TABLE, Offer, whole
from lockkit.table.occ.group.fence import blind_name, packed
from lockkit.table.occ.group.view import GroupView


def test_a_client_forgets_what_has_left_the_window_and_not_what_may_be_archived() -> None:
    """Another thread may have read a newer fence: what is archived is not published again."""
    fence = fence_of(decisions(2))
    client = client_of(fence)
    client.boot_ms, client.proven, client.won = (lambda: 77), {1, 2, 3}, {1, 2, 3}
    client.archived, later = T(5), decisions(4)[2:]
    client.knows(replace(fence, first=3, window=later, round=4, archived=T(3)), "v2")
    assert (client.version, client.knew_ms, client.archived) == ("v2", 77, T(5))
    assert client.proven == {3} == client.won
    client.knows(replace(client.known, round=5, archived=T(7)), "v3")  # type: ignore[type-var]
    assert client.archived == T(7)


def test_a_client_forgets_all_about_a_table_that_was_made_again() -> None:
    client = client_of(fence_of(decisions(2)))
    client.timeline, client.archived = "listed", T(5)
    client.wins = client.contended = client.checked_ms = 3
    kept: list[Any] = [client.won, client.proven, client.read, client.bodies, client.behind,
                       client.ahead]  # fmt: skip
    client.won |= {1}
    client.proven |= {1}
    client.read["key", "v"] = None
    client.bodies[T(1)] = BODY
    client.behind += decisions(1)
    client.ahead += ["reserved"]
    with pytest.raises(TableChanged):
        client.knows(replace(fence_of((), completion=None), table="next"), "w1")
    assert client.known is None and client.timeline is None and client.names is V6
    assert (client.version, client.archived) == ("", NO_INSTANT)
    assert client.wins == client.contended == client.checked_ms == 0 and not any(kept)
    client.knows(replace(fence_of((), completion=None), table="next"), "w1")


@pytest.mark.parametrize("names", [V9, V6])
def test_a_fence_in_the_form_of_the_other_version_is_refused(names: Any) -> None:
    own, other = fence_of((), completion=T(1)), fence_of((), completion=None)
    right, wrong = (own, other) if names is V9 else (other, own)
    refuse_form(right, names)
    with pytest.raises(BrokenFence):
        refuse_form(wrong, names)
    client = client_of(right)
    with pytest.raises(BrokenFence):
        client.knows(replace(wrong, round=9), "v2")
    assert client.known is right


def test_its_own_instants_are_those_that_it_works_on_and_those_of_its_threads() -> None:
    client = client_of(fence_of(()))
    client.own, client.process = {T(1)}, SimpleNamespace(taken={T(2): 1})
    assert client.ours == {T(1), T(2)}


def test_a_round_trip_counts_within_bounds() -> None:
    client = client_of(fence_of(()))
    for took, counts in ((0, TRIP_LEAST_MS), (60, 60), (10**6, TRIP_MOST_MS)):
        client.took(100, 100 + took)
        assert client.trip_ms == counts


def test_a_fence_beside_a_listing_is_replaced_if_its_round_is_later() -> None:
    before, after = fence_of(decisions(1)), fence_of(decisions(2))
    pairs = ((before, after), (before, before), (after, before), (None, after), (before, None))
    found = [ListedBeside(*each).is_replaced for each in pairs]
    assert found == [True, False, False, False, False]


def test_the_client_that_does_not_publish_is_at_work_again_once_the_fence_names_it_anew() -> None:
    client, fence = client_of(fence_of(())), fence_of((), combiner="W2")
    client.idle = "W2"
    for number, (combiner, idle) in enumerate((("W2", "W2"), ("W3", ""), ("W2", ""))):
        client.knows(replace(fence, combiner=combiner, round=number), f"v{number}")
        assert client.idle == idle


def test_a_client_alone_lists_ever_more_seldom_and_among_others_at_every_fourth_commit() -> None:
    client, runs = client_of(fence_of(())), list[int]()
    for contended in (0, 0, 0, 0, 1, 1, 0):
        client.contended = contended
        client.wins = 0
        while not client.lists:
            client.wins += 1
        runs.append(client.wins)
        client.listed()
        assert client.wins == 0
    assert runs == [1, 2, *[FAST_RUN_MAX] * 4, 1]


# --- what a commit writes -------------------------------------------------------------------------


def test_a_commit_names_what_it_writes_replaces_and_empties() -> None:
    stat = WriteStat(partition="EU", file_id="f", path=f"EU/f_0-0-0_{T(9)}.parquet", writes=1,
                     size_bytes=1)  # fmt: skip
    body = format_commit([stat], operation="INSERT_OVERWRITE", schema="", attempt="a",
                         action=OVERWRITE, replaced=frozenset({("EU", "old")}))  # fmt: skip
    files = parse_commit(T(9), "an inflight file", body)
    both = {("EU", "f"), ("EU", "old")}
    assert named(files) == both | set(map(whole, files.overwrites.partitions))
    assert files.overwrites.partitions
    body = body.replace(b"INSERT_OVERWRITE", b"INSERT_OVERWRITE_TABLE")
    assert named(parse_commit(T(9), "an inflight file", body)) == both | {WHOLE_TABLE}


def test_columns_have_one_name_in_any_order() -> None:
    fields = [pa.field("a", pa.string()), pa.field("b", pa.int64())]
    one, other, less = (avro_schema(pa.schema(each), "t")
                        for each in (fields, fields[::-1], fields[:1]))  # fmt: skip
    assert schema_id(one) == schema_id(other) != schema_id(less)
    assert schema_id("") == schema_id(None) == "" and len(schema_id(one)) == 16


def test_an_offer_says_all_that_its_decision_needs() -> None:
    mine = upsert(grows_schema=True, schema="s", action=OVERWRITE, base=3)
    for listed in (True, False):
        mine.listed = listed
        said = mine.offer()
        assert (said.instant, said.base, said.writes, said.sha256) == (T(9), 3, NAMED, digest(BODY))
        assert (said.schema, said.grows_schema, said.reserved) == ("s", True, listed)
        assert (said.blind, said.table, said.action, said.body) == (
            False, "t", OVERWRITE, packed(BODY))  # fmt: skip


def test_an_append_has_seen_the_columns_of_the_commit_that_its_owner_knows() -> None:
    mine, fence = upsert(base=1), fence_of(decisions(4))
    mine.sees_columns(fence, T(3))
    assert mine.base == 3
    for known, instant in ((fence, T(2)), (fence, T(9)), (None, T(4))):
        mine.sees_columns(known, instant)
        assert mine.base == 3


@pytest.mark.parametrize("completion", [T(9_000), None])
def test_commits_are_published_one_by_one_or_in_version_6_round_by_round(
    completion: str | None
) -> None:
    one, two, three = decisions(3)
    window = (one, replace(two, round=3), replace(three, round=3))
    parts = rounds(fence_of(window, completion=completion))
    assert parts == ([[each] for each in window] if completion else [[window[0]], [*window[1:]]])
    for each in (one, replace(one, action=OVERWRITE), replace(one, completion=None)):
        names = V9 if each.completion else V6
        assert completed_key(each) == names.completed(T(1), each.action, each.completion)


# --- a rewrite without a listing ------------------------------------------------------------------


def test_each_object_is_proven_before_its_commit_is_sent() -> None:
    store = Objects(fence_of(()))
    carried_out(prove_data({"a": b"1", "b": b"2", "c": b"3"}), store)
    assert {key for key, _ in store.puts} == {"a", "b", "c"}


@pytest.mark.parametrize(("only", "kind"), [("v1", COMMIT), ("v0", PASSED)])
def test_a_rewrite_without_a_listing_is_decided_over_its_fence_or_begins_again(
    only: str, kind: str
) -> None:
    store = Objects(fence_of(decisions(1), published=1))
    client = client_of(store.fence)
    client.contended, mine = 3, upsert(only=only, base=0)
    assert carried_out(decided(client, mine), store)[0] == kind
    assert [key for key, _ in store.puts] == [FENCE_KEY] * (kind == COMMIT)
    assert store.asked == [FENCE_KEY] * (kind == PASSED), "it looks only if it was not decided"
    assert mine.sent == (kind == COMMIT) and mine.base == (kind == COMMIT)


def test_a_rewrite_without_an_answer_withdraws_while_its_request_may_still_land() -> None:
    """If it began again, its files would be deleted, and the late request would commit them."""
    store = Objects(fence_of(decisions(1), published=1))
    client, lost = client_of(store.fence), list[Put]()

    def answer(request: Any) -> Any:
        if isinstance(request, Parallel):
            return tuple(carried_out(each, answer)[0] for each in request.procedures)
        if isinstance(request, Put) and not lost:
            lost.append(request)
            return Unknown("no answer")
        return store(request)

    mine = upsert(only="v1")
    assert carried_out(decided_over(client, mine), answer)[0] == REFUSED and mine.sent
    assert [each.key for each in lost] == [FENCE_KEY]
    assert (store.fence.window[-1].instant, store.fence.window[-1].why) == (mine.instant, "late")


def test_a_rewrite_in_a_thread_is_carried_to_the_fence_of_its_process_and_decided_in_turn() -> None:
    fence, asked = fence_of(decisions(1), published=1), list[str]()
    client = client_of(fence)

    def carry(_: Any, write: Any) -> None:
        asked.append(f"carry {write.only}")
        write.only = client.version

    def decide(_: Any, view: Any, others: list[Any], write: Any) -> Any:
        asked.append(f"decide {view.version} {len(others)} {write.only}")
        its = replace(decisions(2)[1], instant=write.instant)
        client.knows(fence_of((*fence.window, its)), "v2")
        yield from ()
        return True

    client.process = SimpleNamespace(
        carry=carry, decide=decide, taken={}, is_shared=lambda _: False)
    offer = blind_name(Offer(T(8), 0, blind=True, table="t", sha256=digest(BODY)))
    keys = frozenset({V9.requested(T(8)), V9.folder + offer})
    view = GroupView(fence, "v1", {}, keys)
    assert carried_out(decided_over(client, upsert(only="v0"), view), nothing)[0] == COMMIT
    assert asked == ["carry v0", "decide v1 1 v1"]
