"""The picture of a stage: of a lock as everywhere, else each request and what the store holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from lockkit.lab.widgets.models import Stall, short
from lockkit.lab.widgets.scene import (
    LOCK_LANE,
    NO_LANE,
    LastWrites,
    Scene,
    hues,
    stall_bar,
    tail,
    text,
    whole,
)
from lockkit.lab.widgets.seeds.named_writes import body_of, state_of, words_of
from lockkit.lab.widgets.stage.requests import plain, shown
from lockkit.lab.widgets.stage.staged import Stage, Trip
from lockkit.protocol.outcome import Applied, PreconditionFailed, Throttled
from lockkit.runtime import Delete, Get, List, Put, Request

CAPTION = "Writes that the store applied"
HARM_CHARS = 60
"""What is longer stands in the verdict, and not beside the mark."""


def picture(run: Stage) -> Scene:
    """The scene of a run: the store's lane on the left, and a lane for each actor."""
    if run.play_name == "lock":
        return whole(run.events)
    hue, harm = hues(run.actors), _harm(run)
    trips = [each for each in run.trips if isinstance(each.request, Get | List | Put | Delete)]
    applied, writes = [each for each in trips if _applied(each)], last_writes(trips)
    bodies = {(_key(each), each.answer.version): each.request.body
              for each in applied if isinstance(each.request, Put)}  # fmt: skip
    words = {each.id: words_of(run.play_name, each.request, bodies) for each in trips}
    proofs = _proofs(trips, harm[1]) if harm else set()
    rows = [row_of(n, each, hue, words[each.id]) for n, each in enumerate(applied, 1)]
    requests = {each.id: each.request for each in trips}
    lanes: list[Scene] = [{"id": LOCK_LANE, "title": "store", "role": "truth", "state": ""}]
    for name, actor in run.actors.items():
        state = "stalled" if actor.paused else "exited" if actor.waits is None else "running"
        lanes.append({"id": name, "title": name, "role": "writer", "hue": hue[name],
                      "state": state})  # fmt: skip
    marks = [mark_of(row, requests[row["arrow"]], run.play_name, proofs) for row in rows]
    if harm:
        at_ms, last, because = harm
        marks.append(harm_mark(0, last.who, at_ms, because, because, hue[last.who]))
    return {
        "span": [0.0, run.time.now_ms], "keep": None, "cut": False, "hidden": 0,
        "events": len(run.decisions), "lanes": lanes, "reads": True, "caption": CAPTION,
        "bars": _bars(run, hue), "marks": [*marks, *_ends(run, hue)], "rows": rows,
        "arrows": [arrow_of(each, hue, words[each.id], writes) | {"evidence": each.id in proofs}
                   for each in trips],
    }  # fmt: skip


def _harm(run: Any) -> tuple[float, Trip, str] | None:
    """When the decision was carried out since which a rule is broken, and its actor's request."""
    from lockkit.lab.widgets.stage.fork import fork

    well, because = run.verdict
    for count in range(len(run.decisions), -1, -1):
        if well:
            return None
        before: Any = fork(run, count - 1) if count else None
        well = before is None or before.verdict.well
        if before is not None:
            before.close()
        if well and count:
            after, who = fork(run, count), run.decisions[count - 1].who
            number, at_ms = len(after.trips), after.time.now_ms
            after.close()
            sent = [each for each in run.trips[:number] if each.who == who]
            return (at_ms, sent[-1], text(because)) if sent else None
    return None


def _proofs(trips: Collection[Trip], last: Trip) -> set[str]:
    """The request that broke the rule, what its client was not answered, and what it replaced."""
    sent = [each for each in trips if each.sent_ms < last.sent_ms]
    unheard = [each for each in sent if each.who == last.who and each.answered_ms is None]
    replaced = [each for each in sent if _applied(each) and _key(each) == _key(last)]
    return {each.id for each in (last, *unheard, *replaced[-1:])}


def _applied(trip: Trip) -> bool:
    return isinstance(trip.answer, Applied)


def _key(trip: Trip) -> str:
    return str(getattr(trip.request, "key", ""))


def last_writes(trips: Iterable[Trip]) -> LastWrites:
    return LastWrites((_key(each), each.decided_ms, each.who) for each in trips
                      if _applied(each) and each.decided_ms is not None)  # fmt: skip


def arrow_of(trip: Trip, hue: dict[str, int], label: str, writes: LastWrites) -> Scene:
    reads, look, cause = isinstance(trip.request, Get | List), "ok", ""
    if isinstance(trip.answer, PreconditionFailed):
        first = writes.first(_key(trip), trip.decided_ms, trip.who)
        cause = f", {first}" if first else ""
        look, label = "refused", f"{label}: 412{cause}"
    if isinstance(trip.answer, Throttled):
        look, label = "throttled", f"{label}: 429"
    if trip.answered_ms is None:
        look, label = _lost(trip, label)
    result = plain(trip.answer) + cause if trip.answered_ms is not None else "no answer"
    return {
        "id": trip.id, "lane": trip.who, "side": LOCK_LANE, "op": text(shown(trip.request)),
        "kind": "read" if reads else "write", "look": look, "label": label, "hue": hue[trip.who],
        "t": [trip.sent_ms, trip.decided_ms, trip.answered_ms], "evidence": False,
        "row": f"r{trip.id}" if _applied(trip) else "",
        "detail": f"{trip.who}: {text(shown(trip.request))}; {result}",
    }  # fmt: skip


def _lost(trip: Trip, label: str) -> tuple[str, str]:
    """How a request looks whose answer never came."""
    if trip.decided_ms is None:
        return ("late", f"{label}: on its way") if trip.late else ("dropped", f"{label}: lost")
    if trip.late:
        done = _applied(trip)
        return ("late", f"{label}: landed late") if done else ("unheard", f"{label}: arrived late")
    return ("lost" if _applied(trip) else "unheard"), f"{label}: answer lost"


def row_of(n: int, trip: Trip, hue: dict[str, int], said: str) -> Scene:
    version = trip.answer.version
    return {
        "id": f"r{trip.id}", "n": n, "t": trip.decided_ms, "version": text(short(version)),
        "full": text(version), "who": trip.who, "hue": hue[trip.who], "epoch": "", "op": said,
        "attempt": "", "answer": "200" if trip.answered_ms is not None else "200, answer lost",
        "arrow": trip.id,
    }  # fmt: skip


def mark_of(row: Scene, request: Request, scenario: str, proofs: Collection[str]) -> Scene:
    """What an object says after a write."""
    assert isinstance(request, Put | Delete)
    state = text(state_of(scenario, request.key, body_of(request)))
    return {
        "id": row["id"], "lane": LOCK_LANE, "kind": "generation", "t": row["t"],
        "hue": row["hue"], "label": state, "row": row["id"], "arrow": row["arrow"],
        "evidence": row["arrow"] in proofs,
        "detail": f"after the write of {row['who']} ({row['op']}), "
                  f"{text(tail(request.key))} says: {state}",
    }  # fmt: skip


def harm_mark(
    n: int, lane: str, at_ms: float, because: str, detail: str, hue: int = NO_LANE
) -> Scene:
    """Where a rule was broken; of several marks the first one says why, if that is short."""
    short_ = because and len(because) <= HARM_CHARS and ":" not in because
    return {
        "id": f"harm{n}", "lane": lane, "kind": "harm", "t": at_ms, "hue": hue, "evidence": True,
        "label": f"rule broken here: {because}" if short_ and not n else "rule broken here",
        "detail": detail,
    }  # fmt: skip


def _bars(run: Stage, hue: dict[str, int]) -> list[Scene]:
    """The pauses of each actor."""
    stalls = (Stall(f"s{n}", *pause) for n, pause in enumerate(run.pauses))
    return [stall_bar(each, hue[each.who], run.time.now_ms) for each in stalls]


def _ends(run: Stage, hue: dict[str, int]) -> list[dict[str, Any]]:
    """How each actor ended."""
    return [
        {"id": f"e{name}", "lane": name, "kind": "exited", "t": run.ends_ms[name],
         "label": "ended", "hue": hue[name], "detail": f"{name} ended: {text(actor.ended)}",
         "evidence": False}
        for name, actor in run.actors.items() if name in run.ends_ms
    ]  # fmt: skip
