"""Hudi's Avro records: the schemas of what is written as an object container.

As Apache Hudi 1.2 embeds them; the plans are the same in table versions 6 and 9. Other versions of
Hudi have a field more or less, so a reader goes by the schema in the file, and by names.
"""

from __future__ import annotations

from lockkit.table.format.commit_records import COMMIT as COMMIT
from lockkit.table.format.commit_records import (
    EXTRA,
    FLAG,
    STRING,
    TEXT,
    VERSION,
    listed,
    mapped,
    optional,
    record,
    top,
)
from lockkit.table.format.commit_records import REPLACE_COMMIT as REPLACE_COMMIT

# --- rollbacks ------------------------------------------------------------------------------------

INSTANT = record("HoodieInstantInfo", commitTime=STRING, action=STRING)
_ROLLBACK_REQUEST = record(
    "HoodieRollbackRequest",
    partitionPath=STRING, fileId=TEXT, latestBaseInstant=TEXT, filesToBeDeleted=listed(STRING),
    logBlocksToBeDeleted=optional(mapped("long")),
)  # fmt: skip
ROLLBACK_PLAN = top(
    "HoodieRollbackPlan",
    instantToRollback=optional(INSTANT),
    RollbackRequests=optional(listed(_ROLLBACK_REQUEST)),
    version=VERSION,
)
_ROLLED_BACK = record(
    "HoodieRollbackPartitionMetadata",
    partitionPath=STRING, successDeleteFiles=listed(STRING), failedDeleteFiles=listed(STRING),
    rollbackLogFiles=optional(mapped("long")), logFilesFromFailedCommit=optional(mapped("long")),
)  # fmt: skip
ROLLBACK = top(
    "HoodieRollbackMetadata",
    startRollbackTime=STRING, timeTakenInMillis="long", totalFilesDeleted="int",
    commitsRollback=listed(STRING), partitionMetadata=mapped(_ROLLED_BACK), version=VERSION,
    instantsRollback=listed(INSTANT),
)  # fmt: skip

# --- cleaning -------------------------------------------------------------------------------------

_RETAINED = record("HoodieActionInstant", timestamp=STRING, action=STRING, state=STRING)
_CLEAN_FILE = record("HoodieCleanFileInfo", filePath=TEXT, isBootstrapBaseFile=FLAG)
CLEAN_PLAN = top(
    "HoodieCleanerPlan",
    earliestInstantToRetain=optional(_RETAINED), lastCompletedCommitTimestamp=STRING,
    policy=STRING, filesToBeDeletedPerPartition=optional(mapped(listed(STRING))), version=VERSION,
    filePathsToBeDeletedPerPartition=optional(mapped(listed(_CLEAN_FILE))),
    partitionsToBeDeleted=optional(listed(STRING)), extraMetadata=EXTRA,
)  # fmt: skip
_CLEANED = record(
    "HoodieCleanPartitionMetadata",
    partitionPath=STRING, policy=STRING, deletePathPatterns=listed(STRING),
    successDeleteFiles=listed(STRING), failedDeleteFiles=listed(STRING), isPartitionDeleted=FLAG,
)  # fmt: skip
CLEAN = top(
    "HoodieCleanMetadata",
    startCleanTime=STRING, timeTakenInMillis="long", totalFilesDeleted="int",
    earliestCommitToRetain=STRING, lastCompletedCommitTimestamp=STRING,
    partitionMetadata=mapped(_CLEANED), version=VERSION,
    bootstrapPartitionMetadata=optional(mapped("HoodieCleanPartitionMetadata")),
    extraMetadata=EXTRA,
)  # fmt: skip

# --- compaction -----------------------------------------------------------------------------------

_COMPACTED = record(
    "HoodieCompactionOperation",
    baseInstantTime=TEXT, deltaFilePaths=optional(listed(STRING)), dataFilePath=TEXT, fileId=TEXT,
    partitionPath=TEXT, metrics=optional(mapped("double")), bootstrapFilePath=TEXT,
)  # fmt: skip
_COMPACTION = record(
    "HoodieCompactionStrategy", compactorClassName=TEXT, strategyParams=EXTRA, version=VERSION
)
COMPACTION_PLAN = top(
    "HoodieCompactionPlan",
    operations=optional(listed(_COMPACTED)), extraMetadata=EXTRA, version=VERSION,
    strategy=optional(_COMPACTION), preserveHoodieMetadata=["boolean", "null"],
    missingSchedulePartitions=optional(listed(STRING)),
)  # fmt: skip

# --- replacing ------------------------------------------------------------------------------------

_SLICE = record(
    "HoodieSliceInfo",
    dataFilePath=TEXT, deltaFilePaths=optional(listed(STRING)), fileId=TEXT, partitionPath=TEXT,
    bootstrapFilePath=TEXT, version=VERSION,
)  # fmt: skip
_GROUP = record(
    "HoodieClusteringGroup",
    slices=optional(listed(_SLICE)), metrics=optional(mapped("double")),
    numOutputFileGroups=VERSION, extraMetadata=EXTRA, version=VERSION,
)  # fmt: skip
_STRATEGY = record(
    "HoodieClusteringStrategy", strategyClassName=TEXT, strategyParams=EXTRA, version=VERSION
)
_CLUSTERING = record(
    "HoodieClusteringPlan",
    inputGroups=optional(listed(_GROUP)), strategy=optional(_STRATEGY), extraMetadata=EXTRA,
    version=VERSION, preserveHoodieMetadata=FLAG,
    missingSchedulePartitions=optional(listed(STRING)),
)  # fmt: skip
REPLACE_PLAN = top(
    "HoodieRequestedReplaceMetadata",
    operationType=TEXT, clusteringPlan=optional(_CLUSTERING), extraMetadata=EXTRA,
    version=VERSION,
)  # fmt: skip
