"""A table in Apache Hudi's copy-on-write layout (version 6 or 9), and the fenced commit to it.

In reading order; each package may import only those above it:

- `format`: what is written down. `timeline` (instants), `properties` and `refusals` (what kind of
  table), `layout` (commits), `plans` (of table services), `schema` and `base_file`; `gate` and
  `hudi_options` decide what becomes of each option of Hudi.
- `occ`: optimistic concurrency control. `transaction`, `conflict`, `fence`, `decide` and `commit`;
  `publish` (with the lock), `rollback`, `heartbeat`, `liveness` and `markers`.
- `read`: `snapshot`, `checkpoint`, `incremental` and `reader`.
- `write`: `attempt` (what every writer does), `append`, `merge` and `groups`.
- `services`: `clean`, `cluster`, `repair` of a fence, and when each of them runs (`schedule`).
- `handle` has `Table`, which holds all of that for one writer; `inspect` says who holds a table's
  lock and whether it may be broken.

    run(create_table(TableConfig(name="orders", record_key="id", partition_by="region")), store)
    with Table("s3://lake/orders") as table:
        table.append(rows)

A name is imported when it is first asked for: who asks only for a lock's state needs no pyarrow.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from lockkit.errors import CommitConflict as CommitConflict
    from lockkit.errors import CommitUnknown as CommitUnknown
    from lockkit.errors import TableError as TableError
    from lockkit.errors import Unanswered as Unanswered
    from lockkit.table.format.base_file import BaseFile as BaseFile
    from lockkit.table.format.base_file import Slice as Slice
    from lockkit.table.format.base_file import Target as Target
    from lockkit.table.format.base_file import avro_schema as avro_schema
    from lockkit.table.format.base_file import read_base_file as read_base_file
    from lockkit.table.format.base_file import write_inserts as write_inserts
    from lockkit.table.format.layout import TaskId as TaskId
    from lockkit.table.format.layout import WriteStat as WriteStat
    from lockkit.table.format.partition import partition_path as partition_path
    from lockkit.table.format.properties import PROPERTIES_KEY as PROPERTIES_KEY
    from lockkit.table.format.properties import TableConfig as TableConfig
    from lockkit.table.handle import Table as Table
    from lockkit.table.occ.commit import Committed as Committed
    from lockkit.table.occ.commit import commit as commit
    from lockkit.table.occ.creation import create_table as create_table
    from lockkit.table.occ.fence import FENCE_KEY as FENCE_KEY
    from lockkit.table.occ.publish import publish as publish
    from lockkit.table.occ.rollback import roll_back as roll_back
    from lockkit.table.occ.transaction import Prepared as Prepared
    from lockkit.table.occ.transaction import Transaction as Transaction
    from lockkit.table.occ.transaction import begin as begin
    from lockkit.table.occ.transaction import prepare as prepare
    from lockkit.table.read.incremental import load_increment as load_increment
    from lockkit.table.read.reader import read_increment as read_increment
    from lockkit.table.read.reader import read_slice as read_slice
    from lockkit.table.read.reader import read_table as read_table
    from lockkit.table.read.reader import scan as scan
    from lockkit.table.read.snapshot import Snapshot as Snapshot
    from lockkit.table.read.snapshot import load_snapshot as load_snapshot
    from lockkit.table.write.merge import rewrite_group as rewrite_group

_HOME = {
    "CommitConflict": "lockkit.errors",
    "CommitUnknown": "lockkit.errors",
    "TableError": "lockkit.errors",
    "Unanswered": "lockkit.errors",
    "BaseFile": "lockkit.table.format.base_file",
    "Slice": "lockkit.table.format.base_file",
    "Target": "lockkit.table.format.base_file",
    "avro_schema": "lockkit.table.format.base_file",
    "read_base_file": "lockkit.table.format.base_file",
    "write_inserts": "lockkit.table.format.base_file",
    "TaskId": "lockkit.table.format.layout",
    "WriteStat": "lockkit.table.format.layout",
    "partition_path": "lockkit.table.format.partition",
    "PROPERTIES_KEY": "lockkit.table.format.properties",
    "TableConfig": "lockkit.table.format.properties",
    "Table": "lockkit.table.handle",
    "Committed": "lockkit.table.occ.commit",
    "commit": "lockkit.table.occ.commit",
    "create_table": "lockkit.table.occ.creation",
    "FENCE_KEY": "lockkit.table.occ.fence",
    "publish": "lockkit.table.occ.publish",
    "roll_back": "lockkit.table.occ.rollback",
    "Prepared": "lockkit.table.occ.transaction",
    "Transaction": "lockkit.table.occ.transaction",
    "begin": "lockkit.table.occ.transaction",
    "prepare": "lockkit.table.occ.transaction",
    "load_increment": "lockkit.table.read.incremental",
    "read_increment": "lockkit.table.read.reader",
    "read_slice": "lockkit.table.read.reader",
    "read_table": "lockkit.table.read.reader",
    "scan": "lockkit.table.read.reader",
    "Snapshot": "lockkit.table.read.snapshot",
    "load_snapshot": "lockkit.table.read.snapshot",
    "rewrite_group": "lockkit.table.write.merge",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """A public name, imported from its module when first asked for (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'lockkit.table' has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(_HOME[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
