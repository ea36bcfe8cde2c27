"""Exercises: the reader writes a function, and the simulator runs it in many small worlds.

Each world has three clients, one store, and a seed that decides the order of all requests and what
goes wrong: lost responses, late writes, hidden retries, throttling, stalls. `judge` plays the
worlds, and draws the shortest one in which a rule of the exercise is broken.

Some functions are procedures: `answer = yield Put(...)` sends a request. The others only decide.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from html import escape
from threading import RLock
from typing import Any

from lockkit.events import Event
from lockkit.lab.course import (
    exercise_clocks,
    exercise_group,
    exercise_merging,
    exercise_objects,
    exercise_tables,
    exercise_worlds,
    sequence,
)
from lockkit.lab.course.process import REAL, Copy, Interpreter, hinders, interpreters, packed
from lockkit.lab.course.trial import ENDS, PRINTS, Exercise, Trial
from lockkit.lab.verify.sim.fault_profile import FaultKind, FaultProfile
from lockkit.lab.verify.sim.memory_store import PROFILES, SOUND
from lockkit.lab.verify.sim.task import Violated
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
from lockkit.runtime import Delete, Get, Put, Sleep
from lockkit.runtime.proven import listing, read

__all__ = [
    "Applied", "Delete", "Found", "Get", "IfAbsent", "IfVersion", "Missing",
    "PreconditionFailed", "Put", "Sleep", "Throttled", "Unknown", "judge", "listing", "read",
]  # fmt: skip

EXERCISES: dict[str, Callable[[Trial], Exercise]] = {
    "acquire": exercise_worlds.Acquire, "publish": exercise_worlds.Publish,
    "free": exercise_clocks.Free, "conflicts": exercise_worlds.Conflicts,
    "campaign": exercise_worlds.Campaign, "append": exercise_worlds.Append,
    "order": exercise_worlds.Order,
    "pay": exercise_objects.Balance, "release": exercise_objects.HandOver,
    "honours": exercise_objects.Promise,
    "roll_back": exercise_tables.SilentWriter, "clean": exercise_tables.Retention,
    "claim": exercise_objects.HotLock, "until": exercise_clocks.Session,
    "decide": exercise_group.Deciding, "file_slice": exercise_merging.SliceOfFiles,
    "bucket": exercise_tables.Placement, "two_holders": exercise_clocks.Witness,
}  # fmt: skip
"""The function's name -> its world. The notebook that begins the function has its task."""

WORLDS = 200
FAILED_MAX = 10
"""So many failed worlds are enough to choose the shortest from."""
PRINTED_LINES_MAX = 12
LATER = "later worlds"
STEPS = 400
_TURN = RLock()
"""One function is judged at a time: all are served by the same processes."""
SHARES = (0.0, 0.1, 0.3)
"""Of all writes, how many meet trouble in a world."""
KINDS = (
    FaultKind.LOST_BEFORE, FaultKind.LOST_AFTER, FaultKind.LATE, FaultKind.RETRY,
    FaultKind.THROTTLED, FaultKind.STALL,
)  # fmt: skip


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
    printed: str = ""
    """The beginning of what the function printed in the first world in which it did."""

    @property
    def solved(self) -> bool:
        return not self.failed

    def __str__(self) -> str:
        if self.failed:
            return f"{self._count()}. World {self.world}: {self.because}"
        met = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.faults.items()))
        solved = f"solved: {self.worlds} worlds, {self.requests:,} requests ({met})"
        return f"{solved}\n{self.printed}".rstrip()

    __repr__ = __str__

    def _count(self) -> str:
        return f"not yet: {self.failed} of the first {self.worlds} worlds failed"

    def _repr_html_(self) -> str:
        if self.solved:
            solved, _, printed = str(self).partition("\n")
            shown = f"<pre>{escape(printed)}</pre>" if printed else ""
            return f"<div><b>✓</b> {escape(solved)}</div>{shown}"
        drawn: str = sequence.draw(self.events, f"World {self.world}: {self.because}").value
        return f"<div><b>✗</b> {escape(self._count())}. The shortest story:</div>{drawn}"


def judge(function: Callable[..., Any], *, worlds: int = WORLDS) -> Judged:
    """Run `function` in that many worlds, or until ten of them have failed.

    Its name tells which exercise it solves. `ValueError` for another name, or less than one world.
    """
    name = getattr(function, "__name__", "")
    if name not in EXERCISES:
        raise ValueError(f"the function must be called {', '.join(EXERCISES)}, not {name!r}")
    if worlds < 1:
        raise ValueError("play at least one world")
    try:
        with _TURN:
            code = packed(function)
    except Exception as error:
        why = f"{name}() uses `{hinders(function, name)}`, which cannot be given to another process"
        raise ValueError(f"{why}: {error}. Make it inside {name}(), or do without") from error
    found = Judged(name, 0, 0, Counter())
    with _TURN, interpreters(code) as start:
        later = start(LATER, __name__)
        for number in range(1, worlds + 1):
            if number <= REAL:
                one = _played(name, number, start)
            else:
                kind, one = later.ask("play", (_played, name, number))
                if kind != "returns":  # it is played again, so that its story can be drawn
                    later, why = start(LATER, __name__), f"{name}() {one}. Rule: {ENDS[kind]}"
                    one = _played(name, number, start, why)
            shortest = one.failed and (not found.failed or len(one.events) < len(found.events))
            found = replace(
                one if shortest else found, worlds=number, failed=found.failed + one.failed,
                requests=found.requests + one.requests, faults=found.faults + one.faults,
                printed=found.printed or one.printed,
            )  # fmt: skip
            if found.failed == FAILED_MAX or one.because.endswith(ENDS["endless"]):
                break
    return found


def _played(
    name: str, number: int, start: Callable[[str], Copy | Interpreter], ended: str = ""
) -> Judged:
    """What came of one world; if no rule was broken in it, how it ended before."""
    world = _world(name, number)
    because = _play(Trial(world, name, start), EXERCISES[name]) or ended
    faults = Counter({str(kind): count for kind, count in world.faults.items()})
    events = tuple(world.history()) if because else ()
    sent, printed = len(world.memory_store.truth), _printed(world)
    return Judged(name, 1, sent, faults, int(bool(because)), number, because, events, printed)


def _printed(world: SimWorld) -> str:
    """The first lines of what the function printed in this world."""
    said = [f"{who} {data['text']}" for _, who, _, data in world.recorded
            if str(data.get("text")).startswith(PRINTS)]  # fmt: skip
    lines = "\n".join(said).splitlines()[:PRINTED_LINES_MAX]
    return "\n".join([f"World {world.seed}:", *lines]) if lines else ""


def _play(trial: Trial, exercise: Callable[[Trial], Exercise]) -> str:
    """The rule that was broken, and how; "" if none was."""
    try:
        played = exercise(trial)
        trial.world.play(STEPS)
        trial.world.finish()
        played.end()
    except Violated as violated:
        return f"{violated.because}. Rule: {violated.invariant}"
    return ""


def _world(name: str, seed: int) -> SimWorld:
    dice = random.Random(f"{name} {seed}")
    exercise = EXERCISES[name]
    profile = FaultProfile.of(dice, getattr(exercise, "KINDS", KINDS))
    fair = getattr(exercise, "FAIR", False)  # a client that polls must not block the others
    writes = dice.choice(getattr(exercise, "SHARES", SHARES)) if profile.of_writes else 0.0
    nodes = 0.02 if profile.of_nodes else 0.0
    return SimWorld(
        str(seed), STEPS, PROFILES[dice.choice(getattr(exercise, "STORES", SOUND))],
        replace(profile, writes=writes, nodes=nodes), fair or dice.random() < 0.5,
    )  # fmt: skip
