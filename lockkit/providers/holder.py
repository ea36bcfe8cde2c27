"""The holder of a service's lock, as the service reports it: for `lock show`, `watch`, `break`."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass

from lockkit.clock import process_name
from lockkit.errors import BreakRefused

_PROCESS = re.compile(
    r"(?P<host>[^/\s]{1,255})/(?P<pid>\d{1,9})(@(?P<start>[0-9TZ:-]{1,30}))?", re.ASCII
)


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
    """`host/pid@start`, where the holder's record has it."""
    lease_s: float | None = None
    """How long the grant lasts after its holder's last sign of life; None: for ever."""
    overdue_s: float | None = None
    """A living holder renews it within this time; None: the service does not show renewals."""
    kept_alive: str = ""
    """The service's sign that the holder lived within its last `lease_s`; "" if it gives none."""
    clock: str = "the service's clock"
    """By which clock the times are."""

    @property
    def lives(self) -> bool | None:
        """Whether its process runs on this host; None: it is another host's, or not named."""
        return process_lives(self.process)

    @property
    def breakable(self) -> tuple[bool | None, str]:
        """Whether a break is safe by what one look shows (None: it does not show that), and why."""
        match self.lives:
            case False:
                return True, "its process ran on this host and has ended"
            case True:
                return False, "its process runs on this host: stop it first"
        if self.kept_alive:
            return False, f"{self.kept_alive}; if its holder has died, it ends by itself"
        return None, "the service does not stop its holder: make sure first that it is dead"


def guard_break(found: ServiceHolder, version: str, *, force: bool) -> None:
    """Raise `BreakRefused` if this grant's holder lives by what the service shows, unless forced.

    Another grant than that of `version` is refused by the service itself.
    """
    breakable, why = found.breakable
    if breakable is False and found.version == version and not force:
        raise BreakRefused(
            "the lock", f"was not broken: {why}",
            "if you want to end its grant anyway, confirm it (--force, or the console)",
        )  # fmt: skip


def description(unique: str) -> str:
    """The default name of a holder: unique, with its host, process and start, for people."""
    return f"{unique[:12]} on {process_name()}"


def process_in(said: str) -> str:
    """The `host/pid@start` within a text; "" if there is none."""
    found = _PROCESS.search(said)
    return found[0] if found is not None and found["start"] else ""


def process_lives(said: str) -> bool | None:
    """Whether the process that `said` names runs on this host; None: another host's, or unknown."""
    found = _PROCESS.search(said)
    if found is None or found["host"] != socket.gethostname() or int(found["pid"]) < 1:
        return None
    try:
        os.kill(int(found["pid"]), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return None
    ours = _PROCESS.search(process_name())
    if ours is not None and found["pid"] == ours["pid"] and found["start"]:
        return found["start"] == ours["start"]  # else the number was given again
    return True
