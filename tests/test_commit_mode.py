"""How a table that Spark makes commits, and what a write says of a lock that no commit takes."""

from __future__ import annotations

import warnings
from pathlib import Path

import pyarrow as pa
import pytest

from lockkit import Lock
from lockkit.table import Table
from lockkit.table.errors import RefusedOption
from lockkit.table.format.properties import GROUP, SERIAL
from lockkit.table.options import new_config, refuse_another, write_options
from lockkit.table.services.upkeep import NoLockTaken

MODE = "lockkit.commit.mode"
LOCKED = {"hoodie.write.lock.storage.validity.timeout.secs": "300"}
ROWS = pa.table({"id": ["a"], "v": [1]})


@pytest.mark.parametrize(("mode", "commit"), [
    ("group", GROUP), ("fenced", SERIAL), ("hudi", SERIAL), ("", SERIAL),
])  # fmt: skip
def test_an_option_says_how_a_table_that_spark_makes_commits(mode: str, commit: str) -> None:
    options = {MODE: mode} if mode else {}
    config = new_config(write_options(options, record_key="id"), "s3://b/t")
    assert (config.commit, config.mode) == (commit, "hudi" if mode == "hudi" else "fenced")


def test_a_merge_on_read_table_with_group_commit_is_refused() -> None:
    wanted = write_options({MODE: "group"}, record_key="id", table_type="MERGE_ON_READ")
    with pytest.raises(RefusedOption, match="group commit needs the mode fenced and COPY_ON_WRITE"):
        new_config(wanted, "s3://b/t")


def test_a_write_may_not_name_another_way_than_the_tables() -> None:
    config = new_config(write_options({MODE: "group"}, record_key="id"), "s3://b/t")
    refuse_another(write_options({}), config)
    refuse_another(write_options({MODE: "group"}), config)
    for other in ({"mode": "fenced"}, {"options": {MODE: "fenced"}}):
        with pytest.raises(RefusedOption, match="'group'"):
            refuse_another(write_options(**{"options": {}} | other), config)


def test_a_lock_that_no_commit_takes_is_warned_of_once(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/t"
    Table.create(url, record_key="id", commit="group").close()
    with Table(url, options=LOCKED) as table, Lock(url), warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        table.append(ROWS)
        table.upsert(ROWS)
    (only,) = [each.message for each in w if isinstance(each.message, NoLockTaken)]
    assert "secs describes a lock, and commits of table 't' take none" in str(only)
