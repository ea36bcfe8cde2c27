"""The flags and properties of Hudi Streamer: each is obeyed or refused.

The names are those of `HoodieStreamer.Config`, `KafkaSourceConfig` and `HoodieSchemaProviderConfig`
in Apache Hudi 1.1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lockkit.errors import clipped
from lockkit.table.errors import RefusedOption
from lockkit.table.format.option_values import flag as is_on
from lockkit.table.format.option_values import lowered
from lockkit.table.format.property_keys import parse_properties
from lockkit.table.options import WRITE, write_options
from lockkit.table.services.rules import COMPACT_KEYS

SOURCES = {
    "JsonDFSSource": "json", "CsvDFSSource": "csv", "ParquetDFSSource": "parquet",
    "JsonKafkaSource": "kafka", "AvroKafkaSource": "kafka-avro",
}  # fmt: skip
PROVIDERS = ("FilebasedSchemaProvider", "SchemaRegistryProvider")
ROOT, TOPIC = "source.dfs.root", "source.kafka.topic"
SCHEMA, TARGET_SCHEMA = "schemaprovider.source.schema.file", "schemaprovider.target.schema.file"
REGISTRY, TARGET_REGISTRY = "schemaprovider.registry.url", "schemaprovider.registry.targetUrl"
DESERIALIZER = "source.kafka.value.deserializer.class"
MAX_EVENTS, MIN_PARTITIONS = "kafka.source.maxEvents", "source.kafka.minPartitions"
DATA_LOSS = "source.kafka.enable.failOnDataLoss"
READ = (
    ROOT, TOPIC, SCHEMA, TARGET_SCHEMA, REGISTRY, TARGET_REGISTRY, DESERIALIZER, MAX_EVENTS,
    MIN_PARTITIONS, DATA_LOSS,
)  # fmt: skip
WITHOUT_EFFECT = {
    "source.kafka.enable.commit.offset": "false", "source.kafka.checkpoint.type": "string",
    "source.kafka.spark.sql.consumer.enable": "true",
}  # fmt: skip
"""Properties that may only have this value, which describes how this streamer works."""
DESERIALIZERS = ("KafkaAvroDeserializer", "KafkaAvroSchemaDeserializer", "ByteArrayDeserializer")
PREFIXES = ("hoodie.streamer.", "hoodie.deltastreamer.")
"""Hudi renamed the prefix in 0.14; the new one overrides the old one."""
MASTERS = ("local", "spark://", "yarn", "k8s://")
OPS = ("upsert", "insert", "bulk_insert", "insert_overwrite", "insert_overwrite_table")
REFUSED = {
    "--transformer-class": "the streamer transforms no rows; do it in Spark, with foreach_batch",
    **dict.fromkeys(("--enable-sync", "--enable-hive-sync", "--force-empty-sync"),
                    "the streamer updates no catalog; run Hudi's sync tool separately"),
    "--commit-on-errors": "a record that cannot be read ends the run: nothing is dropped",
    **dict.fromkeys(("--checkpoint", "--ignore-checkpoint", "--initial-checkpoint-provider"),
                    "Spark's checkpoint records what was read: use --checkpoint-path FOLDER"),
    "--retry-on-source-failures": "start the streamer again: it continues where it ended",
    "--allow-commit-on-no-checkpoint-change": "an empty batch makes no commit",
    **dict.fromkeys(("--post-write-termination-strategy-class", "--ingestion-metrics-class",
                     "--merge-impl-classes", "--record-merge-custom-implementation-classes"),
                    "a commit runs no code of others"),
    **dict.fromkeys(("--run-bootstrap", "--bootstrap-overwrite", "--bootstrap-index-class"),
                    "the streamer makes no table from existing files; read them and write rows"),
    "--config-hot-update-strategy-class": "options are read once, at the start",
}  # fmt: skip
"""Flags of Hudi's streamer that are refused, because ignoring them would change the result."""
IDLE = (
    "--delta-sync-scheduling-weight", "--compact-scheduling-weight", "--sync-tool-classes",
    "--delta-sync-scheduling-minshare", "--compact-scheduling-minshare",
    "--cluster-scheduling-weight", "--cluster-scheduling-minshare", "--max-pending-compactions",
    "--max-pending-clustering", "--retry-interval-seconds", "--max-retry-count",
    "--enable-hive-support", "--retry-last-pending-inline-clustering",
    "--retry-last-pending-inline-compaction",
)  # fmt: skip
"""Flags that do not change the result here; a line on standard error says so."""
INTO_PROPERTIES = {
    "--target-table": "hoodie.table.name", "--source-ordering-field": WRITE + "precombine.field",
    "--table-type": WRITE + "table.type", "--payload-class": WRITE + "payload.class",
    "--merge-mode": "hoodie.record.merge.mode",
    "--merge-strategy-id": "hoodie.record.merge.strategy.id",
    "--base-file-format": "hoodie.table.base.file.format",
    "--disable-compaction": WRITE + "streaming.disable.compaction",
}  # fmt: skip
ALSO = {
    "--source-ordering-field": "--source-ordering-fields", "--merge-mode": "--record-merge-mode",
    "--merge-strategy-id": "--record-merge-strategy-id",
}  # fmt: skip
EXAMPLE = """\
example of FILE:
  hoodie.streamer.source.dfs.root=/data/arriving
  hoodie.datasource.write.recordkey.field=order_id
  hoodie.datasource.write.precombine.field=ordered_at
  hoodie.datasource.write.partitionpath.field=region

It accepts a command line of Hudi's streamer as it is. The schema is Avro. It comes from the file in
hoodie.streamer.schemaprovider.source.schema.file, from a schema registry
(hoodie.streamer.schemaprovider.registry.url), or from the files that exist at the start. If the
source has a new column, the streamer reads the schema again. If the schema has the column, it is
added to the table; if not, the run ends with an error that names it. For a topic, properties that
are not Hudi's (bootstrap.servers, security.protocol, sasl.*, ssl.*) go to Kafka. The streamer reads
a topic from its beginning, unless auto.offset.reset says latest. --checkpoint-path records what was
read. If you lose it, the streamer reads everything again, which does no harm with upsert. Exit: 0
when everything is read; 128 + n after signal n (the running batch is finished first, unless the
signal comes twice); 1 for an error."""


@dataclass(frozen=True, slots=True)
class StreamJob:
    """The settings of one streamer."""

    url: str
    kind: str
    props: Mapping[str, str]
    checkpoint: str
    endpoint: str | None = None
    continuous: bool = False
    interval_s: float = 1.0
    limit: int | None = None
    registry: bool = False
    """Whether the schema comes from a schema registry."""

    @property
    def options(self) -> dict[str, str]:
        return {k: v for k, v in self.props.items() if k.startswith(("hoodie.", "lockkit."))}

    def said(self, name: str) -> str | None:
        return next((self.props[p + name] for p in PREFIXES if self.props.get(p + name)), None)

    def needs(self, name: str) -> str:
        found = self.said(name)
        if found is None:
            raise RefusedOption(f"{PREFIXES[0]}{name}", "is missing in the properties")
        return found

    def check(self) -> None:
        """Raise for a property that this streamer would ignore, such as a transformer."""
        for key, value in self.props.items():
            prefix = next((each for each in PREFIXES if key.startswith(each)), "")
            name = key.removeprefix(prefix)
            if not prefix or name in READ or WITHOUT_EFFECT.get(name) == value.lower():
                continue
            as_is = WITHOUT_EFFECT.get(name)
            why = f"this streamer reads only {', '.join(READ)} of {prefix}*; leave it out"
            why = f"it must be {as_is} here" if as_is else why
            raise RefusedOption(key[:100], f"is refused: {why}")
        for source, target in ((SCHEMA, TARGET_SCHEMA), (REGISTRY, TARGET_REGISTRY)):
            if self.said(target) not in (None, self.said(source)):
                raise RefusedOption(
                    f"{PREFIXES[0]}{target}",
                    "must be that of the source: rows are written as they come, without a "
                    "transformer",
                )
        deserializer = (self.said(DESERIALIZER) or DESERIALIZERS[0]).rpartition(".")[2]
        if self.kind == "kafka-avro" and deserializer not in DESERIALIZERS:
            raise RefusedOption(
                f"{PREFIXES[0]}{DESERIALIZER}", "is not known here",
                f"choose {', '.join(DESERIALIZERS)}", value=deserializer[:80],
            )  # fmt: skip
        for name in (MAX_EVENTS, MIN_PARTITIONS):
            if not is_count(self.said(name) or "1"):
                raise RefusedOption(f"{PREFIXES[0]}{name}", "must be a whole number from 1")
        if (self.said(DATA_LOSS) or "true").lower() not in ("true", "false"):
            raise RefusedOption(f"{PREFIXES[0]}{DATA_LOSS}", "must be true or false")
        self.needs(TOPIC if self.kind.startswith("kafka") else ROOT)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m lockkit.spark.streamer", allow_abbrev=False,
        description="Ingests files that arrive in a folder, or a Kafka topic.",
        epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = found.add_argument
    add("--props", metavar="FILE", help="Java properties, by Hudi's names")
    add("--op", type=_operation, default=OPS[0], metavar="OPERATION",
        help=f"{', '.join(OPS)} (default: upsert)")  # fmt: skip
    add("--target-base-path", metavar="URL", help="the table's URL (or hoodie.base.path in FILE)")
    add("--target-table", metavar="NAME", help="the name of a new table")
    add("--table-type", metavar="TYPE", help="type of a new table: COPY_ON_WRITE or MERGE_ON_READ")
    add("--source-class", default="JsonDFSSource", metavar="CLASS",
        help=f"{', '.join(SOURCES)} (default: the first)")  # fmt: skip
    add("--schemaprovider-class", metavar="CLASS", help=", ".join(PROVIDERS))
    add("--source-ordering-field", "--source-ordering-fields", metavar="COLUMN",
        help="the precombine field")  # fmt: skip
    add("--source-limit", type=_count, metavar="N",
        help="bytes of files, or messages of a topic, that a batch reads (about)")  # fmt: skip
    add("--filter-dupes", action="store_true", help="insert no row whose key the table has")
    add("--continuous", action="store_true", help="run until a signal")
    add("--min-sync-interval-seconds", type=_seconds, default=1.0, metavar="S",
        help="with --continuous: seconds between two looks (default 1)")  # fmt: skip
    add("--checkpoint-path", metavar="FOLDER",
        help="Spark's checkpoint (default FILE.checkpoint; needed without FILE)")  # fmt: skip
    add("--hoodie-conf", action="append", default=[], metavar="KEY=VALUE",
        help="a property; overrides FILE")  # fmt: skip
    add("--endpoint", metavar="URL", help="address of the object store")
    add("--master", "--spark-master", default="local[*]", metavar="URL",
        help="Spark's master (default local[*])")  # fmt: skip
    add("--conf", action="append", default=[], metavar="KEY=VALUE", help="Spark's configuration")
    given = set(found._option_string_actions)
    for flag in (*INTO_PROPERTIES, *REFUSED, *IDLE):
        if flag not in given:
            names = [each for each in (flag, ALSO.get(flag)) if each]
            add(*names, nargs="?", const="true", help=argparse.SUPPRESS)
    return found


def _operation(text: str) -> str:
    found = text.lower()
    if found not in OPS:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: choose {', '.join(OPS)}")
    return found


def _count(text: str) -> int:
    if not is_count(text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from 1")
    return int(text)


def is_count(text: str) -> bool:
    """Whether it is a whole number from 1 that Java's Long holds."""
    return text.isascii() and text.isdecimal() and len(text) < 19 and int(text) > 0


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of seconds")
    return found


def _given(given: argparse.Namespace, flag: str) -> str | None:
    found = getattr(given, flag.lstrip("-").replace("-", "_"), None)
    return None if found is None or str(found).lower() == "false" else str(found)


def work_of(given: argparse.Namespace) -> StreamJob:
    """Raises `TableError` for a flag, a property or a file that cannot be used."""
    for flag, why in REFUSED.items():
        if _given(given, flag):
            raise RefusedOption(flag, f"is refused: {why}", "leave it out")
    for flag in IDLE:
        if _given(given, flag):
            sys.stderr.write(f"note: {flag} has no effect here\n")
    for name, value in vars(given).items():
        if value == "":
            raise RefusedOption(f"--{name.replace('_', '-')}", "is empty", "leave it out")
    if not given.master.startswith(MASTERS):
        cure = f"begin with one of {', '.join(MASTERS)}"
        raise RefusedOption("--master", "is none of Spark's", cure, value=given.master[:80])
    props = pairs("--hoodie-conf", given.hoodie_conf)
    if given.props:
        try:
            props = parse_properties(_local(given.props).read_bytes()) | props
        except OSError as error:
            why = f"cannot be read: {error.strerror}"
            raise RefusedOption("--props", why, value=given.props) from None
    elif not given.checkpoint_path:
        raise RefusedOption("--checkpoint-path", "is missing, and no --props names a place for it")
    if (said := props.get(WRITE + "operation", given.op)).lower() != given.op:
        why = f"is not --op {given.op}, which decides, as in Hudi's streamer"
        raise RefusedOption(WRITE + "operation", why, "pass it as --op", value=said[:40])
    props[WRITE + "operation"] = given.op
    props |= {key: said for flag, key in INTO_PROPERTIES.items() if (said := _given(given, flag))}
    _refuse_compaction_on_and_off(given, props)
    if given.filter_dupes:
        if given.op not in ("insert", "bulk_insert"):
            raise RefusedOption("--filter-dupes", "is for --op INSERT or BULK_INSERT")
        props[WRITE + "insert.drop.duplicates"] = "true"
    url = given.target_base_path or props.get("hoodie.base.path")
    if not url:
        raise RefusedOption(
            "--target-base-path", "is missing", "pass --target-base-path s3://bucket/table"
        )
    kind = SOURCES.get(given.source_class.rpartition(".")[2])
    if kind is None:
        raise RefusedOption(
            "--source-class", "is not known here", f"choose {', '.join(SOURCES)}",
            value=given.source_class[:80],
        )  # fmt: skip
    checkpoint = given.checkpoint_path or f"{_local(given.props).absolute()}.checkpoint"
    found = StreamJob(
        url, kind, props, checkpoint, given.endpoint, given.continuous,
        given.min_sync_interval_seconds, given.source_limit,
    )  # fmt: skip
    found = replace(found, registry=_is_from_registry(given.schemaprovider_class, found))
    found.check()
    write_options(found.options)
    for key in () if kind.startswith("kafka") else sorted({*props} - {*found.options}):
        sys.stderr.write(f"note: {clipped(key, 80)} has no effect here\n")
    return found


def _refuse_compaction_on_and_off(given: argparse.Namespace, props: Mapping[str, str]) -> None:
    """As Hudi's streamer, which compares the flag with what its client was configured to do."""
    for key in COMPACT_KEYS if _given(given, "--disable-compaction") else ():
        if is_on(lowered(props), key):
            why = f"is refused beside {key}=true, the compaction that it switches off"
            raise RefusedOption("--disable-compaction", why, "leave one of them out")


def _is_from_registry(said: str | None, work: StreamJob) -> bool:
    file, registry = work.said(SCHEMA), work.said(REGISTRY)
    if said is None:
        if file and registry:
            raise RefusedOption(
                f"{PREFIXES[0]}{SCHEMA}", f"and {PREFIXES[0]}{REGISTRY} are both set",
                f"name the one that counts by --schemaprovider-class {' or '.join(PROVIDERS)}",
            )  # fmt: skip
        return registry is not None
    name = said.rpartition(".")[2]
    if name not in PROVIDERS:
        raise RefusedOption(
            "--schemaprovider-class", "is not known here", f"choose {', '.join(PROVIDERS)}",
            value=said[:100],
        )  # fmt: skip
    work.needs(SCHEMA if name == PROVIDERS[0] else REGISTRY)
    return name == PROVIDERS[1]


def _local(props: str) -> Path:
    """The file of a path, or of a `file:` URL."""
    parts = urlsplit(props.replace("?", "%3F").replace("#", "%23"))
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    if "://" in props:
        raise RefusedOption(
            "--props", "is not on this machine", "name a file of this machine", value=props[:200]
        )
    return Path(props)


def pairs(flag: str, said: list[str]) -> dict[str, str]:
    for each in said:
        if not each.partition("=")[0].strip() or "=" not in each:
            raise RefusedOption(flag, "is not KEY=VALUE", value=clipped(each, 80))
    return {key.strip(): value for key, _, value in (each.partition("=") for each in said)}
