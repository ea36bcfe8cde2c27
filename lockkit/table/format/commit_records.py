"""The Avro schemas of a commit, and functions to build schemas; `records` has the others."""

from __future__ import annotations

from typing import Any

Schema = Any
"""A schema as parsed JSON: a string, a list (union) or an object."""

STRING = {"type": "string", "avro.java.string": "String"}
_NAMESPACE = "org.apache.hudi.avro.model"


def optional(schema: Schema) -> Schema:
    return ["null", schema]


def listed(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def mapped(values: Schema) -> Schema:
    return {"type": "map", "values": values, "avro.java.string": "String"}


def _field(name: str, schema: Schema) -> Schema:
    """Nullable unless it is plain; Hudi's `version` is 1 by default."""
    field = {"name": name, "type": schema}
    return {**field, "default": None} if isinstance(schema, list) and schema[0] == "null" else field


def record(name: str, **fields: Schema) -> Schema:
    return {
        "type": "record",
        "name": name,
        "fields": [_field(each, schema) for each, schema in fields.items()],
    }


def top(name: str, **fields: Schema) -> Schema:
    return {**record(name, **fields), "namespace": _NAMESPACE}


TEXT, LONG, FLAG = optional(STRING), optional("long"), optional("boolean")
VERSION = ["int", "null"]
EXTRA = optional(mapped(STRING))

# --- commits --------------------------------------------------------------------------------------

_RUNTIME = record("HoodieRuntimeStats", totalScanTime=LONG, totalCreateTime=LONG,
                   totalUpsertTime=LONG)  # fmt: skip
_STAT = record(
    "HoodieWriteStat",
    fileId=TEXT, path=TEXT, prevCommit=TEXT, numWrites=LONG, numDeletes=LONG,
    numUpdateWrites=LONG, totalWriteBytes=LONG, totalWriteErrors=LONG, partitionPath=TEXT,
    totalLogRecords=LONG, totalLogFiles=LONG, totalUpdatedRecordsCompacted=LONG,
    numInserts=LONG, totalLogBlocks=LONG, totalCorruptLogBlock=LONG, totalRollbackBlocks=LONG,
    fileSizeInBytes=LONG, logVersion=optional("int"), logOffset=LONG, baseFile=TEXT,
    logFiles=optional(listed(STRING)), cdcStats=optional(mapped("long")), prevBaseFile=TEXT,
    minEventTime=LONG, maxEventTime=LONG, runtimeStats=optional(_RUNTIME),
    totalLogFilesCompacted=LONG, totalLogReadTimeMs=LONG, totalLogSizeCompacted=LONG,
    tempPath=TEXT, numUpdates=LONG,
)  # fmt: skip
_COMMIT = {
    "partitionToWriteStats": optional(mapped(listed(_STAT))),
    "compacted": FLAG,
    "extraMetadata": EXTRA,
    "version": VERSION,
    "operationType": TEXT,
}
COMMIT = top("HoodieCommitMetadata", **_COMMIT)
REPLACE_COMMIT = top(
    "HoodieReplaceCommitMetadata",
    **_COMMIT,
    partitionToReplaceFileIds=optional(mapped(listed(STRING))),
)
