"""Injects faults into a request on its way to the store, or into a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockkit.errors import NoAnswer
from lockkit.lab.verify.sim.fault_profile import FaultKind
from lockkit.lab.verify.sim.memory_store import Sent
from lockkit.lab.verify.sim.task import Node, Task, TaskPhase
from lockkit.protocol.outcome import PreconditionFailed, Throttled, Unknown
from lockkit.runtime import Delete, Get, List, Put

if TYPE_CHECKING:
    from lockkit.lab.verify.sim.world import SimWorld

HIDDEN_RETRIES_MAX = 3
LATE_MS = (1.0, 300.0, 5_000.0, 60_000.0)
STALL_MS = (200.0, 3_000.0, 20_000.0)
DOWN_MS = (10.0, 2_000.0, 20_000.0)


def of_request(world: SimWorld, task: Task, request: Sent) -> None:
    """Inject one fault: decide what the store does, and what the sender receives."""
    task.phase = TaskPhase.ANSWERED
    match request:
        case Get():
            world.faults[FaultKind.BLIND] += 1
            task.answer = Unknown("the answer was lost")
        case List():
            world.faults[FaultKind.BLIND] += 1
            task.answer = NoAnswer("the answer was lost")
        case Put() | Delete():
            _of_write(world, task, request)


def _of_write(world: SimWorld, task: Task, request: Put | Delete) -> None:
    kind = world.dice.choice(world.fault_profile.of_writes)
    world.faults[kind] += 1
    reported: dict[str, Any] = {
        "fault": kind.value, "when": "before", "client": task.node.name,
        "method": type(request).__name__.lower(), "key": request.key,
    }  # fmt: skip
    world.record("store", "fault", reported)
    task.answer = Unknown(kind.value)
    match kind:
        case FaultKind.THROTTLED:
            task.answer = Throttled(1.0)
        case FaultKind.CONFLICT:
            task.answer = Throttled(None)
        case FaultKind.LOST_BEFORE | FaultKind.ERROR_200:
            pass
        case FaultKind.LATE:
            send_late(world, task, request)
        case FaultKind.RETRY:
            _retry(world, task, request)
        case _:
            if kind is FaultKind.LOST_AFTER or world.dice.random() < 0.5:
                reported["when"] = "after"
                world.memory_store.decide(task.node.name, request, task.at_ms)


def _retry(world: SimWorld, task: Task, request: Put | Delete) -> None:
    """A component on the way sends it again; the sender receives only the second answer."""
    if world.dice.random() < 0.5:
        send_late(world, task, request)
    else:
        world.memory_store.decide(task.node.name, request, task.at_ms)
    task.copies += 1
    if task.copies < HIDDEN_RETRIES_MAX:
        task.phase, task.answer = TaskPhase.SENT, PreconditionFailed()


def send_late(world: SimWorld, task: Task, request: Put | Delete) -> None:
    """The write is applied later; no client waits for its answer."""
    world.fly(task, request, _later(world, LATE_MS))


def of_a_node(world: SimWorld) -> None:
    """Stall a node, restart it, or set its wall clock."""
    node = world.dice.choice(world.nodes)
    if node.down or node.stalled:
        return
    kind = world.dice.choice(world.fault_profile.of_nodes)
    match kind:
        case FaultKind.STALL:
            stall(world, node)
            return
        case FaultKind.CRASH if node.birth is not None:
            world.crash(node, _later(world, DOWN_MS))
        case FaultKind.CLOCK if node.clock_steps_ms:
            around = 2 * world.dice.random() - 1
            node.clock.offset_ms = int(around * node.clock_steps_ms)
            text = f"its wall clock is set to {node.clock.offset_ms} ms off"
            world.record(node.name, "note", {"text": text})
        case _:
            return
    world.faults[kind] += 1
    world.trace.append(f"{node.name} {kind.value}")


def stall(world: SimWorld, node: Node) -> None:
    """Pause a node for a while, without its knowledge."""
    if node.stalled:
        return
    world.pause(node, _later(world, STALL_MS), "the dice")
    world.faults[FaultKind.STALL] += 1
    world.trace.append(f"{node.name} stalls")


def _later(world: SimWorld, most_ms: tuple[float, ...]) -> float:
    return world.time.now_ms + world.dice.choice(most_ms) * world.dice.random()
