"""The scenario `table`: everything that lockkit does to a table, at once, with clocks apart.

Half of the worlds have no fault at all: no crash, no lost answer, no stall, only a schedule. The
judge is the ledger, with a reader that shares no code with lockkit's own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lockkit.drive import Procedure
from lockkit.mutants import Mutant
from lockkit.rules import Rules
from lockkit.sim import Scenario
from lockkit.sim.clock import VirtualClock
from lockkit.sim.lease import RATE_OFF, LeaseRun, around
from lockkit.sim.schedule import Pct, Prompt, PromptPct, Uniform
from lockkit.sim.shelf import PROFILES, SOUND, Decided, Stored
from lockkit.sim.task import Node, Violated
from lockkit.sim.weather import CALM, Weather
from lockkit.sim.world import World
from lockkit.table.look import look_at
from lockkit.table.properties import TableConfig, create_table
from lockkit.table.simulation.heart import Heart
from lockkit.table.simulation.ledger import Attempt, Ledger, Stream
from lockkit.table.simulation.rows import SCHEMA
from lockkit.table.simulation.services import Service, follow, pull, read_table
from lockkit.table.simulation.work import EXPECTED
from lockkit.table.simulation.writers import Writer
from lockkit.table.transaction import begin, prepare
from lockkit.table.turns import commit_alone

STEPS = 2_500
CLOCK_OFF_MS, AHEAD_MS = 2_000, (0, 6_000, 60_000, 600_000)
"""How far from true time a node's clock may be, and how far ahead one node's is."""
PULLS_MAX = 20
CHANGES_MAX = 60
SCHEDULES: tuple[Callable[[World], Uniform | Pct], ...] = (
    lambda world: Uniform(world.dice),
    lambda world: Prompt(world.dice, world.passing),
    lambda world: Pct(world.dice, world.steps, world.passing),
    lambda world: PromptPct(world.dice, world.steps, world.passing, CHANGES_MAX),
    lambda world: PromptPct(world.dice, world.steps, world.passing, 10 * CHANGES_MAX),
)
BLOCKED = "the next writer can commit"


@dataclass(slots=True)
class TableRun:
    """One seed's table, everybody who does something to it, and the judge."""

    world: World
    leases: LeaseRun
    config: TableConfig
    locked: bool
    checkpoint_every: int
    partitions: tuple[str, ...]
    ledger: Ledger = field(init=False)
    hearts: list[Heart] = field(default_factory=list)
    at_rest: bool = False
    """Whether every process has ended: then no lock is needed."""

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.world.shelf)

    def heard(self, write: Decided, after: Stored | None) -> None:
        self.leases.heard(write, after)
        self.ledger.heard(write, after)

    def noted(self, kind: str, data: Mapping[str, Any]) -> None:
        if kind == "refused" and data["error"] == "CommitConflict":
            self.world.reached.add("refused commit")
        if data.get("rolled_forward"):
            self.world.reached.add("roll-forward")

    def crashed(self, node: Node) -> None:
        self.leases.crashed(node)
        for each in self.hearts:
            each.over |= each.node is node

    @property
    def prompt(self) -> bool:
        """Whether nothing fails and requests take no time: then a lead over others is kept."""
        return self.world.weather == CALM and isinstance(self.world.schedule, Prompt | PromptPct)

    def busy(self) -> bool:
        """Whether a writer is still at work, or will be back."""
        at_work = [each.node for each in self.world.tasks]
        down = [each for each in self.world.nodes if each.down]
        return any(each.name.startswith("W") for each in (*at_work, *down))

    def end(self) -> None:
        """Everything comes to rest; one more writer commits; every stream is read to its end."""
        # Leases run out and stores throttle in a calm world, too: then a withdrawal may fail.
        interval_ms = self.world.profile.write_interval_ms
        calm = self.world.weather == CALM and not self.locked and not interval_ms
        self.world.finish()
        if calm:
            self.ledger.nothing_pending()
        try:
            self.world.run(self._last())
        except EXPECTED as error:
            raise Violated(BLOCKED, str(error)) from error
        for stream in self.ledger.streams:
            self.world.run(pull(self, stream))
        self.ledger.judge()

    def _last(self) -> Procedure[None]:
        """Whatever is still pending is rolled back; then an empty commit is made."""
        self.at_rest = True
        service = Service(self, self.leases.join(Node("last", VirtualClock(time=self.world.time))))
        look, _ = yield from look_at(None, 0)
        yield from service.take_back(look, "EAGER")
        attempt = self.ledger.tries(Attempt("last", "last", "empty"))
        prepared = yield from prepare(
            (yield from begin()), [], schema=SCHEMA, extra={"token": attempt.token}
        )
        yield from commit_alone(prepared)
        self.ledger.acknowledged(attempt)


def _set_up(seed: str, steps: int, mutant: Mutant | None) -> TableRun:
    import fastavro  # noqa: F401 - if it is missing, say so before anything else

    dice = random.Random(f"table {seed}")
    rules = Rules() if mutant is None else mutant.of(Rules())
    profile = PROFILES[dice.choice(SOUND)]
    weather = CALM if dice.random() < 0.5 else Weather.of(dice)
    world = World(seed, steps, profile, weather, uniform=True)
    world.schedule = dice.choice(SCHEDULES)(world)
    partitioned = dice.random() < 0.5
    config = TableConfig(
        name="t", record_key="id", version=dice.choice((6, 9)), mode="fenced", buckets=2,
        partition_by="region" if partitioned else None,
    )  # fmt: skip
    run = TableRun(
        world, LeaseRun(world, rules), config, dice.random() < 0.5, dice.choice((2, 5, 16)),
        ("region=EU", "region=US") if partitioned else ("",),
    )  # fmt: skip
    world.run(create_table(config))
    world.shelf.heard, world.on_crash, world.on_note = run.heard, run.crashed, run.noted
    ahead_ms = dice.choice(AHEAD_MS)
    births = [("W", partial(_writer, run))] * (2 + int(dice.random() * 3))
    births += [("S", partial(_service, run))] * int(dice.random() * 3)
    for number, (letter, birth) in enumerate(births, 1):
        node = world.node(
            f"{letter}{number}", rate=1 + around(dice, RATE_OFF),
            offset_ms=int(around(dice, CLOCK_OFF_MS)) + (ahead_ms if number == 1 else 0),
        )  # fmt: skip
        node.clock_steps_ms, node.birth = CLOCK_OFF_MS, birth
        birth(node)
    world.spawn(world.node("R"), read_table(run))
    stream = Stream("P")
    run.ledger.streams.append(stream)
    world.spawn(world.node("P"), follow(run, stream))
    return run


def _writer(run: TableRun, node: Node) -> None:
    run.world.spawn(node, Writer(run, run.leases.join(node)).live())


def _service(run: TableRun, node: Node) -> None:
    run.world.spawn(node, Service(run, run.leases.join(node)).live())


SCENARIO = Scenario(
    "table", "appends, upserts, overwrites, deletes, services and readers of one table", STEPS,
    _set_up,
    ("refused commit", "clustering", "clean", "rollback", "roll-forward", "stall", "restart"),
)  # fmt: skip
