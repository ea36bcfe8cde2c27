"""What the Spark benchmarks share: a session, the rows, and walls measured turn by turn."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockkit.spark.java import spark_env

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 8
CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "3g",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def session() -> Iterator[SparkSession]:
    """`local[2]`, in this process: what a user's own driver would be."""
    os.environ.update(spark_env())
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("bench")
    for key, value in CONF.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def frame(spark: SparkSession, rows: int, *, first: int = 0, step: int = 1) -> DataFrame:
    """Rows of five columns, made as they are read: every `step`-th key from `first` on."""
    from pyspark.sql import functions as F

    made = spark.range(first, first + rows * step, step, PARTITIONS)
    return made.select(
        F.concat(F.lit("k"), F.lpad(F.col("id").cast("string"), 12, "0")).alias("id"),
        F.timestamp_micros(F.col("id") * 1000 + 1_700_000_000_000_000).alias("at"),
        F.element_at(
            F.array(*map(F.lit, ("EU", "US", "ASIA", "AFRICA"))), (F.col("id") % 4 + 1).cast("int")
        ).alias("region"),
        (F.xxhash64("id") % 100_000 / 100).alias("amount"),
        (F.col("id") % 1000).cast("int").alias("n"),
    )


def walls_s(
    ways: Mapping[str, Callable[[Path], None]], home: Path, rounds: int
) -> dict[str, float]:
    """The median wall time of each way, in turns; each call gets a new folder, removed after it."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            place = home / f"{number}-{''.join(c for c in name if c.isalnum())}"
            began = time.perf_counter()
            way(place)
            taken[name].append(time.perf_counter() - began)
            shutil.rmtree(place, ignore_errors=True)
    return {name: statistics.median(times) for name, times in taken.items()}


def ratios(walls: Mapping[str, float], floor: str, rows: int) -> dict[str, Any]:
    return {
        name: {
            "wall_s": round(wall_s, 2),
            "ratio": round(wall_s / walls[floor], 2),
            "rows_per_s": round(rows / wall_s),
        }
        for name, wall_s in walls.items()
    }
