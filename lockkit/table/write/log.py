"""A commit's log file of one file group: it costs what the changes cost, not what the group does.

Nothing is read: readers merge the rows, by their keys. Only for partial rows the group's log files
are read. A row whose key they delete, or whose last row in them lost against an earlier one, is
written whole: a reader would join it to values that nobody sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from lockkit.table.format.base_file import Slice, Target, columns_of, draft_file, plain
from lockkit.table.format.layout import (
    NO_COMMIT,
    FileGroup,
    WriteStat,
    in_partition,
    write_token,
)
from lockkit.table.format.log_writing import (
    data_block,
    delete_block,
    log_name,
    log_name_in,
    refuse_unordered,
)
from lockkit.table.format.schema import META_COLUMNS, RECORD_KEY, conform
from lockkit.table.read.log_slice import (
    LogSlice,
    instants_of,
    next_log,
    slice_instant,
    without_logs,
)
from lockkit.table.write.groups import TargetGroup, WriteTask, write_group
from lockkit.table.write.merge import (
    PLACE,
    GroupChanges,
    filled,
    own_columns,
    refuse_strangers,
    upserts,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from lockkit.table.read.reader import Scan


@dataclass(frozen=True, slots=True)
class LogDraft:
    """A log file that is about to be put."""

    group: FileGroup
    name: str
    previous: str
    out: BinaryIO

    @property
    def partition(self) -> str:
        return self.group[0]

    @property
    def file_id(self) -> str:
        return self.group[1]


def write_merged(
    work: WriteTask, group_target: TargetGroup, rows: pa.Table, *, delete: bool = False
) -> WriteStat | None:
    """`write_group` in a merge-on-read table: the next file of a group is a log file."""
    for each in (rows, group_target.gone):
        if each is not None:
            refuse_unordered(work.target.config, plain(each))
    if group_target.inserts or (not group_target.logs and group_target.base is None):
        return write_group(work, group_target, rows, delete=delete)
    group, base, gone = group_target.group, group_target.base, group_target.gone
    if delete:
        return write_log(work, group, base, rows.slice(0, 0), rows)
    return write_log(work, group, base, rows, gone, moved=True)


def write_log(
    work: WriteTask, group: FileGroup, base: Slice | None, rows: pa.Table,
    gone: pa.Table | None = None, *, moved: bool = False,
) -> WriteStat:  # fmt: skip
    """Put a log file with `rows` behind `base`, and with a block that deletes the keys of `gone`.

    Without a `base` it begins the file group, as in Hudi with a bucket index. A deletion does so,
    too: another writer may be adding the row, and Hudi's writers look for none either.
    """
    target = work.target
    rows = plain(rows)
    if rows.num_rows:
        refuse_strangers(target, group[0], rows)
    changes, columns = upserts(target, rows), columns_of(target, rows.schema)
    assert changes.rows is not None
    count, deletes = len(changes.keys), 0
    with draft_file() as out:
        draft = LogDraft(group, _name(work, group[1], base), _previous(target, base), out)
        work.begin(draft)
        if gone is not None:
            block, deletes = _deletions(target, group[0], plain(gone), columns, moved)
            out.write(block)
        if count:
            for keys, fresh in _blocks(work, base, changes, columns):
                out.write(data_block(target, *group, work.task, keys, fresh))
        stat = WriteStat(
            partition=group[0], file_id=group[1], path=in_partition(group[0], draft.name),
            previous=draft.previous, writes=count, deletes=deletes, inserts=0 if base else count,
            updates=count if base else 0, size_bytes=out.tell(),
        )  # fmt: skip
        return work.put(draft, stat)


def _name(work: WriteTask, file_id: str, base: Slice | None) -> str:
    instant = work.target.instant
    if not work.target.config.sliced:
        return log_name(file_id, instant, work.task)
    return log_name_in(file_id, next_log(base, instant), write_token(instant, work.task))


def _previous(target: Target, base: Slice | None) -> str:
    if base is None:
        return NO_COMMIT
    return slice_instant(base) if target.config.sliced else max(instants_of(base))


def _blocks(
    work: WriteTask, base: Slice | None, changes: GroupChanges, columns: pa.Schema
) -> Iterator[tuple[pa.Array, pa.Table]]:
    """Keys and rows of each block: partial rows in one, those that must be whole in another one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    assert changes.rows is not None
    own = own_columns(work.target, changes.rows.schema)
    if len(own) == len(columns) or not isinstance(base, LogSlice):
        yield changes.keys, conform(changes.rows, own)
        return
    from lockkit.table.read.merging_logs import keys_to_write_whole

    wanted = key_scan(work.target, work.target.config.precombine)
    stored = partial(_scanned, work, wanted, *([without_logs(base)] if base.path else ()))
    whole = pc.is_in(changes.keys, value_set=keys_to_write_whole(
        base, changes.keys, wanted.schema, stored, work.store, work.clock
    ))  # fmt: skip
    rows = changes.rows
    if pc.any(whole).as_py():
        lacks = pa.schema([each for each in columns if each.name not in own.names])
        these = pc.field(RECORD_KEY).isin(changes.keys.filter(whole))
        found = _scanned(work, replace(key_scan(work.target, *lacks.names), where=these), base)
        place = pc.index_in(found[RECORD_KEY], value_set=changes.keys)
        rows = filled(rows, [conform(found, lacks).append_column(PLACE, place)])
    for which, shape in ((pc.invert(whole), own), (whole, columns)):
        if pc.any(which).as_py():
            yield changes.keys.filter(which), conform(rows.filter(which), shape)


def _scanned(work: WriteTask, wanted: Scan, *slices: Slice) -> pa.Table:
    import pyarrow as pa

    from lockkit.table.read.reader import scan_planned

    found = scan_planned(work.store, work.clock, replace(wanted, slices=slices))
    return pa.Table.from_batches(found, wanted.result)


def key_scan(target: Target, *columns: str | None) -> Scan:
    """A scan of record keys, and of `columns` (without None), for slices that the caller adds."""
    import pyarrow as pa

    from lockkit.table.read.reader import Scan

    assert target.schema is not None
    schema = pa.schema([*((name, pa.string()) for name in META_COLUMNS), *target.schema])
    return Scan((), schema, (RECORD_KEY, *filter(None, columns)), None)


def _deletions(
    target: Target, partition: str, rows: pa.Table, columns: pa.Schema, moved: bool
) -> tuple[bytes, int]:
    """The block that deletes the keys of `rows`, and how many these are.

    With their ordering values, so that of a key the greatest one stands, wherever it was written.
    """
    import pyarrow as pa

    changes, best, values = upserts(target, rows), target.config.precombine, None
    assert changes.rows is not None
    if best is not None:
        values = changes.rows[best]
        if best in columns.names:
            only = pa.schema([columns.field(best)])
            values = conform(changes.rows.select([best]), only)[best]
    block = delete_block(target, partition, changes.keys, values, columns, moved)
    return block, len(changes.keys)
