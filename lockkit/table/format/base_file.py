"""A base file: one file group's rows as parquet, with Hudi's five meta columns in front.

Written as a stream: rows are added in batches, and only one row group is held in memory. Plain
functions over Arrow, so that Spark's executors can call them and return one row of statistics.
"""

from __future__ import annotations

import io
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from lockkit.errors import TableError
from lockkit.table.format.layout import NO_COMMIT, TaskId, WriteStat, file_name, in_partition
from lockkit.table.format.properties import TableConfig
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
"""Rows held back until they fill a row group; what a writer's memory is bounded by."""
ROW_GROUP_ROWS_MAX = 1_000_000
KEY_SCALE_MAX = 6
MIN_KEY, MAX_KEY = "hoodie_min_record_key", "hoodie_max_record_key"


@dataclass(frozen=True, slots=True)
class Target:
    """All that an executor needs to write files of one transaction; small, and pickles."""

    instant: str
    config: TableConfig
    schema: pa.Schema | None = None
    """The table's columns as this transaction leaves them; None: those that the rows have."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One file group at one instant: what a rewrite reads, and what it must name as its base."""

    partition: str
    file_id: str
    instant: str
    path: str


@dataclass(frozen=True, slots=True)
class BaseFile:
    """A file to put: where, what, and its line in the commit."""

    key: str
    body: bytes
    stat: WriteStat


# --- writing ------------------------------------------------------------------------------------


@dataclass(slots=True)
class BaseFileWriter:
    """A base file that is being written into `out`: fresh rows, and rows of the slice before it.

    `columns` are the table's, without the meta columns; what is added is made to conform to them.
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
        """Written so far, and about what the held rows will take."""
        return self.out.tell() + self._pending_bytes // 3

    def add(self, rows: pa.Table, keys: Any = None) -> None:
        """Fresh rows, `keys` their record keys if known; `TableError` if one has none."""
        keys = record_keys(self.target.config, rows) if keys is None else keys
        first, count = self.added, rows.num_rows
        self.added += count
        rows = conform(rows, self.columns)
        rows = rows.add_column(0, RECORD_KEY, keys)
        numbers = sequence_numbers(self.target, self.task, first, count)
        rows = rows.add_column(0, COMMIT_SEQNO, numbers)
        self._hold(rows.add_column(0, COMMIT_TIME, constant(self.target.instant, count)))

    def copy(self, rows: pa.Table) -> None:
        """Rows of the slice before, as `rows_to_copy` reads them: only the file name changes."""
        import pyarrow as pa

        kept = {COMMIT_TIME: _few(), COMMIT_SEQNO: pa.string(), RECORD_KEY: pa.string()}
        self._hold(conform(rows, pa.schema([*pa.schema(kept), *self.columns])))

    def close(self, *, inserts: int, updates: int = 0, deletes: int = 0) -> WriteStat:
        """Finish the file; `out` then holds all of it."""
        self._flush()
        least, greatest = self._least or "", self._greatest or ""
        with _disk_errors_named():
            writer = self._writer or self._open()
            writer.add_key_value_metadata({MIN_KEY: least, MAX_KEY: greatest})
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
        """One row group of all that is held."""
        import pyarrow as pa
        import pyarrow.compute as pc

        pending = [rows for rows in self._pending if rows.num_rows]
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
        with _disk_errors_named():
            self._writer = self._writer or self._open()
            self._writer.write_table(rows, row_group_size=count)
        self.rows += count

    @property
    def _schema(self) -> pa.Schema:
        """The file's; what has few values is a dictionary to Arrow, strings to all others."""
        import pyarrow as pa

        text, few = pa.string(), _few()
        meta = pa.schema(list(zip(META_COLUMNS, (few, text, text, few, few), strict=True)))
        return pa.schema([*meta, *self.columns])

    def _open(self) -> Any:
        import pyarrow.parquet as pq

        # A dictionary of values that are all different is only thrown away again.
        distinct = {COMMIT_SEQNO, RECORD_KEY, *self.target.config.record_keys}
        return pq.ParquetWriter(
            self.out, self._schema, compression="snappy", store_schema=False,
            use_dictionary=[
                each.name for each in self._schema
                if each.name not in distinct and not _hardly_repeats(each.type)
            ],
        )  # fmt: skip


def sequence_numbers(target: Target, task: TaskId, first: int, count: int) -> pa.Array:
    """`_hoodie_commit_seqno` of `count` rows: a row's number among those that `task` wrote anew."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = pc.cast(pa.arange(first, first + count), pa.string())
    return pc.binary_join_element_wise(f"{target.instant}_{task.task}", numbers, "_")


def constant(value: str, count: int) -> pa.DictionaryArray:
    """One value for every row of a file, which costs next to nothing to write."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), [value])


def _few() -> pa.DataType:
    import pyarrow as pa

    return pa.dictionary(pa.int32(), pa.string())


def _hardly_repeats(kind: pa.DataType) -> bool:
    import pyarrow.types as is_

    return bool(is_.is_timestamp(kind) or is_.is_floating(kind))


@contextmanager
def _disk_errors_named() -> Iterator[None]:
    """Report a full disk, perhaps an executor's, as what it is."""
    try:
        yield
    except OSError as error:
        raise TableError(
            f"a data file could not be written to {tempfile.gettempdir()} of "
            f"{socket.gethostname()} ({str(error)[:120]}); make room there, or set TMPDIR, then "
            "write again"
        ) from None


def write_inserts(
    target: Target, rows: pa.Table, *, file_id: str, task: TaskId = TaskId()
) -> BaseFile:
    """A new file group of `rows`, all of one partition, in memory.

    `file_id` is new: `f"{clock.unique()}-0"`. Two rows with one key stay two rows: an insert does
    not look for them.
    """
    partition, out = partition_of(target.config, rows), io.BytesIO()
    draft = BaseFileWriter(target, partition, file_id, columns_of(target, rows.schema), out, task)
    draft.add(plain(rows))
    return in_memory(draft.close(inserts=rows.num_rows), out)


def in_memory(stat: WriteStat, out: io.BytesIO) -> BaseFile:
    return BaseFile(stat.path, out.getvalue(), stat)


# --- rows ---------------------------------------------------------------------------------------


def columns_of(target: Target, rows: pa.Schema) -> pa.Schema:
    return stored_schema(rows) if target.schema is None else target.schema


def plain(rows: pa.Table) -> pa.Table:
    """Without the meta columns."""
    return rows.drop_columns([name for name in META_COLUMNS if name in rows.column_names])


def record_keys(config: TableConfig, rows: pa.Table) -> Any:
    """Each row's record key as a string; `TableError` if one has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if config.composite:
        from lockkit.table.format.composite_keys import composite_keys

        return composite_keys(config, rows)
    keys = pc.cast(column_of(rows, config.record_key, "record key"), pa.string())
    if keys.null_count or pc.any(pc.equal(pc.binary_length(keys), 0)).as_py():
        raise TableError(
            f"{keys.null_count or 'some'} rows have no record key ({config.record_key}); "
            "every row needs one, or it could never be updated"
        )
    return keys


def _refuse_key_type(name: str, kind: pa.DataType) -> None:
    """Raise `TableError` for a type whose values Arrow, Spark and Java spell differently.

    Of a decimal, Java's `BigDecimal.toString` spells small values with an exponent if its scale is
    over 6.
    """
    import pyarrow as pa
    import pyarrow.types as is_

    known = (pa.string(), pa.int32(), pa.int64(), pa.date32())
    kind = stored(kind, name)
    if kind not in known and not (is_.is_decimal(kind) and 0 <= kind.scale <= KEY_SCALE_MAX):
        raise TableError(
            f"record key {name!r} has type {str(kind)[:SHOWN]}: its values have no "
            "one spelling to be compared by; cast it to string"
        )


def refuse_no_table(rows: object) -> None:
    """Raise `TableError` unless `rows` are an Arrow table."""
    import pyarrow as pa

    if not isinstance(rows, pa.Table):
        raise TableError(
            f"rows are written as a pyarrow.Table, and these are a {type(rows).__name__}; "
            "pyarrow.Table.from_pylist, from_pandas or from_batches makes one"
        )


def refuse_unfit(config: TableConfig, rows: pa.Schema, *, delete: bool = False) -> None:
    """Raise `TableError` for a column that the table needs and rows of this schema lack, and for a
    record key whose type is refused.
    """
    needed = {"record key": config.record_keys, "partition field": config.partition_fields}
    if not delete and config.precombine:
        needed["precombine field"] = [config.precombine]
    for what, names in needed.items():
        for name in names:
            if name not in rows.names:
                raise TableError(f"the rows have no column {name!r}, the table's {what}")
    for name in config.record_keys:
        _refuse_key_type(name, rows.field(name).type)
