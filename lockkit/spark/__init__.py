"""PySpark: a DataFrame into a table, and processes that do so as writers.

    from lockkit.spark import write

    write(df, "s3://lake/orders", record_key="id", precombine="at", partition_path="region")

In reading order:

- `write` begins, has the executors write files (`rows`, `frame`) and commits; `options` reads
  Hudi's option names, `place` is a table's address.
- `query` and `read`: a table as a DataFrame; `fresh` refuses to write back rows that are out of
  date.
- `stream` and `microbatch` commit each batch once; `streamer` ingests a folder or a Kafka topic.
- `source` and `sink` are `format("lockkit")`, on `spool` and `land`; `errors` turns what Spark
  makes of an error of ours back into it.
- `java` finds a runtime or prepares one from pip, `archive` makes it start faster, `connect` is the
  Spark server that writers share, `process` ends child processes with their parent, and `orders`
  are the rows that the laboratory's writers commit.

`import lockkit` imports none of it.
"""

from __future__ import annotations

from lockkit.spark.errors import unwrapped
from lockkit.spark.read import read, register
from lockkit.spark.stream import foreach_batch
from lockkit.spark.write import write

__all__ = ["foreach_batch", "read", "register", "unwrapped", "write"]
