"""One call of a reader's function in a simulated world; its errors are the result."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import wraps
from hashlib import sha256
from inspect import isgenerator, unwrap
from math import inf
from types import CodeType, FunctionType
from typing import Any, TypeVar

from lockkit.errors import Unanswered
from lockkit.lab.verify.sim.clock import Time
from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.lab.verify.sim.world import SimWorld
from lockkit.protocol.outcome import Condition, Found, IfAbsent, IfVersion, Throttled
from lockkit.runtime import Delete, Get, List, Procedure, Put, Sleep
from lockkit.runtime.proven import read, settle_write

T = TypeVar("T")
CALLS = 3
"""How often each client calls the function, but for a lock, which it wants once."""
CLIENTS = ("W1", "W2", "W3")
REQUESTS_MAX = 200
"""Of one call; one that sends more is not coming to an end."""


@dataclass(slots=True)
class Trial:
    """The reader's function in one world."""

    world: SimWorld
    function: Callable[..., Any]

    def call(self, node: Node, returns: type, *args: Any) -> Procedure[Any]:
        """Run the function's procedure; `Violated` if it fails, or never ends."""
        name = self.function.__name__
        try:
            procedure = self.function(*args)
            if not isgenerator(procedure):
                raise TypeError("it sends no request: write `answer = yield Put(...)`")
            found = yield from _bounded(name, procedure)
        except Exception as error:
            raise Violated("the function ends", _raised(name, error)) from error
        if type(found) is not returns and not (returns is not bool and found is None):
            wanted = "True or False" if returns is bool else "a number or None"
            raise Violated("the function answers", f"{name}() returned {found!r}, not {wanted}")
        self.note(node, f"{name}() returns {found!r}")
        return found

    def decide(self, returns: Any, *args: Any) -> Any:
        """Call a function that sends no request; return its result. `Violated` if it fails."""
        name = self.function.__name__
        try:
            found = self.function(*args)
            if isgenerator(found):
                raise TypeError("it only decides, and sends no request: leave out `yield`")
        except Exception as error:
            raise Violated("the function ends", _raised(name, error)) from error
        if not isinstance(found, returns) or found != found:  # nan
            wanted = "True or False" if returns is bool else _name_of(returns)
            raise Violated("the function answers", f"{name}() returned {found!r}, not {wanted}")
        return found

    def of_process(self, name: str) -> Trial:
        """The function with nothing remembered and a `hash` of its own, as in a new process."""
        function: Any = unwrap(self.function)

        @wraps(self.function)
        def alone(*args: Any) -> Any:
            with _new_process(function, name):
                return function(*args)

        return replace(self, function=alone)

    def put(self, key: str, body: bytes) -> None:
        """Put an object into the store before the world begins."""
        store = self.world.memory_store
        store.decide("", Put(key, body, IfAbsent()), 0.0)
        store.truth.clear()

    def note(self, node: Node, text: str) -> None:
        self.world.record(node.name, "note", {"text": text})


@contextmanager
def _new_process(function: FunctionType, name: str) -> Iterator[None]:
    """While it lasts `hash` is its own; at its end, what the function remembers is undone."""
    names, found = function.__globals__, dict[int, Any]()
    _reach(function, names, found)
    kept = [(each, copy(each)) for each in found.values() if isinstance(each, list | set | dict)]
    before = {each: value for each, value in names.items() if id(value) in found or each == "hash"}
    own = lambda value: int(sha256(f"{name} {value}".encode()).hexdigest(), 16)  # noqa: E731
    names.setdefault("hash", own)
    try:
        yield
    finally:
        del names["hash"]
        names.update(before)
        for each, content in kept:
            each.clear()
            (each.extend if isinstance(each, list) else each.update)(content)
        for each in found.values():
            getattr(each, "cache_clear", bool)()


def _reach(value: Any, names: dict[str, Any], found: dict[int, Any]) -> None:
    """Find all in which a function may remember something."""
    if id(value) in found:
        return
    found[id(value)], parts = value, list[Any]()
    match value:
        case FunctionType() if value.__globals__ is names:
            parts = [value.__code__, value.__defaults__, value.__kwdefaults__, value.__dict__]
            parts += [each.cell_contents for each in value.__closure__ or ()]
        case CodeType():
            parts = [*map(names.get, value.co_names), *value.co_consts]
        case type() if value.__module__ == names.get("__name__"):
            parts = [*vars(value).values(), *value.__bases__]
        case list() | set() | tuple() | dict():
            parts = [*(value.values() if isinstance(value, dict) else value)]
        case _ if type(value).__module__ in (names.get("__name__"), "types"):
            parts = [getattr(value, "__dict__", None)]
        case _:  # of a cached function, a static one, a class's
            parts = [getattr(value, "__wrapped__", None)]
    for each in parts:
        _reach(each, names, found)


def for_sure(attempt: Callable[[], Procedure[T]]) -> Procedure[T]:
    """The result of a procedure of a world, begun again until the store answers."""
    while True:
        try:
            return (yield from attempt())
        except Unanswered:
            yield Sleep(1)


def parsed(key: str) -> Procedure[tuple[Any, str]]:
    """The JSON of an object that is there, and its version."""
    found = yield from read(key)
    assert isinstance(found, Found)
    return json.loads(found.body), found.version


def settle(key: str, body: bytes, condition: Condition) -> Procedure[Any]:
    """Write and prove the outcome, however long the store does not answer."""
    return (yield from for_sure(lambda: settle_write(key, body, condition)))


def taken(
    time: Time, key: str, claim: Callable[[Found | None, float], dict[str, Any] | None],
    pause_s: float,
) -> Procedure[tuple[str, dict[str, Any], float]]:  # fmt: skip
    """Poll a lock object and claim it; return the grant's version, its record, when it was sent.

    `claim(found, watched_ms)` is called after each look: the record to write, or None to wait.
    `watched_ms` is how long this client has seen the same version.
    """
    seen, since_ms = None, 0.0
    while True:
        found = yield from for_sure(lambda: read(key))
        there = found if isinstance(found, Found) else None
        version = there.version if there else None
        if version != seen:
            seen, since_ms = version, time.now_ms
        record, sent_ms = claim(there, time.now_ms - since_ms), time.now_ms
        if record is not None:
            body = json.dumps(record).encode()
            settled = yield from settle(key, body, IfVersion(version) if version else IfAbsent())
            if isinstance(settled, str):
                return settled, record, sent_ms
        yield Sleep(pause_s)


def _bounded(name: str, procedure: Generator[Any, Any, Any]) -> Procedure[Any]:
    answer: Any = None
    throttled = 0
    for _ in range(REQUESTS_MAX):
        try:
            request = procedure.send(answer)
        except StopIteration as done:
            return done.value
        if why := _unusable(request):
            raise TypeError(f"it yields {why}")
        answer = yield request
        throttled += isinstance(answer, Throttled)
    hint = f", {throttled} of them answered 429: after a 429, wait with `yield Sleep(1)`"
    raise Violated("the function ends", f"{name}() has sent {REQUESTS_MAX} requests"
                   f"{hint if throttled > REQUESTS_MAX // 2 else ''}")


def _unusable(request: Any) -> str:
    """What is wrong with a request that no store could be sent; "" if nothing is."""
    kind = type(request).__name__
    if type(request) not in (Put, Get, List, Delete, Sleep):
        return f"{request!r}, which is not a request"
    if kind == "Sleep":
        usable = isinstance(request.seconds, int | float) and 0 <= request.seconds < inf
        return "" if usable else f"a Sleep whose time is {request.seconds}: give seconds, 0 or more"
    key = request.prefix if kind == "List" else request.key
    if not isinstance(key, str):
        return f"a {kind} whose key is {key!r}, which is not text"
    if kind == "Put" and not isinstance(request.body, bytes):
        return "a Put whose body is not bytes: add .encode() to a text"
    if kind == "Put" and not isinstance(request.condition, IfAbsent | IfVersion):
        return "a Put whose condition is missing: give IfAbsent() or IfVersion(version)"
    return ""


def _name_of(returns: Any) -> str:
    if returns is int:
        return "a whole number"
    return f"a {returns.__name__}" if isinstance(returns, type) else "a number"


def _raised(name: str, error: Exception) -> str:
    at = error.__traceback__
    lines = []
    while at is not None:
        if at.tb_frame.f_code.co_name == name:
            lines.append(at.tb_lineno)
        at = at.tb_next
    where = f" in line {lines[-1]} of its code" if lines else ""
    return f"{name}() raised {type(error).__name__}{where}: {error}"


class Exercise:
    """One world of an exercise, and its three clients. A broken rule raises `Violated`.

    The docstring of an exercise is its task.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.prepare()
        trial.world.memory_store.on_write = self.on_write
        for name in CLIENTS:
            node = self.node(name)
            trial.world.spawn(node, self.client(node))

    def prepare(self) -> None:
        """Set up the store, and what the rules need, before the clients begin."""

    def node(self, name: str) -> Node:
        """A client's machine, with its clock."""
        return self.trial.world.node(name)

    def client(self, node: Node) -> Procedure[None]:
        raise NotImplementedError

    def on_write(self, decided: DecidedRequest, after: StoredObject | None) -> None:
        """A write was applied."""

    def end(self) -> None:
        """Judge the final state, after every write has arrived."""
