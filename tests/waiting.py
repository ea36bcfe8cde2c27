"""Waits in a test for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest


def until(happened: Callable[[], Any], within_s: float = 30.0) -> Any:
    """Poll until something is true, and return it; fail if it never becomes so.

    A question that takes long, such as one to all processes, is asked a quarter of the time.
    """
    ends = time.monotonic() + within_s
    asked = time.monotonic()
    while not (found := happened()):
        now = time.monotonic()
        if now > ends:
            pytest.fail(f"nothing happened within {within_s} s")
        time.sleep(max(0.01, 3 * (now - asked)))
        asked = time.monotonic()
    return found
