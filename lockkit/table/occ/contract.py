"""What a commit requires of the lock or the mutex that serialises it. Types only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from lockkit.clock import Clock
from lockkit.runtime import Procedure
from lockkit.sinks import Emit, silent
from lockkit.stores import Store
from lockkit.table.occ.commit import Committed, First, Guard, StateChange
from lockkit.table.occ.conflict import SIMPLE, ConflictStrategy
from lockkit.table.occ.prepared import Prepared
from lockkit.table.occ.publish import Scout

T = TypeVar("T")


class CommitLock(Protocol):
    """The table's own lock, for one commit: held by threads here, by tasks in the simulator.

    `run` carries out one step of the commit. `complete` runs a step while the lock is released;
    everything that can fail for lack of resources must be done before it.
    """

    @property
    def guard(self) -> Guard: ...

    def believe(self) -> None: ...

    def run(self, way: Procedure[T]) -> Procedure[T]: ...

    def acquire(self, scout: Scout | None) -> Procedure[None]: ...

    def rise_above(self, epoch: int) -> Procedure[None]: ...

    def complete(self, way: Procedure[T]) -> Procedure[T]: ...

    def leave(self, error: BaseException) -> Procedure[None]: ...


class ConcurrencyControl(Protocol):
    """Shared by a writer and its services. `hold` is for state changes that are not commits."""

    @property
    def mode(self) -> str: ...

    def hold(
        self, beside: Callable[[bool], None] | None = None
    ) -> AbstractContextManager[StateChange]: ...

    def publish(
        self, prepared: Prepared, store: Store, clock: Clock, emit: Emit = silent, *,
        strategy: ConflictStrategy = SIMPLE, first: First | None = None,
    ) -> Committed: ...  # fmt: skip

    def close(self) -> None: ...
