"""A streaming query of the scenario `table`: each batch must be written exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockkit.lab.verify.sim.task import Violated
from lockkit.lab.verify.table.host import EXPECTED, SimHost
from lockkit.lab.verify.table.interruption import CtrlC
from lockkit.lab.verify.table.ledger import TrackedAttempt
from lockkit.lab.verify.table.writers import KEYS, SimWriter
from lockkit.runtime import Procedure, Sleep
from lockkit.table.errors import CommitConflict
from lockkit.table.occ.commit import StateChange
from lockkit.table.occ.rollback import RollbackRefused, RolledBack
from lockkit.table.write.batch import BatchState, StreamBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockkit.lab.verify.table.scenario import TableRun

QUERY = "orders"
BATCHES_MAX, RUNS_MAX, CONFLICTS_MAX = 6, 25, 2
RESTART_S = 15
"""In worlds with a slow clock: how long after a failure the query starts again."""
REPEATED = 0.4
"""How often a batch that is done is sent again: its end was not in the checkpoint yet."""
SKIPPED = "a skipped batch of a stream is committed"


@dataclass(slots=True)
class SimQuery:
    """One run of the query, from the first batch that is not in its checkpoint, as in Spark."""

    run: TableRun
    host: SimHost
    tries: int = 0

    def live(self) -> Procedure[None]:
        run, dice = self.run, self.run.world.dice
        for _ in range(RUNS_MAX):
            number = run.batches_done
            if number >= BATCHES_MAX:
                return
            done = yield from self._sent(number)
            if done and dice.random() >= REPEATED:
                yield Sleep(dice.random() / 10)
                run.batches_done = max(run.batches_done, number + 1)
            yield Sleep(dice.random())
            if run.slow and not done:
                yield Sleep(RESTART_S)

    def _sent(self, number: int) -> Procedure[bool]:
        """Call the function of `foreachBatch` once; whether the batch is done."""
        batch = StreamBatch(QUERY, number)
        for tries in range(1 if self.run.slow else CONFLICTS_MAX):
            node = self.host.session.node
            self.tries += 1
            token = f"{node.name}.{node.life}/{number}/{self.tries}"
            mine = TrackedAttempt(token, f"{QUERY}/{number}", "batch")
            self.run.ledger.begins(node.name)
            self.host.interrupt()
            try:
                if not tries and (yield from self._is_over(batch)):
                    return True
                yield from self._written(mine, batch)
            except CommitConflict:
                self.run.ledger.refused(mine, "CommitConflict")
                self.host.land()
            except EXPECTED as error:
                self.run.ledger.refused(mine, type(error).__name__)
                self.host.land()
                return False
            except CtrlC as interrupt:
                self.run.ledger.interrupted(mine, getattr(interrupt, "__notes__", []))
                return False
            else:
                self.run.ledger.acknowledged(mine)
                return True
        return False

    def _is_over(self, batch: StreamBatch) -> Procedure[bool]:
        name, visible = f"{QUERY}/{batch.batch}", self.run.ledger.visible
        was = name in visible  # a restore may take it back while its state is read
        state = yield from self.host.run(batch.state(self._held, self.host.base))
        if state not in (BatchState.COMMITTED, BatchState.PASSED_OVER):
            return False
        self.run.world.reached.add("repeated batch")
        if not was and name not in visible:
            raise Violated(SKIPPED, f"batch {batch.batch}: {state.value}")
        return True

    def _held(
        self, rolls_back: Callable[[StateChange], Procedure[RolledBack | RollbackRefused]]
    ) -> Procedure[RolledBack | RollbackRefused]:
        return self.host.hold(lambda _host, held: rolls_back(held))

    def _written(self, mine: TrackedAttempt, batch: StreamBatch) -> Procedure[None]:
        writer, dice = SimWriter(self.run, self.host), self.run.world.dice
        keys = tuple(sorted({f"b{batch.batch}", dice.choice(KEYS)}))
        partition = self.run.partitions[batch.batch % len(self.run.partitions)]
        yield from writer.write(mine, partition, keys, batch)
