"""What the documentation's playground asks for, answered where there is no kernel and no thread.

`answer` runs in the browser (Pyodide, in a worker); the build of the documentation calls it for the
first picture. A request is answered by steps: reports of progress, then one result. Between two
steps the worker looks whether the reader wants something else. What a request needs is imported
with it: the page is ready sooner.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lockkit.errors import LockkitError
from lockkit.events import plain, read, shortened
from lockkit.lab.verify.check import FIELD_ERRORS, Kind, Verdict, check
from lockkit.lab.verify.sim import SeedOutcome, in_words
from lockkit.lab.widgets.export import replayed
from lockkit.lab.widgets.links import (
    NEEDS_ARROW,
    fields_of,
    fragment,
    seed_fragment,
    stage_fragment,
)
from lockkit.lab.widgets.scene import text
from lockkit.lab.widgets.seeds.moments import (
    NO_CLIENT_YET,
    SeedMoment,
    UnknownScenario,
    mutants_of,
    others_so_far,
    play,
    scenarios,
)
from lockkit.lab.widgets.seeds.objects import harmed, run_scene

if TYPE_CHECKING:
    from lockkit.lab.verify.explore import SearchRow

Answer = dict[str, Any]

FIRST = "lease/claim_412 ours:1"
"""What the page shows before Python is there."""
SEEDS_MAX = 2_000
OTHERS = 25
TEXT_CHARS = 1_000
PROOFS_MAX = 8
STATES_MAX = 300_000
"""Of one search; a page has less memory than a program."""


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
    """What can be chosen: scenarios, rows of the explorer and plays, with what can be wrong."""
    from lockkit.lab.verify.explore import SCENARIOS as ROWS
    from lockkit.lab.widgets.stage.scenarios import SCENARIOS as STAGE

    yield {
        "first": seed_fragment(FIRST),
        "scenarios": [
            {"name": name, "says": each.says,
             "rules": [{"name": rule.name, "says": rule.says}
                       for rule in mutants_of(name).values()]}
            for name, each in scenarios().items() if name not in NEEDS_ARROW
        ],
        "rows": [{"name": each.name, "says": each.off or "all rules are on"} for each in ROWS],
        "plays": [{"name": name, "says": each.says, "rules": list(each.mistakes)}
                  for name, each in STAGE.items()],
    }  # fmt: skip


# --- the simulator --------------------------------------------------------------------------------


def simulated(moment: str) -> Iterator[Answer]:
    """The run up to a moment, which may be given as a link."""
    wanted = _playable(moment)
    yield {"said": f"playing {wanted}"}
    yield _run(wanted)


def sought(scenario: str, rule: str, seed: int, runs: int) -> Iterator[Answer]:
    """The first run, from a seed on, that goes wrong; else the last of them."""
    if not 1 <= runs <= SEEDS_MAX:
        raise ValueError(f"{runs} runs are not possible; choose 1 to {SEEDS_MAX:,}")
    moment = _playable(str(SeedMoment(scenario, seed, mutant=rule)))
    for number in range(runs):
        moment = replace(moment, seed=seed + number)
        yield {"said": f"playing seed {moment.seed}", "done": number, "of": runs}
        if _whole(moment).violation:
            yield _run(moment) | {"runs": number + 1, "found": True}
            return
    yield _run(moment) | {"runs": runs, "found": False}


def varied(moment: str) -> Iterator[Answer]:
    """Other ways to go on from a moment: how many of them go wrong."""
    for found in others_so_far(_playable(moment), OTHERS):
        yield {"said": "playing other ways to go on", "done": found.runs, "of": OTHERS}
    links = [{"link": seed_fragment(str(each)),
              "because": f"way {each.branches[-1].way}, wrong at move {each.step}: {text(why)}"}
             for each, why in sorted(found.wrong, key=lambda way: way[0].step or 0)]  # fmt: skip
    others = f"{len(found.wrong)} of {found.runs} other ways to go on go wrong"
    yield {"others": others, "wrong": links}


def _playable(moment: str) -> SeedMoment:
    """`ValueError`, with the command that plays it, for a moment that this page cannot play."""
    try:
        wanted = SeedMoment.of(moment)
    except UnknownScenario as error:
        known = ", ".join(each for each in scenarios() if each not in NEEDS_ARROW)
        raise ValueError(f"{str(error).partition(';')[0]}; this page plays: {known}") from None
    if wanted.scenario in NEEDS_ARROW:
        raise ValueError(f"the scenario {wanted.scenario} needs pyarrow, which this page does not "
                         f"have; in a terminal: lockkit simulate --moment '{wanted}'")
    return wanted


@lru_cache(maxsize=2)
def _whole(moment: SeedMoment) -> SeedOutcome:
    return play(replace(moment, step=None))


def _run(moment: SeedMoment) -> Answer:
    whole = _whole(replace(moment, step=None))
    step = whole.steps if moment.step is None else moment.step
    moment = replace(moment, step=step).within(whole)
    step = moment.step or 0
    outcome = whole if step == whole.steps else play(moment)
    wrong = outcome.violation and shortened(in_words(outcome.violation))
    over = "nothing went wrong" if step == whole.steps else "nothing is wrong so far"
    events = outcome.run.world.history()
    scene = run_scene(outcome, moment.scenario) | {"newest": True}
    drawn = replayed(events, None, scene=scene)
    new = step == whole.begins < whole.steps
    because = text(wrong or over)
    if new:
        because = NO_CLIENT_YET.format(step) if step else "nothing has happened yet"
    else:
        drawn["status"] |= {"verdict": "INVALID" if wrong else "VALID", "because": because}
    return {
        "link": seed_fragment(str(moment)), "moment": str(moment), "scenario": moment.scenario,
        "rule": moment.mutant, "seed": moment.seed, "step": step, "steps": whole.steps,
        "begins": whole.begins,
        "trace": outcome.trace_hash, "because": because, "replay": drawn,
    }  # fmt: skip


# --- the checker ----------------------------------------------------------------------------------


def checked(history: str) -> Iterator[Answer]:
    """The verdict on a history, given as JSON lines."""
    from lockkit.lab.incident.dropped import not_too_deep

    yield {"said": "reading"}
    not_too_deep("this history", history := history.removeprefix("\ufeff"))
    events = list(read(lines := history.splitlines(keepends=True)))
    if not events:
        list(read(f"{history}\n".splitlines(keepends=True)))  # says what is wrong with a torn line
        raise ValueError("this history is empty; write one JSON object per line")
    yield {"said": f"checking {len(events)} events"}
    verdict = check(events)
    try:
        drawn = replayed(events, verdict)
    except FIELD_ERRORS as error:
        raise ValueError("this history is damaged: a field is not of its type "
                         f"({type(error).__name__})") from None  # fmt: skip
    findings = _findings(verdict)
    if len(events) < sum(1 for each in lines if each.strip()):
        cut = {"verdict": "UNKNOWN", "because": "the last line is cut, and is left out"}
        findings = [cut, *findings]
    yield {"replay": drawn, "findings": findings}


def _findings(verdict: Verdict) -> Sequence[Answer]:
    """The worst first."""
    order = [Kind.INVALID, Kind.UNKNOWN, Kind.VALID]
    found = sorted(verdict.findings, key=lambda each: order.index(each.kind))
    return [
        {"verdict": str(each.kind), "check": each.check, "because": shortened(text(each.because))}
        for each in found
    ]


# --- the explorer ---------------------------------------------------------------------------------


def explored(row: str) -> Iterator[Answer]:
    """The shortest counterexample of one row of the explorer, given by its name or as a link.

    A rule's name opens its first row. A link's `step` shows the path up to there.
    """
    from lockkit.lab.verify.explore import SCENARIOS as ROWS
    from lockkit.lab.verify.explore import explore_so_far

    fields = fields_of(row, "search", "step") if "=" in row else {"search": row}
    wanted = fields["search"]
    alike = (each for each in ROWS if each.name.startswith(f"{wanted} "))
    scenario = next((each for each in ROWS if each.name == wanted), None) or next(alike, None)
    if scenario is None:
        names = ", ".join(each.name for each in ROWS)
        raise ValueError(f"there is no search {wanted[:40]!r}; choose from: {names}")
    found = yield from _counted(explore_so_far(scenario, states_max=STATES_MAX))
    yield _row(found, int(fields.get("step") or found.steps))


def _counted(search: Generator[int, None, SearchRow]) -> Generator[Answer, None, SearchRow]:
    while True:
        try:
            yield {"said": f"{next(search):,} states so far"}
        except StopIteration as over:
            row: SearchRow = over.value
            return row


def _row(found: SearchRow, step: int) -> Answer:
    name, because = found.scenario.name, found.violation and in_words(found.violation)
    reply: Answer = {"link": fragment(search=name), "row": name, "story": []}
    if because is None:
        reply["because"] = (
            f"No violation: all {found.states:,} states were searched"
            if found.exhausted
            else f"No violation in {found.states:,} states; there are more, which were not searched"
        )
        return reply
    assert found.counterexample is not None
    step = max(1, min(step, found.steps))
    part = replace(found.counterexample, path=found.counterexample.path[:step])
    events = part.history()
    drawn, over = replayed(events, None), f"Step {step} of {found.steps}: no rule is broken yet"
    if step == found.steps:
        drawn = replayed(events, check(events))
        at_ms = events[-1].at_ms - events[0].at_ms
        drawn["scene"] = harmed(drawn["scene"], str(found.violation), at_ms, "")
        drawn["status"] |= {"verdict": "INVALID", "because": text(because)}
        over = f"{because} ({found.steps} steps, the shortest of {found.states:,} states)"
    return reply | {
        "because": over, "step": step,
        "story": [[line, fragment(search=name, step=number)]
                  for number, line in enumerate(found.counterexample.story(), 1)],
        "link": fragment(search=name, step=step), "replay": drawn,
    }  # fmt: skip


# --- the stepper ----------------------------------------------------------------------------------


def stepped(moment: str, who: str = "", what: str = "") -> Iterator[Answer]:
    """A play after a moment's decisions (text, or a link), and one more: what happens to whom.

    `what` may also be `finish`, to carry out all of an actor's requests, or `undo`.
    """
    from lockkit.lab.widgets.stage.decisions import Choice, Decision
    from lockkit.lab.widgets.stage.fork import at, stage_moment
    from lockkit.lab.widgets.stage.scenarios import SCENARIOS as STAGE

    known = stage_moment(moment)
    if known.play not in STAGE:
        raise ValueError(f"{known.play!r} cannot be played here; there are: {', '.join(STAGE)}")
    if what == "undo":
        known = replace(known, decisions=known.decisions[:-1])
    run = at(known)
    if what == "finish":
        run.finish(who)
    elif what not in ("", "undo"):
        if what not in set(Choice):
            raise ValueError(f"there is no decision {what[:40]!r}; there are: {', '.join(Choice)}")
        run.decide(Decision(who, Choice(what)))
    yield _stage(run)
    run.close()


def _stage(run: Any) -> Answer:
    from lockkit.lab.widgets.stage.picture import picture
    from lockkit.lab.widgets.stage.requests import shown

    moment, (well, because) = run.moment, run.verdict
    actors = [
        {"name": name, "lines": [[text(each.request), text(each.answered)] for each in actor.lines],
         "next": "" if actor.waits is None else text(shown(actor.waits)),
         "state": "paused" if actor.paused else "next", "ended": text(actor.ended),
         "choices": list(run.choices(name))}
        for name, actor in run.actors.items()
    ]  # fmt: skip
    events = run.events
    drawn = replayed(events, None, scene=picture(run))
    wrote = any(each.kind == "request" and each["applied"] for each in events)
    judged = not well or (bool(moment.decisions) and wrote)
    if judged:
        drawn["status"] |= {"verdict": "VALID" if well else "INVALID", "because": text(because)}
    return {
        "link": stage_fragment(moment), "play": moment.play, "rule": moment.mistake,
        "decisions": len(moment.decisions), "actors": actors,
        "lease": run.lease_ms // 1000, "well": well, "because": text(because), "judged": judged,
        "objects": [[text(key), text(body)] for key, body in run.objects.items()],
        "replay": drawn,
    }  # fmt: skip


# --- the incident reader --------------------------------------------------------------------------


def incident(files: Sequence[dict[str, str]]) -> Iterator[Answer]:
    """The known pattern in files of any known kind; their contents come as base64."""
    from lockkit.lab.incident.diagnosis import diagnose
    from lockkit.lab.incident.dropped import take_in
    from lockkit.lab.incident.words import audit_facts, command_of, sentence
    from lockkit.lab.widgets.console.picture import picture

    yield {"said": "reading"}
    evidence = take_in([(each["name"], b64decode(each["content"])) for each in files])
    yield {"said": f"looking for a known pattern in {len(evidence.events)} events"}
    found = diagnose(evidence.events)
    drawn = picture(evidence.events, found.evidence)
    status = {"state": "replay", "log": drawn.log}
    yield {
        "pattern": str(found.pattern), "because": shortened(text(found.because, limit=TEXT_CHARS)),
        "do": found.card.do, "dont": found.card.dont, "command": command_of(found, "URL"),
        "taken": [f"{each.name}: {each.kind}, {each.said}" for each in evidence.taken],
        "audit": audit_facts(evidence.validation) if evidence.validation else [],
        "proofs": [shortened(text(sentence(each))) for each in found.evidence[:PROOFS_MAX]],
        "also": [f"{each.pattern}: {text(each.because)}" for each in found.also],
        "replay": {"scene": drawn.scene, "status": status, "selected": "", "cursor": -1},
    }  # fmt: skip


REQUESTS: dict[str, Callable[..., Iterator[Answer]]] = {
    "menus": menus, "simulate": simulated, "seek": sought, "vary": varied, "check": checked,
    "explore": explored, "step": stepped, "incident": incident,
}  # fmt: skip
