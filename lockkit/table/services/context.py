"""The context of one process's writes and services: store, lock, clock, heartbeats.

None of `StoreHost`'s procedures yields: each step is carried out before it returns, so an interrupt
is raised inside the attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from lockkit.clock import Clock, process_name
from lockkit.runtime import Procedure, run
from lockkit.sinks import Emit, silent
from lockkit.stores import Store
from lockkit.table.format.layout import NO_BASE, hadoop_base
from lockkit.table.format.properties import GROUP, HUDI, TableConfig
from lockkit.table.occ.commit import Committed, EpochGuard, First, StateChange
from lockkit.table.occ.concurrency import SINGLE
from lockkit.table.occ.conflict import ConflictStrategy
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.prepared import Prepared
from lockkit.table.occ.publish import deferred
from lockkit.table.occ.transaction import TableCache, TakenInstant
from lockkit.table.services.rules import ServiceRules

if TYPE_CHECKING:
    from lockkit.table.occ.contract import ConcurrencyControl
    from lockkit.table.occ.group.client import GroupClient
    from lockkit.table.occ.heartbeat import FirstBeat, Heartbeat
    from lockkit.table.occ.publish import Scout
    from lockkit.table.occ.rollback import RollbackRefused, RolledBack
    from lockkit.table.write.contract import AttemptHost

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class ServiceContext:
    """One table, its store, and how this process serialises its state changes."""

    url: str
    store: Store
    concurrency_control: ConcurrencyControl
    rules: ServiceRules = field(default_factory=ServiceRules)
    clock: Clock = field(default_factory=Clock)
    emit: Emit = silent
    own: set[str] = field(default_factory=set)
    """Instants that this process works on."""
    together: list[GroupClient] = field(default_factory=list)
    """Of group commit; empty until its first commit."""
    lingering: list[Thread] | None = None
    """Threads that publish acknowledged commits, to be joined. None: they are not joined."""

    def run(self, way: Procedure[T]) -> T:
        return run(way, self.store, self.clock, self.emit)

    def report(self, text: str, instant: str) -> None:
        self.emit("note", text=text, instant=instant)

    def base(self, config: TableConfig) -> str:
        """The table's address in plans, in case Hudi has to finish them."""
        return hadoop_base(self.url) if config.mode == HUDI else NO_BASE

    @contextmanager
    def taking_an_instant(self, config: TableConfig) -> Iterator[None]:
        """Under the lock if Hudi writes too; a mutex is cheap."""
        turn = config.mode == HUDI or self.concurrency_control.mode == SINGLE
        with self.concurrency_control.hold() if turn else nullcontext():
            yield

    def roll_back(
        self, known: TableCache, instant: str, *, resume: str | None = None
    ) -> RolledBack | RollbackRefused:
        """Roll `instant` back; the caller must know that its writer is dead."""
        from lockkit.table.occ.failed import roll_back_held

        with self.concurrency_control.hold() as held:
            way = roll_back_held(instant, held, known, resume=resume, base=self.base(known.config))
            return self.run(way)


@dataclass(slots=True)
class StoreHost:
    """A process that writes through `context`, with heartbeats by `rules`."""

    context: ServiceContext
    rules: HeartbeatRules
    together: Any = None  # with group commit: how this attempt took its instant

    @property
    def own(self) -> set[str]:
        return self.context.own

    @property
    def base(self) -> str:
        return hadoop_base(self.context.url)

    def run(self, way: Procedure[T]) -> Procedure[T]:
        yield from ()
        context = self.context
        return run(way, context.store, context.clock, context.emit)

    def first_beat(self, instant: str) -> Procedure[FirstBeat]:
        from lockkit.table.occ.heartbeat import HeartbeatState, begin_ahead

        return begin_ahead(HeartbeatState(instant, self.rules.ttl_ms, holder=process_name()))

    def beat(self, taken: TakenInstant, begun: FirstBeat | None = None) -> Procedure[Heartbeat]:
        yield from ()
        return self.beat_later(taken, None, begun)

    def boot_ms(self) -> int:
        return self.context.clock.boot_ms()

    def beat_later(
        self, taken: TakenInstant, sent_ms: int | None, begun: FirstBeat | None = None
    ) -> Heartbeat:
        from lockkit.table.occ.heartbeat import Heartbeat  # only writers need it
        store, clock = self.context.store, self.context.clock
        return Heartbeat(
            taken.instant, store, clock=clock, rules=self.rules, sent_ms=sent_ms, begun=begun
        )  # fmt: skip

    def take_instant(self, config: TableConfig, block: Callable[[], Procedure[T]]) -> Procedure[T]:
        with self.context.taking_an_instant(config):
            return (yield from block())

    def hold(
        self, block: Callable[[AttemptHost, StateChange], Procedure[T]], scout: Scout | None = None
    ) -> Procedure[T]:
        context = self.context

        def beside(claiming: bool) -> None:
            assert scout is not None
            run(scout.prefetch(claiming), context.store, context.clock)

        holding = context.concurrency_control.hold(beside if scout else None)
        with deferred(context.emit) as later, holding as held:
            return (yield from block(StoreHost(replace(context, emit=later), self.rules), held))

    def behind(self, way: Procedure[None], name: str) -> Procedure[None]:
        from lockkit.table.occ.group.publish import linger
        yield from ()
        linger(self.context, way, name)

    def in_group(self, *, rewrites: bool = False) -> Any:
        from lockkit.table.occ.group.publish import in_group
        self.together = in_group(self.context.together, rewrites)
        return self.together

    def publish(
        self, prepared: Prepared, strategy: ConflictStrategy, first: First | None = None
    ) -> Procedure[Committed]:
        yield from ()
        context = self.context
        if prepared.transaction.config.commit == GROUP:
            from lockkit.table.occ.group.publish import publish_in_group
            if first is not None:  # no lock is taken here
                context.run(first(StateChange(EpochGuard(0))))
            return publish_in_group(context, prepared, strategy, self.together)
        return context.concurrency_control.publish(
            prepared, context.store, context.clock, context.emit, strategy=strategy, first=first
        )
