"""One grant of the storage lock, from the first claim to the release, as procedures.

`lease.step` decides and `LeaseClient.steps` carries it out. The procedures here handle the rest:
when to look again, when to give up, what to settle before, and how long to retry a release.
`Lock` runs them against a store, the simulator on its own clock, the stepper request by request.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock, back_off_s
from lockkit.errors import LockLost, LossReason, NoAnswer, StoreError
from lockkit.lock.client import LeaseClient
from lockkit.lock.polling import requested_s
from lockkit.protocol.record import epoch_after
from lockkit.protocol.state import (
    AcquireRequested,
    Action,
    Event,
    GiveUp,
    Granted,
    LeaseLost,
    Pause,
    Released,
    ReleaseRequested,
    Renewed,
    Tick,
)
from lockkit.runtime import BlockingCall, Exclusive, Procedure, Sleep

if TYPE_CHECKING:
    from lockkit.lock.contract import Hold

RETRY_FIRST_S, RETRY_LONGEST_S = 0.05, 2.0
LATE_S = 3.0
"""Minimum time for a look or a claim at the end of a wait, and for settling its result."""
RISES_MAX = 5
"""Renewals that try to raise an epoch; a second is needed if an older one had landed instead."""


@dataclass(frozen=True, slots=True)
class GrantEnd:
    """How a grant ended."""

    proven: bool
    """Whether the store confirmed the release."""
    loss: LeaseLost | None
    """Why it was lost earlier; None: it was not lost, as far as this client can know."""


# --- acquire --------------------------------------------------------------------------------------


def acquire(
    client: LeaseClient, limit_s: float | None, *, floor: int = 0, hold: Hold,
    test: Callable[[float], None] | None = None,
) -> Procedure[bool]:  # fmt: skip
    """Claim the lock until it is granted; False once `limit_s` is over (None: wait for ever).

    `hold` is called atomically with the grant. `test(seconds)` checks before the first claim that
    the store enforces conditions; it raises `NoAnswer` if the store does not answer in that time.
    The epoch is above `floor`. After any other exception nothing stays held.
    """
    began_ms = client.clock.boot_ms()
    deadline_ms = math.inf if limit_s is None else began_ms + limit_s * 1000
    try:
        if test is not None and not (yield from _tested(client, test, deadline_ms)):
            return False
        client.begin()
        wait_s = client.stand_back_s(began_ms, deadline_ms)
        if wait_s > 0:
            yield Sleep(wait_s)
        return (yield from _poll(client, deadline_ms, floor, hold))
    except GeneratorExit:  # the process is gone and sends nothing more
        raise
    except BaseException as error:
        yield from undo(client, interrupted=not isinstance(error, Exception))
        raise
    finally:
        client.ends_ms = math.inf


def _tested(
    client: LeaseClient, test: Callable[[float], None], deadline_ms: float
) -> Procedure[bool]:
    """Before the first claim: whether the store showed in time that it enforces conditions."""
    clock, failures = client.clock, 0
    while True:
        left_s = max(LATE_S, (deadline_ms - clock.boot_ms()) / 1000)
        try:
            yield BlockingCall(lambda left_s=left_s: test(left_s))  # type: ignore[misc]
            return True
        except NoAnswer as error:
            client.begin()
            client.last_failure = str(error)
        except StoreError as error:
            client.emit("note", text=f"the lock was refused before its claim: {error}")
            raise
        failures += 1
        left_s = (deadline_ms - clock.boot_ms()) / 1000
        if left_s <= 0:
            return False
        yield Sleep(min(_back_off_s(failures, clock), left_s))


def _poll(client: LeaseClient, deadline_ms: float, floor: int, hold: Hold) -> Procedure[bool]:
    clock = client.clock
    failures = 0
    event: Event = AcquireRequested(clock.now(), floor)
    while True:
        client.ends_ms = max(deadline_ms, clock.boot_ms() + client.late_ms)
        reported: list[Action] = yield Exclusive(_claim(client, event, hold))
        if any(isinstance(each, Granted) for each in reported):
            return True
        if any(isinstance(each, Pause) for each in reported):
            failures += 1
            wait_s, freed = retry_s(reported, failures, clock), None
        else:
            failures, wait_s, freed = 0, client.look_s(), client.freed
        left_s = (deadline_ms - clock.boot_ms()) / 1000
        if left_s <= 0:
            settled: bool = yield Exclusive(_last_try(client, hold))
            return settled
        yield Sleep(min(wait_s, left_s), freed)  # looks once more at the deadline
        event = Tick(clock.now())


def _claim(client: LeaseClient, event: Event, hold: Hold) -> Procedure[list[Action]]:
    """One look or claim, and the steps that follow from its answer."""
    reported = yield from client.steps(event)
    if any(isinstance(each, Granted) for each in reported):
        _begin_holding(client, hold)
    return reported


def _begin_holding(client: LeaseClient, hold: Hold) -> None:
    grant = client.grant
    assert grant is not None
    client.ends_ms = math.inf
    client.granted(grant.epoch)
    client.renewal = hold()


def _last_try(client: LeaseClient, hold: Hold) -> Procedure[bool]:
    """The time is over. First settle a claim without an answer: it may have won."""
    yield from client.steps(GiveUp(client.clock.now()))
    if not client.in_doubt():
        return False
    client.ends_ms = client.clock.boot_ms() + client.late_ms
    reported = yield from _claim(client, AcquireRequested(client.clock.now()), hold)
    if any(isinstance(each, Granted) for each in reported):
        return True
    yield from client.steps(GiveUp(client.clock.now()))
    _note_ghost(client)
    return False


def undo(client: LeaseClient, *, interrupted: bool) -> Procedure[None]:
    """After an exception: release what is held or may still be granted."""
    yield Exclusive(_back_out(client, interrupted=interrupted))


def _back_out(client: LeaseClient, *, interrupted: bool) -> Procedure[None]:
    clock = client.clock
    stop_renewing(client)
    client.ends_ms = clock.boot_ms() + client.undo_ms
    if client.grant is None:
        if interrupted:
            client.doubt_what_is_out()
        yield from client.steps(GiveUp(clock.now()), patient=True)
        if client.in_doubt():
            yield from client.steps(AcquireRequested(clock.now()), patient=True)
    if client.grant is not None:
        yield from _let_go(client, client.back_out_ms, patient=True)
    yield from client.steps(GiveUp(clock.now()), patient=True)
    _note_ghost(client)


def _note_ghost(client: LeaseClient) -> None:
    if client.in_doubt():
        text = f"a claim of {client.where} had no answer: it may be a ghost that holds the lock"
        text += " until its lease ends; to end it sooner: lockkit lock break"
        client.emit("note", text=text, ghost=True)


# --- renew ----------------------------------------------------------------------------------------


def renew(client: LeaseClient, assert_held: Callable[[], None], floor: int = 0) -> Procedure[None]:
    """Renew until it is proven; the epoch is then above `floor`.

    Each try begins with `assert_held()`, which raises `LockLost` once the lease is over.
    """
    clock, failures = client.clock, 0
    while True:
        assert_held()
        reported: list[Action] = yield Exclusive(_renew_once(client, floor))
        if any(isinstance(each, Renewed) for each in reported):
            return
        failures += 1
        left_s = ((client.until_ms or 0) - clock.boot_ms()) / 1000
        yield Sleep(retry_s(reported, failures, clock, max(left_s, 0.001)))


def rise_above(
    client: LeaseClient, where: Any, assert_held: Callable[[], None], epoch: int
) -> Procedure[None]:
    """Renew until the grant's epoch is above `epoch`. Raises `LockLost` if it is no longer ours."""
    for _ in range(RISES_MAX):
        held = client.grant
        if held is None:
            assert_held()
        elif held.epoch > epoch:
            return
        yield from renew(client, assert_held, epoch_after(epoch) - 1)
    own = client.grant.epoch if client.grant else 0
    why = f"its epoch {own} could not be raised above {epoch}"
    loss = LeaseLost(own, why, LossReason.SUPERSEDED)
    raise lost_error(where, loss, "release the lock and acquire it again")


def _renew_once(client: LeaseClient, floor: int) -> Procedure[list[Action]]:
    """One renewal, or one step to settle the renewal before it."""
    return (yield from client.steps(client.due(floor)))


def assert_held(client: LeaseClient, where: Any) -> None:
    """Raise `LockLost` unless this client may act as the holder now. Sends no request."""
    if client.believes():
        return
    loss, held = client.loss, client.grant
    if held is None:
        loss = loss or LeaseLost(0, "it was never acquired", LossReason.NEVER_ACQUIRED)
    else:
        loss = loss or LeaseLost(held.epoch, "the lease ran out", LossReason.EXPIRED)
    raise lost_error(where, loss, "acquire it again and start over")


def lost_error(where: Any, loss: LeaseLost, cure: str) -> LockLost:
    return LockLost(str(where), loss.why, cure, reason=loss.reason, epoch=loss.epoch)


# --- release --------------------------------------------------------------------------------------


def release(client: LeaseClient) -> Procedure[GrantEnd | None]:
    """Release what is held; retry while the lease lasts. None: nothing is held."""
    ended: GrantEnd | None = yield Exclusive(_release(client))
    return ended


def _release(client: LeaseClient) -> Procedure[GrantEnd | None]:
    if client.grant is None:
        return None
    stop_renewing(client)
    released = yield from _let_go(client, client.release_ms)
    # Only now: a process that was paused notices its loss when it releases.
    loss = client.loss or (client.taken_away(released.epoch) if released.proven else None)
    return GrantEnd(released.proven, loss)


def _let_go(client: LeaseClient, for_ms: float, *, patient: bool = False) -> Procedure[Released]:
    """Retry the release until the store gives a definite answer or the time is over."""
    clock = client.clock
    ends_ms = clock.boot_ms() + for_ms
    client.ends_ms = min(client.ends_ms, ends_ms + client.late_ms)
    failures = 0
    event: Event = GiveUp(clock.now()) if client.closed else ReleaseRequested(clock.now())
    try:
        while True:
            reported = yield from client.steps(event, patient=patient)
            released = next((each for each in reported if isinstance(each, Released)), None)
            if released is not None:
                break
            failures += 1
            left_s = (ends_ms - clock.boot_ms()) / 1000
            if left_s > 0:
                yield Sleep(retry_s(reported, failures, clock, left_s))
            now = clock.now()
            event = Tick(now) if left_s > 0 else GiveUp(now)
    except GeneratorExit:
        raise
    except BaseException:
        yield from client.steps(GiveUp(clock.now()))  # the handle is free; the lease expires
        raise
    finally:
        client.ends_ms = math.inf
    client.released()
    return released


def stop_renewing(client: LeaseClient) -> None:
    if client.renewal is not None:
        client.renewal.stop()
        client.renewal = None


# --- waiting --------------------------------------------------------------------------------------


def retry_s(reported: list[Action], failures: int, clock: Clock, left_s: float = math.inf) -> float:
    """Seconds until the next try: the store's request, limited by the `left_s` of a lease."""
    pause = next((each.seconds for each in reported if isinstance(each, Pause)), None)
    return min(left_s, max(requested_s(pause, left_s), _back_off_s(failures, clock)))


def _back_off_s(failures: int, clock: Clock) -> float:
    return back_off_s(failures, clock, first_s=RETRY_FIRST_S, longest_s=RETRY_LONGEST_S)
