"""The explorer's rows: every rule on, then each switched off, in bounds that are searched whole.

The V numbers are the planted mistakes of the prototype that this protocol was first checked with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lockkit.explore.parts import Bounds, Fault, Invariant
from lockkit.rules import Ambiguous, Expiry, Fence, Recognise, Release, Rules

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


def _expiry_off() -> tuple[Scenario, ...]:
    one, skewed = Invariant.ONE_BELIEVER, Bounds(offsets=(0, 1))
    return (
        Scenario(
            "count_from_send", "the deadline is counted from the answer (V11)",
            replace(STORE, count_from_send=False, slack_ms=0), Bounds(), one,
        ),
        Scenario(
            "drift", "no drift is added, and clocks differ by one second (V1)",
            replace(WALL, drift_ms=0), skewed, one,
        ),
        Scenario(
            "drift_for_holder", "the drift is given to the holder too, as Hudi does (V2)",
            replace(WALL, drift_for_holder=True), skewed, one,
        ),
        Scenario(
            "skew", "clocks differ by three seconds, and the drift is one",
            WALL, Bounds(offsets=(0, 3)), one,
        ),
        Scenario(
            "slack", "no slack for a store whose front ends differ by one second",
            replace(STORE, slack_ms=0), Bounds(spread=1), one,
        ),
        Scenario(
            "slack, too small", "one second of slack, and the store's clocks differ by two",
            STORE, Bounds(spread=2), one,
        ),
    )  # fmt: skip


def _ambiguity_off() -> tuple[Scenario, ...]:
    one, self_loss = Invariant.ONE_BELIEVER, Invariant.NO_SELF_LOSS
    rules = replace(STORE, slack_ms=0)
    retried = Bounds(faults=1, kinds=RETRY)
    silent = Bounds(faults=1, kinds=SILENCE)
    again = Bounds(faults=1, acquires=(2, 1), tries=(3, 1), gives_up=True)
    return (
        Scenario(
            "claim_412 lost", "412 to a claim is read as a lost race (V3)",
            replace(rules, claim_412=Ambiguous.LOST), retried, self_loss,
        ),
        Scenario(
            "claim_412 ours", "412 to a claim is read as our own retry (V4)",
            replace(rules, claim_412=Ambiguous.OURS), retried, one,
        ),
        Scenario(
            "renew_412 ours", "412 to a renewal is read as still ours (V5)",
            replace(rules, renew_412=Ambiguous.OURS), retried, one,
        ),
        Scenario(
            "renew_412 lost", "412 to a renewal is read as a loss, unread (V5b)",
            replace(rules, renew_412=Ambiguous.LOST), retried, self_loss,
        ),
        Scenario(
            "renew_unknown ours", "a renewal without an answer counts as done (V6)",
            replace(rules, renew_unknown=Ambiguous.OURS), silent, one,
        ),
        Scenario(
            "renew_unknown lost", "a renewal without an answer counts as a loss",
            replace(rules, renew_unknown=Ambiguous.LOST), silent, self_loss,
        ),
        Scenario(
            "claim_unknown ours", "a claim without an answer counts as won (V7)",
            replace(rules, claim_unknown=Ambiguous.OURS), silent, one,
        ),
        Scenario(
            "claim_unknown lost", "a claim without an answer counts as lost (V7b)",
            replace(rules, claim_unknown=Ambiguous.LOST), silent, self_loss,
        ),
        Scenario(
            "recognise", "a write is recognised by its owner, and not confirmed (V10)",
            replace(rules, recognise=Recognise.OWNER, confirm=False), again, one,
        ),
        Scenario(
            "confirm", "a write found by reading is believed unconfirmed",
            replace(rules, confirm=False), again, one,
        ),
    )  # fmt: skip


def _release_and_fence_off() -> tuple[Scenario, ...]:
    rules = replace(STORE, slack_ms=0)
    committing = Bounds(commits=(1, 1), renewals=(0, 0))
    stale = replace(committing, watch=STALE)
    again = Bounds(acquires=(2, 1), tries=(2, 1), renewals=(0, 0))
    return (
        Scenario(
            "release deletes", "release reads, then deletes (V8)",
            replace(rules, release=Release.DELETE), replace(again, watch=ONE_BELIEVER),
            Invariant.ONE_BELIEVER,
        ),
        Scenario(
            "release deletes if match", "release deletes what it wrote: epochs start again (V9)",
            replace(rules, release=Release.DELETE_IF_MATCH), again, Invariant.EPOCHS_RISE,
        ),
        Scenario(
            "fence off", "a commit looks at the lease, and nothing guards it (V12)",
            replace(rules, fence=Fence.OFF), stale, Invariant.NO_STALE_WRITE,
        ),
        Scenario(
            "fence token", "epochs are compared at the commit only (V13)",
            replace(rules, fence=Fence.TOKEN), committing, Invariant.NO_LOST_UPDATE,
        ),
        Scenario(
            "fence token, release deletes", "epochs are compared, and a release resets them",
            replace(rules, fence=Fence.TOKEN, release=Release.DELETE_IF_MATCH), stale,
            Invariant.NO_STALE_WRITE,
        ),
    )  # fmt: skip


SCENARIOS: tuple[Scenario, ...] = (
    *_on(),
    *_expiry_off(),
    *_ambiguity_off(),
    *_release_and_fence_off(),
)

BIG: tuple[Scenario, ...] = _big()
"""Every rule on, in wider bounds: minutes and gigabytes, so not for every day."""
