"""Partial updates: an upsert's rows keep what is stored in the columns that they do not have."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lockkit.errors import TableError
from lockkit.table import CommitConflict, Table
from lockkit.table.errors import RefusedOption
from lockkit.table.format.log_blocks import PARTIAL, blocks
from lockkit.table.format.log_blocks import SCHEMA as DESCRIBED

SCHEMA = pa.schema([("id", pa.string()), ("region", pa.string()), ("ts", pa.int64()),
                    ("v", pa.int64()), ("w", pa.string())])  # fmt: skip
BLOCKS = {"hoodie.logfile.data.block.format": "parquet"}
KINDS: dict[str, dict[str, Any]] = {
    "copy-on-write": {}, "copy-on-write of Hudi's": {"mode": "hudi"},
    "merge-on-read": {"table_type": "MERGE_ON_READ"},
    "Parquet blocks": {"table_type": "MERGE_ON_READ", "options": BLOCKS},
    "Hudi's buckets": {"table_type": "MERGE_ON_READ", "index": "BUCKET"},
}  # fmt: skip


def made(folder: Path, **how: Any) -> Table:
    how = {"precombine": "ts", "buckets": 2, **how}
    return Table.create(f"file://{folder}/orders", record_key="id", partition_by="region", **how)


def rows(listed: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(listed, pa.schema([SCHEMA.field(name) for name in listed[0]]))


def order(key: int, ts: int, **values: Any) -> dict[str, Any]:
    return {"id": f"k{key}", "region": "EU" if key % 2 else "US", "ts": ts, **values}


def shown(table: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in SCHEMA.names) for row in table.read().to_pylist())


def by_hudi_rs(table: Table) -> list[tuple[Any, ...]]:
    hudi = pytest.importorskip("hudi", reason="hudi-rs is not installed: pip install hudi")
    batches = hudi.HudiTable(table.url.removeprefix("file://")).read()
    found = pa.Table.from_batches(map(pa.record_batch, batches)).to_pylist()
    return sorted(tuple(row[name] for name in SCHEMA.names) for row in found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["ts", None])
def test_partial_rows_leave_what_a_dictionary_of_values_has(
    tmp_path: Path, kind: str, by: str | None
) -> None:
    dice, logged = random.Random(f"{kind} {by}"), "table_type" in KINDS[kind]
    expected: dict[str, dict[str, Any]] = {}
    with made(tmp_path, precombine=by, **KINDS[kind]) as table:
        whole = [order(key, 1, v=0, w="first") for key in range(8)]
        table.upsert(rows(whole))
        expected = {row["id"]: row for row in whole}
        for turn in range(2, 12):
            columns = dice.choice([["v"], ["w"], ["w"], ["v", "w"], []])
            # A late one has no effect on a whole row; of log files the next test says it.
            late = 0 if not logged else turn
            new = [order(key, dice.choice([late, turn]), **{
                name: turn if name == "v" else f"w{turn}" for name in columns
            }) for key in dice.sample(range(10), 4)]  # fmt: skip
            if logged and dice.random() < 0.2:
                table.compact()
            table.upsert(rows(new), partial=True)
            for row in new:
                old = expected.get(row["id"], {"ts": -1, "v": None, "w": None})
                if by is None or old["ts"] <= row["ts"]:
                    expected[row["id"]] = {**old, **row}
            wanted = sorted(tuple(row[name] for name in SCHEMA.names) for row in expected.values())
            assert shown(table) == wanted == by_hudi_rs(table), (turn, columns)


def test_partial_rows_are_logged_without_the_columns_that_they_do_not_have(tmp_path: Path) -> None:
    with made(tmp_path, table_type="MERGE_ON_READ") as table:
        table.upsert(rows([order(1, 1, v=1, w="a")]))
        table.upsert(rows([order(1, 2, v=2)]), partial=True)
        table.upsert(rows([order(1, 3, v=3, w="b")]), partial=True)
        found = [block for each in sorted((tmp_path / "orders").rglob(".*.log.*"))
                 for block in blocks(each.name, each.read_bytes())]  # fmt: skip
        assert [block.header.get(PARTIAL) for block in found] == ["true", None]
        assert '"w"' not in found[0].header[DESCRIBED] and '"w"' in found[1].header[DESCRIBED]


def test_a_late_partial_row_gives_a_partial_row_in_a_log_file_what_that_one_lacks(
    tmp_path: Path,
) -> None:
    """As in Hudi, which merges log files among themselves first."""
    with made(tmp_path, table_type="MERGE_ON_READ") as table:
        table.upsert(rows([order(1, 2, v=0, w="a")]))
        table.upsert(rows([order(1, 1, v=9)]), partial=True)
        assert shown(table) == [("k1", "EU", 2, 0, "a")]
        table.upsert(rows([order(1, 3, w="b")]), partial=True)
        assert shown(table) == [("k1", "EU", 3, 9, "b")]


def test_without_partial_the_columns_that_rows_do_not_have_become_null(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        table.upsert(rows([order(1, 1, v=1, w="a")]))
        table.upsert(rows([order(1, 2, v=2)]))
        assert shown(table) == [("k1", "EU", 2, 2, None)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_partial_upsert_that_is_retried_keeps_what_the_faster_writer_wrote(
    tmp_path: Path, kind: str
) -> None:
    done: list[str] = []

    def meanwhile(event: str, /, **fields: Any) -> None:
        if event == "note" and fields["text"].startswith("wrote") and not done:
            done.append("")
            table.upsert(rows([order(1, 2, v=2)]), partial=True)

    with made(tmp_path, **KINDS[kind]) as table, Table(table.url, emit=meanwhile) as slow:
        table.upsert(rows([order(1, 1, v=1, w="a")]))
        with pytest.raises(CommitConflict):
            slow.upsert(rows([order(1, 3, w="b")]), partial=True)
        assert shown(table) == [("k1", "EU", 2, 2, "a")]
        done.clear()
        slow.upsert(rows([order(1, 3, w="b")]), partial=True, retries=1)
        assert done and shown(table) == [("k1", "EU", 3, 2, "b")]


def test_what_cannot_be_partial_is_refused_by_name(tmp_path: Path) -> None:
    partial = {"lockkit.partial.update": "true"}
    with made(tmp_path) as table, Table(table.url, options=partial) as other:
        table.upsert(rows([order(1, 1, v=1, w="a")]))
        other.upsert(rows([order(1, 2, v=2)]))
        assert shown(table) == [("k1", "EU", 2, 2, "a")]
        for write in (other.delete, other.overwrite):
            with pytest.raises(RefusedOption, match=r"lockkit\.partial\.update.*is for upserts"):
                write(rows([order(1, 3, v=3)]))
        with Table(table.url, options={"hoodie.index.type": "GLOBAL_SIMPLE"}) as moving:
            with pytest.raises(RefusedOption, match="rows that stay in their partition"):
                moving.upsert(rows([order(1, 3, v=3)]), partial=True)
        with pytest.raises(TableError, match="precombine field"):
            table.upsert(rows([order(1, 3, v=3)]).drop_columns(["ts"]), partial=True)
