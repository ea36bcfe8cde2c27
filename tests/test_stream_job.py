"""What a streamer is asked: each flag and property of Hudi's streamer is obeyed or refused."""

from __future__ import annotations

import http.server
import io
import json
import re
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import fastavro
import pyarrow as pa
import pytest

from lockkit.errors import TableError
from lockkit.spark import streamer
from lockkit.spark.arrivals import (
    NewColumns,
    arriving,
    avro_text,
    decoded,
    kafka_options,
    open_registry,
)
from lockkit.spark.fields import new_avro_fields
from lockkit.spark.query import spark_schema
from lockkit.spark.stream import with_compaction
from lockkit.spark.stream_job import IDLE, REFUSED, StreamJob, parser, work_of
from lockkit.table.format.property_keys import format_properties
from lockkit.table.format.schema_reading import arrow_schema
from lockkit.table.services.rules import COMPACT_ASYNC_KEY, COMPACT_KEY

S = "hoodie.streamer."
TOPIC = {S + "source.kafka.topic": "impressions", "bootstrap.servers": "127.0.0.1:9092"}
KEYS = {"hoodie.datasource.write.recordkey.field": "id"}
FIELDS = [
    {"name": "id", "type": "string"},
    {"name": "seen", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
]
AVRO = json.dumps({"type": "record", "name": "impression", "fields": FIELDS})


def work(folder: Path, *arguments: str, **props: str) -> StreamJob:
    file = folder / "kafka source.properties"
    file.write_bytes(format_properties({**KEYS, S + "source.dfs.root": str(folder), **props}))
    flags = ["--props", file.as_uri(), "--target-base-path", f"file://{folder}/orders"]
    return work_of(parser().parse_args([*flags, *arguments]))


@pytest.fixture
def registry() -> Iterator[tuple[str, list[Any]]]:
    """A registry with one schema, and the (path, credentials) of what was asked."""
    asked: list[Any] = []

    class Schemas(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization")))
            known = self.path in ("/schemas/ids/7", "/subjects/impressions-value/versions/latest")
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"schema": AVRO}).encode())

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Schemas)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_command_line_of_hudis_own_page_is_understood(tmp_path: Path) -> None:
    """https://hudi.apache.org/docs/concurrency_control, "Multi Writing via Hudi Streamer"."""
    url = "http://localhost:8081/subjects/impressions-value/versions/latest"
    file = tmp_path / "kafka-source.properties"
    file.write_bytes(format_properties({**KEYS, **TOPIC, S + "schemaprovider.registry.url": url}))
    said = f"""--props file://{file}
        --schemaprovider-class org.apache.hudi.utilities.schema.SchemaRegistryProvider
        --source-class org.apache.hudi.utilities.sources.AvroKafkaSource
        --source-ordering-field impressiontime --target-base-path file:///tmp/hudi-streamer-op
        --target-table tableName --op BULK_INSERT"""
    found = work_of(parser().parse_args(said.split()))
    assert (found.kind, found.url, found.registry) == (
        "kafka-avro", "file:///tmp/hudi-streamer-op", True,
    )  # fmt: skip
    assert found.options["hoodie.datasource.write.operation"] == "bulk_insert"
    assert found.options["hoodie.datasource.write.precombine.field"] == "impressiontime"
    assert found.options["hoodie.table.name"] == "tableName"


def test_properties_may_all_be_flags_if_the_checkpoint_has_a_place() -> None:
    said = ["--target-base-path", "file:///tmp/t", "--hoodie-conf", f"{S}source.dfs.root=/tmp/in"]
    with pytest.raises(TableError, match="--checkpoint-path is missing"):
        work_of(parser().parse_args(said))
    found = work_of(parser().parse_args([*said, "--checkpoint-path", "/tmp/seen"]))
    assert (found.checkpoint, found.said("source.dfs.root")) == ("/tmp/seen", "/tmp/in")


def test_flags_of_hudis_streamer_are_obeyed(tmp_path: Path) -> None:
    found = work(
        tmp_path, "--table-type", "COPY_ON_WRITE", "--op", "INSERT", "--filter-dupes",
        "--continuous", "--min-sync-interval-seconds", "20", "--source-limit", "4000000",
        "--source-ordering-fields", "ts", "--base-file-format", "PARQUET",
    )  # fmt: skip
    assert found.continuous and (found.interval_s, found.limit) == (20.0, 4_000_000)
    assert found.options["hoodie.datasource.write.insert.drop.duplicates"] == "true"


def test_a_merged_table_is_compacted_beside_the_batches_unless_the_flag_says_no(
    tmp_path: Path,
) -> None:
    found = work(tmp_path, "--table-type", "MERGE_ON_READ", "--continuous")
    assert found.options["hoodie.datasource.write.table.type"] == "MERGE_ON_READ"
    assert with_compaction(found.options)[COMPACT_ASYNC_KEY] == "true"
    off = work(tmp_path, "--table-type", "MERGE_ON_READ", "--disable-compaction")
    assert COMPACT_ASYNC_KEY not in with_compaction(off.options)
    inline = work(tmp_path, "--hoodie-conf", f"{COMPACT_KEY}=true")
    assert COMPACT_ASYNC_KEY not in with_compaction(inline.options)


@pytest.mark.parametrize("key", [COMPACT_KEY, COMPACT_ASYNC_KEY])
def test_a_compaction_that_is_switched_on_and_off_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(TableError, match=f"--disable-compaction is refused beside {key}=true"):
        work(tmp_path, "--disable-compaction", "--hoodie-conf", f"{key}=true")
    work(tmp_path, "--disable-compaction", "--hoodie-conf", f"{key}=false")


@pytest.mark.parametrize("flag", sorted(REFUSED))
def test_a_flag_that_would_change_the_result_is_refused_with_its_reason(
    tmp_path: Path, flag: str
) -> None:
    with pytest.raises(TableError, match=f"^{flag} is refused: .*; leave it out"):
        work(tmp_path, flag, "x")


def test_a_flag_without_effect_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in IDLE:
        work(tmp_path, flag, "5")
        assert capsys.readouterr().err == f"note: {flag} has no effect here\n"
    work(tmp_path, "--hoodie-conf", "foo=bar")
    assert capsys.readouterr().err == "note: foo has no effect here\n"
    work(tmp_path, "--source-class", "JsonKafkaSource", **TOPIC)
    assert capsys.readouterr().err == "", "Kafka gets what is not Hudi's"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--source-class", "Nowhere"], "choose JsonDFSSource"),
        (["--source-class", "JsonKafkaSource"], "kafka.topic is missing"),
        (["--hoodie-conf", "x"], "is not KEY=VALUE"),
        (["--hoodie-conf", S + "transformer.sql=SELECT 1"], r"transformer\.sql is ref"),
        (["--hoodie-conf", S + "source.kafka.enable.commit.offset=true"], "must be false here"),
        (["--hoodie-conf", S + "schemaprovider.target.schema.file=b"], "must be that of the sour"),
        (["--hoodie-conf", S + "kafka.source.maxEvents=many"], "must be a whole number"),
        (["--target-base-path", ""], "--target-base-path is empty"),
        (["--props", "/nowhere"], "No such file"),
        (["--props", "s3://bucket/x.properties"], "name a file of this machine"),
        (["--table-type", "MERGE_ON_WRITE"], "table.type"),
        (["--payload-class", "com.example.Mine"], "payload"),
        (["--merge-mode", "CUSTOM"], "merges rows in another way"),
        (["--filter-dupes"], "is for --op INSERT"),
        (["--schemaprovider-class", "com.example.Mine"], "choose FilebasedSchemaProvider"),
        (["--schemaprovider-class", "a.SchemaRegistryProvider"], "registry.url is missing"),
    ],
)
def test_unsupported_features_of_the_streamer_are_reported(
    tmp_path: Path, arguments: Any, why: str
) -> None:
    with pytest.raises(TableError, match=why):
        work(tmp_path, *arguments)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    job = work(tmp_path, **{S + "source.dfs.root": f"{tmp_path}/nowhere"})
    with pytest.raises(TableError, match="nowhere names no folder"):
        arriving(None, job)


@pytest.mark.parametrize(
    ("flag", "value"), [("--op", "DELETE_PARTITION"), ("--source-limit", "0"),
                        ("--min-sync-interval-seconds", "nan"), ("--source-limit", "9" * 20),
                        ("--min-sync-interval-seconds", "soon")],
)  # fmt: skip
def test_a_value_that_a_flag_cannot_have_ends_with_the_usage(flag: str, value: str) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--props", "x", flag, value])


CONF, W = "--hoodie-conf", "hoodie.datasource.write."
NOPE = "nope://x"


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [
        (CONF, "=x", "--hoodie-conf==x is not KEY=VALUE"), (CONF, " =x", "is not KEY=VALUE"),
        (CONF, "", "is not KEY=VALUE"), ("--conf", "=x", "--conf==x is not KEY=VALUE"),
        ("--target-base-path", NOPE, "no store has the scheme 'nope'"),
        ("--target-base-path", "s3://", "names no bucket"),
        ("--target-base-path", "/tmp/x", "no store has the scheme ''"),
        ("--target-base-path", "{here}/kafka source.properties/t", "in the place of a directory"),
        ("--target-table", "", "--target-table is empty"), ("--target-table", "\7", "name=.* must"),
        ("--table-type", "", "--table-type is empty"),
        ("--table-type", "TABLE", "must be COPY_ON_WRITE or MERGE_ON_READ"),
        ("--source-ordering-field", "", "--source-ordering-field is empty"),
        ("--source-ordering-field", "a,b", "precombine field=a,b must name"),
        ("--props", NOPE, "is not on this machine"), ("--props", "{here}?x", "cannot be read"),
        ("--schemaprovider-class", "Nope", "choose FilebasedSchemaProvider"),
        ("--source-class", "", "--source-class is empty"),
        ("--checkpoint-path", "{file}", "--checkpoint-path=.* is no folder"),
        ("--endpoint", "nope", "endpoint="), ("--master", "", "--master is empty"),
        ("--master", "nope", "--master=nope is none of Spark's; begin with one of local, spark"),
        (CONF, W + "operation=insert", "is not --op upsert, which decides"),
        (CONF, W + "recordkey.field=a.b", "record key=a.b must name"),
        (CONF, W + "recordkey.field=", "needs a record_key"),
        (CONF, "hoodie.write.lock.provider=Nope", "Nope"),
        (CONF, "hoodie.base.path=" + NOPE, "is not the table that is written"),
        (CONF, S + "source.dfs.root=/nowhere", "source.dfs.root=/nowhere names no folder"),
        (CONF, S + "schemaprovider.source.schema.file=/nowhere", "schema.file=/nowhere cannot be"),
        (CONF, S + "schemaprovider.source.schema.file={file}", "is not an Avro record"),
        (CONF, S + "kafka.source.maxEvents=0", "must be a whole number from 1"),
        (CONF, S + "source.kafka.enable.failOnDataLoss=maybe", "must be true or false"),
        ("--source-class", "JsonKafkaSource", "kafka.topic is missing"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_obeyed_is_refused_before_spark_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    flag: str, value: str, why: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(streamer, "session", lambda *_: pytest.fail("Spark would be started"))
    file = tmp_path / "kafka source.properties"
    file.write_bytes(format_properties({**KEYS, S + "source.dfs.root": str(tmp_path)}))
    value = value.replace("{here}", tmp_path.as_uri()).replace("{file}", str(file))
    said = ["--props", str(file), "--target-base-path", f"{tmp_path.as_uri()}/t", flag, value]
    assert streamer.main(said) == 1
    assert re.search(why, capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == [file]


def test_values_that_can_be_obeyed_reach_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(master: str, conf: dict[str, str]) -> Any:
        raise TableError("Spark", f"{master} {conf}")

    monkeypatch.setattr(streamer, "session", reached)
    work(tmp_path)
    file = str(tmp_path / "kafka source.properties")
    said = ["--props", file, "--target-base-path", f"{tmp_path.as_uri()}/t", "--conf", "a=b=c",
            "--master", "local[1]", CONF, W + "operation=UPSERT"]  # fmt: skip
    seen: list[str] = []
    monkeypatch.setattr("sys.stderr.write", seen.append)
    assert streamer.main(said) == 1 and seen == ["TableError: Spark local[1] {'a': 'b=c'}\n"]


# --- Kafka ----------------------------------------------------------------------------------------


def test_the_properties_of_kafka_go_to_kafka(tmp_path: Path) -> None:
    job = work(
        tmp_path, "--source-class", "JsonKafkaSource", "--source-limit", "50",
        **{**TOPIC, "security.protocol": "SASL_SSL", "sasl.jaas.config": 'x password="p";',
           "ssl.truststore.location": "/t.jks", "auto.offset.reset": "LATEST", "group.id": "g",
           "schema.registry.url": "http://r", "basic.auth.user.info": "a:b",
           S + "kafka.source.maxEvents": "9", S + "source.kafka.enable.failOnDataLoss": "true",
           S + "source.kafka.minPartitions": "3"},
    )  # fmt: skip
    assert kafka_options(job) == {
        "kafka.bootstrap.servers": "127.0.0.1:9092", "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.jaas.config": 'x password="p";', "kafka.ssl.truststore.location": "/t.jks",
        "kafka.group.id": "g", "subscribe": "impressions", "startingOffsets": "latest",
        "maxOffsetsPerTrigger": "50", "failOnDataLoss": "true", "minPartitions": "3",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"), [("auto.offset.reset", "GROUP"), ("enable.auto.commit", "true")]
)
def test_a_property_of_kafka_that_cannot_hold_is_refused(
    tmp_path: Path, key: str, value: str
) -> None:
    job = work(tmp_path, "--source-class", "JsonKafkaSource", **TOPIC, **{key: value})
    with pytest.raises(TableError, match=key):
        kafka_options(job)


def message(record: Any, fields: Any = FIELDS, head: bytes = struct.pack(">bI", 0, 7)) -> bytes:
    body = io.BytesIO(head)
    body.seek(len(head))
    schema = {"type": "record", "name": "impression", "fields": fields}
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), record)
    return body.getvalue()


def rows_of(*messages: bytes, registry: Any = None) -> list[Any]:
    kinds = spark_schema(arrow_schema(AVRO))
    batch = pa.RecordBatch.from_pydict({"value": pa.array(messages, pa.binary())})
    found = decoded(AVRO, kinds, registry)(iter([batch]))
    return [row for each in found for row in each.to_pylist()]


def test_messages_of_a_registry_are_read_by_the_schema_that_each_names(registry: Any) -> None:
    url, asked = registry
    known = open_registry(f"{url}/subjects/impressions-value/versions/latest", user="me:secret")
    one = {"id": "a", "seen": 5, "tags": ["x"]}
    found = rows_of(message(one), message({**one, "seen": None}), registry=known)
    assert [each["tags"] for each in found] == [["x"], ["x"]]
    assert found[0]["seen"].microsecond == 5 and found[1]["seen"] is None
    assert asked == [("/schemas/ids/7", "Basic bWU6c2VjcmV0")], "asked once"
    assert "secret" not in repr(known)
    plain = message({**one, "id": "b"}, head=b"")
    assert rows_of(plain)[0]["id"] == "b", "without a registry: by the schema itself"


def test_the_schema_comes_from_the_registry_without_credentials_in_any_message(
    tmp_path: Path, registry: Any
) -> None:
    url, asked = registry
    with_user = url.replace("//", "//me:s%40cret@")
    keys = {**TOPIC, S + "schemaprovider.registry.url": ""}
    for subject in ("impressions-value", "nowhere"):
        at = f"{with_user}/subjects/{subject}/versions/latest"
        job = work(tmp_path, "--source-class", "AvroKafkaSource",
                   **{**keys, S + "schemaprovider.registry.url": at})  # fmt: skip
        if subject != "nowhere":
            assert avro_text(job) == AVRO
            assert asked[0][1] == "Basic bWU6c0BjcmV0"
            continue
        with pytest.raises(TableError, match="answered 404") as refused:
            avro_text(job)
        assert "cret" not in str(refused.value)


def record(*names: str, of: Any = "string", name: str = "inner") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": of} for n in names]}


@pytest.mark.parametrize("hold", [
    lambda kind: kind,
    lambda kind: ["null", kind],
    lambda kind: {"type": "array", "items": ["null", kind]},
    lambda kind: {"type": "map", "values": {"type": "array", "items": kind}},
])  # fmt: skip
def test_a_new_field_inside_a_struct_of_avro_is_a_new_column(hold: Any) -> None:
    known = record("st", of=hold(record("x")), name="r")
    found = record("st", of=hold(record("x", "y")), name="r")
    assert new_avro_fields(found, known) == ["st.y"]
    assert new_avro_fields(known, known) == new_avro_fields(known, found) == []
    by_name = record("st", of=hold(record("x")), name="r")
    by_name["fields"] += [{"name": "again", "type": ["null", "inner"]}]
    assert new_avro_fields(by_name, known) == ["again"]
    wider = {**by_name, "fields": [{"name": "st", "type": hold(record("x", "y"))},
                                   {"name": "again", "type": "inner"}]}  # fmt: skip
    assert new_avro_fields(wider, by_name) == ["st.y"], "a record is compared once"


@pytest.mark.parametrize("outer", [{"name": "r"}, {"name": "r", "namespace": "one"}])
def test_records_of_one_name_in_two_namespaces_are_two(outer: dict[str, str]) -> None:
    def both(*names: str, by_name: str) -> dict[str, Any]:
        mine = {**record("x"), "namespace": "one"}
        fields = [("a", mine), ("b", record(*names, name="two.inner")), ("c", by_name)]
        said = [{"name": each, "type": kind} for each, kind in fields]
        return {"type": "record", "fields": said, **outer}

    inner = "inner" if "namespace" in outer else "one.inner"
    known, found = both("x", by_name=inner), both("x", "y", by_name=inner)
    assert new_avro_fields(found, known) == ["b.y"]
    assert new_avro_fields(both("x", "y", by_name="two.inner"), known) == ["b.y", "c.y"]


def test_a_record_that_holds_itself_is_compared_once() -> None:
    tree = record("kids", of={"type": "array", "items": "tree"}, name="tree")
    assert new_avro_fields(tree, json.loads(json.dumps(tree))) == []


def test_a_message_with_a_new_field_inside_a_struct_is_refused() -> None:
    known = record("st", of=record("x"), name="r")
    found = record("st", of=record("x", "y"), name="r")

    class Newer:
        def by_id(self, number: int) -> str:
            return json.dumps(found)

    body = io.BytesIO()
    body.write(struct.pack(">bI", 0, 7))
    fastavro.schemaless_writer(body, fastavro.parse_schema(found), {"st": {"x": "a", "y": "b"}})
    text, registry = json.dumps(known), cast("Any", Newer())
    rows = decoded(text, spark_schema(arrow_schema(text)), registry)
    batch = pa.RecordBatch.from_pydict({"value": pa.array([body.getvalue()], pa.binary())})
    with pytest.raises(NewColumns) as refused:
        list(rows(iter([batch])))
    assert refused.value.columns == ["st.y"]


def test_a_message_with_a_new_column_and_one_that_is_no_avro_are_refused(registry: Any) -> None:
    known = open_registry(registry[0])
    wider = [*FIELDS, {"name": "rabatt", "type": "int", "default": 0}]

    class Newer:
        def by_id(self, number: int) -> str:
            return json.dumps({"type": "record", "name": "impression", "fields": wider})

    new = message({"id": "a", "seen": 1, "tags": [], "rabatt": 3}, wider)
    with pytest.raises(NewColumns) as found:
        rows_of(new, registry=Newer())
    assert found.value.columns == ["rabatt"]
    half = message({"id": "a", "seen": 1, "tags": []})[:8]
    for body in (b"", struct.pack(">bI", 0, 7), b"{}", half, struct.pack(">bI", 0, 8) + b"x"):
        with pytest.raises(TableError, match=r"is not Avro of its schema|answered 404"):
            rows_of(body, registry=known)
