"""A write-ahead log on an object store, for many appenders: group commit over its slots.

Records that arrive during a write go out with the next one. Slots are separate objects, so a store
that allows one write per second and object (GCS) does not slow a log down.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lockkit.clock import Clock
from lockkit.lock.conformance import prove_conditions
from lockkit.recipes.errors import AppendUnknown, Damaged, Fenced, SameEpoch, WalError
from lockkit.recipes.wal.reader import Cursor, Entry, Position, Reader
from lockkit.recipes.wal.slot import BATCH_BYTES_MAX, LogTail, encode_record
from lockkit.recipes.wal.writer import append, in_doubt, open_log
from lockkit.runtime import run
from lockkit.runtime.proven import AT_ONCE_MAX
from lockkit.sinks.batches import report_batch
from lockkit.stores import Store, open_store

__all__ = [
    "AppendUnknown", "Cursor", "Damaged", "Entry", "Fenced", "Position", "Reader", "SameEpoch",
    "LogTail", "Wal", "WalError",
]  # fmt: skip

PARALLEL_MAX = AT_ONCE_MAX
BATCH_RECORDS_MAX = 10_000


@dataclass(slots=True, eq=False)
class _Ticket:
    """One record whose appender waits."""

    text: str
    outcome: Position | BaseException | None = None

    def waits(self) -> bool:
        return self.outcome is None


@dataclass(slots=True)
class _Waiters:
    """The waiting tickets in order of arrival, and whether a thread is writing for all."""

    waiting: list[_Ticket] = field(default_factory=list)
    writing: bool = False
    closed: bool = False
    turn: threading.Condition = field(default_factory=threading.Condition)


class Wal:
    """A writer of the log at `url`, for any number of threads.

    Records that arrive during a write go out with the next one, in one slot; if they do not fit,
    up to `parallel` slots go out together.

    with Wal("s3://lake/orders-log") as wal:
        wal.append({"order": 1})

    :param url: where the slots are, as for `open_store`: one object each.
    :param parallel: how many slots go out together, at most; 1 by default.
    :param tail: how readers find the end of the log (`LogTail`).
    :param clock: the source of time; tests replace it.
    :param client: the name of this writer in the store's log.
    :param store_options: those of `open_store`: endpoint, credentials, ...
    :raises ValueError: if `parallel` is out of its range; `StoreError` if the store cannot be used.
    """

    def __init__(
        self, url: str, *, parallel: int = 1, tail: LogTail = LogTail.NEXT_SLOT,
        clock: Clock | None = None, client: str = "", **store_options: Any,
    ) -> None:  # fmt: skip
        if not 1 <= parallel <= PARALLEL_MAX:
            raise ValueError(f"parallel={parallel}: write 1 to {PARALLEL_MAX} slots at once")
        self.store: Store = open_store(url.rstrip("/"), client=client, **store_options)
        self._parallel = parallel
        self._clock, self._crowd = clock or Clock(), _Waiters()
        try:
            prove_conditions(self.store, self._clock)
            self.log = run(open_log(tail), self.store, self._clock)
        except BaseException:
            self.store.close()
            raise

    @property
    def epoch(self) -> int:
        return self.log.epoch

    def append(self, record: Any) -> Position:
        """Return its sequence number once it is in the log for good. `record` is a JSON value.

        Raises `Fenced` (a newer writer has begun: it will never be read), `AppendUnknown` (it may
        be), or, if it was certainly not written, the error that prevented it.
        """
        ticket, crowd = _Ticket(encode_record(record)), self._crowd
        with crowd.turn:
            if crowd.closed:
                raise WalError(f"{self.store.url} was closed here", cure="open the log again")
            crowd.waiting.append(ticket)
        try:
            self._until_settled(ticket)
        except BaseException:
            with crowd.turn:
                if ticket in crowd.waiting:
                    crowd.waiting.remove(ticket)
                    crowd.turn.notify_all()
            raise
        if isinstance(ticket.outcome, BaseException):
            raise ticket.outcome
        assert ticket.outcome is not None
        return ticket.outcome

    def _until_settled(self, ticket: _Ticket) -> None:
        """Wait for the thread that writes for all; if there is none, become that thread."""
        crowd = self._crowd
        while ticket.waits():
            with crowd.turn:
                crowd.turn.wait_for(lambda: not (crowd.writing and ticket.waits()))
                if not ticket.waits():
                    return
                batches = _cut(crowd.waiting, self._parallel)
                crowd.writing = True
            self._write(batches)

    def _write(self, batches: list[list[_Ticket]]) -> None:
        outcomes: Sequence[int | BaseException] = ()
        try:
            texts = [[each.text for each in batch] for batch in batches]
            outcomes = run(append(self.log, texts), self.store, self._clock)
        finally:
            lost = in_doubt(self.log.next, "its writer was interrupted")
            with self._crowd.turn:
                for batch, what in zip(batches, outcomes or [lost] * len(batches), strict=True):
                    for index, each in enumerate(batch):
                        each.outcome = Position(what, index) if isinstance(what, int) else what
                self._crowd.writing = False
                self._crowd.turn.notify_all()
        for batch in batches:
            report_batch(self.store.url, "", len(batch))

    def __repr__(self) -> str:
        return f"<Wal {self.store.url}: epoch {self.log.epoch}, next slot {self.log.next}>"

    def close(self) -> None:
        """Close the client. Other writers are not affected, and nothing needs to be released."""
        with self._crowd.turn:
            self._crowd.closed = True
            self._crowd.turn.wait_for(lambda: not (self._crowd.writing or self._crowd.waiting))
        self.store.close()

    def __enter__(self) -> Wal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _cut(waiting: list[_Ticket], parallel: int) -> list[list[_Ticket]]:
    """Take the next batches from the waiting tickets: at most `parallel`, in order."""
    batches: list[list[_Ticket]] = [[]]
    size = 0
    while waiting:
        last, text = batches[-1], waiting[0].text
        if last and (len(last) >= BATCH_RECORDS_MAX or size + len(text) > BATCH_BYTES_MAX):
            if len(batches) == parallel:
                break
            batches.append([])
            size = 0
        size += len(text)
        batches[-1].append(waiting.pop(0))
    return batches
