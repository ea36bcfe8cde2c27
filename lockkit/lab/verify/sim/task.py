"""The parts of a simulated world: nodes, their tasks, and late writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lockkit.lab.verify.sim.clock import VirtualClock
from lockkit.runtime import Delete, Procedure, Put


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """A request that only this world knows: answered with None once `ready()` is true."""

    ready: Callable[[], bool]


SIMULATOR = "simulator"
"""The client that sets the scene up, and looks at it at the end."""
UNEXPECTED = "no client ends by an unexpected error"


class Violated(BaseException):
    """An invariant is broken, and the run ends. Procedures must not catch this."""

    def __init__(self, invariant: str, because: str) -> None:
        self.invariant, self.because = invariant, because
        super().__init__(f"{invariant}: {because}")


class Stopped(BaseException):
    """The run has come to the move after which it was to stop."""


@dataclass(slots=True, eq=False)
class Node:
    """One process on one machine, with one clock."""

    name: str
    clock: VirtualClock
    clock_steps_ms: int = 0
    """How far its wall clock may be from true time, ahead or behind; a step keeps to it."""
    birth: Callable[[Node], None] | None = None
    """Spawns its tasks, again after every crash; None: it never crashes."""
    stalled_ms: float = 0.0
    stalled: bool = False
    down: bool = False
    life: int = 0


class TaskPhase(Enum):
    SENT = "sent"
    JUDGED = "judged"
    """The condition was found to hold, and the write is not done yet: a store not atomic."""
    ANSWERED = "answered"
    ASLEEP = "asleep"
    UNTIL = "until"
    JOINED = "joined"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Task:
    """A running procedure, and the answer that it waits for."""

    name: str
    node: Node
    procedure: Procedure[Any]
    priority: float
    phase: TaskPhase = TaskPhase.JOINED
    request: Any = None
    answer: Any = None
    at_ms: float = 0.0
    """When its request was sent; asleep, when it wakes."""
    copies: int = 0
    parent: Join | None = None
    place: int = 0
    result: Any = None
    """What it returned, or the exception that ended it."""

    @property
    def ended(self) -> bool:
        return self.phase is TaskPhase.ENDED


@dataclass(slots=True, eq=False)
class Join:
    """A task that waits for the tasks of a `Parallel` request."""

    task: Task
    results: list[Any]
    left: int


@dataclass(slots=True, eq=False)
class LateWrite:
    """A write that will be applied, although no client waits for it any more."""

    client: str
    request: Put | Delete
    began_ms: float
    at_ms: float
    priority: float


@dataclass(slots=True, eq=False)
class TimePassing:
    """Time as a mover."""

    priority: float = 0.5
