"""A play: procedures that take turns, one request at a time, of whichever the dice choose.

Answers get lost, writes arrive late, actors die. A seed is a schedule: the same one plays the same
again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import count
from typing import Any

from lockkit.clock import Clock
from lockkit.drive import Delete, Get, List, Note, Procedure, Put, Sleep, Unique, WallMs, apart
from lockkit.drive import run as run_at_once
from lockkit.outcome import Unknown
from lockkit.stores import NoAnswer, Store, memory, open_store

STEPS_MAX = 60_000
_NUMBERS = count()


@dataclass(frozen=True, slots=True)
class TakeLock:
    """A request of this world: answered once nobody else holds the lock."""


@dataclass(frozen=True, slots=True)
class LetGo:
    """And its release."""


@dataclass(frozen=True)
class Faults:
    """How often, of a hundred requests of its kind, each trouble comes."""

    lost: int = 0
    late: int = 0
    crash: int = 0
    """Of ten thousand steps of a writer."""


@dataclass
class Actor:
    name: str
    procedure: Procedure[Any]
    dies: bool = False
    waits: Any = None
    ended: Any = None


class Ticking(Clock):
    """One clock for all, that goes on with every look, and by the dice: time is of the seed."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.dice, self.now_ms = dice, 1_767_225_600_000

    def wall_ns(self) -> int:
        self.now_ms += self.dice.randrange(3)
        return self.now_ms * 1_000_000

    def unique(self) -> str:
        return f"{self.dice.getrandbits(128):032x}"

    def sleep(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)


class Play:
    """The actors of one seed, their store, and what is still on its way to it."""

    def __init__(self, seed: str, faults: Faults, *, leased: bool) -> None:
        self.dice = random.Random(seed)
        self.faults = faults
        self.leased = leased
        """What a dead actor had under way arrives before anybody can have its lock."""
        self.clock = Ticking(self.dice)
        self.name = f"play-{next(_NUMBERS)}"
        self.store: Store = open_store(f"memory://{self.name}")
        self.actors: list[Actor] = []
        self.out: list[tuple[str, Put]] = []
        self.holder: str | None = None
        self.steps: list[str] = []

    def run(self, procedure: Procedure[Any]) -> Any:
        """To its end, while nobody else moves and nothing fails."""
        return run_at_once(_mixed(procedure, None), self.store, self.clock)

    def close(self) -> None:
        memory._SHELVES.pop(self.name)

    def add(self, name: str, procedure: Procedure[Any], *, dies: bool = False) -> Actor:
        actor = Actor(name, _mixed(procedure, self.dice), dies)
        self.actors.append(actor)
        return actor

    def play(self) -> None:
        """Until nobody waits for anything."""
        for actor in self.actors:
            if actor.waits is None and actor.ended is None:
                self._go(actor, None)
        for _ in range(STEPS_MAX):
            ready = [each for each in self.actors if self._ready(each)]
            if not ready:
                assert all(each.waits is None for each in self.actors), "all wait for the lock"
                return
            if self.out and self.dice.random() < 0.05:
                self._land(self.dice.randrange(len(self.out)))
            self._step(self.dice.choice(ready))
        raise AssertionError("a schedule that does not end")

    def _ready(self, actor: Actor) -> bool:
        if isinstance(actor.waits, TakeLock):
            return self.holder is None
        return actor.waits is not None

    def _step(self, actor: Actor) -> None:
        request = actor.waits
        self.steps.append(f"{actor.name} {type(request).__name__} {getattr(request, 'key', '')}")
        if actor.dies and self.dice.randrange(10_000) < self.faults.crash:
            self._crash(actor)
            return
        trouble = self.dice.randrange(100)
        if isinstance(request, Put) and trouble < self.faults.lost + self.faults.late:
            if trouble < self.faults.late:
                self.out.append((actor.name, request))
            elif self.dice.random() < 0.5:
                self.store.put(request.key, request.body, request.condition)
            self._go(actor, Unknown("the answer was lost"))
        elif isinstance(request, (Get, Delete)) and trouble < self.faults.lost:
            self._go(actor, Unknown("the answer was lost"))
        elif isinstance(request, List) and trouble < self.faults.lost:
            self._go(actor, NoAnswer("the answer was lost"))
        else:
            self._go(actor, self._answer(actor, request))

    def _answer(self, actor: Actor, request: Any) -> Any:
        match request:
            case TakeLock():
                self.holder = actor.name
            case LetGo():
                self.holder = None
            case Get(key, unless):
                return self.store.get(key, unless=unless)
            case Put(key, body, condition):
                return self.store.put(key, body, condition)
            case List(prefix, after):
                return self.store.list(prefix, after)
            case Delete(key, condition):
                return self.store.delete(key, condition)
            case Sleep(seconds):
                self.clock.sleep(seconds)
            case Unique():
                return self.clock.unique()
            case WallMs():
                # Writers' clocks disagree, each by its own.
                return self.clock.wall_ms() + hash_of(actor.name) % 2000 - 1000
            case Note():
                return None
        return None

    def _go(self, actor: Actor, answer: Any) -> None:
        try:
            if isinstance(answer, Exception):
                actor.waits = actor.procedure.throw(answer)
            else:
                actor.waits = actor.procedure.send(answer)
        except StopIteration as done:
            actor.waits, actor.ended = None, (done.value,)

    def _crash(self, actor: Actor) -> None:
        actor.waits, actor.ended = None, ("crashed",)
        actor.procedure.close()
        if self.holder == actor.name:
            self.holder = None
        if self.leased:
            for number in reversed(range(len(self.out))):
                if self.out[number][0] == actor.name:
                    self._land(number)

    def _land(self, number: int) -> None:
        _, late = self.out.pop(number)
        self.store.put(late.key, late.body, late.condition)


def _mixed(procedure: Procedure[Any], dice: random.Random | None) -> Procedure[Any]:
    """The same procedure, one request at a time; what goes together goes in any order."""
    return apart(procedure, lambda procedures: _interleaved(procedures, dice))


def _interleaved(
    procedures: tuple[Procedure[Any], ...], dice: random.Random | None
) -> Procedure[tuple[Any, ...]]:
    running = [_mixed(each, dice) for each in procedures]
    waits: dict[int, Any] = {}
    results: dict[int, Any] = {}
    errors: dict[int, Exception] = {}

    def on(place: int, answer: Any) -> None:
        waits.pop(place, None)
        try:
            if isinstance(answer, Exception):
                waits[place] = running[place].throw(answer)
            else:
                waits[place] = running[place].send(answer)
        except StopIteration as done:
            results[place] = done.value
        except Exception as error:  # noqa: BLE001 - raised below, when all have ended
            errors[place] = error

    for place in range(len(running)):
        on(place, None)
    while waits:
        place = dice.choice(sorted(waits)) if dice else min(waits)
        try:
            answer = yield waits[place]
        except Exception as error:  # noqa: BLE001
            answer = error
        on(place, answer)
    if errors:
        raise errors[min(errors)]
    return tuple(results[place] for place in range(len(running)))


def hash_of(name: str) -> int:
    return sum(ord(each) * 7919 ** place for place, each in enumerate(name, 1))
