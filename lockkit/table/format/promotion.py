"""Stored values of a column whose type became a wider one, as Hudi and hudi-rs read them.

A float becomes the double of its text, and a whole number the nearest one with a point. A number
with a point becomes the text that Java gives since 19, as in hudi-rs; before, many from 1e7 on have
one digit more than they need, and so other doubles. The same holds inside structs, lists and maps.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from lockkit.table.errors import UnsupportedTable

JAVA = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def is_promoted(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Whether Arrow's own cast may give other values than Hudi reads."""
    if stored.id == kind.id and (count := kind.num_fields) and stored.num_fields == count:
        inner = zip(map(stored.field, range(count)), map(kind.field, range(count)), strict=True)
        renamed = is_.is_struct(kind) and stored.names != kind.names
        return renamed or any(is_promoted(one.type, two.type) for one, two in inner)
    alike = (is_.is_integer, is_.is_timestamp)
    return stored != kind and not any(test(stored) and test(kind) for test in alike)


def as_later(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Stored rows, with the columns promoted that have a later type in `schema`."""
    for name in {*rows.column_names} & {*schema.names}:
        if is_promoted(rows[name].type, kind := schema.field(name).type):
            column = promoted(rows[name], kind, name)
            rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows


def promoted(column: Any, kind: pa.DataType, name: str) -> Any:
    """An array or a chunked array of the column `name`, in that column's later type.

    Raises `UnsupportedTable` where Hudi's readers would not give the same values.
    """
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([promoted(each, kind, name) for each in column.chunks], kind)
    stored = column.type
    if is_.is_large_list(stored):
        column = column.cast(stored := pa.list_(stored.value_type))
    if not is_promoted(stored, kind):
        return column.cast(kind)
    if is_.is_struct(stored) and is_.is_struct(kind):
        parts = dict(zip(stored.names, column.flatten(), strict=True))
        fields = [promoted(parts[each.name], each.type, f"{name}.{each.name}")
                  if each.name in parts else pa.nulls(len(column), each.type) for each in kind]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=column.is_null())
    if is_.is_list(stored) and is_.is_list(kind):
        values = promoted(column.values, kind.value_type, f"{name}.element")
        return pa.ListArray.from_arrays(_offsets(column), values, type=kind)
    if is_.is_map(stored) and is_.is_map(kind):
        items = promoted(column.items, kind.item_type, f"{name}.value")
        return pa.MapArray.from_arrays(_offsets(column), column.keys, items, type=kind)
    if is_.is_floating(stored) and is_.is_string(kind):
        exact = column.cast(pa.float64()).to_pylist()
        return pa.array(map(_java_text, column.cast(pa.string()).to_pylist(), exact), kind)
    try:
        if is_.is_floating(stored) and is_.is_decimal(kind):
            raise ValueError("they are rounded in different ways")
        if is_.is_integer(stored) and is_.is_temporal(kind) and not is_.is_time(kind):
            raise ValueError("some readers take numbers for seconds")
        if is_.is_integer(stored) and is_.is_decimal(kind):
            column = column.cast(pa.decimal128(38, kind.scale))
        if stored == pa.float32() and kind == pa.float64():
            column = column.cast(pa.string())
        return column.cast(kind, safe=not is_.is_floating(kind))
    except (ValueError, NotImplementedError) as error:
        why = f"became {kind}, and has {stored} in an older file ({str(error)[:80]})"
        cure = "write its rows again with Hudi"
        raise UnsupportedTable(f"column {name[:60]!r}", why, cure) from None


def _offsets(column: Any) -> Any:
    """Where each list begins; null for one that is null."""
    there = pa.concat_arrays([column.is_valid(), pa.array([True])])
    return pc.if_else(there, column.offsets, None)


def _java_text(shortest: str | None, exact: float | None) -> str | None:
    """As `Double.toString` and `Float.toString` of Java."""
    if shortest is None or (special := JAVA.get(shortest)):
        return shortest and special
    number = Decimal(shortest).normalize()
    if len(number.as_tuple().digits) == 1 and exact:
        number = Decimal(f"{exact:.1e}").normalize()  # the nearest one of two digits
    if not number or -3 <= number.adjusted() < 7:
        text = f"{number:f}"
        return text if "." in text else f"{text}.0"
    first, *rest = map(str, number.as_tuple().digits)
    return f"{'-' * (number < 0)}{first}.{''.join(rest) or '0'}E{number.adjusted()}"
