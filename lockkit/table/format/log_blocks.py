"""The blocks of Hudi's log files: rows, deletes and commands behind a base file.

A block is a magic word, its size, and a header that names the instant that wrote it. A writer that
died leaves a block that ends early. `blocks` skips it, as Hudi does; `gaps` says where it is.
Version 6 keeps archived instants in files of this form too.
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from lockkit.table.errors import DamagedFile
from lockkit.table.format.commit_records import STRING

MAGIC = b"#HUDI#"
COMMAND, DELETE, CORRUPT, AVRO, HFILE, PARQUET, CDC = range(7)
KINDS = ("command", "delete", "corrupt", "Avro", "HFile", "Parquet", "CDC")
INSTANT, TARGET, SCHEMA, COMMAND_KIND, JOINED = range(5)
PARTIAL = 7
HEADER_KEYS = range(9)
DELETES_VERSION = 3
SMALL = 16_384
"""Blocks of at most so many bytes are joined before they are decoded."""
_SIZE = len(MAGIC) + 8
_MAGIC = re.compile(MAGIC)


@dataclass(frozen=True, slots=True)
class Block:
    """One block; `header` by the numbers of Hudi's `HeaderMetadataType`."""

    kind: int
    header: Mapping[int, str]
    content: bytes | memoryview

    @property
    def instant(self) -> str:
        return self.header.get(INSTANT, "")


@dataclass(frozen=True, slots=True)
class Deleted:
    """A key in a delete block; `ordering` is None if the order of commits decides.

    Hudi's default ordering value, which means that order, is the int 0: a long 0 is a value.
    """

    key: str
    ordering: Any


def blocks(name: str, body: bytes | memoryview) -> Iterator[Block]:
    """Every whole block of a log file, in its order; `TableError` for another form."""
    for start, end in _whole(body):
        try:
            yield _block(memoryview(body)[start + _SIZE : end])
        except (struct.error, ValueError) as error:
            raise DamagedFile(name, f"has a damaged block ({str(error)[:80]})") from None


def gaps(body: bytes | memoryview) -> list[tuple[int, int]]:
    """The bytes that no whole block covers, as (first, end), in their order."""
    found, at = [], 0
    for start, end in (*_whole(body), (len(body), len(body))):
        if at < start:
            found.append((at, start))
        at = end
    return found


def _whole(body: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """The first byte and the end of each whole block."""
    at = 0
    while (found := _MAGIC.search(body, at)) and (at := found.start()) + _SIZE <= len(body):
        size = _long(body, at + len(MAGIC))
        end = at + _SIZE + size
        # The size stands at the end again: counted from the magic word, itself left out.
        if size < 16 or end > len(body) or _long(body, end - 8) != size + len(MAGIC):
            at += len(MAGIC)
            continue
        yield at, end
        at = end


def _long(body: bytes | memoryview, at: int) -> int:
    return int.from_bytes(body[at : at + 8], "big", signed=True)


def _block(rest: memoryview) -> Block:
    """A block without its size: every length must be right, up to the size at the end."""
    version, kind = struct.unpack_from(">ii", rest, 0)
    if version != 1 or kind == CORRUPT or not 0 <= kind < len(KINDS):  # readers alone have that one
        raise ValueError(f"format {version}, block type {kind}")
    header, at = _header(rest, 8)
    (size,) = struct.unpack_from(">q", rest, at)
    if not 0 <= size <= len(rest) - at - 8:
        raise ValueError(f"a content of {size} bytes")
    content = rest[at + 8 : at + 8 + size]
    _footer, end = _header(rest, at + 8 + size)
    commands = header.keys() & {COMMAND_KIND, TARGET}
    if end + 8 != len(rest) or len(commands) != (2 if kind == COMMAND else 0):
        raise ValueError(f"a {KINDS[kind]} block of other lengths, or with another one's header")
    if header.get(PARTIAL, "true").lower() not in ("true", "false"):
        raise ValueError(f"a partial block, {header[PARTIAL][:20]!r}")
    return Block(kind, header, content)


def _header(rest: memoryview, at: int) -> tuple[dict[int, str], int]:
    (count,) = struct.unpack_from(">i", rest, at)
    at += 4
    found: dict[int, str] = {}
    if count < 0:
        raise ValueError(f"a header of {count} entries")
    for _ in range(count):  # at most one for each key
        key, size = struct.unpack_from(">ii", rest, at)
        if key in found or key not in HEADER_KEYS or size < 0:
            raise ValueError(f"a header with an entry {key} of {size} bytes")
        found[key] = bytes(rest[at + 8 : at + 8 + size]).decode()
        at += 8 + size
    return found, at


# --- what is in a block ---------------------------------------------------------------------------


def joined(every: Sequence[Block]) -> list[tuple[Block, tuple[Block, ...]]]:
    """Each block that is to be decoded, and those that it joins: small ones side by side.

    They are Avro blocks of whole rows and of one schema. To decode a block takes a millisecond,
    however few rows it has. A block whose records are not as long as it says stays alone.
    """
    found = list[tuple[Block, tuple[Block, ...]]]()
    for alike, some in groupby(every, _like):
        these = tuple(some)
        if alike is None or len(these) == 1:
            found += ((each, (each,)) for each in these)
            continue
        version, _ = struct.unpack_from(">ii", these[0].content, 0)
        count = sum(struct.unpack_from(">ii", each.content, 0)[1] for each in these)
        content = struct.pack(">ii", version, count) + b"".join(each.content[8:] for each in these)
        found.append((replace(these[0], content=content), these))
    return found


def _like(block: Block) -> tuple[str, bytes] | None:
    """What the blocks have in common that it may be joined with; None: it stays alone."""
    content = block.content
    if block.kind != AVRO or not 8 <= len(content) <= SMALL or PARTIAL in block.header:
        return None
    _, count = struct.unpack_from(">ii", content, 0)
    at = 8
    for _ in range(count):
        if at + 4 > len(content):
            return None
        (size,) = struct.unpack_from(">i", content, at)
        if size < 0:
            return None
        at += 4 + size
    return (block.header.get(SCHEMA, ""), bytes(content[:4])) if at == len(content) else None


def avro_rows(block: Block) -> Iterator[dict[str, Any]]:
    """The records of an Avro block, by the schema in its header."""
    import fastavro

    text = {"type": "string", "logicalType": "uuid"}  # fastavro makes an object of it
    said = json.loads(block.header[SCHEMA], object_hook=lambda each: (
        "string" if text.items() <= each.items() else each))  # fmt: skip
    schema = fastavro.parse_schema(said)
    _version, count = struct.unpack_from(">ii", block.content, 0)
    at = 8
    for _ in range(count):
        (size,) = struct.unpack_from(">i", block.content, at)
        at += 4
        row = io.BytesIO(block.content[at : at + size])
        found: Any = fastavro.schemaless_reader(row, schema, None)
        yield found
        at += size
    _refuse_more(block, at)


def _refuse_more(block: Block, end: int) -> None:
    if end != len(block.content):
        raise ValueError(f"{len(block.content)} bytes of content, and {end} were expected")


def deleted_keys(block: Block) -> Iterator[Deleted]:
    """The keys of a delete block."""
    import fastavro

    version, size = struct.unpack_from(">ii", block.content, 0)
    if version != DELETES_VERSION:
        raise ValueError(f"a delete block of version {version}, which Hudi before 0.14 wrote")
    _refuse_more(block, 8 + size)
    body = io.BytesIO(block.content[8:])
    schema = fastavro.parse_schema(DELETES)
    found: Any = fastavro.schemaless_reader(body, schema, None, return_record_name=True)
    for each in found["deleteRecordList"]:
        value = each["orderingVal"]
        yield Deleted(each["recordKey"], None if value == _BY_COMMIT else _plain(value))


_BY_COMMIT = ("IntWrapper", {"value": 0})


def _plain(wrapped: Any) -> Any:
    """The value that Hudi wraps in a record, so that it can stand in a union."""
    if isinstance(wrapped, tuple):
        _name, fields = wrapped
        if "wrappedValues" in fields:
            return tuple(_plain(each) for each in fields["wrappedValues"] or ())
        return fields["value"]
    return wrapped


def _wrapper(kind: str, inner: Any) -> dict[str, Any]:
    return {
        "type": "record", "name": f"{kind}Wrapper", "fields": [{"name": "value", "type": inner}],
    }  # fmt: skip


_WRAPPERS = [
    _wrapper("Boolean", "boolean"), _wrapper("Int", "int"), _wrapper("Long", "long"),
    _wrapper("Float", "float"), _wrapper("Double", "double"), _wrapper("Bytes", "bytes"),
    _wrapper("String", STRING), _wrapper("Date", {"type": "int", "logicalType": "date"}),
    _wrapper("Decimal", {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 15}),
    _wrapper("TimeMicros", {"type": "long", "logicalType": "time-micros"}),
    _wrapper("TimestampMicros", {"type": "long", "logicalType": "timestamp-micros"}),
]  # fmt: skip
_NAMES = [str(each["name"]) for each in _WRAPPERS]
_LOCAL_DATE = _wrapper("LocalDate", {"type": "int", "logicalType": "date"})
_ARRAY = {
    "type": "record", "name": "ArrayWrapper", "fields": [{"name": "wrappedValues", "type": [
        "null", {"type": "array", "items": ["null", *_NAMES, _LOCAL_DATE]},
    ]}],
}  # fmt: skip
DELETES: Any = {
    "type": "record", "name": "HoodieDeleteRecordList", "fields": [{
        "name": "deleteRecordList", "type": {"type": "array", "items": {
            "type": "record", "name": "HoodieDeleteRecord", "fields": [
                {"name": "recordKey", "type": ["null", STRING]},
                {"name": "partitionPath", "type": ["null", STRING]},
                {"name": "orderingVal", "type": ["null", *_WRAPPERS, _ARRAY]},
            ],
        }},
    }],
}  # fmt: skip
