"""The streamer on Apache Kafka's own broker: JSON and Avro, each message once."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from environment import CACHE, Unavailable
from hudi_rs import read_by_hudi_rs
from hudi_world import Hudi
from kafka import Broker, registry
from test_clients import installed

from lockkit.spark.arrivals import KAFKA
from lockkit.table import Table
from lockkit.table.format.property_keys import format_properties

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
    """As hudi-rs reads it."""
    found = read_by_hudi_rs(folder / "table")
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


SAMPLES = Path(__file__).parents[2] / "docs" / "howto" / "hudi_samples.md"
TITLES = {
    "COPY_ON_WRITE": "Hudi Streamer: a bulk insert",
    "MERGE_ON_READ": "Hudi Streamer: a merge-on-read table, without end",
}
PAGE = r"""
--props file://${PWD}/hudi-utilities/src/test/resources/streamer-config/kafka-source.properties \
--schemaprovider-class org.apache.hudi.utilities.schema.SchemaRegistryProvider \
--source-class org.apache.hudi.utilities.sources.AvroKafkaSource \
--source-ordering-field impresssiontime \
--target-base-path file:\/\/\/tmp/hudi-streamer-op \
--target-table tableName \
--op BULK_INSERT
"""
"""As Hudi's page on concurrency control has it, after the class and the jar."""
OCC = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.cleaner.policy.failed.writes": "LAZY",
    "hoodie.write.lock.provider":
        "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_the_pages_own_command_line_runs_in_a_shell_and_hudi_reads_the_table(
    broker: Broker, tmp_path: Path, hudi: Hudi, kind: str
) -> None:
    """Verbatim but for the folder under /tmp; of a merge-on-read table, compacted meanwhile."""
    topic, fields = f"page-{kind}", [FIELDS[0], {"name": "impresssiontime", "type": "long"}]
    schema = json.dumps({"type": "record", "name": "impression", "fields": fields})
    command = PAGE.strip().replace(r"\/tmp/", rf"\/{str(tmp_path)[1:]}/")
    assert command.count(str(tmp_path)[1:]) == 1
    if kind == "MERGE_ON_READ":
        command += " --table-type MERGE_ON_READ --continuous --source-limit 4"
    mine = [sys.executable, "-m", "lockkit.spark.streamer", "--master", "local[2]",
            "--conf", f"spark.jars.packages={KAFKA}:{CONNECTOR}",
            "--conf", f"spark.jars.ivy={CACHE}/streamer-ivy"]  # fmt: skip
    file = tmp_path / "hudi-utilities/src/test/resources/streamer-config/kafka-source.properties"
    file.parent.mkdir(parents=True)
    table, log = tmp_path / "hudi-streamer-op", tmp_path / "log"
    rows = [{"id": f"k{n % 20}", "impresssiontime": n} for n in range(32)]
    with registry() as url:
        file.write_bytes(format_properties({
            **broker.login, **OCC, "schema.registry.url": url, S + "source.kafka.topic": topic,
            "hoodie.datasource.write.recordkey.field": "id",
            S + "schemaprovider.registry.url": f"{url}/subjects/x/versions/latest",
        }))  # fmt: skip
        send(broker, topic, *rows, avro=(url, schema))
        running = subprocess.Popen(
            ["bash", "-c", f"exec {shlex.join(mine)} {command}"], cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=log.open("w"), stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            if kind == "MERGE_ON_READ":
                until_compacted(running, table)
                running.send_signal(signal.SIGTERM)
            code = running.wait(300)
        finally:
            running.kill()
            running.wait()
    assert code == (128 + signal.SIGTERM if kind == "MERGE_ON_READ" else 0), log.read_text()[-3000:]
    newest = {row["id"]: row["impresssiontime"] for row in rows}
    with Table(table.as_uri()) as opened:
        found = opened.read()
        actions = [each.action for each in opened.history()]
    by_hudi = {row["id"]: row["impresssiontime"] for row in hudi.read(str(table))}
    if kind == "MERGE_ON_READ":
        assert by_hudi == newest and actions.count("deltacommit") >= 8 and "commit" in actions
        assert dict(zip(*found.to_pydict().values(), strict=True)) == newest
    else:  # a bulk insert looks for no keys
        assert sorted(found.to_pylist(), key=str) == sorted(rows, key=str)
        assert by_hudi.keys() == newest.keys() and actions == ["commit"]
    came = [f"lockkit: {each}" for each in dict.fromkeys(
        re.sub(r"\d{17}", "(an instant)", line) for line in log.read_text().splitlines()
        if line.startswith("published "))]  # fmt: skip
    if kind == "MERGE_ON_READ":
        came += ["lockkit: the same for each batch of 4 messages; a compaction has completed",
                 f"lockkit: after SIGTERM it ended with code {code}"]  # fmt: skip
    else:
        came.append(f"lockkit: it ended with code {code}")
    came.append(f"read by Hudi: {len(by_hudi)} keys, of the {len(rows)} messages in the topic")
    more = command.partition("BULK_INSERT")[2]
    shown = "python -m lockkit.spark.streamer \\\n" + PAGE.strip() + more
    parts = f"```sh\n{shown}\n```\n", "```text\n" + "\n".join(came) + "\n```\n"
    as_the_page_shows(TITLES[kind], "\n".join(parts))


def as_the_page_shows(title: str, made: str) -> None:
    """Compare the section of the page of samples, or write it anew."""
    head, end = f"\n## {title}\n\n", "\n## "
    before, found, rest = SAMPLES.read_text(encoding="utf-8").partition(head)
    shown, following, after = rest.partition(end)
    if os.environ.get("LOCKKIT_REWRITE"):
        SAMPLES.write_text(before + head + made + following + after, encoding="utf-8")
        return
    assert found and shown == made, "LOCKKIT_REWRITE=1 makes it again"


def until_compacted(running: subprocess.Popen[bytes], table: Path) -> None:
    """Until all messages are in the table, and a compaction is."""
    end = time.monotonic() + 300
    while running.poll() is None and time.monotonic() < end:
        if (table / ".hoodie" / "hoodie.properties").is_file():
            with Table(table.as_uri()) as opened:
                done = opened.history()
                read = opened.read()
            if "commit" in [each.action for each in done] and read.num_rows == 20:
                if max(read["impresssiontime"].to_pylist()) == 31:
                    return
        time.sleep(1)
