"""A global index: an upsert moves a row to its new partition, and a delete finds it in any."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lockkit.errors import TableError
from lockkit.table import CommitConflict, Table, read_table
from lockkit.table.errors import RefusedOption
from lockkit.table.writer import ArrowWrite

GLOBAL = {"hoodie.index.type": "GLOBAL_SIMPLE"}
SCHEMA = pa.schema([("id", pa.string()), ("region", pa.string()), ("ts", pa.int64()),
                    ("v", pa.int64())])  # fmt: skip


def rows(*of: tuple[str, str, int, int]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, each, strict=True)) for each in of], SCHEMA
    )


def shown(table: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.read().to_pylist())


def made(folder: Path, **how: Any) -> Table:
    how = {"precombine": "ts", "buckets": 2, "options": GLOBAL, **how}
    return Table.create(f"file://{folder}/orders", record_key="id", partition_by="region", **how)


@pytest.mark.parametrize("mode", ["fenced", "hudi"])
@pytest.mark.parametrize("inserted", [True, False], ids=["in free groups", "in buckets"])
def test_a_row_moves_to_its_new_partition_in_one_commit(
    tmp_path: Path, mode: str, inserted: bool
) -> None:
    with made(tmp_path, mode=mode) as table:
        first = rows(("a", "EU", 1, 1), ("b", "EU", 1, 1), ("c", "US", 1, 1))
        (table.append if inserted else table.upsert)(first)
        assert table.upsert(rows(("a", "US", 2, 2), ("c", "US", 2, 2), ("d", "EU", 2, 2)))
        assert shown(table) == [("a", "US", 2, 2), ("b", "EU", 1, 1), ("c", "US", 2, 2),
                                ("d", "EU", 2, 2)]  # fmt: skip
        found = read_table(table.store, meta=True).to_pylist()
        assert all(row["_hoodie_partition_path"] == f"region={row['region']}" for row in found)
        assert [each.action for each in table.history()] == ["commit", "commit"]
        table.upsert(rows(("a", "EU", 3, 3)))
        assert ("a", "EU", 3, 3) in shown(table) and len(shown(table)) == 4
        hudi = pytest.importorskip("hudi", reason="hudi-rs is not installed: pip install hudi")
        theirs = pa.Table.from_batches(
            map(pa.record_batch, hudi.HudiTable(str(tmp_path / "orders")).read())
        )
        assert sorted(tuple(r.values()) for r in theirs.select(SCHEMA.names).to_pylist()) == shown(
            table
        )


def test_a_stored_row_with_a_greater_precombine_value_stays_where_it_is(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        table.upsert(rows(("a", "EU", 5, 1)))
        assert table.upsert(rows(("a", "US", 4, 2))) is None
        table.upsert(rows(("a", "US", 4, 2), ("b", "US", 1, 1)))
        assert shown(table) == [("a", "EU", 5, 1), ("b", "US", 1, 1)]
        table.upsert(rows(("a", "US", 5, 3)))  # of equals the later one wins
        assert shown(table) == [("a", "US", 5, 3), ("b", "US", 1, 1)]


def test_of_two_rows_with_one_key_the_greater_one_says_the_partition(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        table.upsert(rows(("a", "EU", 3, 1), ("a", "US", 2, 2), ("b", "EU", 1, 1)))
        assert shown(table) == [("a", "EU", 3, 1), ("b", "EU", 1, 1)]


def test_a_delete_finds_a_key_in_any_partition(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        table.append(rows(("a", "EU", 1, 1), ("b", "US", 1, 1)))
        table.upsert(rows(("c", "US", 1, 1), ("d", "EU", 1, 1)))
        table.delete(rows(("a", "US", 0, 0), ("c", "AP", 0, 0), ("d", "EU", 0, 0)))
        assert shown(table) == [("b", "US", 1, 1)]
        assert table.delete(rows(("a", "EU", 0, 0))) is None
    with Table(table.url) as other:  # without the index, in its own partition
        assert other.delete(rows(("b", "EU", 0, 0))) is None


@pytest.mark.parametrize("mode", ["fenced", "hudi"])
def test_another_commit_to_the_file_group_that_a_row_leaves_is_a_conflict(
    tmp_path: Path, mode: str
) -> None:
    with made(tmp_path, mode=mode, buckets=1) as table, Table(table.url) as other:
        table.upsert(rows(("a", "EU", 1, 1), ("b", "US", 1, 1)))
        files = ArrowWrite.files

        def overtaken(self: ArrowWrite, *args: Any) -> Any:
            found = files(self, *args)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ArrowWrite, "files", files)
                other.upsert(rows(("a", "EU", 2, 2)))
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ArrowWrite, "files", overtaken)
            with pytest.raises(CommitConflict):
                table.upsert(rows(("a", "US", 3, 3)))
        assert shown(table) == [("a", "EU", 2, 2), ("b", "US", 1, 1)]
        table.upsert(rows(("a", "US", 3, 3)))
        assert shown(table) == [("a", "US", 3, 3), ("b", "US", 1, 1)]


@pytest.mark.parametrize("seed", range(6))
def test_any_upserts_and_deletes_leave_what_a_dictionary_by_key_has(
    tmp_path: Path, seed: int
) -> None:
    dice, expected = random.Random(seed), dict[str, tuple[Any, ...]]()
    by = "ts" if seed % 2 else None
    with made(tmp_path, precombine=by, mode=dice.choice(["fenced", "hudi"])) as table:
        for turn in range(12):
            new = [(f"k{dice.randrange(12)}", dice.choice(["EU", "US", "AP"]), dice.randrange(9),
                    turn) for _ in range(dice.randrange(1, 6))]  # fmt: skip
            if dice.random() < 0.25:
                table.delete(rows(*new))
                for each in new:
                    expected.pop(each[0], None)
                continue
            table.upsert(rows(*new))
            best: dict[str, tuple[Any, ...]] = {}
            for each in new:
                if by is None or each[0] not in best or each[2] >= best[each[0]][2]:
                    best[each[0]] = each
            for key, each in best.items():
                if by is None or key not in expected or each[2] >= expected[key][2]:
                    expected[key] = each
            assert shown(table) == sorted(expected.values()), turn


def test_what_a_global_index_cannot_do_is_refused_by_name(tmp_path: Path) -> None:
    new = rows(("a", "EU", 1, 1))
    stays = {"hoodie.index.type": "GLOBAL_BLOOM",
             "hoodie.bloom.index.update.partition.path": "false"}  # fmt: skip
    with made(tmp_path, options=stays) as table:
        with pytest.raises(RefusedOption, match=r"bloom\.index\.update\.partition\.path=false"):
            table.upsert(new)
        assert not table.history()
    with Table(table.url, options=stays | {"hoodie.index.type": "BLOOM"}) as table:
        assert table.upsert(new), "it has no effect on another index, as in Hudi"
    hashed = {"index": "BUCKET", "mode": "hudi", "options": None}
    for how, why in (({"table_type": "MERGE_ON_READ"}, "is merge-on-read"),
                     (hashed, "Hudi's buckets")):  # fmt: skip
        with made(tmp_path / why, **how) as table, Table(table.url, options=GLOBAL) as other:
            for write in (other.upsert, other.delete):
                with pytest.raises(TableError, match=why):
                    write(new)
            assert not other.store.list(".hoodie/timeline/2")


def test_a_table_without_partitions_needs_no_global_index(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/orders"
    with Table.create(url, record_key="id", table_type="MERGE_ON_READ", precombine="ts") as table:
        with Table(url, options=GLOBAL) as other:
            assert other.upsert(rows(("a", "EU", 1, 1)))
        assert shown(table) == [("a", "EU", 1, 1)]
