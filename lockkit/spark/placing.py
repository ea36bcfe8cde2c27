"""The file group of each row, where a look at the stored keys of whole slices decides it.

That is so in merge-on-read tables in which Hudi's writers look for a key in base files alone, and
with a global index, which looks for a key in all partitions. `rows` has the other writes. A row's
partition is its path here, which Arrow computes, because log files show no other.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.spark.frame import GROUP, KEY, TASKS_MAX, WriteJob, put_group, stats_by_group
from lockkit.spark.place import TableAddress
from lockkit.spark.query import slice_rows, spark_schema
from lockkit.spark.rows import java_order
from lockkit.table.format.base_file import Slice, record_keys
from lockkit.table.format.base_file_reading import base_file_batches
from lockkit.table.format.data_files import open_data_file
from lockkit.table.format.layout import WriteStat
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.row_partitions import partition_numbers
from lockkit.table.format.schema import RECORD_KEY
from lockkit.table.read.bucket_groups import BucketGroups, buckets_of
from lockkit.table.read.log_slice import LogSlice
from lockkit.table.read.reader import Scan
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.write.log import key_scan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

PATH, NEW, GONE = "_lockkit_path", "_lockkit_new", "_lockkit_gone"
"""Columns: a row's partition, whether its key is new there, and whether only its key goes there, to
be deleted."""
STORED_KEY, STORED_PATH = "_lockkit_stored_key", "_lockkit_stored_path"
FOUND, LIVE, BEST = "_lockkit_found", "_lockkit_live", "_lockkit_best"
"""Columns of a stored key: its partition and group, whether a row has it, and the precombine value
of that row."""
HERE, AWAY, BEATS = "_lockkit_here", "_lockkit_away", "_lockkit_beats"
"""Whether a stored key is in the row's own partition; whether a row has it in another one; whether
that row has the greater precombine value."""
BEATEN, KNOWN, FIRST = "_lockkit_beaten", "_lockkit_known", "_lockkit_first"
"""Of all stored places of a key: whether one BEATS the row, whether one is HERE; and which place is
the first."""
ORDER, ROW, PLACE = "_lockkit_order", "_lockkit_row", "_lockkit_place"


def place_frame(
    frame: DataFrame, job: WriteJob, snapshot: Snapshot, tasks: int, *, delete: bool,
    everywhere: bool,
) -> list[WriteStat]:  # fmt: skip
    """Merge each row into the groups that have its key, or remove its key from them.

    With `everywhere` a group may be in any partition, and is left by a row that moves from there.
    """
    from pyspark.sql import functions as f

    config = job.target.config
    rows = _with_places(frame, config)
    if everywhere and not delete:
        rows = _one_of_each_key(rows, config)
    best = config.precombine if everywhere and not delete else None
    stored = stored_places(frame, job, snapshot, key_scan(job.target, best), everywhere)
    on = rows[KEY] == stored[STORED_KEY]
    if not everywhere:
        on = on & (rows[PATH] == stored[STORED_PATH])
    # Spark assumes that data from Python is small, and would broadcast a whole table's keys.
    found = rows.join(stored.hint("merge"), on, "left")
    if everywhere and not delete:
        found = _ranked(found, config)
        places = _moves()
    else:
        places = [_stays(delete, everywhere)]
    names = [f.col(f"`{name}`") for name in frame.columns]
    whole = found.select(*names, f.explode(f.array_compact(f.array(*places))).alias(PLACE))
    by = [PATH, GROUP]

    def write(key: tuple[Any, ...], rows: pa.Table) -> WriteStat | None:
        import pyarrow.compute as pc

        gone, target = rows.filter(rows[GONE]), job.target_of(*key)
        kept = rows.filter(pc.invert(rows[GONE]))
        inserts = config.by_base_files and bool(pc.any(kept[NEW]).as_py())
        own = [NEW, GONE]
        target = replace(
            target, inserts=inserts, gone=gone.drop_columns(own) if gone.num_rows else None
        )
        return put_group(job, target, kept.drop_columns(own), delete=delete)

    return stats_by_group(whole.select(*names, f"{PLACE}.*"), job, by, tasks, write)


def _with_places(frame: DataFrame, config: TableConfig) -> DataFrame:
    """The rows with their key, their partition's path, and their bucket's number."""
    from pyspark.sql.types import StringType, StructField, StructType

    def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            rows = pa.Table.from_batches([batch])
            keys = record_keys(config, rows).combine_chunks()
            numbers, paths = partition_numbers(config, rows)
            bucket = pc.utf8_lpad(buckets_of(config, keys).cast(pa.string()), 8, "0")
            path = pa.array(paths, pa.string()).take(numbers)
            for name, column in ((KEY, keys), (PATH, path), (GROUP, bucket)):
                batch = batch.append_column(name, column)
            yield batch

    added = [StructField(name, StringType()) for name in (KEY, PATH, GROUP)]
    return frame.mapInArrow(place, StructType([*frame.schema.fields, *added]))


def _one_of_each_key(rows: DataFrame, config: TableConfig) -> DataFrame:
    """Of rows with one key, whose partitions may differ, the greatest, or the last of equals."""
    from pyspark.sql import functions as f

    order = [java_order(rows[config.precombine])] if config.precombine else []
    row = f.struct(*[f.col(f"`{name}`") for name in rows.columns])
    numbered = rows.withColumn(ORDER, f.monotonically_increasing_id())
    latest = numbered.groupBy(KEY).agg(f.max_by(row, f.struct(*order, ORDER)).alias(ROW))
    return latest.select(f"{ROW}.*")


def _stays(delete: bool, everywhere: bool) -> Column:
    """The place of a row that goes where its key is: an update, or the deletion of the key."""
    from pyspark.sql import functions as f

    if delete:
        there = f.col(LIVE) if everywhere else f.col(FOUND).isNotNull()
        place = _place(STORED_PATH if everywhere else PATH, f.col(FOUND))
        return f.when(there, place)
    return _place(PATH, f.coalesce(f.col(FOUND), f.col(GROUP)), new=f.col(FOUND).isNull())


def _ranked(found: DataFrame, config: TableConfig) -> DataFrame:
    """Each row beside each stored place of its key, with what `_moves` goes by."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    def said(condition: Column) -> Column:
        return f.coalesce(condition, f.lit(False))

    beats = f.lit(False)
    if config.precombine is not None:
        beats = java_order(found[BEST]) > java_order(found[config.precombine])
    here = said(found[STORED_PATH] == found[PATH])
    away = said(found[LIVE] & (found[STORED_PATH] != found[PATH]))
    found = found.withColumn(HERE, here).withColumn(AWAY, away).withColumn(BEATS, away & beats)
    key = Window.partitionBy(KEY)
    return found.withColumns({
        BEATEN: f.max(BEATS).over(key), KNOWN: f.max(HERE).over(key),
        FIRST: f.row_number().over(key.orderBy(STORED_PATH, FOUND)) == 1,
    })  # fmt: skip


def _moves() -> list[Column]:
    """The places of a row of a global index: where its key goes from, and where the row goes.

    Nowhere, if a row in another partition has a greater precombine value.
    """
    from pyspark.sql import functions as f

    here = f.col(HERE)
    goes = ~f.col(BEATEN) & (here | (~f.col(KNOWN) & f.col(FIRST)))
    group = f.when(here, f.col(FOUND)).otherwise(f.col(GROUP))
    left = f.col(AWAY) & ~f.col(BEATS)
    return [
        f.when(left, _place(STORED_PATH, f.col(FOUND), gone=f.lit(True))),
        f.when(goes, _place(PATH, group, new=~here)),
    ]


def _place(
    path: str, group: Column, *, new: Column | None = None, gone: Column | None = None
) -> Column:
    from pyspark.sql import functions as f

    no = f.lit(False)
    return f.struct(
        f.col(path).alias(PATH), group.alias(GROUP), (no if new is None else new).alias(NEW),
        (no if gone is None else gone).alias(GONE),
    )  # fmt: skip


# --- the stored keys ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyReader:
    """Reads the keys of a slice, in a task."""

    place: TableAddress
    scan: Scan
    """Of the key, and perhaps of the precombine field; without slices."""
    kinds: pa.Schema
    live: bool
    """Whether log files are merged, so that only keys of rows are `LIVE`."""
    dead: bool
    """Whether keys are read that a log file deletes."""

    def tables(self, of: Slice) -> Iterator[tuple[pa.Table, bool]]:
        """Keys, with precombine values or nulls, and whether they are `LIVE`."""
        import pyarrow as pa

        from lockkit.table.read.merging_logs import logged_keys

        for batch in slice_rows(self.place, self.scan, of, self.kinds) if self.live else ():
            yield pa.Table.from_batches([batch]), True
        if not self.dead or (self.live and not isinstance(of, LogSlice)):
            return
        store, clock = self.place.data(), Clock()
        found = [logged_keys(of, store, clock)]
        if of.path:
            with open_data_file(store, of.path, clock) as file:
                tables = base_file_batches(of.path, file, columns=[RECORD_KEY])
                found += [each[RECORD_KEY].combine_chunks() for each in tables]
        for keys in found:
            nulls = [pa.nulls(len(keys), each.type) for each in list(self.kinds)[1:]]
            yield pa.table([keys, *nulls], schema=self.kinds), False


def stored_places(
    frame: DataFrame, job: WriteJob, snapshot: Snapshot, scan: Scan, everywhere: bool
) -> DataFrame:
    """STORED_KEY, STORED_PATH, FOUND and LIVE of each stored key, once for each group.

    BEST if `scan` has the precombine field. LIVE is false without `everywhere`.
    """
    import pyarrow as pa
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    config, text = job.target.config, pa.string()
    kinds = to_arrow_schema(spark_schema(scan.result), timezone="UTC")
    dead = not everywhere or config.by_base_files
    reader = KeyReader(job.place, scan, kinds, everywhere, dead)
    own = zip((STORED_KEY, BEST), kinds.types, strict=False)
    shape = pa.schema([*own, (STORED_PATH, text), (FOUND, text), (LIVE, pa.bool_())])

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for each in batch.to_pylist():
                of = pickle.loads(each["slice"])
                for rows, live in reader.tables(of):
                    same = [pa.repeat(pa.scalar(value), rows.num_rows)
                            for value in (of.partition, each["group"], live)]  # fmt: skip
                    yield from pa.table([*rows.columns, *same], schema=shape).to_batches()

    groups = BucketGroups(snapshot)
    slices = [
        (pickle.dumps(each), groups.name_of(each.partition, each.file_id))
        for each in snapshot.slices
    ]
    files = frame.sparkSession.createDataFrame(slices, "slice binary, group string")
    spread = files.repartition(min(max(1, len(slices)), TASKS_MAX))
    found = spread.mapInArrow(look, from_arrow_schema(shape, prefer_timestamp_ntz=True))
    most = [f.max(name).alias(name) for name in shape.names if name in (BEST, LIVE)]
    return found.groupBy(STORED_KEY, STORED_PATH, FOUND).agg(*most)
