"""A second reader of a Hudi table, which shares no code with the first.

It judges lockkit's own work, so it knows only Hudi's rule for a copy-on-write table: a data file
belongs to the instant in its name, and a reader sees it once that instant's completed file is on
the timeline. Of each file group a reader sees the file with the greatest instant, unless a
completed replacecommit has replaced the group. It lists folders and parses names and metadata by
itself, and knows nothing of a fence, a checkpoint or an attempt.

In the simulator a data file is a JSON list of rows: `[key, [token, ...], commit time]`.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

PROPERTIES = ".hoodie/hoodie.properties"
PARTITION = ".hoodie_partition_metadata"
_COMPLETED = re.compile(r"(\d{17})(?:_(\d{17}))?\.(commit|replacecommit|deltacommit)")
_INSTANT = re.compile(
    r"\.hoodie/(?:timeline/)?(\d{17})(?:_\d{17})?\.([a-z]+)(\.requested|\.inflight)?"
)
_HISTORY = ".hoodie/timeline/history/"
_MANIFEST = _HISTORY + "manifest_"
_DATA = re.compile(r"(?:(.+)/)?([^_/]+)_\d+-\d+-\d+_(\d{17})\.parquet")


class Unreadable(Exception):
    """Hudi's readers could not read this table, or would show one file group twice."""


class TableRow(NamedTuple):
    """One row as a reader sees it."""

    partition: str
    key: str
    tokens: tuple[str, ...]
    """What each write since the row's insert left in it, oldest first."""
    commit_time: str


@dataclass(frozen=True, slots=True)
class Completed:
    """One completed commit on the timeline."""

    instant: str
    completion: str | None
    """In the file's name in timeline layout 2."""
    action: str
    key: str


class DataFile(NamedTuple):
    """The fields in a data file's name."""

    partition: str
    file_id: str
    instant: str
    key: str


@dataclass(frozen=True, slots=True)
class ReaderView:
    """The content of the table as a reader sees it."""

    commits: tuple[Completed, ...]
    files: frozenset[str]
    """The latest file of each file group that is visible."""
    rows: tuple[TableRow, ...]


def completed_name(key: str) -> Completed | None:
    """The completed commit that a key of either timeline layout stands for."""
    folder, _, name = key.rpartition("/")
    match = _COMPLETED.fullmatch(name)
    if match is None or folder != (".hoodie/timeline" if match[2] else ".hoodie"):
        return None
    return Completed(match[1], match[2], match[3], key)


def data_name(key: str) -> DataFile | None:
    match = None if key.startswith(".hoodie/") else _DATA.fullmatch(key)
    return None if match is None else DataFile(match[1] or "", match[2], match[3], key)


def view(objects: Mapping[str, bytes]) -> ReaderView:
    """The table's content now; raises `Unreadable` if Hudi's readers would fail."""
    layout = _layout(objects)
    commits = tuple(sorted(_commits(objects, layout), key=lambda each: each.instant))
    completed = {each.instant for each in commits}
    bodies = {each.key: objects[each.key] for each in commits}
    # A writer whose clock is slower than the archive is old may take an archived commit's instant
    # again. Until it, or its rollback, has taken the request away, its files are not judged.
    named, under_way = dict[str, frozenset[str]](), pending(objects)
    if layout == "2" and len(completed) == len(commits):
        older = {each: body for each, body in archived(objects) if each.instant not in completed}
        commits = (*older, *commits)
        completed |= {each.instant for each in older}
        bodies |= {each.key: body for each, body in older.items()}
        named = {each.instant: paths_of(body) for each, body in older.items()
                 if each.instant in under_way}  # fmt: skip
    if len(completed) != len(commits):
        raise Unreadable(f"one instant is completed twice: {[each.key for each in commits]}")
    replaced = {group for each in commits if each.action == "replacecommit"
                for group in replaced_of(bodies[each.key])}  # fmt: skip
    latest: dict[tuple[str, str], DataFile] = {}
    for key in objects:
        file = data_name(key)
        if file is None or file.instant not in completed or not _is_partition(objects, file):
            continue
        group = file.partition, file.file_id
        if group in replaced or key not in named.get(file.instant, (key,)):
            continue
        standing = latest.get(group)
        if standing is not None and standing.instant == file.instant:
            raise Unreadable(f"{key} and {standing.key} are one slice of one file group")
        if standing is None or standing.instant < file.instant:
            latest[group] = file
    for each in commits:  # a reader of the commit's metadata opens the files that it names
        for path, group in written_by(bodies[each.key]):
            if path not in objects and group not in replaced and latest.get(group) is None:
                raise Unreadable(f"{each.key} names {path}, which is not there")
    rows = tuple(row for file in latest.values() for row in rows_of(file, objects[file.key]))
    return ReaderView(commits, frozenset(each.key for each in latest.values()), rows)


def rows_of(file: DataFile, body: bytes) -> Iterator[TableRow]:
    for key, tokens, commit_time in _json(body):
        yield TableRow(file.partition, key, tuple(tokens), commit_time)


def extra_of(body: bytes) -> Mapping[str, str]:
    """The extra metadata of a commit."""
    return _metadata(body).get("extraMetadata") or {}


def paths_of(body: bytes) -> frozenset[str]:
    """The data files that a commit's metadata names."""
    return frozenset(path for path, _ in written_by(body))


def groups_of(body: bytes) -> frozenset[tuple[str, str]]:
    """The file groups that a commit's metadata names."""
    return frozenset(group for _, group in written_by(body))


def pending(keys: Iterable[str]) -> frozenset[str]:
    """Instants that were requested and are neither completed nor removed."""
    requested, done = set[tuple[str, str]](), set[tuple[str, str]]()
    for key in keys:
        if match := _INSTANT.fullmatch(key):
            action = "commit" if match[2] == "inflight" else match[2]  # `T.inflight` names none
            under_way = match[3] or match[2] == "inflight"
            (requested if under_way else done).add((match[1], action))
    replacing = {instant for instant, action in done if action == "replacecommit"}
    done |= {(instant, "clustering") for instant in replacing}
    done |= {(instant, "compaction") for instant, action in done if action == "commit"}
    return frozenset(instant for instant, _ in requested - done)


# --- names and files ------------------------------------------------------------------------------


def _layout(objects: Mapping[str, bytes]) -> str:
    for line in objects[PROPERTIES].decode().splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "hoodie.timeline.layout.version":
            return value.strip()
    raise Unreadable(f"{PROPERTIES} names no timeline layout")


def _commits(objects: Mapping[str, bytes], layout: str) -> Iterable[Completed]:
    for key in objects:
        if key.startswith(".hoodie/") and (found := completed_name(key)) is not None:
            if (found.completion is not None) == (layout == "2"):
                yield found


def archived(objects: Mapping[str, bytes]) -> list[tuple[Completed, bytes]]:
    """The commits in the files that the newest manifest names, with their metadata (layout 2)."""
    numbers = [int(key.rpartition("_")[2]) for key in objects if key.startswith(_MANIFEST)]
    if not numbers:
        return []
    names = [each["fileName"] for each in _json(objects[f"{_MANIFEST}{max(numbers)}"])["files"]]
    return [row for name in names for row in _archived_in(objects[_HISTORY + name])]


@lru_cache(maxsize=512)
def _archived_in(body: bytes) -> tuple[tuple[Completed, bytes], ...]:
    import pyarrow.parquet as pq

    found = []
    for row in pq.read_table(io.BytesIO(body)).to_pylist():
        instant, completion, action = row["instantTime"], row["completionTime"], row["action"]
        if action in ("commit", "replacecommit"):
            key = f".hoodie/timeline/{instant}_{completion}.{action}"
            found.append((Completed(instant, completion, action, key), row["metadata"]))
    return tuple(found)


def _is_partition(objects: Mapping[str, bytes], file: DataFile) -> bool:
    """Hudi's readers look for data only in folders that have this file."""
    return (f"{file.partition}/{PARTITION}" if file.partition else PARTITION) in objects


def replaced_of(body: bytes) -> Iterable[tuple[str, str]]:
    found = _metadata(body).get("partitionToReplaceFileIds") or {}
    return [(partition, each) for partition, ids in found.items() for each in ids]


def written_by(body: bytes) -> list[tuple[str, tuple[str, str]]]:
    found = _metadata(body).get("partitionToWriteStats") or {}
    return [(each["path"], (partition, each["fileId"]))
            for partition, stats in found.items() for each in stats]  # fmt: skip


@lru_cache(maxsize=8192)
def _metadata(body: bytes) -> Mapping[str, Any]:
    """JSON in layout 1, an Avro object container in layout 2."""
    if body.startswith(b"Obj\x01"):
        import fastavro

        record = next(iter(fastavro.reader(io.BytesIO(body))))
        assert isinstance(record, dict)
        return record
    fields = _json(body)
    if not isinstance(fields, dict):
        raise Unreadable("a commit's metadata is not a JSON object")
    return fields


@lru_cache(maxsize=8192)
def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise Unreadable(f"neither JSON nor Avro: {body[:60]!r}") from None
