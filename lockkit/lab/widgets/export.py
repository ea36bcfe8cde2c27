"""One self-contained HTML page of a history: the same drawing, without a kernel or requests."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from lockkit.events import Event, narrate, shortened
from lockkit.lab.widgets.scene import text, whole

HERE = Path(__file__).parent
SCRIPTS = ("layout.js", "rows.js", "lanes.js")
"""What draws, in the order in which it is read: one module of them all."""
COMMENTS = re.compile(r"^ *(?://.*|/\*\*(?:.|\n)*?\*/)\n", re.MULTILINE)
"""Those that have lines of their own."""
LOG_LINES_MAX = 300
LOG_EVENTS_MAX = 10 * LOG_LINES_MAX
"""The most events of a long history that become sentences."""

# What anywidget provides in a notebook, for a page without it. `#t=16.3` opens the
# page at that second of the history, `#e=x12` at that event.
SHIM = """
const state = JSON.parse(document.getElementById("lockkit-scene").textContent);
const second = /[#&]t=([0-9.]+)/.exec(location.hash);
if (second) state.cursor = Number(second[1]) * 1000;
const event = /[#&]e=([a-z0-9]+)/.exec(location.hash);
if (event) state.selected = event[1];
const model = { get: (name) => state[name], set: (name, value) => { state[name] = value; },
  on: () => {}, off: () => {}, send: () => {}, save_changes: () => link() };
function link() {
  const at = state.cursor < 0 ? [] : [`t=${(state.cursor / 1000).toFixed(2)}`];
  if (state.selected) at.push(`e=${state.selected}`);
  const hash = at.length ? `#${at.join("&")}` : "";
  if (hash !== location.hash) history.replaceState(null, "", hash || location.pathname);
}
render({ model, el: document.getElementById("lockkit") });
addEventListener("hashchange", () => location.reload());
"""

POLICY = (
    "default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'"
)

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
body {{ margin: 0 auto; padding: 18px 22px 30px; max-width: 1500px; background: #ffffff; }}
body {{ font: 14px system-ui, sans-serif; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #14171a; color: #eceff1; }} }}
h1 {{ font-size: 19px; margin: 0 0 12px; }}
{css}
</style>
</head>
<body class="lk-page">
<h1>{title}</h1>
{above}
<div id="lockkit"></div>
<noscript>This page draws its diagram with its own script, and scripts are off.</noscript>
<script type="application/json" id="lockkit-scene">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def export_html(
    events: Iterable[Event],
    verdict: Any,
    file: str | Path | IO[str],
    *,
    title: str = "lockkit: what happened",
) -> None:
    """Write the page to a path or an open text file. `verdict` is a `check.Verdict`, or
    None.

    :param events: the run.
    :param verdict: a `check.Verdict`, or None.
    :param file: a path or an open text file.
    :param title: the page's heading.
    """
    page = page_of(events, verdict, title=title)
    if isinstance(file, (str, Path)):
        Path(file).write_text(page, encoding="utf-8")
    else:
        file.write(page)


def page_of(events: Iterable[Event], verdict: Any, *, title: str, above: str = "") -> str:
    """The page's text; the same history gives the same bytes. `above` is HTML, escaped already."""
    state = replayed(list(events), verdict)
    script = "\n" + drawing() + SHIM
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return PAGE.format(
        policy=POLICY.format(digest=digest),
        title=html.escape(text(title)),
        above=above,
        data=embedded(state),
        script=script,
        css=(HERE / "lanes.css").read_text(encoding="utf-8"),
    )


def replayed(
    events: list[Event], verdict: Any, *, scene: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The state of the drawing that shows a whole history, as `scene` if that is drawn already.

    `verdict` may be None.
    """
    return {
        "scene": scene or whole(events, evidence=verdict.evidence if verdict else ()),
        "status": {"state": "replay", "log": log_lines(events), **judged(verdict)},
        "live": False, "beats": False, "selected": "", "cursor": -1,
    }  # fmt: skip


def drawing() -> str:
    """The module that draws, without its comments: a notebook and a page have one script each."""
    whole_text = "\n".join((HERE / each).read_text(encoding="utf-8") for each in SCRIPTS)
    return COMMENTS.sub("", whole_text)


def judged(verdict: Any) -> dict[str, str]:
    """A verdict in the drawing's form: its kind, and its because-sentence."""
    if verdict is None:
        return {}
    kind = getattr(verdict.kind, "value", verdict.kind)
    return {"verdict": str(kind).upper(), "because": shortened(text(verdict.because))}


def log_lines(events: list[Event]) -> list[str]:
    """The history in sentences; only the last ones of a long history."""
    start_ms = events[0].at_ms if events else None
    return [
        text(line)
        for line in narrate(events[-LOG_EVENTS_MAX:], start_ms=start_ms)[-LOG_LINES_MAX:]
    ]


def embedded(value: Any) -> str:
    """JSON that cannot close its script element, whatever its strings contain."""
    dumped = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for char in "<>&\u2028\u2029":
        dumped = dumped.replace(char, f"\\u{ord(char):04x}")
    return dumped
