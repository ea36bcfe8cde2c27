"""Hudi's audit log of the storage lock: its lines as events, and Hudi's own rules over them.

`.hoodie/.locks/audit/<transaction's start>_<owner>.jsonl`, a line for START, RENEW and END each,
with times of the writer's own clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from lockkit.errors import clipped
from lockkit.events import TIME_MS_MAX, Event, event
from lockkit.protocol.outcome import Found
from lockkit.providers.audit import AUDIT as AUDIT
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, listing, read

FILES_MAX = 200
"""The newest ones are read."""
FILE_BYTES_MAX = 1_000_000
OWNER_MAX = 64

_KINDS = {"START": "held", "RENEW": "renewed", "END": "released"}


@dataclass(frozen=True, slots=True)
class Audit:
    """One transaction's file. Lines that do not parse are `skipped`, as Hudi does."""

    events: tuple[Event, ...]
    skipped: int = 0

    @property
    def ended(self) -> bool:
        return any(each.kind == "released" for each in self.events)

    @property
    def start_ms(self) -> float:
        return self.events[0].at_ms

    @property
    def until_ms(self) -> float:
        """Its effective end: END, else the last expiration that it wrote."""
        last = self.events[-1]
        return last.at_ms if last.kind == "released" else float(last["until_ms"])


@dataclass(frozen=True, slots=True)
class Validation:
    """The result of `locks audit validate` in Hudi's CLI: PASSED, WARNING or FAILED."""

    outcome: str
    findings: tuple[str, ...]
    files: int
    skipped: int


def is_audit(line: str) -> bool:
    """Whether a line is one of Hudi's audit log, and not of a history."""
    return _parsed(line) is not None


def parse_audit(body: str) -> Audit:
    """A file's lines in the order of their times."""
    lines = [line for line in body.splitlines() if line.strip()]
    found = [each for each in map(_parsed, lines) if each is not None]
    return Audit(tuple(sorted(found, key=lambda each: each.at_ms)), len(lines) - len(found))


def _parsed(line: str) -> Event | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    owner, state, at_ms, until_ms = (
        fields.get(name) for name in ("ownerId", "state", "timestamp", "lockExpiration")
    )
    if not isinstance(owner, str) or state not in ("START", "RENEW", "END"):
        return None
    if at_ms is None or not (_is_time(at_ms) and _is_time(until_ms)):
        return None
    more = {"proven": True} if state == "END" else {"until_ms": until_ms, "version": ""}
    return event(at_ms, clipped(owner, OWNER_MAX), _KINDS[state], epoch=0, audit=True, **more)


def _is_time(value: object) -> bool:
    return type(value) is int and 0 <= value < TIME_MS_MAX


def validate(audits: Iterable[Audit]) -> Validation:
    """Hudi's rules: a file without END is a warning, two windows that overlap are an error."""
    files = list(audits)
    known = sorted((each for each in files if each.events), key=lambda each: each.start_ms)
    warnings = [f"{each.events[0].who} has no END" for each in known if not each.ended]
    errors = [
        f"{other.events[0].who} began {one.until_ms - other.start_ms:.0f} ms before the end of "
        f"{one.events[0].who}"
        for one, other in pairwise(known) if other.start_ms < one.until_ms
    ]  # fmt: skip
    outcome = "FAILED" if errors else "WARNING" if warnings else "PASSED"
    skipped = sum(each.skipped for each in files)
    return Validation(outcome, (*errors, *warnings), len(files), skipped)


def load_audits() -> Procedure[tuple[Audit, ...]]:
    """The newest files of a table's audit log; none if it was never switched on."""
    listed = yield from listing(AUDIT)
    names = sorted(each.key for each in listed if each.key.endswith(".jsonl"))[-FILES_MAX:]
    found = yield from all_of(read(each, limit=FILE_BYTES_MAX) for each in names)
    bodies = (each.body for each in found if isinstance(each, Found))
    return tuple(parse_audit(body.decode("utf-8", "replace")) for body in bodies)
