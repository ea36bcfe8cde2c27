"""Parts of the documentation that are made by tests, so that they cannot go stale."""

from __future__ import annotations

import os
import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def section(page: str, marker: str, content: str) -> None:
    """What stands between two markers of a page is exactly `content`.

    With `LOCKKIT_REWRITE` in the environment it is rewritten instead.
    """
    path = DOCS / page
    text = path.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {marker}:begin -->\n)(.*?)(<!-- {marker}:end -->)", re.DOTALL)
    found = pattern.search(text)
    assert found is not None, f"docs/{page} has no {marker} markers"
    if os.environ.get("LOCKKIT_REWRITE"):
        path.write_text(
            pattern.sub(lambda match: match[1] + content + match[3], text), encoding="utf-8"
        )
        return
    assert found[2] == content
