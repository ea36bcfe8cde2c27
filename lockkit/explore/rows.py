"""The explorer's rows: every rule on, then each mutant, in bounds that are searched whole."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lockkit.explore.parts import Bounds, Fault
from lockkit.mutants import LEASE_MUTANTS, Invariant
from lockkit.rules import Expiry, Rules

TICK_MS = 1000
# One tick is one second here, a lease lasts two, and `margin` (a tenth of that) rounds to nothing.
STORE = Rules(expiry=Expiry.STORE, slack_ms=1)
WALL = Rules(expiry=Expiry.WALL, drift_ms=1)
OBSERVED = Rules(expiry=Expiry.OBSERVED)

RETRY = frozenset({Fault.RETRY})
SILENCE = frozenset({Fault.LOST, Fault.LATE})
CRASH = SILENCE | {Fault.CRASH}
ONE_BELIEVER = frozenset({Invariant.ONE_BELIEVER})
STALE = frozenset({Invariant.NO_STALE_WRITE})
NONE_OF_THREE = (0, 0, 0)
THREE = Bounds(
    acquires=(1, 1, 1), tries=(1, 1, 1), renewals=NONE_OF_THREE, commits=NONE_OF_THREE,
    offsets=NONE_OF_THREE,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is searched, and what is expected: an invariant that breaks, or None."""

    name: str
    off: str
    """The rule that is switched off, in words; "" where all are on."""
    rules: Rules
    bounds: Bounds
    breaks: Invariant | None = None


def _on() -> tuple[Scenario, ...]:
    faulty = Bounds(faults=1, gives_up=True)
    unrenewed = Bounds(faults=2, renewals=(0, 0))
    alone = Bounds(acquires=(2, 0), tries=(4, 0), renewals=(2, 0), faults=2, gives_up=True)
    committing = Bounds(commits=(1, 1), renewals=(0, 0), faults=1)
    crashing = Bounds(faults=1, kinds=CRASH, renewals=(0, 0), spread=1)
    three = replace(THREE, renewals=(1, 1, 0))
    return (
        Scenario("store", "", STORE, replace(faulty, spread=1)),
        Scenario("wall", "", WALL, replace(faulty, offsets=(0, 1))),
        Scenario("observed", "", OBSERVED, replace(faulty, offsets=(0, 3))),
        Scenario("observed, two faults", "", OBSERVED, unrenewed),
        Scenario("wall, two faults", "", WALL, replace(unrenewed, offsets=(0, 1))),
        Scenario("alone, two faults", "", STORE, alone),
        Scenario("commit", "", replace(STORE, slack_ms=0), committing),
        Scenario(
            "commits", "", replace(STORE, slack_ms=0), replace(committing, commits=(2, 2), faults=0)
        ),
        Scenario("crash and restart", "", STORE, crashing),
        Scenario("three clients", "", replace(STORE, slack_ms=0), three),
    )


def _big() -> tuple[Scenario, ...]:
    rules = replace(STORE, slack_ms=0)
    everything = Bounds(faults=1, kinds=frozenset(Fault), gives_up=True, spread=1)
    crashing = Bounds(faults=1, kinds=CRASH)
    silent = replace(THREE, renewals=(1, 0, 0), faults=1, kinds=SILENCE)
    return (
        Scenario("two silences", "", rules, Bounds(faults=2, kinds=SILENCE)),
        Scenario("any one fault or crash", "", STORE, everything),
        Scenario("two crashes", "", rules, replace(crashing, faults=2, renewals=(0, 0))),
        Scenario("crash, wall", "", WALL, replace(crashing, offsets=(0, 1))),
        Scenario("crash, observed", "", OBSERVED, replace(crashing, offsets=(0, 3))),
        Scenario("three clients, two claims each", "", rules, replace(THREE, tries=(2, 2, 2))),
        Scenario("three clients, a silence", "", rules, silent),
    )


def _off(name: str, on: Rules, bounds: Bounds, breaks: Invariant) -> Scenario:
    """The mutant of that name."""
    mutant = LEASE_MUTANTS[name]
    ticks = {
        rule: said // TICK_MS if rule.endswith("_ms") else said for rule, said in mutant.off.items()
    }
    return Scenario(name, mutant.says, replace(on, **ticks), bounds, breaks)


def _expiry_off() -> tuple[Scenario, ...]:
    one, skewed = Invariant.ONE_BELIEVER, Bounds(offsets=(0, 1))
    return (
        _off("count_from_send", replace(STORE, slack_ms=0), Bounds(), one),
        _off("drift", WALL, skewed, one),
        _off("drift_for_holder", WALL, skewed, one),
        _off("skew", WALL, Bounds(offsets=(0, 3)), one),
        _off("slack", STORE, Bounds(spread=1), one),
        _off("slack, too small", STORE, Bounds(spread=2), one),
    )


def _ambiguity_off() -> tuple[Scenario, ...]:
    one, self_loss = Invariant.ONE_BELIEVER, Invariant.NO_SELF_LOSS
    rules = replace(STORE, slack_ms=0)
    retried = Bounds(faults=1, kinds=RETRY)
    silent = Bounds(faults=1, kinds=SILENCE)
    again = Bounds(faults=1, acquires=(2, 1), tries=(3, 1), gives_up=True)
    return (
        _off("claim_412 lost", rules, retried, self_loss),
        _off("claim_412 ours", rules, retried, one),
        _off("renew_412 ours", rules, retried, one),
        _off("renew_412 lost", rules, retried, self_loss),
        _off("renew_unknown ours", rules, silent, one),
        _off("renew_unknown lost", rules, silent, self_loss),
        _off("claim_unknown ours", rules, silent, one),
        _off("claim_unknown lost", rules, silent, self_loss),
        _off("recognise", rules, replace(again, watch=ONE_BELIEVER), one),
        _off("confirm", rules, again, one),
    )


def _release_and_fence_off() -> tuple[Scenario, ...]:
    rules = replace(STORE, slack_ms=0)
    committing = Bounds(commits=(1, 1), renewals=(0, 0))
    stale = replace(committing, watch=STALE)
    again = Bounds(acquires=(2, 1), tries=(2, 1), renewals=(0, 0))
    watched = replace(again, watch=ONE_BELIEVER)
    return (
        _off("release deletes", rules, watched, Invariant.ONE_BELIEVER),
        _off("release deletes if match", rules, again, Invariant.EPOCHS_RISE),
        _off("fence off", rules, stale, Invariant.NO_STALE_WRITE),
        _off("fence token", rules, committing, Invariant.NO_LOST_UPDATE),
        _off("fence token, release deletes", rules, stale, Invariant.NO_STALE_WRITE),
    )


SCENARIOS: tuple[Scenario, ...] = (
    *_on(),
    *_expiry_off(),
    *_ambiguity_off(),
    *_release_and_fence_off(),
)

BIG: tuple[Scenario, ...] = _big()
"""Every rule on, in wider bounds: minutes and gigabytes, so not for every day."""
