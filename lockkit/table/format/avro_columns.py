"""The rows of an Avro block in columns, by polars if it is installed (the extra `polars`).

polars decodes and encodes an Avro file in compiled code, many times faster than row by row. In a
block Hudi puts a record's length before it: to polars it is one more field of four bytes. Maps and
enums are left to fastavro, and nested columns and decimals when they are written. Flat blocks are
read by `avro_flat`, in half of the time.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockkit.table.format.avro import SYNC_BYTES, container
from lockkit.table.format.avro_decoding import read_long
from lockkit.table.format.log_blocks import SCHEMA, Block

if TYPE_CHECKING:
    import pyarrow as pa

PLAIN = frozenset({"null", "boolean", "int", "long", "float", "double", "string", "bytes"})
LOGICAL = frozenset({
    "date", "decimal", "timestamp-micros", "timestamp-millis", "local-timestamp-micros",
})  # fmt: skip
LENGTH = "_lockkit_length"
LENGTH_FIELD = {"name": LENGTH, "type": {"type": "fixed", "name": LENGTH, "size": 4}}
VARINT_ENDS = [1 << 7 * n for n in range(1, 10)]
"""From which numbers on a variable-length number takes one byte more."""


def by_polars(block: Block, names: Sequence[str]) -> pa.Table | None:
    """The named columns that the block has; None if polars is missing or cannot decode them."""
    schema = json.loads(block.header[SCHEMA])
    if not _decodes(schema):
        return None
    try:
        import polars
        from polars.exceptions import PanicException, PolarsError
    except ImportError:
        return None
    there = {each["name"] for each in schema["fields"]}
    _version, count = struct.unpack_from(">ii", block.content, 0)
    if not 0 <= count <= len(block.content) // 4:  # polars reserves memory for them all, or aborts
        raise ValueError(f"says that it has {count} records, which do not fit into it")
    described = json.dumps(schema | {"fields": [LENGTH_FIELD, *schema["fields"]]}).encode()
    file = container(described, count, memoryview(block.content)[8:], bytes(SYNC_BYTES))
    wanted = [LENGTH, *(each for each in names if each in there)]
    try:
        found = polars.read_avro(io.BytesIO(file), columns=wanted).to_arrow()
    except (PolarsError, PanicException) as error:
        raise ValueError(f"a record ends behind its block, or is none: {str(error)[:60]}") from None
    lengths = b"".join(found[LENGTH].to_pylist())
    if sum(struct.unpack(f">{count}i", lengths)) + len(lengths) + 8 != len(block.content):
        raise ValueError("its records have other lengths than it says")
    return found.drop_columns([LENGTH])


def encoded(rows: pa.Table) -> memoryview | None:
    """All rows as the records of an Avro block; None if polars cannot encode them, or is missing.

    Each column is a union of null and its type, and has that one as Avro does: times as numbers.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    plain = (pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(),
             pa.binary())  # fmt: skip
    if not rows.num_rows or any(each.type not in plain for each in rows.schema):
        return None
    try:
        import numpy as np
        import polars
    except ImportError:
        return None
    out = io.BytesIO()
    frame = polars.from_arrow(rows.combine_chunks())
    assert isinstance(frame, polars.DataFrame)
    frame.rechunk().write_avro(out)
    sizes = sum(_sizes(each.combine_chunks()) for each in rows.columns)
    sync = out.getvalue()[-SYNC_BYTES:]
    out.seek(out.getvalue().index(sync) + SYNC_BYTES)
    if read_long(out) != rows.num_rows or read_long(out) != sizes.sum():
        return None  # polars has written several blocks, or otherwise than is known
    begins = np.append(0, np.cumsum(sizes))
    if begins[-1] + 4 * len(sizes) >= 1 << 31:
        return None
    fours = np.arange(0, 4 * len(sizes) + 1, 4, dtype=np.int32)
    records, lengths = (
        pa.Array.from_buffers(pa.binary(), len(sizes), [None, *map(pa.py_buffer, each)])
        for each in ((begins.astype(np.int32), out.read()), (fours, sizes.astype(">i4")))
    )
    joined = pc.binary_join_element_wise(lengths, records, b"")
    return memoryview(joined.buffers()[2]).cast("B")[: begins[-1] + 4 * len(sizes)]


def _sizes(column: Any) -> Any:
    """How many bytes each value takes, with the number of its type in the union."""
    import numpy as np
    import pyarrow.compute as pc
    import pyarrow.types as is_

    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if is_.is_boolean(column.type):
        return valid + np.int64(1)
    if not is_.is_integer(column.type) and is_.is_primitive(column.type):
        return valid * np.int64(column.type.bit_width // 8) + 1
    text = not is_.is_integer(column.type)
    values = pc.fill_null(pc.binary_length(column) if text else column, 0).to_numpy()
    values = values.astype(np.int64)
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    ends = np.array(VARINT_ENDS, np.uint64)
    number = np.searchsorted(ends, zigzag, side="right") + np.int64(1)
    return 1 + valid * (number + (values if text else 0))


def _decodes(kind: Any) -> bool:
    """Whether this is a type that polars is known to decode as Hudi writes it."""
    if isinstance(kind, list):
        return len(kind) == 2 and "null" in kind and all(map(_decodes, kind))
    if isinstance(kind, str):
        return kind in PLAIN
    if kind["type"] == "record":
        return all(_decodes(each["type"]) for each in kind["fields"])
    if kind["type"] == "array":
        return _decodes(kind["items"])
    if "logicalType" in kind:
        known = kind["type"] in ("int", "long", "bytes") or kind.get("size", 17) <= 16
        return kind["logicalType"] in LOGICAL and known
    return isinstance(kind["type"], str) and kind["type"] in PLAIN
