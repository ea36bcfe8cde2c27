"""Partition paths: converts a value to a folder's name and back, as Hive and Hudi do.

It escapes the characters of Hudi's `PartitionPathEncodeUtils.escapePathName` as %XX. Conflicts,
statistics and readers compare paths, so every writer must spell a value alike.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from functools import partial
from typing import Any

from lockkit.table.errors import RefusedRows
from lockkit.table.format.properties import TableConfig

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Stands for null, and for the empty string."""
FOLDER_BYTES_MAX = 255
"""The longest folder name of a file system; object stores allow 1,024 bytes for a whole key."""
PATH_BYTES_MAX = 800
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
# XML listings cannot have these: control characters, lone surrogates, non-characters.
_NO_KEY = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def escape(text: str) -> str:
    """A value, escaped for a folder's name."""
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)


def unescape(text: str) -> str:
    return re.sub(r"%([0-9A-Fa-f]{2})", lambda match: chr(int(match[1], 16)), text)


def partition_path(config: TableConfig, value: object) -> str:
    """`region=EU`, or the form that the table's properties choose; "" without partitions.

    :param config, value: the table and its value; of several fields a tuple, with a folder each.
    """
    if not (fields := config.partition_fields):
        return ""
    values: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
    path, text = "/".join(map(partial(_folder, config), fields, values)), ",".join(map(str, values))
    if path.count("/") >= len(fields) > 1:
        why = "its value has a slash, so rows of another partition could have the same path"
    elif not is_inside(path):
        why = "its path would lead out of the table, or can be no store's key"
    elif _is_long(path):
        why = f"its path is too long: {FOLDER_BYTES_MAX} bytes a folder, {PATH_BYTES_MAX} in all"
    else:
        return path
    raise RefusedRows(
        config.partition_by or "",
        f"has the value {text[:60]!r}, which cannot name a partition of this table: {why} "
        f"(urlencode {config.urlencode}, hive style {config.hive_style})", "replace the value",
    )  # fmt: skip


def _folder(config: TableConfig, field: str, value: object) -> str:
    if config.generator:
        from lockkit.table.format.timestamp_keys import folder_of  # few tables have one
        value = folder_of(config, field, value)
    text = _text(field, value) or NO_VALUE
    folder = escape(text) if config.urlencode else text
    return f"{field}={folder}" if config.hive_style else folder


def is_inside(path: str) -> bool:
    """Whether a path, which is untrusted, lies within the table's data."""
    folders = path.split("/")
    return (
        not any(each in ("", ".", "..") for each in folders)
        and folders[0] != ".hoodie"
        and not _NO_KEY.search(path)
    )


def _is_long(path: str) -> bool:
    folders = [len(each.encode()) for each in path.split("/")]
    return max(folders) > FOLDER_BYTES_MAX or sum(folders) + len(folders) > PATH_BYTES_MAX


def _text(field: str, value: object) -> str:
    """The text of Java's `toString`; a type that Java spells differently is refused."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case str() | int():
            return str(value)
        case date() if not isinstance(value, datetime):
            return value.isoformat()
        case _:
            raise RefusedRows(
                field,
                f"cannot be the partition field with values like {str(value)[:60]!r} "
                f"({type(value).__name__}), which other writers spell differently",
                "make it a string",
            )
