"""Find out whether a table that Hudi made has a simple bucket index, and check its bucket count.

Hudi writes neither into hoodie.properties, so the owner names the number. In such a table each file
id begins with the number of its bucket. The number is right if the hash of each stored key leads to
the bucket that the key is in.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from lockkit.runtime import run
from lockkit.table.errors import RefusedOption, UnsupportedTable
from lockkit.table.format.properties import BUCKETS_MAX
from lockkit.table.format.property_keys import BUCKET_INDEX, FENCED, INDEX, MODE, NUM_BUCKETS
from lockkit.table.read.bucket_groups import OTHER_BUCKETS, has_bucket_number
from lockkit.table.services.adopt import Fix

if TYPE_CHECKING:
    from lockkit.clock import Clock
    from lockkit.stores import Store
    from lockkit.table.format.layout import FileGroup
    from lockkit.table.read.snapshot import Snapshot

OPTION = "--buckets"
FILES_MAX, KEYS_MAX = 8, 1_000
"""How many file groups, and how many keys of each, are compared."""
SHOWN = 3
Located = tuple[str, int, int]
"""A record key, its hash, and the bucket that it is in."""


def find_buckets(
    store: Store, clock: Clock, keys: Mapping[str, str], number: int | None
) -> Fix | None:
    """The change that records `number` buckets in the table's properties.

    None if the table has no buckets of Hudi's, or already records them. Raises `RefusedOption` for
    a number that does not apply to this table.
    """
    if keys.get(INDEX) or keys.get(MODE) == FENCED:
        if number is not None and keys.get(NUM_BUCKETS) != str(number):
            said = keys.get(NUM_BUCKETS, "no buckets of Hudi's")
            raise RefusedOption(OPTION, f"is not the table's: its properties say {said}",
                                "leave it out", value=str(number))  # fmt: skip
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about local time: the command has its own message
            snapshot = _snapshot(store, clock)
    except UnsupportedTable:  # the command gives the reasons
        return None
    groups = sorted(group for group in snapshot.groups if has_bucket_number(group[1]))
    if not groups and not store.list(OTHER_BUCKETS):
        if number is not None:
            why = "is refused: no file id here begins with the number of a bucket of Hudi's index"
            raise RefusedOption(OPTION, why, "leave it out", value=str(number))
        return None
    highest = max((int(file_id[:8]) for _, file_id in groups), default=0)
    blocked = _blocked(store, clock, snapshot, groups, keys, number)
    changes = {INDEX: BUCKET_INDEX, NUM_BUCKETS: str(number)}
    return Fix(
        "say in the properties that the table has the buckets of Hudi's index "
        f"({len(groups)} file groups, bucket numbers up to {highest})",
        "Hudi does not write it there; lockkit then puts each key where Hudi looks for it. The "
        "number of buckets stays as it is for good",
        {} if blocked else changes, blocked,
    )  # fmt: skip


def _snapshot(store: Store, clock: Clock) -> Snapshot:
    from lockkit.table.read.reader import snapshot_to_read

    found: Snapshot = run(snapshot_to_read(), store, clock)
    return found


def _blocked(
    store: Store, clock: Clock, snapshot: Snapshot, groups: Sequence[FileGroup],
    keys: Mapping[str, str], number: int | None,
) -> str:  # fmt: skip
    """Why the number cannot be recorded; "" if it can."""
    if store.list(OTHER_BUCKETS):
        return (f"{OTHER_BUCKETS} is there: the table uses consistent hashing, or a number of "
                "buckets for each partition, and lockkit supports neither")  # fmt: skip
    if others := sorted(file_id for _, file_id in snapshot.groups.keys() - set(groups)):
        return (f"the file id {others[0]} does not begin with the number of a bucket "
                f"({len(others)} such file groups)")
    buckets = [(partition, file_id[:8]) for partition, file_id in groups]
    if twice := next((each for each in buckets if buckets.count(each) > 1), None):
        return f"bucket {twice[1]} has several file groups in the partition {twice[0]!r}"
    fields = keys.get("hoodie.table.recordkey.fields", "").replace(" ", "").split(",")
    found = list(_located(store, clock, snapshot, groups, fields))
    if not found:
        return "no stored key was found, so no number of buckets can be checked"
    highest = max(int(number) for _, number in buckets)
    fits = _fitting(found, highest + 1)
    hint = (f"the {len(found)} stored keys that were checked fit "
            + " or ".join(map(str, fits)) + " buckets") if fits else (
            f"the stored keys fit no number up to {BUCKETS_MAX}: the table's writers hash other "
            "fields than the record key (hoodie.bucket.index.hash.field)"
    )  # fmt: skip
    if number is None:
        return f"pass {OPTION} N with the {NUM_BUCKETS} of the table's writers: {hint}"
    if number <= highest:
        return f"the table has a bucket {highest}, so it has more than {number}: {hint}"
    for key, value, bucket in found:
        if value % number != bucket:
            return (f"the key {key[:60]!r} is in bucket {bucket}; with {number} buckets it would "
                    f"be in {value % number}: {hint}")  # fmt: skip
    return ""


def _located(
    store: Store, clock: Clock, snapshot: Snapshot, groups: Sequence[FileGroup],
    fields: Sequence[str],
) -> Iterator[Located]:  # fmt: skip
    """Some keys of some file groups; log files are merged as a reader does."""
    from lockkit.table.format.java_hash import bucket_of
    from lockkit.table.format.schema import RECORD_KEY
    from lockkit.table.read.reader import plan_scan, scan_planned

    for group in groups[:: -(-len(groups) // FILES_MAX)]:
        wanted = plan_scan(snapshot, columns=[RECORD_KEY], slices=[snapshot.groups[group]])
        for batch in scan_planned(store, clock, wanted):
            stored = batch.column(0).drop_null()[:KEYS_MAX]
            hashes = bucket_of(stored, 1 << 31, fields)
            for key, value in zip(stored.to_pylist(), hashes.to_pylist(), strict=True):
                yield key, value, int(group[1][:8])
            break


def _fitting(found: Sequence[Located], least: int) -> list[int]:
    """The smallest numbers of buckets that put each key where it is."""
    fits = (each for each in range(least, BUCKETS_MAX + 1)
            if all(value % each == bucket for _, value, bucket in found))  # fmt: skip
    return [each for each, _ in zip(fits, range(SHOWN), strict=False)]
