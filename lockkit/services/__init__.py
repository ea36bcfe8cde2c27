"""Real lock services on this machine, for tests and for trying out: one file each.

ZooKeeper and the Hive Metastore run from the jars inside pip's pyspark. Each is one child process
that dies with its parent, listens on a port that was free, and keeps its data in a folder.
"""
