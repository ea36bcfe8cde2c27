"""A whole commit in one call, by a caller that already excludes others.

`publish` overlaps the two halves of a commit with the requests for the table's lock. The callers of
this module hold another lock, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lockkit.errors import StoreError, Unanswered
from lockkit.protocol.outcome import Found
from lockkit.runtime import Note, Procedure, Sleep, WallMs
from lockkit.runtime.proven import create, read
from lockkit.table.errors import CommitUnknown, TableBlocked
from lockkit.table.format.properties import FENCED
from lockkit.table.format.timeline import instant_ms
from lockkit.table.occ.commit import (
    Committed,
    EpochGuard,
    First,
    Guard,
    Prefetched,
    StateChange,
    complete,
    decide,
    judge,
    later_than,
    note_checked,
    prove_mine,
    reported,
    trust,
)
from lockkit.table.occ.conflict import SIMPLE, ConflictStrategy
from lockkit.table.occ.decide import completed_key, completion_time
from lockkit.table.occ.fence import CLOSED, COMMIT, Decided, FenceRead, read_fence
from lockkit.table.occ.held import TableNow, look, with_request
from lockkit.table.occ.news import CommitProgress, news_listed, taken_back
from lockkit.table.occ.prepared import Prepared

COMPLETION, SENT = "completion", "sent"


def commit(
    prepared: Prepared,
    guard: Guard,
    *,
    believe: Callable[[], None] = trust,
    fence: bool | None = None,
    strategy: ConflictStrategy = SIMPLE,
    table: TableNow | None = None,
) -> Procedure[Committed]:
    """Publish, while holding the lock.

    A refused commit leaves its data files and its requested and inflight files to a table service.

    :param prepared: what `prepare` returned.
    :param guard: `lock.fence` of the lock that is held.
    :param believe: raises `LockLost` once the lease is over: `lock.assert_held`.
    :param fence: None: by the table's mode. False: only create-if-absent of `T.commit`, as in Hudi;
        then the commit of a writer that was paused too long is accepted.
    :param strategy: what counts as a conflict with another commit.
    :param table: without a fence, what was read since the lock is held, if not all is to be read.
    :raises CommitConflict, LockLost: it is not, and never will be, visible.
    :raises CommitUnknown: the outcome is not known yet.
    :raises TableError, StoreError: it was not committed.
    """
    fenced = prepared.transaction.config.mode == FENCED if fence is None else fence
    if not fenced:
        way = _commit_unfenced(prepared, guard, believe, strategy, table)
        return (yield from reported(prepared, guard, way))
    decision = yield from decide(prepared, guard, believe=believe, strategy=strategy)
    return (yield from complete(decision))


def commit_alone(
    prepared: Prepared, *, strategy: ConflictStrategy = SIMPLE, believe: Callable[[], None] = trust,
    newer: int = 0, first: First | None = None,
) -> Procedure[Committed]:  # fmt: skip
    """Publish without the table's own lock object: this commit has no epoch of its own.

    It decides with the fence's epoch, raised by `newer`. Under another service's lock that is one,
    so the fence refuses a holder of an earlier grant that resumes too late. Raises `LockLost` if
    another holder decided since this call began to read: commit again.
    """
    if first is not None:
        yield from first(StateChange(EpochGuard(0), believe))
    if prepared.transaction.config.mode != FENCED:
        return (yield from commit(prepared, EpochGuard(0), believe=believe, strategy=strategy))
    seen = yield from read_fence()
    guard = EpochGuard((seen.fence.epoch if seen.fence else 0) + newer)
    decision = yield from decide(
        prepared, guard, believe=believe, strategy=strategy, ahead=Prefetched(seen)
    )
    return (yield from complete(decision))


def _commit_unfenced(
    prepared: Prepared, guard: Guard, believe: Callable[[], None], strategy: ConflictStrategy,
    table: TableNow | None,
) -> Procedure[Committed]:  # fmt: skip
    """List, check, publish: safe only while the lock really excludes all other writers."""
    transaction = prepared.transaction
    if table is None or prepared.sent_as:  # what was sent may have been completed
        table = yield from look(transaction.taken.known, transaction.covered.listed_after)
    else:
        now = with_request(table.timeline, transaction.taken, inflight=True)
        table = replace(table, timeline=now)
    now, config = table.timeline, table.config
    if transaction.config.mode != FENCED:
        refuse_open(table.fence)
    work = CommitProgress(prepared, strategy)
    found = yield from news_listed(work, now)
    landed = found.mine
    if landed is not None:
        yield from prove_mine(prepared, landed)
    else:
        judge(work, found)
        if transaction.action == "compaction":
            yield from _refuse_begun_again(prepared)
        if config.metadata or config.unblocked or not table.blocked:
            from lockkit.table.occ.rewriting import keep_metadata_off  # rarely on
            yield from keep_metadata_off(config, believe)
        nothing = FenceRead(None, None)
        # A resend after an unknown outcome keeps its time: two names would complete it twice.
        completion = prepared.sent_as.get(COMPLETION) or (yield from completion_time(
            prepared.names, nothing, *later_than(prepared), *now.completion.values(),
            *(each for each, action in now.pending.items() if action == "compaction"),
        ))  # fmt: skip
        if transaction.config.mode != FENCED:
            yield from wait_out(max(prepared.instant, completion or ""))
        believe()
        yield note_checked(prepared, guard, found.covered)
        landed = Decided(COMMIT, prepared.instant, transaction.action, completion)
    prepared.sent_as[SENT] = key = completed_key(prepared.names, landed)
    try:
        standing = yield from create(key, prepared.body)
    except Exception as error:
        if isinstance(error, Unanswered) and not error.doubt:
            raise
        if isinstance(error, StoreError):
            raise  # refused by configuration, so certainly not applied
        if landed.completion:
            prepared.sent_as[COMPLETION] = landed.completion
        raise CommitUnknown(prepared.instant, str(error), (key,)) from error
    if isinstance(standing, Found):
        raise CommitUnknown(
            prepared.instant, "its completed file is there, and is not what we would have written",
            (key,),
        )  # fmt: skip
    yield Note("published", {"instant": prepared.instant, "epoch": guard.epoch})
    return Committed(prepared.instant, guard.epoch, 1, (), landed.completion)


def _refuse_begun_again(compaction: Prepared) -> Procedure[None]:
    """Raise if another process carries this compaction's plan out again.

    Hudi's services do so if they find it pending: they delete its files and keep its instant.
    """
    match (yield from read(compaction.inflight)):
        case Found(body, _) if body == compaction.body:
            return
    why = "another process judged it dead, and carries out the same plan"
    raise taken_back(compaction.instant, why)


def refuse_open(seen: FenceRead) -> None:
    """Raise if a table in `hudi` mode has a fence that a paused writer could still decide with."""
    if seen.fence is not None and seen.fence.head.kind != CLOSED:
        why = "is in hudi mode, and its fence is open: a writer that began in fenced mode could "
        cure = "finish the switch through the fence: lockkit table mode URL hudi --yes (or fenced)"
        raise TableBlocked("the table", why + "still commit. Nothing was committed", cure)


HUDI_SKEW_MS, HUDI_WAIT_MAX_MS = 200, 2_000
"""How far Hudi's clocks may be apart (`hoodie.time.generator.max_expected_clock_skew_ms`). If the
newest instant is further ahead, they are further apart, and no wait helps."""


def wait_out(instant: str) -> Procedure[None]:
    """Under the lock: wait until every clock has passed this instant.

    Hudi takes instants and completion times from its own clock and compares them with none on the
    timeline. It keeps them in order by such a wait under the lock (`SkewAdjustingTimeGenerator`).
    Without ours, a Hudi write right after a commit of ours could have the earlier instant: its rows
    would stay hidden behind ours, and incremental readers would miss them.
    """
    ahead_ms = instant_ms(instant) + HUDI_SKEW_MS + 1 - (yield WallMs())
    if ahead_ms > 0:
        yield Sleep(min(ahead_ms, HUDI_WAIT_MAX_MS) / 1000)
