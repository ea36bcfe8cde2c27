"""The queue's file, read and written by compare-and-set, and the outcome of each write.

A draft has landed, is lost, was not written, or its outcome is unknown. The ids of the last writes
in the file settle that, never the answer alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never
from zlib import crc32

from lockkit.errors import Unanswered
from lockkit.protocol.outcome import (
    Found,
    Missing,
    NotModified,
    NotOurs,
    Ours,
    StillOut,
    Version,
    over,
)
from lockkit.recipes.errors import QueueError
from lockkit.recipes.queue.file import QUEUE_BYTES_MAX, Broker, QueueFile, decode
from lockkit.recipes.queue.jobs import HistoryTooOld, QueueDraft, QueuePolicy, drafted, settle
from lockkit.recipes.queue.operations import Answer, Operation
from lockkit.runtime import Procedure, Sleep, Unique, WallMs
from lockkit.runtime.proven import pause_s, read, settle_write

KEY = "queue.json"
COMMITS_MAX = 60
"""Writes that may lose to others before an operation gives up: some minutes of contention."""


@dataclass(frozen=True, slots=True)
class QueueRead:
    """The file at one version; None: there is none yet."""

    file: QueueFile
    version: Version | None


@dataclass(frozen=True, slots=True)
class WriteLanded:
    """The draft is written and may be acknowledged; `seen` is the file now, ours or a later one."""

    seen: QueueRead


@dataclass(frozen=True, slots=True)
class WriteLost:
    """Others wrote first: the draft is not written, and never will be."""

    seen: QueueRead


@dataclass(frozen=True, slots=True)
class NotDone:
    """Certainly not written; the earlier observation may still be current."""

    why: str


@dataclass(frozen=True, slots=True)
class Unsure:
    """It may be written, or may still be. `since`: the number of the last write it is not in."""

    why: str
    since: int


def load() -> Procedure[QueueRead]:
    """The file; an empty one if there is none. `QueueError` if it cannot be read."""
    try:
        return seen_of((yield from read(KEY, limit=QUEUE_BYTES_MAX)))
    except Unanswered as error:
        raise QueueError("queue.json", f"cannot be read: {error}") from None


def seen_of(found: Found | Missing | NotModified) -> QueueRead:
    """What a read found, as a queue."""
    if isinstance(found, Found):
        return QueueRead(decode(found.body), found.version)
    return QueueRead(QueueFile(), None)


def draft(
    seen: QueueRead, operations: Sequence[Operation], policy: QueuePolicy, *, who: str = "",
    broker: Broker | None = None,
) -> Procedure[QueueDraft]:  # fmt: skip
    """The next file, with a unique write id."""
    now_ms: int = yield WallMs()
    attempt: str = yield Unique()
    return drafted(
        seen.file, operations, attempt=named(attempt, who), now_ms=now_ms, policy=policy,
        broker=broker,
    )  # fmt: skip


def named(attempt: str, _who: str) -> str:
    """A write is recognised by its own id, not by its client."""
    return attempt


def land(seen: QueueRead, new: QueueDraft) -> Procedure[WriteLanded | WriteLost | NotDone | Unsure]:
    """Write the draft over the observed version, and settle the outcome."""
    if not new.changed:
        return (yield from confirm(seen))
    settled: Version | Found | Missing | None = None
    try:
        settled = yield from settle_write(
            KEY, new.body, over(seen.version), limit=QUEUE_BYTES_MAX,
            is_ours=lambda body: decode(body).attempt == new.file.attempt,
        )  # fmt: skip
        if isinstance(settled, Version):
            return WriteLanded(QueueRead(new.file, settled))
        now = seen_of(settled)
    except Unanswered as error:
        return Unsure(str(error), seen.file.number) if error.doubt else NotDone(str(error))
    except QueueError as error:  # the object is unreadable
        return Unsure(str(error), seen.file.number)
    match settle(new.file, seen.version, now.file, now.version):
        case Ours():
            return WriteLanded(now)
        case NotOurs() | StillOut():
            return WriteLost(now)
        case HistoryTooOld():
            return Unsure("more was written since than the file remembers", seen.file.number)
        case never:
            assert_never(never)


def confirm(seen: QueueRead) -> Procedure[WriteLanded | WriteLost | NotDone]:
    """A draft that changes nothing is valid if the observed file is still the current one."""
    try:
        match (yield from read(KEY, unless=seen.version, limit=QUEUE_BYTES_MAX)):
            case NotModified():
                return WriteLanded(seen)
            case Missing() if seen.version is None:
                return WriteLanded(seen)
            case Found(body, version):
                return WriteLost(QueueRead(decode(body), version))
            case Missing():
                return WriteLost(QueueRead(QueueFile(), None))
            case never:
                assert_never(never)
    except Unanswered as error:
        return NotDone(str(error))


def commit(
    operations: Sequence[Operation],
    policy: QueuePolicy,
    *,
    seen: QueueRead | None = None,
    who: str = "",
) -> Procedure[tuple[QueueRead, tuple[Answer, ...]] | NotDone | Unsure]:
    """Change and write until it lands, with a new read after each loss; `seen` saves the first.

    A writer that loses waits for a random share of a growing pause, so that rivals spread out.
    """
    why = ""
    for tries in range(COMMITS_MAX):
        seen = seen or (yield from load())
        new = yield from draft(seen, operations, policy, who=who)
        match (yield from land(seen, new)):
            case WriteLanded(now):
                return now, new.answers
            case Unsure() as unsure:
                return unsure
            case WriteLost():
                why = "others wrote first"
            case NotDone(why):
                pass
        seen = None
        share = crc32((yield Unique()).encode()) / 2**32
        yield Sleep(share * pause_s(tries))
    return NotDone(f"failed {COMMITS_MAX} times, the last time because {why}")
