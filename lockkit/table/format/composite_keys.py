"""Record keys of several fields, as Hudi's `KeyGenUtils` makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockkit.table.errors import RefusedRows
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.schema import column_of

if TYPE_CHECKING:
    import pyarrow as pa

NULL, EMPTY = "__null__", "__empty__"
"""Placeholders in a key. If all fields of a row are placeholders, it has no key."""


def composite_keys(config: TableConfig, rows: pa.Table) -> Any:
    """`id:7,kind:a` for each row; like Hudi, it does not escape commas and colons."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts, has_key = [], None
    for name in config.record_keys:
        text = pc.cast(column_of(rows, name, "record key"), pa.string())
        size = pc.fill_null(pc.binary_length(text), 0)
        filled = pc.if_else(pc.equal(size, 0), EMPTY, text)
        text = pc.if_else(pc.is_null(text), NULL, filled)
        parts.append(pc.binary_join_element_wise(f"{name}:", text, ""))
        has_key = pc.greater(size, 0) if has_key is None else pc.or_(has_key, pc.greater(size, 0))
    if not pc.all(has_key).as_py():
        why = "are the record key, and some rows have no record key"
        raise RefusedRows(config.record_key, why, "give each row one, or none could be updated")
    return pc.binary_join_element_wise(*parts, ",")
