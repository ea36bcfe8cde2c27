"""The partition of each row, and whether the row deletes its key there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lockkit.table.errors import RefusedRows
from lockkit.table.format.partition import partition_path
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.schema import DELETED_FLAG, column_of

if TYPE_CHECKING:
    import pyarrow as pa
def partition_numbers(config: TableConfig, rows: pa.Table) -> tuple[pa.Array, list[str]]:
    """The number of each row's partition, and the path of each number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values: list[tuple[Any, ...]] = [()]
    numbers = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    for field in config.partition_fields:
        column = column_of(rows, field, "partition field").combine_chunks()
        coded = column.dictionary_encode(null_encoding="encode")
        own = coded.dictionary.to_pylist()
        pairs = pc.add(pc.multiply(numbers, len(own)), coded.indices.cast(pa.int64()))
        coded = pairs.dictionary_encode()
        values = [(*values[pair // len(own)], own[pair % len(own)])
                  for pair in coded.dictionary.to_pylist()]  # fmt: skip
        numbers = coded.indices.cast(pa.int64())
    paths = [partition_path(config, each) for each in values]
    places = {path: place for place, path in enumerate(dict.fromkeys(paths))}
    # Several values may have one path: a day's times, null and "".
    return pa.array([places[path] for path in paths], pa.int64()).take(numbers), list(places)


def partition_of(config: TableConfig, rows: pa.Table) -> str:
    """The one partition that all rows belong to; `TableError` if there are several, or no rows."""
    if rows.num_rows == 0:
        raise RefusedRows("", "are empty: an empty file group is not written")
    paths = set(partition_numbers(config, rows)[1])
    if len(paths) != 1:
        raise RefusedRows(
            "", f"are of {len(paths)} partitions ({config.partition_by}), for one file group",
            "split them by partition first",
        )  # fmt: skip
    return paths.pop()


def by_partition(config: TableConfig, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each partition, in the order of its first one, without those that are deleted."""
    import pyarrow.compute as pc

    if DELETED_FLAG in rows.column_names:
        rows = rows.filter(pc.invert(deleted(rows)))
    numbers, paths = partition_numbers(config, rows)
    for number, path in enumerate(paths if rows.num_rows else ()):
        yield path, rows if len(paths) == 1 else rows.filter(pc.equal(numbers, number))


def deleted(rows: pa.Table) -> pa.Array:
    """Which of the rows delete their key, by Hudi's flag; one of another type is any column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if DELETED_FLAG not in rows.column_names or rows[DELETED_FLAG].type != pa.bool_():
        return pa.repeat(pa.scalar(False), rows.num_rows)
    return pc.fill_null(rows[DELETED_FLAG].combine_chunks(), False)
