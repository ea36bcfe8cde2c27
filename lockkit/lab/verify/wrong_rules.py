"""Wrong rules of the lease that real implementations have had, and which function each replaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from lockkit.errors import LossReason
from lockkit.lab.verify.planting import Plants
from lockkit.protocol import actions as do
from lockkit.protocol.actions import StepContext, applied
from lockkit.protocol.ghosts import attempt_in
from lockkit.protocol.lease import EventCase, Transition, transition
from lockkit.protocol.outcome import Version
from lockkit.protocol.record import Record
from lockkit.protocol.state import (
    ClaimLost,
    DeleteRecord,
    LastObservation,
    LeaseLost,
    Now,
    Observation,
    PendingWrite,
    Phase,
    ReadRecord,
    State,
    Step,
    WritePurpose,
)


class Ambiguous(Enum):
    """How to read a 412, or a missing answer, to an own write."""

    READ_BACK = "read back"
    OURS = "assume it is ours"
    LOST = "assume it is lost"


class Recognise(Enum):
    """By which field a read-back recognises an own write."""

    ATTEMPT = "attempt"
    OWNER = "owner"


class Release(Enum):
    """What release leaves behind."""

    TOMBSTONE = "tombstone"
    DELETE_IF_MATCH = "conditional delete"
    DELETE = "read, then delete"


class CommitGuard(Enum):
    """How a commit is guarded. The lease hands out the epoch; the commit enforces it."""

    CAS = "compare-and-set"
    """Publishing fails if anything was published since the check began (docs/protocol.md)."""
    TOKEN = "token"
    """Only the epoch is compared, and only at commit: loses updates (Kleppmann's tokens)."""
    OFF = "off"


RIGHT: Mapping[str, Any] = {
    "drift_for_holder": False,
    "count_from_send": True,
    "recognise": Recognise.ATTEMPT,
    "confirm": True,
    "claim_412": Ambiguous.READ_BACK,
    "claim_unknown": Ambiguous.READ_BACK,
    "renew_412": Ambiguous.READ_BACK,
    "renew_unknown": Ambiguous.READ_BACK,
    "release": Release.TOMBSTONE,
    "fence": CommitGuard.CAS,
}
"""Each rule of the lease that a mistake can switch off, besides the fields of `Policy`.

`fence` is the rule of who commits under the lease: the explorer's and the simulator's own."""

# --- other rows in the table ----------------------------------------------------------------------

Wrong = Mapping[tuple[str, Any], Plants]
"""What replaces which function, by rule and its wrong value."""
Rows = Mapping[tuple[Phase, EventCase], Transition]


def rows(wrong: Rows) -> Callable[[Phase, EventCase], Transition]:
    return lambda phase, case: wrong.get((phase, case)) or transition(phase, case)


def assume_ours(turn: StepContext, to: Phase) -> Step:
    """Count the write as done without a read. Its version is unknown; its attempt stands for it."""
    state, write = turn.state, turn.write
    assert write is not None
    turn.state = replace(
        state, observed=LastObservation(Observation(write.record.attempt, write.record), 0, 0)
    )
    after, reported = do.hold(turn, to)
    return replace(after, observed=state.observed), reported


def assume_beaten(turn: StepContext, to: Phase) -> Step:
    """Count the claim as lost without a read."""
    assert turn.write is not None
    after = replace(turn.state, phase=to, out=None, observed=None)
    return after, (ClaimLost(turn.write.record.attempt), ReadRecord())


def assume_lost(turn: StepContext, to: Phase) -> Step:
    """Count the renewal as refused, and the lock as lost, without a read."""
    state = turn.state
    assert state.grant is not None
    reported = (LeaseLost(state.grant.epoch, "a renewal was refused", LossReason.TAKEN),)
    after = replace(state, phase=to, out=None, version=None, until_ms=None)
    return after, reported if state.until_ms is not None else ()


def believe_ghost(turn: StepContext, to: Phase) -> Step:
    """Take a ghost that was found for a grant, without a further write."""
    assert turn.write is not None
    record = replace(turn.write.record, epoch=do.next_epoch(turn.state))
    turn.write = replace(turn.write, record=record)
    return do.hold(turn, to)


def remove(turn: StepContext, to: Phase) -> Step:
    """Delete the version of the own grant."""
    grant = turn.state.grant
    assert grant is not None
    return _remove(turn, to, grant, turn.state.version)


def remove_whatever(turn: StepContext, to: Phase) -> Step:
    """After a read found the own record, delete whatever is there by then."""
    observed = turn.state.observed
    assert observed is not None and isinstance(observed.observation.record, Record)
    return _remove(turn, to, observed.observation.record, None)


def _remove(turn: StepContext, to: Phase, record: Record, over: Version | None) -> Step:
    write = PendingWrite(WritePurpose.RELEASE, record, over, turn.now)
    return replace(turn.state, phase=to, out=write), (DeleteRecord(over),)


# --- other functions ------------------------------------------------------------------------------


def attempt_by_owner(observation: Observation, write: PendingWrite) -> str | None:
    record = observation.record if isinstance(observation.record, Record) else None
    if record is not None and record.owner == write.record.owner:
        return write.record.attempt
    return attempt_in(observation, write)


def epoch_that_it_shows(state: State) -> int:
    """The next epoch as far as a lock that deletes its object can know it."""
    record = state.observed.observation.record if state.observed else None
    return (record.epoch if isinstance(record, Record) else 0) + 1


def nothing_stays(state: State, write: PendingWrite, version: Version, now: Now) -> State:
    """After a release there is no object: ghosts may be applied, and nothing was observed."""
    if write.purpose is not WritePurpose.RELEASE:
        return applied(state, write, version, now)
    floor = max(state.floor, write.record.epoch)
    return replace(state, out=None, observed=None, floor=floor)


def _ambiguous(phase: Phase, case: EventCase) -> Wrong:
    """The two wrong readings of this answer."""
    rule = f"{'claim' if phase is Phase.CLAIMING else 'renew'}_"
    rule += "412" if case is EventCase.REFUSED else "unknown"
    beaten = Transition(Phase.LOOKING, assume_beaten)
    lost = beaten if phase is Phase.CLAIMING else Transition(Phase.LOST, assume_lost)
    return {
        (rule, Ambiguous.OURS): {TABLE: rows({(phase, case): Transition(Phase.HELD, assume_ours)})},
        (rule, Ambiguous.LOST): {TABLE: rows({(phase, case): lost})},
    }


def _deletes(quit: Transition, **other: Transition) -> Plants:
    """A release that leaves no object: `quit` for what is our grant's, and what a look found."""
    found = {(Phase.RELEASING, EventCase[name]): row for name, row in other.items()}
    return {
        TABLE: rows({(phase, EventCase.QUIT): quit for phase in Phase} | found),
        "lockkit.protocol.actions:applied": nothing_stays,
        "lockkit.protocol.actions:next_epoch": epoch_that_it_shows,
    }


TABLE = "lockkit.protocol.lease:transition"
_BELIEVE = Transition(Phase.HELD, believe_ghost)

LEASE: Wrong = {
    ("count_from_send", False): {
        "lockkit.protocol.expiry:counted_from": lambda _write, answered: answered,
    },
    ("drift_for_holder", True): {
        "lockkit.protocol.expiry:believed_ms": lambda own, policy: own.ttl_ms + policy.drift_ms,
    },
    ("recognise", Recognise.OWNER): {"lockkit.protocol.ghosts:attempt_in": attempt_by_owner},
    ("confirm", False): {
        TABLE: rows({
            (Phase.LOOKING, EventCase.GHOST): _BELIEVE,
            (Phase.WAITING, EventCase.GHOST): _BELIEVE,
            (Phase.SETTLING, EventCase.GHOST): _BELIEVE,
            (Phase.SETTLING, EventCase.OURS): Transition(Phase.HELD, do.hold),
            (Phase.SETTLING, EventCase.RENEWED_BEFORE): Transition(Phase.HELD, do.hold),
        }),
    },
    **_ambiguous(Phase.CLAIMING, EventCase.REFUSED),
    **_ambiguous(Phase.CLAIMING, EventCase.UNANSWERED),
    **_ambiguous(Phase.RENEWING, EventCase.REFUSED),
    **_ambiguous(Phase.RENEWING, EventCase.UNANSWERED),
    ("release", Release.DELETE): _deletes(
        Transition(Phase.RELEASING, do.look),
        STILL_OURS=Transition(Phase.RELEASING, remove_whatever),
    ),
    ("release", Release.DELETE_IF_MATCH): _deletes(Transition(Phase.RELEASING, remove)),
}  # fmt: skip


def plants(off: Mapping[str, Any]) -> Plants:
    """What replaces which function where these rules are otherwise."""
    found: dict[str, Callable[..., Any]] = {}
    for rule in off.items():
        found |= LEASE.get(rule, {})
    return found
