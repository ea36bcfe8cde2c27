"""Partition paths: a value as a folder's name, and back, as Hive and Hudi write them.

`PartitionPathEncodeUtils.escapePathName` of Hudi: what it escapes becomes %XX, the rest stays. The
path is what conflicts, statistics and readers go by, so every writer must spell it alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, datetime
from typing import TYPE_CHECKING

from lockkit.errors import TableError
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.schema import column_of

if TYPE_CHECKING:
    import pyarrow as pa

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Stands for null, and for the empty string."""
FOLDER_BYTES_MAX = 255
"""The longest name of a folder on a disk; object stores take 1,024 bytes for a whole key."""
PATH_BYTES_MAX = 800
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
# Not in a listing's XML, or no text at all: controls, lone surrogates, non-characters.
_NO_KEY = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def escape(text: str) -> str:
    """A value, escaped for a folder's name."""
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)


def unescape(text: str) -> str:
    return re.sub(r"%([0-9A-Fa-f]{2})", lambda match: chr(int(match[1], 16)), text)


def partition_path(config: TableConfig, value: object) -> str:
    """`region=EU`, or what the table's properties make of it; "" where it has no partitions."""
    if config.partition_by is None:
        return ""
    text = _text(config.partition_by, value) or NO_VALUE
    folder = escape(text) if config.urlencode else text
    path = f"{config.partition_by}={folder}" if config.hive_style else folder
    if not is_inside(path):
        why = "its path would lead out of the table, or can be no store's key"
    elif _is_long(path):
        why = f"its path is too long: {FOLDER_BYTES_MAX} bytes a folder, {PATH_BYTES_MAX} in all"
    else:
        return path
    raise TableError(
        f"{config.partition_by}={text[:60]!r} cannot name a partition of this table: {why} "
        f"(urlencode {config.urlencode}, hive style {config.hive_style}); replace the value"
    )


def partition_value(config: TableConfig, path: str) -> str | None:
    """The value that a partition's path stands for; None for null, and without partitions."""
    if config.partition_by is None:
        return None
    text = path.removeprefix(f"{config.partition_by}=") if config.hive_style else path
    return None if text == NO_VALUE else unescape(text) if config.urlencode else text


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
    """As Java's `toString` would say it; what the two would spell differently is refused."""
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
            raise TableError(
                f"{field} cannot be the partition field with values like {str(value)[:60]!r} "
                f"({type(value).__name__}), which others spell otherwise: make it a string"
            )


# --- rows -----------------------------------------------------------------------------------------


def partition_of(config: TableConfig, rows: pa.Table) -> str:
    """The one partition that all rows belong to; `TableError` if there are several, or no rows."""
    import pyarrow.compute as pc

    if rows.num_rows == 0:
        raise TableError("no rows: an empty file group is not written")
    if config.partition_by is None:
        return ""
    values = pc.unique(column_of(rows, config.partition_by, "partition field")).to_pylist()
    paths = {partition_path(config, value) for value in values}
    if len(paths) != 1:
        raise TableError(
            f"rows of {len(paths)} partitions ({config.partition_by}) for one file group; split "
            "them by partition first"
        )
    return paths.pop()


def by_partition(config: TableConfig, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each partition, in the order in which its first row comes."""
    import pyarrow.compute as pc

    if rows.num_rows == 0:
        return
    if config.partition_by is None:
        yield "", rows
        return
    column = column_of(rows, config.partition_by, "partition field")
    values = pc.unique(column)
    for value in values:
        here = rows
        if len(values) > 1:
            here = rows.filter(pc.equal(column, value) if value.is_valid else column.is_null())
        yield partition_path(config, value.as_py()), here
