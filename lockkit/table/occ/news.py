"""News: what happened to a table since a transaction began, for its conflict check.

It comes from the fence's own window if that reaches back far enough, otherwise from one listing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lockkit.errors import LockLost, LossReason
from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import read
from lockkit.table.errors import TableChanged, UnsupportedTable
from lockkit.table.format.layout import CommitFiles, Overwritten, parse_commit
from lockkit.table.format.properties import FENCED
from lockkit.table.format.timeline import Timeline, glance
from lockkit.table.occ.conflict import ConflictStrategy, refuse_missing, refuse_unreadable, winners
from lockkit.table.occ.conflicting import Pending, Winner
from lockkit.table.occ.covered import has_archived, load_pending
from lockkit.table.occ.decide import commits_under_way, completed_key, is_in_use, lost_fence
from lockkit.table.occ.fence import COMMIT, ROLLBACK, Decided, FenceRead, read_fence
from lockkit.table.occ.prepared import Prepared


@dataclass(slots=True)
class CommitProgress:
    """What one commit has found out so far, over all its rounds."""

    prepared: Prepared
    strategy: ConflictStrategy
    rolled_forward: list[str] = field(default_factory=list)
    files: dict[str, CommitFiles] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableChanges:
    """What happened to the table since the transaction began."""

    winners: tuple[Winner, ...]
    covered: tuple[str, ...]
    """Every commit that this check examined, or that the transaction began with."""
    mine: Decided | None = None
    """This very commit, if an earlier call decided it."""
    pending: tuple[Pending, ...] = ()


def news_of(work: CommitProgress, seen: FenceRead) -> Procedure[TableChanges]:
    """From the fence's own window if that reaches back far enough, otherwise from a listing.

    Plans that were pending when the transaction began are checked. A plan made since then meets
    this commit when it wants to complete, and is the one that yields.
    """
    prepared, fence = work.prepared, seen.fence
    transaction = prepared.transaction
    decided = None
    if fence is not None and not _strangers(prepared, seen):
        decided = fence.since(transaction.base, transaction.horizon)
    if decided is None:
        return (yield from _listed(work, seen))
    commits, found = set(transaction.timeline.commits), []
    for each in decided:
        if each.instant == prepared.instant and each.kind == COMMIT:
            return TableChanges((), tuple(sorted(commits)), each)
    for each in decided:
        if each.kind == ROLLBACK:
            found.append(Winner(each.instant, "rollback", takes_back=frozenset({each.instant})))
        else:
            commits.add(each.instant)
            found.append((yield from _winner(work, each)))
    pending = yield from load_pending(prepared.names, transaction.timeline)
    return TableChanges(tuple(found), tuple(sorted(commits)), None, pending)


def _strangers(prepared: Prepared, seen: FenceRead) -> bool:
    """Whether the transaction's listing had commits that the fence should know and does not.

    They were made without the fence, so its window is not complete.
    """
    assert seen.fence is not None
    known = {each.instant for each in seen.fence.window}
    listed = prepared.transaction.timeline.commits
    return any(each > min(known) and each not in known for each in listed)


def _winner(work: CommitProgress, each: Decided) -> Procedure[Winner]:
    """Its write sets: as the fence names them, or, for a wide commit, from its own file.

    Also from its file if one of the two adds columns, because the file has the schema; and if the
    fence does not say what a replacecommit overwrote, because an older lockkit wrote that entry.
    """
    match each.writes, each.replaced, each.overwrites:
        case frozenset() as writes, frozenset() as replaced, Overwritten() as overwrites:
            if not work.prepared.grows:
                return Winner(each.instant, each.action, writes, replaced, overwrites=overwrites,
                              completion=each.completion or "")  # fmt: skip
    if each.instant not in work.files:
        key = completed_key(work.prepared.names, each)
        work.files[each.instant] = yield from _read_files(each.instant, key)
    return Winner.of(work.files[each.instant], each.action)


def _read_files(instant: str, key: str) -> Procedure[CommitFiles]:
    match (yield from read(key)):
        case Found(body, _):
            return parse_commit(instant, key, body)
        case _missing:
            raise TableChanged(key, "is gone: it was rolled back or archived", "begin again")


def _listed(work: CommitProgress, seen: FenceRead) -> Procedure[TableChanges]:
    """The same from one listing, made after the fence was read and settled.

    One is enough, however many pages it has: if anything was decided meanwhile, the fence has
    changed, and replacing it fails.
    """
    prepared = work.prepared
    now = yield from glance(prepared.names, after=prepared.transaction.covered.listed_after)
    head = seen.fence.head if seen.fence else None
    if seen.fence is None and prepared.transaction.config.mode == FENCED:
        yield from _refuse_lost(now, prepared.instant)
    if head is not None and head.kind == COMMIT and head.instant > prepared.transaction.horizon:
        if head.instant not in now.completed and prepared.instant in now.inflight:
            why = "exists and is not listed: a conflict check needs listings that do not lag behind"
            raise UnsupportedTable(completed_key(prepared.names, head), why)
    return (yield from news_listed(work, now))


def _refuse_lost(now: Timeline, own: str) -> Procedure[None]:
    """Raise `BrokenFence` if a table in use has no fence.

    Tables are created with one. A table created without one may get it from its first commit;
    another writer's first commit may have come between the read of the fence and this listing.
    """
    others = replace(now, inflight=now.inflight - {own})
    if is_in_use(others) and (yield from read_fence()).fence is None:
        raise lost_fence(commits_under_way(others))


def news_listed(work: CommitProgress, now: Timeline) -> Procedure[TableChanges]:
    """The same from an existing listing."""
    prepared, names = work.prepared, work.prepared.names
    mine = prepared.mine
    if mine.instant in now.completed:
        landed: Decided | None = Decided(
            COMMIT, mine.instant, now.completed[mine.instant], now.completion.get(mine.instant)
        )
        return TableChanges((), tuple(now.commits), landed)
    if mine.instant not in now.inflight:
        from lockkit.table.occ.late import archived_as  # few writers are so late

        if landed := (yield from archived_as(prepared.transaction.taken)):
            return TableChanges((), tuple(now.commits), landed)
        why = "its inflight file is gone: another writer rolled it back as dead, or a restore did"
        raise taken_back(mine.instant, why)
    refuse_missing(mine, now)
    if not mine.base and now.commits and (
        yield from has_archived(prepared.transaction.config.archive_prefix)
    ):
        raise TableChanged(mine.instant, "began on an empty table, which archived commits since "
                           "then", "begin again")  # fmt: skip
    before = prepared.transaction.timeline
    refuse_unreadable(now, prepared.transaction.config, known=frozenset(before.completed))
    found = []
    for instant in winners(mine, now):
        action, completion = now.completed[instant], now.completion.get(instant)
        found.append((yield from _winner(work, Decided(COMMIT, instant, action, completion, None))))
    sliced = prepared.transaction.config.sliced
    pending = yield from load_pending(names, now, since=before, compactions=sliced)
    return TableChanges(tuple(found), tuple(now.commits), None, pending)


def taken_back(instant: str, why: str) -> LockLost:
    what = f"{instant} was not committed"
    return LockLost(what, why, "begin again", reason=LossReason.ROLLED_BACK)
