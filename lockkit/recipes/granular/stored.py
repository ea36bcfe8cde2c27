"""Ozone's granular locks on object storage: volume, bucket and key, shared and exclusive.

    locks = StoredGranularLocks("s3://lake/locks")
    with locks.hold(KEY_OPERATIONS["CommitKey"], "vol", "bucket", ["a"], acquire_timeout=5) as held:
        ...
        held.assert_held()

Each stripe of each level is one object with a queue (`queued`). Every holder, a reader too, writes
it: a shared lock costs as many writes as an exclusive one, and on a store that accepts one write a
second to an object (GCS) a busy bucket's stripe is slow.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from lockkit.clock import Clock
from lockkit.config import limit_s, request_timeout_s
from lockkit.errors import LockLost, NoAnswer, StoreError, Unanswered
from lockkit.lock.base import FencingToken
from lockkit.lock.conformance import prove_conditions
from lockkit.lock.grant import LATE_S
from lockkit.providers.holder import ServiceHolder
from lockkit.providers.leased import GrantOver, LeasedLock, NotFree, ServiceGrant
from lockkit.recipes.granular.operations import (
    Level,
    Operation,
    StripeRequest,
    hold_limit,
    plan,
    refuse_to_nest,
    report_slow,
    wants_of,
)
from lockkit.recipes.granular.queued import (
    BEATS_PER_LEASE,
    EntryGone,
    LockQueue,
    QueueEntry,
    QueuePlace,
    attend,
    leave,
    look,
    remove,
)
from lockkit.recipes.stripes import STORED_MAX, Mode, SubStore, agree, rounded
from lockkit.recipes.taking import carry_out, confirmed, give_all, take_all
from lockkit.runtime import Procedure, run
from lockkit.sinks import LOG, Emit, silent
from lockkit.stores import Store, open_store
from lockkit.stores.within import within

STRIPES: Mapping[Level, int] = {Level.VOLUME: 64, Level.BUCKET: 256, Level.KEY: 4096}
"""Each is an object that is made when it is first used."""
TTL_S, TTL_S_MIN = 60.0, 3.0
LOOK_S = 1.0
NAMED_MAX = 3
"""How many holders an error names."""

T = TypeVar("T")


class QueuedLock(LeasedLock):
    """One stripe, to read or to write. Used through `StoredGranularLocks`.

    :param limit_s: the longest that one grant may last after `begin`, in seconds: then it is not
        renewed any more, and the handle has lost it. None: as long as its process renews it.
    :param warn_s: a grant that lasts longer is logged, and `on_slow(lock, seconds)` is called.
        Both are looked at by `check_time`, which `StoredGranularLocks` calls in time.
    """

    service = "granular"
    lease_keyword = ("ttl_s", 1)

    def __init__(
        self, store: Store, key: str, mode: Mode, *, of: str = "", ttl_s: float = TTL_S,
        limit_s: float | None = None, warn_s: float | None = None,
        on_slow: Callable[[QueuedLock, float], None] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        if not TTL_S_MIN <= ttl_s <= 86_400:
            raise ValueError(f"ttl_s={ttl_s}: a lease lasts {TTL_S_MIN:g} s to a day")
        super().__init__(
            f"{store.url}/{key}", ttl_s=ttl_s, beat_s=ttl_s / BEATS_PER_LEASE, **options
        )
        self.mode, self._store = mode, store
        self._place = QueuePlace(
            key=key, mode=mode, ttl_ms=round(ttl_s * 1000), clock=self.clock,
            holder=self.owner, of=of,
        )  # fmt: skip
        self.limit_s, self.warn_s = hold_limit("limit_s", limit_s), hold_limit("warn_s", warn_s)
        self._on_slow = on_slow
        self._of = of or "it"
        self._since_ms, self._warned = math.inf, False
        self.over_limit = False

    def look_by(self) -> str:
        return "StoredGranularLocks.look(level, stripe)"

    def begin(self) -> None:
        """The work begins: `warn_s` and `limit_s` count from here, and no wait for other locks."""
        self._since_ms = self.clock.boot_ms()

    def end(self) -> None:
        """The work has ended: the time of the release does not count."""
        self._keep_limit()
        self._since_ms = math.inf

    def check_time(self) -> None:
        """Warn, or lose the grant, if it has lasted for too long."""
        held_s = self._held_s()
        if self.warn_s is not None and held_s >= self.warn_s and not self._warned:
            self._warned = True
            self._emit("note", text=f"held for {held_s:.1f} s, longer than {self.warn_s:g} s")
            LOG.warning(
                "%s (%s) is held for %.1f s by %s", self._of, self.url, held_s, self._place.holder
            )
            report_slow(self._on_slow, self, held_s)
        self._keep_limit()

    def assert_held(self) -> None:
        self._keep_limit()  # after a stall, the thread that watches it may not have run
        super().assert_held()

    def _keep_limit(self) -> None:
        if why := self._over_limit():
            self._note_lost(why)

    def _held_s(self) -> float:
        return (self.clock.boot_ms() - self._since_ms) / 1000

    def _over_limit(self) -> str:
        held_s = self._held_s()
        if self.limit_s is None or held_s < self.limit_s:
            return ""
        self.over_limit = True
        return f"{self._of} was held for {held_s:.1f} s, and its limit is {self.limit_s:g} s"

    # --- the provider's requests -----------------------------------------------------------------

    def _take(self) -> ServiceGrant | NotFree:
        before = self._run(attend(self._place))
        if before:
            named = "; ".join(str(each) for each in before[:NAMED_MAX])
            return NotFree(named, min(LOOK_S, self._place.ttl_ms / 1000 / BEATS_PER_LEASE))
        self._since_ms, self._warned, self.over_limit = math.inf, False, False
        return ServiceGrant(self._place.id, self._place.epoch, self._place.proven_ms)

    def _withdraw(self) -> None:
        self._run(leave(self._place))

    def _beat(self, taken: ServiceGrant) -> None:
        if why := self._over_limit():  # the thread that watches it may not have run
            raise GrantOver(why)
        try:
            self._run(attend(self._place, renew=True))
        except EntryGone as gone:
            raise GrantOver(f"{gone}: its lease was over, or somebody removed it") from None

    def _give_back(self, taken: ServiceGrant) -> None:
        if not self._run(leave(self._place)):
            raise GrantOver("its entry was gone: its lease was over, or somebody removed it")

    def _holder(self) -> ServiceHolder | None:
        queue = self._run(look(self._place.key))
        if not queue.entries:
            return None
        holders = holding(queue)
        first = holders[0]
        return ServiceHolder(
            "; ".join(map(str, holders)), f"{first.id}@{first.beat}",
            f"{first.ttl_ms / 1000:g} s after its last renewal",
            waiting=tuple(map(str, queue.entries[len(holders):])),
        )  # fmt: skip

    def _break_grant(self, version: str) -> bool:
        """A renewal raises the beat, so a holder that lives is not broken."""
        id, _, beat = version.rpartition("@")
        return self._run(remove(self._place.key, id, int(beat) if beat.isdecimal() else -1))

    def _run(self, way: Procedure[T]) -> T:
        return self._run_on(self._store, way)


def holding(queue: LockQueue) -> tuple[QueueEntry, ...]:
    """The entries that hold the lock: the first, and while all of them read, those behind it."""
    held: list[QueueEntry] = []
    for each in queue.entries:
        if held and Mode.WRITE in (each.mode, held[0].mode):
            break
        held.append(each)
    return tuple(held)


class HeldStripes:
    """The locks of one call, all held."""

    def __init__(self, operation: str, locks: Mapping[StripeRequest, QueuedLock]) -> None:
        self.operation, self.locks = operation, locks

    def assert_held(self) -> None:
        """Raise `LockLost` unless all of them are held now. Sends no request."""
        for each in self.locks.values():
            each.assert_held()

    @property
    def fences(self) -> dict[str, FencingToken | None]:
        """By lock: a number that rises with each entry of its queue."""
        return {str(want): lock.fence for want, lock in self.locks.items()}


class StoredGranularLocks:
    """Granular locks for the processes of many machines. Thread-safe.

    :param url: where the locks are, as for `open_store`.
    :param stripes: the number of locks of each level, rounded up to a power of two. The first
        client records them; a client with other numbers is refused (`StripesDiffer`).
    :param ttl_s: the lease of each lock, renewed while the process lives. 60 s by default.
    :param limit_s: the longest that a holder may keep its locks, once it has all of them; then it
        has lost them, and others get them when its block ends, or one lease later. None: no limit.
    :param warn_s: a holder that keeps a lock for longer is logged, and `on_slow` is called.
    :param on_slow: `on_slow(lock, seconds)`, called in a thread of its own.
    :param emit: called with every event.
    :param clock: the source of time; tests replace it.
    :param store_options: those of `open_store`: endpoint, credentials, ...
    """

    def __init__(
        self, url: str, *, stripes: Mapping[Level, int] = STRIPES, ttl_s: float = TTL_S,
        limit_s: float | None = None, warn_s: float | None = None,
        on_slow: Callable[[QueuedLock, float], None] | None = None, emit: Emit = silent,
        clock: Clock | None = None, client: str = "", **store_options: Any,
    ) -> None:  # fmt: skip
        self.url = url.rstrip("/")
        self.stripes = {level: rounded(stripes[level], STORED_MAX) for level in Level}
        self.clock = clock or Clock()
        self.store = open_store(
            self.url, client=client, timeout_s=request_timeout_s(ttl_s), **store_options
        )
        self._lock_options: dict[str, Any] = {
            "ttl_s": ttl_s, "limit_s": hold_limit("limit_s", limit_s),
            "warn_s": hold_limit("warn_s", warn_s), "on_slow": on_slow,
            "client": client, "clock": self.clock, "emit": emit,
        }  # fmt: skip
        self._emit, self._agreed, self._turn = emit, False, threading.Lock()
        self._mine = threading.local()

    @contextmanager
    def hold(
        self, operation: Operation, volume: str, bucket: str = "", keys: Sequence[str] = (), *,
        acquire_timeout: float | None = 60.0,
    ) -> Iterator[HeldStripes]:  # fmt: skip
        """Hold all locks of the operation, taken within `acquire_timeout` seconds (None: no limit).

        Raises `LockBusy` after the timeout, `OutOfOrder` at once if the call could deadlock, and
        `LockLost` if a lock was lost, at the latest at the end of the block.
        """
        most_s = limit_s(True, acquire_timeout)
        wants = plan(wants_of(operation, volume, bucket, keys, stripes=self.stripes))
        held: list[StripeRequest] = self._mine.__dict__.setdefault("held", [])
        refuse_to_nest(held, wants)
        self._agree(most_s)
        locks = {each: self._lock(each) for each in wants}
        held += wants
        done = threading.Event()
        try:
            self._take(operation.name, locks, most_s)
            self._watch(locks, done)
            try:
                yield HeldStripes(operation.name, locks)
            finally:
                for lock in locks.values():
                    lock.end()
        except BaseException:
            with suppress(LockLost):
                _release(locks, _owned(locks))
            raise
        else:
            _release(locks, wants)
        finally:
            done.set()
            for each in wants:
                held.remove(each)

    def look(self, level: Level, stripe: int) -> LockQueue:
        """Who holds a stripe, and who waits for it, in order. One read."""
        return run(look(_key(stripe)), SubStore(self.store, level.name.lower()), self.clock)

    def close(self) -> None:
        self.store.close()

    # --- taking ----------------------------------------------------------------------------------

    def _agree(self, most_s: float | None) -> None:
        """Before the first lock: the store's conditions, and the numbers of stripes."""
        with self._turn, within(max(LATE_S, most_s or LATE_S)):
            if self._agreed:
                return
            prove_conditions(self.store, self.clock)
            for level, number in self.stripes.items():
                below = SubStore(self.store, level.name.lower())
                try:
                    run(agree(number, below.url), below, self.clock, self._emit)
                except Unanswered as error:
                    raise NoAnswer(f"{self}: {error}") from error
            self._agreed = True

    def _lock(self, want: StripeRequest) -> QueuedLock:
        below = SubStore(self.store, want.level.name.lower())
        of = ", ".join(want.names)
        return QueuedLock(below, _key(want.stripe), want.mode, of=of, **self._lock_options)

    def _take(
        self, operation: str, locks: Mapping[StripeRequest, QueuedLock], most_s: float | None
    ) -> None:
        began_ms = self.clock.boot_ms()

        def take(want: StripeRequest) -> bool:
            spent_s = (self.clock.boot_ms() - began_ms) / 1000
            left_s = None if most_s is None else max(0.0, most_s - spent_s)
            return locks[want].acquire(timeout=left_s)

        def give(want: StripeRequest) -> None:
            with suppress(LockLost):  # no work was done under it
                locks[want].release()

        missed = carry_out(take_all(tuple(locks)), take, give)
        if missed is not None:
            raise locks[missed].busy_error().within(
                f"{operation}: {missed} was not free to {missed.mode.name.lower()} within "
                f"{most_s or 0:g} s, and none of its locks is held"
            )
        if not confirmed(lambda: all(each.owned() for each in locks.values())):
            for each in locks.values():
                each.assert_held()
        for each in locks.values():
            each.begin()

    def _watch(self, locks: Mapping[StripeRequest, QueuedLock], done: threading.Event) -> None:
        """Check the time of these locks when `warn_s` and `limit_s` are over, until `done`."""
        limits = {self._lock_options[name] for name in ("warn_s", "limit_s")} - {None}
        if not limits:
            return
        began_ms = self.clock.boot_ms()

        def watch() -> None:
            for most_s in sorted(limits):
                while (left_ms := began_ms + most_s * 1000 - self.clock.boot_ms()) > 0:
                    if self.clock.wait(done, left_ms / 1000):
                        return
                for each in locks.values():
                    each.check_time()

        threading.Thread(target=watch, name="lockkit-granular", daemon=True).start()

    def __str__(self) -> str:
        return f"the granular locks of {self.url}"

    def __repr__(self) -> str:
        numbers = ", ".join(f"{n} {level.name.lower()}" for level, n in self.stripes.items())
        return f"<StoredGranularLocks {self.url}: {numbers}>"


def _release(
    locks: Mapping[StripeRequest, QueuedLock], wants: Sequence[StripeRequest]
) -> None:
    carry_out(give_all(wants), lambda _: False, lambda each: _give(locks[each]))


def _give(lock: QueuedLock) -> None:
    """Release it. If it was lost by its limit, the block has ended only now: its entry, which is
    not renewed any more, need not block the others for the rest of its lease."""
    try:
        lock.release()
    finally:
        if lock.over_limit:
            with suppress(StoreError):
                lock._withdraw()


def _owned(locks: Mapping[StripeRequest, QueuedLock]) -> list[StripeRequest]:
    return [want for want, lock in locks.items() if lock._client.grant is not None]


def _key(stripe: int) -> str:
    return f"{stripe}.json"
