"""A table in Apache Hudi's copy-on-write layout (version 6 or 9), and the fenced commit to it.

In reading order:
- what is written down: `timeline` (instants), `properties` and `refused` (what kind of table),
  `partition`, `layout` (commits), `plans` (of table services), `avro` and `records` under them;
- files: `schema`, `basefile`, `merge`, `datafiles`, `groups` and `buckets`;
- the commit: `rivals` and `conflict` (pure), `fence`, `decide`, `transaction`, `commit`, `pending`,
  `publish` (with the lock), `rollback`; `repair` of a broken fence, `mode` to switch it;
- the living and the dead: `heartbeat`, `pulse`, `markers`;
- reading: `covered`, `snapshot`, `checkpoint`, `predicate`, `barrier` and `incremental`,
  `reader`;
- services: `retention` (pure) and `clean`; `cluster` (the plan), `rewrite` and `clustering`;
  `failed` writes; `turns`, `serving` (when), `look` and `desk` (with what), `service`, `upkeep`;
- `condition`, for whoever looks at a table, and `handle`, which holds all of that for one writer.

    run(create_table(TableConfig(name="orders", record_key="id", partition_by="region")), store)
    with Table("s3://lake/orders") as table:
        table.append(rows)
"""

from __future__ import annotations

from lockkit.table.ask import TableError, Unanswered
from lockkit.table.basefile import (
    BaseFile,
    Slice,
    Target,
    avro_schema,
    read_base_file,
    write_inserts,
)
from lockkit.table.commit import Committed, CommitUnknown, commit
from lockkit.table.conflict import CommitConflict
from lockkit.table.fence import FENCE_KEY
from lockkit.table.handle import Table
from lockkit.table.incremental import load_increment
from lockkit.table.layout import TaskId, WriteStat
from lockkit.table.merge import rewrite_group
from lockkit.table.partition import partition_path
from lockkit.table.properties import PROPERTIES_KEY, TableConfig, create_table
from lockkit.table.publish import publish
from lockkit.table.reader import read_increment, read_slice, read_table, scan
from lockkit.table.rollback import roll_back
from lockkit.table.snapshot import Snapshot, load_snapshot
from lockkit.table.transaction import Prepared, Transaction, begin, prepare

__all__ = [
    "FENCE_KEY", "PROPERTIES_KEY", "BaseFile", "CommitConflict", "CommitUnknown", "Committed",
    "Prepared", "Slice", "Snapshot", "Table", "TableConfig", "TableError", "Target", "TaskId",
    "Transaction", "Unanswered", "WriteStat", "avro_schema", "begin", "commit", "create_table",
    "load_increment", "load_snapshot", "partition_path", "prepare", "publish", "read_base_file",
    "read_increment", "read_slice", "read_table", "rewrite_group", "roll_back", "scan",
    "write_inserts",
]  # fmt: skip
