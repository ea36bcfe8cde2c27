"""Which table's lock a request is for: a log may have those of many buckets and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lockkit.lab.verify.check.lanes import FENCE_NAME, LOCK_NAME, name_of
from lockkit.lock.storage import LOCK_KEY

FOLDER = LOCK_KEY.rpartition("/")[0]
_ACCESS_POINT = re.compile(r"arn:|.*(?:-s3alias|--ol-s3|--op-s3)$")
"""The ARN or the alias of an access point of S3: a request by it does not name its bucket."""


def is_lock(key: str) -> bool:
    """Whether it is a lock object or a fence."""
    return name_of(key) in (LOCK_NAME, FENCE_NAME)


def bucket_of(name: str) -> str:
    """The bucket's name; "" for an access point of S3, which may be any bucket's."""
    return "" if _ACCESS_POINT.match(name) else name


def is_of(url: str, key: str, *, bucket_said: str = "") -> bool:
    """Whether `key` is in the folder of the locks of the table at `url`.

    Before the key may be its bucket, as in "bucket/key", and before that an account. A log that
    names neither is believed. `bucket_said` is the bucket before the key, where that is certain:
    a folder in the bucket may have the bucket's name.
    """
    scheme, _, rest = url.partition("://")
    if not scheme:
        return True
    if scheme.lower() == "file":  # a copy of a table may have lost the folders above it
        return f"/{rest.strip('/')}/{FOLDER}".endswith(f"/{key.rpartition('/')[0]}")
    place, _, prefix = rest.partition("/")
    bucket, _, account = place.partition("@")
    want = f"{prefix.strip('/')}/{FOLDER}".lstrip("/")
    folder = "/" + key.rpartition("/")[0]
    if not folder.endswith(f"/{want}"):
        return False
    before = folder.removesuffix(f"/{want}").split("/")
    if bucket_said and before != ["", bucket_said]:
        return False
    if len(before) == 1 or not (bucket_of(bucket) and bucket_of(before[-1])):
        return True
    said = account.lower().partition(".")[0].removesuffix("-secondary")
    known = before[-2].lower().removesuffix("-secondary") if len(before) > 2 else said
    # A real account has its container next; an emulator's path has the account before it.
    deeper = len(before) > 3 and before[-2] != "devstoreaccount1"
    return before[-1] == bucket and not deeper and (not said or known == said)


def several(keys: Iterable[str]) -> list[str]:
    """The folders in which the keys are; one with its bucket and one without are the same."""
    found: list[str] = []
    for each in sorted({key.rpartition("/")[0] for key in keys}, key=len, reverse=True):
        if not any(f"/{longer}".endswith(f"/{each}") for longer in found):
            found.append(each)
    return sorted(found)
