"""What an attempt requires of the place where it runs. Types only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from lockkit.runtime import Procedure
from lockkit.table.format.properties import TableConfig
from lockkit.table.occ.commit import Committed, First, StateChange
from lockkit.table.occ.conflict import ConflictStrategy
from lockkit.table.occ.heartbeat import FirstBeat
from lockkit.table.occ.prepared import Prepared
from lockkit.table.occ.publish import Scout
from lockkit.table.occ.transaction import TakenInstant, Transaction

T = TypeVar("T")


class AttemptHeartbeat(Protocol):
    """The heartbeat of one instant."""

    def assert_alive(self) -> None:
        """Raise `HeartbeatExpired` once other writers may treat this one as dead."""

    def stop(self) -> None:
        """No more beats."""

    def finished(self) -> Procedure[None]:
        """The instant is over: its heartbeat is not needed any more."""

    def left(self) -> Procedure[None]:
        """The instant is a plan's, which stays pending, maybe with a heartbeat of another writer.
        """

    def given_up(self) -> Procedure[None]:
        """The instant is left to other writers, which need not wait for the heartbeat to expire."""


class AttemptHost(Protocol):
    """Where an attempt runs: a process with threads and a store (`StoreHost`), or the simulator.

    On a real store none of these procedures yields, so an interrupt (Ctrl-C) is raised inside the
    attempt, wherever it is.
    """

    @property
    def own(self) -> set[str]:
        """Instants that this process works on; its services leave them alone."""

    @property
    def base(self) -> str:
        """The table's address, as `roll_back` takes it."""

    def run(self, way: Procedure[T]) -> Procedure[T]:
        """Carry out one step."""

    def first_beat(self, instant: str) -> Procedure[FirstBeat]:
        """The first beat of an instant that is to be taken. Its requests are yielded anywhere."""

    def beat(
        self, taken: TakenInstant, begun: FirstBeat | None = None
    ) -> Procedure[AttemptHeartbeat]:
        """A heartbeat whose first beat is proven: the one that has `begun`, or one sent now."""

    def boot_ms(self) -> int:
        """This process's monotonic clock."""

    def beat_later(self, taken: TakenInstant, sent_ms: int) -> AttemptHeartbeat:
        """One that begins once the write takes long; its instant was sent at `sent_ms`."""

    def take_instant(self, config: TableConfig, block: Callable[[], Procedure[T]]) -> Procedure[T]:
        """Carry out `block`, under the lock where Hudi writes too."""

    def hold(
        self, block: Callable[[AttemptHost, StateChange], Procedure[T]], scout: Scout | None = None
    ) -> Procedure[T]:
        """Carry out `block` while holding the turn: on the host that it is given, which defers
        events between a decision and its acknowledgement. `scout` reads with each claim. Raises
        `LockBusy`."""

    def behind(self, way: Procedure[None], name: str) -> Procedure[None]:
        """Begin a step that nobody waits for; it ends before its process does."""

    def in_group(self, *, rewrites: bool = False) -> Any:
        """With group commit: how an append, or an upsert or delete, takes its instant and lists."""

    def publish(
        self, prepared: Prepared, strategy: ConflictStrategy, first: First | None = None
    ) -> Procedure[Committed]:
        """Take the turn, do what comes `first`, and commit, once."""


Files = Callable[[Transaction, AttemptHeartbeat], Procedure[Prepared | None]]
"""Writes an instant's files and prepares its commit; None if there is nothing to commit."""
