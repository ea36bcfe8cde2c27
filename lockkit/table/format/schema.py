"""A table's columns: which types a base file holds, how Avro names them, how they may change.

A commit's file stores the schema in Avro, which Hudi's writers read. Rows are given in Arrow. Rows
may bring new columns and may lack columns. The type of a column never changes.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lockkit.table.errors import RefusedRows

if TYPE_CHECKING:
    import pyarrow as pa

COMMIT_TIME = "_hoodie_commit_time"
COMMIT_SEQNO = "_hoodie_commit_seqno"
RECORD_KEY = "_hoodie_record_key"
PARTITION_PATH = "_hoodie_partition_path"
FILE_NAME = "_hoodie_file_name"
DELETED_FLAG = "_hoodie_is_deleted"
META_COLUMNS = (COMMIT_TIME, COMMIT_SEQNO, RECORD_KEY, PARTITION_PATH, FILE_NAME)
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DEPTH_MAX = 16
COLUMNS_MAX = 10_000
SHOWN = 60


# --- what a base file holds ---------------------------------------------------------------------


def stored(kind: pa.DataType, name: str, depth: int = 0) -> pa.DataType:
    """The type that a base file stores for `kind`. Raises `TableError` if there is none.

    Types of Spark's stay. Types that only Arrow has (large strings, dictionaries, milli- and
    nanoseconds, small integers) become types that Spark and Hudi read.
    """
    import pyarrow as pa
    import pyarrow.types as is_

    def inner(kind: pa.DataType, of: str) -> pa.DataType:
        return stored(kind, f"{name}.{of}", depth + 1)

    if depth > DEPTH_MAX:
        raise RefusedRows(name[:SHOWN], f"is nested deeper than {DEPTH_MAX}", "flatten it")
    for known, test in _simple(pa, is_):
        if test(kind):
            return known
    if is_.is_dictionary(kind):
        return stored(kind.value_type, name, depth + 1)
    if is_.is_timestamp(kind):
        # Microseconds: nanoseconds are unknown to Spark. Its timestamps are UTC, whatever the zone.
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if is_.is_decimal128(kind) and kind.scale >= 0:
        return kind
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return pa.list_(inner(kind.value_type, "element"))
    if is_.is_map(kind) and stored(kind.key_type, name, depth + 1) == pa.string():
        return pa.map_(pa.string(), inner(kind.item_type, "value"))
    if is_.is_struct(kind) and kind.num_fields:
        for each in kind:
            _refuse_name(each.name, f"(a field of {name[:SHOWN]!r}) ")
        return pa.struct([(each.name, inner(each.type, each.name)) for each in kind])
    raise RefusedRows(
        name[:SHOWN], f"has type {str(kind)[:SHOWN]}, which is not written here", "cast it first"
    )


def _simple(pa: Any, is_: Any) -> tuple[tuple[Any, Any], ...]:
    """Stored types without a parameter, each with the test for the types that map to it."""
    return (
        (pa.bool_(), is_.is_boolean),
        (pa.int32(), lambda t: t in (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())),
        (pa.int64(), lambda t: t in (pa.int64(), pa.uint32())),
        (pa.float32(), lambda t: t in (pa.float16(), pa.float32())),
        (pa.float64(), is_.is_float64),
        (pa.string(), lambda t: is_.is_string(t) or is_.is_large_string(t)
         or is_.is_string_view(t)),
        (pa.binary(), lambda t: is_.is_binary(t) or is_.is_large_binary(t)
         or is_.is_fixed_size_binary(t) or is_.is_binary_view(t)),
        (pa.date32(), is_.is_date),
    )  # fmt: skip


def stored_schema(rows: pa.Schema) -> pa.Schema:
    """The columns without the meta columns, as a base file stores them, all nullable."""
    import pyarrow as pa

    names = [field.name for field in rows if field.name not in META_COLUMNS]
    if len(names) > COLUMNS_MAX:
        raise RefusedRows("", f"have {len(names)} columns, and a table has at most {COLUMNS_MAX}")
    seen: dict[str, str] = {}
    for name in names:
        _refuse_name(name)
        if (other := seen.setdefault(name.lower(), name)) != name or names.count(name) > 1:
            why = "is there twice" if other == name else f"is the same as {other[:SHOWN]!r}"
            raise RefusedRows(name[:SHOWN], why, "rename one of them: Spark ignores case")
    return pa.schema([(name, stored(rows.field(name).type, name)) for name in names])


def _refuse_name(name: str, of: str = "") -> None:
    # hudi-rs 0.5 refuses to read the whole table: "Failed to parse Avro schema: Invalid field name"
    if not _AVRO_NAME.fullmatch(name):
        why = "cannot be named so: Avro has letters, digits and underscores, and no digit first"
        raise RefusedRows(name[:SHOWN], of + why, "rename it")


# --- how a schema may change --------------------------------------------------------------------


def evolve(table: pa.Schema | None, incoming: pa.Schema) -> pa.Schema:
    """The table's schema once `incoming` is written: its own columns first, then the new ones.

    A column that is not in `incoming` stays, its new rows null. `TableError` names a column whose
    type would change, and both types; a narrower number is let into a wider column.
    """
    import pyarrow as pa

    table = pa.schema([]) if table is None else table
    by_case = {name.lower(): name for name in table.names}
    added = []
    for field in stored_schema(incoming):
        known = by_case.get(field.name.lower())
        if known is None and field.name.lower() in (*META_COLUMNS, "_hoodie_operation"):
            raise RefusedRows(field.name[:SHOWN], "is a name of Hudi's own columns", "rename it")
        if known is None:
            added.append(field)
        elif known != field.name:
            why = f"is {known[:SHOWN]!r} in the table: the two differ only by case"
            raise RefusedRows(field.name[:SHOWN], why, "rename yours")
        elif not _fits(field.type, table.field(known).type):
            raise RefusedRows(
                known[:SHOWN],
                f"is {table.field(known).type} in the table and {field.type} in these rows; a "
                "column's type cannot change", "cast it, or write it under another name",
            )  # fmt: skip
    return pa.schema([*table, *added])


def _fits(kind: pa.DataType, column: pa.DataType) -> bool:
    import pyarrow as pa

    if kind == column:
        return True
    return (kind, column) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()),
                              (pa.int32(), pa.float64()))  # fmt: skip


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` with exactly the columns of `schema`: null where they have none, cast where not equal.

    Of timestamps what is finer than a microsecond is cut off. `TableError` where a value does not
    fit its column.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = []
    for field in schema:
        place = rows.schema.get_field_index(field.name)
        if place < 0:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(place)
        if column.type != field.type:
            options = pc.CastOptions(field.type, allow_time_truncate=True)
            try:
                column = pc.cast(column, options=options)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                why = f"is {column.type}, which does not fit the table's {field.type}"
                raise RefusedRows(field.name[:SHOWN], f"{why} ({str(error)[:120]})") from None
        columns.append(column)
    return pa.table(columns, schema=schema)


# --- Avro ---------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def avro_schema(rows: pa.Schema, name: str) -> str:
    """The Avro schema that Hudi keeps in a commit's `extraMetadata`; without the meta columns.

    :param rows: the table's columns.
    :param name: the table's name, which the record is named after.
    """
    record = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    if record[:1].isdigit():
        record = f"_{record}"  # else no name to Avro, and hudi-rs 0.5 panics
    return json.dumps(
        _record(stored_schema(rows), f"{record}_record", f"hoodie.{record}"), ensure_ascii=True
    )


def _record(fields: Any, name: str, namespace: str) -> dict[str, Any]:
    inside = f"{namespace}.{name}"
    return {
        "type": "record", "name": name, "namespace": namespace,
        "fields": [
            {"name": field.name, "type": ["null", _to_avro(field.type, field.name, inside)],
             "default": None}
            for field in fields
        ],
    }  # fmt: skip


def _to_avro(kind: pa.DataType, name: str, inside: str) -> Any:
    import pyarrow as pa
    import pyarrow.types as is_

    for known, word in avro_words(pa):
        if kind == known:
            return word
    if is_.is_timestamp(kind):
        # Without a zone Avro says *local* timestamp; Spark's have one, and are UTC inside.
        local = "" if kind.tz else "local-"
        return {"type": "long", "logicalType": f"{local}timestamp-micros"}
    if is_.is_decimal(kind):
        size = (10**kind.precision - 1).bit_length() // 8 + 1  # the fewest bytes, as Spark's
        return {
            "type": "fixed", "name": "fixed", "namespace": f"{inside}.{name}", "size": size,
            "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale,
        }  # fmt: skip
    if is_.is_list(kind):
        return {"type": "array", "items": ["null", _to_avro(kind.value_type, name, inside)]}
    if is_.is_map(kind):
        return {"type": "map", "values": ["null", _to_avro(kind.item_type, name, inside)]}
    assert is_.is_struct(kind), f"not a stored type: {kind}"
    return _record(kind, name, inside)


def avro_words(pa: Any) -> tuple[tuple[pa.DataType, Any], ...]:
    return (
        (pa.bool_(), "boolean"), (pa.int32(), "int"), (pa.int64(), "long"),
        (pa.float32(), "float"), (pa.float64(), "double"), (pa.string(), "string"),
        (pa.binary(), "bytes"), (pa.date32(), {"type": "int", "logicalType": "date"}),
    )  # fmt: skip


def column_of(rows: pa.Table, name: str, what: str) -> Any:
    if name not in rows.column_names:
        raise RefusedRows(name, f"is missing: the table's {what}")
    return rows[name]
