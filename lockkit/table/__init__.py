"""A table in Apache Hudi's layout (version 6, copy-on-write), and the fenced commit to it.

In reading order: `timeline` (instants), `properties` (what kind of table), `layout` (what a commit
writes down), `basefile` (parquet), `conflict` (pure), `fence`, `transaction`, `reader`, `commit`.

    config = TableConfig(name="orders", record_key="id", partition_by="region")
    run(create_table(config), store, clock)
    transaction = run(begin(), store, clock)
    file = write_inserts(transaction.target, rows, file_id=f"{clock.unique()}-0")
    store.put(file.key, file.body, IfAbsent())
    schema = avro_schema(rows.schema, "orders")
    prepared = run(prepare(transaction, [file.stat], schema=schema), store, clock)
    with lock:
        run(commit(prepared, lock.fence, believe=lock.check), store, clock, emit)
        lock.published()
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
from lockkit.table.layout import TaskId, WriteStat
from lockkit.table.merge import rewrite_group
from lockkit.table.partition import partition_path
from lockkit.table.properties import PROPERTIES_KEY, TableConfig, create_table
from lockkit.table.reader import Snapshot, load_snapshot, read_slice, read_table
from lockkit.table.transaction import Prepared, Transaction, begin, prepare

__all__ = [
    "FENCE_KEY", "PROPERTIES_KEY", "BaseFile", "CommitConflict", "CommitUnknown", "Committed",
    "Prepared", "Slice", "Snapshot", "TableConfig", "TableError", "Target", "TaskId", "Transaction",
    "Unanswered", "WriteStat", "avro_schema", "begin", "commit", "create_table", "load_snapshot",
    "partition_path", "prepare", "read_base_file", "read_slice", "read_table", "rewrite_group",
    "write_inserts",
]  # fmt: skip
