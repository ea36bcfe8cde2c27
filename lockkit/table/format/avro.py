"""Writes an Avro object container with one record: Hudi's plans, and commits of version 9.

Equal records give equal bytes: the sync marker is a digest, not random as in other writers. So a
process that finishes another's commit writes the same file.
`avro_decoding` reads containers.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from typing import Any

MAGIC = b"Obj\x01"
SYNC_BYTES = 16


def encode(schema: Any, record: Mapping[str, Any]) -> bytes:
    """The container; fields that `record` leaves out must be nullable."""
    import fastavro

    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    payload = out.getvalue()
    described = json.dumps(schema, separators=(",", ":")).encode()
    sync = hashlib.sha256(described + payload).digest()[:SYNC_BYTES]
    return container(described, 1, payload, sync)


def container(described: bytes, count: int, records: bytes | memoryview, sync: bytes) -> bytes:
    """An Avro file of one block, with this many records of the schema that is `described`."""
    header = MAGIC + _long(1) + _bytes(b"avro.schema") + _bytes(described) + _long(0) + sync
    body = (_long(count), _long(len(records)), records, sync) if count else ()
    return b"".join((header, *body))


def stamp(body: bytes, name: str, value: str) -> bytes:
    """The same container with one more entry in its header, which every reader of Avro ignores.

    With it, two writers of equal records write different bytes.
    """
    start = MAGIC + _long(1)
    assert body.startswith(start), "only a container of `encode` has one entry in its header"
    entry = _bytes(name.encode()) + _bytes(value.encode())
    return MAGIC + _long(2) + entry + body[len(start) :]


def is_stamped(body: bytes, name: str) -> bool:
    """Whether `stamp` gave it an entry of this name."""
    return body.startswith(MAGIC + _long(2) + _bytes(name.encode()))


def _bytes(value: bytes) -> bytes:
    return _long(len(value)) + value


def _long(value: int) -> bytes:
    """A number that is not negative in Avro's variable-length zigzag form."""
    rest, out = value << 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])
