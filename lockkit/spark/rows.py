"""The rows of a write: their columns, and the file group of each row.

Nothing here writes: it adds columns to a DataFrame, which the jobs of `frame` compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lockkit.spark.frame import GROUP, KEY, PART, STORED_PART, WriteJob, each_field, stored_keys
from lockkit.table.errors import RefusedOption, RefusedRows
from lockkit.table.format.base_file import Slice, record_keys, refuse_unfit
from lockkit.table.format.composite_keys import EMPTY, NULL
from lockkit.table.format.gate import NAMES
from lockkit.table.format.log_writing import refuse_unordered
from lockkit.table.format.partition import NO_VALUE, partition_path
from lockkit.table.format.properties import TableConfig
from lockkit.table.options import WriteOptions
from lockkit.table.read.bucket_groups import buckets_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

(DROPS,) = NAMES["drop_duplicates"]
ORDER, ROW, FOUND = "_lockkit_order", "_lockkit_row", "_lockkit_found"


def incoming_schema(frame: DataFrame) -> pa.Schema:
    """The rows' columns as Arrow types; `TableError` for a type that Arrow does not have."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(frame.schema, timezone="UTC")
    except PySparkException as error:
        raise RefusedRows("", f"cannot be written: {str(error)[:200]}") from None


def check_columns(frame: DataFrame, config: TableConfig, requested: WriteOptions) -> None:
    """Raise `TableError` if the frame's columns do not fit. Nulls are found by the tasks."""
    incoming = incoming_schema(frame)
    refuse_unfit(config, incoming, delete=requested.operation == "delete")
    if config.merged:
        refuse_unordered(config, incoming.empty_table())
    if config.merged or config.hashed:
        if requested.drop_duplicates and requested.operation in ("insert", "bulk_insert"):
            raise RefusedOption(
                DROPS, "is refused: an insert into a table that is merge-on-read or has Hudi's "
                "bucket index replaces rows with the same key", "leave it out", value="true",
            )  # fmt: skip


def bucketed(frame: DataFrame, config: TableConfig) -> DataFrame:
    """The rows with the number of their bucket in `GROUP`, in eight digits."""
    from pyspark.sql import functions as f

    if config.hashed:
        frame = _hashed(frame, config)
    else:
        number = f.pmod(f.xxhash64(_key(config)), f.lit(config.buckets)).cast("string")
        frame = frame.withColumn(GROUP, f.lpad(number, 8, "0"))
    return frame.select("*", *_parts(frame, config))


def _hashed(frame: DataFrame, config: TableConfig) -> DataFrame:
    """The rows with Hudi's own bucket in `GROUP`, which no function of Spark's computes."""
    from pyspark.sql.types import StringType, StructField, StructType

    def number(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            keys = record_keys(config, pa.Table.from_batches([batch])).combine_chunks()
            text = pc.utf8_lpad(buckets_of(config, keys).cast(pa.string()), 8, "0")
            yield batch.append_column(GROUP, text)

    shape = StructType([*frame.schema.fields, StructField(GROUP, StringType())])
    return frame.mapInArrow(number, shape)


def partition_paths(frame: DataFrame, config: TableConfig) -> frozenset[str]:
    """The paths of the partitions that have rows in `frame`."""
    fields = frame.select(*config.partition_fields).distinct().toLocalIterator()
    return frozenset(partition_path(config, tuple(row)) for row in fields)


def _key(config: TableConfig) -> Any:
    """Each row's record key, as `base_file.record_keys` spells it."""
    from pyspark.sql import functions as f

    if not config.composite:
        return f.col(config.record_key).cast("string")
    parts = []
    for name in config.record_keys:
        text = f.col(name).cast("string")
        text = f.coalesce(f.when(text == "", f.lit(EMPTY)).otherwise(text), f.lit(NULL))
        parts.append(f.concat(f.lit(f"{name}:"), text))
    return f.concat_ws(",", *parts)


def _parts(frame: DataFrame, config: TableConfig) -> list[Any]:
    """The columns `PART` of each partition field."""
    fields = config.partition_fields
    return [_partition(frame, field).alias(part)
            for field, part in zip(fields, each_field(PART, config), strict=True)]  # fmt: skip


def _partition(frame: DataFrame, column: str) -> Any:
    """The partition's value; null for an empty string and for the folder name of a null, which
    have the same path.
    """
    from pyspark.sql import functions as f

    value = frame[column]
    if dict(frame.dtypes)[column] != "string":
        return value
    return f.nullif(f.nullif(value, f.lit("")), f.lit(NO_VALUE))


def _on_key(frame: DataFrame, keys: DataFrame, config: TableConfig) -> Any:
    on = _key(config) == keys[KEY]
    for field, stored in zip(config.partition_fields, each_field(STORED_PART, config), strict=True):
        on = on & _partition(frame, field).eqNullSafe(_partition(keys, stored))
    return on


def with_found_keys(frame: DataFrame, job: WriteJob, slices: list[Slice]) -> DataFrame:
    """The rows with the file id in `GROUP` if one of `slices` has the key, each row once."""
    from pyspark.sql import functions as f

    config = job.target.config
    keys = stored_keys(frame, job, slices).withColumnRenamed(GROUP, FOUND).distinct()
    # Spark assumes that data from Python is small, and would broadcast a whole table's keys.
    found = frame.join(keys.hint("merge"), _on_key(frame, keys, config), "left")
    tagged = found.withColumn(GROUP, f.coalesce(f.col(FOUND), f.col(GROUP)))
    return tagged.drop(FOUND, KEY, *each_field(STORED_PART, config))


def without_known_keys(frame: DataFrame, job: WriteJob, slices: list[Slice]) -> DataFrame:
    """Only rows whose key none of `slices` has."""
    if not slices:
        return frame
    keys = stored_keys(frame, job, slices)
    return frame.join(keys.hint("merge"), _on_key(frame, keys, job.target.config), "left_anti")


def java_order(column: Column) -> Column:
    """Orders as Java and Hudi do, where -0.0 is less than 0.0; to Spark they are equal."""
    from pyspark.sql import functions as f

    return f.struct(column.alias("value"), (column.cast("string") != "-0.0").alias("not_below_0"))


def latest_of_each_key(frame: DataFrame, config: TableConfig) -> DataFrame:
    """One row for each key: that with the greatest precombine value, or the last of equals."""
    from pyspark.sql import functions as f

    by = [_key(config).alias(KEY), *_parts(frame, config)]
    order = [java_order(frame[config.precombine])] if config.precombine else []
    row = f.struct(*[f.col(f"`{name}`") for name in frame.columns])
    numbered = frame.withColumn(ORDER, f.monotonically_increasing_id())
    latest = numbered.groupBy(*by).agg(f.max_by(row, f.struct(*order, ORDER)).alias(ROW))
    return latest.select(f"{ROW}.*")
