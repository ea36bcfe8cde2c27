"""The writer of a log in slots, as procedures (turbopuffer; SlateDB's RFC-0001).

The next slot is claimed by create-if-absent, so the store decides every race. The content of a slot
always shows the outcome of a write without an answer. A writer first takes an epoch, by
compare-and-set of the manifest. Then it claims the first free slot with an empty one: the fence. An
older writer finds it at its next append, and stops.

Slots that are sent together (`parallel`) are acknowledged in their order, each only when all before
it are settled, and readers skip what is behind a higher epoch (`wal_reader`). So one fence is
enough for any number of them: nothing behind it is acknowledged or read. SlateDB's readers do not
compare epochs, so it writes one fence for each write that an older writer may have in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from lockkit.errors import StoreError, Unanswered, UnsafeStore
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    Missing,
    PreconditionFailed,
    Throttled,
    Unknown,
    Version,
    over,
)
from lockkit.recipes.errors import AppendUnknown, Damaged, Fenced, SameEpoch, WalError
from lockkit.recipes.wal.slot import (
    FOLDER,
    HEAD_KEY,
    MANIFEST_BYTES_MAX,
    MANIFEST_KEY,
    End,
    LogTail,
    Manifest,
    Slot,
    SlotLanded,
    SlotRead,
    SlotTaken,
    SlotUnknown,
    claim,
    decode_head,
    encode_head,
    first_gap,
    read_manifest,
    read_slot,
    slot_key,
)
from lockkit.runtime import Procedure, Sleep, Unique
from lockkit.runtime.proven import TRIES_MAX, all_of, listing, pause_s, put_once, read, settle_write

ROUNDS_MAX = 100
"""How often an append may find its slots taken by the pending writes of older writers."""


@dataclass(slots=True)
class WriterState:
    """A writer's state: its epoch, its own name, and the first slot that is not settled."""

    epoch: int
    writer: str
    next: int
    ended: WalError | None = None
    """Why it may not append any more."""
    names_head: bool = False
    head: Version | None = None
    """Version of `head.json` after its last move."""


# --- slots together -------------------------------------------------------------------------------

Outcome = int | Exception | None
"""Per batch: the slot that holds it; why it is refused or in doubt; None: needs another slot."""


_HALTS = (Fenced, SameEpoch)


def settle(log: WriterState, first: int, ends: Sequence[End]) -> tuple[int, list[Outcome]]:
    """The outcome of each batch whose slots, from `first` on, went out together; and the next slot.

    The first slot that does not settle decides about all behind it. Behind a higher epoch they are
    void, landed or not. Behind a slot that may still be free they may still be read: in doubt.
    """
    outcomes: list[Outcome] = []
    barrier: Exception | None = None
    following = first + len(ends)
    for slot, end in enumerate(ends, first):
        here: Outcome = slot
        match end:
            case SlotLanded():
                pass
            case SlotTaken(by):
                here = halted(log, by)
            case SlotUnknown(error, doubt):
                here = in_doubt(slot, str(error)) if doubt else error
            case _:
                assert_never(end)
        if isinstance(here, Exception) and (barrier is None or isinstance(here, Fenced)):
            following = min(following, slot)
            barrier = here
        elif waits_behind(barrier):
            why = f"slot {following} before it is not settled"
            here = barrier if isinstance(barrier, _HALTS) else in_doubt(slot, why)
        outcomes.append(here)
    return following, outcomes


def waits_behind(barrier: Exception | None) -> bool:
    """A slot is acknowledged when all slots before it are settled."""
    return barrier is not None


def halted(log: WriterState, by: SlotRead | None) -> WalError | None:
    """Why a writer may not go past this slot; None: it may, the slot is behind its own fence."""
    if by is None or by.epoch < log.epoch or by.writer == log.writer:
        return None  # by.writer: an append of its own that was in doubt
    if by.epoch > log.epoch:
        return Fenced(log.epoch, slot=by.number, by_epoch=by.epoch)
    return SameEpoch(log.epoch, slot=by.number)


def in_doubt(slot: int, why: str) -> AppendUnknown:
    return AppendUnknown(slot, slot_key(slot), why)


def append(log: WriterState, batches: Sequence[Sequence[str]]) -> Procedure[list[int | Exception]]:
    """Write each batch (of JSON texts) to a slot of its own, all together.

    Returns for each its slot, or `Fenced` (it will never be read), `AppendUnknown` (it may be), or
    the error that prevented it. Must not be called during another call.
    """
    outcomes = yield from _written(log, batches)
    if log.names_head and any(isinstance(each, int) for each in outcomes):
        try:
            yield from move_head(log)
        except (Unanswered, StoreError, Damaged) as error:
            return head_unproven(outcomes, error)
    return outcomes


def head_unproven(outcomes: list[int | Exception], error: Exception) -> list[int | Exception]:
    """An append is acknowledged once the head is known to name it: readers may stop at the head."""
    return [in_doubt(each, str(error)) if isinstance(each, int) else each for each in outcomes]


def _written(
    log: WriterState, batches: Sequence[Sequence[str]]
) -> Procedure[list[int | Exception]]:
    outcomes: list[Outcome] = [log.ended] * len(batches)
    for _ in range(ROUNDS_MAX):
        left = [place for place, each in enumerate(outcomes) if each is None]
        if not left:
            return [each for each in outcomes if each is not None]
        first, flight = log.next, []
        for slot, place in enumerate(left, first):
            attempt = yield Unique()
            flight.append(Slot(slot, log.epoch, log.writer, attempt, tuple(batches[place])))
        ends = yield from all_of(claim(each) for each in flight)
        log.next, said = settle(log, first, ends)
        for place, each in zip(left, said, strict=True):
            outcomes[place] = each
            if isinstance(each, _HALTS):
                log.ended = each
        unsettled = next((each for each in said if isinstance(each, Exception)), None)
        if unsettled is not None:
            outcomes = [unsettled if each is None else each for each in outcomes]
    refused = WalError(
        f"{ROUNDS_MAX} slots up to {log.next} were taken by others; nothing was appended",
        slot=log.next, cure="see who else writes this log, then append again",
    )  # fmt: skip
    return [refused if each is None else each for each in outcomes]


def move_head(log: WriterState) -> Procedure[None]:
    """Let `head.json` name everything that is settled. Raises `Unanswered`, `Damaged`.

    Always over the observed version, so a late copy never moves the head back.
    """
    for tries in range(TRIES_MAX):
        body = encode_head(log.next, (yield Unique()))
        settled = yield from settle_write(HEAD_KEY, body, over(log.head), limit=MANIFEST_BYTES_MAX)
        if isinstance(settled, Version):
            log.head = settled
            return
        if isinstance(settled, Missing):
            log.head = None
            continue
        log.head = settled.version
        if is_moved(decode_head(settled.body), log):
            return
        yield Sleep(pause_s(tries))
    raise Unanswered(
        HEAD_KEY, f"could not be moved to slot {log.next} in {TRIES_MAX} tries",
        "see who else writes the log, and that the store answers, then append again", doubt=True,
    )  # fmt: skip


def is_moved(head: int, log: WriterState) -> bool:
    """Whether a newer writer has moved it as far or further: it never goes back."""
    return head >= log.next


# --- a writer begins ------------------------------------------------------------------------------


def open_log(tail: LogTail = LogTail.NEXT_SLOT) -> Procedure[WriterState]:
    """A new epoch and its fence: everything that older writers acknowledged is before `next`.

    Raises `Fenced` if a newer one has begun meanwhile, `Damaged`, `Unanswered`, `UnsafeStore`.
    """
    manifest = yield from claim_epoch(tail)
    log = WriterState(
        manifest.epoch, manifest.attempt, manifest.head, names_head=manifest.names_head
    )
    yield from put_fence(log)
    return log


def put_fence(log: WriterState) -> Procedure[None]:
    """A writer begins with an empty slot. Raises the error that prevented it."""
    (fence,) = yield from append(log, [()])
    if isinstance(fence, AppendUnknown):
        raise Unanswered(
            slot_key(log.next), f"may or may not hold the fence of epoch {log.epoch}",
            "check that the store answers, then open the log again", doubt=True,
        ) from fence  # fmt: skip
    if isinstance(fence, Exception):
        raise fence
    yield from prove(fence)


def claim_epoch(tail: LogTail = LogTail.NEXT_SLOT) -> Procedure[Manifest]:
    """One more than the manifest's, by compare-and-set; with the first slot that was free before.

    A claim without an answer costs its epoch at worst: it is claimed again, one higher. So it is
    not settled (`settle_write`), which could end with the epoch in doubt.
    """
    suspect: str | None = ""
    for tries in range(TRIES_MAX):
        seen, version = yield from read_manifest()
        head, newest = yield from _tail(seen)
        if newest > seen.epoch:
            if suspect == version:  # read again after that slot was there
                raise _set_back(seen, head, newest)
            suspect = version
            continue
        mine = Manifest(seen.epoch + 1, (yield Unique()), head, names_head(seen, tail))
        match (yield from put_once(MANIFEST_KEY, mine.encode(), over(version))):
            case Applied():
                return mine
            case Throttled(after_s):
                yield Sleep(pause_s(tries, after_s))
                continue
            case PreconditionFailed() | Unknown():
                pass
            case never:
                assert_never(never)
        if (yield from is_granted(mine)):
            return mine
        yield Sleep(pause_s(tries))
    raise Unanswered(
        MANIFEST_KEY, f"gave no epoch in {TRIES_MAX} tries",
        "see who else opens the log, and that the store answers, then open it again", doubt=False,
    )  # fmt: skip


def names_head(seen: Manifest, tail: LogTail) -> bool:
    """A writer of a log whose head was named before must keep naming it."""
    return tail is LogTail.HEAD or seen.names_head


def is_granted(mine: Manifest) -> Procedure[bool]:
    """After a 412 or no answer to the claim of an epoch: whether it is in the manifest."""
    return (yield from read_manifest())[0].attempt == mine.attempt


def _tail(seen: Manifest) -> Procedure[tuple[int, int]]:
    """The first free slot, and the epoch of the slot before it (0: there is none)."""
    after = slot_key(seen.head - 1) if seen.head else ""
    keys = [each.key for each in (yield from listing(FOLDER, after=after))]
    head = first_gap(seen.head, keys)
    if head == 0:
        return 0, 0
    last = yield from read_slot(head - 1)
    if last is None:
        raise Damaged(
            f"is missing, and {MANIFEST_KEY} says that the slots below {head} are taken",
            key=slot_key(head - 1), slot=head - 1,
            cure="restore it: the log cannot be read without it",
        )  # fmt: skip
    return head, last.epoch


def _set_back(seen: Manifest, head: int, newest: int) -> Damaged:
    said = f"counts {seen.epoch} epochs" if seen.epoch else "is missing"
    return Damaged(
        f"{said}, and slot {head - 1} is of epoch {newest}: it was set back or "
        "removed",
        key=MANIFEST_KEY, slot=head - 1,
        cure=f"write it with a writer_epoch of at least {newest}, and a head of 0",
    )  # fmt: skip


def prove(fence: int) -> Procedure[None]:
    """On a store that ignores conditions two writers would overwrite each other's slots."""
    standing = yield from read(slot_key(fence))
    if not isinstance(standing, Found):
        return
    # Not `settle_write`: this tests the store, so the raw answer counts.
    if isinstance((yield from put_once(slot_key(fence), standing.body, IfAbsent())), Applied):
        raise UnsafeStore(
            f"{slot_key(fence)} was created twice: the store ignores write conditions, and cannot "
            "hold a log; use one that obeys them (lockkit probe shows whether a store does)"
        )
