"""Rows that say of themselves that they are deleted, by a boolean column of Hudi's name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockkit.table.format.schema import DELETED_FLAG

if TYPE_CHECKING:
    import pyarrow as pa


def deleted(rows: pa.Table) -> pa.Array:
    """Which of the rows do. A column of that name and of another type is like any other."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if DELETED_FLAG not in rows.column_names or rows[DELETED_FLAG].type != pa.bool_():
        return pa.repeat(pa.scalar(False), rows.num_rows)
    return pc.fill_null(rows[DELETED_FLAG].combine_chunks(), False)
