"""The outcome of a run as a grid of plain text, read from left to right."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

LEFT = "style='text-align:left'"  # a page strips style sheets from output


def grid(name: str, head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """HTML; every cell is escaped. `name` is its class, `lockkit-` before it."""
    heads = "".join(f"<th {LEFT}>{escape(each)}</th>" for each in head)
    lines = "".join(
        f"<tr>{''.join(f'<td {LEFT}>{escape(str(cell))}</td>' for cell in row)}</tr>"
        for row in rows
    )
    return f"<table class='lockkit-{name}'><tr>{heads}</tr>{lines}</table>"
