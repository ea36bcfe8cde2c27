"""`python docs/picture.py`: draws docs/stalled_commit.svg from a recorded history.

The recording is `datasets/histories/good/stalled_commit_refused.jsonl`: three writers at one table,
of which W1 is stopped (SIGSTOP) between its conflict check and its commit. Each column of the
picture is one event of W1 or W2, with its time; the distances are not to scale.
`tests/test_docs.py` holds the committed picture to this program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from lockkit.events import Event, read

ROOT = Path(__file__).parents[1]
HISTORY = ROOT / "datasets" / "histories" / "good" / "stalled_commit_refused.jsonl"
PICTURE = ROOT / "docs" / "stalled_commit.svg"

LEFT, COLUMN, WIDTH, HEIGHT = 132, 92, 960, 408
LANES = {"W1": 78, "lock": 172, "fence": 250, "W2": 336}
NAMES = {"W1": "writer W1", "lock": "lock object", "fence": "fence", "W2": "writer W2"}
BLUE, AMBER, RED, PALE = "#1d4ed8", "#b45309", "#b91c1c", "#e5e7eb"
INK, GREY = "#1f2937", "#6b7280"
COLOURS = {"W1": BLUE, "W2": AMBER}
FILLS = {"W1": "#bfdbfe", "W2": "#fde68a", "": PALE}


@dataclass(frozen=True)
class Step:
    """One column: what happened, to whom, and when."""

    kind: str
    who: str
    at_ms: float
    epoch: int = 0


def steps(events: list[Event]) -> list[Step]:
    """The columns: from the grant under which W1 stalls, to the refusal of its commit."""
    stalled = next(each for each in events if each.kind == "stalled")
    refused = next(each for each in events if each.kind == "refused")
    late = stalled.who
    begun = [each for each in events if each.kind == "held" and each.who == late]
    grant = next(each for each in begun if each.data["epoch"] == refused.data["epoch"])
    renewed = [each for each in events if each.kind == "renewed" and each.at_ms < stalled.at_ms]
    until = max(each.data["until_ms"] for each in [grant, *renewed] if each.who == late)
    found = [
        Step(each.kind, each.who, each.at_ms, each.data.get("epoch", 0))
        for each in events
        if each.at_ms >= grant.at_ms and each.who in LANES
        and each.kind in ("held", "stalled", "waiting", "fenced", "released", "resumed", "refused")
    ]  # fmt: skip
    return sorted([*found, Step("ended", late, until)], key=lambda each: each.at_ms)


def draw(events: list[Event]) -> str:
    """The picture, as SVG; the same history always gives the same text."""
    columns = steps(events)
    at = {(each.kind, each.who): LEFT + 20 + COLUMN * i for i, each in enumerate(columns)}
    late, early = columns[0].who, next(each.who for each in columns if each.kind == "fenced")
    grant = next(each for each in columns if each == columns[0])
    later = next(each for each in columns if (each.kind, each.who) == ("held", early))
    zero = grant.at_ms
    body = [
        *_lanes(),
        *_holdings(at, late, early, grant.epoch, later.epoch),
        *_requests(at, late, early),
        *(
            _text(LEFT + 20 + COLUMN * i, HEIGHT - 14, f"{(each.at_ms - zero) / 1000:.2f} s", GREY)
            for i, each in enumerate(columns)
        ),
    ]
    title = (
        f"{late} stalls in the middle of its commit. Its lease ends, {early} takes the lock and "
        f"commits. {late} wakes, still tries to commit, and the store refuses its write."
    )
    return "\n".join([*_head(title), *body, "</svg>", ""])


def _head(title: str) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" '
        'font-size="12.5">'
    )
    yield f"<title>{escape(title)}</title>"
    yield (
        f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10" fill="#fff" '
        f'stroke="{PALE}"/>'
    )
    yield (
        '<defs><pattern id="stopped" width="8" height="8" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="8" height="8" fill="#f3f4f6"/>'
        '<rect width="3" height="8" fill="#d1d5db"/></pattern>'
    )
    for colour in (BLUE, AMBER, RED):
        yield (
            f'<marker id="m{colour[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            f'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
        )
    yield "</defs>"


def _lanes() -> Iterator[str]:
    yield _text(24, 34, "A holder that wakes too late is refused by the store", INK, "start", 16)
    yield (
        f'<rect x="8" y="{LANES["lock"] - 46}" width="{WIDTH - 16}" height="156" rx="8" '
        f'fill="#f9fafb" stroke="{PALE}"/>'
    )
    for lane, y in LANES.items():
        colour = COLOURS.get(lane, INK)
        yield _text(24, y + 4, NAMES[lane], colour, "start", bold=True)
        yield f'<path d="M{LEFT} {y}H{WIDTH - 24}" stroke="{PALE}" stroke-width="2"/>'
    yield _text(24, LANES["lock"] - 26, "object store", GREY, "start")
    between = (LANES["lock"] + LANES["fence"]) / 2 + 4
    yield _text(LEFT + 20, between, "each arrow is one PUT with If-Match", GREY, "start")


def _holdings(
    at: dict[tuple[str, str], int], late: str, early: str, old: int, new: int
) -> Iterator[str]:
    """What each lane is, from when to when."""
    end = WIDTH - 24
    held, stalled = at["held", late], at["stalled", late]
    ended, woken = at["ended", late], at["resumed", late]
    taken, decided, gone = at["held", early], at["fenced", early], at["released", early]
    yield _bar(held, stalled, LANES["W1"], FILLS[late], "works", BLUE)
    why = "paused: SIGSTOP, GC, a suspended VM"
    yield _bar(stalled, woken, LANES["W1"], "url(#stopped)", why, INK)
    yield _bar(woken, at["refused", late] + 8, LANES["W1"], FILLS[late], "wakes", BLUE)
    yield _bar(held, ended, LANES["lock"], FILLS[late], f"held by {late}, epoch {old}", BLUE)
    yield _bar(taken, gone, LANES["lock"], FILLS[early], f"held by {early}, epoch {new}", AMBER)
    yield _bar(gone, end, LANES["lock"], PALE, f"released, epoch {new}", INK)
    yield _text((ended + taken) / 2, LANES["lock"] - 8, "lease ended", GREY)
    yield _bar(LEFT, decided, LANES["fence"], PALE, "decided last: an earlier commit", INK)
    last = f"decided last: {early}'s commit"
    yield _bar(decided, end, LANES["fence"], FILLS[early], last, AMBER)
    yield _bar(at["waiting", early], taken, LANES["W2"], "#fff", "waits", AMBER, AMBER)
    yield _bar(taken, gone, LANES["W2"], FILLS[early], "commits", AMBER)


def _requests(at: dict[tuple[str, str], int], late: str, early: str) -> Iterator[str]:
    """The conditional writes, each with its answer."""
    yield _arrow(at["held", late], "W1", "lock", BLUE, "acquire")
    yield _arrow(at["held", early], "W2", "lock", AMBER, "acquire", -1)
    yield _arrow(at["fenced", early], "W2", "fence", AMBER, "commit", -1)
    yield _arrow(at["released", early], "W2", "lock", AMBER, "release")
    x = at["refused", late]
    yield _arrow(x, "W1", "fence", RED, "")
    yield _text(x - 8, LANES["W1"] + 34, "commit:", RED, "end", bold=True)
    yield _text(x - 8, LANES["W1"] + 50, "412, refused", RED, "end", bold=True)


def _bar(x: float, x2: float, y: int, fill: str, label: str, ink: str, stroke: str = "none") -> str:
    shape = (
        f'<rect x="{x}" y="{y - 12}" width="{x2 - x}" height="24" rx="4" fill="{fill}" '
        f'stroke="{stroke}"/>'
    )
    return shape + _text((x + x2) / 2, y + 4, label, ink)


def _arrow(x: int, start: str, end: str, colour: str, label: str, side: int = 1) -> str:
    down = LANES[end] > LANES[start]
    y, y2 = (LANES[start] + 12, LANES[end] - 13) if down else (LANES[start] - 12, LANES[end] + 13)
    line = (
        f'<path d="M{x} {y}V{y2}" stroke="{colour}" stroke-width="2" '
        f'marker-end="url(#m{colour[1:]})"/>'
    )
    if not label:
        return line
    middle = (LANES[start] + (12 if down else -12) + (LANES[start] + (86 if down else -86))) / 2
    return line + _text(x + 8 * side, middle + 4, label, colour, "start" if side > 0 else "end")


def _text(
    x: float, y: float, text: str, colour: str, anchor: str = "middle", size: float = 0,
    *, bold: bool = False,
) -> str:  # fmt: skip
    more = f' font-size="{size:g}"' if size else ""
    more += ' font-weight="600"' if bold or size else ""
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{colour}" text-anchor="{anchor}"{more}>'
        f"{escape(text)}</text>"
    )


def main() -> None:
    with HISTORY.open(encoding="utf-8") as lines:
        PICTURE.write_text(draw(list(read(lines))), encoding="utf-8")


if __name__ == "__main__":
    main()
