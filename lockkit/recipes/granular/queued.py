"""A shared or exclusive lock in one object: a queue of entries, changed by compare-and-set.

    {"format": 1, "epoch": 7, "attempt": "5f0c...", "entries": [
        {"id": "9b1e...", "epoch": 7, "mode": "read", "beat": 3, "ttlMs": 60000, "holder": ...}]}

The queue is the lock: an entry holds it if no entry before it conflicts with it. New entries go to
the end, so readers that come later do not overtake a writer that waits. Each client, holding or
waiting, renews its entry by raising `beat`. Others remove an entry whose `beat` did not change
during a whole lease of its own, by their own clock (the rule of AWS's dynamodb-lock-client), so no
two clocks are compared. An entry's epoch rises with its place in the queue and is never reused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from lockkit.clock import Clock
from lockkit.errors import StoreError, Unanswered, clipped
from lockkit.protocol.outcome import (
    Applied,
    Found,
    NotModified,
    PreconditionFailed,
    Throttled,
    Unknown,
    Version,
    over,
)
from lockkit.recipes.stripes import Mode
from lockkit.runtime import Procedure, Sleep, Unique
from lockkit.runtime.proven import pause_after, pause_s, put_once, read

FORMAT = 1
BODY_BYTES_MAX = 4_000_000
ENTRIES_MAX = 5_000
TEXT_CHARS_MAX = 300
TRIES_MAX = 12
"""Writes of one call. Under contention most of them are refused because others wrote first."""
BEATS_PER_LEASE = 3


class EntryGone(Exception):
    """Our entry was removed: its lease was over, or it was removed by hand."""


class NotAQueue(StoreError):
    """The object holds something else than a queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """One client's place in the queue of a lock."""

    id: str
    epoch: int
    mode: Mode
    beat: int
    ttl_ms: int
    holder: str = ""
    """Its process, for people."""
    of: str = ""
    """What it locks, for people."""

    def __str__(self) -> str:
        of = f" ({self.of})" if self.of else ""
        return f"{self.holder or self.id} to {self.mode.name.lower()}{of}, epoch {self.epoch}"


@dataclass(frozen=True, slots=True)
class LockQueue:
    """The object as one read showed it; no version: it was never written."""

    entries: tuple[QueueEntry, ...] = ()
    epoch: int = 0
    version: Version | None = None


# --- its rules -----------------------------------------------------------------------------------


def conflicts(one: Mode, other: Mode) -> bool:
    """Only readers may hold it together."""
    return Mode.WRITE in (one, other)


def with_new(entries: tuple[QueueEntry, ...], new: QueueEntry) -> tuple[QueueEntry, ...]:
    """A new entry goes to the end, so it overtakes no other entry."""
    return (*entries, new)


def is_over(unchanged_ms: float, ttl_ms: int) -> bool:
    """Whether others may remove an entry that they saw unchanged for so long."""
    return unchanged_ms > ttl_ms


def counted_from(sent_ms: int, _now_ms: int) -> int:
    """A lease begins before its write was sent: the store may apply the write right after that."""
    return sent_ms


def may_still_land(written_over: Version | None, found: Version | None) -> bool:
    """Whether an unanswered write may still be applied: not once the object has another version."""
    return written_over == found


def blockers(entries: Iterable[QueueEntry], id: str) -> list[QueueEntry]:
    """The entries before this one that conflict with it; it holds the lock if there are none."""
    before: list[QueueEntry] = []
    for each in entries:
        if each.id == id:
            return [other for other in before if conflicts(other.mode, each.mode)]
        before.append(each)
    raise EntryGone(f"the entry {id} is not in the queue")


# --- one client's place --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeatSeen:
    """The beat of another client's entry, and since when we have seen it, by our own clock."""

    beat: int
    since_ms: int


@dataclass(slots=True, kw_only=True, eq=False)
class QueuePlace:
    """One client's entry in the queue at `key`, and its last view of the others."""

    key: str
    mode: Mode
    ttl_ms: int
    clock: Clock
    holder: str = ""
    of: str = ""
    id: str = ""
    epoch: int = 0
    proven_ms: int | None = None
    """When the last write that is proven to have renewed our entry was sent (boot clock)."""
    known: LockQueue | None = None
    _sent_ms: dict[int, int] = field(default_factory=dict)
    """By beat: when a write with it was first sent."""
    _others: dict[str, BeatSeen] = field(default_factory=dict)
    _out: list[Version | None] = field(default_factory=list)
    """The version that unanswered writes of ours were to replace; empty: none is out."""

    def met(self, queue: LockQueue) -> QueueEntry | None:
        """Take note of what the store holds; returns our own entry."""
        now_ms, mine = self.clock.boot_ms(), None
        self.known = queue
        if self._out and not may_still_land(self._out[0], queue.version):
            self._out.clear()
        others = {}
        for each in queue.entries:
            if each.id == self.id:
                mine = each
                continue
            seen = self._others.get(each.id)
            same = seen is not None and seen.beat == each.beat
            others[each.id] = seen if seen and same else BeatSeen(each.beat, now_ms)
        self._others = others
        if mine is not None and mine.beat in self._sent_ms:
            self.epoch = mine.epoch
            self.proven_ms = counted_from(self._sent_ms[mine.beat], now_ms)
            kept = {beat: at for beat, at in self._sent_ms.items() if beat >= mine.beat}
            self._sent_ms = kept
        return mine

    def living(self, queue: LockQueue) -> tuple[QueueEntry, ...]:
        """The entries without those whose lease is over, by our own observation."""
        now_ms, seen = self.clock.boot_ms(), self._others
        return tuple(
            each for each in queue.entries
            if each.id == self.id or not is_over(now_ms - seen[each.id].since_ms, each.ttl_ms)
        )  # fmt: skip

    def renewed(self, entries: tuple[QueueEntry, ...], mine: QueueEntry, epoch: int) -> LockQueue:
        """The queue with our entry renewed."""
        new = replace(mine, beat=mine.beat + 1)
        self._sent_ms.setdefault(new.beat, self.clock.boot_ms())
        return LockQueue(tuple(new if each.id == self.id else each for each in entries), epoch)

    def joined(self, entries: tuple[QueueEntry, ...], epoch: int) -> LockQueue:
        """The queue with our entry added."""
        beat = 1 + max(self._sent_ms, default=0) if self.epoch else 1
        new = QueueEntry(
            id=self.id, epoch=epoch + 1, mode=self.mode, beat=beat, ttl_ms=self.ttl_ms,
            holder=self.holder, of=self.of,
        )  # fmt: skip
        self._sent_ms.setdefault(beat, self.clock.boot_ms())
        return LockQueue(with_new(entries, new), epoch + 1)

    def sent_over(self, version: Version | None) -> None:
        """A write of ours that has no certain answer is out."""
        self._out = [version]

    @property
    def in_doubt(self) -> bool:
        return bool(self._out)

    def left(self) -> None:
        """Our entry is proven to be out; the next grant has another id."""
        self.id, self.epoch, self.proven_ms = "", 0, None
        self._sent_ms, self._out = {}, []


def attend(place: QueuePlace, *, renew: bool = False) -> Procedure[list[QueueEntry]]:
    """Have our entry in the queue, with its lease renewed where that is due; who is before us.

    An empty list: we hold the lock. `renew`: the entry must be there (else `EntryGone`), and is
    renewed now. Raises `Unanswered`, `NotAQueue`.
    """
    began_ms = place.clock.boot_ms()
    since_ms = began_ms if renew else began_ms - place.ttl_ms // BEATS_PER_LEASE
    queue = place.known if renew and not place.in_doubt else None
    if not place.id:
        place.id = yield Unique()
    for tries in range(TRIES_MAX):
        if queue is None:
            queue = yield from _look(place)
        mine = place.met(queue)
        if mine is None and renew:
            raise EntryGone(f"{place.key} has no entry of ours")
        living = place.living(queue)
        proven = mine is not None and place.proven_ms is not None and place.proven_ms >= since_ms
        if proven and living == queue.entries:
            return blockers(queue.entries, place.id)
        if mine is None:
            new = place.joined(living, queue.epoch)
        else:
            new = place.renewed(living, mine, queue.epoch)
        queue = yield from _replaced(place, queue, new, tries)
    raise Unanswered(
        place.key,
        f"could not be written in {TRIES_MAX} tries: others wrote first, or no answer came",
        "try again",
        doubt=True,
    )


def leave(place: QueuePlace) -> Procedure[bool]:
    """Take our entry out of the queue; False: it was not there any more. Raises `Unanswered`."""
    if not place.id:
        return True
    queue = None if place.in_doubt else place.known
    sent = False
    for tries in range(TRIES_MAX):
        if queue is None:
            queue = yield from _look(place)
        mine = place.met(queue)
        if mine is None and not place.in_doubt:
            place.left()
            return sent
        # Without our entry in it this write only moves the version on: ours cannot land after it.
        sent = sent or mine is not None
        rest = tuple(each for each in queue.entries if each.id != place.id)
        written = yield from _replaced(place, queue, LockQueue(rest, queue.epoch), tries)
        queue = None if written is None or written.version == queue.version else written
    raise Unanswered(
        place.key, "may still have our entry",
        f"wait: it ends by itself after {place.ttl_ms / 1000:g} s",
        doubt=True,
    )


def remove(key: str, id: str, beat: int) -> Procedure[bool]:
    """Remove another client's entry if it was not renewed since; False: it was, or it is gone."""
    sent = False
    for tries in range(TRIES_MAX):
        queue = yield from _read(key, None)
        found = next((each for each in queue.entries if each.id == id), None)
        if found is None or found.beat != beat:
            return sent and found is None
        rest = tuple(each for each in queue.entries if each.id != id)
        body = encode(LockQueue(rest, queue.epoch), (yield Unique()))
        sent = True
        # Sent once (not `settle_write`): the next read shows whether the entry is still there.
        answer = yield from put_once(key, body, over(queue.version))
        if isinstance(answer, Applied):
            return True
        yield pause_after(answer, tries)
    raise Unanswered(key, "may or may not have the entry", "look again", doubt=True)


def _replaced(
    place: QueuePlace, queue: LockQueue, new: LockQueue, tries: int
) -> Procedure[LockQueue | None]:
    """The queue after one write; None: read it again."""
    body = encode(new, (yield Unique()))
    # Sent once (not `settle_write`): the next read of the queue shows whether ours landed.
    match (yield from put_once(place.key, body, over(queue.version))):
        case Applied(version):
            written = replace(new, version=version)
            place.met(written)
            return written
        case Throttled(after_s):
            # A component on the way may have sent it twice: the other copy may have landed.
            place.sent_over(queue.version)
            yield Sleep(pause_s(tries, after_s))
        case PreconditionFailed():
            pass  # others wrote first, or it answers a second copy of our own write
        case Unknown():
            place.sent_over(queue.version)
            yield Sleep(pause_s(tries))
        case never:
            assert_never(never)
    return None


def _look(place: QueuePlace) -> Procedure[LockQueue]:
    return (yield from _read(place.key, place.known))


def look(key: str) -> Procedure[LockQueue]:
    """The queue as it is now. Raises `Unanswered`, `NotAQueue`."""
    return (yield from _read(key, None))


def _read(key: str, known: LockQueue | None) -> Procedure[LockQueue]:
    unless = None if known is None else known.version
    match (yield from read(key, unless=unless, limit=BODY_BYTES_MAX)):
        case Found(body, version):
            return decode(key, body, version)
        case NotModified():
            assert known is not None
            return known
        case _:
            return LockQueue()


# --- the object's body ---------------------------------------------------------------------------


def encode(queue: LockQueue, attempt: str) -> bytes:
    """No two writes have the same bytes: S3's version of an object is a hash of them."""
    entries = [
        {"id": each.id, "epoch": each.epoch, "mode": each.mode.name.lower(), "beat": each.beat,
         "ttlMs": each.ttl_ms, "holder": each.holder, "of": each.of}
        for each in queue.entries
    ]  # fmt: skip
    fields = {"format": FORMAT, "epoch": queue.epoch, "attempt": attempt, "entries": entries}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(key: str, body: bytes, version: Version) -> LockQueue:
    """Raises `NotAQueue`: an object that is something else is never taken for a free lock."""
    cure = "see who wrote it, then delete it by hand"
    try:
        fields = json.loads(body) if len(body) <= BODY_BYTES_MAX else None
        match fields:
            case {"format": int(number)} if number > FORMAT:
                why = f"is of format {number}; this version of lockkit knows {FORMAT}"
                cure = "update it"
            case {"format": 1, "epoch": int(epoch), "entries": list(entries)}:
                if len(entries) > ENTRIES_MAX:
                    raise ValueError("too many entries")
                return LockQueue(tuple(map(_entry, entries)), epoch, version)
            case _:
                why = "is not a queue of a shared lock"
    except (ValueError, KeyError, TypeError, RecursionError):
        why = "is a damaged queue of a shared lock"
    raise NotAQueue(f"{key} {why}", cure=cure)


def _entry(fields: dict[str, Any]) -> QueueEntry:
    numbers = [fields[name] for name in ("epoch", "beat", "ttlMs")]
    if not all(type(each) is int and each >= 0 for each in numbers):
        raise ValueError("a number of an entry is none")
    epoch, beat, ttl_ms = numbers
    holder, of = (clipped(str(fields.get(name, "")), TEXT_CHARS_MAX) for name in ("holder", "of"))
    mode = Mode[str(fields["mode"]).upper()]
    return QueueEntry(
        id=str(fields["id"]), epoch=epoch, mode=mode, beat=beat, ttl_ms=ttl_ms, holder=holder, of=of
    )
