"""The parts of a state of the lease's world, and the bounds within which it is explored."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from lockkit.lab.verify.mutants import Invariant
from lockkit.protocol.outcome import Version, WriteAnswer
from lockkit.protocol.record import Record
from lockkit.protocol.state import Action, Event, Observation, State


class ExplorerFault(Enum):
    LOST = "the answer is lost"
    LATE = "no answer, and the request is still on its way"
    RETRY = "something on the way sends the request again"
    THROTTLE = "the store asks to slow down"
    BLIND = "a read gets no answer"
    CRASH = "its process dies, and starts again"


ON_THE_WAY = frozenset(ExplorerFault) - {ExplorerFault.CRASH}
"""What can happen to a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may happen. One tick is a second; a lease lasts two, so every margin rounds to 0."""

    acquires: tuple[int, ...] = (1, 1)
    """For each client; one that starts again after a crash has them anew, as all below."""
    tries: tuple[int, ...] = (2, 2)
    """Claims and confirmations that may be sent; a client that needs more stalls."""
    renewals: tuple[int, ...] = (1, 1)
    raises: bool = False
    """Whether a renewal may also find that the fence has the grant's epoch already."""
    commits: tuple[int, ...] = (0, 0)
    faults: int = 0
    kinds: frozenset[ExplorerFault] = ON_THE_WAY
    offsets: tuple[int, ...] = (0, 0)
    """What each client's wall clock is ahead, in ticks."""
    spread: int = 0
    """How far the store's own clocks (Last-Modified, Date) differ, flooring included, in ticks."""
    ttl: int = 2
    gives_up: bool = False
    watch: frozenset[Invariant] = frozenset(Invariant)


# --- the parts of a state -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PendingRead:
    """A read that was sent, with the result that it will return."""

    observation: Observation


@dataclass(frozen=True, slots=True)
class WriteInFlight:
    """A write that was sent: not yet decided, or decided and not yet answered."""

    record: Record
    over: Version | None
    remove: bool = False
    answer: WriteAnswer | None = None


@dataclass(frozen=True, slots=True)
class CommitDraft:
    """A commit in progress: what its conflict check covered, and its grant."""

    base: int
    epoch: int
    serial: int
    sent: bool = False


@dataclass(frozen=True, slots=True)
class ExplorerClient:
    """One client: its knowledge, its pending request, and its remaining moves."""

    index: int
    state: State
    out: PendingRead | WriteInFlight | None
    acquires: int
    tries: int
    renewals: int
    commits: int
    life: int = 0
    """How often its process has died: each life has an owner and attempts of its own."""
    draft: CommitDraft | None = None
    serial: int = 0
    """The place of its last applied grant in the store's order; kept where commits are explored."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """The lock object, and the resource that the lock protects."""

    record: Record | None = None
    version: Version | None = None
    modified: int = 0
    top: int = 0
    """The highest epoch that was ever applied."""
    serial: int = 0
    commits: int = 0
    token: int = 0
    last_serial: int = 0
    """Of the grant under which the last commit was accepted."""


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a story: the client, its action and the outcome."""

    who: int
    """The client's index; -1: time passes."""
    what: str
    event: Event | None = None
    actions: tuple[Action, ...] = ()
    write: WriteInFlight | None = None
    accepted: bool | None = None


TIME_PASSES = Move(-1, "time")


PackedState = tuple[Any, ...]
"""(client, client, ..., store, late writes, faults left, violation): the parts by their numbers."""


# --- numbers ----------------------------------------------------------------------------------

T = TypeVar("T", bound=Hashable)


class StateNumbering(Generic[T]):
    """Small numbers for parts of states, so that states compare and hash fast."""

    def __init__(self) -> None:
        self.parts: list[T] = []
        self._number: dict[T, int] = {}

    def of(self, part: T) -> int:
        number = self._number.get(part)
        if number is None:
            number = self._number[part] = len(self.parts)
            self.parts.append(part)
        return number


@dataclass(frozen=True, slots=True)
class MoveOutcome:
    """The client and the store after a move; `late` is a write that continues alone."""

    move: Move
    actor: int
    store: int
    late: WriteInFlight | None = None
    cost: int = 0
    violation: str = ""
