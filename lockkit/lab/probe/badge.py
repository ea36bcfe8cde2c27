"""The verdict of a probe as a badge for a README, with the day of the probe: SVG or JSON."""

from __future__ import annotations

import json
from html import escape

from lockkit.lab.probe.report import Suitability

WORDS = {
    Suitability.FULL: ("no violation found", "#2e7d32"),
    Suitability.UNTESTED: ("not tested", "#616161"),
    Suitability.CREATE_ONLY: ("create only", "#b34700"),
    Suitability.IGNORES_CONDITIONS: ("ignores conditions", "#b71c1c"),
    Suitability.NOT_ATOMIC: ("not atomic", "#b71c1c"),
    Suitability.REFUSED: ("not tested: refused", "#616161"),
}
"""What the badge says, and its colour: each has a contrast of at least 4.5 to white."""
LEFT = "lock on it?"
HEIGHT, CHAR, EDGE = 20, 6.6, 8
"""In px. A letter of Verdana at 11 px is about as wide as that."""


def badge(verdict: Suitability, *, as_of: str) -> str:
    """An SVG with a title for screen readers. `as_of` is the day of the probe."""
    words, colour = WORDS[verdict]
    right = f"{words}, {escape(as_of)}"
    left_px, right_px = (round(len(each) * CHAR) + 2 * EDGE for each in (LEFT, right))
    both_px, middle = left_px + right_px, 'y="14" text-anchor="middle"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{both_px}" height="{HEIGHT}" role="img">'
        f"<title>{LEFT} {right}</title>"
        f'<rect width="{left_px}" height="{HEIGHT}" fill="#424242"/>'
        f'<rect x="{left_px}" width="{right_px}" height="{HEIGHT}" fill="{colour}"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{left_px / 2}" {middle}>{LEFT}</text>'
        f'<text x="{left_px + right_px / 2}" {middle}>{right}</text></g></svg>\n'
    )


def endpoint(verdict: Suitability, *, as_of: str) -> str:
    """What shields.io reads from a URL (https://shields.io/badges/endpoint-badge)."""
    words, colour = WORDS[verdict]
    said = {"schemaVersion": 1, "label": LEFT, "message": f"{words}, {as_of}", "color": colour}
    return json.dumps(said) + "\n"
