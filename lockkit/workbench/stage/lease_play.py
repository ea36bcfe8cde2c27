"""The play `lock`: two of the very clients that `Lock` runs, and the resource that they write."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockkit.check import Kind, check
from lockkit.client import LOCK_KEY, Client
from lockkit.drive import Procedure, Sleep, Unique
from lockkit.outcome import Applied, IfAbsent
from lockkit.pace import Pace
from lockkit.patterns.guarded import read_guarded, write_guarded
from lockkit.rules import Ambiguous, Fence, Release
from lockkit.state import Action, Beat, Granted, LockLost, Me, Pause, Quit, Released, Tick, Want
from lockkit.state import believes as may_act
from lockkit.stores import Capabilities
from lockkit.workbench.stage.requests import Unguarded

if TYPE_CHECKING:
    from lockkit.workbench.stage.plays import PatternSteps

TTL_MS = 30_000
WAITS_BEYOND_MS = 3_000
"""By when whoever waits takes a lease for over: its slack, and the second that dates are floored
to."""
RESOURCE_KEY = "resource.json"
LOOKS_MAX, BEATS_MAX, WRITES_MAX, RELEASES_MAX = 12, 6, 6, 6
RETRY_S = 0.1

SAYS = (
    "Each takes the lock, works for ten seconds, renews, looks whether its lease still stands, "
    "replaces resource.json, and releases. Stall one at its write, let the lease end, and see who "
    "wrote last."
)
MISTAKES: dict[str, dict[str, Any]] = {
    "nothing guards the write itself": {"fence": Fence.OFF},
    "a lost answer to a claim is a yes": {"claim_unknown": Ambiguous.OURS},
    "a lost answer to a claim is a no": {"claim_unknown": Ambiguous.LOST},
    "a lost answer to a renewal is a yes": {"renew_unknown": Ambiguous.OURS},
    "release deletes whatever is there by then": {"release": Release.DELETE},
}


@dataclass(slots=True)
class Offers:
    """What a client asks its store for besides requests: how it paces its writes."""

    capabilities: Capabilities


def bring_on(steps: PatternSteps) -> None:
    offers = Offers(Capabilities(name="s3", poll_min_s=0.0))
    for name in ("W1", "W2"):
        client = Client(
            where="s3://lake/orders", store=offers, me=Me(name, TTL_MS, name, name),  # type: ignore[arg-type]
            rules=steps.rules, clock=steps.clock(name), pace=Pace(), tell=steps.emit(name),
        )  # fmt: skip
        steps.keep(name, use(client))


def use(client: Client) -> Procedure[str]:
    """Acquire, work, renew, write, release: as a program does with a `Lock` in its hand."""
    yield from acquire(client)
    grant = client.state.grant
    assert grant is not None
    yield Sleep(TTL_MS / 3000)
    yield from renew(client)


    def change(_before: Any) -> str:
        stand(client)
        return client.me.owner

    if client.rules.fence is Fence.OFF:
        yield from write_anyway(change, grant.epoch)
    else:
        yield from write_guarded(RESOURCE_KEY, change, grant.epoch)
    yield from release(client)
    return f"wrote in epoch {grant.epoch}"


def write_anyway(change: Callable[[Any], str], epoch: int) -> Procedure[None]:
    """The mistake: the lease was looked at, so the write needs no condition."""
    before = yield from read_guarded(RESOURCE_KEY)
    fields = {"epoch": epoch, "attempt": (yield Unique()), "value": change(before.value)}
    body = json.dumps(fields).encode()
    for _ in range(WRITES_MAX):
        if isinstance((yield Unguarded(RESOURCE_KEY, body, IfAbsent())), Applied):
            return
        yield Sleep(RETRY_S)


def acquire(client: Client) -> Procedure[None]:
    """Raises `LockLost` where it is never free."""
    client.begin()
    told = yield from client.steps(Want(client.clock.now()))
    for _ in range(LOOKS_MAX):
        if any(isinstance(each, Granted) for each in told):
            return
        yield Sleep(wait_s(told, client))
        told = yield from client.steps(Tick(client.clock.now()))
    raise LockLost("it was never free")


def renew(client: Client) -> Procedure[None]:
    """As `Lock.renew`. Raises `LockLost`."""
    for tries in range(BEATS_MAX):
        stand(client)
        now = client.clock.now()
        told = yield from client.steps(Tick(now) if tries else Beat(now), patient=True)
        if client.state.until_ms is not None and client.state.out is None:
            return
        yield Sleep(wait_s(told, client))
    raise LockLost("no renewal was proven")


def stand(client: Client) -> None:
    """As `Lock.check`. Raises `LockLost` unless this client may act as the holder right now."""
    if not may_act(client.state, client.clock.now()):
        raise LockLost(client.lost_why or "the lease ran out")


def release(client: Client) -> Procedure[None]:
    """As `Lock.release`. Raises `LockLost` where it was lost before."""
    told = yield from client.steps(Quit(client.clock.now()))
    for _ in range(RELEASES_MAX):
        released = next((each for each in told if isinstance(each, Released)), None)
        if released is not None:
            lost = client.lost_why or (client.taken_away() if released.proven else None)
            if lost:
                raise LockLost(lost)
            return
        yield Sleep(wait_s(told, client))
        told = yield from client.steps(Tick(client.clock.now()))


def wait_s(told: list[Action], client: Client) -> float:
    """Until the lease that was seen runs out, or as was asked."""
    asked = next((each.seconds for each in told if isinstance(each, Pause)), None)
    busy = client.busy
    if busy is not None and busy.frees_ms is not None:
        return max(RETRY_S, (busy.frees_ms - client.clock.boot_ms() + 1) / 1000)
    return max(asked or 0.0, RETRY_S)


def judge(steps: PatternSteps) -> tuple[bool, str]:
    """The checker's word; besides, nobody deletes another's lock, and the highest epoch stands."""
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
