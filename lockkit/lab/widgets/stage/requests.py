"""A request of a stage: how it is shown, and how a simulated store answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockkit.lab.verify.sim.clock import VirtualClock
from lockkit.lab.verify.sim.memory_store import Sent, SimStore
from lockkit.lab.widgets.stage.in_turn import in_turn
from lockkit.protocol.outcome import IfAbsent, over
from lockkit.runtime import (
    BootMs,
    Delete,
    Get,
    List,
    Note,
    Procedure,
    Put,
    Request,
    Sleep,
    Unique,
    WallMs,
    carry_out,
)  # fmt: skip
from lockkit.sinks import Emit


@dataclass(frozen=True, slots=True)
class UnguardedPut(Put):
    """A write whose condition is ignored."""


def shown(request: Request) -> str:
    """A request as a store sees it; "" if it never leaves the process."""
    match request:
        case Get(key):
            return f"GET {key}"
        case List(prefix):
            return f"LIST {prefix}*"
        case UnguardedPut(key):
            return f"PUT {key}"
        case Put(key, _, IfAbsent()):
            return f"PUT if absent {key}"
        case Put(key):
            return f"PUT if unchanged {key}"
        case Delete(key):
            return f"DELETE {key}"
        case Sleep(seconds):
            return f"- waits {seconds:.3g} s"
        case Note("checked"):
            return "- there is no conflict, and the lease still lasts: checked"
        case _:
            return ""


def plain(answer: Any) -> str:
    """An answer in words: applied, precondition failed, found, missing, 7 objects."""
    if isinstance(answer, list):
        return f"{len(answer)} objects"
    if answer is None:
        return ""
    name = type(answer).__name__
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()


def to_the_end(procedure: Procedure[Any], answered: Callable[[Request], Any]) -> Any:
    """What it returns."""
    return carry_out(in_turn(procedure), answered)


def answer(
    request: Request, memory_store: SimStore, who: str, clock: VirtualClock, emit: Emit,
    sent_ms: float | None = None,
) -> Any:  # fmt: skip
    """Carry out one request at once. A sleep moves the time forward for all actors."""
    match request:
        case Sleep(seconds):
            clock.time.now_ms += seconds * 1000
            return None
        case Unique():
            return clock.unique()
        case WallMs():
            return clock.wall_ms()
        case BootMs():
            return clock.boot_ms()
        case Note(kind, data):
            emit(kind, **data)
            return None
        case Get() | Put() | List() | Delete():
            began_ms = clock.time.now_ms if sent_ms is None else sent_ms
            return memory_store.decide(who, guarded(request, memory_store), began_ms)
        case _:
            raise AssertionError(f"parallel requests must be sent one by one here: {request!r}")


def guarded(request: Sent, memory_store: SimStore) -> Sent:
    """Turn an unconditional write into one whose condition holds now."""
    if not isinstance(request, UnguardedPut):
        return request
    now = memory_store.objects.get(request.key)
    return Put(request.key, request.body, over(now and now.version))
