"""Planted mistakes: each switches off one rule, as some real implementation has done.

The explorer finds the shortest story of each within small bounds; the simulator must find each by
chance. The V numbers are those of the prototype with which this protocol was first checked. A
mistake that nothing finds shows a gap in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, TypeVar

from lockkit.lab.verify import wrong_rules as wrong
from lockkit.lab.verify.planting import Plants, planted
from lockkit.lab.verify.wrong_rules import Ambiguous, CommitGuard, Recognise, Release
from lockkit.protocol.policy import Expiry

P = TypeVar("P")


class Invariant(StrEnum):
    """What a mistake in the lease breaks."""

    ONE_BELIEVER = "one holder at a time"
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
    plants: Plants = field(default_factory=dict, hash=False, repr=False)
    policy: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Wrong choices of the fields of a policy."""
    skew_ms: int | None = None
    """Wall clocks that differ by more than the rules allow for."""
    spread_ms: int | None = None
    """Front ends of the store whose clocks do."""
    profile: str = ""
    """A store that does not keep its promise."""
    off: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Of a mistake in the lease: its rules by name, and their wrong values."""

    def of(self, policy: P) -> P:
        """The policy with the wrong choices of this mistake."""
        return replace(policy, **self.policy)  # type: ignore[type-var]

    def planted(
        self, *, threads: Literal["this", "all"] = "this"
    ) -> AbstractContextManager[None]:
        """A context in which the calls of this thread, or of all, run the wrong functions."""
        return planted(self.plants, threads=threads)

    @property
    def fence(self) -> CommitGuard:
        return CommitGuard(self.off.get("fence", CommitGuard.CAS))


BROKEN_STORES = (
    Mutant("ignores conditions", "the store ignores the conditions of a write",
           profile="ignores conditions"),
    Mutant("not atomic", "the store judges a condition first and writes afterwards",
           profile="not atomic"),
)  # fmt: skip


def catalogue(*mutants: Mutant) -> dict[str, Mutant]:
    """By name; with the stores that break their promise, unless `mutants` has its own."""
    found = {each.name: each for each in mutants}
    return found | {each.name: each for each in BROKEN_STORES if each.name not in found}


def fence_of(mutant: Mutant | None) -> CommitGuard:
    return CommitGuard.CAS if mutant is None else mutant.fence


_STORE, _WALL = {"expiry": Expiry.STORE}, {"expiry": Expiry.WALL}


def _of(name: str, says: str, off: Mapping[str, Any], **world: Any) -> Mutant:
    """A mistake in the lease, by the rules that are otherwise."""
    policy = {rule: value for rule, value in off.items() if rule not in wrong.RIGHT}
    return Mutant(name, says, wrong.plants(off), policy, off=off, **world)


LEASE_MUTANTS = catalogue(
    _of("count_from_send", "the deadline is counted from the answer",
        {"count_from_send": False}),
    _of("drift", "no drift is added, and clocks differ by one second",
        {**_WALL, "drift_ms": 0}),
    _of("drift_for_holder", "the holder adds the drift as well, as Hudi's does",
        {**_WALL, "drift_for_holder": True}),
    _of("skew", "clocks differ by three seconds, and the drift is one", _WALL, skew_ms=3000),
    _of("slack", "no slack for a store whose front ends differ by one second",
        {**_STORE, "slack_ms": 0}),
    _of("slack, too small", "one second of slack, and the store's clocks differ by two",
        {**_STORE, "slack_ms": 1000}, spread_ms=2000),
    _of("margin", "a holder counts on its lease until the very end", {**_WALL, "margin_ms": 0}),
    _of("claim_412 lost", "412 to a claim is read as a lost race",
        {"claim_412": Ambiguous.LOST}),
    _of("claim_412 ours", "412 to a claim is read as our own retry",
        {"claim_412": Ambiguous.OURS}),
    _of("renew_412 ours", "412 to a renewal is read as still ours",
        {"renew_412": Ambiguous.OURS}),
    _of("renew_412 lost", "412 to a renewal counts as a loss, without a read",
        {"renew_412": Ambiguous.LOST}),
    _of("renew_unknown ours", "a renewal without an answer counts as done",
        {"renew_unknown": Ambiguous.OURS}),
    _of("renew_unknown lost", "a renewal without an answer counts as a loss",
        {"renew_unknown": Ambiguous.LOST}),
    _of("claim_unknown ours", "a claim without an answer counts as won",
        {"claim_unknown": Ambiguous.OURS}),
    _of("claim_unknown lost", "a claim without an answer counts as lost",
        {"claim_unknown": Ambiguous.LOST}),
    _of("recognise", "a write is recognised by its owner, and not confirmed",
        {"recognise": Recognise.OWNER, "confirm": False}),
    _of("confirm", "a write found by reading counts without being confirmed", {"confirm": False}),
    _of("release deletes", "release reads, then deletes", {"release": Release.DELETE}),
    _of("release deletes if match", "release deletes what it wrote: epochs start again",
        {"release": Release.DELETE_IF_MATCH}),
    _of("fence off", "only a look at the lease guards a commit",
        {"fence": CommitGuard.OFF}),
    _of("fence token", "epochs are compared at the commit only",
        {"fence": CommitGuard.TOKEN}),
    _of("fence token, release deletes", "epochs are compared, and a release resets them",
        {"fence": CommitGuard.TOKEN, "release": Release.DELETE_IF_MATCH}),
)  # fmt: skip
