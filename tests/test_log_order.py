"""Entries of log files that are said to win against all rows win against each of them."""

from __future__ import annotations

import datetime
import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize(("stored", "new"), [([math.nan, 0.0], [1.0]), ([0.0], [math.nan])])
def test_numbers_that_may_be_nan_are_compared_row_by_row(
    stored: list[float], new: list[float]
) -> None:
    assert not log_order.all_replace([pa.chunked_array([stored])], [pa.array(new)])


def test_two_ordering_columns_are_compared_row_by_row() -> None:
    one, two = [pa.array([1]), pa.array([1])], [pa.array([2]), pa.array([0])]
    assert not log_order.all_replace(one, two)
