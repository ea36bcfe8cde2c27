"""Columns of several parquet files of the same rows, as one file; no value is decoded.

A column chunk does not say where in a file it stands, only the footer does. So bytes are copied as
they are, row group by row group, and one footer is written for all: Thrift's compact protocol
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md), with the field
numbers of https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift.
No library in Python writes a footer of its own making.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from lockkit.table.ask import TableError

MAGIC = b"PAR1"
TRUE, FALSE, BYTE, I32, I64, DOUBLE, BINARY, LIST, SET, STRUCT = 1, 2, 3, 5, 6, 7, 8, 9, 10, 12
INTEGERS = (4, I32, I64)
Fields = dict[int, tuple[int, Any]]
"""A Thrift struct: each field's number, with its type and value; a list is (type, values)."""

# FileMetaData
SCHEMA, ROWS, ROW_GROUPS, KEY_VALUES, COLUMN_ORDERS = 2, 3, 4, 5, 7
# SchemaElement
NAME, CHILDREN = 4, 5
# RowGroup
CHUNKS, GROUP_BYTES, GROUP_ROWS, GROUP_OFFSET, GROUP_COMPRESSED = 1, 2, 3, 5, 6
# ColumnChunk, and its ColumnMetaData
CHUNK_OFFSET, ABOUT = 2, 3
PATH, UNCOMPRESSED, COMPRESSED, DATA_PAGE, DICTIONARY_PAGE = 3, 6, 7, 9, 11
ELSEWHERE = (10, 14, 15)
"""What points to index pages and bloom filters, which are not copied."""


@dataclass(frozen=True, slots=True)
class Pick:
    """A top-level column of one of the files, under the name that it is to have."""

    file: int
    column: str
    name: str


def splice(
    files: Sequence[Path], picks: Sequence[Pick], out: BinaryIO, *, about: Mapping[str, str]
) -> None:
    """Write the picked columns into `out`, in that order; `about` becomes its key-value metadata.

    The files' row groups must have the same numbers of rows.
    """
    parts = [_Part.of(path) for path in files]
    rows = [part.group_rows for part in parts]
    if any(each != rows[0] for each in rows):
        raise TableError(f"row groups of {rows} rows cannot stand side by side")
    taken = [parts[pick.file].columns(pick.column) for pick in picks]
    out.write(MAGIC)
    at, groups = len(MAGIC), []
    for number in range(len(rows[0])):
        chunks, began = [], at
        for pick, (_, leaves) in zip(picks, taken, strict=True):
            for leaf in leaves:
                part = parts[pick.file]
                chunk, body = part.chunk(number, leaf)
                chunks.append(_moved(chunk, to=at, name=pick.name))
                at += out.write(body)
        groups.append(_group(chunks, rows[0][number], began))
    out.write(_footer(parts, picks, taken, groups, about))


def _group(chunks: list[Fields], rows: int, began: int) -> Fields:
    sizes = [chunk[ABOUT][1] for chunk in chunks]
    return {
        CHUNKS: (LIST, (STRUCT, chunks)),
        GROUP_BYTES: (I64, sum(each[UNCOMPRESSED][1] for each in sizes)),
        GROUP_ROWS: (I64, rows),
        GROUP_OFFSET: (I64, began),
        GROUP_COMPRESSED: (I64, sum(each[COMPRESSED][1] for each in sizes)),
    }


def _moved(chunk: Fields, *, to: int, name: str) -> Fields:
    """A column chunk whose first page is at `to`, of the top-level column `name`."""
    about = {k: v for k, v in chunk[ABOUT][1].items() if k not in ELSEWHERE}
    by = to - _start(about)
    for offset in (DATA_PAGE, DICTIONARY_PAGE):
        if about.get(offset, (I64, 0))[1]:
            about[offset] = (I64, about[offset][1] + by)
    kind, path = about[PATH][1]
    about[PATH] = (LIST, (kind, [name.encode(), *path[1:]]))
    return {CHUNK_OFFSET: (I64, to), ABOUT: (STRUCT, about)}


def _start(about: Fields) -> int:
    """Where a chunk's pages begin; an offset of 0 is no page, for there stands the magic.

    A chunk of no rows has none at all.
    """
    offsets = [about.get(page, (I64, 0))[1] for page in (DICTIONARY_PAGE, DATA_PAGE)]
    return int(min((offset for offset in offsets if offset), default=0))


def _footer(
    parts: list[_Part], picks: Sequence[Pick], taken: list[tuple[list[Fields], range]],
    groups: list[Fields], about: Mapping[str, str],
) -> bytes:  # fmt: skip
    footer = dict(parts[picks[-1].file].footer)
    root = dict(footer[SCHEMA][1][1][0])
    root[CHILDREN] = (I32, len(picks))
    elements = [root]
    for pick, (found, _) in zip(picks, taken, strict=True):
        elements += [{**found[0], NAME: (BINARY, pick.name.encode())}, *found[1:]]
    orders: list[Fields] = []
    for pick, (_, leaves) in zip(picks, taken, strict=True):
        known = parts[pick.file].footer.get(COLUMN_ORDERS)
        orders += [known[1][1][leaf] for leaf in leaves] if known else []
    footer[SCHEMA] = (LIST, (STRUCT, elements))
    footer[ROW_GROUPS] = (LIST, (STRUCT, groups))
    footer[KEY_VALUES] = (LIST, (STRUCT, [
        {1: (BINARY, key.encode()), 2: (BINARY, value.encode())} for key, value in about.items()
    ]))  # fmt: skip
    footer.pop(COLUMN_ORDERS, None)
    if len(orders) == sum(len(leaves) for _, leaves in taken):
        footer[COLUMN_ORDERS] = (LIST, (STRUCT, orders))
    body = bytearray()
    _write_struct(body, dict(sorted(footer.items())))
    return bytes(body) + struct.pack("<I", len(body)) + MAGIC


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the files: its bytes, and its footer."""

    body: mmap.mmap
    footer: Fields

    @classmethod
    def of(cls, path: Path) -> _Part:
        with path.open("rb") as file:
            body = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        (size,) = struct.unpack("<I", body[-8:-4])
        if body[-4:] != MAGIC:
            raise TableError(f"{path.name} is no parquet file")
        return cls(body, _struct(_Cursor(body[-8 - size : -8])))

    @property
    def group_rows(self) -> list[int]:
        return [group[GROUP_ROWS][1] for group in self.footer[ROW_GROUPS][1][1]]

    def chunk(self, group: int, leaf: int) -> tuple[Fields, memoryview]:
        chunk = self.footer[ROW_GROUPS][1][1][group][CHUNKS][1][1][leaf]
        about = chunk[ABOUT][1]
        start = _start(about)
        return chunk, memoryview(self.body)[start : start + about[COMPRESSED][1]]

    def columns(self, name: str) -> tuple[list[Fields], range]:
        """A top-level column's schema elements, depth first, and which leaves are its."""
        elements, leaf = iter(self.footer[SCHEMA][1][1]), 0
        for _ in range(next(elements)[CHILDREN][1]):
            found = list(_subtree(elements))
            leaves = sum(CHILDREN not in each for each in found)
            if found[0][NAME][1] == name.encode():
                return found, range(leaf, leaf + leaves)
            leaf += leaves
        raise TableError(f"Spark wrote no column {name!r}")


def _subtree(elements: Iterator[Fields]) -> Iterator[Fields]:
    left = 1
    while left:
        element = next(elements)
        left += element.get(CHILDREN, (I32, 0))[1] - 1
        yield element


# --- Thrift's compact protocol ------------------------------------------------------------------


@dataclass(slots=True)
class _Cursor:
    body: bytes
    at: int = 0

    def byte(self) -> int:
        self.at += 1
        return self.body[self.at - 1]

    def varint(self) -> int:
        value = shift = 0
        while (byte := self.byte()) & 0x80:
            value, shift = value | (byte & 0x7F) << shift, shift + 7
        return value | byte << shift

    def zigzag(self) -> int:
        value = self.varint()
        return value >> 1 ^ -(value & 1)

    def take(self, size: int) -> bytes:
        self.at += size
        return self.body[self.at - size : self.at]


def _struct(cursor: _Cursor) -> Fields:
    fields: Fields = {}
    number = 0
    while head := cursor.byte():
        delta, kind = head >> 4, head & 0x0F
        number = number + delta if delta else cursor.zigzag()
        fields[number] = (kind, kind == TRUE if kind in (TRUE, FALSE) else _value(cursor, kind))
    return fields


def _value(cursor: _Cursor, kind: int) -> Any:
    if kind in INTEGERS:
        return cursor.zigzag()
    if kind == BINARY:
        return cursor.take(cursor.varint())
    if kind == STRUCT:
        return _struct(cursor)
    if kind in (LIST, SET):
        head = cursor.byte()
        size, of = head >> 4, head & 0x0F
        size = cursor.varint() if size == 15 else size
        return of, [_value(cursor, of) for _ in range(size)]
    if kind in (TRUE, FALSE, BYTE):
        return cursor.byte()
    if kind == DOUBLE:
        return cursor.take(8)
    raise TableError(f"a parquet footer has a field of Thrift type {kind}")


def _write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _write_struct(out: bytearray, fields: Fields) -> None:
    before = 0
    for number, (kind, value) in fields.items():
        if kind in (TRUE, FALSE):
            kind = TRUE if value else FALSE
        if 0 < number - before <= 15:
            out.append(number - before << 4 | kind)
        else:
            out.append(kind)
            _write_varint(out, number << 1)
        if kind not in (TRUE, FALSE):
            _write_value(out, kind, value)
        before = number
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in INTEGERS:
        _write_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)
    elif kind == BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _write_struct(out, value)
    elif kind in (LIST, SET):
        of, values = value
        out.append(min(len(values), 15) << 4 | of)
        if len(values) >= 15:
            _write_varint(out, len(values))
        for each in values:
            _write_value(out, of, each)
    elif kind == DOUBLE:
        out += value
    else:
        out.append(value)
