"""What a lock client knows, receives and requests: the values of the protocol.

All are frozen. `lease.step` takes a state and an event, and returns a state and actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from lockkit.errors import LossReason
from lockkit.protocol.outcome import Version, WriteAnswer
from lockkit.protocol.record import Garbled, Record

# --- what a client knows -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Now:
    """One moment on two clocks of one client, in ms.

    `boot_ms` never jumps and counts suspend; a grant's length is measured on it. `wall_ms` is what
    others can read: it goes into `validUntil`, on which only `wall` and Hudi's records rely.
    """

    boot_ms: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Identity:
    """A handle's identity and settings.

    Attempts are named by `handle`, which is unique. Several handles may have the same owner; by the
    owner, one handle would take another's writes for its own.
    """

    owner: str
    ttl_ms: int
    holder: str = ""
    handle: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """The object as a read found it, with the two times of the store's clock from that answer."""

    version: Version | None
    record: Record | Garbled | None
    modified_ms: int | None = None
    date_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LastObservation:
    """The object as last known. `since_ms` and `read_ms` are on my boot clock."""

    observation: Observation
    since_ms: int
    """When I first saw this version."""
    read_ms: int
    """When the answer arrived that contained `date_ms`."""


class WritePurpose(Enum):
    CLAIM = "acquire"
    CONFIRM = "confirm"
    RENEW = "renew"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """A conditional write of ours that is in flight, or whose outcome is unknown."""

    purpose: WritePurpose
    record: Record
    over: Version | None
    sent: Now
    """The earliest send; sending the same bytes again does not change it."""


class Phase(StrEnum):
    IDLE = "idle"
    LOOKING = "looking"
    WAITING = "waiting"
    CLAIMING = "claiming"
    SETTLING = "settling"
    CONFIRMING = "confirming"
    HELD = "held"
    RENEWING = "renewing"
    LOST = "lost"
    RELEASING = "releasing"


@dataclass(frozen=True, slots=True)
class State:
    phase: Phase = Phase.IDLE
    observed: LastObservation | None = None
    out: PendingWrite | None = None
    """The write in flight, or being settled."""
    unsettled: tuple[PendingWrite, ...] = ()
    """Ghosts: abandoned writes that may have landed or may still land."""
    grant: Record | None = None
    version: Version | None = None
    """The object's version while the grant is ours."""
    until_ms: int | None = None
    """When my grant ends, on my boot clock. None: I do not hold the lock."""
    floor: int = 0
    """The highest epoch seen so far; the next grant is above it."""
    writes: int = 0


def believes(state: State, now: Now) -> bool:
    """Whether this client may act as the holder now."""
    return state.until_ms is not None and now.boot_ms < state.until_ms


# --- events and actions --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AcquireRequested:
    """The user requests the lock. The next grant exceeds the epoch `floor` (the fence's)."""

    now: Now
    floor: int = 0


@dataclass(frozen=True, slots=True)
class ReadAnswered:
    """The answer to `ReadRecord`; no observation: the named version is still current (304)."""

    now: Now
    observation: Observation | None
    date_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """`ReadRecord` got no answer."""

    now: Now
    why: str


@dataclass(frozen=True, slots=True)
class WriteAnswered:
    """The answer to `WriteRecord` or `DeleteRecord`."""

    now: Now
    answer: WriteAnswer


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: look again, send again, or notice that the grant has ended."""

    now: Now


@dataclass(frozen=True, slots=True)
class RenewDue:
    """A renewal is due. After it the grant's epoch exceeds `floor` (the fence's)."""

    now: Now
    floor: int = 0


@dataclass(frozen=True, slots=True)
class ReleaseRequested:
    """Release the lock, or stop wanting it."""

    now: Now


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop settling or releasing: a pending write becomes a ghost, which only expires."""

    now: Now


Event = (
    AcquireRequested
    | ReadAnswered
    | ReadFailed
    | WriteAnswered
    | Tick
    | RenewDue
    | ReleaseRequested
    | GiveUp
)


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read the object; `unless` makes it a conditional read."""

    unless: Version | None = None


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Write this record over exactly this version (None: over nothing)."""

    record: Record
    over: Version | None


@dataclass(frozen=True, slots=True)
class DeleteRecord:
    """Delete the object (only a switched-off rule does so); None: whatever is there."""

    over: Version | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing to send now: a `Tick` after this long (None: when the runner decides)."""

    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    epoch: int


@dataclass(frozen=True, slots=True)
class Renewed:
    epoch: int


@dataclass(frozen=True, slots=True)
class HeldByOther:
    """Another owner's lease; it ends at `frees_ms` by the policy in force, on my boot clock."""

    record: Record | Garbled
    frees_ms: int | None


@dataclass(frozen=True, slots=True)
class LeaseLost:
    epoch: int
    why: str
    reason: LossReason


@dataclass(frozen=True, slots=True)
class ClaimLost:
    """A claim is settled: it did not win."""

    attempt: str


@dataclass(frozen=True, slots=True)
class Released:
    epoch: int
    proven: bool


Action = (
    ReadRecord
    | WriteRecord
    | DeleteRecord
    | Pause
    | Granted
    | Renewed
    | HeldByOther
    | LeaseLost
    | ClaimLost
    | Released
)
Step = tuple[State, tuple[Action, ...]]
