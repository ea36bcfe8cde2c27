"""The host of a real attempt: a store, a lock, and a thread that beats.

None of its procedures yields: each step is carried out before it returns, so an interrupt is raised
inside the attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from lockkit.runtime import Procedure, run
from lockkit.table.format.plans import hadoop_base
from lockkit.table.format.properties import TableConfig
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.concurrency import Held
from lockkit.table.occ.conflict import Strategy
from lockkit.table.occ.heartbeat import Heartbeat
from lockkit.table.occ.liveness import HeartbeatRules
from lockkit.table.occ.publish import deferred
from lockkit.table.occ.transaction import Prepared, Taken
from lockkit.table.services.context import Desk
from lockkit.table.write.attempt import Host

T = TypeVar("T")


class ThreadHeart(Heartbeat):
    """A `Heartbeat`, as an attempt asks it."""

    def finished(self) -> Procedure[None]:
        yield from ()
        self.finish()

    def given_up(self) -> Procedure[None]:
        yield from ()
        self.give_up()


@dataclass(slots=True)
class StoreHost:
    """A process that writes through `desk`, and beats by `rules`."""

    desk: Desk
    rules: HeartbeatRules

    @property
    def own(self) -> set[str]:
        return self.desk.own

    @property
    def base(self) -> str:
        return hadoop_base(self.desk.url)

    def run(self, way: Procedure[T]) -> Procedure[T]:
        yield from ()
        desk = self.desk
        return run(way, desk.store, desk.clock, desk.emit)

    def beat(self, taken: Taken) -> Procedure[ThreadHeart]:
        yield from ()
        desk = self.desk
        return ThreadHeart(taken.instant, desk.store, clock=desk.clock, rules=self.rules)

    def beat_later(self, taken: Taken) -> ThreadHeart:
        desk, quiet_s = self.desk, self.rules.interval_ms / 2000
        return ThreadHeart(
            taken.instant, desk.store, clock=desk.clock, rules=self.rules, quiet_s=quiet_s
        )

    def take_instant(
        self, config: TableConfig, block: Callable[[], Procedure[T]]
    ) -> Procedure[T]:
        with self.desk.taking_an_instant(config):
            return (yield from block())

    def hold(self, block: Callable[[Host, Held], Procedure[T]]) -> Procedure[T]:
        desk = self.desk
        with deferred(desk.emit) as later, desk.turns.hold() as held:
            return (yield from block(StoreHost(replace(desk, emit=later), self.rules), held))

    def publish(self, prepared: Prepared, strategy: Strategy) -> Procedure[Committed]:
        yield from ()
        desk = self.desk
        return desk.turns.publish(
            prepared, desk.store, desk.clock, desk.emit, strategy=strategy
        )
