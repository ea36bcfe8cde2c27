"""One slot, claimed by create-if-absent: it ends with what stands there, or with the reason not.

After a 412, or no answer at all, slot n is read back. What holds this very attempt is committed;
what holds another can never be this one; and where nothing is yet, the same bytes are sent again.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockkit.drive import Procedure, Put, Sleep
from lockkit.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    PreconditionFailed,
    Throttled,
    Unknown,
    over,
)
from lockkit.patterns.wal.slot import Damaged, Slot, Standing, WalRules, read_slot
from lockkit.rules import Ambiguous
from lockkit.stores import StoreError
from lockkit.table.ask import TRIES_MAX, Unanswered, pause_s, read


@dataclass(frozen=True, slots=True)
class Landed:
    """The slot holds this very write."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The slot holds another: this write can never land. None: nobody looked which."""

    by: Standing | None


@dataclass(frozen=True, slots=True)
class Missed:
    """Nothing is known to stand there. `doubt`: this write may, or may yet."""

    error: Exception
    doubt: bool


End = Landed | Taken | Missed


def claim(slot: Slot, rules: WalRules = WalRules()) -> Procedure[End]:
    """Create the slot, and find out what became of it; nothing is raised."""
    body, doubt, why = slot.encode(), False, "throttled"
    try:
        for tries in range(TRIES_MAX):
            match (yield Put(slot.key, body, (yield from _condition(slot.key, rules)))):
                case Applied():
                    return Landed()
                case Throttled(after_s):
                    if not rules.landed:
                        return Landed()
                    doubt = True  # this copy is not done: a hidden retry's first one may be
                    yield Sleep(pause_s(tries, after_s))
                    continue
                case PreconditionFailed():
                    meaning, why = rules.create_412, "refused, and not there"
                case Unknown(why):
                    meaning = rules.create_unknown
                case other:
                    raise AssertionError(f"not an answer to a write: {other!r}")
            if meaning is Ambiguous.OURS or not rules.landed:
                return Landed()
            if meaning is Ambiguous.LOST:
                return Taken(None)
            doubt = True
            standing = yield from read_slot(slot.number)
            if standing is not None:
                return Landed() if standing.attempt == slot.attempt else Taken(standing)
            yield Sleep(pause_s(tries))  # still out: the same bytes again, at most one copy lands
    except Damaged as error:
        return Missed(error, False)  # something else stands there: ours never will
    except (StoreError, Unanswered) as error:
        return Missed(error, doubt)
    return Missed(
        Unanswered(
            f"{slot.key} could not be written in {TRIES_MAX} tries ({why}); see that the store "
            "answers, then append again",
            doubt=True,
        ),
        True,
    )


def _condition(key: str, rules: WalRules) -> Procedure[Condition]:
    if rules.if_absent:
        return IfAbsent()
    seen = yield from read(key)
    return over(seen.version if isinstance(seen, Found) else None)
