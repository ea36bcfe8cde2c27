"""The rows of an Avro block in columns, by polars if it is installed (the extra `polars`).

polars decodes an Avro file in compiled code, several times faster than row by row. A block becomes
such a file when its records get another frame. polars has no maps and no enums: blocks with these
are decoded row by row.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockkit.table.format.avro import SYNC_BYTES, container
from lockkit.table.format.log_blocks import SCHEMA, Block

if TYPE_CHECKING:
    import pyarrow as pa

PLAIN = frozenset({"null", "boolean", "int", "long", "float", "double", "string", "bytes"})
LOGICAL = frozenset({
    "date", "decimal", "timestamp-micros", "timestamp-millis", "local-timestamp-micros",
})  # fmt: skip
_LENGTH = struct.Struct(">i").unpack_from


def by_polars(block: Block, names: Sequence[str]) -> pa.Table | None:
    """The named columns that the block has; None if polars is missing or cannot decode them."""
    schema = json.loads(block.header[SCHEMA])
    if not _decodes(schema):
        return None
    try:
        import polars
    except ImportError:
        return None
    there = {each["name"] for each in schema["fields"]}
    file = io.BytesIO(_as_file(block))
    found = polars.read_avro(file, columns=[each for each in names if each in there])
    return found.to_arrow()


def _decodes(kind: Any) -> bool:
    """Whether this is a type that polars is known to decode as Hudi writes it."""
    if isinstance(kind, list):
        return len(kind) <= 2 and all(map(_decodes, kind))
    if isinstance(kind, str):
        return kind in PLAIN
    if kind["type"] == "record":
        return all(_decodes(each["type"]) for each in kind["fields"])
    if kind["type"] == "array":
        return _decodes(kind["items"])
    if "logicalType" in kind:
        return kind["logicalType"] in LOGICAL and kind["type"] in ("int", "long", "bytes", "fixed")
    return isinstance(kind["type"], str) and kind["type"] in PLAIN


def _as_file(block: Block) -> bytes:
    """The records as the only block of an Avro file, without Hudi's length before each of them."""
    _version, count = struct.unpack_from(">ii", block.content, 0)
    at, records, content = 8, [], memoryview(block.content)
    for _ in range(count):
        end = at + 4 + _LENGTH(content, at)[0]
        if not at + 4 <= end <= len(content):
            raise ValueError("a record ends behind its block")
        records.append(content[at + 4 : end])
        at = end
    return container(block.header[SCHEMA].encode(), count, b"".join(records), bytes(SYNC_BYTES))
