"""What the fence of a simulated table decided, in its order, and what became visible of that.

The ledger judges the rows. Some mistakes harm no row before others join them: this judge knows the
fence's own rules, and sees each broken one at the write that breaks it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lockkit.lab.verify.sim.memory_store import StoredObject
from lockkit.lab.verify.sim.task import Violated
from lockkit.lab.verify.table.reader import completed_name
from lockkit.protocol.outcome import Found
from lockkit.table.occ.fence import COMMIT, FENCE_KEY, ROLLBACK, Decided, parse_fence
from lockkit.table.occ.liveness import HEARTBEATS, heartbeat_of

UNDECIDED = "visible, and never decided"
BOTH = "committed, and rolled back"
GAP = "a later commit is visible before an earlier one"
TIMES = "completion times do not rise as the commits were decided"
REVIVED = "a heartbeat that was ended beats again"


@dataclass(slots=True)
class Decisions:
    """Every decision of a fenced table without group commit, and the visible commits."""

    decided: list[Decided] = field(default_factory=list)
    visible: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    """Instants whose heartbeat was ended."""

    def on_write(self, key: str, after: StoredObject | None) -> None:
        """A write was applied. Raises `Violated`."""
        if key.startswith(HEARTBEATS):
            self._beat(key.removeprefix(HEARTBEATS), after)
        elif after is None:
            return
        elif key == FENCE_KEY:
            self._decide(parse_fence(after.body).head)
        elif (commit := completed_name(key)) is not None:
            self._complete(commit.instant)

    def _of(self, kind: str) -> list[str]:
        return [each.instant for each in self.decided if each.kind == kind]

    def _decide(self, entry: Decided) -> None:
        other = ROLLBACK if entry.kind == COMMIT else COMMIT
        if entry.instant in self._of(other):
            raise Violated(BOTH, entry.instant)
        times = [each.completion for each in self.decided if each.completion]
        if entry.completion and times and entry.completion <= max(times):
            raise Violated(TIMES, f"{entry.instant} at {entry.completion}")
        self.decided.append(entry)

    def _complete(self, instant: str) -> None:
        commits = self._of(COMMIT)
        if instant not in commits:
            raise Violated(UNDECIDED, instant)
        for earlier in commits[: commits.index(instant)]:
            if earlier not in self.visible:
                raise Violated(GAP, f"{instant} before {earlier}")
        self.visible.add(instant)

    def _beat(self, instant: str, after: StoredObject | None) -> None:
        if after is None:  # forgotten: nothing is left that could beat again
            self.ended.discard(instant)
        elif heartbeat_of(instant, Found(after.body, "")).ended:
            self.ended.add(instant)
        elif instant in self.ended:
            raise Violated(REVIVED, instant)
