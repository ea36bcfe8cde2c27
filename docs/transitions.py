"""`python docs/transitions.py`: draws docs/transitions.svg from the lease's transition table.

Graphviz lays it out: its program `dot` must be installed. `tests/test_docs.py` holds the diagram,
and the table in docs/protocol.md, to the code.
"""

from __future__ import annotations

import subprocess
import sys
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

from lockkit.protocol.lease import ANYWHERE, TRANSITIONS
from lockkit.protocol.state import Phase

DIAGRAM = Path(__file__).with_name("transitions.svg")
ANY = "any phase"
SVG = "{http://www.w3.org/2000/svg}"
LINE, BESIDE = r"\n", "  {}  "  # between the lines of a label, and around each
HEAD = """digraph {
graph [bgcolor=white pad=0.2 nodesep=0.2 ranksep=0.4]
node [shape=box style="rounded,filled" fillcolor="#eef2ff" color="#1d4ed8"]
node [fontname=Arial fontsize=13]
edge [color="#6b7280" fontcolor="#1f2937" fontname=Arial fontsize=10 arrowsize=0.7]"""


def table() -> str:
    """Every row of the table, as Markdown."""
    lines = ["| phase | case | next phase | action |", "|---|---|---|---|"]
    for phase, rows in [*TRANSITIONS.items(), (None, ANYWHERE)]:
        stays = phase.value if phase else ANY
        name = f"**{stays}**"
        for case, (to, action) in rows.items():
            called = action.__name__.replace("_", " ")
            lines.append(f"| {name} | {case.value} | {to.value if to else stays} | {called} |")
            name = ""
    return "\n".join(lines)


def arrows() -> dict[tuple[str, str], list[str]]:
    """The cases that lead from one phase to another; rows that stay in their phase are left out."""
    found: dict[tuple[str, str], list[str]] = {}
    for phase, rows in [*TRANSITIONS.items(), (None, ANYWHERE)]:
        for case, row in rows.items():
            if row.to is not None and row.to is not phase:
                pair = (phase.value if phase else ANY, row.to.value)
                found.setdefault(pair, []).append(case.value)
    return found


def drawing() -> str:
    """The diagram in Graphviz's language."""
    lines = [f'"{one}" -> "{other}" [label="{LINE.join(map(BESIDE.format, cases))}"]'
             for (one, other), cases in arrows().items()]  # fmt: skip
    first = f'"{Phase.IDLE.value}" [penwidth=2.5]'
    any_of_them = f'"{ANY}" [fillcolor="#f3f4f6" color="#6b7280"]'
    return "\n".join([HEAD, first, *lines, any_of_them, "}"])


def arrows_of(svg: str) -> dict[tuple[str, str], list[str]]:
    """What a diagram shows."""
    found = {}
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        if group.get("class") == "edge":
            one, _, other = unescape(group.findtext(f"{SVG}title") or "").partition("->")
            found[one, other] = [(each.text or "").strip() for each in group.iter(f"{SVG}text")]
    return found


if __name__ == "__main__":
    try:
        drawn = subprocess.run(
            ["dot", "-Tsvg"], input=drawing(), capture_output=True, text=True, check=True
        ).stdout  # fmt: skip
    except FileNotFoundError:
        sys.exit("transitions: needs Graphviz's program dot; install the package graphviz")
    DIAGRAM.write_text(drawn[drawn.index("<svg") :], encoding="utf-8")
