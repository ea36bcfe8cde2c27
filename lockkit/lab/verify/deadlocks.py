"""Searches every order of the steps of a few operations under granular locks for a deadlock.

It runs the plans and procedures that threads run, breadth-first, so that it finds the shortest
story. It leaves out the queue before a stripe (a waiter may enter whenever the stripe is free), and
a second remote call that is never answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from lockkit.lab.verify.explore import SearchResult, search
from lockkit.lab.verify.mutants import Mutant
from lockkit.recipes.errors import OutOfOrder
from lockkit.recipes.granular.operations import (
    BUCKET_OPERATIONS,
    KEY_OPERATIONS,
    VOLUME_OPERATIONS,
    Level,
    Operation,
    StripeRequest,
    ends_ms,
    plan,
    refuse_to_nest,
    wants_of,
)
from lockkit.recipes.stripes import Mode
from lockkit.recipes.taking import AcquireLock, ReleaseLock, Taking, give_all, take_all
from lockkit.runtime import carry_out

CIRCLE = "deadlock"
REPORTED = "a wait never ends"
LEFT = "a client has ended and still holds a lock"
DANGLING = "a bucket was taken from under a key"
STRIPES = dict.fromkeys(Level, 1 << 10)
PATIENCE_S = 60.0

Answers = tuple[bool | None, ...]
"""The answers that one operation has received so far."""
State = tuple[tuple[Answers, ...], int | None]
"""Of every operation; and whose work never ends, if that has happened."""


@dataclass(frozen=True, slots=True)
class RemoteStep:
    """The step under the locks: a remote call that may never be answered."""


@dataclass(frozen=True, slots=True)
class GranularOperation:
    """An operation on one volume and bucket, and the operations nested in it."""

    operation: Operation
    keys: tuple[str, ...] = ()
    nested: tuple[GranularOperation, ...] = ()

    def wants(self) -> Iterator[tuple[StripeRequest, ...]]:
        """The requests of the operation and of those nested in it, in the order of the calls."""
        yield tuple(wants_of(self.operation, "v", "b", self.keys, stripes=STRIPES))
        for each in self.nested:
            yield from each.wants()

    def run(self) -> Taking[StripeRequest, None]:
        """Like `GranularLocks.hold` within `hold`."""
        stack: list[tuple[StripeRequest, ...]] = []
        try:
            for wants in self.wants():
                call = plan(wants)
                refuse_to_nest((each for held in stack for each in held), call)
                if (yield from take_all(call)) is not None:
                    break
                stack.append(call)
            else:
                yield RemoteStep()  # type: ignore[misc]
        except OutOfOrder:
            pass
        for call in reversed(stack):
            yield from give_all(call)


@dataclass(frozen=True, slots=True)
class OperationState:
    """How far an operation is: what it holds, and its next request (None: it has ended)."""

    held: tuple[StripeRequest, ...]
    asks: Any


@dataclass(slots=True)
class GranularWorld:
    """A few operations, each in its own thread."""

    ops: Sequence[GranularOperation]
    hangs: bool
    """Whether the work of one of them may never end."""
    _seen: dict[tuple[int, Answers], OperationState] = field(default_factory=dict)

    def initial(self) -> State:
        return tuple(() for _ in self.ops), None

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        answers, hung = state
        for number in range(len(self.ops)):
            name, asks = self._name(number), self.at(number, state).asks
            if hung == number:
                continue
            match asks:
                case AcquireLock(want) if not self.holders(want, state):
                    yield f"{name} takes {_named(want)}", _reported(state, number, True)
                case AcquireLock(want) if ends_ms(0, PATIENCE_S) is not None:
                    why = f"{name} gives up: no {_named(want)} in its time"
                    yield why, _reported(state, number, False)
                case ReleaseLock(want):
                    yield f"{name} releases {_named(want)}", _reported(state, number, None)
                case RemoteStep():
                    yield f"{name} does its work", _reported(state, number, None)
                    if self.hangs and hung is None:
                        yield f"{name} waits for an answer that never comes", (answers, number)

    def violation(self, state: State) -> str | None:
        if circle := self._circle(state):
            waits = (f"{self._name(number)} waits for {_named(self.at(number, state).asks.lock)}, "
                     f"which {self._name(other)} has" for number, other in pairwise(circle))
            return f"{CIRCLE}: {'; '.join(waits)}"
        waiting = []
        for number in range(len(self.ops)):
            here = self.at(number, state)
            if here.asks is None and here.held:
                return f"{LEFT}: {self._name(number)} has {_named(here.held[0])}"
            if isinstance(here.asks, AcquireLock):
                waiting.append(self._name(number))
        if waiting and not any(True for _ in self.moves(state)):
            return f"{REPORTED}: {', '.join(waiting)} gets no answer"
        return self._dangling(state)

    def at(self, number: int, state: State) -> OperationState:
        """Replay it from its beginning with the given answers."""
        place = number, state[0][number]
        if place not in self._seen:
            self._seen[place] = _replayed(self.ops[number].run(), place[1])
        return self._seen[place]

    def holders(self, want: StripeRequest, state: State) -> list[int]:
        """The holders whose mode excludes this one, the requester included."""
        return [
            number
            for number in range(len(self.ops))
            for each in self.at(number, state).held
            if (each.level, each.stripe) == (want.level, want.stripe)
            and Mode.WRITE in (each.mode, want.mode)
        ]

    def _name(self, number: int) -> str:
        return f"{self.ops[number].operation.name} {number + 1}"

    def _circle(self, state: State) -> tuple[int, ...]:
        waits = {
            number: self.holders(here.asks.lock, state)
            for number in range(len(self.ops))
            if isinstance((here := self.at(number, state)).asks, AcquireLock)
        }
        for start in waits:
            ways = [[start]]
            while ways:
                way = ways.pop()
                for other in waits.get(way[-1], ()):
                    if other == start:
                        return (*way, start)
                    if other not in way:
                        ways.append([*way, other])
        return ()

    def _dangling(self, state: State) -> str | None:
        """A key is locked by an operation that released its bucket, which another now has alone."""
        every = [self.at(number, state).held for number in range(len(self.ops))]
        loose = any(
            held and all(each.level is Level.KEY for each in held)
            and any(each.level is Level.BUCKET for wants in op.wants() for each in wants)
            for op, held in zip(self.ops, every, strict=True)
        )  # fmt: skip
        alone = any(
            (each.level, each.mode) == (Level.BUCKET, Mode.WRITE) for held in every for each in held
        )
        why = f"{DANGLING}: the bucket is gone, and the key is still locked"
        return why if loose and alone else None


def _replayed(taking: Taking[StripeRequest, None], answers: Answers) -> OperationState:
    """Run it up to the first request that has no answer yet."""
    held: list[StripeRequest] = []
    left, asks = list(answers), None

    def answer(request: Any) -> bool | None:
        nonlocal asks
        if not left:
            asks = request
            raise GeneratorExit  # it waits here
        given = left.pop(0)
        if isinstance(request, AcquireLock) and given:
            held.append(request.lock)
        elif isinstance(request, ReleaseLock):
            held.remove(request.lock)
        return given

    with suppress(GeneratorExit):
        carry_out(taking, answer)
    return OperationState(tuple(held), asks)


def _reported(state: State, number: int, answer: bool | None) -> State:
    answers, hung = state
    mine = (*answers[number], answer)
    return (*answers[:number], mine, *answers[number + 1 :]), hung


def _named(want: StripeRequest) -> str:
    name = want.names[0].rpartition("/")[2]
    return f"{want.level.name.lower()} {name} (stripe {want.stripe}) to {want.mode.name.lower()}"


def story(found: SearchResult[State, str]) -> list[str]:
    """One numbered sentence for each step, then the violation."""
    steps = [what for what, _ in found.path]
    lines = [f"{number}. {each}" for number, each in enumerate(steps, 1)]
    return [*lines, f"=> {found.violation}"] if found.violation else lines


def deadlock(ops: Sequence[GranularOperation], *, hangs: bool = False) -> SearchResult[State, str]:
    """Search all orders, up to the first violation."""
    return search(GranularWorld(ops, hangs))


@dataclass(frozen=True, slots=True)
class Mistake:
    """A rule that is switched off, and operations that it harms."""

    mutant: Mutant
    ops: tuple[GranularOperation, ...]
    breaks: str
    hangs: bool = False

    def search(self) -> SearchResult[State, str]:
        with self.mutant.planted():
            return deadlock(self.ops, hangs=self.hangs)


_RULES, _TAKING = "lockkit.recipes.granular.operations", "lockkit.recipes.taking"
_COMMIT, _RENAME = KEY_OPERATIONS["CommitKey"], KEY_OPERATIONS["RenameKey"]
_CREATE = GranularOperation(
    KEY_OPERATIONS["CreateKey"], ("a",), (GranularOperation(BUCKET_OPERATIONS["SetProperty"]),)
)
_Does = GranularOperation
MISTAKES: dict[str, Mistake] = {
    each.mutant.name: each
    for each in (
        Mistake(
            Mutant("ordered", "keys are locked as they are named",
                   {f"{_RULES}:in_order": lambda wants: sorted(wants, key=lambda w: w.level)}),
            (_Does(_RENAME, ("a", "b")), _Does(_RENAME, ("b", "a"))), CIRCLE,
        ),
        Mistake(
            Mutant("once", "a key that is named twice is locked twice",
                   {f"{_RULES}:each_once": list}),
            (_Does(KEY_OPERATIONS["DeleteKeys"], ("a", "a")),), CIRCLE,
        ),
        Mistake(
            Mutant("upgrades", "a holder that reads a bucket may ask to write it",
                   {f"{_RULES}:may_follow": lambda lowest, top: lowest >= top}),
            (_CREATE, _CREATE), CIRCLE,
        ),
        Mistake(
            Mutant("rising", "a holder of a key may ask for the volume",
                   {f"{_RULES}:may_follow": lambda lowest, top: lowest != top}),
            (
                _Does(_COMMIT, ("a",),
                (_Does(VOLUME_OPERATIONS["SetProperty"]),)),
                _Does(BUCKET_OPERATIONS["CreateBucket"]),
            ), CIRCLE,
        ),
        Mistake(
            Mutant("deadline", "a wait for a lock has no deadline",
                   {f"{module}:ends_ms": lambda _began_ms, _most_s: None
                    for module in (__name__, "lockkit.recipes.granular.locks")}),
            (_Does(_COMMIT, ("a",)), _Does(_COMMIT, ("a",))), REPORTED, hangs=True,
        ),
        Mistake(
            Mutant("reverse", "the bucket is released before the key",
                   {f"{_TAKING}:to_release": list}),
            (_Does(_COMMIT, ("a",)), _Does(BUCKET_OPERATIONS["DeleteBucket"])), DANGLING,
        ),
        Mistake(
            Mutant("give_back", "a call that cannot take all locks keeps those that it has",
                   {f"{_TAKING}:to_give_back": lambda _taken: ()}),
            (_Does(_COMMIT, ("a",)), _Does(_COMMIT, ("a",))), LEFT,
        ),
    )
}  # fmt: skip
