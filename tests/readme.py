"""Parts of the README that are made by tests, so that they can not go stale."""

from __future__ import annotations

import os
import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def section(marker: str, content: str) -> None:
    """The README's part between two markers is exactly this; rewritten where that is asked for."""
    text = README.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {marker}:begin -->\n)(.*?)(<!-- {marker}:end -->)", re.DOTALL)
    found = pattern.search(text)
    assert found is not None, f"README.md has no {marker} markers"
    if os.environ.get("LOCKKIT_REWRITE"):
        README.write_text(
            pattern.sub(lambda match: match[1] + content + match[3], text), encoding="utf-8"
        )
        return
    assert found[2] == content
