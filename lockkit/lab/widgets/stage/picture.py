"""The picture of a stage: of a lock as everywhere, else each request and what the store holds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from lockkit.lab.widgets.models import Stall, short
from lockkit.lab.widgets.scene import (
    LOCK_LANE,
    LastWrites,
    Scene,
    hues,
    stall_bar,
    tail,
    text,
    whole,
)
from lockkit.lab.widgets.stage.requests import plain, shown
from lockkit.lab.widgets.stage.staged import Stage, Trip
from lockkit.protocol.outcome import Applied, PreconditionFailed, Throttled
from lockkit.runtime import Delete, Get, List, Put

CAPTION = "Writes that the store applied"
ZEROS = re.compile(r"0{4,}(?=\d)")


def picture(run: Stage) -> Scene:
    """The scene of a run: the store's lane on the left, and a lane for each actor."""
    if run.play_name == "lock":
        return whole(run.events)
    hue = hues(run.actors)
    trips = [each for each in run.trips if isinstance(each.request, Get | List | Put | Delete)]
    writes = last_writes(trips)
    rows = [row_of(n, each, hue) for n, each in enumerate(filter(_applied, trips), 1)]
    lanes: list[Scene] = [{"id": LOCK_LANE, "title": "store", "role": "truth", "state": ""}]
    for name, actor in run.actors.items():
        state = "stalled" if actor.paused else "exited" if actor.waits is None else "running"
        lanes.append({"id": name, "title": name, "role": "writer", "hue": hue[name],
                      "state": state})  # fmt: skip
    return {
        "span": [0.0, run.time.now_ms], "keep": None, "cut": False, "hidden": 0,
        "events": len(run.decisions), "lanes": lanes, "reads": True, "caption": CAPTION,
        "bars": _bars(run, hue),
        "arrows": [arrow_of(each, hue, _said(each), writes) for each in trips],
        "marks": [*(_mark(row) for row in rows), *_ends(run, hue)], "rows": rows,
    }  # fmt: skip


def _applied(trip: Trip) -> bool:
    return isinstance(trip.answer, Applied)


def _key(trip: Trip) -> str:
    return str(getattr(trip.request, "key", ""))


def name_of(key: str) -> str:
    """The end of a key, without the zeros before its number; of a number, also its folder."""
    name = text(ZEROS.sub("", tail(key)).removesuffix(".json"))
    return f"{tail(key.rpartition('/')[0])}/{name}" if name.isdigit() else name


def _said(trip: Trip) -> str:
    verb, _, key = shown(trip.request).rpartition(" ")
    return f"{verb} {name_of(key)}"


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
        return "late", f"{label}: landed late"
    return ("lost" if _applied(trip) else "unheard"), f"{label}: answer lost"


def row_of(n: int, trip: Trip, hue: dict[str, int]) -> Scene:
    version = trip.answer.version
    return {
        "id": f"r{trip.id}", "n": n, "t": trip.decided_ms, "version": text(short(version)),
        "full": text(version), "who": trip.who, "hue": hue[trip.who], "epoch": "",
        "op": f"{'delete ' if isinstance(trip.request, Delete) else ''}{name_of(_key(trip))}",
        "attempt": "", "answer": "200" if trip.answered_ms is not None else "200, answer lost",
        "arrow": trip.id,
    }  # fmt: skip


def _mark(row: Scene) -> Scene:
    return {
        "id": row["id"], "lane": LOCK_LANE, "kind": "generation", "t": row["t"], "hue": row["hue"],
        "label": row["op"], "row": row["id"], "arrow": row["arrow"], "evidence": False,
        "detail": f"the store applied a write of {row['who']}: {row['op']}",
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
