"""The entries of log blocks as Arrow columns: keys, ordering values, and the columns to read.

`log_order` decides which of them stand. A partial row has some columns; the others stay as the
entry before it, or the base file, has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lockkit.table.errors import UnsupportedTable
from lockkit.table.format.avro_columns import by_polars
from lockkit.table.format.avro_flat import by_numpy
from lockkit.table.format.column_ids import ColumnIds, Stored, as_now
from lockkit.table.format.log_blocks import (
    AVRO,
    DELETE,
    PARQUET,
    PARTIAL,
    SCHEMA,
    Block,
    avro_rows,
    deleted_keys,
)
from lockkit.table.format.promotion import promoted
from lockkit.table.format.row_partitions import deleted
from lockkit.table.format.schema import DELETED_FLAG, META_COLUMNS, RECORD_KEY
from lockkit.table.format.schema_reading import arrow_schema
from lockkit.table.read import log_order
from lockkit.table.read.key_index import KeyIndex
from lockkit.table.read.log_order import DELETE_ALWAYS, FLAGGED, ROW

OPERATION = "_hoodie_operation"
DELETING = ("D", "-U")
ROWS_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class LogColumns:
    """What is read of each log block: the ordering columns, and the columns of the rows."""

    order: pa.Schema
    rows: pa.Schema
    key: str = RECORD_KEY
    """One of `rows`, of strings, if it has the keys. Partial rows may lack it."""
    ids: ColumnIds | None = None
    """If columns are matched by their ids."""


@dataclass(frozen=True, slots=True)
class LogEntries:
    """Entries in the order in which they were written; the columns have equal lengths."""

    keys: pa.Array
    kinds: pa.Array
    """Of `log_order`."""
    order: tuple[pa.Array, ...]
    rows: pa.Table
    """The columns to read; nulls where an entry is a delete."""
    has: pa.Table | None = None
    """Of each row, which columns it has; None: all of them."""
    index: KeyIndex | None = field(default=None, compare=False)
    """Of `keys`, if it is known already."""

    def take(self, place: pa.Array) -> LogEntries:
        return LogEntries(
            self.keys.take(place), self.kinds.take(place),
            tuple(each.take(place) for each in self.order), self.rows.take(place),
            None if self.has is None else self.has.take(place),
        )  # fmt: skip


def merged_entries(blocks: Iterable[Block], columns: LogColumns) -> LogEntries:
    """The entry of each key, merged over all these blocks.

    Raises a `LookupError`, `ValueError` or the like for a block that cannot be read.
    """
    found = [_entries(each, columns) for each in blocks]
    if all(each.has is None for each in found):
        return _standing(_concatenated(found, columns))
    merged = _concatenated([], columns)
    for each in found:
        for part in _of_distinct_keys(each):
            merged = _onto(merged, part)
    return merged


def _standing(found: LogEntries) -> LogEntries:
    index = KeyIndex(found.keys)
    if index.distinct:
        return replace(found, index=index)
    return found.take(log_order.standing(index, found.kinds, found.order))


def _concatenated(found: Sequence[LogEntries], columns: LogColumns) -> LogEntries:
    def joined(arrays: Iterable[Any], kind: pa.DataType) -> pa.Array:
        return pa.chunked_array(arrays, kind).combine_chunks()

    return LogEntries(
        joined((each.keys for each in found), pa.string()),
        joined((each.kinds for each in found), pa.uint8()),
        tuple(joined((each.order[n] for each in found), field.type)
              for n, field in enumerate(columns.order)),
        pa.concat_tables([columns.rows.empty_table(), *(each.rows for each in found)]),
    )  # fmt: skip


# --- partial rows ---------------------------------------------------------------------------------


def _of_distinct_keys(found: LogEntries) -> Iterator[LogEntries]:
    """Parts in which no key comes twice: each key's first entry, then each key's second, ..."""
    import numpy as np

    number = found.keys.dictionary_encode("encode").indices.to_numpy()
    by_key = np.argsort(number, kind="stable")
    first = np.flatnonzero(np.diff(number[by_key], prepend=-1))
    turn = np.empty_like(by_key)
    turn[by_key] = np.arange(len(by_key)) - np.repeat(first, np.diff(first, append=len(by_key)))
    if not turn.any():
        yield found
        return
    for part in np.split(np.argsort(turn, kind="stable"), np.cumsum(np.bincount(turn))[:-1]):
        yield found.take(pa.array(part))


def _onto(old: LogEntries, new: LogEntries) -> LogEntries:
    """`new`, whose keys are distinct, merged with what was written before it.

    The row that stands has the columns that it lacks from the other one, whichever that is.
    """
    completed, before = _completed(new, old), _completed(old, new)
    columns = LogColumns(pa.schema([]), old.rows.schema)
    both = _concatenated([before, completed], columns)
    order = tuple(
        pa.concat_arrays([one, two]) for one, two in zip(old.order, new.order, strict=True)
    )
    has = pa.concat_tables([_has(before, None), _has(completed, None)])
    return _standing(LogEntries(both.keys, both.kinds, order, both.rows, has))


def _completed(one: LogEntries, by: LogEntries) -> LogEntries:
    """The rows of `one`, with the columns that they lack from the row of their key in `by`."""
    place = pc.index_in(one.keys, value_set=by.keys)
    rows_meet = pc.and_(pc.equal(one.kinds, ROW), pc.equal(by.kinds.take(place), ROW))
    return fill(one, by.rows.take(place), pc.fill_null(rows_meet, False), _has(by, place))


def _has(of: LogEntries, place: Any) -> pa.Table:
    every = pa.repeat(pa.scalar(True), len(of.keys))
    has = of.has or pa.table([every] * of.rows.num_columns, of.rows.column_names)
    return has if place is None else has.take(place)


def fill(
    new: LogEntries, rows: pa.Table, where: pa.Array, has: pa.Table | None = None
) -> LogEntries:
    """`new`, with the columns that its rows lack from `rows`, `where` these are to be used.

    `rows` has as many rows as `new`, and `has` says which columns each of them has.
    """
    if new.has is None:
        return new
    columns, kept, names = [], [], new.rows.column_names
    for name in names:
        own, known = new.has[name], where if has is None else pc.and_(where, has[name])
        known = pc.fill_null(known, False)
        lacks = pc.and_not(known, own)
        columns.append(pc.if_else(lacks, rows[name], new.rows[name]))
        kept.append(pc.or_(own, known))
    rows = pa.table(columns, schema=new.rows.schema)
    return LogEntries(new.keys, new.kinds, new.order, rows, pa.table(kept, names))


# --- what is in a block ---------------------------------------------------------------------------


def _entries(block: Block, columns: LogColumns) -> LogEntries:
    if block.kind == DELETE:
        return _deletes(block, columns)
    if block.kind == AVRO:
        types = arrow_schema(block.header[SCHEMA])  # refuses one that holds itself, or is unknown
        names = [each["name"] for each in json.loads(block.header[SCHEMA])["fields"]]
        read = partial(_avro, block, types)
    elif block.kind == PARQUET:
        content = pa.BufferReader(block.content)
        file = pq.ParquetFile(content, page_checksum_verification=True)  # its footer is read once
        types = file.schema_arrow
        names = types.names
        read = partial(_parquet, file)
    else:
        raise ValueError("blocks of this type are not read")
    if RECORD_KEY not in names:
        raise KeyError(RECORD_KEY)
    if columns.ids is not None:
        own = ((name, pa.string()) for name in names if name in META_COLUMNS)
        types = pa.schema([*own, *(each for each in types if each.name not in META_COLUMNS)])
        if (stored := columns.ids.stored(block.instant, types)) is not None:
            names, read = list(stored), partial(_by_ids, read, stored, types)
    whole = block.header.get(PARTIAL, "").lower() != "true"
    if not whole or columns.key not in names:
        columns = replace(columns, key=RECORD_KEY)
    rows = read(_wanted(columns, names, types))
    return _as_entries(rows, columns, None if whole else frozenset(names))


def _wanted(columns: LogColumns, names: Sequence[str], types: pa.Schema) -> pa.Schema:
    """The columns to read of a block that has these; `types` need not have those of Hudi's own.

    A column of the flag's name that is no boolean is a column like any other, as for Hudi.
    """
    fields = {columns.key: pa.string()}
    if DELETED_FLAG in types.names and types.field(DELETED_FLAG).type == pa.bool_():
        fields[DELETED_FLAG] = pa.bool_()
    if OPERATION in names:
        fields[OPERATION] = pa.string()
    return pa.schema(fields | {each.name: each.type for each in (*columns.order, *columns.rows)})


def _as_entries(rows: pa.Table, columns: LogColumns, has: frozenset[str] | None) -> LogEntries:
    gone = deleted(rows)
    if OPERATION in rows.column_names:
        gone = pc.or_(gone, pc.is_in(_one(rows, OPERATION), value_set=pa.array(DELETING)))
    kinds = pc.if_else(gone, pa.scalar(FLAGGED, pa.uint8()), pa.scalar(ROW, pa.uint8()))
    order = tuple(_one(rows, each.name) for each in columns.order)
    known = None
    if has is not None:
        known = pa.table({
            each.name: pa.repeat(pa.scalar(each.name in has), rows.num_rows)
            for each in columns.rows
        })  # fmt: skip
    return LogEntries(_one(rows, columns.key), kinds, order, rows.select(columns.rows.names), known)


def _by_ids(read: Any, stored: Stored, types: pa.Schema, schema: pa.Schema) -> pa.Table:
    names = [stored[each][0] for each in schema.names if each in stored]
    return as_now(read(pa.schema([types.field(each) for each in names])), stored, schema)


def _one(rows: pa.Table, name: str) -> pa.Array:
    return rows[name].combine_chunks()


def _parquet(file: Any, schema: pa.Schema) -> pa.Table:
    # Blocks are small, and file groups are merged side by side: threads of its own cost more.
    return _fitted(file.read(columns=schema.names, use_threads=False), schema)


def _avro(block: Block, types: pa.Schema, schema: pa.Schema) -> pa.Table:
    found = by_numpy(block, schema.names)
    found = by_polars(block, schema.names) if found is None else found
    if found is not None:
        return _fitted(found, schema)
    has = {each["name"] for each in json.loads(block.header[SCHEMA])["fields"]}
    own = pa.schema([types.field(each.name) if each.name in types.names else each
                     for each in schema if each.name in has])  # fmt: skip
    rows, parts = avro_rows(block), [own.empty_table()]
    while some := list(islice(rows, ROWS_AT_ONCE)):
        parts.append(pa.Table.from_pylist(some, own))
    return _fitted(pa.concat_tables(parts), schema)


def _fitted(found: pa.Table, schema: pa.Schema) -> pa.Table:
    """With the columns of `schema`: nulls where the block has none."""
    columns = [
        promoted(found[each.name], each.type, each.name) if each.name in found.column_names
        else pa.nulls(found.num_rows, each.type) for each in schema
    ]  # fmt: skip
    return pa.table(columns, schema=schema)


def _deletes(block: Block, columns: LogColumns) -> LogEntries:
    keys, kinds, values = list[str](), list[int](), list[tuple[Any, ...]]()
    nulls, count = (None,) * len(columns.order), len(columns.order)
    said = json.loads(block.header.get(SCHEMA) or '{"fields": []}')["fields"]
    units = {each["name"]: 1000 for each in said if 'timestamp-millis"' in json.dumps(each["type"])}
    factors = [units.get(each.name, 1) for each in columns.order]
    for each in deleted_keys(block):
        value = each.ordering if isinstance(each.ordering, tuple) else (each.ordering,)
        always = value == (None,) or not value
        if count and not always and len(value) != count:
            raise ValueError(f"a delete with {len(value)} ordering values, of {count}")
        keys.append(each.key)
        kinds.append(DELETE_ALWAYS if always else log_order.DELETE)
        if not always and count:  # a time is the number that rows have, in their unit
            pairs = zip(value, factors, strict=True)
            value = tuple(n * by if type(n) is int else n for n, by in pairs)
        values.append(nulls if always or not count else value)
    order = tuple(
        _array([each[n] for each in values], field) for n, field in enumerate(columns.order)
    )
    rows = pa.table([pa.nulls(len(keys), each.type) for each in columns.rows], schema=columns.rows)
    return LogEntries(pa.array(keys, pa.string()), pa.array(kinds, pa.uint8()), order, rows)


def _array(values: list[Any], field: pa.Field) -> pa.Array:
    """Ordering values as the column has them; a writer may have wrapped them as another type."""
    try:
        return pa.array(values, field.type)
    except (pa.ArrowTypeError, ValueError):
        return pa.array([_as_the_column(each, field) for each in values], field.type)


def _as_the_column(value: Any, field: pa.Field) -> Any:
    try:
        return pa.scalar(value).cast(field.type).as_py()
    except (pa.ArrowException, ArithmeticError, ValueError) as error:
        raise UnsupportedTable(
            f"the ordering column {field.name!r}", f"is {field.type}, and a delete has the value "
            f"{str(value)[:60]} ({type(value).__name__}): some versions of Hudi compare the two, "
            "and others fail", "read the table with Hudi",
        ) from error  # fmt: skip
