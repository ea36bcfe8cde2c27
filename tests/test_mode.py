"""The switch of a table's mode goes through the fence: no paused writer's commit is lost by it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from table_world import (
    CLOCK,
    Hasty,
    Holder,
    new_table,
    prepare_inserts,
    prepare_upserts,
    rows,
)

from lockkit.errors import TableError
from lockkit.protocol.outcome import Applied, Found, IfAbsent, IfVersion
from lockkit.runtime import Note, Procedure, perform, run
from lockkit.sinks import silent
from lockkit.stores import Store, open_store
from lockkit.table import FENCE_KEY, PROPERTIES_KEY, Table, TableConfig, commit, read_table
from lockkit.table.errors import CommitConflict
from lockkit.table.format.properties import FENCED, HUDI, MODE, load_config
from lockkit.table.format.property_keys import format_properties, parse_properties
from lockkit.table.format.timeline import load_timeline
from lockkit.table.occ.commit import complete, decide
from lockkit.table.occ.fence import CLOSED, read_fence
from lockkit.table.occ.mode import switch_mode
from lockkit.table.occ.rollback import roll_back
from lockkit.table.occ.transaction import TableCache
from lockkit.table.services.upkeep import Upkeep

NAMES = count()
HUDI_MADE = Path(__file__).parent / "data" / "hudi"


@pytest.fixture(params=[6, 9])
def store(request: Any) -> Store:
    """A fenced table with one commit."""
    config = TableConfig(
        name="orders", record_key="id", partition_by="region", precombine="at",
        version=request.param,
    )  # fmt: skip
    store = new_table(f"memory://mode-{next(NAMES)}/t", config)
    run(commit(prepare_inserts(store, rows([0])), Holder(1)), store, CLOCK)
    return store


def switch(store: Store, mode: str, epoch: int = 9) -> bool:
    return bool(run(switch_mode(mode, Holder(epoch)), store, CLOCK))


def amounts(store: Store) -> dict[str, int]:
    found = read_table(store)
    return dict(zip(found["id"].to_pylist(), found["amount"].to_pylist(), strict=True))


def edit_mode(store: Store, mode: str) -> None:
    """What somebody does who knows no better: the properties alone are changed."""
    found = store.get(PROPERTIES_KEY)
    assert isinstance(found, Found)
    said = format_properties({**parse_properties(found.body), MODE: mode})
    assert isinstance(store.put(PROPERTIES_KEY, said, IfVersion(found.version)), Applied)


def until(procedure: Procedure[Any], store: Store, stop: Callable[[Any], bool]) -> Procedure[Any]:
    """Carry it out up to a request, and what is left of it from there on."""
    request = procedure.send(None)
    while not stop(request):
        request = procedure.send(perform(request, store, CLOCK, silent))

    def rest() -> Procedure[Any]:
        asked = request
        while True:
            answer = yield asked
            try:
                asked = procedure.send(answer)
            except StopIteration as done:
                return done.value

    return rest()


def about_to_decide(request: Any) -> bool:
    return isinstance(request, Note) and request.kind == "checked"


def test_a_fenced_writer_that_is_paused_during_the_switch_is_refused(store: Store) -> None:
    slow = until(
        commit(prepare_upserts(store, rows([0], amount=1)), Holder(2)), store, about_to_decide
    )
    assert switch(store, HUDI)
    run(commit(prepare_upserts(store, rows([0], amount=2)), Holder(10)), store, CLOCK)
    with pytest.raises(TableError, match="no longer in fenced mode"):
        run(slow, store, CLOCK)
    assert amounts(store) == {"k0": 2}


@pytest.mark.parametrize("operation", ["append", "upsert"])
def test_a_writer_refused_by_the_mode_switch_rolls_back_its_own_instant(
    store: Store, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rollback met the closed fence: the instant stayed, and held back version 6 readers."""
    config, _ = run(load_config(), store, CLOCK)
    switched: list[bool] = []
    before_commit = Upkeep.before_commit

    def meanwhile(self: Upkeep, prepared: Any) -> Procedure[Any]:
        first = yield from before_commit(self, prepared)
        if not switched:
            switched.append(switch(store, HUDI))
        return first

    monkeypatch.setattr(Upkeep, "before_commit", meanwhile)
    with Table(store.url, clock=Hasty()) as table:
        with pytest.raises(TableError, match=r"changed|no longer in fenced mode"):
            getattr(table, operation)(rows([0, 1], amount=5, at=5))
        now = run(load_timeline(config.names), store, CLOCK)
        assert switched and not now.pending, "nothing holds readers back"
        table.upsert(rows([0, 1], amount=6, at=6))
    assert amounts(store) == {"k0": 6, "k1": 6}


def test_a_rollback_that_is_paused_during_the_switch_is_refused(store: Store) -> None:
    dead = prepare_inserts(store, rows([1]))
    config, version = run(load_config(), store, CLOCK)
    known = TableCache(config, version, newest=dead.instant)
    slow = until(
        roll_back(dead.instant, Holder(2), known), store,
        lambda request: isinstance(request, Note) and "about to decide" in request.data["text"],
    )  # fmt: skip
    assert switch(store, HUDI)
    with pytest.raises(TableError, match="no longer in fenced mode"):
        run(slow, store, CLOCK)


def test_decided_commits_are_visible_after_the_switch(store: Store) -> None:
    late = run(decide(prepare_inserts(store, rows([1])), Holder(2)), store, CLOCK)
    assert switch(store, HUDI)
    assert amounts(store) == {"k0": 0, "k1": 0}
    assert run(complete(late), store, CLOCK).instant == late.prepared.instant


def test_a_mode_that_was_edited_by_hand_admits_no_unfenced_commit(store: Store) -> None:
    slow = until(
        commit(prepare_upserts(store, rows([0], amount=1)), Holder(2)), store, about_to_decide
    )
    edit_mode(store, HUDI)
    mine = prepare_upserts(store, rows([0], amount=2))
    with pytest.raises(TableError, match=r"fence is open.*lockkit table mode URL hudi"):
        run(commit(mine, Holder(10)), store, CLOCK)
    assert switch(store, HUDI) is False  # the properties said so already; the fence is closed now
    run(commit(mine, Holder(10)), store, CLOCK)
    with pytest.raises(TableError, match="no longer in fenced mode"):
        run(slow, store, CLOCK)
    assert amounts(store) == {"k0": 2}


def test_every_conflict_is_found_after_a_switch_to_hudi_and_back(store: Store) -> None:
    early, late = prepare_upserts(store, rows([0], amount=1)), prepare_inserts(store, rows([1]))
    assert switch(store, HUDI)
    run(commit(prepare_upserts(store, rows([0], amount=2)), Holder(10)), store, CLOCK)
    edit_mode(store, FENCED)
    with pytest.raises(TableError, match="no longer in fenced mode"):
        run(commit(prepare_inserts(store, rows([2])), Holder(11)), store, CLOCK)
    edit_mode(store, HUDI)
    for instant in run(load_timeline(early.names), store, CLOCK).pending:
        run(roll_back_in_hudi_mode(store, instant), store, CLOCK)
    assert not isinstance(store.get(late.inflight), Found)
    assert switch(store, FENCED, epoch=12)
    assert not switch(store, FENCED, epoch=13)
    one, other = (prepare_upserts(store, rows([0], amount=each)) for each in (3, 4))
    run(commit(one, Holder(14)), store, CLOCK)
    with pytest.raises(CommitConflict):
        run(commit(other, Holder(15)), store, CLOCK)
    assert amounts(store) == {"k0": 3}


def roll_back_in_hudi_mode(store: Store, instant: str) -> Procedure[Any]:
    config, version = run(load_config(), store, CLOCK)
    return roll_back(
        instant, Holder(11), TableCache(config, version, newest=instant), base=store.url
    )


def test_a_table_does_not_become_fenced_while_a_commit_is_under_way_in_hudi_mode(
    store: Store,
) -> None:
    assert switch(store, HUDI)
    pending = prepare_inserts(store, rows([1]))
    with pytest.raises(TableError, match=f"{pending.instant} is in progress in hudi mode"):
        switch(store, FENCED)
    assert run(load_config(), store, CLOCK)[0].mode == HUDI


@pytest.mark.parametrize(("before", "after"), [(FENCED, HUDI), (HUDI, FENCED)])
def test_a_switch_that_dies_at_any_write_is_finished_by_another(
    store: Store, before: str, after: str
) -> None:
    switch(store, before)
    way = switch_mode(after, Holder(20))
    request = way.send(None)
    while getattr(request, "key", "") != PROPERTIES_KEY or not hasattr(request, "body"):
        request = way.send(perform(request, store, CLOCK, silent))
    way.close()
    refused = prepare_inserts(store, rows([1]))
    with pytest.raises(TableError, match="lockkit table mode URL"):
        run(commit(refused, Holder(21)), store, CLOCK)
    if before == HUDI:
        run(roll_back_in_hudi_mode(store, refused.instant), store, CLOCK)
    assert switch(store, after, epoch=22)
    fence = run(read_fence(), store, CLOCK).fence
    assert fence is not None
    assert (fence.head.kind == CLOSED) == (after == HUDI)
    run(commit(prepare_inserts(store, rows([3])), Holder(24)), store, CLOCK)


@pytest.mark.parametrize("version", [6, 9])
def test_a_table_that_hudi_made_is_committed_to_without_a_fence_and_becomes_fenced(
    version: int,
) -> None:
    store = open_store(f"memory://mode-{next(NAMES)}/t")
    store.put(PROPERTIES_KEY, (HUDI_MADE / f"v{version}.properties").read_bytes(), IfAbsent())
    for number in (0, 1):
        run(commit(prepare_inserts(store, rows([number])), Holder(number + 1)), store, CLOCK)
    assert not isinstance(store.get(FENCE_KEY), Found)
    assert switch(store, FENCED)
    run(commit(prepare_inserts(store, rows([2])), Holder(10)), store, CLOCK)
    assert amounts(store) == {"k0": 0, "k1": 0, "k2": 0}
