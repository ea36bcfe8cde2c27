"""Savepoints and restores where writers decide together; judged by a dictionary and by hudi-rs."""

from __future__ import annotations

from pathlib import Path

import pytest
from table_world import steps
from test_group_archive import paused_at_its_offer
from test_group_table import (
    HOW,
    VERSIONS,
    before_fence,
    judged,
    names_at,
    published,
    rows,
    values,
)

from lockkit.cli.main import main
from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.runtime import run
from lockkit.stores import open_store
from lockkit.table import Table
from lockkit.table.errors import TableBlocked, TableChanged
from lockkit.table.format.properties import load_config
from lockkit.table.format.schema import avro_schema
from lockkit.table.format.timeline import load_timeline
from lockkit.table.occ.commit import EpochGuard, StateChange
from lockkit.table.occ.group import publish as group_publish
from lockkit.table.occ.group import tail as group_tail
from lockkit.table.occ.group.client import schema_id
from lockkit.table.occ.group.fence import read_group_fence
from lockkit.table.occ.transaction import TableCache
from lockkit.table.services.restore import restore


@pytest.fixture(params=VERSIONS)
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    # The reserved instant of a paused writer is pending, and no table is restored then.
    monkeypatch.setattr(group_publish, "is_busy", lambda _: False)
    made = f"file://{tmp_path}/orders"
    Table.create(made, **HOW, version=request.param).close()
    return made


def saved(table: Table) -> str:
    """A savepoint with the row a, and two commits after it."""
    table.upsert(rows("a"))
    published(table)
    instant = table.savepoint().instant
    table.upsert(rows("a", v=1))
    table.append(rows("b"))
    published(table)
    return instant


def test_a_read_that_began_before_a_restore_publishes_nothing_of_what_it_took_back(
    url: str
) -> None:
    store = open_store(url)
    with Table(url) as table:
        instant = saved(table)
        before, _ = run(read_group_fence(), store, Clock())
        table.restore(instant)
        names = table._open().config.names
        now = run(load_timeline(names), store, Clock())
        assert run(group_tail._published(names, before, now, "", 0.0), store, Clock()) is None
    assert values(url) == judged(url) == {"a": 0}


def test_an_overwrite_after_a_restore_meets_none_of_the_commits_that_were_taken_back(
    url: str
) -> None:
    with Table(url) as table:
        table.restore(saved(table))
        table.overwrite(rows("c"), whole_table=True)
    assert values(url) == judged(url) == {"c": 0}


def test_the_history_and_a_savepoint_have_what_was_acknowledged_and_is_not_published(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_publish, "_publish_later", lambda _: None)
    with Table(url) as table, Table(url) as reader:
        for number, newest in enumerate((
            lambda: reader.history()[0].instant, lambda: reader.savepoint().instant,
        )):  # fmt: skip
            committed = table.append(rows(f"{number}"))
            assert newest() == committed.instant


def test_writes_go_on_after_a_restore_took_back_a_commit_that_added_a_column(url: str) -> None:
    with Table(url) as table, Table(url) as other:
        table.append(rows("a"))
        published(table)
        instant = table.savepoint().instant
        table.append(rows("b").append_column("more", [[1]]))
        published(table)
        table.restore(instant)
        other.append(rows("c"))
        table.upsert(rows("a", v=1))
        other.delete(rows("c"))
        with Table(url) as new:
            new.upsert(rows("d"))
            assert new.read().column_names == ["id", "region", "v"]
    assert values(url) == judged(url) == {"a": 1, "d": 0}


def test_no_append_brings_back_a_column_that_a_restore_took_back(url: str) -> None:
    with Table(url) as table, Table(url) as other:
        table.append(rows("a"))
        published(table)
        instant = table.savepoint().instant
        other.append(rows("b").append_column("more", [[1]]))
        published(other)
        table.restore(instant)
        fence, _ = run(read_group_fence(), table.store, Clock())
        assert fence.schema == schema_id(avro_schema(rows("a").schema, "orders"))
        other.append(rows("c"))
    with Table(url) as new:
        assert new.read().column_names == ["id", "region", "v"]
    assert values(url) == judged(url) == {"a": 0, "c": 0}


def test_an_upsert_after_a_restore_does_not_meet_an_overwrite_that_was_taken_back(url: str) -> None:
    with Table(url) as table, Table(url) as other:
        instant = saved(table)
        table.overwrite(rows("c"))
        published(table)
        table.restore(instant)
        with Table(url) as new:
            new.upsert(rows("a", v=2))
        other.upsert(rows("b", v=2))
        table.delete(rows("b"))
    assert values(url) == judged(url) == {"a": 2}


def test_a_restored_table_goes_on_with_group_commit(url: str) -> None:
    with Table(url) as table, Table(url) as other:
        other.append(rows("other"))
        instant = saved(table)
        assert len(table.restore(instant).taken_back) == 2
        assert values(url) == judged(url) == {"a": 0, "other": 0}
        for number, each in enumerate((table, other)):
            for _ in range(2):
                try:
                    each.upsert(rows("a", v=5 + number))
                    break
                except TableError:  # what it knew was taken back
                    continue
        assert table.delete_savepoint(instant)
    assert values(url) == judged(url) == {"a": 6, "other": 0}


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_a_restore_that_ended_at_any_request_is_finished_by_the_same_call(
    tmp_path: Path, every: int
) -> None:
    for number in range(1, 200, every):
        url = f"file://{tmp_path}/{number}"
        Table.create(url, **HOW).close()
        with Table(url) as table:
            instant = saved(table)
            known = TableCache(*run(load_config(), table.store, Clock()))
            way = restore(known, StateChange(EpochGuard(0)), instant)
            if steps(way, table.store, number, Clock()):
                break
        with Table(url) as after:
            after.restore(instant)
            assert values(url) == judged(url) == {"a": 0}, number
            after.append(rows("after"))
        assert values(url) == judged(url) == {"a": 0, "after": 0}, number
    assert number > 10, "it has more requests than that"


def test_a_table_is_not_restored_under_a_writer(url: str) -> None:
    with Table(url) as one, Table(url) as other:
        instant = saved(other)
        refused: list[str] = []

        def meanwhile() -> None:
            with pytest.raises(TableBlocked, match="is pending") as caught:
                other.restore(instant)
            refused.append(str(caught.value))

        before_fence(one, meanwhile)
        one.append(rows("c"))
        assert refused
    assert values(url) == judged(url) == {"a": 1, "b": 0, "c": 0}


def test_a_paused_owner_whose_commit_was_taken_back_hears_of_the_restore(url: str) -> None:
    with Table(url) as one, Table(url) as other:
        instant = saved(other)

        def meanwhile() -> None:
            other.append(rows("d"))  # decides the offer
            published(other)
            assert len(other.restore(instant).taken_back) == 5

        paused_at_its_offer(one, meanwhile, lambda: other.append(rows("first")))
        with pytest.raises(TableChanged, match="has taken it back"):
            one.append(rows("mine"))
    assert values(url) == judged(url) == {"a": 0}


def test_table_show_says_that_the_fence_is_closed(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from lockkit.table.occ.group.client import GroupClient
    from lockkit.table.occ.group.mode import set_closed

    with Table(url) as table:
        client = GroupClient(names=names_at(url))
        run(set_closed(client, lambda: None, closed=True), table.store, Clock())
        with pytest.raises(TableError, match="restored, or its mode switched"):
            table.append(rows("a"))
    assert main(["table", "show", url]) == 0
    assert "closed: the table is restored, or its mode switched" in capsys.readouterr().out
