"""The bytes of a checkpoint: a snapshot as JSON, with a digest of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from lockkit.errors import TableError
from lockkit.table.format.base_file import Slice
from lockkit.table.format.layout import FileGroup, in_partition
from lockkit.table.format.partition import is_inside
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.timeline import instant_ms
from lockkit.table.occ.covered import CheckedHorizon
from lockkit.table.read.log_slice import LogSlice, log_slice
from lockkit.table.read.snapshot import Snapshot

CHECKPOINT_BYTES_MAX = 64_000_000
"""About 500,000 file groups; a larger table has no checkpoint."""
FORMAT = 1


class LaterFormat(ValueError):
    """A newer lockkit wrote it: it is not read, and not replaced."""


def format_checkpoint(snapshot: Snapshot) -> bytes:
    """JSON: the format, the content, and the content's digest."""
    slices: dict[str, list[Any]] = {}
    for each in snapshot.slices:
        slices.setdefault(each.partition, []).append(_files_of(each))
    covered = snapshot.covered
    table = {
        "config": asdict(snapshot.config),
        "horizon": covered.horizon,
        "settled": covered.settled,
        "later": sorted(covered.later),
        "completion": covered.completion,
        "schema": snapshot.schema,
        "schemaFrom": snapshot.schema_from,
        "slices": slices,
        "replaced": [[*group, at] for group, at in sorted(snapshot.replaced.items())],
    }
    return json.dumps({"format": FORMAT, "sha256": digest(table), "table": table}).encode()


def digest(table: Mapping[str, Any]) -> str:
    canonical = json.dumps(table, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def parse_checkpoint(body: bytes) -> Snapshot:
    """The snapshot; `ValueError` if it may differ from what was written."""
    if len(body) > CHECKPOINT_BYTES_MAX:
        raise ValueError(f"{len(body)} bytes")
    try:
        fields = json.loads(body)
        if fields["format"] != FORMAT:
            raise LaterFormat(f"format {str(fields['format'])[:20]!r}")
        table = fields["table"]
        if fields["sha256"] != digest(table):
            raise ValueError("its digest is of something else")
        made_by = tuple(map(tuple, table["config"].pop("generator", ())))
        config = TableConfig(**table["config"], generator=made_by)
        slices = [_slice(config, partition, files)
                  for partition, each in table["slices"].items() for files in each]  # fmt: skip
        replaced: dict[FileGroup, str] = {(p, f): _instant(at) for p, f, at in table["replaced"]}
        return Snapshot(
            config,
            CheckedHorizon(table["horizon"] and _instant(table["horizon"]), int(table["settled"]),
                    frozenset(_instant(each) for each in table["later"]), table["completion"]),
            MappingProxyType({(each.partition, each.file_id): each for each in slices}),
            MappingProxyType(replaced),
            table["schema"],
            table["schemaFrom"],
        )  # fmt: skip
    except LaterFormat:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError,
            TableError) as why:  # fmt: skip
        raise ValueError(f"no checkpoint ({type(why).__name__}: {str(why)[:80]})") from None


def _files_of(of: Slice) -> str | list[Any]:
    """Its base file's name, and each log file's name and completion time."""
    base = of.path.rpartition("/")[2]
    if not isinstance(of, LogSlice):
        return base
    logs = zip(of.logs, of.times, strict=True)
    return [of.file_id, base, [[path.rpartition("/")[2], at] for path, at in logs]]


def _slice(config: TableConfig, partition: str, files: str | list[Any]) -> Slice:
    if isinstance(files, str):
        return _base(partition, files)
    file_id, base, logs = files
    below = _base(partition, base) if base else Slice(partition, file_id, "", "")
    if below.file_id != file_id or not all(name.startswith(f".{file_id}_") for name, _ in logs):
        raise ValueError(f"files of another group than {file_id[:60]!r}")
    return log_slice(config, below, [(_inside(partition, name), _instant(at)) for name, at in logs])


def _base(partition: str, name: str) -> Slice:
    file_id, _task, tail = name.split("_")
    instant = _instant(tail.removesuffix(".parquet"))
    return Slice(partition, file_id, instant, _inside(partition, name))


def _inside(partition: str, name: str) -> str:
    path = in_partition(partition, name)
    if not is_inside(path) or "/" in name:
        raise ValueError(f"{partition[:60]!r} leads out of the table")
    return path


def _instant(text: str) -> str:
    instant_ms(text)
    return text
