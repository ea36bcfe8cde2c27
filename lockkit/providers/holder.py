"""Who holds a service's lock, as the service tells it: for `lock show`, `watch` and `break`."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServiceHolder:
    """The holder of a service's lock now. Times are epoch ms by the service's clock."""

    owner: str
    version: str
    """What a break must find unchanged: another grant has another one."""
    ends: str
    """When the grant ends if its holder has died."""
    since_ms: float | None = None
    """When it was granted; None: the service does not tell."""
    renewed_ms: float | None = None
    waiting: tuple[str, ...] = ()
    """Who waits, the next holder first, where the service has a queue."""
    certain: bool = True
    """False: `version` may stay the same from one grant to the next."""


def description(unique: str) -> str:
    """The default name of a holder: unique, with its host and process, for people."""
    return f"{unique[:12]} on {socket.gethostname()[:60]}/{os.getpid()}"
