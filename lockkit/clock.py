"""The only place for time, sleep, randomness and ids."""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from zlib import crc32

from lockkit.errors import utc as utc
from lockkit.protocol.state import Now

# CLOCK_BOOTTIME counts suspend. time.monotonic() stops while a laptop sleeps: a lease measured by
# it would outlive its validity. Elsewhere CLOCK_MONOTONIC does (macOS: mach_continuous_time).
_BOOT_ID: int = getattr(time, "CLOCK_BOOTTIME" if sys.platform == "linux" else "CLOCK_MONOTONIC", 0)


@dataclass
class Clock:
    """Real time."""

    offset_ms: int = 0
    """Added to the wall clock, to show the effect of a wrong one."""
    _random: random.Random = field(default_factory=random.Random, repr=False)

    def now(self) -> Now:
        return Now(self.boot_ms(), self.wall_ms())

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(_BOOT_ID) // 1_000_000

    def wall_ms(self) -> int:
        return self.wall_ns() // 1_000_000

    def wall_ns(self) -> int:
        return time.time_ns() + self.offset_ms * 1_000_000

    def stamp_ms(self) -> float:
        """The wall clock to the microsecond, for events that happen within one millisecond."""
        return self.wall_ns() / 1e6

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    def wait(self, woken: threading.Event, seconds: float) -> bool:
        """Sleep until `woken` is set or the time is over; return whether it was set."""
        return woken.wait(max(0.0, seconds))

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def unique(self) -> str:
        """A UUIDv4, as Hudi's owner ids are."""
        return str(uuid.uuid4())


def process_name(client: str = "") -> str:
    """`host/pid@start~table.ticks/client`: this process, as a holder's record names it."""
    return f"{socket.gethostname()}/{(pid := os.getpid())}@{_started(pid)}/{client}".rstrip("/")


@cache
def _started(pid: int) -> str:
    clock, age_ms, mark = Clock(), 0.0, ""  # outside Linux: when it was first called
    with suppress(OSError, ValueError, IndexError, AttributeError), open("/proc/self/stat") as file:
        number, _, said = file.read().partition(" ")
        ticks = int(said.rpartition(")")[2].split()[19])  # proc(5): since boot
        age_ms = max(0.0, clock.boot_ms() - ticks * 1000 / os.sysconf("SC_CLK_TCK"))
        mark = f"~{_process_table()}.{ticks}" if number == str(pid) else ""
    return f"{utc(clock.wall_ms() - age_ms)[:19]}Z{mark}"


def _process_table() -> str:
    """Which processes /proc shows: those of this boot, and of this container's namespaces."""
    names = ["/proc/self/ns/pid", "/proc/self/ns/time"]  # Linux before 5.6 has no second one
    spaces = [os.readlink(each) for each in names if os.path.islink(each)]
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{crc32(f'{file.read()}{spaces}'.encode()):08x}"


def back_off_s(tries: int, clock: Clock, *, first_s: float, longest_s: float) -> float:
    """How long to wait after the n-th failure (0-based): exponential, full jitter above half."""
    limit = min(longest_s, first_s * 2.0 ** min(tries, 32))
    return clock.uniform(limit / 2, limit)
