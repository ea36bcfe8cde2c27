"""The commit: the moment after which every reader sees what a transaction wrote.

It is a procedure, so the same code runs against a real store, in the simulator, and one request at
a time. The fence of docs/protocol.md decides: the store refuses a commit whose conflict check did
not cover everything that was published before it, however long its writer was paused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from lockkit.errors import LockLost, LossReason, StoreError, TableError, Unanswered
from lockkit.protocol.outcome import Found, Version
from lockkit.runtime import BootMs, Note, Procedure, Unique
from lockkit.runtime.proven import all_of, create, read
from lockkit.table.errors import CommitUnknown, TableChanged
from lockkit.table.format.layout import parse_commit
from lockkit.table.format.properties import recheck_config
from lockkit.table.occ.conflict import SIMPLE, ConflictStrategy, find_conflict
from lockkit.table.occ.decide import (
    completed_key,
    completion_time,
    refuse_closed,
    replace_fence,
    settle,
    unknown,
)
from lockkit.table.occ.fence import COMMIT, Decided, FenceRead, follow, read_fence
from lockkit.table.occ.news import CommitProgress, TableChanges, news_of, taken_back
from lockkit.table.occ.prepared import Prepared

T = TypeVar("T")
ROUNDS_MAX = 30
"""How often a commit may lose the fence to others and check again."""
LATE_MS = 1_000
"""A commit that is published later than this after its decision may be archived (`late`)."""


class Guard(Protocol):
    """The guard that a lock provides with a grant: `Lock.fence`."""

    @property
    def epoch(self) -> int: ...


@dataclass(frozen=True, slots=True)
class EpochGuard:
    """The guard of a writer that holds no lock: the fence's own epoch."""

    epoch: int


def trust() -> None:
    """Never raises: for a commit that no lock protects."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """A held lock or mutex: the guard of a state change's decision, and the check of the lease.

    `believe` raises `LockLost` once the lease or the turn is over. Call `published` after the
    commit; it returns true if the lock is released from then on, while the caller continues.
    """

    guard: Guard
    believe: Callable[[], None] = trust
    published: Callable[[], bool | None] = trust


First = Callable[[StateChange], Procedure[None]]
"""What a commit does under its lock before it reads anything: it rolls back dead writers."""


@dataclass(frozen=True, slots=True)
class Prefetched:
    """What was read while the lock was being acquired; the fence may be read early in any case.

    `config_checked` is true only if the read counts as made under the lock: it was sent when the
    lock object was known to be free, and the claim sent at the same time replaced that version. So
    no other client held the lock in between.
    """

    seen: FenceRead | None = None
    proven: frozenset[str] = frozenset()
    """Instants whose completed file was seen after the fence was read."""
    config_checked: bool = False


@dataclass(frozen=True, slots=True)
class DecidedCommit:
    """A commit that is decided: it cannot be undone, but readers may not see it yet."""

    prepared: Prepared
    decided: Decided
    epoch: int
    rounds: int
    rolled_forward: tuple[str, ...]
    decided_ms: int | None = None
    """`BootMs` before the fence was replaced; None: by an earlier call."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that every reader of lockkit's sees from now on."""

    instant: str
    """Its place on the timeline."""
    epoch: int
    """The epoch of the lock's grant."""
    rounds: int
    """Number of conflict checks; more than one if another writer won the fence in between. With
    group commit: which replacement of the fence decided it."""
    rolled_forward: tuple[str, ...]
    """Other writers' decided commits that this commit made visible."""
    completion: str | None = None
    """Table version 9: the completion time, used by incremental readers."""


# --- its two halves -------------------------------------------------------------------------------


def decide(
    prepared: Prepared,
    guard: Guard,
    *,
    believe: Callable[[], None] = trust,
    strategy: ConflictStrategy = SIMPLE,
    ahead: Prefetched = Prefetched(),
) -> Procedure[DecidedCommit]:
    """The first half of a fenced commit, under the lock: up to the moment of commit.

    The note `checked` is sent between the last check of the lease and the one write that decides. A
    writer that is paused there and resumes too late is stopped by the fence.
    """
    way = _decide(prepared, guard, believe, strategy, ahead)
    return (yield from reported(prepared, guard, way))


def complete(decision: DecidedCommit) -> Procedure[Committed]:
    """The second half: create the completed file. The lock may be released in the meantime.

    Any later writer would otherwise create it. Raises `CommitUnknown`, which is `decided`, if it is
    not proven to exist: then the commit is durable but not yet visible.
    """
    prepared = decision.prepared
    key = completed_key(prepared.names, decision.decided)
    try:
        standing = yield from _published(decision, key)
    except Exception as error:
        why = f"its completed file may not be there yet: {error}"
        open_outcome = unknown(prepared.names, decision.decided, why, decided=True)
        open_outcome.prepared = prepared
        raise open_outcome from error
    if not isinstance(standing, Version):
        from lockkit.table.format.taken_back import refuse_taken_back

        refuse_taken_back(prepared.instant, key, standing)
        why = "its completed file is not what we would have written, or is gone"
        open_outcome = unknown(prepared.names, decision.decided, why)
        open_outcome.prepared = prepared
        raise open_outcome
    yield Note("published", {"instant": prepared.instant, "epoch": decision.epoch})
    return Committed(
        prepared.instant, decision.epoch, decision.rounds, decision.rolled_forward,
        decision.decided.completion,
    )  # fmt: skip


def _published(decision: DecidedCommit, key: str) -> Procedure[object]:
    """Create the completed file. A process that slept also looks whether others archived it."""
    prepared, since_ms = decision.prepared, decision.decided_ms
    if since_ms is not None and (yield BootMs()) - since_ms <= LATE_MS:
        standing = yield from create(key, prepared.body)
        if (yield BootMs()) - since_ms <= LATE_MS:
            return standing
    from lockkit.table.occ.late import publish_late  # few writers are

    return (yield from publish_late(prepared.names, decision.decided, key, prepared.body))


def reported(prepared: Prepared, guard: Guard, way: Procedure[T]) -> Procedure[T]:
    try:
        return (yield from way)
    except (TableError, LockLost, StoreError, CommitUnknown) as error:
        if isinstance(error, CommitUnknown):
            error.prepared = prepared
        yield Note(
            "refused",
            {"instant": prepared.instant, "epoch": guard.epoch,
             "error": type(error).__name__, "why": str(error)},
        )  # fmt: skip
        raise


# --- with the fence -------------------------------------------------------------------------------


def _decide(
    prepared: Prepared,
    guard: Guard,
    believe: Callable[[], None],
    strategy: ConflictStrategy,
    ahead: Prefetched,
) -> Procedure[DecidedCommit]:
    """The order is essential: read the fence, settle, check, replace the fence."""
    names, transaction = prepared.names, prepared.transaction
    work = CommitProgress(prepared, strategy)
    checked = [] if ahead.config_checked else [
        recheck_config(transaction.config, transaction.taken.known.config_version)
    ]  # fmt: skip
    if ahead.seen is None:
        seen, *_ = yield from all_of([read_fence(), *checked])
    else:
        seen, _ = ahead.seen, (yield from all_of(checked))
    proven = transaction.base | ahead.proven
    for rounds in range(1, ROUNDS_MAX + 1):
        refuse_closed(seen)
        yield from settle(names, seen, proven, work.rolled_forward)
        found = yield from news_of(work, seen)
        if found.mine is not None:  # an earlier call of ours was decided after all
            yield from prove_mine(prepared, found.mine)
            return DecidedCommit(
                prepared, found.mine, guard.epoch, rounds, tuple(work.rolled_forward)
            )
        _refuse_superseded(prepared, guard, seen)
        judge(work, found)
        completion = yield from completion_time(names, seen, *later_than(prepared))
        entry = follow(
            seen.fence,
            Decided(
                COMMIT, prepared.instant, transaction.action, completion,
                None if prepared.grows else prepared.writes, prepared.replaced,
                prepared.mine.overwrites,
            ),
            epoch=guard.epoch, attempt=(yield Unique()), sha256=prepared.sha256,
            whole=not transaction.base and not transaction.horizon,
        )  # fmt: skip
        decided_ms = yield BootMs()
        believe()
        yield note_checked(prepared, guard, found.covered)
        if (yield from replace_fence(names, seen, entry)):
            yield Note("fenced", {"instant": prepared.instant, "epoch": guard.epoch})
            return DecidedCommit(
                prepared, entry.head, guard.epoch, rounds, tuple(work.rolled_forward), decided_ms
            )
        seen = yield from read_fence()
    raise Unanswered(
        prepared.instant, f"lost the race for the fence {ROUNDS_MAX} times and was not committed",
        "try again, and check whether any writer commits without the lock", doubt=False,
    )  # fmt: skip


def prove_mine(prepared: Prepared, landed: Decided) -> Procedure[None]:
    """Raise unless what was decided under our instant has our bytes, and so our attempt.

    An instant belongs to one attempt. If a foreign writer took it anyway, its commit must not be
    acknowledged as ours.
    """
    key = completed_key(prepared.names, landed)
    match (yield from read(key)):
        case Found(body) as found if body != prepared.body:
            from lockkit.table.format.taken_back import refuse_taken_back

            refuse_taken_back(prepared.instant, key, found)
            raise TableChanged(
                key,
                f"is there and is not ours: another writer used the instant {prepared.instant}, "
                "so these rows were not committed", "begin again",
            )  # fmt: skip
        case _:
            return  # ours, or not published yet: `complete` proves what it creates


# --- checks of both ways --------------------------------------------------------------------------


def judge(work: CommitProgress, found: TableChanges) -> None:
    """Raise if this commit cannot follow what was published since it began."""
    mine = work.prepared.mine
    for each in found.winners:
        if mine.instant in each.takes_back:
            why = "another writer rolled it back as dead"
            raise taken_back(mine.instant, why)
    conflict = find_conflict(mine, found.winners, pending=found.pending, strategy=work.strategy)
    if conflict is None and work.files:
        from lockkit.table.occ.outgrown import outgrown  # few commits add columns

        own = parse_commit(mine.instant, work.prepared.inflight, work.prepared.body)
        conflict = next(filter(None, (outgrown(own, each) for each in work.files.values())), None)
    if conflict:
        raise conflict.refusal(mine.instant)


def _refuse_superseded(prepared: Prepared, guard: Guard, seen: FenceRead) -> None:
    if seen.fence is not None and seen.fence.epoch > guard.epoch:
        raise LockLost(
            f"{prepared.instant} was not committed",
            f"it holds the lock's epoch {guard.epoch}, and epoch {seen.fence.epoch} has already "
            f"decided on {seen.fence.head.instant}",
            "acquire the lock again, then commit the same prepared transaction",
            reason=LossReason.SUPERSEDED, epoch=guard.epoch,
        )  # fmt: skip


def later_than(prepared: Prepared) -> list[str]:
    return [prepared.instant, *prepared.transaction.timeline.completion.values()]


def note_checked(prepared: Prepared, guard: Guard, covered: Iterable[str]) -> Note:
    return Note(
        "checked",
        {"instant": prepared.instant, "epoch": guard.epoch, "covered": list(covered),
         "horizon": prepared.transaction.horizon,
         "writes": [list(group) for group in sorted(prepared.writes)]},
    )  # fmt: skip
