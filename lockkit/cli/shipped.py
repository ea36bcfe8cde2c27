"""Data sets and notebooks: beside the package in a checkout, inside it once installed."""

from __future__ import annotations

from pathlib import Path

from lockkit.errors import StatedError
from lockkit.stores.secret import carries_secret

_INSTALLED = Path(__file__).parents[1] / "_shipped"
IN_CHECKOUT = not _INSTALLED.is_dir()
ROOT = Path(__file__).parents[2] if IN_CHECKOUT else _INSTALLED
"""The folder that holds `datasets/` and `notebooks/` (hatch_build.py puts them there)."""


def located(name: str | Path) -> Path:
    """The file `name`; if `datasets/...` is not in the current folder, the shipped file.

    A URL with a password, given instead, is a `StatedError`: messages repeat names of files.
    """
    path = Path(name)
    if carries_secret(str(name)) and not path.exists():
        raise StatedError("no such file:", "it is a URL with a password or a key")
    if path.parts[:1] == ("datasets",) and not path.exists():
        return ROOT / path
    return path
