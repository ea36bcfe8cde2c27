"""Taking several locks: all of them, in one order, or none.

A procedure of two requests, without locks of its own: threads' locks, leases on an object store,
simulated ones and an exhaustive search carry out the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

L = TypeVar("L")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TakingRules:
    """What keeps several locks from closing a circle, or from being left behind."""

    ordered: bool = True
    """All calls take locks in one order; False: in the order in which they were named."""
    once: bool = True
    """Each lock once in a call, in the strongest mode; False: as often as it is named."""
    give_back: bool = True
    """Who cannot have all keeps none."""
    reverse: bool = True
    """The last taken is let go first; False: the first."""


@dataclass(frozen=True, slots=True)
class AcquireLock(Generic[L]):
    """Answered by True once it is held, by False where the time was over."""

    lock: L


@dataclass(frozen=True, slots=True)
class ReleaseLock(Generic[L]):
    """Answered by None once it is let go."""

    lock: L


Taking = Generator[AcquireLock[L] | ReleaseLock[L], Any, R]


def take_all(locks: Sequence[L], rules: TakingRules) -> Taking[L, L | None]:
    """All of them; else none, and the one that could not be had in time.

    After an exception, too, whatever was taken is given back.
    """
    taken: list[L] = []
    missed: L | None = None
    try:
        for each in locks:
            if not (yield AcquireLock(each)):
                missed = each
                break
            taken.append(each)
    except GeneratorExit:  # its process is gone, and everything with it
        raise
    except BaseException:
        with suppress(Exception):
            yield from give_all(taken, rules)
        raise
    if missed is not None and rules.give_back:
        yield from give_all(taken, rules)
    return missed


def give_all(locks: Sequence[L], rules: TakingRules) -> Taking[L, None]:
    """Every one of them, whatever befalls one; the first error is raised after the last."""
    first: BaseException | None = None
    for each in reversed(locks) if rules.reverse else locks:
        try:
            yield ReleaseLock(each)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - raised below
            first = first or error
    if first is not None:
        raise first


def carry_out(taking: Taking[L, R], take: Callable[[L], bool], give: Callable[[L], object]) -> R:
    """For real, one after the other; an exception is thrown in where it came up."""
    try:
        request = taking.send(None)
        while True:
            try:
                answer = (
                    take(request.lock) if isinstance(request, AcquireLock) else give(request.lock)
                )
            except BaseException as error:  # noqa: BLE001 - handed on, not swallowed
                request = taking.throw(error)
            else:
                request = taking.send(answer)
    except StopIteration as done:
        result: R = done.value
        return result
