"""Removes the folders of a directory store that a deletion emptied: an object store has none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path


def prune(
    directory: Path, root: Path, scratch: str,
    locked: Callable[[Path], AbstractContextManager[int]],
) -> None:  # fmt: skip
    """Remove `directory`, which is `locked`, and its parents below `root`, if they are empty.

    A process that waits for the lock of a removed directory notices it and creates it again.
    `.temp` stays: Hudi's early conflict detection fails where that folder of markers is missing.
    """
    if directory == root or directory.name == ".temp":
        return
    try:
        if any(entry.name != scratch for entry in directory.iterdir()):
            return
        (directory / scratch).unlink(missing_ok=True)
        directory.rmdir()
        with locked(directory.parent):
            prune(directory.parent, root, scratch, locked)
    except OSError:  # not empty, or in use: it stays
        return
