"""The play `lock`: two of the clients that `Lock` runs, and the resource that they write."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lockkit.errors import LockLost, LossReason
from lockkit.lab.verify.check import Kind, check
from lockkit.lab.verify.mutants import LEASE_MUTANTS, fence_of
from lockkit.lab.verify.wrong_rules import CommitGuard
from lockkit.lab.widgets.stage.requests import UnguardedPut
from lockkit.lock import grant
from lockkit.lock.polling import PollingPace
from lockkit.lock.storage import LOCK_KEY, StorageClient
from lockkit.protocol.outcome import Applied, IfAbsent
from lockkit.protocol.state import Identity
from lockkit.recipes.guarded import read_guarded, write_guarded
from lockkit.runtime import Procedure, Sleep, Unique
from lockkit.stores import Capabilities

if TYPE_CHECKING:
    from lockkit.lab.widgets.stage.scenarios import PatternSteps

TTL_MS = 30_000
WAITS_BEYOND_MS = 3_000
"""When a waiter takes a lease for over: its slack, and the second that dates are floored
to."""
RESOURCE_KEY = "resource.json"
WRITES_MAX, WAIT_S = 6, 360.0
RETRY_S = 0.1
AGAIN = "acquire it again and start over"
PAUSE_MS = 4.0 * TTL_MS
"""A store so slow that a waiter looks again only when the lease ends, which keeps the steps few."""

SAYS = (
    "Each client takes the lock, works for ten seconds, renews the lease, checks that it is still "
    "valid, replaces resource.json, and releases the lock. Pause one before its write, let the "
    "lease end, and see who wrote last."
)
MISTAKES = {
    "nothing guards the write itself": LEASE_MUTANTS["fence off"],
    "a lost answer to a claim counts as success": LEASE_MUTANTS["claim_unknown ours"],
    "a lost answer to a claim counts as failure": LEASE_MUTANTS["claim_unknown lost"],
    "a lost answer to a renewal counts as success": LEASE_MUTANTS["renew_unknown ours"],
    "release deletes whatever is there by then": LEASE_MUTANTS["release deletes"],
}


class NoRenewal:
    """No renewal thread: the actor renews once, where a reader can see it."""

    def stop(self) -> None:
        """Nothing to stop."""


@dataclass(slots=True)
class PacingLimits:
    """What a client needs from its store besides requests: how to pace its writes."""

    capabilities: Capabilities


def bring_on(steps: PatternSteps) -> None:
    offers = PacingLimits(Capabilities(name="s3", poll_min_s=0.0))
    fence = fence_of(steps.mutant)
    for name in ("W1", "W2"):
        client = StorageClient(
            where="s3://lake/orders", store=offers, identity=Identity(name, TTL_MS, name, name),  # type: ignore[arg-type]
            policy=steps.rules, clock=steps.clock(name), polling=PollingPace(PAUSE_MS),
            sink=steps.emit(name),
        )  # fmt: skip
        steps.keep(name, use(client, fence))


def use(client: StorageClient, fence: CommitGuard) -> Procedure[str]:
    """Acquire, work, renew, write, release: as a program does with a `Lock`."""
    stand = partial(grant.assert_held, client, "the lock")
    if not (yield from grant.acquire(client, WAIT_S, hold=NoRenewal)):
        raise LockLost("the lock", "it was never free", AGAIN, reason=LossReason.NEVER_ACQUIRED)
    held = client.state.grant
    assert held is not None
    yield Sleep(TTL_MS / 3000)
    yield from grant.renew(client, stand)

    def change(_before: Any) -> str:
        stand()
        return client.identity.owner

    if fence is CommitGuard.OFF:
        yield from write_anyway(change, held.epoch)
    else:
        yield from write_guarded(RESOURCE_KEY, change, held.epoch)
    ended = yield from grant.release(client)
    if ended is not None and ended.loss:
        raise grant.lost_error("the lock", ended.loss, AGAIN)
    return f"wrote in epoch {held.epoch}"


def write_anyway(change: Callable[[Any], str], epoch: int) -> Procedure[None]:
    """The mistake: check the lease, then write without a condition."""
    before = yield from read_guarded(RESOURCE_KEY)
    fields = {"epoch": epoch, "attempt": (yield Unique()), "value": change(before.value)}
    body = json.dumps(fields).encode()
    for _ in range(WRITES_MAX):
        if isinstance((yield UnguardedPut(RESOURCE_KEY, body, IfAbsent())), Applied):
            return
        yield Sleep(RETRY_S)


def judge(steps: PatternSteps) -> tuple[bool, str]:
    """The checker's verdict; no client may delete another's lock; the highest epoch stays."""
    top, holder = 0, ""
    for each in steps.events:
        if each.kind != "request" or not each["applied"]:
            continue
        who, deletes = each["client"], each["method"] == "delete"
        if each["key"] == LOCK_KEY and deletes and holder not in ("", who):
            return False, f"{who} deleted a lock that was {holder}'s by then"
        if each["key"] == LOCK_KEY:
            holder = "" if deletes else who
        if each["key"] == RESOURCE_KEY:
            epoch = each["epoch"]
            if epoch < top:
                because = f"{who}'s late write, of epoch {epoch}, replaced what epoch {top} wrote"
                return False, because
            top = epoch
    verdict = check(steps.events)
    because, _, _ = verdict.because.partition("; reached")
    by = f"of epoch {top}" if top else "not written yet"
    return verdict.kind is not Kind.INVALID, f"{because}; {RESOURCE_KEY} is {by}"
