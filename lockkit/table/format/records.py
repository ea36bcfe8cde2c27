"""Hudi's Avro records: the schemas of what is written as an object container.

As Apache Hudi 1.2 embeds them; the plans are the same in table versions 6 and 9. Other versions of
Hudi have a field more or less, so a reader goes by the schema in the file, and by names.
"""

from __future__ import annotations

from typing import Any

Schema = Any
"""A schema as parsed JSON: a string, a list (union) or an object."""

STRING = {"type": "string", "avro.java.string": "String"}
_NAMESPACE = "org.apache.hudi.avro.model"


def _optional(schema: Schema) -> Schema:
    return ["null", schema]


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _map(values: Schema) -> Schema:
    return {"type": "map", "values": values, "avro.java.string": "String"}


def _field(name: str, schema: Schema) -> Schema:
    """Nullable unless it is plain; `version`, Hudi's, is 1 where nothing else is said."""
    field = {"name": name, "type": schema}
    return {**field, "default": None} if isinstance(schema, list) and schema[0] == "null" else field


def _record(name: str, **fields: Schema) -> Schema:
    return {
        "type": "record",
        "name": name,
        "fields": [_field(each, schema) for each, schema in fields.items()],
    }


def _top(name: str, **fields: Schema) -> Schema:
    return {**_record(name, **fields), "namespace": _NAMESPACE}


_TEXT, _LONG, _FLAG = _optional(STRING), _optional("long"), _optional("boolean")
_VERSION = ["int", "null"]
_EXTRA = _optional(_map(STRING))

# --- commits --------------------------------------------------------------------------------------

_RUNTIME = _record("HoodieRuntimeStats", totalScanTime=_LONG, totalCreateTime=_LONG,
                   totalUpsertTime=_LONG)  # fmt: skip
_STAT = _record(
    "HoodieWriteStat",
    fileId=_TEXT, path=_TEXT, prevCommit=_TEXT, numWrites=_LONG, numDeletes=_LONG,
    numUpdateWrites=_LONG, totalWriteBytes=_LONG, totalWriteErrors=_LONG, partitionPath=_TEXT,
    totalLogRecords=_LONG, totalLogFiles=_LONG, totalUpdatedRecordsCompacted=_LONG,
    numInserts=_LONG, totalLogBlocks=_LONG, totalCorruptLogBlock=_LONG, totalRollbackBlocks=_LONG,
    fileSizeInBytes=_LONG, logVersion=_optional("int"), logOffset=_LONG, baseFile=_TEXT,
    logFiles=_optional(_list(STRING)), cdcStats=_optional(_map("long")), prevBaseFile=_TEXT,
    minEventTime=_LONG, maxEventTime=_LONG, runtimeStats=_optional(_RUNTIME),
    totalLogFilesCompacted=_LONG, totalLogReadTimeMs=_LONG, totalLogSizeCompacted=_LONG,
    tempPath=_TEXT, numUpdates=_LONG,
)  # fmt: skip
_COMMIT = {
    "partitionToWriteStats": _optional(_map(_list(_STAT))),
    "compacted": _FLAG,
    "extraMetadata": _EXTRA,
    "version": _VERSION,
    "operationType": _TEXT,
}
COMMIT = _top("HoodieCommitMetadata", **_COMMIT)
REPLACE_COMMIT = _top(
    "HoodieReplaceCommitMetadata",
    **_COMMIT,
    partitionToReplaceFileIds=_optional(_map(_list(STRING))),
)

# --- rollbacks ------------------------------------------------------------------------------------

_INSTANT = _record("HoodieInstantInfo", commitTime=STRING, action=STRING)
_ROLLBACK_REQUEST = _record(
    "HoodieRollbackRequest",
    partitionPath=STRING, fileId=_TEXT, latestBaseInstant=_TEXT, filesToBeDeleted=_list(STRING),
    logBlocksToBeDeleted=_optional(_map("long")),
)  # fmt: skip
ROLLBACK_PLAN = _top(
    "HoodieRollbackPlan",
    instantToRollback=_optional(_INSTANT),
    RollbackRequests=_optional(_list(_ROLLBACK_REQUEST)),
    version=_VERSION,
)
_ROLLED_BACK = _record(
    "HoodieRollbackPartitionMetadata",
    partitionPath=STRING, successDeleteFiles=_list(STRING), failedDeleteFiles=_list(STRING),
    rollbackLogFiles=_optional(_map("long")), logFilesFromFailedCommit=_optional(_map("long")),
)  # fmt: skip
ROLLBACK = _top(
    "HoodieRollbackMetadata",
    startRollbackTime=STRING, timeTakenInMillis="long", totalFilesDeleted="int",
    commitsRollback=_list(STRING), partitionMetadata=_map(_ROLLED_BACK), version=_VERSION,
    instantsRollback=_list(_INSTANT),
)  # fmt: skip

# --- cleaning -------------------------------------------------------------------------------------

_RETAINED = _record("HoodieActionInstant", timestamp=STRING, action=STRING, state=STRING)
_CLEAN_FILE = _record("HoodieCleanFileInfo", filePath=_TEXT, isBootstrapBaseFile=_FLAG)
CLEAN_PLAN = _top(
    "HoodieCleanerPlan",
    earliestInstantToRetain=_optional(_RETAINED), lastCompletedCommitTimestamp=STRING,
    policy=STRING, filesToBeDeletedPerPartition=_optional(_map(_list(STRING))), version=_VERSION,
    filePathsToBeDeletedPerPartition=_optional(_map(_list(_CLEAN_FILE))),
    partitionsToBeDeleted=_optional(_list(STRING)), extraMetadata=_EXTRA,
)  # fmt: skip
_CLEANED = _record(
    "HoodieCleanPartitionMetadata",
    partitionPath=STRING, policy=STRING, deletePathPatterns=_list(STRING),
    successDeleteFiles=_list(STRING), failedDeleteFiles=_list(STRING), isPartitionDeleted=_FLAG,
)  # fmt: skip
CLEAN = _top(
    "HoodieCleanMetadata",
    startCleanTime=STRING, timeTakenInMillis="long", totalFilesDeleted="int",
    earliestCommitToRetain=STRING, lastCompletedCommitTimestamp=STRING,
    partitionMetadata=_map(_CLEANED), version=_VERSION,
    bootstrapPartitionMetadata=_optional(_map("HoodieCleanPartitionMetadata")),
    extraMetadata=_EXTRA,
)  # fmt: skip

# --- replacing ------------------------------------------------------------------------------------

_SLICE = _record(
    "HoodieSliceInfo",
    dataFilePath=_TEXT, deltaFilePaths=_optional(_list(STRING)), fileId=_TEXT, partitionPath=_TEXT,
    bootstrapFilePath=_TEXT, version=_VERSION,
)  # fmt: skip
_GROUP = _record(
    "HoodieClusteringGroup",
    slices=_optional(_list(_SLICE)), metrics=_optional(_map("double")),
    numOutputFileGroups=_VERSION, extraMetadata=_EXTRA, version=_VERSION,
)  # fmt: skip
_STRATEGY = _record(
    "HoodieClusteringStrategy", strategyClassName=_TEXT, strategyParams=_EXTRA, version=_VERSION
)
_CLUSTERING = _record(
    "HoodieClusteringPlan",
    inputGroups=_optional(_list(_GROUP)), strategy=_optional(_STRATEGY), extraMetadata=_EXTRA,
    version=_VERSION, preserveHoodieMetadata=_FLAG,
    missingSchedulePartitions=_optional(_list(STRING)),
)  # fmt: skip
REPLACE_PLAN = _top(
    "HoodieRequestedReplaceMetadata",
    operationType=_TEXT, clusteringPlan=_optional(_CLUSTERING), extraMetadata=_EXTRA,
    version=_VERSION,
)  # fmt: skip
