"""The verdict: the worst finding, with the events that prove it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from lockkit.events import Event, shortened


class Kind(StrEnum):
    VALID = "VALID"
    UNKNOWN = "UNKNOWN"
    INVALID = "INVALID"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: its kind, the reason, and two to four events that prove it."""

    check: str
    kind: Kind
    because: str
    evidence: tuple[Event, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "verdict": str(self.kind),
            "because": self.because,
            "evidence": [_as_json(each) for each in self.evidence],
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """The worst of the findings. `reached` names the rare events of the history."""

    kind: Kind
    because: str
    evidence: tuple[Event, ...]
    findings: tuple[Finding, ...]
    reached: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """`because` for a reader: instants are short, as in the pictures."""
        return shortened(self.because)

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": str(self.kind),
            "because": self.because,
            "evidence": [_as_json(each) for each in self.evidence],
            "findings": [each.to_json() for each in self.findings],
            "reached": list(self.reached),
        }


def both(one: Verdict, other: Verdict) -> Verdict:
    """Two verdicts as one: the worse gives the sentence, `one` if they are equal."""
    order = [Kind.INVALID, Kind.UNKNOWN, Kind.VALID]
    worse = min((one, other), key=lambda each: order.index(each.kind))
    return replace(
        worse, findings=one.findings + other.findings, reached=one.reached + other.reached
    )


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def valid(name: str, number: int, noun: str, rest: str) -> Finding | None:
    """What so many things show; None if there is nothing to judge."""
    return Finding(name, Kind.VALID, counted(number, noun) + rest) if number else None


def invalid(name: str, because: str, *evidence: Event | None) -> Finding:
    return Finding(name, Kind.INVALID, because, tuple(each for each in evidence if each))


def unknown(name: str, what: str, *evidence: Event) -> Finding:
    return Finding(name, Kind.UNKNOWN, f"the history does not show {what}", evidence)


def _as_json(each: Event) -> dict[str, Any]:
    return {"at_ms": each.at_ms, "who": each.who, "kind": each.kind, **each.data}
