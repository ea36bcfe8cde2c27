"""The merge: a file group's next slice, made from the previous slice and the changes of a write.

The old rows are processed in batches and are never all in memory. The changed rows are in memory,
because only the greatest of several rows with one key may stay. The order is Hudi's
EVENT_TIME_ORDERING: the greater precombine value wins, also against the stored row; of equals the
later one.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockkit.table.errors import RefusedRows
from lockkit.table.format.base_file import (
    BaseFile,
    BaseFileWriter,
    Slice,
    Target,
    columns_of,
    in_memory,
    plain,
    record_keys,
)
from lockkit.table.format.layout import TaskId, WriteStat
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.row_partitions import deleted as flags
from lockkit.table.format.row_partitions import partition_of
from lockkit.table.format.schema import RECORD_KEY, column_of, conform, stored

if TYPE_CHECKING:
    import pyarrow as pa

PLACE = "_lockkit_place"
"""The column with the number of the new row that replaces a stored one."""


@dataclass(frozen=True, slots=True)
class GroupChanges:
    """What one write does to one file group: at most one row per key."""

    keys: pa.StringArray
    rows: pa.Table | None
    """The new rows, one per key; None: the keys are to be deleted."""
    gone: Any = None
    """Keys of rows that another file group gets, to be deleted too (`global_index`)."""


def upserts(target: Target, rows: pa.Table) -> GroupChanges:
    """The rows of `rows` that stay: per key the greatest precombine value, of equals the last.

    A row without a precombine value is less than any that has one. `TableError` on a missing key.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    config, rows = target.config, plain(rows)
    keys = record_keys(config, rows).combine_chunks()
    if config.precombine is not None:
        column_of(rows, config.precombine, "precombine field")
    if rows.num_rows > 1 and len(keys.unique()) < len(keys):
        numbered = pa.table({"key": keys, "row": pa.arange(0, rows.num_rows)})
        if config.precombine is not None:
            from lockkit.table.read.log_order import comparable

            best = comparable(rows[config.precombine])
            least = pa.table({"valid": best.is_valid().cast(pa.int8()), "value": best})
            rising = [(name, "ascending") for name in least.column_names]
            numbered = numbered.take(pc.sort_indices(least, sort_keys=rising))  # equal ones stay
        last = numbered.group_by("key", use_threads=False).aggregate([("row", "last")])
        stay = last["row_last"].combine_chunks().sort()
        rows, keys = rows.take(stay), keys.take(stay)
    return GroupChanges(keys, rows)


def deletions(target: Target, rows: pa.Table) -> GroupChanges:
    """Delete the keys of `rows`, whatever their precombine values."""
    return GroupChanges(record_keys(target.config, plain(rows)).combine_chunks().unique(), None)


def merge(
    draft: BaseFileWriter, old: Iterable[pa.Table], changes: GroupChanges
) -> WriteStat | None:
    """Write the old rows that stay, then the new ones; None if nothing would change.

    A new row that says of itself that it is deleted wins and loses as others do, and is not stored.
    `old` are tables as read, including meta columns. If an insert stored a row twice, every copy is
    replaced.
    """
    import pyarrow.compute as pc

    from lockkit.table.format.promotion import as_later

    hits: list[Any] = []
    beaten: list[Any] = []
    replaced: list[pa.Table] = []
    lacks = _lacking(draft, changes)
    best = draft.target.config.precombine if changes.rows is not None else None
    newer = None
    if best is not None and changes.rows is not None:
        from lockkit.table.read.log_order import is_less

        only = draft.columns.empty_table().select([best]).schema
        newer = conform(changes.rows.select([best]), only)[best]
    deleted = 0
    for rows in (as_later(each, draft.columns) for each in old):
        if changes.gone is not None:
            gone = pc.is_in(rows[RECORD_KEY], value_set=changes.gone)
            deleted += pc.sum(gone).as_py() or 0
            rows = rows.filter(pc.invert(gone))
        place = pc.index_in(rows[RECORD_KEY], value_set=changes.keys)
        if place.null_count == rows.num_rows:
            draft.copy(rows)
            continue
        goes = place.is_valid()
        hits.append(place.drop_null())
        if newer is not None and best in rows.column_names:
            stored = conform(rows.select([best]), draft.columns.empty_table().select([best]).schema)
            stays = pc.and_(goes, is_less(newer.take(place), stored[best]))
            beaten.append(place.filter(stays))
            goes = pc.and_not(goes, stays)
        deleted += (pc.sum(goes).as_py() or 0) if changes.rows is None else 0
        if lacks is not None:
            old_values = conform(rows, lacks).append_column(PLACE, place)
            replaced.append(old_values.filter(goes))
        draft.copy(rows.filter(pc.invert(goes)))
    if changes.rows is None:
        return draft.close(inserts=0, deletes=deleted) if deleted else None
    known, lost = (_at(places, len(changes.keys)) for places in (hits, beaten))
    ends = flags(changes.rows)
    deleted += pc.sum(pc.and_(pc.and_not(known, lost), ends)).as_py() or 0
    stays = pc.invert(pc.or_(lost, ends))
    if not pc.any(stays).as_py() and not deleted:
        return None
    keys = changes.keys.filter(stays)
    draft.add(filled(changes.rows, replaced).filter(stays), keys)
    updates = pc.sum(pc.and_(known, stays)).as_py() or 0
    return draft.close(inserts=len(keys) - updates, updates=updates, deletes=deleted)


def _lacking(draft: BaseFileWriter, changes: GroupChanges) -> pa.Schema | None:
    """The columns that partial rows do not have; None of whole ones."""
    import pyarrow as pa

    if changes.rows is None or not draft.target.partial:
        return None
    own = changes.rows.column_names
    lacks = [each for each in draft.columns if each.name not in own]
    return pa.schema(lacks) if lacks else None


def filled(rows: pa.Table, replaced: list[pa.Table]) -> pa.Table:
    """The rows with what `replaced` has in the columns that they lack, by their place in `rows`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not replaced:
        return rows
    old = pa.concat_tables(replaced).combine_chunks()
    every = pa.arange(0, rows.num_rows).cast(pa.int32())
    at = pc.index_in(every, value_set=old[PLACE].combine_chunks())
    for name in old.column_names[:-1]:
        rows = rows.append_column(name, old[name].take(at))
    return rows


def _at(places: list[Any], count: int) -> pa.Array:
    """Of so many rows, which are at one of these places."""
    import pyarrow as pa
    import pyarrow.compute as pc

    at = pa.chunked_array([chunk for each in places for chunk in each.chunks], pa.int32())
    return pc.is_in(pa.arange(0, count).cast(pa.int32()), value_set=at)


def rewrite_group(target: Target, base: Slice, old: pa.Table, rows: pa.Table) -> BaseFile:
    """The next slice of a file group in memory: `old` (as read) with the upserts `rows` merged in.

    Rows that are only copied keep their commit time. The slice is written even if every new row is
    older than the stored one.

    :param target: the transaction's.
    :param base: the slice to replace.
    :param old: its rows, as read.
    :param rows: the upserts.
    """
    if rows.num_rows:
        refuse_strangers(target, base.partition, rows)
    out = io.BytesIO()
    schema = columns_of(target, _both(plain(old).schema, plain(rows).schema))
    task = TaskId()
    draft = BaseFileWriter(target, base.partition, base.file_id, schema, out, task, base.instant)
    stat = merge(draft, [old], upserts(target, rows))
    return in_memory(stat or draft.close(inserts=0), out)


def refuse_strangers(target: Target, partition: str, rows: pa.Table) -> None:
    """Raise unless every row belongs into `partition`."""
    found = partition_of(target.config, rows)
    if found != partition:
        raise RefusedRows("", f"of {found} do not belong in a file group of {partition}")


def refuse_other_key(config: TableConfig, table: pa.Schema, rows: pa.Schema) -> None:
    """Raise `TableError` where the record keys of `rows` are spelled otherwise: 5 is no 5.00."""
    import pyarrow.types as is_

    for name in config.record_keys:
        theirs, ours = table.field(name).type, stored(rows.field(name).type, name)
        if theirs != ours and not is_.is_string(ours) and (
            is_.is_decimal(ours) or is_.is_decimal(theirs)
        ):  # fmt: skip
            why = f"is {theirs} in the table and {ours} in these rows, which spell keys differently"
            raise RefusedRows(name, why, "cast it")


def own_columns(target: Target, rows: pa.Schema) -> pa.Schema:
    """The columns of new rows: all of the table's, or of partial rows those that they have."""
    import pyarrow as pa

    every = columns_of(target, rows)
    if not target.partial:
        return every
    return pa.schema([each for each in every if each.name in rows.names])


def named_columns(config: TableConfig, rows: pa.Schema) -> pa.Schema:
    """The columns of rows that name what to delete: those that are looked at, as they are stored.

    Arrow has several types for one text (a dictionary, a view), and not each function takes all.
    """
    import pyarrow as pa

    looked_at = {*config.record_keys, *config.partition_fields, config.precombine}
    return pa.schema(
        [(each.name, stored(each.type, each.name)) for each in rows if each.name in looked_at]
    )


def _both(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    from lockkit.table.format.schema import evolve, stored_schema

    return evolve(stored_schema(old), new)
