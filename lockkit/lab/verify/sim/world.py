"""The simulator's interpreter: many procedures, one move at a time, all chosen by one seed.

A request is sent, decided by the store and answered in three separate moves. So a delay or a pause
is just another order of moves. Faults are drawn for each move. `lockkit.runtime.run` runs the same
procedures against real stores. One file because each move may end, stall or start what moves next.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lockkit.events import Event
from lockkit.lab.verify.mutants import Mutant
from lockkit.lab.verify.sim.clock import Time, VirtualClock
from lockkit.lab.verify.sim.fault_injection import of_a_node, of_request, send_late
from lockkit.lab.verify.sim.fault_profile import CALM, FaultProfile
from lockkit.lab.verify.sim.memory_store import PROFILES, SOUND, SimStore, StoreProfile
from lockkit.lab.verify.sim.recorded import history_of
from lockkit.lab.verify.sim.schedule import Mover, Pct, Uniform
from lockkit.lab.verify.sim.task import (
    SIMULATOR,
    UNEXPECTED,
    Join,
    LateWrite,
    Node,
    Stopped,
    Task,
    TaskPhase,
    TimePassing,
    Violated,
    WaitUntil,
)
from lockkit.runtime import (
    BootMs,
    Delete,
    Get,
    List,
    Note,
    Parallel,
    Procedure,
    Put,
    Sleep,
    Unique,
    WallMs,
)
from lockkit.stores.pages import joined

QUIET_MAX = 200_000
"""Moves of a play that is to come to its end."""
TICK_MS = 0.001
JUMPS_MS = (20.0, 500.0, 4_000.0, 15_000.0)
"""The most that time advances in one move, unless it advances to the next timer."""

_SENT = frozenset({Put, Get, List, Delete})


class HeardAnswer(NamedTuple):
    """A request, and what its sender heard about it."""

    at_ms: float
    client: str
    request: Any
    sent_ms: float
    answer: Any


class Branch(NamedTuple):
    """From this move on, the run continues with another random sequence, number `way`."""

    move: int
    way: int


@dataclass(slots=True)
class SimWorld:
    """The nodes of one seed, their store, and the messages between them."""

    seed: str
    steps: int
    """Number of moves over which the change points of the schedule are spread."""
    profile: StoreProfile = PROFILES["azure"]
    fault_profile: FaultProfile = CALM
    uniform: bool = False
    spread_ms: int = 1000
    paged: bool = False
    """Whether a listing comes in two pages, with other moves between them."""
    by_hand: bool = False
    """Whether the lock object was removed by hand: then two clients may act as its holder."""
    switches: bool = False
    """Whether the table's mode is switched, which the checker of histories does not model."""
    taken_again: set[str] = field(default_factory=set)
    """Instants that a writer gave up and Hudi took by a slow clock: two commits of one name."""
    dice: random.Random = field(init=False)
    time: Time = field(default_factory=Time)
    memory_store: SimStore = field(init=False)
    nodes: list[Node] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    flying: list[LateWrite] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    moves: int = 0
    until: int | None = None
    """The move after which the run stops, wherever that is."""
    branches: deque[Branch] = field(default_factory=deque)
    """Those that are still to come."""
    recorded: list[tuple[float, str, str, dict[str, Any]]] = field(default_factory=list)
    received: list[HeardAnswer] = field(default_factory=list)
    beliefs: list[tuple[float, str, str, dict[str, Any]]] = field(default_factory=list)
    """What clients count on, for the picture of a scenario whose history has no such events."""
    reached: set[str] = field(default_factory=set)
    """Rare events that the scenario itself recorded."""
    on_crash: Callable[[Node], None] | None = None
    on_note: Callable[[str, dict[str, Any]], None] | None = None
    broken: Violated | None = None
    """An invariant that was found broken inside a procedure, which then stops."""
    going: Node | None = None
    """The node whose procedure is running."""
    trace: list[str] = field(default_factory=list)
    passing: TimePassing = field(default_factory=TimePassing)
    schedule: Uniform | Pct = field(init=False)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.memory_store = SimStore(self.profile, self.time, self.dice, self.spread_ms)
        pct = Pct(self.dice, self.steps, self.passing)
        self.schedule = Uniform(self.dice) if self.uniform else pct

    # --- nodes and tasks --------------------------------------------------------------------------

    def node(self, name: str, *, rate: float = 1.0, offset_ms: int = 0) -> Node:
        clock = VirtualClock(offset_ms=offset_ms, time=self.time, dice=self.dice, rate=rate)
        node = Node(name, clock)
        self.nodes.append(node)
        return node

    def spawn(self, node: Node, procedure: Procedure[Any], name: str = "") -> Task:
        task = Task(name or node.name, node, procedure, self.dice.random())
        self.tasks.append(task)
        self._go(task, None)
        return task

    def record(self, who: str, kind: str, data: dict[str, Any]) -> None:
        if self.broken is None:  # what a client does as it is stopped is not of the run
            self.recorded.append((self.time.now_ms, who, kind, data))

    def belief(self, who: str, kind: str, **data: Any) -> None:
        """For the picture only: from now on a client counts on something, or no longer."""
        if self.broken is None:
            self.beliefs.append((self.time.now_ms, who, kind, data))

    # --- moves -----------------------------------------------------------------------------------

    def play(self, moves: int) -> None:
        """Play this many moves, or until no task is left. Raises `Violated`, `Stopped`."""
        for _ in range(moves):
            if self.branches and self.moves >= self.branches[0].move:
                self._vary(self.branches.popleft())
            ready = self._ready()
            if not ready:
                if not self._pass(to_next=True):
                    return
                continue
            if self.until is not None and self.moves >= self.until:
                raise Stopped
            self._move(self.schedule.pick(ready))
            if self.fault_profile.nodes and self.dice.random() < self.fault_profile.nodes:
                of_a_node(self)

    def _vary(self, branch: Branch) -> None:
        """From here on use other random numbers, priorities and change points."""
        self.dice.seed(f"{self.seed}@{branch.move}+{branch.way}")
        movers: list[Mover] = [*self.tasks, *self.flying]
        for each in movers:
            each.priority = self.dice.random()
        if isinstance(self.schedule, Pct):
            left = max(1, self.steps - self.moves)
            self.schedule = type(self.schedule)(self.dice, left, self.passing)

    def finish(self) -> None:
        """Stop all faults, deliver all late writes, and play until every task has ended."""
        self.fault_profile = CALM
        for each in self.nodes:
            each.stalled_ms = min(each.stalled_ms, self.time.now_ms)
        self.land()
        self.play(QUIET_MAX)
        waiting = [each.name for each in self.tasks]
        if waiting:
            raise Violated("every task ends", f"{', '.join(waiting)} never did")

    def run(self, procedure: Procedure[Any]) -> Any:
        """Run a procedure alone, without faults; return its result or raise its exception."""
        kept = self.tasks, self.flying, self.fault_profile
        self.tasks, self.flying, self.fault_profile = [], [], CALM
        node = Node(SIMULATOR, VirtualClock(time=self.time, dice=self.dice))
        task = self.spawn(node, procedure, "run")
        self.play(QUIET_MAX)
        self.tasks, self.flying, self.fault_profile = kept
        if isinstance(task.result, Exception):
            raise task.result
        return task.result

    def _ready(self) -> list[Mover]:
        """Who can move: a request reaches the store, but a stalled node gets no answer."""
        now_ms, asleep, joined = self.time.now_ms, TaskPhase.ASLEEP, TaskPhase.JOINED
        sent, judged, until = TaskPhase.SENT, TaskPhase.JUDGED, TaskPhase.UNTIL
        ready: list[Mover] = []
        timers = True in [node.stalled for node in self.nodes]
        for task in self.tasks:
            phase = task.phase
            if phase is asleep:  # most are
                if task.at_ms > now_ms and (task.request is None or not task.request.is_set()):
                    timers = True
                    continue
            elif phase is joined or (phase is until and not task.request.ready()):
                continue
            if phase is sent or phase is judged or not task.node.stalled:
                ready.append(task)
        landing = [each for each in self.flying if each.at_ms <= now_ms]
        ready += landing
        if ready and (timers or len(landing) < len(self.flying)):
            ready.append(self.passing)
        return ready

    def _move(self, mover: Any) -> None:
        self.moves += 1
        self.time.now_ms += TICK_MS
        match mover:
            case Task(phase=TaskPhase.SENT | TaskPhase.JUDGED):
                self._decide(mover)
            case Task(phase=TaskPhase.ANSWERED):
                self.trace.append(f"{mover.name} hears")
                self.received.append(HeardAnswer(
                    self.time.now_ms, mover.node.name, mover.request, mover.at_ms, mover.answer,
                ))  # fmt: skip
                self._go(mover, mover.answer)
            case Task():
                self.trace.append(f"{mover.name} goes on")
                self._go(mover, None)
            case LateWrite():
                self._land(mover)
            case _:
                self._pass(to_next=self.dice.random() < 0.5)

    def _pass(self, *, to_next: bool) -> bool:
        """Advance time, to the next timer or by a random amount; False if there is no timer."""
        now_ms, due = self.time.now_ms, self._due()
        if not due:
            return False
        if to_next:
            self.time.now_ms = max(now_ms, min(due))
        else:
            self.time.now_ms += self.dice.choice(JUMPS_MS) * self.dice.random()
        self.trace.append(f"{self.time.now_ms:.3f}")
        for node in self.nodes:
            if node.stalled and node.stalled_ms <= self.time.now_ms:
                node.stalled = False
                if not node.down:
                    self.record(node.name, "resumed", {"pid": node.life})
                elif node.birth is not None:
                    self._restart(node)
        return True

    def _due(self) -> list[float]:
        """When each timer that has not yet run out does."""
        now_ms = self.time.now_ms
        due = [t.at_ms for t in self.tasks if t.phase is TaskPhase.ASLEEP and t.at_ms > now_ms]
        due += [each.at_ms for each in self.flying if each.at_ms > now_ms]
        return due + [each.stalled_ms for each in self.nodes if each.stalled]

    # --- the store's side ------------------------------------------------------------------------

    def _decide(self, task: Task) -> None:
        request, fault_profile = task.request, self.fault_profile
        chance = fault_profile.writes if type(request) in (Put, Delete) else fault_profile.reads
        if chance and task.phase is TaskPhase.SENT and self.dice.random() < chance:
            of_request(self, task, request)
        elif (  # a store that is not atomic checks the condition now, and writes in a later move
            task.phase is TaskPhase.SENT and not self.profile.atomic
            and isinstance(request, Put) and self.memory_store.admits(request)
        ):  # fmt: skip
            task.phase = TaskPhase.JUDGED
            self.trace.append(f"{task.name} judged")
            return
        elif self.paged and type(request) is List:
            if not self._both_pages(task, request):
                return
        else:
            judged = task.phase is TaskPhase.JUDGED
            answer = self.memory_store.decide(task.node.name, request, task.at_ms, judged=judged)
            task.answer, task.phase = answer, TaskPhase.ANSWERED
        self.trace.append(f"{task.name} {type(task.answer).__name__}")

    def _both_pages(self, task: Task, request: List) -> bool:
        """List the first page in one move, the second in another; True once both are read."""
        entries = self.memory_store.decide(task.node.name, request, task.at_ms)
        if task.phase is TaskPhase.SENT:
            half = len(entries) // 2
            last = entries[half - 1].key if half else request.after
            task.answer, task.phase = (entries[:half], last), TaskPhase.JUDGED
            self.trace.append(f"{task.name} first page")
            return False
        first, last = task.answer
        rest = [each for each in entries if each.key > last]
        task.answer = joined([first, rest], snapshots=True)
        task.phase = TaskPhase.ANSWERED
        return True

    def fly(self, task: Task, request: Put | Delete, at_ms: float) -> None:
        """Apply a write at that time, or later."""
        late = LateWrite(task.node.name, request, task.at_ms, at_ms, self.dice.random())
        self.flying.append(late)

    def land(self) -> None:
        """Apply all late writes now."""
        while self.flying:
            self._land(self.flying[0])

    def _land(self, late: LateWrite) -> None:
        self.flying.remove(late)
        answer = self.memory_store.decide(late.client, late.request, late.began_ms)
        self.trace.append(f"late {late.client} {type(answer).__name__}")

    # --- the nodes' side -------------------------------------------------------------------------

    def pause(self, node: Node, until_ms: float, why: str = "the scenario") -> None:
        """Stop a node's process for a while, without its knowledge."""
        if not node.stalled:
            self.record(node.name, "stalled", {"pid": node.life, "why": why})
        node.stalled, node.stalled_ms = True, until_ms

    def crash(self, node: Node, back_ms: float) -> None:
        """End a node's process; its sent writes stay on their way. It restarts at `back_ms`."""
        for task in [each for each in self.tasks if each.node is node]:
            if task.phase in (TaskPhase.SENT, TaskPhase.JUDGED) and isinstance(
                task.request, Put | Delete
            ):
                send_late(self, task, task.request)
            task.phase, task.result = TaskPhase.ENDED, None
            task.procedure.close()
            self.tasks.remove(task)
        node.down = node.stalled = True
        node.stalled_ms = back_ms
        self.record(node.name, "killed", {"pid": node.life})
        if self.on_crash is not None:
            self.on_crash(node)

    def _restart(self, node: Node) -> None:
        assert node.birth is not None
        node.down, node.life = False, node.life + 1
        self.record(node.name, "started", {"pid": node.life})
        node.birth(node)

    def _go(self, task: Task, answer: Any) -> None:
        """Continue a procedure until it waits for an answer."""
        procedure, node = task.procedure, task.node
        self.going = node
        task.copies = 0
        try:
            while True:
                request: Any
                if isinstance(answer, Exception):
                    request = procedure.throw(answer)
                else:
                    request = procedure.send(answer)
                if self.broken is not None:
                    raise self.broken
                if type(request) in _SENT:
                    task.request, task.phase = request, TaskPhase.SENT
                    task.at_ms = self.time.now_ms
                    return
                match request:
                    case Sleep(seconds, woken):
                        task.request = woken
                        task.at_ms = self.time.now_ms + seconds * 1000 / node.clock.rate
                        task.phase = TaskPhase.ASLEEP
                        return
                    case Note(kind, data):
                        self.record(node.name, kind, dict(data))
                        if self.on_note is not None:
                            self.on_note(kind, data)
                        answer = None
                    case Unique():
                        answer = node.clock.unique()
                    case WallMs():
                        answer = node.clock.wall_ms()
                    case BootMs():
                        answer = node.clock.boot_ms()
                    case Parallel(procedures):
                        self._join(task, procedures)
                        return
                    case _:
                        assert isinstance(request, WaitUntil)
                        task.request, task.phase = request, TaskPhase.UNTIL
                        return
        except StopIteration as done:
            self._end(task, done.value)
        except Exception as error:  # noqa: BLE001 - how it ended: its parent's, or its scenario's
            self._end(task, error)

    def _join(self, task: Task, procedures: tuple[Procedure[Any], ...]) -> None:
        join = Join(task, [None] * len(procedures), len(procedures))
        task.phase = TaskPhase.JOINED
        for place, each in enumerate(procedures):
            name = f"{task.name}.{place}"
            part = Task(name, task.node, each, self.dice.random(), parent=join, place=place)
            self.tasks.append(part)
            self._go(part, None)

    def _end(self, task: Task, result: Any) -> None:
        task.phase, task.result = TaskPhase.ENDED, result
        self.tasks.remove(task)
        join = task.parent
        if join is None:
            if isinstance(result, Exception) and task.node in self.nodes:
                raise Violated(UNEXPECTED, f"{task.name}: {result!r}")
            return
        join.results[task.place] = result
        join.left -= 1
        if not join.left:
            failed = [each for each in join.results if isinstance(each, Exception)]
            self._go(join.task, failed[0] if failed else tuple(join.results))

    # --- what came of it -------------------------------------------------------------------------

    def history(self) -> list[Event]:
        """The store's record and the nodes' events, for the checker and the pictures."""
        return history_of(self.memory_store.truth, self.recorded)

    def trace_hash(self) -> str:
        """A hash of all moves; the same seed gives the same hash."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]


def drawn_world(
    dice: random.Random, seed: str, steps: int, mutant: Mutant | None, **more: Any
) -> SimWorld:
    """The world of a seed: a sound provider, unless the mutant has another, and its faults."""
    profile = PROFILES[dice.choice(SOUND)]
    if mutant is not None and mutant.profile:
        profile = PROFILES[mutant.profile]
    return SimWorld(seed, steps, profile, FaultProfile.of(dice), dice.random() < 0.3, **more)
