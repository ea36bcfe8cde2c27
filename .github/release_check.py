"""`release_check.py TAG ADDRESS`: stops a release whose tag or repository is not pyproject's.

Exits with a sentence that says what differs. The version stands in `pyproject.toml` and in
`lockkit/__init__.py`, the address under `[project.urls]`.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def complaint(tag: str, address: str) -> str:
    """What forbids this release; "" if nothing does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if tag != f"v{project['version']}":
        return f"the tag is {tag}, and pyproject.toml has version {project['version']}"
    if address != project["urls"]["Source"]:
        return f"this is {address}, and pyproject.toml says {project['urls']['Source']}"
    if f"## [{project['version']}] - unreleased" in (ROOT / "CHANGELOG.md").read_text("utf-8"):
        return f"CHANGELOG.md calls {project['version']} unreleased: give it today's date"
    return ""


if __name__ == "__main__":
    sys.exit(complaint(*sys.argv[1:]) or None)
