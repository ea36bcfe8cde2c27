"""A base file: one file group's rows as parquet, with Hudi's five meta columns in front.

It is written as a stream: rows are added in batches, and memory holds one row group."""

from __future__ import annotations

import errno
import io
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from lockkit.table.errors import RefusedRows, TableError, UnsupportedTable
from lockkit.table.format.layout import NO_COMMIT, TaskId, WriteStat, file_name, in_partition
from lockkit.table.format.properties import PROPERTIES_KEY, TableConfig, to_properties
from lockkit.table.format.row_partitions import partition_of
from lockkit.table.format.schema import (
    COMMIT_SEQNO,
    COMMIT_TIME,
    FILE_NAME,
    META_COLUMNS,
    PARTITION_PATH,
    RECORD_KEY,
    SHOWN,
    column_of,
    conform,
    stored,
    stored_schema,
)
from lockkit.table.format.schema import avro_schema as avro_schema

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_BYTES = 32_000_000
"""Rows are held back until they fill a row group; this bounds a writer's and a reader's memory."""
ROW_GROUP_ROWS_MAX = 1_000_000
KEY_SCALE_MAX = 6
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
MIN_KEY, MAX_KEY = "hoodie_min_record_key", "hoodie_max_record_key"
FILTER = {"org.apache.hudi.bloomfilter": "/////wAAAAEBAAAACP8="}
"""It rules out no key, so that Hudi's bloom indexes search the file; without one, they fail."""


@dataclass(frozen=True, slots=True)
class Target:
    """What an executor needs to write files of one transaction; small, and can be pickled."""

    instant: str
    """The transaction's instant, which is part of every file's name."""
    config: TableConfig
    """The table's properties, as the transaction read them."""
    schema: pa.Schema | None = None
    """The table's columns after this transaction; None: the columns of the rows."""
    partial: bool = False
    """Whether new rows keep what is stored in the columns that they do not have."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One file group at one instant, which a rewrite reads and names as its base."""

    partition: str
    """The partition's path; "" in a table without partitions."""
    file_id: str
    """The file group's id, unique in its partition."""
    instant: str
    """The commit that wrote the file."""
    path: str
    """The file's key below the table's folder."""
    keys_in: tuple[str, ...] = field(default=(), compare=False, kw_only=True)
    """Earlier files that each have all of its keys, as far as that is known."""


@dataclass(frozen=True, slots=True)
class BaseFile:
    """A file to store: its key, its content and its statistics in the commit."""

    key: str
    """Where to store it, below the table's folder."""
    body: bytes
    """The parquet file."""
    stat: WriteStat
    """Its row for `prepare`."""


# --- writing ------------------------------------------------------------------------------------


@dataclass(slots=True)
class BaseFileWriter:
    """A base file that is being written to `out`: new rows, and rows of the previous slice.

    `columns` are the table's, without the meta columns; added rows are converted to them.
    """

    target: Target
    partition: str
    file_id: str
    columns: pa.Schema
    out: BinaryIO
    task: TaskId = field(default_factory=TaskId)
    previous: str = NO_COMMIT
    rows: int = 0
    added: int = 0
    _pending: list[pa.Table] = field(default_factory=list)
    _pending_bytes: int = 0
    _writer: Any = None
    _least: str | None = None
    _greatest: str | None = None

    @property
    def name(self) -> str:
        return file_name(self.file_id, self.target.instant, self.task)

    @property
    def size_bytes(self) -> int:
        """The bytes written so far, plus an estimate for the held rows."""
        return self.out.tell() + self._pending_bytes // 3

    def add(self, rows: pa.Table, keys: Any = None) -> None:
        """Add new rows; `keys` are their record keys if known. `TableError` if a row has no key."""
        first, count = self.added, rows.num_rows
        numbers = sequence_numbers(self.target, self.task, first, count)
        keys = record_keys(self.target.config, rows, numbers) if keys is None else keys
        self.added += count
        rows = conform(rows, self.columns)
        rows = rows.add_column(0, RECORD_KEY, keys)
        rows = rows.add_column(0, COMMIT_SEQNO, numbers)
        self._hold(rows.add_column(0, COMMIT_TIME, constant(self.target.instant, count)))

    def copy(self, rows: pa.Table) -> None:
        """Add rows of the previous slice, read by `rows_to_copy`: only the file name changes."""
        import pyarrow as pa

        from lockkit.table.format.promotion import as_later

        rows = as_later(rows, self.columns)
        kept = {COMMIT_TIME: _few(), COMMIT_SEQNO: pa.string(), RECORD_KEY: pa.string()}
        self._hold(conform(rows, pa.schema([*pa.schema(kept), *self.columns])))

    def close(self, *, inserts: int, updates: int = 0, deletes: int = 0) -> WriteStat:
        """Finish the file; `out` then holds all of it."""
        self._flush()
        with disk_errors_named():
            writer = self._writer or self._open()
            keys = {MIN_KEY: self._least or "", MAX_KEY: self._greatest or ""}
            writer.add_key_value_metadata({**keys, **FILTER})
            writer.close()
            self.out.flush()
        return WriteStat(
            partition=self.partition, file_id=self.file_id,
            path=in_partition(self.partition, self.name), writes=self.rows, previous=self.previous,
            inserts=inserts, updates=updates, deletes=deletes, size_bytes=self.out.tell(),
        )  # fmt: skip

    def _hold(self, rows: pa.Table) -> None:
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        held = sum(each.num_rows for each in self._pending)
        if self._pending_bytes >= ROW_GROUP_BYTES or held >= ROW_GROUP_ROWS_MAX:
            self._flush()

    def _flush(self) -> None:
        """Write all held rows, in row groups of about one size."""
        import pyarrow as pa
        import pyarrow.compute as pc

        size, pending = self._pending_bytes, [rows for rows in self._pending if rows.num_rows]
        self._pending, self._pending_bytes = [], 0
        if not pending:
            return
        rows = pa.concat_tables(pending)
        bounds = pc.min_max(rows[RECORD_KEY]).as_py()
        self._least = min(filter(None, (self._least, bounds["min"])))
        self._greatest = max(filter(None, (self._greatest, bounds["max"])))
        count = rows.num_rows
        rows = rows.add_column(3, PARTITION_PATH, constant(self.partition, count))
        rows = rows.add_column(4, FILE_NAME, constant(self.name, count))
        with disk_errors_named():
            self._writer = self._writer or self._open()
            parts = max(1, size // ROW_GROUP_BYTES, count // ROW_GROUP_ROWS_MAX)
            self._writer.write_table(rows, row_group_size=-(-count // parts))
        self.rows += count

    @property
    def _schema(self) -> pa.Schema:
        """The file's schema; Arrow reads a column with few values as a dictionary."""
        import pyarrow as pa

        text, few = pa.string(), _few()
        meta = pa.schema(list(zip(META_COLUMNS, (few, text, text, few, few), strict=True)))
        return pa.schema([*meta, *self.columns])

    def _open(self) -> Any:
        import pyarrow.parquet as pq

        # Parquet would discard a dictionary of values that are all different.
        distinct = {COMMIT_SEQNO, RECORD_KEY, *self.target.config.record_keys}
        return pq.ParquetWriter(
            self.out, self._schema, compression="snappy", store_schema=False,
            write_page_checksum=True,
            use_dictionary=[
                each.name for each in self._schema
                if each.name not in distinct and not _hardly_repeats(each.type)
            ],
        )  # fmt: skip


def sequence_numbers(target: Target, task: TaskId, first: int, count: int) -> pa.Array:
    """`_hoodie_commit_seqno` of `count` rows: a row's number among the new rows of `task`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = pc.cast(pa.arange(first, first + count), pa.string())
    return pc.binary_join_element_wise(f"{target.instant}_{task.task}", numbers, "_")


def constant(value: str, count: int) -> pa.DictionaryArray:
    """A column with one value for every row of a file, which is cheap to write."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), [value])


def _few() -> pa.DataType:
    import pyarrow as pa

    return pa.dictionary(pa.int32(), pa.string())


def _hardly_repeats(kind: pa.DataType) -> bool:
    import pyarrow.types as is_

    return bool(is_.is_timestamp(kind) or is_.is_floating(kind))


@contextmanager
def disk_errors_named() -> Iterator[None]:
    """Raise a `TableError` that names the machine if its disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise TableError(
            tempfile.gettempdir(),
            f"of {socket.gethostname()} has no room for a data file ({str(error)[:120]})",
            "make room there, or set TMPDIR, then write again",
        ) from None


@contextmanager
def draft_file() -> Iterator[BinaryIO]:
    """A file on the local disk that goes when it is closed. A full disk is a `TableError`."""
    with disk_errors_named(), tempfile.TemporaryFile() as file:
        yield cast(BinaryIO, file)


def write_inserts(
    target: Target, rows: pa.Table, *, file_id: str, task: TaskId = TaskId(),
    wrote: Callable[[int], object] = int,
) -> BaseFile:  # fmt: skip
    """A new file group, in memory. An insert does not merge rows with equal keys.

    :param target: `transaction.target`.
    :param rows: the rows, all of one partition.
    :param file_id: a new id: `f"{clock.unique()}-0"`.
    :param task: the task that writes it; needed if several tasks write files.
    :param wrote: gets the number of rows of each part that is written.
    :raises RefusedRows: if a row has no key, or the rows do not fit the table.
    """
    partition, out = partition_of(target.config, rows), io.BytesIO()
    draft = BaseFileWriter(target, partition, file_id, columns_of(target, rows.schema), out, task)
    for first in range(0, max(1, rows.num_rows), ROW_GROUP_ROWS_MAX):
        part = rows.slice(first, ROW_GROUP_ROWS_MAX)
        draft.add(plain(part))
        wrote(part.num_rows)
    return in_memory(draft.close(inserts=rows.num_rows), out)


def in_memory(stat: WriteStat, out: io.BytesIO) -> BaseFile:
    return BaseFile(stat.path, out.getvalue(), stat)


# --- rows ---------------------------------------------------------------------------------------


def columns_of(target: Target, rows: pa.Schema) -> pa.Schema:
    return stored_schema(rows) if target.schema is None else target.schema


def plain(rows: pa.Table) -> pa.Table:
    """Without the meta columns."""
    return rows.drop_columns([name for name in META_COLUMNS if name in rows.column_names])


def record_keys(config: TableConfig, rows: pa.Table, new: Any = None) -> Any:
    """Each row's record key as a string, or `new` ones; `TableError` if a row has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not config.record_key and new is not None:
        return new
    if config.composite:
        from lockkit.table.format.composite_keys import composite_keys

        return composite_keys(config, rows)
    keys = column_of(rows, config.record_key, "record key")
    keys = keys if keys.type == pa.string() else pc.cast(keys, pa.string())
    if keys.null_count or pc.index(keys, "").as_py() >= 0:
        why = f"is the record key, and {keys.null_count or 'some'} rows have no record key"
        raise RefusedRows(config.record_key, why, "give each row one, or none could be updated")
    return keys


def refuse_key_type(name: str, kind: pa.DataType) -> None:
    """Raise `TableError` for a type whose values Arrow, Spark and Java spell differently.

    Java's `BigDecimal.toString` writes small decimals with an exponent if their scale is over 6.
    """
    import pyarrow as pa
    import pyarrow.types as is_

    known = (pa.string(), pa.int32(), pa.int64(), pa.date32())
    kind = stored(kind, name)
    if kind not in known and not (is_.is_decimal(kind) and 0 <= kind.scale <= KEY_SCALE_MAX):
        why = f"is a record key, and values of {str(kind)[:SHOWN]} have more than one spelling"
        raise RefusedRows(name, why, "cast it to string")


def refuse_no_table(rows: object) -> None:
    """Raise `TableError` unless `rows` are an Arrow table whose text is UTF-8.

    Arrow does not check the text of a Parquet file that it reads, and other readers do.
    """
    import pyarrow as pa

    if not isinstance(rows, pa.Table):
        why = f"are a {type(rows).__name__}, and a write takes a pyarrow.Table"
        raise RefusedRows("", why, "use pyarrow.Table.from_pylist, from_pandas or from_batches")
    for of, column in zip(rows.schema, rows.columns, strict=True):
        try:
            column.validate(full="string" in str(of.type))
        except pa.ArrowInvalid as error:
            cure = "cast it to binary, or decode it as what it is"
            raise RefusedRows(of.name[:SHOWN], f"is broken: {str(error)[:120]}", cure) from None


def refuse_unfit(config: TableConfig, rows: pa.Schema, *, delete: bool = False) -> None:
    """Raise `TableError` if rows of this schema lack a column that the table needs, or if a record
    key has a refused type.
    """
    needed = {"record key": config.record_keys, "partition field": config.partition_fields}
    if not delete and config.precombine:
        needed["precombine field"] = [config.precombine]
    for what, names in needed.items():
        for name in names:
            if name not in rows.names:
                raise RefusedRows(name, f"is missing: the table's {what}")
    for name in config.record_keys:
        refuse_key_type(name, rows.field(name).type)


def refuse_lacking(config: TableConfig, table: pa.Schema | None) -> None:
    """Raise `UnsupportedTable` if the table's columns lack one that its properties name."""
    named = {*config.record_keys, *config.partition_fields, config.precombine} - {None}
    if table is not None and not named <= {*table.names}:
        from lockkit.table.format.named_columns import lacking  # rarely so

        why = "; ".join(lacking(to_properties(config), table))
        raise UnsupportedTable(PROPERTIES_KEY, f"says: {why}")
