"""Procedures of several actors, one request at a time: each stopped at its next request.

The requests go to an embedded object server, whose own record is the truth. Sleeping takes no time
here: an actor's clock is put forward instead. No widgets; `stepper` has the buttons.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lockkit.clock import Clock
from lockkit.drive import Delete, Get, List, Note, Procedure, Put, Request, Sleep, in_turn, perform
from lockkit.emulator import Emulator
from lockkit.history import Event, event
from lockkit.outcome import IfAbsent, Unknown
from lockkit.stores import NoAnswer, Store, StoreError, open_store

STEPS_MAX = 200


@dataclass(frozen=True, slots=True)
class Line:
    """One request, and what came of it."""

    asked: str
    answered: str


@dataclass(slots=True)
class Actor:
    """One procedure: where it stands, and what it has asked so far."""

    name: str
    store: Store
    clock: Clock
    procedure: Procedure[Any]
    waits: Request | None = None
    lines: list[Line] = field(default_factory=list)
    ended: str = ""
    """"" while it is under way, then how it ended, in a sentence."""


class Staged:
    """Actors by name, over one server. Raises `ValueError` for names that are not there."""

    refusals: tuple[type[Exception], ...] = (StoreError,)
    """What a procedure may end with, by its contract."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = Clock()
        self.actors: dict[str, Actor] = {}
        self._server = Emulator().__enter__()
        self._events: list[Event] = []
        self._look = self._open("reader")

    def act(
        self, name: str, procedure: Procedure[Any], store: Store | None = None,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """An actor comes on: its procedure goes to its first request."""
        actor = Actor(name, store or self._open(name), clock or Clock(), in_turn(procedure))
        self.actors[name] = actor
        self._go(actor, partial(actor.procedure.send, None))

    def told(self, result: Any) -> str:
        """How a procedure ended that returned `result`."""
        return f"done: {result}"

    # --- what a reader of the notebook does -------------------------------------------------------

    def step(self, who: str, *, lose: bool = False, drop: bool = False) -> Line:
        """Carry out the next request of an actor; with `lose`, its answer never arrives; with
        `drop`, neither does the request."""
        actor = self._actor(who)
        if actor.waits is None:
            raise ValueError(f"{who} has nothing more to ask: {actor.ended}")
        request, lost = actor.waits, lose or drop
        try:
            answer = None if drop else self._perform(actor, request)
            if lost and isinstance(request, List):  # a listing has no answer for "no answer"
                raise NoAnswer("no answer")
        except StoreError as error:
            line = _tell(actor, request, str(error))
            self._go(actor, partial(actor.procedure.throw, error))
            return line
        line = _tell(actor, request, "no answer" if lost else plain(answer))
        answer = Unknown("nobody answered") if lost else answer
        self._go(actor, partial(actor.procedure.send, answer))
        return line

    def until(self, who: str, end: str, verb: str = "") -> str:
        """Step until the next request is about a key that ends so; what it is going to ask."""
        actor = self._actor(who)
        for _ in range(STEPS_MAX):
            if actor.waits is None:
                break
            if shown(actor.waits).endswith(end) and shown(actor.waits).startswith(verb):
                break
            self.step(who)
        return shown(actor.waits) if actor.waits is not None else actor.ended

    def finish(self, who: str) -> str:
        """Step to the end; how it ended."""
        actor = self._actor(who)
        for _ in range(STEPS_MAX):
            if actor.waits is None:
                break
            self.step(who)
        return actor.ended

    def kill(self, who: str) -> None:
        """End an actor where it stands, as `kill -9` does."""
        actor = self._actor(who)
        actor.procedure.close()
        actor.waits, actor.ended = None, actor.ended or "killed"

    @property
    def events(self) -> list[Event]:
        """Truth (the server's record) and beliefs (what the actors told), in order of time."""
        return sorted([*self._server.requests(), *self._events], key=lambda each: each.at_ms)

    def close(self) -> None:
        """End the server; running the cell again makes another one."""
        for actor in self.actors.values():
            actor.store.close()
        self._look.close()
        self._server.__exit__(None, None, None)

    # --- inside ----------------------------------------------------------------------------------

    def _open(self, name: str) -> Store:
        return open_store(self.url, endpoint=self._server.s3, client=name)

    def _emit(self, who: str) -> Callable[..., None]:
        def emit(kind: str, **fields: Any) -> None:
            self._events.append(event(self.clock.stamp_ms(), who, kind, **fields))

        return emit

    def _actor(self, who: str) -> Actor:
        if who not in self.actors:
            raise ValueError(f"there is no {who!r}; there are {', '.join(self.actors)}")
        return self.actors[who]

    def _perform(self, actor: Actor, request: Request) -> Any:
        if isinstance(request, Sleep):
            actor.clock.offset_ms += round(request.seconds * 1000)
            return None
        return perform(request, actor.store, actor.clock, self._emit(actor.name))

    def _go(self, actor: Actor, move: Callable[[], Request]) -> None:
        """On to the next request that a server would see, or to the next pause."""
        try:
            actor.waits = move()
            while not shown(actor.waits):
                actor.waits = actor.procedure.send(self._perform(actor, actor.waits))
        except StopIteration as done:
            actor.waits, actor.ended = None, self.told(done.value)
        except self.refusals as error:
            actor.waits, actor.ended = None, f"{type(error).__name__}: {error}"


def _tell(actor: Actor, request: Request, answered: str) -> Line:
    line = Line(shown(request), answered)
    actor.lines.append(line)
    return line


def shown(request: Request) -> str:
    """A request as a server sees it; "" for what never leaves the process."""
    match request:
        case Get(key):
            return f"GET {key}"
        case List(prefix):
            return f"LIST {prefix}*"
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
