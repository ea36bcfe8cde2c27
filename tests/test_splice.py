"""Columns of two parquet files side by side in a third, as pyarrow reads it.

What Spark and hudi-rs read of them: `test_spark_write`.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lockkit.spark.splice import Pick, splice
from lockkit.table import TableError

ROWS = 1_000
LEFT = pa.table({"time": ["T"] * ROWS, "number": [f"T_{n}" for n in range(ROWS)]})
RIGHT = pa.table({
    "id": [f"k{n}" for n in range(ROWS)],
    "many": [[{"a": n, "b": [n, None]}] if n % 7 else None for n in range(ROWS)],
    "x": [None if n % 3 else n / 7 for n in range(ROWS)],
    "few": pa.array([n % 2 == 0 for n in range(ROWS)]),
})  # fmt: skip
PICKS = [
    Pick(0, "time", "time"), Pick(1, "id", "key"), Pick(0, "number", "number"),
    Pick(1, "many", "list"), Pick(1, "id", "id"), Pick(1, "few", "few"), Pick(1, "x", "x"),
]  # fmt: skip


def spliced(tmp_path: Path, *, left_groups: int = 300, picks: list[Pick] = PICKS) -> Path:
    left, right, to = (tmp_path / name for name in ("left", "right", "whole"))
    pq.write_table(LEFT, left, row_group_size=left_groups, compression="zstd")
    pq.write_table(RIGHT, right, row_group_size=300, write_page_index=True)
    with to.open("wb") as out:
        splice([left, right], picks, out, about={"who": "Zoë"})
    return to


def test_the_columns_are_those_of_both_files_row_by_row(tmp_path: Path) -> None:
    path = spliced(tmp_path)
    for options in ({}, {"pre_buffer": False}, {"memory_map": True}):
        whole = pq.read_table(path, **options)
        for pick in PICKS:
            assert whole[pick.name].to_pylist() == (LEFT, RIGHT)[pick.file][pick.column].to_pylist()
    assert whole.column_names == [pick.name for pick in PICKS]


def test_the_footer_says_what_readers_plan_by(tmp_path: Path) -> None:
    path = spliced(tmp_path)
    footer, before = pq.read_metadata(path), pq.read_metadata(tmp_path / "right")
    assert footer.metadata == {b"who": "Zoë".encode()}
    assert [footer.row_group(n).num_rows for n in range(footer.num_row_groups)] == [300] * 3 + [100]
    at = 4
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for n in range(group.num_columns):
            column = group.column(n)
            starts = (column.dictionary_page_offset, column.data_page_offset)
            assert min(filter(None, starts)) == at, "chunks stand in order, without a gap"
            assert column.file_offset == at
            assert not column.has_offset_index, "the pages' index is not where it was"
            at += column.total_compressed_size
        keys = before.row_group(number).column(0).statistics
        assert group.column(1).statistics == keys == group.column(5).statistics
    found = pq.read_table(path, filters=[("key", "=", "k777")])
    assert found["list"].to_pylist() == [None], "a row group is skipped by statistics alone"


def test_what_cannot_stand_side_by_side_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="row groups of"):
        spliced(tmp_path, left_groups=500)
    with pytest.raises(TableError, match="no column 'nobody'"):
        spliced(tmp_path, picks=[Pick(1, "nobody", "x")])
