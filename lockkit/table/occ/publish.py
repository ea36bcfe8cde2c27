"""Publishing: committing a prepared transaction under the table's lock, with parallel requests.

Without contention: the claim of the lock is sent in parallel with the reads of the fence and the
table's properties. Then the fence is replaced. Then the completed file is created while the lock is
released. That takes three round trips instead of six.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lockkit.clock import Clock
from lockkit.errors import StoreError, TableError
from lockkit.lock.base import leave
from lockkit.lock.handle import Lock
from lockkit.protocol.outcome import Found, NotModified
from lockkit.runtime import Procedure, run
from lockkit.runtime.proven import all_of, read
from lockkit.sinks import Emit, EventSink, silent, warn_of
from lockkit.stores import Store
from lockkit.table.errors import CommitUnknown
from lockkit.table.format.properties import FENCED, recheck_config
from lockkit.table.occ.commit import (
    Committed,
    First,
    Guard,
    Prefetched,
    StateChange,
    complete,
    decide,
)
from lockkit.table.occ.conflict import SIMPLE, ConflictStrategy
from lockkit.table.occ.decide import completed_key
from lockkit.table.occ.fence import (
    COMMIT,
    FENCE_BYTES_MAX,
    FENCE_KEY,
    FenceRead,
    parse_fence,
    read_fence,
)
from lockkit.table.occ.prepared import Prepared

if TYPE_CHECKING:
    from lockkit.lock.contract import LockHandle
    from lockkit.table.occ.contract import CommitLock

T = TypeVar("T")


def publish(
    prepared: Prepared, lock: Lock, store: Store, clock: Clock, emit: Emit = silent, *,
    strategy: ConflictStrategy = SIMPLE, fence: bool | None = None, first: First | None = None,
) -> Committed:  # fmt: skip
    """Acquire the lock, commit, release it.

    Once the commit is decided, nothing but `CommitUnknown` or an interrupt is raised: neither the
    release nor an observer can fail it.

    :param prepared: what `prepare` returned.
    :param lock: the table's lock, not held.
    :param store, clock: those of the table.
    :param emit: receives each event (default: none).
    :param strategy, fence: as for `commit`.
    :param first: done under the lock before the commit reads anything.
    :raises LockBusy: if the lock was not free within `acquire_timeout`; and as `commit`.
    """
    fenced = prepared.transaction.config.mode == FENCED if fence is None else fence
    with note_if_interrupted(prepared), deferred(emit) as later:
        hold = _LockCommit(lock, store, clock, later)
        way = publish_under(hold, prepared, strategy=strategy, fenced=fenced, first=first)
        return run(way, store, clock, later)


def publish_under(
    hold: CommitLock,
    prepared: Prepared,
    *,
    strategy: ConflictStrategy = SIMPLE,
    fenced: bool = True,
    first: First | None = None,
) -> Procedure[Committed]:
    """Acquire, do `first`, decide, complete while releasing: the same for every `CommitLock`."""
    scout = Prefetcher(prepared) if fenced else None
    try:
        yield from hold.acquire(scout)
        if scout is not None:
            yield from _rise_above_fence(hold, scout)
        if first is not None:
            yield from hold.run(first(StateChange(hold.guard, hold.believe)))
        if scout is None:
            from lockkit.table.occ.committing import commit

            committed = yield from hold.run(commit(
                prepared, hold.guard, believe=hold.believe, fence=False, strategy=strategy
            ))  # fmt: skip
            return (yield from hold.complete(_already(committed)))
        ahead = scout.ahead if first is None else Prefetched()  # a rollback replaces the fence
        decision = yield from hold.run(decide(
            prepared, hold.guard, believe=hold.believe, strategy=strategy, ahead=ahead
        ))  # fmt: skip
        return (yield from hold.complete(complete(decision)))
    except GeneratorExit:  # its process is gone and sends nothing more
        raise
    except BaseException as error:
        yield from hold.leave(error)
        raise


def _rise_above_fence(hold: CommitLock, scout: Prefetcher) -> Procedure[None]:
    """Make sure, before the grant is used, that its epoch is above the fence's.

    If a lock object was deleted or rewritten by Hudi, its epochs start again from 1, and a commit
    with such an epoch would be refused as superseded.
    """
    if scout.ahead.seen is None:
        scout.ahead = replace(scout.ahead, seen=(yield from hold.run(read_fence())))
    fence = scout.ahead.seen.fence if scout.ahead.seen else None
    if fence is not None:
        yield from hold.rise_above(fence.epoch)


def _already(committed: Committed) -> Procedure[Committed]:
    yield from ()
    return committed


@contextmanager
def note_if_interrupted(prepared: Prepared) -> Iterator[None]:
    """Ctrl-C can end the commit at any point, perhaps after the write that decides it."""
    try:
        yield
    except CommitUnknown as unknown:
        unknown.prepared = prepared
        raise
    except KeyboardInterrupt as interrupt:
        prepared.transaction.taken.note_unknown(interrupt)
        raise


@contextmanager
def after_commit(committed: Committed) -> Iterator[None]:
    """For steps after an acknowledged commit: an error there says that the rows are committed."""
    try:
        yield
    except BaseException as interrupt:
        interrupt.add_note(f"{committed.instant} was committed before this.")
        raise


@contextmanager
def deferred(emit: Emit) -> Iterator[Emit]:
    """An `Emit` that runs no observer between a commit's deciding write and its acknowledgement.

    `checked` is the last event before that write. Events after it are kept until the next `checked`
    (then the write decided nothing) or until the block ends. An observer's error then becomes a
    warning (`ObserverFailed`), because an error would tell the caller that the commit failed.
    """
    kept: list[tuple[str, dict[str, Any]]] | None = None

    def keep(kind: str, **fields: Any) -> None:
        nonlocal kept
        if kind == "checked":
            _emit_kept(emit, kept)
            kept = None
            emit(kind, **fields)
            kept = []
        elif kept is None:
            emit(kind, **fields)
        else:
            stamp = {"stamped_ms": Clock().stamp_ms()} if isinstance(emit, EventSink) else {}
            kept.append((kind, fields | stamp))

    try:
        yield keep
    finally:
        _emit_kept(emit, kept)


def _emit_kept(emit: Emit, kept: list[tuple[str, dict[str, Any]]] | None) -> None:
    for kind, fields in kept or ():
        try:
            emit(kind, **fields)
        except Exception as error:  # noqa: BLE001 - an observer may raise anything
            warn_of(kind, error)


@contextmanager
def held(
    lock: LockHandle, beside: Callable[[bool], None] | None = None
) -> Iterator[Callable[[], bool]]:
    """As `with lock`; once the block has called the given function, the release cannot fail it.

    The table's own lock is released from then on, while the block continues.
    """
    letting_go, own, done, acquired = _ReleaseThread(lock), isinstance(lock, Lock), False, False

    def mark_committed() -> bool:
        nonlocal done
        done = True
        lock.mark_committed()
        if own:
            letting_go.begin()
            letting_go.go()
        return own

    try:
        if isinstance(lock, Lock):
            acquired = lock.acquire(timeout=lock.acquire_timeout, beside=beside)
        else:
            acquired = lock.acquire(timeout=lock.acquire_timeout)
        if not acquired:
            raise lock.busy_error()
        if beside is not None and not own:
            beside(True)
        yield mark_committed
        letting_go.end()
        if not done:
            letting_go.release() if own else lock.release()
        elif letting_go.ident is None:
            _let_go(lock)
    except BaseException as error:
        letting_go.end()
        release_after(lock, error, acquired)
        raise


def release_after(lock: LockHandle, error: BaseException, acquired: bool) -> None:
    """Release after `error`, if the lock was acquired; `error` is the one that is raised.

    An interrupt may come between the grant and its return. An error of `acquire` itself leaves the
    lock alone, because another thread of this handle may hold it.
    """

    def release() -> None:
        with suppress(RuntimeError):  # not held: before the grant, or after a release
            lock.release()

    if acquired or not isinstance(error, Exception):
        leave(release, error)


class _LockCommit:
    """A `Lock` whose requests are sent from its own threads: none of these procedures yields."""

    def __init__(self, lock: Lock, store: Store, clock: Clock, emit: Emit) -> None:
        self._lock, self._store, self._clock, self._emit = lock, store, clock, emit
        self._letting_go, self._acquired = _ReleaseThread(lock), False

    @property
    def guard(self) -> Guard:
        return self._lock.fence

    def believe(self) -> None:
        self._lock.assert_held()

    def run(self, way: Procedure[T]) -> Procedure[T]:
        yield from ()
        return run(way, self._store, self._clock, self._emit)

    def acquire(self, scout: Scout | None) -> Procedure[None]:
        yield from ()

        def beside(claiming: bool) -> None:
            assert scout is not None
            run(scout.prefetch(claiming), self._store, self._clock)

        lock = self._lock
        self._acquired = lock.acquire(
            timeout=lock.acquire_timeout, beside=beside if scout else None
        )
        if not self._acquired:
            raise lock.busy_error()
        self._letting_go.begin()

    def rise_above(self, epoch: int) -> Procedure[None]:
        yield from ()
        self._lock.rise_above(epoch)

    def complete(self, way: Procedure[T]) -> Procedure[T]:
        yield from ()
        self._lock.mark_committed()
        self._letting_go.go()
        try:
            return run(way, self._store, self._clock, self._emit)
        finally:
            self._letting_go.end()
            if self._letting_go.ident is None:
                _let_go(self._lock)

    def leave(self, error: BaseException) -> Procedure[None]:
        yield from ()
        self._letting_go.end()
        release_after(self._lock, error, self._acquired)


class _ReleaseThread(threading.Thread):
    """Releases the lock in parallel with the write of the completed file, after the decision.

    It is started before anything is decided. If there are no more threads, the caller releases.
    """

    def __init__(self, lock: LockHandle) -> None:
        super().__init__(name="release", daemon=True)
        self._lock, self._releases, self._woken = lock, False, threading.Event()
        self._failed: Exception | None = None

    def release(self) -> None:
        """From this thread, which no Ctrl-C interrupts; raises what the release raises."""
        self.go()
        self.begin()
        self.end()
        failed = self._failed if self.ident else _let_go(self._lock)
        if failed is not None:
            raise failed

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
            self._failed = _let_go(self._lock)


def _let_go(lock: LockHandle) -> Exception | None:
    """A release that fails after a commit is only a warning, which `release` gives."""
    try:
        lock.release()
    except Exception as error:  # noqa: BLE001 - lost: the commit stands, and the lease ends
        return error
    return None


class Scout(Protocol):
    """Reads in parallel with the lock's requests (`Lock.acquire`)."""

    def prefetch(self, claiming: bool) -> Procedure[None]: ...


@dataclass(slots=True)
class Prefetcher:
    """Reads what the commit needs first, in parallel with the lock's requests (`Lock.acquire`)."""

    prepared: Prepared
    ahead: Prefetched = field(default_factory=Prefetched)

    def prefetch(self, claiming: bool) -> Procedure[None]:
        """One read in parallel with one request for the lock; replaces `ahead`.

        A check of the config counts only if it was made in parallel with the latest request: since
        an earlier one, other holders may have changed the table.
        """
        self.ahead = replace(self.ahead, config_checked=False)
        try:
            self.ahead = yield from self._prefetch(claiming)
        except (TableError, StoreError):
            self.ahead = Prefetched()  # the commit reads again, and reports it

    def _prefetch(self, claiming: bool) -> Procedure[Prefetched]:
        transaction, seen = self.prepared.transaction, self.ahead.seen
        proven = self.ahead.proven
        reads: list[Procedure[Any]] = [
            read(FENCE_KEY, unless=seen.version if seen else None, limit=FENCE_BYTES_MAX)
        ]
        head = seen.fence.head if seen and seen.fence else None
        proving = (
            head is not None and head.kind == COMMIT
            and head.instant not in proven and head.instant not in transaction.base
        )  # fmt: skip
        if head is not None and proving:
            reads.append(read(completed_key(self.prepared.names, head)))
        if claiming:
            reads.append(recheck_config(transaction.config, transaction.taken.known.config_version))
        fence, *others = yield from all_of(reads)
        if head is not None and proving and isinstance(others[0], Found):
            proven |= {head.instant}
        match fence:
            case Found(body, version):
                seen = FenceRead(parse_fence(body), version)
            case NotModified():
                pass
            case _missing:
                seen = FenceRead(None, None)
        return Prefetched(seen, proven, claiming)
