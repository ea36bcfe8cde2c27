"""Procedures of several actors, one request at a time: each actor stops at its next request.

The store is simulated, and its record is the truth. Nothing happens by itself: time advances with
each move, and ids come from dice seeded with the actor's name. So the same decisions lead to
exactly the same state. No widgets; `stepper` has the buttons.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from lockkit.errors import NoAnswer, StoreError
from lockkit.events import Event, event, shortened
from lockkit.lab.verify.sim.clock import Time, VirtualClock
from lockkit.lab.verify.sim.memory_store import PROFILES, SimStore
from lockkit.lab.verify.sim.recorded import history_of
from lockkit.lab.widgets.stage.actor import Actor, RequestLine
from lockkit.lab.widgets.stage.decisions import (
    DECISIONS_MAX,
    THE_LEASE,
    Choice,
    Decision,
    ScenarioMoment,
)
from lockkit.lab.widgets.stage.in_turn import in_turn
from lockkit.lab.widgets.stage.requests import answer, guarded, plain, shown, to_the_end
from lockkit.protocol.outcome import Unknown
from lockkit.runtime import Delete, List, Procedure, Put, Request
from lockkit.sinks import Emit, silent

STEPS_MAX = 200
TRIP_MS = 20.0
"""From sending a request to hearing its answer."""
UNANSWERED = "there was no answer"


@dataclass(slots=True)
class Trip:
    """One request of an actor, with the store's answer; a time is None if that never happened."""

    id: str
    who: str
    request: Request
    sent_ms: float
    decided_ms: float | None = None
    answered_ms: float | None = None
    answer: Any = None
    late: bool = False
    """Whether it was on its way when its sender gave up."""


class Stage:
    """Actors by name, over one store. Raises `ValueError` for an impossible decision, and says why.

    `play` and `mistake` name it, for a `ScenarioMoment`.
    """

    refusals: tuple[type[Exception], ...] = (StoreError,)
    """What a procedure may end with, by its contract."""
    lease_ms = 0
    """How long it takes until nothing that is held now is held any more; 0: nothing is leased."""
    planted: Callable[[], AbstractContextManager[None]] = nullcontext
    """While it lasts, the mistake is planted: around whatever runs an actor's procedure."""

    def __init__(self, play: str, mistake: str = "") -> None:
        self.play_name, self.mistake = play, mistake
        self.actors: dict[str, Actor] = {}
        self.decisions: list[Decision] = []
        self.time = Time()
        self.memory_store = SimStore(PROFILES["s3"], self.time, random.Random(play), spread_ms=0)
        self._reported: list[tuple[float, str, str, Any]] = []
        self._asks: dict[str, Any] = {}
        """What an actor is about to ask, by its name: recorded once it is sent."""
        self._clocks: dict[str, VirtualClock] = {}
        self.trips: list[Trip] = []
        self.pauses: list[tuple[str, float, float | None]] = []
        """Who was paused, from when, until when."""
        self.ends_ms: dict[str, float] = {}

    def act(self, name: str, procedure: Procedure[Any]) -> None:
        """Add an actor: its procedure runs to its first request."""
        actor = Actor(name, self.clock(name), procedure, in_turn(procedure))
        self.actors[name] = actor
        self._go(actor, partial(actor.procedure.send, None))

    def clock(self, name: str, ahead_ms: int = 0) -> VirtualClock:
        """The stage's time by this actor's wall clock, and dice for its ids."""
        dice = random.Random(name)
        new = VirtualClock(offset_ms=ahead_ms, time=self.time, dice=dice)
        return self._clocks.setdefault(name, new)

    def outcome_of(self, result: Any) -> str:
        """The outcome of a procedure that returned `result`."""
        return f"done: {result}"

    # --- what a reader of the notebook does -------------------------------------------------------

    def choices(self, who: str) -> tuple[Choice, ...]:
        """The possible next steps of this actor, or of `the lease`."""
        if who == THE_LEASE:
            return (Choice.ENDS,) if self.lease_ms else ()
        return self._actor(who).choices

    def decide(self, decision: Decision) -> RequestLine | None:
        """Carry out a decision; return the line that it adds to the actor's requests, if any."""
        who, what = decision.who, decision.what
        if what not in self.choices(who):
            raise ValueError(self._why_not(decision))
        if len(self.decisions) >= DECISIONS_MAX:
            raise ValueError(f"{DECISIONS_MAX} decisions were made here; start over")
        self.decisions.append(decision)
        if what is Choice.ENDS:
            self.time.now_ms += self.lease_ms
            return None
        actor = self._actor(who)
        match what:
            case Choice.PAUSE | Choice.WAKE:
                actor.paused = what is Choice.PAUSE
                self._paused(who, ends=what is Choice.WAKE)
                self._process(actor, "stalled" if actor.paused else "resumed")
            case Choice.KILL:
                actor.close()
                if actor.paused:
                    self._paused(who, ends=True)
                actor.waits, actor.paused, actor.ended = None, False, "killed"
                self.ends_ms[who] = self.time.now_ms
                self._process(actor, "killed")
            case Choice.LAND:
                return self._land(actor)
            case _:
                return self._step(actor, what)
        return None

    def step(self, who: str, *, lose: bool = False, drop: bool = False) -> RequestLine:
        """Carry out the next request of an actor; with `lose`, its answer never arrives; with
        `drop`, neither does the request."""
        what = Choice.DROP if drop else Choice.LOSE if lose else Choice.ANSWER
        line = self.decide(Decision(who, what))
        assert line is not None
        return line

    def until(self, who: str, end: str, verb: str = "") -> str:
        """Step until the next request is about a key with that ending; return that request."""
        actor = self._actor(who)
        for _ in range(STEPS_MAX):
            if actor.waits is None:
                break
            if shown(actor.waits).endswith(end) and shown(actor.waits).startswith(verb):
                break
            self.step(who)
        return shown(actor.waits) if actor.waits is not None else actor.ended

    def finish(self, who: str) -> str:
        """Step to the end; return the outcome."""
        actor = self._actor(who)
        for _ in range(STEPS_MAX):
            if actor.waits is None:
                break
            self.step(who)
        return actor.ended

    def late(self, who: str) -> RequestLine | None:
        """Delay an actor's write and drop its answer; the decision `land` applies the write."""
        return self.decide(Decision(who, Choice.LATE))

    def land(self, who: str) -> RequestLine | None:
        return self.decide(Decision(who, Choice.LAND))

    def pause(self, who: str) -> None:
        self.decide(Decision(who, Choice.PAUSE))

    def wake(self, who: str) -> None:
        self.decide(Decision(who, Choice.WAKE))

    def kill(self, who: str) -> None:
        """End an actor where it stands, as `kill -9` does."""
        self.decide(Decision(who, Choice.KILL))

    def end_lease(self) -> None:
        """Let time pass for all actors until every lease has expired."""
        self.decide(Decision(THE_LEASE, Choice.ENDS))

    # --- results ----------------------------------------------------------------------------------

    @property
    def moment(self) -> ScenarioMoment:
        """This moment, as text to copy: `fork.at` leads here again."""
        return ScenarioMoment(self.play_name, self.mistake, tuple(self.decisions))

    @property
    def events(self) -> list[Event]:
        """Truth (the store's record) and beliefs (the actors' events), in order of time."""
        return history_of(self.memory_store.truth, self._reported)

    def read(self, procedure: Procedure[Any]) -> Any:
        """The result of a reader's procedure; it changes neither objects nor time."""
        time = Time(self.time.now_ms)
        dice = random.Random("reader")
        memory_store = SimStore(
            self.memory_store.profile, time, dice, 0, dict(self.memory_store.objects)
        )
        clock = VirtualClock(time=time, dice=dice)
        return to_the_end(
            procedure, lambda each: answer(each, memory_store, "reader", clock, silent)
        )

    def go(self, name: str, procedure: Procedure[Any]) -> Any:
        """Run a procedure of this actor before any actor stops; return its result."""
        clock, emit = self.clock(name), self.emit(name)
        return to_the_end(
            procedure, lambda each: answer(each, self.memory_store, name, clock, emit)
        )

    def close(self) -> None:
        """End the procedures that are under way; nothing else is open."""
        for actor in self.actors.values():
            actor.close()

    # --- inside ----------------------------------------------------------------------------------

    def emit(self, who: str) -> Emit:
        """Record an actor's event: its wall clock's time is converted to the stage's."""

        def emit(kind: str, **fields: Any) -> None:
            if fields.get("until_ms"):
                fields["until_ms"] += self.time.now_ms - self.clock(who).wall_ms()
            data = event(0, who, kind, **fields).data
            if kind == "ask":
                self._asks[who] = data
            else:
                self._reported.append((self.time.now_ms, who, kind, data))

        return emit

    def _paused(self, who: str, *, ends: bool) -> None:
        if ends:
            place = max(n for n, each in enumerate(self.pauses) if each[0] == who)
            self.pauses[place] = (who, self.pauses[place][1], self.time.now_ms)
        else:
            self.pauses.append((who, self.time.now_ms, None))

    def _process(self, actor: Actor, kind: str) -> None:
        self.emit(actor.name)(kind, pid=0, **({"why": "by hand"} if kind == "stalled" else {}))

    def _actor(self, who: str) -> Actor:
        if who not in self.actors:
            raise ValueError(f"there is no {who!r}; there are {', '.join(self.actors)}")
        return self.actors[who]

    def _why_not(self, decision: Decision) -> str:
        who = decision.who
        if who == THE_LEASE:
            return f"{decision}: nothing is leased in {self.play_name}"
        actor = self._actor(who)
        can = ", ".join(actor.choices)
        if actor.waits is None:
            return f"{who} has no further request: {actor.ended}"
        stands = "is paused" if actor.paused else f"is about to: {shown(actor.waits)}"
        return f"{decision} can't happen now: {who} {stands}; what can: {can}"

    def _step(self, actor: Actor, what: Choice) -> RequestLine:
        """Carry out the next request and return its answer."""
        request = actor.waits
        assert request is not None
        sent_ms = self.time.now_ms
        trip = Trip(f"x{len(self.trips)}", actor.name, request, sent_ms, late=what is Choice.LATE)
        self.trips.append(trip)
        if actor.name in self._asks:
            self._reported.append((sent_ms, actor.name, "ask", self._asks.pop(actor.name)))
        self.time.now_ms += TRIP_MS / 2
        if what is Choice.LATE:
            assert isinstance(request, Put | Delete)
            actor.flying.append((request, trip))
        answer: Any = None
        if what in (Choice.ANSWER, Choice.LOSE):
            trip.decided_ms = self.time.now_ms
            answer = trip.answer = self._answer(actor, request, sent_ms)
        self.time.now_ms += TRIP_MS / 2
        if what is Choice.ANSWER:
            trip.answered_ms = self.time.now_ms
        else:
            answer = NoAnswer("no answer") if isinstance(request, List) else Unknown(UNANSWERED)
        said = "no answer" if what is not Choice.ANSWER else plain(answer)
        if what is Choice.LATE:
            said = "no answer: still on its way"
        line = RequestLine(shown(request), said)
        actor.lines.append(line)
        send = actor.procedure.throw if isinstance(answer, Exception) else actor.procedure.send
        self._go(actor, partial(send, answer))
        return line

    def _land(self, actor: Actor) -> RequestLine:
        request, trip = actor.flying.pop(0)
        self.time.now_ms += TRIP_MS / 2
        trip.decided_ms = self.time.now_ms
        answer = trip.answer = self.memory_store.decide(
            actor.name, guarded(request, self.memory_store), trip.sent_ms
        )
        line = RequestLine(f"late: {shown(request)}", f"{plain(answer)}, and no client receives it")
        actor.lines.append(line)
        return line

    def _answer(self, actor: Actor, request: Request, sent_ms: float | None = None) -> Any:
        emit = self.emit(actor.name)
        return answer(request, self.memory_store, actor.name, actor.clock, emit, sent_ms)

    def _go(self, actor: Actor, move: Callable[[], Request]) -> None:
        """Run on to the next request that a store would see, or to the next pause."""
        try:
            with self.planted():
                actor.waits = move()
                while not shown(actor.waits):
                    actor.waits = actor.procedure.send(self._answer(actor, actor.waits))
        except StopIteration as done:
            actor.waits, actor.ended = None, shortened(self.outcome_of(done.value))
            self.ends_ms[actor.name] = self.time.now_ms
        except self.refusals as error:
            actor.waits, actor.ended = None, shortened(f"{type(error).__name__}: {error}")
            self.ends_ms[actor.name] = self.time.now_ms
