"""Entries of log files that are said to win against all rows win against each of them."""

from __future__ import annotations

import datetime
import math
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from hudi_rs import read_by_hudi_rs
from hypothesis import given
from hypothesis import strategies as st

from lockkit.table import Table
from lockkit.table.read import log_order
from lockkit.table.read.log_order import DELETE, DELETE_ALWAYS, FLAGGED, ROW

SMALL = st.none() | st.integers(-2, 2)
REAL = st.none() | st.sampled_from([-1.0, 0.0, -0.0, 1.0, math.nan, math.inf, -math.inf])
TEXT = st.none() | st.sampled_from(["", "a", "b", "é"])
FLAG = st.none() | st.booleans()
COLUMNS = st.sampled_from([
    (pa.int64(), SMALL), (pa.float64(), REAL), (pa.string(), TEXT), (pa.bool_(), FLAG),
])  # fmt: skip


@given(COLUMNS, st.data())
def test_entries_that_are_said_to_win_all_win_against_each_row(
    column: tuple[pa.DataType, st.SearchStrategy[object]], data: st.DataObject
) -> None:
    kind, values = column
    stored, new = data.draw(st.lists(values)), data.draw(st.lists(values))
    if not log_order.all_replace([pa.chunked_array([stored], kind)], [pa.array(new, kind)]):
        return
    kinds = st.sampled_from([ROW, FLAGGED, DELETE, DELETE_ALWAYS])
    each = pa.array([data.draw(kinds) for _ in new], pa.uint8())
    for old in stored:
        column_of_old = pa.array([old] * len(new), kind)
        assert all(log_order.replaces([column_of_old], each, [pa.array(new, kind)]).to_pylist())


@pytest.mark.parametrize(("stored", "new"), [
    ([1, 2], [2, 3]), ([1, None], [1]), ([None], [-1]), ([], [1]), (["a"], ["b"]),
    ([datetime.datetime(2026, 1, 1)], [datetime.datetime(2026, 1, 2)]),
], ids=["rising", "null stored", "all null", "none stored", "text", "time"])  # fmt: skip
def test_values_that_rise_in_time_are_compared_once(
    stored: list[object], new: list[object]
) -> None:
    kind = pa.array(new).type
    assert log_order.all_replace([pa.chunked_array([stored], kind)], [pa.array(new, kind)])


@pytest.mark.parametrize(("stored", "new", "all_win"), [
    ([math.nan, 0.0], [1.0], False), ([0.0], [math.nan], True), ([0.0], [-0.0], False),
    ([-0.0, -1.0], [0.0], True),
])  # fmt: skip
def test_numbers_with_a_point_have_javas_order(
    stored: list[float], new: list[float], all_win: bool
) -> None:
    assert log_order.all_replace([pa.chunked_array([stored])], [pa.array(new)]) is all_win


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_two_zeros_are_ordered_as_hudi_rs_orders_them(
    table_type: str, kind: pa.DataType, tmp_path: Path
) -> None:
    rounds = list(zip(*product([-1.0, -0.0, 0.0, 1.0], repeat=3), strict=True))
    keys = [str(n) for n in range(len(rounds[0]))]
    url = f"file://{tmp_path}/t"
    with Table.create(url, record_key="id", precombine="at", table_type=table_type) as table:
        for number, values in enumerate(rounds):
            v = [number] * len(keys)
            table.upsert(pa.table({"id": keys, "at": pa.array(values, kind), "v": v}))
        stays = {key: _greatest(values) for key, *values in zip(keys, *rounds, strict=True)}
        assert shown(read_by_hudi_rs(url)) == shown(table.read()) == stays
        if table_type == "MERGE_ON_READ":
            table.compact()
            assert shown(table.read()) == stays
        at = [value for values in rounds for value in values]
        v = [number for number in range(len(rounds)) for _ in keys]
        batch = pa.table({"id": [f"{key} at once" for key in keys * 3], "at": pa.array(at, kind),
                          "v": v})  # fmt: skip
        table.upsert(batch)
        once = {f"{key} at once": value for key, value in stays.items()}
        assert shown(table.read()) == stays | once


def _greatest(values: list[float]) -> int:
    """The place of the last of the greatest."""
    return max(range(len(values)), key=lambda n: (values[n], math.copysign(1, values[n]), n))


def shown(found: pa.Table) -> dict[str, int]:
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def test_two_ordering_columns_are_compared_row_by_row() -> None:
    one, two = [pa.array([1]), pa.array([1])], [pa.array([2]), pa.array([0])]
    assert not log_order.all_replace(one, two)
