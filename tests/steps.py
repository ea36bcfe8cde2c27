"""How long something takes, counted in lines of Python: a clock would measure the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def steps(action: Callable[[], object]) -> int:
    """How many lines run until `action` returns."""
    count, before = 0, sys.gettrace()

    def trace(*_: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count
