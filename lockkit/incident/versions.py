"""A lock object's generations, as a bucket that keeps versions tells them: data and events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockkit.client import LOCK_KEY
from lockkit.history import STORE, Event, event
from lockkit.record import Garbled, Record, decode
from lockkit.stores import ObjectVersion, Store


@dataclass(frozen=True, slots=True)
class Generation:
    """One state of the object. `record` is None where it was deleted."""

    number: ObjectVersion
    record: Record | Garbled | None


def generations(store: Store, *, newest: int) -> list[Generation]:
    """The newest ones, newest first; a read each. Only the current one where none are kept."""
    return [
        Generation(each, None if each.deleted else decode(store.get_version(LOCK_KEY, each)))
        for each in list(store.versions(LOCK_KEY))[:newest]
    ]


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
                client=(record.holder or record.owner) if record else "",
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
                **_lease(record),
            )
        )
        before = version
    return events


def _lease(record: Record | None) -> dict[str, Any]:
    if record is None:
        return {}
    return {
        "owner": record.owner,
        "epoch": record.epoch,
        "expired": record.expired,
        "valid_until_ms": record.valid_until_ms,
        "ttl_ms": record.ttl_ms,
    }
