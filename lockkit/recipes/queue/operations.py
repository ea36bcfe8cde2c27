"""The queue's requests and its answers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lockkit.errors import clipped
from lockkit.recipes.queue.file import SHOWN, Job

PAYLOAD_CHARS_MAX = 100_000
_NAME = re.compile(r"[\w.:/@+-]{1,100}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Push:
    """`id` becomes the job's; the same push may be sent again under it."""

    id: str
    payload: str
    since: int | None = None
    """For a request that is sent again: the number of a write that it was certainly not in."""

    def __post_init__(self) -> None:
        if len(self.payload) > PAYLOAD_CHARS_MAX:
            raise ValueError(
                f"a payload has at most {PAYLOAD_CHARS_MAX} characters: store longer data as "
                "a separate object, and push its key"
            )
        check_name(self.id)


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim the first job that is unassigned, or whose worker was silent for too long."""

    id: str
    worker: str
    since: int | None = None

    def __post_init__(self) -> None:
        check_name(self.worker)


@dataclass(frozen=True, slots=True)
class Beat:
    id: str
    job: str
    attempts: int
    since: int | None = None


@dataclass(frozen=True, slots=True)
class Complete:
    id: str
    job: str
    attempts: int
    since: int | None = None


Operation = Push | Claim | Beat | Complete


@dataclass(frozen=True, slots=True)
class Done:
    """Pushed, renewed or completed."""


@dataclass(frozen=True, slots=True)
class Claimed:
    job: Job


@dataclass(frozen=True, slots=True)
class Empty:
    """Nothing to claim now."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Certainly not done, and must not be repeated unchanged."""

    why: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """It was sent before, and the file no longer remembers the writes since then."""


Answer = Done | Claimed | Empty | Refused | Forgotten


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{clipped(name, SHOWN)!r} is no name of a job or worker: use 1 to 100 letters, digits "
            "and _.:/@+-"
        )
