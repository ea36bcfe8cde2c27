"""`lockkit simulate`: whole runs of the library under a seed, with faults, judged."""

from __future__ import annotations

import argparse
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockkit.cli.terminal import (
    FOUND,
    OK,
    USAGE,
    CommandError,
    command,
    count,
    option,
    say,
    say_json,
    warn,
)
from lockkit.clock import Clock
from lockkit.events import narrate, plain, write

if TYPE_CHECKING:
    from lockkit.lab.verify.sim import SeedOutcome, SimScenario

ABOUT = """\
Runs the library itself in a simulated world, one for each seed: wrong clocks, stores of several
providers, lost and late requests, hidden retries, 409, 429 and 503, pauses, crashes, and a
schedule that favours rare orders. The same seed repeats the same run. It checks invariants during
each run, and then judges the run's history.
A violation is printed as a moment (SCENARIO:SEED@STEP) and as a link that opens it in a browser
(in the documentation's playground; LOCKKIT_PLAYGROUND names another page). A scenario that needs
pyarrow has no link: the page cannot play it. --moment replays a run up to that step, and --others
counts how many other continuations from there also fail. Exit 0: no violation; 1: a violation."""

EXAMPLE = """\
lockkit simulate --scenario lease --seeds 1..200 --json
lockkit simulate --scenario lease --seeds 1..200 --mutant drift
lockkit simulate --moment lease:64@57 --history run.jsonl; lockkit check run.jsonl
lockkit simulate --moment 'lease/drift:1@60' --others 50"""

SEEDS_MAX = 100_000_000
PROGRESS_MS = 10_000
_SEEDS = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?")


def add(commands: Any) -> None:
    parser = command(commands, "simulate", about=ABOUT, example=EXAMPLE)
    parser.add_argument(
        "--scenario", default="lease", metavar="NAME",
        help="lease (default), table, mor, queue, ...; a wrong name lists them all",
    )  # fmt: skip
    option(parser, "--seeds", "A..B", "a range of seeds, or one seed", "1..200")
    option(parser, "--steps", "N", "at most N steps per seed", kind=int)
    option(parser, "--mutant", "NAME", "switch this rule off")
    option(parser, "--moment", "M", "replay one run up to a step: lease:1234@57, or its link")
    option(parser, "--others", "N", "with --moment: try N other continuations", 0, count)
    option(parser, "--history", "FILE", "write the history of the last seed to FILE")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.set_defaults(run=run, name="simulate", extra="table")


def run(args: argparse.Namespace) -> int:
    if args.moment is not None:
        return run_moment(args)
    from lockkit.lab.verify.sim import simulate
    from lockkit.lab.widgets.seeds.moments import mutant_of, scenario_of

    try:
        scenario = scenario_of(args.scenario)
        mutant = mutant_of(args.mutant or "", scenario.name)
    except ValueError as error:
        raise CommandError(plain(error), code=USAGE) from None
    seeds = seeds_of(args.seeds)
    if args.others:
        raise CommandError("--others goes with --moment", code=USAGE)
    if args.steps is not None and args.steps < 1:
        raise CommandError("--steps must be at least 1", code=USAGE)
    total = SimulationTotal(
        scenario, args.seeds, Clock(), mutant.name if mutant else "", args.steps is None
    )
    outcome: SeedOutcome | None = None
    try:
        for seed in seeds:
            outcome = simulate(scenario, seed, steps=args.steps, mutant=mutant)
            total.add(outcome)
    except KeyboardInterrupt:
        warn(next(total.lines()))
        raise
    assert outcome is not None
    if args.history:
        save(outcome, args.history)
    if args.json:
        say_json(total.to_json())
    else:
        say(*total.lines())
    return FOUND if total.violations else OK


def run_moment(args: argparse.Namespace) -> int:
    """Play one run up to one of its moves, and try other continuations."""
    from lockkit.lab.widgets.seeds.moments import NO_CLIENT_YET, SeedMoment, others, play

    try:
        moment = SeedMoment.of(args.moment)
    except ValueError as error:
        raise CommandError(plain(error), code=USAGE) from None
    if args.others and moment.step is None:
        raise CommandError(
            f"--others needs a move to continue from: --moment '{moment}@57'", code=USAGE
        )
    outcome = play(moment)
    if moment.step is not None and moment.step < outcome.begins:
        warn(f"{NO_CLIENT_YET.format(outcome.begins)}: this is move {outcome.begins}")
        moment = moment.within(outcome)
    if args.history:
        save(outcome, args.history)
    try:
        ways = others(moment, args.others) if args.others else None
    except ValueError as error:
        raise CommandError(plain(error), code=USAGE) from None
    if args.json:
        said = outcome.to_json() | {"moment": str(moment)} | linked(moment)
        if ways is not None:
            said["others"] = {"runs": ways.runs, "wrong": [str(each) for each, _ in ways.wrong]}
        say_json(said)
    else:
        say(*narrate(outcome.run.world.history()))
        say(f"{moment}: {outcome.steps} moves, {plain(outcome.violation or 'no violation')}")
        say(*(f"  {each}" for each in linked(moment).values()))
        say(*([plain(str(ways))] if ways is not None else []))
    return FOUND if outcome.violation or (ways and ways.wrong) else OK


@dataclass(slots=True)
class SimulationTotal:
    """The outcomes of all seeds so far; progress goes to standard error."""

    scenario: SimScenario
    seeds: str
    clock: Clock
    mutant: str = ""
    whole: bool = True
    """Whether runs have the scenario's own length. Otherwise their schedule differs, and no moment
    can repeat it."""
    count: int = 0
    steps: int = 0
    violations: list[dict[str, str]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    trace: Any = field(default_factory=hashlib.sha256)
    began_ms: int = 0
    reported_ms: int = 0

    def __post_init__(self) -> None:
        self.began_ms = self.reported_ms = self.clock.boot_ms()

    def add(self, outcome: SeedOutcome) -> None:
        self.count, self.steps = self.count + 1, self.steps + outcome.steps
        self.faults.update(outcome.faults)
        self.reached.update(outcome.reached)
        self.trace.update(outcome.trace_hash.encode())
        if outcome.violation:
            self.violations.append({"seed": outcome.seed, "violation": outcome.violation})
            said = f"seed {outcome.seed}, after {outcome.steps} steps: {plain(outcome.violation)}"
            from lockkit.lab.widgets.seeds.moments import SeedMoment

            moment = SeedMoment(self.scenario.name, int(outcome.seed), outcome.steps, self.mutant)
            if self.whole:
                self.violations[-1] |= linked(moment)
                said = "\n  ".join([f"{said} (--moment '{moment}')", *linked(moment).values()])
            warn(said)
        if self.clock.boot_ms() - self.reported_ms > PROGRESS_MS:
            self.reported_ms = self.clock.boot_ms()
            warn(f"{self.count} seeds, {self.steps} steps, {len(self.violations)} violations")

    @property
    def never(self) -> list[str]:
        return [each for each in self.scenario.sometimes if not self.reached[each]]

    def to_json(self) -> dict[str, Any]:
        seconds = (self.clock.boot_ms() - self.began_ms) / 1000
        return {
            "scenario": self.scenario.name,
            "seeds": self.seeds,
            "violations": self.violations,
            "steps": self.steps,
            "faults": dict(sorted(self.faults.items())),
            "reached": dict(sorted(self.reached.items())),
            "never": self.never,
            "trace_hash": self.trace.hexdigest()[:16],
            "seconds": round(seconds, 3),
            "steps_per_s": round(self.steps / seconds) if seconds else None,
        }

    def lines(self) -> Iterator[str]:
        said = self.to_json()
        yield (
            f"{self.scenario.name}: {self.count} seeds, {self.steps} steps, "
            f"{len(self.violations)} violations in {said['seconds']:.1f} s"
        )
        for name in ("faults", "reached"):
            found = ", ".join(f"{what} {count}" for what, count in said[name].items())
            yield f"  {name}: {found or 'none'}"
        if self.never:
            yield f"  not exercised: {', '.join(self.never)}"
        yield f"  trace {said['trace_hash']}"


def linked(moment: object) -> dict[str, str]:
    """The moment's link; nothing for a scenario that the page cannot play."""
    from lockkit.lab.widgets.links import link

    return {"link": found} if (found := link(moment)) else {}


def seeds_of(said: str) -> range:
    """`7` or `1..200`, both ends included."""
    match = _SEEDS.fullmatch(said)
    first = int(match[1]) if match else 0
    last = int(match[2]) if match and match[2] else first
    if match is None or last < first or last > SEEDS_MAX:
        raise CommandError(
            f"--seeds {plain(said)!r} is not a range; write 7, or 1..200 (up to {SEEDS_MAX})",
            code=USAGE,
        )
    return range(first, last + 1)


def save(outcome: SeedOutcome, name: str) -> None:
    try:
        with Path(name).open("w", encoding="utf-8") as file:
            write(outcome.run.world.history(), file)
    except OSError as error:
        raise CommandError(f"cannot write {plain(name)}: {error.strerror}") from None
