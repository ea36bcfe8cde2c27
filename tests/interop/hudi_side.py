"""Apache Hudi on Spark, as a process: one JSON order a line on stdin, one JSON answer a line.

Runs in the environment that `environment.py` makes, and imports nothing of lockkit.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession

SPARK = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.memory": os.environ.get("INTEROP_HEAP", "2g"),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
    "spark.hadoop.fs.s3a.access.key": "any",
    "spark.hadoop.fs.s3a.secret.key": "thing",
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
}


def session(order: dict[str, Any]) -> SparkSession:
    """The only session; `endpoint` is the object server's."""
    builder = SparkSession.builder.appName("hudi")
    said = {
        **SPARK,
        "spark.hadoop.fs.s3a.endpoint": order["endpoint"],
        # Not spark.jars: the lock's client and the interface that it implements need one loader.
        "spark.driver.extraClassPath": order["classpath"],
        "spark.driver.extraJavaOptions": "-Duser.timezone=UTC "
        f"-Dinterop.endpoint={order['endpoint']}",
        **order.get("spark", {}),
    }
    for key, value in said.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(os.environ.get("INTEROP_LOG", "ERROR"))
    return spark


def version(spark: SparkSession, order: dict[str, Any]) -> Any:
    """Which Hudi this is: what its own classes and the jar that they were loaded from say."""
    java = spark._jvm.java.lang.Class.forName("org.apache.hudi.DataSourceWriteOptions")
    jar = java.getProtectionDomain().getCodeSource().getLocation().getPath()
    return {"jar": os.path.basename(jar), "spark": spark.version}


def frame(spark: SparkSession, order: dict[str, Any]) -> DataFrame:
    """The rows of an order, as JSON lines with a schema: no Python worker takes part."""
    if "parquet" in order:
        rows = spark.read.parquet(order["parquet"])
        return rows.repartition(order["parts"], "id") if "parts" in order else rows
    lines = spark.createDataFrame([(json.dumps(row),) for row in order["rows"]], "line string")
    return lines.selectExpr(f"from_json(line, '{order['schema']}') r").select("r.*")


def read(spark: SparkSession, order: dict[str, Any]) -> Any:
    """Rows of a query on the table, as dicts."""
    found = spark.read.format("hudi").options(**order.get("options", {})).load(order["path"])
    if "where" in order:
        found = found.where(order["where"])
    if "select" in order:
        found = found.selectExpr(*order["select"])
    return [json.loads(line) for line in found.toJSON().collect()]


def write(spark: SparkSession, order: dict[str, Any]) -> Any:
    """One write; answers how long it took."""
    rows = frame(spark, order)
    began = time.monotonic()
    rows.write.format("hudi").options(**order["options"]).mode(order.get("mode", "append")).save(
        order["path"]
    )
    return {"seconds": time.monotonic() - began}


def writes(spark: SparkSession, order: dict[str, Any]) -> Any:
    """One write after the other, whatever becomes of each: "" or its error."""
    outcomes = []
    for rows in order["batches"]:
        try:
            write(spark, {**order, "rows": rows})
            outcomes.append("")
        except Exception as error:  # noqa: BLE001 - what Hudi says is the answer
            outcomes.append(described(error))
    return outcomes


def client(spark: SparkSession, order: dict[str, Any]) -> Any:
    """One upsert by Hudi's write client, made as Hudi Streamer and Flink make theirs: its config is
    what the caller says, and Hudi's defaults. The datasource adds the table's properties first.
    """
    hudi, context = spark._jvm.org.apache.hudi, spark.sparkContext._jsc
    model, schema = hudi.common.model, hudi.common.schema.HoodieSchema.parse(order["avro"])
    config = (
        hudi.config.HoodieWriteConfig.newBuilder().withPath(order["path"])
        .withSchema(order["avro"]).forTable("orders").withProps(order["options"]).build()
    )  # fmt: skip
    records = []
    for row in order["rows"]:
        avro = hudi.avro.MercifulJsonConverter().convert(json.dumps(row), schema)
        payload = model.OverwriteWithLatestAvroPayload(avro, row["at"])
        records.append(model.HoodieAvroRecord(model.HoodieKey(row["id"], row["region"]), payload))
    writer = hudi.client.SparkRDDWriteClient(
        hudi.client.common.HoodieSparkEngineContext(context), config
    )
    try:
        instant = writer.startCommit()
        assert writer.commit(instant, writer.upsert(context.parallelize(records, 1), instant))
    finally:
        writer.close()


def make(spark: SparkSession, order: dict[str, Any]) -> Any:
    """A plain parquet file of rows that an expression makes."""
    spark.range(0, order["rows"], 1, order["files"]).selectExpr(*order["select"]).write.mode(
        "overwrite"
    ).parquet(order["path"])
    return None


def sql(spark: SparkSession, order: dict[str, Any]) -> Any:
    return [row.asDict(recursive=True) for row in spark.sql(order["text"]).collect()]


ORDERS = {
    "version": version, "read": read, "write": write, "writes": writes, "make": make, "sql": sql,
    "client": client,
}  # fmt: skip


def described(error: Exception) -> str:
    """An error and its causes, without the stack."""
    lines = str(error).splitlines() or [type(error).__name__]
    because = [line for line in lines if line.startswith((": ", "Caused by"))]
    return "\n".join(line[:1000] for line in [lines[0], *because])


def main() -> None:
    """Serve orders until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Spark's own words on stdout are no answers
    spark = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if spark is None:
                spark = session(order)
            answer = {"ok": ORDERS[order["do"]](spark, order)}
        except Exception as error:  # noqa: BLE001 - told to who asked
            answer = {"error": described(error)}
        answers.write(json.dumps(answer) + "\n")
    if spark is not None:
        spark.stop()


if __name__ == "__main__":
    main()
