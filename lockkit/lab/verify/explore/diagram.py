"""The picture of the protocol: its transition table, as Mermaid."""

from __future__ import annotations

from collections.abc import Mapping

from lockkit.protocol.lease import ANYWHERE, TRANSITIONS, EventCase, Transition
from lockkit.protocol.state import Phase

ANY = "any_phase"


def state_diagram() -> str:
    """A Mermaid `stateDiagram-v2`, each arrow labelled with the cases that lead along it."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for phase, rows in TRANSITIONS.items():
        _add(arrows, phase, rows)
    _add(arrows, None, ANYWHERE)
    lines = [f"    {pair[0]} --> {pair[1]}: {', '.join(arrows[pair])}" for pair in arrows]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {Phase.IDLE.value}", *lines])


def _add(
    arrows: dict[tuple[str, str], list[str]],
    phase: Phase | None,
    rows: Mapping[EventCase, Transition],
) -> None:
    """Rows that stay in their phase are not drawn."""
    for case, row in rows.items():
        if row.to is not None and row.to is not phase:
            pair = (ANY if phase is None else phase.value, row.to.value)
            arrows.setdefault(pair, []).append(case.value)


def transition_table() -> str:
    """Every row of the table, as Markdown."""
    lines = ["| phase | case | next phase | action |", "|---|---|---|---|"]
    for phase, rows in [*TRANSITIONS.items(), (None, ANYWHERE)]:
        stays = ANY.replace("_", " ") if phase is None else phase.value
        name = f"**{stays}**"
        for case, (to, action) in rows.items():
            called = action.__name__.replace("_", " ")
            lines.append(f"| {name} | {case.value} | {to.value if to else stays} | {called} |")
            name = ""
    return "\n".join(lines)
