"""Which cases a test has: one for each request of a run without faults, and each kind of fault."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from lockkit.lab.faults.plan import Fault, RequestFacts
from lockkit.lab.testing.options import FAULTS

READS = ("get", "head", "list")
STRIKES = {
    "lost": Fault("drop", when="after"),
    "late": Fault("late", delay_s=0.0),
    "throttle": Fault("status", code=503, when="before"),
    "reset": Fault("reset", when="after"),
    "error": Fault("status", code=500, when="after"),
}
assert STRIKES.keys() == FAULTS.keys()

_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_TOKEN = re.compile(r"[0-9A-Za-z]{10,}")
RANDOM_CHARACTERS_MIN = 16


@dataclass(slots=True)
class CaseRequest:
    """One request of a run: what the store did with it, and the answer that its client received."""

    name: str
    """The operation and the key, with `*` for what differs from run to run."""
    method: str
    key: str
    occurrence: int
    """Which one of this name, from 1."""
    counts: bool
    """It was sent within the block, where faults strike."""
    fault: str = ""
    status: int = 0
    """The store's answer; 0 if the request did not reach it while its client waited."""
    answer: str = ""
    """The answer that the client received: a status, or none; "" while it waits."""
    landed: str = ""
    """What became of it at the end of the block, if it is a late write."""


@dataclass(frozen=True, slots=True)
class Case:
    """One fault at one request."""

    kind: str
    name: str
    occurrence: int = 1

    @property
    def id(self) -> str:
        return f"{self.kind}:{self.name}" + (f"#{self.occurrence}" if self.occurrence > 1 else "")

    def fits(self, pattern: str) -> bool:
        """Whether this is the case of that id, or one that the glob fits."""
        return pattern == self.id or fnmatchcase(self.id, pattern)

    @property
    def reads(self) -> bool:
        return self.name.partition(" ")[0] in READS


@dataclass(frozen=True, slots=True)
class Chosen:
    """The cases to run, and of how many that were wanted."""

    cases: tuple[Case, ...]
    wanted: int


def cases_of(kind: str, sent: Iterable[CaseRequest]) -> list[Case]:
    """The cases of a run without faults; a late read would be no different from a lost one."""
    found = [Case(kind, each.name, each.occurrence) for each in sent if each.counts]
    return [each for each in found if kind != "late" or not each.reads]


def chosen(cases: Sequence[Case], pattern: str, cases_max: int) -> Chosen:
    """At most `cases_max` of those that fit, the writes first; in the order of the run."""
    fitting = [each for each in cases if not pattern or each.fits(pattern)]
    first = sorted(fitting, key=lambda each: each.reads)[:cases_max]
    return Chosen(tuple(each for each in fitting if each in first), len(fitting))


def name_of(request: RequestFacts) -> str:
    """The operation and the key below the bucket, alike in every run of the same code."""
    operation = "head" if request.method == "HEAD" else request.operation
    return f"{operation} {generic(request.key.partition('/')[2])}".rstrip()


def generic(key: str) -> str:
    """A key with `*` for each id and time in it; numbers that begin with zeros stay."""
    return _TOKEN.sub(lambda found: "*" if _is_random(found[0]) else found[0], _UUID.sub("*", key))


def _is_random(token: str) -> bool:
    if token.isdigit():
        return not token.startswith("0000")
    return len(token) >= RANDOM_CHARACTERS_MIN and any(each.isdigit() for each in token)


@dataclass(slots=True)
class Occurrences:
    """Numbers the requests of each name."""

    counts: Counter[str] = field(default_factory=Counter)

    def next(self, name: str) -> int:
        self.counts[name] += 1
        return self.counts[name]
