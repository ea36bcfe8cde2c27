"""Adoption of a table with Hudi's bucket index, whose number of buckets its owner names.

Hudi does not write the number into hoodie.properties. Each file id begins with the number of its
bucket. The number is right if the hash of each stored key leads to the bucket that the key is in.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from lockkit.runtime import run
from lockkit.table.errors import RefusedOption, TableError
from lockkit.table.format.property_keys import (
    BUCKET_INDEX,
    BUCKETS_MAX,
    FENCED,
    HASHED_KEY,
    INDEX,
    MODE,
    NUM_BUCKETS,
    RECORD_KEYS,
)
from lockkit.table.format.refusals import bucket_number
from lockkit.table.read.bucket_groups import OTHER_BUCKETS, has_bucket_number
from lockkit.table.services.adopt import Fix

if TYPE_CHECKING:
    from lockkit.clock import Clock
    from lockkit.stores import Store
    from lockkit.table.format.layout import FileGroup
    from lockkit.table.read.bucket_keys import Located
    from lockkit.table.read.snapshot import Snapshot
OPTION = "--buckets"
SHOWN = 3


def find_buckets(
    store: Store, clock: Clock, keys: Mapping[str, str], number: int | None
) -> Fix | None:
    """The change that records `number` buckets in the table's properties.

    None if the table has no buckets of Hudi's, or records those that its keys are in. Raises
    `RefusedOption` for a number that does not apply to this table.
    """
    said, indexed = keys.get(NUM_BUCKETS, ""), keys.get(INDEX) == BUCKET_INDEX
    if keys.get(MODE) == FENCED and not indexed:
        if number is not None:
            _refuse(number, "no buckets of Hudi")
        return None
    from lockkit.table.read.reader import snapshot_to_read

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about local time: the command has its own message
            snapshot = run(snapshot_to_read(), store, clock)
    except TableError:  # the command gives the reasons
        return None
    groups = sorted(group for group in snapshot.groups if has_bucket_number(group[1]))
    standing = bucket_number(said) if indexed else 0
    checked = groups or (indexed and (snapshot.groups or not standing))
    if store.list(OTHER_BUCKETS):  # what `plan_adoption` says
        return None
    if not checked:
        if number is not None and not indexed:
            why = "is refused: no file id here begins with the number of a bucket of Hudi's index"
            raise RefusedOption(OPTION, why, "leave it out", value=str(number))
        return None
    highest = max((int(file_id[:8]) for _, file_id in groups), default=0)
    if standing:
        if not (blocked := _blocked(store, clock, snapshot, groups, keys, standing)):
            if number not in (None, standing):
                _refuse(number, said)
            return None
        what = f"the number of buckets of Hudi's index in the properties ({said})"
        means = "writers would look for keys in the wrong buckets"
        if number in (None, standing):
            return Fix(what, means, {}, f"{blocked}; correct it: {OPTION} N")
    blocked = _blocked(store, clock, snapshot, groups, keys, number)
    key = {HASHED_KEY: keys[RECORD_KEYS]} if keys.get(RECORD_KEYS) else {}
    changes = {INDEX: BUCKET_INDEX, NUM_BUCKETS: str(number), **key}
    if indexed:
        return Fix(f"correct the number of buckets of Hudi's index, now {said[:20] or 'missing'}",
                   "lockkit then puts each key where Hudi looks for it",
                   {} if blocked else changes, blocked)  # fmt: skip
    return Fix(
        "record in the properties that the table has Hudi's bucket index "
        f"({len(groups)} file groups, bucket numbers up to {highest})",
        "Hudi does not record it; lockkit then puts each key where Hudi looks for it. The number "
        "of buckets can never change",
        {} if blocked else changes, blocked,
    )  # fmt: skip


def _refuse(number: int, said: str) -> NoReturn:
    raise RefusedOption(
        OPTION, f"is not the table's: its properties say {said}", "leave it out", value=str(number)
    )


def _blocked(
    store: Store, clock: Clock, snapshot: Snapshot, groups: Sequence[FileGroup],
    keys: Mapping[str, str], number: int | None,
) -> str:  # fmt: skip
    """Why the number cannot be recorded; "" if it can."""
    if others := sorted(file_id for _, file_id in snapshot.groups.keys() - set(groups)):
        return (f"the file id {others[0]} does not begin with the number of a bucket "
                f"({len(others)} such file groups)")
    buckets = [(partition, file_id[:8]) for partition, file_id in groups]
    if twice := next((each for each in buckets if buckets.count(each) > 1), None):
        return f"bucket {twice[1]} has several file groups in the partition {twice[0]!r}"
    from lockkit.table.read.bucket_keys import located

    fields = [each for each in keys.get(RECORD_KEYS, "").replace(" ", "").split(",") if each]
    try:
        found = list(located(store, clock, snapshot, groups, fields))
    except TableError as error:
        return str(error)
    if not found:
        none = "no stored key was found, so no number of buckets can be checked"
        return "" if number is not None and keys.get(INDEX) else none
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


def _fitting(found: Sequence[Located], least: int) -> list[int]:
    """The smallest numbers of buckets that put each key where it is."""
    fits = (each for each in range(least, BUCKETS_MAX + 1)
            if all(value % each == bucket for _, value, bucket in found))  # fmt: skip
    return [each for each, _ in zip(fits, range(SHOWN), strict=False)]
