"""The conformance check: a store must enforce write conditions before a lock or table relies on it.

A store that ignores conditions (DigitalOcean Spaces documents this; s3rver and incus #3651 do it)
lets every client win every race. On a store that refuses true conditions (Ceph RGW 16.2 compares
the quoted ETag that it sent with an unquoted one) no client can renew or release a lock.
Documentation does not say which kind of store an endpoint is; three conditional writes do.
"""

from __future__ import annotations

import os
import threading
from urllib.parse import urlsplit

from lockkit.clock import Clock
from lockkit.errors import NoAnswer, UnsafeStore
from lockkit.lock.creation_check import PAUSE_FIRST_S, TRIES_MAX, ignores, write_uniquely
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    PreconditionFailed,
    Unknown,
    Version,
)
from lockkit.runtime import Get, Procedure, run
from lockkit.stores import Store, split_url
from lockkit.stores.within import left_s

KEY = ".lockkit/conditions.json"
"""The scratch object of all but locks and tables (`creation_check.TABLE_KEY`)."""
MISMATCHES_MAX = 2
"""Refused writes over the current version that prove a mismatch; one might be a stale read."""

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
    """Write a scratch object three times: create it again, overwrite it, overwrite the old version.

    The store must refuse the first and the third write, and accept the second. Returns None if it
    did, otherwise why that is still open. Several processes may do this at once: a write that was
    refused because another process changed the object proves as much as one that succeeded.
    """
    current = yield from _current(key, interval_s)
    if not isinstance(current, str):
        return _said(current)
    again = yield from write_uniquely(key, IfAbsent(), interval_s)
    if isinstance(again, Applied):
        raise ignores(name, "create this object only if it is absent")
    if not isinstance(again, PreconditionFailed):
        return _said(again)
    for _ in range(MISMATCHES_MAX):
        swapped = yield from write_uniquely(key, IfVersion(current), interval_s)
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
    stale = yield from write_uniquely(key, IfVersion(current), interval_s)
    if isinstance(stale, Applied):
        raise ignores(name, "overwrite this object only if it still has the version that was read")
    return None if isinstance(stale, PreconditionFailed) else _said(stale)


def never_matches(name: str, version: Version) -> UnsafeStore:
    """The error for a store that refused a write whose condition was true."""
    return UnsafeStore(
        f"{name}: this store refused a write over the version that it had just returned "
        f"({version[:60]}), so no client could renew or release a lock there. Old releases of Ceph "
        "RGW do this: they compare the quoted ETag of If-Match with an unquoted one. Upgrade the "
        "server, or use another store; `lockkit probe` tests one"
    )


def _current(key: str, interval_s: float) -> Procedure[Version | object]:
    """The scratch object's version, created if it is missing; or the answer that prevented it."""
    answer: object = yield Get(key)
    if isinstance(answer, Missing):
        answer = yield from write_uniquely(key, IfAbsent(), interval_s)
        if isinstance(answer, PreconditionFailed):
            answer = yield Get(key)  # another process was faster
    return answer.version if isinstance(answer, Found | Applied) else answer


def _said(answer: object) -> str:
    """What an answer that proves nothing was."""
    return answer.why if isinstance(answer, Unknown) else type(answer).__name__
