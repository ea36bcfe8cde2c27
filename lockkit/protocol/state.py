"""What a lock client knows, hears and asks for: the values that the protocol is written in.

Frozen values only. `lease.step` takes a state and an event, and returns a state and actions.
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

    `boot_ms` never jumps and counts suspend: belief is measured on it. `wall_ms` is what others can
    read: it goes into `validUntil`, and only the `wall` expiry policy ever trusts it.
    """

    boot_ms: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Identity:
    """A handle's identity and wishes.

    Attempts are named by `handle`, which is unique; an owner may be given to several handles, and
    would recognise one's writes as the other's (mistake V10).
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
    """When I first knew of this version."""
    read_ms: int
    """When the answer came that `date_ms` stands in."""


class WritePurpose(Enum):
    CLAIM = "acquire"
    CONFIRM = "confirm"
    RENEW = "renew"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """A conditional write of ours that is out, or whose fate is not known."""

    purpose: WritePurpose
    record: Record
    over: Version | None
    sent: Now
    """The earliest send; sending the same bytes again does not move it."""


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
    """The write under way, or being settled."""
    unsettled: tuple[PendingWrite, ...] = ()
    """Ghosts: writes given up on, that may have landed or may yet land."""
    grant: Record | None = None
    version: Version | None = None
    """Of the object while the grant is ours."""
    until_ms: int | None = None
    """Belief ends then, on my boot clock. None: I do not believe that I hold the lock."""
    floor: int = 0
    """The highest epoch I ever heard of; the next grant is above it."""
    writes: int = 0


def believes(state: State, now: Now) -> bool:
    """Whether this client may act as the holder at this moment."""
    return state.until_ms is not None and now.boot_ms < state.until_ms


# --- events and actions --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AcquireRequested:
    """Somebody asks for the lock. The next grant exceeds the epoch `floor` (the fence's)."""

    now: Now
    floor: int = 0


@dataclass(frozen=True, slots=True)
class ReadAnswered:
    """The answer to `ReadRecord`. `sight is None`: nothing changed since the version we named
    (304).
    """

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
    """Time has passed: look again, send again, or notice that belief has ended."""

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
    """Stop trying to settle or release: whatever is out becomes a ghost, which only expires."""

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
    """Delete the object (only a switched-off rule does); None: whatever is there."""

    over: Version | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing to send now: a `Tick` after this long (None: when the runner sees fit)."""

    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    epoch: int


@dataclass(frozen=True, slots=True)
class Renewed:
    epoch: int


@dataclass(frozen=True, slots=True)
class HeldByOther:
    """Somebody else's lease; it runs out at `frees_ms` by the policy in force, on my boot clock."""

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
