"""Procedures and the interpreter that runs them for real.

Everything longer than a lease (a commit, a probe, later an election or a queue) is a procedure: a
generator that yields requests and is sent answers. It holds no client, no clock and no randomness,
so the same text runs here against a real store, in the simulator, and one step at a time under the
reader's mouse.

One file because it holds the requests, the procedures and the interpreter that answers them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from logging import DEBUG
from typing import Any, TypeVar, assert_never

from lockkit.clock import Clock
from lockkit.errors import NoAnswer, StoreError, Unanswered
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    NotModified,
    PreconditionFailed,
    Throttled,
    Unknown,
    Version,
)
from lockkit.sinks import LOG, Emit, log_request, silent
from lockkit.stores import Listing, Store
from lockkit.stores.deadline import left_s, within


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
    """Answered by a `Listing`: the objects under `prefix` whose keys are greater than
    `after`.
    """

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
class Note:
    """An event for the history; answered by None."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parallel:
    """Procedures that do not depend on one another, carried out at once.

    Answered by the tuple of what they return. Where some raise, the first of them, in this order,
    is raised here, after all have ended: nothing of it is still under way.
    """

    procedures: tuple[Generator[Any, Any, Any], ...]


@dataclass(frozen=True, slots=True)
class Exclusive:
    """A procedure that no other of the same lock client may run beside; answered by its result."""

    procedure: Generator[Any, Any, Any]


Request = (
    Get | Put | List | Delete | Sleep | BlockingCall | Unique | WallMs | Note | Parallel | Exclusive
)  # fmt: skip

T = TypeVar("T")
Procedure = Generator[Request, Any, T]


class SiblingInterrupted(BaseException):
    """What was beside this was interrupted; not for a procedure to handle."""


def run(
    procedure: Procedure[T], store: Store, clock: Clock, emit: Emit = silent,
    stop: threading.Event | None = None,
) -> T:  # fmt: skip
    """Carry out each request as it is yielded; returns what the procedure returns.

    A `StoreError` is thrown into the procedure at the request that met it. Raises
    `SiblingInterrupted` before the next request once `stop` is set. `within` bounds pauses as well
    as requests: after its end no request is sent and nothing is slept.
    """
    answer: Any = None
    try:
        request = procedure.send(None)
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
    """The same request; a pause is no longer than what `within` leaves."""
    left = left_s()
    if isinstance(request, Sleep) and left is not None:
        return Sleep(min(request.seconds, left), request.woken)
    return request


def _log(request: Request, store: Store, answer: object) -> None:
    match request:
        case Get(key) | Put(key) | List(key) | Delete(key):
            log_request(store.url, type(request).__name__.lower(), key, type(answer).__name__)
        case _:
            pass


def carry_out(procedure: Procedure[T], perform: Callable[[Request], Any]) -> T:
    """Answer each request by `perform`. What that raises, an interrupt too, is raised at it."""
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


def relay(procedure: Procedure[T], ask: Callable[[Any], Procedure[Any]]) -> Procedure[T]:
    """The same procedure, each of its requests asked by `ask`; errors are raised at the request."""
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
        case Note(kind, data):
            emit(kind, **data)
            return None
        case Parallel(procedures):
            return _at_once(procedures, store, clock, emit, stop or threading.Event())
        case Exclusive():
            raise AssertionError("whoever runs a lock client's procedures keeps its turn")
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
    left = left_s()

    def one(place: int) -> None:
        try:
            with within(math.inf if left is None else left):  # threads do not inherit it
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



TRIES_MAX = 7
"""About 3 s of pauses in all; a store that is silent for longer is not going to be waited for."""
FIRST_PAUSE_S = 0.05
AT_ONCE_MAX = 8
"""Requests of one batch that are under way together; a client keeps connections for three."""
LONGEST_PAUSE_S = 2.0
LONGEST_ASKED_S = 30.0
"""However long a store asks to be left alone: a writer that sleeps for an hour tells nobody why."""


READ_BYTES_MAX = 64_000_000
"""Of a longer file of the timeline no more is read; whoever parses it refuses its length."""


def pause_s(tries: int, after_s: float | None = None) -> float:
    """The wait after the n-th failure (0-based); within reason what the store asked for."""
    asked_s = min(LONGEST_ASKED_S, after_s or 0.0)
    return max(asked_s, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**tries))


def read(
    key: str, *, unless: Version | None = None, limit: int | None = READ_BYTES_MAX
) -> Procedure[Found | Missing | NotModified]:
    """The object at `key`; `Unanswered` when the store does not say within the tries.

    Of a body that is longer than `limit`, `limit` + 1 bytes.
    """
    why = ""
    for tries in range(TRIES_MAX):
        match (yield Get(key, unless, limit)):
            case Found() | Missing() | NotModified() as answer:
                return answer
            case Throttled(after_s):
                why = "throttled"
                yield Sleep(pause_s(tries, after_s))
            case Unknown(why):
                yield Sleep(pause_s(tries))
            case other:
                raise AssertionError(f"not an answer to a read: {other!r}")
    raise Unanswered(
        f"{key} could not be read in {TRIES_MAX} tries ({why}); see that the store answers, then "
        "try again",
        doubt=False,
    )


def listing(prefix: str, *, after: str = "") -> Procedure[Listing]:
    """Every object under `prefix` whose key is greater than `after`; else raises `Unanswered`."""
    for tries in range(TRIES_MAX):
        try:
            entries: Listing = yield List(prefix, after)
        except NoAnswer as error:
            why = str(error)
            yield Sleep(pause_s(tries))
        else:
            return entries
    raise Unanswered(
        f"{prefix}* could not be listed in {TRIES_MAX} tries ({why}); see that the store answers, "
        "then try again",
        doubt=False,
    )


def all_of(procedures: Iterable[Procedure[Any]]) -> Procedure[list[Any]]:
    """The results of procedures that do not depend on one another, in their order.

    Some go out together; the first that raises ends it, after those beside it have ended.
    """
    waiting = list(procedures)
    results: list[Any] = []
    for first in range(0, len(waiting), AT_ONCE_MAX):
        batch = tuple(waiting[first : first + AT_ONCE_MAX])
        results += (yield Parallel(batch)) if len(batch) > 1 else [(yield from batch[0])]
    return results


def delete(key: str, version: Version | None = None) -> Procedure[None]:
    """Delete an object that nobody will write again, until that is proven.

    With `version` only that version is deleted. An object that is gone or was replaced is no error.
    Raises `Unanswered` when the store does not say within the tries.
    """
    why = ""
    for tries in range(TRIES_MAX):
        match (yield Delete(key, None if version is None else IfVersion(version))):
            case Applied() | PreconditionFailed():
                return
            case Throttled(after_s):
                why = "throttled"
                yield Sleep(pause_s(tries, after_s))
            case Unknown(why):
                yield Sleep(pause_s(tries))
    raise Unanswered(
        f"{key} could not be deleted in {TRIES_MAX} tries ({why}); what is left is deleted when "
        "this is run again",
        doubt=True,
    )


def settle_write(
    key: str, body: bytes, condition: Condition, *, limit: int | None = READ_BYTES_MAX,
    is_ours: Callable[[bytes], bool] | None = None,
) -> Procedure[Version | Found | Missing]:  # fmt: skip
    """Write `body`, and prove what became of it: its version, or what stands there instead.

    Sending the same bytes under the same condition any number of times lands at most one copy. So
    no answer, or a 412 that may be the answer to a hidden second copy, costs a read and, where what
    was written over is still there, a resend. An object that holds these very bytes counts as
    written, by whichever client: give `body` an attempt of its own where that matters.

    :param key: the object.
    :param body: at most `limit` bytes.
    :param condition: `IfAbsent()`, or `IfVersion` of what was read.
    :param limit: of a longer object, only so many bytes and one more are read back.
    :param is_ours: whether a body that was read back is this write; by default the same bytes are.
    :raises Unanswered: if the store does not say within the tries; `doubt` tells whether the write
        may have landed, or may yet land.
    :raises StoreError: as the store's requests, as long as no copy can have landed.
    """
    is_ours = is_ours or body.__eq__
    wrote_over = condition.version if isinstance(condition, IfVersion) else None
    doubt, why = False, ""
    for tries in range(TRIES_MAX):
        try:
            match (yield Put(key, body, condition)):
                case Applied(version):
                    return version
                case Throttled(after_s):
                    why = "throttled"
                    yield Sleep(pause_s(tries, after_s))
                    continue
                case PreconditionFailed():
                    doubt, why = True, "refused, though no other write is seen"
                case Unknown(why):
                    doubt = True
                case other:
                    raise AssertionError(f"not an answer to a write: {other!r}")
            standing = _standing((yield from read(key, limit=limit)), is_ours, wrote_over)
            if standing is not None:
                return standing
            yield Sleep(pause_s(tries))  # still out: the same write once more
        except (StoreError, Unanswered) as error:
            if not doubt:
                raise
            raise Unanswered(f"{key} may have been written: {error}", doubt=True) from error
    # Also after nothing but 429: with a hidden retry that is the answer to a second copy.
    standing = _standing((yield from read(key, limit=limit)), is_ours, wrote_over)
    if standing is not None:
        return standing
    raise Unanswered(
        f"{key} could not be written in {TRIES_MAX} tries ({why or 'it never appeared'}); see that "
        "the store answers, then try again",
        doubt=doubt,
    )


def _standing(
    found: Found | Missing | NotModified, is_ours: Callable[[bytes], bool],
    wrote_over: Version | None,
) -> Version | Found | Missing | None:  # fmt: skip
    """What a read says of a write; None: what it wrote over is still there, so it may yet land."""
    match found:
        case Found(standing, version) if is_ours(standing):
            return version
        case Found(_, version):
            return None if version == wrote_over else found
        case Missing():
            return None if wrote_over is None else found
        case NotModified():
            raise AssertionError("an unconditional read was answered 304")
        case never:
            assert_never(never)


def create(key: str, body: bytes) -> Procedure[Version | Found]:
    """Create `key`, and prove it: a version where it now holds exactly `body`, else what it holds.

    As `settle_write`.
    """
    settled = yield from settle_write(key, body, IfAbsent())
    assert not isinstance(settled, Missing), "what is missing is still out"
    return settled
