"""The client that acquiring, renewing and releasing need: the same for every lock service.

`StorageClient` runs the lease protocol against an object store, `ServiceClient` calls another lock
service. `grant`, `renewal`, `Lock` and `AsyncLock` use only this class, so every lease has the same
life cycle.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from lockkit.clock import Clock
from lockkit.errors import TIME_MS_MAX, LockBusy, LossReason
from lockkit.protocol.state import Action, Event, LeaseLost, Pause, RenewDue, Renewed
from lockkit.runtime import Exclusive, Procedure, Request, carry_out
from lockkit.sinks import Emit

if TYPE_CHECKING:
    from lockkit.lock.contract import HeldGrant

T = TypeVar("T")

BACK_OUT_S = 5.0
"""How long an interrupted acquire tries to release what it had won."""


class Wakeup(threading.Event):
    """An event that an event loop can also wait for; the loop sets `then`."""

    then: Callable[[], object] | None = None

    def set(self) -> None:
        super().set()
        then = self.then
        if then is not None:
            then()


@dataclass(slots=True, kw_only=True)
class LeaseClient(ABC):
    """The state of one handle, and the only way to change it. Call it only while holding `turn`.

    `steps` takes an event of the lease protocol and returns the resulting actions.
    """

    where: str
    """The lock's URL, for messages."""
    clock: Clock
    sink: Emit
    turn: threading.RLock = field(default_factory=threading.RLock)
    ends_ms: float = math.inf
    """No request continues after this moment of the boot clock. Set by acquire and release."""
    late_ms: float = math.inf
    """Minimum time for a look or a claim, even one that begins at the end of a wait."""
    undo_ms: float = BACK_OUT_S * 1000
    """Time for the requests that settle what a failed acquire may have won."""
    loss: LeaseLost | None = None
    last_failure: str = ""
    """Why the last request had no useful answer; "" after one that had."""
    closed: bool = False
    """The connection is closed: no request is possible any more."""
    renewal: Any = None
    """What renews the grant; None while nothing does."""
    proven_ms: float = 0
    """When the request that proves the grant was about to be sent, on the boot clock."""
    lease_ends_ms: float = 0
    """When the latest proven grant ends locally; kept after that moment."""
    shaken: bool = False
    """The connection was lost: a renewal that fails now is reported as danger at once."""
    _state_lock: threading.RLock = field(default_factory=threading.RLock)
    """Held for one step, never during a request: the local expiry does not need it."""

    @property
    @abstractmethod
    def grant(self) -> HeldGrant | None:
        """What is held, or was held and is not yet released."""

    @property
    @abstractmethod
    def until_ms(self) -> float | None:
        """When the grant ends locally, on the boot clock. None: this client does not hold it."""

    @property
    @abstractmethod
    def renew_ms(self) -> float | None:
        """Milliseconds from one renewal to the next; None: no renewal is needed."""

    @property
    @abstractmethod
    def release_ms(self) -> float:
        """How long a release is retried from now on, in ms."""

    @property
    @abstractmethod
    def back_out_ms(self) -> float:
        """How long an interrupted acquire tries to release; `BACK_OUT_S` at most."""

    @abstractmethod
    def begin(self) -> None:
        """Reset before the next acquire: observations of the last one do not apply."""

    @abstractmethod
    def steps(self, event: Event, *, patient: bool = False) -> Procedure[list[Action]]:
        """Carry out what follows from this event, until no request is left to send.

        A request's error is raised; with `patient` it counts as no answer instead.
        """

    @abstractmethod
    def notice_end(self) -> None:
        """End the grant if its time is over. Waits for no request and does not need `turn`."""

    @abstractmethod
    def lose(self, why: str, reason: LossReason = LossReason.STOPPED) -> None:
        """End the grant for a reason that the protocol does not know."""

    @abstractmethod
    def look_s(self) -> float:
        """Seconds until the next look is worthwhile."""

    @abstractmethod
    def busy_error(self) -> LockBusy:
        """The error with the owner, its end and the next step."""

    # --- what only some clients implement ---------------------------------------------------------

    @property
    def freed(self) -> threading.Event | None:
        """Set by the lock service if an earlier look is worthwhile; None: it never is."""
        return None

    def stand_back_s(self, began_ms: float, deadline_ms: float) -> float:
        """Seconds to leave the lock to others before the first claim."""
        return 0.0

    def due(self, floor: int) -> Event:
        """The event of a renewal that is due; its epoch is then above `floor`."""
        return RenewDue(self.clock.now(), floor)

    def granted(self, epoch: int) -> None:  # noqa: B027
        """A claim was granted just now."""

    def released(self) -> None:  # noqa: B027
        """The lock was released just now."""

    def doubt_what_is_out(self) -> None:  # noqa: B027
        """A request was interrupted: it may have been carried out, and nobody read the answer."""

    def in_doubt(self) -> bool:
        """Whether a claim has no answer, so that only another look can settle it."""
        return False

    def taken_away(self, epoch: int) -> LeaseLost | None:
        """After a release of `epoch`: whether it shows that another client had taken the lock."""
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
        """Run it for real, one request at a time."""
        return carry_out(procedure, self.perform)

    def perform(self, request: Request) -> Any:
        """One real request. An `Exclusive` one takes this client's turn."""
        if isinstance(request, Exclusive):
            with self.turn:
                return carry_out(request.procedure, self.perform)
        return self.perform_one(request)

    @abstractmethod
    def perform_one(self, request: Request) -> Any:
        """One request that may run in parallel with others."""

    def emit(self, kind: str, **fields: Any) -> None:
        """One event for the history; an observer's error does not reach the lease."""
        self.sink(kind, **fields)

    def on_wall(self, boot_ms: float) -> float:
        """A moment of the boot clock, on the clock used in histories."""
        return min(self.clock.wall_ms() + (boot_ms - self.clock.boot_ms()), TIME_MS_MAX)
