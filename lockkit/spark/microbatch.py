"""Commits a micro-batch of a Spark streaming query exactly once.

Spark repeats a batch if it does not know that the batch has ended. `lockkit.table.write.batch`
decides whether it is a repetition.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockkit.clock import Clock
from lockkit.runtime import Procedure, run
from lockkit.sinks import Emit, silent
from lockkit.stores import Store
from lockkit.table.format.layout import hadoop_base
from lockkit.table.occ.commit import StateChange
from lockkit.table.occ.concurrency import guard_of
from lockkit.table.occ.rollback import RollbackRefused, RolledBack
from lockkit.table.write.batch import STREAM, STREAMS, BatchClaim, BatchState, StreamBatch

if TYPE_CHECKING:
    from lockkit.lock.contract import LockHandle

__all__ = ["STREAM", "STREAMS", "MicroBatch"]

_SPARKS_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(slots=True)
class MicroBatch:
    """Batch `batch` of the query `query`, which is being written to the table at `url`."""

    store: Store
    url: str
    query: str
    batch: int
    clock: Clock = field(default_factory=Clock)
    emit: Emit = silent
    checkpoint: str = ""
    """Spark's own id of the query if the query has another name; "" if it is unknown."""
    _batch: StreamBatch = field(init=False)

    def __post_init__(self) -> None:
        self._batch = StreamBatch(self.query, self.batch, self.checkpoint)

    @property
    def extra(self) -> dict[str, str]:
        return self._batch.extra

    def is_over(self, lock: LockHandle) -> bool:
        """Whether the batch is committed. If not, only this run can commit it from now on.

        A batch of a new checkpoint is a different batch, even with the same number. Raises
        `TableError` if another writer of this batch is alive and cannot be stopped.
        """

        def hold(
            rolls_back: Callable[[StateChange], Procedure[RolledBack | RollbackRefused]]
        ) -> Procedure[RolledBack | RollbackRefused]:
            with lock:
                return (yield from rolls_back(StateChange(guard_of(lock), lock.assert_held)))

        way = self._batch.state(hold, hadoop_base(self.url))
        state: BatchState = run(way, self.store, self.clock, self.emit)
        before = self._batch.before
        if before is not None and state is BatchState.NEW_CHECKPOINT:
            self._warn(
                f"query {self.query} has a new checkpoint, and the table has its batches up to "
                f"{before.batch} from an earlier one. Batch {self.batch} is written: it is not one "
                "of those, though it may bring rows that they brought. Give a query with a new "
                "checkpoint another name"
            )
        if before is not None and state is BatchState.PASSED_OVER:
            self._warn_of_passing_over(before)
        return state in (BatchState.PASSED_OVER, BatchState.COMMITTED)

    def _warn_of_passing_over(self, before: BatchClaim) -> None:
        """Warn, unless Spark's id is known: with it, only an old run can send such a batch."""
        if not self.checkpoint and not _SPARKS_ID.fullmatch(self.query):
            self._warn(
                f"batch {self.batch} of query {self.query} is passed over: the table has its batch "
                f"{before.batch} already. Spark sends no batch again after a later one. So either "
                "another run of this query is behind: stop it; or the query has a new checkpoint, "
                "and rows are being left out: restart it under another name"
            )

    def _warn(self, text: str) -> None:
        self.emit("note", text=text)
        warnings.warn(text, RuntimeWarning, stacklevel=3)

    def claim(self, instant: str, attempt: str = "") -> None:
        """Record that `instant` writes this batch; `TableError` if another run claimed it."""
        run(self._batch.claim(instant, attempt), self.store, self.clock)
