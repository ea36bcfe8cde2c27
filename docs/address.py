"""`address.py URL`: the repository is at that address, in every file that says so.

The address is `Source` under `[project.urls]` of pyproject.toml. Other files repeat it where a link
must be absolute (badges, where to report a vulnerability); this program replaces it in all of them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = ("pyproject.toml", "README.md", "CONTRIBUTING.md", "SECURITY.md")
GITHUB = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)")
SOURCE = re.compile(r'^Source = "(.+)"$', re.MULTILINE)
BINDER = "mybinder.org/v2/gh/"


def current(root: Path = ROOT) -> str:
    """The address that pyproject.toml has."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    found = SOURCE.search(text)  # tomllib is not there before Python 3.11, and macOS has 3.9
    if found is None:
        raise ValueError("pyproject.toml has no Source under [project.urls]")
    return found[1]


def move(url: str, root: Path = ROOT) -> list[str]:
    """Replaces the address in every file; returns the names of those that changed.

    Raises `ValueError` for what is no repository on GitHub (Binder's links need its name there).
    """
    new = GITHUB.fullmatch(url.removesuffix("/").removesuffix(".git"))
    old = GITHUB.fullmatch(current(root))
    if new is None or old is None:
        raise ValueError(f"{url!r} is not of the form https://github.com/you/lockkit")
    changed = []
    for name in FILES:
        path = root / name
        text = path.read_text(encoding="utf-8")
        moved = text.replace(old[0], new[0]).replace(BINDER + old[1], BINDER + new[1])
        if moved != text:
            path.write_text(moved, encoding="utf-8")
            changed.append(name)
    return changed


def main(arguments: list[str]) -> int:
    try:
        (url,) = arguments
        changed = move(url)
    except ValueError as error:
        sys.stderr.write(f"make address URL=https://github.com/you/lockkit: {error}\n")
        return 64
    sys.stdout.write(f"changed: {', '.join(changed) or 'nothing'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
