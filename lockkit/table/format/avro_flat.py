"""The rows of an Avro block in columns, by numpy, if no field is nested: in loops over all rows.

A record's length stands before it. So the records are found from many places of the block at one
time, and each begins where the one before it ends. polars is not asked about a damaged block: it
prints a panic before Python hears of it.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockkit.table.format.log_blocks import SCHEMA, Block

if TYPE_CHECKING:
    import pyarrow as pa

WALK = 64
"""Records between two places from which the lengths are followed at one time."""
WALKS_MAX = 16 * WALK
ALIKE_BYTES = 8
"""The records of a block begin with these same bytes: the month of their commits' instants."""
FIRST = 8
"""A block begins with its version and the number of records."""
TEXTS = ("string", "bytes")
WIDTHS = {"float": 4, "double": 8}
TIMES = {"timestamp-micros": "UTC", "local-timestamp-micros": None}


def by_numpy(block: Block, names: Sequence[str]) -> pa.Table | None:
    """The named columns that the block has; None if another decoder is to do it.

    Raises a `LookupError` or `ValueError` for a block that cannot be read.
    """
    try:
        import numpy as np
    except ImportError:
        return None
    import pyarrow as pa

    fields = json.loads(block.header[SCHEMA])["fields"]
    kinds = [each for field in fields if (each := _kind(field["type"])) is not None]
    data = np.frombuffer(block.content, np.uint8)
    count = struct.unpack_from(">i", block.content, 4)[0]
    empty = not count and len(data) == FIRST
    if len(kinds) < len(fields) or empty or len(data) >= 1 << 31:
        return None
    if not 0 < count <= (len(data) - FIRST) // 4:
        raise ValueError(f"says that it has {count} records, which do not fit into it")
    begins = _met(block.content, count)
    if begins is None:
        begins = _one_by_one(block.content, count)
    found, at = {}, begins + 4
    for field, (kind, null, typed) in zip(fields, kinds, strict=True):
        values, valid, at = _values(data, at, kind, null)
        found[field["name"]] = (values, valid, typed)
    if (at[:-1] != begins[1:]).any() or at[-1] != len(data):
        raise ValueError("its records have other lengths than it says")
    return pa.table({name: _column(data, *found[name]) for name in names if name in found})


def _kind(kind: Any) -> tuple[str, int | None, Any] | None:
    """A plain type, which branch of its union is null, and its type in Arrow; None: another one."""
    import pyarrow as pa

    null = None
    if isinstance(kind, list):
        if len(kind) != 2 or "null" not in kind:
            return None
        null = kind.index("null")
        kind = kind[1 - null]
    logical = ""
    if isinstance(kind, dict):
        kind, logical = kind["type"], kind.get("logicalType", "")
    if (kind, logical) == ("int", "date"):
        return "int", null, pa.date32()
    if kind == "long" and logical in TIMES:
        return "long", null, pa.timestamp("us", TIMES[logical])
    known = {
        "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
        "double": pa.float64(), "string": pa.string(), "bytes": pa.binary(),
    }  # fmt: skip
    return (kind, null, known[kind]) if not logical and str(kind) in known else None


def _met(content: Any, count: int) -> Any:
    """Where the length of each record stands; None if the walks do not meet each other.

    No byte is searched twice, and no more places are kept than the block has records.
    """
    import numpy as np

    size = len(content)
    step = WALK * size // count + 1
    alike = re.compile(re.escape(bytes(content[FIRST + 4 : FIRST + 4 + ALIKE_BYTES])))
    starts = [FIRST]
    while (pos := starts[-1] + step + 4) < size and (there := alike.search(content, pos)):
        starts.append(there.start() - 4)
    lengths = np.ndarray(size - 3, ">u4", content, 0, (1,))  # one from each byte on
    at, ends, walks, found = np.array(starts), np.array([*starts[1:], size]), list[Any](), 0
    while len(at):
        found += len(at)
        if len(walks) == WALKS_MAX or found > count:
            return None
        walks.append(at)
        at = at + lengths[np.minimum(at, size - 4)] + np.int64(4)
        if (at > ends).any():
            return None
        on = at < ends
        at, ends = at[on], ends[on]
    return np.sort(np.concatenate(walks)) if found == count else None


def _one_by_one(content: Any, count: int) -> Any:
    import numpy as np

    at, found = FIRST, list[int]()
    while len(found) < count and at <= len(content) - 4:
        (length,) = struct.unpack_from(">i", content, at)
        if length < 0:
            raise ValueError("says that a record has a negative length")
        found.append(at)
        at += 4 + length
    if len(found) != count or at != len(content):
        raise ValueError(f"says that it has {count} records, which do not fit into it")
    return np.array(found)


def _values(data: Any, at: Any, kind: str, null: int | None) -> tuple[Any, Any, Any]:
    """A field's values, or the places of its texts; which there are, or None; where they end."""
    import numpy as np

    if null is None:
        values, at = _plain(data, at, kind)
        return values, None, at
    branch, at = data[at], at + 1
    valid = branch == 2 - 2 * null
    if valid.all():
        values, at = _plain(data, at, kind)
        return values, None, at
    if (branch & 0xFD).any():
        raise ValueError("has a value of no type of its column")
    there = np.flatnonzero(valid)
    some, ends = _plain(data, at[there], kind)
    if kind in TEXTS:
        begins, at = at.copy(), at
        begins[there], at[there] = some[0], ends
        return (begins, at), valid, at
    values = np.zeros(len(at), some.dtype)
    values[there], at[there] = some, ends
    return values, valid, at


def _plain(data: Any, at: Any, kind: str) -> tuple[Any, Any]:
    import numpy as np

    if kind in WIDTHS:
        words = np.ndarray(len(data) - WIDTHS[kind] + 1, f"<f{WIDTHS[kind]}", data, 0, (1,))
        return words[at], at + WIDTHS[kind]
    if kind == "boolean":
        if (data[at] > 1).any():
            raise ValueError("has a value that is not true or false")
        return data[at] == 1, at + 1
    number, at = _numbers(data, at)
    if kind in TEXTS:
        if len(at) and not 0 <= number.min() <= number.max() <= len(data):
            raise ValueError("has a text that ends behind it")
        return (at, at + number), at + number
    if kind == "int":
        if (number != number.astype(np.int32)).any():
            raise ValueError("has a number that its column cannot have")
        number = number.astype(np.int32)
    return number, at


def _numbers(data: Any, at: Any) -> tuple[Any, Any]:
    """Numbers of a variable length: the lowest seven bits first, and the sign in the lowest."""
    import numpy as np

    byte = data[at]
    found, at, shift = (byte & 0x7F).astype(np.uint64), at + 1, 7
    more = np.flatnonzero(byte > 0x7F)
    while len(more):
        byte = data[at[more]]
        if shift == 63 and (byte > 1).any():
            raise ValueError("has a number of more than 64 bits")
        found[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[more] += 1
        more, shift = more[byte > 0x7F], shift + 7
    return (found >> np.uint64(1)).view(np.int64) ^ -(found & np.uint64(1)).view(np.int64), at


def _column(data: Any, values: Any, valid: Any, typed: pa.DataType) -> pa.Array:
    """Texts are every second one of the strings into which they cut the block."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(values, tuple):
        return pa.array(values, mask=None if valid is None else ~valid).cast(typed)
    cuts = np.stack(values, 1).astype(np.int32).ravel()
    every = pa.Array.from_buffers(
        pa.binary(), len(cuts) - 1, [None, pa.py_buffer(cuts), pa.py_buffer(data)]
    )
    texts = every.take(pa.array(np.arange(0, len(cuts), 2))).view(typed)
    texts.validate(full=True)
    return texts if valid is None else pc.if_else(pa.array(valid), texts, pa.scalar(None, typed))
