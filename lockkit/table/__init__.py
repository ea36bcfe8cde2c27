"""A table in Apache Hudi's copy-on-write layout (version 6, 8 or 9), and the fenced commit to it.

In reading order; each package may import only those above it:

- `format`: what is written down. `timeline` (instants), `properties` and `refusals` (what kind of
  table), `layout` (commits), `plans` (of table services), `schema` and `base_file`; `gate`
  decides what becomes of each option of Hudi.
- `occ`: optimistic concurrency control. `transaction`, `prepared`, `conflict`, `fence`, `decide`,
  `news` and `commit`; `publish` (with the lock), `rollback`, `heartbeat`, `liveness` and `markers`.
- `read`: `snapshot`, `checkpoint`, `opening`, `incremental` and `reader`.
- `write`: `attempt` (what every writer does), `append`, `merge`, `groups` and `merging`.
- `services`: `rules` (Hudi's options for them), `upkeep` (when each runs), `service` (runs them),
  `clean`, `cluster`, `compact`, `repair` of a fence.
- `options` (of a write) and `writer` (an upsert, delete or overwrite, with Spark or without).
- `handle` has `Table`, which holds all of that for one writer; `inspect` says who holds a table's
  lock and whether it may be broken.

    with Table.create("s3://lake/orders", record_key="id", partition_by="region") as table:
        table.append(rows)
        table.upsert(rows, retries=3)

A name is imported when it is first used, so what needs only a lock's state loads no pyarrow.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from lockkit.errors import TableError as TableError
    from lockkit.errors import Unanswered as Unanswered
    from lockkit.table.errors import CommitConflict as CommitConflict
    from lockkit.table.errors import CommitUnknown as CommitUnknown
    from lockkit.table.errors import DamagedFile as DamagedFile
    from lockkit.table.errors import NoTable as NoTable
    from lockkit.table.errors import NotWritable as NotWritable
    from lockkit.table.errors import RefusedOption as RefusedOption
    from lockkit.table.errors import RefusedRows as RefusedRows
    from lockkit.table.errors import TableBlocked as TableBlocked
    from lockkit.table.errors import TableChanged as TableChanged
    from lockkit.table.errors import UnsupportedTable as UnsupportedTable
    from lockkit.table.format.base_file import BaseFile as BaseFile
    from lockkit.table.format.base_file import Slice as Slice
    from lockkit.table.format.base_file import Target as Target
    from lockkit.table.format.base_file import avro_schema as avro_schema
    from lockkit.table.format.base_file import write_inserts as write_inserts
    from lockkit.table.format.base_file_reading import read_base_file as read_base_file
    from lockkit.table.format.layout import TaskId as TaskId
    from lockkit.table.format.layout import WriteStat as WriteStat
    from lockkit.table.format.partition import partition_path as partition_path
    from lockkit.table.format.properties import PROPERTIES_KEY as PROPERTIES_KEY
    from lockkit.table.format.properties import TableConfig as TableConfig
    from lockkit.table.handle import Table as Table
    from lockkit.table.occ.commit import Committed as Committed
    from lockkit.table.occ.committing import commit as commit
    from lockkit.table.occ.creation import create_table as create_table
    from lockkit.table.occ.fence import FENCE_KEY as FENCE_KEY
    from lockkit.table.occ.prepared import Prepared as Prepared
    from lockkit.table.occ.prepared import prepare as prepare
    from lockkit.table.occ.publish import publish as publish
    from lockkit.table.occ.rollback import roll_back as roll_back
    from lockkit.table.occ.transaction import Transaction as Transaction
    from lockkit.table.occ.transaction import begin as begin
    from lockkit.table.read.incremental import load_increment as load_increment
    from lockkit.table.read.opening import load_snapshot as load_snapshot
    from lockkit.table.read.reader import read_increment as read_increment
    from lockkit.table.read.reader import read_slice as read_slice
    from lockkit.table.read.reader import read_table as read_table
    from lockkit.table.read.reader import scan as scan
    from lockkit.table.read.snapshot import Snapshot as Snapshot
    from lockkit.table.write.merge import rewrite_group as rewrite_group

_MODULE = {
    "errors": "TableError Unanswered",
    "table.errors": "CommitConflict CommitUnknown DamagedFile NoTable NotWritable RefusedOption "
                    "RefusedRows TableBlocked TableChanged UnsupportedTable",
    "table.format.base_file": "BaseFile Slice Target avro_schema write_inserts",
    "table.format.base_file_reading": "read_base_file",
    "table.format.layout": "TaskId WriteStat",
    "table.format.partition": "partition_path",
    "table.format.properties": "PROPERTIES_KEY TableConfig",
    "table.handle": "Table",
    "table.occ.commit": "Committed", "table.occ.committing": "commit",
    "table.occ.creation": "create_table",
    "table.occ.fence": "FENCE_KEY",
    "table.occ.publish": "publish",
    "table.occ.rollback": "roll_back",
    "table.occ.prepared": "Prepared prepare",
    "table.occ.transaction": "Transaction begin",
    "table.read.incremental": "load_increment",
    "table.read.opening": "load_snapshot",
    "table.read.reader": "read_increment read_slice read_table scan",
    "table.read.snapshot": "Snapshot",
    "table.write.merge": "rewrite_group",
}
_HOME = {name: module for module, names in _MODULE.items() for name in names.split()}
__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    """A public name, imported from its module at its first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"lockkit.{_HOME[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
