"""A table as a DataFrame: a snapshot, one of the past, or an increment.

The files are known before Spark is asked anything: its own parquet reader takes them where it
reaches the store (`file://`); elsewhere executors read them with Arrow, no more columns than asked
for. `register` makes `spark.read.format("lockkit")` known, which reads every column.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.runtime import run
from lockkit.spark.frame import TASKS_MAX
from lockkit.spark.fresh import WHEN_READ, mark, refuse_old_share
from lockkit.spark.place import Place
from lockkit.stores import folder_of
from lockkit.table.format.base_file import Slice
from lockkit.table.format.gate import check_options
from lockkit.table.format.schema import COMMIT_TIME
from lockkit.table.occ.barrier import ReaderHeldBack
from lockkit.table.read.incremental import Increment, load_increment
from lockkit.table.read.predicate import Filter
from lockkit.table.read.reader import Scan, open_slice, plan_scan, scan_slice
from lockkit.table.read.snapshot import load_snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

READ = "hoodie.datasource.read."
QUERY = "hoodie.datasource.query.type"
BEGIN = (READ + "begin.instanttime", READ + "start.timestamp")
END = (READ + "end.instanttime", READ + "end.timestamp")
AS_OF = "as.of.instant"
META = "lockkit.read.meta.columns"
EARLIEST = ("", "0", "000", "earliest")
_SNAPSHOTS = ("snapshot", "read_optimized")  # one and the same for a copy-on-write table


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which rows: the latest snapshot, one of the past (`as_of`), or what changed in (begin, end].

    `begin` is None where no increment is meant, and empty for one from the first commit on.
    """

    as_of: str | None = None
    begin: str | None = None
    end: str | None = None
    meta: bool = False

    @property
    def of_the_past(self) -> bool:
        """Rows as they were are meant, so that it is no mistake to write them back."""
        return self.as_of is not None or self.begin is not None


def query_of(options: Mapping[str, Any]) -> Query:
    """Hudi's reader options, in any case of letters; `TableError` names what cannot be meant."""
    given = {
        name: str(value) for name, value in check_options(options, reading=True).items()
    }  # fmt: skip

    def first(names: Sequence[str]) -> str | None:
        return next((given[name] for name in names if name in given), None)

    kind, begin, end = given.get(QUERY, "snapshot").lower(), first(BEGIN), first(END)
    if kind not in (*_SNAPSHOTS, "incremental"):
        raise TableError(f"{QUERY}={kind[:40]!r}: choose snapshot or incremental")
    if kind != "incremental" and (begin is not None or end is not None):
        raise TableError(f"a begin or an end instant needs {QUERY}=incremental")
    if kind == "incremental" and AS_OF in given:
        raise TableError(f"{AS_OF} is for a snapshot; an increment ends at {END[0]}")
    if kind == "incremental":
        begin = instant_text(begin or "")
    return Query(
        as_of=instant_text(given[AS_OF]) if AS_OF in given else None,
        begin=begin,
        end=None if end is None else instant_text(end),
        meta=given.get(META, "false").lower() == "true",
    )


def instant_text(said: str) -> str:
    """An instant as the timeline writes it, of `2026-11-21 10:02:31.5` too; empty: the earliest."""
    if said.lower() in EARLIEST:
        return ""
    digits = "".join(each for each in said if each.isdecimal())
    if digits != said and not set(said) <= set("0123456789-:. T"):
        raise TableError(
            f"{said[:40]!r} is no instant; write yyyyMMddHHmmssSSS or yyyy-MM-dd HH:mm:ss, in UTC"
        )
    return said if digits == said else digits.ljust(17, "0")[:17]


def plan(
    place: Place, query: Query, *, columns: Sequence[str] | None = None,
    filters: Sequence[Filter] = (),
) -> tuple[Scan, Increment | None]:  # fmt: skip
    """What to read; for an increment also where it ends, which is where the next one begins."""
    store, clock = place.open(), Clock()
    try:
        if query.begin is None:
            snapshot = run(load_snapshot(as_of=query.as_of), store, clock)
            scan = plan_scan(snapshot, columns=columns, filters=filters, meta=query.meta)
            return scan, None
        found: Increment = run(load_increment(query.begin, query.end), store, clock)
        if found.held_back is not None:
            text = f"the increment of {place.url} is {found.held_back.describe(place.url)}"
            warnings.warn(ReaderHeldBack(text), stacklevel=3)
        if found.snapshot is None:
            snapshot = run(load_snapshot(), store, clock)
            empty = plan_scan(snapshot, columns=columns, meta=query.meta, slices=())
            return empty, found
        scan = plan_scan(
            found.snapshot, columns=columns, filters=filters, meta=query.meta,
            slices=found.slices, where=found.where,
        )  # fmt: skip
        return scan, found
    finally:
        store.close()


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
    """The rows of the table at `url`, as they are now, whenever Spark comes to read them.

    `begin` ("" for the first commit) reads what changed in (begin, end]; `filters` are
    (column, operator, value). `native` chooses Spark's own reader, which is the default where it
    reaches the store. Written back to its table after another commit, such a frame is refused
    (`OldRows`); one with `as_of` or `begin` is not. Raises `TableError`, `StoreError`.
    """
    place = Place(url.rstrip("/"), endpoint, client, store_options)
    folder = folder_of(place.url)
    if native and folder is None:
        raise TableError(f"native=True reads only a file:/// address, not {place.url}")
    query = query_of(options or {})
    if as_of is not None or begin is not None or end is not None:
        begin = "" if begin is None and end is not None else begin
        query = Query(
            as_of=as_of and instant_text(as_of),
            begin=None if begin is None else instant_text(begin),
            end=end and instant_text(end),
        )
    query = replace(query, meta=meta or query.meta)
    scan, found = plan(place, query, columns=columns, filters=filters)
    said = {} if query.of_the_past else mark(WHEN_READ, place, scan.commits)
    if not scan.slices:
        none: DataFrame = spark.createDataFrame([], spark_schema(scan.result, said))
        return none
    if folder is not None and native is not False:
        # As they are: Hadoop's paths are not percent-encoded, and here no name is a pattern.
        files = [f"file://{folder / each.path}" for each in scan.slices]
        kinds = spark_schema(scan.schema, said)
        reader = spark.read.schema(kinds).option("__globPaths__", "false")
        rows = reader.parquet(*files)
        columns = [_name(each) for each in scan.columns]
        chosen: DataFrame = rows.where(_condition(filters, found)).select(*columns)
        return chosen
    return _by_arrow(spark, place, scan, said)


def register(spark: Any) -> None:
    """Make `format("lockkit")` known to a session, and to the calling thread's look-ups.

    A format is looked up in the session that is active in the JVM's thread, which in a plain Python
    thread is none (Spark 4.3). Spark Connect needs no such help.
    """
    from lockkit.spark.source import Lockkit

    spark.dataSource.register(Lockkit)
    session = getattr(spark, "_jsparkSession", None)
    if session is not None:
        spark._jvm.SparkSession.setActiveSession(session)


# --- through Arrow ------------------------------------------------------------------------------


def spark_schema(schema: pa.Schema, metadata: Mapping[str, str] | None = None) -> Any:
    """Spark's types of a table's columns, each column with this metadata."""
    from pyspark.sql.pandas.types import from_arrow_schema

    kinds = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    for each in kinds.fields:
        each.metadata = dict(metadata or {})
    return kinds


def slice_rows(place: Place, scan: Scan, of: Slice, shape: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The wanted rows of one base file, in exactly the types of `shape`: Spark does not cast."""
    import pyarrow as pa

    store, clock = place.data(), Clock()
    with open_slice(of, store, clock) as file:
        for batch in scan_slice(scan, of, file):
            # Batch by batch, and not by RecordBatch.cast, which knows no lists of other names.
            yield from pa.Table.from_batches([batch]).cast(shape).to_batches()


def _by_arrow(spark: Any, place: Place, scan: Scan, said: Mapping[str, str]) -> DataFrame:
    from pyspark.sql.pandas.types import to_arrow_schema

    kinds = spark_schema(scan.result, said)
    shape, lean = to_arrow_schema(kinds, timezone="UTC"), replace(scan, slices=())
    slices = [(each.partition, each.file_id, each.instant, each.path) for each in scan.slices]

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if said:
            refuse_old_share(place, scan.commits)
        for batch in batches:
            for each in batch.to_pylist():
                yield from slice_rows(place, lean, Slice(**each), shape)

    files = spark.createDataFrame(
        slices, "partition string, file_id string, instant string, path string"
    )
    read: DataFrame = files.repartition(min(len(slices), TASKS_MAX)).mapInArrow(rows, kinds)
    return read


# --- through Spark's own reader -----------------------------------------------------------------


def _name(column: str) -> str:
    return f"`{column}`"


def _condition(filters: Sequence[Filter], found: Increment | None) -> Any:
    """What `Scan.where` says, in Spark's words; `plan_scan` has refused what cannot be meant."""
    from pyspark.sql import functions as f

    whole = f.lit(True)
    for name, operator, value in filters:
        column = f.col(_name(name))
        kinds = {
            "=": lambda c, v: c == v, "==": lambda c, v: c == v, "!=": lambda c, v: c != v,
            "<": lambda c, v: c < v, "<=": lambda c, v: c <= v, ">": lambda c, v: c > v,
            ">=": lambda c, v: c >= v, "in": lambda c, v: c.isin(list(v)),
            "not in": lambda c, v: ~c.isin(list(v)),
        }  # fmt: skip
        whole = whole & kinds[operator.lower()](column, value)
    if found is not None and found.instants is not None:
        whole = whole & f.col(COMMIT_TIME).isin(sorted(found.instants))
    elif found is not None:
        whole = whole & (f.col(COMMIT_TIME) > found.start) & (f.col(COMMIT_TIME) <= found.end)
    return whole
