"""Planted mistakes: the repairs of the table's commit, each of them taken away again.

The scenario `table` finds each of them, and `hudi-table` what matters only beside Hudi's writers.
`python -m tests.repair_mutants` prints the table. They replace functions by what stood there
before, or by what is plausible and wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest.mock import patch

from lockkit.lab.verify.planting import answering
from lockkit.lab.verify.sim import SeedOutcome, SimScenario, simulate
from lockkit.lab.verify.table.scenario import BESIDE_HUDI, SCENARIO
from lockkit.protocol.outcome import IfAbsent, IfVersion
from lockkit.runtime import Delete, Note, Procedure, Put, Unique, WallMs
from lockkit.runtime.proven import listing
from lockkit.table.format.layout import NOWHERE
from lockkit.table.format.properties import HUDI, load_config
from lockkit.table.format.timeline import (
    COMMITS,
    Timeline,
    TimelineNames,
    _after,
    instant_of,
    load_timeline,
    parse_timeline,
)
from lockkit.table.occ.covered import CheckedHorizon
from lockkit.table.occ.failed import roll_back_held
from lockkit.table.occ.held import LockReads, look
from lockkit.table.occ.liveness import end
from lockkit.table.occ.rollback import _files_of, roll_back
from lockkit.table.occ.transaction import TakenInstant, Transaction, first_file, is_ours
from lockkit.table.write.batch import own_attempt

BUDGET_S = 60.0
ROOT = Path(__file__).parents[1]
SEEDS_FILE = Path(__file__).parent / "repair_seeds.json"


nothing, yes, gone = answering(None), answering(True), answering("gone")


def no_lanes(newest: str, wall_ms: int, _action: str, lead_ms: int = 0, *_: Any) -> int:
    return max(_after(newest, wall_ms) + lead_ms, wall_ms)


def looked_once(reads: LockReads, _claiming: bool) -> Procedure[None]:
    reads.found = reads.found or (yield from look(reads.known, ""))


def given_up_by_name(taken: TakenInstant, _now: Any = None, paths: Any = ()) -> Procedure[None]:
    """As `abandon` did: whatever has that name now goes, whose it may be."""
    names, instant, action = taken.names, taken.instant, taken.action
    for key in (*paths, names.inflight(instant, action), names.requested(instant, action)):
        yield Delete(key)


def withdrawn_by_name(
    taken: TakenInstant, *_: Any, paths: Any = None, **__: Any
) -> Procedure[None]:
    yield from given_up_by_name(taken, None, paths or ())


def pending_is_ours(taken: TakenInstant, now: Any) -> Procedure[bool]:
    yield from ()
    return taken.instant in now.pending


def survey_that_gives_up(taken: TakenInstant, _: bool = False) -> Procedure[tuple[Any, Any]]:
    """As before: it gives the instant up itself, and its caller does so once more."""
    now = yield from load_timeline(
        taken.names, after=CheckedHorizon(taken.known.horizon).listed_after
    )
    if now.latest > taken.instant or taken.instant in now.doubled:
        yield from given_up_by_name(taken)
        return None, now
    if taken.instant not in now.pending:
        return None, now
    yield Note("began", {"instant": taken.instant})
    return Transaction(taken, now), now


def take_whatever_is_there(
    known: Any, *, action: str = "commit", plan: bytes = b"", lead_ms: int = 0, trying: Any = None
) -> Procedure[TakenInstant]:
    """An instant whose requested file is there counts as taken, whoever made the file."""
    attempt = yield Unique()
    body = first_file(action, plan, attempt, known.config.version)
    instant = instant_of(no_lanes(known.newest, (yield WallMs()), action, lead_ms))
    if trying is not None:
        yield from trying(TakenInstant(instant, attempt, action, known, body, ""))
    key = known.config.names.requested(instant, action)
    answer = yield Put(key, body, IfAbsent())
    return TakenInstant(instant, attempt, action, known, body, getattr(answer, "version", ""))


def discarded_by_name(taken: TakenInstant, now: Any, paths: Any = ()) -> Procedure[None]:
    """As before: where a later instant is completed, whatever has these names goes."""
    for path in paths:
        yield Delete(path)
    if now.latest > taken.instant:
        yield Delete(taken.names.inflight(taken.instant, taken.action))
        yield Delete(taken.requested)
    elif (yield from is_ours(taken, now)):
        yield Delete(taken.requested, IfVersion(taken.version))


def without_heartbeat(attempt: Any, taken: TakenInstant) -> Procedure[bool]:
    attempt._spent = attempt._spent or attempt._heart
    attempt._taken, attempt._heart, attempt._paths = taken, None, ()
    attempt._sent_ms = attempt.host.boot_ms()
    yield from ()
    return True


def whatever_is_completed(claim: Any, marker: str) -> Procedure[str]:
    config, _ = yield from load_config()
    now = parse_timeline((yield from listing(config.names.folder + claim.instant)), config.names)
    if now.completed.get(claim.instant) in COMMITS:
        return "committed"
    return (yield from own_attempt(claim, marker))


def rolled_back_by_the_lock_alone(
    target: str, held: Any, known: Any, *, resume: str | None = None, **_: Any
) -> Procedure[Any]:
    """As if the table were in `hudi` mode, where the lock decides and the fence is not read."""
    known = replace(known, config=replace(known.config, mode=HUDI))
    way = roll_back_held(target, held, known, base="memory://t", resume=resume)
    return (yield from way)


def rolled_back_unlooked(
    dead: Any, held: Any, known: Any, *, base: str, **_: Any
) -> Procedure[None]:
    """What was pending before the commit had its lock is taken for pending once it has it."""
    for heartbeat in dead:
        if (yield from end(heartbeat)):
            yield from roll_back_held(heartbeat.instant, held, known, base=base)


def files_of_what_was_pending(names: TimelineNames, target: str) -> Procedure[Timeline]:
    now = yield from _files_of(names, target)
    action = now.completed.get(target, "commit")
    return replace(now, completed={}, pending=now.pending or {target: action})


def altered(function: Any, **parts: Any) -> Any:
    """A copy of `function` that calls these; other callers of `function` are right."""
    copy = FunctionType(
        function.__code__, {**function.__globals__, **parts}, function.__name__,
        function.__defaults__,
    )  # fmt: skip
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_BY_NAME = {
    "transaction.next_instant_ms": no_lanes,
    "transaction.is_ours": pending_is_ours,
    "rollback.is_ours": pending_is_ours,
    "transaction.survey": survey_that_gives_up,
    "discarding.discard": given_up_by_name, "rollback.discard": given_up_by_name,
}

REPAIRS: dict[str, dict[str, Any]] = {
    "two actions may request one instant, and a writer deletes its own by name, twice": _BY_NAME,
    "two actions may request one instant": {"transaction.next_instant_ms": no_lanes},
    "a refused attempt deletes its instant by name, without a rollback": {
        "rollback.withdraw": withdrawn_by_name,
    },
    "a refused attempt leaves its instant to others": {
        "rollback.withdraw": nothing,
    },
    "a writer takes an existing instant as its own": {
        "transaction.take": take_whatever_is_there,
        "transaction.is_ours": pending_is_ours,
        "rollback.is_ours": pending_is_ours,
    },
    "a useless instant is left pending": {
        "discarding.discard": nothing,
    },
    "a useless instant is deleted by name": {
        "discarding.discard": discarded_by_name, "rollback.discard": discarded_by_name,
    },
    "a rollback does not settle the last decision": {"rollback.settle": nothing},
    "the next instant has no lead": {
        "transaction.lead_ms": lambda _: 0, "append.lead_ms": lambda _: 0,
    },
    "a refusal after an unknown outcome is final": {"attempt.WriteAttempt._undo": yes},
    "a write does not look for a repeated batch": {"batch.own_attempt": gone},
    "an overwrite conflicts only with file groups that it saw": {
        "prepared.overwritten_by": lambda *_: NOWHERE,
        "layout.overwritten_by": lambda *_: NOWHERE,
    },
    "a survey does not look for later commits": {
        "timeline.Timeline.latest": property(lambda _: ""),
    },
    "an increment passes a pending instant": {"incremental.first_pending": lambda *_: "~"},
    "a horizon passes a pending instant": {"covered.pending_commits": lambda _: []},
    "a clean deletes the latest slices too": {
        "clean.garbage": lambda lineage, *_, **__: frozenset(lineage.instants),
    },
    "no conflict check": {"commit.find_conflict": lambda *_, **__: None},
    "the last decision is not settled": {"commit.settle": nothing},
    "a rollback deletes before it is decided": {"rollback.replace_fence": yes},
    "a living writer counts as dead": {
        "liveness.expired": lambda *_: True, "failed.expired": lambda *_: True,
    },
    "a grant is used below the fence's epoch": {"publish._rise_above_fence": nothing},
    "a commit rolls a dead writer back without the fence": {
        "failed.roll_back_held": rolled_back_by_the_lock_alone,
    },
    "a commit rolls back an instant that was pending before the lock, without another look": {
        "failed.roll_back_met": rolled_back_unlooked,
        "failed.roll_back": altered(roll_back, _files_of=files_of_what_was_pending),
    },
}
HUDI_REPAIRS: dict[str, dict[str, Any]] = {
    "a repeated batch trusts a completed instant without its own marker": {
        "batch.own_attempt": whatever_is_completed,
    },
    "beside Hudi an instant is taken before it has a heartbeat": {
        "attempt.WriteAttempt._tries": without_heartbeat,
    },
    "beside Hudi the lock is released before every clock has passed the instant": {
        "committing.wait_out": nothing,
    },
    "beside Hudi a look before the lock is free counts as one under it": {
        "held.LockReads.prefetch": looked_once,
    },
}
PLACES: dict[str, tuple[SimScenario, dict[str, Any]]] = {
    name: (scenario, parts)
    for scenario, repairs in (
        (SCENARIO, REPAIRS), (BESIDE_HUDI, HUDI_REPAIRS),
    )
    for name, parts in repairs.items()
}  # fmt: skip
"""Each mistake: the scenario that looks for it, and what it replaces."""


MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "lockkit" / "table").rglob("*.py")
]
ROOMS = {each.rpartition(".")[2]: each for each in MODULES if ".occ.group." not in each}
"""Where each module of a table is, by its name. Those of group commit have some of the same names:
their mistakes stand beside their scenario.
"""
for _module in MODULES:
    if _module != "lockkit.table.format.loops":  # it needs numba, and nothing of ours
        import_module(_module)  # else one first loaded under a mistake keeps the wrong function


SETTINGS: dict[str, dict[str, Any]] = {
    # 32 decisions, or fewer of a wide table; a check looks for new plans where they do not reach
    # back to the writer's base.
    "a refusal after an unknown outcome is final": {"fence.WINDOW_MAX": 1},
}
"""Bounds of the library under which a mistake is looked for; the clean code is right there too."""

@contextmanager
def removed(name: str) -> Iterator[None]:
    """While it lasts, this repair is not there."""
    with replaced({**SETTINGS.get(name, {}), **PLACES[name][1]}):
        yield


@contextmanager
def replaced(parts: dict[str, Any]) -> Iterator[None]:
    """While it lasts, these parts of `lockkit.table` are others."""
    with ExitStack() as planted:
        for where, instead in parts.items():
            room, *path, last = where.split(".")
            place = reduce(getattr, path, import_module(ROOMS[room]))
            planted.enter_context(patch.object(place, last, instead))
        yield


def search(name: str, budget_s: float = BUDGET_S) -> tuple[SeedOutcome | None, int, int, float]:
    """The first seed that goes wrong, how many seeds and steps that took, and how many seconds."""
    began, steps, seed = time.process_time(), 0, 0
    while time.process_time() - began < budget_s:
        seed += 1
        with removed(name):
            outcome = simulate(PLACES[name][0], seed, judge=False)
        steps += outcome.steps
        if outcome.violation:
            return outcome, seed, steps, time.process_time() - began
    return None, seed, steps, time.process_time() - began


def main() -> None:
    """The table; with `--rewrite` each seed is written down once it is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these (default: all)")
    parser.add_argument("--scenario", help="only those of this scenario")
    parser.add_argument("--rewrite", action="store_true", help=f"write {SEEDS_FILE.name}")
    args = parser.parse_args()
    seeds = json.loads(SEEDS_FILE.read_text()) if SEEDS_FILE.exists() else {}
    print("| repair removed | scenario | seeds | steps | of all | s | what it breaks |")
    print("|---|---|--:|--:|--:|--:|---|")
    for name in args.names or PLACES:
        scenario = PLACES[name][0].name
        if args.scenario not in (None, scenario):
            continue
        outcome, count, steps, seconds = search(name)
        if outcome is None or outcome.violation is None:
            print(f"| {name} | {scenario} | not found in {count} | | {steps:,} | {seconds:.0f} | |",
                  flush=True)  # fmt: skip
            continue
        broken = outcome.violation.partition(":")[0]
        seeds[name] = {"scenario": scenario, "seed": count, "steps": outcome.steps,
                       "violation": broken}  # fmt: skip
        print(f"| {name} | {scenario} | {count} | {outcome.steps:,} | {steps:,} | {seconds:.1f} "
              f"| {broken} |", flush=True)  # fmt: skip
        if args.rewrite:
            SEEDS_FILE.write_text(json.dumps(seeds, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
