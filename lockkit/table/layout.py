"""What a commit writes down: the statistics of its files, by partition and file group.

The body of `T.inflight` and `T.commit` in Hudi's table version 6, as JSON. The two are equal byte
for byte, so that whoever rolls a commit forward writes the very file that its writer would have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lockkit.table.ask import TableError
from lockkit.table.properties import TableConfig

FileGroup = tuple[str, str]
"""(partition, file id): the unit of conflict."""

NO_COMMIT = "null"
"""Hudi's word in `prevCommit` for a file group that had no slice before."""
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
METADATA_BYTES_MAX = 64_000_000
PARTITION_FILE = ".hoodie_partition_metadata"
_FILE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}")
_FILE_NAME = re.compile(r"([^_/]+)_(\d+-\d+-\d+)_(\d{17}|\d{14})\.parquet")
# What Hive and Hudi escape in a partition's path; until that is built, such a value is refused.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^]")


@dataclass(frozen=True, slots=True)
class TaskId:
    """Which attempt of which task writes; part of the file's name, so that two never meet."""

    task: int = 0
    stage: int = 0
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStat:
    """What happened to one file group: Hudi's HoodieWriteStat, in our spelling."""

    partition: str
    file_id: str
    path: str
    previous: str = NO_COMMIT
    writes: int
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    size_bytes: int

    @property
    def group(self) -> FileGroup:
        return self.partition, self.file_id

    def to_row(self) -> dict[str, Any]:
        """A flat row, so that an executor can send it home through a DataFrame."""
        return asdict(self)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> WriteStat:
        return cls(**{name: row[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class CommitFiles:
    """What one completed commit did, as its file says."""

    instant: str
    operation: str
    stats: tuple[WriteStat, ...]
    replaced: frozenset[FileGroup]
    schema: str | None
    attempt: str | None

    @property
    def writes(self) -> frozenset[FileGroup]:
        """Every file group that it wrote or took away."""
        return frozenset(stat.group for stat in self.stats) | self.replaced


# --- names --------------------------------------------------------------------------------------


def partition_path(config: TableConfig, value: object) -> str:
    """`region=EU`; the empty path where the table is not partitioned."""
    if config.partition_by is None:
        return ""
    text = NO_VALUE if value is None else str(value)
    if not text or text.strip(". ") == "" or _UNSAFE.search(text) or not text.isprintable():
        raise TableError(
            f"{config.partition_by}={text[:60]!r} cannot name a partition: its path would need "
            "escaping, which is not written yet; replace the value"
        )
    return f"{config.partition_by}={text}"


def file_name(file_id: str, instant: str, task: TaskId = TaskId()) -> str:
    """`<file id>_<task>-<stage>-<attempt>_<T>.parquet`; a new slice keeps the file id."""
    if not _FILE_ID.fullmatch(file_id):
        raise TableError(
            f"{file_id[:60]!r} cannot be a file id: letters, digits, dots and dashes, at most 100"
        )
    return f"{file_id}_{task.task}-{task.stage}-{task.attempt}_{instant}.parquet"


def in_partition(partition: str, name: str) -> str:
    return f"{partition}/{name}" if partition else name


def partition_file(partition: str, instant: str) -> tuple[str, bytes]:
    """The key and body of the file that tells Hudi that a folder is a partition."""
    depth = len(partition.split("/")) if partition else 0
    return in_partition(partition, PARTITION_FILE), (
        f"#partition metadata\ncommitTime={instant}\npartitionDepth={depth}\n".encode()
    )


# --- the body of T.inflight and T.commit ----------------------------------------------------------


def format_commit(
    stats: Iterable[WriteStat], *, operation: str, schema: str, attempt: str,
    extra: Mapping[str, str] | None = None,
) -> bytes:  # fmt: skip
    """The commit's file.

    `attempt` stands at the top level, where a server's record finds it: Hudi's class is annotated
    `@JsonIgnoreProperties(ignoreUnknown = true)` in every version, and hudi-rs's serde ignores
    unknown fields too. It stands in `extraMetadata` as well, which survives a rewrite as Avro.
    """
    by_partition: dict[str, list[dict[str, Any]]] = {}
    for stat in sorted(stats, key=lambda each: (each.group, each.path)):
        by_partition.setdefault(stat.partition, []).append(_to_hudi(stat))
    body = {
        "partitionToWriteStats": by_partition,
        "compacted": False,
        "extraMetadata": {**(extra or {}), "schema": schema, "lockkit.attempt": attempt},
        "operationType": operation,
        "attempt": attempt,
    }
    return json.dumps(body, indent=2, ensure_ascii=True).encode()


def _to_hudi(stat: WriteStat) -> dict[str, Any]:
    return {
        "fileId": stat.file_id,
        "path": stat.path,
        "cdcStats": None,
        "prevCommit": stat.previous,
        "numWrites": stat.writes,
        "numDeletes": stat.deletes,
        "numUpdateWrites": stat.updates,
        "numInserts": stat.inserts,
        "totalWriteBytes": stat.size_bytes,
        "totalWriteErrors": 0,
        "tempPath": None,
        "partitionPath": stat.partition,
        "totalLogRecords": 0,
        "totalLogFilesCompacted": 0,
        "totalLogSizeCompacted": 0,
        "totalUpdatedRecordsCompacted": 0,
        "totalLogBlocks": 0,
        "totalCorruptLogBlock": 0,
        "totalRollbackBlocks": 0,
        "fileSizeInBytes": stat.size_bytes,
        "minEventTime": None,
        "maxEventTime": None,
    }


def parse_commit(instant: str, key: str, body: bytes) -> CommitFiles:
    """What a commit's file says; `TableError` names the file where it says nothing sensible."""

    def broken(why: str) -> TableError:
        return TableError(
            f"{key} is not a commit's file ({why}); it is damaged or something else wrote it: "
            "restore it before anything else is written to this table"
        )

    if len(body) > METADATA_BYTES_MAX:
        raise broken(f"{len(body)} bytes")
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise broken("not JSON" if body else "empty") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("partitionToWriteStats"), dict):
        raise broken("no partitionToWriteStats")
    try:
        stats = tuple(
            _from_hudi(partition, each)
            for partition, of_partition in fields["partitionToWriteStats"].items()
            for each in _listed(of_partition)
        )
        replaced = frozenset(
            (str(partition), str(file_id))
            for partition, file_ids in (fields.get("partitionToReplaceFileIds") or {}).items()
            for file_id in _listed(file_ids)
        )
        extra = fields.get("extraMetadata") or {}
        schema = extra.get("schema")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise broken(f"{type(error).__name__} {str(error)[:80]}") from None
    attempt = fields.get("attempt")
    return CommitFiles(
        instant,
        str(fields.get("operationType", "UNKNOWN")),
        stats,
        replaced,
        schema if isinstance(schema, str) and schema else None,
        attempt if isinstance(attempt, str) else None,
    )


def _listed(value: object) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise TypeError(f"a list was expected, not {type(value).__name__}")
    return value


def _from_hudi(partition: str, fields: Mapping[str, Any]) -> WriteStat:
    file_id, path = fields["fileId"], fields["path"]
    if not isinstance(file_id, str) or not isinstance(path, str) or not file_id:
        raise ValueError("fileId and path must be strings")
    if path.startswith("/") or ".." in path.split("/") or not path.isprintable():
        raise ValueError(f"the path {path[:60]!r} leads out of the table")
    if path.rpartition("/")[0] != partition or not _FILE_NAME.fullmatch(path.rpartition("/")[2]):
        raise ValueError(f"the path {path[:60]!r} is no base file of partition {partition[:60]!r}")
    return WriteStat(
        partition=partition,
        file_id=file_id,
        path=path,
        previous=str(fields.get("prevCommit") or NO_COMMIT),
        writes=int(fields.get("numWrites") or 0),
        inserts=int(fields.get("numInserts") or 0),
        updates=int(fields.get("numUpdateWrites") or 0),
        deletes=int(fields.get("numDeletes") or 0),
        size_bytes=int(fields.get("fileSizeInBytes") or 0),
    )
