"""Apache Hudi on Spark reads merge-on-read tables of lockkit, also beside a compaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_world import Hudi

from lockkit.table import Table, read_table
from lockkit.table.read.reader import read_increment

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
SCHEMA = pa.schema([("id", pa.string()), ("region", pa.string()),
                    ("at", pa.int64()), ("amount", pa.int64())])  # fmt: skip
PARQUET = {"hoodie.logfile.data.block.format": "parquet"}
QUERY = "hoodie.datasource.query.type"
COLUMNS = ("_hoodie_commit_time", "_hoodie_record_key", *SCHEMA.names)


def rows(*listed: tuple[str, int, int]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"id": key, "region": "EU" if key < "c" else "US", "at": at, "amount": amount}
         for key, at, amount in listed], SCHEMA,
    )  # fmt: skip


def in_order(found: Any) -> list[dict[str, Any]]:
    return sorted(({name: row.get(name) for name in COLUMNS} for row in found),
                  key=lambda row: row["id"])  # fmt: skip


def both_show(hudi: Hudi, table: Table, folder: Path) -> list[dict[str, Any]]:
    """Hudi and lockkit show the same, of every kind of query; the snapshot's rows."""
    def theirs(**options: str) -> list[dict[str, Any]]:
        return in_order(hudi("read", path=str(folder), options=options, select=list(COLUMNS)))

    ours = in_order(read_table(table.store, meta=True).to_pylist())
    assert theirs() == ours
    base = read_table(table.store, meta=True, query="read_optimized").to_pylist()
    assert theirs(**{QUERY: "read_optimized"}) == in_order(base)
    history = table.history()
    for each in history:
        then = in_order(read_table(table.store, meta=True, as_of=each.instant).to_pylist())
        assert theirs(**{"as.of.instant": each.instant}) == then, each
    begin = sorted(each.completed for each in history)[len(history) // 2]
    window = {QUERY: "incremental", "hoodie.datasource.read.begin.instanttime": begin}
    changed, _ = read_increment(table.store, begin, meta=True)
    assert theirs(**window) == in_order(changed.to_pylist())
    return [{name: row[name] for name in SCHEMA.names} for row in ours]


def written(url: str, **how: Any) -> Iterator[Table]:
    """After each write: of base files, of upserts and of deletes."""
    with Table.create(
        url, record_key="id", partition_by="region", table_type="MERGE_ON_READ", buckets=1, **how
    ) as table:
        table.upsert(rows(("a", 1, 1), ("b", 1, 1), ("c", 1, 1), ("d", 1, 1)))
        yield table
        table.upsert(rows(("a", 2, 2), ("c", 2, 2), ("e", 1, 1)))
        table.delete(rows(("b", 2, 0)))
        yield table


@pytest.mark.parametrize("how", [
    {"precombine": "at"}, {}, {"precombine": "at", "options": PARQUET},
], ids=["by event", "by commit", "Parquet blocks"])  # fmt: skip
def test_hudi_reads_a_table_that_is_compacted_beside_its_writers(
    hudi: Hudi, tmp_path: Path, how: dict[str, Any]
) -> None:
    folder, during = tmp_path / "orders", []
    url = f"file://{folder}"

    def meanwhile(kind: str, **fields: Any) -> None:
        if kind == "note" and fields["text"].startswith("compacting"):
            with Table(url) as other:
                during.append(both_show(hudi, other, folder))
                other.upsert(rows(("d", 3, 3)))  # behind the pending plan
                during.append(both_show(hudi, other, folder))

    for table in written(url, **how):
        before = both_show(hudi, table, folder)
    with Table(url, emit=meanwhile) as slow:
        assert slow.compact() is not None
    expected = [{"id": "a", "region": "EU", "at": 2, "amount": 2},
                {"id": "c", "region": "US", "at": 2, "amount": 2},
                {"id": "d", "region": "US", "at": 3, "amount": 3},
                {"id": "e", "region": "US", "at": 1, "amount": 1}]  # fmt: skip
    keep_one = {"hoodie.clean.commits.retained": "1", "hoodie.clean.automatic": "false"}
    with Table(url, options=keep_one) as table:
        assert before == during[0] and both_show(hudi, table, folder) == expected == during[1]
        table.upsert(rows(("f", 1, 1)))
        table.delete(rows(("a", 9, 0)))
        table.compact()
        assert [row["id"] for row in both_show(hudi, table, folder)] == ["c", "d", "e", "f"]
        table.overwrite(rows(("a", 1, 7)))
        assert both_show(hudi, table, folder) and table.upsert(rows(("b", 1, 7)))
        assert table.clean() and hudi("read", path=str(folder), select=["id"])
        ours = in_order(read_table(table.store, meta=True).to_pylist())
        assert in_order(hudi("read", path=str(folder), select=list(COLUMNS))) == ours
