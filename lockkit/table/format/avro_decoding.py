"""Reads an Avro object container with one record.

A container has its own schema, and comes from a bucket. A schema that could expand a few bytes to
many records is refused before anything is decoded.
"""

from __future__ import annotations

import io
import json
import zlib
from typing import Any

from lockkit.table.format.avro import MAGIC, SYNC_BYTES
from lockkit.table.format.kept import kept

BODY_BYTES_MAX = 64_000_000
INFLATED_BYTES_MAX = 8_000_000
"""Smaller, since its stored form may be a thousandth; Hudi 1.2 does not compress its timeline."""
SCHEMA_BYTES_MAX = 100_000
SCHEMA_DEPTH_MAX = 24
HEADER_ENTRIES_MAX = 100
_PRIMITIVE = frozenset({"boolean", "int", "long", "float", "double", "bytes", "string"})


def decode(body: bytes, *names: str) -> dict[str, Any]:
    """The record, called one of `names`; `ValueError` says what else the body is."""
    import fastavro

    if len(body) > BODY_BYTES_MAX:
        raise ValueError(f"{len(body)} bytes")
    try:
        described, payload = _open(body)
        schema = _schema(described, names)
        rest = io.BytesIO(payload)
        record = fastavro.schemaless_reader(rest, schema, None)
        if rest.tell() != len(payload) or not isinstance(record, dict):
            raise ValueError("it contains more than its record")
    except (ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RecursionError,
            StopIteration, TypeError, ValueError, zlib.error, fastavro.schema.SchemaParseException,
            ) as error:  # fmt: skip
        # fastavro has no error class of its own for bytes that do not fit their schema.
        why = f"{type(error).__name__} {str(error)[:80]!r}"
        raise ValueError(f"no Avro container with one {' or '.join(names)}: {why}") from None
    return record


@kept(16, 50_000)
def _schema(described: bytes, names: tuple[str, ...]) -> Any:
    """A schema that was judged: those of a timeline's thousand files are mostly one."""
    import fastavro

    schema = json.loads(described)
    if not isinstance(schema, dict):
        raise ValueError("its schema is not a record")
    if schema.get("name") not in names:
        raise ValueError(f"it holds a {str(schema.get('name'))[:60]!r}")
    _judge(schema, set(), 0)
    return fastavro.parse_schema(schema)


def _open(body: bytes) -> tuple[bytes, bytes]:
    """The schema's text and the one block of a container."""
    rest = io.BytesIO(body)
    if rest.read(len(MAGIC)) != MAGIC:
        raise ValueError("wrong magic" if body else "empty")
    meta: dict[bytes, bytes] = {}
    while count := read_long(rest):
        if count < 0:  # then the size of these entries follows
            count, _size = -count, read_long(rest)
        if len(meta) + count > HEADER_ENTRIES_MAX:
            raise ValueError("its header has too many entries")
        for _ in range(count):
            name = _read_bytes(rest)
            meta[name] = _read_bytes(rest)
    sync = rest.read(SYNC_BYTES)
    codec, described = meta.get(b"avro.codec", b"null"), meta.get(b"avro.schema", b"")
    if len(described) > SCHEMA_BYTES_MAX:
        raise ValueError(f"a schema of {len(described)} bytes")
    if (records := read_long(rest)) != 1:
        raise ValueError(f"{records} records in its first block")
    payload = _inflate(codec, _read_bytes(rest))
    if rest.read() != sync or len(sync) != SYNC_BYTES:
        raise ValueError("it does not end behind its first record")
    return described, payload


def _inflate(codec: bytes, block: bytes) -> bytes:
    """A block's content, decoded by one of the two codecs that every Avro reader must support."""
    if codec == b"null":
        return block
    if codec != b"deflate":
        raise ValueError(f"it is compressed with {codec[:20]!r}")
    opened = zlib.decompressobj(-zlib.MAX_WBITS)
    payload = opened.decompress(block, INFLATED_BYTES_MAX)
    if not opened.eof:
        raise ValueError(f"its block is cut off, or more than {INFLATED_BYTES_MAX} bytes")
    return payload


def read_long(rest: io.BytesIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        (byte,) = rest.read(1) or (-1,)
        if byte < 0:
            raise EOFError("it is cut off")
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value >> 1 ^ -(value & 1)
    raise ValueError("a number of more than ten bytes")


def _read_bytes(rest: io.BytesIO) -> bytes:
    size = read_long(rest)
    found = rest.read(size) if size >= 0 else b""
    if len(found) != size:
        raise EOFError("it is cut off")
    return found


def _judge(schema: Any, known: set[str], depth: int, *, in_union: bool = False) -> None:
    """Raise unless every value of this schema takes at least a byte and no record contains itself.

    An array of 10**15 nulls, or records that double at each level, take few bytes. A record that
    contains itself makes fastavro recurse until the process dies. All names are in one namespace.
    """
    if depth > SCHEMA_DEPTH_MAX:
        raise ValueError("its schema is nested too deep")
    match schema:
        case "null" if in_union:
            pass
        case str() if schema in _PRIMITIVE or schema in known:
            pass
        case [_, *_] if not in_union:
            for each in schema:
                _judge(each, known, depth + 1, in_union=True)
        case {"logicalType": _} | {"__fastavro_parsed": _}:
            raise ValueError("its schema asks for more than to be read")
        case {"namespace": _} if depth:
            raise ValueError("its schema has several namespaces")
        case {"type": "record", "name": str(name), "fields": [_, *_] as fields} if "." not in name:
            for each in fields:
                _judge(each["type"], known, depth + 1)
            known.add(name)  # only now: a record cannot hold itself
        case {"type": "array", "items": inner} | {"type": "map", "values": inner}:
            _judge(inner, known, depth + 1)
        case {"type": "enum", "name": str(name), "symbols": [_, *_]} if "." not in name:
            known.add(name)
        case {"type": "fixed", "name": str(name), "size": int(n)} if n > 0 and "." not in name:
            known.add(name)
        case {"type": str(name)} if name in _PRIMITIVE:
            pass
        case _:
            raise ValueError(f"its schema says {str(schema)[:40]!r}")
