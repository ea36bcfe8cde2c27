"""Merge on read: the rows of a file group whose log files are merged into its base file.

Log blocks are applied in the order of their files, by the rule of `log_order`. In memory are the
log files' rows, of the columns that are read, and for a moment the base file's keys. The rows
of a large base file pass through it batch by batch.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from lockkit.clock import Clock
from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure, run
from lockkit.runtime.proven import all_of, read
from lockkit.stores import Store
from lockkit.table.errors import DamagedFile, UnsupportedTable
from lockkit.table.format.base_file import Slice
from lockkit.table.format.data_files import open_data_file
from lockkit.table.format.layout import parse_commit
from lockkit.table.format.log_blocks import (
    COMMAND,
    JOINED,
    KINDS,
    TARGET,
    Block,
    blocks,
    gaps,
)
from lockkit.table.format.schema import RECORD_KEY
from lockkit.table.format.timeline import TimelineNames
from lockkit.table.read import log_order
from lockkit.table.read.key_index import KeyIndex, repeats
from lockkit.table.read.log_entries import LogColumns, LogEntries, fill, merged_entries
from lockkit.table.read.log_slice import LogSlice, without_logs

if TYPE_CHECKING:
    import pyarrow as pa

WHOLE_BYTES_MAX = 8 << 20
"""A base file of at most this size is read once, its keys with its rows, and then is in memory."""
WHOLE_FOLD = 8
"""Rows that take more than so many times `WHOLE_BYTES_MAX` are not held: they are read again."""
LOGS_AT_ONCE = 4
"""Log files of a slice that are fetched at one time."""
Scanning = Callable[..., Iterator["pa.RecordBatch"]]
"""Reads a base file, as `scan_slice` does."""


class MergeSource:
    """The open files of a slice; closing it closes the base file."""

    def __init__(self, base: BinaryIO | None, logs: Mapping[str, bytes]) -> None:
        self.base, self.logs = base, logs
        self.merged: MergedLogs | None = None
        """What `merge_logs` made of them, ahead of the scan."""
        self.rows: list[pa.RecordBatch] | None = None
        """What the scan gives, if it is done already."""

    def merge(self, wanted: Any, of: LogSlice, scan: Scanning) -> None:
        """Merge them ahead of the scan; of a small base file, do the scan as well."""
        self.merged = merge_logs(wanted, of, self, scan)
        if self.merged.stored is not None:
            rows = list(scan_log_slice(wanted, of, self, scan))
            self.rows, self.merged = rows, None

    def close(self) -> None:
        if self.base is not None:
            self.base.close()

    def __enter__(self) -> MergeSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_log_slice(
    of: LogSlice, fetch: Callable[[], BinaryIO], store: Store, clock: Clock
) -> MergeSource:
    """Read the log files, and the base file by `fetch`; `TableError` if one is gone or damaged."""

    def whole(key: str) -> bytes:
        with open_data_file(store, key, clock) as file:
            body = file.read()
        if (missing := gaps(body)) or not body:
            run(refuse_damage(of, key, len(body), missing), store, clock)
        return body

    with ThreadPoolExecutor(LOGS_AT_ONCE) as pool:
        logs = dict(zip(of.logs, pool.map(whole, of.logs), strict=True))
    return MergeSource(fetch() if of.path else None, logs)


def refuse_damage(
    of: LogSlice, key: str, size: int, missing: list[tuple[int, int]]
) -> Procedure[None]:
    """`TableError` if bytes of `key` are in no whole block, and a completed commit wrote them.

    In layout 2 a log file belongs to one instant, and of `of` that one is completed. In layout 1
    instants may share a file: the commits record which bytes each wrote; the others are half a
    block of a writer that died.
    """
    lost = of.names.layout == 2
    if not lost:
        parts = yield from all_of(
            _written_by(of.names, each, key) for each in sorted(of.completed.instants)
        )
        lost = any(
            size < end or any(begin < until and since < end for since, until in missing)
            for part in parts for begin, end in part
        )  # fmt: skip
    if lost:
        count = sum(end - begin for begin, end in missing)
        what = f"{count} of its {size} bytes are in no whole block" if size else "it is empty"
        why = f"is damaged: {what}, and a completed commit wrote rows there, which are lost"
        raise DamagedFile(key, why, "restore it from an older version or a backup")


def _written_by(names: TimelineNames, instant: str, key: str) -> Procedure[list[tuple[int, int]]]:
    """Which bytes of a log file a commit of layout 1 wrote, as (first, end)."""
    name = names.completed(instant, "deltacommit")
    match (yield from read(name)):
        case Found(body, _):
            def part(_partition: str, fields: dict[str, Any]) -> tuple[Any, int, int]:
                begin, end = fields.get("logOffset") or 0, fields.get("fileSizeInBytes") or 0
                return fields["path"], int(begin), int(end)

            stats: Any = parse_commit(instant, name, body, part).stats
            return [(begin, end) for path, begin, end in stats if path == key]
        case _not_a_deltacommit:
            return []


# --- which blocks ---------------------------------------------------------------------------------


def visible_blocks(logs: Mapping[str, bytes], of: LogSlice) -> list[Block]:
    """The blocks with rows, in their order, without those of invisible instants; `TableError`.

    A rollback command takes back an instant's blocks before it. A block that joins earlier ones
    (log compaction) stands where the last of them stood.
    """
    found: list[Block] = []
    for name, body in logs.items():
        for block in blocks(name, body):
            if block.kind == COMMAND:
                found = [each for each in found if each.instant != block.header.get(TARGET)]
            elif block.instant in of.completed:
                found.append(block)
            elif not block.instant or of.is_of_one_instant(name):
                why = f"has a block of the instant {block.instant[:20]!r}, which it cannot have"
                raise DamagedFile(name, why)
    for block in [each for each in found if each.header.get(JOINED)]:
        these = {each.strip() for each in block.header[JOINED].split(",")}
        at = max((n for n, each in enumerate(found) if each.instant in these), default=None)
        if at is not None:
            found.remove(block)
            found.insert(at + (at < len(found)), block)
            found = [each for each in found if each.instant not in these]
    return found


# --- merging --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MergedLogs:
    """What the log files change: their rows, and which rows of the base file these replace."""

    entries: LogEntries
    """One for each key."""
    stays: pa.Array
    """Of each row of the base file."""
    meets: pa.Array | None
    """Of each row of the base file, the partial entry that is to be completed from it."""
    added: pa.Array
    """Which entries are rows by themselves."""
    stored: pa.Table | None = None
    """The base file's rows, if they are few enough to be read once, with the keys."""


def merge_logs(wanted: Any, of: LogSlice, source: MergeSource, scan: Scanning) -> MergedLogs:
    """Merge the log files, and match them with the base file's keys; `TableError`."""
    import pyarrow as pa

    schema = wanted.schema
    of = _by_known_columns(of, schema)
    order = pa.schema([schema.field(name) for name in of.ordering])
    rows = pa.schema([schema.field(name) for name in wanted.needed])
    own = of.key in rows.names and rows.field(of.key).type == pa.string()
    columns = LogColumns(order, rows, of.key if own else RECORD_KEY)
    entries = log_entries(of, source.logs, columns)
    if source.base is None:
        return MergedLogs(entries, pa.array([], pa.bool_()), None, _is_row(entries))
    keys = tuple(dict.fromkeys((columns.key, *of.ordering)))
    whole = source.base.seek(0, io.SEEK_END) <= WHOLE_BYTES_MAX
    stored = _read_once(wanted, of, source.base, scan, keys) if whole else None
    found = stored
    if found is None:
        few = replace(wanted, slices=(without_logs(of),), columns=keys, where=None)
        source.base.seek(0)
        found = pa.Table.from_batches(scan(few, few.slices[0], source.base), few.result)
    source.base.seek(0)
    merged = _matched(entries, found, columns.key, of.ordering)
    return merged if stored is None else replace(merged, stored=stored.select(rows.names))


def _read_once(
    wanted: Any, of: LogSlice, base: BinaryIO, scan: Scanning, keys: Sequence[str]
) -> pa.Table | None:
    """The base file's rows and `keys`, or None if they take too much memory."""
    import pyarrow as pa

    names = tuple(dict.fromkeys((*keys, *wanted.needed)))
    every = replace(wanted, slices=(without_logs(of),), columns=names, where=None)
    base.seek(0)
    found, size = list[pa.RecordBatch](), 0
    for batch in scan(every, every.slices[0], pa.BufferReader(base.read())):
        found.append(batch)
        size += batch.nbytes
        if size > WHOLE_FOLD * WHOLE_BYTES_MAX:
            return None
    return pa.Table.from_batches(found, every.result)


def _by_known_columns(of: LogSlice, schema: pa.Schema) -> LogSlice:
    """By Hudi's rule a column that no row has orders none of them: the later one wins."""
    missing = [name for name in of.ordering if name not in schema.names]
    if missing and len(missing) < len(of.ordering):
        raise UnsupportedTable(
            f"the ordering column {missing[0]!r}", "is not in the table's schema, and another "
            "ordering column is", "read it with Hudi",
        )  # fmt: skip
    return replace(of, ordering=()) if missing else of


def logged_keys(of: Slice, store: Store, clock: Clock) -> pa.Array:
    """The keys in a slice's log files, also the deleted ones; `TableError` if one is damaged."""
    import pyarrow as pa

    if not isinstance(of, LogSlice):
        return pa.array([], pa.string())
    none = pa.schema([])
    with open_log_slice(replace(of, path=""), io.BytesIO, store, clock) as source:
        return log_entries(of, source.logs, LogColumns(none, none)).keys


def keys_to_write_whole(
    of: LogSlice, keys: pa.Array, schema: pa.Schema, stored: Callable[[], pa.Table], store: Store,
    clock: Clock,
) -> pa.Array:  # fmt: skip
    """Those of `keys` whose next row may not be partial; `TableError`.

    In log files such a key is deleted, or its last row is less than one before it, in the base file
    or in a log file that a pending compaction may put there. Readers would join the two last rows.

    :param schema: the table's.
    :param stored: reads the base file's keys and ordering values, if they are needed.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    of = _by_known_columns(of, schema)
    order, none = pa.schema([schema.field(name) for name in of.ordering]), pa.schema([])
    with open_log_slice(replace(of, path=""), io.BytesIO, store, clock) as source:
        found = log_entries(of, source.logs, LogColumns(order, none))
        last = log_entries(of, source.logs, LogColumns(none, order))
    found = found.take(pc.indices_nonzero(pc.is_in(found.keys, value_set=keys)))
    if not len(order) or not len(is_row := _is_row(found)):
        return found.keys.filter(pc.invert(_is_row(found)))
    place, goes = _met(found, stored(), RECORD_KEY, of.ordering)
    every = pa.arange(0, len(found.keys)).cast(pa.int32())
    beaten = pc.is_in(every, value_set=place.filter(pc.and_not(place.is_valid(), goes)))
    late, newest = beaten, last.rows.take(pc.index_in(found.keys, value_set=last.keys))
    for value, name in zip(found.order, of.ordering, strict=True):
        late = pc.or_(late, pc.fill_null(pc.not_equal(value, newest[name]), True))
    return found.keys.filter(pc.if_else(is_row, late, pc.invert(beaten)))


def log_entries(of: LogSlice, logs: Mapping[str, bytes], columns: LogColumns) -> LogEntries:
    """The entry of each key, merged over all log files."""
    block: Block | None = None

    def each_block() -> Iterator[Block]:
        nonlocal block
        for block in visible_blocks(logs, of):  # noqa: UP028 - `block` is the one at fault
            yield block

    try:
        return merged_entries(each_block(), columns)
    except (
        LookupError, TypeError, ValueError, OSError, NotImplementedError, EOFError, struct.error
    ) as error:  # fmt: skip
        assert block is not None
        why = f"has a {KINDS[block.kind]} block of {block.instant} that cannot be read"
        why += f" ({type(error).__name__} {str(error)[:160]})"
        raise DamagedFile(of.logs[0], why) from None


def _is_row(entries: LogEntries) -> pa.Array:
    import pyarrow.compute as pc

    return pc.equal(entries.kinds, log_order.ROW)


def _matched(
    entries: LogEntries, stored: pa.Table, key: str, ordering: Sequence[str]
) -> MergedLogs:
    """`stored` has the base file's keys, in the column `key`, and ordering values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    place, goes = _met(entries, stored, key, ordering)
    lost = place.filter(pc.and_not(place.is_valid(), goes))
    partial = None
    if entries.has is not None:
        partial = pc.if_else(pc.and_(goes, _is_row(entries).take(place)), place, None)
        lost = pa.concat_arrays([lost, partial.drop_null()])
    added = _is_row(entries)
    if len(lost):
        every = pa.arange(0, len(added)).cast(pa.int32())
        added = pc.and_not(added, pc.is_in(every, value_set=lost))
    return MergedLogs(entries, pc.invert(goes), partial, added)


def _met(
    entries: LogEntries, stored: pa.Table, key: str, ordering: Sequence[str]
) -> tuple[pa.Array, pa.Array]:
    """Of each row of the base file, the entry of its key, and whether that one wins."""
    import pyarrow as pa
    import pyarrow.compute as pc

    index = entries.index or KeyIndex(entries.keys)
    place = _first_ones(index.places(stored[key]))
    meets = pc.is_valid(place)
    every = [stored[name] for name in ordering]
    if not entries.order or log_order.all_replace(every, entries.order):
        return place, meets
    met = place.drop_null()
    values = [each.filter(meets).combine_chunks() for each in every]
    new = [each.take(met) for each in entries.order]
    wins = log_order.replaces(values, entries.kinds.take(met), new)
    if pc.all(wins).as_py():
        return place, meets
    goes = pc.replace_with_mask(pa.repeat(pa.scalar(False), len(place)), meets, wins)
    return place, goes


def _first_ones(place: pa.Array) -> pa.Array:
    """Of a key that an insert stored twice, Hudi merges the first row alone."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not repeats(place):
        return place
    rows = pa.table({"place": place, "row": pa.arange(0, len(place))})
    first = rows.group_by("place").aggregate([("row", "min")])["row_min"]
    return pc.if_else(pc.is_in(rows["row"], value_set=first), place, None).combine_chunks()


def scan_log_slice(
    wanted: Any, of: LogSlice, source: MergeSource, scan: Scanning
) -> Iterator[pa.RecordBatch]:
    """The rows of `wanted`, a `Scan`: first of the base file, by `scan`, then of the logs."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if source.rows is not None:
        yield from source.rows
        return
    merged, at = source.merged or merge_logs(wanted, of, source, scan), 0
    entries = merged.entries
    if source.base is not None:
        plain = without_logs(of)
        whole = replace(wanted, slices=(plain,), columns=wanted.needed, where=None)
        stored = merged.stored.to_batches() if merged.stored is not None else None
        for batch in scan(whole, plain, source.base) if stored is None else stored:
            rows = pa.Table.from_batches([batch])
            yield from _result(wanted, rows.filter(merged.stays.slice(at, len(batch))))
            if merged.meets is not None:
                place = merged.meets.slice(at, len(batch))
                met = entries.take(place.drop_null())
                found = rows.filter(place.is_valid())
                yield from _result(wanted, fill(met, found, place.drop_null().is_valid()).rows)
            at += len(batch)
    every = pc.all(merged.added).as_py()
    yield from _result(wanted, entries.rows if every else entries.rows.filter(merged.added))


def _result(wanted: Any, rows: pa.Table) -> Iterator[pa.RecordBatch]:
    kept = rows if wanted.where is None else rows.filter(wanted.where)
    for batch in kept.select(list(wanted.columns)).to_batches():
        if batch.num_rows:
            yield batch
