"""Taking several locks: all of them, in one order, or none.

A procedure of two requests, without locks of its own. Threads' locks, leases on an object store,
simulated locks and an exhaustive search all run the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lockkit import runtime

L = TypeVar("L")
R = TypeVar("R")
C = TypeVar("C", bound=Any)


@dataclass(frozen=True, slots=True)
class AcquireLock(Generic[L]):
    """Answered by True once it is held, by False if it was not free in time."""

    lock: L


@dataclass(frozen=True, slots=True)
class ReleaseLock(Generic[L]):
    """Answered by None once it is released."""

    lock: L


Taking = Generator[AcquireLock[L] | ReleaseLock[L], Any, R]


def take_all(locks: Sequence[L]) -> Taking[L, L | None]:
    """Take all locks and return None; else take none, and return the one that was not free in time.

    After an exception, too, everything that was taken is released.
    """
    taken: list[L] = []
    missed: L | None = None
    try:
        for each in locks:
            if not (yield AcquireLock(each)):
                missed = each
                break
            taken.append(each)
    except GeneratorExit:  # its process is gone, and its locks with it
        raise
    except BaseException:
        with suppress(Exception):
            yield from give_all(taken)
        raise
    if missed is not None:
        yield from give_all(to_give_back(taken))
    return missed


def give_all(locks: Sequence[L]) -> Taking[L, None]:
    """Release every one, even if one fails; the first error is raised after the last."""
    first: BaseException | None = None
    for each in to_release(locks):
        try:
            yield ReleaseLock(each)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - raised below
            first = first or error
    if first is not None:
        raise first


# --- its rules ------------------------------------------------------------------------------------


def in_order(wanted: Iterable[C]) -> list[C]:
    """All calls take locks in one order, so that no two wait for each other."""
    return sorted(wanted)


def to_give_back(taken: Sequence[L]) -> Sequence[L]:
    """A call that cannot get all locks keeps none."""
    return taken


def to_release(locks: Sequence[L]) -> Iterable[L]:
    """The lock that was taken last is released first."""
    return reversed(locks)


def confirmed(held: Callable[[], bool]) -> bool:
    """Once the last lock is taken, the first must still be held: it may have expired meanwhile."""
    return held()


# --- with real locks ------------------------------------------------------------------------------


def carry_out(taking: Taking[L, R], take: Callable[[L], bool], give: Callable[[L], object]) -> R:
    """Use real locks, one after the other; an exception is raised where it occurred."""
    return runtime.carry_out(
        taking, lambda each: (take if isinstance(each, AcquireLock) else give)(each.lock)
    )
