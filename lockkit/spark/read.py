"""Reads a table as a DataFrame: a snapshot, a snapshot of the past, or an increment.

The files are known before Spark runs. Spark's parquet reader reads them if it can reach the store
(`file://`) and none of them is a log file; otherwise the executors read the requested columns with
Arrow, and merge log files. `register` makes `spark.read.format("lockkit")` known, which reads every
column.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING, Any

from lockkit.spark.frame import TASKS_MAX
from lockkit.spark.fresh import WHEN_READ, mark, refuse_old_share
from lockkit.spark.place import TableAddress
from lockkit.spark.query import QUERY, instant_text, plan, query_of, slice_rows, spark_schema
from lockkit.stores import folder_of
from lockkit.table.errors import RefusedOption
from lockkit.table.format.schema import COMMIT_TIME
from lockkit.table.read.incremental import Increment
from lockkit.table.read.log_slice import LogSlice
from lockkit.table.read.predicate import READ_OPTIMIZED, Filter
from lockkit.table.read.reader import Scan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def read(
    spark: Any,
    url: str,
    *,
    columns: Sequence[str] | None = None,
    filters: Sequence[Filter] = (),
    as_of: str | None = None,
    begin: str | None = None,
    end: str | None = None,
    meta: bool = False,
    native: bool | None = None,
    endpoint: str | None = None,
    options: Mapping[str, Any] | None = None,
    client: str = "",
    **store_options: Any,
) -> DataFrame:
    """The rows of the table at `url` as of this call, whenever Spark evaluates the frame.

    Writing the frame back to its table after another commit raises `OldRows`, unless it was read
    with `as_of` or `begin`. docs/howto/spark.md lists the gaps of that check. Raises `TableError`
    and `StoreError`.

    :param spark: the session, classic or Connect.
    :param url: the table's folder.
    :param columns: the columns to read; None: all.
    :param filters: (column, operator, value), all of which must hold.
    :param as_of: an instant, or yyyy-MM-dd HH:mm:ss in UTC; None: now.
    :param begin, end: read what changed in (begin, end]; "" is the first commit.
    :param meta: whether Hudi's meta columns are read too.
    :param native: use Spark's parquet reader (`file://`, no log files); None: where it can.
    :param endpoint: the store's URL; None: the service's own.
    :param options: Hudi's options for reads (docs/options.md).
    :param client: the name of this reader in the store's log.
    :param store_options: those of `open_store`: endpoint, credentials, ...
    """
    place = TableAddress(url.rstrip("/"), endpoint, client, store_options)
    folder = folder_of(place.url)
    if native and folder is None:
        raise RefusedOption(
            "native", f"reads only a file:/// address, not {place.url}", value="True"
        )
    query = query_of(options or {})
    if as_of is not None or begin is not None or end is not None:
        begin = "" if begin is None and end is not None else begin
        if begin is not None and query.base_files:
            raise RefusedOption(QUERY, f"is for a snapshot, not for what changed: {READ_OPTIMIZED}")
        query = replace(
            query, as_of=as_of and instant_text(as_of),
            begin=None if begin is None else instant_text(begin),
            end=end and instant_text(end),
        )  # fmt: skip
    query = replace(query, meta=meta or query.meta)
    scan, found = plan(place, query, columns=columns, filters=filters)
    said = {} if query.of_the_past else mark(WHEN_READ, place, scan.commits)
    if not scan.slices:
        none: DataFrame = spark.createDataFrame([], spark_schema(scan.result, said))
        return none
    merged = any(isinstance(each, LogSlice) for each in scan.slices)
    if native and merged:
        raise RefusedOption("native", "reads no log files", "leave it out", value="True")
    if folder is not None and native is not False and not merged:
        # Not quoted: Hadoop's paths are not percent-encoded, and no name here is a pattern.
        files = [f"file://{folder / each.path}" for each in scan.slices]
        kinds = spark_schema(scan.schema, said)
        reader = spark.read.schema(kinds).option("__globPaths__", "false")
        rows = reader.parquet(*files)
        columns = [f"`{each}`" for each in scan.columns]
        chosen: DataFrame = rows.where(_condition(filters, found)).select(*columns)
        return chosen
    return _by_arrow(spark, place, scan, said)


def register(spark: Any) -> None:
    """Make `format("lockkit")` known to a session, and to the calling thread's look-ups.

    Spark looks up a format in the session that is active in the JVM's thread; a plain Python thread
    has no active session (Spark 4.3). Spark Connect does not need this.

    :param spark: the classic session.
    """
    from lockkit.spark.source import Lockkit

    spark.dataSource.register(Lockkit)
    session = getattr(spark, "_jsparkSession", None)
    if session is not None:
        spark._jvm.SparkSession.setActiveSession(session)


# --- through Arrow ------------------------------------------------------------------------------


def _by_arrow(spark: Any, place: TableAddress, scan: Scan, said: Mapping[str, str]) -> DataFrame:
    from pyspark.sql.pandas.types import to_arrow_schema

    kinds = spark_schema(scan.result, said)
    shape, lean = to_arrow_schema(kinds, timezone="UTC"), replace(scan, slices=())
    slices = [(pickle.dumps(each),) for each in scan.slices]

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if said:
            refuse_old_share(place, scan.commits)
        for batch in batches:
            for each in batch.to_pylist():
                yield from slice_rows(place, lean, pickle.loads(each["slice"]), shape)

    files = spark.createDataFrame(slices, "slice binary")
    read: DataFrame = files.repartition(min(len(slices), TASKS_MAX)).mapInArrow(rows, kinds)
    return read


# --- through Spark's own reader -----------------------------------------------------------------


def _condition(filters: Sequence[Filter], found: Increment | None) -> Any:
    """`Scan.where` as a Spark condition; `plan_scan` has checked it."""
    from pyspark.sql import functions as f

    whole = f.lit(True)
    for name, operator, value in filters:
        column = f.col(f"`{name}`")
        kinds: dict[str, Any] = {
            "=": eq, "==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge,
            "in": lambda c, v: c.isin(list(v)), "not in": lambda c, v: ~c.isin(list(v)),
        }  # fmt: skip
        whole = whole & kinds[operator.lower()](column, value)
    if found is not None and found.instants is not None:
        whole = whole & f.col(COMMIT_TIME).isin(sorted(found.instants))
    elif found is not None:
        whole = whole & (f.col(COMMIT_TIME) > found.start) & (f.col(COMMIT_TIME) <= found.end)
    return whole
