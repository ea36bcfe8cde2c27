"""How much of lockkit a program loads, and how large lockkit is: `python -m tests.sizes`.

Counts lines of our own files. `make lint` prints the table and fails over a limit. Lower a limit
when a size has fallen; `AIM` is where the architecture wants it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lockkit"


class Size(NamedTuple):
    """A program, and the most lines of ours that it may load."""

    what: str
    program: str
    limit: int
    aim: int


APPEND = """
import pyarrow as pa
from lockkit import Clock, open_store
from lockkit.runtime import run
from lockkit.table import Table, TableConfig, create_table
url = 'file://' + folder
run(create_table(TableConfig(name='t', record_key='id')), open_store(url), Clock())
with Table(url) as table:
    table.append(pa.table({'id': ['1']}))
"""
SIZES = (
    Size("import lockkit", "import lockkit", 150, 150),
    Size(
        "lockkit --help",
        "from lockkit.cli.main import parser; parser([]).format_help()", 350, 350,
    ),
    Size(
        "a Lock on file://",
        "from lockkit import Lock\nwith Lock('file://' + folder): pass", 5_000, 5_000,
    ),
    Size("import Table", "from lockkit.table import Table", 12_746, 12_000),
    Size("an append to a new table", APPEND, 13_927, 13_000),
)  # fmt: skip
ALL_LIMIT, ALL_AIM = 108_992, 48_000
ENTRIES_LIMIT, ENTRIES_AIM = 18, 18
"""Files and folders at the first level of the package."""

COUNT = """
import sys, tempfile
with tempfile.TemporaryDirectory() as folder:
    exec(sys.argv[1])
print(*[m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] == 'lockkit'], sep='\\n')
"""


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def loaded(program: str) -> list[Path]:
    """Our files that a fresh interpreter has loaded at the end of `program`."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COUNT, program],
        cwd=ROOT, check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return [Path(each) for each in done.stdout.split()]


def measured() -> list[tuple[str, int, int, int]]:
    """What it is, how much it is, the limit and the aim."""
    rows = [
        (each.what, sum(map(lines, loaded(each.program))), each.limit, each.aim) for each in SIZES
    ]
    sources = list(PACKAGE.rglob("*.py"))
    entries = [each for each in PACKAGE.iterdir() if each.name != "__pycache__"]
    return [
        *rows,
        ("all of lockkit/", sum(map(lines, sources)), ALL_LIMIT, ALL_AIM),
        ("entries in lockkit/", len(entries), ENTRIES_LIMIT, ENTRIES_AIM),
    ]


def main() -> int:
    over = False
    for what, size, limit, aim in measured():
        over |= size > limit
        print(f"{what:20} {size:6,}  limit {limit:6,}  aim {aim:6,}{'  OVER' * (size > limit)}")
    if over:
        print("over a limit of tests/sizes.py: load less, or say in the commit why it must grow")
    return over


if __name__ == "__main__":
    sys.exit(main())
