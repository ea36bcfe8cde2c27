"""The writers, services and readers of the scenario `mor`: log files, compaction, merged reads.

They run lockkit's own attempts, plans, checks, slices and merges; only the files are JSON.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lockkit.lab.verify.sim.task import Violated
from lockkit.lab.verify.table.host import EXPECTED
from lockkit.lab.verify.table.ledger import NEEDED, TrackedAttempt
from lockkit.lab.verify.table.merged_judge import MergedAttempt
from lockkit.lab.verify.table.reader import TableRow
from lockkit.lab.verify.table.rows import (
    SCHEMA,
    SnapshotFileGone,
    json_file,
    of_each,
    put_files,
    read_file,
    read_json,
)
from lockkit.lab.verify.table.services import RETAINED, ROUNDS_MAX, SimService
from lockkit.lab.verify.table.writers import OPERATIONS_MAX, SimWriter
from lockkit.runtime import Procedure, Sleep
from lockkit.runtime.proven import all_of
from lockkit.table.format.base_file import BaseFile, Slice
from lockkit.table.format.compaction_plan import CompactionPlan, format_compaction_plan
from lockkit.table.format.layout import COMPACT, NO_COMMIT, FileGroup, TaskId, file_name
from lockkit.table.format.log_blocks import Block
from lockkit.table.format.log_writing import log_name
from lockkit.table.occ.nonblocking import NONBLOCKING
from lockkit.table.occ.prepared import Prepared, prepare
from lockkit.table.occ.transaction import Transaction
from lockkit.table.read import listed, log_order
from lockkit.table.read.bucket_groups import BucketGroups
from lockkit.table.read.key_index import KeyIndex
from lockkit.table.read.log_slice import LogSlice, instants_of
from lockkit.table.read.opening import load_snapshot
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.services.compact import after_its_inputs, planned, slice_of, stands
from lockkit.table.services.view import TableView
from lockkit.table.write.attempt import WriteAttempt
from lockkit.table.write.contract import AttemptHeartbeat
from lockkit.table.write.merging import without

if TYPE_CHECKING:
    from lockkit.lab.verify.table.scenario import TableRun

BLOCKING = ("upsert",) * 6 + ("delete",) * 2 + ("overwrite", "overwrite all")
APPENDING = ("upsert",) * 3 + ("delete",)
VALUES = 12
Entry = tuple[str, str | None, int]
LoggedEntry = tuple[str, str | None, int, str]
MergedRows = dict[str, tuple[str, int, str]]
"""By key: token, value and commit time."""


def log_file(instant: str, group: FileGroup, rows: Sequence[Entry], base: Slice | None) -> BaseFile:
    previous = NO_COMMIT if base is None else max(instants_of(base))
    return json_file(group, log_name(group[1], instant, TaskId()), rows, previous)


def merged_base(instant: str, group: FileGroup, rows: MergedRows, previous: str) -> BaseFile:
    listed = [[key, *fields] for key, fields in sorted(rows.items())]
    return json_file(group, file_name(group[1], instant), listed, previous)


# --- writers --------------------------------------------------------------------------------------


@dataclass(slots=True)
class MergedWriter(SimWriter):
    """A writer of log files; some commit without conflicts, the others also overwrite."""

    nonblocking: bool = False
    replaces: bool = True

    def live(self) -> Procedure[None]:
        dice = self.run.world.dice
        kinds = BLOCKING if self.replaces and not self.nonblocking else APPENDING
        for _ in range(2 * OPERATIONS_MAX):
            self.operations += 1
            yield from self._operation(dice.choice(kinds))
            yield Sleep(dice.random())

    def _tracked(self, token: str, operation: str, kind: str) -> TrackedAttempt:
        value = zlib.crc32(token.encode()) % VALUES
        return MergedAttempt(token, operation, kind, value=value)

    def _attempt(self) -> WriteAttempt:
        attempt = SimWriter._attempt(self)
        return replace(attempt, strategy=NONBLOCKING) if self.nonblocking else attempt

    def _files(
        self, mine: TrackedAttempt, transaction: Transaction, snapshot: Snapshot, partition: str,
        keys: Sequence[str],
    ) -> Procedure[tuple[list[BaseFile], frozenset[FileGroup]]]:  # fmt: skip
        yield from ()
        assert isinstance(mine, MergedAttempt)
        places = tuple((partition, key) for key in keys)
        replaced: frozenset[FileGroup] = frozenset()
        if mine.kind.startswith("overwrite"):
            whole = mine.kind == "overwrite all"
            mine.empties, mine.writes = None if whole else frozenset({partition}), places
            replaced = frozenset(g for g in snapshot.groups if whole or g[0] == partition)
            snapshot = without(snapshot, replaced)
        elif mine.kind == "delete":
            mine.removes = places
        else:
            mine.writes = places
        group_of, by_group = BucketGroups(snapshot).of, dict[FileGroup, list[str]]()
        for key in keys:
            bucket = int(key[1:]) % snapshot.config.buckets
            by_group.setdefault(group_of(partition, bucket), []).append(key)
        token = None if mine.kind == "delete" else mine.token
        if mine.kind.startswith("overwrite"):
            row = mine.token, mine.value, transaction.instant
            return [merged_base(transaction.instant, group, dict.fromkeys(of, row), NO_COMMIT)
                    for group, of in by_group.items()], replaced  # fmt: skip
        return [
            self._file(transaction.instant, group, [(key, token, mine.value) for key in of],
                       snapshot.groups.get(group)) for group, of in by_group.items()
        ], replaced  # fmt: skip

    def _file(
        self, instant: str, group: FileGroup, rows: Sequence[Entry], base: Slice | None
    ) -> BaseFile:
        return log_file(instant, group, rows, base)


# --- merging --------------------------------------------------------------------------------------


def merged_rows(slices: Iterable[Slice]) -> Procedure[list[tuple[Slice, MergedRows]]]:
    """The rows of each slice, merged by lockkit's rules. Raises `SnapshotFileGone`."""
    return (yield from of_each(slices, _merge))


def _entries(of: LogSlice) -> Procedure[list[LoggedEntry]]:
    """What the log files say of each key, with its commit time, in the order of the blocks."""
    if of.names.layout == 1:
        return [
            (key, token, value, block.instant)
            for block in (yield from logged_blocks(of)) for key, token, value in
            json.loads(bytes(block.content))
        ]  # fmt: skip
    bodies = yield from all_of(read_json(path) for path in of.logs)
    return [
        (key, token, value, path.rpartition("_")[0].rpartition("_")[2].partition(".")[0])
        for path, held in zip(of.logs, bodies, strict=True) for key, token, value in held
    ]  # fmt: skip


def logged_blocks(of: LogSlice) -> Procedure[list[Block]]:
    """Version 6: the blocks that a reader takes from the log files."""
    from lockkit.table.read.merging_logs import visible_blocks  # it loads Arrow

    bodies = yield from all_of(read_file(path) for path in of.logs)
    logs = {path: memoryview(body) for path, body in zip(of.logs, bodies, strict=True)}
    return visible_blocks(logs, of)


def _merge(of: Slice) -> Procedure[MergedRows]:
    import pyarrow as pa

    base = (yield from read_json(of.path)) if of.path else []
    rows: MergedRows = {key: (token, value, at) for key, token, value, at in base}
    entries = (yield from _entries(of)) if isinstance(of, LogSlice) else []
    if not entries:
        return rows
    keys, tokens, values, _ = zip(*entries, strict=True)
    kinds = pa.array([log_order.DELETE if token is None else log_order.ROW for token in tokens],
                     pa.uint8())  # fmt: skip
    by_event = isinstance(of, LogSlice) and bool(of.ordering)
    order = [pa.array(values, pa.int64())] if by_event else []
    places = log_order.standing(KeyIndex(pa.array(keys, pa.string())), kinds, order)
    stored = [pa.array([rows.get(keys[n], (0, None))[1] for n in places.to_pylist()], pa.int64())]
    wins = log_order.replaces(
        stored if by_event else [], kinds.take(places), [each.take(places) for each in order]
    )
    for n, new in zip(places.to_pylist(), wins.to_pylist(), strict=True):
        key, token, value, at = entries[n]
        if new and token is None:
            rows.pop(key, None)
        elif new:
            rows[key] = token, value, at
    return rows


# --- services -------------------------------------------------------------------------------------


@dataclass(slots=True)
class MergedService(SimService):
    """One process that compacts, cleans and rolls back dead writers."""

    def ways(self) -> tuple[Callable[[TableView], Procedure[None]], ...]:
        return self._tidy, self.clean, self.compact, self.compact

    def compact(self, view: TableView) -> Procedure[None]:
        """Like `lockkit.table.services.compact`, which merges parquet and Avro."""
        plan = yield from planned(view)
        if plan is None:
            return
        mine = MergedAttempt(self.token, self.token, "compact")

        def files(transaction: Transaction, heart: AttemptHeartbeat) -> Procedure[Prepared | None]:
            return self._compacted(view, plan, transaction, heart, mine)

        done = WriteAttempt(self.host).write(
            after_its_inputs(view), files, action="compaction", plan=format_compaction_plan(plan)
        )
        yield from self.tracked(mine, done, "compaction")

    def _compacted(
        self, view: TableView, plan: CompactionPlan, transaction: Transaction,
        heart: AttemptHeartbeat, mine: TrackedAttempt,
    ) -> Procedure[Prepared | None]:  # fmt: skip
        """The merged files and their commit; None if the table has changed."""
        snapshot = yield from load_snapshot(covering=transaction.covered, since=view.snapshot)
        if not stands(plan, snapshot, transaction.instant):
            return None
        self.run.ledger.tries(mine)
        inputs = [slice_of(snapshot, each) for each in plan.slices]
        found = yield from merged_rows(inputs)
        heart.assert_alive()
        stats = yield from put_files([
            merged_base(transaction.instant, (of.partition, of.file_id), rows,
                        of.instant or NO_COMMIT) for of, rows in found
        ])  # fmt: skip
        return (yield from prepare(
            transaction, stats, schema=SCHEMA, operation=COMPACT,
            known_partitions=frozenset(partition for partition, _ in snapshot.groups),
            extra={"token": mine.token},
        ))  # fmt: skip


# --- readers --------------------------------------------------------------------------------------


def read_merged(run: TableRun) -> Procedure[None]:
    """Read snapshots repeatedly and slowly: by the commits' own files, and by the folders."""
    ledger, dice = run.ledger, run.world.dice
    for _ in range(ROUNDS_MAX):
        yield Sleep(dice.random() * 3)
        if not run.busy():
            return
        since, folders = ledger.acknowledgeable(), dice.random() < 0.5
        try:
            snapshot = yield from listed.list_snapshot() if folders else load_snapshot()
            found = yield from merged_rows(snapshot.slices)
        except SnapshotFileGone as error:
            if len(ledger.commits) - since < RETAINED.commits:
                raise Violated(NEEDED, f"a reader inside the retention: {error}") from error
        except EXPECTED:
            continue
        else:
            if folders and len(ledger.commits) - since >= RETAINED.commits:
                continue  # a file of this snapshot may have been cleaned before it was listed
            rows = [TableRow(of.partition, key, (token,), at)
                    for of, merged in found for key, (token, _, at) in merged.items()]  # fmt: skip
            ledger.read(rows, since)
            run.world.reached.add("merged read")
