"""Stored rows, compared with the key and the partition that a table's properties give them.

Rows of another key or another partition would be written once more, beside those that are stored.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockkit.runtime import run
from lockkit.table.errors import TableError
from lockkit.table.format.base_file import record_keys
from lockkit.table.format.property_keys import PARTITION_FIELDS, RECORD_KEYS
from lockkit.table.format.row_partitions import partition_numbers
from lockkit.table.format.schema import PARTITION_PATH, RECORD_KEY
from lockkit.table.read.reader import plan_scan, scan_planned, snapshot_to_read

if TYPE_CHECKING:
    import pyarrow as pa

    from lockkit.clock import Clock
    from lockkit.stores import Store
    from lockkit.table.format.properties import TableConfig
GROUPS_MAX, ROWS_MAX = 3, 1_000
"""So many file groups are looked at until one has rows, and so many of its rows."""
CURE = "correct it, with the table's key generator and style of folders, or write with Hudi"


def misplaced(store: Store, clock: Clock, config: TableConfig) -> Iterator[str]:
    """Why no stored row that was looked at is where its values say."""
    if RECORD_KEY in config.record_keys:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about local time: the caller has its own message
            rows = _some(store, clock, config)
        if rows is None:
            return
        if config.record_keys:
            yield from _others(RECORD_KEYS, config.record_key, rows, RECORD_KEY,
                               record_keys(config, rows).to_pylist())  # fmt: skip
        if not config.elsewhere:
            numbers, paths = partition_numbers(config, rows)
            yield from _others(PARTITION_FIELDS, config.partition_by or "", rows, PARTITION_PATH,
                               [paths[number] for number in numbers.to_pylist()])  # fmt: skip
    except TableError as error:
        yield str(error)


def _some(store: Store, clock: Clock, config: TableConfig) -> pa.Table | None:
    import pyarrow as pa

    snapshot = run(snapshot_to_read(), store, clock)
    names = [RECORD_KEY, PARTITION_PATH, *config.record_keys, *config.partition_fields]
    for of in snapshot.slices[:GROUPS_MAX]:
        wanted = plan_scan(snapshot, columns=list(dict.fromkeys(names)), slices=[of])
        for batch in scan_planned(store, clock, wanted):
            if batch.num_rows:
                return pa.Table.from_batches([batch.slice(0, ROWS_MAX)])
    return None


def _others(key: str, said: str, rows: pa.Table, column: str, made: list[str]) -> Iterator[str]:
    """If no row has what its values make: a global index may keep single rows elsewhere."""
    stored = rows[column].to_pylist()
    if not any(mine == its for mine, its in zip(made, stored, strict=True)):
        what = "key" if column == RECORD_KEY else "partition"
        yield (f"{key}={said}: a stored row has the {what} {str(stored[0])[:60]!r}, and would have "
               f"{made[0][:60]!r}: rows would be written once more; {CURE}")  # fmt: skip
