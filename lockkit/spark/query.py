"""A query: which rows of a table to read, from Python's keywords or Hudi's reader options.

`plan` turns it into slices before Spark runs. The executors' code is here too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.runtime import run
from lockkit.spark.place import TableAddress
from lockkit.table.errors import RefusedOption
from lockkit.table.format.base_file import Slice
from lockkit.table.format.gate import check_options
from lockkit.table.occ.condition import ReaderHeldBack
from lockkit.table.read.incremental import Increment, load_increment
from lockkit.table.read.opening import load_snapshot
from lockkit.table.read.predicate import READ_OPTIMIZED, SNAPSHOT, Filter
from lockkit.table.read.reader import Scan, base_files, open_slice, plan_scan, scan_slice

if TYPE_CHECKING:
    import pyarrow as pa

READ = "hoodie.datasource.read."
QUERY = "hoodie.datasource.query.type"
BEGIN = (READ + "begin.instanttime", READ + "start.timestamp")
END = (READ + "end.instanttime", READ + "end.timestamp")
AS_OF = "as.of.instant"
META = "lockkit.read.meta.columns"
EARLIEST = ("", "0", "000", "earliest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which rows: the latest snapshot, one of the past (`as_of`), or what changed in (begin, end].

    `begin` is None for a snapshot, and "" for an increment from the first commit on.
    """

    as_of: str | None = None
    begin: str | None = None
    end: str | None = None
    meta: bool = False
    base_files: bool = False
    """Whether a snapshot leaves out the log files of a merge-on-read table."""
    settled: bool = False
    """Whether an earlier increment ended at `end`, as a stream's batch does."""

    @property
    def of_the_past(self) -> bool:
        """Whether the query reads rows of the past, which may be written back."""
        return self.as_of is not None or self.begin is not None


def query_of(options: Mapping[str, Any]) -> Query:
    """The query of Hudi's reader options, in any case; `TableError` for what makes no sense."""
    given = {name: str(value) for name, value in check_options(options, reading=True).items()}

    def first(names: Sequence[str]) -> str | None:
        return next((given[name] for name in names if name in given), None)

    kind, begin, end = given.get(QUERY, SNAPSHOT).lower(), first(BEGIN), first(END)
    if kind not in (SNAPSHOT, READ_OPTIMIZED, "incremental"):
        raise RefusedOption(
            QUERY, "is not known here", f"choose {SNAPSHOT}, {READ_OPTIMIZED} or incremental",
            value=kind[:40],
        )  # fmt: skip
    if kind != "incremental" and (begin is not None or end is not None):
        raise RefusedOption("a begin or an end instant", f"needs {QUERY}=incremental")
    if kind == "incremental" and AS_OF in given:
        raise RefusedOption(AS_OF, "is for a snapshot", f"end an increment with {END[0]}")
    if kind == "incremental":
        begin = instant_text(begin or "")
    return Query(
        as_of=instant_text(given[AS_OF]) if AS_OF in given else None,
        begin=begin,
        end=None if end is None else instant_text(end),
        meta=given.get(META, "false").lower() == "true",
        base_files=kind == READ_OPTIMIZED,
    )


def instant_text(said: str) -> str:
    """The instant of a text such as `2026-11-21 10:02:31.5`; "" means the earliest."""
    if said.lower() in EARLIEST:
        return ""
    digits = "".join(each for each in said if each.isdecimal())
    if digits != said and not set(said) <= set("0123456789-:. T"):
        raise RefusedOption(
            "instant", "is not an instant", "use yyyyMMddHHmmssSSS or yyyy-MM-dd HH:mm:ss, in UTC",
            value=said[:40],
        )  # fmt: skip
    return said if digits == said else digits.ljust(17, "0")[:17]


def plan(
    place: TableAddress, query: Query, *, columns: Sequence[str] | None = None,
    filters: Sequence[Filter] = (),
) -> tuple[Scan, Increment | None]:  # fmt: skip
    """What to read, and the end of an increment, where the next one begins."""
    clock = Clock()
    with closing(place.open()) as store:
        if query.begin is None:
            snapshot = run(load_snapshot(as_of=query.as_of), store, clock)
            snapshot = base_files(snapshot) if query.base_files else snapshot
            scan = plan_scan(snapshot, columns=columns, filters=filters, meta=query.meta)
            return scan, None
        way = load_increment(query.begin, query.end, settled=query.settled)
        found = run(way, store, clock)
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


# --- in executors ---------------------------------------------------------------------------------


def spark_schema(schema: pa.Schema, metadata: Mapping[str, str] | None = None) -> Any:
    """Spark's types of a table's columns, each column with this metadata."""
    from pyspark.sql.pandas.types import from_arrow_schema

    kinds = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    for each in kinds.fields:
        each.metadata = dict(metadata or {})
    return kinds


def slice_rows(
    place: TableAddress, scan: Scan, of: Slice, shape: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The requested rows of one slice, in the types of `shape`: Spark does not cast."""
    import pyarrow as pa

    store, clock = place.data(), Clock()
    with open_slice(of, store, clock) as file:
        for batch in scan_slice(scan, of, file):
            # Not RecordBatch.cast: it cannot cast a list whose item has another name.
            yield from pa.Table.from_batches([batch]).cast(shape).to_batches()
