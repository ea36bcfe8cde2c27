"""Checks with two writes that a store does not create one object twice."""

from __future__ import annotations

import json

from lockkit.errors import UnsafeStore
from lockkit.protocol.outcome import Applied, Condition, IfAbsent, Throttled, WriteAnswer
from lockkit.runtime import Procedure, Sleep, Unique
from lockkit.runtime.proven import put_once

TABLE_KEY = ".hoodie/.locks/conditions.json"
"""The scratch object of a lock or a table. It is never deleted: a lock needs no right to delete."""
TRIES_MAX = 4
PAUSE_FIRST_S = 0.05
PAUSE_LONGEST_S = 2.0
"""A longer pause requested by a store is not waited for here; the caller may try again."""
ABOUT = "lockkit tests here whether this store enforces write conditions; you may delete this file"


def prove_creation(name: str) -> Procedure[None]:
    """Refuse a store that creates an object twice, before the first write that counts."""
    for _ in range(2):
        if not isinstance((yield from write_uniquely(TABLE_KEY, IfAbsent(), 0.0)), Applied):
            return
    raise ignores(name, "create this object only if it is absent")


def ignores(name: str, condition: str) -> UnsafeStore:
    """The error for a store that let a write pass whose condition was false."""
    return UnsafeStore(
        f"{name}: this store ignored a write condition ({condition}), so two writers would both "
        "win. Use a store with conditional writes; `lockkit probe` tests one"
    )


def write_uniquely(key: str, condition: Condition, interval_s: float) -> Procedure[WriteAnswer]:
    """One write of bytes that no other write has; sent again while the store throttles.

    Not `settle_write`: the test is about the raw answers.
    """
    unique = yield Unique()
    body = json.dumps({"about": ABOUT, "test": unique}).encode()
    answer: WriteAnswer = Throttled()
    for tries in range(TRIES_MAX):
        answer = yield from put_once(key, body, condition)
        if not isinstance(answer, Throttled):
            break
        pause_s = max(answer.retry_after_s or 0.0, 1.1 * interval_s, PAUSE_FIRST_S * 4**tries)
        if pause_s > max(PAUSE_LONGEST_S, PAUSE_FIRST_S * 4**tries):
            break
        yield Sleep(pause_s)
    return answer
