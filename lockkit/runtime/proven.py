"""Reads and writes of objects that end with a proven answer, or with `Unanswered`.

They retry every request within a bound, whatever the store answers. `settle_write` reads a
conditional write with an ambiguous answer back. `put_once` is for callers that judge the answer.
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
    WriteAnswer,
)
from lockkit.runtime import Delete, Get, List, Parallel, Procedure, Put, Sleep
from lockkit.stores import Listing

TRIES_MAX = 7
"""About 3 s of pauses in all. A store that is silent for longer is not waited for."""
FIRST_PAUSE_S = 0.05
AT_ONCE_MAX = 8
"""Requests of one batch that run in parallel; a client keeps connections for three."""
LONGEST_PAUSE_S = 2.0
RETRY_AFTER_S_MAX = 30.0
"""Limit for a pause that the store requests: a writer must not sleep silently for an hour."""
READ_BYTES_MAX = 64_000_000
"""No more of a timeline file is read; its parser refuses a longer one."""


def pause_s(tries: int, after_s: float | None = None) -> float:
    """The pause after the n-th failure (0-based); the store's request counts within a limit."""
    requested_s = min(RETRY_AFTER_S_MAX, after_s or 0.0)
    return max(requested_s, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**tries))


def pause_after(answer: WriteAnswer, tries: int) -> Sleep:
    """The pause after the n-th write that was not proven."""
    after_s = answer.retry_after_s if isinstance(answer, Throttled) else None
    return Sleep(pause_s(tries, after_s))


def read(
    key: str, *, unless: Version | None = None, limit: int | None = READ_BYTES_MAX
) -> Procedure[Found | Missing | NotModified]:
    """The object at `key`; raises `Unanswered` if the store does not answer within the tries.

    Of a body that is longer than `limit`, `limit` + 1 bytes are returned.
    """
    cure = "check that the store answers, then try again"
    answer = yield from _retried(Get(key, unless, limit), "read", cure, doubt=False)
    assert isinstance(answer, Found | Missing | NotModified), f"no answer to a read: {answer!r}"
    return answer


def _retried(request: Get | Delete, done: str, cure: str, *, doubt: bool) -> Procedure[Any]:
    """The first answer that is neither a 429 nor missing; the request may be sent several times."""
    why = ""
    for tries in range(TRIES_MAX):
        match (yield request):
            case Throttled() | Unknown() as answer:
                why = answer.why if isinstance(answer, Unknown) else "throttled"
                yield pause_after(answer, tries)
            case answer:
                return answer
    problem = f"could not be {done} in {TRIES_MAX} tries ({why})"
    raise Unanswered(request.key, problem, cure, doubt=doubt)


def listing(prefix: str, *, after: str = "") -> Procedure[Listing]:
    """Every object under `prefix` whose key is greater than `after`. May raise `Unanswered`."""
    for tries in range(TRIES_MAX):
        try:
            entries: Listing = yield List(prefix, after)
        except NoAnswer as error:
            why = str(error)
            yield Sleep(pause_s(tries))
        else:
            return entries
    raise Unanswered(
        f"{prefix}*", f"could not be listed in {TRIES_MAX} tries ({why})",
        "check that the store answers, then try again", doubt=False,
    )  # fmt: skip


def all_of(procedures: Iterable[Procedure[Any]]) -> Procedure[list[Any]]:
    """The results of independent procedures, in their order.

    Some run in parallel. The first one that raises ends it, after those beside it have ended.
    """
    waiting = list(procedures)
    results: list[Any] = []
    for first in range(0, len(waiting), AT_ONCE_MAX):
        batch = tuple(waiting[first : first + AT_ONCE_MAX])
        results += (yield Parallel(batch)) if len(batch) > 1 else [(yield from batch[0])]
    return results


def delete(key: str, version: Version | None = None) -> Procedure[None]:
    """Delete an object that nobody will write again, and prove it.

    With `version` only that version is deleted. An object that is gone or was replaced is not an
    error. Raises `Unanswered` if the store does not answer within the tries.
    """
    request = Delete(key, None if version is None else IfVersion(version))
    yield from _retried(request, "deleted", "run this again: it deletes what is left", doubt=True)


def put_once(key: str, body: bytes, condition: Condition) -> Procedure[WriteAnswer]:
    """Send a conditional write once. A caller says why it does not use `settle_write`."""
    answer: WriteAnswer = yield Put(key, body, condition)
    return answer


def settle_write(
    key: str, body: bytes, condition: Condition, *, limit: int | None = READ_BYTES_MAX,
    is_ours: Callable[[bytes], bool] | None = None,
) -> Procedure[Version | Found | Missing]:  # fmt: skip
    """Write `body` and prove the outcome: return its version, or what is there instead.

    Sending the same bytes under the same condition several times lands at most one copy. So no
    answer, a 412 (a hidden second copy?) or a throttled creation (just created?) costs a read; if
    the version to be replaced is still there, the write is sent again. An object that holds exactly
    these bytes counts as written, whichever client wrote it: include an attempt if that matters.

    :param key, body: the object, and what it is to hold: at most `limit` bytes.
    :param condition: `IfAbsent()`, or `IfVersion` of what was read.
    :param limit: of a longer object, only `limit` + 1 bytes are read back.
    :param is_ours: whether a body that was read back is this write; by default equal bytes are.
    :raises Unanswered: if the store does not answer within the tries; its `doubt` says whether the
        write may have landed or may still land.
    :raises StoreError: as the store's requests do, as long as no copy can have landed.
    """
    is_ours = is_ours or body.__eq__
    wrote_over = condition.version if isinstance(condition, IfVersion) else None
    doubt, why = False, ""
    for tries in range(TRIES_MAX):
        try:
            match answer := (yield from put_once(key, body, condition)):
                case Applied(version):
                    return version
                case Throttled():
                    why = "throttled"
                    if wrote_over is not None:  # else it may just have been created: read it
                        yield pause_after(answer, tries)
                        continue
                case PreconditionFailed():
                    doubt, why = True, "refused, though no other write is seen"
                case Unknown(why):
                    doubt = True
                case never:
                    assert_never(never)
            standing = _standing((yield from read(key, limit=limit)), is_ours, wrote_over)
            if standing is not None:
                return standing
            yield pause_after(answer, tries)  # still pending: send the same write again
        except (StoreError, Unanswered) as error:
            if not doubt:
                raise
            raise Unanswered(key, f"may have been written: {error}", doubt=True) from error
    # Also if every answer was 429: with a hidden retry that may be the answer to a second copy.
    standing = _standing((yield from read(key, limit=limit)), is_ours, wrote_over)
    if standing is not None:
        return standing
    raise Unanswered(
        key, f"could not be written in {TRIES_MAX} tries ({why or 'it never appeared'})",
        "check that the store answers, then try again", doubt=doubt,
    )  # fmt: skip


def _standing(
    found: Found | Missing | NotModified, is_ours: Callable[[bytes], bool],
    wrote_over: Version | None,
) -> Version | Found | Missing | None:  # fmt: skip
    """What a read says of a write; None: the old version is still there, so it may still land."""
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
    """Create `key` and prove it: return its version if it holds exactly `body`, else what it holds.

    Errors are those of `settle_write`.
    """
    settled = yield from settle_write(key, body, IfAbsent())
    assert not isinstance(settled, Missing), "a missing object means that the write is pending"
    return settled
