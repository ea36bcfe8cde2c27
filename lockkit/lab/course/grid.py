"""The outcome of a run as a grid of plain text, read from left to right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from lockkit.events import shortened

_LEFT = "text-align:left;padding:4px"
LEFT = f"style='{_LEFT}'"  # a page strips style sheets from output
TIGHT = "style='text-align:left;padding:2px 8px;line-height:1.4'"
"""A cell of a long table, which fits on one screen."""
WORD_MAX = 10
"""A longer word, such as an id, is broken rather than cut in a narrow notebook."""


def grid(
    name: str, head: Iterable[str], rows: Iterable[Iterable[object]], tints: Mapping[str, str] = {}
) -> str:
    """HTML, in which every cell is escaped. Its class is `lockkit-` and `name`.

    :param tints: colours of heads.
    """
    heads = "".join(
        f"<th style='{_LEFT};color:{tints.get(each, 'inherit')}'>{escape(each)}</th>"
        for each in head
    )
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table class='lockkit-{name}'><tr>{heads}</tr>{lines}</table>"


def scrolled(table: str) -> str:
    """A long table in a box that is not higher than the screen of a narrow notebook."""
    box = "max-height:520px;overflow-y:auto;width:fit-content;max-width:100%"
    return f"<div tabindex='0' style='{box}'>{table}</div>"


def _cell(value: object) -> str:
    text = shortened(str(value))
    long = any(len(word) > WORD_MAX for word in text.split())
    style = f"style='{_LEFT};overflow-wrap:anywhere'" if long else LEFT
    return f"<td {style}>{escape(text)}</td>"
