"""Trouble around a table: clocks, rows, places and stores that are not as they should be."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from table_world import (
    AVRO,
    CLOCK,
    CONFIG,
    Hasty,
    Holder,
    Lossy,
    new_table,
    prepare_inserts,
    rows,
)

from lockkit.drive import run
from lockkit.outcome import Applied, IfAbsent, Missing
from lockkit.spark.options import asked as asked_for
from lockkit.spark.place import Place
from lockkit.spark.write import known_config
from lockkit.state import LockLost
from lockkit.stores import Store, open_store
from lockkit.table import (
    CommitConflict,
    TableConfig,
    begin,
    commit,
    create_table,
    prepare,
    read_table,
    write_inserts,
)
from lockkit.table.plans import RollbackPlan, format_rollback_plan
from lockkit.table.properties import load_config
from lockkit.table.rollback import RolledBack, roll_back
from lockkit.table.timeline import instant_ms, load_timeline
from lockkit.table.transaction import Known, take

NAMES = count()
SHAPES = [(mode, version) for mode in ("fenced", "hudi") for version in (6, 9)]
every_shape = pytest.mark.parametrize(("mode", "version"), SHAPES)


def table(**other: Any) -> tuple[Store, TableConfig]:
    config = replace(CONFIG, **other)
    return new_table(f"memory://trouble-{next(NAMES)}", config), config


class Standing(Hasty):
    """A clock that shows one time for ever."""

    def __init__(self, at_ms: int) -> None:
        super().__init__()
        self.at_ms = at_ms

    def wall_ns(self) -> int:
        return self.at_ms * 1_000_000


# --- places -------------------------------------------------------------------------------------


class Overtaken(Lossy):
    """Somebody else makes the table right after the first look at it."""

    def get(self, key: str, **how: Any) -> Any:
        answer = super().get(key, **how)
        if isinstance(answer, Missing):
            run(create_table(CONFIG), self.store, CLOCK)
        return answer


def test_of_two_that_make_a_table_at_once_the_second_finds_it() -> None:
    store = Overtaken(open_store(f"memory://trouble-{next(NAMES)}"))
    asked = asked_for({}, record_key="id")
    assert known_config(asked, Place("memory://orders"), store, CLOCK) == (CONFIG, True)


def test_tables_in_one_prefix_know_nothing_of_each_other(
    shared_emulator: Any, bucket: str
) -> None:
    """Not even where all of them take the same instant, and one is rolled back."""
    places = ("orders", "orders2", "orders/archive")
    stores = [open_store(f"s3://{bucket}/{each}", endpoint=shared_emulator.s3) for each in places]
    now = Standing(CLOCK.wall_ms())
    prepared = []
    for number, store in enumerate(stores):
        run(create_table(CONFIG), store, now)
        transaction = run(begin(), store, now)
        file = write_inserts(transaction.target, rows([number]), file_id="f-0")
        assert isinstance(store.put(file.key, file.body, IfAbsent()), Applied)
        prepared.append(run(prepare(transaction, [file.stat], schema=AVRO), store, now))
    assert len({each.instant for each in prepared}) == 1
    for store, each in zip(stores[1:], prepared[1:], strict=True):
        run(commit(each, Holder(1)), store, now)
    known = Known(*run(load_config(), stores[0], now))
    done = run(roll_back(prepared[0].instant, Holder(1), known), stores[0], now)
    assert done.deleted == (prepared[0].stats[0].path,)
    assert not read_table(stores[0]).num_rows
    kept = [read_table(store)["id"].to_pylist() for store in stores[1:]]
    assert kept == [["k1"], ["k2"]]


# --- clocks -------------------------------------------------------------------------------------


@every_shape
def test_an_instant_that_was_rolled_back_is_never_anybodys_again(mode: str, version: int) -> None:
    """Its first writer may only sleep, and would take the second one's files for its own."""
    store, config = table(mode=mode, version=version)
    asleep = prepare_inserts(store, rows([0]))
    known = Known(*run(load_config(), store, CLOCK))
    done = run(roll_back(asleep.instant, Holder(2), known, base="memory://t"), store, CLOCK)
    assert isinstance(done, RolledBack)
    behind = Standing(instant_ms(asleep.instant))
    assert run(begin(), store, behind).instant > done.instant
    again = known.after(run(load_timeline(config.names), store, CLOCK))
    assert run(begin(again), store, behind).instant > done.instant


@pytest.mark.parametrize("action", ["replacecommit", "clustering", "rollback", "clean"])
@pytest.mark.parametrize("version", [6, 9])
def test_a_commit_never_shares_its_instant_with_another_action(version: int, action: str) -> None:
    """Each creates a requested file of its own name, so that both creations succeed. Of a commit
    whose instant a rollback had had, a later conflict check thought that it was covered.
    """
    store, config = table(version=version)
    known = Known(*run(load_config(), store, CLOCK))
    plan = format_rollback_plan(RollbackPlan("", "20250101000000000", "commit", (), "memory://t"))
    taken = run(take(known, action=action, plan=plan), store, CLOCK)
    mine = run(begin(), store, Standing(instant_ms(taken.instant)))
    assert mine.instant > taken.instant
    assert config.names.requested(taken.instant) not in {each.key for each in store.list(".hoodie")}


@every_shape
def test_a_rollback_is_seen_by_its_writer_though_a_commit_has_its_instant(
    mode: str, version: int
) -> None:
    """The commit took it first, and so did not see the other; a rollback does not look."""
    store, _ = table(mode=mode, version=version)
    asleep = run(begin(), store, CLOCK)
    other = prepare_inserts(store, rows([1]))
    then, known = Standing(instant_ms(other.instant)), Known(*run(load_config(), store, CLOCK))
    done = run(roll_back(asleep.instant, Holder(2), known, base="memory://t"), store, then)
    assert done.instant == other.instant
    run(commit(other, Holder(3)), store, CLOCK)
    woken = run(prepare(asleep, [], schema=AVRO), store, CLOCK)
    with pytest.raises((CommitConflict, LockLost), match=r"rolled it back|rolls .* back"):
        run(commit(woken, Holder(4)), store, CLOCK)


@pytest.mark.parametrize("mode", ["fenced", "hudi"])
def test_completion_times_rise_however_far_a_writers_clock_is_behind(mode: str) -> None:
    """In the order in which the commits became visible, or a reader of increments misses one."""
    store, _ = table(mode=mode, version=9)
    late = run(begin(), store, CLOCK)
    first = run(commit(prepare_inserts(store, rows([0])), Holder(1)), store, CLOCK)
    behind = Standing(instant_ms(late.instant))
    prepared = run(prepare(late, [], schema=AVRO), store, behind)
    second = run(commit(prepared, Holder(2)), store, behind)
    assert second.instant < first.instant
    assert first.completion is not None and second.completion is not None
    assert second.completion > first.completion
