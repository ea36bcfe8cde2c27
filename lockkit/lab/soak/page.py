"""A soak's report: one self-contained page of figures, with a drawing of its most relevant moment.

All text from a bucket, a log or a history is escaped.
"""

from __future__ import annotations

import html
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from lockkit.clock import utc
from lockkit.events import Event, plain
from lockkit.lab.soak import tally
from lockkit.lab.soak.run import SoakOutcome
from lockkit.lab.widgets.export import page_of

AROUND_MS = 15_000
DRAWN_MAX = 4_000
ENDED_MAX = 20
WIDTH, HEIGHT = 260, 40
POINTS_MAX = 400

STYLE = """<style>
.soak table { border-collapse: collapse; margin: 0 0 18px; }
.soak td, .soak th { padding: 2px 12px 2px 0; text-align: left; vertical-align: top; }
.soak td.n { text-align: right; font-variant-numeric: tabular-nums; }
.soak h2 { font-size: 15px; margin: 18px 0 6px; }
.soak svg { display: block; } .soak polyline { fill: none; stroke: #4477aa; stroke-width: 1.2; }
</style>"""


def write_page(run_dir: Path, outcome: SoakOutcome, file: Path) -> None:
    page = page_of(
        excerpt(run_dir, outcome), outcome.verdict, title="lockkit soak",
        above=figures(run_dir, outcome),
    )  # fmt: skip
    file.write_text(page, encoding="utf-8")


def excerpt(run_dir: Path, outcome: SoakOutcome) -> list[Event]:
    """The events around the proof; without one, around the last late writer that was refused."""
    events_of = [each.at_ms for each in outcome.verdict.evidence]
    if not events_of:
        late = (
            each.at_ms for each in tally.events_of(run_dir)
            if each.kind == "refused" and each["error"] == "LockLost"
        )  # fmt: skip
        *_, last = 0.0, *late
        events_of = [last]
    first, last = min(events_of) - AROUND_MS, max(events_of) + AROUND_MS
    near = [each for each in tally.history(run_dir) if first <= each.at_ms <= last]
    return sorted(near, key=lambda each: each.at_ms)[:DRAWN_MAX]


def figures(run_dir: Path, outcome: SoakOutcome) -> str:
    verdict = outcome.verdict
    fence = "on" if outcome.fence else "OFF: commits are guarded by the lease alone, as Hudi's are"
    overview = [
        ("verdict", f"{verdict.kind}: {verdict.because}"),
        ("minutes", f"{outcome.minutes:.1f}"),
        ("fence", fence),
        ("acknowledged commits", outcome.commits),
        ("faults", f"{sum(outcome.made.values())} of {len(outcome.made)} kinds"),
        ("clients that met one", outcome.clients),
        ("reached", ", ".join(verdict.reached) or "nothing"),
        ("processes left", outcome.orphans),
        ("rows at the end", outcome.unread if outcome.rows is None else outcome.rows),
    ]
    findings = [(each.check, str(each.kind), each.because) for each in verdict.findings]
    proof = [
        (utc(each.at_ms), each.who, each.kind, json.dumps(dict(each.data), default=str))
        for each in verdict.evidence
    ]
    parts = [
        STYLE,
        _table("What it came to", ("", ""), [(what, str(said)) for what, said in overview]),
        _table("Each check", ("check", "verdict", "because"), findings),
        _table("The proof", ("when", "who", "what", "fields"), proof),
        _table("Faults made", ("kind", "times"), list(outcome.made.items())),
        _memory(run_dir, outcome),
        _table("Ended by themselves", ("",), [(each,) for each in outcome.ended[:ENDED_MAX]]),
    ]
    return f'<section class="soak">{"".join(parts)}</section>'


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table; empty if there are no rows."""
    lines = [f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows]
    if not lines:
        return ""
    names = "".join(f"<th>{_safe(name)}</th>" for name in head) if any(head) else ""
    return f"<h2>{_safe(title)}</h2><table><tr>{names}</tr>{''.join(lines)}</table>"


def _cell(value: object) -> str:
    if isinstance(value, Drawing):
        return f"<td>{value}</td>"
    number = ' class="n"' if isinstance(value, int | float) else ""
    return f"<td{number}>{_safe(value)}</td>"


def _safe(value: object) -> str:
    return html.escape(plain(value, limit=1000))


# --- memory ---------------------------------------------------------------------------------------


class Drawing(str):
    """SVG that we made ourselves, from numbers only."""


def _memory(run_dir: Path, outcome: SoakOutcome) -> str:
    samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for who, _pid, at_ms, mb in tally.samples(run_dir):
        samples[who].append((at_ms, mb))
    rows = [
        (
            each.who, each.processes, round(each.first_mb), round(each.last_mb),
            round(each.most_mb),
            "-" if each.slope_mb_h is None else f"{each.slope_mb_h:+.1f}",
            f"{each.lived_s / 60:.0f}", _line(samples[each.who]),
        )
        for each in outcome.memory
    ]  # fmt: skip
    head = ("who", "processes", "MB at first", "at last", "at most", "MB/h",
            "minutes of the longest-lived", "over the run")  # fmt: skip
    return _table("Memory", head, rows)


def _line(points: list[tuple[float, float]]) -> Drawing:
    every = len(points) // POINTS_MAX + 1
    points = points[::every]
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    top = max(mb for _, mb in points) or 1.0
    dots = " ".join(
        f"{WIDTH * (at - first) / (last - first):.1f},{HEIGHT * (1 - mb / top):.1f}"
        for at, mb in points
    )
    return Drawing(
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="memory over time">'
        f'<polyline points="{dots}"/></svg>'
    )
