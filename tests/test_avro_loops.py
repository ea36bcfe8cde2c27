"""The loops in machine code decode Avro blocks as numpy does, and find the same damage."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from test_avro_columns import (  # noqa: F401  (the same tests)
    EMPTY,
    avro_block,
    by_numpy,
    committed,
    test_a_block_has_no_records_if_and_only_if_it_says_so,
    test_a_block_with_another_type_is_left_to_another_decoder,
    test_a_damaged_block_is_never_other_rows_by_numpy,
    test_a_negative_length_of_a_record_is_damage,
    test_a_text_that_begins_as_records_do_is_not_taken_for_one,
    test_a_value_that_its_type_cannot_have_is_damage,
    test_another_number_of_records_than_a_flat_block_has_is_damage,
    test_numpy_decodes_rows_as_fastavro_does,
    test_what_looks_like_records_in_a_value_is_none,
)

from lockkit.table.format import avro_flat, compiled

pytestmark = pytest.mark.xdist_group("loops")  # compiled once

WHY = "it compiles a loop that decodes Avro blocks: pip install numba"


@pytest.fixture(scope="module", autouse=True)
def _by_loops() -> Iterator[None]:
    pytest.importorskip("numba", reason=WHY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro_flat, "ROWS_AT_ONCE", 3)
        patch.setattr(avro_flat, "_alike", None)
        patch.setattr(compiled, "_rows", compiled.ROWS_BEFORE)
        yield


def test_the_loops_decode_once_a_process_has_decoded_many_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their import would take longer than what a short read saves."""
    monkeypatch.setattr(compiled, "ROWS_BEFORE", 3)
    monkeypatch.setattr(compiled, "_rows", 0)
    assert [compiled.loops(2) is None for _ in range(3)] == [True, True, False]


def test_numpy_decodes_where_numba_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_rows", compiled.ROWS_BEFORE)
    monkeypatch.delitem(sys.modules, "lockkit.table.format.loops", raising=False)
    monkeypatch.setitem(sys.modules, "numba", None)
    compiled._imported.cache_clear()
    try:
        assert compiled.loops(1) is None
        with pytest.raises(TypeError):  # numpy's way, which this file has switched off
            by_numpy(committed(EMPTY))
    finally:
        compiled._imported.cache_clear()


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us", "UTC")], ids=str)
def test_days_and_times_are_what_numpy_decodes(
    kind: pa.DataType,
) -> None:
    put = avro_block(pa.schema([("x", kind)]), *({"x": n} for n in (-1, None, 20_000)))
    found = avro_flat.by_numpy(put, ["x"])
    assert found is not None and found.schema.field("x").type == kind
    assert found["x"].cast(pa.int32() if kind == pa.date32() else pa.int64()).to_pylist() == [
        -1, None, 20_000
    ]  # fmt: skip
