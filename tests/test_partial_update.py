"""Partial updates: an upsert's rows keep what is stored in the columns that they do not have."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_rs import read_by_hudi_rs
from suite_plugin import rest_in_soak

from lockkit.errors import TableError
from lockkit.table import CommitConflict, Table
from lockkit.table.errors import RefusedOption
from lockkit.table.format.log_blocks import PARTIAL, blocks
from lockkit.table.format.log_blocks import SCHEMA as DESCRIBED

pytestmark = pytest.mark.usefixtures("no_hudi_beside")

SCHEMA = pa.schema([("id", pa.string()), ("region", pa.string()), ("ts", pa.int64()),
                    ("v", pa.int64()), ("w", pa.string())])  # fmt: skip
GLOBAL = {"hoodie.index.type": "GLOBAL_SIMPLE"}
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
    return in_order(table.read())


def in_order(found: pa.Table) -> list[tuple[Any, ...]]:
    return as_listed(found.to_pylist())


def as_listed(found: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in SCHEMA.names) for row in found), key=repr)


def by_hudi_rs(table: Table) -> list[tuple[Any, ...]]:
    return in_order(read_by_hudi_rs(table.url, empty=SCHEMA))


class Places:
    """What a table must show: the rows of each place, and of each deletion in log files its time.

    A place is a key in a partition.
    """

    def __init__(self, by: str | None, logged: bool) -> None:
        self.by, self.logged = by, logged
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.gone: dict[tuple[str, str], int] = {}

    def _loses(self, row: dict[str, Any]) -> bool:
        place = row["id"], row["region"]
        at = self.rows[place]["ts"] if place in self.rows else self.gone.get(place, 0)
        return self.by is not None and row["ts"] < at

    def put(self, row: dict[str, Any]) -> None:
        place = row["id"], row["region"]
        if not self._loses(row):
            self.gone.pop(place, None)
            self.rows[place] = {"v": None, "w": None} | self.rows.get(place, {}) | row

    def delete(self, row: dict[str, Any]) -> None:
        place = row["id"], row["region"]
        if self.logged and not self._loses(row):
            self.gone[place] = row["ts"]
        if not self.logged or not self._loses(row):
            self.rows.pop(place, None)

    def move(self, row: dict[str, Any]) -> None:
        for key, region in [*self.rows]:
            if key == row["id"] and region != row["region"]:
                self.delete({**row, "region": region})
        self.put(row)

    def shown(self) -> list[tuple[Any, ...]]:
        return as_listed(self.rows.values())


@pytest.mark.parametrize(("kind", "by"), rest_in_soak(
    [(kind, by) for kind in KINDS for by in ("ts", None)],
    ("copy-on-write", "ts"), ("copy-on-write of Hudi's", None), ("merge-on-read", None),
    ("Parquet blocks", "ts"), ("Hudi's buckets", None),
))  # fmt: skip
def test_partial_rows_leave_what_a_dictionary_of_values_has(
    tmp_path: Path, kind: str, by: str | None
) -> None:
    dice, logged = random.Random(f"{kind} {by}"), "table_type" in KINDS[kind]
    expected = Places(by, logged)
    with made(tmp_path, precombine=by, **KINDS[kind]) as table:
        def whole(turn: int, *keys: int) -> None:
            new = [order(key, turn, v=turn, w=f"w{turn}") for key in keys]
            table.upsert(rows(new))
            for row in new:
                expected.put(row)

        whole(1, *range(8))
        for turn in range(2, 14):
            if logged and dice.random() < 0.2:
                table.compact()
                expected.gone.clear()
            gone = [order(key, turn + dice.choice([-3, 0, 0, 1]))
                    for key in dice.sample(range(10), 3)]  # fmt: skip
            moved = {**order(dice.randrange(10), turn, v=turn, w="moved"), "region": "AP"}
            match dice.choice(["nothing", "delete", "delete", "move", "whole"]):
                case "delete":
                    table.delete(rows(gone))
                    for row in gone:
                        expected.delete(row)
                case "move" if kind != "Hudi's buckets":  # these have no global index
                    with Table(table.url, options=GLOBAL) as other:
                        other.upsert(rows([moved]))
                    expected.move(moved)
                case "whole":
                    whole(turn, *dice.sample(range(10), 2))
            columns = dice.choice([["v"], ["w"], ["w"], ["v", "w"], []])
            # A late one has no effect on a whole row; of log files the next test says it.
            new = [order(key, turn if logged else dice.choice([0, turn]), **{
                name: turn if name == "v" else f"w{turn}" for name in columns
            }) for key in dice.sample(range(10), 5)]  # fmt: skip
            table.upsert(rows(new), partial=True)
            for row in new:
                expected.put(row)
            assert shown(table) == expected.shown() == by_hudi_rs(table), (turn, columns)


@pytest.mark.parametrize("by", ["ts", None])
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_deleted_does_not_come_back_with_a_partial_row(
    tmp_path: Path, kind: str, by: str | None
) -> None:
    with made(tmp_path, precombine=by, buckets=1, **KINDS[kind]) as table:
        table.upsert(rows([order(1, 1, v=1, w="deleted"), order(3, 1, v=1, w="kept")]))
        if "table_type" in KINDS[kind]:
            table.compact()
        table.delete(rows([order(1, 3)]))
        assert shown(table) == [("k3", "EU", 1, 1, "kept")]
        table.upsert(rows([order(1, 4, v=4), order(3, 4, v=4), order(5, 4, v=4)]), partial=True)
        left = [("k1", "EU", 4, 4, None), ("k3", "EU", 4, 4, "kept"), ("k5", "EU", 4, 4, None)]
        assert shown(table) == left == by_hudi_rs(table)
        if "table_type" in KINDS[kind]:
            table.compact()
        assert shown(table) == left == by_hudi_rs(table)


def test_a_partial_row_that_is_older_than_a_deletion_stays_deleted(tmp_path: Path) -> None:
    with made(tmp_path, table_type="MERGE_ON_READ") as table:
        table.upsert(rows([order(1, 1, v=1, w="deleted")]))
        table.delete(rows([order(1, 5)]))
        table.upsert(rows([order(1, 4, v=4)]), partial=True)
        assert shown(table) == [] == by_hudi_rs(table)
        table.upsert(rows([order(1, 5, v=5)]), partial=True)
        assert shown(table) == [("k1", "EU", 5, 5, None)] == by_hudi_rs(table)


def test_a_deletion_that_a_newer_row_outlived_leaves_its_columns_to_a_partial_row(
    tmp_path: Path,
) -> None:
    with made(tmp_path, table_type="MERGE_ON_READ") as table:
        table.upsert(rows([order(1, 5, v=1, w="kept")]))
        table.delete(rows([order(1, 3)]))
        table.upsert(rows([order(1, 6, v=6)]), partial=True)
        assert shown(table) == [("k1", "EU", 6, 6, "kept")] == by_hudi_rs(table)


def test_a_partial_row_keeps_what_was_read_not_what_a_row_of_a_log_file_lost_with(
    tmp_path: Path,
) -> None:
    with made(tmp_path, table_type="MERGE_ON_READ", buckets=1) as table:
        table.upsert(rows([order(key, 5, v=1, w=f"kept{key}") for key in (1, 3, 5, 7)]))
        table.upsert(rows([order(1, 3, v=3, w="beaten"), order(3, 6, v=6, w="newer")]))
        table.upsert(rows([order(5, 3, v=3)]), partial=True)
        table.delete(rows([order(7, 5)]))
        table.upsert(rows([order(key, 9, v=9) for key in (1, 3, 7, 9)]), partial=True)
        table.upsert(rows([order(5, 9, w="9")]), partial=True)
        left = [("k1", "EU", 9, 9, "kept1"), ("k3", "EU", 9, 9, "newer"), ("k5", "EU", 9, 1, "9"),
                ("k7", "EU", 9, 9, None), ("k9", "EU", 9, 9, None)]  # fmt: skip
        assert shown(table) == left == by_hudi_rs(table)
        table.compact()
        assert shown(table) == left == by_hudi_rs(table)


def test_a_delete_during_a_partial_upsert_is_a_conflict(tmp_path: Path) -> None:
    def meanwhile(event: str, /, **fields: Any) -> None:
        if event == "note" and fields["text"].startswith("wrote") and not done:
            done.append("")
            table.delete(rows([order(1, 2)]))

    done: list[str] = []
    with (
        made(tmp_path, table_type="MERGE_ON_READ") as table,
        Table(table.url, emit=meanwhile) as slow,
    ):
        table.upsert(rows([order(1, 1, v=1, w="deleted")]))
        with pytest.raises(CommitConflict):
            slow.upsert(rows([order(1, 3, v=3)]), partial=True)
        slow.upsert(rows([order(1, 3, v=3)]), partial=True)
        assert done and shown(table) == [("k1", "EU", 3, 3, None)]


def test_a_writer_that_gives_way_to_nobody_may_not_write_partial_rows(tmp_path: Path) -> None:
    mode = {"hoodie.write.concurrency.mode": "non_blocking_concurrency_control"}
    with (
        made(tmp_path, table_type="MERGE_ON_READ", index="BUCKET") as table,
        Table(table.url, options=mode) as other,
    ):
        with pytest.raises(RefusedOption, match=r"lockkit\.partial\.update.*non-blocking.*delete"):
            other.upsert(rows([order(1, 1, v=1)]), partial=True)
        other.upsert(rows([order(1, 1, v=1, w="whole")]))
        assert shown(table) == [("k1", "EU", 1, 1, "whole")]


def test_partial_rows_are_logged_without_the_columns_that_they_do_not_have(tmp_path: Path) -> None:
    with made(tmp_path, table_type="MERGE_ON_READ") as table:
        table.upsert(rows([order(1, 1, v=1, w="a")]))
        table.upsert(rows([order(1, 2, v=2)]), partial=True)
        table.upsert(rows([order(1, 3, v=3, w="b")]), partial=True)
        found = [block for each in sorted((tmp_path / "orders").rglob(".*.log.*"))
                 for block in blocks(each.name, each.read_bytes())]  # fmt: skip
        assert [block.header.get(PARTIAL) for block in found] == ["true", None]
        assert '"w"' not in found[0].header[DESCRIBED] and '"w"' in found[1].header[DESCRIBED]


def test_a_late_partial_row_gives_a_newer_one_that_is_in_a_log_file_what_that_one_lacks(
    tmp_path: Path,
) -> None:
    """As in Hudi, which merges log files among themselves first."""
    with made(tmp_path, table_type="MERGE_ON_READ") as table:
        table.upsert(rows([order(1, 2, v=0, w="a")]))
        table.upsert(rows([order(1, 3, w="b")]), partial=True)
        assert shown(table) == [("k1", "EU", 3, 0, "b")]
        table.upsert(rows([order(1, 1, v=9)]), partial=True)
        assert shown(table) == [("k1", "EU", 3, 9, "b")]


@pytest.mark.parametrize("blocks", ["avro", "parquet"])
@pytest.mark.parametrize("late", ["whole", "partial"])
def test_an_executed_plan_changes_no_partial_row_that_was_written_after_a_late_one(
    tmp_path: Path, late: str, blocks: str
) -> None:
    """Behind the new base file both are read alone, and the partial row is joined to the late one.
    """
    how = {"hoodie.logfile.data.block.format": blocks}
    with made(tmp_path, table_type="MERGE_ON_READ", buckets=1, options=how) as table:
        table.upsert(rows([order(key, 5, v=5, w="five") for key in (1, 3, 5, 7)]))
        table.upsert(rows([order(key, 12, v=12, w="kept") for key in (1, 3, 5)]))
        table.compact(mode="schedule")
        table.upsert(rows([order(1, 6, v=6, w="late")]), partial=late == "partial")
        table.upsert(rows([order(5, 6, w="late")]), partial=True)
        table.upsert(rows([order(key, 20, v=20) for key in (1, 3, 5, 7)]), partial=True)
        left = [("k1", "EU", 20, 20, "kept"), ("k3", "EU", 20, 20, "kept"),
                ("k5", "EU", 20, 20, "kept"), ("k7", "EU", 20, 20, "five")]  # fmt: skip
        assert shown(table) == left == by_hudi_rs(table)
        table.compact(mode="execute")
        assert shown(table) == left == by_hudi_rs(table)


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
        other.upsert(rows([order(1, 2, w="b")]), partial=False)
        assert shown(table) == [("k1", "EU", 2, None, "b")]
        for said in ("no", "false", 0, 1):
            with pytest.raises(RefusedOption, match=f"partial={said} must be True or False"):
                table.upsert(rows([order(1, 3, v=3)]), partial=said)  # type: ignore[arg-type]
        for write in (other.delete, other.overwrite):
            with pytest.raises(RefusedOption, match=r"lockkit\.partial\.update.*is for upserts"):
                write(rows([order(1, 3, v=3)]))
        with Table(table.url, options=GLOBAL) as moving:
            with pytest.raises(RefusedOption, match="rows that stay in their partition"):
                moving.upsert(rows([order(1, 3, v=3)]), partial=True)
        with pytest.raises(TableError, match="precombine field"):
            table.upsert(rows([order(1, 3, v=3)]).drop_columns(["ts"]), partial=True)
