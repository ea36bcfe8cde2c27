"""The timeline without the commits that a restore took back and whose names it keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lockkit.protocol.outcome import Found, Missing
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, read
from lockkit.table.errors import DamagedFile
from lockkit.table.format.avro import is_stamped
from lockkit.table.format.avro_decoding import decode

KEEPS = "lockkit.keeps_names"
"""Stamped on restores that leave empty commits; Hudi's restores delete the files."""


def without_taken_back(now: Any, names: Any) -> Procedure[Any]:
    """The `Timeline` without what its restores took back, as if the files were gone."""
    gone = yield from kept_names(now, names)
    left = {
        name: {each: of for each, of in getattr(now, name).items() if each not in gone}
        for name in ("completed", "pending")
    }
    return replace(now, **left, inflight=now.inflight - gone.keys(), taken_back=frozenset(gone))


def is_kept_name(now: Any, instant: str, action: str) -> bool:
    """Whether a requested file was listed in a name that a restore keeps; it can never be used."""
    standing = instant in now.pending or instant in now.completed
    return (instant, action) in now.first and not standing


def kept_names(now: Any, names: Any) -> Procedure[dict[str, str]]:
    """The restore that took it back, for each instant whose name a completed restore keeps."""
    restores = [each for each, action in now.completed.items() if action == "restore"]
    keys = [names.completed(each, "restore", now.completion.get(each)) for each in restores]
    found: list[Found | Missing] = yield from all_of(read(each, limit=None) for each in keys)
    return {
        instant: restore for restore, key, each in zip(restores, keys, found, strict=True)
        if isinstance(each, Found) and is_stamped(each.body, KEEPS)
        for instant in _instants(key, each.body)
    }  # fmt: skip


def _instants(key: str, body: bytes) -> list[str]:
    try:
        return [str(each) for each in decode(body, "HoodieRestoreMetadata")["instantsToRollback"]]
    except (LookupError, TypeError, ValueError) as error:
        why = f"is not a restore's file ({str(error)[:160]})"
        raise DamagedFile(key, why, "restore it from its versions") from None
