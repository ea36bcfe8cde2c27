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
"""

from __future__ import annotations

from lockkit.errors import CommitConflict, CommitUnknown, TableError, Unanswered
from lockkit.table.format.base_file import (
    BaseFile,
    Slice,
    Target,
    avro_schema,
    read_base_file,
    write_inserts,
)
from lockkit.table.format.layout import TaskId, WriteStat
from lockkit.table.format.partition import partition_path
from lockkit.table.format.properties import PROPERTIES_KEY, TableConfig
from lockkit.table.handle import Table
from lockkit.table.occ.commit import Committed, commit
from lockkit.table.occ.creation import create_table
from lockkit.table.occ.fence import FENCE_KEY
from lockkit.table.occ.publish import publish
from lockkit.table.occ.rollback import roll_back
from lockkit.table.occ.transaction import Prepared, Transaction, begin, prepare
from lockkit.table.read.incremental import load_increment
from lockkit.table.read.reader import read_increment, read_slice, read_table, scan
from lockkit.table.read.snapshot import Snapshot, load_snapshot
from lockkit.table.write.merge import rewrite_group

__all__ = [
    "FENCE_KEY", "PROPERTIES_KEY", "BaseFile", "CommitConflict", "CommitUnknown", "Committed",
    "Prepared", "Slice", "Snapshot", "Table", "TableConfig", "TableError", "Target", "TaskId",
    "Transaction", "Unanswered", "WriteStat", "avro_schema", "begin", "commit", "create_table",
    "load_increment", "load_snapshot", "partition_path", "prepare", "publish", "read_base_file",
    "read_increment", "read_slice", "read_table", "rewrite_group", "roll_back", "scan",
    "write_inserts",
]  # fmt: skip
