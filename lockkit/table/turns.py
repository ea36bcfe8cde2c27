"""Turns: how those who change a table keep their short state changes apart.

Hudi's `hoodie.write.concurrency.mode`. `single_writer`: one process writes, with its services
inline (model A) or in threads beside it (B); a mutex is enough, and no lock request is sent.
`optimistic_concurrency_control`: several processes write or serve (C), through the table's lock.
Which of the two a writer was told decides nothing on a fenced table: the fence does, so that who
was told wrong is refused, and loses nothing of anybody's. On a table in `hudi` mode nothing else
keeps a second process out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from lockkit.clock import Clock
from lockkit.drive import Emit, Procedure, run, silent
from lockkit.lock import Lock
from lockkit.stores import Store
from lockkit.table.ask import TableError
from lockkit.table.commit import Ahead, Committed, Guard, commit, complete, decide, trust
from lockkit.table.conflict import SIMPLE, Strategy
from lockkit.table.fence import read_fence
from lockkit.table.properties import FENCED
from lockkit.table.publish import publish, told_if_interrupted
from lockkit.table.transaction import Prepared

CONCURRENCY_KEY = "hoodie.write.concurrency.mode"
SINGLE, SHARED = "single_writer", "optimistic_concurrency_control"


@dataclass(frozen=True, slots=True)
class Epoch:
    """The guard of who holds no lock: the epoch that the fence has anyway."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Held:
    """A turn: what a state change attaches to its decision, and how it asks whether it may go on.

    `believe` raises `LockLost` once the turn is over. After a commit, `published` says that it is.
    """

    guard: Guard
    believe: Callable[[], None] = trust
    published: Callable[[], None] = trust


class Turns(Protocol):
    """What a writer and its services share. `hold` is for changes that are no commit."""

    @property
    def mode(self) -> str: ...

    def hold(self) -> AbstractContextManager[Held]: ...

    def publish(
        self, prepared: Prepared, store: Store, clock: Clock, emit: Emit = silent, *,
        strategy: Strategy = SIMPLE,
    ) -> Committed: ...  # fmt: skip

    def close(self) -> None: ...


class OneProcess:
    """`single_writer`: the threads of this process, one at a time; no lock request is ever sent."""

    mode = SINGLE

    def __init__(self) -> None:
        self._mutex = threading.Lock()

    @contextmanager
    def hold(self) -> Iterator[Held]:
        with self._mutex:
            yield Held(Epoch(0))

    def publish(
        self, prepared: Prepared, store: Store, clock: Clock, emit: Emit = silent, *,
        strategy: Strategy = SIMPLE,
    ) -> Committed:  # fmt: skip
        """Raises whatever `commit` raises."""
        with self._mutex, told_if_interrupted(prepared):
            done: Committed = run(commit_alone(prepared, strategy=strategy), store, clock, emit)
            return done

    def close(self) -> None:
        """There is nothing to let go."""


class ByLock:
    """`optimistic_concurrency_control`: whoever has the table's lock. `close` closes the lock."""

    mode = SHARED

    def __init__(self, lock: Lock) -> None:
        self.lock = lock
        self._mutex = threading.Lock()  # a lock is one holder's: its threads take turns first

    @contextmanager
    def hold(self) -> Iterator[Held]:
        """Raises `LockBusy`."""
        with self._mutex, self.lock:
            yield Held(self.lock.fence, self.lock.check, self.lock.published)

    def publish(
        self, prepared: Prepared, store: Store, clock: Clock, emit: Emit = silent, *,
        strategy: Strategy = SIMPLE,
    ) -> Committed:  # fmt: skip
        """Raises `LockBusy`, and whatever `commit` raises."""
        with self._mutex:
            return publish(prepared, self.lock, store, clock, emit, strategy=strategy)

    def close(self) -> None:
        self.lock.close()


def turns_of(options: Mapping[str, Any], open_lock: Callable[[], Lock]) -> Turns:
    """As `CONCURRENCY_KEY` says; else `TableError`.

    By default through the lock (Hudi's is `single_writer`): nobody knows who else writes.
    """
    said = str(options.get(CONCURRENCY_KEY, SHARED)).lower()
    if said == SINGLE:
        return OneProcess()
    if said == SHARED:
        return ByLock(open_lock())
    raise TableError(f"{CONCURRENCY_KEY}={said[:60]!r} is not known here: {SINGLE} or {SHARED}")


def commit_alone(prepared: Prepared, *, strategy: Strategy = SIMPLE) -> Procedure[Committed]:
    """Publish without the lock: the fence decides, and this commit brings no epoch of its own.

    Raises `LockLost` where a lock's holder decided since this began to read: commit it again.
    """
    if prepared.transaction.config.mode != FENCED:
        return (yield from commit(prepared, Epoch(0), strategy=strategy))
    seen = yield from read_fence()
    guard = Epoch(seen.fence.epoch if seen.fence else 0)
    decision = yield from decide(prepared, guard, strategy=strategy, ahead=Ahead(seen))
    return (yield from complete(decision))
