"""Clustering: small file groups are rewritten into few larger ones.

The plan is durable before a row is copied, so that writers see which file groups it will replace.
Rows are copied unchanged, with their keys, commit times and sequence numbers, a few batches in
memory. A clustering commits as any writer does and replaces its inputs. A writer that wrote to one
of them in the meantime conflicts with it, so no row is lost or doubled. A clustering that is
refused, fails or is interrupted is rolled back at once, because writers yield to a pending plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

from lockkit.errors import clipped
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, listing
from lockkit.table.errors import UnsupportedTable
from lockkit.table.format.base_file import Slice
from lockkit.table.format.layout import NO_BASE, FileGroup
from lockkit.table.format.plans import (
    OURS,
    ClusteringGroup,
    ClusteringInput,
    ReplacePlan,
    format_cluster_plan,
)
from lockkit.table.format.refusals import refuse_millis
from lockkit.table.format.timeline import HOODIE, TimelineNames, load_timeline
from lockkit.table.occ.conflict import PREFER_WRITER, find_conflict
from lockkit.table.occ.failed import about_to_go
from lockkit.table.occ.markers import at_work, unmark
from lockkit.table.occ.prepared import Prepared, prepare
from lockkit.table.occ.transaction import TableCache, Transaction
from lockkit.table.read.buckets import is_bucketed
from lockkit.table.read.opening import load_snapshot
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.services.context import ServiceContext, StoreHost
from lockkit.table.services.rules import LAYOUT_KEY, TARGET_KEY, ClusterRules
from lockkit.table.services.view import TableView
from lockkit.table.write.attempt import Planner, WriteAttempt
from lockkit.table.write.contract import AttemptHeartbeat

INPUTS_MAX = 10_000
LISTED_APART_MAX = 16
"""Up to this many partitions are listed one by one; for more, the whole table is listed."""


def action_of(names: TimelineNames) -> str:
    """What a clustering is called while it is pending; when completed it is a replacecommit."""
    return "replacecommit" if names.layout == 1 else "clustering"


# --- the plan -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SizedSlice:
    """A slice, and the size of its file."""

    of: Slice
    size_bytes: int

    @property
    def bucketed(self) -> bool:
        return is_bucketed(self.of.file_id)


def plan_cluster(
    snapshot: Snapshot,
    rules: ClusterRules = ClusterRules(),
    *,
    busy: Collection[FileGroup] = (),
    base: str = NO_BASE,
) -> Procedure[ReplacePlan | None]:
    """The file groups of the snapshot to be rewritten; None if there are none. Writes nothing.

    Partitions with a `busy` group are left alone. `base` as for `roll_back`.
    """
    if snapshot.config.merged or snapshot.config.hashed:
        raise UnsupportedTable(
            f"table {snapshot.config.name!r}", "is not clustered: it is merge-on-read or has "
            "Hudi's bucket index, and the hash of a row's key says which file group has it, so no "
            "group may be joined or split",
            "compact a merge-on-read table, which merges its log files: lockkit table compact URL",
        )  # fmt: skip
    left = {partition for partition, _ in busy}
    slices = [each for each in snapshot.slices if each.partition not in left
              and (not rules.partitions or each.partition in rules.partitions)]  # fmt: skip
    sizes: dict[str, int] = {}
    partitions = sorted({each.partition for each in slices})
    if len(partitions) > LISTED_APART_MAX:
        ways = [listing("")]
    else:  # a table without partitions has its files beside `.hoodie/`, which may contain far more
        ways = [listing(f"{each}/") if each else listing("", after=HOODIE + "~")
                for each in partitions]  # fmt: skip
    for listed in (yield from all_of(ways)):
        sizes.update({each.key: each.size for each in listed})
    # Another service has cleaned it meanwhile, so it was replaced before: the partition changed.
    moved = {each.partition for each in slices if each.path not in sizes}
    sized = [SizedSlice(each, sizes[each.path]) for each in slices if each.partition not in moved]
    groups = choose(sized, rules, buckets=snapshot.config.buckets)
    params = {OURS: "cluster", LAYOUT_KEY: rules.layout, TARGET_KEY: str(rules.target_file_bytes)}
    return ReplacePlan(groups, params, base) if groups else None


def choose(
    slices: Iterable[SizedSlice], rules: ClusterRules, *, buckets: int
) -> tuple[ClusteringGroup, ...]:
    """Pure: the groups of one rewrite; a partition's small files packed together, smallest first.

    Files that would not become fewer are left alone.
    """
    chosen: list[ClusteringGroup] = []
    by_partition = groupby(
        sorted(slices, key=lambda each: each.of.partition), lambda each: each.of.partition
    )
    for _, here in by_partition:
        if rules.layout == "bucketed":
            chosen += _into_buckets(list(here), rules, buckets)
        else:
            chosen += _into_larger(list(here), rules)
    return tuple(chosen[: rules.groups_max])


def _into_larger(here: list[SizedSlice], rules: ClusterRules) -> Iterator[ClusteringGroup]:
    """Without the bucketed groups: they are few, and upserts look there."""
    free = (each for each in here if not each.bucketed)
    small = sorted((each for each in free if each.size_bytes < rules.small_file_bytes), key=_order)
    for pack in _packs(small, rules.group_bytes_max):
        outputs = math.ceil(sum(each.size_bytes for each in pack) / rules.target_file_bytes)
        if len(pack) > max(outputs, 1):
            yield ClusteringGroup(tuple(_input(each) for each in pack), max(outputs, 1))


def _into_buckets(
    here: list[SizedSlice], rules: ClusterRules, buckets: int
) -> Iterator[ClusteringGroup]:
    """With the bucketed groups: a bucket's rows must be in one group, or a key exists twice."""
    free = sorted((each for each in here if not each.bucketed), key=_order)
    if not free:
        return
    first = next(_packs(free, rules.group_bytes_max))
    pack = [*(each for each in here if each.bucketed), *first]
    yield ClusteringGroup(tuple(_input(each) for each in pack), buckets)


def _order(each: SizedSlice) -> tuple[int, str]:
    return each.size_bytes, each.of.file_id


def _packs(slices: list[SizedSlice], bytes_max: int) -> Iterator[list[SizedSlice]]:
    pack: list[SizedSlice] = []
    for each in slices:
        held = sum(one.size_bytes for one in pack)
        if pack and (held + each.size_bytes > bytes_max or len(pack) == INPUTS_MAX):
            yield pack
            pack = []
        pack.append(each)
    if pack:
        yield pack


def _input(each: SizedSlice) -> ClusteringInput:
    return ClusteringInput(each.of.partition, each.of.file_id, each.of.path)


def stands(plan: ReplacePlan, snapshot: Snapshot) -> bool:
    """Whether each input is still the latest slice of its file group. A plan that fills buckets
    must also contain all bucketed groups: two groups of one bucket may have one key twice.
    """
    inputs = {(each.partition, each.file_id): each.path
              for group in plan.groups for each in group.slices}  # fmt: skip
    if plan.params[LAYOUT_KEY] == "bucketed":
        partitions = {partition for partition, _ in inputs}
        now = {group for group in snapshot.groups
               if group[0] in partitions and is_bucketed(group[1])}  # fmt: skip
        if not now <= inputs.keys():
            return False
    return all(
        (of := snapshot.groups.get(group)) and of.path == path for group, path in inputs.items()
    )


# --- carried out ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Clustered:
    """A clustering that is committed."""

    instant: str
    replaced: int
    """File groups that are gone."""
    files: int


def plan_for(context: ServiceContext, view: TableView) -> ReplacePlan | None:
    """What would be rewritten now."""
    return context.run(plan_cluster(
        view.snapshot, context.rules.cluster, base=context.base(view.config),
        busy=context.run(about_to_go(view.config.names, view.now)),
    ))  # fmt: skip


def cluster(context: ServiceContext, view: TableView) -> Clustered | None:
    """None if there is nothing to gain, or if the table changed since it was inspected.

    Raises `CommitConflict` if a writer was faster, `CommitUnknown`, and what a commit raises.
    """
    plan = plan_for(context, view)
    if plan is None:
        return None
    prepared = carried_out(
        context, view.known, action_of(view.config.names), format_cluster_plan(plan),
        lambda transaction, heart: _rewritten(context, plan, view.snapshot, transaction, heart),
    )  # fmt: skip
    if prepared is None or plan.inputs is None:
        return None
    return Clustered(prepared.instant, len(plan.inputs), len(prepared.stats))


def carried_out(
    context: ServiceContext, known: TableCache, action: str, plan: bytes,
    work: Callable[[Transaction, AttemptHeartbeat], Prepared | None],
    anew: Planner | None = None,
) -> Prepared | None:  # fmt: skip
    """Write the plan down, as it was or `anew`, do its `work`, and commit it; None: nothing to do.
    """
    attempt = WriteAttempt(StoreHost(context, context.rules.heartbeat), context.rules.strategy)

    def files(transaction: Transaction, heart: AttemptHeartbeat) -> Procedure[Prepared | None]:
        yield from ()
        try:
            return work(transaction, heart)
        except BaseException as error:
            what = "compaction" if action == "compaction" else "clustering"
            why = clipped(repr(error), 200)
            context.report(f"taking the {what} back: {why}", transaction.instant)
            raise

    committed = context.run(attempt.write(known, files, action=action, plan=plan, anew=anew))
    if committed is None:
        return None
    with suppress(Exception):  # it is committed; what is left here is cleaned up later
        context.run(unmark(committed.instant))
    return attempt.prepared


def _rewritten(
    context: ServiceContext, plan: ReplacePlan, before: Snapshot, transaction: Transaction,
    heart: AttemptHeartbeat,
) -> Prepared | None:  # fmt: skip
    snapshot = context.run(load_snapshot(covering=transaction.covered, since=before))
    if not stands(plan, snapshot):  # another commit came before the plan was written
        return None
    assert plan.inputs is not None and snapshot.schema is not None
    refuse_millis(snapshot.schema)
    from lockkit.table.services.rewrite import Rewrite
    context.report(f"rewriting {len(plan.inputs)} file groups", transaction.instant)
    stats = Rewrite(plan, snapshot, transaction.target, context, heart.assert_alive).carry_out()
    prepared = context.run(prepare(
        transaction, stats, schema=snapshot.schema, operation="CLUSTER", replaced=plan.inputs,
        known_partitions=frozenset(partition for partition, _ in snapshot.groups),
    ))  # fmt: skip
    if context.rules.strategy is PREFER_WRITER:
        now = context.run(load_timeline(prepared.names))
        writers = context.run(
            at_work(prepared.names, now, mine=prepared.instant, rules=context.rules.heartbeat)
        )
        if conflict := find_conflict(prepared.mine, (), pending=writers, strategy=PREFER_WRITER):
            raise conflict.refusal(prepared.instant)
    return prepared
