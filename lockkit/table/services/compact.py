"""Compaction: each file group's log files are merged into its next base file.

The plan is durable before a row is merged. Writers continue meanwhile, because a reader decides by
completion times: a log file that is completed after the instant T of the compaction stays behind
the new base file. So the compaction merges exactly the log files that were completed before T. A
commit that adds one more of those is a conflict (`missed_a_log`): its writer has a slow clock, or
decided it right before T and published it after the compaction's listing. After the compaction is
decided there is none: the fence makes completion times rise.

Rows keep their keys, commit times and sequence numbers. A compaction that is refused, fails or is
interrupted is rolled back at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from lockkit.runtime import Procedure, run
from lockkit.runtime.pool import Pool
from lockkit.runtime.progress import WorkDone
from lockkit.table.errors import TableBlocked, TableChanged, UnsupportedTable
from lockkit.table.format.base_file import BaseFileWriter, Slice, draft_file
from lockkit.table.format.base_file_reading import COPIED_ANEW
from lockkit.table.format.compaction_plan import (
    CompactionInput,
    CompactionPlan,
    format_compaction_plan,
)
from lockkit.table.format.layout import (
    COMPACT,
    NO_COMMIT,
    FileGroup,
    TaskId,
    WriteStat,
    in_partition,
)
from lockkit.table.format.plans import OURS
from lockkit.table.format.properties import FENCED, HUDI, TableConfig
from lockkit.table.format.refusals import refuse_millis
from lockkit.table.format.schema import META_COLUMNS
from lockkit.table.format.schema_reading import arrow_schema
from lockkit.table.format.timeline import Timeline
from lockkit.table.occ.failed import about_to_go, service_plans
from lockkit.table.occ.markers import mark
from lockkit.table.occ.prepared import Prepared, prepare
from lockkit.table.occ.transaction import TableCache, Transaction
from lockkit.table.read.log_slice import (
    LogSlice,
    instant_of,
    instants_of,
    log_slice,
    slice_instant,
)
from lockkit.table.read.opening import load_snapshot
from lockkit.table.read.reader import Scan, open_slice, scan_slice
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.services.cluster import carried_out
from lockkit.table.services.context import ServiceContext
from lockkit.table.services.rules import ServiceRules
from lockkit.table.services.view import TableView, look_again, look_at
from lockkit.table.write.contract import AttemptHeartbeat

PLANS_MAX = 10
AT_ONCE = 4
"""File groups that are merged at one time."""
ALONE_BYTES = 64 << 20
"""A file group with so many bytes of log files is merged while no other such group is."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """A compaction that is committed."""

    instant: str
    groups: int
    logs: int
    """Log files that no reader of later snapshots needs."""
    pending: bool = False
    """It is planned only: `instant` is to be carried out."""


def compact_due(now: Timeline, rules: ServiceRules) -> bool:
    """Whether enough commits have added log files since the last compaction."""
    last = max((each for each, action in now.completed.items() if action == "commit"), default="")
    added = sum(action == "deltacommit" and each > last for each, action in now.completed.items())
    return rules.compact_on and added >= rules.compact_every


class VoidPlan(TableBlocked):
    """Nobody can carry this plan out, and in the mode fenced any client may roll it back."""


def plan_for(
    context: ServiceContext, view: TableView, *, preview: bool = False
) -> CompactionPlan | None:
    """What would be merged now. Raises `VoidPlan` if a plan must be rolled back first."""
    if not view.config.merged:
        why = "is copy-on-write: it has no log files"
        raise UnsupportedTable(f"table {view.config.name!r}", why)
    refuse_millis(view.snapshot.schema)
    plan = context.run(planned(view))
    for instant, error in _plans_in_the_way(context, view):
        if error is not None and (plan is None or (isinstance(error, VoidPlan) and not preview)):
            raise error
        said = str(error or waits(instant, view.now, view.config.sliced))
        context.report(said.removeprefix(f"{instant} "), instant)
    return plan


def _plans_in_the_way(
    context: ServiceContext, view: TableView
) -> Iterator[tuple[str, TableBlocked | None]]:
    """The pending plans that belong to nobody, each with why it can never be carried out."""
    if "compaction" in view.now.pending.values():
        plans = context.run(service_plans(view.config.names, view.now))
        again, _saved = context.run(look_at(view.snapshot, view.snapshot.covered.count))
        for instant, plan in plans.items():
            if not isinstance(plan, CompactionPlan) or instant not in again.now.pending:
                continue
            if OURS not in plan.params:
                lives = stands(plan, again.snapshot, instant)
                yield instant, None if lives else never_carried_out(instant, view.config)


def waits(instant: str, now: Timeline, sliced: bool = False) -> TableBlocked:
    """A plan that belongs to nobody, and what to do."""
    if instant not in now.inflight:
        why = "is a pending plan of these log files"
        return TableBlocked(instant, why, "lockkit table compact URL --execute")
    back = f", or roll the plan back: lockkit table rollback URL --instant {instant} --stopped"
    return TableBlocked(
        instant, "was begun by a process without a heartbeat (Hudi's have none)",
        f"if it has ended, run Hudi's compactor again{'' if sliced else back}",
    )  # fmt: skip


def never_carried_out(instant: str, config: TableConfig) -> TableBlocked:
    cure = f"roll it back: lockkit table rollback URL --instant {instant}; then schedule another"
    if config.sliced:
        cure = "look at those log files: this plan cannot be rolled back in version 6"
    blocked = VoidPlan if config.mode == FENCED and not config.sliced else TableBlocked
    return blocked(
        instant, "has a plan that can never be carried out: a commit replaced its log files, or "
        "added one that was completed before the plan", cure,
    )  # fmt: skip


def planned(view: TableView) -> Procedure[CompactionPlan | None]:
    busy = yield from about_to_go(view.config.names, view.now)
    return choose(view.snapshot, {*busy, *still_written(view.snapshot, view.now)})


def still_written(snapshot: Snapshot, now: Timeline) -> Collection[FileGroup]:
    """File groups that no compaction may merge yet, where the order of instants decides.

    Readers apply the log files of one slice by their instants, and those of a later slice after
    them. A writer with an earlier instant than a finished one's is completed after the compaction,
    so its rows would lose against the other's before the compaction and win after it.
    """
    oldest = min((each for each, action in now.pending.items() if action == "deltacommit"),
                 default="~")  # fmt: skip
    by_version = snapshot.config.sliced  # of log files, in which writers do not overtake
    if snapshot.config.precombine is not None or not snapshot.config.hashed or by_version:
        return ()
    return [
        group for group, of in snapshot.groups.items()
        if isinstance(of, LogSlice) and max(of.completed.instants) > oldest
    ]  # fmt: skip


def choose(snapshot: Snapshot, busy: Collection[FileGroup] = ()) -> CompactionPlan | None:
    """Every file group with log files, but for those of a pending plan.

    One that has no base file begins with its first log file, for Hudi.
    """
    slices = tuple(
        CompactionInput(each.partition, each.file_id, base, each.path, each.logs)
        for each in snapshot.slices
        if isinstance(each, LogSlice) and (each.partition, each.file_id) not in busy
        and (base := _base_instant(snapshot, each))
    )
    return CompactionPlan(slices, {OURS: "compact"}) if slices else None


def _base_instant(snapshot: Snapshot, of: LogSlice) -> str:
    """"" where no commit has begun the file group yet (version 6)."""
    if snapshot.config.sliced:
        return slice_instant(of)
    return of.instant or min(instants_of(of) - {""})


def compact(context: ServiceContext, view: TableView) -> Compacted | None:
    """None if there are no log files.

    A commit between the look and the plan makes the plan void; then it looks and plans again.
    (Beside Hudi it looks and plans under the lock.)
    Raises `TableChanged` after `PLANS_MAX` void plans, `CommitConflict` if it missed a log file or
    an input was replaced; `CommitUnknown`, and what a commit raises.
    """
    for _ in range(PLANS_MAX):
        plan = plan_for(context, view)
        if plan is None or (done := _carried_out(context, view, plan)) is not None:
            return None if plan is None else done
        view, _saved = context.run(look_again(view))
    why = f"changed between each of {PLANS_MAX} looks and plans of a compaction; nothing was merged"
    raise TableChanged(f"table {view.config.name!r}", why, "try again when fewer writers commit")


def _carried_out(
    context: ServiceContext, view: TableView, plan: CompactionPlan
) -> Compacted | None:
    def under_the_lock() -> tuple[TableCache, bytes] | None:
        """Beside Hudi: a plan that is not void. A reader of Hudi's that has listed a plan fails if
        it is withdrawn.
        """
        nonlocal view, plan
        view, _saved = context.run(look_again(view))
        found = context.run(planned(view))
        plan = found or plan
        return (after_its_inputs(view), format_compaction_plan(plan)) if found else None

    prepared = carried_out(
        context, after_its_inputs(view), "compaction", format_compaction_plan(plan),
        lambda transaction, heart: None if context.run(planned_twice(plan, transaction))
        else merged(context, plan, view.snapshot, transaction, heart),
        under_the_lock if view.config.mode == HUDI else None,
    )  # fmt: skip
    if prepared is None:
        return None
    logs = sum(len(each.logs) for each in plan.slices)
    return Compacted(prepared.instant, len(plan.slices), logs)


def after_its_inputs(view: TableView) -> TableCache:
    """So that the compaction's instant is later than the completion of every log file so far."""
    latest = view.now.latest if view.config.mode == HUDI else ""  # none is withdrawn there
    return replace(
        view.known, newest=max((view.known.newest, latest, *view.now.completion.values()))
    )


def stands(plan: CompactionPlan, snapshot: Snapshot, instant: str) -> bool:
    """Whether the plan has exactly the log files that were completed before its `instant`.

    In version 6 it has each log file of its slices: `SliceMerge` looks at those that came later.
    """
    if snapshot.config.sliced:
        left = _not_replaced(plan, snapshot)
        of = [snapshot.groups.get(each.group) for each in left]
        return all(isinstance(standing, LogSlice) and standing.path == each.base
                   for standing, each in zip(of, left, strict=True))  # fmt: skip
    return all(_inputs(snapshot, each, instant) == set(each.logs) for each in plan.slices)


def _not_replaced(plan: CompactionPlan, snapshot: Snapshot) -> list[CompactionInput]:
    """Version 6: what is left of a plan, which cannot be given up for an overwrite of Hudi's."""
    gone = snapshot.replaced if snapshot.config.sliced else ()
    return [each for each in plan.slices if each.group not in gone]


def planned_twice(plan: CompactionPlan, transaction: Transaction) -> Procedure[bool]:
    """Whether another pending plan has a file group of this one, whose instant is taken.

    Of two processes that plan at one time at least one sees the other's plan here.
    """
    names, now = transaction.taken.names, transaction.timeline
    busy = yield from about_to_go(names, now, but=transaction.instant)
    return any(each.group in busy for each in plan.slices)


def _inputs(snapshot: Snapshot, planned: CompactionInput, instant: str) -> set[str] | None:
    of = snapshot.groups.get(planned.group)
    if not isinstance(of, LogSlice) or of.path != planned.base or instant in of.times:
        return None
    return {path for path, at in zip(of.logs, of.times, strict=True) if at < instant}


def slice_of(snapshot: Snapshot, planned: CompactionInput) -> Slice:
    """With the plan's log files alone: later ones stay behind the new base file."""
    of = snapshot.groups[planned.group]
    assert isinstance(of, LogSlice)
    if snapshot.config.sliced:
        return replace(of, logs=planned.logs, times=())
    times = dict(zip(of.logs, of.times, strict=True))
    return log_slice(snapshot.config, of, [(log, times[log]) for log in planned.logs])


def beside_the_plan(of: LogSlice, planned: CompactionInput, instant: str) -> LogSlice:
    """Version 6: the log files that go with the old base file, and that the plan lacks."""
    more = [each for each in of.logs if each not in planned.logs and instant_of(each) < instant]
    return replace(of, path="", logs=tuple(more))


def merged(
    context: ServiceContext, plan: CompactionPlan, before: Snapshot, transaction: Transaction,
    heart: AttemptHeartbeat, task: TaskId = TaskId(),
) -> Prepared | None:  # fmt: skip
    """The plan carried out; None if its inputs are not those of the table."""
    snapshot = context.run(load_snapshot(covering=transaction.covered, since=before))
    if not stands(plan, snapshot, transaction.instant):
        return None  # another commit came before the plan was written
    assert snapshot.schema is not None
    refuse_millis(snapshot.schema)
    context.report(f"compacting {len(plan.slices)} file groups", transaction.instant)
    of = "file groups", transaction.instant, context.emit, context.clock
    progress = WorkDone("compacted", len(plan.slices), *of)
    merge = SliceMerge(context, snapshot, transaction, heart, task, progress)
    with Pool(AT_ONCE) as pool:
        stats = tuple(pool.map(merge.carry_out, _not_replaced(plan, snapshot)))
    return context.run(prepare(
        transaction, stats, schema=snapshot.schema, operation=COMPACT,
        known_partitions=frozenset(partition for partition, _ in snapshot.groups),
    ))  # fmt: skip


@dataclass(frozen=True, slots=True)
class SliceMerge:
    """Merges slices into new base files; each is marked, then written, then put.

    The heartbeat raises before each file if this compaction must stop.
    """

    context: ServiceContext
    snapshot: Snapshot
    transaction: Transaction
    heart: AttemptHeartbeat
    task: TaskId
    progress: WorkDone
    alone: Lock = field(default_factory=Lock)

    def carry_out(self, planned: CompactionInput) -> WriteStat:
        """Raises `TableError` if an input is missing or cannot be read, and `StoreError`."""
        import pyarrow as pa

        from lockkit.table.format.data_files import put_data_file

        store, clock, target = self.context.store, self.context.clock, self.transaction.target
        assert self.snapshot.schema is not None
        columns = arrow_schema(self.snapshot.schema)
        every = pa.schema([*((name, pa.string()) for name in META_COLUMNS), *columns])
        of = slice_of(self.snapshot, planned)
        self._refuse_missed(planned)
        copied = tuple(name for name in every.names if name not in COPIED_ANEW)
        scan = Scan((of,), every, copied, None)
        with draft_file() as out:
            draft = BaseFileWriter(
                target, *planned.group, columns, out, self.task, of.instant or NO_COMMIT
            )
            self.heart.assert_alive()
            path = in_partition(draft.partition, draft.name)
            run(mark(target.instant, path, "MERGE"), store, clock)
            with open_slice(of, store, clock) as source, self._room(source.logs.values()):
                for batch in scan_slice(scan, of, source):
                    draft.copy(pa.Table.from_batches([batch]))
            stat = draft.close(inserts=0)
            self.heart.assert_alive()
            put_data_file(store, stat.path, out, stat.size_bytes, clock)
        self.progress.more()
        return replace(stat, updates=stat.writes)

    def _refuse_missed(self, planned: CompactionInput) -> None:
        """Version 6: raise if a log file that the plan lacks, and that goes with the old base file,
        has rows of a commit. It may hold a command, or what a dead writer wrote."""
        of = self.snapshot.groups[planned.group]
        if not self.snapshot.config.sliced or not isinstance(of, LogSlice):
            return
        from lockkit.table.read.merging_logs import visible_blocks
        later = beside_the_plan(of, planned, self.transaction.instant)
        with open_slice(later, self.context.store, self.context.clock) as source:
            if visible_blocks(source.logs, later):
                raise never_carried_out(self.transaction.instant, self.snapshot.config)

    def _room(self, logs: Iterable[memoryview]) -> Any:
        return self.alone if sum(map(len, logs)) >= ALONE_BYTES else nullcontext()
