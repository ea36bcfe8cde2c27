"""A write of rows that are in memory: `Table.upsert` and its like."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lockkit.stores import Store, open_store
from lockkit.table.errors import RefusedRows
from lockkit.table.format.base_file import Target, plain, refuse_unfit
from lockkit.table.format.data_files import ATTEMPTS
from lockkit.table.format.layout import TaskId, WriteStat
from lockkit.table.format.log_writing import refuse_unordered
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.schema import conform
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.concurrency import see_conditions
from lockkit.table.occ.covered import CheckedHorizon
from lockkit.table.options import write_options
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.write.groups import (
    UNSENT_BYTES_MAX,
    FileBuffer,
    WriteTask,
    own_files,
    write_rows,
)
from lockkit.table.write.merge import named_columns, own_columns
from lockkit.table.write.merging import GroupMerge, RowsInMemory, read_bases, stored_keys
from lockkit.table.writer import TableWrite

if TYPE_CHECKING:
    import pyarrow as pa

PREFETCH_ROWS_MAX = 10_000
"""A write of up to this many rows fetches early the base files that it will read."""
LIGHT_BYTES_MAX = UNSENT_BYTES_MAX // 8
"""Rows of this size have room in log files that are not sent: a null of a bit becomes a byte."""


@dataclass(slots=True, kw_only=True)
class ArrowWrite(TableWrite):
    """A write of rows that are in memory."""

    rows: pa.Table
    data: Store
    """Clients for data files, whose requests may be repeated."""
    sorted: RowsInMemory | None = None
    """The rows by their file groups, if they were sorted to fetch base files early."""

    def __post_init__(self) -> None:
        names = self.rows.column_names
        if twice := [name for name in set(names) if names.count(name) > 1]:
            raise RefusedRows(min(twice)[:60], "is in these rows twice", "rename one, or drop it")
        self.rows = plain(self.rows)

    def incoming(self) -> pa.Schema:
        return self.rows.schema

    @contextmanager
    def ahead(self, config: TableConfig, seen: Snapshot) -> Iterator[FileBuffer | None]:
        own = own_files(self.store)
        small = self.rows.num_rows <= PREFETCH_ROWS_MAX
        with closing(FileBuffer(self.data, self.clock, early=small)) as buffer:
            buffer.light = small and self.rows.nbytes <= LIGHT_BYTES_MAX
            if self.merges(config) and small:
                with suppress(Exception):  # `files` says what is wrong with the rows
                    self.sorted = RowsInMemory.of(config, self.rows, bucketed=True)
                    buffer.prefetch(read_bases(self.sorted, seen, stored_keys(self.data)), own)
            yield buffer
            own.keep(buffer.unsent)  # they are committed

    def check(self, config: TableConfig) -> None:
        delete = self.requested.operation == "delete"
        if self.requested.operation == "delete_partition":
            return
        refuse_unfit(config, self.rows.schema, delete=delete)
        if config.merged:
            refuse_unordered(config, self.rows)

    def files(self, target: Target, snapshot: Snapshot, covered: CheckedHorizon) -> list[WriteStat]:
        operation = self.requested.operation
        if operation == "delete_partition":
            return []
        assert target.schema is not None
        delete, schema = operation == "delete", self.rows.schema
        columns = named_columns(target.config, schema) if delete else own_columns(target, schema)
        rows = conform(self.rows, columns)
        early = self.early_check(covered)
        work = WriteTask(
            self.data, target, TaskId(), self.clock, early, self.buffer, self.alive, self.emit
        )  # fmt: skip
        found = self.sorted
        if found is None or (found.config, schema) != (target.config, rows.schema):
            found = RowsInMemory.of(target.config, rows, bucketed=self.merges(target.config))
        if operation == "insert_overwrite":  # also where each row says that it is deleted
            self.partitions = frozenset(partition for partition, _ in found.groups)
        if self.merges(target.config):
            snapshot, keys = self.merges_into(snapshot), stored_keys(self.data)
            merge = GroupMerge(found, work, snapshot, delete, self.only_logs(target.config), keys)
            if self.everywhere(target.config):
                from lockkit.table.write.global_index import everywhere

                merge = everywhere(merge, rows)
            return merge.stats()
        parts = work.progress("wrote", len(found.parts), "partitions").through(found.parts)
        return list(write_rows(
            work, (part for _, part in parts), file_bytes_max=self.requested.file_bytes_max
        ))  # fmt: skip


def rewrite_by(
    table: Any, operation: str, rows: pa.Table, retries: int,
    partitions: frozenset[str] = frozenset(), partial: bool | None = None,
) -> Committed | None:  # fmt: skip
    """A write by this `Table`, with what its last write has left of the table."""
    requested = replace(
        write_options(table._options, operation=operation, partial=partial),
        retries=retries, partitions=partitions, strategy=table.strategy,
    )  # fmt: skip
    with table._alone(operation):
        see_conditions(table.store, table.clock)
        table._open()
        if table._data is None:
            table._data = open_store(table.url, attempts=ATTEMPTS, **table._store_options)
        write = ArrowWrite(
            rows=rows, data=table._data, requested=requested, url=table.url, store=table.store,
            upkeep=table._upkeep, clock=table.clock, emit=table.emit, found=table._left,
            follows=table._left is not None and table._left is table._written,
        )  # fmt: skip
        try:
            return write.whole()
        finally:
            table._left = table._written = write.found
