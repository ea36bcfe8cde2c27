"""The one-file queue (turbopuffer): push, claim, heartbeat and complete by compare-and-set.

At least once, in the order of the pushes. Here each operation reads the file and writes it by
itself; `group` lets all threads of a process share a write, `broker` all processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never
from zlib import crc32

from lockkit.clock import Clock
from lockkit.drive import Get, Procedure, Put, Sleep, Unique, WallMs, run
from lockkit.outcome import (
    Applied,
    Found,
    Missing,
    NotModified,
    NotOurs,
    Ours,
    PreconditionFailed,
    StillOut,
    Throttled,
    Unknown,
    Version,
    over,
)
from lockkit.patterns.jobs import (
    Answer,
    Beat,
    Beyond,
    Claim,
    Claimed,
    Complete,
    Draft,
    Forgotten,
    Operation,
    Push,
    QueueRules,
    Refused,
    drafted,
    settle,
)
from lockkit.patterns.queue_file import QUEUE_BYTES_MAX, Broker, File, Job, QueueError, decode
from lockkit.stores import StoreError, open_store
from lockkit.table.ask import TRIES_MAX, Unanswered, pause_s, read

KEY = "queue.json"
COMMITS_MAX = 60
"""Writes that may be lost to others before an operation gives up: some minutes of a hot object."""


class QueueBusy(QueueError):
    """Others wrote first, or the store throttled, every time. Not done; try again."""


class QueueUnknown(Exception):
    """Nobody told what became of it: it may be done, or may yet be.

    `operation` may be submitted again as it is: it is never done twice, and where the file still
    remembers that far back, this time its outcome is told.
    """

    def __init__(self, operation: Operation, why: str) -> None:
        super().__init__(
            f"{type(operation).__name__.lower()} {operation.id} may be done, or may yet be: {why}; "
            "submit(error.operation) asks again without doing it twice"
        )
        self.operation = operation


class JobLost(Exception):
    """The job is somebody else's by now, or completed: stop working on it."""


# --- procedures -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """The file as it was at one version; None: there is none yet."""

    file: File
    version: Version | None


@dataclass(frozen=True, slots=True)
class Landed:
    """The draft is written, and may be told; `seen` is the file now, by us or by those after us."""

    seen: Seen


@dataclass(frozen=True, slots=True)
class Lost:
    """Others wrote first: the draft is not written, and never will be."""

    seen: Seen


@dataclass(frozen=True, slots=True)
class NotDone:
    """Certainly not written; what was seen before may still be so."""

    why: str


@dataclass(frozen=True, slots=True)
class Unsure:
    """It may be written, or may yet be. `since`: the number of the last write it is not in."""

    why: str
    since: int


def load() -> Procedure[Seen]:
    """The file; an empty one where there is none. `QueueError` where it cannot be read."""
    try:
        match (yield from read(KEY, limit=QUEUE_BYTES_MAX)):
            case Found(body, version):
                return Seen(decode(body), version)
            case Missing():
                return Seen(File(), None)
            case NotModified():
                raise AssertionError("an unconditional read was answered 304")
            case never:
                assert_never(never)
    except Unanswered as error:
        raise QueueError(str(error)) from None


def draft(
    seen: Seen, operations: Sequence[Operation], rules: QueueRules, *, who: str = "",
    broker: Broker | None = None,
) -> Procedure[Draft]:  # fmt: skip
    """The next file, with an id that no other write has."""
    now_ms: int = yield WallMs()
    attempt: str = yield Unique()
    return drafted(
        seen.file, operations, attempt=attempt if rules.id_per_write else who, now_ms=now_ms,
        rules=rules, broker=broker,
    )  # fmt: skip


def land(
    seen: Seen, new: Draft, rules: QueueRules
) -> Procedure[Landed | Lost | NotDone | Unsure]:
    """Write the draft over what was seen, and settle what became of it."""
    if not new.changed:
        return (yield from confirm(seen))
    doubt, why = False, "the store throttled every try"
    for tries in range(TRIES_MAX):
        try:
            match (yield Put(KEY, new.body, over(seen.version))):
                case Applied(version):
                    return Landed(Seen(new.file, version))
                case Throttled(after_s):
                    yield Sleep(pause_s(tries, after_s))
                    continue
                case PreconditionFailed():  # also told to a hidden second copy of our own write
                    doubt = True
                case Unknown(why):
                    doubt = True
                case other:
                    raise AssertionError(f"not an answer to a write: {other!r}")
            now = yield from load()
        except (StoreError, QueueError) as error:
            if not doubt:
                raise
            return Unsure(str(error), seen.file.number)
        match settle(new.file, seen.version, now.file, now.version, rules):
            case Ours():
                return Landed(now)
            case NotOurs():
                return Lost(now)
            case Beyond():
                return Unsure("more was written since than the file remembers", seen.file.number)
            case StillOut():
                yield Sleep(pause_s(tries))  # the same bytes again: at most one copy lands
    return Unsure(why, seen.file.number) if doubt else NotDone(why)


def confirm(seen: Seen) -> Procedure[Landed | Lost | NotDone]:
    """A draft that changes nothing is true if what was seen is still the file."""
    why = ""
    for tries in range(TRIES_MAX):
        match (yield Get(KEY, seen.version, QUEUE_BYTES_MAX)):
            case NotModified():
                return Landed(seen)
            case Missing() if seen.version is None:
                return Landed(seen)
            case Found(body, version):
                return Lost(Seen(decode(body), version))
            case Missing():
                return Lost(Seen(File(), None))
            case Throttled(after_s):
                why = "the store throttled every try"
                yield Sleep(pause_s(tries, after_s))
            case Unknown(why):
                yield Sleep(pause_s(tries))
            case other:
                raise AssertionError(f"not an answer to a read: {other!r}")
    return NotDone(why)


def commit(
    operations: Sequence[Operation], rules: QueueRules, *, seen: Seen | None = None, who: str = ""
) -> Procedure[tuple[Seen, tuple[Answer, ...]] | NotDone | Unsure]:
    """Change and write until it lands, reading anew after each loss; `seen` saves the first read.

    Who loses waits for a share, by chance, of a pause that grows: rivals come apart.
    """
    for tries in range(COMMITS_MAX):
        seen = seen or (yield from load())
        new = yield from draft(seen, operations, rules, who=who)
        match (yield from land(seen, new, rules)):
            case Landed(now):
                return now, new.answers
            case Lost():
                seen = None
                share = crc32((yield Unique()).encode()) / 2**32
                yield Sleep(share * pause_s(tries))
            case failed:
                return failed
    return NotDone(f"others wrote first {COMMITS_MAX} times")


def told(operation: Operation, outcome: Answer | NotDone | Unsure) -> Answer:
    """What its caller is told: an answer, `QueueBusy`, or `QueueUnknown`."""
    match outcome:
        case NotDone(why):
            if operation.since is None:
                raise QueueBusy(f"{KEY}: {why}; try again later")
            raise QueueUnknown(operation, why)
        case Unsure(why, since):
            raise QueueUnknown(again(operation, since), why)
        case Forgotten():
            why = "more was written since it was first sent than the file remembers"
            raise QueueUnknown(operation, why)
        case answer:
            return answer


def again(operation: Operation, since: int) -> Operation:
    """The same request, to be sent once more: only its first sending says since when."""
    return operation if operation.since is not None else replace(operation, since=since)


# --- the handle -----------------------------------------------------------------------------------


class Queue:
    """A queue below `url`; each operation is a read and a compare-and-set of its own.

    Raises `QueueBusy` (not done), `QueueUnknown` (nobody knows), `QueueError` (no queue there, or
    full), `JobLost`, and `StoreError`. Threads may share a handle.
    """

    def __init__(
        self, url: str, *, rules: QueueRules = QueueRules(), clock: Clock | None = None,
        client: str = "", **store_options: Any,
    ) -> None:  # fmt: skip
        self.url, self.rules = url.rstrip("/"), rules
        self.clock = clock or Clock()
        self.store = open_store(self.url, client=client, **store_options)
        self.who = client or self.clock.unique()

    def push(self, payload: str, *, id: str = "") -> str:
        """Enter a job at the end; returns its id. A push again under one id enters it once."""
        request = Push(id or self.clock.unique(), payload)
        self._carry_out(request)
        return request.id

    def claim(self, worker: str) -> Job | None:
        """The first job that is free, now this worker's; None: there is none."""
        answer = self._carry_out(Claim(self.clock.unique(), worker))
        return answer.job if isinstance(answer, Claimed) else None

    def heartbeat(self, job: Job) -> None:
        """Keep the job for another `rules.timeout_ms`; `JobLost` if it was handed on."""
        self._carry_out(Beat(self.clock.unique(), job.id, job.attempts))

    def complete(self, job: Job) -> None:
        """The job is done and leaves the file; `JobLost` if it was handed on."""
        self._carry_out(Complete(self.clock.unique(), job.id, job.attempts))

    def submit(self, operation: Operation) -> Answer:
        """One request, also one that is sent again after `QueueUnknown`."""
        match run(commit([operation], self.rules, who=self.who), self.store, self.clock):
            case (_, answers):
                return told(operation, answers[0])
            case failed:
                return told(operation, failed)

    def jobs(self) -> list[Job]:
        """All that are not completed, in order."""
        return list(run(load(), self.store, self.clock).file.jobs.values())

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _carry_out(self, operation: Operation) -> Answer:
        answer = self.submit(operation)
        if isinstance(answer, Refused):
            held = isinstance(operation, Beat | Complete)
            raise JobLost(answer.why) if held else QueueError(answer.why)
        return answer
