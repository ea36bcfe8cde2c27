"""A lease's settings: which lengths are sound, and what Hudi's own configuration keys say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

RENEWALS_PER_LEASE = 10
"""Hudi's rule: the validity is at least ten renew intervals."""
TTL_S_MAX = 86_400.0
HUDI = "hoodie.write.lock.storage."
RENEW_KEYS = frozenset({HUDI + "renew.interval.secs", HUDI + "heartbeat.poll.secs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSettings:
    """Where a lock is, how long its lease is, how often it is renewed, how long to wait for it."""

    url: str
    ttl_s: float
    renew_interval_s: float
    timeout_s: float


def from_hudi(config: Mapping[str, str]) -> LockSettings:
    """Hudi's keys, defaults and rules. Raises `ValueError` naming the key that cannot be."""
    base = config.get("hoodie.base.path")
    if not base:
        raise ValueError("hoodie.base.path is missing: a storage lock lives in its table")
    older = number(config, HUDI + "heartbeat.poll.secs", 30)
    ttl_s = number(config, HUDI + "validity.timeout.secs", 300)
    renew_s = number(config, HUDI + "renew.interval.secs", older)
    wait_ms = number(config, "hoodie.write.lock.wait_time_ms", 60_000)
    if ttl_s < 10 or renew_s < 1:
        raise ValueError(
            f"{HUDI}validity.timeout.secs must be at least 10, renew.interval.secs at least 1"
        )
    return LockSettings(url=base, ttl_s=ttl_s, renew_interval_s=renew_s, timeout_s=wait_ms / 1000)


def renew_interval_s(ttl_s: float, asked_s: float | None) -> float:
    """How often to renew a lease of this length; `ValueError` where either cannot be."""
    if not 0 < ttl_s <= TTL_S_MAX:
        raise ValueError(f"ttl_s is the lease's length in seconds, up to a day; not {ttl_s!r}")
    renew_s = ttl_s / RENEWALS_PER_LEASE if asked_s is None else asked_s
    # Not quite ten, so that 0.1 s of 1 s is ten in floating point too.
    if not 0 < renew_s * RENEWALS_PER_LEASE * (1 - 1e-9) <= ttl_s:
        raise ValueError(
            f"a lease of {ttl_s} s cannot be renewed every {renew_s} s: "
            f"ttl_s must be at least {RENEWALS_PER_LEASE} renew intervals (Hudi's rule)"
        )
    return renew_s


def request_timeout_s(ttl_s: float, asked_s: float | None = None) -> float:
    """The longest that one request about a lease may take: several must fit into it."""
    longest_s = min(10.0, max(0.2, ttl_s / 5))
    return longest_s if asked_s is None else min(asked_s, longest_s)


def limit_s(blocking: bool, timeout: float | None) -> float | None:
    """How long `acquire(blocking, timeout)` may wait; None: for ever."""
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout is in seconds, None waits for ever; not {timeout!r}")
    if not blocking and timeout:
        raise ValueError("blocking=False does not wait: it takes no timeout")
    return timeout if blocking else 0.0


def number(
    config: Mapping[str, str], key: str, default: float, *,
    least: float = -math.inf, most: float = math.inf,
) -> float:  # fmt: skip
    """Values are strings in Java's configuration, and often numbers in Python's."""
    said = config.get(key, default)
    try:
        value = float(said)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{key} is a number, not {said!r}")
    if not least <= value <= most:
        raise ValueError(f"{key} is from {least:g} to {most:g}, not {said!r}")
    return value
