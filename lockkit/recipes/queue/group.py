"""Group commit: one compare-and-set at a time; requests that arrive meanwhile go into the next.

So the rate of requests does not depend on the rate of writes. An object that allows one write per
second serves all requests that wait for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from lockkit.recipes.errors import QueueError
from lockkit.recipes.queue.file import Broker
from lockkit.recipes.queue.handle import Queue, answer_or_raise
from lockkit.recipes.queue.jobs import QueueDraft, QueuePolicy
from lockkit.recipes.queue.operations import Answer, Operation
from lockkit.recipes.queue.write import (
    NotDone,
    QueueRead,
    Unsure,
    WriteLanded,
    WriteLost,
    commit,
    draft,
    land,
    load,
)
from lockkit.runtime import Procedure, Sleep, run
from lockkit.sinks.batches import report_batch

BATCH_MAX = 512
CLOSE_S_MAX = 60.0

Outcome = Answer | NotDone | Unsure


@dataclass(slots=True, eq=False)
class WriteTicket:
    """A request that waits for its write; the first call of `settle` decides."""

    operation: Operation
    outcome: Future[Outcome] = field(default_factory=Future)

    def settle(self, outcome: Outcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


class RequestQueue:
    """Where requests wait for the next write."""

    def __init__(self) -> None:
        self.waiting: deque[WriteTicket] = deque()
        self.closed = ""
        """Why no more requests are accepted."""
        self._changed = threading.Condition()

    def submit(self, operation: Operation) -> WriteTicket:
        ticket = WriteTicket(operation)
        with self._changed:
            if self.closed:
                ticket.settle(NotDone(self.closed))
            else:
                self.waiting.append(ticket)
                self._changed.notify()
        return ticket

    def take(self, wait_s: float | None = None) -> list[WriteTicket]:
        """All waiting requests, at most `BATCH_MAX`; none after `wait_s` or once it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.waiting or self.closed, wait_s)
            return [self.waiting.popleft() for _ in range(min(BATCH_MAX, len(self.waiting)))]

    def close(self, why: str) -> None:
        """Every waiting request is settled as not done."""
        with self._changed:
            self.closed = self.closed or why
            left, self.waiting = list(self.waiting), deque()
            self._changed.notify_all()
        for ticket in left:
            ticket.settle(NotDone(why))


# --- procedures -----------------------------------------------------------------------------------


class WriterDeposed(Exception):
    """Another process writes the file now; a process that was its only writer must exit."""


def group_commit(
    tickets: Sequence[WriteTicket], policy: QueuePolicy, *, seen: QueueRead | None,
    interval_s: float, who: str = "",
) -> Procedure[QueueRead | None]:  # fmt: skip
    """Commit one batch among competing writers; the result saves the next batch's read."""
    operations = [each.operation for each in tickets]
    match (yield from commit(operations, policy, seen=seen, who=who)):
        case (now, answers):
            acknowledge(tickets, answers)
            if seen is None or now.version != seen.version:
                yield Sleep(interval_s)
            return now
        case failed:
            for each in tickets:
                each.settle(failed)
            return None


def enlist(
    broker: Broker, policy: QueuePolicy, *, interval_s: float, instead_of: str | None = None
) -> Procedure[QueueRead]:
    """Enter a broker into the file; this is its only read. `WriterDeposed` if another was faster.

    With `instead_of`, only replace the broker of that id ("": none), which was found to be gone.
    """
    seen = yield from load()
    named = seen.file.broker.id if seen.file.broker else ""
    if instead_of is not None and named != instead_of:
        raise WriterDeposed("another broker took over already")
    new = yield from draft(seen, (), policy, who=broker.id, broker=broker)
    match (yield from land(seen, new)):
        case WriteLanded(now) if now.file.attempt == new.file.attempt:
            yield Sleep(interval_s)
            return now
        case WriteLanded() | WriteLost():
            raise WriterDeposed("another broker wrote the file first")
        case NotDone(why) | Unsure(why):
            raise QueueError(
                "the broker", f"could not be entered into the file: {why}", "try again"
            )


def broker_commit(
    tickets: Sequence[WriteTicket],
    policy: QueuePolicy,
    *,
    seen: QueueRead,
    interval_s: float,
    who: str = "",
) -> Procedure[QueueRead]:
    """Commit one batch as the file's only writer. It never reads the file to compete:
    `WriterDeposed` ends it.

    Each ticket is settled: acknowledged once the write has landed, otherwise as not done or as
    unknown.
    """
    new = yield from draft(seen, [each.operation for each in tickets], policy, who=who)
    match (yield from written(tickets, seen, new)):
        case WriteLanded(now):
            acknowledge(tickets, new.answers)
            if now.file.attempt != new.file.attempt:
                raise WriterDeposed("another broker wrote the file next")
            if new.changed:
                yield Sleep(interval_s)
            return now
        case WriteLost(now):
            _fail(tickets, NotDone("its broker lost a write, and ends"))
            return after_loss(seen, now)
        case NotDone() as failed:
            _fail(tickets, failed)
            return seen
        case Unsure(why) as failed:
            _fail(tickets, failed)
            raise WriterDeposed(f"the outcome of its write is unknown: {why}")


def written(
    _tickets: Sequence[WriteTicket], seen: QueueRead, new: QueueDraft
) -> Procedure[WriteLanded | WriteLost | NotDone | Unsure]:
    """Tickets are acknowledged only after the write has landed."""
    return (yield from land(seen, new))


def after_loss(_seen: QueueRead, _now: QueueRead) -> QueueRead:
    """A broker that lost a write is no longer the only writer: it exits."""
    raise WriterDeposed("another broker wrote the file first")


def acknowledge(tickets: Sequence[WriteTicket], answers: Sequence[Answer]) -> None:
    for ticket, answer in zip(tickets, answers, strict=True):
        ticket.settle(answer)


def _fail(tickets: Sequence[WriteTicket], failed: NotDone | Unsure) -> None:
    for ticket in tickets:
        ticket.settle(failed)


# --- the handle -----------------------------------------------------------------------------------


class GroupQueue(Queue):
    """A queue whose threads share their writes; requests still waiting at `close` are not done.

    :param url: where `queue.json` is, as for `open_store`.
    :param options: those of `Queue`.
    """

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._requests = RequestQueue()
        self._door = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, operation: Operation) -> Answer:
        self._enter()
        self._start()
        return answer_or_raise(operation, self._requests.submit(operation).outcome.result())

    def close(self) -> None:
        self._requests.close("the queue's handle was closed")
        if self._thread is not None:
            self._thread.join(CLOSE_S_MAX)
        super().close()

    def _start(self) -> None:
        with self._door:
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="queue", daemon=True)
                self._thread.start()

    def _write(self) -> None:
        seen: QueueRead | None = None
        interval_s = self.store.capabilities.write_interval_min_s
        while tickets := self._requests.take():
            batch = group_commit(
                tickets, self.policy, seen=seen, interval_s=interval_s, who=self.who
            )
            try:
                seen = run(batch, self.store, self.clock)
                report_batch(self.store.url, self.who, len(tickets))
            except Exception as error:  # noqa: BLE001 - the waiting callers raise it
                seen = None
                for each in tickets:
                    if not each.outcome.done():
                        each.outcome.set_exception(error)
