"""The checkpoint: a snapshot saved beside the timeline, so that opening an old table stays cheap.

`.hoodie/.lockkit/checkpoint.json` is only a cache. Readers start from it and list what is later
than its horizon; `covered.py` says why nothing at or below the horizon can change, so an old
checkpoint is as correct as a new one. A checkpoint is ignored, and the table read from its start,
if it is missing, damaged, of another table, of a later format, or names commits that the timeline
no longer shows. Other readers look for instants in `.hoodie/` itself, or in `.hoodie/timeline/`,
and never see it. `checkpoint_writing` saves it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lockkit.errors import TableError
from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import read
from lockkit.table.format.base_file import Slice
from lockkit.table.format.layout import FileGroup, in_partition
from lockkit.table.format.partition import is_inside
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.timeline import HOODIE, instant_ms
from lockkit.table.occ.covered import CheckedHorizon
from lockkit.table.read.snapshot import Snapshot

CHECKPOINT_KEY = HOODIE + ".lockkit/checkpoint.json"
CHECKPOINT_EVERY = 16
"""Commits between two checkpoints: a cold opener reads at most about so many of their files.

Few, because each of them costs a part of a trip, and writing one for 16 openings that read it adds
little to what they cost.
"""
CHECKPOINT_BYTES_MAX = 64_000_000
"""About 500,000 file groups; a table with more is read without one."""
FORMAT = 1


class LaterFormat(ValueError):
    """A newer lockkit wrote it; this one neither reads nor replaces it."""


def read_checkpoint() -> Procedure[Snapshot | None]:
    """The saved snapshot; None if there is none that can be used."""
    match (yield from read(CHECKPOINT_KEY)):
        case Found(body, _):
            try:
                return parse_checkpoint(body)
            except ValueError:
                return None
        case _missing:
            return None


# --- its bytes ------------------------------------------------------------------------------------


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
        slices = [_slice(partition, name)
                  for partition, names in table["slices"].items() for name in names]  # fmt: skip
        replaced: dict[FileGroup, str] = {(p, f): _instant(at) for p, f, at in table["replaced"]}
        return Snapshot(
            TableConfig(**table["config"]),
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


def _slice(partition: str, name: str) -> Slice:
    file_id, _task, tail = name.split("_")
    path = in_partition(partition, name)
    if not is_inside(path) or "/" in name:
        raise ValueError(f"{partition[:60]!r} leads out of the table")
    return Slice(partition, file_id, _instant(tail.removesuffix(".parquet")), path)


def _instant(text: str) -> str:
    instant_ms(text)
    return text
