"""How long Hudi's LockManager waits for a lock, by its own keys."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from lockkit.lock.hudi_keys import PAUSE, PROVIDERS_OWN, RETRIES, WAIT, number

LONG_S = 600.0
"""From this wait on, a job looks stuck rather than waiting for its lock."""
WAIT_MS_MAX, RETRIES_MAX = 86_400_000, 1_000_000


class LongWait(UserWarning):
    """The configuration lets a writer wait much longer than its numbers suggest."""


@dataclass(frozen=True, slots=True)
class WaitSchedule:
    """One try waits `wait_s`. After a failed try comes a pause of `pause_s`, `retries` times.

    lockkit also polls during the pauses, because a waiter that leaves loses its place in the queue.
    The handle's `timeout` is the sum, `longest_s`.
    """

    wait_s: float = 60.0
    retries: int = 50
    pause_s: float = 5.0

    @property
    def longest_s(self) -> float:
        return (self.retries + 1) * self.wait_s + self.retries * self.pause_s


def patience_of(config: Mapping[str, str]) -> WaitSchedule:
    """Raises `ValueError` naming the key. Warns (`LongWait`) of an unexpectedly long wait."""
    wait_ms = number(config, WAIT, 60_000, least=0, most=WAIT_MS_MAX)
    retries = number(config, RETRIES, 50, least=0, most=RETRIES_MAX)
    if retries != int(retries):
        raise ValueError(f"{RETRIES} must be a whole number, not {retries:g}")
    pause_ms = number(config, PAUSE, 5_000, least=0, most=WAIT_MS_MAX)
    for key, default in PROVIDERS_OWN.items():
        number(config, key, default, least=0)
    found = WaitSchedule(wait_ms / 1000, int(retries), pause_ms / 1000)
    if found.longest_s > LONG_S:
        text = (
            f"a writer may wait {found.longest_s / 60:.0f} minutes for this lock: "
            f"{found.retries + 1} tries of {found.wait_s:g} s ({WAIT}) and {found.retries} pauses "
            f"of {found.pause_s:g} s ({RETRIES}, {PAUSE}); set {RETRIES}=0 to wait for {WAIT} only"
        )
        warnings.warn(LongWait(text), stacklevel=4)
    return found
