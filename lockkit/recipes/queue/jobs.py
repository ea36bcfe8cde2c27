"""The queue's transitions: push, claim, heartbeat, complete; many of them in one write.

Pure. A job's `attempts` is the fencing token of its workers: a worker with an old one is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from lockkit.errors import clipped
from lockkit.protocol.outcome import NotOurs, Ours, StillOut, Version, resolve
from lockkit.recipes.errors import QueueError
from lockkit.recipes.queue.file import (
    QUEUE_BYTES_MAX,
    SHOWN,
    Broker,
    Job,
    QueueFile,
    QueueWrite,
    encode,
)
from lockkit.recipes.queue.operations import (
    Answer,
    Beat,
    Claim,
    Claimed,
    Complete,
    Done,
    Empty,
    Forgotten,
    Operation,
    Push,
    Refused,
)

PUSH_BYTES_MAX, CLAIM_BYTES_MAX = 8_000_000, 9_000_000
"""Pushes, then claims, are refused well before the file becomes too long to be read."""
REQUESTS_MAX = 4096
"""Number of requests that the file remembers."""
FULL = "the queue is full: let workers complete jobs, then try again"


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The settings of a queue's user."""

    timeout_ms: int = 10_000
    """A job whose heartbeat is further than this from now is handed out again."""
    recent_max: int = 256
    """The most writes that the file remembers; fewer if they were large."""


# --- transitions ----------------------------------------------------------------------------------


def is_free(job: Job, now_ms: int, policy: QueuePolicy) -> bool:
    """Unassigned, or its heartbeat is too old; a heartbeat far in the future shows a wrong clock.

    Clocks affect only the timing: a job that is handed out too early costs work done twice.
    """
    return not job.attempts or is_over(job, now_ms, policy)


def is_over(job: Job, now_ms: int, policy: QueuePolicy) -> bool:
    """Whether its worker was silent for too long."""
    return abs(now_ms - job.heartbeat_ms) > policy.timeout_ms


def next_of(free: deque[str]) -> str:
    """First in, first out."""
    return free.popleft()


def has_it(job: Job, operation: Beat | Complete) -> bool:
    """Whether the job still belongs to the worker that sends this request."""
    return job.attempts == operation.attempts


def happened(id: str, file: QueueFile, done: Sequence[str], jobs: Container[str] = ()) -> bool:
    """Whether this request was carried out, by a remembered write or by this one."""
    return id in file.requests or id in done or id in jobs


def is_forgotten(since: int, file: QueueFile) -> bool:
    """Whether the request may have been carried out before the oldest remembered write."""
    return since != file.number and not file.remembers(since + 1)


@dataclass(frozen=True, slots=True)
class QueueDraft:
    """The next content of the file, and the answers to give once it is written."""

    file: QueueFile
    answers: tuple[Answer, ...]
    changed: bool
    body: bytes = field(default=b"", repr=False)


def drafted(
    file: QueueFile, operations: Sequence[Operation], *, attempt: str, now_ms: int,
    policy: QueuePolicy = QueuePolicy(), broker: Broker | None = None,
) -> QueueDraft:  # fmt: skip
    """All operations, in their order, as one write; `broker` is entered into the file."""
    bounds: tuple[tuple[tuple[type, ...], int], ...] = (
        ((), PUSH_BYTES_MAX), ((Push,), CLAIM_BYTES_MAX), ((Push, Claim), QUEUE_BYTES_MAX)
    )  # fmt: skip
    for full, most in bounds:
        turn = _Turn(file, now_ms, policy, full)
        answers = tuple(turn.answer(each) for each in operations)
        recent = (*file.recent, QueueWrite(attempt, tuple(turn.done)))
        new = QueueFile(
            turn.jobs, broker or file.broker, file.number + 1, _remembered(recent, policy)
        )
        changed = turn.changed or broker is not None
        body = encode(new) if changed else b""
        if len(body) <= most:
            return QueueDraft(new if changed else file, answers, changed, body)
    raise QueueError("queue.json", f"would be longer than {QUEUE_BYTES_MAX} bytes", FULL)


def _remembered(recent: Sequence[QueueWrite], policy: QueuePolicy) -> tuple[QueueWrite, ...]:
    """As many of the last writes as fit, and this one."""
    requests = 0
    for count, write in enumerate(reversed(recent)):
        requests += len(write.requests)
        if count and (count >= policy.recent_max or requests > REQUESTS_MAX):
            return tuple(recent[-count:])
    return tuple(recent)


class _Turn:
    """The jobs while the operations of one write are carried out."""

    def __init__(
        self, file: QueueFile, now_ms: int, policy: QueuePolicy, full: tuple[type, ...]
    ) -> None:
        self.jobs = dict(file.jobs)
        self.done: list[str] = []
        self.changed = False
        self._file, self._now_ms, self._policy, self._full = file, now_ms, policy, full
        self._free: deque[str] | None = None

    def answer(self, operation: Operation) -> Answer:
        match operation:
            case Push():
                return self._push(operation)
            case Claim():
                return self._claim(operation)
            case Beat() | Complete():
                return self._of_a_holder(operation)
            case _:
                assert_never(operation)

    def _forgotten(self, operation: Operation) -> bool:
        return operation.since is not None and is_forgotten(operation.since, self._file)

    def _push(self, operation: Push) -> Answer:
        if happened(operation.id, self._file, self.done, self.jobs):
            return Done()
        if self._forgotten(operation):
            return Forgotten()
        if Push in self._full:
            return Refused(FULL)
        self._free_now().append(operation.id)
        self.jobs[operation.id] = Job(operation.id, operation.payload)
        self.done.append(operation.id)
        self.changed = True
        return Done()

    def _claim(self, operation: Claim) -> Answer:
        if operation.since is not None:  # sent again: it may claim at most one job
            for job in self.jobs.values():
                if job.claim == operation.id:
                    return Claimed(job)
        free = self._free_now()
        while free:
            job = self.jobs.get(next_of(free), _GONE)
            if job is _GONE or not is_free(job, self._now_ms, self._policy):
                continue  # completed or renewed by an earlier operation of this write
            if Claim in self._full:
                return Refused(FULL)
            mine = Job(
                job.id, job.payload, operation.worker, operation.id, self._now_ms, job.attempts + 1
            )
            self.jobs[job.id] = mine
            self.changed = True
            return Claimed(mine)
        return Empty()

    def _free_now(self) -> deque[str]:
        if self._free is None:
            found = (each.id for each in self.jobs.values()
                     if is_free(each, self._now_ms, self._policy))  # fmt: skip
            self._free = deque(found)
        return self._free

    def _of_a_holder(self, operation: Beat | Complete) -> Answer:
        if happened(operation.id, self._file, self.done):
            return Done()
        job = self.jobs.get(operation.job)
        if job is None:
            if isinstance(operation, Complete) and self._forgotten(operation):
                return Forgotten()
            return Refused(f"job {operation.job!r} is not in the queue: it is completed")
        if not has_it(job, operation):
            return Refused(
                f"job {operation.job!r} was handed on: attempt {operation.attempts} is over, "
                f"{clipped(job.worker, SHOWN)!r} has attempt {job.attempts}"
            )
        self.changed = True
        if isinstance(operation, Complete):
            del self.jobs[operation.job]
            self.done.append(operation.id)
        else:
            self.jobs[operation.job] = Job(
                job.id, job.payload, job.worker, job.claim, self._now_ms, job.attempts
            )
        return Done()


_GONE = Job("", "")


# --- what became of a write -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HistoryTooOld:
    """More writes came after it than the file remembers, or the file was replaced: unknown."""


def settle(
    mine: QueueFile, wrote_over: Version | None, found: QueueFile, version: Version | None
) -> Ours | StillOut | NotOurs | HistoryTooOld:
    """Classify a write of ours from a later read; `Ours` also when others wrote after it."""
    match resolve(version, found.attempt, attempt=mine.attempt, wrote_over=wrote_over):
        case NotOurs():
            pass
        case certain:
            return certain
    return by_memory(mine, found, version)


def by_memory(
    mine: QueueFile, found: QueueFile, version: Version | None
) -> Ours | NotOurs | HistoryTooOld:
    """Others wrote after it: the file remembers which write had its number."""
    if not found.remembers(mine.number):
        return HistoryTooOld()
    assert version is not None
    return Ours(version) if found.written(mine.number) == mine.attempt else NotOurs()
