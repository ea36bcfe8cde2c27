"""A probe's findings: checks, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Suitability(Enum):
    """What a lock may do with the store; it may use it only after `FULL`."""

    FULL = "full"
    """Every check passed, races included. Races can prove a store unsafe, never safe."""
    UNTESTED = "untested"
    """No check failed, but the store left one open, or its atomicity was not tested."""
    CREATE_ONLY = "create-only"
    IGNORES_CONDITIONS = "ignores-conditions"
    NOT_ATOMIC = "not-atomic"
    REFUSED = "refused"


class CheckOutcome(Enum):
    """How one check went. `NOTED` is neither good nor bad: a property to know."""

    PASSED = "passed"
    FAILED = "failed"
    NOTED = "noted"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the store.

    :param name: the check's name.
    :param finding: its outcome.
    :param because: the reason, as text.
    :param evidence: what was observed.
    """

    name: str
    finding: CheckOutcome
    because: str
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict on a store, with its checks.

    :param url: the store.
    :param verdict: whether it can hold a lock.
    :param conclusion: the verdict as text.
    :param checks: in the order in which they ran.
    """

    url: str
    verdict: Suitability
    conclusion: str
    checks: tuple[Check, ...]
    refusals: tuple[tuple[int, str, int], ...] = ()
    """(status, error code, how often) of every refusal met on the way."""

    @property
    def safe(self) -> bool:
        """Whether every check ran and none found a violation."""
        return self.verdict is Suitability.FULL

    @property
    def untested(self) -> bool:
        """Whether the store could not be tested, which says nothing about its safety."""
        return self.verdict in (Suitability.UNTESTED, Suitability.REFUSED)

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


RACES = ("create-race", "compare-and-set-race")
SERIAL = ("create", "compare-and-set", "missing", "read")


def report(url: str, checks: Sequence[Check], refusals: Mapping[tuple[int, str], int]) -> Report:
    verdict, because = _verdict(checks)
    raced = any(check.name in RACES for check in checks)
    match verdict:
        case Suitability.UNTESTED if not raced and _passed(checks):
            conclusion = f"{url}: no check failed, but atomicity was not tested, which takes races"
        case Suitability.FULL:
            conclusion = f"{url}: {because}"
        case Suitability.UNTESTED | Suitability.REFUSED:
            conclusion = f"{url} could not be tested: {because}"
        case _:
            conclusion = f"{url} is not safe to lock on: {because}"
    return Report(
        url=url, verdict=verdict, conclusion=f"{conclusion}.", checks=tuple(checks),
        refusals=tuple((status, code, times) for (status, code), times in sorted(refusals.items())),
    )  # fmt: skip


def _passed(checks: Sequence[Check]) -> bool:
    found = {check.name: check.finding for check in checks}
    return all(found.get(name) is CheckOutcome.PASSED for name in ("create", "compare-and-set"))


def _verdict(checks: Sequence[Check]) -> tuple[Suitability, str]:
    """The worst finding decides. Refusals and open checks decide nothing."""
    by_name = {check.name: check for check in checks}

    def failed(*names: str, refused: bool = False) -> Check | None:
        for name in names:
            check = by_name.get(name)
            if check is not None and check.finding is CheckOutcome.FAILED:
                if bool(check.evidence.get("refused")) is refused:
                    return check
        return None

    if check := failed("create"):
        return Suitability.IGNORES_CONDITIONS, f"it ignores conditions, {check.because}"
    if check := failed("create-race"):
        return Suitability.NOT_ATOMIC, f"conditional writes are not atomic, {check.because}"
    if check := failed("compare-and-set", "missing"):
        return Suitability.CREATE_ONLY, f"only creating is conditional, {check.because}"
    if check := failed("compare-and-set-race", "read", "across"):
        return Suitability.NOT_ATOMIC, f"conditional writes are not atomic, {check.because}"
    if check := failed(*SERIAL, *RACES, refused=True):
        return Suitability.REFUSED, check.because
    for name in ("create", "compare-and-set"):
        check = by_name.get(name)
        if check is None or check.finding is not CheckOutcome.PASSED:
            why = "" if check is None else f", {check.because}"
            return Suitability.UNTESTED, f"it did not answer what a lock needs{why}"
    listed = by_name.get("list")
    if listed is not None and listed.finding is CheckOutcome.UNDECIDED:
        return Suitability.UNTESTED, f"tables and queues need its listings, {listed.because}"
    beside = by_name.get("across")
    if beside is not None and beside.finding is CheckOutcome.UNDECIDED:
        return Suitability.UNTESTED, f"its endpoints were not compared, {beside.because}"
    return _raced([by_name.get(name) for name in RACES])


def _raced(races: Sequence[Check | None]) -> tuple[Suitability, str]:
    """The verdict of the races on a store that passed all other checks."""
    won, writers = 0, 0
    for check in races:
        if check is None:
            return Suitability.UNTESTED, "no check failed, but races are missing"
        if check.finding is not CheckOutcome.PASSED:
            return Suitability.UNTESTED, f"it did not answer what a lock needs, {check.because}"
        won += check.evidence["rounds"] - check.evidence["no_winner"]
        writers = check.evidence["clients"]
    return Suitability.FULL, (
        f"no violation in {won} races of {writers} writers; races can prove a store unsafe, "
        "never safe"
    )
