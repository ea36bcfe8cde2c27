"""Reads a streamer's source as a Spark stream: the files of a folder, or a Kafka topic.

If the source has a column that the schema does not have, the stream ends with `NewColumns`; Spark
alone would drop the column. Fields of structs count as columns.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import pyarrow as pa

from lockkit.errors import TableError
from lockkit.spark.errors import first_line
from lockkit.spark.fields import new_avro_fields, new_fields
from lockkit.spark.query import spark_schema
from lockkit.spark.stream_job import (
    DATA_LOSS,
    DESERIALIZER,
    DESERIALIZERS,
    MAX_EVENTS,
    MIN_PARTITIONS,
    PREFIXES,
    REGISTRY,
    ROOT,
    SCHEMA,
    TOPIC,
    StreamJob,
)
from lockkit.table.errors import DamagedFile, RefusedOption, UnsupportedTable
from lockkit.table.format.schema_reading import arrow_schema

# By default Spark ignores files that are a week older than the newest one.
FOR_EVER = "36500d"
# A line that is not a record ends the run: no row is dropped or filled with nulls.
READING: dict[str, dict[str, str]] = {
    "json": {"mode": "FAILFAST"}, "parquet": {},
    "csv": {"mode": "FAILFAST", "header": "true", "enforceSchema": "false"},
}  # fmt: skip
KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.13"
FILE = "__lockkit_file"
SHOWN = 5
NOT_FOR_KAFKA = (
    "hoodie.", "lockkit.", "spark.", "schema.registry.", "basic.auth.", "auto.offset.reset",
    "enable.auto.commit", "key.deserializer", "value.deserializer", "group.id",
    "specific.avro.reader",
)  # fmt: skip
"""Properties that Spark's source or this streamer sets, or that configure the schema registry."""


class NewColumns(TableError):
    """The source has columns that the schema does not have; nothing of the batch was written.

    Its text is a JSON list, because Spark passes errors on as text.
    """

    @property
    def columns(self) -> list[str]:
        try:
            found = json.loads(str(self))
        except ValueError:
            return []
        return [str(each) for each in found]


def arriving(spark: Any, work: StreamJob) -> Any:
    """The rows as a stream; None as long as no file exists to infer the schema from."""
    if work.kind.startswith("kafka"):
        return _from_kafka(spark, work)
    schema = source_schema(spark, work)
    if schema is None:
        return None
    root, options = work.needs(ROOT), READING[work.kind]
    if work.kind == "json":
        source = spark.readStream.format("text")
    else:
        source = spark.readStream.format(work.kind).schema(schema).options(**options)
    if work.limit is not None:
        source = source.option("maxBytesPerTrigger", work.limit)
    rows = source.option("maxFileAge", FOR_EVER).load(root)
    if work.kind == "json":
        return _parsed(rows, schema, avro_text(work))
    if work.kind == "parquet":
        from pyspark.sql import functions as f

        return rows.select("*", f.col("_metadata.file_path").alias(FILE))
    return rows


def check_source(work: StreamJob) -> None:
    """Raise `TableError` for a folder, a file or a property of Kafka that cannot be used."""
    if work.kind.startswith("kafka"):
        _refuse_no_broker(work)
        kafka_options(work)
    else:
        _refuse_no_folder(work.needs(ROOT))
    if Path(work.checkpoint).is_file():
        raise RefusedOption("--checkpoint-path", "is no folder", value=work.checkpoint[:200])
    if not work.registry and (text := avro_text(work)) is not None:
        arrow_schema(text)


def source_schema(spark: Any, work: StreamJob) -> Any:
    """Spark's types of the source's columns; None if no file exists yet."""
    text = avro_text(work)
    if text is not None:
        return spark_schema(arrow_schema(text))
    root = work.needs(ROOT)
    _refuse_no_folder(root)
    if "://" not in root and not any(_is_file(each) for each in Path(root).iterdir()):
        return None
    reader = spark.read.options(**READING[work.kind])
    if work.kind == "csv":
        reader = reader.option("inferSchema", "true")
    if work.kind == "parquet":
        reader = reader.option("mergeSchema", "true")
    return reader.format(work.kind).load(root).schema


def _refuse_no_folder(root: str) -> None:
    if "://" not in root and not Path(root).is_dir():
        raise RefusedOption(f"{PREFIXES[0]}{ROOT}", "names no folder", value=root[:200])


def avro_text(work: StreamJob) -> str | None:
    """The schema provider's schema, as JSON; None without a provider."""
    if work.registry:
        return _registry(work).at(work.needs(REGISTRY))
    file = work.said(SCHEMA)
    if file is None:
        return None
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise RefusedOption(
            f"{PREFIXES[0]}{SCHEMA}", f"cannot be read: {error.strerror}", value=file[:200]
        ) from None


def checked(frame: Any) -> Any:
    """The rows of a batch; `NewColumns` if one of its Parquet files has a column that they lack."""
    if FILE not in frame.columns:
        return frame
    files = [row[0] for row in frame.select(FILE).distinct().collect()]
    frame = frame.drop(FILE)
    if files:
        reader = frame.sparkSession.read.option("mergeSchema", "true")
        new = new_fields(reader.parquet(*files).schema, frame.schema)
        if new:
            raise NewColumns(json.dumps(new[:SHOWN]))
    return frame


def _is_file(path: Path) -> bool:
    return path.is_dir() or not path.name.startswith((".", "_"))


def _parsed(rows: Any, schema: Any, text: str | None) -> Any:
    """The objects in the JSON of `value`, one or an array of them, by this schema, and by the Avro
    schema in `text` if there is one: it has the units of its times.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType

    def plain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        from lockkit.spark.json_records import plain_record, shape_of

        shape = shape_of(text) if text else to_arrow_schema(schema, timezone="UTC")
        with first_line():
            for batch in batches:
                records = []
                for each in batch.column(0).to_pylist():
                    record, new = plain_record(each, shape)
                    if new:
                        raise NewColumns(json.dumps(new[:SHOWN]))
                    records.append(record)
                yield pa.RecordBatch.from_arrays([pa.array(records, pa.string())], ["value"])

    value = f.col("value").cast("string")
    rows = rows.where(f.trim(value) != "")  # skips empty lines and messages without a body
    rows = rows.select(value.alias("value")).mapInArrow(plain, "value string")
    found = f.from_json(f.col("value"), ArrayType(schema), READING["json"])
    return rows.select(f.explode(found).alias("value")).select("value.*")


# --- Kafka ----------------------------------------------------------------------------------------


def _from_kafka(spark: Any, work: StreamJob) -> Any:
    from pyspark.errors import AnalysisException

    text = avro_text(work)
    assert text is not None  # `check_source`
    source = spark.readStream.format("kafka").options(**kafka_options(work))
    try:
        rows = source.load()
    except AnalysisException as error:
        if "kafka" not in str(error).lower():
            raise
        raise RefusedOption(
            "spark.jars.packages", "names no Kafka source for Spark",
            f"add its jar: --conf spark.jars.packages={KAFKA}:{spark.version}",
        ) from None  # fmt: skip
    schema = spark_schema(arrow_schema(text))
    if work.kind == "kafka":
        return _parsed(rows, schema, text)
    plain = (work.said(DESERIALIZER) or "").endswith(DESERIALIZERS[2])
    decode = decoded(text, schema, None if plain else _registry(work))
    return rows.select("value").where("value is not null").mapInArrow(decode, schema)


def _refuse_no_broker(work: StreamJob) -> None:
    schema = work.registry or work.said(SCHEMA)
    if not schema or not work.props.get("bootstrap.servers"):
        raise RefusedOption(
            "bootstrap.servers",
            f"must be set for a topic, and {PREFIXES[0]}{SCHEMA} or {PREFIXES[0]}{REGISTRY}",
        )


def kafka_options(work: StreamJob) -> dict[str, str]:
    """The options of Spark's Kafka source, which are Kafka's own properties with a prefix.

    Raises `TableError` for a property that Spark's source does not take.
    """
    start = work.props.get("auto.offset.reset", "earliest").lower()
    if start not in ("earliest", "latest"):
        raise RefusedOption(
            "auto.offset.reset", "is not known here", "choose earliest or latest", value=start[:40]
        )
    if work.props.get("enable.auto.commit", "false").lower() != "false":
        raise RefusedOption(
            "enable.auto.commit", "must be false: Spark's checkpoint says what was read"
        )
    found = {
        f"kafka.{key}": value for key, value in work.props.items()
        if not key.startswith(NOT_FOR_KAFKA)
    }  # fmt: skip
    if "group.id" in work.props:
        found["kafka.group.id"] = work.props["group.id"]
    found |= {"subscribe": work.needs(TOPIC), "startingOffsets": start}
    limit = work.limit or work.said(MAX_EVENTS)
    for name, value in (("maxOffsetsPerTrigger", limit), ("failOnDataLoss", work.said(DATA_LOSS)),
                        ("minPartitions", work.said(MIN_PARTITIONS))):  # fmt: skip
        if value:
            found[name] = str(value)
    return found


def _registry(work: StreamJob) -> SchemaRegistry:
    base = work.props.get("schema.registry.url", "")
    url = work.said(REGISTRY) or base
    if not url:
        raise RefusedOption(
            "schema.registry.url",
            "is missing: messages of KafkaAvroDeserializer name their schema by a number of the "
            "registry", f"set it, or {PREFIXES[0]}{DESERIALIZER} to ByteArrayDeserializer",
        )  # fmt: skip
    user = work.props.get("schema.registry.basic.auth.user.info") or work.props.get(
        "basic.auth.user.info", ""
    )
    return open_registry(url, base=base, user=user)


def decoded(
    text: str, kinds: Any, registry: SchemaRegistry | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow` that decodes Avro messages into rows of the schema in `text`.

    With a registry, a message begins with a zero byte and the id of its schema in four bytes
    (Confluent's wire format); without one, all have the schema in `text`.
    """

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from fastavro import parse_schema, schemaless_reader
        from fastavro.read import SchemaResolutionError
        from pyspark.sql.pandas.types import to_arrow_schema

        known = json.loads(text)
        reader, shape = parse_schema(known), to_arrow_schema(kinds, timezone="UTC")
        writers: dict[int, Any] = {}

        def writer(number: int) -> Any:
            if number not in writers:
                assert registry is not None
                found: Any = json.loads(registry.by_id(number))
                parsed = parse_schema(found)
                if "fields" in found and (new := new_avro_fields(found, known)):
                    raise NewColumns(json.dumps(new[:SHOWN]))
                writers[number] = parsed
            return writers[number]

        def one(body: bytes) -> Any:
            file, of = io.BytesIO(body), reader
            try:
                if registry is not None:
                    magic, number = struct.unpack(">bI", file.read(5))
                    if magic != 0:
                        raise ValueError(f"the first byte is {magic}, not 0")
                    of = writer(number)
                return schemaless_reader(file, of, reader)
            except (ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, TypeError,
                    ValueError, struct.error, SchemaResolutionError, StopIteration,
                    ) as error:  # fmt: skip
                why = f"{type(error).__name__} {str(error)[:200]}"
                raise DamagedFile(
                    f"a message of {len(body)} bytes", f"is not Avro of its schema: {why}"
                ) from None

        with first_line():
            for batch in batches:
                rows = [one(each) for each in batch.column(0).to_pylist()]
                table = pa.Table.from_pylist(rows, arrow_schema(text))
                yield from table.cast(shape).to_batches()

    return decode


# --- the schema registry --------------------------------------------------------------------------


TIMEOUT_S = 10.0
SCHEMA_BYTES_MAX = 4 << 20
KINDS = "application/vnd.schemaregistry.v1+json, application/json"


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """The registry below `base`, a URL without credentials."""

    base: str
    user: str = field(default="", repr=False)
    """`name:password`; "" for none."""

    def by_id(self, number: int) -> str:
        """The Avro schema of this id, as JSON. Raises `TableError`."""
        return self._schema(f"{self.base}/schemas/ids/{number}")

    def at(self, url: str) -> str:
        """The Avro schema at `<base>/subjects/<subject>/versions/latest`. Raises `TableError`."""
        return self._schema(without_user(url)[0])

    def _schema(self, url: str) -> str:
        request = urllib.request.Request(url, headers={"Accept": KINDS})
        if self.user:
            token = base64.b64encode(self.user.encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                body = answer.read(SCHEMA_BYTES_MAX)
            said: Any = json.loads(body)
            schema = said["schema"]
        except urllib.error.HTTPError as error:
            raise TableError("the schema registry", f"answered {error.code} for {url}") from None
        except (OSError, urllib.error.URLError) as error:
            why = getattr(error, "reason", error)
            raise TableError("the schema registry", f"at {url} cannot be reached: {why}") from None
        except (ValueError, LookupError, TypeError):
            raise DamagedFile(url, "is not a schema of a schema registry") from None
        if said.get("schemaType", "AVRO") != "AVRO" or not isinstance(schema, str):
            raise UnsupportedTable(url, "is a schema of another kind than Avro")
        return schema


def open_registry(url: str, *, base: str = "", user: str = "") -> SchemaRegistry:
    """The registry of a subject's address. `base` and `user` override those in `url`."""
    bare, inside = without_user(url)
    if urlsplit(bare).scheme not in ("http", "https"):
        raise RefusedOption(
            "schema.registry.url", "is not the http(s) address of a schema registry",
            value=bare[:200],
        )  # fmt: skip
    own, its = without_user(base.partition(",")[0]) if base else ("", "")
    return SchemaRegistry((own or bare.partition("/subjects/")[0]).rstrip("/"),
                          user or its or inside)  # fmt: skip


def without_user(url: str) -> tuple[str, str]:
    """The address without credentials, and the credentials as `name:password`."""
    parts = urlsplit(url)
    inside, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=host)), unquote(inside)
