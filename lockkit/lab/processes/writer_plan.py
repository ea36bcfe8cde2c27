"""What one writer of a fleet is to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterPlan:
    """The settings that a supervisor sends to a writer."""

    url: str
    dataset: str
    """The folder with the orders."""
    name: str = "W1"
    """Its lane in the history, and its client's name in the store's record."""
    endpoint: str | None = None
    kind: str = "plain"
    """plain, connect or jvm."""
    remote: str | None = None
    """For connect: sc://host:port."""
    slice: tuple[int, int] = (1, 1)
    """Which part of the orders is its own: the second of three is (2, 3)."""
    rounds: int | None = None
    """Commits to publish; None = until it is stopped."""
    overlap: float = 0.5
    """The chance that a round rewrites the file group that all writers share."""
    groups: int | None = None
    """File groups of its own that a round rewrites; None = the kind's usual number."""
    ttl_s: float = 4.0
    renew_interval_s: float = 0.4
    pause_s: float = 0.6
    """Between rounds, on average."""
    fence: bool = True
    """False: commit as Hudi does, by the lock alone."""
    heartbeat_ms: int | None = None
    """Between two heartbeats of an instant; None = no heartbeats."""
    heartbeat_misses: int = 3
    commit: str | None = None
    """How the table commits: serial, or group. None = as the table does; a new one commits in
    serial."""
    clock_offset_ms: int = 0
    """How far its clock is ahead."""
