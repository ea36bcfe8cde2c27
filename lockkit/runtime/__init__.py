"""Procedures and the interpreter that runs them for real.

Everything longer than a lease (a commit, a probe, an election, a queue) is a procedure: a generator
that yields requests and receives answers. It holds no client, no clock and no randomness. So the
same code runs here against a real store, in the simulator, and step by step in the stepper.

`proven` has the building blocks of procedures: read, list, create, delete, settle a write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from logging import DEBUG
from typing import Any, TypeVar, assert_never

from lockkit.clock import Clock
from lockkit.protocol.outcome import Condition, IfVersion, Version
from lockkit.sinks import LOG, Emit, log_request, silent
from lockkit.stores import Store
from lockkit.stores.within import left_s


@dataclass(frozen=True, slots=True)
class Get:
    """Answered by a `ReadAnswer`; of a body longer than `limit`, only `limit` + 1 bytes."""

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
    """Answered by None, after `seconds`, or once `woken` is set."""

    seconds: float
    woken: threading.Event | None = None


@dataclass(frozen=True, slots=True)
class BlockingCall:
    """A blocking call of a service's own client; answered by what `function()` returns."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Unique:
    """Answered by a fresh id (a UUIDv4)."""


@dataclass(frozen=True, slots=True)
class WallMs:
    """Answered by this client's wall clock, epoch ms."""


@dataclass(frozen=True, slots=True)
class BootMs:
    """Answered by this client's clock that never jumps, and that runs while it is suspended."""


@dataclass(frozen=True, slots=True)
class Note:
    """An event for the history; answered by None."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parallel:
    """Independent procedures that are carried out in parallel, each from its first request on.

    Answered by the tuple of their results. If some raise, the first of them, in this order, is
    raised here after all have ended: none of them is still running.
    """

    procedures: tuple[Generator[Any, Any, Any], ...]


@dataclass(frozen=True, slots=True)
class Exclusive:
    """A procedure that runs alone among those of its lock client; answered by its result."""

    procedure: Generator[Any, Any, Any]


Request = (Get | Put | List | Delete | Sleep | BlockingCall | Unique | WallMs | BootMs | Note
           | Parallel | Exclusive)  # fmt: skip

T = TypeVar("T")
R = TypeVar("R")
Procedure = Generator[Request, Any, T]


class SiblingInterrupted(BaseException):
    """A parallel procedure was interrupted; procedures must not catch this."""


def run(
    procedure: Procedure[T], store: Store, clock: Clock, emit: Emit = silent,
    stop: threading.Event | None = None, first: Request | None = None,
) -> T:  # fmt: skip
    """Carry out each request as it is yielded (`first` already was); return its result.

    A `StoreError` is thrown into the procedure at the request that caused it. Raises
    `SiblingInterrupted` before the next request once `stop` is set. `within` bounds pauses as well
    as requests: after its end nothing is sent and nothing sleeps.
    """
    answer: Any = None
    try:
        request = first or procedure.send(None)
        while True:
            if stop is not None and stop.is_set():
                raise SiblingInterrupted
            try:
                answer = perform(_in_time(request), store, clock, emit, stop)
                if LOG.isEnabledFor(DEBUG):
                    _log(request, store, answer)
            except Exception as error:  # noqa: BLE001 - handed to the procedure, not swallowed
                request = procedure.throw(error)
            else:
                request = procedure.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


def _in_time(request: Request) -> Request:
    """The same request; a pause is limited to the time that `within` leaves."""
    left = left_s()
    if isinstance(request, Sleep) and left is not None:
        return Sleep(min(request.seconds, left), request.woken)
    return request


def _log(request: Request, store: Store, answer: object) -> None:
    match request:
        case Get(key) | Put(key) | List(key) | Delete(key):
            log_request(store.url, type(request).__name__.lower(), key, type(answer).__name__)


def carry_out(procedure: Generator[R, Any, T], perform: Callable[[R], Any]) -> T:
    """Answer each request by `perform`. Its exceptions, including interrupts, are raised at it."""
    try:
        request = procedure.send(None)
        while True:
            try:
                answer = perform(request)
            except BaseException as error:  # noqa: BLE001 - handed to the procedure, not swallowed
                request = procedure.throw(error)
            else:
                request = procedure.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


def relay(procedure: Generator[R, Any, T], ask: Callable[[R], Procedure[Any]]) -> Procedure[T]:
    """The same procedure, with each request passed to `ask`; errors are raised at the request."""
    try:
        request = procedure.send(None)
        while True:
            try:
                answer = yield from ask(request)
            except GeneratorExit:
                procedure.close()
                raise
            except BaseException as error:  # noqa: BLE001 - handed to the procedure, not swallowed
                request = procedure.throw(error)
            else:
                request = procedure.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


def perform(
    request: Request, store: Store, clock: Clock, emit: Emit, stop: threading.Event | None = None
) -> Any:
    """Carry out one real request."""
    match request:
        case Get(key, unless, limit):
            return store.get(key, unless=unless, limit=limit)
        case Put(key, body, condition):
            return store.put(key, body, condition)
        case List(prefix, after):
            return store.list(prefix, after) if after else store.list(prefix)
        case Delete(key, condition):
            return store.delete(key, condition)
        case Sleep(seconds, woken):
            if woken is None:
                clock.sleep(seconds)
            else:
                clock.wait(woken, seconds)
            return None
        case BlockingCall(function):
            return function()
        case Unique():
            return clock.unique()
        case WallMs():
            return clock.wall_ms()
        case BootMs():
            return clock.boot_ms()
        case Note(kind, data):
            emit(kind, **data)
            return None
        case Parallel(procedures):
            from lockkit.runtime.parallel import at_once  # a lock does nothing in parallel

            by = store, clock, emit, stop or threading.Event()
            return at_once(procedures, lambda p, r: run(p, *by, r), by[-1], SiblingInterrupted)
        case Exclusive():
            raise AssertionError("the runner of a lock client's procedures must hold its turn")
        case _:
            assert_never(request)
