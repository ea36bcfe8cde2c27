"""The conformance check of a state lock, made on its own lock file; and a count of its creates."""

from __future__ import annotations

from typing import Any

from lockkit.lock.conformance import MISMATCHES_MAX, never_matches
from lockkit.lock.creation_check import ignores
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    PreconditionFailed,
    Throttled,
    WriteAnswer,
)
from lockkit.recipes.terraform.lockinfo import BODY_BYTES_MAX
from lockkit.runtime import Procedure, Put, Request, Sleep
from lockkit.runtime.proven import TRIES_MAX, pause_s, put_once, read
from lockkit.stores import Store
from lockkit.stores.deadline import sends


def prove_by_lock(key: str, body: bytes, name: str, *, swaps: bool) -> Procedure[bool]:
    """Test the store's conditions on our lock file: a second create must fail, an overwrite of the
    current version must succeed, and an overwrite of the previous version must fail.

    False if the store did not answer every request. `swaps`: the unlock will rely on If-Match, so
    test overwrites too. The overwrite adds white space, which changes the version; Terraform reads
    the same lock. If-Match on DELETE is not tested. A store that ignores it only there (Ceph RGW
    16.2) still excludes other holders, but a slow unlock may delete a later lock, as Terraform's
    may.
    """
    found = yield from read(key, limit=BODY_BYTES_MAX)
    if not isinstance(found, Found) or found.body.rstrip() != body.rstrip():
        return False
    again = yield from _answered(key, body, IfAbsent())
    if isinstance(again, Applied):
        raise ignores(name, "create this object only if it is absent")
    if not isinstance(again, PreconditionFailed) or not swaps:
        return isinstance(again, PreconditionFailed)
    for _ in range(MISMATCHES_MAX):
        swapped = yield from _answered(key, found.body + b"\n", IfVersion(found.version))
        if not isinstance(swapped, PreconditionFailed):
            break
        now = yield from read(key, limit=BODY_BYTES_MAX)
        if not isinstance(now, Found) or now.version != found.version:
            return False
    else:
        raise never_matches(name, found.version)
    if not isinstance(swapped, Applied):
        return False
    stale = yield from _answered(key, body, IfVersion(found.version))
    if isinstance(stale, Applied):
        raise ignores(name, "overwrite this object only if it still has the version that was read")
    return isinstance(stale, PreconditionFailed)


def _answered(key: str, body: bytes, condition: Condition) -> Procedure[WriteAnswer]:
    """The raw answer (not `settle_write`): it is what a test is about. Waits out a throttle."""
    answer: WriteAnswer = Throttled()
    for tries in range(TRIES_MAX):
        answer = yield from put_once(key, body, condition)
        if not isinstance(answer, Throttled):
            break
        yield Sleep(pause_s(tries, answer.retry_after_s))
    return answer


class Creates:
    """The creates of one `lock`: whether one was sent, and whether one has no answer."""

    def __init__(self, store: Store) -> None:
        self._counted = bool(store.server) and store.options.faults is None
        self._first, self._unanswered = sends(), list[int]()

    @property
    def sent(self) -> bool:
        """Whether one was sent, or may have been: not every store counts."""
        return self._since(self._first)

    @property
    def out(self) -> bool:
        """Whether one has no answer, and may still be applied."""
        return any(map(self._since, self._unanswered))

    def _since(self, before: int) -> bool:
        return not self._counted or sends() > before

    def counted(self, request: Request) -> Procedure[Any]:
        """Send a request of `lock`, and note a create."""
        if not isinstance(request, Put):
            return (yield request)
        self._unanswered.append(sends())
        answer = yield request
        if isinstance(answer, PreconditionFailed | Throttled):
            self._unanswered.pop()
        return answer
