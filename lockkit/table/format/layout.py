"""The content of a commit: the statistics of its files, by partition and file group.

It is the body of both `T.inflight` and `T.commit`: JSON in Hudi's table version 6, Avro in version
9. The two files have equal bytes, so a process that rolls a commit forward writes the same file as
its writer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from lockkit.table.errors import DamagedFile, RefusedOption, RefusedRows
from lockkit.table.format import avro, commit_records
from lockkit.table.format.kept import kept
from lockkit.table.format.partition import is_inside

FileGroup = tuple[str, str]
"""(partition, file id): the unit of conflict."""

PLAIN = ("commit", "deltacommit", "compaction")
"""Actions that replace no file group."""
COMPACT = "COMPACT"
"""The operation of a compaction."""
NO_COMMIT = "null"
"""Hudi's value of `prevCommit` for a file group without an earlier slice."""
METADATA_BYTES_MAX = 64_000_000
EXTRA_BYTES_MAX = 100_000
"""The limit for a caller's data in a commit, such as the checkpoint of its source."""
COUNTS = ("numWrites", "numInserts", "numUpdateWrites", "numDeletes", "fileSizeInBytes")
PARTITION_FILE = ".hoodie_partition_metadata"
_FILE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}")
BASE_FILE = re.compile(r"([^_/]+)_([0-9]+-[0-9]+-[0-9]+)_([0-9]{17}|[0-9]{14})\.parquet")
LOG_FILE = re.compile(
    r"\.([^_/]+)_([0-9]{17}|[0-9]{14})\.log\.([0-9]{1,9})(?:_([0-9]+-[0-9]+-[0-9]+))?"
)
_TOKEN = re.compile(r"[0-9]+-([0-9]{8})-1([0-9]{9})")
ATTEMPT = "lockkit.attempt"
NO_BASE = ""
"""Used for tables without Hadoop writers, because a copied table has another address."""


@dataclass(frozen=True, slots=True)
class TaskId:
    """The task and attempt that write a file; part of its name, so that no two files share one.

    :param task, stage, attempt: Spark's numbers of them; 0 where nothing runs in parallel.
    """

    task: int = 0
    stage: int = 0
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStat:
    """What a commit did to one file group: Hudi's HoodieWriteStat.

    :param partition, file_id: the file group.
    :param path: the file's key below the table's folder.
    :param previous: the instant of the slice that it replaces; `"null"`: the group is new.
    :param writes: all rows of the file, of which `inserts` are new and `updates` are changed.
    :param inserts, updates, deletes: rows that the commit added, changed and removed.
    :param size_bytes: the file's size.
    """

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

    @property
    def is_log(self) -> bool:
        return self.path.rpartition("/")[2].startswith(".")

    def to_row(self) -> dict[str, Any]:
        """A flat row, which an executor can return in a DataFrame."""
        return asdict(self)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> WriteStat:
        return cls(**{name: row[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Overwritten:
    """The partitions that a commit empties, with all file groups, even ones it never read."""

    partitions: frozenset[str] = frozenset()
    whole_table: bool = False

    def __contains__(self, partition: str) -> bool:
        return self.whole_table or partition in self.partitions

    def __bool__(self) -> bool:
        return self.whole_table or bool(self.partitions)

    def __and__(self, other: Overwritten) -> Overwritten:
        """The partitions that both empty."""
        if self.whole_table:
            return other
        return Overwritten(frozenset(each for each in self.partitions if each in other))


NOWHERE = Overwritten()


def overwritten_by(operation: str, groups: Iterable[FileGroup]) -> Overwritten:
    """The partitions that a commit overwrites, by its operation and its file groups."""
    if operation == "INSERT_OVERWRITE_TABLE":
        return Overwritten(whole_table=True)
    if operation in ("INSERT_OVERWRITE", "DELETE_PARTITION"):
        return Overwritten(frozenset(partition for partition, _ in groups))
    return NOWHERE


@dataclass(frozen=True, slots=True)
class CommitFiles:
    """The content of one completed commit's file."""

    instant: str
    operation: str
    stats: tuple[WriteStat, ...]
    replaced: frozenset[FileGroup]
    schema: str | None
    attempt: str | None
    extra: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Further `extraMetadata`, which the writer stored with its rows."""
    completion: str = ""
    """Table version 9: the completion time, if the file's name says it."""

    @property
    def writes(self) -> frozenset[FileGroup]:
        """Every file group that it wrote or replaced."""
        return frozenset(stat.group for stat in self.stats) | self.replaced

    @property
    def overwrites(self) -> Overwritten:
        return overwritten_by(self.operation, self.writes)


# --- names --------------------------------------------------------------------------------------


def file_name(file_id: str, instant: str, task: TaskId = TaskId()) -> str:
    """`<file id>_<task>-<stage>-<attempt>_<T>.parquet`; a new slice keeps the file id."""
    if not _FILE_ID.fullmatch(file_id):
        raise RefusedOption(
            "file_id", "must be letters, digits, dots and dashes, at most 100", value=file_id[:60]
        )
    return f"{file_id}_{task.task}-{task.stage}-{task.attempt}_{instant}.parquet"


def write_token(instant: str, task: TaskId) -> str:
    """The end of a log file's name in version 6, whose instant is that of the slice: it says which
    commit of lockkit's wrote the file, so that no two commits choose one name.

    To Hudi it is three integers: of a task, a stage, and an attempt.
    """
    return f"{task.task}-{instant[:8]}-1{instant[8:]}"


def command_token(target: str) -> str:
    """The same of a log file that takes the instant `target` back."""
    return f"1{target[8:]}-{target[:8]}-0"


def is_written_by(path: str, instant: str) -> bool:
    """Whether the name of a data file says that this instant wrote it.

    In version 6 a log file of Hudi's says so only if that instant began the file group.
    """
    if (log := LOG_FILE.fullmatch(path.rpartition("/")[2])) is None:
        return path.endswith(f"_{instant}.parquet")
    token = _TOKEN.fullmatch(log[4] or "")
    return (token[1] + token[2] if token else log[2]) == instant


def in_partition(partition: str, name: str) -> str:
    return f"{partition}/{name}" if partition else name


def partition_file(partition: str, instant: str) -> tuple[str, bytes]:
    """The key and body of the file that marks a folder as a partition for Hudi."""
    depth = len(partition.split("/")) if partition else 0
    return in_partition(partition, PARTITION_FILE), (
        f"#partition metadata\ncommitTime={instant}\npartitionDepth={depth}\n".encode()
    )


# --- the body of T.inflight and T.commit ----------------------------------------------------------


def format_commit(
    stats: Iterable[WriteStat], *, operation: str, schema: str, attempt: str,
    action: str = "commit", replaced: frozenset[FileGroup] = frozenset(),
    extra: Mapping[str, str] | None = None, version: int = 6,
) -> bytes:  # fmt: skip
    """The commit's file; `replaced` are the file groups that a replacecommit or clustering ends.

    `attempt` is at the top level of the JSON, where a server's record finds it. Hudi's class has
    `@JsonIgnoreProperties(ignoreUnknown = true)` in every version, and hudi-rs ignores unknown
    fields too. It is also in `extraMetadata`, which the Avro form has as well.
    """
    assert action not in PLAIN or not replaced, "only a replacecommit can say what it replaced"
    extra = extra or {}
    if extra.keys() & {"schema", ATTEMPT} or len(json.dumps(dict(extra))) > EXTRA_BYTES_MAX:
        why = f"may be {EXTRA_BYTES_MAX} bytes of strings, and neither `schema` nor `{ATTEMPT}`"
        raise RefusedOption("extra metadata", why)
    body: dict[str, Any] = {
        "partitionToWriteStats": {},
        "compacted": operation == COMPACT,
        "extraMetadata": {**extra, "schema": schema, ATTEMPT: attempt},
        "operationType": operation,
    }
    for stat in sorted(stats, key=lambda each: (each.group, each.path)):
        body["partitionToWriteStats"].setdefault(stat.partition, []).append(_to_hudi(stat))
    if action not in PLAIN:
        body["partitionToReplaceFileIds"] = {
            partition: [each for _, each in of_partition]
            for partition, of_partition in groupby(sorted(replaced), key=itemgetter(0))
        }
    if version == 6:
        content = json.dumps({**body, "attempt": attempt}, indent=2, ensure_ascii=True).encode()
    else:
        commit, replace = commit_records.COMMIT, commit_records.REPLACE_COMMIT
        record = commit if action in PLAIN else replace
        content = avro.encode(record, body)
    if len(content) > METADATA_BYTES_MAX:
        count = sum(map(len, body["partitionToWriteStats"].values()))
        why = f"go to {count} files; their metadata has {len(content)} > {METADATA_BYTES_MAX} bytes"
        raise RefusedRows("", why, "write to fewer partitions at once")
    return content


def _to_hudi(stat: WriteStat) -> dict[str, Any]:
    """The fields as Hudi writes them; a missing one is null or zero to its readers."""
    name = stat.path.rpartition("/")[2]
    found = LOG_FILE.fullmatch(name)
    log = {"logVersion": int(found[3]), "logOffset": 0, "baseFile": "",
           "logFiles": [name]} if found else {}  # fmt: skip
    return {
        **log,
        "fileId": stat.file_id, "path": stat.path, "cdcStats": None, "prevCommit": stat.previous,
        "numWrites": stat.writes, "numDeletes": stat.deletes, "numUpdateWrites": stat.updates,
        "numInserts": stat.inserts, "numUpdates": 0, "totalWriteBytes": stat.size_bytes,
        "totalWriteErrors": 0, "tempPath": None, "partitionPath": stat.partition,
        **dict.fromkeys((
            "totalLogRecords", "totalLogFilesCompacted", "totalLogReadTimeMs",
            "totalLogSizeCompacted", "totalUpdatedRecordsCompacted", "totalLogBlocks",
            "totalCorruptLogBlock", "totalRollbackBlocks",
        ), 0),
        "fileSizeInBytes": stat.size_bytes, "minEventTime": None, "maxEventTime": None,
    }  # fmt: skip


def parse_commit(instant: str, key: str, body: bytes, stat: Any = None) -> CommitFiles:
    """Parse a commit's file; a `TableError` names the file if it makes no sense."""
    known = stat is None and b"deflate" not in body  # what is stored compressed may be long
    return (_known_commit if known else _parse_commit)(instant, key, body, stat)


def _parse_commit(instant: str, key: str, body: bytes, stat: Any) -> CommitFiles:
    try:
        fields = _fields(body)
        stats = tuple(
            (stat or _from_hudi)(partition, each)
            for partition, of_partition in (fields["partitionToWriteStats"] or {}).items()
            for each in _listed(of_partition)
        )
        replaced = frozenset(
            (str(partition), str(file_id))
            for partition, file_ids in (fields.get("partitionToReplaceFileIds") or {}).items()
            for file_id in _listed(file_ids)
        )
        extra = {k: v for k, v in (fields.get("extraMetadata") or {}).items() if isinstance(v, str)}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        why = f"is not a commit's file ({type(error).__name__} {str(error)[:160]})"
        cure = "restore it before anything else is written to this table"
        raise DamagedFile(key, why, cure) from None
    schema, attempt = extra.pop("schema", None), extra.pop(ATTEMPT, fields.get("attempt"))
    return CommitFiles(
        instant, str(fields.get("operationType") or "UNKNOWN"), stats, replaced, schema or None,
        attempt if isinstance(attempt, str) else None, MappingProxyType(extra),
        key.rpartition("/")[2].partition(".")[0].partition("_")[2],
    )  # fmt: skip


_known_commit = kept(256, 16_000)(_parse_commit)


def _fields(body: bytes) -> dict[str, Any]:
    """A commit's record in either form: an upgraded table has both."""
    if body.startswith(avro.MAGIC):
        from lockkit.table.format.avro_decoding import decode

        return decode(body, "HoodieCommitMetadata", "HoodieReplaceCommitMetadata")
    if len(body) > METADATA_BYTES_MAX or not body:
        raise ValueError(f"{len(body)} bytes" if body else "empty")
    try:
        fields = json.loads(body)
    except ValueError:
        raise ValueError("not JSON") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("partitionToWriteStats"), dict):
        raise ValueError("no partitionToWriteStats")
    return fields


def _listed(value: object) -> list[Any]:
    if not isinstance(value, list | None):
        raise TypeError(f"a list was expected, not {type(value).__name__}")
    return value or []


def _from_hudi(partition: str, fields: Mapping[str, Any]) -> WriteStat:
    file_id, path = fields["fileId"], fields["path"]
    if not isinstance(file_id, str) or not isinstance(path, str) or not file_id:
        raise ValueError("fileId and path must be strings")
    if not is_inside(path):
        raise ValueError(f"the path {path[:60]!r} leads out of the table")
    last = path.rpartition("/")[2]
    name = BASE_FILE.fullmatch(last) or LOG_FILE.fullmatch(last)
    if path.rpartition("/")[0] != partition or name is None or name[1] != file_id:
        raise ValueError(
            f"{path[:60]!r} is not a base or log file of {file_id[:60]!r} in {partition[:60]!r}"
        )
    writes, inserts, updates, deletes, size = (_count(fields.get(each)) for each in COUNTS)
    return WriteStat(
        partition=partition, file_id=file_id, path=path, writes=writes, inserts=inserts,
        updates=updates, deletes=deletes, size_bytes=size,
        previous=str(fields.get("prevCommit") or NO_COMMIT),
    )  # fmt: skip


def _count(value: object) -> int:
    if not isinstance(value, int | None):
        raise TypeError(f"a number was expected, not {str(value)[:40]!r}")
    return min(max(value or 0, 0), 2**63 - 1)


def hadoop_base(url: str) -> str:
    """A table's address as Hadoop's own connectors write it; EMR and Azure use other schemes.

    Measured with Hudi 1.2.0 on s3a: it refuses a path with another scheme or bucket.
    """
    return "s3a" + url.removeprefix("s3") if url.startswith("s3://") else url
