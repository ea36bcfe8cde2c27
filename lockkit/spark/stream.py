"""Write the batches of a streaming query to a table, each exactly once: `foreach_batch`.

    rows.writeStream.foreachBatch(foreach_batch("s3://lake/orders", record_key="id")).start()

The driver commits, as in `write`. `writeStream.format("lockkit")` is the alternative (`source`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.lock.hudi_keys import TABLE_NAME
from lockkit.sinks import Emit, silent
from lockkit.spark.microbatch import MicroBatch
from lockkit.spark.place import TableAddress
from lockkit.spark.write import open_lock, write
from lockkit.stores.keywords import check_keywords
from lockkit.table.arguments import DESCRIBING
from lockkit.table.errors import RefusedOption
from lockkit.table.format.option_values import lowered
from lockkit.table.occ.concurrency import SINGLE, concurrency_mode
from lockkit.table.options import KEYWORDS, RETRIES, write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STREAM_RETRIES = 20
"""A large number, because a conflict in the last attempt ends the query."""
QUERY_ID = "sql.streaming.queryId"


def foreach_batch(
    url: str,
    *,
    query: str | None = None,
    endpoint: str | None = None,
    options: Mapping[str, Any] | None = None,
    client: str = "",
    emit: Emit = silent,
    **how: Any,
) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that writes each batch exactly once, with `write`'s keywords.

    `query` identifies the query to the table: keep it over restarts, and change it with a new
    checkpoint. The default is Spark's own id, which Spark Connect does not give. A batch that the
    table already has is skipped, and conflicts are retried (20 times by default). A new checkpoint
    under an old name gives a warning. Then the batches are written if Spark gives its id; otherwise
    batches whose number the table already has are skipped. Raises what `write` raises.
    """
    store_options = {name: value for name, value in how.items() if name not in KEYWORDS}
    check_keywords(foreach_batch, url, store_options, KEYWORDS)
    place = TableAddress(url.rstrip("/"), endpoint, client, store_options)
    said: dict[str, Any] = {RETRIES: str(STREAM_RETRIES), **(options or {})}
    if how.get("table_name"):
        said[TABLE_NAME] = how["table_name"]
    write_options(said)  # wrong options end the query before its first batch
    alone = concurrency_mode(lowered(said)) == SINGLE
    # A write refuses options that describe another lock than the one that it gets.
    kept = {name: value for name, value in said.items() if alone or name.lower() not in DESCRIBING}

    def one(frame: DataFrame, batch: int) -> None:
        spark_id, clock = _query_id(frame), Clock()
        name = query or _named(spark_id)
        store, lock = place.open(), open_lock(place, said, clock, emit)
        try:
            once = MicroBatch(store, place.url, name, batch, clock, emit, spark_id)
            if not once.is_over(lock):
                write(
                    frame, url, endpoint=endpoint, options=kept, client=client, emit=emit,
                    clock=clock, lock=None if alone else lock, claim=once.claim,
                    extra=once.extra, **how,
                )  # fmt: skip
        finally:
            lock.close()
            store.close()

    return one


def _query_id(frame: DataFrame) -> str:
    """Spark's id of the query, kept in its checkpoint; empty if Spark does not provide it."""
    context = getattr(frame.sparkSession, "_sc", None)
    return str((context and context.getLocalProperty(QUERY_ID)) or "")


def _named(spark_id: str) -> str:
    if not spark_id:
        raise RefusedOption(
            "query", "is missing: Spark does not say here which query this batch is of",
            "give a name that stays: foreach_batch(url, query=\"orders-1\", ...)",
        )  # fmt: skip
    return spark_id
