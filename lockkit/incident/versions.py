"""A lock object's generations, as a bucket that keeps versions tells them: data and events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockkit.client import LOCK_KEY
from lockkit.history import STORE, Event, event
from lockkit.incident.logs.wire import digests_of
from lockkit.incident.telling import Seen, lease_of
from lockkit.record import Garbled, Record, decode
from lockkit.stores import ObjectVersion, Store


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


def seen(kept: Sequence[Generation]) -> list[Seen]:
    """For logs beside them: what a log does not show of a write, its version here does."""
    return [
        Seen(each.number.version, each.digests, each.number.modified_ms, each.record)
        for each in kept if isinstance(each.record, Record)
    ]  # fmt: skip


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
                **lease_of(record),
                listed=True,
            )
        )
        before = version
    return events

