"""Tiny data files, which a simulated writer writes in place of parquet files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from lockkit.errors import TableError
from lockkit.lab.verify.table.reader import TableRow
from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, create, read
from lockkit.table.format.base_file import BaseFile, Slice
from lockkit.table.format.layout import NO_COMMIT, FileGroup, WriteStat, file_name, in_partition
from lockkit.table.write.groups import OwnFiles

SCHEMA = '{"type":"record","name":"t","fields":[{"name":"id","type":"string"}]}'


T = TypeVar("T")


class SnapshotFileGone(TableError):
    """A file of the snapshot was deleted."""


def json_file(
    group: FileGroup, name: str, rows: Sequence[Any], previous: str = NO_COMMIT
) -> BaseFile:
    """A base or log file of a file group; `previous` is the commit before it there."""
    partition, file_id = group
    body = json.dumps(rows, separators=(",", ":")).encode()
    path = in_partition(partition, name)
    stat = WriteStat(
        partition=partition, file_id=file_id, path=path, writes=len(rows), previous=previous,
        size_bytes=len(body),
    )  # fmt: skip
    return BaseFile(path, body, stat)


def base_file(
    instant: str, group: FileGroup, rows: Iterable[TableRow], base: Slice | None = None
) -> BaseFile:
    """The content of a file group's next file."""
    listed = [[row.key, list(row.tokens), row.commit_time] for row in rows]
    previous = NO_COMMIT if base is None else base.instant
    return json_file(group, file_name(group[1], instant), listed, previous)


def put_files(files: Sequence[BaseFile]) -> Procedure[list[WriteStat]]:
    yield from all_of(create(each.key, each.body) for each in files)
    return [each.stat for each in files]


def read_rows(
    slices: Iterable[Slice], own: OwnFiles | None = None
) -> Procedure[list[tuple[Slice, list[TableRow]]]]:
    """The rows of each slice, those of its process's `own` files from memory.

    Raises `SnapshotFileGone`.
    """
    return (yield from of_each(slices, lambda each: _rows(each, kept(own, each) if own else None)))


def kept(own: OwnFiles, at: Slice) -> bytes | None:
    return own.get(at)


def of_each(
    slices: Iterable[Slice], rows_of: Callable[[Slice], Procedure[T]]
) -> Procedure[list[tuple[Slice, T]]]:
    slices = list(slices)
    found = yield from all_of(rows_of(each) for each in slices)
    return list(zip(slices, found, strict=True))


def _rows(of: Slice, body: bytes | None = None) -> Procedure[list[TableRow]]:
    listed = json.loads(body) if body is not None else (yield from read_json(of.path))
    return [TableRow(of.partition, key, tuple(tokens), at) for key, tokens, at in listed]


def read_json(path: str) -> Procedure[Any]:
    """The rows of one file. Raises `SnapshotFileGone`."""
    return json.loads((yield from read_file(path)))


def read_file(path: str) -> Procedure[bytes]:
    """Raises `SnapshotFileGone`."""
    match (yield from read(path)):
        case Found(body, _):
            return body
        case _missing:
            raise SnapshotFileGone(f"{path} is gone: it was cleaned, or rolled back; begin again")
