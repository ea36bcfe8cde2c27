"""The writers and services of the scenario `mor` for merge-on-read tables of version 6.

They run lockkit's own names, markers, plans, executions and rollbacks. The table is in mode hudi. A
process may be killed after each write, and may sleep beside its data files, where it holds no lock.
Where archivers run, a data file of a killed writer may arrive again after its rollback.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lockkit.lab.verify.sim.fault_injection import DOWN_MS
from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import LateWrite, Node, Violated
from lockkit.lab.verify.table.host import EXPECTED, SimHost
from lockkit.lab.verify.table.ledger import TrackedAttempt
from lockkit.lab.verify.table.merged import (
    Entry,
    MergedService,
    MergedWriter,
    logged_blocks,
    merged_base,
    merged_rows,
)
from lockkit.lab.verify.table.merged_judge import MergedAttempt
from lockkit.lab.verify.table.reader import data_name
from lockkit.lab.verify.table.rows import SCHEMA, SnapshotFileGone, put_files
from lockkit.lab.verify.table.scenario import TableRun
from lockkit.lab.verify.table.sliced_judge import CARRIED_OUT, SlicedLedger, blocks_of, log_name
from lockkit.runtime import Procedure, Put
from lockkit.runtime.proven import all_of
from lockkit.table.format.base_file import BaseFile, Slice
from lockkit.table.format.compaction_plan import CompactionInput, CompactionPlan
from lockkit.table.format.layout import (
    COMPACT,
    NO_COMMIT,
    FileGroup,
    TaskId,
    WriteStat,
    file_name,
    in_partition,
    write_token,
)
from lockkit.table.format.log_blocks import AVRO, INSTANT
from lockkit.table.format.log_writing import log_block, log_name_in
from lockkit.table.occ.commit import Committed, StateChange
from lockkit.table.occ.conflict import BUCKET, PREFER_WRITER
from lockkit.table.occ.executions import execution
from lockkit.table.occ.markers import MARKERS, Io, mark, unmark
from lockkit.table.occ.prepared import Prepared, prepare
from lockkit.table.occ.transaction import TakenInstant, Transaction
from lockkit.table.read.log_slice import LogSlice, next_log, slice_instant
from lockkit.table.read.opening import load_snapshot
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.services import strays
from lockkit.table.services.compact import beside_the_plan, planned, slice_of, stands
from lockkit.table.services.scheduled import PlanAttempt, not_begun, put_plan, to_execute
from lockkit.table.services.view import TableView, look_at
from lockkit.table.write.attempt import WriteAttempt
from lockkit.table.write.contract import AttemptHeartbeat, AttemptHost

if TYPE_CHECKING:
    from lockkit.lab.verify.table.ledger import AttemptLedger
    from lockkit.table.write.batch import StreamBatch

SLEEPS_MS, HITS_MAX = 30_000.0, 12
LEFT_TO_OTHERS, BEGINNERS_KILLED = 0.4, 0.3
RARE, RARE_KEYS = 0.2, ("k5", "k6", "k7")
_ROLLED_BACK = re.compile(r"\.hoodie/\d{17}\.rollback")


def sliced_log(
    instant: str, group: FileGroup, rows: Sequence[Entry], base: Slice | None
) -> BaseFile:
    """The next log file of a file group."""
    name = log_name_in(group[1], next_log(base, instant), write_token(instant, TaskId()))
    path, previous = in_partition(group[0], name), slice_instant(base) if base else NO_COMMIT
    body = log_block(AVRO, {INSTANT: instant}, json.dumps(rows, separators=(",", ":")).encode())
    return BaseFile(path, body, WriteStat(
        partition=group[0], file_id=group[1], path=path, writes=len(rows),
        previous=previous or NO_COMMIT, size_bytes=len(body),
    ))  # fmt: skip


@dataclass(slots=True)
class SlicedRun(TableRun):
    """The table of one seed, in version 6."""

    sleeps: float = 0.0
    """How often a process sleeps beside one of its data files."""
    kills: float = 0.0
    """How often a process is killed after a write."""
    hit: int = 0
    """How often either has happened."""
    bases_first: bool = False
    """Whether a base file begins a file group, as without a bucket index."""
    writers_first: bool = False
    archives: bool = False
    """Whether older commits leave the timeline."""
    delayed: list[LateWrite] = field(default_factory=list)
    """Data files of killed writers, which arrive again after the next rollback."""
    plans: SlicedLedger = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = self.plans = SlicedLedger(
            self.world.memory_store, ordered=self.config.precombine is not None,
            buckets=self.config.buckets,
        )  # fmt: skip

    def on_write(self, write: DecidedRequest, after: StoredObject | None) -> None:
        TableRun.on_write(self, write, after)
        dice, key = self.world.dice, getattr(write.request, "key", "")
        if self.delayed and after is not None and _ROLLED_BACK.fullmatch(key):
            self._arrive()
        node = next((each for each in self.world.nodes if each.name == write.client), None)
        if node is None or node.down or node.birth is None or self.hit >= HITS_MAX:
            return
        beside = key.startswith(MARKERS) or not key.startswith(".hoodie/")
        often = 3 * self.sleeps if write.client.startswith("S") else self.sleeps
        if self.sleeps and beside and after is not None and dice.random() < often:
            self.hit += 1
            self.world.pause(node, self.world.time.now_ms + SLEEPS_MS * dice.random())
            self.world.reached.add("slept")
        elif (self.kills and dice.random() < self.kills) or (
            after is not None and self._begins_a_group(write) and dice.random() < BEGINNERS_KILLED
        ):
            self.hit += 1
            self._kill(node, write)

    def _kill(self, node: Node, write: DecidedRequest) -> None:
        """Its other requests that are on their way arrive now, or never."""
        world = self.world
        world.crash(node, world.time.now_ms + world.dice.choice(DOWN_MS) * world.dice.random())
        world.reached.add("killed")
        for late in list(world.flying):
            if late.request is write.request or world.dice.random() < 0.5:
                world.flying.remove(late)
        world.land()
        request = write.request
        if isinstance(request, Put) and self._begins_a_group(write):
            again = LateWrite(write.client, request, write.began_ms, world.time.now_ms, 0.0)
            self.delayed.append(again)

    def _begins_a_group(self, write: DecidedRequest) -> bool:
        """Whether a rollback deletes the file that was written, and puts no command in its place.

        None that is older than the first commit: readers take it for an archived commit's.
        """
        request = write.request
        first = min((each.instant for each in self.plans.commits), default="~")
        if not (self.archives and write.client.startswith("W") and isinstance(request, Put)):
            return False
        if (log := log_name(request.key)) is not None:
            return first < log.of == blocks_of(request.body)[0].instant
        base = data_name(request.key)
        return base is not None and first < base.instant

    def _arrive(self) -> None:
        self.world.flying += self.delayed
        self.delayed.clear()
        self.world.land()
        self.world.reached.add("late file")

    def end(self) -> None:
        TableRun.end(self)
        self.plans.nothing_revives()

    def tidied(self, host: SimHost) -> Procedure[None]:
        """Also carry out every plan that is left, and take back what arrived late."""
        yield from TableRun.tidied(self, host)
        view, _ = yield from look_at(None, 0)
        for instant, action in sorted(view.now.pending.items()):
            if action == "compaction":
                yield from SlicedService(self, host).execute(view, instant)
                view, _ = yield from look_at(None, 0)
        if self.archives:
            yield from host.hold(lambda _host, _held: strays.take_strays_back(view.config))


# --- writers --------------------------------------------------------------------------------------


@dataclass(slots=True)
class SlicedWriter(MergedWriter):
    """A writer of log files that are named after their slice."""

    bases_first: bool = False
    writers_first: bool = False
    rare_keys: bool = False
    """Whether some file groups are hardly ever written."""

    def write(
        self, mine: TrackedAttempt, partition: str, keys: Sequence[str],
        batch: StreamBatch | None = None,
    ) -> Procedure[Committed | None]:  # fmt: skip
        dice = self.run.world.dice
        if self.rare_keys and mine.kind == "upsert" and dice.random() < RARE:
            keys = keys[0], dice.choice(RARE_KEYS)
        return MergedWriter.write(self, mine, partition, keys, batch)

    def _attempt(self) -> WriteAttempt:
        attempt = MergedWriter._attempt(self)
        return replace(attempt, strategy=PREFER_WRITER if self.writers_first else BUCKET)

    def _files(
        self, mine: TrackedAttempt, transaction: Transaction, snapshot: Snapshot, partition: str,
        keys: Sequence[str],
    ) -> Procedure[tuple[list[BaseFile], frozenset[FileGroup]]]:  # fmt: skip
        files, replaced = yield from MergedWriter._files(
            self, mine, transaction, snapshot, partition, keys
        )
        if transaction.beside is None:  # else they are written with its inflight file
            yield from all_of(mark(transaction.instant, each.key, _io(each)) for each in files)
        self.run.hearts[transaction.instant].assert_alive()  # as `WriteTask.put`
        return files, replaced

    def _alive(self, instant: str) -> Callable[[], None] | None:
        return self.run.hearts[instant].assert_alive

    def _file(
        self, instant: str, group: FileGroup, rows: Sequence[Entry], base: Slice | None
    ) -> BaseFile:
        if base is None and self.bases_first and rows[0][1] is not None:
            held = {key: (str(token), value, instant) for key, token, value in rows}
            return merged_base(instant, group, held, NO_COMMIT)
        return sliced_log(instant, group, rows, base)


def _io(file: BaseFile) -> Io:
    return "APPEND" if ".log." in file.key else "CREATE"


# --- services -------------------------------------------------------------------------------------


def under_lock(
    host: AttemptHost, way: Callable[[TableView, StateChange], Procedure[str]]
) -> Procedure[str]:
    """What `way` does with the table as the lock's holder finds it."""

    def looked(_host: AttemptHost, held: StateChange) -> Procedure[str]:
        view, _ = yield from look_at(None, 0)
        return (yield from way(view, held))

    return host.hold(looked)


@dataclass(slots=True)
class SlicedService(MergedService):
    """One process that plans, carries plans out, cleans, and rolls back dead writers."""

    def compact(self, view: TableView) -> Procedure[None]:
        """Like `lockkit.table.services.scheduled`: a plan, and its execution by anybody."""
        instant = yield from under_lock(self.host, self._plan)
        if instant and self.run.world.dice.random() < LEFT_TO_OTHERS:
            return
        view, _ = yield from look_at(None, 0)
        instant = instant or (yield from not_begun(view))
        if instant:
            yield from self.execute(view, instant)

    def _plan(self, view: TableView, held: StateChange) -> Procedure[str]:
        plan = yield from planned(view)
        return "" if plan is None else (yield from put_plan(view, replace(plan, params={}), held))

    def execute(self, view: TableView, instant: str) -> Procedure[None]:
        found = yield from to_execute(view, instant)
        if found is None:
            return
        taken, plan = found
        mine = MergedAttempt(self.token + instant, self.token + instant, "compact")

        def files(transaction: Transaction, heart: AttemptHeartbeat) -> Procedure[Prepared]:
            return self._carried_out(view, plan, transaction, heart, mine)

        done = PlanAttempt(self.host).resume(taken, files)
        yield from self.tracked(mine, done, "compaction")
        with suppress(*EXPECTED):
            yield from unmark(instant)

    def _carried_out(
        self, view: TableView, plan: CompactionPlan, transaction: Transaction,
        heart: AttemptHeartbeat, mine: TrackedAttempt,
    ) -> Procedure[Prepared]:  # fmt: skip
        taken, instant = transaction.taken, transaction.instant
        snapshot = yield from load_snapshot(covering=transaction.covered, since=view.snapshot)
        self.run.ledger.tries(mine)
        if not stands(plan, snapshot, instant):
            raise self._never(instant, "its slices are others now")
        for each in plan.slices:
            yield from self._refuse_missed(snapshot, each, instant)
        try:
            found = yield from merged_rows([slice_of(snapshot, each) for each in plan.slices])
        except SnapshotFileGone as error:
            raise self._never(instant, str(error)) from error
        files = [
            _executed(taken, (of.partition, of.file_id), rows, of.instant) for of, rows in found
        ]
        for file in files:
            heart.assert_alive()
            yield from mark(instant, file.key, "MERGE")
            heart.assert_alive()
            yield from put_files([file])
        return (yield from prepare(
            transaction, [each.stat for each in files], schema=SCHEMA, operation=COMPACT,
            known_partitions=frozenset(partition for partition, _ in snapshot.groups),
            extra={"token": mine.token},
        ))  # fmt: skip

    def _refuse_missed(
        self, snapshot: Snapshot, each: CompactionInput, instant: str
    ) -> Procedure[None]:
        of = snapshot.groups[each.group]
        assert isinstance(of, LogSlice)
        if (yield from logged_blocks(beside_the_plan(of, each, instant))):
            raise self._never(instant, f"it lacks a log file of {each.group}")

    def _never(self, instant: str, why: str) -> BaseException:
        ledger: AttemptLedger = self.run.ledger
        if any(each.instant == instant for each in ledger.commits):
            return SnapshotFileGone(f"{instant} was carried out by another process")
        return Violated(CARRIED_OUT, f"{instant}: {why}")


def _executed(
    taken: TakenInstant, group: FileGroup, rows: dict[str, tuple[str, int, str]], before: str
) -> BaseFile:
    """The base file, under a name that no other execution of the plan has."""
    file = merged_base(taken.instant, group, rows, before or NO_COMMIT)
    key = in_partition(group[0], file_name(group[1], taken.instant, execution(taken.attempt)))
    return BaseFile(key, file.body, replace(file.stat, path=key))
