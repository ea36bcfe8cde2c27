"""Procedures and the interpreter that runs them for real.

Everything longer than a lease (a commit, a probe, later an election or a queue) is a procedure: a
generator that yields requests and is sent answers. It holds no client, no clock and no randomness,
so the same text runs here against a real store, in the simulator, and one step at a time under the
reader's mouse.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, assert_never

from lockkit.clock import Clock
from lockkit.outcome import Condition, IfVersion, Version
from lockkit.stores import Store


@dataclass(frozen=True, slots=True)
class Get:
    """Answered by a `ReadAnswer`; of a body longer than `limit`, only so much and a byte."""

    key: str
    unless: Version | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """Answered by a `WriteAnswer`."""

    key: str
    body: bytes
    condition: Condition


@dataclass(frozen=True, slots=True)
class List:
    """Answered by a `Listing`: the objects under `prefix` whose keys are greater than `after`."""

    prefix: str
    after: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Answered by a `WriteAnswer`."""

    key: str
    condition: IfVersion | None = None


@dataclass(frozen=True, slots=True)
class Sleep:
    """Answered by None, after `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Unique:
    """Answered by a fresh id (a UUIDv4)."""


@dataclass(frozen=True, slots=True)
class WallMs:
    """Answered by this client's wall clock, epoch ms."""


@dataclass(frozen=True, slots=True)
class Note:
    """An event for the history; answered by None."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Together:
    """Procedures that do not depend on one another, carried out at once.

    Answered by the tuple of what they return. Where some raise, the first of them, in this order,
    is raised here, after all have ended: nothing of it is still under way.
    """

    procedures: tuple[Generator[Any, Any, Any], ...]


Request = Get | Put | List | Delete | Sleep | Unique | WallMs | Note | Together

T = TypeVar("T")
Procedure = Generator[Request, Any, T]

Interleave = Callable[[tuple[Procedure[Any], ...]], Procedure[tuple[Any, ...]]]
"""In which order the requests of procedures that may go together are carried out."""

Emit = Callable[..., None]
"""`emit(kind, **fields)`: stamps the event with its lane and time, and writes it somewhere."""


def silent(_kind: str, **_fields: Any) -> None:
    """An `Emit` for those who keep no history."""


class Stopped(BaseException):
    """What was beside this was interrupted; not for a procedure to handle."""


def run(
    procedure: Procedure[T], store: Store, clock: Clock, emit: Emit = silent,
    stop: threading.Event | None = None,
) -> T:  # fmt: skip
    """Carry out each request as it is yielded; returns what the procedure returns.

    A `StoreError` is thrown into the procedure at the request that met it. Raises `Stopped` before
    the next request once `stop` is set.
    """
    answer: Any = None
    try:
        request = procedure.send(None)
        while True:
            if stop is not None and stop.is_set():
                raise Stopped
            try:
                answer = perform(request, store, clock, emit, stop)
            except Exception as error:  # noqa: BLE001 - handed to the procedure, not swallowed
                request = procedure.throw(error)
            else:
                request = procedure.send(answer)
    except StopIteration as done:
        return done.value


def in_turn(procedure: Procedure[T]) -> Procedure[T]:
    """The same procedure, with what may go together going one after the other: to watch it."""
    return apart(procedure, _one_by_one)


def _one_by_one(procedures: tuple[Procedure[Any], ...]) -> Procedure[tuple[Any, ...]]:
    results = []
    for each in procedures:
        results.append((yield from in_turn(each)))
    return tuple(results)


def apart(procedure: Procedure[T], together: Interleave) -> Procedure[T]:
    """The same procedure without `Together`: one request at a time, in the order of `together`."""
    try:
        request = procedure.send(None)
        while True:
            try:
                if isinstance(request, Together):
                    answer: Any = yield from together(request.procedures)
                else:
                    answer = yield request
            except Exception as error:  # noqa: BLE001 - handed to the procedure, not swallowed
                request = procedure.throw(error)
            else:
                request = procedure.send(answer)
    except StopIteration as done:
        return done.value


def perform(
    request: Request, store: Store, clock: Clock, emit: Emit, stop: threading.Event | None = None
) -> Any:
    """One request, for real."""
    match request:
        case Get(key, unless, limit):
            return store.get(key, unless=unless, limit=limit)
        case Put(key, body, condition):
            return store.put(key, body, condition)
        case List(prefix, after):
            return store.list(prefix, after) if after else store.list(prefix)
        case Delete(key, condition):
            return store.delete(key, condition)
        case Sleep(seconds):
            clock.sleep(seconds)
            return None
        case Unique():
            return clock.unique()
        case WallMs():
            return clock.wall_ms()
        case Note(kind, data):
            emit(kind, **data)
            return None
        case Together(procedures):
            return _at_once(procedures, store, clock, emit, stop or threading.Event())
        case _:
            assert_never(request)


def _at_once(
    procedures: Sequence[Procedure[Any]], store: Store, clock: Clock, emit: Emit,
    stop: threading.Event,
) -> tuple[Any, ...]:  # fmt: skip
    """The first one here, each further one in a thread of its own; all have ended on return.

    After Ctrl-C, which only this thread can meet, each ends with the request that it has sent.
    """
    results: list[Any] = [None] * len(procedures)
    errors: dict[int, BaseException] = {}

    def one(place: int) -> None:
        try:
            results[place] = run(procedures[place], store, clock, emit, stop)
        except BaseException as error:  # noqa: BLE001 - raised below, by the thread that asked
            errors[place] = error
            if not isinstance(error, Exception):
                stop.set()

    threads = [threading.Thread(target=one, args=(i,)) for i in range(1, len(procedures))]
    alone = [0]
    try:
        for place, thread in enumerate(threads, 1):
            try:
                thread.start()
            except RuntimeError:  # the process is at its limit of threads: one after the other
                alone.append(place)
        for place in alone:
            one(place)
    except BaseException as error:  # noqa: BLE001 - Ctrl-C
        stop.set()
        errors[-1] = error
    while waiting := [thread for thread in threads if thread.is_alive()]:
        try:
            waiting[0].join()
        except KeyboardInterrupt as error:
            stop.set()
            errors[-1] = error
    if errors:
        raise errors[min(errors)]
    return tuple(results)
