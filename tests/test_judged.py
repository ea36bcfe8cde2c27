"""Judged by others: what hudi-rs reads of our tables, row by row beside what we read."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from suite_plugin import rest_in_soak
from table_history import History, add, publish
from table_world import CLOCK, CONFIG, new_table, prepare_inserts, rows

from lockkit.protocol.outcome import IfAbsent
from lockkit.runtime import run
from lockkit.stores import Store
from lockkit.table import (
    TableConfig,
    avro_schema,
    begin,
    load_snapshot,
    prepare,
    read_table,
    write_inserts,
)
from lockkit.table.format.plans import (
    OURS,
    ClusteringGroup,
    ClusteringInput,
    ReplacePlan,
    format_cluster_plan,
)
from lockkit.table.format.timeline import load_timeline
from lockkit.table.handle import Table
from lockkit.table.occ.concurrency import SingleWriter
from lockkit.table.read import checkpoint as checkpoints
from lockkit.table.read.checkpoint import CHECKPOINT_KEY
from lockkit.table.read.checkpoint_writing import write_checkpoint
from lockkit.table.read.incremental import load_increment
from lockkit.table.read.reader import read_increment
from lockkit.table.services.cluster import action_of
from lockkit.table.services.rules import CleanRules, ClusterRules, ServiceRules
from lockkit.table.services.service import TableService

hudi = pytest.importorskip("hudi", reason="hudi-rs reads our tables: pip install hudi==0.5.0")

SEEDS = range(4)
VERSIONS = (6, 9)
FIRST = "19700101000000000"


@pytest.fixture(autouse=True)
def checkpoint_after_every_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that each of these tables has one: it must not disturb anybody else's reader."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_EVERY", 1)


@pytest.fixture(params=[(v, by) for v in VERSIONS for by in ("region", None)], ids=str)
def config(request: pytest.FixtureRequest) -> TableConfig:
    version, partition_by = request.param
    return replace(CONFIG, version=version, partition_by=partition_by)


def save(store: Store) -> None:
    run(write_checkpoint(run(load_snapshot(), store, CLOCK)), store, CLOCK)
    assert store.list(CHECKPOINT_KEY)


def written(tmp_path: Path, config: TableConfig, seed: int) -> History:
    """A table with inserts, upserts, replaced groups, refused, slow and dead writers."""
    store = new_table(f"file://{tmp_path}/orders", config=config)
    regions = ("EU", "a/b: 50% Île", "__x.y") if config.partition_by else ("EU",)
    history = History(store, seed, regions)
    for _ in range(12):
        history.step()
    save(store)
    return history


def theirs(tmp_path: Path, options: Any = None) -> pa.Table:
    batches = hudi.HudiTable(f"{tmp_path}/orders").read(options or hudi.HudiReadOptions())
    return pa.Table.from_batches(batches) if batches else pa.table({})


def alike(ours: pa.Table, hudis: pa.Table) -> bool:
    """Whether the two hold the same rows, in all columns, meta columns included."""
    if not ours.num_rows or not hudis.num_rows:
        return ours.num_rows == hudis.num_rows
    order = [("_hoodie_commit_seqno", "ascending"), ("_hoodie_file_name", "ascending")]
    columns = sorted(hudis.column_names)
    assert sorted(ours.column_names) == columns
    mine, its = (each.select(columns).sort_by(order).to_pylist() for each in (ours, hudis))
    return bool(mine == its)


def as_of(at: str) -> Any:
    return hudi.HudiReadOptions().with_as_of_timestamp(at)


def between(start: str, end: str) -> Any:
    return (
        hudi.HudiReadOptions().with_query_type(hudi.HudiQueryType.Incremental)
        .with_start_timestamp(start).with_end_timestamp(end)
    )  # fmt: skip


@pytest.mark.parametrize("seed", rest_in_soak(SEEDS, 0, 1))
def test_snapshot_and_every_as_of_are_the_same_rows(
    tmp_path: Path, config: TableConfig, seed: int
) -> None:
    history = written(tmp_path, config, seed)
    store = history.store
    assert alike(read_table(store, meta=True), theirs(tmp_path))
    for at in history.model.commits:
        assert alike(read_table(store, as_of=at, meta=True), theirs(tmp_path, as_of(at))), at


@pytest.mark.parametrize("seed", SEEDS)
def test_every_window_of_changes_is_the_same_rows(
    tmp_path: Path, config: TableConfig, seed: int
) -> None:
    """In layout 1 once dead writers are rolled back: before that, ours waits for them."""
    history = written(tmp_path, config, seed)
    history.take_back()
    store = history.store
    times = completions(store)
    compared = 0
    for start, end in combinations([FIRST, *sorted(times.values())], 2):
        changes, increment = read_increment(store, start, end, meta=True)
        its = theirs(tmp_path, between(start, end))
        assert increment.end == end
        if any(instant <= end < done for instant, done in times.items()):
            # It goes by the slice that began before the end, finds that it completed after it,
            # and drops the group's other rows too. Ours has them, and all that it has.
            assert set(seqnos(its)) <= set(seqnos(changes))
        else:
            assert alike(changes, its), (start, end)
            compared += bool(changes.num_rows)
    assert compared > 10
    last = run(load_increment(), store, CLOCK).end
    assert read_increment(store, last)[0].num_rows == 0


def completions(store: Store) -> dict[str, str]:
    """Each commit's place in the order of increments, by its instant."""
    names = run(load_snapshot(), store, CLOCK).config.names
    now = run(load_timeline(names), store, CLOCK)
    return {each: now.completion.get(each, each) for each in now.commits}


def seqnos(table: pa.Table) -> list[str]:
    found: list[str] = table["_hoodie_commit_seqno"].to_pylist() if table.num_columns else []
    return found


def test_our_reader_waits_for_a_pending_commit_that_hudi_rs_skips(tmp_path: Path) -> None:
    """Which is how a reader of increments loses what that writer commits afterwards."""
    store = new_table(f"file://{tmp_path}/orders")
    first = add(store, 0)
    slow = prepare_inserts(store, rows([1]))
    last = add(store, 2)
    changes, increment = read_increment(store, first, last)
    assert changes.num_rows == 0 and increment.end == first
    assert theirs(tmp_path, between(first, last))["id"].to_pylist() == ["k2"]
    publish(store, slow)
    changes, increment = read_increment(store, increment.end)
    assert sorted(changes["id"].to_pylist()) == ["k1", "k2"] and increment.end == last
    assert theirs(tmp_path, between(last, "29991231000000000")).num_rows == 0


@pytest.mark.parametrize("seed", rest_in_soak(SEEDS, 2))
def test_file_slices_are_the_same(tmp_path: Path, config: TableConfig, seed: int) -> None:
    history = written(tmp_path, config, seed)
    table = hudi.HudiTable(f"{tmp_path}/orders")
    for at in (None, *history.model.commits):
        its = table.get_file_slices(as_of(at) if at else hudi.HudiReadOptions())
        ours = run(load_snapshot(as_of=at), history.store, CLOCK).slices
        assert sorted((each.partition, each.file_id, each.instant, each.path) for each in ours) == (
            sorted((each.partition_path, each.file_id, each.creation_instant_time,
                    each.base_file_relative_path()) for each in its)
        ), at  # fmt: skip


FILTERS: list[list[tuple[str, str, Any]]] = [
    [("region", "=", "EU")],
    [("region", "!=", "EU")],
    [("region", "IN", ["EU", "US"])],
    [("region", "NOT IN", ["US"])],
    [("amount", ">", "50")],
    [("amount", "<=", "50"), ("region", ">", "EU")],
    [("id", ">=", "k3"), ("id", "<", "k5")],
    [("amount", "=", "-1")],
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_a_filter_chooses_the_same_rows(
    tmp_path: Path, config: TableConfig, filters: list[tuple[str, str, Any]]
) -> None:
    history = written(tmp_path, config, seed=5)
    as_text = [(name, word, ",".join(value) if isinstance(value, list) else value)
               for name, word, value in filters]  # fmt: skip
    its = theirs(tmp_path, hudi.HudiReadOptions(filters=as_text))
    assert alike(read_table(history.store, filters=filters, meta=True), its)


@pytest.mark.parametrize("name", ["2024-orders", "größe", "-"])
def test_a_tables_name_is_anything_that_prints(
    tmp_path: Path, config: TableConfig, name: str
) -> None:
    """By default it is the last folder's, and the schema's record is called by it."""
    new_table(f"file://{tmp_path}/orders", replace(config, name=name))
    with Table(f"file://{tmp_path}/orders") as table:
        table.append(rows([1]))
        assert alike(read_table(table.store, meta=True), theirs(tmp_path))


@pytest.mark.parametrize("layout", ["free", "bucketed"])
def test_a_table_with_running_services_gives_the_same_reads(
    tmp_path: Path, config: TableConfig, layout: Literal["free", "bucketed"]
) -> None:
    """Dead writers taken back, small files joined, old ones cleaned; a clustering is pending."""
    store = written(tmp_path, config, seed=3).store
    rules = ServiceRules(
        failed="EAGER", clean=CleanRules(commits=2), cluster=ClusterRules(layout=layout)
    )
    service = TableService(store.url, store, SingleWriter(), rules=rules)
    service.before_write(service.inspect().known)
    before = add(store, 500)
    add(store, 501)
    clustered = service.cluster()
    assert clustered is not None
    for each in (502, 503, 504):
        add(store, each)
    (cleaned,) = service.clean()
    assert len(cleaned.deleted) >= clustered.replaced
    plan = service.preview_cluster() or plan_of(service)
    run(begin(action=action_of(config.names), plan=format_cluster_plan(plan)), store, CLOCK)
    assert alike(read_table(store, meta=True), theirs(tmp_path))
    now = completions(store)
    for at in sorted(now)[-2:]:
        assert alike(read_table(store, as_of=at, meta=True), theirs(tmp_path, as_of(at))), at
    changes, increment = read_increment(store, now[before], now[clustered.instant], meta=True)
    assert alike(changes, theirs(tmp_path, between(now[before], increment.end)))
    assert changes["id"].to_pylist() == ["k501"]


def plan_of(service: TableService) -> ReplacePlan:
    """A plan to rewrite one file group."""
    first = service.inspect().snapshot.slices[0]
    only = ClusteringInput(first.partition, first.file_id, first.path)
    return ReplacePlan((ClusteringGroup((only,)),), {OURS: "cluster"})


def test_an_added_column_is_null_in_older_rows_to_both(tmp_path: Path, config: TableConfig) -> None:
    store = new_table(f"file://{tmp_path}/orders", config=config)
    add(store, 0)
    wider = rows([1]).append_column("note", pa.array(["new"]))
    transaction = run(begin(), store, CLOCK)
    file = write_inserts(transaction.target, wider, file_id=f"{CLOCK.unique()}-0")
    store.put(file.key, file.body, IfAbsent())
    schema = avro_schema(wider.schema, "orders")
    publish(store, run(prepare(transaction, [file.stat], schema=schema), store, CLOCK))
    ours = read_table(store, meta=True)
    assert sorted(ours["note"].to_pylist(), key=str) == [None, "new"]
    assert alike(ours, theirs(tmp_path))
