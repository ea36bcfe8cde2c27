"""What a commit of a table with group commit has decided for it: its snapshot, and who is there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from test_group_waiting import T, client_of, decisions, fence_of

from lockkit.stores import ListEntry, Listing
from lockkit.table.format.layout import NO_COMMIT, FileGroup, WriteStat, format_commit
from lockkit.table.format.properties import FENCED, GROUP, TableConfig
from lockkit.table.format.schema import avro_schema
from lockkit.table.format.timeline import V6, V9, Timeline, TimelineNames, parse_timeline
from lockkit.table.occ.fence import COMMIT, ROLLBACK
from lockkit.table.occ.group.client import (
    CONTENDED_FOR,
    FOLLOWS_MS,
    OVERWRITE,
    GroupClient,
    GroupWrite,
    instant_in,
    plain_keys,
    schema_id,
)
from lockkit.table.occ.group.decision import GroupDecision
from lockkit.table.occ.group.publish import _keys_of, _write_of, saves_time
from lockkit.table.occ.group.tail import with_tail
from lockkit.table.occ.group.view import GroupView, offered
from lockkit.table.occ.prepared import Prepared
from lockkit.table.occ.transaction import TableCache, TakenInstant, Transaction

MINE = T(5_000)
SCHEMA = avro_schema(pa.schema({"id": pa.string()}), "t")
KNOWN = TableCache(TableConfig(name="t", record_key="id", mode=FENCED, commit=GROUP), "v")


def file_of(group: str, previous: str = NO_COMMIT) -> WriteStat:
    path = f"EU/{group}_0-0-0_{MINE}.parquet"
    return WriteStat(partition="EU", file_id=group, path=path, previous=previous, writes=1,
                     size_bytes=9)  # fmt: skip


NEW = file_of("f-1")


def listed(*keys: str, names: TimelineNames = V9) -> Timeline:
    return parse_timeline(Listing([ListEntry(each, 9, '"1"') for each in keys]), names)


def committed(*numbers: int) -> list[str]:
    return [V9.completed(T(n), COMMIT, T(n + 5_000)) for n in numbers]


def begun(now: Timeline, *, horizon: str = "", action: str = COMMIT) -> Transaction:
    taken = TakenInstant(MINE, "mine", action, replace(KNOWN, horizon=horizon), b"", "v")
    return Transaction(taken, now)


def prepared(
    now: Timeline, *stats: WriteStat, horizon: str = "", action: str = COMMIT,
    replaced: frozenset[FileGroup] = frozenset(), grows: bool = False,
) -> Prepared:  # fmt: skip
    stats = stats or (NEW,)
    body = format_commit(stats, operation="UPSERT", schema=SCHEMA, attempt="mine", action=action,
                         replaced=replaced)  # fmt: skip
    began = begun(now, horizon=horizon, action=action)
    return Prepared(began, stats, replaced, "UPSERT", body, grows)


def written(client: GroupClient, now: Timeline, *stats: WriteStat, **how: Any) -> GroupWrite:
    return _write_of(client, prepared(now, *stats, **how))


# --- its snapshot ---------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [V9, V6], ids=["9", "6"])
def test_a_listing_of_a_snapshot_says_what_is_completed_pending_and_offered(
    names: TimelineNames
) -> None:
    """The keys that a decision takes from it name the same as those of a listing of its own."""
    done = T(90) if names is V9 else None
    keys = [names.completed(T(1), COMMIT, done), names.completed(T(2), OVERWRITE, done),
            names.requested(T(2), OVERWRITE), names.inflight(T(2), OVERWRITE),
            names.requested(T(3)), names.inflight(T(4)), names.requested(T(5), OVERWRITE),
            names.inflight(T(6), "clustering"), names.completed(T(7), COMMIT, done),
            *(f"{names.folder}{T(n)}.offer" for n in range(3, 9))]  # fmt: skip
    entries = Listing([ListEntry(each, 9, '"1"') for each in keys])
    known = replace(KNOWN, config=replace(KNOWN.config, version=9 if names is V9 else 6))
    taken = TakenInstant(MINE, "mine", COMMIT, known, b"", "v")
    found = _keys_of(Transaction(taken, parse_timeline(entries, names)))
    fence = replace(fence_of(()), completion=done)
    views = [GroupView(fence, "v", {}, each) for each in (found, plain_keys(entries))]
    said = [(view.completed(), view.pending(), offered(view)) for view in views]
    assert said[0] == said[1]
    assert said[0][0] == {T(1), T(2), T(7)} and said[0][1] == set(map(T, range(3, 7)))
    assert list(map(instant_in, said[0][2][1])) == list(map(T, range(3, 7)))
    own = [each for each in found if each.endswith(".commit")]
    assert {each.replace(".commit", f".{OVERWRITE}") if T(2) in each else each
            for each in own} < set(keys)  # fmt: skip


@pytest.mark.parametrize(("shows", "horizon", "base"), [
    ((1, 2), "", 2), ((1,), "", 1), ((), "", 0), ((), T(2), 2), ((3,), T(1), 3)])  # fmt: skip
def test_the_base_of_a_commit_is_the_last_decision_that_its_listing_shows(
    shows: tuple[int, ...], horizon: str, base: int
) -> None:
    """It is compared with all later ones."""
    client = client_of(fence_of(decisions(3)))
    write = written(client, listed(*committed(*shows)), horizon=horizon)
    assert (write.base, client.horizon) == (base, horizon)
    assert write.seen == set(map(T, shows)) and write.table == "t"
    assert (write.instant, write.attempt, write.action) == (MINE, "mine", COMMIT)


def test_only_a_commit_that_a_listing_shows_counts_as_published() -> None:
    """A refusal is over once its tombstone is there; and the tail is only in the fence."""
    refused = GroupDecision(4, 4, ROLLBACK, T(4))
    fence = fence_of((*decisions(3), refused))
    client, bodies = client_of(fence), {each.instant: b"body" for each in fence.window}
    written(client, listed(*committed(1)))
    assert client.proven == {1}
    now = with_tail(fence, replace(listed(*committed(1)), bodies=bodies), "")
    assert now is not None and now.tail == {T(2), T(3)}
    write = written(client, now)
    assert client.proven == {1} and write.base == 3
    written(client, now, horizon=T(4))
    assert client.proven == {1}


@pytest.mark.parametrize(("stats", "how", "blind"), [
    ([NEW], {}, True),
    ([NEW, file_of("f-2", T(1))], {}, False),
    ([NEW, file_of("0" * 8)], {}, False),
    ([NEW], {"replaced": frozenset({("EU", "g")}), "action": OVERWRITE}, False),
    ([NEW], {"action": OVERWRITE}, False),
    ([NEW], {"grows": True}, False),
])  # fmt: skip
def test_only_an_append_of_new_file_groups_is_compared_with_nothing(
    stats: list[WriteStat], how: dict[str, Any], blind: bool
) -> None:
    """A group of a bucket is the same for all writers, also the first time."""
    write = written(client_of(fence_of(())), listed(), *stats, **how)
    assert write.blind == blind and write.grows_schema == how.get("grows", False)
    assert write.writes >= {each.group for each in stats} | how.get("replaced", set())
    assert write.schema == schema_id(SCHEMA) != ""


# --- the commits of others ------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "round_", "learns"), [
    (1, 3, True), (1, 2, False), (5, 9, False)])  # fmt: skip
def test_a_commit_takes_the_fence_beside_its_listing_if_it_is_newer_and_shows_all_between(
    first: int, round_: int, learns: bool
) -> None:
    """It is known as of the time when the one before was: it was read a while ago."""
    client = client_of(fence_of(decisions(2)))
    client.boot_ms = lambda: 77
    client.knew_ms = 5
    beside = replace(fence_of(decisions(3)), first=first, round=round_)
    write = written(client, replace(listed(), fence=(beside, "v2")))
    assert (client.known is beside) == (client.version == "v2") == learns
    assert client.contended == CONTENDED_FOR * learns and client.knew_ms == 5
    assert write.surveyed == (round_ <= 3)
    assert not written(client, listed()).surveyed


@pytest.mark.parametrize("beside", [True, False])
def test_a_commit_follows_the_earlier_commits_of_others_that_are_under_way(beside: bool) -> None:
    client = client_of(fence_of(()))
    client.own.add(T(4_001))
    old, soon, later = T(5_000 - FOLLOWS_MS), T(5_001 - FOLLOWS_MS), T(5_008)
    now = listed(*map(V9.requested, (old, soon, T(4_001), MINE, later)))
    now = replace(now, fence=(client.known, "v1") if beside else None)
    write = written(client, now)
    assert write.earlier == {soon} and write.follows == beside
    assert not written(client, replace(now, pending={later: COMMIT, MINE: COMMIT})).follows


@pytest.mark.parametrize(("blind", "contended", "earlier", "saves"), [
    (True, 1, T(9), True), (False, 1, T(9), False), (True, 0, T(9), False), (True, 1, T(1), False),
    (True, 1, "", False)])  # fmt: skip
def test_an_append_is_offered_beside_its_replacement_only_behind_a_commit_that_is_not_decided(
    blind: bool, contended: int, earlier: str, saves: bool
) -> None:
    client = client_of(fence_of(decisions(1)))
    client.contended = contended
    others = frozenset({earlier} - {""})
    mine = GroupWrite(MINE, "mine", 0, frozenset(), blind=blind, earlier=others)
    assert saves_time(client, mine) == saves
