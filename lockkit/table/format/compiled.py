"""Whether the loops in machine code are worth their import: `loops`, by numba if it is installed.

The import takes a fourth of a second, and a second more if this machine has not compiled them yet.
So a process decodes its first rows without them, and all of them if the import fails.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

ROWS_BEFORE = 1_000_000
"""So many rows are decoded, or keys sorted, without the loops."""
_rows = 0


def loops(rows: int) -> Any:
    """The module `loops`, for so many more rows; None before it is worth it, or without numba."""
    global _rows
    if _rows < ROWS_BEFORE:
        _rows += rows
        return None
    return _imported()


@cache
def _imported() -> Any:
    try:
        return import_module("lockkit.table.format.loops")
    except Exception:  # noqa: BLE001  # numba is optional, and may fail in any way
        return None
