"""A guarded value: one JSON object that names the epoch of who wrote it.

An object store compares versions, not tokens, so whoever writes reads first: a value of a later
epoch is left alone, and a write over what was read fails once anybody else has written. However
slow a leader was, what a later one wrote is never replaced by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_never

from lockkit.errors import NotGuarded, NotLeader, Unanswered
from lockkit.protocol.outcome import (
    Applied,
    Found,
    NotOurs,
    Ours,
    PreconditionFailed,
    StillOut,
    Throttled,
    Unknown,
    Version,
    over,
    resolve,
)
from lockkit.protocol.record import EPOCH_MAX
from lockkit.runtime import TRIES_MAX, Procedure, Put, Sleep, Unique, pause_s, read

VALUE_BYTES_MAX = 16_000_000


@dataclass(frozen=True, slots=True)
class GuardedValue:
    """A value as one read found it; epoch 0 and no version where nobody ever wrote it."""

    value: Any = None
    epoch: int = 0
    attempt: str = ""
    version: Version | None = None


def read_guarded(key: str) -> Procedure[GuardedValue]:
    """Raises `NotGuarded` for a body that is none of ours, `Unanswered`."""
    found = yield from read(key, limit=VALUE_BYTES_MAX)
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
    raise NotGuarded(f"{key} is no guarded value: {why}; see who wrote it, or use another key")


def is_late(before: GuardedValue, epoch: int) -> bool:
    """A later epoch has written: what an earlier one writes is refused."""
    return before.epoch > epoch


def write_guarded(key: str, change: Callable[[Any], Any], epoch: int) -> Procedure[Any]:
    """Replace the value by what `change` makes of it; returns that. One write at a time per epoch.

    Raises `NotLeader` once a later epoch has written, `Unanswered` (`doubt`) where the store does
    not say, `NotGuarded`.
    """
    before = yield from read_guarded(key)
    body: dict[str, Any] | None = None
    doubt = False
    for tries in range(TRIES_MAX):
        if body is None:
            if is_late(before, epoch):
                raise NotLeader(
                    f"{key} was written in epoch {before.epoch}, and this is epoch {epoch}: "
                    "another leads by now; begin again from what is there"
                )
            body = {"epoch": epoch, "attempt": (yield Unique()), "value": change(before.value)}
        match (yield Put(key, json.dumps(body).encode(), over(before.version))):
            case Applied():
                return body["value"]
            case Throttled(after_s):
                yield Sleep(pause_s(tries, after_s))
                continue
            case PreconditionFailed():
                pass
            case Unknown():
                doubt = True
            case other:
                raise AssertionError(f"not an answer to a write: {other!r}")
        now = yield from read_guarded(key)
        match resolve(now.version, now.attempt, attempt=body["attempt"], wrote_over=before.version):
            case Ours():
                return body["value"]
            case StillOut():
                yield Sleep(pause_s(tries))  # the same write once more: at most one copy can land
            case NotOurs():
                before, body = now, None
            case never:
                assert_never(never)
    raise Unanswered(
        f"{key} could not be written in {TRIES_MAX} tries; read it again before anything else",
        doubt=doubt,
    )
