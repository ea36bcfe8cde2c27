"""The scenarios `commit` and `clean`: whole transactions, markers, heartbeats, rollbacks, cleans.

The simulator runs the table's own procedures. In half of the worlds there is no lock, because the
fence alone must keep the table right; in the others it is the real lock. A file of a commit is a
JSON count for each key. An upsert adds one, so a sum shows a row too many or too few.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lockkit.lab.verify.mutants import Mutant, fence_of
from lockkit.lab.verify.sim import SimScenario
from lockkit.lab.verify.sim.fault_injection import stall
from lockkit.lab.verify.sim.fault_profile import FaultProfile
from lockkit.lab.verify.sim.lease import RATE_OFF, LeaseRun, around
from lockkit.lab.verify.sim.memory_store import PROFILES, SOUND, DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.lab.verify.sim.world import SimWorld
from lockkit.lab.verify.table.heart import SimHeartbeat
from lockkit.lab.verify.table_truth import TableTruth
from lockkit.lab.verify.table_workers import (
    EXPECTED,
    SCHEMA,
    WorkerGrant,
    WorkerTransaction,
    begin_cleaner,
    begin_writer,
    puller,
    read_counts,
)
from lockkit.lab.verify.wrong_rules import CommitGuard
from lockkit.protocol.policy import Policy
from lockkit.runtime import Procedure
from lockkit.table.format.properties import TableConfig
from lockkit.table.occ.committing import commit
from lockkit.table.occ.creation import create_table
from lockkit.table.occ.fence import FENCE_KEY
from lockkit.table.occ.prepared import prepare
from lockkit.table.occ.transaction import begin
from lockkit.table.read.opening import load_snapshot

STEPS = 900
STALLS_DECIDED = 0.2
CLOCK_OFF_MS, GRAINS_MS = 2_000, (1, 1, 1_000)
BLOCKED = "the next writer can commit"
REPORTED = "what a writer was told is so"
SUMS = "every commit added one to each of its keys"


@dataclass(slots=True)
class CommitRun:
    """The table of one seed, and all its writers, services and readers."""

    world: SimWorld
    leases: LeaseRun
    config: TableConfig
    locked: bool
    hasty: bool
    """Whoever takes back takes back what lives, too: then the fence decides between the two."""
    truth: TableTruth = field(init=False)
    hearts: dict[str, SimHeartbeat] = field(default_factory=dict)
    """By instant."""
    tried: dict[str, WorkerTransaction] = field(default_factory=dict)
    epoch: int = 0
    grants: int = 0

    def __post_init__(self) -> None:
        self.truth = TableTruth(self.lives, self.leases.fence is not CommitGuard.OFF)

    # --- what must hold --------------------------------------------------------------------------

    def on_write(self, write: DecidedRequest, after: StoredObject | None) -> None:
        self.leases.on_write(write, after)
        self.truth.on_write(write, after)
        if getattr(write.request, "key", "") == FENCE_KEY and self.world.fault_profile.nodes:
            self._at_the_worst_moment(write.client)

    def _at_the_worst_moment(self, name: str) -> None:
        """A client that has just decided may pause before it acts on the decision."""
        if self.world.dice.random() < STALLS_DECIDED:
            stall(self.world, next(each for each in self.world.nodes if each.name == name))

    def lives(self, instant: str) -> bool:
        heart = self.hearts.get(instant)
        return heart is not None and heart.believes()

    def noted(self, kind: str, data: Mapping[str, Any]) -> None:
        if kind == "published" and data["instant"] not in self.truth.visible:
            raise Violated(REPORTED, f"{data['instant']} was acknowledged, and is not visible yet")
        if kind == "checked":
            self.truth.covered[data["instant"]] = (
                frozenset(data["covered"]), data.get("horizon") or ""
            )  # fmt: skip

    def crashed(self, node: Node) -> None:
        self.leases.crashed(node)
        for each in self.hearts.values():
            each.over |= each.node is node

    def end(self) -> None:
        """Let all tasks end, roll back what dead writers left, then judge the table."""
        world = self.world
        world.finish()
        try:
            world.run(self.last())
        except EXPECTED as error:
            raise Violated(BLOCKED, str(error)) from error
        reported = {instant: each.reported for instant, each in self.tried.items()}
        for instant, what in reported.items():
            if what == instant and instant not in self.truth.visible:
                raise Violated(REPORTED, f"{instant} was acknowledged, and is not visible")
            if what in ("CommitConflict", "LockLost") and instant in self.truth.visible:
                raise Violated(REPORTED, f"{instant} was told {what}, and is visible")
        expected: dict[str, int] = {}
        for instant in self.truth.visible:
            for key in self.tried[instant].keys if instant in self.tried else ():
                expected[key] = expected.get(key, 0) + 1
        found = world.run(self.counts())
        if found != expected:
            raise Violated(SUMS, f"the table has {found}, its commits say {expected}")

    def last(self) -> Procedure[None]:
        """One more writer after all others: it publishes whatever was decided."""
        prepared = yield from prepare((yield from begin()), [], schema=SCHEMA)
        yield from commit(prepared, WorkerGrant(self.epoch + 1_000_000))

    def counts(self) -> Procedure[dict[str, int]]:
        snapshot, found = (yield from load_snapshot()), dict[str, int]()
        for each in snapshot.slices:
            found |= yield from read_counts(each.path)
        return found


def _set_up(kind: str, seed: str, steps: int, mutant: Mutant | None) -> CommitRun:
    import fastavro  # noqa: F401 - missing, it is to be told at once, and not by every plan

    dice = random.Random(f"{kind} {seed}")
    policy = Policy() if mutant is None else mutant.of(Policy())
    profile, fault_profile = PROFILES[dice.choice(SOUND)], FaultProfile.of(dice)
    world = SimWorld(seed, steps, profile, fault_profile, dice.random() < 0.3)
    config = TableConfig(name="t", record_key="id", version=dice.choice((6, 9)), mode="fenced")
    locked, hasty = dice.random() < 0.5, dice.random() < 0.3
    run = CommitRun(world, LeaseRun(world, policy, fence_of(mutant)), config, locked, hasty)
    world.run(create_table(config))
    world.memory_store.on_write, world.on_crash, world.on_note = (
        run.on_write,
        run.crashed,
        run.noted,
    )
    grain_ms = dice.choice(GRAINS_MS)
    births = [("W", partial(begin_writer, run))] * (2 + int(dice.random() * 2))
    if kind == "clean":
        births.append(("C", partial(begin_cleaner, run)))
    for number, (letter, birth) in enumerate(births, 1):
        off_ms = int(around(dice, CLOCK_OFF_MS))
        node = world.node(f"{letter}{number}", rate=1 + around(dice, RATE_OFF), offset_ms=off_ms)
        node.clock_steps_ms, node.birth, node.clock.grain_ms = CLOCK_OFF_MS, birth, grain_ms
        birth(node)
    reader = world.node("R")
    world.spawn(reader, puller(run))
    return run


SCENARIOS = tuple(
    SimScenario(kind, says, STEPS, partial(_set_up, kind), sometimes)
    for kind, says, sometimes in (
        (
            "commit", "writers with heartbeats and markers commit to one table, others follow it",
            ("lost response", "roll-forward", "refused commit", "stall", "restart"),
        ),
        (
            "clean", "the same, and a service that takes back the dead and cleans old files",
            ("lost response", "roll-forward", "refused commit", "stall", "restart", "rollback"),
        ),
    )
)  # fmt: skip
