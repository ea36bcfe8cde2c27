"""A write or a service that takes long says how far it has come."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lockkit.runtime import progress
from lockkit.table import Table, handle
from lockkit.table.format import base_file

REGIONS = ("EU", "US", "AS")
ROWS = pa.table({"id": ["a", "b", "c"], "region": REGIONS, "v": [1, 1, 1]})
KEEP_ONE = {"hoodie.clean.automatic": "false", "hoodie.clean.commits.retained": "1"}
DEAD = "20250101000000000"
Said = list[str]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY_MS", 0)
    for each in (progress, handle):
        monkeypatch.setattr(each, "FEW", 1)


def made(folder: Path, said: Said, options: dict[str, str] = KEEP_ONE, **how: Any) -> Table:
    def sees(_: str, **fields: Any) -> None:
        said.append(fields.get("text", ""))

    return Table.create(
        f"file://{folder}/t", record_key="id", partition_by="region", emit=sees,
        options=options, **{"commit": "serial", "buckets": 1} | how,
    )  # fmt: skip


def of(did: str, total: int, what: str = "file groups") -> Said:
    return [f"{did} {n} of {total} {what}" for n in range(1, total)]


def counted(said: Said) -> Said:
    return [each for each in said if " of " in each and each.split()[1].isdecimal()]


@pytest.mark.parametrize("every_ms", [0, 5_000])
def test_a_compaction_says_now_and_then_how_many_file_groups_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_ms: int
) -> None:
    said: Said = []
    with made(tmp_path, said, {}, table_type="MERGE_ON_READ") as table:
        for _ in range(2):
            table.upsert(ROWS)
        said.clear()
        monkeypatch.setattr(progress, "EVERY_MS", every_ms)
        table.compact()
    assert counted(said) == ([] if every_ms else of("compacted", 3))


WRITES: dict[str, tuple[Callable[[Table], object], Said]] = {
    "upsert": (lambda table: table.upsert(ROWS), of("merged", 3)),
    "delete": (lambda table: table.delete(ROWS), of("merged", 3)),
    "overwrite": (lambda table: table.overwrite(ROWS), of("wrote", 3, "partitions")),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_a_write_says_how_many_file_groups_are_done(
    tmp_path: Path, write: str, table_type: str
) -> None:
    said: Said = []
    way, expected = WRITES[write]
    with made(tmp_path, said, table_type=table_type) as table:
        table.upsert(ROWS)
        said.clear()
        way(table)
    if (write, table_type) == ("overwrite", "MERGE_ON_READ"):  # into its buckets
        expected = of("merged", 3)
    assert counted(said) == expected


@pytest.mark.parametrize("of_one", [False, True])
def test_an_append_says_how_many_rows_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_one: bool
) -> None:
    """Also of one partition, whose file is one row group for each row here."""
    said: Said = []
    if of_one:
        monkeypatch.setattr(base_file, "ROW_GROUP_ROWS_MAX", 1)
        monkeypatch.setattr(handle, "MANY", 1)
    rows = ROWS.set_column(1, "region", pa.array(["EU"] * 3)) if of_one else ROWS
    with made(tmp_path, said) as table:
        table.append(rows)
        assert table.read().num_rows == 3
    assert counted(said) == of("wrote", 3, "rows")


def test_an_upsert_counts_the_file_groups_that_lack_its_keys(tmp_path: Path) -> None:
    said: Said = []
    rows = ROWS.slice(0, 1)
    with made(tmp_path, said) as table:
        for key in ("d", "e", "f"):
            table.append(rows.set_column(0, "id", pa.array([key])))
        said.clear()
        table.upsert(rows)
    assert counted(said) == of("merged", 4)


LAYOUTS = {"free": of("rewrote", 3), "bucketed": of("wrote", 3, "buckets")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_clustering_says_how_many_of_its_inputs_or_buckets_are_done(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: Said = []
    monkeypatch.setattr("lockkit.table.services.rewrite.BUCKETS_AT_ONCE", 1)
    options = KEEP_ONE | {"lockkit.clustering.layout": layout}
    rows = ROWS.set_column(1, "region", pa.array(["EU"] * 3))
    with made(tmp_path, said, options, buckets=3) as table:
        for _ in range(3):
            table.append(rows)
        said.clear()
        table.cluster()
    assert counted(said) == LAYOUTS[layout]


def test_a_clean_says_how_many_files_are_deleted(tmp_path: Path) -> None:
    said: Said = []
    with made(tmp_path, said) as table:
        for _ in range(5):
            table.upsert(ROWS)
        said.clear()
        (cleaned,) = table.clean()
    assert len(cleaned.deleted) == 9
    assert counted(said) == ["deleted 8 of 9 files"]  # eight at one time


def test_an_archiving_says_how_many_files_of_instants_are_deleted(tmp_path: Path) -> None:
    said: Said = []
    with made(tmp_path, said) as table:
        for _ in range(6):
            table.append(ROWS)
        for each in (tmp_path / "t" / ".hoodie" / "timeline").glob("*"):
            os.utime(each, (0, 0))
        said.clear()
        archived = table.archive(keep_min=2, keep_max=3)
    assert archived is not None and len(archived.instants) == 4
    assert counted(said) == [f"deleted {n} of 12 files of archived instants" for n in range(8, 12)]


def test_a_restore_says_how_many_files_are_deleted(tmp_path: Path) -> None:
    said: Said = []
    with made(tmp_path, said) as table:
        table.upsert(ROWS)
        saved = table.savepoint().instant
        for _ in range(2):
            table.upsert(ROWS)
        said.clear()
        table.restore(saved)
    assert counted(said) == ["deleted 3 of 6 files"]  # the newest commit's


def test_a_restore_of_version_6_says_how_many_files_are_taken_back(tmp_path: Path) -> None:
    """Three base files of the compaction are deleted, and three log files get a command."""
    said: Said = []
    how = {"version": 6, "mode": "hudi", "table_type": "MERGE_ON_READ", "index": "BUCKET"}
    with made(tmp_path, said, **how) as table:
        table.upsert(ROWS)
        saved = table.savepoint().instant
        table.upsert(ROWS)
        assert table.compact()
        said.clear()
        table.restore(saved)
    assert "took back 3 of 6 files" in said


@pytest.mark.parametrize("commit", ["serial", "group"])
def test_a_rollback_says_how_many_files_are_deleted(tmp_path: Path, commit: str) -> None:
    said: Said = []
    with made(tmp_path, said, commit=commit) as table:
        table.upsert(ROWS)
        said.clear()
        requested = tmp_path / "t" / ".hoodie" / "timeline" / f"{DEAD}.commit.requested"
        requested.write_bytes(b"")
        os.utime(requested, (0, 0))
        for number in range(9):
            name = f"0000000{number}-0000-0000-0000-000000000000-0_0-0-0_{DEAD}.parquet"
            (tmp_path / "t" / name).write_bytes(b"")
        table.roll_back_dead()
    assert counted(said) == ["deleted 8 of 9 files"]


def test_progress_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lockkit")
    with made(tmp_path, []) as table:
        table.upsert(ROWS)
    assert any("merged 2 of 3 file groups" in each for each in caplog.messages)
