"""A question put to the store until it is answered: a read, a listing, a proven create.

An adapter sends each request once and passes on whatever came back; here the ambiguous and the
throttled answers of a table's files are settled, so that the commit above reads as a protocol.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

from lockkit.drive import Delete, Get, List, Procedure, Put, Sleep, Together
from lockkit.outcome import (
    Applied,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    NotModified,
    PreconditionFailed,
    Throttled,
    Unknown,
    Version,
)
from lockkit.stores import Listing, NoAnswer, StoreError

TRIES_MAX = 7
"""About 3 s of pauses in all; a store that is silent for longer is not going to be waited for."""
FIRST_PAUSE_S = 0.05
AT_ONCE_MAX = 8
"""Requests of one batch that are under way together; a client keeps connections for three."""
LONGEST_PAUSE_S = 2.0
LONGEST_ASKED_S = 30.0
"""However long a store asks to be left alone: a writer that sleeps for an hour tells nobody why."""


READ_BYTES_MAX = 64_000_000
"""Of a longer file of the timeline no more is read; whoever parses it refuses its length."""


class TableError(Exception):
    """The table, or a file of it, is not what it should be. Nothing was published by this call."""


class Unanswered(TableError):
    """The store gave no usable answer within its tries.

    `doubt` tells whether a write of ours may have landed all the same, or may yet.
    """

    def __init__(self, message: str, *, doubt: bool) -> None:
        super().__init__(message)
        self.doubt = doubt


def pause_s(tries: int, after_s: float | None = None) -> float:
    """The wait after the n-th failure (0-based); within reason what the store asked for."""
    asked_s = min(LONGEST_ASKED_S, after_s or 0.0)
    return max(asked_s, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**tries))


def read(
    key: str, *, unless: Version | None = None, limit: int | None = READ_BYTES_MAX
) -> Procedure[Found | Missing | NotModified]:
    """The object at `key`; `Unanswered` when the store does not say within the tries.

    Of a body that is longer than `limit`, `limit` + 1 bytes.
    """
    why = ""
    for tries in range(TRIES_MAX):
        match (yield Get(key, unless, limit)):
            case Found() | Missing() | NotModified() as answer:
                return answer
            case Throttled(after_s):
                why = "throttled"
                yield Sleep(pause_s(tries, after_s))
            case Unknown(why):
                yield Sleep(pause_s(tries))
            case other:
                raise AssertionError(f"not an answer to a read: {other!r}")
    raise Unanswered(
        f"{key} could not be read in {TRIES_MAX} tries ({why}); see that the store answers, then "
        "try again",
        doubt=False,
    )


def listing(prefix: str, *, after: str = "") -> Procedure[Listing]:
    """Every object under `prefix` whose key is greater than `after`; else raises `Unanswered`."""
    for tries in range(TRIES_MAX):
        try:
            entries: Listing = yield List(prefix, after)
        except NoAnswer as error:
            why = str(error)
            yield Sleep(pause_s(tries))
        else:
            return entries
    raise Unanswered(
        f"{prefix}* could not be listed in {TRIES_MAX} tries ({why}); see that the store answers, "
        "then try again",
        doubt=False,
    )


def all_of(procedures: Iterable[Procedure[Any]]) -> Procedure[list[Any]]:
    """The results of procedures that do not depend on one another, in their order.

    Some go out together; the first that raises ends it, after those beside it have ended.
    """
    waiting = list(procedures)
    results: list[Any] = []
    for first in range(0, len(waiting), AT_ONCE_MAX):
        batch = tuple(waiting[first : first + AT_ONCE_MAX])
        results += (yield Together(batch)) if len(batch) > 1 else [(yield from batch[0])]
    return results


def delete(key: str, version: Version | None = None) -> Procedure[None]:
    """Delete an object that nobody will write again, until that is proven.

    With `version` only that version is deleted. An object that is gone or was replaced is no error.
    Raises `Unanswered` when the store does not say within the tries.
    """
    why = ""
    for tries in range(TRIES_MAX):
        match (yield Delete(key, None if version is None else IfVersion(version))):
            case Applied() | PreconditionFailed():
                return
            case Throttled(after_s):
                why = "throttled"
                yield Sleep(pause_s(tries, after_s))
            case Unknown(why):
                yield Sleep(pause_s(tries))
    raise Unanswered(
        f"{key} could not be deleted in {TRIES_MAX} tries ({why}); what is left is deleted when "
        "this is run again",
        doubt=True,
    )


def create(key: str, body: bytes) -> Procedure[Version | Found]:
    """Create `key`, and prove it: a version where it now holds exactly `body`, else what it holds.

    Sending the same bytes under create-if-absent any number of times lands at most one copy, so a
    lost answer costs a read and, where the object is still missing, a resend. An object with our
    very bytes counts as created whoever sent them: a roll-forward writes the same file.
    """
    doubt, why = False, ""
    for tries in range(TRIES_MAX):
        try:
            match (yield Put(key, body, IfAbsent())):
                case Applied(version):
                    return version
                case Throttled(after_s):
                    why = "throttled"
                    yield Sleep(pause_s(tries, after_s))
                    continue
                case PreconditionFailed():
                    pass  # also the answer to a hidden second copy of our own write: look
                case Unknown(why):
                    doubt = True
                case other:
                    raise AssertionError(f"not an answer to a write: {other!r}")
            match (yield from read(key)):
                case Found(found, version) as standing:
                    return version if found == body else standing
                case Missing():
                    yield Sleep(pause_s(tries))  # still out: the same write once more
                case NotModified():
                    raise AssertionError("an unconditional read was answered 304")
                case never:
                    assert_never(never)
        except (StoreError, Unanswered) as error:
            if not doubt:
                raise
            raise Unanswered(f"{key} may have been written: {error}", doubt=True) from error
    # Also after nothing but 429: with a hidden retry that is the answer to a second copy.
    match (yield from read(key)):
        case Found(found, version) as standing:
            return version if found == body else standing
    raise Unanswered(
        f"{key} could not be written in {TRIES_MAX} tries ({why or 'it never appeared'}); see that "
        "the store answers, then try again",
        doubt=doubt,
    )
