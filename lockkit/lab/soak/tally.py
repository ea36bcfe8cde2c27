"""A soak's results: faults by kind, its history joined with the store's record, its memory."""

from __future__ import annotations

import json
import sqlite3
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockkit.events import STORE, Event, parse, read

SERVER = "server"
STOPS = {"at its commit, while it held the lock": "before its commit",
         "its commit decided and not yet visible": "in its commit"}  # fmt: skip
WARM_UP_S = 60.0
"""A process's first minute does not show its growth, because it imports and reads."""
MEMORY_SAMPLES_MIN = 6
WEIGHED = ("applied", "precondition_failed")


def injected(each: Event) -> str | None:
    """The kind of injected fault that this event records; None if nothing was injected."""
    match each.kind:
        case "fault":
            code = f" {each['code']}" if "code" in each.data else ""
            return f"{each['fault']}{code} {each['when']} apply"
        case "stalled":
            return f"stalled {STOPS.get(str(each['why']), 'anywhere')}"
        case "killed":
            return "server killed" if each.who == SERVER else "client killed"
        case "note":
            injected: str | None = each.get("injected")
            return injected
        case _:
            return None


# --- the history ----------------------------------------------------------------------------------


def events_of(run_dir: Path) -> Iterator[Event]:
    """The events of clients and processes: belief."""
    with (run_dir / "history.jsonl").open(encoding="utf-8") as file:
        yield from read(file)


def recorded(run_dir: Path) -> Iterator[Event]:
    """The store's record of writes, in the order in which it decided: truth.

    Reads are left out: no check uses them, and they are nine of ten requests.
    """
    record = sqlite3.connect(f"file:{run_dir / 'store.sqlite'}?mode=ro", uri=True)
    try:
        for (line,) in record.execute("SELECT line FROM requests ORDER BY n"):
            each = parse(line)
            if each["answer"] in WEIGHED:
                yield each
    finally:
        record.close()


def history(run_dir: Path) -> Iterator[Event]:
    """Both. Belief is read first, so that the record then has every acknowledged write."""
    yield from events_of(run_dir)
    yield from recorded(run_dir)


def made(events: Iterable[Event]) -> Counter[str]:
    """Faults by kind."""
    return Counter(kind for each in events if (kind := injected(each)) is not None)


def clients_met(events: Iterable[Event]) -> int:
    """The number of clients that had a fault on the wire or in the process."""
    return len(
        {
            each.get("client") if each.who == STORE else each.who
            for each in events
            if injected(each) is not None and each.who != SERVER
        }
        - {"", None}
    )


# --- memory ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Growth:
    """Resident memory of one lane over the run, the first minute of each process left out."""

    who: str
    processes: int
    first_mb: float
    last_mb: float
    most_mb: float
    slope_mb_h: float | None
    """Of a line through the second half of the run, pools and caches being filled in the first;
    None: too short to tell."""
    lived_s: float
    """Of its longest-lived process."""


def growth(run_dir: Path) -> list[Growth]:
    """One line for each lane that was sampled."""
    lives: dict[str, dict[int, list[tuple[float, float]]]] = defaultdict(dict)
    for who, pid, at_ms, mb in samples(run_dir):
        lives[who].setdefault(pid, []).append((at_ms / 1000, mb))
    return [_growth(who, each) for who, each in sorted(lives.items())]


def samples(run_dir: Path) -> Iterator[tuple[str, int, float, float]]:
    """Lane, process, when (ms), MB."""
    with (run_dir / "memory.jsonl").open(encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                return  # torn by the end of the run
            said = json.loads(line)
            yield said["who"], said["pid"], said["at_ms"], said["rss_mb"]


def _growth(who: str, lives: dict[int, list[tuple[float, float]]]) -> Growth:
    every = sorted(sample for life in lives.values() for sample in life)
    settled = sorted(
        each for life in lives.values() for each in life if each[0] >= life[0][0] + WARM_UP_S
    )
    middle_s = (every[0][0] + every[-1][0]) / 2
    later = [each for each in settled if each[0] >= middle_s]
    slope = None
    if len(later) >= MEMORY_SAMPLES_MIN:
        slope = statistics.linear_regression(*zip(*later, strict=True)).slope * 3600
    first, last = (settled or every)[0], (settled or every)[-1]
    lived_s = max(life[-1][0] - life[0][0] for life in lives.values())
    return Growth(who, len(lives), first[1], last[1], max(mb for _, mb in every), slope, lived_s)


def as_json(grown: Iterable[Growth]) -> list[dict[str, Any]]:
    return [{name: getattr(each, name) for name in each.__slots__} for each in grown]
