"""An operator of the scenario `table`: removes the lock object by hand, or switches the mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockkit.lab.verify.table.host import EXPECTED, SimHost
from lockkit.lock.storage import LOCK_KEY
from lockkit.runtime import Delete, Procedure, Sleep
from lockkit.table.format.properties import FENCED, HUDI
from lockkit.table.occ.mode import switch_mode

if TYPE_CHECKING:
    from lockkit.lab.verify.table.scenario import TableRun

SWITCHES_MAX = 4
REMOVALS = 5
"""How often the lock object is removed, so that a commit follows within the run."""


@dataclass(slots=True)
class Operator:
    """A process that does what only a human does."""

    run: TableRun
    host: SimHost

    def remove_the_lock(self) -> Procedure[None]:
        """Remove the lock object without its holder's knowledge; epochs restart from 1."""
        for _ in range(REMOVALS):
            yield Sleep(self.run.world.dice.random() * 8)
            yield Delete(LOCK_KEY)

    def switch_the_mode(self) -> Procedure[None]:
        """Switch the mode and back, under the lock, while writers are at work."""
        for number in range(SWITCHES_MAX):
            yield Sleep(self.run.world.dice.random() * 4)
            mode = FENCED if number % 2 else HUDI
            try:
                done = yield from self.host.hold(
                    lambda _host, held, mode=mode: switch_mode(  # type: ignore[misc]
                        mode, held.guard, believe=held.believe
                    )
                )
            except EXPECTED:  # a commit is under way, or the lock is busy
                continue
            if done:
                self.run.world.reached.add("mode switch")
