"""Tiny data files, which a simulated writer writes in place of parquet files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from lockkit.errors import TableError
from lockkit.lab.verify.table.reader import TableRow
from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, create, read
from lockkit.table.format.base_file import BaseFile, Slice
from lockkit.table.format.layout import NO_COMMIT, WriteStat, file_name, in_partition

SCHEMA = '{"type":"record","name":"t","fields":[{"name":"id","type":"string"}]}'


class SnapshotFileGone(TableError):
    """A file of the snapshot was deleted."""


def base_file(
    instant: str, group: tuple[str, str], rows: Iterable[TableRow], base: Slice | None = None
) -> BaseFile:
    """The content of a file group's next file."""
    partition, file_id = group
    path = in_partition(partition, file_name(file_id, instant))
    listed = [[row.key, list(row.tokens), row.commit_time] for row in rows]
    body = json.dumps(listed, separators=(",", ":")).encode()
    stat = WriteStat(
        partition=partition, file_id=file_id, path=path, writes=len(listed),
        previous=NO_COMMIT if base is None else base.instant, size_bytes=len(body),
    )  # fmt: skip
    return BaseFile(path, body, stat)


def put_files(files: Sequence[BaseFile]) -> Procedure[list[WriteStat]]:
    yield from all_of(create(each.key, each.body) for each in files)
    return [each.stat for each in files]


def read_rows(slices: Iterable[Slice]) -> Procedure[list[tuple[Slice, list[TableRow]]]]:
    """The rows of each slice. Raises `SnapshotFileGone`."""
    slices = list(slices)
    found = yield from all_of(_read(each) for each in slices)
    return list(zip(slices, found, strict=True))


def _read(of: Slice) -> Procedure[list[TableRow]]:
    match (yield from read(of.path)):
        case Found(body, _):
            listed = json.loads(body)
            return [TableRow(of.partition, key, tuple(tokens), at) for key, tokens, at in listed]
        case _missing:
            raise SnapshotFileGone(
                f"{of.path} is gone: it was cleaned, or rolled back; begin again"
            )
