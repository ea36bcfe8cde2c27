"""What the documentation's playground asks for, answered where there is no kernel and no thread.

`answer` runs in the browser (Pyodide, in a worker); the build of the documentation calls it for the
first picture. A request is answered by steps: reports of progress, then one result. Between two
steps the worker looks whether the reader wants something else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from lockkit.errors import LockkitError
from lockkit.events import plain, read
from lockkit.lab.verify.check import Kind, Verdict, check
from lockkit.lab.verify.sim import SeedOutcome
from lockkit.lab.widgets.export import replayed
from lockkit.lab.widgets.scene import text
from lockkit.lab.widgets.seeds.links import seed_fragment
from lockkit.lab.widgets.seeds.moments import (
    SeedMoment,
    mutants_of,
    others_so_far,
    play,
    scenarios,
)

Answer = dict[str, Any]

FIRST = "lease/claim_412 ours:1"
"""What the page shows before Python is there."""
SEEDS_MAX = 2_000
OTHERS = 25
TEXT_CHARS = 1_000


def answer(request: str, given: str) -> Iterator[str]:
    """Yield each step of an answer as JSON: `{"done": ..., "of": ...}` or the result.

    Input that cannot be used ends in `{"error": ...}`.
    """
    try:
        for each in REQUESTS[request](**json.loads(given)):
            yield json.dumps(each)
    except (LockkitError, ValueError) as error:
        yield json.dumps({"error": plain(error, limit=TEXT_CHARS)})


def menus() -> Iterator[Answer]:
    """What can be chosen: scenarios, and the rules of each that can be switched off."""
    yield {
        "first": seed_fragment(FIRST),
        "scenarios": [
            {"name": name, "says": each.says,
             "rules": [{"name": rule.name, "says": rule.says}
                       for rule in mutants_of(name).values()]}
            for name, each in scenarios().items()
        ],
    }  # fmt: skip


# --- the simulator --------------------------------------------------------------------------------


def simulated(moment: str) -> Iterator[Answer]:
    """The run up to a moment, which may be given as a link."""
    wanted = SeedMoment.of(moment)
    yield {"said": f"playing {wanted}"}
    yield _run(wanted)


def sought(scenario: str, rule: str, seed: int, runs: int) -> Iterator[Answer]:
    """The first run, from a seed on, that goes wrong; else the last of them."""
    if not 1 <= runs <= SEEDS_MAX:
        raise ValueError(f"{runs} runs are not possible; choose 1 to {SEEDS_MAX:,}")
    moment = SeedMoment.of(str(SeedMoment(scenario, seed, mutant=rule)))
    for number in range(runs):
        moment = replace(moment, seed=seed + number)
        yield {"said": f"playing seed {moment.seed}", "done": number, "of": runs}
        if _whole(moment).violation:
            yield _run(moment) | {"runs": number + 1, "found": True}
            return
    yield _run(moment) | {"runs": runs, "found": False}


def varied(moment: str) -> Iterator[Answer]:
    """Other ways on from a moment: how many of them go wrong."""
    wanted = SeedMoment.of(moment)
    for found in others_so_far(wanted, OTHERS):
        yield {"said": "playing other ways on", "done": found.runs, "of": OTHERS}
    links = [{"link": seed_fragment(str(each)), "because": text(why)} for each, why in found.wrong]
    yield {"others": f"{len(found.wrong)} of {found.runs} other ways on go wrong", "wrong": links}


@lru_cache(maxsize=2)
def _whole(moment: SeedMoment) -> SeedOutcome:
    return play(replace(moment, step=None))


def _run(moment: SeedMoment) -> Answer:
    whole = _whole(replace(moment, step=None))
    step = whole.steps if moment.step is None else min(moment.step, whole.steps)
    moment = replace(moment, step=step)
    outcome = whole if step == whole.steps else play(moment)
    wrong = outcome.violation
    over = "nothing went wrong" if step == whole.steps else "nothing is wrong so far"
    events = outcome.run.world.history()
    shown = replayed(events, check(events) if wrong else None)
    shown["status"] |= {"verdict": "INVALID" if wrong else "VALID", "because": text(wrong or over)}
    return {
        "link": seed_fragment(str(moment)), "moment": str(moment), "scenario": moment.scenario,
        "rule": moment.mutant, "seed": moment.seed, "step": step, "steps": whole.steps,
        "trace": outcome.trace_hash, "replay": shown,
    }  # fmt: skip


# --- the checker ----------------------------------------------------------------------------------


def checked(history: str) -> Iterator[Answer]:
    """The verdict on a history, given as JSON lines."""
    yield {"said": "reading"}
    events = list(read(history.splitlines(keepends=True)))
    if not events:
        raise ValueError("this history is empty; it is written as one JSON object a line")
    yield {"said": f"checking {len(events)} events"}
    verdict = check(events)
    yield {"replay": replayed(events, verdict), "findings": _findings(verdict)}


def _findings(verdict: Verdict) -> Sequence[Answer]:
    """The worst first."""
    order = [Kind.INVALID, Kind.UNKNOWN, Kind.VALID]
    found = sorted(verdict.findings, key=lambda each: order.index(each.kind))
    return [{"verdict": str(each.kind), "check": each.check, "because": text(each.because)}
            for each in found]  # fmt: skip


REQUESTS: dict[str, Callable[..., Iterator[Answer]]] = {
    "menus": menus, "simulate": simulated, "seek": sought, "vary": varied, "check": checked,
}  # fmt: skip
