"""A spool: rows for a table, from tasks that do not know its latest snapshot; and their commit.

A data source's tasks run before its commit begins, and Spark gives any row to any task. Each task
therefore writes its rows under `.hoodie/.temp/`, sorted by target file group, and the committing
process merges them, a few groups at a time. That process has the instant, the heartbeat, the lock
and every new attempt after a conflict. Every attempt starts again from the spool, so a failed write
leaves only the spool. The rows are written twice and merged on one machine; `lockkit.spark.write`
avoids both.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.runtime import Procedure, WallMs
from lockkit.runtime.proven import all_of, listing
from lockkit.sinks import Emit, silent
from lockkit.spark.place import TableAddress
from lockkit.spark.rows import check_columns
from lockkit.spark.write import MicroBatch, SparkWrite, open_lock, open_upkeep
from lockkit.stores import Store, folder_of
from lockkit.table.errors import TableChanged
from lockkit.table.format.base_file import Target, plain
from lockkit.table.format.data_files import open_data_file, put_data_file
from lockkit.table.format.layout import TaskId, WriteStat
from lockkit.table.format.properties import TableConfig
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.covered import CheckedHorizon
from lockkit.table.occ.liveness import discard
from lockkit.table.occ.markers import MARKERS
from lockkit.table.options import WriteOptions, known_config
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.write.global_index import everywhere
from lockkit.table.write.groups import WriteTask, write_rows
from lockkit.table.write.merging import AT_ONCE, GroupMerge, RowGroup, grouped
from lockkit.table.writer import Claim, unclaimed

if TYPE_CHECKING:
    import pyarrow as pa
SPOOLS = f"{MARKERS}lockkit-"
KEPT_MS = 86_400_000
"""A save that has not ended after a day counts as killed."""
RUN_BYTES = 64_000_000
"""The bytes of rows that a task collects before it sorts and writes them."""
BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class SpoolPart:
    """One batch of a run: which rows of the spool are for `group`."""

    group: RowGroup
    batch: int
    rows: int


@dataclass(frozen=True, slots=True)
class SpoolRun:
    """One file of a spool and its contents list, small enough for a task's message."""

    key: str
    parts: tuple[SpoolPart, ...]


@dataclass(frozen=True, slots=True)
class Spool:
    """Where the tasks of one write put their rows, and in which order."""

    place: TableAddress
    config: TableConfig
    bucketed: bool
    prefix: str

    @property
    def way(self) -> tuple[object, ...]:
        return way_of(self.config)

    @classmethod
    def named(cls, place: TableAddress, config: TableConfig, *, bucketed: bool) -> Spool:
        clock = Clock()
        return cls(place, config, bucketed, f"{SPOOLS}{clock.wall_ms()}-{clock.unique()}/")

    def of(self, query: str) -> Spool:
        """The spool for all batches of a streaming query, which run one after another."""
        return replace(self, prefix=f"{SPOOLS}{query}/") if query else self

    def put(self, batches: Iterable[pa.RecordBatch]) -> list[SpoolRun]:
        """Write all rows as runs; `TableError` if a row has no key or no valid partition."""
        import pyarrow as pa

        runs: list[SpoolRun] = []
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            held, size = [*held, batch], size + batch.nbytes
            if size >= RUN_BYTES:
                runs.append(self._put(pa.Table.from_batches(held)))
                held, size = [], 0
        if any(batch.num_rows for batch in held):
            runs.append(self._put(pa.Table.from_batches(held)))
        return runs

    def _put(self, rows: pa.Table) -> SpoolRun:
        import pyarrow as pa

        rows, clock = plain(rows), Clock()
        parts: list[SpoolPart] = []
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with tempfile.TemporaryFile() as out:
            with pa.ipc.new_file(out, rows.schema, options=options) as file:
                for group, some in grouped(self.config, rows, bucketed=self.bucketed):
                    for batch in some.combine_chunks().to_batches(max_chunksize=BATCH_ROWS):
                        parts.append(SpoolPart(group, len(parts), batch.num_rows))
                        file.write_batch(batch)
            key = f"{self.prefix}{clock.unique()}.arrow"
            put_data_file(self.place.data(), key, out, out.tell(), clock)
        return SpoolRun(key, tuple(parts))


def way_of(config: TableConfig) -> tuple[object, ...]:
    """The settings that decide which group a row belongs to."""
    return (config.record_key, config.named, config.partition_by, config.buckets,
            config.hive_style, config.urlencode)  # fmt: skip


def remove_spool(prefix: str) -> Procedure[None]:
    """Delete this spool, and those of killed saves. No spool is part of the table."""
    listed = [each.key for each in (yield from listing(SPOOLS))]
    old = (yield WallMs()) - KEPT_MS
    left = [key for key in listed if key.startswith(prefix) or _made_ms(key) < old]
    yield from all_of(discard(key) for key in left)


def _made_ms(key: str) -> float:
    """The time in the name. A query's spool has none: its next commit removes it."""
    time = key.removeprefix(SPOOLS).partition("-")[0]
    return int(time) if len(time) == 13 and time.isdecimal() else math.inf


# --- the rows of a spool, where they are committed ----------------------------------------------


@dataclass(slots=True)
class LocalSpool:
    """The runs of a spool on this machine's disk, which `SparkWrite` uses like a frame."""

    spool: Spool
    schema: Any
    """Spark's schema of the rows."""
    runs: tuple[SpoolRun, ...]
    folder: Path = field(default=Path())

    @property
    def config(self) -> TableConfig:
        return self.spool.config

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        return [(each.name, each.dataType.simpleString()) for each in self.schema]

    def drop(self, *names: str) -> LocalSpool:
        from pyspark.sql.types import StructType

        kept = StructType([each for each in self.schema if each.name not in names])
        return replace(self, schema=kept)

    def fetch(self, store: Store, clock: Clock, scratch: str) -> None:
        """Copy every run to this disk, because each is read more than once."""
        here = folder_of(self.spool.place.url)
        self.folder = here if here is not None else Path(scratch)
        if here is not None:
            return

        def fetch(run: SpoolRun) -> None:
            to = self.folder / run.key
            to.parent.mkdir(parents=True, exist_ok=True)
            with open_data_file(store, run.key, clock) as source, to.open("wb") as file:
                while chunk := source.read(1 << 20):
                    file.write(chunk)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(fetch, self.runs))

    @property
    def groups(self) -> dict[RowGroup, list[tuple[str, int]]]:
        """Which batches of which files are for each group, by partition and bucket."""
        found: dict[RowGroup, list[tuple[str, int]]] = {}
        for each in self.runs:
            for part in each.parts:
                found.setdefault(part.group, []).append((each.key, part.batch))
        return dict(sorted(found.items()))

    def batches(self, where: Iterable[tuple[str, int]]) -> Iterator[pa.Table]:
        import pyarrow as pa

        for key, number in where:
            with pa.memory_map(str(self.folder / key)) as file:
                yield pa.Table.from_batches([pa.ipc.open_file(file).get_batch(number)])

    def table(self, where: Iterable[tuple[str, int]]) -> pa.Table:
        import pyarrow as pa

        return pa.concat_tables(self.batches(where))


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
        work = WriteTask(
            self.place.data(), target, TaskId(), self.clock, self.early_check(covered),
            emit=self.emit,
        )  # fmt: skip
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
            progress = work.progress("wrote", len(rows.groups), "partitions")
            tables = progress.through(merged.once(known))
            return list(write_rows(work, tables, file_bytes_max=requested.file_bytes_max))
        return _inserted(rows, work, requested.file_bytes_max)


def _inserted(rows: LocalSpool, work: WriteTask, file_bytes_max: int) -> list[WriteStat]:
    """New file groups of all rows, in parallel if each share has enough rows."""
    where = [each for group in rows.groups.values() for each in group]
    count = sum(part.rows for each in rows.runs for part in each.parts)
    shares = min(AT_ONCE, 1 + count // INSERTS_AT_ONCE_ROWS)
    size = -(-len(where) // shares)
    progress = work.progress("wrote", len(where), "batches of rows")

    def one(share: int) -> list[WriteStat]:
        mine = replace(work, task=TaskId(share))
        tables = progress.through(rows.batches(where[share * size : (share + 1) * size]))
        return list(write_rows(mine, tables, file_bytes_max=file_bytes_max))

    with ThreadPoolExecutor(shares) as pool:
        return [stat for stats in pool.map(one, range(shares)) for stat in stats]
