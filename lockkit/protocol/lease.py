"""The lease protocol: one pure function from (state, event) to (state, actions).

`TRANSITIONS` is the whole protocol: what a client in this phase does in this case, and which phase
comes next. `step` classifies an event and takes that row. It uses no clock, socket or randomness.
`Lock` runs it against a real store, the explorer against an adversary, a notebook one step at a
time. A client has at most one request in flight. The code that runs the protocol carries the
request out and passes the answer back as the next event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple, assert_never

from lockkit.protocol import actions as do
from lockkit.protocol.actions import StepContext
from lockkit.protocol.expiry import belief_ends_ms, free
from lockkit.protocol.ghosts import fate, settle_ghosts, to_ghost
from lockkit.protocol.outcome import (
    Applied,
    NotOurs,
    Ours,
    PreconditionFailed,
    StillOut,
    Throttled,
    Unknown,
    WriteAnswer,
)
from lockkit.protocol.policy import Policy
from lockkit.protocol.record import Record
from lockkit.protocol.state import (
    AcquireRequested,
    Event,
    GiveUp,
    Identity,
    Now,
    Observation,
    PendingWrite,
    Phase,
    ReadAnswered,
    ReadFailed,
    ReleaseRequested,
    RenewDue,
    State,
    Step,
    Tick,
    WriteAnswered,
    WritePurpose,
)


class EventCase(StrEnum):
    """An event, classified by what the client knows. The values label the diagram."""

    WANT = "want"
    WANT_TAKEN = "want where it was taken"
    WANT_FREE = "want where it was free"
    LATER = "later"
    LATER_FREE = "the lease that was seen has ended"
    BEAT = "a renewal is due"
    ENDED = "the lease ran out"

    FREE = "free"
    TAKEN = "held by another"
    GHOST = "a ghost of our own"
    STILL_OURS = "still ours"
    NOT_OURS = "not ours any more"
    NO_READ = "no answer to a read"

    APPLIED = "applied"
    APPLIED_LATE = "applied but answered a lease later"
    APPLIED_ENDED = "applied after the lease ran out"
    REFUSED = "412"
    UNANSWERED = "no answer"
    THROTTLED = "throttled"
    THROTTLED_ENDED = "throttled after the lease ran out"

    OURS = "it landed"
    OURS_ENDED = "it landed after the lease ran out"
    OUT_CLAIM = "a claim is still out"
    OUT_CONFIRM = "a confirmation is still out"
    OUT_RENEW = "a renewal is still out"
    OUT_RELEASE = "a release is still out"
    OUT_ENDED = "still out after the lease ran out"
    BEATEN_FREE = "beaten and free again"
    BEATEN_TAKEN = "beaten"
    USURPED = "another write is there"
    RENEWED_BEFORE = "an earlier renewal is there"
    RELEASED = "released or superseded"

    QUIT = "quit"
    QUIT_UNSETTLED = "quit with a write out"
    QUIT_TAKEN_OVER = "quit after a takeover"
    GIVE_UP = "give up"


class Transition(NamedTuple):
    """The next phase (None: the same one) and the action."""

    to: Phase | None
    action: Callable[[StepContext, Phase], Step]


# --- the table -----------------------------------------------------------------------------------

_AMBIGUOUS = {
    # A retry of our own success is also answered with 412.
    EventCase.REFUSED: Transition(Phase.SETTLING, do.look),
    EventCase.UNANSWERED: Transition(Phase.SETTLING, do.look),
}

TRANSITIONS: Mapping[Phase, Mapping[EventCase, Transition]] = {
    Phase.IDLE: {
        EventCase.WANT: Transition(Phase.LOOKING, do.look),
        EventCase.WANT_TAKEN: Transition(Phase.LOOKING, do.look_if_changed),
        EventCase.WANT_FREE: Transition(Phase.CLAIMING, do.claim),
    },
    Phase.LOOKING: {
        EventCase.FREE: Transition(Phase.CLAIMING, do.claim),
        EventCase.TAKEN: Transition(Phase.WAITING, do.wait),
        EventCase.GHOST: Transition(Phase.CONFIRMING, do.adopt),
        EventCase.LATER: Transition(Phase.LOOKING, do.look),
    },
    Phase.WAITING: {  # no request is in flight
        EventCase.LATER: Transition(Phase.LOOKING, do.look_if_changed),
        EventCase.LATER_FREE: Transition(Phase.CLAIMING, do.claim),
    },
    Phase.CLAIMING: _AMBIGUOUS | {
        EventCase.APPLIED: Transition(Phase.HELD, do.hold),
        EventCase.APPLIED_LATE: Transition(Phase.CONFIRMING, do.make_good),
        EventCase.THROTTLED: Transition(Phase.WAITING, do.give_way),
    },
    Phase.CONFIRMING: _AMBIGUOUS | {
        EventCase.APPLIED: Transition(Phase.HELD, do.hold),
        EventCase.APPLIED_LATE: Transition(Phase.CONFIRMING, do.make_good),
        EventCase.APPLIED_ENDED: Transition(Phase.LOST, do.keep_for_release),
        EventCase.THROTTLED: Transition(Phase.CONFIRMING, do.pause),
        EventCase.THROTTLED_ENDED: Transition(Phase.LOST, do.give_way),
        EventCase.OUT_CONFIRM: Transition(Phase.CONFIRMING, do.resend),
    },
    Phase.HELD: {
        EventCase.BEAT: Transition(Phase.RENEWING, do.renew),
        EventCase.ENDED: Transition(Phase.LOST, do.run_out),
    },
    Phase.RENEWING: _AMBIGUOUS | {
        EventCase.APPLIED: Transition(Phase.HELD, do.hold),
        EventCase.APPLIED_ENDED: Transition(Phase.LOST, do.keep_for_release),
        EventCase.THROTTLED: Transition(Phase.HELD, do.give_way),
        EventCase.THROTTLED_ENDED: Transition(Phase.LOST, do.give_way),
    },
    Phase.SETTLING: {  # a read shows what became of the pending write
        EventCase.OURS: Transition(Phase.CONFIRMING, do.confirm),
        EventCase.OURS_ENDED: Transition(Phase.LOST, do.stay_lost),
        EventCase.OUT_CLAIM: Transition(Phase.CLAIMING, do.resend),
        EventCase.OUT_CONFIRM: Transition(Phase.CONFIRMING, do.resend),
        EventCase.OUT_RENEW: Transition(Phase.RENEWING, do.resend),
        EventCase.OUT_RELEASE: Transition(Phase.RELEASING, do.resend),
        EventCase.OUT_ENDED: Transition(Phase.LOST, do.stay_lost),
        EventCase.BEATEN_FREE: Transition(Phase.CLAIMING, do.claim_again),
        EventCase.BEATEN_TAKEN: Transition(Phase.WAITING, do.wait_again),
        # The claim is too old to be worth winning. "held": a wall clock was set back meanwhile.
        EventCase.FREE: Transition(Phase.CLAIMING, do.claim),
        EventCase.TAKEN: Transition(Phase.WAITING, do.wait),
        EventCase.GHOST: Transition(Phase.CONFIRMING, do.adopt),
        EventCase.RENEWED_BEFORE: Transition(Phase.CONFIRMING, do.confirm),
        EventCase.USURPED: Transition(Phase.LOST, do.lose),
        EventCase.STILL_OURS: Transition(Phase.RELEASING, do.leave_tombstone_over_ours),
        EventCase.RELEASED: Transition(Phase.IDLE, do.released),
        EventCase.LATER: Transition(Phase.SETTLING, do.look),
    },
    Phase.LOST: {},  # only a release leaves this phase
    Phase.RELEASING: _AMBIGUOUS | {
        EventCase.APPLIED: Transition(Phase.IDLE, do.released),
        EventCase.THROTTLED: Transition(Phase.RELEASING, do.pause),
        EventCase.OUT_RELEASE: Transition(Phase.RELEASING, do.resend),
        EventCase.LATER: Transition(Phase.RELEASING, do.look),
        EventCase.STILL_OURS: Transition(Phase.RELEASING, do.leave_tombstone_over_ours),
        EventCase.NOT_OURS: Transition(Phase.IDLE, do.released),
    },
}  # fmt: skip
"""Besides `ANYWHERE`. An event that is not a case of the client's phase changes nothing."""

ANYWHERE: Mapping[EventCase, Transition] = {
    EventCase.QUIT: Transition(Phase.RELEASING, do.leave_tombstone),
    EventCase.QUIT_UNSETTLED: Transition(Phase.RELEASING, do.look_for_ours),
    EventCase.QUIT_TAKEN_OVER: Transition(Phase.IDLE, do.released),
    EventCase.GIVE_UP: Transition(Phase.IDLE, do.give_up),
    EventCase.NO_READ: Transition(None, do.pause),
}
"""In every phase."""

PHASE_OF = {
    WritePurpose.CLAIM: Phase.CLAIMING,
    WritePurpose.CONFIRM: Phase.CONFIRMING,
    WritePurpose.RENEW: Phase.RENEWING,
    WritePurpose.RELEASE: Phase.RELEASING,
}
"""The phase of a client while a write with this purpose is pending."""


def transition(phase: Phase, case: EventCase) -> Transition:
    """The row of the table. Raises `KeyError` if there is none."""
    return ANYWHERE.get(case) or TRANSITIONS[phase][case]


# --- the protocol --------------------------------------------------------------------------------


def step(identity: Identity, state: State, event: Event, policy: Policy) -> Step:
    """Classify `event` and apply that row of the table."""
    state, ended = notice_end(state, event.now)
    turn = StepContext(identity, state, event.now, policy)
    phase = state.phase
    match event:
        case ReadAnswered(_, observation, date_ms):
            case = _read_case(turn, observation, date_ms)
        case WriteAnswered(_, answer):
            assert state.out is not None, "an answer needs a pending write"
            phase = PHASE_OF[state.out.purpose]
            case = _answered(turn, state.out, answer)
        case Tick():
            case = _later(turn)
        case AcquireRequested(_, floor):
            case = _wanted(turn, floor)
        case RenewDue(_, floor):
            case = _due(turn, floor)
        case ReleaseRequested():
            case = _quit(turn)
        case ReadFailed():
            case = EventCase.NO_READ
        case GiveUp():
            case = EventCase.GIVE_UP
        case _:
            assert_never(event)
    if case is None:
        return turn.state, ended
    to, action = transition(phase, case)
    state, actions = action(turn, phase if to is None else to)
    return state, ended + actions if ended else actions


def notice_end(state: State, now: Now) -> Step:
    """The grant ends by the clock, even during a request; a late answer does not revive it."""
    if state.until_ms is None or now.boot_ms < state.until_ms:
        return state, ()
    ended = transition(Phase.HELD, EventCase.ENDED).to
    assert ended is not None
    return do.end_belief(state, ended if state.phase is Phase.HELD else state.phase)


# --- the classification of an event --------------------------------------------------------------


def _wanted(turn: StepContext, floor: int) -> EventCase:
    state = turn.state = replace(turn.state, floor=max(turn.state.floor, floor))
    assert state.grant is None, "wanted while held: the runner refuses a double acquire"
    if state.observed is None or state.unsettled:
        return EventCase.WANT
    return EventCase.WANT_FREE if _is_free(turn) else EventCase.WANT_TAKEN


def _read_case(turn: StepContext, new: Observation | None, date_ms: int | None) -> EventCase | None:
    """What a read found, for each reason to read."""
    state = turn.state = do.remember(turn.state, new, date_ms, turn.now)
    assert state.observed is not None
    observation = state.observed.observation
    match state.phase:
        case Phase.LOOKING:
            turn.state, turn.write = settle_ghosts(state, observation)
            if turn.write is None or turn.write.record.expired:  # including our own old tombstone
                return EventCase.FREE if _is_free(turn) else EventCase.TAKEN
            return EventCase.GHOST
        case Phase.SETTLING:
            return _settled(turn, observation)
        case Phase.RELEASING:
            mine = {write.record.attempt for write in state.unsettled}
            if state.grant is not None:
                mine.add(state.grant.attempt)
            if isinstance(observation.record, Record) and observation.record.attempt in mine:
                return EventCase.STILL_OURS
            turn.state = replace(state, unsettled=())
            return EventCase.NOT_OURS
        case _:
            return None  # the answer to a read that is no longer awaited


def _is_free(turn: StepContext) -> bool:
    assert turn.state.observed is not None
    return free(turn.state.observed, turn.now, turn.policy)


def _settled(turn: StepContext, observation: Observation) -> EventCase:
    """The pending write got a 412 or no answer: what became of it?"""
    state = turn.state
    write = turn.write = state.out
    assert write is not None
    match fate(write, observation):
        case Ours():
            if write.purpose is WritePurpose.RELEASE:
                return EventCase.RELEASED
            version = observation.version if state.grant else None
            turn.state = replace(to_ghost(state), version=version)
            return EventCase.OURS_ENDED if _too_late(state, write) else EventCase.OURS
        case StillOut():
            if write.purpose is WritePurpose.CLAIM and _is_past(turn, write):
                turn.state = to_ghost(state)
                return EventCase.FREE if _is_free(turn) else EventCase.TAKEN
            return EventCase.OUT_ENDED if _too_late(state, write) else _still_out(write)
        case NotOurs():
            turn.state = replace(state, out=None)
            return _superseded(turn, write, observation)
        case other:
            assert_never(other)


def _superseded(turn: StepContext, write: PendingWrite, observation: Observation) -> EventCase:
    """Another write is in the place of ours: a claim lost the race, or a holder lost the lock."""
    turn.state, ghost = settle_ghosts(turn.state, observation)
    if write.purpose is WritePurpose.RELEASE:  # an abandoned renewal may have landed first
        return EventCase.RELEASED if ghost is None else EventCase.STILL_OURS
    if turn.state.grant is not None:
        if ghost is None:
            return EventCase.USURPED
        turn.state, turn.write = replace(turn.state, version=observation.version), ghost
        return EventCase.OURS_ENDED if _too_late(turn.state, ghost) else EventCase.RENEWED_BEFORE
    if ghost is None:
        return EventCase.BEATEN_FREE if _is_free(turn) else EventCase.BEATEN_TAKEN
    turn.write = ghost
    return EventCase.FREE if ghost.record.expired else EventCase.GHOST


def _too_late(state: State, write: PendingWrite) -> bool:
    """A renewal whose grant has ended: nothing may revive it."""
    releases = write.purpose is WritePurpose.RELEASE
    return bool(state.grant) and state.until_ms is None and not releases


def _still_out(write: PendingWrite) -> EventCase:
    return EventCase[f"OUT_{write.purpose.name}"]


def _is_past(turn: StepContext, write: PendingWrite) -> bool:
    """Whether the lease that this write takes would already be over."""
    return turn.now.boot_ms >= belief_ends_ms(turn.identity, write, turn.now, turn.policy)


def _answered(turn: StepContext, write: PendingWrite, answer: WriteAnswer) -> EventCase:
    turn.write = write
    match answer:
        case Applied(version):
            state = turn.state = do.applied(turn.state, write, version, turn.now)
            if write.purpose is WritePurpose.RELEASE:
                return EventCase.APPLIED
            if state.grant is None:
                return EventCase.APPLIED_LATE if _is_past(turn, write) else EventCase.APPLIED
            return EventCase.APPLIED_ENDED if state.until_ms is None else EventCase.APPLIED
        case Throttled(after_s):
            turn.after_s = after_s
            ended = _too_late(turn.state, write)
            return EventCase.THROTTLED_ENDED if ended else EventCase.THROTTLED
        case PreconditionFailed():
            return EventCase.REFUSED
        case Unknown():
            return EventCase.UNANSWERED
        case _:
            assert_never(answer)


def _later(turn: StepContext) -> EventCase | None:
    state = turn.state
    match state.phase:
        case Phase.WAITING:
            # A ghost of ours over the same version is harmless: one of the two lands, and we look.
            ended = state.observed is not None and _is_free(turn)
            return EventCase.LATER_FREE if ended else EventCase.LATER
        case Phase.LOOKING | Phase.SETTLING:
            return EventCase.LATER
        case Phase.CONFIRMING | Phase.RELEASING:
            return EventCase.LATER if state.out is None else _still_out(state.out)
        case Phase.IDLE | Phase.CLAIMING | Phase.HELD | Phase.RENEWING | Phase.LOST:
            return None
        case _:
            assert_never(state.phase)


def _due(turn: StepContext, floor: int) -> EventCase | None:
    turn.state, turn.floor = replace(turn.state, floor=max(turn.state.floor, floor)), floor
    return {Phase.HELD: EventCase.BEAT, Phase.SETTLING: EventCase.LATER}.get(turn.state.phase)


def _quit(turn: StepContext) -> EventCase:
    """First the grant ends locally; only then is the object released."""
    state = turn.state = replace(turn.state, until_ms=None)
    if state.grant is None:
        return EventCase.GIVE_UP  # the acquire was abandoned
    if state.out is not None:
        return EventCase.QUIT_UNSETTLED
    return EventCase.QUIT if state.version is not None else EventCase.QUIT_TAKEN_OVER
