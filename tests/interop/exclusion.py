"""Who held the lock when, by what the object server itself recorded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lockkit.events import Event

LOCK = ".hoodie/.locks/table_lock.json"


@dataclass(frozen=True, slots=True)
class Held:
    """One tenancy: from the write that took the lock to its release, or to the lease's end."""

    who: str
    from_ms: float
    until_ms: float

    @property
    def side(self) -> str:
        return "hudi" if self.who.startswith("hudi-") else "lockkit"


def tenancies(record: Iterable[Event]) -> list[Held]:
    """Every tenancy, in order; `AssertionError` if a lock was written over while its lease ran."""
    found: list[Held] = []
    standing: dict[str, Any] | None = None
    since_ms = 0.0
    for each in record:
        if not each["key"].endswith(LOCK) or not each["applied"] or each["method"] != "put":
            continue
        body = each["body"]
        if standing is not None and body["owner"] != standing["owner"]:
            assert each.at_ms > standing["validUntil"], f"{each} took the lock while {standing} ran"
            found.append(Held(standing["client"], since_ms, standing["validUntil"]))
            standing = None
        if body["expired"]:
            assert standing is not None, f"{each} released a lock that nobody held"
            found.append(Held(standing["client"], since_ms, each.at_ms))
            standing = None
        else:
            since_ms = since_ms if standing is not None else each.at_ms
            standing = {**body, "client": each["client"]}
    return found


def commits(record: Iterable[Event]) -> list[tuple[float, str]]:
    """When each completed commit appeared, and whose it is: by the attempt, which Hudi has not."""
    return [
        (each.at_ms, "lockkit" if each["client"] else "hudi")
        for each in record
        if each["method"] == "put" and each["applied"] and each["key"].endswith(".commit")
    ]
