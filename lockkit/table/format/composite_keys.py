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
    """`id:7,kind:a` for each row; like Hudi, it does not escape commas and colons.

    Raises `RefusedRows` for a value that could make the key of another row.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    parts, has_key = [], None
    for name, following in zip(config.record_keys, (*config.record_keys[1:], None), strict=True):
        text = pc.cast(column_of(rows, name, "record key"), pa.string())
        if len(config.record_keys) > 1:
            _refuse_ambiguous(name, following, text)
        size = pc.fill_null(pc.binary_length(text), 0)
        filled = pc.if_else(pc.equal(size, 0), EMPTY, text)
        text = pc.if_else(pc.is_null(text), NULL, filled)
        parts.append(pc.binary_join_element_wise(f"{name}:", text, ""))
        has_key = pc.greater(size, 0) if has_key is None else pc.or_(has_key, pc.greater(size, 0))
    if not pc.all(has_key, min_count=0).as_py():
        why = f"have no record key where each of {config.record_key} is null or empty"
        raise RefusedRows("", why, "give each row one, or none could be updated")
    return pc.binary_join_element_wise(*parts, ",")


def _refuse_ambiguous(name: str, following: str | None, text: Any) -> None:
    """Raise `RefusedRows` for a value that hides where the `following` field begins, or that is
    spelled as null or the empty string is: rows of two keys would be one row.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    wrong = pc.is_in(text, value_set=pa.array([NULL, EMPTY]))
    if following is not None:
        wrong = pc.or_kleene(wrong, pc.match_substring(text, f",{following}:"))
    if found := text.filter(wrong).slice(0, 1).to_pylist():
        raise RefusedRows(
            name,
            f"has the value {found[0][:60]!r}, and a key of several fields has no escape for it: "
            "another row could have the same key",
            "replace the value",
        )
