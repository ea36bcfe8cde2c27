"""The rollback of an instant: of a dead writer by others, or by its own writer (`withdraw`).

docs/protocol.md, rule F4. `liveness` decides whether a writer is dead. The writer may be alive
nevertheless, in the middle of its commit. The fence decides between the two, and nothing is deleted
before it has decided for the rollback.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lockkit.protocol.outcome import Found
from lockkit.runtime import Note, Procedure, Unique, WallMs
from lockkit.runtime.progress import WorkDone
from lockkit.runtime.proven import all_of, create, delete, listing, read
from lockkit.table.errors import RefusedOption, Unanswered
from lockkit.table.format.layout import NO_BASE
from lockkit.table.format.properties import FENCED, GROUP, TableConfig
from lockkit.table.format.timeline import (
    Timeline,
    TimelineNames,
    instant_ms,
    instant_of,
    is_ahead,
    load_timeline,
    parse_timeline,
)
from lockkit.table.occ.commit import ROUNDS_MAX, EpochGuard, Guard, trust
from lockkit.table.occ.covered import CheckedHorizon, load_rollback_plan
from lockkit.table.occ.decide import (
    commits_under_way,
    completion_time,
    lost_fence,
    refuse_closed,
    replace_fence,
    settle,
)
from lockkit.table.occ.discarding import discard
from lockkit.table.occ.executions import put_back
from lockkit.table.occ.fence import COMMIT, ROLLBACK, Decided, FenceRead, follow, read_fence
from lockkit.table.occ.liveness import forget
from lockkit.table.occ.markers import unmark
from lockkit.table.occ.own_files import listed_by, with_partitions, written_by
from lockkit.table.occ.transaction import TableCache, TakenInstant, is_ours, take

if TYPE_CHECKING:
    from lockkit.table.format.plans import RollbackPlan


@dataclass(frozen=True, slots=True)
class RolledBack:
    """An instant that will never be visible; its files are gone."""

    instant: str
    target: str
    deleted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RollbackRefused:
    """Its writer, or another one for it, committed it first: it stays, and that is all."""

    target: str


def roll_back(
    target: str,
    guard: Guard,
    known: TableCache,
    *,
    believe: Callable[[], None] = trust,
    resume: str | None = None,
    base: str = NO_BASE,
    paths: Collection[str] | None = None,
) -> Procedure[RolledBack | RollbackRefused]:
    """Roll back the pending commit `target`, under the lock, or find that it is committed.

    `base` is the table's address (`hadoop_base`), which Hudi needs to finish this if we crash.
    `resume` is a rollback of it that is already pending: its process crashed, and its plan is
    carried out. `paths` are the files that the instant wrote, if its own writer knows them all;
    otherwise its markers or a listing of the table show them. Raises `CommitUnknown` if it is
    unknown whether it was decided, or `LockLost` (in both cases nothing was deleted), `TableError`
    or `StoreError`.

    :param target: the pending commit's instant.
    :param guard: the lock's fence.
    :param known: the caller's view of the table.
    :param believe: raises `LockLost` once the lease is over.
    :param resume: a pending rollback of `target` to finish; None: a new one.
    :param base: the table's address (`hadoop_base`).
    :param paths: the files that the instant wrote; None: they are searched for.
    """
    names, fenced = known.config.names, known.config.mode == FENCED
    if not (fenced or base):
        raise RefusedOption(
            f"the rollback of {target}",
            "needs the table's address: if it stops half-way, no write of Hudi's succeeds until "
            "its plan can be carried out", "pass base=hadoop_base(url)",
        )  # fmt: skip
    plan: RollbackPlan | None = None
    if resume is not None:
        plan = yield from load_rollback_plan(names, resume)
    if known.config.commit == GROUP:
        return (yield from _roll_back_in_group(target, known, plan, paths))
    if known.config.sliced:
        own = yield from _files_of(names, target)
        if own.pending.get(target) == "compaction":
            believe()
            return RolledBack("", target, (yield from put_back(target, names)))
    for _ in range(ROUNDS_MAX):
        seen = (yield from read_fence()) if fenced else FenceRead(None, None)
        refuse_closed(seen)
        yield from settle(names, seen, frozenset(), [])
        own = yield from _files_of(names, target)
        under_way = commits_under_way(own)
        if fenced and seen.fence is None and (known.newest or under_way):
            raise lost_fence(under_way)
        if target in own.completed:
            if plan is not None:  # it decided nothing and need not be carried out
                yield from _drop(plan, names)
            return RollbackRefused(target)
        if plan is None:
            files = yield from _files_to_delete(target, known, paths)
            if files is None:
                believe()
                yield from _forget_archived(target, own, known.config)
                return RollbackRefused(target)
            plan = yield from _write_plan(target, own, known, base, files)
        if not fenced:
            believe()
            completion = yield from completion_time(names, seen, plan.instant)
            return (yield from _carry_out(plan, names, completion, sliced=known.config.sliced))
        completion = yield from completion_time(names, seen, plan.instant)
        decided = Decided(ROLLBACK, target, completion=completion)
        entry = follow(
            seen.fence, decided, epoch=guard.epoch, attempt=(yield Unique()), sha256="",
            whole=not (known.horizon or known.newest),
        )  # fmt: skip
        believe()
        yield Note("note", {"text": f"about to decide that {target} is rolled back",
                            "instant": plan.instant})  # fmt: skip
        if (yield from replace_fence(names, seen, entry)):
            return (yield from _carry_out(plan, names, completion))
    raise _lost(target)


def _roll_back_in_group(
    target: str, known: TableCache, plan: RollbackPlan | None, paths: Collection[str] | None
) -> Procedure[RolledBack | RollbackRefused]:
    """The same where commits are decided together: the fence, the instant's files, the entry in
    that very fence, the tombstone, and only then the deletions.
    """
    from lockkit.table.occ.group import combine as group_combine
    from lockkit.table.occ.group import outcomes as group_outcomes
    from lockkit.table.occ.group import view as group_view
    from lockkit.table.occ.group.outcomes import publish
    from lockkit.table.occ.group.publish import new_client
    from lockkit.table.occ.group.view import look_at_one

    names, client = known.config.names, new_client(known.config.names)
    for _ in range(ROUNDS_MAX):
        view = yield from look_at_one(client, target)
        kind = yield from group_view.outcome(view, target)
        if kind == COMMIT:
            yield from publish(client)
            if plan is not None:
                yield from _drop(plan, names)
            if target <= view.fence.archived:
                own = yield from _files_of(names, target)
                if target not in own.completed:
                    yield from _forget_archived(target, own, known.config)
            return RollbackRefused(target)
        if plan is None:
            own = yield from _files_of(names, target)
            files = yield from _files_to_delete(target, known, paths)
            plan = yield from _write_plan(target, own, known, NO_BASE, files or ())
        if (yield from group_combine.decide_against(client, view, target, kind)):
            yield from group_outcomes.bury(names, target)
            # By the plan alone, so that two processes that carry it out complete it once.
            done = instant_of(instant_ms(plan.instant) + 1) if names.layout == 2 else None
            return (yield from _carry_out(plan, names, done))
    raise _lost(target)


def _lost(target: str) -> Unanswered:
    return Unanswered(
        f"the rollback of {target}",
        f"lost the race for the fence {ROUNDS_MAX} times; nothing was deleted", "try again",
        doubt=False,
    )  # fmt: skip


def _files_of(names: TimelineNames, target: str) -> Procedure[Timeline]:
    """The progress of one instant: a listing of its own few files."""
    entries = yield from listing(names.folder + target)
    return parse_timeline(entries, names)


# --- the plan -----------------------------------------------------------------------------------


def _files_to_delete(
    target: str, known: TableCache, paths: Collection[str] | None
) -> Procedure[Sequence[tuple[str, str]] | None]:
    """(partition, path) of each; None if the archive has a commit of this very instant."""
    if paths is not None:
        return with_partitions(paths)
    return (yield from written_by(target, known.config))


def _forget_archived(target: str, own: Timeline, config: TableConfig) -> Procedure[None]:
    """Remove what a writer with a slow clock requested and wrote in the name of an archived commit.

    The commit and its files stay. Later instants are complete, so every survey of that writer fails
    without these files. Its data files go first: without the request, Hudi's readers show them.
    """
    from lockkit.table.format.archived import load_archived_commits  # rarely needed

    action, names = own.pending.get(target, "commit"), config.names
    named = {stat.path for each in (yield from load_archived_commits(config))
             if each.instant == target for stat in each.stats}  # fmt: skip
    paths, _ = yield from listed_by(target)
    theirs = sorted(path for path in paths - named  # layout 1 names log files by their base file
                    if named and (names.layout == 2 or path.endswith(".parquet")))  # fmt: skip
    yield from all_of(delete(path) for path in theirs)
    yield from delete(names.inflight(target, action))
    yield from delete(names.requested(target, action))
    yield from forget(target)
    text = f"{target} is archived: only what a late writer left in its name was deleted"
    yield Note("note", {"text": text, "instant": target})


def _write_plan(
    target: str, own: Timeline, known: TableCache, base: str, files: Sequence[tuple[str, str]]
) -> Procedure[RollbackPlan]:
    """Written before the decision: a rollback that is left half done is finished by its plan."""
    from lockkit.table.format.plans import RollbackPlan, format_rollback_plan  # few writers need it

    action = own.pending.get(target, "commit")
    plan = RollbackPlan("", target, action, tuple(files), base)
    # Later than its target, which a completed rollback invalidates. But a rollback that is days
    # ahead would block all writers, and no correct clock takes that instant again.
    ahead = is_ahead(target, (yield WallMs()), known.config.accepted)
    later = known if ahead else replace(known, newest=max(known.newest, target))
    taken = yield from take(later, action="rollback", plan=format_rollback_plan(plan))
    return replace(plan, instant=taken.instant)


def _drop(plan: RollbackPlan, names: TimelineNames) -> Procedure[None]:
    """Delete a plan that decided nothing, by the versions that hold it: its instant may be taken
    again, and the file of another rollback must stay.
    """
    from lockkit.table.format.plans import parse_rollback_plan  # as above

    requested = names.requested(plan.instant, "rollback")
    match (yield from read(requested)):
        case Found(body, version) if parse_rollback_plan(requested, body).target == plan.target:
            inflight = names.inflight(plan.instant, "rollback")
            match (yield from read(inflight)):
                case Found(_, begun):
                    yield from delete(inflight, begun)
            yield from delete(requested, version)


# --- once it is decided ---------------------------------------------------------------------------


def _carry_out(
    plan: RollbackPlan, names: TimelineNames, completion: str | None, *, sliced: bool = False
) -> Procedure[RolledBack]:
    """Delete, the instant's own files last: until then the next run finds what is left to do."""
    from lockkit.table.format.plans import format_rollback  # as above

    began_ms = yield WallMs()
    yield from create(names.inflight(plan.instant, "rollback"), b"")
    yield from take_files_back(plan.target, [path for _, path in plan.files], sliced)
    yield from unmark(plan.target)
    yield from delete(names.inflight(plan.target, plan.target_action))
    yield from delete(names.requested(plan.target, plan.target_action))
    took_ms = (yield WallMs()) - began_ms
    done = names.completed(plan.instant, "rollback", completion)
    yield from create(done, format_rollback(plan, took_ms=took_ms))
    yield from forget(plan.target)
    yield Note("note", {"text": f"rolled {plan.target} back: {len(plan.files)} files deleted",
                        "instant": plan.instant})  # fmt: skip
    return RolledBack(plan.instant, plan.target, tuple(path for _, path in plan.files))


def take_files_back(target: str, paths: Collection[str], sliced: bool) -> Procedure[None]:
    """Delete them, but for log files that are named after their slice."""
    if sliced:
        from lockkit.table.occ.log_rollback import take_back  # few tables are of version 6

        yield from take_back(target, paths)
    else:
        progress = WorkDone("deleted", len(paths), "files", target)
        yield from progress.all_of(delete(path) for path in paths)


def keep_only(target: str, kept: Collection[str]) -> Procedure[None]:
    """Delete the files that the undecided `target` wrote and will not name.

    A repeated task leaves two files, and other readers (Hudi's go by the instant in a file's name)
    would read both as committed.
    """
    files = yield from written_by(target)
    yield from all_of(delete(path) for _, path in files or () if path not in kept)


# --- a writer's own instant -----------------------------------------------------------------------


def withdraw(
    taken: TakenInstant,
    guard: Guard,
    *,
    believe: Callable[[], None] = trust,
    base: str = NO_BASE,
    paths: Collection[str] | None = None,
) -> Procedure[RolledBack | RollbackRefused | None]:
    """Take back an own instant that was certainly not decided; None if no rollback was needed.

    A pending instant holds back incremental readers of a version 6 table, and the horizon of every
    table. So a writer that was refused, failed or was interrupted does not leave its instant.

    If a later instant is completed, its own files are deleted: every later survey of the instant
    fails. So are those that arrived after another writer had rolled it back as dead: a reader of
    Hudi's takes a file of an instant before the timeline's first commit for archived. Otherwise a
    rollback first ensures that the instant is never used again. An instant that turns out to be
    another attempt's is left as it is. `paths` and the errors are those of `roll_back`.
    """
    names, instant = taken.names, taken.instant
    now = yield from load_timeline(names, after=CheckedHorizon(taken.known.horizon).listed_after)
    gone = instant not in now.pending
    if gone and (not taken.version or instant in now.completed):
        return None  # it was never ours, or is another attempt's
    if not gone and now.latest < instant:
        if not (yield from is_ours(taken, now)):
            return None
        return (yield from roll_back(
            instant, guard, taken.known, believe=believe, base=base, paths=paths
        ))  # fmt: skip
    if paths is None:
        paths = [path for _, path in (yield from written_by(instant, taken.known.config)) or ()]
    if taken.known.config.sliced:
        yield from take_files_back(instant, paths, True)
        paths = ()
    yield from discard(taken, now, paths)
    if taken.version:  # it was ours, so its markers are too; else another attempt may have it
        yield from unmark(instant)
    return None


def settle_own(
    taken: TakenInstant, paths: Collection[str] | None
) -> Procedure[RolledBack | RollbackRefused | None]:
    """Roll an own instant back that may have been decided, or find that it was (fenced tables)."""
    match (yield from read(taken.requested)):
        case Found(body, _) if body == taken.body:
            return (yield from roll_back(taken.instant, EpochGuard(0), taken.known, paths=paths))
        case _:
            from lockkit.table.occ.late import archived_as  # rarely needed

            if (yield from archived_as(taken)):
                return RollbackRefused(taken.instant)
            # Never taken, or rolled back: what we sent can decide nothing any more.
            return (yield from withdraw(taken, EpochGuard(0), paths=paths))
