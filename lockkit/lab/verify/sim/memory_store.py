"""A simulated store with the rules of one provider. It records each request that it decides."""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from lockkit.lab.verify.sim.clock import START_MS, Time
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    NotModified,
    PreconditionFailed,
    Throttled,
)
from lockkit.runtime import Delete, Get, List, Put
from lockkit.stores import ListEntry

Sent = Get | Put | List | Delete
FLOORED_MS = 1000
"""HTTP dates are floored to a second."""
_KEY = attrgetter("key")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreProfile:
    """The behaviour of a provider, as far as it matters to a protocol."""

    name: str
    content_versions: bool = False
    """Versions are hashes of the bytes (S3, R2); else they are counted (GCS, Azure)."""
    write_interval_ms: float = 0.0
    """Writes to one object closer together than this are throttled."""
    conditions: bool = True
    atomic: bool = True
    """False: the condition is judged in one move, and the write is done in another."""


PROFILES = {
    each.name: each
    for each in (
        StoreProfile(name="s3", content_versions=True),
        StoreProfile(name="gcs", write_interval_ms=1000.0),
        StoreProfile(name="azure"),
        StoreProfile(name="r2", content_versions=True, write_interval_ms=1000.0),
        StoreProfile(name="ignores conditions", conditions=False),
        StoreProfile(name="not atomic", atomic=False),
    )
}
SOUND = ("s3", "gcs", "azure", "r2")
"""The profiles on which the protocol is to be right."""


class StoredObject(NamedTuple):
    """The current state of one object."""

    body: bytes
    version: str
    at_ms: float


class DecidedRequest(NamedTuple):
    """A request as the store decided it."""

    at_ms: float
    client: str
    request: Sent
    answer: Any
    before: str
    version: str
    began_ms: float


@dataclass(slots=True)
class SimStore:
    """Objects by key. `on_write` is called after every write that was applied."""

    profile: StoreProfile
    time: Time
    dice: random.Random
    spread_ms: int = 1000
    """How far its front ends' clocks differ."""
    objects: dict[str, StoredObject] = field(default_factory=dict)
    truth: list[DecidedRequest] = field(default_factory=list)
    on_write: Callable[[DecidedRequest, StoredObject | None], None] | None = None
    judges: dict[str, Callable[[Put, StoredObject | None], bool]] = field(default_factory=dict)
    """Objects that judge a write by themselves, instead of by its condition."""
    _count: int = 0
    _listed: list[ListEntry] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        for each in self.objects.items():
            self._show(*each)

    def decide(self, client: str, request: Sent, began_ms: float, *, judged: bool = False) -> Any:
        """Carry out one request now. `judged`: its condition was found true in an earlier move."""
        before = self.objects.get(getattr(request, "key", ""))
        match request:
            case Get(key, unless, limit):
                answer: Any = self._get(before, unless, limit)
            case Put(key, body, condition):
                return self._put(client, request, key, body, condition, before, began_ms, judged)
            case Delete(key, condition):
                return self._delete(client, request, key, condition, before, began_ms)
            case List(prefix, after):
                answer = self._list(prefix, after)
        self._record(client, request, answer, before, before, began_ms)
        return answer

    def admits(self, request: Put) -> bool:
        """Whether the condition holds now. A store that is not atomic checks this too early."""
        before = self.objects.get(request.key)
        if request.key in self.judges:
            return self.judges[request.key](request, before)
        match request.condition:
            case IfAbsent():
                return before is None
            case IfVersion(version):
                return before is not None and before.version == version

    def _get(self, before: StoredObject | None, unless: str | None, limit: int | None) -> Any:
        if before is None:
            return Missing()
        date_ms = self._date_ms(self.time.now_ms)
        if before.version == unless:
            return NotModified(date_ms)
        body = before.body if limit is None else before.body[: limit + 1]
        return Found(body, before.version, self._date_ms(before.at_ms), date_ms)

    def _date_ms(self, at_ms: float) -> int:
        """The time in an HTTP date, by the clock of one of the front ends."""
        ahead = self.spread_ms if self.dice.random() < 0.5 else 0
        return START_MS + int((at_ms + ahead) // FLOORED_MS) * FLOORED_MS

    def _put(
        self, client: str, request: Put, key: str, body: bytes, condition: Condition,
        before: StoredObject | None, began_ms: float, judged: bool,
    ) -> Any:  # fmt: skip
        now_ms, after = self.time.now_ms, before
        interval_ms = self.profile.write_interval_ms
        if interval_ms and before is not None and now_ms - before.at_ms < interval_ms:
            answer: Any = Throttled(None)
        elif judged or not self.profile.conditions or self.admits(request):
            after = StoredObject(body, self._version(body), now_ms)
            self.objects[key] = after
            self._show(key, after)
            answer = Applied(after.version)
        else:
            answer = PreconditionFailed()
        self._record(client, request, answer, before, after, began_ms)
        return answer

    def _delete(
        self, client: str, request: Delete, key: str, condition: IfVersion | None,
        before: StoredObject | None, began_ms: float,
    ) -> Any:  # fmt: skip
        if before is not None and condition is not None and condition.version != before.version:
            self._record(client, request, PreconditionFailed(), before, before, began_ms)
            return PreconditionFailed()
        self.objects.pop(key, None)
        self._show(key, None)
        self._record(client, request, Applied(""), before, None, began_ms)
        return Applied("")

    def _show(self, key: str, now: StoredObject | None) -> None:
        """From now on listings show this state of the object."""
        shown = [] if now is None else [ListEntry(key, len(now.body), now.version)]
        first = bisect_left(self._listed, key, key=_KEY)
        self._listed[first : bisect_right(self._listed, key, key=_KEY)] = shown

    def _list(self, prefix: str, after: str) -> list[ListEntry]:
        first = bisect_left(self._listed, prefix, key=_KEY)
        first = max(first, bisect_right(self._listed, after, key=_KEY))
        return self._listed[first : bisect_left(self._listed, prefix + chr(0x10FFFF), key=_KEY)]

    def _version(self, body: bytes) -> str:
        if self.profile.content_versions:
            return hashlib.md5(body, usedforsecurity=False).hexdigest()[:16]
        self._count += 1
        return str(self._count)

    def _record(
        self, client: str, request: Sent, answer: Any, before: StoredObject | None,
        after: StoredObject | None, began_ms: float,
    ) -> None:  # fmt: skip
        was = "" if before is None else before.version
        now = "" if after is None else after.version
        decided = DecidedRequest(self.time.now_ms, client, request, answer, was, now, began_ms)
        self.truth.append(decided)
        if self.on_write is not None and after is not before:
            self.on_write(decided, after)
