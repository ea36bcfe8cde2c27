"""The rules of `hudi_options.txt`: every option of Apache Hudi 1.2 and of lockkit, and its fate."""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import get_data
from typing import Literal, get_args

Fate = Literal["obeyed", "harmless", "refused"]
W = "hoodie.datasource.write."


@dataclass(frozen=True, slots=True)
class OptionRule:
    """Options that are treated alike.

    `values` says what they may be: `flag`, `whole`, `number`, `text`, or the values themselves.
    """

    fate: Fate
    keys: tuple[str, ...]
    values: str
    why: str
    reader: bool
    """It is an option of reads."""


def _rule(paragraph: str) -> OptionRule:
    head, *keys = paragraph.splitlines()
    start, _, why = head.partition(": ")
    name, _, reads = start.partition(" ")
    values = keys.pop(0).removeprefix("values: ") if keys[0].startswith("values: ") else ""
    fate: Fate = next(each for each in get_args(Fate) if each == name)
    return OptionRule(fate, tuple(keys), values, why, reads == "in reads")


_FILE = get_data(__name__, "hudi_options.txt")  # also out of an archive
assert _FILE is not None
_PARAGRAPHS = _FILE.decode().strip().split("\n\n")
TABLE = tuple(_rule(each) for each in _PARAGRAPHS if not each.startswith("#"))

NAMES: dict[str, tuple[str, ...]] = {
    "operation": (W + "operation",),
    "record_key": (W + "recordkey.field", "hoodie.table.recordkey.fields"),
    "precombine": (W + "precombine.field", "hoodie.table.precombine.field",
                   "hoodie.table.ordering.fields"),
    "partition_path": (W + "partitionpath.field", "hoodie.table.partition.fields"),
    "table_name": ("hoodie.table.name", W + "table.name"),
    "table_type": (W + "table.type", W + "storage.type", "hoodie.table.type"),
    "version": ("hoodie.write.table.version",),
    "mode": ("lockkit.commit.mode",),
    "buckets": ("hoodie.bucket.index.num.buckets",),
    "hive_style": (W + "hive_style_partitioning",),
    "urlencode": (W + "partitionpath.urlencode",),
    "retries": ("hoodie.write.num.retries.on.conflict.failures",),
    "drop_duplicates": (W + "insert.drop.duplicates",),
    "combine": ("hoodie.combine.before.insert",),
    "partial": ("lockkit.partial.update",),
    "allow_empty": ("hoodie.allow.empty.commit",),
    "file_bytes_max": ("hoodie.parquet.max.file.size",),
    "tasks": ("hoodie.upsert.shuffle.parallelism",),
}  # fmt: skip
"""The options that a Python keyword stands for; of several the first that is given counts."""
