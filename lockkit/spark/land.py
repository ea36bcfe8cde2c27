"""Lands a spool: one process merges its rows and publishes them as one commit.

It is the commit of `lockkit.spark.write`, but this process makes the files, a few groups at a time.
Every attempt starts again from the spool, so a failed write leaves only the spool.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from lockkit.clock import Clock
from lockkit.sinks import Emit, silent
from lockkit.spark.microbatch import MicroBatch
from lockkit.spark.place import TableAddress
from lockkit.spark.rows import check_columns
from lockkit.spark.spool import LocalSpool, Spool, way_of
from lockkit.spark.write import SparkWrite, open_lock, open_upkeep
from lockkit.table.errors import TableChanged
from lockkit.table.format.base_file import Target
from lockkit.table.format.layout import TaskId, WriteStat
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.covered import CheckedHorizon
from lockkit.table.options import WriteOptions, known_config
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.write.global_index import everywhere
from lockkit.table.write.groups import WriteTask, write_rows
from lockkit.table.write.merging import AT_ONCE, GroupMerge
from lockkit.table.writer import Claim, unclaimed

INSERTS_AT_ONCE_ROWS = 1_000_000
"""An insert is split into one more parallel share for each this many rows."""


def spool_for(
    place: TableAddress, wanted: WriteOptions, options: Mapping[str, str], schema: Any
) -> Spool:  # fmt: skip
    """The spool for a write; raises `TableError` if the write cannot succeed."""
    store, clock = place.open(), Clock()
    try:
        open_lock(place, options, clock, silent).close()  # refuses an unusable lock now
        config, _there = known_config(wanted, place.url, store, clock)
    finally:
        store.close()
    apart = (
        config.merged or config.hashed or wanted.operation in ("upsert", "delete")
        or wanted.combine or wanted.drop_duplicates
    )  # fmt: skip
    spool = Spool.named(place, config, bucketed=apart)
    rows: Any = LocalSpool(spool, schema, ())  # check_columns needs no other parts of a frame
    check_columns(rows, config, wanted)
    return spool


def land(
    rows: LocalSpool, wanted: WriteOptions, options: Mapping[str, str],
    batch: tuple[str, int] | None = None, emit: Emit = silent,
) -> Committed | None:  # fmt: skip
    """Commit the rows of a spool. With `batch` (a query's id and batch number), commit them once.

    Raises what `write` raises. The caller removes the spool.
    """
    place, clock = rows.spool.place, Clock()
    store, lock = place.open(), open_lock(place, options, clock, emit)
    try:
        claim: Claim = unclaimed
        extra: dict[str, str] = {}
        if batch is not None:
            once = MicroBatch(store, place.url, *batch, clock, emit)
            if once.is_over(lock):
                return None
            claim, extra = once.claim, once.extra
        with tempfile.TemporaryDirectory() as scratch:
            rows.fetch(place.data(), clock, scratch)
            frame: Any = rows
            with closing(open_upkeep(place, options, store, lock, clock, emit)) as upkeep:
                task = SpoolWrite(
                    frame=frame, requested=wanted, url=place.url, place=place, store=store,
                    upkeep=upkeep, clock=clock, emit=emit, extra=extra, claim=claim,
                )  # fmt: skip
                return task.whole()
    finally:
        lock.close()
        store.close()


@dataclass(slots=True, kw_only=True)
class SpoolWrite(SparkWrite):
    """A write whose rows are in a spool. This process writes the files, then commits as usual."""

    def files(self, target: Target, snapshot: Snapshot, covered: CheckedHorizon) -> list[WriteStat]:
        rows: Any = self.frame
        if rows.spool.way != way_of(target.config):
            raise TableChanged(
                self.place.url, "was made, or changed, while these rows were on their way to it",
                "save them again",
            )  # fmt: skip
        requested = self.requested
        if requested.operation == "delete_partition":
            if not requested.partitions:
                self.partitions = frozenset(partition for partition, _ in rows.groups)
            return []
        if requested.operation == "insert_overwrite":  # also where each row says that it is deleted
            self.partitions = frozenset(partition for partition, _ in rows.groups)
        work = WriteTask(self.place.data(), target, TaskId(), self.clock, self.early_check(covered))
        merges = self.merges(target.config)
        snapshot = self.merges_into(snapshot) if merges else snapshot
        logs = self.only_logs(target.config)
        merged = GroupMerge(rows, work, snapshot, requested.operation == "delete", logs)
        if self.everywhere(target.config) and rows.groups:  # then all rows are in memory
            merged = everywhere(merged, rows.table(chain(*rows.groups.values())))
        if merges:
            return merged.stats()
        known = requested.drop_duplicates and requested.operation in ("insert", "bulk_insert")
        if requested.combine or requested.drop_duplicates:
            tables = merged.once(known)
            return list(write_rows(work, tables, file_bytes_max=requested.file_bytes_max))
        return _inserted(rows, work, requested.file_bytes_max)


def _inserted(rows: LocalSpool, work: WriteTask, file_bytes_max: int) -> list[WriteStat]:
    """New file groups of all rows, in parallel if each share has enough rows."""
    where = [each for group in rows.groups.values() for each in group]
    count = sum(part.rows for each in rows.runs for part in each.parts)
    shares = min(AT_ONCE, 1 + count // INSERTS_AT_ONCE_ROWS)
    size = -(-len(where) // shares)

    def one(share: int) -> list[WriteStat]:
        mine = replace(work, task=TaskId(share))
        tables = rows.batches(where[share * size : (share + 1) * size])
        return list(write_rows(mine, tables, file_bytes_max=file_bytes_max))

    with ThreadPoolExecutor(shares) as pool:
        return [stat for stats in pool.map(one, range(shares)) for stat in stats]
