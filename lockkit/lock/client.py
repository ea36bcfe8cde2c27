"""What acquiring, renewing and releasing need of a client, whatever grants the lock.

`StorageClient` speaks the lease protocol to an object store, `ServiceClient` asks another lock
service. `grant`, `renewal`, `Lock` and `AsyncLock` know only this class, so that a lease has one
life, whoever grants it.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from lockkit.clock import Clock
from lockkit.errors import TIME_MS_MAX, LockBusy, LossReason
from lockkit.protocol.state import Action, Event, LeaseLost, Pause, RenewDue, Renewed
from lockkit.runtime import Exclusive, Procedure, Request, carry_out
from lockkit.sinks import Emit

T = TypeVar("T")

BACK_OUT_S = 5.0
"""How long an acquire that was interrupted tries to give back what it had won."""


class HeldGrant(Protocol):
    """What is held."""

    @property
    def epoch(self) -> int: ...


class Wakeup(threading.Event):
    """An event that can also be waited for in an event loop, which sets `then`."""

    then: Callable[[], object] | None = None

    def set(self) -> None:
        super().set()
        then = self.then
        if then is not None:
            then()


@dataclass(slots=True, kw_only=True)
class LeaseClient(ABC):
    """The state of one handle, and the only way to change it. Feed it only while you have `turn`.

    `steps` takes an event of the lease protocol and returns what came of it.
    """

    where: str
    """The lock's URL, for messages."""
    clock: Clock
    sink: Emit
    turn: threading.RLock = field(default_factory=threading.RLock)
    ends_ms: float = math.inf
    """No request is under way after this moment of the boot clock; an acquire or release sets it.
    """
    late_ms: float = math.inf
    """How long a look or claim may take at least, also one that begins at the end of a wait."""
    undo_ms: float = BACK_OUT_S * 1000
    """How long requests may go on that settle what a failed acquire may have won."""
    loss: LeaseLost | None = None
    last_failure: str = ""
    """Why the last request had no useful answer; "" after one that had."""
    closed: bool = False
    """The connection is closed: nothing can be asked any more."""
    renewal: Any = None
    """What renews the grant; None while nothing does."""
    proven_ms: float = 0
    """When the request that our belief rests on was about to be sent, on the boot clock."""
    lease_ends_ms: float = 0
    """When belief in the latest proven request ends, kept after belief has ended."""
    shaken: bool = False
    """The connection was lost: a renewal that fails now is a danger at once."""
    _state_lock: threading.RLock = field(default_factory=threading.RLock)
    """Held for one step, never while a request is out: the end of belief needs no turn."""

    @property
    @abstractmethod
    def grant(self) -> HeldGrant | None:
        """What is held, or was held and is not yet released."""

    @property
    @abstractmethod
    def until_ms(self) -> float | None:
        """When belief ends, on the boot clock. None: this client does not believe it holds."""

    @property
    @abstractmethod
    def renew_ms(self) -> float | None:
        """From one renewal to the next; None: the grant needs none."""

    @property
    @abstractmethod
    def release_ms(self) -> float:
        """How long a release is tried, from now on."""

    @property
    @abstractmethod
    def back_out_ms(self) -> float:
        """How long an interrupted acquire tries to release; `BACK_OUT_S` at most."""

    @abstractmethod
    def begin(self) -> None:
        """Before the lock is wanted anew: what was met the last time says nothing now."""

    @abstractmethod
    def steps(self, event: Event, *, patient: bool = False) -> Procedure[list[Action]]:
        """Carry out what follows from this event, until nothing more is to be sent.

        An error of a request is raised, unless `patient`: then it counts as no answer.
        """

    @abstractmethod
    def notice_end(self) -> None:
        """End belief if its time is over. Waits for no request and needs no turn."""

    @abstractmethod
    def lose(self, why: str, reason: LossReason = LossReason.STOPPED) -> None:
        """Stop believing, for a reason that the protocol does not know."""

    @abstractmethod
    def look_s(self) -> float:
        """Until it is worth asking for the lock again."""

    @abstractmethod
    def busy_error(self) -> LockBusy:
        """Who has it, until when, and what to do next."""

    # --- what only some clients have an answer to -------------------------------------------------

    @property
    def freed(self) -> threading.Event | None:
        """The lock service sets it when it is worth asking sooner; None: it never does."""
        return None

    def stand_back_s(self, began_ms: float, deadline_ms: float) -> float:
        """How long to leave the lock to others before the first claim."""
        return 0.0

    def due(self, floor: int) -> Event:
        """The event of a renewal that is due; its epoch is then above `floor`."""
        return RenewDue(self.clock.now(), floor)

    def granted(self, epoch: int) -> None:  # noqa: B027
        """A claim was granted just now."""

    def released(self) -> None:  # noqa: B027
        """The lock was released just now."""

    def doubt_what_is_out(self) -> None:  # noqa: B027
        """An interrupt met a request: it may have been carried out, and nobody read the answer."""

    def in_doubt(self) -> bool:
        """Whether a claim is out that nobody answered, and that only another look can settle."""
        return False

    def taken_away(self, epoch: int) -> LeaseLost | None:
        """After a release of `epoch`: whether it shows that another had taken the lock before."""
        return None

    # --- renewal ----------------------------------------------------------------------------------

    def renewed(self) -> Procedure[tuple[bool, float | None]]:
        """One renewal, or one step to settle the renewal before it, for the `Renewer`."""
        reported = yield from self.steps(self.due(0), patient=True)
        pause = next((each.seconds for each in reported if isinstance(each, Pause)), None)
        return any(isinstance(each, Renewed) for each in reported), pause

    def note(self, text: str) -> None:
        self.emit("note", text=text)

    def note_danger(self) -> None:
        held, until_ms = self.grant, self.until_ms
        if held is not None and until_ms is not None:
            self.emit("danger", epoch=held.epoch, until_ms=self.on_wall(until_ms))

    # --- carrying out -----------------------------------------------------------------------------

    def believes(self) -> bool:
        """Whether this client may act as the holder at this moment."""
        return self.until_ms is not None and self.clock.boot_ms() < self.until_ms

    def carry_out(self, procedure: Procedure[T]) -> T:
        """For real, one request at a time."""
        return carry_out(procedure, self.perform)

    def perform(self, request: Request) -> Any:
        """One request, for real. What is to go `Exclusive` has this client's turn."""
        if isinstance(request, Exclusive):
            with self.turn:
                return carry_out(request.procedure, self.perform)
        return self.perform_one(request)

    @abstractmethod
    def perform_one(self, request: Request) -> Any:
        """One request that may go beside others."""

    def emit(self, kind: str, **fields: Any) -> None:
        """One event for the history; an observer's error does not reach the lease."""
        self.sink(kind, **fields)

    def on_wall(self, boot_ms: float) -> float:
        """A moment of the boot clock, on the clock that histories are written in."""
        return min(self.clock.wall_ms() + (boot_ms - self.clock.boot_ms()), TIME_MS_MAX)
