"""PySpark writers: each a process that commits orders under the lock, in its own Python.

`fleet` supervises them, `writer` is one of them, `write` turns a DataFrame into file groups,
`connect` runs the Spark server that they share, `java` finds the Java for it, and `process` keeps
any of them from outliving its parent. Nothing here is imported by `import lockkit`.
"""
