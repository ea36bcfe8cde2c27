"""Publishing: a prepared transaction through its lock, with what can go together going together.

Uncontended: the claim of the lock goes out beside the reads of the fence and of the table's
properties, then the fence is replaced, then the completed file is created while the lock is
released. Three round trips instead of six.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from lockkit.clock import Clock
from lockkit.drive import Emit, Procedure, run, silent
from lockkit.lock import Lock, LockBusy
from lockkit.outcome import Found, NotModified
from lockkit.stores import Store, StoreError
from lockkit.table.ask import TableError, all_of, read
from lockkit.table.commit import Ahead, Committed, commit, complete, decide
from lockkit.table.conflict import SIMPLE, Strategy
from lockkit.table.decide import CommitUnknown, completed_key
from lockkit.table.fence import (
    COMMIT,
    FENCE_BYTES_MAX,
    FENCE_KEY,
    Seen,
    parse_fence,
    read_fence,
)
from lockkit.table.properties import FENCED, recheck_config
from lockkit.table.transaction import Prepared


def publish(
    prepared: Prepared,
    lock: Lock,
    store: Store,
    clock: Clock,
    emit: Emit = silent,
    *,
    strategy: Strategy = SIMPLE,
    fence: bool | None = None,
) -> Committed:
    """Acquire the lock, commit, release it. Raises `LockBusy`, and whatever `commit` raises.

    `fence=None` does as the table's mode says.
    """
    fenced = prepared.transaction.config.mode == FENCED if fence is None else fence
    if not fenced:
        with lock, told_if_interrupted(prepared):
            ways = commit(
                prepared, lock.fence, believe=lock.check, fence=False, strategy=strategy
            )
            committed: Committed = run(ways, store, clock, emit)
            lock.published()
        return committed
    scout = Scout(prepared, store, clock)
    if not lock.acquire(timeout=lock.timeout, beside=scout):
        raise LockBusy(lock.busy_because())
    with told_if_interrupted(prepared):
        return _decide_and_complete(prepared, lock, scout, strategy, emit)


@contextmanager
def told_if_interrupted(prepared: Prepared) -> Iterator[None]:
    """Ctrl-C ends the commit wherever it is, perhaps behind the moment that decides it."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        names, instant = prepared.names, prepared.instant
        own = f"{names.folder}{instant}*"
        interrupt.add_note(str(CommitUnknown(instant, "interrupted", (FENCE_KEY, own))))
        raise


def _decide_and_complete(
    prepared: Prepared, lock: Lock, scout: Scout, strategy: Strategy, emit: Emit
) -> Committed:
    store, clock = scout.store, scout.clock
    letting_go = threading.Thread(target=_let_go, args=(lock,), name="release")
    try:
        rise_above_fence(lock, scout)
        way = decide(
            prepared, lock.fence, believe=lock.check, strategy=strategy, ahead=scout.ahead
        )
        decision = run(way, store, clock, emit)
        lock.published()
    except BaseException as error:
        lock.__exit__(type(error), error, error.__traceback__)
        raise
    letting_go.start()
    try:
        return run(complete(decision), store, clock, emit)
    finally:
        letting_go.join()


def rise_above_fence(lock: Lock, scout: Scout) -> None:
    """Make sure, before the grant is used, that its epoch is above the fence's.

    A lock object that was deleted, or rewritten by Hudi, starts its epochs again from 1, and a
    commit under such an epoch would be refused as superseded.
    """
    if scout.ahead.seen is None:
        seen: Seen = run(read_fence(), scout.store, scout.clock)
        scout.ahead = replace(scout.ahead, seen=seen)
    fence = scout.ahead.seen.fence if scout.ahead.seen else None
    if fence is not None:
        lock.rise_above(fence.epoch)


def _let_go(lock: Lock) -> None:
    """What can go wrong with a release after publishing is a warning, and `release` warns of it."""
    try:
        lock.release()
    except (StoreError, RuntimeError):
        return  # denied, or closed meanwhile: the lease ends by itself


@dataclass(slots=True)
class Scout:
    """Reads beside the lock's own requests what the commit will ask first (`Lock.acquire`)."""

    prepared: Prepared
    store: Store
    clock: Clock
    ahead: Ahead = field(default_factory=Ahead)

    def __call__(self, claiming: bool) -> None:
        run(self.look(claiming), self.store, self.clock)

    def look(self, claiming: bool) -> Procedure[None]:
        """One look beside one request for the lock; replaces `ahead`.

        A check of the config counts only if it was made beside the latest request: the holders
        since an earlier one may have changed the table.
        """
        self.ahead = replace(self.ahead, config_checked=False)
        try:
            self.ahead = yield from self._look(claiming)
        except (TableError, StoreError):
            self.ahead = Ahead()  # the commit asks again, and tells

    def _look(self, claiming: bool) -> Procedure[Ahead]:
        transaction, seen = self.prepared.transaction, self.ahead.seen
        proven = self.ahead.proven
        asked: list[Procedure[Any]] = [
            read(FENCE_KEY, unless=seen.version if seen else None, limit=FENCE_BYTES_MAX)
        ]
        head = seen.fence.head if seen and seen.fence else None
        proving = (
            head is not None and head.kind == COMMIT
            and head.instant not in proven and head.instant not in transaction.base
        )  # fmt: skip
        if head is not None and proving:
            asked.append(read(completed_key(self.prepared.names, head)))
        if claiming:
            asked.append(
                recheck_config(transaction.config, transaction.taken.known.config_version)
            )
        fence, *others = yield from all_of(asked)
        if head is not None and proving and isinstance(others[0], Found):
            proven |= {head.instant}
        match fence:
            case Found(body, version):
                seen = Seen(parse_fence(body), version)
            case NotModified():
                pass
            case _missing:
                seen = Seen(None, None)
        return Ahead(seen, proven, claiming)
