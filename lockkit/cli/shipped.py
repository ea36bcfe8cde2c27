"""Data sets and notebooks: beside the package in a checkout, inside it once installed."""

from __future__ import annotations

from pathlib import Path

_INSTALLED = Path(__file__).parents[1] / "_shipped"
IN_CHECKOUT = not _INSTALLED.is_dir()
ROOT = Path(__file__).parents[2] if IN_CHECKOUT else _INSTALLED
"""The folder that holds `datasets/` and `notebooks/` (hatch_build.py puts them there)."""


def located(name: str | Path) -> Path:
    """The file `name`; if `datasets/...` is not in the current folder, the shipped file."""
    path = Path(name)
    if path.parts[:1] == ("datasets",) and not path.exists():
        return ROOT / path
    return path
