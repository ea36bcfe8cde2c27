"""A history, prepared for diagnosis: writes of the lock object, and each request's outcome."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from lockkit.events import Event
from lockkit.lab.verify.check.lanes import HistoryIndex, client_of, is_live, outcome_of, sort

_FLAT = {
    "owner": "owner", "epoch": "epoch", "expired": "expired", "valid_until_ms": "validUntil",
    "ttl_ms": "ttlMs",
}  # fmt: skip
"""Fields of a lock write in a history, and in the body that a server's record shows."""


@dataclass(frozen=True, slots=True)
class AppliedWrite:
    """An applied write of the lock object."""

    event: Event
    client: str
    live: bool
    """Whether it left the lock held."""
    owner: str
    until_ms: float | None
    ttl_ms: float | None

    @property
    def at_ms(self) -> float:
        return self.event.at_ms


@dataclass(frozen=True, slots=True)
class ObservedWrite:
    """A write of the lock object as its client saw it: request, answer, whether it was applied."""

    who: str
    op: str
    event: Event
    answer: Event | None
    landed: AppliedWrite | None

    @property
    def outcome(self) -> str:
        return outcome_of(self.answer) if self.answer else ""


@dataclass(frozen=True, slots=True)
class IncidentHistory:
    """A prepared history. `writes` are in the order in which the store decided."""

    lanes: HistoryIndex
    writes: list[AppliedWrite] = field(default_factory=list)
    requests: list[ObservedWrite] = field(default_factory=list)

    def after(self, write: AppliedWrite) -> AppliedWrite | None:
        """The write that replaced it."""
        place = self.writes.index(write) + 1
        return self.writes[place] if place < len(self.writes) else None

    def standing(self, at_ms: float) -> AppliedWrite | None:
        """The content of the lock object just before."""
        return next((each for each in reversed(self.writes) if each.at_ms < at_ms), None)

    def reports(self, who: str, *kinds: str, since_ms: float, until_ms: float) -> Iterator[Event]:
        """The events of a client's lane between two moments, in its order."""
        for each in self.lanes.everything:
            if each.who == who and each.kind in kinds and since_ms <= each.at_ms <= until_ms:
                yield each


def lay_out(events: Iterable[Event]) -> IncidentHistory:
    lanes = sort(_flat(each) for each in events)
    case = IncidentHistory(lanes, [_write(lanes, each) for _, each in lanes.lock_writes])
    landed = {each.event["attempt"]: each for each in reversed(case.writes)}
    landed.pop("", None)
    for each in lanes.by_kind["ask"]:
        op, attempt = str(each["op"]), each["attempt"]
        if attempt and op in ("acquire", "confirm", "renew", "release"):
            answer = lanes.answer_of.get(attempt)
            case.requests.append(ObservedWrite(each.who, op, each, answer, landed.get(attempt)))
    return case


def _flat(each: Event) -> Event:
    """A write of the lock object with its record's fields, from any source."""
    body = each.get("body")
    if each.kind != "request" or not isinstance(body, dict) or "validUntil" not in body:
        return each
    more = {name: body[key] for name, key in _FLAT.items() if key in body}
    return Event(each.at_ms, each.who, each.kind, more | dict(each.data))


def _write(lanes: HistoryIndex, each: Event) -> AppliedWrite:
    live = bool(each["version"]) and is_live(lanes, each)
    until, ttl = _number(each.get("valid_until_ms")), _number(each.get("ttl_ms"))
    return AppliedWrite(each, client_of(each), live, str(each.get("owner", "")), until, ttl or None)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
