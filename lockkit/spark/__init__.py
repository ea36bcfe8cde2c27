"""PySpark writers: each a process that commits orders under the lock, in its own Python.

In reading order: `fleet` (what a kernel holds), `supervisor` (the process that owns the writers),
`writer` (one of them), `orders` (the rows it commits), `write` (rows into file groups, by Spark's
executors too), `connect` (the Spark server that writers share), `java` (found, or prepared from
pip) and `process` (nothing outlives its parent). None of it is imported by `import lockkit`.
"""
