"""Stores that refuse a condition they cannot keep, and stores that drop it: named, then probed."""

from __future__ import annotations

from dataclasses import dataclass

from lockkit.lab.probe import Report, Suitability
from lockkit.lab.widgets.probing import PLACES, quick_look

COUNTS = ("one", "two", "three", "all four")
SPEAK_S3 = tuple(name for name, place in PLACES.items() if place.dialect == "s3")


@dataclass(frozen=True, slots=True)
class SingleRequests:
    """What single requests found in each place."""

    reports: tuple[Report, ...]

    def __str__(self) -> str:
        return COUNTS[sum(each.verdict is not Suitability.UNTESTED for each in self.reports) - 1]

    def __repr__(self) -> str:
        return "\n".join(each.conclusion for each in self.reports)


def one_by_one(*places: str) -> SingleRequests:
    return SingleRequests(tuple(map(quick_look, places)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BehaviourCheck:
    """What sequential requests found for each place, beside the reader's answer."""

    named: frozenset[str]
    found: tuple[tuple[str, Suitability], ...]

    @property
    def wrong(self) -> tuple[str, ...]:
        """Places that were named but pass every check, or were not named but fail one."""
        return tuple(place for place, verdict in self.found
                     if (place in self.named) is (verdict is Suitability.UNTESTED))  # fmt: skip

    def __str__(self) -> str:
        return "not yet" if self.wrong else "solved"

    def __repr__(self) -> str:
        if not self.wrong:
            said = "; ".join(f"{place}: {verdict.value}" for place, verdict in self.found)
            return f"{self}: {said}"
        return f"{self}: {len(self.wrong)} of {len(self.found)} stores are not as you said"


def sort_out(*unsafe: str) -> BehaviourCheck:
    """Compare the named places with what sequential requests find, each on a new server.

    Raises `ValueError` for an unknown place.
    """
    if strange := set(unsafe) - set(SPEAK_S3):
        raise ValueError(f"no place {min(strange)!r}; there are {'; '.join(SPEAK_S3)}")
    found = tuple((each, quick_look(each).verdict) for each in SPEAK_S3)
    return BehaviourCheck(named=frozenset(unsafe), found=found)
