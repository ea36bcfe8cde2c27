"""One actor of a stage: a procedure, where it stands, and what could happen to it next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lockkit.drive import Delete, Get, List, Note, Procedure, Put, Request, Sleep
from lockkit.outcome import IfAbsent
from lockkit.sim.clock import VirtualClock
from lockkit.workbench.decisions import Choice

ANYWAY = (Choice.PAUSE, Choice.KILL)
OF_A_WRITE = (Choice.ANSWER, Choice.LOSE, Choice.DROP, Choice.LATE, *ANYWAY)
OF_A_READ = (Choice.ANSWER, Choice.LOSE, Choice.DROP, *ANYWAY)
OF_ITSELF = (Choice.ANSWER, *ANYWAY)


@dataclass(frozen=True, slots=True)
class Line:
    """One request, and what came of it."""

    asked: str
    answered: str


@dataclass(frozen=True, slots=True)
class Unguarded(Put):
    """A write under no condition, as any store takes it; its own is looked at by nobody."""


@dataclass(slots=True)
class Actor:
    """One procedure: where it stands, and what it has asked so far."""

    name: str
    clock: VirtualClock
    source: Procedure[Any]
    procedure: Procedure[Any]
    """The same, with what may go together going one after the other."""
    waits: Request | None = None
    lines: list[Line] = field(default_factory=list)
    paused: bool = False
    flying: list[tuple[Put | Delete, float]] = field(default_factory=list)
    """Writes that it was told nothing of, with when they were sent: they land when a reader says
    so."""
    ended: str = ""
    """"" while it is under way, then how it ended, in a sentence."""

    def close(self) -> None:
        """End the procedure where it stands; what it was made of, too, while its order is known."""
        self.procedure.close()
        self.source.close()

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What could happen next."""
        landing = (Choice.LAND,) if self.flying else ()
        if self.waits is None:
            return landing
        if self.paused:
            return (*landing, Choice.WAKE, Choice.KILL)
        match self.waits:
            case Put() | Delete():
                return (*OF_A_WRITE, *landing)
            case Get() | List():
                return (*OF_A_READ, *landing)
            case _:
                return (*OF_ITSELF, *landing)


def shown(request: Request) -> str:
    """A request as a store sees it; "" for what never leaves the process."""
    match request:
        case Get(key):
            return f"GET {key}"
        case List(prefix):
            return f"LIST {prefix}*"
        case Unguarded(key):
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
            return "- nobody conflicts, and the lease still stands: checked"
        case _:
            return ""


def plain(answer: Any) -> str:
    """An answer in a word: applied, precondition failed, found, missing, 7 objects."""
    if isinstance(answer, list):
        return f"{len(answer)} objects"
    if answer is None:
        return ""
    name = type(answer).__name__
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()
