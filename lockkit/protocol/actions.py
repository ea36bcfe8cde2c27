"""What a client does in each row of the transition table: one small function per action. Pure.

Each takes the `StepContext` (one event, classified for the table) and the phase that the row leads
to, and returns the state after it and the actions to carry out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lockkit.errors import LossReason
from lockkit.protocol.expiry import belief_ends_ms, frees_ms
from lockkit.protocol.ghosts import to_ghost
from lockkit.protocol.outcome import Version
from lockkit.protocol.policy import Policy
from lockkit.protocol.record import Garbled, Record
from lockkit.protocol.state import (
    Action,
    ClaimLost,
    Granted,
    HeldByOther,
    Identity,
    LastObservation,
    LeaseLost,
    Now,
    Observation,
    Pause,
    PendingWrite,
    Phase,
    ReadRecord,
    Released,
    Renewed,
    State,
    Step,
    WritePurpose,
    WriteRecord,
)


@dataclass(slots=True)
class StepContext:
    """One event at one client, and what is known about it so far."""

    identity: Identity
    state: State
    now: Now
    policy: Policy
    write: PendingWrite | None = None
    """The write that the event is about: the one that was answered, or the one that was found."""
    after_s: float | None = None
    """How long the store asked us to wait."""
    floor: int = 0
    """The renewed grant's epoch exceeds it."""


# --- reading and waiting -------------------------------------------------------------------------


def look(turn: StepContext, to: Phase) -> Step:
    return replace(turn.state, phase=to), (ReadRecord(),)


def look_if_changed(turn: StepContext, to: Phase) -> Step:
    observed = turn.state.observed
    return replace(turn.state, phase=to), (
        ReadRecord(observed.observation.version if observed else None),
    )


def look_for_ours(turn: StepContext, to: Phase) -> Step:
    """A renewal with an unknown outcome is pending: which version is ours?"""
    return replace(to_ghost(turn.state), phase=to), (ReadRecord(),)


def wait(turn: StepContext, to: Phase) -> Step:
    observed = turn.state.observed
    assert observed is not None and observed.observation.record is not None
    busy = HeldByOther(observed.observation.record, frees_ms(observed, turn.now, turn.policy))
    return replace(turn.state, phase=to), (busy,)


def pause(turn: StepContext, to: Phase) -> Step:
    """This copy was not applied; an earlier one may have been. Send the same bytes again later."""
    state = turn.state
    return state if state.phase is to else replace(state, phase=to), (Pause(turn.after_s),)


def give_way(turn: StepContext, to: Phase) -> Step:
    """This copy was not applied; an earlier one may be a ghost. Start afresh later."""
    return replace(to_ghost(turn.state), phase=to), (Pause(turn.after_s),)


# --- writing -------------------------------------------------------------------------------------


def claim(turn: StepContext, to: Phase) -> Step:
    """Write our lease over exactly the version that was seen to be free."""
    identity, state = turn.identity, turn.state
    assert state.observed is not None
    record = Record(
        owner=identity.owner,
        valid_until_ms=turn.now.wall_ms + identity.ttl_ms,
        epoch=next_epoch(state),
        ttl_ms=identity.ttl_ms,
        holder=identity.holder,
    )
    return send(turn, to, WritePurpose.CLAIM, record, state.observed.observation.version)


def next_epoch(state: State) -> int:
    """Above every known epoch, in the object or elsewhere."""
    record = state.observed.observation.record if state.observed else None
    observed = record.epoch if isinstance(record, Record) else 0
    return max(observed, state.floor) + 1


def confirm(turn: StepContext, to: Phase) -> Step:
    """A read found our write. Reading is not holding (TOCTOU): CAS over it."""
    assert turn.write is not None and turn.state.observed is not None
    valid_until_ms = turn.now.wall_ms + turn.identity.ttl_ms
    record = replace(turn.write.record, valid_until_ms=valid_until_ms, holder=turn.identity.holder)
    return send(turn, to, WritePurpose.CONFIRM, record, turn.state.observed.observation.version)


def adopt(turn: StepContext, to: Phase) -> Step:
    """Take over a ghost of our own instead of waiting for it: a grant with an epoch of its own."""
    assert turn.write is not None
    record = replace(turn.write.record, epoch=next_epoch(turn.state))
    turn.write = replace(turn.write, record=record)
    return confirm(turn, to)


def make_good(turn: StepContext, to: Phase) -> Step:
    """The claim won, but its answer took a whole lease: write again before acting as the holder."""
    observed = turn.state.observed
    assert turn.write is not None and observed is not None
    turn.state = replace(turn.state, unsettled=(turn.write,))
    record = replace(turn.write.record, valid_until_ms=turn.now.wall_ms + turn.identity.ttl_ms)
    return send(turn, to, WritePurpose.CONFIRM, record, observed.observation.version)


def renew(turn: StepContext, to: Phase) -> Step:
    """CAS on our own version.

    A grant whose epoch is not above `floor` gets one that is. Nobody can have taken the lock in
    between: the write replaces exactly our version. The new epoch counts once that is proven.
    """
    state, grant = turn.state, turn.state.grant
    assert grant is not None
    epoch = grant.epoch if grant.epoch > turn.floor else state.floor + 1
    record = replace(grant, valid_until_ms=turn.now.wall_ms + turn.identity.ttl_ms, epoch=epoch)
    return send(turn, to, WritePurpose.RENEW, record, state.version)


def leave_tombstone(turn: StepContext, to: Phase) -> Step:
    """Release our grant's version."""
    grant = turn.state.grant
    assert grant is not None
    return _tombstone(turn, to, grant, turn.state.version)


def leave_tombstone_over_ours(turn: StepContext, to: Phase) -> Step:
    """Release the write of ours that a read found in the object."""
    observed = turn.state.observed
    assert observed is not None and isinstance(observed.observation.record, Record)
    return _tombstone(turn, to, observed.observation.record, observed.observation.version)


def _tombstone(turn: StepContext, to: Phase, record: Record, over: Version | None) -> Step:
    """Marked expired, never deleted: epochs go on, and a late create cannot land.

    It keeps the highest known epoch: a renewal that raised the epoch may have landed after our
    grant had ended locally, and then the grant still has the lower one.
    """
    epoch = max(record.epoch, turn.state.floor)
    return send(turn, to, WritePurpose.RELEASE, replace(record, expired=True, epoch=epoch), over)


def send(
    turn: StepContext, to: Phase, purpose: WritePurpose, record: Record, over: Version | None
) -> Step:
    """A new write with its own attempt: two writes never have equal bytes."""
    identity, state = turn.identity, turn.state
    record = replace(record, attempt=f"{identity.handle or identity.owner}/{state.writes + 1}")
    out = PendingWrite(purpose, record, over, turn.now)
    return replace(state, phase=to, out=out, writes=state.writes + 1), (WriteRecord(record, over),)


def resend(turn: StepContext, to: Phase) -> Step:
    """The same bytes under the same condition: at most one copy can land."""
    out = turn.state.out
    assert out is not None
    return replace(turn.state, phase=to), (WriteRecord(out.record, out.over),)


# --- the result of a write or a read -------------------------------------------------------------


def applied(state: State, write: PendingWrite, version: Version, now: Now) -> State:
    """This write is in the object: the version that our ghosts would replace is gone for good."""
    observed = LastObservation(Observation(version, write.record), write.sent.boot_ms, now.boot_ms)
    floor = max(state.floor, write.record.epoch)
    return replace(state, out=None, observed=observed, floor=floor, unsettled=())


def remember(state: State, observation: Observation | None, date_ms: int | None, now: Now) -> State:
    """Record what a read found; a 304 confirms the old version at the store's new time."""
    if observation is None:
        assert state.observed is not None, "a 304 needs a version that we named"
        if not _is_newer(state.observed, date_ms, now):
            return state
        observation = replace(state.observed.observation, date_ms=date_ms)
    known = state.observed is not None and state.observed.observation.version == observation.version
    since = state.observed.since_ms if known and state.observed else now.boot_ms
    epoch = observation.record.epoch if isinstance(observation.record, Record) else 0
    return replace(
        state,
        observed=LastObservation(observation, since, now.boot_ms),
        floor=max(state.floor, epoch),
    )


def _is_newer(observed: LastObservation, date_ms: int | None, now: Now) -> bool:
    """Whether this Date shows a later time of the store's clock than the one in use.

    Dates are floored: of two for one version, the one that shows more elapsed time is closer.
    """
    if date_ms is None or observed.observation.date_ms is None:
        return date_ms is not None
    return date_ms - now.boot_ms > observed.observation.date_ms - observed.read_ms


def hold(turn: StepContext, to: Phase) -> Step:
    """Hold the grant until this write's lease ends, less the margin."""
    state, write = turn.state, turn.write
    assert write is not None and state.observed is not None
    epoch = write.record.epoch
    reported: Action = Renewed(epoch) if state.grant else Granted(epoch)
    state = replace(
        state,
        phase=to,
        out=None,
        grant=write.record,
        version=state.observed.observation.version,
        until_ms=belief_ends_ms(turn.identity, write, turn.now, turn.policy),
    )
    return state, (reported,)


def keep_for_release(turn: StepContext, to: Phase) -> Step:
    """It landed after the grant had ended, which is final; a release needs to know of it."""
    state, write = turn.state, turn.write
    assert write is not None and state.observed is not None
    return replace(
        state, phase=to, version=state.observed.observation.version, grant=write.record
    ), ()


def claim_again(turn: StepContext, to: Phase) -> Step:
    """Another claim won, and the lock is free again."""
    beaten = _beaten(turn)
    state, actions = claim(turn, to)
    return state, (*beaten, *actions)


def wait_again(turn: StepContext, to: Phase) -> Step:
    beaten = _beaten(turn)
    state, actions = wait(turn, to)
    return state, (*beaten, *actions)


def _beaten(turn: StepContext) -> tuple[Action, ...]:
    assert turn.write is not None
    return (ClaimLost(turn.write.record.attempt),)


def lose(turn: StepContext, to: Phase) -> Step:
    """Another write is in the place of our lease."""
    state = turn.state
    assert state.grant is not None and state.observed is not None
    reported = (LeaseLost(state.grant.epoch, *_usurper(state.observed.observation)),)
    after = replace(state, phase=to, out=None, version=None, until_ms=None)
    return after, reported if state.until_ms is not None else ()


def _usurper(observation: Observation) -> tuple[str, LossReason]:
    """What replaced our lease, for the error of the holder that lost it."""
    match observation.record:
        case None:
            return "the lock object was deleted", LossReason.DELETED
        case Garbled(why):
            text = f"the lock object was overwritten with something else: {why}"
            return text, LossReason.OVERWRITTEN
        case Record():
            return "another client's write is in the lock object", LossReason.TAKEN


def stay_lost(turn: StepContext, to: Phase) -> Step:
    """Too late: a grant that has ended never comes back. A pending write becomes a ghost."""
    return replace(to_ghost(turn.state), phase=to), ()


def run_out(turn: StepContext, to: Phase) -> Step:
    return end_belief(turn.state, to)


def end_belief(state: State, to: Phase) -> Step:
    assert state.grant is not None
    why = "the lease ran out before a renewal was proven"
    after = replace(state, phase=to, until_ms=None)
    return after, (LeaseLost(state.grant.epoch, why, LossReason.EXPIRED),)


# --- the end -------------------------------------------------------------------------------------


def released(turn: StepContext, to: Phase) -> Step:
    return _end(turn.state, to, proven=True)


def give_up(turn: StepContext, to: Phase) -> Step:
    """Send nothing more. A pending claim may still land: then it is a ghost that expires."""
    grant, version = turn.state.grant, turn.state.version
    state = replace(to_ghost(turn.state), phase=to, until_ms=None)
    if grant is None:
        return state, ()
    kept = PendingWrite(
        WritePurpose.CLAIM, grant, version, Now(0, 0)
    )  # so that the next try recognises its own lease
    return _end(replace(state, unsettled=(*state.unsettled, kept)), to, proven=False)


def _end(state: State, to: Phase, *, proven: bool) -> Step:
    epoch = state.grant.epoch if state.grant else 0
    after = replace(state, phase=to, out=None, grant=None, version=None, until_ms=None)
    return after, (Released(epoch, proven),)
