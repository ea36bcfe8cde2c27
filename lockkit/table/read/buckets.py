"""The ids of file groups: of buckets, which are the same for all writers, and of free groups.

`bucket_groups` makes those of buckets. An insert makes free groups, whose unique ids conflict with
no other writer.
"""

from __future__ import annotations

import re

from lockkit.clock import Clock

_BUCKETED = re.compile(r"[0-9]{8}-(?:[0-9a-f]{20}-[0-9]{1,18}|0000-0000-0000-[0-9]{12}-0)")


def is_bucketed(file_id: str) -> bool:
    return _BUCKETED.fullmatch(file_id) is not None


def free_file_id(clock: Clock) -> str:
    """An id that no bucket has. (Hudi reads eight leading digits as a bucket's number.)"""
    return f"f{clock.unique()[1:]}-0"
