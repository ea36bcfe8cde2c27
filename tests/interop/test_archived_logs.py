"""Hudi on Spark reads tables whose archive lockkit wrote: empty, or with merged log files left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_world import Hudi

from lockkit.table import Table

pytestmark = [
    pytest.mark.interop, pytest.mark.timeout(900),
    pytest.mark.usefixtures("archived_at_once", "no_hudi_beside"),
]
OPTIONS = {"hoodie.clean.commits.retained": "1", "hoodie.clean.automatic": "false"}


def rows(*keys: str, v: int) -> pa.Table:
    regions = ["EU" if key < "k2" else "US" for key in keys]
    return pa.table({"id": list(keys), "region": regions, "v": pa.array([v] * len(keys))})


def shown(found: Any) -> dict[str, int]:
    listed = [(row["id"], row["v"]) for row in found]
    assert len(dict(listed)) == len(listed)
    return dict(listed)


def test_hudi_reads_a_table_of_version_6_whose_only_archive_is_an_empty_log(
    hudi: Hudi, tmp_path: Path
) -> None:
    """A restore creates it, so that no archiver that slept takes that number."""
    path = tmp_path / "orders"
    with Table.create(f"file://{path}", record_key="id", partition_by="region", mode="hudi",
                      version=6, options=OPTIONS, precombine="v") as table:  # fmt: skip
        table.upsert(rows("k0", "k3", v=0))
        saved = table.savepoint().instant
        table.upsert(rows("k0", "k4", v=1))
        table.restore(saved)
        assert [each.stat().st_size for each in path.rglob(".commits_.archive.*")] == [0]
        assert shown(hudi.read(str(path))) == {"k0": 0, "k3": 0}
        table.upsert(rows("k1", v=2))
        assert shown(hudi.read(str(path))) == {"k0": 0, "k3": 0, "k1": 2}


def test_hudi_reads_log_files_of_archived_commits_that_no_compaction_merged(
    hudi: Hudi, tmp_path: Path
) -> None:
    path = tmp_path / "orders"
    with Table.create(f"file://{path}", record_key="id", partition_by="region", mode="hudi",
                      table_type="MERGE_ON_READ", index="BUCKET", buckets=1,
                      options=OPTIONS) as table:  # fmt: skip
        table.upsert(rows("k0", "k3", v=0))
        table.compact()
        mine = table.upsert(rows("k1", v=1))
        for v in range(2, 9):
            table.upsert(rows("k4", v=v))
        table.clean()
        done = table.archive(keep_min=3, keep_max=4)
        assert mine is not None and done is not None and mine.instant in done.instants
        ours = shown(table.read().to_pylist())
        assert ours["k1"] == 1 and ours["k4"] == 8
        assert shown(hudi.read(str(path))) == ours
