"""Waits in a test for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest


def until(happened: Callable[[], Any], within_s: float = 30.0) -> Any:
    """Poll until something is true, and return it; fail if it never becomes so."""
    ends = time.monotonic() + within_s
    while not (found := happened()):
        if time.monotonic() > ends:
            pytest.fail(f"nothing happened within {within_s} s")
        time.sleep(0.01)
    return found
