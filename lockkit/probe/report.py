"""What a probe found: checks, and the verdict that they add up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Verdict(Enum):
    """What a lock may do with the store; only `FULL` is safe to lock on."""

    FULL = "full"
    CREATE_ONLY = "create-only"
    IGNORES_CONDITIONS = "ignores-conditions"
    NOT_ATOMIC = "not-atomic"
    REFUSED = "refused"


class Finding(Enum):
    """How one check went. `NOTED` is neither good nor bad: a property to know."""

    PASSED = "passed"
    FAILED = "failed"
    NOTED = "noted"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Check:
    """One question put to the store."""

    name: str
    finding: Finding
    because: str
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict on a store, and all that it rests on."""

    url: str
    verdict: Verdict
    conclusion: str
    checks: tuple[Check, ...]
    refusals: tuple[tuple[int, str, int], ...] = ()
    """(status, error code, how often) of every refusal met on the way."""

    @property
    def safe(self) -> bool:
        return self.verdict is Verdict.FULL

    def check(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)

    def to_json(self) -> dict[str, Any]:
        checks = [{**asdict(check), "finding": check.finding.value} for check in self.checks]
        return {
            "url": self.url,
            "verdict": self.verdict.value,
            "safe": self.safe,
            "conclusion": self.conclusion,
            "checks": checks,
            "refusals": [
                {"status": status, "code": code, "times": times}
                for status, code, times in self.refusals
            ],
        }


def report(url: str, checks: Sequence[Check], refusals: Mapping[tuple[int, str], int]) -> Report:
    verdict, because = _verdict(checks)
    raced = any(check.name.endswith("-race") for check in checks)
    doubt = "" if raced or verdict is not Verdict.FULL else " (atomicity was not tried)"
    safe = "safe to lock on" if verdict is Verdict.FULL else "not safe to lock on"
    return Report(
        url=url,
        verdict=verdict,
        conclusion=f"{url} is {safe}: {because}{doubt}.",
        checks=tuple(checks),
        refusals=tuple((status, code, times) for (status, code), times in sorted(refusals.items())),
    )


def _verdict(checks: Sequence[Check]) -> tuple[Verdict, str]:
    """The worst finding decides; where nothing failed but something is open, so is the store."""
    by_name = {check.name: check for check in checks}

    def failed(name: str, *, refused: bool = False) -> Check | None:
        check = by_name.get(name)
        if check and check.finding is Finding.FAILED:
            return check if bool(check.evidence.get("refused")) is refused else None
        return None

    for name in (
        "create",
        "compare-and-set",
        "missing",
        "read",
        "create-race",
        "compare-and-set-race",
    ):
        if check := failed(name, refused=True):
            return Verdict.REFUSED, check.because
    if check := failed("create"):
        return Verdict.IGNORES_CONDITIONS, f"it ignores conditions, {check.because}"
    if check := failed("create-race"):
        return Verdict.NOT_ATOMIC, f"conditional writes are not atomic, {check.because}"
    if check := failed("compare-and-set") or failed("missing"):
        return Verdict.CREATE_ONLY, f"only creating is conditional, {check.because}"
    if check := failed("compare-and-set-race") or failed("read"):
        return Verdict.NOT_ATOMIC, f"conditional writes are not atomic, {check.because}"
    for name in ("create", "compare-and-set", "create-race", "compare-and-set-race"):
        check = by_name.get(name)
        if check and check.finding is not Finding.PASSED:
            return Verdict.REFUSED, f"it did not answer what a lock needs, {check.because}"
    return Verdict.FULL, "conditional creates and writes have exactly one winner"
