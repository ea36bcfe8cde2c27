"""One call of a reader's function in a simulated world; its errors are the result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf
from numbers import Integral, Real
from typing import Any, NoReturn, TypeVar

from lockkit.errors import Unanswered
from lockkit.lab.course.process import Copy, Interpreter, Said
from lockkit.lab.verify.sim.clock import Time
from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.lab.verify.sim.world import SimWorld
from lockkit.protocol.outcome import Condition, Found, IfAbsent, IfVersion, Throttled, Unknown
from lockkit.runtime import Delete, Get, List, Procedure, Put, Sleep
from lockkit.runtime.proven import read, settle_write

T = TypeVar("T")
CALLS = 3
"""How often each client calls the function, but for a lock, which it wants once."""
CLIENTS = ("W1", "W2", "W3")
ENDS = {"ends": "every call must return", "endless": "every call must return in time"}
"""How a client's process can end in the middle of a world -> the rule that this breaks."""
NAMES = {bool: "True or False", int: "a whole number", float: "a number",
         list: "a list of names", set: "a set of names"}
KINDS: dict[type, Any] = {set: Set, dict: Mapping, int: Integral, float: Real | Decimal}
"""What is taken for a result of that type."""
PRINTS = "prints: "
REQUESTS_MAX = 200
"""Of one call; one that sends more is not coming to an end."""


@dataclass(slots=True)
class Trial:
    """The reader's function in one world."""

    world: SimWorld
    name: str
    start: Callable[[str], Copy | Interpreter]
    clients: dict[str, Copy | Interpreter] = field(default_factory=dict)

    def call(self, node: Node, returns: type, *args: Any) -> Procedure[Any]:
        """Run the function's procedure; `Violated` if it fails, or never ends."""
        if self.ask(node, "call", args)[0] != "runs":
            self.raised("TypeError: it sends no request: write `answer = yield Put(...)`")
        answer: Any = None
        throttled = 0
        for _ in range(REQUESTS_MAX):
            kind, found = self.ask(node, "send", answer)
            if kind == "returns":
                break
            if why := _unusable(found):
                self.raised(f"TypeError: it yields {why}")
            answer = yield found
            if isinstance(answer, Unknown):  # a client cannot know why
                answer = Unknown("no answer")
            throttled += isinstance(answer, Throttled)
        else:
            hint = f", {throttled} of them answered 429: after a 429, wait with `yield Sleep(1)`"
            raise Violated(ENDS["ends"], f"{self.name}() has sent {REQUESTS_MAX} requests"
                           f"{hint if throttled > REQUESTS_MAX // 2 else ''}")  # fmt: skip
        if (plain := _plain(found, returns)) is None and (returns is bool or found is not None):
            self.wrong(found, "True or False" if returns is bool else f"{NAMES[returns]} or None")
        self.note(node, f"{self.name}() returns {plain!r}")
        return plain

    def decide(self, node: Node, returns: type, *args: Any) -> Any:
        """Call a function that sends no request; return its result. `Violated` if it fails."""
        kind, found = self.ask(node, "call", args)
        if kind == "runs":
            self.raised(
                f"TypeError: it returns a generator: write `{returns.__name__}(...)` around it"
                if found == "<genexpr>" else
                "TypeError: it only decides, and sends no request: leave out `yield`"
            )  # fmt: skip
        if (plain := _plain(found, returns)) is None:
            self.wrong(found, NAMES.get(returns, f"a {returns.__name__}"))
        return plain

    def ask(self, node: Node, kind: str, value: Any) -> Said:
        """Let the client's process call the function, or go on with it."""
        if node.name not in self.clients:
            self.clients[node.name] = self.start(node.name)
        said = self.clients[node.name].ask(kind, value)
        if printed := self.clients[node.name].printed.strip():
            self.note(node, f"{PRINTS}{printed}")
        if said[0] == "raises":
            self.raised(said[1])
        if said[0] in ENDS:
            raise Violated(ENDS[said[0]], f"{self.name}() {said[1]}")
        return said

    def wrong(self, found: Any, wanted: str) -> NoReturn:
        try:
            text = repr(found)
        except ValueError:
            text = "a number of too many digits"
        said = f"{self.name}() returned {text}, not {wanted}"
        raise Violated("the result is of the right type", said)

    def raised(self, what: str) -> NoReturn:
        raise Violated(ENDS["ends"], f"{self.name}() raised {what}")

    def put(self, key: str, body: bytes) -> None:
        """Put an object into the store before the world begins."""
        store = self.world.memory_store
        store.decide("", Put(key, body, IfAbsent()), 0.0)
        store.truth.clear()

    def note(self, node: Node, text: str) -> None:
        self.world.record(node.name, "note", {"text": text})


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


def _unusable(request: Any) -> str:
    """What is wrong with a request that no store could be sent; "" if nothing is."""
    kind = type(request).__name__
    if type(request) not in (Put, Get, List, Delete, Sleep):
        return f"{request!r}, which is not a request"
    if kind == "Sleep":
        usable = isinstance(request.seconds, int | float) and 0 <= request.seconds < inf
        wrong = f"a Sleep whose time is {request.seconds!r}: give seconds, 0 or more"
        return "" if usable else wrong
    key = request.prefix if kind == "List" else request.key
    if not isinstance(key, str):
        return f"a {kind} whose key is {key!r}, which is not text"
    if kind == "Put" and not isinstance(request.body, bytes):
        return "a Put whose body is not bytes: add .encode() to a text"
    if kind == "Put" and not isinstance(request.condition, IfAbsent | IfVersion):
        return "a Put whose condition is missing: give IfAbsent() or IfVersion(version)"
    return ""


def _plain(found: Any, returns: type) -> Any:
    """The result as Python's own value, if it is one of numpy's; None if it is of another type."""
    if returns is bool:
        return bool(found) if type(found).__name__ in ("bool", "bool_") else None
    try:
        usable = isinstance(found, KINDS.get(returns, returns)) and found == found  # nan
        plain = returns(found) if usable and not isinstance(found, bool) else None
        str(plain)
    except (ArithmeticError, ValueError):  # of too many digits, or a nan that signals
        return None
    keys = plain if returns in (list, set) and plain is not None else ()
    return plain if all(isinstance(each, str) for each in keys) else None


class Exercise:
    """One world of an exercise, and its three clients. A broken rule raises `Violated`."""

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
