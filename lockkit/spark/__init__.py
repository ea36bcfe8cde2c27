"""Writes a PySpark DataFrame to a table, and runs the processes that do so.

    from lockkit.spark import write

    write(df, "s3://lake/orders", record_key="id", precombine="at", partition_path="region")

In reading order:

- `write` begins a transaction, lets the executors write files (`rows`, `frame`) and commits;
  `place` is a table's address.
- `query` and `read`: a table as a DataFrame; `fresh` refuses to write back rows that are out of
  date.
- `stream` commits each batch once; `streamer` ingests a folder or a Kafka topic.
- `source` is `format("lockkit")`, whose writes go through a `spool`; `errors` finds lockkit's
  error in Spark's.
- `java` finds a Java runtime, `archive` makes it start faster, `connect` is the Spark server that
  writers share, and `orders` are the rows that the laboratory's writers commit.

`import lockkit` imports none of it.
"""

from __future__ import annotations

from lockkit.spark.errors import unwrapped
from lockkit.spark.read import read, register
from lockkit.spark.stream import foreach_batch
from lockkit.spark.write import write

__all__ = ["foreach_batch", "read", "register", "unwrapped", "write"]
