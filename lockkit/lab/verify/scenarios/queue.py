"""The scenario `queue`: processes push, claim, beat and complete, and brokers come and go.

A client changes the file itself, by its process's group commit, or by a broker, which the first
client that needs it starts. A world has one of these ways, or all three. Requests to a broker are
passed in memory: they are lost only with the broker's process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lockkit.lab.verify.mutants import Mutant, catalogue
from lockkit.lab.verify.scenarios.queue_truth import QueueTruth, acknowledged
from lockkit.lab.verify.sim import SimScenario
from lockkit.lab.verify.sim.run import RATE_OFF, SeedRun, around
from lockkit.lab.verify.sim.task import Node, Task, Violated, WaitUntil
from lockkit.lab.verify.sim.world import drawn_world
from lockkit.protocol.outcome import NotOurs, Ours, Version
from lockkit.recipes.errors import QueueError, QueueUnknown
from lockkit.recipes.queue.brokered import BrokerGone, KnownBroker, through
from lockkit.recipes.queue.file import Broker, Job, QueueFile
from lockkit.recipes.queue.group import (
    Outcome,
    RequestQueue,
    WriterDeposed,
    WriteTicket,
    acknowledge,
    broker_commit,
    enlist,
    group_commit,
    written,
)
from lockkit.recipes.queue.handle import answer_or_raise
from lockkit.recipes.queue.jobs import HistoryTooOld, QueueDraft, QueuePolicy, by_memory
from lockkit.recipes.queue.operations import (
    Answer,
    Beat,
    Claim,
    Claimed,
    Complete,
    Operation,
    Push,
    Refused,
)
from lockkit.recipes.queue.write import NotDone, QueueRead, Unsure, WriteLanded, WriteLost, commit
from lockkit.runtime import Procedure, Sleep, Unique

STEPS = 700
TIMEOUT_MS, RECENT = 6_000, 3
CLOCK_OFF_MS = 1_000
PUSHES, CLAIMS, BEATS, ASKS = 4, 6, 2, 3
ANSWER_MS = 20_000
DRAINED_MAX = 200
STUCK = "what was pushed is handed out until it is completed"
WAYS = ("alone", "group", "broker")


@dataclass(slots=True, eq=False)
class BrokerHost:
    """A broker's process, as its clients see it."""

    id: str
    number: int = 0
    over: bool = False
    requests: RequestQueue = field(default_factory=RequestQueue)


@dataclass(slots=True)
class QueueRun(SeedRun):
    """The queue of one seed, and all its clients."""

    policy: QueuePolicy
    truth: QueueTruth
    machines: list[Node] = field(default_factory=list)
    """Where brokers are started."""
    hosts: dict[str, BrokerHost] = field(default_factory=dict)
    clients: list[Task] = field(default_factory=list)

    @property
    def interval_s(self) -> float:
        return self.world.profile.write_interval_ms / 1000

    def idle(self) -> bool:
        return all(each.ended for each in self.clients)

    def end(self) -> None:
        """Let all tasks end; then one more worker completes the jobs that are left."""
        self.world.finish()
        self.world.run(self.drain())
        if self.truth.file.jobs:
            raise Violated(STUCK, f"{', '.join(self.truth.file.jobs)} cannot be claimed")

    def drain(self) -> Procedure[None]:
        yield Sleep((TIMEOUT_MS + 3 * CLOCK_OFF_MS) / 1000)
        seen: QueueRead | None = None
        for number in range(DRAINED_MAX):
            answer, seen = yield from self._alone(Claim(f"drain-{number}", "last"), seen)
            if not isinstance(answer, Claimed):
                return
            done = Complete(f"drained-{number}", answer.job.id, answer.job.attempts)
            self.truth.on_operation(done)
            _, seen = yield from self._alone(done, seen)

    def _alone(
        self, operation: Operation, seen: QueueRead | None
    ) -> Procedure[tuple[Answer, QueueRead]]:
        match (yield from commit([operation], self.policy, seen=seen, who="last")):
            case (now, answers):
                return answers[0], now
            case failed:
                raise Violated(STUCK, f"without any fault: {failed}")

    # --- brokers ---------------------------------------------------------------------------------

    def serve(self, node: Node, instead_of: str) -> Procedure[None]:
        """The loop of a broker's process."""
        host = BrokerHost((yield Unique()))
        self.hosts[host.id] = host
        try:
            broker = Broker(node.name, host.id)
            seen = yield from enlist(
                broker, self.policy, instead_of=instead_of, interval_s=self.interval_s
            )
            host.number = seen.file.number
            while True:
                yield WaitUntil(  # type: ignore[misc] # a request of this world
                    lambda: bool(host.requests.waiting) or self.idle()
                )
                if not host.requests.waiting:
                    return
                seen = yield from broker_commit(
                    host.requests.take(), self.policy, seen=seen, interval_s=self.interval_s,
                    who=node.name,
                )  # fmt: skip
                host.number = seen.file.number
        except (WriterDeposed, QueueError) as error:
            self.world.reached.add("deposed broker")
            host.requests.close(str(error))
        finally:  # also when it is killed: then its clients get no answer
            host.over = True

    def ask(self, broker: Broker, operation: Operation) -> Procedure[Outcome | BrokerGone]:
        host, time = self.hosts[broker.id], self.world.time
        if host.over:
            return BrokerGone("no answer")
        since, until_ms = host.number, time.now_ms + ANSWER_MS
        ticket = host.requests.submit(operation)
        yield WaitUntil(  # type: ignore[misc] # a request of this world
            lambda: ticket.outcome.done() or host.over or time.now_ms > until_ms
        )
        if ticket.outcome.done():
            return ticket.outcome.result()
        self.world.reached.add("cut off")
        return Unsure("cut off", since)

    def start(self, dead: Broker | None) -> Procedure[str]:
        node = self.world.dice.choice(self.machines)
        if not node.down:
            self.world.spawn(node, self.serve(node, dead.id if dead else ""), f"{node.name} serves")
        yield Sleep(self.world.dice.random() / 2)
        return ""


@dataclass(slots=True)
class QueueClient:
    """One run of a client's process, and its way to the queue."""

    run: QueueRun
    node: Node
    way: str
    known: KnownBroker = field(default_factory=KnownBroker)
    requests: RequestQueue = field(default_factory=RequestQueue)

    def ask(self, operation: Operation) -> Procedure[Answer | None]:
        """Repeat a request under its id until its outcome is known; None if it failed."""
        truth = self.run.truth
        truth.on_operation(operation)
        for _ in range(ASKS):
            try:
                answer = yield from self._once(operation)
            except QueueUnknown as error:
                self.run.world.reached.add("unknown")
                operation = error.operation
            except QueueError:
                yield Sleep(self.run.world.dice.random())
            else:
                if done := acknowledged(operation, answer):
                    self.run.world.belief(self.node.name, "told", of=done)
                truth.answered(operation, answer)
                return answer
        return None

    def _once(self, operation: Operation) -> Procedure[Answer]:
        run = self.run
        if self.way == "broker":
            return (yield from through(operation, self.known, run.ask, run.start))
        if self.way == "group":
            ticket = self.requests.submit(operation)
            yield WaitUntil(ticket.outcome.done)  # type: ignore[misc] # a request of this world
            return answer_or_raise(operation, ticket.outcome.result())
        match (yield from commit([operation], run.policy, who=self.node.name)):
            case (_, answers):
                return answer_or_raise(operation, answers[0])
            case failed:
                return answer_or_raise(operation, failed)

    def write(self) -> Procedure[None]:
        """The loop of the group commit's thread."""
        seen: QueueRead | None = None
        while True:
            yield WaitUntil(  # type: ignore[misc] # a request of this world
                lambda: bool(self.requests.waiting) or self.run.idle()
            )
            if not self.requests.waiting:
                return
            seen = yield from group_commit(
                self.requests.take(), self.run.policy, seen=seen, interval_s=self.run.interval_s,
                who=self.node.name,
            )  # fmt: skip

    def push(self) -> Procedure[None]:
        dice = self.run.world.dice
        for _ in range(PUSHES):
            yield from self.ask(Push((yield Unique())[:8], "tea"))
            yield Sleep(dice.random())

    def work(self) -> Procedure[None]:
        dice = self.run.world.dice
        for _ in range(CLAIMS):
            worker = f"{self.node.name}.{self.node.life}"
            answer = yield from self.ask(Claim((yield Unique()), worker))
            if isinstance(answer, Claimed):
                yield from self._job(answer.job)
            else:
                yield Sleep(dice.random() * 2)

    def _job(self, job: Job) -> Procedure[None]:
        """Work on a job and complete it; some workers stall, or never complete it."""
        dice = self.run.world.dice
        for _ in range(int(dice.random() * (BEATS + 1))):
            yield Sleep(dice.choice((0.3, 2.0, 9.0)) * dice.random())
            answer = yield from self.ask(Beat((yield Unique()), job.id, job.attempts))
            if isinstance(answer, Refused) and dice.random() < 0.8:
                return
        if dice.random() < 0.85:
            yield from self.ask(Complete((yield Unique()), job.id, job.attempts))


# --- a seed ---------------------------------------------------------------------------------------


def _be_born(run: QueueRun, way: str, acts: tuple[Callable[[QueueClient], Procedure[None]], ...],
             node: Node) -> None:  # fmt: skip
    process = QueueClient(run, node, way)
    for number, act in enumerate(acts, 1):
        task = run.world.spawn(node, act(process), f"{node.name}.{number}")
        run.clients.append(task)
    if way == "group":
        run.world.spawn(node, process.write(), f"{node.name} writes")


def _stays_down(_: Node) -> None:
    """A machine that restarted without its broker: a client that needs one starts it."""


def _set_up(seed: str, steps: int, mutant: Mutant | None) -> QueueRun:
    dice = random.Random(f"queue {seed}")
    policy = QueuePolicy(timeout_ms=TIMEOUT_MS, recent_max=RECENT)
    policy = policy if mutant is None else mutant.of(policy)
    world = drawn_world(dice, seed, steps, mutant)
    run = QueueRun(world, policy, QueueTruth(world, TIMEOUT_MS))
    world.memory_store.on_write = run.truth.on_write
    ways = (dice.choice(WAYS),) if dice.random() < 0.7 else WAYS
    births: list[tuple[str, tuple[Any, ...]]] = [
        ("P1", (QueueClient.push,)), ("P2", (QueueClient.push,)),
        ("W1", (QueueClient.work, QueueClient.work)), ("W2", (QueueClient.work, QueueClient.push)),
    ]  # fmt: skip
    for who in [each for each, _ in births] + ["B1", "B2"]:
        off_ms = int(around(dice, CLOCK_OFF_MS))
        node = world.node(who, rate=1 + around(dice, RATE_OFF), offset_ms=off_ms)
        node.clock_steps_ms, node.birth = CLOCK_OFF_MS, _stays_down
        if who.startswith("B"):
            run.machines.append(node)
    for node, (_, acts) in zip(world.nodes, births, strict=False):
        node.birth = partial(_be_born, run, dice.choice(ways), acts)
        node.birth(node)
    return run


SCENARIO = SimScenario(
    "queue", "processes push, claim and complete jobs in one file, brokers come and go", STEPS,
    _set_up,
    ("stall", "restart", "handed on", "deposed broker", "cut off", "unknown", "asked again"),
)  # fmt: skip

def no_memory(mine: QueueFile, found: QueueFile, version: Version | None) -> NotOurs:
    """Assume that a write which is not the newest was never applied."""
    return NotOurs()


def no_beyond(mine: QueueFile, found: QueueFile, version: Version | None) -> Ours | NotOurs:
    answer_or_raise = by_memory(mine, found, version)
    return NotOurs() if isinstance(answer_or_raise, HistoryTooOld) else answer_or_raise


def acknowledged_first(
    tickets: Sequence[WriteTicket], seen: QueueRead, new: QueueDraft
) -> Procedure[WriteLanded | WriteLost | NotDone | Unsure]:
    acknowledge(tickets, new.answers)
    return (yield from written(tickets, seen, new))


_JOBS, _GROUP = "lockkit.recipes.queue.jobs", "lockkit.recipes.queue.group"
MUTANTS = catalogue(
    Mutant("acknowledge at once", "a batch is acknowledged before its write landed",
           {f"{_GROUP}:written": acknowledged_first}),
    Mutant("broker competes", "a broker that lost a write goes on with its old memory",
           {f"{_GROUP}:after_loss": lambda seen, now: QueueRead(seen.file, now.version)}),
    Mutant("no recent ids", "a write that was overwritten counts as never applied",
           {f"{_JOBS}:happened": lambda *_: False, f"{_JOBS}:by_memory": no_memory}),
    Mutant("beyond", "what the file does not remember counts as never done",
           {f"{_JOBS}:is_forgotten": lambda _since, _file: False, f"{_JOBS}:by_memory": no_beyond}),
    Mutant("id per client", "a write is recognised by its client",
           {"lockkit.recipes.queue.write:named": lambda _attempt, who: who}),
    Mutant("attempts", "a former owner of the job may complete it",
           {f"{_JOBS}:has_it": lambda _job, _requested: True}),
    Mutant("never handed on", "a heartbeat never gets too old",
           {f"{_JOBS}:is_over": lambda _job, _now_ms, _policy: False}),
    Mutant("no timeout", "a job is handed on however fresh its heartbeat is",
           policy={"timeout_ms": 0}),
    Mutant("not fifo", "the last job is claimed first",
           {f"{_JOBS}:next_of": lambda free: free.pop()}),
)  # fmt: skip
