"""The body of `queue.json`: jobs in order, the worker of each, and the ids of the last writes.

Every write has a number and a unique id. The file keeps the ids of the last writes, with the
requests that each of them carried out. In one overwritten object "applied, then superseded" looks
like "never applied"; only these ids distinguish the two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lockkit.errors import clipped
from lockkit.recipes.errors import QueueError

FORMAT, VERSION = "lockkit-queue", 1
QUEUE_BYTES_MAX = 10_000_000
"""A longer file is not a queue."""
COUNT_MAX = 2**53
SHOWN = 60
_ASIDE = "restore an earlier version or move it away; nothing was changed"


@dataclass(frozen=True, slots=True)
class Job:
    """One job; `attempts` counts its claims, and is the fencing token of the latest worker.

    :param id: unique in the queue.
    :param payload: the work, as text.
    :param worker: the latest worker; "" before the first claim.
    :param attempts: the number of claims.
    """

    id: str
    payload: str
    worker: str = ""
    claim: str = ""
    """The request that claimed it last."""
    heartbeat_ms: int = 0
    """Wall clock of the process that wrote the latest claim or heartbeat."""
    attempts: int = 0

    @property
    def state(self) -> str:
        return "claimed" if self.attempts else "waiting"

    def to_fields(self) -> dict[str, Any]:
        return {
            "id": self.id, "state": self.state, "worker": self.worker, "claim": self.claim,
            "heartbeat": self.heartbeat_ms, "attempts": self.attempts, "payload": self.payload,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Broker:
    """The address of the process that writes for all; only readers of the file know its id."""

    address: str
    id: str


@dataclass(frozen=True, slots=True)
class QueueWrite:
    """One write of the file: its id, and the pushes and completions that it carried out."""

    attempt: str
    requests: tuple[str, ...] = ()


@dataclass(frozen=True)
class QueueFile:
    """The whole queue; write 0 means that the file does not exist yet."""

    jobs: Mapping[str, Job] = field(default_factory=dict)
    """In the order of their pushes."""
    broker: Broker | None = None
    number: int = 0
    """The number of writes so far."""
    recent: tuple[QueueWrite, ...] = ()
    """The last writes, this one at the end."""

    @property
    def attempt(self) -> str:
        return self.recent[-1].attempt if self.recent else ""

    @cached_property
    def requests(self) -> frozenset[str]:
        return frozenset(each for write in self.recent for each in write.requests)

    def remembers(self, number: int) -> bool:
        """Whether it still knows the write with this number and all later ones."""
        return self.number - len(self.recent) < number <= self.number

    def written(self, number: int) -> str:
        return self.recent[number - self.number - 1].attempt


def encode(file: QueueFile) -> bytes:
    return json.dumps(
        {
            "format": FORMAT, "version": VERSION, "attempt": file.attempt, "number": file.number,
            "broker": file.broker and {"address": file.broker.address, "id": file.broker.id},
            "recent": [[each.attempt, *each.requests] for each in file.recent],
            "jobs": [each.to_fields() for each in file.jobs.values()],
        },
        separators=(",", ":"), ensure_ascii=False,
    ).encode("utf-8", "surrogatepass")  # fmt: skip


def decode(body: bytes) -> QueueFile:
    """Strict: a file that is not a queue raises `QueueError` and is never overwritten."""
    if len(body) > QUEUE_BYTES_MAX:
        raise QueueError("queue.json", f"is longer than {QUEUE_BYTES_MAX} bytes", _ASIDE)
    try:
        fields = json.loads(body.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        raise QueueError("queue.json", "is not JSON (truncated, or not a queue)", _ASIDE) from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise QueueError("queue.json", "was not written by lockkit's queue", _ASIDE)
    version = fields.get("version")
    if type(version) is int and version > VERSION:
        raise QueueError(
            "queue.json",
            f"has format version {version}, this lockkit knows {VERSION}; nothing was "
            "changed",
            "use the newer lockkit that wrote it",
        )
    try:
        return _file(fields)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        why = clipped(str(error), SHOWN)
        raise QueueError("queue.json", f"is damaged ({why})", _ASIDE) from None


def _file(fields: dict[str, Any]) -> QueueFile:
    broker = fields["broker"]
    jobs = [job_of(each) for each in fields["jobs"]]
    recent = tuple(
        QueueWrite(text_of(first), tuple(map(text_of, rest))) for first, *rest in fields["recent"]
    )
    file = QueueFile(
        jobs={each.id: each for each in jobs},
        broker=broker and Broker(text_of(broker["address"]), text_of(broker["id"])),
        number=count_of(fields["number"]),
        recent=recent,
    )
    if fields["version"] != VERSION or not recent or len(recent) > file.number:
        raise ValueError("version, number and recent contradict each other")
    if len(file.jobs) < len(jobs):
        raise ValueError("two jobs have one id")
    return file


def job_of(fields: Any) -> Job:
    """A job from the file or the wire; raises TypeError, ValueError or KeyError."""
    job = Job(
        text_of(fields["id"]), text_of(fields["payload"]), text_of(fields["worker"]),
        text_of(fields["claim"]), count_of(fields["heartbeat"]), count_of(fields["attempts"]),
    )  # fmt: skip
    if fields["state"] != job.state:
        state = str(fields["state"])
        raise ValueError(f"job {clipped(job.id, SHOWN)!r} is {clipped(state, SHOWN)!r}")
    return job


def text_of(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{clipped(str(value), SHOWN)!r} is not a string")
    return value


def count_of(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise TypeError(f"{clipped(str(value), SHOWN)!r} is not a count")
    return value
