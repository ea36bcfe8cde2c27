"""A compaction's plan: which log files are merged into which base files, in Hudi's Avro record.

It names files without their folder, and so no address of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockkit.table.format import records
from lockkit.table.format.avro import encode
from lockkit.table.format.avro_decoding import decode
from lockkit.table.format.layout import FileGroup, in_partition
from lockkit.table.format.partition import is_inside
from lockkit.table.format.plans import making_sense, word
from lockkit.table.format.timeline import V9

VERSION = 2
"""Of Hudi's plans since 0.5: it names files by their names, not by their paths."""


@dataclass(frozen=True, slots=True)
class CompactionInput:
    """A slice to compact: the paths of its base file, which may be empty, and of its log files."""

    partition: str
    file_id: str
    base_instant: str
    base: str
    logs: tuple[str, ...]

    @property
    def group(self) -> FileGroup:
        return self.partition, self.file_id


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The slices that become one base file each."""

    slices: tuple[CompactionInput, ...]
    params: Mapping[str, str] = field(default_factory=dict)

    @property
    def inputs(self) -> frozenset[FileGroup]:
        return frozenset(each.group for each in self.slices)


def format_compaction_plan(plan: CompactionPlan) -> bytes:
    """The body of `T.compaction.requested`."""
    operations = [
        {"baseInstantTime": each.base_instant, "deltaFilePaths": [_name(log) for log in each.logs],
         "dataFilePath": _name(each.base) or None, "fileId": each.file_id,
         "partitionPath": each.partition, "metrics": {
             "TOTAL_LOG_FILES": float(len(each.logs)),
             "TOTAL_LOG_FILES_SIZE": 0.0,  # a statistic without which Hudi does not carry it out
         },
         "bootstrapFilePath": None}
        for each in plan.slices
    ]  # fmt: skip
    return encode(records.COMPACTION_PLAN, {
        "operations": operations, "extraMetadata": dict(sorted(plan.params.items())),
        "version": VERSION, "strategy": None, "preserveHoodieMetadata": True,
        "missingSchedulePartitions": [],
    })  # fmt: skip


def parse_compaction_plan(key: str, body: bytes) -> CompactionPlan:
    """Parse a `T.compaction.requested`; a `TableError` names the file if it makes no sense."""
    only = "" if key.startswith(V9.folder) else "if no log file has its instant, "
    with making_sense(key, only):
        fields = decode(body, "HoodieCompactionPlan")
        if fields.get("version") != VERSION:
            raise ValueError(f"a plan of version {fields.get('version')!r}")
        slices = tuple(_input(each) for each in fields["operations"] or ())
        return CompactionPlan(slices, fields.get("extraMetadata") or {})


def _input(fields: Mapping[str, Any]) -> CompactionInput:
    partition = fields["partitionPath"] or ""
    if not isinstance(partition, str):
        raise TypeError("a partition must be a string")
    names = [fields["dataFilePath"] or "", *(fields["deltaFilePaths"] or ())]
    base, *logs = (in_partition(partition, word(each)) if each else "" for each in names)
    if not all(map(is_inside, filter(None, (base, *logs)))) or any("/" in each for each in names):
        raise ValueError(f"its files are not in partition {partition[:60]!r}")
    return CompactionInput(
        partition, word(fields["fileId"]), str(fields["baseInstantTime"] or ""), base, tuple(logs)
    )  # fmt: skip


def _name(path: str) -> str:
    return path.rpartition("/")[2]
