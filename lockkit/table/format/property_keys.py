"""Names and values of hoodie.properties that several modules use."""

from __future__ import annotations

import zlib

LAYOUTS = {"6": "1", "9": "2"}
"""The timeline's layout, by table version."""
TYPE = "hoodie.table.type"
COPY_ON_WRITE, MERGE_ON_READ = "COPY_ON_WRITE", "MERGE_ON_READ"
INDEX, BUCKET_INDEX = "hoodie.index.type", "BUCKET"
NUM_BUCKETS = "hoodie.bucket.index.num.buckets"
MODE = "lockkit.commit.mode"
FENCED, HUDI = "fenced", "hudi"
FENCE_FORMAT = "lockkit.fence.format"
TABLE_ID = "lockkit.fence.table"
"""Of a table that had group commit: the id in its fence, which another table does not have."""
SERIAL, GROUP = "serial", "group"
"""How a fenced table commits: one at a time under its lock, or several together."""
METADATA = ("hoodie.table.metadata.partitions", "hoodie.table.metadata.partitions.inflight")
"""What the metadata table has, and what is being added to it."""
RECORD_INDEX, ELSEWHERE = "record_index", "lockkit.rows.elsewhere"
"""With this index, or property, rows may lie in another folder than their partition field says."""
DROP_COLUMNS = "hoodie.datasource.write.drop.partition.columns"
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
PRECOMBINE = "hoodie.table.precombine.field"
ORDERING = "hoodie.table.ordering.fields"
TIMEZONE = "hoodie.table.timeline.timezone"
LOG_FORMAT = "hoodie.logfile.data.block.format"
LOG_FORMATS = AVRO_BLOCKS, PARQUET_BLOCKS = "avro", "parquet"
MERGE_MODE = "hoodie.record.merge.mode"
BY_EVENT, BY_COMMIT = "EVENT_TIME_ORDERING", "COMMIT_TIME_ORDERING"
PAYLOAD = "hoodie.compaction.payload.class"
EVENT_PAYLOAD = "org.apache.hudi.common.model.DefaultHoodieRecordPayload"
LATEST_PAYLOAD = "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload"


def checksum(name: str, database: str = "") -> int:
    """`hoodie.table.checksum`: CRC32 of `<database>.<table>`, as Hudi computes it."""
    return zlib.crc32(f"{database}.{name}".encode())


def key_type(record_key: str, partition_by: str | None, named: bool = False) -> str:
    """The type of key generator that Hudi infers from the fields, unless it is `named`: COMPLEX."""
    if named or (partition_by and "," in record_key + partition_by):
        return COMPLEX
    return SIMPLE if partition_by else UNPARTITIONED
