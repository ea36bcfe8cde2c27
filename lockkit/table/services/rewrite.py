"""The rewrite of a clustering: a plan becomes new files; each is marked, then written, then put."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from lockkit.runtime.progress import WorkDone
from lockkit.table.format.base_file import (
    BaseFileWriter,
    Slice,
    Target,
    disk_errors_named,
    draft_file,
)
from lockkit.table.format.base_file_reading import rows_to_copy
from lockkit.table.format.data_files import open_data_file, put_data_file
from lockkit.table.format.layout import NO_COMMIT, WriteStat, in_partition
from lockkit.table.format.plans import ClusteringGroup, ClusteringInput, ReplacePlan
from lockkit.table.format.schema import RECORD_KEY
from lockkit.table.format.schema_reading import arrow_schema
from lockkit.table.format.spark_hash import bucket_of
from lockkit.table.occ.markers import mark
from lockkit.table.read.bucket_groups import bucket_file_id, generations
from lockkit.table.read.buckets import free_file_id
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.services.context import ServiceContext
from lockkit.table.services.rules import LAYOUT_KEY, TARGET_KEY

BUCKETS_AT_ONCE = 8
"""Files that are written at the same time: each holds a row group in memory."""


@dataclass(slots=True)
class Rewrite:
    """`assert_alive` is called before each file: it raises if this clustering must stop."""

    plan: ReplacePlan
    snapshot: Snapshot
    target: Target
    context: ServiceContext
    assert_alive: Callable[[], None]
    _stats: list[WriteStat] = field(default_factory=list)
    _open: ExitStack = field(default_factory=ExitStack)

    def carry_out(self) -> tuple[WriteStat, ...]:
        """Raises `TableError` if an input is missing or is not parquet, and `StoreError`."""
        groups, how = self.plan.groups, (self.target.instant, self.context.emit, self.context.clock)
        with self._open:
            if self.plan.params[LAYOUT_KEY] == "bucketed":
                outputs = sum(each.outputs for each in groups)
                progress = WorkDone("wrote", outputs, "buckets", *how)
                for group in groups:
                    self._into_buckets(group, progress)
            else:
                inputs = sum(len(each.slices) for each in groups)
                progress = WorkDone("rewrote", inputs, "file groups", *how)
                for group in groups:
                    self._into_larger(group, progress)
        return tuple(self._stats)

    def _into_larger(self, group: ClusteringGroup, progress: WorkDone) -> None:
        target_bytes = int(self.plan.params[TARGET_KEY])
        draft: BaseFileWriter | None = None
        for source, rows in self._rows(progress.through(group.slices)):
            if draft is not None and draft.size_bytes >= target_bytes:
                self._put(draft)
                draft = None
            if draft is None:
                draft = self._begin(source, free_file_id(self.context.clock))
            draft.copy(rows)
        if draft is not None:
            self._put(draft)

    def _into_buckets(self, group: ClusteringGroup, progress: WorkDone) -> None:
        count = self.snapshot.config.buckets
        for first in range(0, count, BUCKETS_AT_ONCE):
            drafts: dict[int, BaseFileWriter] = {}
            for source, rows in self._rows(group.slices):
                of_row = bucket_of(rows[RECORD_KEY].combine_chunks(), count)
                for bucket in of_row.unique().to_pylist():
                    if not first <= bucket < first + BUCKETS_AT_ONCE:
                        continue
                    if bucket not in drafts:
                        file_id = self._bucket_id(source.partition, bucket)
                        drafts[bucket] = self._begin(source, file_id)
                    drafts[bucket].copy(_of_bucket(rows, of_row, bucket))
            for bucket in sorted(drafts):
                self._put(drafts[bucket])
            progress.more(min(BUCKETS_AT_ONCE, count - first))

    def _bucket_id(self, partition: str, bucket: int) -> str:
        """The next generation if the bucket has a group now, because this one replaces it."""
        generation = generations(self.snapshot).get((partition, f"{bucket:08d}"), 0)
        file_id = bucket_file_id(partition, bucket, generation)
        if (partition, file_id) in self.snapshot.groups:
            return bucket_file_id(partition, bucket, generation + 1)
        return file_id

    def _rows(self, inputs: Iterable[ClusteringInput]) -> Iterator[tuple[Slice, pa.Table]]:
        for each in inputs:
            source = self.snapshot.groups[each.partition, each.file_id]
            with closing(open_data_file(self.context.store, each.path, self.context.clock)) as file:
                for rows in rows_to_copy(self.snapshot.config, each.path, file):
                    if rows.num_rows:
                        yield source, rows

    def _begin(self, source: Slice, file_id: str) -> BaseFileWriter:
        self.assert_alive()
        assert self.snapshot.schema is not None
        columns = arrow_schema(self.snapshot.schema)
        out = self._open.enter_context(draft_file())
        # As in a merge, its rows keep their own commit times; but the group is a new one.
        draft = BaseFileWriter(
            self.target, source.partition, file_id, columns, out, previous=source.instant
        )
        path = in_partition(draft.partition, draft.name)
        self.context.run(mark(self.target.instant, path, "CREATE"))
        return draft

    def _put(self, draft: BaseFileWriter) -> None:
        with disk_errors_named(), draft.out:
            stat = replace(draft.close(inserts=0), previous=NO_COMMIT)
            stat = replace(stat, inserts=stat.writes)
            self.assert_alive()
            put_data_file(
                self.context.store, stat.path, draft.out, stat.size_bytes, self.context.clock
            )
        self._stats.append(stat)


def _of_bucket(rows: pa.Table, of_row: pa.Array, bucket: int) -> pa.Table:
    return rows.filter(pc.equal(of_row, bucket))
