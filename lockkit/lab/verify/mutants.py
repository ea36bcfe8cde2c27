"""Planted mistakes: each switches off one rule, as some real implementation has done.

The explorer finds the shortest story of each within small bounds; the simulator must find each by
chance. The V numbers are those of the prototype with which this protocol was first checked. A
mistake that nothing finds shows a gap in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from lockkit.lab.verify import planting
from lockkit.lab.verify import wrong_rules as wrong
from lockkit.lab.verify.planting import Wrong
from lockkit.lab.verify.wrong_rules import Ambiguous, CommitGuard, Recognise, Release
from lockkit.protocol.policy import Expiry

P = TypeVar("P")


class Invariant(StrEnum):
    """What a mistake in the lease breaks."""

    ONE_BELIEVER = "one believer"
    EPOCHS_RISE = "epochs rise"
    NO_SELF_LOSS = "no self-inflicted loss"
    NO_STALE_WRITE = "no stale write"
    NO_LOST_UPDATE = "no lost update"
    NOTHING_LEFT = "an acquire that ends without the lock holds nothing"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake: its name, its description, and what it changes."""

    name: str
    says: str
    off: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Rules by name, and their wrong values: fields of a policy, or functions of `wrong`."""
    skew_ms: int | None = None
    """Wall clocks that differ by more than the rules allow for."""
    spread_ms: int | None = None
    """Front ends of the store whose clocks do."""
    profile: str = ""
    """A store that does not keep its promise."""
    wrong: Wrong = field(default_factory=dict, hash=False, repr=False)

    def of(self, policy: P) -> P:
        """The policy with the wrong choices of this mistake."""
        known = {each.name for each in fields(policy)}  # type: ignore[arg-type]
        off = {rule: value for rule, value in self.off.items() if rule in known}
        return replace(policy, **off)  # type: ignore[type-var]

    def planted(self) -> AbstractContextManager[None]:
        """A context in which this thread's calls run the wrong functions."""
        return planting.planted(self.off, self.wrong)

    @property
    def fence(self) -> CommitGuard:
        return CommitGuard(self.off.get("fence", CommitGuard.CAS))


def fence_of(mutant: Mutant | None) -> CommitGuard:
    return CommitGuard.CAS if mutant is None else mutant.fence


_STORE, _WALL = {"expiry": Expiry.STORE}, {"expiry": Expiry.WALL}

_Of = partial(Mutant, wrong=wrong.LEASE)

LEASE_MUTANTS = {
    each.name: each
    for each in (
        _Of(
            "count_from_send", "the deadline is counted from the answer (V11)",
            {"count_from_send": False},
        ),
        _Of(
            "drift", "no drift is added, and clocks differ by one second (V1)",
            {**_WALL, "drift_ms": 0},
        ),
        _Of(
            "drift_for_holder", "the drift is given to the holder too, as Hudi does (V2)",
            {**_WALL, "drift_for_holder": True},
        ),
        _Of("skew", "clocks differ by three seconds, and the drift is one", _WALL, skew_ms=3000),
        _Of(
            "slack", "no slack for a store whose front ends differ by one second",
            {**_STORE, "slack_ms": 0},
        ),
        _Of(
            "slack, too small", "one second of slack, and the store's clocks differ by two",
            {**_STORE, "slack_ms": 1000}, spread_ms=2000,
        ),
        _Of("margin", "a holder believes until the very end of its lease",
               {**_WALL, "margin_ms": 0}),
        _Of(
            "claim_412 lost", "412 to a claim is read as a lost race (V3)",
            {"claim_412": Ambiguous.LOST},
        ),
        _Of(
            "claim_412 ours", "412 to a claim is read as our own retry (V4)",
            {"claim_412": Ambiguous.OURS},
        ),
        _Of(
            "renew_412 ours", "412 to a renewal is read as still ours (V5)",
            {"renew_412": Ambiguous.OURS},
        ),
        _Of(
            "renew_412 lost", "412 to a renewal is read as a loss, unread (V5b)",
            {"renew_412": Ambiguous.LOST},
        ),
        _Of(
            "renew_unknown ours", "a renewal without an answer counts as done (V6)",
            {"renew_unknown": Ambiguous.OURS},
        ),
        _Of(
            "renew_unknown lost", "a renewal without an answer counts as a loss",
            {"renew_unknown": Ambiguous.LOST},
        ),
        _Of(
            "claim_unknown ours", "a claim without an answer counts as won (V7)",
            {"claim_unknown": Ambiguous.OURS},
        ),
        _Of(
            "claim_unknown lost", "a claim without an answer counts as lost (V7b)",
            {"claim_unknown": Ambiguous.LOST},
        ),
        _Of(
            "recognise", "a write is recognised by its owner, and not confirmed (V10)",
            {"recognise": Recognise.OWNER, "confirm": False},
        ),
        _Of(
            "confirm", "a write found by reading is believed unconfirmed", {"confirm": False}
        ),
        _Of(
            "release deletes", "release reads, then deletes (V8)", {"release": Release.DELETE}
        ),
        _Of(
            "release deletes if match", "release deletes what it wrote: epochs start again (V9)",
            {"release": Release.DELETE_IF_MATCH},
        ),
        _Of(
            "fence off", "a commit looks at the lease, and nothing guards it (V12)",
            {"fence": CommitGuard.OFF},
        ),
        _Of(
            "fence token", "epochs are compared at the commit only (V13)",
            {"fence": CommitGuard.TOKEN},
        ),
        _Of(
            "fence token, release deletes", "epochs are compared, and a release resets them",
            {"fence": CommitGuard.TOKEN, "release": Release.DELETE_IF_MATCH},
        ),
        _Of(
            "ignores conditions", "the store ignores the conditions of a write",
            profile="ignores conditions",
        ),
        _Of(
            "not atomic", "the store judges a condition first and writes afterwards",
            profile="not atomic",
        ),
    )
}  # fmt: skip
