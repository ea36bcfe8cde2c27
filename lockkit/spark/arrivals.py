"""What arrives for the streamer: files of a folder, or a Kafka topic, as Spark's stream of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockkit.errors import TableError
from lockkit.spark.read import spark_schema
from lockkit.table.format.schema import arrow_schema

SOURCES = {
    "JsonDFSSource": "json", "CsvDFSSource": "csv", "ParquetDFSSource": "parquet",
    "JsonKafkaSource": "kafka",
}  # fmt: skip
ROOT, TOPIC = "source.dfs.root", "source.kafka.topic"
SCHEMA = "schemaprovider.source.schema.file"
READ = (ROOT, TOPIC, SCHEMA)
PREFIXES = ("hoodie.streamer.", "hoodie.deltastreamer.")
"""Hudi renamed them in 0.14; the newer goes first."""
# Spark forgets files that are a week older than the newest one, and passes over late ones.
FOR_EVER = "36500d"
# A line that is no record ends the run: nothing is dropped, and nothing becomes nulls.
READING: dict[str, dict[str, str]] = {
    "json": {"mode": "FAILFAST"}, "csv": {"mode": "FAILFAST", "header": "true"}, "parquet": {},
}  # fmt: skip
KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.13"


@dataclass(frozen=True, slots=True)
class Work:
    """What one streamer is to do."""

    url: str
    kind: str
    props: Mapping[str, str]
    checkpoint: str
    endpoint: str | None = None
    continuous: bool = False
    interval_s: float = 1.0
    limit: int | None = None

    @property
    def options(self) -> dict[str, str]:
        return {k: v for k, v in self.props.items() if k.startswith(("hoodie.", "lockkit."))}

    def said(self, name: str) -> str | None:
        return next((self.props[p + name] for p in PREFIXES if self.props.get(p + name)), None)

    def refuse_unread(self) -> None:
        """Raise for an option of Hudi's streamer that this one would ignore: a transformer, say."""
        for key in self.props:
            prefix = next((each for each in PREFIXES if key.startswith(each)), "")
            if prefix and key.removeprefix(prefix) not in READ:
                raise TableError(
                    f"{key[:100]} is refused: this streamer reads only {', '.join(READ)} of "
                    f"{prefix}*; leave it out"
                )

    def needs(self, name: str) -> str:
        found = self.said(name)
        if found is None:
            raise TableError(f"the properties say nothing of {PREFIXES[0]}{name}")
        return found


def arriving(spark: Any, work: Work) -> Any:
    """The rows as a stream; None where there is no file yet that could tell their schema."""
    if work.kind == "kafka":
        return _from_kafka(spark, work)
    root = work.needs(ROOT)
    if "://" not in root and not Path(root).is_dir():
        raise TableError(f"{PREFIXES[0]}{ROOT}={root[:200]}: there is no such folder")
    options, schema = READING[work.kind], _schema(work)
    if schema is None:
        if "://" not in root and not any(_is_file(each) for each in Path(root).iterdir()):
            return None
        reader = spark.read.options(**options)
        if work.kind == "csv":
            reader = reader.option("inferSchema", "true")
        schema = reader.format(work.kind).load(root).schema
    source = spark.readStream.format(work.kind).schema(schema).options(**options)
    if work.limit is not None:
        source = source.option("maxBytesPerTrigger", work.limit)
    return source.option("maxFileAge", FOR_EVER).load(root)


def _is_file(path: Path) -> bool:
    return path.is_dir() or not path.name.startswith((".", "_"))


def _schema(work: Work) -> Any:
    file = work.said(SCHEMA)
    if file is None:
        return None
    try:
        return spark_schema(arrow_schema(Path(file).read_text(encoding="utf-8")))
    except OSError as error:
        raise TableError(f"{PREFIXES[0]}{SCHEMA}={file[:200]}: {error.strerror}") from None


def _from_kafka(spark: Any, work: Work) -> Any:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    schema, servers = _schema(work), work.props.get("bootstrap.servers")
    if schema is None or not servers:
        raise TableError(f"a topic needs {PREFIXES[0]}{SCHEMA} and bootstrap.servers")
    start = work.props.get("auto.offset.reset", "earliest")
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    source = source.option("subscribe", work.needs(TOPIC)).option("startingOffsets", start)
    try:
        rows = source.load()
    except AnalysisException as error:
        if "kafka" not in str(error).lower():
            raise
        raise TableError(
            "Spark has no Kafka source here; add its jar: "
            f"--conf spark.jars.packages={KAFKA}:{spark.version}"
        ) from None
    value = f.from_json(f.col("value").cast("string"), schema, READING["json"]).alias("value")
    return rows.select(value).select("value.*")
