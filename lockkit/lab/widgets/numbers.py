"""The numbers of a scene to plot: generations, latencies, refusals and leases, as plain points.

Times are seconds since the history began. Each point names its event by the scene's id, so
that a choice in one picture also selects it in the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockkit.lab.widgets.scene import Scene

POINTS_MAX = 1_500
"""Of one kind; of more, the extremes are kept (a browser draws so many in a blink)."""
BINS = 60
OUTCOMES = ("ok", "refused (412)", "throttled (429)", "answer lost")
LOOKS = {"refused": OUTCOMES[1], "throttled": OUTCOMES[2]} | dict.fromkeys(
    ("lost", "dropped", "late"), OUTCOMES[3]
)
LOCK = "lock object"


@dataclass(frozen=True, slots=True)
class PlotPoint:
    """A point: `at_s`, its height, its writer's colour, its label and its event."""

    at_s: float
    y: float
    hue: int
    said: str
    id: str
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Ribbon:
    """The time in which a lane held the lock or counted on it; `over` if its lease had ended."""

    lane: str
    began_s: float
    lasted_s: float
    hue: int
    over: bool
    said: str
    id: str


@dataclass(frozen=True, slots=True)
class NumbersFigure:
    steps: tuple[PlotPoint, ...]
    """The lock object's generation over time."""
    trips: tuple[PlotPoint, ...]
    """Milliseconds from request to answer, of each write."""
    refusals: tuple[PlotPoint, ...]
    """412s and 429s per second, by bins of time; of the first of each bin."""
    ribbons: tuple[Ribbon, ...]
    lanes: tuple[str, ...]
    span_s: tuple[float, float]
    of: int
    """The number of points before any were left out."""


def numbers(scene: Scene) -> NumbersFigure:
    """The scene's numbers; the same scene gives the same points."""
    writes = [each for each in scene["arrows"] if each["kind"] == "write"]
    steps = [
        PlotPoint(row["t"] / 1000, row["n"], row["hue"], f"g{row['n']} {row['who']} {row['op']}",
              row["arrow"])
        for row in scene["rows"]
    ]  # fmt: skip
    trips = [trip for each in writes if (trip := _trip(each)) is not None]
    ribbons = _ribbons(scene)
    span = scene["span"][0] / 1000, scene["span"][1] / 1000
    return NumbersFigure(
        _thinned(steps, lambda each: each.y), _thinned(trips, lambda each: each.y),
        tuple(_rates(writes, span)), _longest(ribbons),
        tuple(each["title"] for each in scene["lanes"] if each["role"] == "writer"), span,
        len(steps) + len(trips) + len(ribbons),
    )  # fmt: skip


def _trip(arrow: Scene) -> PlotPoint | None:
    sent_s, decided, answered = arrow["t"]
    ended = decided if answered is None else answered
    if sent_s is None or ended is None:
        return None
    outcome = LOOKS.get(arrow["look"], OUTCOMES[0])
    said = f"{arrow['lane']} {arrow['label']}"
    return PlotPoint(
        sent_s / 1000, max(0.1, ended - sent_s), arrow["hue"], said, arrow["id"], outcome
    )


def _rates(writes: list[Scene], span: tuple[float, float]) -> list[PlotPoint]:
    """Refusals and throttles per second in each bin that has any."""
    wide_s = max(1e-3, (span[1] - span[0]) / BINS)
    bins: dict[tuple[str, int], list[Scene]] = {}
    for each in writes:
        outcome = LOOKS.get(each["look"], "")
        if outcome in OUTCOMES[1:3]:
            at_s = next(t for t in each["t"] if t is not None) / 1000
            place = min(BINS - 1, int((at_s - span[0]) / wide_s))
            bins.setdefault((outcome, place), []).append(each)
    return [
        PlotPoint(span[0] + (place + 0.5) * wide_s, len(found) / wide_s, 0,
        f"{len(found)} {outcome}",
              found[0]["id"], outcome)
        for (outcome, place), found in sorted(bins.items())
    ]  # fmt: skip


def _ribbons(scene: Scene) -> list[Ribbon]:
    sent_s: dict[str, tuple[list[float], list[str]]] = {}
    for each in scene["arrows"]:
        times, ids = sent_s.setdefault(each["lane"], ([], []))
        times.append(next(t for t in each["t"] if t is not None))
        ids.append(each["id"])
    found = []
    for bar in scene["bars"]:
        if bar["kind"] not in ("owner", "over", "belief", "wrong"):
            continue
        began, ended = bar["t"]
        truth = bar["kind"] in ("owner", "over")
        times, ids = sent_s.get(bar["lane"], ([], []))
        before = bisect_right(times, began) - 1
        id = ids[before] if before >= 0 and bar["kind"] == "belief" else bar["id"]
        found.append(Ribbon(
            LOCK if truth else bar["lane"], began / 1000, (ended - began) / 1000, bar["hue"],
            bar["kind"] in ("over", "wrong"), bar["detail"], id,
        ))  # fmt: skip
    return found


def _thinned(points: list[PlotPoint], weight: Callable[[PlotPoint], Any]) -> tuple[PlotPoint, ...]:
    """All points, or the first and the highest of each run; failures have precedence."""
    if len(points) <= POINTS_MAX:
        return tuple(points)
    run = -(-2 * len(points) // POINTS_MAX)
    kept: dict[str, PlotPoint] = {}
    for start in range(0, len(points), run):
        part = points[start : start + run]
        failed = [each for each in part if each.outcome not in ("", OUTCOMES[0])]
        for each in (part[0], max(failed or part, key=weight)):
            kept[each.id] = each
    return tuple(kept.values())


def _longest(ribbons: list[Ribbon]) -> tuple[Ribbon, ...]:
    if len(ribbons) <= POINTS_MAX:
        return tuple(ribbons)
    longest = sorted(ribbons, key=lambda each: (each.over, each.lasted_s))[-POINTS_MAX:]
    return tuple(sorted(longest, key=lambda each: each.began_s))
