"""A lock for each of n stripes of keys on object storage: no single object is contended.

    striped = StripedLock("gs://lake/orders", stripes=64)
    with striped.keys("part=DE", "part=US", acquire_timeout=30) as held:
        ...
        held.assert_held()

GCS accepts one write per second to an object. A single lock object therefore allows one grant every
two seconds, even if the writers use different keys. A stripe is an ordinary `Lock` at
`<url>/stripes/<i>`. The number of stripes is recorded in `<url>/stripes.json`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from lockkit.clock import Clock
from lockkit.config import limit_s, request_timeout_s
from lockkit.errors import LockBusy, LockLost, LossReason, NoAnswer, Unanswered
from lockkit.lock.base import FencingToken, leave
from lockkit.lock.conformance import prove_conditions
from lockkit.lock.grant import LATE_S
from lockkit.lock.handle import Lock
from lockkit.recipes.stripes import (
    STORED_MAX,
    SubStore,
    agree,
    index_of,
    indexes,
    rounded,
    stripe_key,
)
from lockkit.recipes.taking import carry_out, confirmed, give_all, take_all
from lockkit.runtime import BlockingCall, Parallel, Procedure, run
from lockkit.sinks import Emit, silent
from lockkit.stores import open_store
from lockkit.stores.within import within

HANDLES_MAX = 1_024
"""How many stripes keep their handle while not held: their next claim needs no read."""
TIMEOUT_S = 60.0


class StripedLock:
    """A striped lock, as one client uses it. Raises `RuntimeError` for use by two threads at once.

    Two keys may share a stripe (`stripes.collision_chance`), which costs time but never safety.

    :param url: where the stripes are, as for `open_store`: one lock object each.
    :param stripes: how many there are, from 1 to 65,536, rounded up to a power of two. All clients
        must name the same number, which the first one records.
    :param lock: options of each stripe's `Lock` (`ttl_s`, 300 s by default, `on_lost`, ...).
    :param emit: called with every event; each names its `stripe`.
    :param clock: the source of time; tests replace it.
    :param client: the name of this client in events and in the store's log.
    :param store_options: those of `open_store`: endpoint, credentials, ...
    :raises ValueError: if `stripes` is outside of its range.
    :raises StoreError: if `url` names no store.
    """

    def __init__(
        self, url: str, *, stripes: int, lock: Mapping[str, Any] | None = None,
        emit: Emit = silent, clock: Clock | None = None,
        client: str = "", **store_options: Any,
    ) -> None:  # fmt: skip
        self.url = url.rstrip("/")
        self.stripes = rounded(stripes, STORED_MAX)
        self.clock = clock or Clock()
        self._emit, self._options = emit, {**(lock or {}), "clock": self.clock, "client": client}
        timeout_s = request_timeout_s(self._options.get("ttl_s", 300.0))
        self.store = open_store(self.url, client=client, timeout_s=timeout_s, **store_options)
        self._locks: dict[int, Lock] = {}
        self._agreed = False
        self._busy = threading.Lock()

    def keys(self, *keys: str, acquire_timeout: float | None = TIMEOUT_S) -> StripedKeys:
        """The locks of these keys, for a `with`: all within `acquire_timeout` seconds, or none."""
        if not keys or not all(isinstance(each, str) for each in keys):
            raise ValueError("name the keys to lock, each a string")
        return StripedKeys(self, keys, acquire_timeout)

    def stripe_of(self, key: str) -> int:
        """The stripe that locks a key: `<url>/stripes/<stripe>`."""
        return index_of(key, self.stripes)

    def close(self) -> None:
        """Close all clients. Does not release: locks that are still held expire."""
        for each in self._locks.values():
            each.close()
        self.store.close()

    # --- for Keys --------------------------------------------------------------------------------

    def begin(self, limit_s: float | None) -> None:
        """Begin a call. Only one at a time: a nested call could deadlock.

        The first call checks that the store enforces conditions, and the number of stripes. It
        raises `NoAnswer` if the store does not answer within `limit_s`, or `LATE_S` if that is
        longer.
        """
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(
                f"{self}: this handle holds keys or waits for some; take all keys in one call, and "
                "give each thread a StripedLock of its own"
            )
        try:
            if not self._agreed:
                with within(math.inf if limit_s is None else max(LATE_S, limit_s)):
                    prove_conditions(self.store, self.clock)
                    try:
                        run(agree(self.stripes, self.url), self.store, self.clock, self._emit)
                    except Unanswered as error:
                        raise NoAnswer(f"{self}: {error}") from error
                self._agreed = True
        except BaseException:
            self._busy.release()
            raise

    def end(self) -> None:
        while len(self._locks) > HANDLES_MAX:
            self._locks.pop(next(iter(self._locks))).close()  # least recently used
        self._busy.release()

    def lock_of(self, stripe: int) -> Lock:
        lock = self._locks.pop(stripe, None)
        if lock is None:
            store = SubStore(self.store, stripe_key(stripe).rstrip("/"))
            emit = partial(self._emit, stripe=stripe)
            lock = Lock(store.url, store=store, emit=emit, **self._options)
        self._locks[stripe] = lock  # the most recently used comes last
        return lock

    def __str__(self) -> str:
        return f"the striped lock of {self.url}"

    def __repr__(self) -> str:
        return f"<StripedLock {self.url}: {self.stripes} stripes>"


class StripedKeys:
    """Keys of a striped lock that are held together.

    :param striped: the lock that the keys are of.
    :param keys: the names to hold.
    :param acquire_timeout: the longest wait for all of them, in seconds; None: for ever.
    """

    def __init__(
        self, striped: StripedLock, keys: tuple[str, ...], acquire_timeout: float | None
    ) -> None:
        self.keys, self._limit_s = keys, limit_s(True, acquire_timeout)
        self.stripes = indexes(keys, striped.stripes)
        self.busy: LockBusy | None = None
        """After an `acquire` that timed out: who holds it, until when, and what to do next."""
        self._striped = striped
        self._locks: dict[int, Lock] = {}
        self._held = False

    def acquire(self) -> bool:
        """Take all their stripes, in ascending order; False if one was not free in time.

        After False or an exception, nothing is held. Raises `LockLost` if one was lost during the
        wait for another, `StripesDiffer` if another number of stripes is recorded, `StoreError` if
        the store cannot be used, `NoAnswer` if it does not answer in time, and `RuntimeError` for
        use by two threads or a nested call.
        """
        striped = self._striped
        began_ms = striped.clock.boot_ms()
        striped.begin(self._limit_s)
        try:
            self._locks = {each: striped.lock_of(each) for each in self.stripes}

            def take(stripe: int) -> bool:
                spent_s = (striped.clock.boot_ms() - began_ms) / 1000
                left_s = None if self._limit_s is None else max(0.0, self._limit_s - spent_s)
                return self._locks[stripe].acquire(timeout=left_s)

            missed = carry_out(take_all(self.stripes), take, self._give_unused)
            if missed is None:
                self._still_held()
        except BaseException:
            striped.end()
            raise
        self._held = missed is None
        if missed is not None:
            named = ", ".join(repr(k) for k in self.keys if striped.stripe_of(k) == missed)
            self.busy = self._locks[missed].busy_error().within(
                f"the lock of {named} (stripe {missed}) was not free within "
                f"{self._limit_s or 0:g} s, and none of the keys is held"
            )
            striped.end()
        return self._held

    def release(self) -> None:
        """Release all of them, even if one fails; then raise the first error of `Lock.release`."""
        striped = self._striped
        if not self._held:
            raise RuntimeError(f"{striped}: released, but these keys are not held")
        try:
            run(_release(list(self._locks.values())), striped.store, striped.clock)
        finally:
            self._held = False
            striped.end()

    def assert_held(self) -> None:
        """Raise `LockLost` unless all of them are held now. Sends no request."""
        if not self._held:
            raise LockLost(
                str(self._striped), "these keys are not held", "acquire them first",
                reason=LossReason.NEVER_ACQUIRED,
            )  # fmt: skip
        for each in self._locks.values():
            each.assert_held()

    def mark_committed(self) -> None:
        """Record that the work is published: a later loss is only a warning."""
        for each in self._locks.values():
            each.mark_committed()

    @property
    def fences(self) -> dict[str, FencingToken]:
        """The fencing token of each key's stripe. Its epoch rises with every grant of it."""
        stripe_of = self._striped.stripe_of
        return {key: self._locks[stripe_of(key)].fence for key in self.keys}

    def __repr__(self) -> str:
        held = "held" if self._held else "not held"
        return f"<Keys of {self._striped.url}: stripes {self.stripes}, {held}>"

    def __enter__(self) -> StripedKeys:
        if not self.acquire():
            assert self.busy is not None
            raise self.busy
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        leave(self.release, error)

    def _still_held(self) -> None:
        if confirmed(lambda: all(each.owned() for each in self._locks.values())):
            return
        try:
            for each in self._locks.values():
                each.assert_held()
        except LockLost:
            carry_out(give_all(self.stripes), lambda _: False, self._give_unused)
            raise

    def _give_unused(self, stripe: int) -> None:
        with suppress(LockLost):  # no work was done under it
            self._locks[stripe].release()


def _release(locks: Sequence[Lock]) -> Procedure[None]:
    """Releases run in parallel, so together they take one round trip."""

    def let_go(lock: Lock) -> Procedure[None]:
        yield BlockingCall(lock.release)

    yield Parallel(tuple(let_go(each) for each in locks))
