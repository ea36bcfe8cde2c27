"""What a failing case looked like: as text, as a picture with two lanes, and how to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path

from lockkit.events import plain
from lockkit.lab.testing.cases import CaseRequest
from lockkit.lab.testing.faulty import NOTHING
from lockkit.lab.testing.options import FAULTS

SHOWN_MAX = 40
"""Requests shown around the one that was struck."""
KEY_CHARACTERS_MAX = 64

WIDTH, TOP, ROW, CLIENT, STORE = 1060, 92, 46, 640, 980
INK, GREY, RED, PALE = "#1f2937", "#6b7280", "#b91c1c", "#e5e7eb"

SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
    'role="img" font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif" font-size="13">'
)


def shown(sent: Sequence[CaseRequest]) -> list[tuple[int, CaseRequest]]:
    """The numbered requests of the block: the struck one and those around it, up to a limit."""
    numbered = [(n, each) for n, each in enumerate((s for s in sent if s.counts), 1)]
    at = next((i for i, (_, each) in enumerate(numbered) if each.fault), 0)
    start = max(0, min(at - SHOWN_MAX // 2, len(numbered) - SHOWN_MAX))
    return numbered[start : start + SHOWN_MAX]


def as_text(sent: Sequence[CaseRequest]) -> str:
    """One line for each request: what the store did with it, and the client's answer."""
    rows = shown(sent)
    width = max((len(_request(each)) for _, each in rows), default=0) + 2
    head = f"{'':4} {'request':{width}} {'the store':10} the client got"
    lines = [head, *(_line(number, each, width) for number, each in rows)]
    late = [each for each in sent if each.landed]
    lines += [f"     at the end of the block, {_request(each)} arrived: {plain(each.landed)}"
              for each in late]  # fmt: skip
    hidden = sum(each.counts for each in sent) - len(rows)
    return "\n".join([*lines, *([f"     and {hidden} more requests"] if hidden else [])])


def _line(number: int, each: CaseRequest, width: int) -> str:
    answer = (each.answer or NOTHING) + (f"  <-- {each.fault}" if each.fault else "")
    return f"{number:4} {_request(each):{width}} {_stored(each):10} {answer}"


def _request(each: CaseRequest) -> str:
    key = plain(each.key)
    cut = key if len(key) <= KEY_CHARACTERS_MAX else "…" + key[1 - KEY_CHARACTERS_MAX :]
    return f"{each.method:6} {cut}"


def _stored(each: CaseRequest) -> str:
    return str(each.status) if each.status else "-"


def command(nodeid: str, case: str, *, loaded_by_name: str = "") -> str:
    """The line that runs exactly this case again."""
    more = ["-p", loaded_by_name] if loaded_by_name else []
    # `?` fits a character that does not print: it is not sent to a terminal, nor pasted.
    pattern = case if case.isprintable() else "".join(
        each if each.isprintable() and each != "[" else "?" for each in case
    )  # fmt: skip
    return shlex.join(["pytest", *more, nodeid, f"--lockkit-case={pattern}"])


def draw(title: str, kind: str, sent: Sequence[CaseRequest], path: Path) -> Path:
    """Write the picture, and say where it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_picture(title, kind, sent), encoding="utf-8")
    return path


def as_picture(title: str, kind: str, sent: Sequence[CaseRequest]) -> str:
    """The same as SVG: time goes down, each request goes to the store and comes back, or not."""
    rows = shown(sent)
    late = [each for each in sent if each.landed]
    height = TOP + ROW * (len(rows) + len(late)) + 40
    body = [
        SVG.format(width=WIDTH, height=height),
        f'<title>{escape(title)}</title><rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        *(
            f'<defs><marker id="m{colour[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            f'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
            "</defs>" for colour in (INK, RED)
        ),
        _text(20, 28, title, INK, bold=True),
        _text(20, 48, FAULTS[kind], RED),
        _text(CLIENT, 76, "your code", INK, "middle", bold=True),
        _text(STORE, 76, "store", INK, "middle", bold=True),
        *(
            f'<path d="M{x} {TOP}V{height - 20}" stroke="{PALE}" stroke-width="3"/>'
            for x in (CLIENT, STORE)
        ),
    ]  # fmt: skip
    for index, (number, each) in enumerate(rows):
        body += _drawn(TOP + 14 + ROW * index, number, each)
    for index, each in enumerate(late, len(rows)):
        y = TOP + 14 + ROW * index
        body += [
            _text(CLIENT - 14, y + 5, f"late: {_request(each)}", RED, "end"),
            _arrow(CLIENT, y, STORE, y + 10, RED),
            _text(STORE + 10, y + 14, plain(each.landed).removeprefix("status "), RED),
        ]
    return "\n".join([*body, "</svg>", ""])


def _drawn(y: int, number: int, each: CaseRequest) -> list[str]:
    colour = RED if each.fault else INK
    reached = each.status != 0
    end = STORE if reached else (CLIENT + STORE) / 2
    lines = [
        _text(CLIENT - 14, y + 5, f"{number}. {_request(each)}", colour, "end"),
        _arrow(CLIENT, y, end, y + 10 if reached else y + 5, INK if reached else RED),
    ]
    if reached:
        lines.append(_text(STORE + 10, y + 14, str(each.status), INK))
    back = y + 28
    if each.answer not in ("", NOTHING):
        lines.append(_arrow(end, y + 18, CLIENT, back, colour))
        lines.append(_text(CLIENT + 12, back - 8, each.answer, colour))
    elif reached:
        middle = (CLIENT + STORE) / 2
        lines.append(_arrow(STORE, y + 18, middle, y + 23, RED))
        lines.append(_text(middle - 14, y + 28, "×", RED, bold=True))
    else:
        lines.append(_text(end + 6, y + 12, "×", RED, bold=True))
    return lines


def _arrow(x: float, y: float, x2: float, y2: float, colour: str) -> str:
    return (
        f'<path d="M{x:g} {y:g}L{x2:g} {y2:g}" stroke="{colour}" stroke-width="1.5" '
        f'marker-end="url(#m{colour[1:]})"/>'
    )


def _text(
    x: float, y: float, said: str, colour: str, anchor: str = "start", *, bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{colour}" text-anchor="{anchor}"{weight}>'
        f"{escape(plain(said))}</text>"
    )
