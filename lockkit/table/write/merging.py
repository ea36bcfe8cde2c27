"""Rows to the file groups that have their keys: where each row of an upsert or a delete goes.

A row goes to every group that has its key, else to its key's bucket. Of the bucketed groups only
the key's own can have it, unless Hudi wrote to the table: it puts new keys into any small group.
The rows are in memory or in a spool on this machine's disk; a few groups at a time are merged and
put into the store.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from lockkit.table.format.base_file import Slice, plain, record_keys
from lockkit.table.format.base_file_reading import base_file_batches
from lockkit.table.format.layout import FileGroup, WriteStat
from lockkit.table.format.properties import FENCED, HUDI, TableConfig
from lockkit.table.format.row_partitions import partition_numbers
from lockkit.table.format.schema import RECORD_KEY
from lockkit.table.read.bucket_groups import BucketGroups, buckets_of
from lockkit.table.read.buckets import is_bucketed
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.write.groups import TargetGroup, WriteTask, write_group
from lockkit.table.write.merge import upserts

if TYPE_CHECKING:
    import pyarrow as pa

    from lockkit.runtime.progress import WorkDone
    from lockkit.stores import Store

KEPT_BYTES_MAX = 32 << 20


@dataclass(slots=True)
class StoredKeys:
    """The keys of each file of one store that was read, by its path.

    A commit that inserts nothing into a file group adds no key to it. So an upsert does not read a
    group again that has none of its keys, although other writers have updated it.
    """

    _kept: dict[str, Any] = field(default_factory=dict)
    _bytes: int = 0

    def of(self, at: Slice) -> Any | None:
        """The keys of this very slice, if they are known."""
        return self._kept.get(at.path)

    def lacking(
        self, slices: Iterable[Slice], config: TableConfig, rows: Iterable[Any]
    ) -> set[str]:
        """The paths of the slices that certainly have none of the record keys in `rows` (batches of
        keys). All stored keys are looked at once for each batch.

        None of a table that Hudi may have written to: only lockkit's counts of inserts are exact.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        sure = config.mode == FENCED and not config.switches and not config.merged
        known = {each.path: self._kept[path] for each in slices if sure
                 for path in reversed(_files(each)) if path in self._kept}  # fmt: skip
        left, every = set(known), pa.chunked_array([*known.values()], pa.string())
        for keys in rows if known else ():
            hits, start = pc.is_in(every, value_set=keys).combine_chunks(), 0
            for path, kept in known.items():
                left -= {path} if hits.slice(start, len(kept)).true_count else set()
                start += len(kept)
        return left

    def keep(self, at: Slice, keys: Any) -> None:
        """Keep what a read of this slice found. Over the limit, drop everything else."""
        if keys.nbytes > KEPT_BYTES_MAX:
            return
        for path in _files(at):
            self._bytes -= self._kept.pop(path).nbytes if path in self._kept else 0
        self._bytes += keys.nbytes
        if self._bytes > KEPT_BYTES_MAX:
            self._kept.clear()
            self._bytes = keys.nbytes
        self._kept[at.path] = keys


def _files(at: Slice) -> tuple[str, ...]:
    """The slice's own file, then the earlier files that have all of its keys, latest first."""
    return at.path, *reversed(at.keys_in)


_OF_STORE: WeakKeyDictionary[Store, StoredKeys] = WeakKeyDictionary()


def stored_keys(store: Store) -> StoredKeys:
    """The keys that were read from this store; they are dropped with the store."""
    return _OF_STORE.setdefault(store, StoredKeys())


AT_ONCE = min(4, os.cpu_count() or 1)
"""Groups that are merged, or files of a spool that are fetched, at one time."""
NO_BUCKET = -1
RowGroup = tuple[str, int]
"""(partition, bucket), `NO_BUCKET` where rows are only inserted."""
Share = tuple[str, int]
"""The name of some rows of one group: in a spool a file and the number of a batch."""


class GroupedRows(Protocol):
    """Rows that are sorted by the group that they are for."""

    @property
    def config(self) -> TableConfig: ...

    @property
    def groups(self) -> dict[RowGroup, list[Share]]:
        """Which shares are for each group."""

    def batches(self, where: Iterable[Share]) -> Iterator[pa.Table]:
        """The rows of each share."""

    def table(self, where: Iterable[Share]) -> pa.Table:
        """The rows of all these shares."""


@dataclass(frozen=True, slots=True)
class RowsInMemory:
    """`GroupedRows` of an Arrow table."""

    config: TableConfig
    parts: list[tuple[RowGroup, pa.Table]]

    @classmethod
    def of(cls, config: TableConfig, rows: pa.Table, *, bucketed: bool) -> RowsInMemory:
        return cls(config, list(grouped(config, plain(rows), bucketed=bucketed)))

    @property
    def groups(self) -> dict[RowGroup, list[Share]]:
        found: dict[RowGroup, list[Share]] = {}
        for number, (group, _) in enumerate(self.parts):
            found.setdefault(group, []).append(("", number))
        return dict(sorted(found.items()))

    def batches(self, where: Iterable[Share]) -> Iterator[pa.Table]:
        return (self.parts[number][1] for _, number in where)

    def table(self, where: Iterable[Share]) -> pa.Table:
        import pyarrow as pa

        return pa.concat_tables(self.batches(where))


def grouped(
    config: TableConfig, rows: pa.Table, *, bucketed: bool
) -> Iterator[tuple[RowGroup, pa.Table]]:
    """The rows group by group, in the order in which they came; `TableError` if one has no key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = record_keys(config, rows).combine_chunks()
    number = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    if bucketed:
        number = buckets_of(config, keys)
    paths = [""]
    if config.partition_by is not None:
        numbers, paths = partition_numbers(config, rows)
        number = pc.add(number, pc.multiply(numbers, config.buckets))
    order = pc.sort_indices(number)
    rows, at = rows.take(order), 0
    ends = pc.run_end_encode(number.take(order), run_end_type=pa.int64())
    for each, end in zip(ends.values.to_pylist(), ends.run_ends.to_pylist(), strict=True):
        code, bucket = divmod(each, config.buckets)
        yield (paths[code], bucket if bucketed else NO_BUCKET), rows.slice(at, end - at)
        at = end


def any_key(config: TableConfig, of: Slice) -> bool:
    """Whether this slice may have a key of any bucket, as a table has for good that was in `hudi`
    mode once, unless its buckets are Hudi's own."""
    mixed = config.mode == HUDI or config.switches > 0 or not is_bucketed(of.file_id)
    return mixed and not config.hashed


def by_partition(groups: dict[RowGroup, list[Share]]) -> dict[str, list[Share]]:
    """The shares of each partition."""
    found: dict[str, list[Share]] = {}
    for (partition, _), where in groups.items():
        found.setdefault(partition, []).extend(where)
    return found


def with_any_key(
    rows: GroupedRows, snapshot: Snapshot, seen: StoredKeys
) -> dict[str, list[Slice]]:
    """By their partitions, the slices of any bucket's keys that may have a key of `rows`."""
    shares = by_partition(rows.groups)
    found: dict[str, list[Slice]] = {each: [] for each in shares}
    for each in snapshot.slices:
        if each.partition in found and any_key(rows.config, each):
            found[each.partition].append(each)
    for partition, where in shares.items():
        keys = (record_keys(rows.config, each) for each in rows.batches(where))
        lacking = seen.lacking(found[partition], rows.config, keys)
        found[partition] = [each for each in found[partition] if each.path not in lacking]
    return found


def read_bases(
    rows: GroupedRows, snapshot: Snapshot, seen: StoredKeys,
    mixed: dict[str, list[Slice]] | None = None,
) -> Iterator[Slice]:  # fmt: skip
    """The slices that a merge of `rows` reads, if the snapshot is still the newest."""
    yield from chain(*(mixed or with_any_key(rows, snapshot, seen)).values())
    group_of = BucketGroups(snapshot).of
    for partition, bucket in rows.groups:
        base = snapshot.groups.get(group_of(partition, bucket))
        if base is not None and not any_key(rows.config, base) and not rows.config.merged:
            yield base


@dataclass(slots=True)
class GroupMerge:
    """Grouped rows, merged into the file groups of `snapshot`."""

    rows: GroupedRows
    work: WriteTask
    snapshot: Snapshot
    delete: bool
    only_logs: bool = False
    """`TargetGroup.logs`."""
    seen: StoredKeys = field(default_factory=StoredKeys)
    gone: Mapping[FileGroup, pa.Table] = field(default_factory=dict)
    """The rows of keys that each file group loses besides: they are in another partition now."""

    def stats(self) -> list[WriteStat]:
        """Each row to the groups that have its key, else to its bucket's."""
        groups, mixed = self.rows.groups, with_any_key(self.rows, self.snapshot, self.seen)
        if self.work.buffer:  # what others have added
            self.work.buffer.prefetch(read_bases(self.rows, self.snapshot, self.seen, mixed))
        group_of = BucketGroups(self.snapshot).for_new
        buckets = {group_of(partition, bucket): (partition, bucket) for partition, bucket in groups}
        others = {(of.partition, of.file_id) for of in chain(*mixed.values())}
        progress = self.work.progress("merged", len(others.union(buckets, self.gone)))
        group_targets = self._group_targets(buckets, mixed, progress)
        if self.gone:
            group_targets = self._without_gone(group_targets)
        return list(filter(None, progress.through(_in_turn(self._write, group_targets))))

    def _group_targets(
        self, buckets: dict[FileGroup, RowGroup], mixed: dict[str, list[Slice]], progress: WorkDone
    ) -> Iterator[tuple[TargetGroup, pa.Table]]:
        """Each group that has a key gets its row, and several may; each group comes once."""
        groups, found = self.rows.groups, dict[Share, Any]()
        for partition, where in (shares := by_partition(groups)).items():
            for each in mixed[partition]:
                rows = self._of_slice(each, where, found)
                group = partition, each.file_id
                if rows is not None and group not in buckets:
                    yield TargetGroup(group, each), rows
                progress.more(rows is None and group not in buckets)
        for group, of in buckets.items():
            base = self.snapshot.groups.get(group)
            if self.rows.config.by_base_files:
                fresh = None if self.delete else self._for_bucket(groups[of], found, None)
                known = base and self._of_slice(base, shares[of[0]], {})
                rows = concatenated([fresh, known])
                if rows is not None:
                    inserts = fresh is not None and fresh.num_rows > 0
                    yield TargetGroup(group, base, inserts=inserts), rows
                continue
            parts: list[Any] = [self._for_bucket(groups[of], found, base)]
            if base is not None and any_key(self.rows.config, base):
                others = [each for each in shares[of[0]] if each not in groups[of]]
                parts.append(self._of_slice(base, others, {}))
            rows = concatenated(parts)
            if rows is not None:
                yield TargetGroup(group, base), rows

    def _without_gone(
        self, group_targets: Iterator[tuple[TargetGroup, pa.Table]]
    ) -> Iterator[tuple[TargetGroup, pa.Table]]:
        """Each group that loses keys, once, with the rows that it gets, if any."""
        left = dict(self.gone)
        for group_target, rows in group_targets:
            yield replace(group_target, gone=left.pop(group_target.group, None)), rows
        for group, rows in left.items():
            yield TargetGroup(group, self.snapshot.groups[group], gone=rows), rows.slice(0, 0)

    def _of_slice(self, of: Slice, where: list[Share], found: dict[Share, Any]) -> pa.Table | None:
        """The rows whose keys a slice has, which `found` then checks for each batch."""
        import pyarrow as pa
        import pyarrow.compute as pc

        keys, hits = self._stored(of), []
        for each in where:
            rows = self.rows.table([each])
            hit = pc.is_in(record_keys(self.rows.config, rows), value_set=keys)
            if pc.any(hit).as_py():
                hits.append(rows.filter(hit))
                found[each] = pc.or_(found[each], hit) if each in found else hit
        return pa.concat_tables(hits) if hits else None

    def _for_bucket(
        self, where: list[Share], found: dict[Share, Any], base: Slice | None
    ) -> pa.Table:
        """The rows whose keys no other group has, and those whose keys the bucket has as well."""
        import pyarrow as pa
        import pyarrow.compute as pc

        config, kept = self.rows.config, []
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
                    keys = record_keys(self.rows.config, rows)
                    rows = rows.filter(pc.invert(pc.is_in(keys, value_set=self._stored(each))))
            if rows is not None and rows.num_rows:
                yield rows

    def _stored(self, of: Slice) -> Any:
        import pyarrow as pa

        keys = self.seen.of(of)
        if keys is None and of.path:
            with self.work.peek(of.path) as file:
                tables = list(base_file_batches(of.path, file, columns=[RECORD_KEY]))
            keys = pa.concat_tables(tables)[RECORD_KEY].combine_chunks()
            self.seen.keep(of, keys)
        if self.rows.config.merged:
            from lockkit.table.read.merging_logs import logged_keys

            logged = logged_keys(of, self.work.store, self.work.clock)
            keys = logged if keys is None else pa.concat_arrays([keys, logged])
        return keys

    def _write(self, group_target: TargetGroup, rows: pa.Table) -> WriteStat | None:
        if self.rows.config.merged:
            from lockkit.table.write.log import write_merged

            group_target = replace(group_target, logs=self.only_logs)
            return write_merged(self.work, group_target, rows, delete=self.delete)
        stat = write_group(self.work, group_target, rows, delete=self.delete)
        base = group_target.base
        if base and stat and not stat.inserts + stat.deletes and (keys := self.seen.of(base)):
            self.seen.keep(replace(base, path=stat.path, keys_in=(base.path,)), keys)
        return stat


def without(before: Snapshot, gone: Collection[FileGroup]) -> Snapshot:
    """The snapshot once these file groups are replaced: a bucket's next group gets a new id."""
    return replace(
        before,
        groups=MappingProxyType({g: s for g, s in before.groups.items() if g not in gone}),
        replaced=MappingProxyType({**before.replaced, **dict.fromkeys(gone, "")}),
    )


def concatenated(parts: list[pa.Table | None]) -> pa.Table | None:
    """All rows of `parts`; None if there is none."""
    import pyarrow as pa

    kept = [each for each in parts if each is not None and each.num_rows]
    return pa.concat_tables(kept) if kept else None


def _in_turn(
    write: Any, group_targets: Iterator[tuple[TargetGroup, pa.Table]]
) -> Iterator[WriteStat | None]:
    """A few groups at a time, so that memory holds no more rows than theirs."""
    first = list(islice(group_targets, 2))
    if len(first) == 1:  # a thread costs as much as a small group
        yield write(*first[0])
        return
    coming: deque[Any] = deque()
    from lockkit.runtime.pool import Pool  # an append to one group does without
    with Pool(AT_ONCE) as pool:
        for group_target, rows in chain(first, group_targets):
            coming.append(pool.submit(write, group_target, rows))
            if len(coming) >= AT_ONCE:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
