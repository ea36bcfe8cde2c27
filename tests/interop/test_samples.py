"""The samples of Hudi's page on concurrency control, run as they are there, and what came of each.

`LOCKKIT_REWRITE=1 make interop INTEROP_ARGS="-k as_the_page_shows"` writes the docs' page anew.
The command line of Hudi's streamer is run by test_kafka.py, which writes the page's last sections.
"""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from hudi_world import Hudi
from kazoo.client import KazooClient
from ours import SPARK_SCHEMA, arrow, order

from lockkit.runtime import run
from lockkit.spark import write
from lockkit.table import Table
from lockkit.table.services.adopt import adopt

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "hudi_samples.md"
HEAD = """\
# Samples of Hudi's page on concurrency control

This page shows what becomes of each sample of [Hudi's
page](https://hudi.apache.org/docs/concurrency_control/) if lockkit runs it. Each was run as it is
there, but for names of machines and folders. Where that page only lists settings, the values are
ours, and the three settings that switch multi writing on stand above them. In the first sample
the provider was the lock file; the metastore's address was added to its sample. Options that a
sample does not name (the table's name, its keys, the metadata table switched off) were the same
in all runs. Where Hudi 1.2.0 has the lock provider in its bundle, it wrote to the same table by
the same options, before and after lockkit.

The page of [the streamer](./streamer.md) says what each part of its command line does.

<!-- Made by tests/interop/test_samples.py and test_kafka.py from what they ran; they compare. -->
"""
LOCK, CLIENT = "hoodie.write.lock.", "org.apache.hudi.client.transaction.lock."
HIVE, AWS = "org.apache.hudi.hive.transaction.lock.", "org.apache.hudi.aws.transaction.lock."
TABLE = {
    "hoodie.table.name": "orders", "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "at",
    "hoodie.datasource.write.partitionpath.field": "region", "hoodie.metadata.enable": "false",
    "hoodie.table.timeline.timezone": "UTC", "hoodie.embed.timeline.server": "false",
}  # fmt: skip
OCC = """\
hoodie.write.concurrency.mode=optimistic_concurrency_control
hoodie.write.lock.provider=<lock-provider-classname>
hoodie.cleaner.policy.failed.writes=LAZY
"""
ON = OCC.replace("<lock-provider-classname>", "{}")
SAMPLES = {
    "Multi writing switched on": OCC,
    "ZooKeeper": ON.format(f"{CLIENT}ZookeeperBasedLockProvider") + """\
hoodie.write.lock.zookeeper.base_path=/test
hoodie.write.lock.zookeeper.port=2181
hoodie.write.lock.zookeeper.url=zookeeper
""",
    "Hive Metastore": ON.format(f"{HIVE}HiveMetastoreBasedLockProvider") + """\
hoodie.write.lock.hivemetastore.database=default
hoodie.write.lock.hivemetastore.table=orders
""",
    "Amazon DynamoDB": ON.format(f"{AWS}DynamoDBBasedLockProvider") + """\
hoodie.write.lock.dynamodb.endpoint_url=dynamodb
hoodie.write.lock.dynamodb.table=locks
hoodie.write.lock.dynamodb.region=us-east-1
""",
    "A lock file": ON.format(f"{CLIENT}FileSystemBasedLockProvider") + """\
hoodie.write.lock.filesystem.expire=10
""",
    "Early conflict detection": ON.format(f"{CLIENT}FileSystemBasedLockProvider") + """\
hoodie.write.concurrency.early.conflict.detection.enable=true
""",
    "Retries": ON.format(f"{CLIENT}FileSystemBasedLockProvider") + """\
hoodie.write.lock.wait_time_ms=60000
hoodie.write.lock.num_retries=15
hoodie.write.lock.client.wait_time_ms=10000
hoodie.write.lock.client.num_retries=50
""",
    "Multi writing switched off": """\
hoodie.write.concurrency.mode=single_writer
hoodie.cleaner.policy.failed.writes=EAGER
""",
}  # fmt: skip
DATASOURCE = """\
inputDF.write.format("hudi")
.options(getQuickstartWriteConfigs)
.option(PRECOMBINE_FIELD_OPT_KEY, "ts")
.option("hoodie.cleaner.policy.failed.writes", "LAZY")
.option("hoodie.write.concurrency.mode", "optimistic_concurrency_control")
.option("hoodie.write.lock.zookeeper.url", "zookeeper")
.option("hoodie.write.lock.zookeeper.port", "2181")
.option("hoodie.write.lock.zookeeper.base_path", "/test")
.option(RECORDKEY_FIELD_OPT_KEY, "uuid")
.option(PARTITIONPATH_FIELD_OPT_KEY, "partitionpath")
.option(TABLE_NAME, tableName)
.mode(Overwrite)
.save(basePath)
"""
NAMES = {
    "PRECOMBINE_FIELD_OPT_KEY": "hoodie.datasource.write.precombine.field",
    "RECORDKEY_FIELD_OPT_KEY": "hoodie.datasource.write.recordkey.field",
    "PARTITIONPATH_FIELD_OPT_KEY": "hoodie.datasource.write.partitionpath.field",
    "TABLE_NAME": "hoodie.table.name", "tableName": "trips",
}  # fmt: skip
QUICKSTART = {f"hoodie.{each}.shuffle.parallelism": "2"
              for each in ("insert", "upsert", "bulkinsert", "delete")}  # fmt: skip


def options_in(text: str, services: dict[str, Any]) -> dict[str, str]:
    """A sample's properties, with the addresses of the services that run here."""
    found = dict(line.split("=", 1) for line in text.splitlines())
    if found.get(f"{LOCK}provider") == "<lock-provider-classname>":
        found[f"{LOCK}provider"] = f"{CLIENT}FileSystemBasedLockProvider"
    return found | addresses(found, services)


def addresses(found: dict[str, str], services: dict[str, Any]) -> dict[str, str]:
    if f"{LOCK}zookeeper.url" in found:
        return {f"{LOCK}zookeeper.url": services["zookeeper"].address}
    if f"{LOCK}hivemetastore.table" in found:
        return {f"{LOCK}hivemetastore.uris": f"thrift://{services['metastore'].address}"}
    if f"{LOCK}dynamodb.table" in found:
        return {f"{LOCK}dynamodb.endpoint_url": services["dynamodb"].endpoint}
    return {}


def shared(hudi: Hudi, spark: Any, folder: Path, options: dict[str, str]) -> list[str]:
    """Hudi, lockkit and Hudi write by these options, one row each; what each says."""
    path, said = str(folder / "orders"), list[str]()
    in_bundle = ".aws." not in options.get(f"{LOCK}provider", "")

    def by_hudi(key: str) -> None:
        if in_bundle:
            hudi.write(path, [order(key)], schema=SPARK_SCHEMA, options=TABLE | options)
            said.append(f"Hudi: wrote the row {key}")

    by_hudi("a")
    if not in_bundle:
        Table.create(f"file://{path}", name="orders", record_key="id", partition_by="region",
                     precombine="at", mode="hudi").close()  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mine = {**options, "hoodie.table.name": "orders"}
        by_spark = "hoodie.write.concurrency.early.conflict.detection.enable" in options
        with Table(f"file://{path}", options=None if by_spark else mine) as table:
            run(adopt(), table.store, table.clock)
            rows = arrow([order("b")])
            if by_spark:  # `Table` refuses it by name
                frame = spark.createDataFrame(rows.to_pylist(), SPARK_SCHEMA)
                assert write(frame, table.url, operation="upsert", options=mine)
            else:
                assert table.upsert(rows) is not None
        said.append(f"lockkit{', from Spark' if by_spark else ''}: wrote the row b")
    said += [f"lockkit, {each.category.__name__}: {each.message}" for each in caught
             if issubclass(each.category, UserWarning)]  # fmt: skip
    by_hudi("c")
    shown = sorted(row["id"] for row in hudi.read(path))
    said.append(f"read by Hudi: the rows {', '.join(shown)}")
    assert shown == (["a", "b", "c"] if in_bundle else ["b"])
    return said


def datasource(hudi: Hudi, spark: Any, folder: Path, services: dict[str, Any]) -> list[str]:
    """`format("lockkit")` in the sample's place of "hudi", twice: it overwrites the table."""
    pairs = re.findall(r'\.option\("?([\w.]+)"?, "?([\w./]+)"?\)', DATASOURCE)
    assert len(pairs) == DATASOURCE.count(".option(")
    options = {NAMES.get(key, key): NAMES.get(value, value) for key, value in pairs}
    options |= addresses(options, services)
    path, columns = f"file://{folder}/trips", "uuid string, ts long, partitionpath string"
    for rows in ([("x", 1, "asia")], [("y", 2, "asia"), ("z", 3, "europe")]):
        frame = spark.createDataFrame(rows, columns)
        frame.write.format("lockkit").options(**QUICKSTART, **options).mode("overwrite").save(path)
    shown = sorted(row["uuid"] for row in hudi.read(f"{folder}/trips"))
    assert shown == ["y", "z"]
    client = KazooClient(services["zookeeper"].address)
    client.start(timeout=30)
    assert client.get_children("/test/trips") == [], "no lock was taken there, or it is held"
    client.stop()
    client.close()
    return ["lockkit: wrote the row x", "lockkit: wrote the rows y, z in place of the table's rows",
            f"read by Hudi: the rows {', '.join(shown)}"]  # fmt: skip


def test_each_sample_of_hudis_page_does_as_the_page_shows(
    hudi: Hudi, spark: Any, zookeeper: Any, metastore: Any, dynamodb: Any, tmp_path: Path
) -> None:
    services = {"zookeeper": zookeeper, "metastore": metastore, "dynamodb": dynamodb}
    parts = [HEAD]
    for number, (name, text) in enumerate(SAMPLES.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        came = "\n".join(shared(hudi, spark, folder, options_in(text, services)))
        parts.append(f"## {name}\n\n```properties\n{text}```\n\n```text\n{came}\n```\n")
    came = "\n".join(datasource(hudi, spark, tmp_path, services))
    parts.append("## Multi writing by Spark's datasource\n\nIn Scala on Hudi's page, run from "
                 f"Python with `lockkit` for `hudi`:\n\n```scala\n{DATASOURCE}```\n\n"
                 f"```text\n{came}\n```\n")  # fmt: skip
    made = "\n".join(parts)
    for each in services.values():
        made = made.replace(getattr(each, "address", "-no-"), "(address)")
    shown, streamer, rest = PAGE.read_text(encoding="utf-8").partition("\n## Hudi Streamer")
    if os.environ.get("LOCKKIT_REWRITE"):
        PAGE.write_text(made + streamer + rest, encoding="utf-8")
        return
    assert shown == made, "LOCKKIT_REWRITE=1 makes it again"
