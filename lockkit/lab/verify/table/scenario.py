"""The scenario `table`: everything that lockkit does to a table, at once, with clocks apart.

Half of the worlds have no fault at all: no crash, no lost answer, no stall, only a schedule. The
judge is the ledger, with a reader that shares no code with lockkit's own.
One file because a seed draws a world's clients, its faults and its schedule together.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lockkit.lab.verify.mutants import Mutant, fence_of
from lockkit.lab.verify.sim import SimScenario
from lockkit.lab.verify.sim.clock import VirtualClock
from lockkit.lab.verify.sim.fault_injection import stall
from lockkit.lab.verify.sim.fault_profile import CALM, FaultProfile
from lockkit.lab.verify.sim.lease import LeaseRun
from lockkit.lab.verify.sim.memory_store import PROFILES, SOUND, DecidedRequest, StoredObject
from lockkit.lab.verify.sim.run import RATE_OFF, SeedRun, around
from lockkit.lab.verify.sim.schedule import (
    Pct,
    Prompt,
    PromptOvertaken,
    PromptPct,
    PromptSlow,
    Uniform,
)
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.lab.verify.sim.world import SimWorld
from lockkit.lab.verify.table.decisions import Decisions
from lockkit.lab.verify.table.heart import SimHeartbeat
from lockkit.lab.verify.table.host import EXPECTED, SimHost
from lockkit.lab.verify.table.hudi_writer import SKEW_MS, HudiWriter
from lockkit.lab.verify.table.ledger import AttemptLedger, Stream, TrackedAttempt
from lockkit.lab.verify.table.operator import Operator
from lockkit.lab.verify.table.owners import Owners
from lockkit.lab.verify.table.rows import SCHEMA
from lockkit.lab.verify.table.services import SimService, follow, pull, read_table
from lockkit.lab.verify.table.slow_hudi import SlowHudiWriter
from lockkit.lab.verify.table.stream import SimQuery
from lockkit.lab.verify.table.writers import SimWriter
from lockkit.lab.verify.wrong_rules import CommitGuard
from lockkit.lock.storage import LOCK_KEY
from lockkit.protocol.outcome import Found
from lockkit.protocol.policy import Policy
from lockkit.runtime import Procedure
from lockkit.table.format.properties import FENCED, GROUP, HUDI, TableConfig
from lockkit.table.occ.committing import commit_alone
from lockkit.table.occ.creation import create_table
from lockkit.table.occ.fence import FENCE_KEY, parse_fence
from lockkit.table.occ.group.decision import GROUP_WINDOW_MAX
from lockkit.table.occ.group.process import GroupProcess
from lockkit.table.occ.group.publish import new_client, publish_together, see_published
from lockkit.table.occ.liveness import HEARTBEATS, heartbeat_of
from lockkit.table.occ.prepared import begin_files, is_begun, prepare
from lockkit.table.occ.transaction import begin
from lockkit.table.services.view import look_at

STEPS = 2_500
CLOCK_OFF_MS, AHEAD_MS = 2_000, (0, 6_000, 60_000, 600_000)
"""How far from true time a node's clock may be, and how far ahead one node's is."""
CHANGES_MAX = 60
SCHEDULES: tuple[Callable[[SimWorld], Uniform | Pct], ...] = (
    lambda world: Uniform(world.dice),
    lambda world: Prompt(world.dice, world.passing),
    lambda world: Pct(world.dice, world.steps, world.passing),
    lambda world: PromptPct(world.dice, world.steps, world.passing, CHANGES_MAX),
    lambda world: PromptPct(world.dice, world.steps, world.passing, 10 * CHANGES_MAX),
    lambda world: PromptSlow(world.dice, world.passing, SLOW_WRITER),
)
PROMPT = (1, 3, 4, 5)
"""Those in which requests take no time."""
SLOW_WRITER = "W2"
"""Its clock is not the one that is far ahead."""
BLOCKED = "the next writer can commit"
ALIVE = "no client ends the heartbeat of a writer that lives"
STALLS_DECIDED = 0.2
STEADY = 0.6
MEETS = 0.3
APART, APART_MS = 0.5, 400
THREADS, OTHER_PROCESS = 0.2, "W3"
SLOW = 0.3
"""How often Hudi's clocks differ by more than Hudi allows, in the scenario `hudi-table`."""
HOLDS = 0.6
CUT_OFF, CUT_OFF_OFTEN = 0.1, 0.5
INTERRUPTS, PLANS_STALL = 0.3, 0.5
CLUSTERS_BESIDE, BESIDE, SLEEPS_MS = 4, "C", 15_000.0
_PLAN = re.compile(r"\.(replacecommit|clustering|rollback)\.requested$")
PROMPT_INSTANTS_MAX, OVERTAKEN_INSTANTS_MAX = 8, 5
THREADS_INSTANTS_MAX = 16
"""Three writers commit without a pause. As processes, too, they pass a clustering nine times."""
Client = Callable[["TableRun", SimHost], Any]


@dataclass(slots=True)
class TableRun(SeedRun):
    """The table of one seed, all its clients, and the judge."""

    leases: LeaseRun
    config: TableConfig
    locked: bool
    checkpoint_every: int
    partitions: tuple[str, ...]
    hasty: bool
    """Services take living writers for dead, too: then the fence decides between the two."""
    ledger: AttemptLedger = field(init=False)
    hearts: dict[str, SimHeartbeat] = field(default_factory=dict)
    """By instant."""
    retaken: set[str] = field(default_factory=set)
    """Instants that were withdrawn and taken again. A client that saw the first may end the second
    before its first beat."""
    interrupts: float = 0.0
    """How often an attempt is cut short, by Ctrl-C or by an outage."""
    cut_off: float = CUT_OFF
    """How often a writer cannot replace the fence any more, and what it sent first lands late."""
    plans_stall: float = 0.0
    """How often a process sleeps right after the plan of a clustering or a rollback."""
    clusters_beside: int = 0
    """How many clusterings may begin beside a decision that is still on its way."""
    warm: bool = False
    """Whether a writer continues from its own last commit without reading the table again."""
    holds: bool = False
    """In mode hudi: whether such a write holds the lock from its instant to its commit."""
    hints: random.Random | None = None
    """With group commit: a busy client forgets now and then that it has met others."""
    steady: bool = False
    """With group commit: writers hardly pause, so that their rewrites begin without a listing."""
    meets: bool = False
    """With group commit: they mostly believe that they meet others, so their rewrites read the
    fence first, and list while they send their files."""
    apart: bool = False
    """With group commit: the first writer rewrites and the other one appends, and its clock is a
    bit ahead. So a commit is decided between two of its own, with an instant between theirs, and
    only the version of the fence shows that its next snapshot lacks it."""
    window_max: int = GROUP_WINDOW_MAX
    """How many decisions the fence of group commit remembers."""
    threads: GroupProcess | None = None
    """With group commit: its writers are threads of one process, except for `OTHER_PROCESS`."""
    foreign: int = 0
    """Writers by Hudi's rules. Then clocks differ by no more than Hudi requires."""
    slow: bool = False
    """Whether the clock of one of them is slower than that (`SlowHudiWriter`)."""
    expired: bool = False
    """Whether a writer ended because its heartbeat had expired."""
    queries: int = 0
    """Runs of one streaming query; a second one is an old run that was not stopped."""
    stopped_runs: set[str] = field(default_factory=set)
    """Instants of a query's run that another run of it stopped."""
    batches_done: int = 0
    """What the query's checkpoint says."""
    owners: Owners = field(default_factory=Owners)
    decisions: Decisions = field(default_factory=Decisions)
    fence_epoch: int = 0
    at_rest: bool = False
    """Whether every process has ended: then no lock is needed."""

    def __post_init__(self) -> None:
        self.ledger = AttemptLedger(self.world.memory_store)
        if self.prompt and not self.hasty:
            self.ledger.instants_max = PROMPT_INSTANTS_MAX

    def on_write(self, write: DecidedRequest, after: StoredObject | None) -> None:
        key = getattr(write.request, "key", "")
        if key == LOCK_KEY and after is None:
            self.leases.lock_removed()
        self.leases.on_write(write, after)
        self.ledger.on_write(write, after)
        if self.config.mode == FENCED and not self.world.switches:
            self.owners.on_write(key, write, after)
            if self.config.commit != GROUP and not self.unguarded:
                self.decisions.on_write(key, after)
        if after is not None and not write.before and _PLAN.search(key):
            self._planned(write.client)
        if key == FENCE_KEY and after is not None:
            if self.config.commit != GROUP:
                self.fence_epoch = parse_fence(after.body).epoch
            # Whoever has just decided something may sleep before it does what follows from it.
            self._stalls(write.client, STALLS_DECIDED)
        elif key.startswith(HEARTBEATS) and after is not None:
            self._heartbeat(key.removeprefix(HEARTBEATS), write.client, after.body)

    def _planned(self, client: str) -> None:
        """A client that has just written a plan may pause before it decides."""
        if client.startswith(BESIDE):
            node = next(each for each in self.world.nodes if each.name == client)
            self.world.pause(node, self.world.time.now_ms + SLEEPS_MS)
        elif self.plans_stall:
            self._stalls(client, self.plans_stall)

    def of(self, client: Client, node: Node) -> Procedure[None]:
        """What this kind of client does."""
        host = SimHost(self, self.leases.join(node))
        if client is SimWriter and self.is_thread(node):
            host.together.process = self.threads
        life: Procedure[None] = client(self, host).live()
        return life

    def is_thread(self, node: Node) -> bool:
        return self.threads is not None and node.name != OTHER_PROCESS

    def cluster_beside(self, writer: Node) -> None:
        """A process plans a clustering while the writer's decision is on its way; others pause."""
        self.clusters_beside -= 1
        for each in self.world.nodes:
            if each is not writer and each.birth is not None and not each.stalled:
                self.world.pause(each, self.world.time.now_ms + SLEEPS_MS)
        node = self.world.node(f"{BESIDE}{self.clusters_beside}")
        service = SimService(self, SimHost(self, self.leases.join(node)))
        self.world.spawn(node, service.cluster_once())

    def _stalls(self, client: str, chance: float) -> None:
        world = self.world
        if world.fault_profile.nodes and world.dice.random() < chance:
            stall(world, next(each for each in world.nodes if each.name == client))

    def begins(self, instant: str, heart: SimHeartbeat) -> None:
        if instant in self.hearts:
            self.retaken.add(instant)
        self.hearts[instant] = heart

    def _heartbeat(self, instant: str, client: str, body: bytes) -> None:
        heart = self.hearts.get(instant)
        if heart is None or client == heart.node.name or self.hasty:
            return
        if client.startswith("Q") and heart.node.name.startswith("Q"):
            # A query that sends a batch again stops its earlier run, alive or not.
            self.stopped_runs.add(instant)
        if instant in self.stopped_runs:
            return
        if instant in self.retaken and heart.beats.now.version is None:
            return
        if heart.believes() and heartbeat_of(instant, Found(body, "")).ended:
            raise Violated(ALIVE, f"{client} ended the heartbeat of {instant}, which beats")

    def noted(self, kind: str, data: Mapping[str, Any]) -> None:
        if kind == "refused" and data["error"] == "CommitConflict":
            self.world.reached.add("refused commit")
        if data.get("rolled_forward"):
            self.world.reached.add("roll-forward")

    def crashed(self, node: Node) -> None:
        self.leases.crashed(node)
        for each in self.hearts.values():
            each.over |= each.node is node

    @property
    def unguarded(self) -> bool:
        """Whether a planted mistake takes the fence away."""
        return self.leases.fence is CommitGuard.OFF

    @property
    def prompt(self) -> bool:
        """Whether nothing fails and requests take no time."""
        return self.world.fault_profile == CALM and isinstance(
            self.world.schedule, Prompt | PromptPct
        )

    @property
    def hurried(self) -> bool:
        """Whether writers make no pauses, so that a slow one is overtaken repeatedly."""
        return isinstance(self.world.schedule, PromptSlow | PromptOvertaken)

    @property
    def overtaken(self) -> bool:
        """Whether one node's listings are so slow that others commit during each."""
        return isinstance(self.world.schedule, PromptOvertaken)

    def busy(self) -> bool:
        """Whether a writer still works, or will restart."""
        at_work = [each.node for each in self.world.tasks]
        down = [each for each in self.world.nodes if each.down]
        return any(each.name.startswith(("W", "Q", "F")) for each in (*at_work, *down))

    def end(self) -> None:
        """Let all tasks end; then one more writer commits, and every stream is read to its end."""
        # Leases run out and stores throttle in a calm world, too: then a withdrawal may fail. So
        # may that of a writer whose steps took longer than its heartbeat lives.
        interval_ms = self.world.profile.write_interval_ms
        fails = self.locked or interval_ms or self.interrupts  # Ctrl-C may end a withdrawal, too
        calm = self.world.fault_profile == CALM and not fails
        self.world.finish()
        if calm and not self.expired:
            self.ledger.nothing_pending()
        try:
            self.world.run(self._last())
        except EXPECTED as error:
            raise Violated(BLOCKED, str(error)) from error
        for stream in self.ledger.streams:
            self.world.run(pull(self, stream))
        self.ledger.judge()

    def _last(self) -> Procedure[None]:
        """Roll back what is still pending, then make an empty commit."""
        self.at_rest = True
        last = Node("last", VirtualClock(time=self.world.time))
        yield from self.tidied(SimHost(self, self.leases.join(last)))
        attempt = self.ledger.tries(TrackedAttempt("last", "last", "empty"))
        began = yield from begin(action=self.config.action)
        if is_begun(began.taken):
            yield from begin_files(began.taken)
        prepared = yield from prepare(began, [], schema=SCHEMA, extra={"token": attempt.token})
        if self.config.commit == GROUP:
            client = new_client(self.config.names)
            yield from publish_together(client, prepared)
            yield from see_published(client, client.behind.pop())
        else:
            yield from commit_alone(prepared)
        self.ledger.acknowledged(attempt)

    def tidied(self, host: SimHost) -> Procedure[None]:
        """Roll back what is still pending, once every process has ended."""
        view, _ = yield from look_at(None, 0)
        yield from SimService(self, host).take_back(view, "EAGER")


def _set_up(
    seed: str, steps: int, mutant: Mutant | None, *, only: str = "",
    made: type[TableRun] = TableRun, version: int = 0,
) -> TableRun:  # fmt: skip
    import fastavro  # noqa: F401 - if it is missing, say so before anything else

    dice = random.Random(f"table {seed}")
    policy = Policy() if mutant is None else mutant.of(Policy())
    profile = PROFILES[dice.choice(SOUND)]
    fault_profile = CALM if dice.random() < 0.5 else FaultProfile.of(dice)
    play = dice.choices(("fenced", HUDI, "switch"), (0.86, 0.06, 0.08))[0]
    if only:
        play = HUDI if only == HUDI else FENCED
    # Without a fence a writer that is stopped under the lock loses rows, as in Hudi.
    schedules = SCHEDULES if play == FENCED else tuple(SCHEDULES[each] for each in PROMPT)
    world = SimWorld(seed, steps, profile, CALM if play != FENCED else fault_profile, uniform=True)
    world.schedule = dice.choice(schedules)(world)
    world.paged = dice.random() < 0.3
    partitioned = dice.random() < 0.5
    config = TableConfig(
        name="t", record_key="id", version=dice.choice((6, 9)), buckets=2,
        mode=HUDI if play == HUDI else FENCED, partition_by="region" if partitioned else None,
    )
    if version:
        config = replace(config, version=version)
    if only == GROUP:
        config = replace(config, commit=GROUP)
    locked, hasty = dice.random() < 0.5 or play != FENCED, dice.random() < 0.2 and play == FENCED
    run = made(
        world, LeaseRun(world, policy, fence_of(mutant)), config, locked, dice.choice((2, 5, 16)),
        ("region=EU", "region=US") if partitioned else ("",), hasty,
    )
    _more_faults(run, random.Random(f"table trouble {seed}"), play)
    run.warm = random.Random(f"table warm {seed}").random() < 0.5
    if only == GROUP:
        run.window_max = random.Random(f"table window {seed}").choice((1, 2, 4, 30))
        hints = random.Random(f"table hints {seed}")
        special, often = run.hurried or version, random.Random(f"table steady {seed}").random()
        if random.Random(f"table of threads {seed}").random() < THREADS and not special:
            run.threads, run.ledger.instants_max = GroupProcess(), THREADS_INSTANTS_MAX
            run.window_max = run.window_max if run.window_max < 4 else GROUP_WINDOW_MAX
        run.steady = not special and (often < STEADY or run.threads is not None)
        run.hints = hints if hints.random() < 0.5 or run.steady else None
        run.warm |= run.steady
        met = random.Random(f"table meets {seed}").random() < MEETS
        run.meets = run.steady and run.threads is None and met
        apart = random.Random(f"table one ahead {seed}").random() < APART
        run.apart = apart and run.steady and run.threads is None
        run.apart &= not profile.write_interval_ms
        if run.apart:
            run.window_max = GROUP_WINDOW_MAX
            world.schedule = Prompt(world.dice, world.passing)
    if play == HUDI:
        run.holds = run.warm and random.Random(f"table holds {seed}").random() < HOLDS
        beside = random.Random(f"table hudi {seed}")
        run.foreign = beside.choice((1, 1, 2)) if only or beside.random() < 0.5 else 0
        if only and beside.random() < SLOW:
            run.slow, run.queries, run.interrupts = True, 1, INTERRUPTS
    world.run(create_table(config))
    run.watch()
    _populate(run, dice, play)
    return run


def _more_faults(run: TableRun, dice: random.Random, play: str) -> None:
    """Uses its own random numbers, so that worlds without these faults stay the same."""
    if dice.random() < 0.4:
        run.interrupts = INTERRUPTS
    if dice.random() < 0.3:
        run.cut_off, run.plans_stall = CUT_OFF_OFTEN, PLANS_STALL
        run.clusters_beside = CLUSTERS_BESIDE if run.world.fault_profile.writes else 0
    if not run.hurried and dice.random() < 0.4:
        run.queries = dice.choice((1, 1, 2)) if play == FENCED else 1
    if run.hurried and play == FENCED and dice.random() < 0.7:
        world = run.world
        world.schedule = PromptOvertaken(world.dice, world.passing, SLOW_WRITER, run.ledger.commits)
        if run.prompt and not run.hasty:
            run.ledger.instants_max = OVERTAKEN_INSTANTS_MAX
        run.locked = False  # waiting for a lock would let the slow one catch up


def _populate(run: TableRun, dice: random.Random, play: str) -> None:
    world = run.world
    ahead_ms, off_ms = dice.choice(AHEAD_MS), CLOCK_OFF_MS
    if run.foreign:
        ahead_ms, off_ms = 0, SKEW_MS // 2
    writers = 2 + int(dice.random() * 3)
    writers = 3 if run.threads else 2 if run.steady else writers
    clients: list[tuple[str, Client]] = [("W", SimWriter)] * writers
    clients += [("S", SimService)] * int(dice.random() * 3)
    clients += [("F", HudiWriter)] * run.foreign
    clients += [("L", SlowHudiWriter)] * run.slow
    for number, (letter, client) in enumerate(clients, 1):
        first, rate = number == 1, 1 + around(dice, RATE_OFF)
        offset_ms = int(around(dice, off_ms)) + (ahead_ms if first else 0)
        near = run.apart and letter == "W"
        run.process(
            f"{letter}{number}", partial(run.of, client), rate=rate,
            offset_ms=APART_MS * first if near else offset_ms, steps_ms=0 if near else off_ms,
        )  # fmt: skip
    for number in range(1, run.queries + 1):
        offset_ms = int(around(dice, off_ms))
        run.process(f"Q{number}", partial(run.of, SimQuery), offset_ms=offset_ms, steps_ms=off_ms)
    world.spawn(world.node("R"), read_table(run))
    stream = Stream("P")
    run.ledger.streams.append(stream)
    world.spawn(world.node("P"), follow(run, stream))
    by_hand = world.node("H")
    operator = Operator(run, SimHost(run, run.leases.join(by_hand)))
    world.switches = play == "switch"
    if world.switches:
        world.spawn(by_hand, operator.switch_the_mode())
    elif play == FENCED and run.locked and dice.random() < 0.2:
        world.spawn(by_hand, operator.remove_the_lock())


SCENARIO = SimScenario(
    "table", "appends, upserts, overwrites, deletes, services and readers of one table", STEPS,
    _set_up,
    ("refused commit", "clustering", "clean", "rollback", "roll-forward", "mode switch", "stall",
     "restart", "interrupt", "repeated batch"),
)  # fmt: skip

TOGETHER = SimScenario(
    "group-table", "the same for a table with group commit: writers, services and readers", STEPS,
    partial(_set_up, only=GROUP),
    ("refused commit", "clean", "clustering", "rollback", "stall", "restart", "interrupt",
     "unlisted", "unlisted commit", "nothing to do unlisted"),
)  # fmt: skip

BESIDE_HUDI = SimScenario(
    "hudi-table", "the same for a table in mode hudi, beside writers by Hudi's rules", STEPS,
    partial(_set_up, only=HUDI),
    ("refused commit", "clean", "rollback", "Hudi's commit", "Hudi's rollback", "repeated batch",
     "slow clock"),
)  # fmt: skip
