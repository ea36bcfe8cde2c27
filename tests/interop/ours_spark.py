"""lockkit's upsert, timed, in a Spark of this checkout: `python ours_spark.py '{"url": ...}'`."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from lockkit.spark.write import write
from lockkit.stores import open_store
from lockkit.table import read_table


def upsert(order: dict[str, Any]) -> dict[str, Any]:
    """Insert, then upsert by rounds; the best round's seconds, and the sums of what is read."""
    spark = (
        SparkSession.builder.master("local[2]").appName("ours")
        .config("spark.ui.enabled", "false").config("spark.driver.memory", order["heap"])
        .config("spark.sql.shuffle.partitions", str(order["groups"])).getOrCreate()
    )  # fmt: skip
    said = {"record_key": "id", "precombine": "at", "buckets": order["groups"]}
    first = spark.read.parquet(f"{order['source']}/first")
    write(first, order["url"], operation="upsert", **said)
    seconds = []
    for number in range(order["rounds"]):
        more = spark.read.parquet(f"{order['source']}/more{number}")
        began = time.monotonic()
        write(more, order["url"], operation="upsert", **said)
        seconds.append(time.monotonic() - began)
    spark.stop()
    return {"seconds": min(seconds), "sums": sums(order)}


def sums(order: dict[str, Any]) -> dict[str, int]:
    store = open_store(order["url"])
    rows: pa.Table = read_table(store).select(["id", "at"])
    store.close()
    changed = rows.filter(pc.equal(rows["at"], order["rounds"]))
    return {
        "n": rows.num_rows,
        "keys": len(rows["id"].unique()),
        "changed": changed.num_rows,
    }


if __name__ == "__main__":
    print(json.dumps(upsert(json.loads(sys.argv[1]))))
