"""What the workbench launches, and which settings are the default on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockkit.lab.widgets.ui import FAST

PROVIDERS = {"s3": "Amazon S3", "gcs": "Google Cloud Storage", "azure": "Azure Blob"}
FAST_LEASE_S = 2.0
SPARK_BYTES_MIN = 4_000_000_000
"""A shared Spark with three clients needs 1.4 GB; on less than this machine, plain writers."""
MEMORY_LIMITS = (
    "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)  # fmt: skip
"""Where a container's limit is, in the two versions of control groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """What Launch launches."""

    provider: str = "s3"
    kind: str = "plain"
    writers: int = 3
    overlap: float = 0.5
    lease_s: float = 4.0
    fence: bool = True
    rounds: int | None = None
    latency_ms: float = 0


def default_settings(**settings: Any) -> LaunchSettings:
    """PySpark if the machine has enough memory, else plain writers; `settings` replace defaults."""
    if os.environ.get(FAST):
        settings = {"kind": "plain", "lease_s": FAST_LEASE_S, **settings}
    if "kind" not in settings:
        settings["kind"] = "connect" if memory_bytes() >= SPARK_BYTES_MIN else "plain"
    return LaunchSettings(**settings)


def has_room() -> bool:
    """Whether a second set of plain writers (240 MB) may wait beside those that run."""
    return memory_bytes() >= SPARK_BYTES_MIN


def memory_bytes() -> int:
    """The memory that this machine or container allows."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        total = 0
    limits = (os.environ.get("MEM_LIMIT", ""), *map(_first_line, MEMORY_LIMITS))
    for limit in limits:
        if limit.isdigit():
            total = min(total, int(limit))
    return total


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
