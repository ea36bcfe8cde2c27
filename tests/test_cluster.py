"""Clustering: what is chosen, that no row is lost or doubled, and that it may die anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from deaths import Died, Mortal
from table_history import History, add, publish, rows_of
from table_world import AVRO, CLOCK, CONFIG, Hasty, new_table, prepare_upserts, rows

from lockkit.errors import TableError
from lockkit.protocol.outcome import IfAbsent
from lockkit.protocol.policy import Expiry
from lockkit.runtime import SiblingInterrupted, run
from lockkit.stores import Store
from lockkit.table import (
    Prepared,
    Slice,
    begin,
    commit,
    load_snapshot,
    prepare,
    read_slice,
    read_table,
    write_inserts,
)
from lockkit.table.errors import CommitConflict
from lockkit.table.format.spark_hash import bucket_of
from lockkit.table.format.timeline import Timeline, load_timeline
from lockkit.table.occ.commit import EpochGuard
from lockkit.table.occ.concurrency import SingleWriter
from lockkit.table.occ.conflict import PREFER_WRITER, SIMPLE, ConflictStrategy
from lockkit.table.occ.heartbeat import Heartbeat
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.liveness import HEARTBEATS
from lockkit.table.occ.markers import MARKERS, mark
from lockkit.table.read.bucket_groups import bucket_file_id
from lockkit.table.read.buckets import is_bucketed
from lockkit.table.read.reader import read_increment
from lockkit.table.services import cluster as plans
from lockkit.table.services.cluster import Clustered, SizedSlice, choose
from lockkit.table.services.cluster import cluster as cluster_now
from lockkit.table.services.rules import ClusterRules, ServiceRules, cluster_rules
from lockkit.table.services.service import TableService

NAMES = count()
VERSIONS = [6, 9]
SMALL = ClusterRules(small_file_bytes=1_000_000, target_file_bytes=1_000_000)
BUCKETED = replace(SMALL, layout="bucketed")


def fresh(version: int = 6, **config: Any) -> Store:
    return new_table(f"memory://cluster-{next(NAMES)}", replace(CONFIG, version=version, **config))


def service(store: Store, rules: ClusterRules = SMALL, **of: Any) -> TableService:
    how = {name: of.pop(name) for name in ("strategy", "heartbeat") if name in of}
    of = {"clock": CLOCK} | of
    return TableService(
        store.url, store, SingleWriter(), rules=ServiceRules(cluster=rules, **how), **of
    )


def cluster(store: Store, rules: ClusterRules = SMALL, **of: Any) -> Clustered | None:
    return service(store, rules, **of).cluster()


def content(store: Store) -> dict[str, tuple[int, str]]:
    return rows_of(read_table(store, meta=True))


def slices(store: Store) -> list[Slice]:
    return run(load_snapshot(), store, CLOCK).slices


def timeline(store: Store) -> Timeline:
    return run(load_timeline(run(load_snapshot(), store, CLOCK).config.names), store, CLOCK)


def assert_nothing_is_left(store: Store) -> None:
    """No pending instant, no heartbeat, no marker, and no file that no commit named."""
    assert not timeline(store).pending
    assert not store.list(HEARTBEATS) and not store.list(MARKERS)
    files = {each.key for each in store.list("") if each.key.endswith(".parquet")}
    commits = timeline(store).commits
    assert {each.rpartition("_")[2].removesuffix(".parquet") for each in files} <= set(commits)


# --- what is chosen -------------------------------------------------------------------------------


def sized(*sizes: int, partition: str = "p") -> list[SizedSlice]:
    return [
        SizedSlice(Slice(partition, f"f{n}", "1", f"{partition}/f{n}"), size)
        for n, size in enumerate(sizes)
    ]


def chosen(slices: list[SizedSlice], **rules: Any) -> list[tuple[list[str], int]]:
    groups = choose(slices, ClusterRules(**rules), buckets=4)
    return [([each.file_id for each in group.slices], group.outputs) for group in groups]


def test_small_files_of_a_partition_are_packed_smallest_first() -> None:
    of = sized(30, 10, 500, 20)
    assert chosen(of, small_file_bytes=100, target_file_bytes=100) == [(["f1", "f3", "f0"], 1)]
    assert chosen(of, small_file_bytes=100, group_bytes_max=30) == [(["f1", "f3"], 1)]
    assert chosen([*of, *sized(1, 1, partition="q")], small_file_bytes=100, groups_max=1) == [
        (["f1", "f3", "f0"], 1)
    ]


def test_file_groups_that_would_not_become_fewer_files_are_not_clustered() -> None:
    assert chosen(sized(10), small_file_bytes=100) == []
    assert chosen(sized(90, 90), small_file_bytes=100, target_file_bytes=100) == []
    assert chosen([*sized(1), *sized(1, partition="q")], small_file_bytes=100) == []


def test_options_are_hudis_and_nonsense_is_refused_by_name() -> None:
    plan = "hoodie.clustering.plan.strategy."
    found = cluster_rules({plan + "small.file.limit": "7", plan + "partition.selected": "a,b"})
    assert (found.small_file_bytes, found.partitions) == (7, {"a", "b"})
    for wrong in ({plan + "max.num.groups": "0"}, {"lockkit.clustering.layout": "spiral"}):
        with pytest.raises(TableError, match=next(iter(wrong))):
            cluster_rules(wrong)


# --- the rows are the same ------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_keep_their_commit_times_and_no_increment_brings_them_twice(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fresh(version)
    for each in range(4):
        add(store, each, each + 10, amount=each)
    add(store, 50, region="US")
    if version == 9:
        monkeypatch.setattr(plans, "LISTED_APART_MAX", 1)
    before, (_, pulled) = content(store), read_increment(store)
    done = cluster(store)
    assert done is not None and (done.replaced, done.files) == (4, 1)
    assert content(store) == before
    assert len(slices(store)) == 2
    assert read_increment(store, pulled.end)[0].num_rows == 0
    assert cluster(store) is None
    assert_nothing_is_left(store)


def test_a_column_that_some_files_lack_is_null_in_the_new_one() -> None:
    store = fresh()
    add(store, 0)
    table = rows([1])
    wide = table.append_column("note", table["region"])
    from lockkit.table import Table

    with Table(store.url) as handle:
        handle.append(wide)
    assert cluster(store) is not None
    found = read_table(store)
    assert dict(zip(found["id"].to_pylist(), found["note"].to_pylist(), strict=True)) == {
        "k0": None, "k1": "EU",
    }  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_with_buckets_each_key_is_in_the_bucket_that_an_upsert_reads(version: int) -> None:
    store = fresh(version, buckets=3)
    for generation in range(2):
        first = generation * 20
        add(store, *range(first, first + 12))
        add(store, *range(first + 12, first + 20))
        before = content(store)
        assert cluster(store, BUCKETED) is not None
        assert content(store) == before
        for each in slices(store):
            bucket = int(each.file_id[:8])
            assert each.file_id == bucket_file_id(each.partition, bucket, generation)
            keys = run(read_slice(each), store, CLOCK)["_hoodie_record_key"].combine_chunks()
            assert set(bucket_of(keys, 3).to_pylist()) == {bucket}
    assert cluster(store, BUCKETED) is None
    assert all(is_bucketed(each.file_id) for each in slices(store))


@pytest.mark.parametrize("rules", [SMALL, BUCKETED], ids=lambda each: each.layout)
@pytest.mark.parametrize("seed", range(4))
def test_beside_slow_and_dead_writers_no_row_is_lost_or_doubled(
    seed: int, rules: ClusterRules
) -> None:
    store = fresh([6, 9][seed % 2])
    history, done = History(store, seed, regions=("EU", "US")), 0
    for _ in range(16):
        history.step()
        before = {(each.partition, each.file_id) for each in slices(store)}
        if history.random.random() < 0.4 and (clustered := cluster(store, rules)):
            done += 1
            now = {(each.partition, each.file_id): each for each in slices(store)}
            new = {group: rows_of(run(read_slice(now[group]), store, CLOCK))
                   for group in now.keys() - before}  # fmt: skip
            history.model.commits[clustered.instant] = (new, before - now.keys())
        assert content(store) == history.model.rows()
    assert done


# --- beside writers -------------------------------------------------------------------------------


def slow_upsert(store: Store) -> Prepared:
    """Two small groups, and a writer that is about to give k0 of the first the amount 7."""
    add(store, 0)
    (of,) = slices(store)
    add(store, 1)
    return prepare_upserts(store, rows([0], amount=7), which=lambda each: each == of)


class Meanwhile:
    """An `emit` at which something else happens while the files are rewritten."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act, self.answer = act, None

    def __call__(self, _kind: str, *, text: str = "", **_of: Any) -> None:
        if text.startswith("rewriting"):
            self.answer = self.act()


@pytest.mark.parametrize("version", VERSIONS)
def test_an_upsert_that_is_faster_wins_and_the_clustering_leaves_nothing(version: int) -> None:
    store = fresh(version)
    slow = slow_upsert(store)
    with pytest.raises(CommitConflict, match="wrote a new slice of"):
        cluster(store, emit=Meanwhile(lambda: publish(store, slow)))
    assert content(store)["k0"][0] == 7
    assert_nothing_is_left(store)
    assert cluster(store) is not None
    assert content(store)["k0"][0] == 7


def test_a_slower_upsert_gets_a_conflict_that_names_the_clustering() -> None:
    store = fresh()
    slow = slow_upsert(store)
    done = cluster(store)
    assert done is not None
    with pytest.raises(CommitConflict, match=f"{done.instant}.*replaced"):
        publish(store, slow)


def test_a_commit_between_the_look_and_the_plan_makes_a_clustering_void() -> None:
    store = fresh()
    slow = slow_upsert(store)
    its = service(store)
    stale = its.inspect()
    publish(store, slow)
    assert cluster_now(its.context, stale) is None
    assert_nothing_is_left(store)
    assert content(store)["k0"][0] == 7


def test_a_bucket_that_was_begun_before_the_plan_was_there_gets_no_second_group() -> None:
    store = fresh()
    add(store, 0)
    its = service(store, BUCKETED)
    stale = its.inspect()
    transaction = run(begin(), store, CLOCK)
    bucket = bucket_of(pa.array(["k0"]), CONFIG.buckets)[0].as_py()  # k0's, whoever is in it
    of = bucket_file_id("region=EU", bucket)
    file = write_inserts(transaction.target, rows([1]), file_id=of)
    store.put(file.key, file.body, IfAbsent())
    publish(store, run(prepare(transaction, [file.stat], schema=AVRO), store, CLOCK))
    assert cluster_now(its.context, stale) is None
    assert its.cluster() is not None
    buckets = [each.file_id[:8] for each in slices(store)]
    assert len(set(buckets)) == len(buckets) and content(store).keys() == {"k0", "k1"}


def test_files_already_cleaned_by_another_service_are_skipped() -> None:
    store = fresh()
    add(store, 0)
    add(store, 1)
    its = service(store)
    stale = its.inspect()
    cluster(store)
    for each in stale.snapshot.slices:
        store.delete(each.path)
    assert cluster_now(its.context, stale) is None
    assert_nothing_is_left(store)


def test_larger_files_are_not_made_of_bucketed_ones() -> None:
    store = fresh()
    for each in range(2):
        add(store, *range(each * 4, each * 4 + 4))
    assert cluster(store, BUCKETED) is not None
    assert cluster(store) is None


def test_a_second_service_does_not_plan_what_a_first_one_is_executing() -> None:
    store = fresh()
    add(store, 0)
    add(store, 1)
    second = Meanwhile(lambda: [cluster(store), timeline(store).pending])
    done = cluster(store, emit=second)
    assert done is not None
    assert second.answer == [None, {done.instant: "replacecommit"}]


@pytest.mark.parametrize("strategy", [SIMPLE, PREFER_WRITER], ids=lambda each: each.name)
def test_a_writer_that_begins_under_a_plan_yields_unless_writers_have_priority(
    strategy: ConflictStrategy,
) -> None:
    store = fresh()
    add(store, 0)
    (of,) = slices(store)
    add(store, 1)

    def upsert() -> str:
        mine = prepare_upserts(store, rows([0], amount=7), which=lambda each: each == of)
        try:
            run(commit(mine, EpochGuard(1), strategy=strategy), store, CLOCK)
        except CommitConflict as refused:
            return refused.cause
        return "committed"

    other = Meanwhile(upsert)
    if strategy is SIMPLE:
        assert cluster(store, emit=other) is not None
        assert (other.answer, content(store)["k0"][0]) == ("is pending and is going to replace", 0)
    else:
        with pytest.raises(CommitConflict):
            cluster(store, emit=other, strategy=strategy)
        assert (other.answer, content(store)["k0"][0]) == ("committed", 7)
        assert_nothing_is_left(store)


def test_if_writers_have_priority_a_living_writer_makes_the_clustering_yield() -> None:
    store = fresh()
    slow = slow_upsert(store)
    with Heartbeat(slow.instant, store, clock=CLOCK) as living:
        run(mark(slow.instant, slow.stats[0].path, "MERGE"), store, CLOCK)
        with pytest.raises(CommitConflict, match="writers go first"):
            cluster(store, strategy=PREFER_WRITER)
        publish(store, slow)
        living.finish()
    assert content(store)["k0"][0] == 7


# --- it may die anywhere --------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_clustering_that_died_at_any_request_is_rolled_back_or_complete(
    version: int, sent: bool
) -> None:
    outcomes = set()
    for most in range(200):
        store = fresh(version)
        add(store, 0)
        add(store, 1)
        before = content(store)
        try:
            mortal: Any = Mortal(store, most, sent=sent)
            cluster(mortal)
            died = False
        except (Died, SiblingInterrupted):
            died = True
        assert content(store) == before
        later = Hasty(offset_ms=3_600_000)
        service(store, clock=later, heartbeat=HeartbeatRules(expiry=Expiry.WALL)).run()
        outcomes.add(len(slices(store)))
        assert content(store) == before
        assert not timeline(store).pending
        if not died:
            break
        cluster(store, clock=later)
        assert (content(store), len(slices(store))) == (before, 1)
    assert not died and outcomes == {1, 2}


def test_a_clustering_of_a_living_writer_is_not_rolled_back() -> None:
    store = fresh()
    add(store, 0)
    add(store, 1)
    other = Meanwhile(lambda: service(store).run().taken_back)
    assert cluster(store, emit=other) is not None
    assert other.answer == ()
