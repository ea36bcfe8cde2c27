"""Reads the rows of file slices as Arrow batches, without Spark.

A `Scan` says what to read, and is small enough to send to an executor. Its rows come slice by
slice, so memory holds a few row groups and never a whole file.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import islice
from threading import Semaphore
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.errors import TableError, Unanswered
from lockkit.protocol.outcome import Found, Missing
from lockkit.runtime import Procedure, run
from lockkit.runtime.proven import read
from lockkit.stores import Store
from lockkit.table.errors import (
    DamagedFile,
    NoTable,
    NotWritable,
    RefusedOption,
    TableChanged,
    UnsupportedTable,
)
from lockkit.table.format.base_file import Slice
from lockkit.table.format.base_file_reading import read_base_file
from lockkit.table.format.data_files import open_data_file
from lockkit.table.format.properties import PROPERTIES_KEY
from lockkit.table.format.schema import COMMIT_TIME, META_COLUMNS, RECORD_KEY
from lockkit.table.format.schema_reading import arrow_schema
from lockkit.table.read.incremental import Increment, load_increment
from lockkit.table.read.log_slice import without_logs
from lockkit.table.read.opening import load_snapshot
from lockkit.table.read.predicate import (
    READ_OPTIMIZED,
    SNAPSHOT,
    UNEQUAL,
    Filter,
    as_filters,
    expression,
    partitions_of,
)
from lockkit.table.read.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from lockkit.table.format.column_ids import ColumnIds

SLICES_AT_ONCE = 4
"""The number of base files that are being fetched, or are on this machine's disk, at one time."""
BATCH_ROWS = 131_072


@dataclass(frozen=True, slots=True)
class Scan:
    """What to read: which slices, under which schema, and which rows and columns of them."""

    slices: tuple[Slice, ...]
    schema: pa.Schema
    """The table's schema, meta columns first. A slice that lacks a column gives nulls."""
    columns: tuple[str, ...]
    where: pc.Expression | None
    commits: int = 0
    """How many commits the snapshot has, which shows the older one of two snapshots."""
    filtered: tuple[str, ...] = ()
    """The columns that `where` names; none: any column."""
    meets_nan: bool = False
    """`where` may hold for NaN, which the statistics of a row group leave out."""
    ids: ColumnIds | None = None
    """If columns are matched by their ids."""

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns to read for `columns` and `where`."""
        others = () if self.where is None else self.filtered or self.schema.names
        return tuple(dict.fromkeys((*self.columns, *others))) or (RECORD_KEY,)

    @property
    def result(self) -> pa.Schema:
        """The schema of the batches."""
        import pyarrow as pa

        return pa.schema([self.schema.field(name) for name in self.columns])


# --- from a table to its rows ---------------------------------------------------------------------


def read_table(
    store: Store, clock: Clock | None = None, *, columns: Sequence[str] | None = None,
    filters: Sequence[Filter] = (), as_of: str | None = None, meta: bool = False,
    query: str = SNAPSHOT,
) -> pa.Table:  # fmt: skip
    """The rows of the latest snapshot, or of one in the past, in memory. `scan` reads in batches.

    It reads a table that Hudi wrote with its own defaults as Hudi does, even if lockkit cannot
    write that table. Raises `TableError` for an unknown column or instant, or a table that cannot
    be read.

    :param store: the table's store, from `open_store(url)`.
    :param clock: the source of time; tests replace it.
    :param columns: the columns to read; None: all.
    :param filters: (column, operator, value), all of which must hold; a filter on the partition's
        field skips whole partitions.
    :param as_of: an instant, yyyyMMddHHmmssSSS in UTC; None: now.
    :param meta: whether Hudi's meta columns are read too.
    :param query: `read_optimized` reads a merge-on-read table's base files alone.
    """
    clock = clock or Clock()
    found: Snapshot = run(snapshot_to_read(as_of, query), store, clock)
    return _table(store, clock, plan_scan(found, columns=columns, filters=filters, meta=meta))


def scan(
    store: Store, clock: Clock | None = None, *, columns: Sequence[str] | None = None,
    filters: Sequence[Filter] = (), as_of: str | None = None, meta: bool = False,
    query: str = SNAPSHOT,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The rows of `read_table`, with its parameters, in batches of one snapshot.

    :param store, clock, columns, filters, as_of, meta, query: as for `read_table`.
    """
    clock = clock or Clock()
    found: Snapshot = run(snapshot_to_read(as_of, query), store, clock)
    wanted = plan_scan(found, columns=columns, filters=filters, meta=meta)
    yield from scan_planned(store, clock, wanted)


def snapshot_to_read(as_of: str | None = None, query: str = SNAPSHOT) -> Procedure[Snapshot]:
    """From the commits if lockkit can write the table, else from the listed files, as Hudi does."""
    if not isinstance(query, str) or query not in (SNAPSHOT, READ_OPTIMIZED):
        raise RefusedOption(
            "query", f"must be {SNAPSHOT} or {READ_OPTIMIZED}", value=repr(query)[:40]
        )
    try:
        found = yield from load_snapshot(as_of=as_of)
        return found if query == SNAPSHOT else base_files(found)
    except NotWritable:
        from lockkit.table.read.listed import list_snapshot

        return (yield from list_snapshot(as_of=as_of, query=query))


def base_files(snapshot: Snapshot) -> Snapshot:
    """The read-optimized view: the base files without their log files."""
    kept = {group: without_logs(each) for group, each in snapshot.groups.items() if each.path}
    return replace(snapshot, groups=MappingProxyType(kept))


def increment_to_read(start: str = "", end: str | None = None) -> Procedure[Increment]:
    """`load_increment`, also for a table that only Hudi can write."""
    try:
        return (yield from load_increment(start, end))
    except NotWritable:
        from lockkit.table.read.listed import list_increment

        return (yield from list_increment(start, end))


def read_increment(
    store: Store, start: str = "", end: str | None = None, *, clock: Clock | None = None,
    columns: Sequence[str] | None = None, filters: Sequence[Filter] = (), meta: bool = False,
) -> tuple[pa.Table, Increment]:  # fmt: skip
    """The rows that changed in (`start`, `end`], and the increment, whose `end` is the next start.

    `start` and `end` are instants in version 6 and completion times in version 9; "" is before the
    first commit, and None is the newest. The other parameters are those of `read_table`.

    :param store, clock, columns, filters, meta: as for `read_table`.
    :param start: where the last increment ended; "": before the first commit.
    :param end: the last instant or completion time to include; None: the newest.
    """
    import pyarrow as pa

    clock = clock or Clock()
    found: Increment = run(increment_to_read(start, end), store, clock)
    if found.snapshot is None:
        return pa.table({}), found
    wanted = plan_scan(found.snapshot, columns=columns, filters=filters, meta=meta,
                       slices=found.slices, where=found.where)  # fmt: skip
    return _table(store, clock, wanted), found


def plan_scan(
    snapshot: Snapshot, *, columns: Sequence[str] | None = None, filters: Sequence[Filter] = (),
    meta: bool = False, slices: Sequence[Slice] | None = None, where: pc.Expression | None = None,
) -> Scan:  # fmt: skip
    """What to read of a snapshot: all its slices or some; `TableError` for an unknown column.

    `where` is a further condition, on the commit time.
    """
    import pyarrow as pa

    if snapshot.groups and not snapshot.schema:
        if snapshot.covered.count or any(each.path for each in snapshot.slices):
            raise UnsupportedTable(
                "the table", "has no commit that carries its schema", "read it with Hudi"
            )
        # Version 6: the log files of a first writer that has not committed.
        snapshot = replace(snapshot, groups=MappingProxyType({}))
    plain = arrow_schema(snapshot.schema) if snapshot.schema else pa.schema([])
    schema = pa.schema([*((name, pa.string()) for name in META_COLUMNS), *plain])
    columns = (schema.names if meta else plain.names) if columns is None else _names(columns)
    filters = as_filters(filters)
    if unknown := [name for name in columns if name not in schema.names]:
        raise RefusedOption(
            f"column {unknown[0][:60]!r}",
            f"is not in the table; there are {', '.join(schema.names)[:400]}",
        )
    condition = expression(filters, schema)
    if where is not None:
        condition = where if condition is None else where & condition
    may_hold = partitions_of(filters, snapshot.config, schema)
    slices = snapshot.slices if slices is None else slices
    filtered = [each[0] for each in filters] + ([] if where is None else [COMMIT_TIME])
    return Scan(
        tuple(each for each in slices if may_hold(each.partition)),
        schema, tuple(columns), condition, snapshot.covered.count, tuple(filtered),
        any(each[1].lower() in UNEQUAL and pa.types.is_floating(schema.field(each[0]).type)
            for each in filters),
        snapshot.ids,
    )  # fmt: skip


def _names(columns: object) -> list[str]:
    """The columns that a caller names, in any iterable of names."""
    if not isinstance(columns, str) and isinstance(columns, Iterable):
        names = list(columns)
        if all(isinstance(each, str) for each in names):
            return names
    raise RefusedOption(
        "columns", "must be a list of names", "leave it out for all", value=repr(columns)[:60]
    )


def _table(store: Store, clock: Clock, wanted: Scan) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_batches(scan_planned(store, clock, wanted), schema=wanted.result)


def scan_planned(store: Store, clock: Clock, wanted: Scan) -> Iterator[pa.RecordBatch]:
    """The rows of a `Scan`, slice by slice."""
    waiting = iter(wanted.slices)
    coming: deque[tuple[Slice, Future[Any]]] = deque()
    merging = Semaphore(os.cpu_count() or 1)  # more of them only wait for each other

    def arrive(of: Slice) -> None:
        coming.append((of, pool.submit(_arrive, wanted, of, store, clock, merging)))

    with ThreadPoolExecutor(SLICES_AT_ONCE) as pool, ExitStack() as left_over:
        left_over.callback(_close_all, coming)
        for of in islice(waiting, SLICES_AT_ONCE):
            arrive(of)
        while coming:
            of, arriving = coming.popleft()
            with arriving.result() as file:
                yield from scan_slice(wanted, of, file)
            for following in islice(waiting, 1):
                arrive(following)


def _close_all(coming: deque[tuple[Slice, Future[Any]]]) -> None:
    """Close the slices that were requested before the reader stopped."""
    for _, arriving in coming:
        if arriving.exception() is None:
            arriving.result().close()


# --- slices ---------------------------------------------------------------------------------------


def _arrive(wanted: Scan, of: Any, store: Store, clock: Clock, merging: Semaphore) -> Any:
    """`open_slice`; log files are merged before the slice's turn comes."""
    source = open_slice(of, store, clock)
    if type(of) is not Slice:
        try:
            with merging:
                source.merge(wanted, of, scan_slice)
        except BaseException:
            source.close()
            raise
    return source


def open_slice(of: Any, store: Store, clock: Clock) -> Any:
    """A slice's files on this machine's disk, to be closed; `TableError` if one is gone."""
    if type(of) is not Slice:
        from lockkit.table.read.merging_logs import open_log_slice

        base = Slice(of.partition, of.file_id, of.instant, of.path)
        return open_log_slice(of, lambda: open_slice(base, store, clock), store, clock)
    try:
        return open_data_file(store, of.path, clock)
    except Unanswered:
        raise
    except TableError:
        raise run(_gone(of), store, clock) from None


def _gone(of: Slice) -> Procedure[TableError]:
    if isinstance((yield from read(PROPERTIES_KEY)), Missing):
        return NoTable(
            of.path,
            f"of commit {of.instant} is gone, and so is {PROPERTIES_KEY}: the table was deleted "
            "during this read",
        )
    return TableChanged(
        of.path, f"of commit {of.instant} is gone: a cleaner deleted it, or another program",
        "take a new snapshot, or an increment that ends later, and let the cleaner keep more. If a "
        "new snapshot names it too, restore it from a backup",
    )  # fmt: skip


def read_slice(of: Slice) -> Procedure[pa.Table]:
    """All rows of a slice with the meta columns, as its file has them, in memory.

    :param of: the slice to read.
    """
    match (yield from read(of.path, limit=None)):
        case Found(body, _):
            return read_base_file(of.path, body)
        case _missing:
            raise (yield from _gone(of))


def scan_slice(wanted: Scan, of: Any, file: Any) -> Iterator[pa.RecordBatch]:
    """The matching rows of one base file; it skips row groups whose statistics exclude them."""
    if type(of) is not Slice:
        from lockkit.table.read.merging_logs import scan_log_slice

        yield from scan_log_slice(wanted, of, file, scan_slice)
        return
    import pyarrow as pa
    import pyarrow.dataset as ds

    from lockkit.table.format.column_ids import as_now
    from lockkit.table.format.promotion import is_promoted

    # No whole columns and few batches ahead, so that memory holds about one row group.
    lean = ds.ParquetFragmentScanOptions(pre_buffer=False, page_checksum_verification=True)
    # Arrow's threads hold on to the file for a moment. If it is Python's and the interpreter ends
    # then, the process is aborted.
    with suppress(OSError):
        file = pa.OSFile(f"/dev/fd/{file.fileno()}")
    try:
        fragment = ds.ParquetFileFormat().make_fragment(file)
        schema, columns, where = wanted.schema, wanted.columns, wanted.where
        there = fragment.physical_schema
        stored = {each.name: each.type for each in there}
        wider = {each.name: stored[each.name] for each in schema if each.name in stored
                 and is_promoted(stored[each.name], each.type)}  # fmt: skip
        past = None if wanted.ids is None else wanted.ids.stored(of.instant, there)
        late = bool(wider) or wanted.meets_nan or past is not None
        if wider:  # these are converted as Hudi does, before the rows are filtered
            schema = pa.schema([(each.name, wider.get(each.name, each.type)) for each in schema])
        if late:
            columns, where = wanted.needed, None
        if past is not None:
            schema = there
            columns = tuple(past[name][0] for name in columns if name in past)
        scanner = fragment.scanner(
            schema=schema, columns=list(columns), filter=where, batch_size=BATCH_ROWS,
            batch_readahead=1, fragment_scan_options=lean, use_threads=False,
        )  # fmt: skip
        for batch in scanner.to_batches():
            if not late:
                yield from [batch] if batch.num_rows else ()
                continue
            shape = pa.schema([wanted.schema.field(name) for name in wanted.needed])
            names = {each.name: (each.name, each.type) for each in batch.schema}
            rows = as_now(batch, names if past is None else past, shape)
            rows = rows if wanted.where is None else rows.filter(wanted.where)
            yield from (each for each in rows.select(list(wanted.columns)).to_batches()
                        if each.num_rows)  # fmt: skip
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OSError) as error:
        raise DamagedFile(
            of.path, f"is not a readable parquet file of this table: {str(error)[:200]}"
        ) from None
