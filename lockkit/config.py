"""A lease's settings: which lengths are valid, and how long to wait."""

from __future__ import annotations

RENEWALS_PER_LEASE = 10
"""Hudi's rule: the validity is at least ten renew intervals."""
TTL_S_MAX = 86_400.0


def renew_interval_s(ttl_s: float, requested_s: float | None) -> float:
    """How often to renew a lease of this length; `ValueError` for an invalid length or interval."""
    if not 0 < ttl_s <= TTL_S_MAX:
        raise ValueError(f"ttl_s is the lease's length in seconds, up to a day; not {ttl_s!r}")
    renew_s = ttl_s / RENEWALS_PER_LEASE if requested_s is None else requested_s
    # Not quite ten, so that 0.1 s of 1 s is ten in floating point too.
    if not 0 < renew_s * RENEWALS_PER_LEASE * (1 - 1e-9) <= ttl_s:
        raise ValueError(
            f"a lease of {ttl_s} s cannot be renewed every {renew_s} s: "
            f"ttl_s must be at least {RENEWALS_PER_LEASE} renew intervals (Hudi's rule)"
        )
    return renew_s


def request_timeout_s(ttl_s: float, requested_s: float | None = None) -> float:
    """The longest that one request about a lease may take: several must fit into it."""
    longest_s = min(10.0, max(0.2, ttl_s / 5))
    return longest_s if requested_s is None else min(requested_s, longest_s)


def limit_s(blocking: bool, timeout: float | None) -> float | None:
    """How long `acquire(blocking, timeout)` may wait; None: for ever."""
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout is in seconds, None waits for ever; not {timeout!r}")
    if not blocking and timeout:
        raise ValueError("blocking=False does not wait: it takes no timeout")
    return timeout if blocking else 0.0
