"""A reader of the log: everything up to the first missing slot, in the order of the slots.

A slot whose epoch is lower than that of any slot before it is void. Its writer had been fenced, and
either received that error or no answer. So all readers replay the same, whenever they start.

A reader stays up to date with one request while the next slot is missing: its 404 has no body and
is authoritative. With `LogTail.HEAD` it is a conditional read of the object that names the head,
answered by 304. That is authoritative if each append moves the head before it is acknowledged; the
price is a second write, on one hot key. A head that is moved later lags behind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lockkit.clock import Clock
from lockkit.protocol.outcome import Found, Missing, NotModified, Version
from lockkit.recipes.errors import Damaged, WalError
from lockkit.recipes.wal.slot import (
    COUNT_MAX,
    HEAD_KEY,
    MANIFEST_BYTES_MAX,
    LogTail,
    SlotRead,
    decode_head,
    read_slot,
    slot_key,
)
from lockkit.runtime import Procedure, run
from lockkit.runtime.proven import AT_ONCE_MAX, all_of, read
from lockkit.stores import Store, open_store

WINDOWS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Cursor:
    """The progress of a reader: the slot it reads next, and the highest epoch before that.

    :param next: the slot to read next.
    :param epoch: the highest epoch read so far.
    """

    next: int = 0
    epoch: int = 0
    head: Version | None = None
    """Version of `head.json` when everything below it had been read; None: it was not read."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The sequence number of a record: its slot, and its place in that slot.

    :param slot: the slot's number.
    :param index: the record's place in the slot, from 0.
    """

    slot: int
    index: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of the log, a JSON value.

    :param at: its sequence number.
    :param record: its value.
    """

    at: Position
    record: Any


def is_void(cursor: Cursor, slot: SlotRead) -> bool:
    """A slot behind one of a higher epoch is void for readers."""
    return slot.epoch < cursor.epoch


def fold(cursor: Cursor, slot: SlotRead) -> tuple[Cursor, list[Entry]]:
    """Replay the next slot: the cursor after it, and its entries."""
    assert slot.number == cursor.next
    after = replace(cursor, next=slot.number + 1, epoch=max(cursor.epoch, slot.epoch))
    if is_void(cursor, slot):
        return after, []
    return after, [
        Entry(Position(slot.number, index), each) for index, each in enumerate(slot.records)
    ]


def poll(
    cursor: Cursor = Cursor(), tail: LogTail = LogTail.NEXT_SLOT
) -> Procedure[tuple[Cursor, list[Entry]]]:
    """Everything that was appended since `cursor`; one request if that is nothing.

    Contains every append that was acknowledged before the first request left. Reads ahead in
    windows that double, so that k slots cost at most 2k + 1 requests, most of them in parallel.
    """
    end, head = COUNT_MAX, cursor.head
    if tail is LogTail.HEAD:
        match (yield from read(HEAD_KEY, unless=cursor.head, limit=MANIFEST_BYTES_MAX)):
            case NotModified():
                return cursor, []
            case Found(body, head):
                end = decode_head(body)
            case Missing():  # no writer of it names its head: the next slot decides
                pass
    entries: list[Entry] = []
    ahead = 1
    for _ in range(WINDOWS_MAX):
        window = range(cursor.next, min(cursor.next + ahead, end))
        if not window:
            return replace(cursor, head=head), entries
        for slot in (yield from all_of(read_slot(number) for number in window)):
            if slot is None and end < COUNT_MAX:
                raise Damaged(
                    f"is missing, and {HEAD_KEY} says that the slots below {end} are there",
                    key=slot_key(cursor.next), slot=cursor.next,
                    cure=f"restore it, or delete {HEAD_KEY} if the log was cut on purpose",
                )  # fmt: skip
            if slot is None:
                return cursor, entries
            cursor, found = fold(cursor, slot)
            entries += found
        ahead = min(2 * ahead, AT_ONCE_MAX)
    raise WalError(
        f"the log had no end after {WINDOWS_MAX} reads ahead, at slot {cursor.next}",
        slot=cursor.next, cure="begin again from there, or slow its writers down",
    )  # fmt: skip


class Reader:
    """A cached view of the log at `url`, for one thread; store options as `open_store` takes them.

    with Reader("s3://lake/orders-log") as reader:
        reader.look()

    :param url: where the slots are, as for `open_store`.
    :param tail: how to find the end of the log (`LogTail`).
    :param clock: the source of time; tests replace it.
    :param client: the name of this reader in the store's log.
    :param store_options: those of `open_store`: endpoint, credentials, ...
    """

    def __init__(
        self, url: str, *, tail: LogTail = LogTail.NEXT_SLOT, clock: Clock | None = None,
        client: str = "", **store_options: Any,
    ) -> None:  # fmt: skip
        self.store: Store = open_store(url.rstrip("/"), client=client, **store_options)
        self.cursor = Cursor()
        self.entries: list[Entry] = []
        """All entries so far, in order."""
        self._tail, self._clock = tail, clock or Clock()

    def poll(self) -> list[Entry]:
        """The new entries. After `Damaged`, `Unanswered` or `StoreError` none were added."""
        self.cursor, new = run(poll(self.cursor, self._tail), self.store, self._clock)
        self.entries += new
        return new

    def __repr__(self) -> str:
        return f"<Reader {self.store.url}: {len(self.entries)} entries, {self.cursor}>"

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
