"""The queue's transitions: push, claim, heartbeat, complete; many of them as one write.

Pure. `attempts` of a job is the fence of its workers: whoever has an old one is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from lockkit.outcome import NotOurs, Ours, StillOut, Version, resolve
from lockkit.patterns.queue.asked import (
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
from lockkit.patterns.queue.file import (
    QUEUE_BYTES_MAX,
    SHOWN,
    Broker,
    File,
    Job,
    QueueError,
    Write,
    encode,
)

PUSH_BYTES_MAX, CLAIM_BYTES_MAX = 8_000_000, 9_000_000
"""Pushes, then claims, are refused in good time before the file is too long to be read."""
REQUESTS_MAX = 4096
"""Requests that the file remembers."""
FULL = "the queue is full: let workers complete jobs, then try again"


@dataclass(frozen=True, slots=True)
class QueueRules:
    """Each safety decision of the queue; all right by default. `timeout_ms` is also a setting."""

    timeout_ms: int = 10_000
    """A job whose heartbeat is further than this from now is handed out again."""
    expires: bool = True
    """False: whoever claimed a job has it for ever, dead or alive."""
    fifo: bool = True
    compare_attempts: bool = True
    """False: whoever once had a job may complete it, although it was handed on since."""
    id_per_write: bool = True
    """False: a write is recognised by its client."""
    recent: bool = True
    """False: a write that is not the last is taken for one that never landed."""
    recent_max: int = 256
    """How many writes the file remembers, at most: fewer where they were large."""
    beyond_is_unknown: bool = True
    """False: what happened before the file's memory begins is taken to have not happened."""
    acknowledge_landed: bool = True
    """False: a batch is acknowledged as soon as it is sent."""
    lost_ends: bool = True
    """False: a broker that lost a write goes on with its old memory under the new version."""


# --- transitions ----------------------------------------------------------------------------------


def is_free(job: Job, now_ms: int, rules: QueueRules) -> bool:
    """Nobody has it, or not for long enough: too far ahead is as wrong a clock as too far behind.

    Clocks decide only how soon; whoever is handed a job too early costs work done twice.
    """
    if not job.attempts:
        return True
    return rules.expires and abs(now_ms - job.heartbeat_ms) > rules.timeout_ms


@dataclass(frozen=True, slots=True)
class Draft:
    """The file as it is to be written, and what may be told once it is."""

    file: File
    answers: tuple[Answer, ...]
    changed: bool
    body: bytes = field(default=b"", repr=False)


def drafted(
    file: File, operations: Sequence[Operation], *, attempt: str, now_ms: int,
    rules: QueueRules = QueueRules(), broker: Broker | None = None,
) -> Draft:  # fmt: skip
    """All operations, in their order, as one write; `broker` is entered into the file."""
    bounds: tuple[tuple[tuple[type, ...], int], ...] = (
        ((), PUSH_BYTES_MAX), ((Push,), CLAIM_BYTES_MAX), ((Push, Claim), QUEUE_BYTES_MAX)
    )  # fmt: skip
    for full, most in bounds:
        turn = _Turn(file, now_ms, rules, full)
        answers = tuple(turn.answer(each) for each in operations)
        recent = (*file.recent, Write(attempt, tuple(turn.done)))
        new = File(
            turn.jobs, broker or file.broker, file.number + 1, _remembered(recent, rules)
        )
        changed = turn.changed or broker is not None
        body = encode(new) if changed else b""
        if len(body) <= most:
            return Draft(new if changed else file, answers, changed, body)
    raise QueueError(f"queue.json would be longer than {QUEUE_BYTES_MAX} bytes: {FULL}")


def _remembered(recent: Sequence[Write], rules: QueueRules) -> tuple[Write, ...]:
    """Of the last writes as many as fit, and this one."""
    requests = 0
    for count, write in enumerate(reversed(recent)):
        requests += len(write.requests)
        if count and (count >= rules.recent_max or requests > REQUESTS_MAX):
            return tuple(recent[-count:])
    return tuple(recent)


class _Turn:
    """The jobs while the operations of one write are carried out."""

    def __init__(
        self, file: File, now_ms: int, rules: QueueRules, full: tuple[type, ...]
    ) -> None:
        self.jobs = dict(file.jobs)
        self.done: list[str] = []
        self.changed = False
        self._file, self._now_ms, self._rules, self._full = file, now_ms, rules, full
        self._free: deque[str] | None = None

    def answer(self, asked: Operation) -> Answer:
        match asked:
            case Push():
                return self._push(asked)
            case Claim():
                return self._claim(asked)
            case Beat() | Complete():
                return self._of_a_holder(asked)
            case _:
                assert_never(asked)

    def _happened(self, asked: Operation) -> bool:
        known = asked.id in self._file.requests or asked.id in self.done
        return self._rules.recent and known

    def _forgotten(self, asked: Operation) -> bool:
        """Whether it may have happened before the memory of the file begins."""
        if asked.since is None or not self._rules.beyond_is_unknown:
            return False
        since = asked.since
        return since != self._file.number and not self._file.remembers(since + 1)

    def _push(self, asked: Push) -> Answer:
        if self._rules.recent and (self._happened(asked) or asked.id in self.jobs):
            return Done()
        if self._forgotten(asked):
            return Forgotten()
        if Push in self._full:
            return Refused(FULL)
        self._free_now().append(asked.id)
        self.jobs[asked.id] = Job(asked.id, asked.payload)
        self.done.append(asked.id)
        self.changed = True
        return Done()

    def _claim(self, asked: Claim) -> Answer:
        if asked.since is not None:  # sent again: at most one job for it
            for job in self.jobs.values():
                if job.claim == asked.id:
                    return Claimed(job)
        free = self._free_now()
        while free:
            job = self.jobs.get(free.popleft() if self._rules.fifo else free.pop(), _GONE)
            if job is _GONE or not is_free(job, self._now_ms, self._rules):
                continue  # completed, or beaten, by an operation before this one
            if Claim in self._full:
                return Refused(FULL)
            mine = Job(
                job.id, job.payload, asked.worker, asked.id, self._now_ms, job.attempts + 1
            )
            self.jobs[job.id] = mine
            self.changed = True
            return Claimed(mine)
        return Empty()

    def _free_now(self) -> deque[str]:
        if self._free is None:
            found = (each.id for each in self.jobs.values()
                     if is_free(each, self._now_ms, self._rules))  # fmt: skip
            self._free = deque(found)
        return self._free

    def _of_a_holder(self, asked: Beat | Complete) -> Answer:
        if self._happened(asked):
            return Done()
        job = self.jobs.get(asked.job)
        if job is None:
            if isinstance(asked, Complete) and self._forgotten(asked):
                return Forgotten()
            return Refused(f"job {asked.job!r} is not in the queue: it is completed")
        if job.attempts != asked.attempts and self._rules.compare_attempts:
            return Refused(
                f"job {asked.job!r} was handed on: attempt {asked.attempts} is over, "
                f"{job.worker[:SHOWN]!r} has attempt {job.attempts}"
            )
        self.changed = True
        if isinstance(asked, Complete):
            del self.jobs[asked.job]
            self.done.append(asked.id)
        else:
            self.jobs[asked.job] = Job(
                job.id, job.payload, job.worker, job.claim, self._now_ms, job.attempts
            )
        return Done()


_GONE = Job("", "")


# --- what became of a write -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Beyond:
    """More writes came after it than the file remembers, or the file was replaced: nobody knows."""


def settle(
    mine: File, wrote_over: Version | None, found: File, version: Version | None,
    rules: QueueRules = QueueRules(),
) -> Ours | StillOut | NotOurs | Beyond:  # fmt: skip
    """Classify a write of ours from a later read; `Ours` also when others wrote after it."""
    match resolve(version, found.attempt, attempt=mine.attempt, wrote_over=wrote_over):
        case NotOurs():
            pass
        case certain:
            return certain
    if rules.recent and found.remembers(mine.number):
        assert version is not None
        return Ours(version) if found.written(mine.number) == mine.attempt else NotOurs()
    return Beyond() if rules.recent and rules.beyond_is_unknown else NotOurs()
