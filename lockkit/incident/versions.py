"""A lock object's generations, as a bucket that keeps versions tells them: data and events."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from lockkit.client import LOCK_KEY
from lockkit.clock import Clock
from lockkit.drive import run
from lockkit.history import STORE, Event, event
from lockkit.incident.calls import Seen
from lockkit.incident.logs.wire import digests_of
from lockkit.incident.telling import lease_of
from lockkit.lockfile import Garbled, Record, decode
from lockkit.stores import ObjectVersion, Store, StoreError
from lockkit.table.ask import TableError
from lockkit.table.fence import read_fence

NEWEST_MAX = 100
"""Versions of the lock object that are read for their epochs."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One state of the object. `record` is None where it was deleted."""

    number: ObjectVersion
    record: Record | Garbled | None
    digests: frozenset[str] = frozenset()
    """Of its bytes, as SDKs' logs tell them."""


def generations(store: Store, *, newest: int) -> list[Generation]:
    """The newest ones, newest first; a read each. Only the current one where none are kept."""
    return [
        Generation(each, None) if each.deleted else _read(each, store.get_version(LOCK_KEY, each))
        for each in list(store.versions(LOCK_KEY))[:newest]
    ]


def _read(number: ObjectVersion, body: bytes) -> Generation:
    return Generation(number, decode(body), digests_of(body))


def highest_epoch(store: Store) -> tuple[int, str]:
    """The highest epoch that the fence or an old version of the lock object has, and which of them.

    A source that cannot be read (no rights to list versions, a broken fence) counts as silent.
    """
    found = [(0, "neither the fence nor an old version of the lock object has an epoch")]
    with suppress(TableError, StoreError):
        fence = run(read_fence(), store, Clock()).fence
        if fence is not None:
            found.append((fence.epoch, "the fence"))
    with suppress(StoreError):
        for each in generations(store, newest=NEWEST_MAX):
            if isinstance(each.record, Record):
                found.append((each.record.epoch, "an old version of the lock object"))
    return max(found, key=lambda each: each[0])


def seen(kept: Sequence[Generation]) -> list[Seen]:
    """For logs beside them: what a log does not show of a write, its version here does."""
    return [
        Seen(each.number.version, each.digests, each.number.modified_ms, each.record)
        for each in kept if isinstance(each.record, Record)
    ]  # fmt: skip


def granted_ms(kept: Sequence[Generation]) -> int | None:
    """Since when the newest one's owner has this grant, as far as the bucket kept it."""
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


def names(kept: Sequence[Generation]) -> dict[str, str]:
    """What `as_events` calls each owner: by its description, where it has one."""
    records = (each.record for each in kept)
    return {each.owner: _name(each) for each in records if isinstance(each, Record)}


def _name(record: Record) -> str:
    return record.holder or record.owner


def as_events(key: str, kept: Sequence[Generation]) -> list[Event]:
    """The writes that made these generations, oldest first, as the truth lane of a history."""
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
                condition="",  # a bucket keeps what was written, not on what condition
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

