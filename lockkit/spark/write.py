"""File groups written from rows: by this process (Arrow), or by Spark's executors.

Whoever writes reads the group's base file, merges and puts the next one into the store itself; only
a row of statistics per file comes back. Nothing here publishes: the commit takes the statistics, in
the driver's own Python, where a stall of the driver stops it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.drive import run
from lockkit.outcome import Found
from lockkit.stores import Store, open_store
from lockkit.table import (
    Slice,
    TableError,
    Target,
    TaskId,
    WriteStat,
    read_base_file,
    rewrite_group,
    write_inserts,
)
from lockkit.table.ask import create, read
from lockkit.table.layout import FileGroup

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

GROUP = "fg"
"""The column that says which file group a row goes to; not written."""
GROUPS_MAX = 10_000
STATISTICS = (
    "partition string, file_id string, path string, previous string, "
    "writes long, inserts long, updates long, deletes long, size_bytes long"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is, as a value that travels to executors: no client, no credential."""

    url: str
    endpoint: str | None = None
    client: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def open(self) -> Store:
        return open_store(self.url, endpoint=self.endpoint, client=self.client, **self.options)


@dataclass(frozen=True, slots=True)
class Aim:
    """A file group to write: its partition, its id, and the slice to merge into, if it has one."""

    group: FileGroup
    base: Slice | None = None


def write_group(
    store: Store, target: Target, aim: Aim, rows: pa.Table, *, task: TaskId = TaskId()
) -> WriteStat:
    """Merge `rows` into the file group and put its next base file; raises `TableError`."""
    clock = Clock()
    if aim.base is None:
        file = write_inserts(target, rows, file_id=aim.group[1], task=task)
    else:
        found = run(read(aim.base.path), store, clock)
        if not isinstance(found, Found):
            raise TableError(
                f"{aim.base.path} is gone; it was cleaned while this round read it: begin again"
            )
        old = read_base_file(aim.base.path, found.body)
        file = rewrite_group(target, aim.base, old, rows, task=task)
    if isinstance(run(create(file.key, file.body), store, clock), Found):
        raise TableError(
            f"{file.key} is there already, with other bytes; begin again: its name is spent"
        )
    return file.stat


def write_frame(
    frame: DataFrame, place: Place, target: Target, aims: Mapping[str, Aim]
) -> list[WriteStat]:
    """The same for a DataFrame, on its executors; its column `fg` names each row's aim.

    One action on the result and no more: a second would write every file again. A retried task
    leaves an orphan, which is why a file's name tells the attempt.
    """
    if not 0 < len(aims) <= GROUPS_MAX:
        raise TableError(f"a round writes 1 to {GROUPS_MAX} file groups, not {len(aims)}")
    known = dict(aims)

    def merge(key: Sequence[Any], rows: pa.Table) -> pa.Table:
        import pyarrow as pa

        store = place.open()
        try:
            name = key[0].as_py()
            stat = write_group(store, target, known[name], rows.drop_columns([GROUP]), task=_task())
        finally:
            store.close()
        return pa.Table.from_pylist([stat.to_row()])

    # An explicit number: adaptive execution would coalesce a few MB into one task.
    groups = frame.repartition(len(aims), GROUP).groupBy(GROUP)
    written = groups.applyInArrow(merge, STATISTICS).collect()
    return [WriteStat.from_row(row.asDict()) for row in written]


def _task() -> TaskId:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return TaskId()
    return TaskId(context.partitionId(), context.stageId(), context.attemptNumber())
