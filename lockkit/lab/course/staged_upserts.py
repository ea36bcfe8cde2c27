"""A merge-on-read table on a simulated store, and two writers whose steps are taken one by one."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

import lockkit.table as table
from lockkit.events import shortened
from lockkit.lab.verify.check import check
from lockkit.lab.widgets.stage.staged import Stage
from lockkit.lab.widgets.stage.steps import StagedLock
from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, create, read
from lockkit.table.errors import CommitConflict
from lockkit.table.format.base_file import BaseFile, BaseFileWriter, in_memory
from lockkit.table.format.compaction_plan import format_compaction_plan
from lockkit.table.format.layout import COMPACT, NO_COMMIT, TaskId
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.property_keys import BUCKET_INDEX, MERGE_ON_READ
from lockkit.table.format.schema import META_COLUMNS
from lockkit.table.format.schema_reading import arrow_schema
from lockkit.table.occ.conflict import SIMPLE
from lockkit.table.occ.nonblocking import NONBLOCKING
from lockkit.table.occ.prepared import Prepared
from lockkit.table.occ.rollback import roll_back
from lockkit.table.read.bucket_groups import hashed_file_id
from lockkit.table.read.log_slice import LogSlice
from lockkit.table.read.merging_logs import MergeSource
from lockkit.table.read.reader import Scan, scan_slice
from lockkit.table.services.compact import after_its_inputs, planned, slice_of, stands
from lockkit.table.services.view import look_at
from lockkit.table.write.groups import WriteTask
from lockkit.table.write.log import write_log

OPTIMISTIC, NON_BLOCKING = "optimistic", "non-blocking"
READ, PENDING, GONE = "read", "not committed: no reader sees it", "not read"
GROUP = ("", hashed_file_id(0))
CONFIG = TableConfig(
    name="orders", record_key="id", precombine="at", version=9, table_type=MERGE_ON_READ,
    index=BUCKET_INDEX, buckets=1,
)  # fmt: skip
SCHEMA = pa.schema([("id", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])
Order = tuple[str, int, int]
"""Its id, its time (the ordering value) and its amount."""


def orders_of(rows: list[Order]) -> pa.Table:
    columns = list(zip(*rows, strict=True))
    return pa.table([list(each) for each in columns], schema=SCHEMA)


@dataclass(frozen=True, slots=True)
class GroupFile:
    """A file of the file group: whose it is, its rows, and whether a reader sees it."""

    path: str
    owner: str
    rows: tuple[Order, ...]
    standing: str
    """READ, PENDING or GONE; before anything looked, its instant."""

    @property
    def is_log(self) -> bool:
        return ".log." in self.path


class StagedUpserts(Stage):
    """A merge-on-read table of two orders in one file group, and W1 and W2, who upsert order-1.

    A writer first writes its log file and later commits, and each step runs the real procedures on
    a simulated store. A writer that is refused rolls itself back.
    """

    refusals = (table.TableError,)

    def __init__(self, control: str = OPTIMISTIC) -> None:
        super().__init__("upserts", control)
        self.strategy = NONBLOCKING if control == NON_BLOCKING else SIMPLE
        self.begun: dict[str, Prepared] = {}
        self.ended: dict[str, str] = {}
        """Of each writer, how its latest upsert ended."""
        self.commits = 0
        self._epoch = 0
        self._files: dict[str, GroupFile] = {}
        self.go("W0", table.create_table(CONFIG))
        self.write("W0", [("order-1", 1, 0), ("order-2", 1, 0)])
        self.commit("W0")
        self.compact()
        self.commits = 0

    def write(self, name: str, rows: list[Order]) -> None:
        """Begin an instant, and write its log file; no reader sees it yet."""
        transaction = self.go(name, table.begin())
        snapshot = self.go(name, table.load_snapshot(covering=transaction.covered))
        file = _log_file(transaction.target, orders_of(rows), snapshot.groups.get(GROUP))
        self.go(name, create(file.key, file.body))
        self._put(file, name, rows, transaction.instant)
        schema = table.avro_schema(SCHEMA, CONFIG.name)
        self.begun[name] = self.go(name, table.prepare(transaction, [file.stat], schema=schema))
        self.ended[name] = "wrote its log file"

    def commit(self, name: str) -> bool:
        """Commit what was begun, under the lock; False: refused, and rolled back."""
        prepared, self._epoch = self.begun.pop(name), self._epoch + 1
        lock = StagedLock(self._epoch)
        try:
            self.go(name, table.commit(prepared, lock, strategy=self.strategy))
        except CommitConflict as conflict:
            self.ended[name] = shortened(f"refused, and rolled back: {self._because(conflict)}")
            known = prepared.transaction.taken.known
            self.go(name, roll_back(prepared.instant, lock, known))
            return False
        self.ended[name], self.commits = "committed", self.commits + 1
        return True

    def compact(self) -> bool:
        """Merge the log files into the next base file; False if there is none to merge."""
        view, _ = self.go("C", look_at(None, 0))
        plan = self.go("C", planned(view))
        if plan is None:
            return False
        transaction = self.go("C", table.begin(
            after_its_inputs(view), action="compaction", plan=format_compaction_plan(plan)
        ))  # fmt: skip
        snapshot = self.go("C", table.load_snapshot(covering=transaction.covered))
        assert stands(plan, snapshot, transaction.instant)
        inputs = [slice_of(snapshot, each) for each in plan.slices]
        merged = self.go("C", _merged(inputs))
        (of,), out = inputs, io.BytesIO()
        draft = BaseFileWriter(
            transaction.target, *GROUP, arrow_schema(snapshot.schema), out,
            previous=of.instant or NO_COMMIT,
        )  # fmt: skip
        draft.copy(merged)
        file = in_memory(draft.close(inserts=0), out)
        self.go("C", create(file.key, file.body))
        self._put(file, "compaction", _listed(merged), transaction.instant)
        prepared = self.go("C", table.prepare(
            transaction, [replace(file.stat, updates=file.stat.writes)], schema=snapshot.schema,
            operation=COMPACT,
        ))  # fmt: skip
        self._epoch += 1
        self.go("C", table.commit(prepared, StagedLock(self._epoch)))
        return True

    def _because(self, conflict: CommitConflict) -> str:
        """Whose commit was first; all write the one file group, so its id says nothing."""
        owner = {each.standing: each.owner for each in self._files.values()}[conflict.instant]
        other = f"{owner}'s commit" if owner in self.ended else f"the {owner}"
        where = " this file group" if conflict.file_group else ""
        return f"{other} {conflict.instant} {conflict.cause}{where}: {conflict.cure}"

    def _put(self, file: BaseFile, owner: str, rows: Any, instant: str) -> None:
        self._files[file.key] = GroupFile(file.key, owner, tuple(rows), instant)

    @property
    def rows(self) -> tuple[Order, ...]:
        """What a reader of the table sees."""
        return tuple(_listed(self.read(_visible())))

    @property
    def files(self) -> list[GroupFile]:
        """The file group as it is stored: each base file, then the log files behind it."""
        (of,) = self.read(table.load_snapshot()).slices
        read_in_order = [of.path, *(of.logs if isinstance(of, LogSlice) else ())]
        pending = {each.instant for each in self.begun.values()}
        found = list[GroupFile]()
        for path, each in self._files.items():
            if path in self.memory_store.objects:
                standing = PENDING if each.standing in pending else GONE
                found.append(replace(each, standing=READ if path in read_in_order else standing))
        place = {path: number for number, path in enumerate(read_in_order)}
        last = {GONE: -1, PENDING: len(place)}
        return sorted(found, key=lambda each: place.get(each.path, last.get(each.standing, 0)))

    def body(self, path: str) -> bytes:
        return self.memory_store.objects[path].body

    @property
    def verdict(self) -> Any:
        return check(self.events)


@dataclass(slots=True)
class _Kept:
    """Keeps the finished file of a task, for the stage to put."""

    body: bytes = b""

    def defer(self, out: Any, _stat: Any) -> bool:
        out.seek(0)
        self.body = out.read()
        return True


def _log_file(target: Any, rows: pa.Table, base: Any) -> BaseFile:
    kept: Any = _Kept()
    work = WriteTask(kept, target, TaskId(), kept, buffer=kept)  # it needs neither store nor clock
    stat = write_log(work, GROUP, base, rows)
    return BaseFile(stat.path, kept.body, stat)


def _visible() -> Procedure[pa.Table]:
    snapshot = yield from table.load_snapshot()
    return (yield from _merged(snapshot.slices))


def _merged(slices: Any) -> Procedure[pa.Table]:
    """The rows of these slices, with lockkit's own merge."""
    every = pa.schema([*((name, pa.string()) for name in META_COLUMNS), *SCHEMA])
    batches = list[pa.RecordBatch]()
    for of in slices:
        logs = of.logs if isinstance(of, LogSlice) else ()
        bodies = yield from all_of(read(path, limit=None) for path in (of.path, *logs) if path)
        held = [memoryview(each.body) for each in bodies if isinstance(each, Found)]
        base: Any = io.BytesIO(held.pop(0)) if of.path else None
        source: Any = MergeSource(base, dict(zip(logs, held, strict=True))) if logs else base
        batches += scan_slice(Scan((of,), every, tuple(every.names), None), of, source)
    return pa.Table.from_batches(batches, every)


def _listed(rows: pa.Table) -> list[Order]:
    return sorted(zip(*(rows[name].to_pylist() for name in SCHEMA.names), strict=True))
