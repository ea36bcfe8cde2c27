"""The commit: the moment after which every reader sees what a transaction wrote.

A procedure, so that the same text runs against a real store, in the simulator, and one request at a
time. The fence of protocol.md section 5 decides: a commit whose conflict check did not cover
everything that was published before it is refused by the store, however long its writer slept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, assert_never

from lockkit.drive import Note, Procedure, Put, Sleep, Unique
from lockkit.outcome import (
    Applied,
    Found,
    Missing,
    NotOurs,
    Ours,
    PreconditionFailed,
    StillOut,
    Throttled,
    Unknown,
    Version,
    over,
    resolve,
)
from lockkit.state import LockLost
from lockkit.stores import StoreError
from lockkit.table.ask import TRIES_MAX, TableError, Unanswered, create, pause_s, read
from lockkit.table.conflict import (
    CommitConflict,
    find_conflict,
    refuse_missing,
    refuse_unreadable,
    winners,
)
from lockkit.table.fence import FENCE_KEY, Fence, Seen, digest, format_fence, read_fence
from lockkit.table.layout import CommitFiles
from lockkit.table.properties import recheck_config
from lockkit.table.reader import read_commit
from lockkit.table.timeline import Names, Timeline, glance, load_timeline
from lockkit.table.transaction import Prepared

ROUNDS_MAX = 30
"""How often a commit may lose the fence to others and check again."""


class Guard(Protocol):
    """What the lock hands out with a grant: `Lock.fence`."""

    @property
    def epoch(self) -> int: ...


class CommitUnknown(Exception):
    """Nobody told us whether this commit was decided, and reading back could not tell either.

    It may be visible, or become so. Delete nothing. `read` names the objects that will tell;
    `commit` of the same prepared transaction, under the lock, reads them and finishes the work.
    """

    def __init__(self, instant: str, why: str, read: tuple[str, ...]) -> None:
        self.instant, self.why, self.read = instant, why, read
        super().__init__(
            f"whether {instant} was committed is not known ({why}). Delete nothing. To find out, "
            "commit the same prepared transaction again under the lock, or read "
            f"{', then '.join(read)}: it is committed if one of them names it or is its own file; "
            "while a request may still be under way, their silence proves nothing"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.instant, self.why, self.read)


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that every reader sees from now on."""

    instant: str
    epoch: int
    rounds: int
    """Conflict checks that it took; more than one if a straggler won the fence in between."""
    rolled_forward: tuple[str, ...]
    """Commits of others that were decided but not yet visible, and were made so on the way."""


# --- commit -------------------------------------------------------------------------------------


def trust() -> None:
    """A belief that never ends: for a commit that no lock protects."""


def commit(
    prepared: Prepared, guard: Guard, *, believe: Callable[[], None] = trust, fence: bool = True
) -> Procedure[Committed]:
    """Publish, while holding the lock. `believe` raises `LockLost` once the lease is over.

    Raises `CommitConflict` or `LockLost` (then it is not, and will never be, visible),
    `CommitUnknown` (then nobody knows yet), `TableError` or `StoreError` (not committed). Whatever
    was refused leaves its data files and its requested and inflight instants to a table service.

    The note `checked` goes by between the last look at the lease and the one write that decides:
    a writer that stops there and wakes too late is what the fence is for. With `fence=False` there
    is only create-if-absent of `T.commit`, as in Hudi, and such a writer's commit is accepted.
    """
    way = _commit_fenced if fence else _commit_unfenced
    try:
        return (yield from way(prepared, guard, believe))
    except (TableError, LockLost, StoreError, CommitUnknown) as error:
        yield Note(
            "refused",
            {"instant": prepared.instant, "epoch": guard.epoch,
             "error": type(error).__name__, "why": str(error)},
        )  # fmt: skip
        raise


def _commit_fenced(
    prepared: Prepared, guard: Guard, believe: Callable[[], None]
) -> Procedure[Committed]:
    """Fence, settle, list, check, replace the fence, publish: the order is the whole point."""
    files: dict[str, CommitFiles] = {}
    rolled_forward: list[str] = []
    yield from recheck_config(prepared.transaction.config, prepared.transaction.config_version)
    for rounds in range(1, ROUNDS_MAX + 1):
        seen = yield from read_fence()
        now = yield from _settle(prepared.names, seen, rolled_forward)
        if prepared.instant in now.completed:  # an earlier call of ours was decided after all
            return (yield from _publish(prepared, guard, rounds, rolled_forward))
        _refuse_superseded(prepared, guard, seen)
        yield from _check(prepared, now, files)
        entry = Fence(guard.epoch, prepared.instant, (yield Unique()), prepared.sha256)
        believe()
        yield _checked(prepared, guard, now)
        if (yield from _replace(prepared, seen, entry)):
            yield Note("fenced", {"instant": prepared.instant, "epoch": guard.epoch})
            return (yield from _publish(prepared, guard, rounds, rolled_forward))
    raise Unanswered(
        f"{prepared.instant} lost the fence to others {ROUNDS_MAX} times and was not committed; "
        "try again, and look whether anybody commits without the lock",
        doubt=False,
    )


def _commit_unfenced(
    prepared: Prepared, guard: Guard, believe: Callable[[], None]
) -> Procedure[Committed]:
    """List, check, publish: right only while the lock really excludes everybody else."""
    yield from recheck_config(prepared.transaction.config, prepared.transaction.config_version)
    now = yield from load_timeline(prepared.names)
    if prepared.instant not in now.completed:
        yield from _check(prepared, now, {})
        believe()
        yield _checked(prepared, guard, now)
    try:
        standing = yield from create(prepared.completed, prepared.body)
    except Unanswered as error:
        if not error.doubt:
            raise
        raise CommitUnknown(
            prepared.instant, str(error), (prepared.completed,)
        ) from error
    return (yield from _published(prepared, guard, standing, 1, []))


# --- its steps ----------------------------------------------------------------------------------


def _settle(names: Names, seen: Seen, rolled_forward: list[str]) -> Procedure[Timeline]:
    """A timeline, listed after the fence was read, in which the fence's instant is completed.

    Seeing `T.commit` in that listing is the proof that protocol.md asks for; if it is not there,
    its writer died or sleeps between deciding and publishing, and we publish for it. One listing
    is enough, however many pages it has: if anything was decided meanwhile, the fence has changed
    and replacing it fails.
    """
    now = yield from glance(names)
    if seen.fence is None or seen.fence.instant in now.completed:
        return now
    instant = seen.fence.instant
    match (yield from read(names.inflight(instant))):
        case Found(body, _) if digest(body) == seen.fence.sha256:
            if isinstance((yield from create(names.completed(instant), body)), Found):
                raise TableError(
                    f"{names.completed(instant)} differs from its inflight file, which the fence "
                    "names; nothing more is committed to this table until one of them is restored"
                )
        case _:
            raise TableError(
                f"the fence names {instant}, which has no completed file, and its inflight file "
                "is missing or is not the one that was decided; nothing was committed: restore "
                f"{names.inflight(instant)} or {names.completed(instant)} from its versions"
            )
    yield Note(
        "note",
        {"text": f"rolled {instant} forward: it was decided, but its file was not there yet",
         "instant": instant, "rolled_forward": True},
    )  # fmt: skip
    rolled_forward.append(instant)
    now = yield from glance(names)
    if instant not in now.completed:
        raise TableError(
            f"{names.completed(instant)} was written and is not listed: this store's listings lag "
            "behind, and no conflict check can be made on them"
        )
    return now


def _refuse_superseded(prepared: Prepared, guard: Guard, seen: Seen) -> None:
    if seen.fence is not None and seen.fence.epoch > guard.epoch:
        raise LockLost(
            f"{prepared.instant} was not committed: it holds the lock's epoch {guard.epoch}, and "
            f"epoch {seen.fence.epoch} has already published {seen.fence.instant}; acquire the "
            "lock again, then commit the same prepared transaction"
        )


def _check(prepared: Prepared, now: Timeline, files: dict[str, CommitFiles]) -> Procedure[None]:
    """Raise if this commit cannot follow what was published since it began."""
    mine = prepared.mine
    if mine.instant not in now.inflight:
        raise LockLost(
            f"{mine.instant} was not committed: its inflight file is gone, so somebody took its "
            "writer for dead and rolled it back; begin again"
        )
    refuse_missing(mine, now)
    refuse_unreadable(now, known=mine.base)
    others = winners(mine, now)
    for instant in others:
        if instant not in files:
            files[instant] = yield from read_commit(prepared.names, instant, now)
    if conflict := find_conflict(mine, [files[instant] for instant in others]):
        raise CommitConflict(mine.instant, conflict)


def _checked(prepared: Prepared, guard: Guard, now: Timeline) -> Note:
    return Note(
        "checked",
        {"instant": prepared.instant, "epoch": guard.epoch, "covered": now.commits,
         "writes": [list(group) for group in sorted(prepared.writes)]},
    )  # fmt: skip


def _replace(prepared: Prepared, seen: Seen, entry: Fence) -> Procedure[bool]:
    """Replace the fence that was read: the moment of commit. False: it did not, and never will.

    The lease is not asked again once the write is out: sending the same bytes under the same
    condition decides nothing new, and only so can it be found out what became of the first copy.
    """
    body = format_fence(entry)
    doubt, why = False, ""
    try:
        for tries in range(TRIES_MAX):
            match (yield Put(FENCE_KEY, body, over(seen.version))):
                case Applied():
                    return True
                case Throttled(after_s):
                    why = "throttled"
                    yield Sleep(pause_s(tries, after_s))
                    continue
                case PreconditionFailed():
                    # Perhaps of a hidden second copy, whose first one landed. Look.
                    doubt, why = True, "refused, though nobody else is seen to have written"
                case Unknown(why):
                    doubt = True
                case other:
                    raise AssertionError(f"not an answer to a write: {other!r}")
            now = yield from read_fence()
            match resolve(now.version, now.attempt, attempt=entry.attempt, wrote_over=seen.version):
                case Ours():
                    return True
                case NotOurs():
                    return (yield from _was_superseded(prepared, now))
                case StillOut():
                    yield Sleep(pause_s(tries))
                case never:
                    assert_never(never)
    except CommitUnknown:
        raise
    except Exception as error:
        # Whatever it was, a write that may have decided is out: only its fate counts now.
        if not doubt and isinstance(error, StoreError):
            raise  # refused by configuration, so certainly not done
        raise _unknown(prepared, str(error)) from error
    if doubt:
        raise _unknown(prepared, why)
    raise Unanswered(
        f"{FENCE_KEY} could not be written in {TRIES_MAX} tries ({why}); {prepared.instant} was "
        "not committed; try again later",
        doubt=False,
    )


def _was_superseded(prepared: Prepared, now: Seen) -> Procedure[bool]:
    """The fence holds somebody else's entry: was ours there in between?

    A superseder makes sure of the completed file of the entry that it replaces *before* it replaces
    it. So, after the fence, the completed file decides: if it is missing, ours never landed, and
    since the version that it asked for is gone, never will. Only where `T.inflight` is missing too
    has somebody archived or rolled back the instant, and nothing here can tell.
    """
    if now.fence is None:
        raise _unknown(prepared, "the fence was deleted")
    match (yield from read(prepared.completed)):
        case Found():
            return True
        case _missing:
            pass
    match (yield from read(prepared.inflight)):
        case Missing():
            raise _unknown(prepared, "its instant was archived or rolled back meanwhile")
        case _found:
            return False


def _publish(
    prepared: Prepared, guard: Guard, rounds: int, rolled_forward: list[str]
) -> Procedure[Committed]:
    """Create `T.commit` for a commit that is decided; any later writer would do it for us."""
    try:
        standing = yield from create(prepared.completed, prepared.body)
    except Exception as error:
        raise _unknown(
            prepared, f"it was decided, and its file may not be there yet: {error}"
        ) from error
    return (yield from _published(prepared, guard, standing, rounds, rolled_forward))


def _published(
    prepared: Prepared, guard: Guard, standing: Version | Found, rounds: int,
    rolled_forward: list[str],
) -> Procedure[Committed]:  # fmt: skip
    if isinstance(standing, Found):
        raise _unknown(
            prepared, "its completed file is there, and is not what we would have written"
        )
    yield Note("published", {"instant": prepared.instant, "epoch": guard.epoch})
    return Committed(prepared.instant, guard.epoch, rounds, tuple(rolled_forward))


def _unknown(prepared: Prepared, why: str) -> CommitUnknown:
    return CommitUnknown(prepared.instant, why, (FENCE_KEY, prepared.completed))
