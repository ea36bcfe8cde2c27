"""Concurrency control: how writers and services of one table serialise their state changes.

This is Hudi's `hoodie.write.concurrency.mode`. `single_writer`: one process writes, with its
services inline (model A) or in threads (B). A mutex is enough, and no lock request is sent.
`optimistic_concurrency_control`: several processes write or run services (C) under the table's
lock. On a fenced table a wrong choice loses nothing, because the fence refuses the commit. On a
table in `hudi` mode only the lock excludes a second process. `non_blocking_concurrency_control`
differs in what conflicts (`nonblocking.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.lock.handle import Lock
from lockkit.lock.hudi_keys import KEYS
from lockkit.runtime import run
from lockkit.sinks import Emit, silent
from lockkit.stores import Store
from lockkit.table.format.option_values import one_of
from lockkit.table.occ.commit import Committed, EpochGuard, First, Guard, StateChange
from lockkit.table.occ.conflict import SIMPLE, STRATEGY_KEY, ConflictStrategy
from lockkit.table.occ.prepared import Prepared
from lockkit.table.occ.publish import deferred, held, note_if_interrupted, publish

if TYPE_CHECKING:
    from lockkit.lock.contract import LockHandle
    from lockkit.table.occ.contract import ConcurrencyControl

CONCURRENCY_KEY = "hoodie.write.concurrency.mode"
SINGLE, SHARED = "single_writer", "optimistic_concurrency_control"
NON_BLOCKING = "non_blocking_concurrency_control"


def see_conditions(store: Store, clock: Clock) -> None:
    """Raise `UnsafeStore` if the table's server ignores write conditions. Files need no test."""
    if store.server:
        from lockkit.lock.conformance import prove_conditions
        from lockkit.lock.creation_check import TABLE_KEY

        prove_conditions(store, clock, key=TABLE_KEY)


class SingleWriter:
    """`single_writer`: the threads of this process use a mutex; no lock request is ever sent."""

    mode = SINGLE

    def __init__(self) -> None:
        self._mutex = threading.Lock()

    @contextmanager
    def hold(self, beside: Callable[[bool], None] | None = None) -> Iterator[StateChange]:
        with self._mutex:
            if beside is not None:
                beside(True)
            yield StateChange(EpochGuard(0))

    def publish(
        self, prepared: Prepared, store: Store, clock: Clock, emit: Emit = silent, *,
        strategy: ConflictStrategy = SIMPLE, first: First | None = None,
    ) -> Committed:  # fmt: skip
        """Raises what `commit` raises."""
        from lockkit.table.occ.committing import commit_alone

        see_conditions(store, clock)
        way = commit_alone(prepared, strategy=strategy, first=first)
        with self._mutex, note_if_interrupted(prepared), deferred(emit) as later:
            return run(way, store, clock, later)

    def close(self) -> None:
        """Nothing to release."""


class OptimisticConcurrency:
    """`optimistic_concurrency_control`: under the lock. `close` closes the lock.

    The lock is the table's own lock object, or any other service's.
    """

    mode = SHARED

    def __init__(self, lock: LockHandle) -> None:
        self.lock = lock
        self._mutex = threading.Lock()  # a lock handle has one holder, so its threads queue here

    @contextmanager
    def hold(self, beside: Callable[[bool], None] | None = None) -> Iterator[StateChange]:
        """Raises `LockBusy`. A failed release does not fail a block that succeeded.

        `beside` reads what counts as read under the lock (`Lock.acquire`).
        """
        with self._mutex, held(self.lock, beside) as published:
            yield StateChange(guard_of(self.lock), self.lock.assert_held, published)

    def publish(
        self, prepared: Prepared, store: Store, clock: Clock, emit: Emit = silent, *,
        strategy: ConflictStrategy = SIMPLE, first: First | None = None,
    ) -> Committed:  # fmt: skip
        """Raises `LockBusy`, and what `commit` raises."""
        see_conditions(store, clock)
        with self._mutex:
            lock = self.lock
            if isinstance(lock, Lock):
                return publish(prepared, lock, store, clock, emit, strategy=strategy, first=first)
            return _publish_under(prepared, lock, store, clock, emit, strategy, first)

    def close(self) -> None:
        self.lock.close()


def control_of(
    options: Mapping[str, Any], open_lock: Callable[[], LockHandle]
) -> ConcurrencyControl:
    """Chosen by `CONCURRENCY_KEY`; raises `TableError` for an unknown mode.

    The default is the lock (Hudi's is `single_writer`), because others may write too.
    """
    return (
        SingleWriter()
        if concurrency_mode(options) == SINGLE
        else OptimisticConcurrency(open_lock())
    )


def concurrency_mode(options: Mapping[str, Any]) -> str:
    return one_of(options, CONCURRENCY_KEY, of=(SINGLE, SHARED, NON_BLOCKING), default=SHARED)


def names_lock(options: Mapping[str, Any]) -> str:
    """The option, of these in lower case, that describes the lock of the commits; "" for none."""
    lock = (key for key in KEYS if key != STRATEGY_KEY)
    return next((key for key in lock if options.get(key) not in (None, "")), "")


def guard_of(lock: LockHandle) -> Guard:
    """The guard of a state change that is not a commit.

    Only the epochs of the table's own lock object continue those of the fence. Another service's
    numbers cannot be compared with them, so under its lock the fence keeps its epoch.
    """
    return lock.fence if isinstance(lock, Lock) else EpochGuard(0)


def _publish_under(
    prepared: Prepared,
    lock: LockHandle,
    store: Store,
    clock: Clock,
    emit: Emit,
    strategy: ConflictStrategy,
    first: First | None,
) -> Committed:
    """Publish under another service's lock; if the table has a fence, the fence decides."""
    from lockkit.table.occ.committing import commit_alone

    way = commit_alone(prepared, strategy=strategy, believe=lock.assert_held, newer=1, first=first)
    with note_if_interrupted(prepared), deferred(emit) as later, held(lock) as published:
        done: Committed = run(way, store, clock, later)
        published()
    return done
