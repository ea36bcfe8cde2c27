"""The one-file queue (turbopuffer): push, claim, heartbeat and complete by compare-and-set.

Delivery is at least once, in the order of the pushes. Here each operation reads and writes the file
by itself. `group` lets all threads of a process share a write, `broker` all processes of a machine.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from lockkit.clock import Clock
from lockkit.errors import NoAnswer, masked
from lockkit.lock.conformance import prove_conditions
from lockkit.recipes.errors import JobLost, QueueBusy, QueueError, QueueUnknown
from lockkit.recipes.queue.file import Job
from lockkit.recipes.queue.jobs import QueuePolicy
from lockkit.recipes.queue.operations import (
    Answer,
    Beat,
    Claim,
    Claimed,
    Complete,
    Forgotten,
    Operation,
    Push,
    Refused,
)
from lockkit.recipes.queue.write import KEY, NotDone, Unsure, commit, load
from lockkit.runtime import run
from lockkit.stores import open_store


def answer_or_raise(operation: Operation, outcome: Answer | NotDone | Unsure) -> Answer:
    """The result for the caller: the answer, `QueueBusy`, or `QueueUnknown`."""
    match outcome:
        case NotDone(why):
            if operation.since is None:
                raise QueueBusy(f"{KEY}:", why, "try again later")
            raise QueueUnknown(operation, why)
        case Unsure(why, since):
            raise QueueUnknown(again(operation, since), why)
        case Forgotten():
            why = "more was written since it was first sent than the file remembers"
            raise QueueUnknown(operation, why)
        case answer:
            return answer


def again(operation: Operation, since: int) -> Operation:
    """The same request, to be sent again; `since` is kept from its first send."""
    return operation if operation.since is not None else replace(operation, since=since)


class Queue:
    """A queue below `url`; each operation is one read and one compare-and-set.

    Raises `QueueBusy` (not done), `QueueUnknown` (unknown), `QueueError` (no queue there, or full),
    `JobLost`, and `StoreError`. Threads may share a handle.

    :param url: where `queue.json` is, as for `open_store`.
    :param policy: when a job is handed out again, and how many writes the file remembers.
    :param clock: the source of time; tests replace it.
    :param client: the name of this client in the file and in the store's log.
    :param store_options: those of `open_store`: endpoint, credentials, ...
    """

    def __init__(
        self, url: str, *, policy: QueuePolicy = QueuePolicy(), clock: Clock | None = None,
        client: str = "", **store_options: Any,
    ) -> None:  # fmt: skip
        self.url, self.policy = url.rstrip("/"), policy
        self.clock = clock or Clock()
        self.store = open_store(self.url, client=client, **store_options)
        self.who = client or self.clock.unique()
        self._pid = os.getpid()

    def push(self, payload: str, *, id: str = "") -> str:
        """Add a job at the end; returns its id. A repeated push with one id adds it once."""
        request = Push(id or self.clock.unique(), payload)
        self._carry_out(request)
        return request.id

    def claim(self, worker: str) -> Job | None:
        """The first free job, now assigned to this worker; None if there is none."""
        answer = self._carry_out(Claim(self.clock.unique(), worker))
        return answer.job if isinstance(answer, Claimed) else None

    def heartbeat(self, job: Job) -> None:
        """Keep the job for another `policy.timeout_ms`; `JobLost` if another worker has it."""
        self._carry_out(Beat(self.clock.unique(), job.id, job.attempts))

    def complete(self, job: Job) -> None:
        """Remove the finished job from the file; `JobLost` if another worker has it."""
        self._carry_out(Complete(self.clock.unique(), job.id, job.attempts))

    def submit(self, operation: Operation) -> Answer:
        """Carry out one request, also one that is repeated after `QueueUnknown`."""
        self._enter()
        match run(commit([operation], self.policy, who=self.who), self.store, self.clock):
            case (_, answers):
                return answer_or_raise(operation, answers[0])
            case failed:
                return answer_or_raise(operation, failed)

    def jobs(self) -> list[Job]:
        """All jobs that are not completed, in order."""
        return list(run(load(), self.store, self.clock).file.jobs.values())

    def __repr__(self) -> str:
        return masked(f"<{type(self).__name__} {self.url} as {self.who}>")

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enter(self) -> None:
        """Before each operation: check that this process may use this store.

        A forked child has neither the writing thread nor a connection of its own.
        """
        if os.getpid() != self._pid:
            raise QueueError(
                f"the queue at {self.url}",
                f"was opened by process {self._pid} and used by {os.getpid()} after a fork",
                "open it again in the child",
            )
        try:
            prove_conditions(self.store, self.clock)
        except NoAnswer as error:
            # nothing was written yet
            raise QueueBusy("the queue's store:", str(error), "try again later") from error

    def _carry_out(self, operation: Operation) -> Answer:
        answer = self.submit(operation)
        if isinstance(answer, Refused):
            lost = isinstance(operation, Beat | Complete)
            kind, cure = (JobLost, "stop working on it") if lost else (QueueError, "")
            raise kind(type(operation).__name__.lower(), f"was refused: {answer.why}", cure)
        return answer
