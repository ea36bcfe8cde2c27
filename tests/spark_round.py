"""One user's program, the same for every kind of Spark; run as a process by `test_spark_cluster`.

    python tests/spark_round.py MASTER URL ENDPOINT FOLDER    prints what it saw, as JSON
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from spark_world import COLUMNS, KEYS, SAID, frame

from lockkit.errors import TableError
from lockkit.spark import foreach_batch, read, register, unwrapped, write


def session(master: str) -> Any:
    from pyspark.sql import SparkSession

    from lockkit.spark.connect import connect_session
    from lockkit.spark.java import LEAN_JVM

    if master.startswith("sc://"):
        return connect_session(master)
    conf = {
        "spark.driver.extraJavaOptions": LEAN_JVM, "spark.executor.extraJavaOptions": LEAN_JVM,
        "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2",
        "spark.ui.enabled": "false", "spark.driver.memory": "512m", "spark.log.level": "ERROR",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0", "spark.sql.shuffle.partitions": "2",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    }  # fmt: skip
    builder = SparkSession.builder.master(master)
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def daemons(spark: Any) -> int:
    """How many processes carried out the tasks: a Python daemon for each executor."""

    def look(batches: Any) -> Any:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"pid": [os.getppid()]})

    spread = spark.range(0, 40, 1, 40).mapInArrow(look, "pid long")
    return len({row.pid for row in spread.collect()})


def streamed(spark: Any, way: str, place: dict[str, Any], folder: Path, name: str) -> None:
    rows = spark.readStream.schema(COLUMNS).json(f"{folder}/arriving")
    writer = rows.writeStream.option("checkpointLocation", f"{folder}/{name}")
    writer = writer.trigger(availableNow=True)
    if way == "sink":
        said = {"endpoint": place["endpoint"]}
        query = writer.format("lockkit").options(**said).start(place["url"])
    else:
        query = writer.foreachBatch(foreach_batch(query=name, **place)).start()
    query.awaitTermination(120)


def main(master: str, url: str, endpoint: str, at: str) -> dict[str, Any]:
    folder, place = Path(at), {"url": url, "endpoint": endpoint}
    spark = session(master)
    register(spark)
    seen: dict[str, Any] = {"daemons": daemons(spark)}
    write(frame(spark, ("a", "EU", 1, 1), ("b", "US", 1, 1)), buckets=2, **KEYS, **place)
    write(frame(spark, ("c", "US", 1, 1)), operation="insert", **place)
    committed = write(frame(spark, ("a", "EU", 2, 2), ("c", "US", 2, 2)).repartition(2), **place)
    seen["commit"] = committed and committed.instant
    options = SAID | {"endpoint": endpoint}
    rows = frame(spark, ("d", "EU", 1, 1), ("b", "US", 3, 3))
    rows.write.format("lockkit").mode("append").options(**options).save(url)
    for way in ("write", "save"):
        bad = frame(spark, (None, "EU", 1, 1))
        try:
            with unwrapped():
                if way == "write":
                    write(bad, **place)
                else:
                    bad.write.format("lockkit").mode("append").options(**options).save(url)
        except TableError as error:
            seen[way] = str(error)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW t USING lockkit OPTIONS (path '{url}', "
              f"endpoint '{endpoint}')")  # fmt: skip
    spark.sql("INSERT INTO t VALUES ('e', 'US', 1, 5)")
    (folder / "arriving").mkdir()
    (folder / "arriving" / "f.json").write_text('{"id": "f", "region": "EU", "at": 1, "v": 6}')
    for way in ("sink", "foreach_batch"):
        streamed(spark, way, place, folder, f"query-{way}")
    seen["read"] = sorted(tuple(row) for row in read(spark, **place).collect())
    some = read(spark, columns=["id"], filters=[("region", "=", "EU")], **place).collect()
    seen["some"] = sorted(row.id for row in some)
    seen["sql"] = spark.sql("SELECT sum(v) s FROM t").collect()[0].s
    spark.stop()
    return seen


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])) + "\n")
