"""One slot, claimed by create-if-absent: the result is its content, or why there is none.

After a 412 or no answer, slot n is read back. If it holds this attempt, it is committed. If it
holds another, this attempt can never land. If it is still empty, the same bytes are sent again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from lockkit.errors import StoreError, Unanswered
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    IfAbsent,
    PreconditionFailed,
    Throttled,
    Unknown,
)
from lockkit.recipes.errors import Damaged
from lockkit.recipes.wal.slot import Slot, SlotRead, read_slot
from lockkit.runtime import Procedure, Sleep
from lockkit.runtime.proven import TRIES_MAX, pause_s, put_once


@dataclass(frozen=True, slots=True)
class SlotLanded:
    """The slot holds this very write."""


@dataclass(frozen=True, slots=True)
class SlotTaken:
    """The slot holds another write: this one can never land. None: it was not read."""

    by: SlotRead | None


@dataclass(frozen=True, slots=True)
class SlotUnknown:
    """The slot is not known to hold anything. `doubt`: this write may be in it, or may still be."""

    error: Exception
    doubt: bool


End = SlotLanded | SlotTaken | SlotUnknown


def claim(slot: Slot) -> Procedure[End]:
    """Create the slot and settle the outcome; raises nothing.

    Not `settle_write`: after a 429 the slot counts as in doubt here, and each claim of a batch must
    end with a value.
    """
    body, doubt, why = slot.encode(), False, "throttled"
    try:
        for tries in range(TRIES_MAX):
            match (yield from put_once(slot.key, body, (yield from condition_of(slot.key)))):
                case Applied():
                    return SlotLanded()
                case Throttled(after_s):
                    if (end := throttled(slot)) is not None:
                        return end
                    doubt = True  # this copy is not done: a hidden retry's first one may be
                    yield Sleep(pause_s(tries, after_s))
                    continue
                case PreconditionFailed():
                    end, why = refused(slot), "refused, and not there"
                case Unknown(why):
                    end = unanswered(slot)
                case never:
                    assert_never(never)
            if end is not None:
                return end
            doubt = True
            standing = yield from read_slot(slot.number)
            if standing is not None:
                return SlotLanded() if standing.attempt == slot.attempt else SlotTaken(standing)
            yield Sleep(pause_s(tries))  # still pending: the same bytes again, one copy can land
    except Damaged as error:
        return SlotUnknown(error, False)  # another write is there: ours never will be
    except (StoreError, Unanswered) as error:
        return SlotUnknown(error, doubt)
    return SlotUnknown(
        Unanswered(
            slot.key,
            f"could not be written in {TRIES_MAX} tries ({why})",
            "check that the store answers, then append again",
            doubt=True,
        ),
        True,
    )


def condition_of(_key: str) -> Procedure[Condition]:
    """A slot is created, never overwritten."""
    yield from ()
    return IfAbsent()


# What an answer alone says about the claim's end; None: it has to be read back.


def refused(_slot: Slot) -> End | None:
    """A 412 may be a retry of our own success."""
    return None


def unanswered(_slot: Slot) -> End | None:
    return None


def throttled(_slot: Slot) -> End | None:
    return None
