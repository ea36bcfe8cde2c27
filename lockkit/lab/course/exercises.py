"""Exercises: the reader writes a function, and the simulator runs it in many small worlds.

Each world has three clients, one store, and a seed that decides the order of all requests and what
goes wrong: lost responses, late writes, hidden retries, throttling, stalls. `judge` plays the
worlds, and draws the shortest one in which a rule of the exercise is broken.

All functions but `conflicts` are procedures: `answer = yield Put(...)` sends a request.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from html import escape
from inspect import isgenerator
from typing import Any, Protocol

from lockkit.events import Event
from lockkit.lab.course import sequence
from lockkit.lab.verify.sim.fault_profile import FaultKind, FaultProfile
from lockkit.lab.verify.sim.memory_store import PROFILES, SOUND, DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.lab.verify.sim.world import SimWorld
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    PreconditionFailed,
    Throttled,
    Unknown,
)
from lockkit.runtime import Delete, Get, List, Procedure, Put, Sleep
from lockkit.runtime.proven import listing, read, settle_write

__all__ = [
    "Applied", "Found", "IfAbsent", "IfVersion", "Missing", "PreconditionFailed", "Put", "Get",
    "Sleep", "Throttled", "Unknown", "judge", "listing", "read",
]  # fmt: skip

WORLDS = 200
FAILED_MAX = 10
"""So many failed worlds are enough to choose the shortest from."""
STEPS = 400
CALLS = 3
"""How often each client calls the function, but for a lock, which it wants once."""
REQUESTS_MAX = 200
"""Of one call; one that sends more is not coming to an end."""
CLIENTS = ("W1", "W2", "W3")
SHARES = (0.0, 0.1, 0.3)
"""Of all writes, how many meet trouble in a world."""
KINDS = (
    FaultKind.LOST_BEFORE, FaultKind.LOST_AFTER, FaultKind.LATE, FaultKind.RETRY,
    FaultKind.THROTTLED, FaultKind.STALL,
)  # fmt: skip


# --- one call of the reader's function ------------------------------------------------------------


@dataclass(slots=True)
class Trial:
    """The reader's function in one world."""

    world: SimWorld
    function: Callable[..., Any]

    def call(self, node: Node, returns: type, *args: Any) -> Procedure[Any]:
        """The function's procedure, watched; `Violated` if it fails, or never ends."""
        name = self.function.__name__
        try:
            procedure = self.function(*args)
            if not isgenerator(procedure):
                raise TypeError("it sends no request: write `answer = yield Put(...)`")
            found = yield from _bounded(name, procedure)
        except Exception as error:  # noqa: BLE001 - the reader's mistake is the exercise's result
            raise Violated("the function ends", _raised(name, error)) from error
        if type(found) is not returns and not (returns is not bool and found is None):
            wanted = "True or False" if returns is bool else "a number or None"
            raise Violated("the function answers", f"{name}() returned {found!r}, not {wanted}")
        self.note(node, f"{name}() returns {found!r}")
        return found

    def note(self, node: Node, text: str) -> None:
        self.world.record(node.name, "note", {"text": text})


def _bounded(name: str, procedure: Generator[Any, Any, Any]) -> Procedure[Any]:
    answer: Any = None
    for _ in range(REQUESTS_MAX):
        try:
            request = procedure.send(answer)
        except StopIteration as done:
            return done.value
        if not isinstance(request, Put | Get | List | Delete | Sleep):
            raise TypeError(f"it yields {request!r}, which is no request")
        answer = yield request
    raise Violated("the function ends", f"{name}() has sent {REQUESTS_MAX} requests")


def _raised(name: str, error: Exception) -> str:
    at = error.__traceback__
    lines = []
    while at is not None:
        if at.tb_frame.f_code.co_name == name:
            lines.append(at.tb_lineno)
        at = at.tb_next
    where = f" in line {lines[-1]} of its cell" if lines else ""
    return f"{name}() raised {type(error).__name__}{where}: {error}"


class Exercise(Protocol):
    """One world of an exercise. A broken rule raises `Violated`, during the run or at its end."""

    def end(self) -> None:
        """Judge what is left when everything has arrived."""
        ...


# --- the exercises --------------------------------------------------------------------------------


class Acquire:
    """`acquire(key, mine)`: True if the object at `key` is `mine`, False if it is another's.

    Three clients want one lock without a lease, each once.
    """

    KEY = "lock.json"

    def __init__(self, trial: Trial) -> None:
        self.trial, self.told = trial, dict[str, bool]()
        for name in CLIENTS:
            node = trial.world.node(name)
            trial.world.spawn(node, self.client(node))

    def client(self, node: Node) -> Procedure[None]:
        holds = yield from self.trial.call(node, bool, self.KEY, f"lock of {node.name}".encode())
        others = [name for name, each in self.told.items() if each]
        if holds and others:
            raise Violated("one holder", f"{node.name} and {others[0]} both believe they hold it")
        self.told[node.name] = holds

    def end(self) -> None:
        there = self.trial.world.memory_store.objects.get(self.KEY)
        if there is None:
            raise Violated("somebody holds it", "all three calls ended, and there is no lock")
        owner = there.body.decode().rpartition(" ")[2]
        if not self.told.get(owner):
            raise Violated(
                "the holder knows it",
                f"the lock of {owner} is there, and {owner} was told False: nobody releases it",
            )


class Publish:
    """`publish(key, seen, body, entry)`: replace version `seen` by `body`.

    True: it is published. False: it is not, and never will be; the caller then reads again and
    makes a new body. Each body is the list of all entries so far, and `entry` is its last line.
    """

    KEY = "commits.txt"

    def __init__(self, trial: Trial) -> None:
        self.trial, self.done = trial, list[str]()
        world = trial.world
        world.memory_store.decide("setup", Put(self.KEY, b"table\n", IfAbsent()), 0.0)
        world.memory_store.on_write = self.on_write
        for name in CLIENTS:
            node = world.node(name)
            world.spawn(node, self.client(node))

    def client(self, node: Node) -> Procedure[None]:
        for number in range(1, CALLS + 1):
            entry, done = f"{node.name}-{number}", False
            while not done:
                seen = yield from read(self.KEY)
                assert isinstance(seen, Found)
                body = seen.body + entry.encode() + b"\n"
                done = yield from self.trial.call(
                    node, bool, self.KEY, seen.version, body, entry
                )
                if not done:
                    yield Sleep(self.trial.world.dice.random())
            self.done.append(entry)
            self.check()

    def on_write(self, _decided: DecidedRequest, _after: StoredObject | None) -> None:
        self.check()

    def check(self) -> None:
        count = Counter(self.trial.world.memory_store.objects[self.KEY].body.decode().split())
        for entry, times in count.items():
            if times > 1:
                raise Violated(
                    "no means no", f"{entry} is there twice: its caller was told False, and wrote "
                    "it again",
                )  # fmt: skip
        for entry in self.done:
            if not count[entry]:
                raise Violated(
                    "no acknowledged entry is lost", f"{entry} was published, and is gone"
                )

    def end(self) -> None:
        self.check()


class Conflicts:
    """`conflicts(mine, later)`: whether my write must be refused.

    `mine` is the set of file groups that I rewrote from my snapshot. `later` lists, oldest first,
    the sets that other writers committed since that snapshot.
    """

    KEY = "table.json"
    GROUPS = ("A", "B", "C", "D")

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        body = json.dumps({"commits": [], "rows": dict.fromkeys(self.GROUPS, 0)}).encode()
        trial.world.memory_store.decide("setup", Put(self.KEY, body, IfAbsent()), 0.0)
        for name in CLIENTS:
            node = trial.world.node(name)
            trial.world.spawn(node, self.client(node))

    def client(self, node: Node) -> Procedure[None]:
        dice = self.trial.world.dice
        for _ in range(CALLS):
            mine = frozenset(dice.sample(self.GROUPS, dice.choice((1, 2))))
            while True:
                seen = yield from self.table()
                base, rows = len(seen[0]["commits"]), seen[0]["rows"]
                yield Sleep(dice.random())
                now, version = yield from self.table()
                later = [frozenset(each) for each in now["commits"][base:]]
                if self.refused(node, mine, later):
                    continue
                for group in mine:
                    now["rows"][group] = rows[group] + 1
                now["commits"].append(sorted(mine))
                body = json.dumps(now).encode()
                settled = yield from settle_write(self.KEY, body, IfVersion(version))
                if isinstance(settled, str):
                    self.check(node, now)
                    break

    def table(self) -> Procedure[tuple[dict[str, Any], str]]:
        found = yield from read(self.KEY)
        assert isinstance(found, Found)
        return json.loads(found.body), found.version

    def refused(self, node: Node, mine: frozenset[str], later: list[frozenset[str]]) -> bool:
        function, name = self.trial.function, self.trial.function.__name__
        try:
            refused = function(mine, list(later))
        except Exception as error:  # noqa: BLE001 - the reader's mistake is the exercise's result
            raise Violated("the function ends", _raised(name, error)) from error
        if type(refused) is not bool:
            raise Violated("the function answers", f"{name}() returned {refused!r}, not a bool")
        said = f"{name}({_set(mine)}, [{', '.join(map(_set, later))}]) returns {refused}"
        self.trial.note(node, said)
        if refused and not any(mine & each for each in later):
            raise Violated("nobody is refused without a reason", said)
        return refused

    def check(self, node: Node, now: dict[str, Any]) -> None:
        for group, value in now["rows"].items():
            commits = sum(group in each for each in now["commits"])
            if value != commits:
                raise Violated(
                    "no lost update", f"{commits} commits each added 1 to {group}, which is "
                    f"{value}: {node.name} wrote from an old snapshot",
                )  # fmt: skip

    def end(self) -> None:
        """Each commit was judged when it was made."""


def _set(of: frozenset[str]) -> str:
    return "{" + ",".join(sorted(of)) + "}"


class Campaign:
    """`campaign(folder, owner, attempt)`: the number of the epoch that I lead, or None.

    An epoch is an object `folder` + six digits. The highest epoch leads, and whoever created its
    object leads it. `owner` is the name of a process: after a restart, the old process may live on
    under the same name. `attempt` is an id that no other call has.
    """

    FOLDER = "epochs/"

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.creator: dict[int, str] = {}
        self.calling: dict[str, str] = {}
        self.told: dict[str, int | None] = {}
        trial.world.memory_store.on_write = self.on_write
        for name in CLIENTS:
            node = trial.world.node(name)
            trial.world.spawn(node, self.client(node))

    def on_write(self, decided: DecidedRequest, _after: StoredObject | None) -> None:
        key = getattr(decided.request, "key", "")
        number = key.removeprefix(self.FOLDER)
        if len(number) != 6 or not number.isdigit():
            raise Violated("an epoch has six digits", f"{decided.client} wrote {key!r}")
        if int(number) in self.creator:
            raise Violated(
                "an epoch is created once", f"{decided.client} replaced epoch {int(number)}"
            )
        self.creator[int(number)] = self.calling[decided.client]

    def client(self, node: Node) -> Procedure[None]:
        owner = "driver" if node.name in CLIENTS[:2] else "other"
        for number in range(1, CALLS + 1):
            attempt = self.calling[node.name] = f"{node.name}-{number}"
            epoch = yield from self.trial.call(node, int, self.FOLDER, owner, attempt)
            self.told[attempt] = epoch
            if epoch is not None and self.creator.get(epoch) != attempt:
                raise Violated(
                    "one leader of an epoch",
                    f"{attempt} believes that it leads epoch {epoch}, which "
                    f"{self.creator.get(epoch, 'nobody')} created",
                )
            yield Sleep(self.trial.world.dice.random())

    def end(self) -> None:
        for epoch, attempt in sorted(self.creator.items()):
            if self.told[attempt] != epoch:
                raise Violated(
                    "the leader knows it",
                    f"{attempt} created epoch {epoch}, and was told {self.told[attempt]}: the "
                    "others wait for a leader that does not lead",
                )


class Append:
    """`append(folder, record)`: add `record` to a log, and return the number of its slot.

    A slot is an object `folder` + six digits, from 000001 on, without a gap. Three clients append.
    """

    FOLDER = "log/"

    def __init__(self, trial: Trial) -> None:
        self.trial, self.done = trial, dict[str, int]()
        trial.world.memory_store.on_write = self.on_write
        for name in CLIENTS:
            node = trial.world.node(name)
            trial.world.spawn(node, self.client(node))

    def client(self, node: Node) -> Procedure[None]:
        for number in range(1, CALLS + 1):
            record = f"{node.name}-{number}"
            slot = yield from self.trial.call(node, int, self.FOLDER, record.encode())
            if slot is None or self.log().get(self.key(slot)) != record:
                raise Violated(
                    "what is acknowledged is in the log",
                    f"append() said that {record} is in slot {slot}, and it is not",
                )
            self.done[record] = slot

    def key(self, slot: int) -> str:
        return f"{self.FOLDER}{slot:06}"

    def log(self) -> dict[str, str]:
        objects = self.trial.world.memory_store.objects
        return {key: each.body.decode() for key, each in sorted(objects.items())}

    def on_write(self, decided: DecidedRequest, _after: StoredObject | None) -> None:
        log = self.log()
        for record, times in Counter(log.values()).items():
            if times > 1:
                raise Violated("a record is in the log once", f"{record} is in {times} slots")
        gone = [each for each, slot in self.done.items() if log.get(self.key(slot)) != each]
        if gone:
            raise Violated("nothing acknowledged is lost", f"{decided.client} wrote over {gone[0]}")
        for slot, key in enumerate(log, 1):
            if key != self.key(slot):
                raise Violated(
                    "no gap", f"{decided.client} wrote {key}, and {self.key(slot)} is empty"
                )

    def end(self) -> None:
        """Each write was judged when it landed."""


EXERCISES: dict[str, Callable[[Trial], Exercise]] = {
    "acquire": Acquire, "publish": Publish, "conflicts": Conflicts, "campaign": Campaign,
    "append": Append,
}  # fmt: skip


# --- judging --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judged:
    """The outcome of an exercise, and the shortest story of a world that failed."""

    name: str
    worlds: int
    """The number of worlds played."""
    requests: int
    faults: Counter[str] = field(hash=False)
    failed: int = 0
    world: int = 0
    """The failed world with the fewest events."""
    because: str = ""
    """The rule that was broken in that world, and how; "" if all worlds passed."""
    events: tuple[Event, ...] = ()

    @property
    def solved(self) -> bool:
        return not self.failed

    def __str__(self) -> str:
        if self.failed:
            count = f"{self.failed} of the first {self.worlds} worlds failed"
            return f"not yet: {count}. World {self.world}: {self.because}"
        met = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.faults.items()))
        return f"solved: {self.worlds} worlds, {self.requests:,} requests ({met})"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        said = f"<div><b>{'✓' if self.solved else '✗'}</b> {escape(str(self))}</div>"
        if self.solved:
            return said
        drawn: str = sequence.draw(self.events, f"World {self.world}: {self.because}").value
        return said + drawn


def judge(function: Callable[..., Any], *, worlds: int = WORLDS) -> Judged:
    """Run `function` in that many worlds, or until ten of them have failed.

    Its name tells which exercise it solves. `ValueError` for another name, or less than one world.
    """
    name = getattr(function, "__name__", "")
    if name not in EXERCISES:
        raise ValueError(f"the function must be called {', '.join(EXERCISES)}, not {name!r}")
    if worlds < 1:
        raise ValueError("play at least one world")
    found = Judged(name, 0, 0, Counter())
    for number in range(1, worlds + 1):
        world = _world(name, number)
        because = _play(world, EXERCISES[name], function)
        found = replace(
            found, worlds=number, requests=found.requests + len(world.memory_store.truth),
            faults=found.faults + Counter({str(k): n for k, n in world.faults.items()}),
            failed=found.failed + bool(because),
        )  # fmt: skip
        events = tuple(world.history()) if because else ()
        if because and (not found.because or len(events) < len(found.events)):
            found = replace(found, world=number, because=because, events=events)
        if found.failed == FAILED_MAX:
            break
    return found


def _play(world: SimWorld, exercise: Callable[[Trial], Exercise], function: Any) -> str:
    """The rule that was broken, and how; "" if none was."""
    try:
        trial = exercise(Trial(world, function))
        world.play(STEPS)
        world.finish()
        trial.end()
    except Violated as violated:
        return f"{violated.because} ({violated.invariant})"
    return ""


def _world(name: str, seed: int) -> SimWorld:
    dice = random.Random(f"{name} {seed}")
    profile = FaultProfile.of(dice, KINDS)
    writes = dice.choice(SHARES) if profile.of_writes else 0.0
    nodes = 0.02 if profile.of_nodes else 0.0
    return SimWorld(
        str(seed), STEPS, PROFILES[dice.choice(SOUND)],
        replace(profile, writes=writes, nodes=nodes), dice.random() < 0.5,
    )  # fmt: skip
