"""Savepoints and restores of lockkit and of Apache Hudi: each knows the other's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_world import Hudi
from test_archive import BUCKETS, OPTIONS, in_order, rows

from lockkit.table import Table, read_table

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
SPARK = "id string, region string, at long"


@pytest.mark.parametrize(
    ("version", "kind"),
    [(9, "COPY_ON_WRITE"), (6, "COPY_ON_WRITE"), (9, "MERGE_ON_READ"), (6, "MERGE_ON_READ")],
)
def test_each_restores_to_the_others_savepoint_and_reads_and_writes_on(
    hudi: Hudi, tmp_path: Path, version: int, kind: str
) -> None:
    path, url, merged = str(tmp_path / "orders"), f"file://{tmp_path}/orders", "MERGE" in kind
    options = {**OPTIONS, "hoodie.write.table.version": str(version),
               "hoodie.datasource.write.table.type": kind,
               **(BUCKETS if merged else {})}  # fmt: skip

    def by_hudi(at: int, *keys: str) -> None:
        made: Any = rows(*keys, at=at).to_pylist()
        hudi.write(path, made, schema=SPARK, mode="append", options=options)

    def call(procedure: str, **given: str) -> list[dict[str, Any]]:
        said = ", ".join(f"{name} => '{value}'" for name, value in {"path": path, **given}.items())
        return list(hudi("sql", text=f"call {procedure}({said})"))

    with Table.create(
        url, record_key="id", partition_by="region", precombine="at", version=version,
        mode="hudi", name="orders", table_type=kind, index="BUCKET" if merged else "",
    ) as table:  # fmt: skip

        def both_show() -> pa.Table:
            ours = in_order(read_table(table.store, meta=True).to_pylist())
            assert in_order(hudi.read(path)) == ours
            return ours

        table.upsert(rows("k1", "k2", "k4", at=1))
        by_hudi(2, "k2", "k5")
        mine = table.savepoint(comment="ours").instant
        saved = both_show()
        if version == 9:  # Hudi's procedures upgrade a table of version 6
            assert [row["savepoint_time"] for row in call("show_savepoints")] == [mine]
        by_hudi(3, "k1", "n3")
        table.delete(rows("k4", at=4))
        assert both_show() != saved
        assert len(table.restore(mine).taken_back) == 2
        assert both_show() == saved
        by_hudi(5, "k1", "n5")
        table.upsert(rows("k2", "n6", at=6))
        later = both_show()
        if version == 6:  # Hudi's procedures would upgrade it
            return
        theirs = table.history()[0].instant
        assert table.delete_savepoint(mine)
        call("create_savepoint", commit_time=theirs)
        table.upsert(rows("k1", at=7))
        by_hudi(8, "n8")
        assert table.restore(theirs).taken_back
        assert both_show() == later
        assert table.delete_savepoint(theirs) and not call("show_savepoints")
        ours = table.savepoint().instant
        table.upsert(rows("k1", at=9))
        call("rollback_to_savepoint", instant_time=ours)
        assert both_show() == later
        table.upsert(rows("k1", at=10))
        both_show()


@pytest.mark.parametrize("version", [9, 6])
def test_hudi_reads_a_fenced_table_in_which_names_of_commits_were_kept(
    hudi: Hudi, tmp_path: Path, version: int
) -> None:
    """Empty commits stay in the place of an overwrite and an append that a restore took back."""
    path, url = str(tmp_path / "orders"), f"file://{tmp_path}/orders"
    with Table.create(
        url, record_key="id", partition_by="region", precombine="at", version=version,
        name="orders",
    ) as table:  # fmt: skip
        table.upsert(rows("k1", "k2", "k4", at=1))
        mine = table.savepoint().instant
        saved = in_order(read_table(table.store, meta=True).to_pylist())
        table.overwrite(rows("k1", at=2))
        table.append(rows("n3", at=3))
        assert len(table.restore(mine).taken_back) == 2
        assert in_order(hudi.read(path)) == saved
        table.upsert(rows("k2", "n5", at=5))
        assert in_order(hudi.read(path)) == in_order(read_table(table.store, meta=True).to_pylist())


@pytest.mark.parametrize(("version", "key"), [(9, "id"), (9, "id,at"), (6, "id")])
def test_hudis_procedures_save_and_compact_a_table_of_lockkits_with_buckets(
    hudi: Hudi, tmp_path: Path, version: int, key: str
) -> None:
    """Their client takes its options from the table alone."""
    path, url = str(tmp_path / "orders"), f"file://{tmp_path}/orders"
    with Table.create(
        url, record_key=key.split(","), partition_by="region", precombine="at", mode="hudi",
        table_type="MERGE_ON_READ", index="BUCKET", buckets=2, version=version, name="orders",
    ) as table:  # fmt: skip

        def shown() -> pa.Table:
            ours = in_order(read_table(table.store, meta=True).to_pylist())
            assert in_order(hudi.read(path)) == ours
            return ours

        for at in (1, 2):
            table.upsert(rows("k1", "k2", "n3", at=at))
        saved, before = table.history()[0].instant, shown()
        settings = {"hoodie.metadata.enable": "false", "hoodie.write.auto.upgrade": "false",
                    "hoodie.write.table.version": str(version),
                    "hoodie.compact.inline.max.delta.commits": "1"}  # fmt: skip
        try:
            for option, value in settings.items():
                hudi("sql", text=f"set {option}={value}")
            hudi("sql", text=f"call create_savepoint(path => '{path}', commit_time => '{saved}')")
            assert table.delete_savepoint(saved)
            for op in ("schedule", "run"):
                hudi("sql", text=f"call run_compaction(op => '{op}', path => '{path}')")
            assert table.history()[0].action == "commit"
            assert shown() == before
            table.upsert(rows("k1", "n4", at=3))
            shown()
            if key == "id":  # a writer that names neither key nor index
                hudi("sql", text=f"create table orders{version} using hudi location '{path}'")
                hudi("sql", text=f"update orders{version} set at = 9 where id = 'n4'")
                assert {row["id"]: row["at"] for row in shown()}["n4"] == 9
        finally:
            for option in settings:
                hudi("sql", text=f"reset {option}")
        groups = {(each.partition, each.file_id[:8]) for each in table.refresh().slices}
        assert len(groups) == len(table.refresh().slices), "one file group for each bucket"
