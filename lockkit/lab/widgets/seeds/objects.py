"""The picture of a simulated scenario that has no single lock: its objects, and who wrote what.

One file because each part of the picture is found in the requests of the whole run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import lru_cache
from math import inf
from typing import Any

from lockkit.errors import NoAnswer
from lockkit.events import INSTANT, Event, shortened
from lockkit.lab.verify.check import check
from lockkit.lab.verify.check.lanes import decisions
from lockkit.lab.verify.sim import CHECKER, SeedOutcome, in_words
from lockkit.lab.verify.sim.memory_store import DecidedRequest
from lockkit.lab.verify.sim.recorded import fields_of
from lockkit.lab.verify.sim.task import TaskPhase
from lockkit.lab.verify.sim.world import HeardAnswer, SimWorld
from lockkit.lab.widgets.models import HistoryModel, guess, instant_of, place, spot
from lockkit.lab.widgets.scene import (
    LOCK_LANE,
    NO_LANE,
    TABLE_LANE,
    Scene,
    call_bar,
    hues,
    stall_bar,
    text,
    whole,
)
from lockkit.lab.widgets.seeds.named_writes import body_of, state_of, words_of
from lockkit.lab.widgets.stage.picture import (
    CAPTION,
    arrow_of,
    harm_mark,
    last_writes,
    mark_of,
    row_of,
)
from lockkit.lab.widgets.stage.staged import Trip
from lockkit.protocol.outcome import Applied, PreconditionFailed, Unknown
from lockkit.runtime import Delete, Get, List, Put, Request

TITLES = {
    "wal": "log", "queue": "queue", "shared": "shared lock", "striped": "stripes",
    "statelock": "state lock", "election": "epochs",
}  # fmt: skip
"""The scenarios that are drawn here, and what their objects are together."""
AFTER_MS = 2_000.0
"""How much of a harm is drawn that nothing ends."""
PAST, RETRY = "but its lease is over", "the SDK's own retry"
_UNDER_WAY = (TaskPhase.SENT, TaskPhase.JUDGED, TaskPhase.ANSWERED)
_WORD, _WORD_CHARS = re.compile(r"[\w.]*\w"), 4
_NUMBERED = re.compile(r"\b(?:epoch|slot|stripe) \d+\b")
_MEMORY = re.compile(r'"recent":.*?,(?="jobs")')


def run_scene(outcome: SeedOutcome, scenario: str) -> Scene:
    """The scene of a run, with its violation and the evidence of it."""
    world, violation = outcome.run.world, outcome.violation or ""
    if scenario in TITLES:
        return _Objects(world, scenario, violation).paint()
    events = world.history()
    if not violation:
        return whole(with_commits(world))
    leases = list(_leases(events, violation))
    ends = [each["until_ms"] for each in leases if each["until_ms"] > world.time.now_ms]
    by_checker, judged = violation.startswith(CHECKER), check(events).evidence
    proofs = [*leases, *_last_writes(events, violation)]
    if by_checker or not proofs:  # else it may have found another thing first
        proofs += judged
    scene = whole(with_commits(world), evidence=proofs, now_ms=min(ends, default=None))
    last = [each.client for each in world.memory_store.truth[-1:]
            if each.at_ms == world.time.now_ms]  # fmt: skip
    going = last[0] if last else world.going.name if world.going else ""
    late = [each for each in judged if by_checker  # it is asked long after the harm
            and (each.kind == "held" or "at once" not in violation)]  # fmt: skip
    at_ms = round(max((each.at_ms for each in late), default=world.time.now_ms)
                  - events[0].at_ms, 4)  # fmt: skip
    return harmed(scene, violation, at_ms, going)


def with_commits(world: SimWorld) -> list[Event]:
    """The history, with requests to the table, and answers that an interrupt left unrecorded."""
    history = world.history()
    going = [HeardAnswer(inf, each.node.name, each.request, each.at_ms, None)
             for each in world.tasks if each.phase in _UNDER_WAY]  # fmt: skip
    made = {(id(each.request), each.sent_ms) for each in (*world.received, *going)}
    going += [HeardAnswer(inf, each.client, each.request, each.began_ms, None)
              for each in world.flying if (id(each.request), each.began_ms) not in made]
    asks, answers = [], []
    answered = {(each.who, each["request"]) for each in history if each.kind == "answer"}
    unheard = {(each.who, each.at_ms, each["key"]): each.data for each in history
               if each.kind == "ask" and (each.who, each["request"]) not in answered}  # fmt: skip
    for number, (at_ms, who, request, sent_ms, answer) in enumerate((*world.received, *going)):
        if not isinstance(request, Put | Delete):
            continue
        data = unheard.get((who, sent_ms, key := spot(request.key)))
        if data is None:
            if place(key) != "table":
                continue
            op = "delete" if isinstance(request, Delete) else guess(key, False)
            attempt = (fields_of(body_of(request)) or {}).get("attempt", "")
            data = {"request": f"table {number}", "op": op, "key": key, "attempt": attempt}
            if history and sent_ms >= history[0].at_ms:
                asks.append(Event(sent_ms, who, "ask", data))
        if answer is not None:
            received = {"outcome": type(answer).__name__, "version": "",
                        "why": getattr(answer, "why", "")}  # fmt: skip
            answers.append(Event(at_ms, who, "answer", {**data, **received}))
    return sorted([*answers, *history, *asks], key=lambda each: each.at_ms)


def harmed(scene: Scene, violation: str, at_ms: float, last: str) -> Scene:
    """With a mark in the lane of each client that a violation names, else of the last one."""
    known = {each["id"] for each in scene["lanes"] if each["role"] == "writer"}
    lanes = _named(violation, known) or [last if last in known else TABLE_LANE]
    marks = [*scene["marks"], *(_harm(n, each, at_ms, violation) for n, each in enumerate(lanes))]
    return scene | {"marks": sorted(marks, key=lambda mark: float(mark["t"]))}


def _leases(events: list[Event], violation: str) -> Iterator[Event]:
    """Where each client that the violation names, or that holds the lock, began to count on it.

    `until_ms` is the end of its lease, 0 if it no longer counts on it.
    """
    held: dict[str, Event] = {}
    began: dict[str, Event] = {}
    open_: dict[str, None] = {}
    for each in events:
        if each.kind in ("held", "renewed") and each.get("until_ms"):
            if each.kind == "held" or each.who not in open_:
                began[each.who] = each
            held[each.who], open_[each.who] = each, None
        elif each.kind in ("released", "lost", "killed"):
            open_.pop(each.who, None)
    for who in {**dict.fromkeys(_named(violation, held)), **open_}:
        until_ms = held[who]["until_ms"] if who in open_ else 0.0
        yield replace(began[who], data={**began[who].data, "until_ms": until_ms})


def _last_writes(events: list[Event], violation: str) -> list[Event]:
    """The last write that is drawn, the one before it there, and those of the named instants."""
    named, applied = set(INSTANT.findall(violation)), [
        each for each in events if each.kind == "request" and each["applied"]
        and place(spot(str(each["key"])))
    ]  # fmt: skip
    last = [each for each in applied if each["key"] == applied[-1]["key"]][-2:]
    return last + [each for each in applied if named.intersection(
        [instant_of(each["key"]), *(instant for instant, _ in decisions(each))])]


def _named(violation: str, known: Collection[str]) -> list[str]:
    """The clients that a violation names, in its order."""
    because = violation.removeprefix(CHECKER).partition(": ")[2]
    return [each for each in dict.fromkeys(_WORD.findall(because)) if each in known]


def _harm(n: int, lane: str, at_ms: float, violation: str, hue: int = NO_LANE) -> Scene:
    because = text(shortened(violation.removeprefix(CHECKER).partition(": ")[2]))
    return harm_mark(n, lane, at_ms, because, text(shortened(in_words(violation))), hue)


class _Objects:
    """Builds one scene; holds the requests, so that each method draws one part."""

    def __init__(self, world: SimWorld, scenario: str, violation: str) -> None:
        self.world, self.scenario, self.violation = world, scenario, violation
        self.now_ms = world.time.now_ms
        self.hue = hues(node.name for node in world.nodes)
        self.bodies: dict[tuple[str, str], bytes] = {}
        """The content of each version of an object."""
        for each in world.memory_store.truth:
            if isinstance(each.request, Put) and isinstance(each.answer, Applied):
                self.bodies[each.request.key, each.version] = each.request.body
        self.trips = sorted(self._trips(), key=lambda each: each[0].sent_ms)
        self.decided = {each.id: decided for each, decided in self.trips if decided is not None}
        self.writes = last_writes(each for each, _ in self.trips)
        self.calls: dict[tuple[str, int, float], list[Trip]] = defaultdict(list)
        """The requests of each call, in the order of the store: the first is the client's own."""
        for trip, _ in self.trips:
            self.calls[trip.who, id(trip.request), trip.sent_ms].append(trip)
        self.spans = list(self._spans())
        self.judged = check(world.history()).evidence if violation.startswith(CHECKER) else ()
        """What proves a violation that only the checker of histories found."""

    def paint(self) -> Scene:
        proofs = self._proofs() if self.violation else set()
        harm = self._harm() if self.violation else []
        rows = [row_of(n, each, self.hue, self._said(each.request))
                for n, (each, _) in enumerate(self._applied(), 1)]  # fmt: skip
        arrows = [self._arrow(each, proofs) for each, _ in self.trips if each.who in self.hue]
        bars = list(self._bars())
        marks = [mark_of(row, self.decided[row["arrow"]].request, self.scenario, proofs)
                 for row in rows]  # fmt: skip
        writes = [each for each in arrows if each["kind"] == "write" or each["evidence"]]
        busy = {each["lane"] for each in (*writes, *bars, *harm)}
        bars += [each for each in self._calls() if each["lane"] in busy]
        marks += [*(each for each in self._notices() if each["lane"] in busy), *harm]
        arrows = [each for each in arrows if each["lane"] in busy]
        return {
            "span": [0.0, self._end_ms()], "keep": None, "omitted": 0, "cut": False, "hidden": 0,
            "events": len(self.world.history()), "caption": CAPTION,
            "lanes": self._lanes(busy), "arrows": arrows, "bars": bars, "rows": rows,
            "marks": sorted(marks, key=lambda mark: float(mark["t"])),
        }  # fmt: skip

    def _lanes(self, busy: set[str]) -> list[Scene]:
        """The objects, and each client that writes, holds something or is part of the harm."""
        title = TITLES[self.scenario]
        lanes: list[Scene] = [{"id": LOCK_LANE, "title": title, "role": "truth", "state": ""}]
        for node in self.world.nodes:
            if node.name in busy:
                state = "killed" if node.down else "stalled" if node.stalled else "running"
                lanes.append({"id": node.name, "title": node.name, "role": "writer",
                              "hue": self.hue[node.name], "state": state})  # fmt: skip
        return lanes

    # --- requests -------------------------------------------------------------------------------

    def _trips(self) -> Iterator[tuple[Trip, DecidedRequest | None]]:
        """Each request that was sent, once for each time that the store decided it."""
        decisions: dict[tuple[int, float], list[DecidedRequest]] = defaultdict(list)
        for record in self.world.memory_store.truth:
            decisions[id(record.request), record.began_ms].append(record)
        number, sent = 0, set(decisions)
        flying = {id(each.request): each for each in self.world.flying}
        for got in self.world.received:
            lost = isinstance(got.answer, Unknown | NoAnswer)
            times: list[DecidedRequest | None] = [
                *decisions.pop((id(got.request), got.sent_ms), [])
            ]
            before = [each for each in times if each is not None and each.at_ms <= got.at_ms
                      and type(each.answer) is type(got.answer)]  # fmt: skip
            answered = before[-1] if before and not lost else None
            if not (times and (answered or lost)):  # it was answered, and not decided
                times.append(None)
            for each in times:
                number += 1
                at_ms = None if each is None else each.at_ms
                flies = each is None and flying.pop(id(got.request), None) is not None
                yield Trip(
                    f"x{number}", got.client, got.request, got.sent_ms, at_ms,
                    got.at_ms if each is answered and not lost else None,
                    each.answer if each else got.answer, late=flies or (at_ms or 0) > got.at_ms,
                ), each  # fmt: skip
        for late in flying.values():  # its client was killed
            if (id(late.request), late.began_ms) not in sent:
                number += 1
                yield Trip(f"x{number}", late.client, late.request, late.began_ms, None, inf), None
        for (_, sent_ms), unanswered in decisions.items():  # no answer has arrived yet
            for one in unanswered:
                number += 1
                yield Trip(f"x{number}", one.client, one.request, sent_ms, one.at_ms,
                           inf, one.answer), one  # fmt: skip
        for task in self.world.tasks:
            if task.phase in _UNDER_WAY and (id(task.request), task.at_ms) not in sent:
                number += 1
                yield Trip(f"x{number}", task.node.name, task.request, task.at_ms, None, inf), None

    def _applied(self) -> Iterator[tuple[Trip, DecidedRequest]]:
        """The writes that were applied, in the order of the store."""
        found = [
            (each, self.decided[each.id]) for each, _ in self.trips
            if each.id in self.decided and each.who in self.hue
            and isinstance(each.request, Put | Delete) and isinstance(each.answer, Applied)
        ]  # fmt: skip
        yield from sorted(found, key=lambda each: each[1].at_ms)

    def _said(self, request: Request) -> str:
        return words_of(self.scenario, request, self.bodies)

    def _calls(self) -> Iterator[Scene]:
        """One call of a client for which several requests were sent."""
        for (who, _, sent_ms), trips in self.calls.items():
            if len(trips) > 1 and who in self.hue:
                ends = [at for each in trips for at in (each.decided_ms, each.answered_ms)]
                yield call_bar(f"c{trips[0].id}", who, self.hue[who], self._said(trips[0].request),
                               [sent_ms, *(at for at in ends if at and at < inf)], len(trips))

    def _arrow(self, trip: Trip, proofs: set[str]) -> Scene:
        first = self.calls[trip.who, id(trip.request), trip.sent_ms][0] is trip
        said = self._said(trip.request) if first else RETRY
        arrow = arrow_of(trip, self.hue, said, self.writes)
        if trip.answered_ms == inf:
            arrow["t"] = [trip.sent_ms, trip.decided_ms, None]
        if trip.answered_ms == inf and trip.decided_ms is None:
            arrow["label"] += ": on its way"
        proven = trip.id in proofs
        return arrow | {"evidence": proven, "busy": arrow["look"] == "refused"}

    def _notices(self) -> Iterator[Scene]:
        """What a client was told is done: of a queue, by another client that wrote for it."""
        for n, (at_ms, who, kind, data) in enumerate(self.world.beliefs):
            if kind == "told":
                yield {
                    "id": f"t{n}", "lane": who, "kind": "told", "t": at_ms, "hue": self.hue[who],
                    "label": f"{text(data['of'])}: done", "evidence": at_ms == self.now_ms,
                    "detail": f"{who} learns that it is done: {text(data['of'])}",
                }  # fmt: skip

    # --- what clients count on ------------------------------------------------------------------

    def _spans(self) -> Iterator[dict[str, Any]]:
        """Who counted on what, from when until when; `ends` is None while the client does."""
        open_: dict[tuple[str, Any], dict[str, Any]] = {}
        reports = sorted([*self.world.recorded, *self.world.beliefs], key=lambda each: each[0])
        for at_ms, who, kind, data in reports:
            key = who, data.get("stripe")
            if kind in ("held", "renewed"):
                until_ms = data.get("until_ms")
                if kind == "renewed" and key in open_:
                    open_[key]["until"] = until_ms
                    continue
                of = data.get("of") or f"epoch {data.get('epoch', '')}"
                of = f"stripe {key[1]}" if key[1] is not None else of
                span = {"who": who, "stripe": key[1], "of": of, "began": at_ms,
                        "until": until_ms, "ends": None}  # fmt: skip
                if key in open_:
                    open_[key]["ends"] = at_ms
                open_[key] = span
                yield span
            elif kind in ("released", "lost", "killed"):
                gone = [each for each in open_ if each == key or (kind, each[0]) == ("killed", who)]
                for each in gone:
                    open_.pop(each)["ends"] = at_ms

    def _open(self) -> list[dict[str, Any]]:
        """What the clients that the violation names count on at its end."""
        named_ = _named(self.violation, self.hue)
        return [each for each in self.spans if each["ends"] is None and each["who"] in named_
                and (each["until"] or inf) > self.now_ms]  # fmt: skip

    def _clash(self) -> list[dict[str, Any]]:
        """Of these, what two of them count on at once."""
        found = self._open()
        return [each for each in found if any(
            other["who"] != each["who"] and other["stripe"] == each["stripe"] for other in found
        )]  # fmt: skip

    def _end_ms(self) -> float:
        """A harm is drawn until the first lease ends that is part of it, or for a moment."""
        after_ms = self.now_ms + AFTER_MS
        if clash := self._clash():
            return min(each["until"] or after_ms for each in clash)
        return min([after_ms, *(each["until"] or after_ms for each in self._open())]
                   if self._open() else [self.now_ms])  # fmt: skip

    def _bars(self) -> Iterator[Scene]:
        end_ms, open_, clash = self._end_ms(), self._open(), self._clash()
        both = max((each["began"] for each in clash), default=inf)
        for n, span in enumerate(self.spans):
            until_ms = span["until"] or inf
            ends = min(end_ms, until_ms) if span["ends"] is None else span["ends"]
            clashes = any(span is each for each in clash)
            wrong = both if clashes else until_ms
            who = span["who"]
            bar = {"id": f"b{n}", "lane": who, "kind": "belief", "hue": self.hue[who],
                   "label": "", "t": [span["began"], min(ends, wrong)],
                   "detail": f"{who} counts on it: {text(span['of'])}",
                   "evidence": any(span is each for each in open_)}  # fmt: skip
            yield bar
            if wrong < ends:
                yield bar | {"id": f"b{n}w", "kind": "wrong", "t": [wrong, ends],
                             "label": "both hold it" if clashes else "past its lease",
                             "detail": f"{who} still counts on it: {text(span['of'])}, "
                             f"{'and so does another client' if clashes else PAST}"}  # fmt: skip
        story = HistoryModel()
        story.add(self.world.history())
        yield from (stall_bar(each, self.hue[each.who], self.now_ms) for each in story.stalls)

    # --- the harm -------------------------------------------------------------------------------

    def _last(self) -> Trip | None:
        """The request that broke the rule, or the last one of the client that did."""
        truth = self.world.memory_store.truth
        last = truth[-1] if truth else None
        for each in self.judged:
            if each.kind == "request":
                last = next(d for d in truth if (d.at_ms, d.client) == (each.at_ms, each["client"]))
        broke = last is not None and (bool(self.judged) or last.at_ms == self.now_ms)
        if broke and last is not None and last.client in self.hue:
            return next(trip for trip, decided in self.trips if decided is last)
        going = self.world.going.name if self.world.going else ""
        who = [*_named(self.violation, self.hue), going][0]
        return next((trip for trip, _ in reversed(self.trips) if trip.who == who), None)

    def _proofs(self) -> set[str]:
        """The writes that show the harm: those of what the violation names, and the last two."""
        found = {trip.id for trip, decided in self._applied() if self._turns(decided)}
        last = self._last()
        if last is None:
            return found
        found.add(last.id)
        reads = isinstance(last.request, Get | List)
        said, key = self._said(last.request), getattr(last.request, "key", "")
        before = [trip for trip, decided in self._applied()
                  if decided.at_ms < (last.decided_ms or inf)]  # fmt: skip
        others = [trip for trip in before if reads or trip.who != last.who]
        twin = [trip for trip in others if self._said(trip.request) == said]
        same = [trip for trip in others if getattr(trip.request, "key", "") == key]
        meant = [trip for trip, _ in self.trips
                if isinstance(trip.request, Put | Delete) and self._is_named(trip.request)
                and not isinstance(trip.answer, PreconditionFailed)]  # fmt: skip
        return found | {each.id for each in [*(twin or same)[-1:], *meant[-2:]]}

    def _is_named(self, request: Put | Delete) -> bool:
        """Whether a write says what the violation names: an epoch, a slot, a key."""
        state = state_of(self.scenario, request.key, body_of(request))
        return request.key in self.violation or any(
            re.match(rf"{each}\b", state) for each in _NUMBERED.findall(self.violation)
        )

    def _turns(self, decided: DecidedRequest) -> bool:
        """Whether a write adds or removes something that the violation names."""
        request = decided.request
        key = getattr(request, "key", "")
        was = self.bodies.get((key, decided.before), b"")
        now = request.body if isinstance(request, Put) else b""
        return any(_counted(was, word) != _counted(now, word) for word in self._words())

    def _words(self) -> list[str]:
        """Ids and records that the violation names."""
        words = dict.fromkeys(_WORD.findall(self.violation))
        return [each for each in words if len(each) >= _WORD_CHARS
                and any(c.isdigit() for c in each) and each not in self.hue]  # fmt: skip

    def _harm(self) -> list[Scene]:
        """A mark in the lane of each client that the violation names, else of the last one."""
        last = self._last()
        at_ms = (last.decided_ms if last and self.judged else None) or self.now_ms
        known = last is not None and last.who in self.hue
        lanes = _named(self.violation, self.hue) or [last.who if last and known else LOCK_LANE]
        return [_harm(n, each, at_ms, self.violation, self.hue.get(each, NO_LANE))
                for n, each in enumerate(lanes)]  # fmt: skip


@lru_cache(maxsize=4096)
def _counted(body: bytes, word: str) -> int:
    """How often an object names it, apart from a queue's memory of its latest writes."""
    said = _MEMORY.sub("", body.decode())
    return len(re.findall(rf"(?<![\w.]){re.escape(word)}(?![\w.])", said))
