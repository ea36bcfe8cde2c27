"""Rows whose text is not UTF-8 are refused before anything is written: nobody could read them."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lockkit.errors import TableError
from lockkit.table import Table
from lockkit.table.errors import RefusedRows

LATIN = "caf\xe9".encode("latin-1")
TEXT = pa.array([LATIN, b"good"], pa.binary()).view(pa.string())
BROKEN: dict[str, Any] = {
    "text": TEXT,
    "large text": pa.array([LATIN, b"good"], pa.large_binary()).view(pa.large_string()),
    "in a struct": pa.StructArray.from_arrays([TEXT], ["s"]),
    "in a list": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), TEXT),
    "in a dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), TEXT),
}
KINDS: list[dict[str, Any]] = [
    {}, {"table_type": "MERGE_ON_READ"},
    {"table_type": "MERGE_ON_READ", "mode": "hudi", "version": 6, "index": "BUCKET"},
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BROKEN)
def test_text_that_is_not_utf_8_is_refused_by_name_and_nothing_is_written(
    tmp_path: Path, kind: dict[str, Any], name: str
) -> None:
    rows = pa.table({"id": ["a", "b"], "v": BROKEN[name]})
    with Table.create(f"file://{tmp_path}/t", record_key="id", buckets=1, **kind) as table:
        for write in (table.append, table.upsert, table.overwrite):
            with pytest.raises(RefusedRows, match=r"v.*is broken: .*UTF8"):
                write(rows)
        assert table.read().num_rows == 0
        with pytest.raises(RefusedRows, match=r"id.*is broken"):
            table.upsert(pa.table({"id": TEXT, "v": ["x", "y"]}))
        table.upsert(rows.slice(1) if name == "text" else rows.drop_columns(["v"]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_decimal_with_a_negative_scale_is_refused_by_name(
    tmp_path: Path, kind: dict[str, Any]
) -> None:
    rows = pa.table({"id": ["a"], "v": pa.array([Decimal(100)], pa.decimal128(5, -2))})
    with Table.create(f"file://{tmp_path}/t", record_key="id", buckets=1, **kind) as table:
        for write in (table.append, table.upsert):
            with pytest.raises(TableError, match=r"v.*has type decimal128\(5, -2\)"):
                write(rows)
