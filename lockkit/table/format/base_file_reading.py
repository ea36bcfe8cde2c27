"""Reads base files as Arrow tables of a bounded size."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from lockkit.table.errors import DamagedFile
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.schema import COMMIT_TIME, FILE_NAME, PARTITION_PATH, RECORD_KEY

if TYPE_CHECKING:
    import pyarrow as pa

READ_BYTES = 1_000_000
"""Bytes of a column at a time; without it, memory holds a row group's whole stored size."""
BATCH_BYTES, BATCH_ROWS_MIN, BATCH_ROWS_MAX = 16_000_000, 1_024, 500_000
COPIED_ANEW = frozenset({PARTITION_PATH, FILE_NAME})
"""Meta columns with one value for a whole file, which a merge does not read."""


def read_base_file(key: str, body: bytes) -> pa.Table:
    """A base file's rows, meta columns included; `TableError` if it is not parquet.

    :param key: the file's key, for messages.
    :param body: its bytes.
    """
    import pyarrow as pa

    batches = list(base_file_batches(key, io.BytesIO(body)))
    return pa.concat_tables(batches)


def base_file_batches(key: str, source: BinaryIO, *, columns: list[str] | None = None) -> Any:
    """A base file's rows as tables of about `BATCH_BYTES`; an empty one gives one empty table.

    All columns, or only `columns`. `TableError` if it is not parquet.
    """
    with _readable(key):
        file = _opened(source)
        yield from _tables(file, columns or file.schema_arrow.names)


def rows_to_copy(config: TableConfig, key: str, source: BinaryIO) -> Any:
    """A base file's rows as `base_file_batches` gives them, without what a copy sets anew.

    A file has a string record key twice, and it is read once. Commit times stay a dictionary,
    because few differ.
    """
    import pyarrow as pa

    with _readable(key):
        file = _opened(source, read_dictionary=[COMMIT_TIME])
        schema, own = file.schema_arrow, config.record_key
        twice = own in schema.names and schema.field(own).type == pa.string()
        twice = twice and not config.composite
        skip = COPIED_ANEW | ({RECORD_KEY} if twice else set())
        for rows in _tables(file, [name for name in schema.names if name not in skip]):
            yield rows.append_column(RECORD_KEY, rows[own]) if twice else rows


@contextmanager
def _readable(key: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError, OSError) as error:
        raise DamagedFile(key, f"is not a readable parquet file: {str(error)[:120]}") from None


def _opened(source: BinaryIO, **options: Any) -> Any:
    import pyarrow.parquet as pq

    options |= {"pre_buffer": False, "page_checksum_verification": True}
    return pq.ParquetFile(source, buffer_size=READ_BYTES, **options)


def _tables(file: Any, columns: list[str]) -> Iterator[pa.Table]:
    import pyarrow as pa

    about = file.metadata
    wide = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
    rows = BATCH_BYTES * about.num_rows // max(wide, 1) if about.num_rows else 1
    rows = max(BATCH_ROWS_MIN, min(BATCH_ROWS_MAX, rows))
    schema = file.schema_arrow.remove_metadata()
    schema = pa.schema([schema.field(name) for name in columns])
    if about.num_rows == 0:
        yield schema.empty_table()
    for batch in file.iter_batches(rows, columns=columns):
        yield pa.Table.from_batches([batch]).replace_schema_metadata(None)
