"""The holder of a service's lock, as the service reports it: for `lock show`, `watch`, `break`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from lockkit.clock import process_name
from lockkit.errors import BreakRefused, masked
from lockkit.providers.process_state import NO_RENEWALS, ProcessState, process_state


@dataclass(frozen=True, slots=True)
class ServiceHolder:
    """The holder of a service's lock now. Times are epoch ms by the service's clock."""

    owner: str
    version: str
    """What a break must find unchanged: another grant has another one."""
    ends: str
    """When the grant ends if its holder has died."""
    since_ms: float | None = None
    """When it was granted; None: the service does not report it."""
    renewed_ms: float | None = None
    waiting: tuple[str, ...] = ()
    """Who waits, the next holder first, where the service has a queue."""
    certain: bool = True
    """False: `version` may stay the same from one grant to the next."""
    process: str = ""
    """`host/pid@start~table.ticks`, where the holder's record has it."""
    lease_s: float | None = None
    """How long the grant lasts after its holder's last sign of life; None: for ever."""
    overdue_s: float | None = None
    """A living holder renews it within this time; None: the service does not show renewals."""
    kept_alive: str = ""
    """The service's sign that the holder lived within its last `lease_s`; "" if it gives none."""
    no_holder: str = ""
    """What shows that nobody keeps it, so that it never ends by itself; "" if nothing does."""
    by_hand: str = ""
    """Why only a person can end it, without lockkit; "" if lockkit can."""
    clock: str = "the service's clock"
    """By which clock the times are."""
    now_ms: float | None = None
    """The time by that clock; None: this machine's is compared."""

    def __repr__(self) -> str:
        """Masked value by value: a notebook shows the last expression of a cell."""
        said = (f"{each.name}={masked(repr(getattr(self, each.name)))}" for each in fields(self))
        return f"{type(self).__name__}({', '.join(said)})"

    @property
    def process_state(self) -> ProcessState:
        """What this machine shows of its process."""
        return process_state(self.process)

    @property
    def breakable(self) -> tuple[bool | None, str]:
        """Whether a break is safe by what one look shows (None: it does not show that), and why."""
        if self.by_hand:
            return False, self.by_hand
        match self.process_state:
            case ProcessState.ENDED:
                why = "its process ran on this host and has ended"
                return True, f"{why}; a process that it started may still run"
            case ProcessState.RUNS:
                return False, "its process runs on this host: stop it first"
            case ProcessState.STOPPED:
                return False, "its process is stopped, and continues if it is resumed: end it first"
            case ProcessState.COMMAND_RUNS as state:
                return False, f"its process {state.value[3:]}: look again then, or end the command"
        if self.no_holder:
            return None, f"{self.no_holder}; break it, unless a person made it to hold the lock"
        if self.kept_alive:
            return False, f"{self.kept_alive}; if its holder has died, it ends by itself"
        if self.lease_s and self.now_ms is not None and self.silent_ms(0) > self.lease_s * 1000:
            return True, f"its lease is over by {self.clock}: any writer may take it"
        return None, "the service does not stop its holder: make sure first that it is dead"

    def silent_ms(self, wall_ms: float, watched_ms: float = 0.0) -> float:
        """How long it was not renewed: the time of the watch, or longer by a clock."""
        now_ms = wall_ms if self.now_ms is None else self.now_ms
        return max(watched_ms, now_ms - self.renewed_ms if self.renewed_ms is not None else 0.0)

    def missed(self, wall_ms: float) -> bool | None:
        """Whether one look shows that its holder no longer renews it; None: it does not show it."""
        state = self.process_state
        if state in (*NO_RENEWALS, ProcessState.ENDED) or self.no_holder or self.overdue(wall_ms):
            return True
        return False if state is ProcessState.RUNS else None

    def overdue(self, wall_ms: float) -> str:
        """That it was silent for longer than a living holder is; "" if that is not seen."""
        limit_s, silent_s = self.overdue_s or self.lease_s, self.silent_ms(wall_ms) / 1000
        if not limit_s or self.kept_alive or silent_s <= limit_s:
            return ""
        whose = self.clock if self.now_ms is not None else "this machine's clock, if that is right"
        return (
            f"not renewed for {silent_s:.0f} s by {whose}; a holder that lives renews within "
            f"{limit_s:g} s"
        )


def guard_break(found: ServiceHolder, version: str, *, force: bool) -> None:
    """Raise `BreakRefused` if this grant's holder lives by what the service shows, unless forced.

    Another grant than that of `version` is refused by the service itself.
    """
    breakable, why = found.breakable
    if breakable is False and found.version == version and (found.by_hand or not force):
        cure = "if you want to end its grant anyway, confirm it (--force, or the console)"
        raise BreakRefused("the lock", f"was not broken: {why}", "" if found.by_hand else cure)


def description(unique: str) -> str:
    """The default name of a holder: unique, with its host, process and start, for people."""
    return f"{unique[:12]} on {process_name()}"
