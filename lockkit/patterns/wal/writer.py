"""The writer of a log in slots, as procedures (turbopuffer; SlateDB's RFC-0001).

The next slot is claimed by create-if-absent, so the store decides every race, and a write that
nobody answered for is told for ever by what stands in its slot. A writer takes an epoch first, by
compare-and-set of the manifest, then claims the first free slot with nothing in it: the fence. An
older writer meets it where it appends next, and halts.

Slots that go out together (`parallel`) are acknowledged in their order, each only when all before
it are settled; and readers skip what is behind a higher epoch (`wal_reader`). So one fence is
enough for any number of them: nothing behind it is acknowledged, nor read. SlateDB, whose readers
do not compare epochs, writes one for each write that an older writer may have under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from lockkit.drive import Procedure, Put, Sleep, Unique
from lockkit.outcome import (
    Applied,
    Found,
    IfAbsent,
    PreconditionFailed,
    Throttled,
    Unknown,
    Version,
    over,
)
from lockkit.patterns.wal.claim import End, Landed, Missed, Taken, claim
from lockkit.patterns.wal.slot import (
    FOLDER,
    HEAD_KEY,
    MANIFEST_BYTES_MAX,
    MANIFEST_KEY,
    AppendUnknown,
    Damaged,
    Fenced,
    Manifest,
    SameEpoch,
    Slot,
    Standing,
    Tail,
    WalError,
    WalRules,
    decode_head,
    encode_head,
    first_gap,
    read_manifest,
    read_slot,
    slot_key,
    slot_number,
)
from lockkit.stores import StoreError, UnsafeStore
from lockkit.table.ask import TRIES_MAX, Unanswered, all_of, listing, pause_s, read

ROUNDS_MAX = 100
"""Times that an append finds its slots taken by what older writers had under way."""


@dataclass(slots=True)
class Log:
    """What a writer knows: its epoch, its own name, and the first slot that is not settled."""

    epoch: int
    writer: str
    next: int
    ended: WalError | None = None
    """Why it may not append any more."""
    names_head: bool = False
    head: Version | None = None
    """Of `head.json` as it moved that last."""


# --- slots together -------------------------------------------------------------------------------

Told = int | Exception | None
"""Of a batch: the slot that holds it; why it is refused or in doubt; None: it needs another."""


_HALTS = (Fenced, SameEpoch)


def settle(
    log: Log, first: int, ends: Sequence[End], rules: WalRules = WalRules()
) -> tuple[int, list[Told]]:
    """What each batch is told whose slots, from `first` on, went out together; and the next slot.

    The first slot that does not settle decides about all behind it. Behind a higher epoch they are
    void, landed or not. Behind a slot that may still be free they may come to be read: in doubt.
    """
    told: list[Told] = []
    barrier: Exception | None = None
    following = first + len(ends)
    for slot, end in enumerate(ends, first):
        here: Told = slot
        match end:
            case Landed():
                pass
            case Taken(by):
                here = _halted(log, by, rules)
            case Missed(error, doubt):
                here = in_doubt(slot, str(error)) if doubt else error
            case _:
                assert_never(end)
        if isinstance(here, Exception) and (barrier is None or isinstance(here, Fenced)):
            following = min(following, slot)
            barrier = here
        elif barrier is not None and rules.in_order:
            why = f"slot {following} before it is not settled"
            here = barrier if isinstance(barrier, _HALTS) else in_doubt(slot, why)
        told.append(here)
    return following, told


def _halted(log: Log, by: Standing | None, rules: WalRules) -> WalError | None:
    """Why a writer may not go past this slot; None: it may, the slot is behind its own fence."""
    if by is None or by.epoch < log.epoch or by.writer == log.writer:
        return None  # by.writer: an append of its own that was in doubt
    if by.epoch > log.epoch:
        return Fenced(
            f"epoch {log.epoch} was fenced: slot {by.number} is of a writer with epoch {by.epoch}; "
            "nothing of this append will be read; see who that is, or open the log again"
        )
    if not rules.same_epoch_halts:
        return None
    return SameEpoch(
        f"slot {by.number} is of another writer with this one's epoch, {log.epoch}; its manifest "
        "was set back, or its store ignores conditions (lockkit probe tells): append no more here"
    )


def in_doubt(slot: int, why: str) -> AppendUnknown:
    return AppendUnknown(
        f"nobody knows whether an append is in {slot_key(slot)}: {why}; it may yet be: read the "
        "log up to there before you append it again"
    )


def append(
    log: Log, batches: Sequence[Sequence[str]], rules: WalRules = WalRules()
) -> Procedure[list[int | Exception]]:
    """Write each batch (of JSON texts) to a slot of its own, all together.

    Tells each its slot, or `Fenced` (it never will be read), `AppendUnknown` (it may be), or what
    else kept it from being written. Not to be called while a call before it is under way.
    """
    told = yield from _written(log, batches, rules)
    if log.names_head and any(isinstance(each, int) for each in told):
        try:
            yield from move_head(log, rules)
        except (Unanswered, StoreError, Damaged) as error:
            if rules.head_proven:  # readers may go on without them
                why = str(error)
                return [in_doubt(each, why) if isinstance(each, int) else each for each in told]
    return told


def _written(
    log: Log, batches: Sequence[Sequence[str]], rules: WalRules
) -> Procedure[list[int | Exception]]:
    told: list[Told] = [log.ended] * len(batches)
    for _ in range(ROUNDS_MAX):
        left = [place for place, each in enumerate(told) if each is None]
        if not left:
            return [each for each in told if each is not None]
        first, flight = log.next, []
        for slot, place in enumerate(left, first):
            attempt = yield Unique()
            flight.append(Slot(slot, log.epoch, log.writer, attempt, tuple(batches[place])))
        ends = yield from all_of(claim(each, rules) for each in flight)
        log.next, said = settle(log, first, ends, rules)
        for place, each in zip(left, said, strict=True):
            told[place] = each
            if isinstance(each, _HALTS):
                log.ended = each
        unsettled = next((each for each in said if isinstance(each, Exception)), None)
        if unsettled is not None:
            told = [unsettled if each is None else each for each in told]
    refused = WalError(
        f"{ROUNDS_MAX} slots up to {log.next} were taken by others; nothing was appended: see who "
        "else writes this log, then append again"
    )
    return [refused if each is None else each for each in told]


def move_head(log: Log, rules: WalRules = WalRules()) -> Procedure[None]:
    """`head.json` names all that is settled, for good. Raises `Unanswered`, `Damaged`.

    Always over what was seen there, so a copy that arrives late moves nothing back.
    """
    for tries in range(TRIES_MAX):
        body = encode_head(log.next, (yield Unique()))
        match (yield Put(HEAD_KEY, body, over(log.head))):
            case Applied(version):
                log.head = version
                return
            case Throttled(after_s):
                yield Sleep(pause_s(tries, after_s))
                continue
            case PreconditionFailed() | Unknown():
                pass
            case other:
                raise AssertionError(f"not an answer to a write: {other!r}")
        found = yield from read(HEAD_KEY, limit=MANIFEST_BYTES_MAX)
        if isinstance(found, Found):
            log.head = found.version
            if decode_head(found.body) >= log.next and rules.head_forward:
                return
        else:
            log.head = None
        yield Sleep(pause_s(tries))
    raise Unanswered(
        f"{HEAD_KEY} could not be moved to slot {log.next} in {TRIES_MAX} tries; see who else "
        "writes the log, and that the store answers, then append again",
        doubt=True,
    )


# --- a writer begins ------------------------------------------------------------------------------


def open_log(rules: WalRules = WalRules()) -> Procedure[Log]:
    """A new epoch and its fence: all that older writers have acknowledged stands before `next`.

    Raises `Fenced` where a newer one has begun meanwhile, `Damaged`, `Unanswered`, `UnsafeStore`.
    """
    manifest = yield from claim_epoch(rules)
    log = Log(manifest.epoch, manifest.attempt, manifest.head, names_head=manifest.names_head)
    if rules.fences:
        (fence,) = yield from append(log, [()], rules)
        if isinstance(fence, AppendUnknown):
            raise Unanswered(
                f"nobody knows whether the fence of epoch {log.epoch} is in {slot_key(log.next)}; "
                "see that the store answers, then open the log again",
                doubt=True,
            ) from fence
        if isinstance(fence, Exception):
            raise fence
        if rules.proves:
            yield from _prove(fence)
    return log


def claim_epoch(rules: WalRules = WalRules()) -> Procedure[Manifest]:
    """One more than the manifest's, by compare-and-set; with the first slot that was free before.

    A claim that nobody answered for costs its epoch, at worst: it is claimed again, one higher.
    """
    suspect: str | None = ""
    for tries in range(TRIES_MAX):
        seen, version = yield from read_manifest()
        head, newest = yield from _tail(seen, rules)
        if newest > seen.epoch:
            if suspect == version:  # read again after that slot was there
                raise _set_back(seen, head, newest)
            suspect = version
            continue
        names_head = rules.tail is Tail.HEAD or (seen.names_head and rules.head_kept)
        mine = Manifest(seen.epoch + 1, (yield Unique()), head, names_head)
        match (yield Put(MANIFEST_KEY, mine.encode(), over(version))):
            case Applied():
                return mine
            case Throttled(after_s):
                yield Sleep(pause_s(tries, after_s))
                continue
            case PreconditionFailed() | Unknown():
                if not rules.epoch_read_back:
                    return mine
            case other:
                raise AssertionError(f"not an answer to a write: {other!r}")
        if (yield from read_manifest())[0].attempt == mine.attempt:
            return mine
        yield Sleep(pause_s(tries))
    raise Unanswered(
        f"no epoch could be claimed in {MANIFEST_KEY} in {TRIES_MAX} tries; see who else opens the "
        "log, and that the store answers, then open it again",
        doubt=False,
    )


def _tail(seen: Manifest, rules: WalRules) -> Procedure[tuple[int, int]]:
    """The first free slot, and the epoch of the slot before it (0: there is none)."""
    after = slot_key(seen.head - 1) if seen.head else ""
    keys = [each.key for each in (yield from listing(FOLDER, after=after))]
    head = first_gap(seen.head, keys)
    if not rules.first_gap:
        head = 1 + max((slot_number(key) or 0 for key in keys), default=seen.head - 1)
    if head == 0:
        return 0, 0
    last = yield from read_slot(head - 1)
    if last is None:
        raise Damaged(
            f"{MANIFEST_KEY} says that the slots below {head} are taken, and {slot_key(head - 1)} "
            "is missing; restore it: without it nobody can tell what was appended"
        )
    return head, last.epoch


def _set_back(seen: Manifest, head: int, newest: int) -> Damaged:
    said = f"counts {seen.epoch} epochs" if seen.epoch else "is missing"
    return Damaged(
        f"{MANIFEST_KEY} {said}, and slot {head - 1} is of epoch {newest}: it was set back or "
        f"removed; write it with a writer_epoch of at least {newest}, and a head of 0"
    )


def _prove(fence: int) -> Procedure[None]:
    """Two writers on a store that ignores conditions would write over each other's slots."""
    standing = yield from read(slot_key(fence))
    if not isinstance(standing, Found):
        return
    if isinstance((yield Put(slot_key(fence), standing.body, IfAbsent())), Applied):
        raise UnsafeStore(
            f"{slot_key(fence)} was created twice: the store ignores write conditions, and cannot "
            "hold a log; use one that has them (lockkit probe tells which has)"
        )
