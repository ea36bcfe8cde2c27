"""The explorer's rows: every rule on, then each mutant, in bounds that are searched whole."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from lockkit.lab.verify.explore.parts import Bounds, ExplorerFault
from lockkit.lab.verify.mutants import LEASE_MUTANTS, Invariant, Mutant
from lockkit.lab.verify.wrong_rules import RIGHT
from lockkit.protocol.policy import Expiry, Policy

TICK_MS = 1000
# One tick is one second here, a lease lasts two, and `margin` (a tenth of that) rounds to nothing.
STORE = Policy(expiry=Expiry.STORE, slack_ms=1)
WALL = Policy(expiry=Expiry.WALL, drift_ms=1)
OBSERVED = Policy(expiry=Expiry.OBSERVED)

RETRY = frozenset({ExplorerFault.RETRY})
SILENCE = frozenset({ExplorerFault.LOST, ExplorerFault.LATE})
CRASH = SILENCE | {ExplorerFault.CRASH}
ONE_BELIEVER = frozenset({Invariant.ONE_BELIEVER})
STALE = frozenset({Invariant.NO_STALE_WRITE})
NONE_OF_THREE = (0, 0, 0)
THREE = Bounds(
    acquires=(1, 1, 1), tries=(1, 1, 1), renewals=NONE_OF_THREE, commits=NONE_OF_THREE,
    offsets=NONE_OF_THREE,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SearchScenario:
    """What is searched, and what is expected: an invariant that breaks, or None."""

    name: str
    off: str
    """The rule that is switched off, in words; "" where all are on."""
    policy: Policy
    bounds: Bounds
    breaks: Invariant | None = None
    mutant: Mutant | None = None

    @property
    def rules(self) -> Mapping[str, Any]:
        """Each rule by name, and its value here, right or wrong."""
        off = {} if self.mutant is None else self.mutant.off
        return {rule: off.get(rule, right) for rule, right in RIGHT.items()} | asdict(self.policy)

    def planted(self) -> AbstractContextManager[None]:
        return nullcontext() if self.mutant is None else self.mutant.planted()


def _on() -> tuple[SearchScenario, ...]:
    faulty = Bounds(faults=1, gives_up=True)
    unrenewed = Bounds(faults=2, renewals=(0, 0))
    alone = Bounds(acquires=(2, 0), tries=(4, 0), renewals=(2, 0), faults=2, gives_up=True)
    committing = Bounds(commits=(1, 1), renewals=(0, 0), faults=1)
    crashing = Bounds(faults=1, kinds=CRASH, renewals=(0, 0), spread=1)
    three = replace(THREE, renewals=(1, 1, 0))
    return (
        SearchScenario("store", "", STORE, replace(faulty, spread=1)),
        SearchScenario("wall", "", WALL, replace(faulty, offsets=(0, 1))),
        SearchScenario("observed", "", OBSERVED, replace(faulty, offsets=(0, 3))),
        SearchScenario("observed, two faults", "", OBSERVED, unrenewed),
        SearchScenario("wall, two faults", "", WALL, replace(unrenewed, offsets=(0, 1))),
        SearchScenario("alone, two faults", "", STORE, alone),
        SearchScenario("commit", "", replace(STORE, slack_ms=0), committing),
        SearchScenario(
            "commits", "", replace(STORE, slack_ms=0), replace(committing, commits=(2, 2), faults=0)
        ),
        SearchScenario("crash and restart", "", STORE, crashing),
        SearchScenario("three clients", "", replace(STORE, slack_ms=0), three),
    )


def _big() -> tuple[SearchScenario, ...]:
    prompt = replace(STORE, slack_ms=0)
    everything = Bounds(faults=1, kinds=frozenset(ExplorerFault), gives_up=True, spread=1)
    crashing = Bounds(faults=1, kinds=CRASH)
    silent = replace(THREE, renewals=(1, 0, 0), faults=1, kinds=SILENCE)
    return (
        SearchScenario("two silences", "", prompt, Bounds(faults=2, kinds=SILENCE)),
        SearchScenario("any one fault or crash", "", STORE, everything),
        SearchScenario("two crashes", "", prompt, replace(crashing, faults=2, renewals=(0, 0))),
        SearchScenario("crash, wall", "", WALL, replace(crashing, offsets=(0, 1))),
        SearchScenario("crash, observed", "", OBSERVED, replace(crashing, offsets=(0, 3))),
        SearchScenario(
            "three clients, two claims each", "", prompt, replace(THREE, tries=(2, 2, 2))
        ),
        SearchScenario("three clients, a silence", "", prompt, silent),
    )


def _off(name: str, on: Policy, bounds: Bounds, breaks: Invariant) -> SearchScenario:
    """The mutant of that name."""
    mutant = LEASE_MUTANTS[name]
    policy = mutant.of(on)
    ticks = {
        rule: said // TICK_MS for rule, said in asdict(policy).items()
        if rule in mutant.off and rule.endswith("_ms")
    }  # fmt: skip
    return SearchScenario(name, mutant.says, replace(policy, **ticks), bounds, breaks, mutant)


def _expiry_off() -> tuple[SearchScenario, ...]:
    one, skewed = Invariant.ONE_BELIEVER, Bounds(offsets=(0, 1))
    return (
        _off("count_from_send", replace(STORE, slack_ms=0), Bounds(), one),
        _off("drift", WALL, skewed, one),
        _off("drift_for_holder", WALL, skewed, one),
        _off("skew", WALL, Bounds(offsets=(0, 3)), one),
        _off("slack", STORE, Bounds(spread=1), one),
        _off("slack, too small", STORE, Bounds(spread=2), one),
    )


def _ambiguity_off() -> tuple[SearchScenario, ...]:
    one, self_loss = Invariant.ONE_BELIEVER, Invariant.NO_SELF_LOSS
    prompt = replace(STORE, slack_ms=0)
    retried = Bounds(faults=1, kinds=RETRY)
    silent = Bounds(faults=1, kinds=SILENCE)
    again = Bounds(faults=1, acquires=(2, 1), tries=(3, 1), gives_up=True)
    return (
        _off("claim_412 lost", prompt, retried, self_loss),
        _off("claim_412 ours", prompt, retried, one),
        _off("renew_412 ours", prompt, retried, one),
        _off("renew_412 lost", prompt, retried, self_loss),
        _off("renew_unknown ours", prompt, silent, one),
        _off("renew_unknown lost", prompt, silent, self_loss),
        _off("claim_unknown ours", prompt, silent, one),
        _off("claim_unknown lost", prompt, silent, self_loss),
        _off("recognise", prompt, replace(again, watch=ONE_BELIEVER), one),
        _off("confirm", prompt, again, one),
    )


def _release_and_fence_off() -> tuple[SearchScenario, ...]:
    prompt = replace(STORE, slack_ms=0)
    committing = Bounds(commits=(1, 1), renewals=(0, 0))
    stale = replace(committing, watch=STALE)
    again = Bounds(acquires=(2, 1), tries=(2, 1), renewals=(0, 0))
    watched = replace(again, watch=ONE_BELIEVER)
    return (
        _off("release deletes", prompt, watched, Invariant.ONE_BELIEVER),
        _off("release deletes if match", prompt, again, Invariant.EPOCHS_RISE),
        _off("fence off", prompt, stale, Invariant.NO_STALE_WRITE),
        _off("fence token", prompt, committing, Invariant.NO_LOST_UPDATE),
        _off("fence token, release deletes", prompt, stale, Invariant.NO_STALE_WRITE),
    )


SCENARIOS: tuple[SearchScenario, ...] = (
    *_on(),
    *_expiry_off(),
    *_ambiguity_off(),
    *_release_and_fence_off(),
)

BIG: tuple[SearchScenario, ...] = _big()
"""Every rule on, in wider bounds: minutes and gigabytes, so not for every day."""
