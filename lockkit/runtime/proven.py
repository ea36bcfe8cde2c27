"""Reads and writes of objects that end with a proven answer, or with `Unanswered`.

Whatever the store says of one request, these ask again within a bound. `settle_write` is the only
place where a conditional write with an ambiguous answer is read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, assert_never

from lockkit.errors import NoAnswer, StoreError, Unanswered
from lockkit.protocol.outcome import (
    Applied,
    Condition,
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
from lockkit.runtime import Delete, Get, List, Parallel, Procedure, Put, Sleep
from lockkit.stores import Listing

TRIES_MAX = 7
"""About 3 s of pauses in all; a store that is silent for longer is not going to be waited for."""
FIRST_PAUSE_S = 0.05
AT_ONCE_MAX = 8
"""Requests of one batch that are under way together; a client keeps connections for three."""
LONGEST_PAUSE_S = 2.0
RETRY_AFTER_S_MAX = 30.0
"""However long a store asks to be left alone: a writer that sleeps for an hour tells nobody why."""
READ_BYTES_MAX = 64_000_000
"""Of a longer file of the timeline no more is read; whoever parses it refuses its length."""


def pause_s(tries: int, after_s: float | None = None) -> float:
    """The wait after the n-th failure (0-based); within reason what the store asked for."""
    requested_s = min(RETRY_AFTER_S_MAX, after_s or 0.0)
    return max(requested_s, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**tries))


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
        results += (yield Parallel(batch)) if len(batch) > 1 else [(yield from batch[0])]
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


def settle_write(
    key: str, body: bytes, condition: Condition, *, limit: int | None = READ_BYTES_MAX,
    is_ours: Callable[[bytes], bool] | None = None,
) -> Procedure[Version | Found | Missing]:  # fmt: skip
    """Write `body`, and prove what became of it: its version, or what stands there instead.

    Sending the same bytes under the same condition any number of times lands at most one copy. So
    no answer, or a 412 that may be the answer to a hidden second copy, costs a read and, where what
    was written over is still there, a resend. An object that holds these very bytes counts as
    written, by whichever client: give `body` an attempt of its own where that matters.

    :param key: the object.
    :param body: at most `limit` bytes.
    :param condition: `IfAbsent()`, or `IfVersion` of what was read.
    :param limit: of a longer object, only so many bytes and one more are read back.
    :param is_ours: whether a body that was read back is this write; by default the same bytes are.
    :raises Unanswered: if the store does not say within the tries; `doubt` tells whether the write
        may have landed, or may yet land.
    :raises StoreError: as the store's requests, as long as no copy can have landed.
    """
    is_ours = is_ours or body.__eq__
    wrote_over = condition.version if isinstance(condition, IfVersion) else None
    doubt, why = False, ""
    for tries in range(TRIES_MAX):
        try:
            match (yield Put(key, body, condition)):
                case Applied(version):
                    return version
                case Throttled(after_s):
                    why = "throttled"
                    yield Sleep(pause_s(tries, after_s))
                    continue
                case PreconditionFailed():
                    doubt, why = True, "refused, though no other write is seen"
                case Unknown(why):
                    doubt = True
                case other:
                    raise AssertionError(f"not an answer to a write: {other!r}")
            standing = _standing((yield from read(key, limit=limit)), is_ours, wrote_over)
            if standing is not None:
                return standing
            yield Sleep(pause_s(tries))  # still out: the same write once more
        except (StoreError, Unanswered) as error:
            if not doubt:
                raise
            raise Unanswered(f"{key} may have been written: {error}", doubt=True) from error
    # Also after nothing but 429: with a hidden retry that is the answer to a second copy.
    standing = _standing((yield from read(key, limit=limit)), is_ours, wrote_over)
    if standing is not None:
        return standing
    raise Unanswered(
        f"{key} could not be written in {TRIES_MAX} tries ({why or 'it never appeared'}); see that "
        "the store answers, then try again",
        doubt=doubt,
    )


def _standing(
    found: Found | Missing | NotModified, is_ours: Callable[[bytes], bool],
    wrote_over: Version | None,
) -> Version | Found | Missing | None:  # fmt: skip
    """What a read says of a write; None: what it wrote over is still there, so it may yet land."""
    match found:
        case Found(standing, version) if is_ours(standing):
            return version
        case Found(_, version):
            return None if version == wrote_over else found
        case Missing():
            return None if wrote_over is None else found
        case NotModified():
            raise AssertionError("an unconditional read was answered 304")
        case never:
            assert_never(never)


def create(key: str, body: bytes) -> Procedure[Version | Found]:
    """Create `key`, and prove it: a version where it now holds exactly `body`, else what it holds.

    As `settle_write`.
    """
    settled = yield from settle_write(key, body, IfAbsent())
    assert not isinstance(settled, Missing), "what is missing is still out"
    return settled
