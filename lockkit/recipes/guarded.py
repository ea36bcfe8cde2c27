"""A guarded value: one JSON object that names its writer's epoch.

An object store compares versions, not tokens, so every writer reads first. It does not replace a
value of a later epoch, and its write fails if another one has written since the read. So a slow
leader never replaces what a later one wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockkit.errors import Unanswered
from lockkit.protocol.outcome import Found, Missing, NotModified, Version, over
from lockkit.protocol.record import EPOCH_MAX
from lockkit.recipes.errors import NotGuarded, NotLeader
from lockkit.runtime import Procedure, Unique
from lockkit.runtime.proven import TRIES_MAX, read, settle_write

VALUE_BYTES_MAX = 16_000_000


@dataclass(frozen=True, slots=True)
class GuardedValue:
    """A value as one read found it; epoch 0 and no version if it was never written."""

    value: Any = None
    epoch: int = 0
    attempt: str = ""
    version: Version | None = None


def read_guarded(key: str) -> Procedure[GuardedValue]:
    """Raises `NotGuarded` for a body that is not a guarded value, and `Unanswered`."""
    return guarded_of(key, (yield from read(key, limit=VALUE_BYTES_MAX)))


def guarded_of(key: str, found: Found | Missing | NotModified) -> GuardedValue:
    """What a read found, as a guarded value."""
    if not isinstance(found, Found):
        return GuardedValue()
    why = f"it is longer than {VALUE_BYTES_MAX} bytes"
    if len(found.body) <= VALUE_BYTES_MAX:
        why = "it has no epoch, attempt and value (truncated, or written by something else)"
        try:
            match json.loads(found.body):
                case {"epoch": int(epoch), "attempt": str(attempt), "value": value}:
                    if type(epoch) is int and 0 < epoch <= EPOCH_MAX:
                        return GuardedValue(value, epoch, attempt, found.version)
        except (ValueError, RecursionError):
            pass
    raise NotGuarded(key, f"is not a guarded value: {why}", "see who wrote it, or use another key")


def is_late(before: GuardedValue, epoch: int) -> bool:
    """Whether a later epoch has written: then an earlier one's write is refused."""
    return before.epoch > epoch


def write_guarded(key: str, change: Callable[[Any], Any], epoch: int) -> Procedure[Any]:
    """Replace the value by the result of `change`, and return it. One write at a time per epoch.

    Raises `NotLeader` once a later epoch has written, `Unanswered` (`doubt`) if the store does not
    answer, `NotGuarded`.
    """
    before = yield from read_guarded(key)
    for _ in range(TRIES_MAX):
        if is_late(before, epoch):
            raise NotLeader(
                key,
                f"was written in epoch {before.epoch}, and this is epoch {epoch}: another "
                "node leads now",
                "begin again from what is there",
            )
        value = change(before.value)
        body = json.dumps({"epoch": epoch, "attempt": (yield Unique()), "value": value}).encode()
        settled = yield from settle_write(key, body, over(before.version), limit=VALUE_BYTES_MAX)
        if isinstance(settled, Version):
            return value
        before = guarded_of(key, settled)
    raise Unanswered(
        key, f"was written by others in each of {TRIES_MAX} tries",
        "see who writes it, then try again", doubt=False,
    )  # fmt: skip
