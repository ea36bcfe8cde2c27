"""A reader of the log: everything up to the first slot that is missing, in the order of the slots.

A slot whose epoch is lower than that of any slot before it is void: its writer had been fenced, and
was told so, or never told anything. So all readers replay the same, whenever they come.

What a reader has it keeps for as long as the next slot is missing. That is its conditional read,
and 404 its 304: without a body, and the truth. An object that names the head would cost a second
write for each append, on one hot key, and would prove nothing: it is behind by what was not yet
written to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from lockkit.clock import Clock
from lockkit.drive import Procedure, run
from lockkit.outcome import Found, NotModified, Version
from lockkit.patterns.wal.slot import (
    MANIFEST_BYTES_MAX,
    MANIFEST_KEY,
    Standing,
    Tail,
    WalError,
    WalRules,
    decode_manifest,
    read_slot,
)
from lockkit.stores import Store, open_store
from lockkit.table.ask import AT_ONCE_MAX, all_of, read

WINDOWS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a reader is: the slot it reads next, and the highest epoch before that."""

    next: int = 0
    epoch: int = 0
    manifest: Version | None = None
    """Only of a reader that believes the manifest's head (`Tail.MANIFEST`)."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The sequence number of a record: its slot, and its place in that."""

    slot: int
    index: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of the log, a JSON value."""

    at: Position
    record: Any


def fold(
    cursor: Cursor, slot: Standing, rules: WalRules = WalRules()
) -> tuple[Cursor, list[Entry]]:
    """The next slot, replayed: where that leads, and what it holds for a reader."""
    assert slot.number == cursor.next
    after = replace(cursor, next=slot.number + 1, epoch=max(cursor.epoch, slot.epoch))
    if slot.epoch < cursor.epoch and rules.voids:
        return after, []
    return after, [
        Entry(Position(slot.number, index), each) for index, each in enumerate(slot.records)
    ]


def look(
    cursor: Cursor = Cursor(), rules: WalRules = WalRules()
) -> Procedure[tuple[Cursor, list[Entry]]]:
    """Everything that was appended since `cursor`; one request where that is nothing.

    Has every append that was acknowledged before the first request left. Reads ahead in windows
    that double, so that k slots cost at most 2k + 1 requests, most of them together.
    """
    if rules.tail is Tail.MANIFEST:
        return (yield from _look_at_head(cursor, rules))
    entries: list[Entry] = []
    ahead = 1
    for _ in range(WINDOWS_MAX):
        window = range(cursor.next, cursor.next + ahead)
        for slot in (yield from all_of(read_slot(number) for number in window)):
            if slot is None:
                return cursor, entries
            cursor, found = fold(cursor, slot, rules)
            entries += found
        ahead = min(2 * ahead, AT_ONCE_MAX)
    raise WalError(
        f"the log had no end after {WINDOWS_MAX} reads ahead, at slot {cursor.next}; begin again "
        "from there, or slow its writers down"
    )


def _look_at_head(cursor: Cursor, rules: WalRules) -> Procedure[tuple[Cursor, list[Entry]]]:
    """The mistake that a hint invites: no news in it is taken for no news."""
    entries: list[Entry] = []
    match (yield from read(MANIFEST_KEY, unless=cursor.manifest, limit=MANIFEST_BYTES_MAX)):
        case Found(body, version):
            head, cursor = decode_manifest(body).head, replace(cursor, manifest=version)
            slots = yield from all_of(read_slot(number) for number in range(cursor.next, head))
            for slot in slots:
                cursor, found = fold(cursor, slot, rules)
                entries += found
        case NotModified() | _:
            pass
    return cursor, entries


class Reader:
    """A cached view of the log at `url`, for one thread; store options as `open_store` takes them.

    with Reader("s3://lake/orders-log") as reader:
        reader.look()
    """

    def __init__(
        self, url: str, *, rules: WalRules = WalRules(), clock: Clock | None = None,
        client: str = "", **store_options: Any,
    ) -> None:  # fmt: skip
        self.store: Store = open_store(url.rstrip("/"), client=client, **store_options)
        self.cursor = Cursor()
        self.entries: list[Entry] = []
        """All that was seen, in order."""
        self._rules, self._clock = rules, clock or Clock()

    def look(self) -> list[Entry]:
        """What is new. Raises `Damaged`, `Unanswered`, `StoreError`; then nothing was taken in."""
        self.cursor, new = run(look(self.cursor, self._rules), self.store, self._clock)
        self.entries += new
        return new

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()
