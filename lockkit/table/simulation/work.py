"""One attempt of a simulated writer: its instant, its heartbeat, its commit, and how it is left.

The order of the steps is that of `Table.append`, `lockkit.spark.write` and `table.clustering`,
where threads and a real store carry out the same procedures.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockkit.drive import Procedure
from lockkit.sim.lease import Session
from lockkit.state import LockLost
from lockkit.stores import NoAnswer
from lockkit.table.ask import TableError
from lockkit.table.commit import Committed
from lockkit.table.conflict import CommitConflict
from lockkit.table.decide import CommitUnknown
from lockkit.table.layout import WriteStat
from lockkit.table.rollback import RolledBack, roll_back
from lockkit.table.simulation.heart import Heart
from lockkit.table.simulation.ledger import Attempt
from lockkit.table.simulation.turn import publish
from lockkit.table.transaction import Prepared, Taken
from lockkit.table.turns import SETTLE_TRIES_MAX, Epoch
from lockkit.table.withdraw import withdraw

if TYPE_CHECKING:
    from lockkit.table.simulation.scenario import TableRun

EXPECTED = (TableError, LockLost, CommitUnknown, NoAnswer)
"""How a writer's procedure may end, besides well."""


@dataclass(slots=True)
class Work:
    """What one attempt has under way."""

    run: TableRun
    session: Session
    attempt: Attempt
    taken: Taken | None = None
    heart: Heart | None = None
    paths: list[str] | None = None
    """Its files, where it knows them all."""

    # --- its instant -----------------------------------------------------------------------------

    def began(self, taken: Taken) -> Procedure[None]:
        """It has an instant: beat at once."""
        yield from self._beats(taken).start(self._spawn)

    def began_quietly(self, taken: Taken) -> None:
        """It has another instant: beat once that takes long."""
        if self.heart is not None:
            self._spawn(self.heart.finish())
        self.paths = []
        self._beats(taken).start_quietly(self._spawn)

    def wrote(self, stats: tuple[WriteStat, ...]) -> None:
        self.paths = [each.path for each in stats]

    def _beats(self, taken: Taken) -> Heart:
        self.taken, self.attempt.instant = taken, taken.instant
        self.heart = Heart.of(taken.instant, self.session.node)
        self.run.hearts.append(self.heart)
        return self.heart

    def _spawn(self, procedure: Generator[Any, Any, Any]) -> None:
        node = self.session.node
        self.run.world.spawn(node, procedure, f"{node.name} beats")

    # --- its commit ------------------------------------------------------------------------------

    def publish(self, prepared: Prepared) -> Procedure[Committed]:
        """As `publish_and_settle`: again, while nobody knows what became of it."""
        assert self.heart is not None
        self.heart.check()
        unknown: CommitUnknown | None = None
        for _ in range(SETTLE_TRIES_MAX):
            try:
                committed = yield from publish(self.run, self.session, prepared, self.heart.check)
            except CommitUnknown as error:
                unknown = error
            except EXPECTED as error:
                if unknown is None:
                    raise
                refused = isinstance(error, CommitConflict)
                if not refused or not (yield from self._undo(prepared)):
                    raise unknown from error
                raise
            else:
                yield from self.heart.finish()
                return committed
        assert unknown is not None
        raise unknown

    def _undo(self, prepared: Prepared) -> Procedure[bool]:
        paths = [stat.path for stat in prepared.stats]
        known = prepared.transaction.taken.known
        try:
            outcome = yield from roll_back(prepared.instant, Epoch(0), known, paths=paths)
        except EXPECTED:
            return False
        return isinstance(outcome, RolledBack)

    # --- how it is left --------------------------------------------------------------------------

    def back_out(self, error: Exception | None) -> Procedure[None]:
        """As `BackOut`: after `error`, or because there is nothing to commit."""
        if self.heart is None or self.taken is None:
            return
        self.heart.over = True
        if isinstance(error, CommitUnknown):
            return
        try:
            yield from withdraw(self.taken, Epoch(0), paths=self.paths)
        except EXPECTED:
            yield from self.heart.give_up()
        else:
            yield from self.heart.finish()
