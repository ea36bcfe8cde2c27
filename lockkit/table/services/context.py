"""The desk: what the services of one process work with, and share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from lockkit.clock import Clock
from lockkit.runtime import Procedure, run
from lockkit.sinks import Emit, silent
from lockkit.stores import Store
from lockkit.table.format.plans import NO_BASE, hadoop_base
from lockkit.table.format.properties import HUDI, TableConfig
from lockkit.table.occ.concurrency import SINGLE, Turns
from lockkit.table.occ.liveness import forget
from lockkit.table.occ.rollback import RolledBack, Spared, roll_back
from lockkit.table.occ.transaction import Known
from lockkit.table.services.schedule import ServiceRules


@dataclass(slots=True, kw_only=True)
class Desk:
    """One table, and the turns that its services take."""

    url: str
    store: Store
    turns: Turns
    rules: ServiceRules = field(default_factory=ServiceRules)
    clock: Clock = field(default_factory=Clock)
    emit: Emit = silent
    own: set[str] = field(default_factory=set)
    """Instants that this process is at."""

    def run(self, way: Procedure[Any]) -> Any:
        return run(way, self.store, self.clock, self.emit)

    def tell(self, text: str, instant: str) -> None:
        self.emit("note", text=text, instant=instant)

    def base(self, config: TableConfig) -> str:
        """The table's address in plans, where Hudi may have to finish them."""
        return hadoop_base(self.url) if config.mode == HUDI else NO_BASE

    @contextmanager
    def taking_an_instant(self, config: TableConfig) -> Iterator[None]:
        """Where Hudi writes too, under the lock; a mutex costs nothing."""
        turn = config.mode == HUDI or self.turns.mode == SINGLE
        with self.turns.hold() if turn else nullcontext():
            yield

    def roll_back(
        self, known: Known, instant: str, *, resume: str | None = None
    ) -> RolledBack | Spared:
        """Whatever its writer does: whether it is dead is for the caller to know."""
        with self.turns.hold() as held:
            way = roll_back(
                instant, held.guard, known, believe=held.believe, resume=resume,
                base=self.base(known.config),
            )  # fmt: skip
            outcome: RolledBack | Spared = self.run(way)
        self.run(forget(instant))
        return outcome
