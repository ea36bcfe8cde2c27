"""Markers: what a writer tells before it writes, and who stops before its work is wasted."""

from __future__ import annotations

import io
import itertools
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_world import (
    AFTER,
    BEFORE,
    CLOCK,
    CONFIG,
    LATE,
    SCHEMA,
    Holder,
    Lossy,
    new_table,
    prepare_inserts,
    prepare_upserts,
    rows,
)

from lockkit.errors import TableError
from lockkit.protocol.outcome import Found, IfAbsent
from lockkit.runtime import run
from lockkit.runtime.proven import all_of
from lockkit.stores import Store, open_store
from lockkit.table import commit
from lockkit.table.errors import CommitConflict, EarlyConflict
from lockkit.table.format.base_file import BaseFileWriter, Target
from lockkit.table.format.layout import NO_COMMIT, FileGroup, TaskId, file_name, in_partition
from lockkit.table.format.partition import is_inside
from lockkit.table.format.timeline import V6, load_timeline
from lockkit.table.occ.conflict import (
    BUCKET,
    PREFER_WRITER,
    SIMPLE,
    ConflictStrategy,
    OwnChanges,
    Pending,
    find_conflict,
)
from lockkit.table.occ.covered import CheckedHorizon
from lockkit.table.occ.heartbeat import HeartbeatState, start
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.liveness import end, heartbeat_key, read_heartbeat
from lockkit.table.occ.markers import (
    EARLY_COMMITS_KEY,
    EARLY_KEY,
    EARLY_STRATEGY_KEY,
    MARKERS,
    at_work,
    early_commits,
    early_conflict,
    early_detection,
    files_of,
    mark,
    mark_all,
    marker_key,
    overtaken,
    parse_marker,
    unmark,
    unmark_all,
)
from lockkit.table.read.bucket_groups import bucket_file_id
from lockkit.table.read.buckets import free_file_id
from lockkit.table.write.groups import EarlyCheck, WriteTask

OLDER, ME, YOUNGER = "20250101000000001", "20250101000000002", "20250101000000003"
EU: FileGroup = ("region=EU", "00000003-f-0")
NAMES = itertools.count()


@pytest.fixture
def store() -> Store:
    return open_store(f"memory://markers-{next(NAMES)}")


def path_of(group: FileGroup, instant: str) -> str:
    return in_partition(group[0], file_name(group[1], instant))


def writing(store: Store, instant: str, *groups: FileGroup, beats: bool = True) -> None:
    """A writer that has begun, and is about to write these file groups."""
    if beats:
        run(start(HeartbeatState(instant, 60_000)), store, CLOCK)
    for group in groups:
        run(mark(instant, path_of(group, instant), "MERGE"), store, CLOCK)


def stops(
    store: Store, *groups: FileGroup, strategy: ConflictStrategy = SIMPLE, **mine: Any
) -> str | None:
    """The instant that an early check of mine names; None if it may go on."""
    me = OwnChanges(ME, mine.pop("base", frozenset()), frozenset(groups), **mine)
    try:
        run(early_conflict(me, strategy=strategy), store, CLOCK)
    except EarlyConflict as conflict:
        return conflict.instant
    return None


# --- the file -------------------------------------------------------------------------------------


def test_a_marker_is_hudis_direct_marker(store: Store) -> None:
    """An empty file, by the data file's path and what is done to it, in a folder of its instant."""
    writing(store, ME, EU)
    key = f".hoodie/.temp/{ME}/region=EU/00000003-f-0_0-0-0_{ME}.parquet.marker.MERGE"
    assert [each.key for each in store.list(MARKERS)] == [key]
    found = store.get(key)
    assert isinstance(found, Found) and found.body == b""


@pytest.mark.parametrize("fault", [BEFORE, AFTER, LATE])
def test_a_marker_is_there_before_the_call_returns(store: Store, fault: str) -> None:
    run(mark(ME, path_of(EU, ME), "CREATE"), Lossy(store, faults={0: fault}), CLOCK)
    assert [each.group for each in run(files_of(ME), store, CLOCK)] == [EU]


def test_a_task_that_is_tried_again_marks_again(store: Store) -> None:
    for _ in range(2):
        run(mark(ME, path_of(EU, ME), "CREATE"), store, CLOCK)
    assert len(store.list(MARKERS)) == 1


def test_a_rollback_finds_every_marked_file_and_only_its_own(store: Store) -> None:
    groups = [EU, ("", "f-1"), ("a=1/b=2", "f-2"), ("region=_x_.marker._", "f-3")]
    writing(store, ME, *groups)
    writing(store, YOUNGER, ("region=US", "f-4"))
    store.put(f"{MARKERS}{ME}/", b"", IfAbsent())  # the "folder" that Hadoop's S3 client makes
    store.put(f"{MARKERS}{ME}/region=EU/notes.txt", b"", IfAbsent())
    found = run(files_of(ME), store, CLOCK)
    assert {(each.path, each.group, each.io) for each in found} == {
        (path_of(each, ME), each, "MERGE") for each in groups
    }
    run(unmark(ME), store, CLOCK)
    assert run(files_of(ME), store, CLOCK) == ()
    assert len(run(files_of(YOUNGER), store, CLOCK)) == 1


def test_markers_that_hudis_timeline_server_keeps_in_files_are_read(store: Store) -> None:
    store.put(f"{MARKERS}{ME}/MARKERS.type", b"TIMELINE_SERVER_BASED", IfAbsent())
    for number, group in enumerate([EU, ("", "f-1")]):
        lines = f"{path_of(group, ME)}.marker.CREATE\n{path_of(('p', 'f-9'), ME)}.marker.APPEND\n"
        store.put(f"{MARKERS}{ME}/MARKERS{number}", lines.encode(), IfAbsent())
    found = run(files_of(ME), store, CLOCK)
    assert {each.group for each in found} == {EU, ("", "f-1"), ("p", "f-9")}


@pytest.mark.parametrize("partitions", [("",), ("", "a"), ("", "a", "b/c"), ("b\u2028c", "d")])
def test_markers_of_log_files_are_one_file(store: Store, partitions: tuple[str, ...]) -> None:
    logs = [in_partition(each, f".f-{n}_{ME}.log.1_0-0-0") for n, each in enumerate(partitions)]
    run(all_of(mark_all(ME, logs)), store, CLOCK)
    assert len(store.list(MARKERS)) == 1
    assert {(each.path, each.io) for each in run(files_of(ME), store, CLOCK)} == {
        (each, "APPEND") for each in logs
    }
    run(all_of(unmark_all(ME, logs)), store, CLOCK)
    assert not store.list(MARKERS)


@pytest.mark.parametrize(
    "name",
    ["", "x", "/etc/f_1.parquet.marker.CREATE", "../f_1.parquet.marker.CREATE",
     "a/../../f_1.parquet.marker.CREATE", "f_1.parquet.marker.DELETE", "f.parquet.marker.CREATE",
     "f_1.parquet.marker.", "f_1.parquet", "a/_1.parquet.marker.MERGE"],
)  # fmt: skip
def test_an_invalid_marker_or_one_outside_the_table_names_no_file(name: str) -> None:
    assert parse_marker(name) is None


@given(
    st.lists(st.text(max_size=5).filter(is_inside), max_size=3),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9-]{0,19}", fullmatch=True),
    st.sampled_from(["CREATE", "MERGE", "APPEND"]),
)
def test_a_marker_says_again_what_was_marked(folders: list[str], file_id: str, io: Any) -> None:
    partition = "/".join(folders)
    path = path_of((partition, file_id), ME)
    marker = parse_marker(marker_key(ME, path, io).removeprefix(f"{MARKERS}{ME}/"))
    assert marker is not None
    assert (marker.path, marker.group, marker.io) == (path, (partition, file_id), io)


# --- stopping early -------------------------------------------------------------------------------


def test_the_later_of_two_writers_stops_with_an_error_that_names_the_earlier_one(
    store: Store,
) -> None:
    writing(store, OLDER, EU)
    writing(store, ME, EU)
    with pytest.raises(EarlyConflict) as stopped:
        run(early_conflict(OwnChanges(ME, frozenset(), frozenset({EU}))), store, CLOCK)
    error = stopped.value
    assert (error.instant, error.partition, error.file_group) == (OLDER, *EU)
    assert isinstance(error, CommitConflict)  # so that whoever retries conflicts retries it
    assert f"{OLDER} (commit) began earlier and is writing region=EU/00000003-f-0;" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is EarlyConflict and str(again) == str(error)


def test_in_any_order_only_the_later_of_two_stops_by_its_next_read() -> None:
    """Whatever the order of their four steps."""
    for order in sorted(set(itertools.permutations("OOMM"))):
        here = open_store(f"memory://markers-{next(NAMES)}")
        run(start(HeartbeatState(OLDER, 60_000)), here, CLOCK)
        run(start(HeartbeatState(ME, 60_000)), here, CLOCK)
        done, stopped = {"O": 0, "M": 0}, set()
        for who in order:
            instant = OLDER if who == "O" else ME
            if done[who] == 0:
                run(mark(instant, path_of(EU, instant), "MERGE"), here, CLOCK)
            else:
                try:
                    run(
                        early_conflict(OwnChanges(instant, frozenset(), frozenset({EU}))),
                        here,
                        CLOCK,
                    )
                except EarlyConflict:
                    stopped.add(who)
            done[who] += 1
        assert "O" not in stopped  # who began first goes on
        assert stops(here, EU) == OLDER  # and who looks again before it commits is told then


@pytest.mark.parametrize("other", [("region=US", EU[1]), ("region=EU", "00000004-f-0")])
def test_a_write_to_another_file_group_never_conflicts(store: Store, other: FileGroup) -> None:
    writing(store, OLDER, other)
    assert stops(store, EU) is None
    assert stops(store, EU, other) == OLDER


def test_a_bucket_is_found_by_its_number(store: Store) -> None:
    writing(store, OLDER, ("region=EU", "00000003-other-0"))
    assert stops(store, EU) is None
    assert stops(store, EU, strategy=BUCKET) == OLDER


def test_replaced_partitions_count_as_written(store: Store) -> None:
    writing(store, OLDER, EU)
    assert stops(store, replaced=frozenset({EU}), operation="INSERT_OVERWRITE") == OLDER


def test_a_dead_writers_markers_stop_no_other_writer(store: Store) -> None:
    writing(store, OLDER, EU, beats=False)
    assert stops(store, EU) is None
    run(start(HeartbeatState(OLDER, 60_000)), store, CLOCK)
    assert stops(store, EU) == OLDER
    assert run(end(run(read_heartbeat(OLDER), store, CLOCK)), store, CLOCK)
    assert stops(store, EU) is None


def test_a_hudi_writers_heartbeat_counts(store: Store) -> None:
    writing(store, OLDER, EU, beats=False)
    store.put(heartbeat_key(OLDER), b"", IfAbsent())
    store.put(heartbeat_key(""), b"", IfAbsent())  # the "folder" that Hadoop's S3 client makes
    assert stops(store, EU) == OLDER


def test_a_commit_that_the_writer_has_read_is_no_conflict_although_its_markers_remain(
    store: Store,
) -> None:
    writing(store, OLDER, EU)
    assert stops(store, EU, base=frozenset({OLDER})) is None
    assert stops(store, EU, horizon=OLDER) is None
    assert stops(store, EU, horizon=OLDER, pending=frozenset({OLDER})) == OLDER


def test_on_a_real_store_the_check_costs_a_listing_and_two_requests_per_concurrent_writer(
    emulator: Any, bucket: str
) -> None:
    s3 = open_store(f"s3://{bucket}/table", endpoint=emulator.s3)
    writing(s3, OLDER, EU)
    writing(s3, YOUNGER, EU)
    counted = Lossy(s3)
    me = OwnChanges(ME, frozenset(), frozenset({EU}))
    with pytest.raises(EarlyConflict):
        run(early_conflict(me), counted, CLOCK)
    assert [method for method, _ in counted.seen] == ["list", "list", "get"]


def test_a_writer_that_has_lost_its_instant_gets_an_error_before_it_commits() -> None:
    table = new_table(f"memory://markers-{next(NAMES)}")
    run(commit(prepare_inserts(table, rows([0])), Holder(1)), table, CLOCK)
    loser = prepare_upserts(table, rows([0], amount=2))
    run(overtaken(V6, loser.mine), table, CLOCK)
    winner = prepare_upserts(table, rows([0], amount=1))
    run(commit(winner, Holder(2)), table, CLOCK)
    with pytest.raises(EarlyConflict, match=f"{winner.instant} .commit. also rewrote region=EU/"):
        run(overtaken(V6, loser.mine), table, CLOCK)
    elsewhere = replace(loser.mine, writes=frozenset({EU}))
    run(overtaken(V6, elsewhere), table, CLOCK)


# --- a task that looks while it writes ------------------------------------------------------------


def task(
    store: Store, *, commits: bool = False, covered: CheckedHorizon = CheckedHorizon()
) -> WriteTask:
    early = EarlyCheck(covered, HeartbeatRules(), SIMPLE, commits)
    return WriteTask(store, Target(ME, CONFIG), TaskId(), CLOCK, early)


def drafted(group: FileGroup, previous: str = OLDER) -> BaseFileWriter:
    return BaseFileWriter(Target(ME, CONFIG), *group, SCHEMA, io.BytesIO(), previous=previous)


BUCKETED: FileGroup = ("region=EU", bucket_file_id("region=EU", 3))


@pytest.mark.parametrize(("group", "previous"), [(BUCKETED, NO_COMMIT), (EU, OLDER)])
def test_a_writer_that_marked_first_and_began_later_stops_before_it_writes_its_file(
    store: Store, group: FileGroup, previous: str
) -> None:
    work, draft = task(store), drafted(group, previous)
    work.begin(draft)
    writing(store, OLDER, group)
    with pytest.raises(EarlyConflict, match="began earlier and is writing"):
        work.put(draft, draft.close(inserts=0))
    assert not store.list("region=EU/")


def test_a_new_group_of_ones_own_is_marked_and_needs_no_look(store: Store) -> None:
    counted = Lossy(store)
    task(counted).begin(drafted(("region=EU", free_file_id(CLOCK)), NO_COMMIT))
    assert [method for method, _ in counted.seen] == ["put"]


def test_with_the_option_a_task_stops_for_a_commit_that_completed() -> None:
    table = new_table(f"memory://markers-{next(NAMES)}")
    run(commit(prepare_inserts(table, rows([0])), Holder(1)), table, CLOCK)
    (group,) = prepare_upserts(table, rows([0], amount=1)).writes
    task(table).begin(drafted(group))
    with pytest.raises(EarlyConflict, match="also rewrote"):
        task(table, commits=True).begin(drafted(group))
    now = run(load_timeline(V6), table, CLOCK)
    read = CheckedHorizon(later=frozenset(now.completed))
    task(table, commits=True, covered=read).begin(drafted(group))


# --- a table service that gives way ---------------------------------------------------------------


def test_a_clustering_yields_to_a_living_writer_that_marked_its_input(store: Store) -> None:
    silent = "20250101000000004"
    writing(store, OLDER, EU)
    assert run(end(run(read_heartbeat(OLDER), store, CLOCK)), store, CLOCK)  # dead
    writing(store, YOUNGER, EU)
    writing(store, silent)
    for instant in (OLDER, ME, YOUNGER, silent):
        store.put(V6.requested(instant), b"", IfAbsent())
    now = run(load_timeline(V6), store, CLOCK)
    found = run(at_work(V6, now, mine=ME), store, CLOCK)
    assert found == (Pending(YOUNGER, "commit", frozenset({EU})), Pending(silent, "commit", None))
    me = OwnChanges(ME, frozenset(), frozenset(), frozenset({EU}), "CLUSTER")
    conflict = find_conflict(me, [], pending=found, strategy=PREFER_WRITER)
    assert conflict is not None and (conflict.instant, conflict.group) == (YOUNGER, EU)
    assert find_conflict(me, [], pending=found, strategy=SIMPLE) is None
    elsewhere = replace(me, replaced=frozenset({("region=US", "f-9")}))
    assert find_conflict(elsewhere, [], pending=found[:1], strategy=PREFER_WRITER) is None


def test_a_writer_without_markers_or_heartbeat_is_judged_by_the_age_of_its_file(
    store: Store,
) -> None:
    """Its instant is from 2025, by a slow clock: it was taken just now."""
    store.put(V6.requested(OLDER), b"", IfAbsent())
    now = run(load_timeline(V6), store, CLOCK)
    assert run(at_work(V6, now, mine=ME), store, CLOCK) == (Pending(OLDER, "commit", None),)


# --- options --------------------------------------------------------------------------------------


def test_hudis_options_turn_the_check_of_markers_on() -> None:
    assert early_detection({}) is False
    assert early_detection({EARLY_KEY: "true"}) is True
    assert early_detection({EARLY_KEY: True}) is True
    name = "org.apache.hudi.table.marker.SimpleDirectMarkerBasedDetectionStrategy"
    assert early_detection({EARLY_KEY: "true", EARLY_STRATEGY_KEY: name}) is True
    assert early_commits({EARLY_COMMITS_KEY: "true"}) is False
    assert early_commits({EARLY_COMMITS_KEY: "true", EARLY_KEY: "true"}) is True
    with pytest.raises(TableError, match="must be true or false"):
        early_detection({EARLY_KEY: "yes"})
    with pytest.raises(TableError, match=r"timeline server.*SimpleDirectMarker"):
        early_detection({EARLY_KEY: "true", EARLY_STRATEGY_KEY: "AsyncTimelineServerBased"})
