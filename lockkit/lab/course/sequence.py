"""A history as a table, a column for each client: for protocols without a lock object to draw."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

import ipywidgets as widgets

from lockkit.events import STORE, Event
from lockkit.lab.course.grid import grid
from lockkit.lab.widgets.charts import HUES
from lockkit.lab.widgets.models import described
from lockkit.lab.widgets.scene import hues

ROWS_MAX, FOLDED_MAX = 18, 200
"""So many rows and the cell above them fit on a screen; others before them are folded."""
SAID_CHARS_MAX, END_CHARS, KEY_CHARS_MAX = 76, 30, 32
VERSION_CHARS, LATE_MS = 6, 1.0
ANSWERS = {"precondition_failed": "412, refused", "throttled": "429, throttled"}
SIGNS = {"applied": "✓", "precondition_failed": "✗", "throttled": "✗", "missing": "∅"}
STYLE = """<style>
.lockkit-sequence td,.lockkit-sequence th{text-align:left;padding:1px 10px;font-size:12px;
line-height:1.5;vertical-align:top;overflow-wrap:anywhere}
.lockkit-sequence :is(td,th):first-child{white-space:nowrap}
.lockkit-sequence{border-collapse:collapse}
.lockkit-latest th{position:sticky;top:0;background:var(--jp-layout-color0,Canvas)}
.lockkit-latest{width:fit-content;max-width:100%;display:flex;flex-direction:column-reverse;max-height:480px;overflow-y:auto}
.lockkit-sequence tr+tr td{border-top:1px solid var(--jp-border-color2,#ddd)}
.lockkit-harm{border-left:4px solid var(--jp-error-color1,#b3001b);padding:4px 10px;margin:4px 0}
</style>"""


def draw(events: Iterable[Event], because: str) -> widgets.HTML:
    """Draw the last events, because harm comes at the end; `because` is shown above them."""
    everything = [each for each in events if _said(each)]
    before, shown = everything[:-ROWS_MAX], everything[-ROWS_MAX:]
    harm = f"<div class='lockkit-harm'><b>✗ INVALID</b> {escape(because)}</div>" if because else ""
    count = f"<summary>{len(before)} events before these</summary>"
    more = f"<details>{count}{_table(before)}</details>" if before else ""
    latest = f"<div class='lockkit-latest' tabindex='0'><div>{_table(shown)}</div></div>"
    return widgets.HTML(f"{STYLE}{harm}{more}{latest}")  # a narrow page opens it at its end


def _table(events: list[Event]) -> str:
    """A time is said where it differs from the one above: a simulated request takes no time."""
    who = sorted({_lane(each) for each in events})
    shown = events[-FOLDED_MAX:]
    times = [f"{each.at_ms / 1000:.3f} s" for each in shown]
    rows = (
        ("" if at == above else at, *(_said(each) if lane == _lane(each) else "" for lane in who))
        for each, at, above in zip(shown, times, ["", *times], strict=False)
    )
    tints = {each: HUES[hue % len(HUES)] for each, hue in hues(who).items()}
    return grid("sequence", ("", *who), rows, tints)


def _lane(each: Event) -> str:
    return str(each.get("client") or each.who)


def _said(each: Event) -> str:
    """An event in a few words; "" for one that is not shown."""
    data: dict[str, Any] = dict(each.data)
    match each.kind:
        case "request" if each.who == STORE:
            name = _named(str(data["key"]))
            sign = SIGNS.get(data["answer"], "")
            condition, _, version = str(data["condition"]).partition(" ")
            under = f"{condition} {version[:VERSION_CHARS]}"
            answer = ANSWERS.get(data["answer"], data["answer"])
            said = f"{str(data['method']).upper()} {name} {under} → {answer}"
            if each.at_ms - (data["began_ms"] or each.at_ms) > LATE_MS:
                said += f" (sent at {data['began_ms'] / 1000:.3f} s)"
            return _short(f"{sign} {' '.join(said.split())}".strip())
        case "fault":
            what = f"{str(data['method']).upper()} {_named(str(data['key']))}: {described(each)}"
            return _short(f"⚡ {what.replace('arrived', 'arrives')}")  # it was only sent
        case "stalled" | "resumed" | "killed" | "started":
            return f"‖ {each.kind}"
        case "note":
            return _short(str(data["text"]))
        case _:
            return ""


def _named(key: str) -> str:
    """A short key whole, so that a write to another object does not look like the right one."""
    return key if len(key) <= KEY_CHARS_MAX else f"…/{key.rstrip('/').rpartition('/')[2]}"


def _short(text: str) -> str:
    """Without its middle if it is long: what a call returns stands at its end."""
    if len(text) <= SAID_CHARS_MAX:
        return text
    return f"{text[: SAID_CHARS_MAX - END_CHARS - 1]}…{text[-END_CHARS:]}"
