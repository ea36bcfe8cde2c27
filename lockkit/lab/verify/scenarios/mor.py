"""The scenario `mor`: a merge-on-read table, written with and without conflicts, and compacted.

In three of ten worlds it is of version 6, beside which no fence stands (`verify.table.sliced`); in
half of those, processes archive its commits. Several writers append log files to the same file
groups, some under optimistic control, some under non-blocking control. Compactions, cleans and
rollbacks run in other processes. The judge knows the format's rule alone (`merged_judge`).
One file because each planted mistake changes a rule that these worlds play.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lockkit.lab.verify.mutants import Mutant, fence_of
from lockkit.lab.verify.planting import Plants, answering
from lockkit.lab.verify.sim import SimScenario
from lockkit.lab.verify.sim.fault_profile import CALM, FaultProfile
from lockkit.lab.verify.sim.lease import LeaseRun
from lockkit.lab.verify.sim.memory_store import PROFILES, SOUND, DecidedRequest, StoredObject
from lockkit.lab.verify.sim.run import RATE_OFF, around
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.lab.verify.sim.world import SimWorld
from lockkit.lab.verify.table.archiver import archives
from lockkit.lab.verify.table.host import SimHost
from lockkit.lab.verify.table.merged import MergedService, MergedWriter, read_merged
from lockkit.lab.verify.table.merged_judge import MergedLedger
from lockkit.lab.verify.table.scenario import (
    AHEAD_MS,
    CLOCK_OFF_MS,
    PROMPT,
    SCHEDULES,
    STEPS,
    TableRun,
)
from lockkit.lab.verify.table.sliced import RARE_KEYS, SlicedRun, SlicedService, SlicedWriter
from lockkit.lab.verify.table.writers import KEYS
from lockkit.protocol.policy import Policy
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, delete
from lockkit.table.format.log_blocks import COMMAND, blocks
from lockkit.table.format.properties import FENCED, HUDI, TableConfig
from lockkit.table.format.property_keys import BUCKET_INDEX, MERGE_ON_READ
from lockkit.table.occ import executions
from lockkit.table.occ.creation import create_table
from lockkit.table.read import log_order, log_slice
from lockkit.table.read.key_index import KeyIndex
from lockkit.table.read.log_slice import LogSlice
from lockkit.table.services import archive_history, compact, scheduled
from lockkit.table.services.view import look_at

NO_CONFLICT = "a non-blocking write conflicts with no other one and with no compaction"
INTERRUPTS, PLANS_STALL = 0.3, 0.3
SLICED, ARCHIVES = 0.3, 0.5
"""How many tables are of version 6, whose log files are named after their slice, and how many of
those are archived.
"""


@dataclass(slots=True)
class MergedRun(TableRun):
    """The table of one seed; `appends` are the clients that must meet no conflict."""

    replaces: bool = True
    """Whether a writer may overwrite."""
    appends: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ledger = MergedLedger(
            self.world.memory_store, ordered=self.config.precombine is not None,
            buckets=self.config.buckets,
        )  # fmt: skip

    def on_write(self, write: DecidedRequest, after: StoredObject | None) -> None:
        TableRun.on_write(self, write, after)
        key = getattr(write.request, "key", "")
        if after is not None and not write.before and key.endswith(".compaction.requested"):
            self._planned(write.client)

    def noted(self, kind: str, data: Mapping[str, Any]) -> None:
        TableRun.noted(self, kind, data)
        who = "" if self.world.going is None else self.world.going.name
        refused = kind == "refused" and data["error"] == "CommitConflict"
        if refused and who in self.appends and " rolls " not in data["why"]:
            if not self.replaces:
                raise Violated(NO_CONFLICT, data["why"])
            self.world.reached.add("overwritten")
        if kind == "published" and who in self.appends:
            self.world.reached.add("non-blocking commit")


def set_up(seed: str, steps: int, mutant: Mutant | None) -> TableRun:
    if random.Random(f"mor of version 6 {seed}").random() < SLICED:
        return _set_up_sliced(seed, steps, mutant)
    dice = random.Random(f"mor {seed}")
    policy = Policy() if mutant is None else mutant.of(Policy())
    profile = PROFILES[dice.choice(SOUND)]
    fault_profile = CALM if dice.random() < 0.4 else FaultProfile.of(dice)
    mode = HUDI if dice.random() < 0.12 else FENCED
    schedules = SCHEDULES if mode == FENCED else tuple(SCHEDULES[each] for each in PROMPT)
    world = SimWorld(seed, steps, profile, CALM if mode == HUDI else fault_profile, uniform=True)
    world.schedule = dice.choice(schedules)(world)
    world.paged = dice.random() < 0.3
    partitioned = dice.random() < 0.4
    config = TableConfig(
        name="t", record_key="id", version=9, buckets=2, mode=mode, table_type=MERGE_ON_READ,
        index=BUCKET_INDEX, partition_by="region" if partitioned else None,
        precombine="ts" if dice.random() < 0.5 else None,
    )  # fmt: skip
    locked, hasty = dice.random() < 0.5 or mode == HUDI, dice.random() < 0.2 and mode == FENCED
    run = MergedRun(
        world, LeaseRun(world, policy, fence_of(mutant)), config, locked, dice.choice((2, 5, 16)),
        ("region=EU", "region=US") if partitioned else ("",), hasty,
    )  # fmt: skip
    run.replaces = dice.random() < 0.5 and mode == FENCED
    run.warm = dice.random() < 0.5
    run.interrupts = INTERRUPTS if dice.random() < 0.4 else 0.0
    run.plans_stall = PLANS_STALL if dice.random() < 0.5 else 0.0
    world.run(create_table(config))
    run.watch()
    _populate(run, dice)
    return run


def _set_up_sliced(seed: str, steps: int, mutant: Mutant | None) -> SlicedRun:
    """A table of version 6. Nobody is stopped under the lock: it has no fence to tell."""
    dice = random.Random(f"mor sliced {seed}")
    policy = Policy() if mutant is None else mutant.of(Policy())
    world = SimWorld(seed, steps, PROFILES[dice.choice(SOUND)], CALM, uniform=True)
    world.schedule = SCHEDULES[dice.choice(PROMPT)](world)
    world.paged = dice.random() < 0.3
    partitioned = dice.random() < 0.4
    archivers = random.Random(f"mor archives {seed}")
    archived = archivers.random() < ARCHIVES
    config = TableConfig(
        name="t", record_key="id", version=6, buckets=2, mode=HUDI, table_type=MERGE_ON_READ,
        index=BUCKET_INDEX, partition_by="region" if partitioned else None,
        precombine="ts" if dice.random() < 0.5 else None,
    )  # fmt: skip
    if archived:
        config = replace(config, buckets=len(KEYS) + len(RARE_KEYS))
    run = SlicedRun(
        world, LeaseRun(world, policy, fence_of(mutant)), config, True, dice.choice((2, 5, 16)),
        ("region=EU", "region=US") if partitioned else ("",), False,
    )  # fmt: skip
    run.sleeps, run.kills = dice.choice((0.0, 0.05, 0.2)), dice.choice((0.0, 0.01, 0.05))
    run.interrupts = INTERRUPTS if dice.random() < 0.4 else 0.0
    run.bases_first, run.writers_first = dice.random() < 0.3, dice.random() < 0.3
    run.warm = random.Random(f"mor warm {seed}").random() < 0.5
    run.holds = run.warm and random.Random(f"mor holds {seed}").random() < 0.7
    run.archives = archived
    world.run(create_table(config))
    run.watch()
    lives = [("W", partial(_sliced_writer, run)) for _ in range(2 + int(dice.random() * 3))]
    lives += [("S", partial(run.of, SlicedService))] * (2 + int(dice.random() * 2))
    lives += [("A", partial(archives, run))] * (run.archives * archivers.choice((1, 2)))
    _spawn(run, dice, lives)
    return run


def _sliced_writer(run: SlicedRun, node: Node) -> Procedure[None]:
    writer = SlicedWriter(run, SimHost(run, run.leases.join(node)))
    writer.replaces = False
    writer.bases_first, writer.writers_first = run.bases_first, run.writers_first
    writer.rare_keys = run.archives
    return writer.live()


def _populate(run: MergedRun, dice: random.Random) -> None:
    lives = [("W", partial(_writer, run, dice.random() < 0.7))
             for _ in range(2 + int(dice.random() * 3))]  # fmt: skip
    lives += [("S", partial(run.of, MergedService))] * (1 + int(dice.random() * 2))
    _spawn(run, dice, lives, ahead_ms=dice.choice(AHEAD_MS))


def _spawn(
    run: TableRun, dice: random.Random,
    lives: Sequence[tuple[str, Callable[[Node], Procedure[None]]]], ahead_ms: int = 0,
) -> None:  # fmt: skip
    """Start the processes, the first with a clock that is so far ahead, and a reader."""
    for number, (letter, live) in enumerate(lives, 1):
        run.process(
            f"{letter}{number}", live, rate=1 + around(dice, RATE_OFF),
            offset_ms=int(around(dice, CLOCK_OFF_MS)) + (ahead_ms if number == 1 else 0),
            steps_ms=CLOCK_OFF_MS,
        )  # fmt: skip
    run.world.spawn(run.world.node("R"), read_merged(run))


def _writer(run: MergedRun, nonblocking: bool, node: Node) -> Procedure[None]:
    writer = MergedWriter(run, SimHost(run, run.leases.join(node)))
    writer.nonblocking, writer.replaces = nonblocking, run.replaces
    if nonblocking:
        run.appends.add(node.name)
    return writer.live()


SCENARIO = SimScenario(
    "mor", "a merge-on-read table: overlapping writers, compactions, cleans and rollbacks", STEPS,
    set_up,
    ("refused commit", "non-blocking commit", "overwritten", "compaction", "clean", "rollback",
     "roll-forward", "merged read", "stall", "restart", "interrupt", "killed", "slept", "archive",
     "late file"),
)  # fmt: skip


# --- mistakes -------------------------------------------------------------------------------------


class Everything:
    """As `VisibleInstants`, of all instants."""

    def __init__(self, *_: Any) -> None:
        self.instants: frozenset[str] = frozenset()

    def __contains__(self, _instant: object) -> bool:
        return True


RIGHT_SLICE, RIGHT_SLICE_OF = log_slice.log_slice, compact.slice_of
RIGHT_STANDING, RIGHT_REPLACES = log_order.standing, log_order.replaces
_L = "lockkit.table.read.log_slice"
_R, _O, _M = "lockkit.table.read.log_order", "lockkit.table.occ", "lockkit.lab.verify.table.merged"
_S, _A = "lockkit.lab.verify.table.sliced", "lockkit.table.services"


def by_completion(config: Any, base: Any, logs: Any) -> Any:
    """Apply log files in the order in which they were completed."""
    found = RIGHT_SLICE(config, base, logs)
    if not isinstance(found, LogSlice):
        return found
    pairs = sorted(zip(found.times, found.logs, strict=True))
    return replace(
        found, logs=tuple(path for _, path in pairs), times=tuple(at for at, _ in pairs)
    )


def by_instant(config: Any, standing: Any, commit: Any, stat: Any) -> Any:
    """A log file belongs to the newest base file that is older than its own instant."""
    earlier = replace(commit, completion=commit.instant)
    return RIGHT_SLICE_AFTER(config, standing, earlier, stat)


RIGHT_SLICE_AFTER, RIGHT_NEXT = log_slice.slice_after, log_slice.next_log
RIGHT_PUT_BACK, RIGHT_LEFT = executions.put_back, scheduled.put_back
RIGHT_HISTORY = archive_history.add_history


def rows_win(index: KeyIndex, kinds: Any, order: Any) -> Any:
    """A deletion loses against every row of the log files, also an older one."""
    import pyarrow.compute as pc

    keys, rows = index.codes.cast("string"), pc.equal(kinds, log_order.ROW)
    has_row = pc.is_in(keys, value_set=keys.filter(rows))
    places = pc.indices_nonzero(pc.or_(rows, pc.invert(has_row)))
    others, left = [each.take(places) for each in order], KeyIndex(keys.take(places))
    return places.take(RIGHT_STANDING(left, kinds.take(places), others))


def deletes_stand(index: KeyIndex, kinds: Any, order: Any) -> Any:
    """A deletion wins against every row before it, whatever its precombine value."""
    return RIGHT_STANDING(index, _always(kinds), order)


def deletes_replace(stored: Any, kinds: Any, order: Any) -> Any:
    """As `deletes_stand`, against the base file."""
    return RIGHT_REPLACES(stored, _always(kinds), order)


def _always(kinds: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    always = pa.scalar(log_order.DELETE_ALWAYS, kinds.type)
    return pc.if_else(pc.equal(kinds, log_order.DELETE), always, kinds)


def the_later_stands(index: KeyIndex, kinds: Any, _order: Any) -> Any:
    return RIGHT_STANDING(index, kinds, [])


def the_later_replaces(_stored: Any, kinds: Any, _order: Any) -> Any:
    return RIGHT_REPLACES([], kinds, [])


def without_the_last(snapshot: Any, planned: Any) -> Any:
    """Merge all log files of a plan but one."""
    fewer = planned.logs[:-1] or planned.logs
    return RIGHT_SLICE_OF(snapshot, replace(planned, logs=fewer))


def stands_anyway(plan: Any, snapshot: Any, _instant: str) -> bool:
    """Whether the table has the plan's files, whatever else was completed before its instant."""
    of = {each.group: snapshot.groups.get(each.group) for each in plan.slices}
    return all(
        isinstance(found := of[each.group], LogSlice)
        and found.path == each.base and {*each.logs} <= {*found.logs} for each in plan.slices
    )


def of_the_old_slice(of: Any, instant: str) -> tuple[str, int]:
    """A log file is named after its base file, though a compaction of it is planned."""
    return RIGHT_NEXT(replace(of, next_base="") if isinstance(of, LogSlice) else of, instant)


def of_its_own_slice(_of: Any, instant: str) -> tuple[str, int]:
    """A log file is named after its own instant, as in version 9."""
    return instant, 1


def the_first_version(of: Any, instant: str) -> tuple[str, int]:
    return RIGHT_NEXT(of, instant)[0], 1


def looked_before_the_lock(host: Any, way: Any) -> Procedure[str]:
    """Plan what was seen before the lock was held."""
    view, _ = yield from look_at(None, 0)
    instant: str = yield from host.hold(lambda _host, held: way(view, held))
    return instant


def every_execution(taken: Any) -> Procedure[None]:
    """An execution that gives up deletes what others wrote for the plan, too."""
    yield from executions.delete_executions(taken.instant)
    yield from RIGHT_LEFT(taken)


def every_block(logs: Any, _of: Any) -> Any:
    """Read the blocks of all instants."""
    return [each for name, body in logs.items() for each in blocks(name, body)
            if each.kind != COMMAND]  # fmt: skip


def plan_and_all(target: str, names: Any) -> Procedure[tuple[str, ...]]:
    """Take the plan away with what was written for it."""
    files: tuple[str, ...] = yield from RIGHT_PUT_BACK(target, names)
    yield from delete(names.requested(target, "compaction"))
    return files


def all_deleted(_target: str, paths: Any, _sliced: bool) -> Procedure[None]:
    """Delete a dead writer's log files, as in version 9."""
    yield from all_of(delete(path) for path in paths)


def every_slice(_now: Any, _at: str, _start: str) -> bool:
    """A file group has the log files of all writers that began it."""
    return True


def no_conflict(*_: Any, **__: Any) -> None:
    return None


class AllInstants(set[str]):
    """Whatever is taken away from it."""

    def __contains__(self, _instant: object) -> bool:
        return True

    def __sub__(self, _instants: object) -> AllInstants:
        return self


def leave_at_once(config: Any, leaving: Any, believe: Any) -> Procedure[list[str]]:
    """Instants leave the timeline before the archive has them."""
    for each in leaving:
        yield from delete(config.names.completed(each.instant, each.action, each.completed))
    archived: list[str] = yield from RIGHT_HISTORY(config, leaving, believe)
    return archived


_SAYS: dict[str, tuple[str, Plants]] = {
    "rolled back": ("a log file of a rolled-back or pending instant is read",
                    {"lockkit.table.read.listed:VisibleInstants": Everything}),
    "by completion": ("the log files of a slice are ordered by their completion",
                      {f"{_L}:log_slice": by_completion}),
    "sliced by instant": ("a log file is put behind a base file by its instant, not its completion",
                          {f"{_L}:slice_after": by_instant}),
    "deletes first": ("a deletion is applied before older rows",
                      {f"{_R}:standing": rows_win}),
    "deletes win": ("a deletion removes rows with a greater precombine value",
                    {f"{_R}:standing": deletes_stand, f"{_R}:replaces": deletes_replace}),
    "later wins": ("the later row wins, whatever its precombine value",
                   {f"{_R}:standing": the_later_stands, f"{_R}:replaces": the_later_replaces}),
    "one log less": ("a compaction leaves a log file of its plan out",
                     {f"{_M}:slice_of": without_the_last}),
    "stale plan": ("a compaction misses a log file that was completed before its plan",
                   {f"{_M}:stands": stands_anyway, f"{_O}.conflict:missed_a_log": no_conflict}),
    "missed log": ("a compaction commits though another commit added a log file that it missed",
                   {f"{_O}.commit:find_conflict": no_conflict}),
    "overslept": ("a compaction, or a write, commits after it was rolled back",
                  {f"{_O}.commit:judge": no_conflict}),
    "old slice": ("version 6: a log file behind a planned compaction is named after the old slice",
                  {f"{_S}:next_log": of_the_old_slice}),
    "own slice": ("version 6: a log file is named after its own instant",
                  {f"{_S}:next_log": of_its_own_slice}),
    "one version": ("version 6: two log files of a slice have one version",
                    {f"{_S}:next_log": the_first_version}),
    "no command": ("version 6: a rollback leaves a log file without a command behind it",
                   {f"{_O}.log_rollback:_command": answering(None)}),
    "log deleted": ("version 6: a rollback deletes a log file that a plan names",
                    {f"{_O}.rollback:take_files_back": all_deleted}),
    "plan withdrawn": ("version 6: the rollback of a dead compaction takes its plan away",
                       {f"{_O}.rollback:put_back": plan_and_all}),
    "planned apart": ("version 6: a plan is made of what was seen before the lock was held",
                      {f"{_S}:under_lock": looked_before_the_lock}),
    "began too": ("version 6: a file group has the log file of a dead writer that began it, too",
                  {"lockkit.table.read.listed:is_of_the_newest": every_slice}),
    "before the plan": ("version 6: a writer commits though a compaction was planned meanwhile",
                        {f"{_O}.conflict:planned_after_us": no_conflict}),
    "unlisted": ("version 6: a short write puts its log files whatever its listing shows",
                 {f"{_O}.held:shows_no_more": answering(True)}),
    "others' files": ("version 6: an execution that gives up deletes another one's base files",
                      {"lockkit.table.services.scheduled:put_back": every_execution}),
    "every block": ("version 6: the blocks of instants that are not completed are merged",
                    {"lockkit.table.read.merging_logs:visible_blocks": every_block}),
    "late file": ("version 6: an archiver passes a late file of a rolled-back writer",
                  {f"{_A}.strays:take_strays_back": answering(None)}),
    "archived file": ("version 6: an archiver takes files of archived commits for late ones",
                      {f"{_A}.strays:first_active": lambda *_: "",
                       f"{_A}.strays:load_archived": answering([]),
                       f"{_A}.strays:_taken_back": answering(AllInstants())}),
    "archived late": ("version 6: commits leave the timeline before the archive has them",
                      {f"{_A}.archive:add_history": leave_at_once}),
}  # fmt: skip
MUTANTS = {name: Mutant(name, says, plants) for name, (says, plants) in _SAYS.items()}
