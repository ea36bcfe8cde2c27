"""The rows of a write: their columns, and the file group of each.

Nothing here writes; Spark runs it as a part of the jobs of `frame`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockkit.errors import TableError
from lockkit.spark.frame import GROUP, KEY, PART, STORED_PART, WriteJob, stored_keys
from lockkit.table.format.base_file import Slice, refuse_unfit
from lockkit.table.format.partition import NO_VALUE
from lockkit.table.format.properties import TableConfig

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ORDER, ROW, FOUND = "_lockkit_order", "_lockkit_row", "_lockkit_found"


def incoming_schema(frame: DataFrame) -> pa.Schema:
    """The rows' columns as Arrow types; `TableError` for a type that Arrow does not have."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(frame.schema, timezone="UTC")
    except PySparkException as error:
        raise TableError(f"these rows cannot be written: {str(error)[:200]}") from None


def check_columns(frame: DataFrame, config: TableConfig, operation: str) -> None:
    if config.composite:
        raise TableError(
            f"record key {config.record_key}, partitions by {config.partition_by}: of several "
            "fields, rows are written with lockkit.table.Table, or by Hudi's own writer"
        )
    refuse_unfit(config, incoming_schema(frame), delete=operation == "delete")


def bucketed(frame: DataFrame, config: TableConfig) -> DataFrame:
    """The rows with the number of their bucket in `GROUP`, in eight digits."""
    from pyspark.sql import functions as f

    key = f.col(config.record_key).cast("string")
    number = f.pmod(f.xxhash64(key), f.lit(config.buckets)).cast("string")
    frame = frame.withColumn(GROUP, f.lpad(number, 8, "0"))
    if config.partition_by is None:
        return frame
    return frame.withColumn(PART, _partition(frame, config.partition_by))


def _partition(frame: DataFrame, column: str) -> Any:
    """The partition's value; an empty string, and the folder's name of a null, have the path, and
    so the partition, of a null.
    """
    from pyspark.sql import functions as f

    value = frame[column]
    if dict(frame.dtypes)[column] != "string":
        return value
    return f.nullif(f.nullif(value, f.lit("")), f.lit(NO_VALUE))


def _on_key(frame: DataFrame, keys: DataFrame, config: TableConfig) -> Any:
    on = frame[config.record_key].cast("string") == keys[KEY]
    if config.partition_by is not None:
        theirs = _partition(keys, STORED_PART)
        on = on & _partition(frame, config.partition_by).eqNullSafe(theirs)
    return on


def with_found_keys(frame: DataFrame, job: WriteJob, slices: list[Slice]) -> DataFrame:
    """The rows with the file id in `GROUP` if one of `slices` has the key; one row for each."""
    from pyspark.sql import functions as f

    config = job.target.config
    keys = stored_keys(frame, job, slices).withColumnRenamed(GROUP, FOUND).distinct()
    # Spark takes what comes from Python for small, and would broadcast a whole table's keys.
    found = frame.join(keys.hint("merge"), _on_key(frame, keys, config), "left")
    tagged = found.withColumn(GROUP, f.coalesce(f.col(FOUND), f.col(GROUP)))
    return tagged.drop(FOUND, KEY, STORED_PART)


def without_known_keys(frame: DataFrame, job: WriteJob, slices: list[Slice]) -> DataFrame:
    """Only rows whose key none of `slices` has."""
    if not slices:
        return frame
    keys = stored_keys(frame, job, slices)
    return frame.join(keys.hint("merge"), _on_key(frame, keys, job.target.config), "left_anti")


def latest_of_each_key(frame: DataFrame, config: TableConfig) -> DataFrame:
    """One row for each key: the greatest precombine value, of equals the last."""
    from pyspark.sql import functions as f

    by = [f.col(config.record_key)]
    if config.partition_by is not None:
        by.append(_partition(frame, config.partition_by).alias(PART))
    order = [config.precombine] if config.precombine else []
    row = f.struct(*[f.col(f"`{name}`") for name in frame.columns])
    numbered = frame.withColumn(ORDER, f.monotonically_increasing_id())
    latest = numbered.groupBy(*by).agg(f.max_by(row, f.struct(*order, ORDER)).alias(ROW))
    return latest.select(f"{ROW}.*")
