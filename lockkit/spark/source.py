"""`format("lockkit")`: Spark's data source, a facade over `read` and over the commit.

Spark runs each part in a separate process without a session, so written rows go through a `spool`.
A task returns its error in its message, and the commit raises it. Spark shows the first line of it.
After a failed commit Spark calls `abort`, even if the commit was published. `abort` deletes the
spool and nothing of the table.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from lockkit.clock import Clock
from lockkit.errors import StoreError, TableError, UnknownKeyword
from lockkit.runtime import run
from lockkit.spark.errors import first_line
from lockkit.spark.frame import TASKS_MAX
from lockkit.spark.fresh import WHEN_LOADED, mark, refuse_old_share
from lockkit.spark.place import TableAddress
from lockkit.spark.query import AS_OF, Query, instant_text, plan, query_of, slice_rows, spark_schema
from lockkit.spark.spool import LocalSpool, Spool, SpoolRun, land, remove_spool, spool_for
from lockkit.spark.stream import QUERY_ID, STREAM_RETRIES, with_compaction
from lockkit.stores.keywords import check_keywords
from lockkit.table.errors import RefusedOption
from lockkit.table.occ.condition import ReaderHeldBack
from lockkit.table.options import RETRIES, WRITE, WriteOptions, write_options
from lockkit.table.read.incremental import Increment, load_increment
from lockkit.table.read.reader import Scan

if TYPE_CHECKING:
    import pyarrow as pa
"""Spark runs the reader in a separate process: warnings go to the driver's standard error."""
START = "hoodie.datasource.streaming.startoffset"
_OURS = ("hoodie.", "_hoodie.", "_.hoodie.", "lockkit.", AS_OF)
# Options of a query, and those that Spark's catalog adds to each table.
_SPARKS = (
    "checkpointlocation", "queryname", "outputmode", "comment", "location", "provider", "owner",
    "external", "is_managed_location", "collation",
)  # fmt: skip
_STORES = (
    "timeout_s", "region_name", "profile_name", "aws_access_key_id", "aws_secret_access_key",
    "aws_session_token", "account_url", "credential", "api_version", "project",
)  # fmt: skip


class Lockkit(DataSource):
    """Options: Hudi's, `endpoint`, and what the store's client takes; `path` is the table."""

    @classmethod
    def name(cls) -> str:
        return "lockkit"

    def schema(self) -> Any:
        with first_line():
            place, said = _said(self.options)
            query = query_of(said)
            scan, _ = plan(place, query)
            said = {} if query.of_the_past else mark(WHEN_LOADED, place, scan.commits)
            return spark_schema(scan.result, said)

    def reader(self, schema: Any) -> BatchReader:
        with first_line():
            place, said = _said(self.options)
            return BatchReader(place, query_of(said), schema)

    def streamReader(self, schema: Any) -> StreamReader:
        with first_line():
            return StreamReader(*_said(self.options), schema)

    def writer(self, schema: Any, overwrite: bool) -> BatchSink:
        with first_line():
            return BatchSink(*_said(self.options), schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamSink:
        with first_line():
            return StreamSink(*_said(self.options), schema, overwrite)


def _said(options: Mapping[str, str]) -> tuple[TableAddress, dict[str, str]]:
    """The table's address, and the options that are not the store client's."""
    given = {str(name).lower(): str(value) for name, value in options.items()}
    url = given.pop("path", "")
    if not url:
        raise RefusedOption(
            "path", "is missing: it names the table",
            ".load('s3://bucket/table'), OPTIONS (path '...') of a view, or of a catalog's table "
            "t, with each statement, t WITH ('path'='...')",
        )  # fmt: skip
    if url.startswith("file:/") and not url.startswith("file://"):
        url = "file://" + url.removeprefix("file:")  # as a catalog spells it
    said = {name: given.pop(name) for name in list(given) if name.startswith(_OURS)}
    endpoint, client = given.pop("endpoint", None), given.pop("client", "")
    store: dict[str, Any] = {
        name: value for name, value in given.items()
        if name not in _SPARKS and not name.startswith("option.")
    }  # fmt: skip
    if strange := [name for name in store if name not in _STORES]:
        raise RefusedOption(
            strange[0][:80],
            "is not an option of Hudi or lockkit, nor of a store's client "
            f"({', '.join(_STORES)})", "leave it out",
        )  # fmt: skip
    try:
        check_keywords(Lockkit, url, store)
        if "timeout_s" in store:
            store["timeout_s"] = float(store["timeout_s"])
    except UnknownKeyword as error:
        raise RefusedOption("the store's options", f"cannot be obeyed: {error}") from None
    except ValueError:
        raise RefusedOption(
            "timeout_s", "must be a number", value=store["timeout_s"][:40]
        ) from None
    return TableAddress(url.rstrip("/"), endpoint, client, store), said


# --- reading ------------------------------------------------------------------------------------


class ScanPartition(InputPartition):
    """The slices of a scan that one task reads."""

    value: Scan | None


def _shares(scan: Scan) -> list[InputPartition]:
    count = min(TASKS_MAX, len(scan.slices))
    return [
        ScanPartition(replace(scan, slices=scan.slices[number::count])) for number in range(count)
    ]


def _rows(place: TableAddress, schema: Any, share: InputPartition) -> Iterator[pa.RecordBatch]:
    from pyspark.sql.pandas.types import to_arrow_schema

    scan: Scan | None = share.value
    if scan is None:  # Spark's own partition, where there is none
        return
    shape, lean = to_arrow_schema(schema, timezone="UTC"), replace(scan, slices=())
    with first_line():
        for each in scan.slices:
            yield from slice_rows(place, lean, each, shape)


class BatchReader(DataSourceReader):
    """A snapshot or an increment; the user's schema, if there is one, selects the columns.

    It does not take Spark's filters: Spark 4.3 keeps the filters of one query in the DataFrame, so
    the next query would miss rows. Use the `filters` of `read`.
    """

    def __init__(self, place: TableAddress, query: Query, schema: Any) -> None:
        self.place, self.query, self.shape = place, query, schema

    def partitions(self) -> Sequence[InputPartition]:
        with first_line():
            return _shares(plan(self.place, self.query, columns=self.shape.names)[0])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        scan: Scan | None = partition.value
        if scan is not None and not self.query.of_the_past:
            with first_line():
                refuse_old_share(self.place, scan.commits)
        return _rows(self.place, self.shape, partition)


class StreamReader(DataSourceStreamReader):
    """The changes of each commit in order; an offset is an increment's end.

    On version 6 a pending instant delays the stream. A warning on the driver's stderr names it,
    once for each state of its writer.
    """

    def __init__(self, place: TableAddress, said: Mapping[str, str], schema: Any) -> None:
        self.place, self.shape = place, schema
        self.start = said.get(START, "") or query_of(said).begin or ""
        self._warned: tuple[str, bool] | None = None
        """The instant that delays this query, and whether its writer lives, as last reported."""

    def initialOffset(self) -> dict[str, str]:
        with first_line():
            latest = self.start.lower() == "latest"
            return {"at": self._increment("").end if latest else instant_text(self.start)}

    def latestOffset(self, start: dict[str, str], limit: Any) -> dict[str, str]:
        with first_line():
            return {"at": self._increment(start["at"]).end}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        with first_line():
            query = Query(begin=start["at"], end=end["at"], settled=True)
            return _shares(plan(self.place, query, columns=self.shape.names)[0])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(self.place, self.shape, partition)

    def _increment(self, start: str) -> Increment:
        with closing(self.place.open()) as store:
            found = run(load_increment(start), store, Clock())
        held = found.held_back
        state = None if held is None else (held.instant, held.alive)
        if held is not None and state != self._warned:  # once for each state, not for each batch
            self._warn(held.describe(self.place.url))
        elif held is None and self._warned is not None:
            self._warn("no longer held back")
        self._warned = state
        return found

    def _warn(self, what: str) -> None:
        # Not a log record: logging is not configured in Spark's process for streams.
        text = f"the stream of {self.place.url} is {what}"
        warnings.warn(ReaderHeldBack(text), stacklevel=4)


OPERATION = WRITE + "operation"


class TaskResult(WriterCommitMessage):
    """A task's message: where it put its rows, or the error that it raised."""

    def __init__(self, spool: Spool, runs: Sequence[SpoolRun], query: str, error: Exception | None):
        self.spool, self.runs, self.query, self.error = spool, tuple(runs), query, error


def _keep(spool: Spool, batches: Iterator[pa.RecordBatch], query: str = "") -> TaskResult:
    try:
        return TaskResult(spool, spool.put(batches), query, None)
    except (TableError, StoreError) as error:
        return TaskResult(spool, (), query, error)


def _runs(messages: Sequence[TaskResult]) -> tuple[SpoolRun, ...]:
    """The runs of all tasks. Raises the first error of a task."""
    for each in messages:
        if each.error is not None:
            raise each.error
    return tuple(one for each in messages for one in each.runs)


def _write_options(said: Mapping[str, str], overwrite: bool, **default: Any) -> WriteOptions:
    """Combine Spark's mode with Hudi's operation: overwrite mode replaces all rows."""
    wanted = write_options({**default, **said})
    if not overwrite or wanted.operation.startswith("insert_overwrite"):
        return wanted
    if wanted.operation == "delete":
        raise RefusedOption(
            OPERATION, "is not for mode(\"overwrite\")", "delete with mode(\"append\")",
            value="delete",
        )  # fmt: skip
    return replace(wanted, operation="insert_overwrite_table")


def _remove(spool: Spool) -> None:
    with closing(spool.place.open()) as store:
        run(remove_spool(spool.prefix), store, Clock())


class BatchSink(DataSourceArrowWriter):
    """`df.write.format("lockkit").mode("append").save(url)`."""

    def __init__(
        self, place: TableAddress, said: dict[str, str], schema: Any, overwrite: bool
    ) -> None:
        self.said, self.shape = said, schema
        self.requested = _write_options(said, overwrite)
        self.spool = spool_for(place, self.requested, said, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        return _keep(self.spool, iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        with first_line():
            try:
                land(LocalSpool(self.spool, self.shape, _runs(messages)), self.requested, self.said)
            finally:
                _remove(self.spool)

    def abort(self, messages: Sequence[Any]) -> None:
        _remove(self.spool)


class StreamSink(DataSourceStreamArrowWriter):
    """`writeStream.format("lockkit")`. Spark commits with a new object, so state is in messages.

    Only tasks know the query. The query's next commit removes what its tasks left in the spool.
    """

    def __init__(
        self, place: TableAddress, said: dict[str, str], schema: Any, overwrite: bool
    ) -> None:
        self.said, self.shape = with_compaction(said), schema
        # A conflict that is not retried here ends the query.
        self.requested = _write_options(said, overwrite, **{RETRIES: str(STREAM_RETRIES)})
        self.spool = spool_for(place, self.requested, said, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        from pyspark import TaskContext

        context = TaskContext.get()
        query = (context and context.getLocalProperty(QUERY_ID)) or ""
        return _keep(self.spool.of(query), iterator, query)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        if not messages:
            return
        with first_line():
            first: TaskResult = messages[0]
            try:
                rows = LocalSpool(first.spool, self.shape, _runs(messages))
                land(rows, self.requested, self.said, (first.query, batchId))
            finally:
                _remove(first.spool)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        for each in [one for one in messages if one is not None][:1]:
            _remove(each.spool)
