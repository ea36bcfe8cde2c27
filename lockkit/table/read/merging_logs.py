"""Merge on read: the rows of a file group whose log files are merged into its base file.

Log blocks are applied in the order of their files: of one key the later row wins, or the one with
the greater ordering value (equal: the later). A delete without an ordering value always wins, and
only a row ends it. As in Hudi, log files are merged among themselves before the base file: after
such a delete a row with a smaller value than the base file's brings that one back. The log files'
rows are in memory; the base file's pass through it batch by batch.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from lockkit.clock import Clock
from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure, run
from lockkit.runtime.proven import all_of, read
from lockkit.stores import Store
from lockkit.table.errors import DamagedFile
from lockkit.table.format.base_file import Slice
from lockkit.table.format.data_files import open_data_file
from lockkit.table.format.layout import parse_commit
from lockkit.table.format.log_blocks import (
    AVRO,
    COMMAND,
    CORRUPT,
    DELETE,
    JOINED,
    KINDS,
    PARQUET,
    PARTIAL,
    SCHEMA,
    TARGET,
    Block,
    avro_rows,
    blocks,
    deleted_keys,
    gaps,
)
from lockkit.table.format.schema import RECORD_KEY
from lockkit.table.format.schema_reading import arrow_schema
from lockkit.table.format.timeline import TimelineNames
from lockkit.table.read.log_slice import LogSlice, VisibleInstants

if TYPE_CHECKING:
    import pyarrow as pa

DELETED_FLAG, OPERATION = "_hoodie_is_deleted", "_hoodie_operation"
DELETING = ("D", "-U")
_STORED: Mapping[str, Any] = {}
"""Stands for a row of the base file that no log entry needs."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A block's entry for a key: a row, some columns of it, or None: it is deleted."""

    row: Mapping[str, Any] | None
    ordering: tuple[Any, ...]
    partial: bool = False


class MergeSource:
    """The open files of a slice; closing it closes the base file."""

    def __init__(self, base: BinaryIO | None, logs: Mapping[str, bytes]) -> None:
        self.base, self.logs = base, logs

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
    logs: dict[str, bytes] = {}
    for key in of.logs:
        with open_data_file(store, key, clock) as file:
            logs[key] = file.read()
        if (missing := gaps(logs[key])) or not logs[key]:
            run(refuse_damage(of, key, len(logs[key]), missing), store, clock)
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


def visible_blocks(logs: Mapping[str, bytes], completed: VisibleInstants) -> list[Block]:
    """The blocks with rows, in their order, without those of invisible instants.

    A rollback command takes back an instant's blocks before it. A block that joins earlier ones
    (log compaction) stands where the last of them stood.
    """
    found: list[Block] = []
    for name, body in logs.items():
        for block in blocks(name, body):
            if block.kind == COMMAND:
                found = [each for each in found if each.instant != block.header.get(TARGET)]
            elif block.instant in completed and block.kind != CORRUPT:
                found.append(block)
    for block in [each for each in found if each.header.get(JOINED)]:
        of = {each.strip() for each in block.header[JOINED].split(",")}
        at = max((n for n, each in enumerate(found) if each.instant in of), default=None)
        if at is not None:
            found.remove(block)
            found.insert(at + (at < len(found)), block)
            found = [each for each in found if each.instant not in of]
    return found


def entries(of: LogSlice, logs: Mapping[str, bytes]) -> dict[str, LogEntry]:
    """The entry of each key, merged over all log files."""
    found, by_event = dict[str, LogEntry](), bool(of.ordering)
    for block in visible_blocks(logs, of.completed):
        try:
            for key, entry in _entries(block, of.ordering):
                if by_event and block.kind == DELETE and found.get(key) == LogEntry(None, ()):
                    continue  # which wins against whatever the base file has
                found[key] = merge(found.get(key), entry, by_event=by_event)
        except (
            LookupError, TypeError, ValueError, OSError, NotImplementedError, EOFError, struct.error
        ) as error:  # fmt: skip
            why = f"has a {KINDS[block.kind]} block of {block.instant} that cannot be read"
            why += f" ({type(error).__name__} {str(error)[:160]})"
            raise DamagedFile(of.logs[0], why) from None
    return found


def _entries(block: Block, ordering: tuple[str, ...]) -> Iterator[tuple[str, LogEntry]]:
    if block.kind == DELETE:
        for each in deleted_keys(block):
            value = each.ordering if isinstance(each.ordering, tuple) else (each.ordering,)
            yield each.key, LogEntry(None, () if value == (None,) else value)
        return
    rows: Iterable[dict[str, Any]]
    if block.kind == AVRO:
        arrow_schema(block.header[SCHEMA])  # refuses one that holds itself, or that is unknown here
        rows = avro_rows(block)
    elif block.kind == PARQUET:
        import pyarrow.parquet as pq

        rows = pq.read_table(io.BytesIO(block.content)).to_pylist()
    else:
        raise ValueError("blocks of this type are not read")
    partial = block.header.get(PARTIAL, "").lower() == "true"
    for row in rows:
        gone = row.get(DELETED_FLAG) is True or row.get(OPERATION) in DELETING
        order = tuple(row.get(name) for name in ordering)
        yield row[RECORD_KEY], LogEntry(None if gone else row, order, partial)


# --- merging --------------------------------------------------------------------------------------


def merge(old: LogEntry | None, new: LogEntry, *, by_event: bool) -> LogEntry:
    """The result of two entries of one key; `old` was written earlier."""
    if old is None:
        return new
    if by_event and _order(new) < _order(old) and (new.row is not None or new.ordering):
        return old
    if new.partial and new.row is not None and old.row is not None:
        return LogEntry({**old.row, **new.row}, new.ordering, old.partial)
    return new


def _order(entry: LogEntry) -> tuple[Any, ...]:
    """A sort key: null is the least, and a delete by commit order comes before all."""
    return tuple((value is not None, value) for value in entry.ordering)


def scan_log_slice(
    wanted: Any, of: LogSlice, source: MergeSource, scan: Callable[..., Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """The rows of `wanted`, a `Scan`: first of the base file, by `scan`, then of the logs."""
    import pyarrow as pa
    import pyarrow.compute as pc

    changed = entries(of, source.logs)
    keys = pa.array(list(changed), pa.string())
    rows: list[Mapping[str, Any]] = []
    if source.base is not None:
        for batch in _base(wanted, of, source.base, scan):
            in_logs = pc.is_in(batch[RECORD_KEY], value_set=keys)
            yield from _result(wanted, batch.filter(pc.invert(in_logs)))
            met = batch.filter(in_logs)
            stays = _beside(met, of.ordering, changed, rows)
            yield from _result(wanted, met.filter(pa.array(stays, pa.bool_())))
    rows += [each.row for each in changed.values() if each.row is not None]
    try:
        table = pa.Table.from_pylist(rows, wanted.schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        why = f"has rows that do not fit the table's schema: {str(error)[:200]}"
        raise DamagedFile(of.logs[0], why) from None
    yield from _result(wanted, table)


def _beside(
    met: pa.Table, ordering: tuple[str, ...], changed: dict[str, LogEntry],
    rows: list[Mapping[str, Any]],
) -> list[bool]:  # fmt: skip
    """Which rows of the base file stay. The entries of the others go from `changed` to `rows`.

    Whole rows are made Python's only where some columns of them are replaced.
    """
    stays = list[bool]()
    orders = zip(*(met[name].to_pylist() for name in ordering), strict=True)
    for place, key in enumerate(met[RECORD_KEY].to_pylist()):
        order = next(orders) if ordering else ()
        new, base = changed.pop(key, None), LogEntry(_STORED, order)
        if new is not None and new.partial:
            base = LogEntry(met.slice(place, 1).to_pylist()[0], order)
        kept = base if new is None else merge(base, new, by_event=bool(ordering))
        stays.append(kept is base)
        if kept is not base and kept.row is not None:
            rows.append(kept.row)
    return stays


def _base(
    wanted: Any, of: LogSlice, file: BinaryIO, scan: Callable[..., Iterator[pa.RecordBatch]]
) -> Iterator[pa.Table]:
    """Whole rows of the base file, because any of them may be merged."""
    import pyarrow as pa

    plain = Slice(of.partition, of.file_id, of.instant, of.path)
    whole = replace(wanted, slices=(plain,), columns=tuple(wanted.schema.names), where=None)
    for batch in scan(whole, plain, file):
        yield pa.Table.from_batches([batch])


def _result(wanted: Any, rows: pa.Table) -> Iterator[pa.RecordBatch]:
    kept = rows if wanted.where is None else rows.filter(wanted.where)
    for batch in kept.select(list(wanted.columns)).to_batches():
        if batch.num_rows:
            yield batch
