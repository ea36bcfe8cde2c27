"""Stored keys of a table with Hudi's bucket index, to be compared with its number of buckets.

No file id shows that a number is too great. A key would be looked for in another bucket then, and
written once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lockkit.table.errors import UnsupportedTable
from lockkit.table.format.java_hash import bucket_of
from lockkit.table.format.schema import RECORD_KEY
from lockkit.table.read.log_slice import without_logs
from lockkit.table.read.reader import plan_scan, scan_planned

if TYPE_CHECKING:
    from lockkit.clock import Clock
    from lockkit.stores import Store
    from lockkit.table.format.layout import FileGroup
    from lockkit.table.read.snapshot import Snapshot

FILES_MAX, KEYS_MAX = 8, 1_000
"""How many file groups, and how many keys of each, are compared."""
ENOUGH = 20
"""So many keys fit another number of buckets by chance only once in a million times."""
BYTES_MAX = 8 << 20
COMPARED_MAX = 1_000
_COMPARED: dict[tuple[str, int], None] = {}
"""Tables, each with its number of buckets, whose stored keys fit."""
Located = tuple[str, int, int]
"""A record key, its hash, and the bucket that it is in."""


def located(
    store: Store, clock: Clock, snapshot: Snapshot, groups: Sequence[FileGroup],
    fields: Sequence[str],
) -> Iterator[Located]:  # fmt: skip
    """Some keys of some file groups; log files are merged as a reader does."""
    for group in groups[:: -(-len(groups) // FILES_MAX)]:
        wanted = plan_scan(snapshot, columns=[RECORD_KEY], slices=[snapshot.groups[group]])
        for batch in scan_planned(store, clock, wanted):
            stored = batch.column(0).drop_null()[:KEYS_MAX]
            hashes = bucket_of(stored, 1 << 31, fields)
            for key, value in zip(stored.to_pylist(), hashes.to_pylist(), strict=True):
                yield key, value, int(group[1][:8])
            break


def refuse_other_number(snapshot: Snapshot, store: Store, clock: Clock) -> None:
    """Raise if keys of base files, mostly of one, are not in the buckets that the number says.

    Each process compares a table once. No file of more than `BYTES_MAX` is read for it.
    """
    config, seen = snapshot.config, 0
    if (known := (store.url, config.buckets)) in _COMPARED:
        return
    based = {group: without_logs(of) for group, of in sorted(snapshot.groups.items()) if of.path}
    for group in [*based][:FILES_MAX]:
        of = based[group]
        if any(each.size > BYTES_MAX for each in store.list(of.path)):
            continue
        alone = replace(snapshot, groups={group: of})
        for key, value, bucket in located(store, clock, alone, [group], config.record_keys):
            if value % config.buckets != bucket:
                raise UnsupportedTable(
                    f"the key {key[:60]!r}", f"is in bucket {bucket}, and of the {config.buckets} "
                    "buckets that the table's properties say it would be in "
                    f"{value % config.buckets}: rows would be written once more",
                    "correct the number: lockkit table adopt URL says what the keys fit",
                )  # fmt: skip
            seen += 1
        if seen >= ENOUGH:
            break
    _COMPARED[known] = None
    while len(_COMPARED) > COMPARED_MAX:
        del _COMPARED[next(iter(_COMPARED))]
