"""Log files, written: one block of Hudi's format with the rows, or the deleted keys, of one commit.

A log file of lockkit's belongs to one instant, and so is whole or not there. `log_blocks` reads
them.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockkit.table.errors import RefusedRows
from lockkit.table.format.avro_columns import encoded
from lockkit.table.format.base_file import BaseFileWriter, Target, sequence_numbers
from lockkit.table.format.layout import TaskId, file_name
from lockkit.table.format.log_blocks import (
    AVRO,
    DELETE,
    DELETES,
    DELETES_VERSION,
    INSTANT,
    MAGIC,
    PARQUET,
    PARTIAL,
    SCHEMA,
)
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.property_keys import PARQUET_BLOCKS
from lockkit.table.format.schema import META_COLUMNS, SHOWN, avro_schema, conform, stored

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_VERSION = 1
ROWS_VERSION = 3
ROWS_AT_ONCE = 10_000
DECIMAL_DIGITS = 15
"""On each side of the point, in the record of a decimal ordering value."""
BY_COMMIT = ("IntWrapper", {"value": 0})
"""Hudi's ordering value of a delete where the order of commits decides."""


def log_name(file_id: str, instant: str, task: TaskId) -> str:
    """`.<file id>_<T>.log.1_<task>-<stage>-<attempt>`: one log file of one instant (layout 2)."""
    token = file_name(file_id, instant, task).split("_")[1]
    return f".{file_id}_{instant}.log.1_{token}"


def log_name_in(file_id: str, place: tuple[str, int], token: str) -> str:
    """The same in layout 1: the instant is that of the slice, and `token` says who wrote it."""
    base, version = place
    return f".{file_id}_{base}.log.{version}_{token}"


@dataclass(slots=True)
class BlockWriter(BaseFileWriter):
    """The rows of a Parquet block, as a base file has them; their file is named by its group."""

    @property
    def name(self) -> str:
        return self.file_id


def data_block(
    target: Target, partition: str, file_id: str, task: TaskId, keys: Any, rows: pa.Table
) -> bytes:
    """The block of new rows, one for each of `keys`; the rows conform to the table's columns, and
    partial ones to some of these.

    The table's `log_format` says of which kind.
    """
    described = _with_meta(avro_schema(rows.schema, target.config.name))
    if target.config.log_format == PARQUET_BLOCKS:
        kind, out = PARQUET, io.BytesIO()
        writer = BlockWriter(target, partition, file_id, rows.schema, out, task)
        writer.add(rows, keys)
        writer.close(inserts=rows.num_rows)
    else:
        kind, out = AVRO, _avro_rows(target, partition, file_id, task, keys, rows, described)
    header = {INSTANT: target.instant, SCHEMA: described}
    if target.partial and target.schema is not None and len(rows.schema) < len(target.schema):
        header[PARTIAL] = "true"
    return log_block(kind, header, out.getbuffer())


def _avro_rows(
    target: Target, partition: str, file_id: str, task: TaskId, keys: Any, rows: pa.Table,
    described: str,
) -> io.BytesIO:  # fmt: skip
    out = io.BytesIO()
    out.write(struct.pack(">ii", ROWS_VERSION, rows.num_rows))
    numbers = sequence_numbers(target, task, 0, rows.num_rows)
    plain = conform(rows, _as_numbers(rows.schema))
    known = (target.instant, numbers, keys, partition, file_id)
    if (records := encoded(_with_meta_columns(plain, known))) is not None:
        out.write(records)
        return out
    import fastavro

    schema = fastavro.parse_schema(json.loads(described))
    for first in range(0, rows.num_rows, ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        listed = plain.slice(first, ROWS_AT_ONCE).to_pylist(maps_as_pydicts="strict")
        made = zip(keys[part].to_pylist(), numbers[part].to_pylist(), listed, strict=True)
        for key, number, row in made:
            meta = zip(META_COLUMNS, (target.instant, number, key, partition, file_id), strict=True)
            begin = out.tell()
            out.write(b"\0\0\0\0")
            fastavro.schemaless_writer(out, schema, {**dict(meta), **row})
            end = out.tell()
            out.seek(begin)
            out.write(struct.pack(">i", end - begin - 4))
            out.seek(end)
    return out


def _with_meta_columns(rows: pa.Table, known: tuple[Any, ...]) -> pa.Table:
    import pyarrow as pa

    meta = [pa.repeat(each, rows.num_rows) if isinstance(each, str) else each for each in known]
    return pa.table([*meta, *rows.columns], names=[*META_COLUMNS, *rows.column_names])


def delete_block(
    target: Target, partition: str, keys: Any, ordering: Any, columns: pa.Schema,
    moved: bool = False,
) -> bytes:  # fmt: skip
    """The block that deletes `keys`; `ordering` are their ordering values, or None.

    A row with a greater ordering value stays, and so does one that is written later. A `moved` row
    lost here already, so its value may be one that Hudi takes for none.
    """
    import fastavro

    if ordering is not None:
        refuse_ordering_type(target.config.precombine or "", ordering.type)
    values = [BY_COMMIT] * len(keys) if ordering is None else _wrapped(ordering, moved)
    record = {"deleteRecordList": [
        {"recordKey": key, "partitionPath": partition, "orderingVal": value}
        for key, value in zip(keys.to_pylist(), values, strict=True)
    ]}  # fmt: skip
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(DELETES), record)
    content = struct.pack(">ii", DELETES_VERSION, out.tell()) + out.getvalue()
    header = {INSTANT: target.instant, SCHEMA: _with_meta(avro_schema(columns, target.config.name))}
    return log_block(DELETE, header, content)


def _wrapped(ordering: Any, moved: bool) -> list[tuple[str, dict[str, Any]]]:
    """Ordering values in the records that Hudi has for their type; `TableError`."""
    name = f"{_wrapper(ordering.type)}Wrapper"
    values = ordering if name == "DecimalWrapper" else ordering.cast(_as_number(ordering.type))
    wrapped: list[tuple[str, dict[str, Any]]] = [(name, {"value": v}) for v in values.to_pylist()]
    if BY_COMMIT in wrapped and not moved:
        why = "are to be deleted with the ordering value 0 of an int or a date, which Hudi takes "
        raise RefusedRows("", why + "for none: rows would go whatever their own", "give another")
    return wrapped


def _wrapper(kind: pa.DataType) -> str | None:
    """Which of Hudi's records has an ordering value of this type; None: readers differ on it.

    Not `Date` and `TimestampMicros`: Hudi 1.2 fails to compare these with the numbers in its rows.
    """
    import pyarrow as pa
    import pyarrow.types as is_

    if is_.is_decimal128(kind):
        fits = kind.scale <= DECIMAL_DIGITS and kind.precision - kind.scale <= DECIMAL_DIGITS
        return "Decimal" if fits else None
    return {
        pa.int32(): "Int", pa.date32(): "Int", pa.int64(): "Long", pa.float32(): "Float",
        pa.timestamp("us", "UTC"): "Long", pa.float64(): "Double", pa.string(): "String",
    }.get(kind)  # fmt: skip


def log_block(kind: int, header: Mapping[int, str], content: bytes | memoryview) -> bytes:
    """Its size is counted behind the size; the one at its end, from behind the magic word."""
    entries = b"".join(
        struct.pack(">ii", key, len(text.encode())) + text.encode()
        for key, text in sorted(header.items())
    )
    head = struct.pack(">iii", BLOCK_VERSION, kind, len(header)) + entries
    size = len(head) + len(content) + 20
    return b"".join((
        MAGIC, struct.pack(">q", size), head, struct.pack(">q", len(content)), content,
        struct.pack(">iq", 0, size + len(MAGIC)),
    ))  # fmt: skip


def _with_meta(described: str) -> str:
    schema = json.loads(described)
    meta = [{"name": name, "type": ["null", "string"], "doc": "", "default": None}
            for name in META_COLUMNS]  # fmt: skip
    return json.dumps({**schema, "fields": [*meta, *schema["fields"]]})


def _as_numbers(columns: pa.Schema) -> pa.Schema:
    """Times as the numbers that Avro has for them."""
    import pyarrow as pa

    return pa.schema([(each.name, _as_number(each.type)) for each in columns])


def _as_number(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa
    import pyarrow.types as is_

    if is_.is_timestamp(kind):
        return pa.int64()
    if is_.is_date(kind):
        return pa.int32()
    if is_.is_list(kind):
        return pa.list_(_as_number(kind.value_type))
    if is_.is_map(kind):
        return pa.map_(pa.string(), _as_number(kind.item_type))
    if is_.is_struct(kind):
        return pa.struct([(each.name, _as_number(each.type)) for each in kind])
    return kind


def refuse_unordered(config: TableConfig, rows: pa.Table) -> None:
    """Raise `TableError` unless every row has an ordering value that all readers compare alike."""
    import pyarrow.compute as pc
    import pyarrow.types as is_

    name = config.precombine
    if not config.merged or name is None:
        return
    if name not in rows.column_names:
        why = "is missing: the table's precombine field shows which rows a delete is later than"
        raise RefusedRows(name, why)
    refuse_ordering_type(name, rows[name].type)
    if rows[name].null_count:
        why = f"is null in {rows[name].null_count} rows: it is the precombine field, and readers "
        raise RefusedRows(name, why + "of log files differ on nulls", "give each row a value")
    if is_.is_floating(rows[name].type) and pc.any(pc.is_nan(rows[name])).as_py():
        why = "is the precombine field, and is not a number in some rows"
        raise RefusedRows(name, why, "give each row a value that can be compared")


def refuse_ordering_type(name: str, kind: pa.DataType) -> None:
    """Raise `TableError` unless all readers of log files compare values of this type alike."""
    if _wrapper(stored(kind, name)) is None:
        why = f"is the precombine field and is {str(kind)[:SHOWN]}: readers of log "
        raise RefusedRows(name, why + "files do not compare this type alike", "cast it")
