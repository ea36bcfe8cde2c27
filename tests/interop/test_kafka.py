"""The streamer on Apache Kafka's own broker: JSON and Avro, each message once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from environment import CACHE, Unavailable
from kafka import Broker, registry
from test_clients import installed

from lockkit.spark.arrivals import KAFKA
from lockkit.stores import open_store
from lockkit.table import read_table
from lockkit.table.format.java_properties import format_properties

pytestmark = [pytest.mark.interop, pytest.mark.timeout(0)]
HERE = Path(__file__).parent
CLIENT = "confluent-kafka[avro,schemaregistry]==2.13.0"
CONNECTOR = "4.2.0"
"""Spark 4.3 runs with it too, and some mirrors of Maven Central have no newer one."""
S = "hoodie.streamer."
FIELDS = [{"name": "id", "type": "string"}, {"name": "seen", "type": "long"}]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        running = Broker(tmp_path_factory.mktemp("kafka"))
    except Unavailable as reason:
        pytest.skip(str(reason))
    yield running
    running.close()


def send(broker: Broker, topic: str, *rows: Any, avro: tuple[str, ...] = ()) -> None:
    python = installed("kafka", *CLIENT.split()) / "python"
    done = subprocess.run(
        [str(python), str(HERE / "produce.py"), broker.address, topic, *avro],
        input="\n".join(map(json.dumps, rows)), text=True, capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def stream(folder: Path, *arguments: str, **props: str) -> str:
    file = folder / "kafka-source.properties"
    file.write_bytes(format_properties(props))
    done = subprocess.run(
        [sys.executable, "-m", "lockkit.spark.streamer", "--props", file.as_uri(),
         "--target-base-path", f"file://{folder}/table", "--source-ordering-field", "seen",
         "--target-table", "impressions", *arguments, "--master", "local[2]",
         "--conf", f"spark.jars.packages={KAFKA}:{CONNECTOR}",
         "--conf", f"spark.jars.ivy={CACHE}/streamer-ivy"],
        text=True, capture_output=True, timeout=600,
    )  # fmt: skip
    assert "pw-of-ann" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def stored(folder: Path) -> list[dict[str, Any]]:
    found = read_table(open_store(f"file://{folder}/table"))
    names = [each for each in found.column_names if not each.startswith("_hoodie")]
    return sorted(found.select(names).to_pylist(), key=lambda row: row["id"])


def test_json_of_a_topic_arrives_once_over_a_connection_that_logs_in(
    broker: Broker, tmp_path: Path
) -> None:
    schema = tmp_path / "schema.avsc"
    schema.write_text(json.dumps({"type": "record", "name": "impression", "fields": FIELDS}))
    props = {
        **broker.login, S + "source.kafka.topic": "json",
        "hoodie.datasource.write.recordkey.field": "id",
        S + "schemaprovider.source.schema.file": str(schema),
    }  # fmt: skip
    rows = [{"id": f"k{each}", "seen": each} for each in range(8)]
    for first, last in ((0, 5), (5, 8)):
        send(broker, "json", *rows[first:last])
        stream(tmp_path, "--op", "INSERT", "--source-limit", "4",
               "--source-class", "org.apache.hudi.utilities.sources.JsonKafkaSource",
               "--schemaprovider-class", "o.a.h.FilebasedSchemaProvider", **props)  # fmt: skip
        assert stored(tmp_path) == rows[:last]


def test_avro_of_a_topic_brings_its_new_columns_along(broker: Broker, tmp_path: Path) -> None:
    """The command line of Hudi's page on concurrency control, but for its paths."""
    wider = [*FIELDS, {"name": "price", "type": ["null", "double"], "default": None}]
    with registry() as url:
        props = {
            **broker.login, "schema.registry.url": url, S + "source.kafka.topic": "impressions",
            "hoodie.datasource.write.recordkey.field": "id",
            S + "schemaprovider.registry.url": f"{url}/subjects/impressions-value/versions/latest",
        }  # fmt: skip
        for fields, row in ((FIELDS, {"id": "a", "seen": 1}),
                            (wider, {"id": "b", "seen": 2, "price": 2.5})):  # fmt: skip
            schema = json.dumps({"type": "record", "name": "impression", "fields": fields})
            send(broker, "impressions", row, avro=(url, schema))
            stream(
                tmp_path, "--op", "BULK_INSERT",
                "--schemaprovider-class", "org.apache.hudi.utilities.schema.SchemaRegistryProvider",
                "--source-class", "org.apache.hudi.utilities.sources.AvroKafkaSource", **props,
            )  # fmt: skip
    assert stored(tmp_path) == [
        {"id": "a", "seen": 1, "price": None}, {"id": "b", "seen": 2, "price": 2.5},
    ]  # fmt: skip
