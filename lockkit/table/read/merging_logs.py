"""Merge on read: the rows of a file group whose log files are merged into its base file.

Log blocks are applied in the order of their files, by the rule of `log_order`. In memory are the
log files' rows, of the columns that are read. The rows of the base file pass through it batch by
batch: each batch's keys are found among those of the log files, and it is never read twice.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

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
    joined,
)
from lockkit.table.format.schema import RECORD_KEY
from lockkit.table.format.timeline import TimelineNames
from lockkit.table.read import log_order
from lockkit.table.read.key_index import FirstPlaces, KeyIndex
from lockkit.table.read.log_entries import LogColumns, LogEntries, fill, merged_entries
from lockkit.table.read.log_slice import LogSlice, without_logs

AHEAD_BYTES_MAX = 32 << 20
"""Merged rows of a slice that are in memory before its turn comes."""
DAMAGE = (
    LookupError, TypeError, ValueError, OSError, NotImplementedError, EOFError, struct.error
)  # fmt: skip
"""What a block raises that cannot be read."""
LOGS_AT_ONCE = 8
"""Log files of a slice that are fetched at one time."""
Scanning = Callable[..., Iterator["pa.RecordBatch"]]
"""Reads a base file, as `scan_slice` does."""


class MergeSource:
    """The open files of a slice; closing it closes the base file."""

    def __init__(self, base: BinaryIO | None, logs: dict[str, memoryview]) -> None:
        self.base, self.logs = base, logs
        self.rows: Iterator[pa.RecordBatch] | None = None
        """What the scan gives, if it has begun."""

    def merge(self, wanted: Any, of: LogSlice, scan: Scanning) -> None:
        """Begin the scan ahead of its turn, with at most `AHEAD_BYTES_MAX` of rows."""
        rows, ahead, size = scan_log_slice(wanted, of, self, scan), list[Any](), 0
        while size <= AHEAD_BYTES_MAX and (batch := next(rows, None)) is not None:
            ahead.append(batch)
            size += batch.nbytes
        self.rows = chain(ahead, rows)

    def close(self) -> None:
        self.rows = None
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

    def whole(key: str) -> memoryview:
        with open_data_file(store, key, clock) as file:
            body = _in_memory(file)
        if (missing := gaps(body)) or not body:
            run(refuse_damage(of, key, len(body), missing), store, clock)
        return body

    with ThreadPoolExecutor(LOGS_AT_ONCE) as pool:
        logs = dict(zip(of.logs, pool.map(whole, of.logs), strict=True))
    return MergeSource(fetch() if of.path else None, logs)


def _in_memory(file: Any) -> memoryview:
    """A file's bytes, in memory that Arrow uses again: Python's is new for each file."""
    body = memoryview(pa.allocate_buffer(file.seek(0, io.SEEK_END)))
    file.seek(0)
    return body[: file.readinto(body)]


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


def visible_blocks(logs: Mapping[str, memoryview], of: LogSlice) -> list[Block]:
    """The blocks with rows, in their order, without those of invisible instants; `TableError`.

    A rollback command takes back an instant's blocks before it. A block that joins earlier ones
    (log compaction) stands where the last of them stood.

    In layout 2 Hudi shows every block of a completed instant's file. Only a file with a name of
    version 6 can have blocks of others: there a block that is not visible is refused.
    """
    found, hidden, until = list[Block](), list[tuple[str, Block]](), of.completed.until
    for name, body in logs.items():
        for block in blocks(name, body):
            if block.kind == COMMAND:
                gone = block.header.get(TARGET)
                found = [each for each in found if each.instant != gone]
                hidden = [each for each in hidden if each[1].instant != gone]
            elif block.instant in of.completed:
                found.append(block)
            elif not block.instant.isdigit() or of.is_of_one_instant(name):
                why = f"has a block of the instant {block.instant[:20]!r}, which it cannot have"
                raise DamagedFile(name, why)
            elif of.names.layout == 2 and not (until and block.instant > until):
                hidden.append((name, block))
    if hidden:
        raise UnsupportedTable(
            hidden[0][0], f"is named as in version 6, and has rows of {hidden[0][1].instant[:20]}, "
            "which is not known to be completed; Hudi shows them, at the latest after its next "
            "write", "if they belong to the table, let Hudi compact it; if a restore took them "
            "back, copy the table with Hudi before it writes again",
        )  # fmt: skip
    for block in [each for each in found if each.header.get(JOINED)]:
        these = {each.strip() for each in block.header[JOINED].split(",")}
        at = max((n for n, each in enumerate(found) if each.instant in these), default=None)
        if at is not None:
            found.remove(block)
            found.insert(at + (at < len(found)), block)
            found = [each for each in found if each.instant not in these]
    return found


# --- merging --------------------------------------------------------------------------------------


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
    of = _by_known_columns(of, schema)
    order, none = pa.schema([schema.field(name) for name in of.ordering]), pa.schema([])
    with open_log_slice(replace(of, path=""), io.BytesIO, store, clock) as source:
        found = log_entries(of, {**source.logs}, LogColumns(order, none))
        last = log_entries(of, source.logs, LogColumns(none, order))
    found = found.take(pc.indices_nonzero(pc.is_in(found.keys, value_set=keys)))
    if not len(order) or not len(is_row := _is_row(found)):
        return found.keys.filter(pc.invert(_is_row(found)))
    place, goes = _Matching(found, RECORD_KEY, of.ordering).met(stored())
    every = pa.arange(0, len(found.keys)).cast(pa.int32())
    beaten = pc.is_in(every, value_set=place.filter(pc.and_not(place.is_valid(), goes)))
    late, newest = beaten, last.rows.take(pc.index_in(found.keys, value_set=last.keys))
    for value, name in zip(found.order, of.ordering, strict=True):
        same = pc.equal(*map(log_order.comparable, (value, newest[name])))
        late = pc.or_(late, pc.invert(pc.fill_null(same, False)))
    return found.keys.filter(pc.if_else(is_row, late, pc.invert(beaten)))


def log_entries(of: LogSlice, logs: dict[str, Any], columns: LogColumns) -> LogEntries:
    """The entry of each key, merged over all log files, which leave memory (`logs`) one by one."""
    parts: tuple[Block, ...] = ()
    every = visible_blocks(logs, of)
    alone = columns.ids is not None  # which of a row's columns are which depends on its instant
    waiting = ([(each, (each,)) for each in every] if alone else joined(every))[::-1]
    del every
    logs.clear()

    def each_block() -> Iterator[Block]:
        nonlocal parts
        while waiting:
            block, parts = waiting.pop()
            yield block

    try:
        return merged_entries(each_block(), columns)
    except DAMAGE as error:
        block, why = next(filter(None, (_damaged(each, columns) for each in parts)),
                          (parts[0], error))  # fmt: skip
        said = f"{type(why).__name__} {str(why)[:160]}"
        raise DamagedFile(
            of.logs[0], f"has one {KINDS[block.kind]} block of {block.instant} that cannot be read "
            f"({said})"
        ) from None  # fmt: skip


def _damaged(block: Block, columns: LogColumns) -> tuple[Block, Exception] | None:
    try:
        merged_entries([block], columns)
    except DAMAGE as error:
        return block, error
    return None


def _is_row(entries: LogEntries) -> pa.Array:
    return pc.equal(entries.kinds, log_order.ROW)


class _Matching:
    """Finds the entries of a base file's rows, which come batch by batch."""

    def __init__(self, entries: LogEntries, key: str, ordering: Sequence[str]) -> None:
        """The batches have the keys in the column `key`, and the `ordering` values."""
        self._entries, self._key, self._ordering = entries, key, ordering
        self._index = entries.index or KeyIndex(entries.keys)
        self._first = FirstPlaces(len(entries.keys))

    def met(self, stored: pa.Table) -> tuple[pa.Array, pa.Array]:
        """Of each row, the entry of its key, and whether that one wins.

        Of a key that an insert stored twice, Hudi merges the first row alone.
        """
        place = self._first.of(self._index.places(stored[self._key]))
        meets, order = pc.is_valid(place), self._entries.order
        every = [stored[name] for name in self._ordering]
        if not order or log_order.all_replace(every, order):
            return place, meets
        met = place.drop_null()
        values = [each.filter(meets).combine_chunks() for each in every]
        new = [each.take(met) for each in order]
        wins = log_order.replaces(values, self._entries.kinds.take(met), new)
        if pc.all(wins).as_py():
            return place, meets
        goes = pc.replace_with_mask(pa.repeat(pa.scalar(False), len(place)), meets, wins)
        return place, goes


def scan_log_slice(
    wanted: Any, of: LogSlice, source: MergeSource, scan: Scanning
) -> Iterator[pa.RecordBatch]:
    """The rows of `wanted`, a `Scan`: first of the base file, by `scan`, then of the logs."""
    if source.rows is not None:
        yield from source.rows
        return
    of = _by_known_columns(of, wanted.schema)
    order, needed = (
        pa.schema([wanted.schema.field(name) for name in names])
        for names in (of.ordering, wanted.needed)
    )
    own = of.key in needed.names and needed.field(of.key).type == pa.string()
    columns = LogColumns(order, needed, of.key if own else RECORD_KEY, wanted.ids)
    entries = log_entries(of, source.logs, columns)
    is_row, apart = _is_row(entries), list[pa.Array]()
    if source.base is not None:
        matching, plain = _Matching(entries, columns.key, of.ordering), without_logs(of)
        names = tuple(dict.fromkeys((*wanted.needed, columns.key, *of.ordering)))
        whole = replace(wanted, slices=(plain,), columns=names, where=None)
        source.base.seek(0)
        for batch in scan(whole, plain, source.base):
            stored = pa.Table.from_batches([batch])
            place, goes = matching.met(stored)
            rows = stored.select(needed.names)
            yield from _result(wanted, rows.filter(pc.invert(goes)))
            apart.append(place.filter(pc.and_not(place.is_valid(), goes)))
            if entries.has is not None:
                partial = pc.if_else(pc.and_(goes, is_row.take(place)), place, None)
                found, partial = rows.filter(partial.is_valid()), partial.drop_null()
                filled = fill(entries.take(partial), found, partial.is_valid())
                yield from _result(wanted, filled.rows)
                apart.append(partial)
    lost = pa.chunked_array(apart, pa.int32())
    if len(lost):
        every = pa.arange(0, len(is_row)).cast(pa.int32())
        is_row = pc.and_not(is_row, pc.is_in(every, value_set=lost.combine_chunks()))
    rows = entries.rows if pc.all(is_row).as_py() else entries.rows.filter(is_row)
    yield from _result(wanted, rows)


def _result(wanted: Any, rows: pa.Table) -> Iterator[pa.RecordBatch]:
    kept = rows if wanted.where is None else rows.filter(wanted.where)
    for batch in kept.select(list(wanted.columns)).to_batches():
        if batch.num_rows:
            yield batch
