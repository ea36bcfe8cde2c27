"""The file groups of buckets: which bucket a key has, and which file group a bucket has.

Two writers of a bucket's first row choose the same id. With lockkit's own buckets one of them gets
a conflict. With Hudi's bucket index both write log files of one file group.
"""

from __future__ import annotations

import re
from hashlib import sha1
from typing import TYPE_CHECKING, Any

from lockkit.table.errors import UnsupportedTable
from lockkit.table.format.properties import HUDI, PROPERTIES_KEY, TableConfig
from lockkit.table.format.property_keys import INDEX, NUM_BUCKETS
from lockkit.table.format.timeline import HOODIE
from lockkit.table.read.buckets import is_bucketed
from lockkit.table.read.log_slice import LogSlice

if TYPE_CHECKING:
    from lockkit.clock import Clock
    from lockkit.stores import Store
    from lockkit.table.format.layout import FileGroup
    from lockkit.table.read.snapshot import Snapshot

OTHER_BUCKETS = HOODIE + ".bucket_index/"
"""Where Hudi keeps what consistent hashing, or a number for each partition, has decided."""
_HASHED = "-0000-0000-0000-"
_HUDIS = re.compile(r"0000[0-9]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(-|$)")
"""A bucket's number and the rest of a UUID (by chance once in 100,000 times); Spark adds `-0`."""


def buckets_of(config: TableConfig, keys: Any) -> Any:
    """The bucket of each key, by lockkit's hash or by Hudi's; no key may be null."""
    if config.hashed:
        from lockkit.table.format import java_hash

        return java_hash.bucket_of(keys, config.buckets, config.record_keys)
    from lockkit.table.format.spark_hash import bucket_of

    return bucket_of(keys, config.buckets)


def bucket_file_id(partition: str, bucket: int, generation: int = 0) -> str:
    """The id of a bucket's file group; the next `generation` once the last one was replaced."""
    name = sha1(f"{partition}\0{bucket}".encode()).hexdigest()[:20]
    return f"{bucket:08d}-{name}-{generation}"


def hashed_file_id(bucket: int, generation: int = 0) -> str:
    """As Hudi's non-blocking writers name it (`BucketIdentifier`); Hudi has generation 0 alone."""
    return f"{bucket:08d}{_HASHED}{generation:012d}-0"


def has_bucket_number(file_id: str) -> bool:
    """Whether Hudi's bucket index may have made this file group."""
    return _HUDIS.match(file_id) is not None


def refuse_unsaid(snapshot: Snapshot, store: Store, clock: Clock) -> None:
    """Raise if the file groups are buckets of Hudi's index, and the table's properties do not say
    so: Hudi's writers look for a key in its bucket alone, and would add a row of ours once more.
    Or if the properties say so, and file ids or stored keys contradict.
    """
    if snapshot.config.hashed:
        BucketGroups(snapshot)
        if snapshot.config.mode == HUDI:
            from lockkit.table.read.bucket_keys import refuse_other_number  # reads base files

            refuse_other_number(snapshot, store, clock)
    found = [file_id for _, file_id in snapshot.groups if has_bucket_number(file_id)]
    if found and snapshot.config.mode == HUDI and not snapshot.config.hashed:
        raise UnsupportedTable(
            found[0], "is a file group of Hudi's bucket index, and the table's properties do not "
            "say how many buckets it has: its rows would be looked for in other places",
            "record the number: lockkit table adopt URL --buckets N",
        )  # fmt: skip


def refuse_other_buckets(store: Store, config: TableConfig) -> None:
    """Raise if Hudi's writers look for keys by consistent hashing: the file ids do not say so."""
    if config.by_base_files and store.list(OTHER_BUCKETS):
        raise UnsupportedTable(
            OTHER_BUCKETS, "is there: Hudi's writers look for keys by consistent hashing, and "
            "would add a row of lockkit's once more",
            "write it with Hudi, or copy it to a new table",
        )  # fmt: skip


def generations(snapshot: Snapshot) -> dict[FileGroup, int]:
    """How often each bucket's group was replaced: a replaced file id is never read again."""
    found: dict[FileGroup, int] = {}
    for partition, file_id in (*snapshot.replaced, *snapshot.groups):
        if is_bucketed(file_id):
            bucket = partition, file_id[:8]
            number = int(file_id.split("-")[4 if _HASHED in file_id else 2])
            gone = (partition, file_id) not in snapshot.groups
            found[bucket] = max(found.get(bucket, 0), number + gone)
    return {bucket: number for bucket, number in found.items() if number}


class BucketGroups:
    """The file group of each bucket of a snapshot, or the one that its first row makes.

    Hudi's writers may have given the group of a hashed bucket a random id behind its number.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._hashed, self._again = snapshot.config.hashed, generations(snapshot)
        logged = snapshot.groups.items() if snapshot.config.by_base_files else ()
        self._logged = frozenset(group for group, of in logged if isinstance(of, LogSlice))
        self._there: dict[FileGroup, FileGroup] = {}
        for partition, file_id in snapshot.groups if self._hashed else ():
            buckets = snapshot.config.buckets
            if not has_bucket_number(file_id) or int(file_id[:8]) >= buckets:
                raise UnsupportedTable(
                    file_id, f"is none of the {buckets} buckets of Hudi's index that the table's "
                    "properties say: a key in it would be looked for elsewhere, and written once "
                    "more", f"correct {INDEX} and {NUM_BUCKETS} in {PROPERTIES_KEY}: lockkit table "
                    "adopt says what the stored keys fit",
                )  # fmt: skip
            if other := self._there.get((partition, file_id[:8])):
                raise UnsupportedTable(
                    file_id, f"and {other[1]} are two file groups of one bucket, in which Hudi "
                    "keeps one: two writers made it at once, without Hudi's conflict check of "
                    "buckets", "delete the rows of one of them with Hudi, or restore the table",
                )  # fmt: skip
            self._there[partition, file_id[:8]] = partition, file_id

    def of(self, partition: str, bucket: int, later: int = 0) -> FileGroup:
        """With `later`, a group of the bucket that comes so many after this one."""
        place = partition, f"{bucket:08d}"
        generation = self._again.get(place, 0) + later
        if self._hashed:
            return self._there.get(place) or (partition, hashed_file_id(bucket, generation))
        return partition, bucket_file_id(partition, bucket, generation)

    def for_new(self, partition: str, bucket: int) -> FileGroup:
        """The group of the bucket's new keys; without log files if Hudi looks in base files alone.
        """
        group = self.of(partition, bucket)
        return self.of(partition, bucket, 1) if group in self._logged else group

    def name_of(self, partition: str, file_id: str) -> str:
        """A group's id, or the number of the bucket whose new keys it gets."""
        number = file_id[:8]
        if is_bucketed(file_id) and self.for_new(partition, int(number)) == (partition, file_id):
            return number
        return file_id
