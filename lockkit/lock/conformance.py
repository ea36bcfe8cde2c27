"""The conformance check: a store must enforce write conditions before a lock or table relies on it.

A store that ignores conditions (DigitalOcean Spaces documents this; s3rver and incus #3651 do it)
lets every client win every race. On a store that refuses true conditions (Ceph RGW 16.2 compares
the quoted ETag that it sent with an unquoted one) nobody can renew or release a lock. Documentation
does not say which kind of store an endpoint is; three conditional writes do.
"""

from __future__ import annotations

import json
import os
import threading
from urllib.parse import urlsplit

from lockkit.clock import Clock
from lockkit.errors import NoAnswer, UnsafeStore
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    PreconditionFailed,
    Throttled,
    Unknown,
    Version,
    WriteAnswer,
)
from lockkit.runtime import Get, Procedure, Put, Sleep, Unique, run
from lockkit.stores import Store, split_url
from lockkit.stores.within import left_s

TABLE_KEY = ".hoodie/.locks/conditions.json"
"""The scratch object of a lock or a table. It is never deleted: a lock needs no right to delete."""
KEY = ".lockkit/conditions.json"
"""The scratch object for everything else."""
TRIES_MAX = 4
PAUSE_FIRST_S = 0.05
PAUSE_LONGEST_S = 2.0
"""A longer pause requested by a store is not waited for here; the caller may try again."""
MISMATCHES_MAX = 2
"""Refused writes over the current version that prove a mismatch; one might be a stale read."""
ABOUT = "lockkit tests here whether this store enforces write conditions; you may delete this file"

ProofScope = tuple[str, str, str]

proven: set[ProofScope] = set()
"""Places where this process has seen conditions enforced."""
_locks: dict[ProofScope, threading.Lock] = {}
"""Threads that need the same check wait while one of them makes it."""
os.register_at_fork(after_in_child=_locks.clear)


def prove_conditions(
    store: Store, clock: Clock, *, key: str = KEY, tries_max: int = TRIES_MAX
) -> None:
    """Check once per process, server and bucket that the store enforces write conditions.

    Two paths of one host count as two servers. A provider's own servers are not tested. Raises
    `UnsafeStore` if a false condition passes or a true one is refused. Raises `NoAnswer` if the
    store did not answer within `tries_max` tries and the time of `within`, or if another thread's
    test takes longer than that.
    """
    place = place_of(store)
    if place is None or place in proven:
        return
    turn, left = _locks.setdefault(place, threading.Lock()), left_s()
    if not turn.acquire(timeout=-1 if left is None else left):
        raise NoAnswer(
            f"{store.url} at {store.server}: another thread still tests whether this store "
            "enforces write conditions; check that the store answers, then try again"
        )
    try:
        if place not in proven:
            _prove(store, clock, key, tries_max)
            proven.add(place)
    finally:
        turn.release()


def _prove(store: Store, clock: Clock, key: str, tries_max: int) -> None:
    name = f"{store.url} at {store.server}"
    interval_s = store.capabilities.write_interval_min_s
    why: str | None = ""
    for tries in range(tries_max):
        if tries:
            left = left_s()
            if left == 0:
                break
            pause = PAUSE_FIRST_S * 4**tries
            clock.sleep(pause if left is None else min(pause, left))
        why = run(prove(name, key, interval_s), store, clock)
        if why is None:
            return
    raise NoAnswer(
        f"{name}: it could not be tested whether this store enforces write conditions ({why}); "
        "check that the store answers, then try again"
    )


def place_of(store: Store) -> ProofScope | None:
    """The scope of the check; None if no check is needed."""
    if not store.server:
        return None
    from lockkit.stores.endpoint import is_providers_own  # not needed for files

    if is_providers_own(store.url, store.server):
        return None
    return urlsplit(store.url).scheme, store.server, split_url(store.url)[0]


def prove(name: str, key: str, interval_s: float = 0.0) -> Procedure[str | None]:
    """Three conditional writes to a scratch object: two that must fail, one that must succeed.

    Returns why the result is open; None if it is not. Several processes may do this at once: a
    write that failed because another process changed the object proves as much as one that
    succeeded.
    """
    current = yield from _current(key, interval_s)
    if not isinstance(current, str):
        return _said(current)
    again = yield from _write(key, IfAbsent(), interval_s)
    if isinstance(again, Applied):
        raise ignores(name, "create this object only if it is absent")
    if not isinstance(again, PreconditionFailed):
        return _said(again)
    for _ in range(MISMATCHES_MAX):
        swapped = yield from _write(key, IfVersion(current), interval_s)
        if not isinstance(swapped, PreconditionFailed):
            break
        match (yield Get(key)):
            case Found(_, version) if version != current:
                return None  # another process's true condition passed, and our false one did not
            case Found():
                pass
            case answer:
                return _said(answer)
    else:
        raise never_matches(name, current)
    if not isinstance(swapped, Applied):
        return _said(swapped)
    stale = yield from _write(key, IfVersion(current), interval_s)
    if isinstance(stale, Applied):
        raise ignores(name, "overwrite this object only if it still has the version that was read")
    return None if isinstance(stale, PreconditionFailed) else _said(stale)


def prove_creation(name: str, key: str = TABLE_KEY) -> Procedure[None]:
    """Refuse a store that creates an object twice, before the first write that counts."""
    for _ in range(2):
        if not isinstance((yield from _write(key, IfAbsent(), 0.0)), Applied):
            return
    raise ignores(name, "create this object only if it is absent")


def ignores(name: str, condition: str) -> UnsafeStore:
    """The error for a store that let a write pass whose condition was false."""
    return UnsafeStore(
        f"{name}: this store ignored a write condition ({condition}), so two writers would both "
        "win. Use a store with conditional writes; `lockkit probe` tests one"
    )


def never_matches(name: str, version: Version) -> UnsafeStore:
    """The error for a store that refused a write whose condition was true."""
    return UnsafeStore(
        f"{name}: this store refused a write over the version that it had just returned "
        f"({version[:60]}), so nobody could renew or release a lock there. Old releases of Ceph "
        "RGW do this: they compare the quoted ETag of If-Match with an unquoted one. Upgrade the "
        "server, or use another store; `lockkit probe` tests one"
    )


def _current(key: str, interval_s: float) -> Procedure[Version | object]:
    """The scratch object's version, after creating it if need be; any other answer as it came."""
    answer: object = yield Get(key)
    if isinstance(answer, Missing):
        answer = yield from _write(key, IfAbsent(), interval_s)
        if isinstance(answer, PreconditionFailed):
            answer = yield Get(key)  # another process was faster
    return answer.version if isinstance(answer, Found | Applied) else answer


def _write(key: str, condition: Condition, interval_s: float) -> Procedure[WriteAnswer]:
    """One write of bytes that no other write has; sent again while the store throttles.

    Not `settle_write`: the test is about the raw answers.
    """
    unique = yield Unique()
    body = json.dumps({"about": ABOUT, "test": unique}).encode()
    answer: WriteAnswer = Throttled()
    for tries in range(TRIES_MAX):
        answer = yield Put(key, body, condition)
        if not isinstance(answer, Throttled):
            break
        pause_s = max(answer.retry_after_s or 0.0, 1.1 * interval_s, PAUSE_FIRST_S * 4**tries)
        if pause_s > max(PAUSE_LONGEST_S, PAUSE_FIRST_S * 4**tries):
            break
        yield Sleep(pause_s)
    return answer


def _said(answer: object) -> str:
    return answer.why if isinstance(answer, Unknown) else type(answer).__name__
