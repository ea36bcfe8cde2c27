"""Write the batches of a streaming query to a table, each exactly once: `foreach_batch`.

    rows.writeStream.foreachBatch(foreach_batch("s3://lake/orders", record_key="id")).start()

The driver commits, as in `write`. `writeStream.format("lockkit")` is the alternative (`source`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.lock.hudi_keys import TABLE_NAME
from lockkit.sinks import Emit, silent
from lockkit.spark.place import TableAddress
from lockkit.spark.write import MicroBatch, open_lock, write
from lockkit.stores.keywords import check_keywords
from lockkit.table.arguments import DESCRIBING
from lockkit.table.errors import RefusedOption
from lockkit.table.format.option_values import flag, lowered
from lockkit.table.occ.concurrency import SINGLE, concurrency_mode, names_lock
from lockkit.table.options import KEYWORDS, RETRIES, WRITE, known_config, write_options
from lockkit.table.services.rules import COMPACT_ASYNC_KEY, COMPACT_KEY
from lockkit.table.services.shared import keep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lockkit.stores import Store
    from lockkit.table.services.upkeep import Upkeep

STREAM_RETRIES = 20
"""A large number, because a conflict in the last attempt ends the query."""
QUERY_ID = "sql.streaming.queryId"
DISABLE_COMPACTION = WRITE + "streaming.disable.compaction"


def foreach_batch(
    url: str,
    *,
    query: str | None = None,
    endpoint: str | None = None,
    options: Mapping[str, Any] | None = None,
    client: str = "",
    emit: Emit = silent,
    **how: Any,
) -> BatchWriter:
    """A function for `foreachBatch` that writes each batch exactly once, with `write`'s keywords.

    `query` identifies the query to the table: keep it over restarts, and change it with a new
    checkpoint. The default is Spark's own id, which Spark Connect does not give. A batch that the
    table already has is skipped, and conflicts are retried (20 times by default). A new checkpoint
    under an old name gives a warning. Then the batches are written if Spark gives its id; otherwise
    batches whose number the table already has are skipped. A merge-on-read table is compacted
    beside the batches, as in Hudi, unless `options` say otherwise; call `close()` of the function
    when the query has ended. Raises what `write` raises.

    :param url: the table's folder.
    :param query: the query's name in the table; None: Spark's id.
    :param endpoint: the store's URL; None: the service's own.
    :param options: Hudi's options (docs/options.md).
    :param client: the name of this writer in events.
    :param emit: called with each event.
    :param how: the other keywords of `write`.
    """
    store_options = {name: value for name, value in how.items() if name not in KEYWORDS}
    check_keywords(foreach_batch, url, store_options, KEYWORDS)
    place = TableAddress(url.rstrip("/"), endpoint, client, store_options)
    said: dict[str, Any] = with_compaction({RETRIES: str(STREAM_RETRIES), **(options or {})})
    if how.get("table_name"):
        said[TABLE_NAME] = how["table_name"]
    write_options(said)  # wrong options end the query before its first batch
    return BatchWriter(place, said, query, emit, how)


@dataclass(slots=True)
class BatchWriter:
    """Writes a query's batches; `close` waits for a compaction beside them, and ends them all.

    Without it the end of the program interrupts that compaction, and the next writer rolls it back.
    """

    place: TableAddress
    said: Mapping[str, Any]
    query: str | None
    emit: Emit
    how: Mapping[str, Any]
    _shared: list[Upkeep | None] = field(default_factory=list)
    """The services of all batches, which compact beside them; None: each batch has its own."""
    _opened: list[ExitStack] = field(default_factory=list)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        place, said, alone = self.place, self.said, concurrency_mode(lowered(self.said)) == SINGLE
        spark_id, clock = _query_id(frame), Clock()
        name = self.query or _named(spark_id)
        store, lock = place.open(), open_lock(place, said, clock, self.emit)
        try:
            once = MicroBatch(
                store, place.url, name, batch, clock, self.emit, spark_id,
                names_lock(lowered(said)),
            )  # fmt: skip
            if not once.is_over(lock):
                upkeep = self._services(store, clock)
                lent = None if alone or upkeep else lock
                # A write refuses options that describe another lock than the one that it gets.
                kept = {name: value for name, value in said.items()
                        if lent is None or name.lower() not in DESCRIBING}  # fmt: skip
                write(
                    frame, place.url, endpoint=place.endpoint, options=kept, client=place.client,
                    emit=self.emit, clock=clock, lock=lent, upkeep=upkeep, claim=once,
                    extra=once.extra, **self.how,
                )  # fmt: skip
        finally:
            lock.close()
            store.close()

    def _services(self, store: Store, clock: Clock) -> Upkeep | None:
        if not self._shared:
            merged = False
            if flag(lowered(self.said), COMPACT_ASYNC_KEY):
                given = {name: value for name, value in self.how.items() if name in KEYWORDS}
                wanted = write_options(self.said, **given)
                merged = known_config(wanted, self.place.url, store, clock)[0].merged
            self._shared.append(self._kept(clock) if merged else None)
        return self._shared[0]

    def _kept(self, clock: Clock) -> Upkeep:
        place = self.place
        self._opened.append(ExitStack())
        return self._opened[0].enter_context(keep(
            place.url, self.said, clock=clock, emit=self.emit, client=place.client,
            endpoint=place.endpoint, **place.options,
        ))  # fmt: skip

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()
        self._shared.clear()


def with_compaction(said: Mapping[str, Any]) -> dict[str, Any]:
    """Hudi's default for a stream: a merge-on-read table is compacted beside its batches."""
    given = lowered(said)
    if flag(given, DISABLE_COMPACTION):
        return {k: v for k, v in said.items() if k.lower() != COMPACT_ASYNC_KEY}
    if COMPACT_ASYNC_KEY in given or flag(given, COMPACT_KEY):
        return dict(said)
    return {**said, COMPACT_ASYNC_KEY: "true"}


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
