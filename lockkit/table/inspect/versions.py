"""The generations of a lock object in a bucket that keeps versions, as data and as events."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lockkit.clock import Clock
from lockkit.errors import NoAnswer, StoreError, TableError, masked
from lockkit.events import STORE, Event, clock_time, event
from lockkit.lock.storage import LOCK_KEY
from lockkit.protocol.outcome import Found, Missing
from lockkit.protocol.record import RECORD_BYTES_MAX, Garbled, Record, decode, is_believed, lease_of
from lockkit.runtime import run
from lockkit.stores import ObjectVersion, Store
from lockkit.table.inspect.takeover import BREAKS
from lockkit.table.occ.fence import read_fence

NEWEST_MAX = 100
"""How many versions of the lock object, and logs of breaks, are read for their epochs."""
NO_EPOCH = (
    "no epoch is left in the fence, in old versions of the lock object or in logs of breaks; the "
    "new epoch is the time in milliseconds"
)


@dataclass(frozen=True, slots=True)
class Generation:
    """One state of the object. `record` is None if the object was deleted."""

    number: ObjectVersion
    record: Record | Garbled | None
    digests: frozenset[str] = frozenset()
    """Digests of its bytes, as SDKs log them."""
    compact: bool = True
    """False for JSON with blanks or line ends, which no client of the lock writes."""


def generations(store: Store, *, newest: int) -> list[Generation]:
    """The latest states, newest first; one read each. Without versioning, only the current one."""
    return [
        Generation(each, None) if each.deleted else _read(each, store.get_version(LOCK_KEY, each))
        for each in list(store.versions(LOCK_KEY))[:newest]
    ]


def _read(number: ObjectVersion, body: bytes) -> Generation:
    return Generation(number, decode(body), digests_of(body), is_compact(body))


def is_compact(body: bytes) -> bool:
    """Whether JSON has no blanks between its fields; true of what is no JSON."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return True
    plain = {json.dumps(fields, separators=(",", ":"), ensure_ascii=each) for each in (True, False)}
    return body.decode(errors="replace") in plain


def highest_epoch(store: Store) -> tuple[int, str]:
    """The highest epoch in the fence, an old version of the lock object or the log of a break,
    and its source.

    A source that cannot be read may have an epoch. It counts as epoch 1, so a tombstone never
    continues as if there had been none.
    """
    found = [(0, NO_EPOCH)]
    for source, epochs in (
        ("the fence", _of_fence), ("an old version of the lock object", _of_versions),
        ("the log of an earlier break", _of_breaks),
    ):  # fmt: skip
        try:
            for each in epochs(store):
                found.append((each, source))
        except (TableError, StoreError):
            found.append((1, f"{source} could not be read, and may have one"))
    return max(found, key=lambda each: each[0])


def _of_fence(store: Store) -> Iterator[int]:
    fence = run(read_fence(), store, Clock()).fence
    if fence is not None:
        yield fence.epoch


def _of_versions(store: Store) -> Iterator[int]:
    for each in generations(store, newest=NEWEST_MAX):
        if isinstance(each.record, Record) and is_believed(each.record.epoch):
            yield each.record.epoch


def _of_breaks(store: Store) -> Iterator[int]:
    """Epochs in the newest logs by name. Any client can write such a file, so other content and
    implausible numbers are ignored."""
    for entry in store.list(BREAKS)[-NEWEST_MAX:]:
        match store.get(entry.key, limit=RECORD_BYTES_MAX):
            case Found(body) if len(body) <= RECORD_BYTES_MAX:
                yield from _epochs_logged(body)
            case Found() | Missing():
                pass
            case other:
                raise NoAnswer(f"{store.url}: {entry.key} could not be read ({other})")


def _epochs_logged(body: bytes) -> Iterator[int]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return
    for name in ("epoch", "written"):
        epoch = said.get(name) if isinstance(said, dict) else None
        if type(epoch) is int and epoch > 0 and is_believed(epoch):
            yield epoch


def granted_ms(kept: Sequence[Generation]) -> int | None:
    """When the newest owner got its grant, as far back as the bucket kept versions."""
    newest = kept[0].record if kept else None
    since_ms = None
    for each in kept:
        record = each.record
        if not isinstance(record, Record) or not isinstance(newest, Record) or record.expired:
            break
        if (record.owner, record.epoch) != (newest.owner, newest.epoch):
            break
        since_ms = each.number.modified_ms
    return since_ms


def granted_words(kept: Sequence[Generation]) -> str:
    """When the newest owner got its grant; "" if its last write alone is kept: grant or renewal."""
    granted = granted_ms(kept)
    if granted is None or len(kept) == 1:
        return ""
    # Older generations of the same grant may have been left out, or were never kept.
    return clock_time(granted) + (" or before" if granted == kept[-1].number.modified_ms else "")


def names(kept: Sequence[Generation]) -> dict[str, str]:
    """The name of each owner in `as_events`: its description, if it has one."""
    records = (each.record for each in kept)
    return {each.owner: _name(each) for each in records if isinstance(each, Record)}


def _name(record: Record) -> str:
    """Without the start of its process: a lane's label is short."""
    return re.sub(r"@[^/]*", "", masked(record.holder).replace("://***@", "://")) or record.owner


def as_events(key: str, kept: Sequence[Generation]) -> list[Event]:
    """The writes that made these generations, oldest first, for the truth lane of a history."""
    events: list[Event] = []
    before = ""
    for each in reversed(kept):
        record = each.record if isinstance(each.record, Record) else None
        version = "" if each.number.deleted else each.number.version
        events.append(
            event(
                each.number.modified_ms,
                STORE,
                "request",
                client=_name(record) if record else "",
                method="DELETE" if each.number.deleted else "PUT",
                key=key,
                condition="",  # a bucket does not record the condition of a write
                status=200,
                answer="applied",
                applied=True,
                before=before,
                version=version,
                attempt=record.attempt if record else "",
                began_ms=each.number.modified_ms,
                **lease_of(record),
                listed=True,
            )
        )
        before = version
    return events


def digests_of(body: bytes) -> frozenset[str]:
    """The digests of `body` that a client's log may contain: MD5 (hex) and CRC-32 (base64)."""
    crc32 = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
    md5 = hashlib.md5(body, usedforsecurity=False).hexdigest()
    return frozenset({f"md5:{md5}", f"crc32:{crc32}"})
