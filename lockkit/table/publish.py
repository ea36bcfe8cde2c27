"""Publishing: a prepared transaction through its lock, with what can go together going together.

Uncontended: the claim of the lock goes out beside the reads of the fence and of the table's
properties, then the fence is replaced, then the completed file is created while the lock is
released. Three round trips instead of six.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from lockkit.clock import Clock
from lockkit.drive import Emit, Procedure, run, silent
from lockkit.lock import Lock, LockBusy, leave
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
from lockkit.table.locks import AnyLock
from lockkit.table.properties import FENCED, recheck_config
from lockkit.table.transaction import Prepared
from lockkit.voice import warn_of


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

    `fence=None` does as the table's mode says. Once the commit is decided nothing but
    `CommitUnknown` or an interrupt is raised: neither the release nor an observer can fail it.
    """
    fenced = prepared.transaction.config.mode == FENCED if fence is None else fence
    with told_if_interrupted(prepared), deferred(emit) as later:
        if not fenced:
            with held(lock) as published:
                ways = commit(
                    prepared, lock.fence, believe=lock.check, fence=False, strategy=strategy
                )
                committed: Committed = run(ways, store, clock, later)
                published()
            return committed
        scout, letting_go = Scout(prepared, store, clock), _Release(lock)
        acquired = False
        try:
            acquired = lock.acquire(timeout=lock.timeout, beside=scout)
            if not acquired:
                raise LockBusy(lock.busy_because())
            return _decide_and_complete(prepared, lock, scout, strategy, letting_go, later)
        except BaseException as error:
            letting_go.end()
            release_after(lock, error, acquired)
            raise


@contextmanager
def told_if_interrupted(prepared: Prepared) -> Iterator[None]:
    """Ctrl-C ends the commit wherever it is, perhaps after the moment that decides it."""
    try:
        yield
    except CommitUnknown as unknown:
        unknown.prepared = prepared
        raise
    except KeyboardInterrupt as interrupt:
        names, instant = prepared.names, prepared.instant
        own = f"{names.folder}{instant}*"
        interrupt.add_note(str(CommitUnknown(instant, "interrupted", (FENCE_KEY, own))))
        raise


@contextmanager
def after_commit(committed: Committed) -> Iterator[None]:
    """What follows an acknowledged commit; an interrupt there says that the rows are committed."""
    try:
        yield
    except BaseException as interrupt:
        interrupt.add_note(f"{committed.instant} was committed before this.")
        raise


@contextmanager
def deferred(emit: Emit) -> Iterator[Emit]:
    """An `Emit` that runs no observer between a commit's deciding write and its acknowledgement.

    `checked` is the last event before that write. Events after it are kept until the next `checked`
    (then the write decided nothing) or until the block ends. What an observer raises then is a
    warning (`ObserverFailed`): an error would tell the caller that the commit failed.
    """
    kept: list[tuple[str, dict[str, Any]]] | None = None

    def keep(kind: str, **fields: Any) -> None:
        nonlocal kept
        if kind == "checked":
            _tell(emit, kept)
            kept = None
            emit(kind, **fields)
            kept = []
        elif kept is None:
            emit(kind, **fields)
        else:
            kept.append((kind, fields))

    try:
        yield keep
    finally:
        _tell(emit, kept)


def _tell(emit: Emit, kept: list[tuple[str, dict[str, Any]]] | None) -> None:
    for kind, fields in kept or ():
        try:
            emit(kind, **fields)
        except Exception as error:  # noqa: BLE001 - whatever somebody's observer raises
            warn_of(kind, error)


@contextmanager
def held(lock: AnyLock) -> Iterator[Callable[[], None]]:
    """As `with lock`; once the block has called what it is given, the release cannot fail it."""
    done = False

    def published() -> None:
        nonlocal done
        done = True
        lock.published()

    acquired = False
    try:
        acquired = lock.acquire(timeout=lock.timeout)
        if not acquired:
            raise LockBusy(lock.busy_because())
        yield published
        if done:
            _let_go(lock)
        else:
            lock.release()
    except BaseException as error:
        release_after(lock, error, acquired)
        raise


def release_after(lock: AnyLock, error: BaseException, acquired: bool) -> None:
    """Release at the end of what raised `error`, if it had acquired; that error goes first.

    An interrupt may come between the grant and its return. An error of `acquire` itself leaves the
    lock alone: another thread of this handle may hold it.
    """

    def release() -> None:
        with suppress(RuntimeError):  # not held: before the grant, or after a release
            lock.release()

    if acquired or not isinstance(error, Exception):
        leave(release, error)


def _decide_and_complete(
    prepared: Prepared, lock: Lock, scout: Scout, strategy: Strategy, letting_go: _Release,
    emit: Emit,
) -> Committed:  # fmt: skip
    store, clock = scout.store, scout.clock
    letting_go.begin()
    rise_above_fence(lock, scout)
    way = decide(prepared, lock.fence, believe=lock.check, strategy=strategy, ahead=scout.ahead)
    decision = run(way, store, clock, emit)
    lock.published()
    letting_go.go()
    try:
        return run(complete(decision), store, clock, emit)
    finally:
        letting_go.end()
        if letting_go.ident is None:
            _let_go(lock)


class _Release(threading.Thread):
    """Releases the lock beside the write of the completed file, once the commit is decided.

    Begun before anything is decided: a process at its limit of threads releases in its own thread.
    """

    def __init__(self, lock: AnyLock) -> None:
        super().__init__(name="release", daemon=True)
        self._lock, self._releases, self._woken = lock, False, threading.Event()

    def begin(self) -> None:
        with suppress(RuntimeError, MemoryError):  # can't start new thread
            self.start()

    def go(self) -> None:
        self._releases = True
        self._woken.set()

    def end(self) -> None:
        self._woken.set()
        if self.ident is not None:
            self.join()

    def run(self) -> None:
        self._woken.wait()
        if self._releases:
            _let_go(self._lock)


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


def _let_go(lock: AnyLock) -> None:
    """What can go wrong with a release after a commit is a warning, and `release` warns of it."""
    try:
        lock.release()
    except Exception:  # noqa: BLE001 - denied, closed, lost: the commit stands, and the lease ends
        return


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
