"""Landing: what a spool holds becomes one commit, merged and published by one process.

The same commit as `lockkit.spark.write`, with the files made here, a few groups at a time. Nothing
but the spool is left of a write that failed, since it begins anew with every attempt.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.sinks import Emit, silent
from lockkit.spark.microbatch import MicroBatch
from lockkit.spark.options import WriteOptions, known_config
from lockkit.spark.place import TableAddress
from lockkit.spark.rows import check_columns
from lockkit.spark.spool import AT_ONCE, LocalSpool, Spool, SpoolGroup, way_of
from lockkit.spark.write import Claim, SparkWrite, open_lock, open_upkeep, unclaimed
from lockkit.table.format.base_file import Slice, Target, base_file_batches, record_keys
from lockkit.table.format.data_files import open_data_file
from lockkit.table.format.layout import TaskId, WriteStat
from lockkit.table.format.schema import RECORD_KEY
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.covered import CheckedHorizon
from lockkit.table.read.buckets import bucket_file_id, generations, is_bucketed
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.write.groups import TargetGroup, WriteTask, write_group, write_rows
from lockkit.table.write.merge import upserts

if TYPE_CHECKING:
    import pyarrow as pa

INSERTS_AT_ONCE_ROWS = 1_000_000
"""A share of an insert is worth a file of its own from so many rows on."""


def spool_for(
    place: TableAddress, wanted: WriteOptions, options: Mapping[str, str], schema: Any
) -> Spool:  # fmt: skip
    """The spool for a write; raises `TableError` if the write cannot succeed."""
    store, clock = place.open(), Clock()
    try:
        open_lock(place, options, clock, silent).close()  # a lock that cannot be is refused now
        config, _there = known_config(wanted, place, store, clock)
    finally:
        store.close()
    apart = wanted.operation in ("upsert", "delete") or wanted.combine or wanted.drop_duplicates
    spool = Spool.named(place, config, bucketed=apart)
    rows: Any = LocalSpool(spool, schema, ())  # of a frame, no more is asked than it has
    check_columns(rows, config, wanted.operation)
    return spool


def land(
    rows: LocalSpool, wanted: WriteOptions, options: Mapping[str, str],
    batch: tuple[str, int] | None = None, emit: Emit = silent,
) -> Committed | None:  # fmt: skip
    """Commit the rows in a spool; with `batch`, a query's id and batch number, only once.

    Raises what `write` raises. The spool is the caller's to remove.
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
                task = SpoolWrite(frame, wanted, place, store, upkeep, clock, emit, extra, claim)
                return task.whole()
    finally:
        lock.close()
        store.close()


@dataclass(slots=True)
class SpoolWrite(SparkWrite):
    """A write whose rows are in a spool: the same commit, with the files made in this process."""

    def _files(
        self, frame: Any, target: Target, snapshot: Snapshot, covered: CheckedHorizon
    ) -> list[WriteStat]:
        rows: LocalSpool = frame
        if rows.spool.way != way_of(target.config):
            raise TableError(
                f"the table at {self.place.url} was made, or changed, while these rows were on "
                "their way to it; save them again"
            )
        requested = self.requested
        work = WriteTask(self.place.data(), target, TaskId(), self.clock, self._early(covered))
        merged = _Merge(rows, work, snapshot, requested.operation == "delete")
        if requested.operation in ("upsert", "delete"):
            return merged.stats()
        known = requested.drop_duplicates and requested.operation in ("insert", "bulk_insert")
        if requested.combine or requested.drop_duplicates:
            tables = merged.once(known)
            return list(write_rows(work, tables, file_bytes_max=requested.file_bytes_max))
        return _inserted(rows, work, requested.file_bytes_max)


def _inserted(rows: LocalSpool, work: WriteTask, file_bytes_max: int) -> list[WriteStat]:
    """New file groups of all rows; more than one at a time only where each gets enough."""
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


@dataclass(slots=True)
class _Merge:
    """Rows that are for groups which have rows already."""

    rows: LocalSpool
    work: WriteTask
    snapshot: Snapshot
    delete: bool

    def stats(self) -> list[WriteStat]:
        """Each row to the groups that have its key, else to its bucket's."""
        groups = self.rows.groups
        free: dict[str, list[Slice]] = {}
        for each in self.snapshot.slices:
            if not is_bucketed(each.file_id):
                free.setdefault(each.partition, []).append(each)
        found: dict[tuple[str, int], Any] = {}
        group_targets = self._aims(groups, free, found)
        return [stat for stat in _in_turn(self._write, group_targets) if stat is not None]

    def _aims(
        self, groups: dict[SpoolGroup, list[tuple[str, int]]], free: dict[str, list[Slice]],
        found: dict[tuple[str, int], Any],
    ) -> Iterator[tuple[TargetGroup, pa.Table]]:  # fmt: skip
        """The free groups first. Each group that has a key gets its row, and several may."""
        by_partition: dict[str, list[tuple[str, int]]] = {}
        for (partition, _), where in groups.items():
            by_partition.setdefault(partition, []).extend(where)
        for partition, where in by_partition.items():
            for each in free.get(partition, ()):
                rows = self._of_slice(each, where, found)
                if rows is not None:
                    yield TargetGroup((partition, each.file_id), each), rows
        again = generations(self.snapshot)
        for (partition, bucket), where in groups.items():
            generation = again.get((partition, f"{bucket:08d}"), 0)
            group = partition, bucket_file_id(partition, bucket, generation)
            base = self.snapshot.groups.get(group)
            rows = self._for_bucket(where, found, base)
            if rows.num_rows:
                yield TargetGroup(group, base), rows

    def _of_slice(
        self, of: Slice, where: list[tuple[str, int]], found: dict[tuple[str, int], Any]
    ) -> pa.Table | None:
        """The rows whose keys a slice has, which `found` then checks for each batch."""
        import pyarrow as pa
        import pyarrow.compute as pc

        keys, hits = self._stored(of), []
        for each in where:
            rows = self.rows.table([each])
            hit = pc.is_in(record_keys(self.rows.spool.config, rows), value_set=keys)
            if pc.any(hit).as_py():
                hits.append(rows.filter(hit))
                found[each] = pc.or_(found[each], hit) if each in found else hit
        return pa.concat_tables(hits) if hits else None

    def _for_bucket(
        self, where: list[tuple[str, int]], found: dict[tuple[str, int], Any], base: Slice | None
    ) -> pa.Table:
        """The rows whose keys no free group has, and those whose keys the bucket has as well."""
        import pyarrow as pa
        import pyarrow.compute as pc

        config, kept = self.rows.spool.config, []
        stored = self._stored(base) if base and any(each in found for each in where) else None
        for each, rows in zip(where, self.rows.batches(where), strict=True):
            if each in found:
                wanted = pc.invert(found[each])
                if stored is not None:
                    wanted = pc.or_(wanted, pc.is_in(record_keys(config, rows), value_set=stored))
                rows = rows.filter(wanted)
            kept.append(rows)
        return pa.concat_tables(kept)

    def once(self, unknown: bool) -> Iterator[pa.Table]:
        """One row for each key; with `unknown`, only of keys that the table does not have."""
        import pyarrow.compute as pc

        for (partition, _), where in self.rows.groups.items():
            rows = upserts(self.work.target, self.rows.table(where)).rows
            for each in self.snapshot.slices if unknown else ():
                if each.partition == partition and rows is not None:
                    keys = record_keys(self.rows.spool.config, rows)
                    rows = rows.filter(pc.invert(pc.is_in(keys, value_set=self._stored(each))))
            if rows is not None and rows.num_rows:
                yield rows

    def _stored(self, of: Slice) -> Any:
        import pyarrow as pa

        with open_data_file(self.work.store, of.path, self.work.clock) as file:
            tables = list(base_file_batches(of.path, file, columns=[RECORD_KEY]))
        return pa.concat_tables(tables)[RECORD_KEY].combine_chunks()

    def _write(self, group_target: TargetGroup, rows: pa.Table) -> WriteStat | None:
        return write_group(self.work, group_target, rows, delete=self.delete)


def _in_turn(
    write: Any, group_targets: Iterator[tuple[TargetGroup, pa.Table]]
) -> Iterator[WriteStat | None]:
    """Some groups at a time, so that memory holds the rows of so many and no more."""
    coming: deque[Future[WriteStat | None]] = deque()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for group_target, rows in group_targets:
            coming.append(pool.submit(write, group_target, rows))
            if len(coming) >= AT_ONCE:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
