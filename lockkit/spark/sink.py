"""The sinks of `format("lockkit")`: a batch, or the batches of a streaming query.

Spark runs each part in a separate process without a session, so rows go through a spool (`spool`,
`land`). A task returns its error in its message, and the commit raises it. Spark shows the first
line of it. After a failed commit Spark calls `abort`, even if the commit was published. `abort`
deletes the spool and nothing of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from lockkit.clock import Clock
from lockkit.errors import StoreError, TableError
from lockkit.runtime import run
from lockkit.spark.errors import first_line
from lockkit.spark.land import land, spool_for
from lockkit.spark.place import TableAddress
from lockkit.spark.spool import LocalSpool, Spool, SpoolRun, remove_spool
from lockkit.spark.stream import QUERY_ID, STREAM_RETRIES, with_compaction
from lockkit.table.errors import RefusedOption
from lockkit.table.options import RETRIES, WRITE, WriteOptions, write_options

if TYPE_CHECKING:
    import pyarrow as pa

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
    store = spool.place.open()
    try:
        run(remove_spool(spool.prefix), store, Clock())
    finally:
        store.close()


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
