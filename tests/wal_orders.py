"""Every order of a flight of slots and the beginning of the next writer, with at most one fault.

The simulator's own world, whose schedule is a script: each run says how many could have moved at
each of its moves, so the next script is the next leaf of that tree. Two kinds of moves need no
order: an answer that waits tells nobody else anything, and a slot that is there is read the same
whenever it is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from lockkit.lab.verify.scenarios.wal import MUTANTS, WalRun, view_of
from lockkit.lab.verify.sim.memory_store import Sent, SimStore
from lockkit.lab.verify.sim.task import LateWrite, Task, TaskPhase, Violated
from lockkit.lab.verify.sim.world import SimWorld
from lockkit.protocol.outcome import Unknown
from lockkit.recipes.wal import Cursor
from lockkit.recipes.wal.writer import WriterState, append, open_log
from lockkit.runtime import Get, Procedure, Put

FAULTS = ("before", "after", "late")
"""What becomes of the n-th write, whose sender is told nothing: lost, done, or done at any move."""


@dataclass
class Script:
    """A schedule that is written down: which of those that could move did, at each branch."""

    chosen: list[int]
    memory_store: SimStore
    branches: list[tuple[int, int]] = field(default_factory=list)

    def pick(self, ready: list[Any]) -> Any:
        free = next((each for each in ready if isinstance(each, Task) and self._free(each)), None)
        if free is not None:
            return free
        at = len(self.branches)
        choice = self.chosen[at] if at < len(self.chosen) else 0
        self.branches.append((choice, len(ready)))
        return ready[choice]

    def _free(self, task: Task) -> bool:
        key = task.request.key if isinstance(task.request, Get) else ""
        return task.phase is not TaskPhase.SENT or (
            "wal/" in key and key in self.memory_store.objects
        )

    def following(self) -> list[int] | None:
        """The next script; None: this was the last."""
        branches = list(self.branches)
        while branches and branches[-1][0] + 1 == branches[-1][1]:
            branches.pop()
        return [*(choice for choice, _ in branches[:-1]), branches[-1][0] + 1] if branches else None


class Steady:
    """Dice that always fall the same."""

    count = 0

    def random(self) -> float:
        return 0.0

    def choice(self, among: Any) -> Any:
        return among[0]

    def getrandbits(self, _bits: int) -> int:
        self.count += 1
        return self.count


class Struck(SimStore):
    """Loses the answer of its n-th write."""

    world: SimWorld
    nth, fault, writes = 0, "", 0

    def decide(self, client: str, request: Sent, began_ms: float, *, judged: bool = False) -> Any:
        if isinstance(request, Put) and began_ms >= 0:
            self.writes += 1
            if self.fault and self.writes == self.nth:
                if self.fault == "late":
                    self.world.flying.append(LateWrite(client, request, -1.0, 0.0, 0.0))
                elif self.fault == "after":
                    super().decide(client, request, began_ms)
                return Unknown(self.fault)
        return super().decide(client, request, began_ms, judged=judged)


def flight(run: WalRun, log: WriterState, name: str, size: int) -> Procedure[None]:
    batches, first = [[f"{name}.{number}"] for number in range(size)], log.next
    texts = [[json.dumps(each) for each in batch] for batch in batches]
    run.on_answers(log, first, batches, (yield from append(log, texts)))


def beginner(run: WalRun) -> Procedure[None]:
    log = yield from open_log()
    _, known = yield from view_of(Cursor())
    run.begin(log, known)
    yield from flight(run, log, "new", 1)


def play(
    chosen: list[int], size: int, fault: str, nth: int
) -> tuple[Script, int, str | None]:
    """One order: its script, how many writes there were, and what was violated."""
    world = SimWorld("orders", 1)
    world.dice = Steady()  # type: ignore[assignment]
    world.memory_store = memory_store = Struck(world.profile, world.time, world.dice)
    run = WalRun(world)
    log = world.run(open_log())
    run.begin(log, [])
    memory_store.world, memory_store.writes, memory_store.nth, memory_store.fault = (
        world,
        0,
        nth,
        fault,
    )
    script = world.schedule = Script(chosen, memory_store)  # type: ignore[assignment]
    world.spawn(world.node("old"), flight(run, log, "old", size))
    world.spawn(world.node("new"), beginner(run))
    try:
        world.play(10_000)
        writes, memory_store.nth = memory_store.writes, 0
        world.schedule = Script([], memory_store)  # type: ignore[assignment]
        run.end()
    except Violated as violated:
        return script, memory_store.writes, str(violated)
    return script, writes, None


def orders(
    size: int, fault: str = "", nth: int = 0, *, most: int = 100_000
) -> tuple[int, int, str | None]:  # fmt: skip
    """How many there are, the most writes of one of them, and the first violation."""
    chosen: list[int] | None = []
    played = writes = 0
    while chosen is not None:
        assert played < most, f"more than {most} orders"
        with MUTANTS["ignores conditions"].planted():  # a proof would only make the orders more
            script, wrote, violation = play(chosen, size, fault, nth)
        played, writes = played + 1, max(writes, wrote)
        if violation:
            return played, writes, violation
        chosen = script.following()
    return played, writes, None


if __name__ == "__main__":
    import sys

    flights = [int(each) for each in sys.argv[1:]] or [1]
    for flown in flights:
        for strikes in ("", *FAULTS):
            place = 1 if strikes else 0
            most_writes = place
            while place <= most_writes:
                count, wrote, wrong = orders(flown, strikes, place, most=10_000_000)
                most_writes = wrote if strikes else -1
                print(flown, strikes or "no fault", place, f"{count:,}", wrong, flush=True)
                place += 1
