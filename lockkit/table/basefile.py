"""A base file: one file group's rows as parquet, with Hudi's five meta columns in front.

Plain functions over Arrow tables, so that Spark's executors can call them and send home one row of
statistics per file. They write nothing: the caller puts the bytes, if absent.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockkit.table.ask import TableError
from lockkit.table.layout import (
    NO_COMMIT,
    TaskId,
    WriteStat,
    file_name,
    in_partition,
    partition_path,
)
from lockkit.table.properties import TableConfig

if TYPE_CHECKING:
    import pyarrow as pa

COMMIT_TIME = "_hoodie_commit_time"
COMMIT_SEQNO = "_hoodie_commit_seqno"
RECORD_KEY = "_hoodie_record_key"
PARTITION_PATH = "_hoodie_partition_path"
FILE_NAME = "_hoodie_file_name"
META_COLUMNS = (COMMIT_TIME, COMMIT_SEQNO, RECORD_KEY, PARTITION_PATH, FILE_NAME)


@dataclass(frozen=True, slots=True)
class Target:
    """All that an executor needs to write files of one transaction; small, and pickles."""

    instant: str
    config: TableConfig


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


def write_inserts(
    target: Target, rows: pa.Table, *, file_id: str, task: TaskId = TaskId()
) -> BaseFile:
    """A new file group of `rows`, all of one partition.

    `file_id` is new: `f"{clock.unique()}-0"`. Two rows with one key stay two rows: an insert does
    not look for them.
    """
    partition = partition_of(target.config, rows)
    name = file_name(file_id, target.instant, task)
    return _base_file(
        with_meta(target, plain(rows), partition, name, task), partition, name, file_id,
        previous=NO_COMMIT, inserts=rows.num_rows, updates=0,
    )  # fmt: skip


def rewrite_group(
    target: Target, base: Slice, old: pa.Table, upserts: pa.Table, *, task: TaskId = TaskId()
) -> BaseFile:
    """The next slice of a file group: `old` (as read, with meta columns) with `upserts` merged in.

    An upsert replaces the row that has its key, or is added. Of several with one key the greatest
    precombine value wins, else the last. Rows that are only copied keep their commit time.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    fresh = _latest_per_key(target.config, plain(upserts))
    if fresh.num_rows:
        found = partition_of(target.config, fresh)
        if found != base.partition:
            raise TableError(f"rows of {found} do not belong in a file group of {base.partition}")
    name = file_name(base.file_id, target.instant, task)
    added = with_meta(target, fresh, base.partition, name, task)
    replaced = pc.is_in(old[RECORD_KEY], value_set=added[RECORD_KEY].combine_chunks())
    kept = old.filter(pc.invert(replaced))
    kept = kept.set_column(
        kept.schema.get_field_index(FILE_NAME), FILE_NAME, pa.repeat(name, kept.num_rows)
    )
    updates = pc.count_distinct(old.filter(replaced)[RECORD_KEY]).as_py()
    added = added.select(_in_order(kept, added))
    merged = pa.concat_tables([kept, added], promote_options="default")
    return _base_file(
        merged, base.partition, name, base.file_id,
        previous=base.instant, inserts=fresh.num_rows - updates, updates=updates,
    )  # fmt: skip


def _in_order(old: pa.Table, new: pa.Table) -> list[str]:
    """The new rows' columns, in the old file's order; a column of theirs alone comes last."""
    known = [name for name in old.column_names if name in new.column_names]
    return known + [name for name in new.column_names if name not in known]


def _base_file(
    table: pa.Table, partition: str, name: str, file_id: str, *,
    previous: str, inserts: int, updates: int,
) -> BaseFile:  # fmt: skip
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    bounds = pc.min_max(table[RECORD_KEY]).as_py()
    table = table.replace_schema_metadata(
        {"hoodie_min_record_key": bounds["min"] or "", "hoodie_max_record_key": bounds["max"] or ""}
    )
    out = io.BytesIO()
    # Microseconds: nanoseconds are unknown to Spark, and Hudi's schema has no word for them.
    pq.write_table(table, out, compression="snappy", coerce_timestamps="us",
                   allow_truncated_timestamps=True, store_schema=False)  # fmt: skip
    body = out.getvalue()
    path = in_partition(partition, name)
    stat = WriteStat(
        partition=partition, file_id=file_id, path=path, writes=table.num_rows,
        previous=previous, inserts=inserts, updates=updates, size_bytes=len(body),
    )  # fmt: skip
    return BaseFile(path, body, stat)


# --- rows ---------------------------------------------------------------------------------------


def plain(rows: pa.Table) -> pa.Table:
    """Without the meta columns."""
    return rows.drop_columns([name for name in META_COLUMNS if name in rows.column_names])


def partition_of(config: TableConfig, rows: pa.Table) -> str:
    """The one partition that all rows belong to; `TableError` if there are several, or no rows."""
    import pyarrow.compute as pc

    if rows.num_rows == 0:
        raise TableError("no rows: an empty file group is not written")
    if config.partition_by is None:
        return ""
    values = pc.unique(_column(rows, config.partition_by, "partition field")).to_pylist()
    if len(values) != 1:
        raise TableError(
            f"rows of {len(values)} partitions ({config.partition_by}) for one file group; split "
            "them by partition first"
        )
    return partition_path(config, values[0])


def with_meta(target: Target, rows: pa.Table, partition: str, name: str, task: TaskId) -> pa.Table:
    """The rows behind the five columns that Hudi's readers go by."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = pc.cast(_column(rows, target.config.record_key, "record key"), pa.string())
    if keys.null_count or pc.any(pc.equal(keys, "")).as_py():
        raise TableError(
            f"{keys.null_count or 'some'} rows have no record key ({target.config.record_key}); "
            "every row needs one, or it could never be updated"
        )
    count = rows.num_rows
    numbers = pc.cast(pa.array(range(count), pa.int64()), pa.string())
    meta = {
        COMMIT_TIME: pa.repeat(target.instant, count),
        COMMIT_SEQNO: pc.binary_join_element_wise(f"{target.instant}_{task.task}", numbers, "_"),
        RECORD_KEY: keys,
        PARTITION_PATH: pa.repeat(partition, count),
        FILE_NAME: pa.repeat(name, count),
    }
    return pa.table({**meta, **{each: rows[each] for each in rows.column_names}})


def _latest_per_key(config: TableConfig, rows: pa.Table) -> pa.Table:
    """One row per key: the greatest precombine value, and of equals the last."""
    import pyarrow as pa

    key = _column(rows, config.record_key, "record key")
    if rows.num_rows < 2:
        return rows
    numbered = pa.table({"key": key, "row": pa.array(range(rows.num_rows), pa.int64())})
    order = [("row", "ascending")]
    if config.precombine is not None:
        best = _column(rows, config.precombine, "precombine field")
        numbered = numbered.append_column("best", best)
        # A row without a precombine value loses against any that has one.
        numbered = numbered.sort_by([("best", "ascending"), *order])
        nulls = numbered.filter(numbered["best"].is_null())
        numbered = pa.concat_tables([nulls, numbered.filter(numbered["best"].is_valid())])
    winners = numbered.group_by("key", use_threads=False).aggregate([("row", "last")])
    return rows.take(winners.sort_by("row_last")["row_last"])


def _column(rows: pa.Table, name: str, what: str) -> Any:
    if name not in rows.column_names:
        raise TableError(f"the rows have no column {name!r}, the table's {what}")
    return rows[name]


# --- reading ------------------------------------------------------------------------------------


def read_base_file(key: str, body: bytes) -> pa.Table:
    """A base file's rows, meta columns included; `TableError` if it is not parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(io.BytesIO(body))
    except (pa.ArrowInvalid, OSError) as error:
        raise TableError(f"{key} is not a readable parquet file: {str(error)[:120]}") from None


# --- schema -------------------------------------------------------------------------------------


def avro_schema(rows: pa.Schema, name: str) -> str:
    """The Avro schema that Hudi keeps in a commit's `extraMetadata`; without the meta columns."""
    fields = [
        {"name": field.name, "type": ["null", _avro_type(field.type, field.name)], "default": None}
        for field in rows
        if field.name not in META_COLUMNS
    ]
    record = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    return json.dumps(
        {"type": "record", "name": f"{record}_record", "namespace": f"hoodie.{record}",
         "fields": fields}
    )  # fmt: skip


def _avro_type(kind: pa.DataType, name: str) -> Any:
    import pyarrow.types as is_

    if is_.is_boolean(kind):
        return "boolean"
    if is_.is_int8(kind) or is_.is_int16(kind) or is_.is_int32(kind):
        return "int"
    if is_.is_int64(kind):
        return "long"
    if is_.is_float32(kind):
        return "float"
    if is_.is_float64(kind):
        return "double"
    if is_.is_string(kind) or is_.is_large_string(kind):
        return "string"
    if is_.is_binary(kind) or is_.is_large_binary(kind):
        return "bytes"
    if is_.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if is_.is_timestamp(kind):
        # Without a zone Avro says *local* timestamp; Spark's have one, and are UTC inside.
        local = "" if kind.tz else "local-"
        return {"type": "long", "logicalType": f"{local}timestamp-micros"}
    if is_.is_list(kind) or is_.is_large_list(kind):
        return {"type": "array", "items": ["null", _avro_type(kind.value_type, name)]}
    raise TableError(f"column {name!r} has type {kind}, which is not written here; cast it first")
