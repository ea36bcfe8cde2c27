"""Which arguments of a lock can be used: its lease's settings, names and callbacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from lockkit.clock import Clock
from lockkit.protocol.policy import Policy
from lockkit.stores import refusals

RENEWALS_PER_LEASE = 10
"""Hudi's rule: the validity is at least ten renew intervals."""
SECONDS_MIN, TTL_S_MAX, NAME_CHARS_MAX = 0.001, 86_400.0, 1_000
KINDS: dict[str, Any] = {
    "url": str, "owner": str | None, "client": str, "policy": Policy, "emit": Callable,
    "on_danger": Callable | None, "on_lost": Callable | None, "clock": Clock | None,
    "store": object, "epoch": Integral,
}  # fmt: skip


def check(**given: Any) -> None:
    """`RefusedArgument` for an argument of the wrong kind, and for a name that is not UTF-8.

    A longer name would make a lock record that no reader accepts, and block the lock for everybody.
    """
    for name, value in given.items():
        fine = isinstance(value, KINDS[name]) and not isinstance(value, bool)
        if isinstance(value, str):
            fine = fine and value.encode(errors="ignore").decode() == value
            fine = fine and (name == "url" or len(value) <= NAME_CHARS_MAX)
            fine = fine and (name != "owner" or value != "")
        fine = fine and (name != "store" or value is None or hasattr(value, "put"))
        if not fine or (name == "epoch" and value < 0):
            raise refusals().wrong_kind(name, value)


def seconds(name: str, value: Any, most: float = math.inf, least: float = SECONDS_MIN) -> float:
    """`value`, which may be NumPy's; `RefusedArgument` if it is not a number from least to most."""
    is_bool: bool = isinstance(value, bool)  # mypy takes a bool for no Real
    real: Any = value if isinstance(value, Real | int) and not is_bool else math.nan
    if least <= real <= most:
        try:
            return float(real)
        except OverflowError:  # of an int or a fraction beyond every float
            return math.inf
    raise refusals().wrong_number(name, value, least, most)


def lease_s(ttl_s: float, renew_interval_s: float | None) -> tuple[float, float]:
    """A lease's length, and how often to renew it."""
    ttl_s = seconds("ttl_s", ttl_s, TTL_S_MAX)
    longest_s = ttl_s / RENEWALS_PER_LEASE
    if renew_interval_s is None:
        return ttl_s, longest_s
    # Not quite ten, so that 0.1 s of 1 s is ten in floating point too.
    return ttl_s, seconds("renew_interval_s", renew_interval_s, longest_s * (1 + 1e-9))


def request_timeout_s(ttl_s: float, requested_s: float | None = None) -> float:
    """The longest that one request about a lease may take: several must fit into it."""
    longest_s = min(10.0, max(0.2, ttl_s / 5))
    return longest_s if requested_s is None else min(seconds("timeout_s", requested_s), longest_s)


def limit_s(blocking: Any, timeout: float | None, name: str = "timeout") -> float | None:
    """How long `acquire(blocking, timeout)` may wait; None: for ever."""
    if not isinstance(blocking, bool):  # `acquire(5)` would wait for ever, `acquire(1)` too
        raise refusals().wrong_kind("blocking", blocking)
    if timeout is not None:
        timeout = seconds(name, timeout, least=0.0)
    if not blocking and timeout:
        raise ValueError("blocking=False does not wait: it takes no timeout")
    return timeout if blocking else 0.0
