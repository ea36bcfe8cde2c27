"""Lists the files of a directory tree as they are at one moment, even if others write.

The names are read until two consecutive readings agree. The kernel returns a folder in pieces of
32 KB, and names change between two pieces, so one reading may show a file and miss an older one.
(The folder's modification time does not reveal that: it moves in steps of some ms.) But there is a
moment between two readings. A name in the first reading existed at that moment, unless it was
deleted. A name that existed at that moment is in the second reading, unless it was deleted. So if
both readings have the same names, these are the files of that moment. Files that appeared and
disappeared while we read may be missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

READINGS_MAX = 40
"""How often a folder is read in which files keep appearing."""


def keys_at_one_moment(
    root: Path, path_of: Callable[[str], Path], prefix: str, after: str, *, scratch: str
) -> list[tuple[str, os.stat_result]] | None:
    """Keys below `root` in order, with the status of each; None if no two readings agreed.

    `path_of` is the folder of a key, or refuses it. Names that begin with `scratch` are left out.
    Raises `OSError`.
    """
    names = _names(path_of, prefix, after, scratch)
    if not names:
        with suppress(FileNotFoundError), os.scandir(root):
            pass  # raises if the root is no folder
    for _ in range(READINGS_MAX - 1):
        before, names = names, _names(path_of, prefix, after, scratch)
        if names != before:
            continue
        try:
            return [(key, os.stat(f"{root}/{key}")) for key in names]
        except (FileNotFoundError, NotADirectoryError):
            continue  # deleted since
    return None


def _names(path_of: Callable[[str], Path], prefix: str, after: str, scratch: str) -> list[str]:
    """One reading. A folder that cannot be read is an error, not empty."""
    found: list[str] = []
    folders = [prefix.rpartition("/")[0] + "/" if "/" in prefix else ""]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(path_of(folder)) as entries:
                for each in entries:
                    key = folder + each.name
                    if each.is_dir():
                        inside = f"{key}/"
                        wanted = inside.startswith(prefix) or prefix.startswith(inside)
                        if wanted and not each.is_symlink():
                            folders.append(inside)
                    elif key.startswith(prefix) and key > after:
                        if not each.name.startswith(scratch):
                            found.append(key)
        except (FileNotFoundError, NotADirectoryError):
            continue
    return sorted(found)
