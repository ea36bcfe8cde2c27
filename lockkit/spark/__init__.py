"""PySpark: a DataFrame into a table, and processes that do so as writers.

    from lockkit.spark import write

    write(df, "s3://lake/orders", record_key="id", precombine="at", partition_path="region")

In reading order: `write` (begin, files, commit), `options` (Hudi's names), `frame` (what executors
do), `batches` (how they get the rows), `place` (a table's address); `read`; `stream` and
`microbatch` (each batch once), `streamer` and `arrivals` (a folder into a table); `source` and
`sink` (`format("lockkit")`) on `spool` and `land`, `errors` (what Spark makes of one of ours); then
`fleet` (what a kernel holds), `supervisor` (the process that owns the writers), `writer` (one of
them), `orders` (the rows it commits), `connect` (the Spark server that writers share), `java`
(found, or prepared from pip), `archive` (starts it faster) and `process` (nothing outlives its
parent). None of it is imported by `import lockkit`.
"""

from __future__ import annotations

from lockkit.spark.errors import unwrapped
from lockkit.spark.read import read, register
from lockkit.spark.stream import foreach_batch
from lockkit.spark.write import write

__all__ = ["foreach_batch", "read", "register", "unwrapped", "write"]
