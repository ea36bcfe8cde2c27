"""One actor of a stage: a procedure, its next request, and its possible next steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lockkit.lab.verify.sim.clock import VirtualClock
from lockkit.lab.widgets.stage.decisions import Choice
from lockkit.runtime import Delete, Get, List, Procedure, Put, Request

ANYWAY = (Choice.PAUSE, Choice.KILL)
OF_A_WRITE = (Choice.ANSWER, Choice.LOSE, Choice.DROP, Choice.LATE, *ANYWAY)
OF_A_READ = (Choice.ANSWER, Choice.LOSE, Choice.DROP, *ANYWAY)
OF_ITSELF = (Choice.ANSWER, *ANYWAY)


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One request, and its outcome."""

    request: str
    answered: str


@dataclass(slots=True)
class Actor:
    """One procedure: its next request, and its requests so far."""

    name: str
    clock: VirtualClock
    source: Procedure[Any]
    procedure: Procedure[Any]
    """The same, with what may go together going one after the other."""
    waits: Request | None = None
    lines: list[RequestLine] = field(default_factory=list)
    paused: bool = False
    flying: list[tuple[Put | Delete, Any]] = field(default_factory=list)
    """Writes without an answer that are still on their way, with their trips: they land when a
    reader says so."""
    ended: str = ""
    """"" while it is under way, then how it ended, in a sentence."""

    def close(self) -> None:
        """End the procedure where it is, and its inner procedures in a known order."""
        self.procedure.close()
        self.source.close()

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The possible next steps."""
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
