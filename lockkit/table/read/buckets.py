"""The ids of file groups: of buckets, which are the same for all writers, and of free groups.

Two writers of a bucket's first row choose the same id, so one of them gets a conflict. An insert
makes free groups, whose unique ids conflict with no other writer.
"""

from __future__ import annotations

import re
from hashlib import sha1
from typing import TYPE_CHECKING

from lockkit.clock import Clock

if TYPE_CHECKING:
    from lockkit.table.format.layout import FileGroup
    from lockkit.table.read.snapshot import Snapshot

_BUCKETED = re.compile(r"[0-9]{8}-[0-9a-f]{20}-[0-9]{1,18}")


def bucket_file_id(partition: str, bucket: int, generation: int = 0) -> str:
    """The id of a bucket's file group; the next `generation` once the last one was replaced."""
    name = sha1(f"{partition}\0{bucket}".encode()).hexdigest()[:20]
    return f"{bucket:08d}-{name}-{generation}"


def is_bucketed(file_id: str) -> bool:
    return _BUCKETED.fullmatch(file_id) is not None


def free_file_id(clock: Clock) -> str:
    """An id that no bucket has. (Hudi reads eight leading digits as a bucket's number.)"""
    return f"f{clock.unique()[1:]}-0"


def generations(snapshot: Snapshot) -> dict[FileGroup, int]:
    """How often each bucket's group was replaced: a replaced file id is never read again."""
    found: dict[FileGroup, int] = {}
    for partition, file_id in (*snapshot.replaced, *snapshot.groups):
        if is_bucketed(file_id):
            bucket, number = (partition, file_id[:8]), int(file_id.rpartition("-")[2])
            gone = (partition, file_id) not in snapshot.groups
            found[bucket] = max(found.get(bucket, 0), number + gone)
    return {bucket: number for bucket, number in found.items() if number}
