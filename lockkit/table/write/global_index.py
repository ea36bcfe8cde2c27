"""A global index: an upsert or a delete finds a row's key in whatever partition it is.

Hudi's GLOBAL_SIMPLE and GLOBAL_BLOOM. If the stored row is in another partition than the new one,
its key is deleted there and the row is inserted into its own partition, in one commit. So another
commit to either file group is a conflict. A stored row with a greater precombine value stays where
it is, as in Hudi. There is no index on disk: the keys of each file group that may have one of them
are read. In a merge-on-read table, log files are merged for that, and the deletion goes into one.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lockkit.table.errors import RefusedOption
from lockkit.table.format.base_file import Slice, plain, record_keys
from lockkit.table.format.base_file_reading import base_file_batches
from lockkit.table.format.layout import FileGroup
from lockkit.table.format.promotion import as_later
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.property_keys import INDEX
from lockkit.table.format.row_partitions import partition_numbers
from lockkit.table.format.schema import RECORD_KEY, conform
from lockkit.table.read.bucket_groups import buckets_of
from lockkit.table.read.log_order import is_less
from lockkit.table.read.log_slice import LogSlice
from lockkit.table.read.reader import scan_planned
from lockkit.table.write.log import key_scan
from lockkit.table.write.merge import upserts
from lockkit.table.write.merging import GroupMerge, RowGroup, RowsInMemory, any_key, grouped


def refuse_global(config: TableConfig) -> None:
    """Raise unless the keys of all partitions can be looked up in such a table."""
    if config.hashed:
        raise RefusedOption(
            INDEX, "is refused: the table has Hudi's bucket index, which finds a key in its own "
            "partition only. In Hudi, too, that index is never global, and a writer has one index",
            "leave it out: a row is then found in its own partition", value="GLOBAL",
        )  # fmt: skip


def everywhere(merge: GroupMerge, rows: pa.Table) -> GroupMerge:
    """The merge of `rows` into the file groups that have their keys, in any partition."""
    config = merge.rows.config
    refuse_global(config)
    rows = plain(rows)
    if not merge.delete:  # of two rows with one key the partitions may differ
        best = upserts(merge.work.target, rows).rows
        assert best is not None
        rows = best
    keys = record_keys(config, rows).combine_chunks()
    buckets = buckets_of(config, keys)
    numbers, paths = partition_numbers(config, rows)
    own = pa.array(paths, pa.string()).take(numbers)
    parts: list[tuple[RowGroup, pa.Table]] = []
    gone: dict[FileGroup, pa.Table] = {}
    beaten = pa.repeat(pa.scalar(False), rows.num_rows)
    for each in merge.snapshot.slices:
        hit = pc.not_equal(own, each.partition)
        if not any_key(config, each):
            hit = pc.and_(hit, pc.equal(buckets, int(each.file_id[:8])))
        if not pc.any(hit).as_py() or merge.seen.lacking([each], config, [keys.filter(hit)]):
            continue
        stored = _stored(merge, each)
        hit = pc.and_(hit, pc.is_in(keys, value_set=stored[RECORD_KEY]))
        if merge.delete:
            for bucket in buckets.filter(hit).unique().to_pylist():
                here = pc.and_(hit, pc.equal(buckets, bucket))
                parts.append(((each.partition, bucket), rows.filter(here)))
            continue
        if len(stored.column_names) > 1:
            name = stored.column_names[1]
            at = pc.index_in(keys, value_set=stored[RECORD_KEY])
            stays = pc.and_(hit, is_less(rows[name], stored[name].take(at)))
            stays = stays.combine_chunks() if isinstance(stays, pa.ChunkedArray) else stays
            beaten, hit = pc.or_(beaten, stays), pc.and_not(hit, stays)
        if pc.any(hit).as_py():
            gone[each.partition, each.file_id] = rows.filter(hit)
    rows = rows.filter(pc.invert(beaten))
    found = RowsInMemory(config, [*grouped(config, rows, bucketed=True), *parts])
    return replace(merge, rows=found, gone=gone)


def _stored(merge: GroupMerge, of: Slice) -> pa.Table:
    """The keys of a slice's rows, and their precombine values if it has any."""
    target, best = merge.work.target, merge.rows.config.precombine
    if isinstance(of, LogSlice):
        wanted = replace(key_scan(target, None if merge.delete else best), slices=(of,))
        found = scan_planned(merge.work.store, merge.work.clock, wanted)
        return pa.Table.from_batches(found, wanted.result)
    with merge.work.peek(of.path) as file:
        here = pq.read_schema(file).names
        names = [name for name in (RECORD_KEY, best) if name is not None and name in here]
        file.seek(0)
        found = pa.concat_tables(base_file_batches(of.path, file, columns=names))
    merge.seen.keep(of, found[RECORD_KEY].combine_chunks())
    if len(names) == 1 or target.schema is None:
        return found.select([RECORD_KEY])
    assert best is not None
    found = as_later(found, target.schema)
    only = conform(found.select([best]), target.schema.empty_table().select([best]).schema)
    return pa.table({RECORD_KEY: found[RECORD_KEY], best: only[best]})
