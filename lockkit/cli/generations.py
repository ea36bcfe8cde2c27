"""A lock object's state now and, if the bucket keeps versions, before."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lockkit.cli.terminal import CommandError, clock_time
from lockkit.events import plain
from lockkit.lock.handle import LOCK_KEY
from lockkit.protocol.outcome import Found, Missing, NotModified, Unknown, Version
from lockkit.protocol.record import RECORD_BYTES_MAX, Garbled, Record, decode
from lockkit.protocol.state import Observation
from lockkit.stores import Store, open_store
from lockkit.stores.within import within
from lockkit.table.inspect.versions import Generation

OPENING_REQUESTS = 3
"""Opening a store may take the time of this many requests: it may look for credentials."""


@contextmanager
def opened(url: str, options: dict[str, Any]) -> Iterator[Store]:
    with within(OPENING_REQUESTS * options.get("timeout_s", math.inf)):
        store = open_store(url, **options)
    try:
        yield store
    finally:
        store.close()


class NoAnswerYet(CommandError):
    """The store was too busy, or did not answer; a later read may succeed."""


def read_lock(store: Store, unless: Version | None = None) -> Observation | None:
    """The object as it is now; None if it still has the version `unless`. Raises `NoAnswerYet`."""
    match store.get(LOCK_KEY, unless=unless, limit=RECORD_BYTES_MAX):
        case Found(body, version, modified_ms, date_ms):
            return Observation(version, decode(body), modified_ms, date_ms)
        case Missing():
            return Observation(None, None)
        case NotModified():
            return None
        case answer:
            why = plain(answer.why) if isinstance(answer, Unknown) else "the store is too busy"
            raise NoAnswerYet(
                f"{store.url}/{LOCK_KEY} could not be read ({why}); try again in a moment"
            )


def story_of(kept: Sequence[Generation]) -> list[str]:
    """The generations in words, oldest first: a bucket keeps writes, not refused attempts."""
    lines = []
    before: Record | Garbled | None = None
    for each in reversed(kept):
        lines.append(f"{clock_time(each.number.modified_ms)}  {_reported(each.record, before)}")
        before = each.record
    return lines or ["no version is kept: this table was never locked, or its lock object is gone"]


def _reported(record: Record | Garbled | None, before: Record | Garbled | None) -> str:
    match record:
        case None:
            return "the lock object was deleted: the next grant may repeat an epoch"
        case Garbled(why):
            return f"the content written is not a lock record: {plain(why)}"
    who = plain(record.owner, limit=60)
    epoch = f"epoch {record.epoch}" if record.epoch else "no epoch (written by Hudi)"
    if record.expired:
        return f"{who} released the lock, {epoch}"
    until = f"until {clock_time(record.valid_until_ms)}"
    if not isinstance(before, Record) or before.expired:
        return f"{who} took the lock, {epoch}, {until}"
    if (before.owner, before.epoch) == (record.owner, record.epoch):
        return f"{who} renewed it, {epoch}, {until}"
    taken = f"{plain(before.owner, limit=60)}, which had not released it"
    return f"{who} took the lock over from {taken}, {epoch}, {until}"
