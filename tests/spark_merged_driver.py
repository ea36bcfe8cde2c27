"""One driver that upserts into a merge-on-read table; `test_spark_merged_killed` kills it.

    python tests/spark_merged_driver.py MASTER URL ENDPOINT [partial]    prints an error as it is
"""

from __future__ import annotations

import sys

from spark_round import session
from spark_world import KEYS, SAID, frame

from lockkit.spark import write
from lockkit.table.options import WRITE

BRIEF = {"hoodie.client.heartbeat.interval_in_ms": "2000",
         "hoodie.client.heartbeat.tolerable.misses": "2",
         "hoodie.write.lock.storage.validity.timeout.secs": "10",
         "hoodie.write.lock.storage.renew.interval.secs": "1"}  # fmt: skip
MERGED = {**SAID, WRITE + "table.type": "MERGE_ON_READ", "hoodie.index.type": "BUCKET", **BRIEF}
OLD = [("a", "EU", 1, 1), ("b", "US", 1, 1)]
NEW = [("a", "EU", 2, 2), ("b", "US", 2, 2), ("c", "EU", 2, 2)]


def main(master: str, url: str, endpoint: str, partial: str = "") -> None:
    """`partial`: the rows have no `v`, and keep what is stored in it."""
    spark = session(master)
    rows = frame(spark, *NEW)
    rows = rows.drop("v") if partial else rows
    committed = write(rows, url, endpoint=endpoint, options=MERGED, partial=bool(partial), **KEYS)
    assert committed is not None
    sys.stdout.write(committed.instant + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
