"""How a new table commits, and what a write says of a lock that no commit takes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lockkit import Lock
from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.runtime import run
from lockkit.stores import open_store
from lockkit.stores.local import LocalStore
from lockkit.table import Table
from lockkit.table.errors import RefusedOption
from lockkit.table.format.properties import GROUP, HUDI, PROPERTIES_KEY, SERIAL, load_config
from lockkit.table.occ.conflict import BUCKET, PREFER_WRITER
from lockkit.table.occ.fence import FENCE_KEY
from lockkit.table.options import new_config, refuse_another, write_options
from lockkit.table.services.upkeep import NoLockTaken

LOCKED = {"hoodie.write.lock.provider":
          "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider"}  # fmt: skip
STRATEGY = {"hoodie.write.lock.conflict.resolution.strategy":
            "org.apache.hudi.client.transaction."
            "SimpleConcurrentFileWritesConflictResolutionStrategy"}  # fmt: skip
ROWS = pa.table({"id": ["a"], "v": [1]})


def commit_of(url: str) -> str:
    return run(load_config(), open_store(url), Clock())[0].commit


@pytest.mark.parametrize(("how", "commit"), [
    ({}, GROUP), ({"version": 6}, GROUP), ({"index": "BUCKET"}, GROUP), ({"commit": GROUP}, GROUP),
    ({"options": {"hoodie.clean.automatic": "false"}}, GROUP),
    ({"commit": SERIAL}, SERIAL), ({"mode": "fenced"}, SERIAL), ({"mode": "hudi"}, SERIAL),
    ({"table_type": "MERGE_ON_READ"}, SERIAL), ({"options": LOCKED}, SERIAL),
    ({"options": STRATEGY}, SERIAL), ({"strategy": BUCKET}, SERIAL),
    ({"options": {"lockkit.commit.mode": "fenced"}}, SERIAL),
    ({"options": {"lockkit.commit.mode": "hudi"}}, SERIAL),
    ({"options": LOCKED | {"lockkit.commit.mode": "group"}}, GROUP),
    ({"lock": {"ttl_s": 9}}, SERIAL),
])  # fmt: skip
def test_a_new_table_has_group_commit_unless_something_speaks_for_turns(
    tmp_path: Path, how: dict[str, Any], commit: str
) -> None:
    url = f"file://{tmp_path}/t"
    Table.create(url, record_key="id", **how).close()
    assert commit_of(url) == commit


@pytest.mark.parametrize("there", [GROUP, SERIAL])
def test_a_table_that_is_there_keeps_what_it_has(tmp_path: Path, there: str) -> None:
    url = f"file://{tmp_path}/t"
    Table.create(url, record_key="id", commit=there).close()
    with Table.create(url, record_key="id") as table:
        table.append(ROWS)
    assert commit_of(url) == there
    other = SERIAL if there == GROUP else GROUP
    with pytest.raises(RefusedOption, match=f"commit='{other}' is refused: a different table"):
        Table.create(url, record_key="id", commit=other)


@pytest.mark.parametrize(("options", "commit"), [
    ({}, GROUP), (LOCKED, SERIAL), (STRATEGY, SERIAL), ({"lockkit.commit.mode": "group"}, GROUP),
    ({"lockkit.commit.mode": "fenced"}, SERIAL), ({"lockkit.commit.mode": "hudi"}, SERIAL),
    ({"hoodie.table.type": "MERGE_ON_READ"}, SERIAL),
])  # fmt: skip
def test_spark_and_the_streamer_choose_by_the_same_rule(
    options: dict[str, str], commit: str
) -> None:
    wanted = write_options({"hoodie.table.recordkey.fields": "id", **options})
    config = new_config(wanted, "s3://b/t")
    assert config.commit == commit


def test_a_merge_on_read_table_with_group_commit_is_refused() -> None:
    options = {"lockkit.commit.mode": "group", "hoodie.table.type": "MERGE_ON_READ"}
    wanted = write_options(options, record_key="id")
    with pytest.raises(RefusedOption, match="group commit needs the mode fenced and COPY_ON_WRITE"):
        new_config(wanted, "s3://b/t")


def test_a_write_may_not_name_another_way_than_the_tables() -> None:
    config = new_config(write_options({}, record_key="id"), "s3://b/t")
    refuse_another(write_options({}, mode="group"), config)
    with pytest.raises(RefusedOption, match="mode is 'group' in the table and 'fenced' in this"):
        refuse_another(write_options({}, mode="fenced"), config)


def test_a_lock_that_no_commit_takes_is_warned_of_once(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/t"
    Table.create(url, record_key="id").close()
    with Table(url, options=LOCKED) as table, Lock(url), warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        table.append(ROWS)
        table.upsert(ROWS)
    (only,) = [each.message for each in w if isinstance(each.message, NoLockTaken)]
    assert "provider describes a lock, and commits of table 't' take none" in str(only)


@pytest.mark.parametrize("write", ["append", "upsert"])
def test_a_strategy_in_a_handles_options_is_obeyed_or_refused(tmp_path: Path, write: str) -> None:
    """It was passed over; `cluster` refused it already."""
    url, gives_way = f"file://{tmp_path}/t", dict.fromkeys(STRATEGY, PREFER_WRITER.hudi)
    for commit in (GROUP, SERIAL):
        Table.create(f"{url}-{commit}", record_key="id", commit=commit).close()
    with Table(f"{url}-{SERIAL}", options=gives_way) as table:
        getattr(table, write)(ROWS)
    with Table(f"{url}-{GROUP}", options=gives_way) as table:
        with pytest.raises(TableError, match="leave out the strategy"):
            getattr(table, write)(ROWS)
        assert not table.read().num_rows


@pytest.mark.parametrize("given", [{"ttl_s": 30.0}, None])
def test_a_lock_that_is_an_argument_and_no_commit_takes_is_warned_of(
    tmp_path: Path, given: dict[str, float] | None
) -> None:
    url = f"file://{tmp_path}/t"
    Table.create(url, record_key="id").close()
    with Lock(url) as lock, pytest.warns(NoLockTaken, match="lock= describes a lock"):
        with Table(url, lock=given or lock) as table:
            table.append(ROWS)


@pytest.mark.parametrize(("first", "then", "found"), [
    ({}, {"options": STRATEGY}, GROUP), ({"commit": SERIAL}, {}, SERIAL),
    ({}, {"commit": SERIAL}, "for group commit in table version 9"),
    ({"commit": SERIAL}, {"commit": GROUP}, "for serial commits"),
    ({"version": 6}, {}, "for group commit in table version 6"),
    ({}, {"table_type": "MERGE_ON_READ"}, "for group commit in table version 9"),
    ({}, {"mode": HUDI}, "for group commit"), ({"commit": SERIAL}, {"mode": HUDI}, "for serial"),
])  # fmt: skip
def test_a_table_whose_maker_died_after_its_fence_is_made_in_that_way_or_refused(
    tmp_path: Path, first: dict[str, Any], then: dict[str, Any], found: str
) -> None:
    """Or whose maker is a moment ahead: of the two, one may name a lock and the other not."""
    url = f"file://{tmp_path}/t"
    Table.create(url, record_key="id", **first).close()
    (tmp_path / "t" / PROPERTIES_KEY).unlink()
    if found not in (GROUP, SERIAL):
        with pytest.raises(TableError, match=found):
            Table.create(url, record_key="id", **then)
        return
    with Table.create(url, record_key="id", **then) as table:
        table.append(ROWS)
        assert table.read().num_rows == ROWS.num_rows
    assert commit_of(url) == found


@pytest.mark.parametrize("commit", [GROUP, SERIAL])
def test_a_maker_whose_table_another_one_has_made_in_the_mode_hudi_leaves_it_no_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str
) -> None:
    """Nobody could write it: the fence of a table in that mode is closed, or there is none."""
    url, made = f"file://{tmp_path}/t", LocalStore.put

    def put(store: LocalStore, key: str, *args: Any) -> Any:
        if key == FENCE_KEY:
            monkeypatch.undo()
            Table.create(url, record_key="id", mode=HUDI).close()
        return made(store, key, *args)

    monkeypatch.setattr(LocalStore, "put", put)
    with pytest.raises(RefusedOption, match="a different table is there, with mode='hudi'"):
        Table.create(url, record_key="id", commit=commit)
    assert not (tmp_path / "t" / FENCE_KEY).exists()
    with Table(url) as table:
        table.append(ROWS)
        assert table.read().num_rows == 1


@pytest.mark.parametrize("mode", ["bogus", "serial", 5])
def test_a_mode_that_is_not_known_is_refused(mode: Any) -> None:
    wanted = write_options({}, record_key="id", mode=mode)
    with pytest.raises(RefusedOption, match=f"mode={mode} must be group, fenced or hudi"):
        new_config(wanted, "s3://b/t")


def test_a_mode_may_be_written_in_any_case_of_letters() -> None:
    for wanted in (
        write_options({}, record_key="id", mode="GROUP"),
        write_options({"lockkit.commit.mode": "GROUP"}, record_key="id"),
    ):
        config = new_config(wanted, "s3://b/t")
        assert config.commit == GROUP
        refuse_another(wanted, config)
