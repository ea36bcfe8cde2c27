"""hoodie.properties: the names and values that several modules use, and the file's own syntax."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from types import MappingProxyType

from lockkit.table.errors import DamagedFile
from lockkit.table.format.kept import kept

LAYOUTS = {"6": "1", "8": "2", "9": "2"}
"""The timeline's layout, by table version."""
TYPE = "hoodie.table.type"
RECORD_KEYS, PARTITION_FIELDS = "hoodie.table.recordkey.fields", "hoodie.table.partition.fields"
COPY_ON_WRITE, MERGE_ON_READ = "COPY_ON_WRITE", "MERGE_ON_READ"
INDEX, BUCKET_INDEX = "hoodie.index.type", "BUCKET"
HASHED_KEY = "hoodie.datasource.write.recordkey.field"
"""Beside `INDEX`, without which Hudi's Spark writers would take another index: the client of a
procedure takes both from the table, and in Hudi 1.2 ends with a NullPointerException without it."""
BUCKETS, BUCKETS_MAX = "lockkit.bucket.count", 10_000
NUM_BUCKETS = "hoodie.bucket.index.num.buckets"
MODE = "lockkit.commit.mode"
FENCED, HUDI = "fenced", "hudi"
FENCE_FORMAT, GROUPED = "lockkit.fence.format", ("4", "3")
"""Of a table with group commit; an earlier lockkit wrote 3."""
TABLE_ID = "lockkit.fence.table"
"""Of a table that had group commit: the id in its fence, which another table does not have."""
SERIAL, GROUP = "serial", "group"
"""How a fenced table commits: one at a time under its lock, or several together."""
METADATA = ("hoodie.table.metadata.partitions", "hoodie.table.metadata.partitions.inflight")
"""What the metadata table has, and what is being added to it."""
NO_METADATA = {"hoodie.metadata.enable": "false"}
BLOCKED = {"lockkit.metadata.blocked": "true"}
LAYOUT = "hoodie.timeline.layout.version"
BLOCK_KEY = ".hoodie/metadata/.hoodie/timeline/20000101000000000.restore.requested"
RECORD_INDEX, ELSEWHERE = "record_index", "lockkit.rows.elsewhere"
"""With this index, or property, rows may lie in another folder than their partition field says."""
DROP_COLUMNS = "hoodie.datasource.write.drop.partition.columns"
HIVE_STYLE = "hoodie.datasource.write.hive_style_partitioning"
URLENCODE = "hoodie.datasource.write.partitionpath.urlencode"
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Of a column."""
FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
KEY_CLASS = "hoodie.table.keygenerator.class"
KEY_TYPE = "hoodie.table.keygenerator.type"
SIMPLE_KEYS = "org.apache.hudi.keygen.SimpleKeyGenerator"
NO_PARTITION = "org.apache.hudi.keygen.NonpartitionedKeyGenerator"
SIMPLE, COMPLEX, UNPARTITIONED = "SIMPLE", "COMPLEX", "NON_PARTITION"
TIMESTAMP, CUSTOM = "TIMESTAMP", "CUSTOM"
KEY_CLASSES = {
    SIMPLE: SIMPLE_KEYS, COMPLEX: "org.apache.hudi.keygen.ComplexKeyGenerator",
    UNPARTITIONED: NO_PARTITION, CUSTOM: "org.apache.hudi.keygen.CustomKeyGenerator",
    TIMESTAMP: "org.apache.hudi.keygen.TimestampBasedKeyGenerator",
}  # fmt: skip
"""The class of each type of key generator."""
MERGER = ("hoodie.record.merge.strategy.id", "hoodie.compaction.record.merger.strategy")
"""The second one is the name of Hudi 0.13 to 0.15. So for the next."""
MERGERS = ("eeb8d96f-b1e4-49fd-bbf8-28ac514178e5", "ce9acb64-bde0-424c-9b91-f6ebba25356d",
           "00000000-0000-0000-0000-000000000000")  # fmt: skip
"""By event time, by commit time, and as the payload's class says."""
BASE_FORMAT = ("hoodie.table.base.file.format", "hoodie.table.ro.file.format")
PRECOMBINE = "hoodie.table.precombine.field"
ORDERING = "hoodie.table.ordering.fields"
TIMEZONE = "hoodie.table.timeline.timezone"
LOG_FORMAT = "hoodie.logfile.data.block.format"
LOG_FORMATS = AVRO_BLOCKS, PARQUET_BLOCKS = "avro", "parquet"
MERGE_MODE = "hoodie.record.merge.mode"
MERGE_RULE = "hoodie.record.merge.property."
"""What begins so is a rule of its own: which rows count as deleted, for example."""
BY_EVENT, BY_COMMIT = "EVENT_TIME_ORDERING", "COMMIT_TIME_ORDERING"
PAYLOAD = "hoodie.compaction.payload.class"
EVENT_PAYLOAD = "org.apache.hudi.common.model.DefaultHoodieRecordPayload"
LATEST_PAYLOAD = "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload"


def no_metadata(layout: str) -> dict[str, str]:
    """Hudi's writers make no metadata table: Spark's obey the first, `block_metadata` stops others.

    In layout 1 Hudi makes one only under the table's lock, and a block would stop its upgrade.
    """
    return NO_METADATA if layout == "1" else NO_METADATA | BLOCKED


def checksum(name: str, database: str = "") -> int:
    """`hoodie.table.checksum`: CRC32 of `<database>.<table>`, as Hudi computes it."""
    return zlib.crc32(f"{database}.{name}".encode())


def key_type(record_key: str, partition_by: str | None, named: bool = False) -> str:
    """The type of key generator that Hudi infers from the fields, unless it is `named`: COMPLEX."""
    if named or (partition_by and "," in record_key + partition_by):
        return COMPLEX
    return SIMPLE if partition_by else UNPARTITIONED


def precombine_of(keys: Mapping[str, str]) -> str | None:
    """What orders the versions of a row; None: the later commit wins.

    Tables of Hudi before 1.0 name a payload class, from which Hudi 1.x infers the merge mode.
    """
    by_commit = keys.get(MERGE_MODE) == BY_COMMIT or (
        not keys.get(MERGE_MODE) and keys.get(PAYLOAD) == LATEST_PAYLOAD
    )
    # Hudi 1.1 writes `ordering.fields` into tables of version 6 too.
    return None if by_commit else keys.get(ORDERING) or keys.get(PRECOMBINE) or None


PROPERTIES_BYTES_MAX = 1_000_000


def format_properties(keys: Mapping[str, str]) -> bytes:
    """Sorted lines, escaped as `java.util.Properties` escapes them; equal keys give equal bytes."""
    return "".join(f"{_escape(k)}={_escape(v)}\n" for k, v in sorted(keys.items())).encode("ascii")


def _escape(text: str) -> str:
    escaped = re.sub(r"([\\=:#! ])", r"\\\1", text).replace("\n", "\\n").replace("\r", "\\r")
    units = escaped.encode("utf-16-be", "surrogatepass")
    pairs = [int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2)]
    return "".join(chr(u) if 0x20 <= u < 0x7F else f"\\u{u:04x}" for u in pairs)


@kept(8, 16_000)
def parse_properties(body: bytes) -> MappingProxyType[str, str]:
    """The keys of a properties file. Other content gives keys that are never used."""
    if len(body) > PROPERTIES_BYTES_MAX:
        raise DamagedFile(
            "hoodie.properties", f"has {len(body)} bytes and is not a table's properties file"
        )
    text = re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t\f]*", r"\1", body.decode("latin-1"))
    keys: dict[str, str] = {}
    for line in re.split(r"\r\n|\n|\r", text):
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        if match := re.match(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", line):
            keys[_unescape(match[1])] = _unescape(match[2])
    return MappingProxyType(keys)


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}.get(match[2], match[2])

    plain = re.sub(r"\\(?:u([0-9A-Fa-f]{4})|(.))", one, text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
